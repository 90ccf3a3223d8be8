"""Marks in a prompt, and what they attach: ``@df``, ``@fig``, ``@Out[5]``, ``@Err``, ``@cell:ID``, ``@file:path``.

Theory of operation
-------------------
The text of a prompt is sent byte for byte; a mark stays in it, and what it names is attached after
the text. A mark begins at the start of a word (after white space, an opening bracket or a comma),
so that e-mail addresses, ``git@host``, JSON-LD keys in quotes and package scopes are none; inside
back-quoted code there are none; a decorator, which is a line of its own above ``def`` or ``class``,
is none. ``@@df`` is a mark escaped: one ``@`` goes, and nothing is attached; ``@@`` before anything that
is no mark (a diff's ``@@ -1 +1 @@``) stays as it is. Unknown names stay text, with one warning.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from traceback import FrameSummary
from typing import Any

from kit_jupyter.errors import UsageError
from kit_jupyter.jupyter.record import CellRecord, RanCell
from kit_jupyter.messages import MediaPart, Part, TextPart, text_of

__all__ = ["Attached", "Attachments", "Marks", "cells_text", "notebook_text", "select_cells"]

_MARK = re.compile(
    r"(?:(?<=[\s(\[,;])|^)(@{1,2})"
    r"(?P<mark>cell:[\w#-]+|file:(?:\"[^\"\n]+\"|[^\s,;\"')\]}>]+)|Out\[\d+\]|In\[\d+\]|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)"
    r"(?![\w@/-])",
    re.MULTILINE,
)
_CODE = re.compile(r"^ {0,3}(`{3,}|~{3,}).*?(?:^ {0,3}\1[`~]*[ \t]*$|\Z)|(?<!`)(`+)(?!`).+?(?<!`)\2(?!`)", re.M | re.S)
_DECORATED = re.compile(r"[ \t]*(?:async[ \t]+def|def|class)\b")
DEPTH = 8  # of a dotted mark
FILE_LIMIT = 100_000

Describe = Callable[..., tuple[Part, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """One attached thing: its mark, and exactly what is sent for it."""

    mark: str
    kind: str
    parts: tuple[Part, ...]

    @property
    def size(self) -> str:
        """For a chip: characters, or the size of a picture."""
        characters = sum(len(part.text) for part in self.parts if isinstance(part, TextPart))
        media = sum(len(part.data) * 3 // 4 for part in self.parts if isinstance(part, MediaPart))
        words = [f"{characters:,} characters"] if characters else []
        words += [f"{media / 1000:,.0f} kB"] if media else []
        return ", ".join(words) or "empty"

    @property
    def preview(self) -> str:
        """What is sent, pictures by name."""
        shown = [part.text for part in self.parts if isinstance(part, TextPart)]
        shown += [f"[{p.media_type} {p.name}]".strip() for p in self.parts if isinstance(p, MediaPart)]
        return "\n".join(shown)

    def chip(self) -> dict[str, Any]:
        """For a view."""
        return {"mark": self.mark, "kind": self.kind, "size": self.size, "preview": self.preview}


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachments:
    """A prompt's text as it is sent, what is attached to it, and names that were no marks."""

    text: str
    attached: tuple[Attached, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def parts(self) -> tuple[Part, ...]:
        """All parts to send after the text."""
        return tuple(part for one in self.attached for part in one.parts)

    @property
    def chips(self) -> tuple[dict[str, Any], ...]:
        """For views."""
        return tuple(one.chip() for one in self.attached)

    @property
    def warning(self) -> str:
        """One line about unknown names, or empty."""
        if not self.unknown:
            return ""
        why: dict[str, list[str]] = {}
        for name in self.unknown[:5]:
            why.setdefault(_reason(name), []).append("@" + name)
        words = [f"{', '.join(names)}: {reason}" for reason, names in why.items()]
        return "; ".join(words) + (" …" if len(self.unknown) > 5 else "") + "; left as text"


def _reason(mark: str) -> str:
    """Why a mark names nothing."""
    numbered = re.fullmatch(r"(Out|In)\[(\d+)\]", mark)
    if numbered:
        return f"cell {numbered[2]} has {'no output' if numbered[1] == 'Out' else 'not run'} in this kernel"
    if mark.startswith("cell:"):
        return "no such cell has run in this kernel"
    if mark.partition(".")[0] in ("fig", "plot"):
        return "no figure has been drawn yet"
    return "no cell has failed yet" if mark == "Err" else "no such variable"


class Marks:
    """Finds marks and makes what they attach.

    Parameters
    ----------
    names : mapping
        The user's namespace, live.
    record : CellRecord
    describe : callable(obj, name) -> tuple of Part
        `Kit.describe`: a bounded description of an object.
    hidden : mapping or None
        Names that are the shell's own, not shown in completion.
    """

    def __init__(
        self, names: dict[str, Any], record: CellRecord, describe: Describe, hidden: dict[str, Any] | None = None
    ) -> None:
        self._names = names
        self._hidden = hidden or {}
        self._record = record
        self._describe = describe

    def read(self, text: str) -> Attachments:
        """The marks of a prompt.

        Raises
        ------
        UsageError
            For a file that is not there, or that is no text and no picture.
        """
        if "@" not in text:
            return Attachments(text=text)
        decorators = _decorator_lines(text)
        code = [(m.start(), m.end()) for m in _CODE.finditer(text)] if "`" in text or "~~~" in text else []
        attached: dict[str, Attached] = {}
        unknown: dict[str, None] = {}
        out: list[str] = []
        at = 0
        for found in _MARK.finditer(text):
            start = found.start()
            if any(a <= start < b for a, b in code) or found.start() in decorators:
                continue
            made: Attached | None
            if found[1] == "@@" and found["mark"].startswith("file:"):
                mark, made = found["mark"], Attached(mark=found["mark"], kind="file", parts=())
            else:
                mark, made = self._longest(found["mark"])
            if found[1] == "@@":
                if made is not None or mark in attached:
                    out.append(text[at:start])
                    at = start + 1
                continue
            if made is None:
                unknown.setdefault(found["mark"])
            else:
                attached.setdefault(mark, made)
        out.append(text[at:])
        return Attachments(text="".join(out), attached=tuple(attached.values()), unknown=tuple(unknown))

    def _longest(self, mark: str) -> tuple[str, Attached | None]:
        """The mark, or the longest front of a dotted one that names something (``@df.Then`` …)."""
        if not mark.startswith("file:"):
            mark = ".".join(mark.split(".")[:DEPTH])
        while True:
            made = self.attach(mark)
            if made is not None or "." not in mark or mark.startswith("file:"):
                return mark, made
            mark = mark.rpartition(".")[0]

    def attach(self, mark: str) -> Attached | None:
        """What `mark` attaches; None when it names nothing."""
        head, colon, tail = mark.partition(":")
        if colon and head == "file":
            return self._file(mark, tail.strip('"'))
        if colon and head == "cell":
            cell = self._record.find(tail)
            return None if cell is None else Attached(mark=mark, kind="cell", parts=(_cell_part(cell),))
        numbered = re.fullmatch(r"(Out|In)\[(\d+)\]", mark)
        if numbered:
            return self._numbered(mark, numbered[1], int(numbered[2]))
        if mark == "Err":
            return self._error()
        first, *rest = mark.split(".")
        if first in self._names and self._hidden.get(first, self) is not self._names[first]:
            value = self._names[first]
            for name in rest:
                try:
                    value = getattr(value, name)
                except Exception:  # a property of the user's object may raise anything
                    return None
            return self._object(mark, value)
        if mark in ("fig", "plot"):
            return self._figure(mark)
        return None

    def _object(self, mark: str, value: Any) -> Attached:
        parts = self._describe(value, mark)
        return Attached(mark=mark, kind=type(value).__name__, parts=_wrapped(mark, parts))

    def _figure(self, mark: str) -> Attached | None:
        import sys

        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is not None and pyplot.get_fignums():
            return self._object(mark, pyplot.gcf())
        picture = self._record.last_picture()
        if picture is None:
            return None
        return Attached(mark=mark, kind="figure", parts=_wrapped(mark, (_png(picture, mark),)))

    def _numbered(self, mark: str, kind: str, number: int) -> Attached | None:
        if kind == "In":
            history = self._names.get("In") or self._names.get("_ih") or []
            if not 0 < number < len(history):
                return None
            return Attached(mark=mark, kind="code", parts=_wrapped(mark, (TextPart(str(history[number])),)))
        out = self._names.get("_oh") or {}
        if number in out:
            return self._object(mark, out[number])
        bundles = self._record.outputs_of(number) or [
            bundle for cell in self._record if cell.number == number for bundle in cell.outputs
        ]
        parts: list[Part] = []
        for bundle in bundles:
            if isinstance(bundle.get("image/png"), str):
                parts.append(_png(bundle["image/png"], mark))
            elif "stream" in bundle or "text/plain" in bundle:
                text = bundle.get("stream") or bundle.get("text/plain")
                parts.append(TextPart(_clip("".join(text) if isinstance(text, list) else str(text))))
        return Attached(mark=mark, kind="output", parts=_wrapped(mark, tuple(parts))) if parts else None

    def _error(self) -> Attached | None:
        cell = self._record.last_error
        if cell is None or cell.error is None:
            return None
        return Attached(mark="Err", kind="error", parts=_wrapped("Err", (TextPart(error_text(cell)),)))

    def _file(self, mark: str, name: str) -> Attached:
        path = Path(os.path.expanduser(name))
        if not path.is_file():
            raise UsageError(f"there is no file {name!r} (from {Path.cwd()}); @@file: says it without attaching")
        from kit_jupyter.media import as_part

        raw = path.read_bytes()
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            part = as_part(path)
            return Attached(mark=mark, kind="file", parts=_wrapped(mark, (part,)))
        return Attached(mark=mark, kind="file", parts=_wrapped(mark, (TextPart(_clip(text, FILE_LIMIT)),)))

    def names(self, begin: str) -> list[str]:
        """Marks that begin so, for completion: own data first."""
        import types

        hidden = self._hidden
        found = [
            (callable(value), name)
            for name, value in list(self._names.items())
            if not name.startswith("_") and name not in hidden and not isinstance(value, types.ModuleType)
        ]
        mine = [name for _, name in sorted(found)]  # data first, then what can be called
        fixed = ["fig", "Err", "file:", "cell:"]
        fixed += [f"Out[{number}]" for number in list(self._names.get("_oh") or {})[-5:]]
        if begin.startswith("cell:"):
            fixed = [f"cell:{cell.cell_id}" for cell in self._record]
        return [name for name in [*mine, *fixed] if name.startswith(begin) and name != begin]


def _decorator_lines(text: str) -> set[int]:
    """Where lines of decorators have their ``@``: they stand right above a ``def`` or ``class``."""
    found: set[int] = set()
    at, above = len(text), False
    for line in reversed(text.split("\n")):
        at -= len(line)
        bare = line.lstrip()
        if bare.startswith("@"):
            if above:
                found.add(at + len(line) - len(bare))
        else:
            above = bool(_DECORATED.match(line))
        at -= 1
    return found


def error_text(cell: RanCell) -> str:
    """Source and traceback of a cell that failed; the kernel's own frames are left out."""
    import traceback

    error = cell.error
    assert error is not None
    lines = ["".join(_frames(traceback.extract_tb(error.__traceback__))), *traceback.format_exception_only(error)]
    # No number: it differs from run to run, and what is sent must not.
    head = f"The cell that failed:\n{cell.source.rstrip()}\n\nTraceback (most recent call last):\n"
    return _clip(head + "".join(lines).rstrip())


def _frames(frames: Iterable[FrameSummary]) -> Iterator[str]:
    """A traceback's lines without folders of this machine: cells whole, libraries by file and function."""
    library: list[str] = []
    for frame in frames:
        path = frame.filename.replace("\\", "/")
        if "/IPython/core/" in path or "/ipykernel/" in path:
            continue
        if re.search(r"/ipykernel_\d+/|^<ipython-input|^<kit", path):
            yield from library[-3:]
            library.clear()
            yield f"  In a cell, line {frame.lineno}, in {frame.name}\n    {frame.line}\n"
        elif "/site-packages/" in path or re.search(r"/python3[.\d]*/", path):
            short = re.split(r"/site-packages/|/python3[.\d]*/", path)[-1]
            library.append(f'  File "{short}", in {frame.name}\n')
        else:
            yield from library[-3:]
            library.clear()
            short = os.path.relpath(path) if os.path.isabs(path) else path
            yield f'  File "{short}", line {frame.lineno}, in {frame.name}\n    {frame.line}\n'
    yield from library[-3:]


def _clip(text: str, limit: int = 20_000) -> str:
    from kit_jupyter.printed import clip

    return clip(text, limit)


def _png(data: str, name: str) -> MediaPart:
    return MediaPart("image/png", data.replace("\n", ""), name)


def _wrapped(mark: str, parts: tuple[Part, ...]) -> tuple[Part, ...]:
    text = text_of(parts)
    media = tuple(part for part in parts if isinstance(part, MediaPart))
    words = f'<attached mark="@{mark}">\n{text}\n</attached>' if text else f'<attached mark="@{mark}"/>'
    return (TextPart(words), *media)


def _cell_part(cell: RanCell) -> TextPart:
    return TextPart(cells_text([cell]))


def cells_text(cells: list[RanCell]) -> str:
    """Compact text form of cells: source, then output, each under the cell's number and id."""
    out = []
    for cell in cells:
        shown = f'<cell number="{cell.number}" id="{cell.cell_id}">\n{cell.source.rstrip()}\n'
        output = _clip(cell.output_text, 4000)
        if output:
            shown += f"<output>\n{output}\n</output>\n"
        if cell.error is not None:
            shown += f"<error>{type(cell.error).__name__}: {cell.error}</error>\n"
        out.append(shown + "</cell>")
    return "\n".join(out)


def select_cells(record: CellRecord, which: str, *, here: str = "") -> list[RanCell]:
    """Cells by ``none``, ``above``, ``all``, numbers (``3``, ``3-7``) or ids, joined by commas.

    Parameters
    ----------
    here : str
        Id of the cell that asks; it is left out, and ``above`` ends before it.

    Raises
    ------
    UsageError
        For a word that names no cell.
    """
    cells = list(record)
    which = which.strip()
    if which in ("", "none"):
        return []
    if which == "all":
        return [cell for cell in cells if cell.cell_id != here and not cell.is_prompt]
    if which == "above":
        ids = [cell.cell_id for cell in cells]
        end = ids.index(here) if here in ids else len(cells)
        return [cell for cell in cells[:end] if not cell.is_prompt]
    chosen: list[RanCell] = []
    for word in which.split(","):
        word = word.strip()
        span = re.fullmatch(r"(\d+)(?:-(\d+))?", word)
        if span:
            first, last = int(span[1]), int(span[2] or span[1])
            found = [cell for cell in cells if first <= cell.number <= last]
        else:
            one = record.find(word.removeprefix("cell:"))
            found = [one] if one is not None else []
        if not found:
            raise UsageError(f"--context: no cell {word!r} has run here; none, above, all, 3-7 or cell ids")
        chosen += [cell for cell in found if cell not in chosen]
    return chosen


def notebook_text(cells: list[RanCell]) -> str:
    """What is sent of a notebook: its cells under one tag."""
    return f"<notebook>\n{cells_text(cells)}\n</notebook>" if cells else ""
