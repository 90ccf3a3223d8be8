"""The page of environment variables: all that the code reads, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Ours alone: said to children, or a mark in what they print.
INNER = {"KIT_LLAMA_KEY", "KIT_SHELL_CALL"}


def test_the_page_names_each_variable_that_is_read() -> None:
    """U74, U120: whoever sets up a machine finds every variable, and none that does nothing."""
    code = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "kit_jupyter").rglob("*.py")))
    read = set(re.findall(r"[\"'`]{1,2}(KIT_[A-Z0-9_]*[A-Z0-9])(?:[\"'`=]|=)", code)) - INNER
    page = set(
        re.findall(r"`(KIT_[A-Z0-9_]*[A-Z0-9])`", (ROOT / "docs" / "environment.md").read_text(encoding="utf-8"))
    )
    of_a_provider = re.compile(r"KIT_[A-Z0-9_]+_(API_KEY|BASE_URL|HEADERS|PROXY|CA_BUNDLE)")

    assert {name for name in read - page if not of_a_provider.fullmatch(name)} == set()
    assert {name for name in page - read if not of_a_provider.fullmatch(name)} == set()
