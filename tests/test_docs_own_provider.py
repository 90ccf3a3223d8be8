"""The page on one's own provider runs as it is written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "own-provider.md"


def test_the_page_s_provider_answers(tmp_path: Path) -> None:
    """The code of the page, in a process of its own, with nothing added."""
    code = PAGE.read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]

    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PAGE.parents[1], capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "hello there"
