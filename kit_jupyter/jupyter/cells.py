"""Which notebook and cell a turn belongs to."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from pathlib import PurePath
from typing import Any

from kit_jupyter.jupyter.shell import Parent
from kit_jupyter.messages import CellRef

__all__ = ["CellFinder", "notebook_name", "notebook_path"]


def notebook_path(ip: Any) -> str:
    """The notebook's file as far as the server or the editor told it, else empty."""
    for path in (os.environ.get("JPY_SESSION_NAME"), ip.user_ns.get("__vsc_ipynb_file__")):
        if isinstance(path, str) and path:
            return path
    return ""


def notebook_name(ip: Any) -> str:
    """File name of the notebook as far as the server or the editor told it, else empty."""
    return PurePath(notebook_path(ip)).name


class CellFinder:
    """Names cells; one per shell.

    Theory of operation
    -------------------
    A front end that knows cells sends the cell's id with each execution; it survives moves and
    edits. Without one, a cell is named by a hash of its text and how often that text ran: such a
    name is weak, and two runs of one text are two cells, because nobody can tell a second run from
    a second cell with the same words.
    """

    def __init__(self) -> None:
        self._runs: Counter[str] = Counter()

    def find(self, ip: Any, parent: Parent, text: str) -> CellRef:
        """The cell whose execution is `parent`; `text` is its prompt."""
        metadata = parent.get("metadata") or {}
        cell_id = metadata.get("cellId") if isinstance(metadata, dict) else None
        notebook = notebook_name(ip)
        if isinstance(cell_id, str) and cell_id:
            return CellRef(notebook, cell_id)
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        self._runs[digest] += 1
        return CellRef(notebook, f"{digest}-{self._runs[digest]}", weak=True)
