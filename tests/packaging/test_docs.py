"""The documentation builds, says nothing that is not so, and links to what is there (issue 9.6)."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="the extra docs is not installed")
def test_the_site_builds_strictly(tmp_path: Path) -> None:
    """mkdocs --strict: no broken link, no page outside the menu, the reference made from docstrings."""
    site = tmp_path / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    reference = (site / "reference" / "index.html").read_text()
    for name in ("Kit", "PromptOptions", "Session", "PartialObject", "map_rows", "BatchOptions", "ScriptedProvider"):
        assert f"{name}</code>" in reference or f">{name}<" in reference, name


def test_every_page_is_in_the_menu() -> None:
    """A page that nobody finds is not written."""
    menu = (ROOT / "mkdocs.yml").read_text()

    assert [page.name for page in DOCS.rglob("*.md") if page.relative_to(DOCS).as_posix() not in menu] == []


def test_the_readme_links_to_what_is_there() -> None:
    """Each relative link of the README and of the docs' pages leads to a file."""
    missing = []
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")):
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text()):
            if not (page.parent / target).exists():
                missing.append(f"{page.name}: {target}")

    assert missing == []
