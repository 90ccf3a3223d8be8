"""The documentation builds, says nothing that is not so, and links to what is there (issue 9.6)."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kit_jupyter.providers.registry import ROWS

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
    tutorial = (site / "tutorial" / "04_tools" / "index.html").read_text()
    assert "mean_of" in tutorial
    assert "a small difference" in tutorial
    assert len(list((site / "tutorial").glob("*/index.html"))) == len(list((ROOT / "notebooks").glob("*.ipynb")))
    for name in ("Kit", "PromptOptions", "Session", "PartialObject", "map_rows", "BatchOptions", "ScriptedProvider"):
        assert f"{name}</code>" in reference or f">{name}<" in reference, name


def test_every_page_is_in_the_menu() -> None:
    """A page that nobody finds is not written."""
    menu = (ROOT / "mkdocs.yml").read_text()

    assert [page.name for page in DOCS.rglob("*.md") if page.relative_to(DOCS).as_posix() not in menu] == []


def test_the_page_on_structured_answers_runs(tmp_path: Path) -> None:
    """Its examples, in order, as one script."""
    script = tmp_path / "page.py"
    script.write_text(
        "\n".join(re.findall(r"^```python\n(.*?)^```", (DOCS / "structured.md").read_text(), re.M | re.S))
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["['one', 'two']", "['one', 'two']"]


def test_the_pages_name_what_there_is() -> None:
    """Every magic, setting of the environment, command and option that a page names is in the code."""
    code = "\n".join(path.read_text() for path in (ROOT / "kit_jupyter").rglob("*.py"))
    others = {"--execute", "--nbval", "--nbval-current-env", "--cwd"}  # of other tools
    others |= {"--to", "--template", "--headless", "--no-pdf-header-footer", "--print-to-pdf", "--paths"}
    code += "".join(f"KIT_{row.name.upper().replace('-', '_')}_API_KEY " for row in ROWS)  # made of a provider's name
    unknown = []
    for page in (ROOT / "README.md", *DOCS.rglob("*.md")):
        text = page.read_text()
        unknown += [f"{page.name}: {m}" for m in set(re.findall(r"%%?(kit\w*)", text)) if f"def {m}(self" not in code]
        unknown += [f"{page.name}: {m}" for m in set(re.findall(r"\bKIT_[A-Z0-9_]+\b", text)) if m not in code]
        unknown += [
            f"{page.name}: {m}" for m in set(re.findall(r"`kit-jupyter ([a-z]+)", text)) if f'"{m}"' not in code
        ]
        flags = set(re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", text)) - others
        unknown += [f"{page.name}: {m}" for m in flags if f'"{m}"' not in code]

    assert unknown == []


def test_the_readme_links_to_what_is_there() -> None:
    """Each relative link of the README and of the docs' pages leads to a file."""
    missing = []
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")):
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text()):
            notebook = ROOT / "notebooks" / Path(target).with_suffix(".ipynb").name  # the tutorial is made of them
            if not (page.parent / target).exists() and not ("tutorial/" in target and notebook.exists()):
                missing.append(f"{page.name}: {target}")

    assert missing == []
