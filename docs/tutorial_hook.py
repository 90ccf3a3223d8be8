"""The example notebooks as pages of the site, made while it is built: the tutorial cannot go out of date."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


def on_files(files: Files, config: Any) -> Files:
    """A page for each notebook, with the outputs it was saved with."""
    from nbconvert import MarkdownExporter

    exporter = MarkdownExporter()
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        body, resources = exporter.from_filename(str(path), resources={"output_files_dir": path.stem})
        for name, data in (resources.get("outputs") or {}).items():
            files.append(File.generated(config, f"tutorial/{name}", content=data))
        files.append(File.generated(config, f"tutorial/{path.stem}.md", content=_page(body, path.name)))
    return files


def _page(body: str, name: str) -> str:
    # Between notebooks, links lead to pages; into the docs, to their pages, too.
    body = re.sub(r"\]\((\d\d_\w+)\.ipynb\)", r"](\1.md)", body)
    body = re.sub(r"\]\(\.\./docs/", "](../", body)
    return f"{body}\n\n*This page is the notebook `notebooks/{name}` as it was saved.*\n"
