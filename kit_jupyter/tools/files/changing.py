"""The tools `write` and `edit`: only over what was read and has not changed since, undoable, shown as a diff."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Mapping
from typing import Any, ClassVar

from kit_jupyter.checkpoints import Checkpoints
from kit_jupyter.errors import BadArguments, ToolError
from kit_jupyter.messages import TextPart
from kit_jupyter.printed import clip
from kit_jupyter.tool import ToolContext, ToolOutcome
from kit_jupyter.tools.files.fence import FileTool
from kit_jupyter.tools.files.reading import MAX_READ_BYTES, decoded, spelling
from kit_jupyter.tools.files.replacing import replaced
from kit_jupyter.tools.workspace import Place, digest_of
from kit_jupyter.trifecta import Legs

__all__ = ["EditTool", "WriteTool"]

MAX_WRITE = 5_000_000


class _ChangeTool(FileTool):
    acts: ClassVar[bool] = True

    async def _old(self, context: ToolContext, place: Place) -> bytes | None:
        """The present content, which must be as it was read; None when there is no file."""
        self.workspace.refuse_open_notebook(place)
        if not place.path.exists():
            return None
        raw = await asyncio.to_thread(self.workspace.read, place, MAX_READ_BYTES + 1)
        if len(raw) > MAX_READ_BYTES:
            raise ToolError(f"{place.shown} is larger than 10 MB; change it with python or shell")
        seen = self._seen(context).get(place.path)
        if seen is None:
            raise ToolError(f"read {place.shown} before you change it")
        if seen != digest_of(raw):
            raise ToolError(f"{place.shown} has changed since you read it; read it again")
        return raw

    async def _store(
        self, context: ToolContext, place: Place, old: bytes | None, new: bytes, *, note: str = ""
    ) -> ToolOutcome:
        """Write it, keeping what was there; `note` stands under the diff."""
        checkpoints = Checkpoints.of(context)

        def work() -> None:
            checkpoints.before_file(place.path, context.turn_id)
            self.workspace.write(place, new)
            checkpoints.after_file(place.path, context.turn_id)

        # A stop must not leave the snapshot without the write or the write without its note.
        await _finished(asyncio.to_thread(work))
        self._seen(context)[place.path] = digest_of(new)
        diff = _diff(decoded(old or b"") or "", decoded(new) or "", place.shown)
        added = sum(line.startswith("+") and not line.startswith("+++") for line in diff.splitlines())
        removed = sum(line.startswith("-") and not line.startswith("---") for line in diff.splitlines())
        what = "made" if old is None else "changed"
        text = f"{what} {place.shown} (+{added} -{removed} lines)\n{clip(diff, 4000)}".rstrip()
        return ToolOutcome(
            parts=(TextPart(f"{text}\n{note}" if note else text),),
            details={"path": place.shown, "diff": clip(diff, 100_000), "made": old is None},
        )


async def _finished(work: Any) -> None:
    """Wait for short disk work to its end, also when cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _diff(old: str, new: str, name: str) -> str:
    if len(old) + len(new) > 1_000_000:
        return ""
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), f"a/{name}", f"b/{name}", lineterm="", n=3)
    return "\n".join(lines)


class WriteTool(_ChangeTool):
    """Write whole files."""

    name: ClassVar[str] = "write"
    action: ClassVar[str] = "write"
    legs: ClassVar[Legs] = Legs(private=True)
    bounds: ClassVar[str] = "5 MB; over a file only after reading it; not the open notebook"

    def question(self, place: Place, arguments: Mapping[str, Any]) -> str:
        """With the content."""
        content = str(arguments.get("content", ""))
        verb = "Overwrite" if place.path.exists() else "Make"
        return f"{verb} {place.shown} ({len(content):,} characters)?\n\n{clip(content, 4000)}"

    async def call(self, context: ToolContext, path: str, content: str) -> ToolOutcome:
        """Write a whole text file. To change part of a file use edit. A file that exists must have been read.

        Parameters
        ----------
        path : str
            Relative to the workspace, or absolute; folders are made as needed.
        content : str
            The whole content.
        """
        if len(content) > MAX_WRITE:
            raise BadArguments(f"- content: {len(content):,} characters, at most {MAX_WRITE:,}; write it with python")
        place = self.place(context, path)
        if place.path.is_dir():
            raise ToolError(f"{place.shown} is a folder")
        old = await self._old(context, place)
        return await self._store(context, place, old, content.encode("utf-8", "surrogatepass"))


class EditTool(_ChangeTool):
    """Replace text in files."""

    name: ClassVar[str] = "edit"
    action: ClassVar[str] = "edit"
    legs: ClassVar[Legs] = Legs(private=True)
    bounds: ClassVar[str] = "files to 10 MB, read before; not the open notebook"

    def question(self, place: Place, arguments: Mapping[str, Any]) -> str:
        """With the change as a diff."""
        old, new = str(arguments.get("old", "")), str(arguments.get("new", ""))
        return f"Edit {place.shown}?\n\n{clip(_diff(old, new, place.shown), 4000)}"

    async def call(self, context: ToolContext, path: str, old: str, new: str, replace_all: bool = False) -> ToolOutcome:
        """Replace text in a file that you have read.

        Parameters
        ----------
        path : str
            Relative to the workspace, or absolute.
        old : str
            The text to replace, without line numbers, with enough around it to occur only once.
        new : str
            What stands there afterwards.
        replace_all : bool
            Replace every occurrence.
        """
        place = self.place(context, path)
        raw = await self._old(context, place)
        if raw is None:
            raise ToolError(f"{place.shown} does not exist; use write to make it")
        spelled = spelling(raw)
        if spelled is None:
            raise ToolError(f"{place.shown} is not text; change it with python")
        mark, encoding = spelled
        try:
            text = raw[len(mark) :].decode(encoding)
        except UnicodeDecodeError as exc:
            raise ToolError(f"{place.shown} is broken {encoding} ({exc.reason}); change it with python") from None
        changed, how = replaced(text, old, new, replace_all=replace_all)
        try:
            encoded = mark + changed.encode(encoding)
        except UnicodeEncodeError:
            raise ToolError(f"{place.shown} is {encoding} and cannot hold the new text") from None
        return await self._store(context, place, raw, encoded, note=f"(matched {how})" if how else "")
