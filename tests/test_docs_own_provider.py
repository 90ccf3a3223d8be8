"""The page on one's own provider runs as it is written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from kit_jupyter.errors import RateLimited

PAGE = Path(__file__).parents[1] / "docs" / "own-provider.md"


def test_the_page_s_provider_answers(tmp_path: Path) -> None:
    """The code of the page, in a process of its own, with nothing added."""
    code = PAGE.read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]

    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PAGE.parents[1], capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "hello there"


def _block(word: str) -> str:
    (found,) = [b for b in re.findall(r"^```(?:python)?\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S) if word in b]
    return found


def test_the_page_s_contract_needs_no_other_import() -> None:
    """Everything but the reader's own service and provider is imported there; how pytest must be set up is said."""
    names: dict[str, object] = {}
    exec(compile(_block("CONTRACT"), "own-provider.md", "exec"), names)

    assert callable(names["make"])
    assert callable(names["test_contract"])
    assert "pytest-asyncio" in PAGE.read_text("utf-8")


def test_the_page_s_error_says_whose_it_is() -> None:
    """The contract asks for the provider's name."""
    with pytest.raises(RateLimited) as told:
        exec(compile(_block("RateLimited"), "own-provider.md", "exec"), {})
    assert told.value.provider == "echo"
