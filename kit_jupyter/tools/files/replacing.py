"""Where the text that a model wants replaced stands in a file, also when it was not copied quite right."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable

from kit_jupyter.errors import ToolError
from kit_jupyter.printed import clip

__all__ = ["replaced"]


def replaced(text: str, old: str, new: str, *, replace_all: bool = False) -> tuple[str, str]:
    """`text` with `old` replaced, and how it matched: empty for exactly, else what was overlooked.

    Tried in order: exactly; with the file's line ends; without blanks at line ends; without the common
    indentation (the new text is indented as the place is); with typographic quotes and dashes taken as
    plain ones. Each must fit only once, unless `replace_all`.

    Raises
    ------
    ToolError
        When it fits nowhere (with the nearest lines) or more than once.

    Examples
    --------
    >>> replaced("a = 1\\nb = 2\\n", "a = 1", "a = 3")
    ('a = 3\\nb = 2\\n', '')
    >>> replaced("    a = 1  \\n", "a = 1\\n", "a = 3\\n")[0]
    '    a = 3\\n'
    """
    if not old:
        raise ToolError("old is empty; to make a file use write")
    if old == new:
        raise ToolError("old and new are the same")
    if "\r\n" in text and "\r\n" not in old:
        old, new = old.replace("\n", "\r\n"), new.replace("\r\n", "\n").replace("\n", "\r\n")
    count = text.count(old)
    if count == 1 or (count and replace_all):
        return text.replace(old, new), ""
    if count > 1:
        at = ", ".join(str(text.count("\n", 0, m.start()) + 1) for m in re.finditer(re.escape(old), text))
        raise ToolError(f"old occurs {count} times (lines {at[:100]}); give more around it, or replace_all")
    for fold, how in (
        (str.rstrip, "without blanks at line ends"),
        (str.strip, "without the indentation"),
        (_plain_signs, "with quotes and dashes taken as plain ones"),
    ):
        spans = _line_matches(text, old, fold)
        if len(spans) > 1 and not replace_all:
            at = ", ".join(str(text.count("\n", 0, start) + 1) for start, _ in spans)
            raise ToolError(f"old fits {len(spans)} places {how} (lines {at}); give more around it")
        if spans:
            for start, end in reversed(spans):
                text = text[:start] + _refit(text[start:end], old, new) + text[end:]
            return text, how
    raise ToolError(f"old is not in the file{_nearest(text, old)}")


def _plain_signs(line: str) -> str:
    table = str.maketrans(
        {"“": '"', "”": '"', "„": '"', "‘": "'", "’": "'", "–": "-", "—": "-", "\u00a0": " ", "…": "..."}
    )
    return " ".join(line.translate(table).split())


def _line_matches(text: str, old: str, fold: Callable[[str], str]) -> list[tuple[int, int]]:
    """Spans of whole lines that equal the lines of `old` when folded."""
    lines = text.splitlines(keepends=True)
    wanted = [fold(line) for line in old.splitlines()]
    while wanted and not wanted[0]:
        wanted.pop(0)
    while wanted and not wanted[-1]:
        wanted.pop()
    if not wanted:
        return []
    folded = [fold(line.rstrip("\r\n")) for line in lines]
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    spans: list[tuple[int, int]] = []
    i = 0
    while i + len(wanted) <= len(folded):
        if folded[i : i + len(wanted)] == wanted:
            end = starts[i + len(wanted)]
            if not old.endswith("\n"):  # the last line's end stays
                end -= len(lines[i + len(wanted) - 1]) - len(lines[i + len(wanted) - 1].rstrip("\r\n"))
            spans.append((starts[i], end))
            i += len(wanted)
        else:
            i += 1
    return spans


def _indent(text: str) -> str:
    for line in text.splitlines():
        if line.strip():
            return line[: len(line) - len(line.lstrip())]
    return ""


def _refit(found: str, old: str, new: str) -> str:
    """The new text with the place's indentation instead of the model's."""
    there, given = _indent(found), _indent(old)
    if there == given:
        return new
    out = []
    for line in new.splitlines(keepends=True):
        if line.strip() and line.startswith(given):
            line = there + line[len(given) :]
        out.append(line)
    return "".join(out)


def _nearest(text: str, old: str) -> str:
    lines = text.splitlines()
    first = next((line.strip() for line in old.splitlines() if line.strip()), "")
    if not first or len(lines) > 20_000:
        return "; read it again"
    near = difflib.get_close_matches(first, [line.strip() for line in lines], 1, 0.6)
    if not near:
        return "; read it again"
    number = next(i for i, line in enumerate(lines) if line.strip() == near[0])
    shown = "\n".join(lines[max(0, number - 1) : number + 4])
    return f"; the nearest is line {number + 1}:\n{clip(shown, 600)}"
