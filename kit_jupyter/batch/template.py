"""A prompt with marks for a row's columns; braces in the data and in the text are safe."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from kit_jupyter.errors import UsageError

__all__ = ["Template", "is_missing"]

_MARK = re.compile(r"\{\{|\}\}|\{([^{}\n]+)\}")


class Template:
    """A prompt with marks: ``{column}`` is replaced by the row's value, as it is.

    Only a name of a column between braces is a mark, so JSON and LaTeX in the template stay text and
    braces in the data are never looked at; ``{{`` and ``}}`` stand for single braces.

    Raises
    ------
    UsageError
        If something that looks like a mark names no column (the nearest one is named), or several.

    Examples
    --------
    >>> Template('{"say": 1} {text}', ["text"]).fill({"text": "a {brace}"})
    '{"say": 1} a {brace}'
    """

    def __init__(self, text: str, columns: Sequence[str]) -> None:
        self.columns: list[str] = []
        self._pieces: list[str] = []  # text, column, text, column, …, text
        known = set(columns)
        at, piece = 0, ""
        for mark in _MARK.finditer(text):
            piece += text[at : mark.start()]
            at = mark.end()
            name = mark.group(1)
            if name is None:
                piece += mark.group(0)[0]
            elif columns.count(name) > 1:
                raise UsageError(f"the template names {{{name}}}, and {columns.count(name)} columns are called so")
            elif name in known:
                self._pieces += [piece, name]
                self.columns.append(name)
                piece = ""
            elif name.strip().isidentifier():
                near = difflib.get_close_matches(name, list(known), n=1)
                hint = f"; did you mean {{{near[0]}}}?" if near else ""
                raise UsageError(
                    f"the template names {{{name}}}, which is no column{hint}; columns: "
                    f"{', '.join(columns) or 'none'}; "
                    "write {{ and }} for braces that are text"
                )
            else:
                piece += mark.group(0)
        self._pieces.append(piece + text[at:])

    def fill(self, row: Mapping[str, Any]) -> str:
        """The prompt of one row."""
        return "".join(piece if i % 2 == 0 else _as_text(row[piece]) for i, piece in enumerate(self._pieces))


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else str(value)


def is_missing(value: Any) -> bool:
    """True for None, NaN, NA and NaT."""
    if value is None:
        return True
    if isinstance(value, float):
        return math.isnan(value)
    return type(value).__name__ in ("NAType", "NaTType")
