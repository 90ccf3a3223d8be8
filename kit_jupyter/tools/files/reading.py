"""The tool `read`: text with numbered lines, pictures and PDFs as such, notebooks as cells."""

from __future__ import annotations

import asyncio
import codecs
import json
import re
from typing import ClassVar

from kit_jupyter.errors import ToolError
from kit_jupyter.masking import shortened
from kit_jupyter.messages import MediaPart, Part, TextPart
from kit_jupyter.printed import clip
from kit_jupyter.tool import ToolContext, ToolOutcome
from kit_jupyter.tool_value import media_of
from kit_jupyter.tools.files.fence import MAX_TEXT, FileTool
from kit_jupyter.tools.files.listing import LsTool
from kit_jupyter.tools.workspace import digest_of
from kit_jupyter.trifecta import Legs

__all__ = ["MAX_READ_BYTES", "ReadTool", "decoded", "spelling"]

MAX_READ_BYTES = 10_000_000
MAX_READ_LINES = 2_000
MAX_LINE = 2_000
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class ReadTool(FileTool):
    """Read files."""

    name: ClassVar[str] = "read"
    legs: ClassVar[Legs] = Legs(private=True, untrusted="soft")
    bounds: ClassVar[str] = f"{MAX_READ_LINES:,} lines and {MAX_TEXT:,} characters a call; files to 10 MB"
    default: ClassVar[str] = "allow; outside the workspace or secrets: ask"
    parallel_safe = True

    async def call(self, context: ToolContext, path: str, offset: int = 1, limit: int = MAX_READ_LINES) -> ToolOutcome:
        """Read a file of the workspace. Lines come numbered; pictures and PDFs come as such; notebooks as cells.

        Parameters
        ----------
        path : str
            Relative to the workspace, or absolute.
        offset : int
            First line, from 1.
        limit : int
            How many lines.
        """
        place = self.place(context, path)
        if place.path.is_dir():
            return await LsTool(self.workspace).call(context, path)
        raw = await asyncio.to_thread(self.workspace.read, place, MAX_READ_BYTES + 1)
        if len(raw) > MAX_READ_BYTES:
            raise ToolError(f"{place.shown} is larger than 10 MB; use grep, or python to read a part of it")
        self._seen(context)[place.path] = digest_of(raw)
        picture = media_of(raw, place.path.name)
        if picture is not None:
            return ToolOutcome(parts=(TextPart(f"{place.shown}: {picture.media_type}, {len(raw):,} bytes"), picture))
        text = decoded(raw)
        if text is None:
            raise ToolError(f"{place.shown} is not text ({len(raw):,} bytes, begins with {raw[:16]!r})")
        if place.path.suffix == ".ipynb":
            return ToolOutcome(parts=_notebook(text))
        return ToolOutcome.of_text(_numbered(text, max(1, offset), max(1, limit)))


def spelling(raw: bytes) -> tuple[bytes, str] | None:
    """The mark a text file begins with, and the encoding of what follows; None for what is not text."""
    for mark, encoding in ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be")):
        if raw.startswith(mark):
            return mark, encoding
    if b"\0" in raw[:8000]:
        return None
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return b"", "latin-1"
    return codecs.BOM_UTF8 if raw.startswith(codecs.BOM_UTF8) else b"", "utf-8"


def decoded(raw: bytes) -> str | None:
    """The text of a file, without its mark; None for what is not text."""
    spelled = spelling(raw)
    if spelled is None:
        return None
    mark, encoding = spelled
    return raw[len(mark) :].decode(encoding, "replace")


def _numbered(text: str, offset: int, limit: int) -> str:
    lines = text.split("\n")
    if lines and lines[-1] == "":
        lines.pop()
    if not lines:
        return "(the file is empty)"
    if offset > len(lines):
        return f"(the file has {len(lines):,} lines)"
    out: list[str] = []
    size = 0
    for number, line in enumerate(lines[offset - 1 : offset - 1 + limit], offset):
        shown = line.rstrip("\r")
        shown = shown if len(shown) <= MAX_LINE else f"{shortened(shown, MAX_LINE)}… ({len(shown):,} characters)"
        size += len(shown) + 8
        if size > MAX_TEXT:
            break
        out.append(f"{number:>5}\t{shown}")
    last = offset + len(out) - 1
    if last < len(lines):
        out.append(f"… {len(lines) - last:,} more lines; go on with offset={last + 1}")
    return "\n".join(out)


def _notebook(text: str) -> tuple[Part, ...]:
    """Cells as text with their ids and what they showed; pictures as pictures."""
    try:
        cells = json.loads(text)["cells"]
    except (ValueError, KeyError, TypeError):
        return (TextPart(_numbered(text, 1, MAX_READ_LINES)),)
    parts: list[Part] = []
    for number, cell in enumerate(cells):
        source = "".join(cell.get("source", ""))
        lines = [f"--- cell {number} {cell.get('cell_type')} {cell.get('id', '')}", source]
        pictures: list[MediaPart] = []
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            said = output.get("text") or data.get("text/plain") or output.get("traceback") or ""
            said = "\n".join(said) if output.get("output_type") == "error" else "".join(said)
            if said:
                lines.append(f"[output] {clip(_COLOURS.sub('', said), 2000)}")
            if isinstance(data.get("image/png"), str) and len(pictures) < 4:
                pictures.append(MediaPart("image/png", "".join(data["image/png"]).replace("\n", "")))
        parts.append(TextPart("\n".join(lines) + "\n"))
        parts.extend(pictures)
    whole = "".join(part.text for part in parts if isinstance(part, TextPart))
    if len(whole) > MAX_TEXT:
        return (TextPart(clip(whole, MAX_TEXT)),)
    return tuple(parts) or (TextPart("(a notebook without cells)"),)
