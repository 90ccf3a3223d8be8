"""A root folder for the model's work, where a file is edited only after it was read."""

from __future__ import annotations

import difflib
import hashlib
import os
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kit_jupyter.errors import ToolError
from kit_jupyter.extension import BeforeTool, Configurator, Extension, ExtensionContext
from kit_jupyter.extensions._branch import Place
from kit_jupyter.extensions._tool import GuestTool
from kit_jupyter.messages import TextPart, ToolCallPart
from kit_jupyter.tool import ToolOutcome
from kit_jupyter.trifecta import Legs

__all__ = ["Workspace"]

_LIMIT_BYTES = 2_000_000
_LINES = 2_000


class Workspace(Extension):
    """Keeps the model in a folder, and from editing what it has not read.

    Brings three tools: ``workspace_list``, ``workspace_read`` and ``workspace_edit``. Other tools that
    read or change a file can be watched, too: an edit by one of `edits` needs a read by one of `reads`
    first, and both stay within the root.

    Parameters
    ----------
    root : Path
        Nothing outside it is read or written; links that lead out are not followed.
    tools : bool
        False: no tools of its own, only the watch over others.
    reads, edits : sequence of str
        Names of other tools to watch.
    path_argument : str
        Their argument that names the file.

    Notes
    -----
    The record of what was read belongs to the conversation: a clear empties it, and so does going to
    another branch or session. A file that changed on disk since it was read must be read again.
    """

    name = "Workspace"

    def __init__(
        self,
        root: Path | str = ".",
        *,
        tools: bool = True,
        reads: Sequence[str] = ("read",),
        edits: Sequence[str] = ("edit", "write"),
        path_argument: str = "path",
    ) -> None:
        self.root = Path(root).resolve()
        self._with_tools = tools
        self._reads = frozenset(reads)
        self._edits = frozenset(edits)
        self._argument = path_argument
        self._seen: dict[Path, str] = {}
        self._lock = threading.Lock()
        self._place = Place()

    @property
    def read_record(self) -> tuple[Path, ...]:
        """Files read in this conversation."""
        return tuple(self._seen)

    def configure(self, c: Configurator) -> None:
        """Add the tools."""
        if not self._with_tools:
            return
        look = Legs(private=True, untrusted="soft")
        c.add_tool(GuestTool(self.list_files, name="workspace_list", legs=look, resource="path"))
        c.add_tool(GuestTool(self.read, name="workspace_read", legs=look, resource="path"))
        c.add_tool(
            GuestTool(self.edit, name="workspace_edit", legs=look, kind="act", resource="path", parallel_safe=False)
        )

    def system_prompt_snippets(self) -> list[str]:
        """Where the root is, and the rule."""
        return [f"Your workspace is {self.root}; paths are relative to it. Read a file before you edit it."]

    def on_user_message(self, ctx: ExtensionContext, content: str) -> None:
        """Forget what was read where the talk is no more: the model does not see it now."""
        if not self._place.look(ctx.kit.history):
            with self._lock:
                self._seen.clear()

    def on_conversation_reset(self, ctx: ExtensionContext) -> None:
        """Forget what was read."""
        self._place.forget()
        with self._lock:
            self._seen.clear()

    # -- watching other tools

    def before_tool(self, call: ToolCallPart, arguments: Mapping[str, Any]) -> BeforeTool | None:
        """Block what leaves the root, and edits of files that were not read."""
        if call.name not in self._reads | self._edits or self._argument not in arguments:
            return None
        try:
            path = self._inside(str(arguments[self._argument]))
            if call.name in self._edits and path.exists():
                self._check_read(path)
        except ToolError as exc:
            return BeforeTool(block=True, reason=exc.message)
        return None

    def after_tool(self, call: ToolCallPart, outcome: ToolOutcome) -> None:
        """Note what was read, and what an edit left behind."""
        if outcome.is_error or call.name not in self._reads | self._edits:
            return
        import json

        try:
            self._note(self._inside(str(json.loads(call.arguments)[self._argument])))
        except (ValueError, KeyError, TypeError, ToolError, OSError):
            return  # not the kind of call that we know: then there is no record, and an edit will ask for a read

    # -- its own tools

    def list_files(self, path: str = ".", pattern: str = "*") -> str:
        """List files of the workspace.

        Parameters
        ----------
        path : str
            Folder, relative to the workspace.
        pattern : str
            For example ``*.py``; ``**/*.py`` looks in subfolders, too.
        """
        folder = self._inside(path)
        if not folder.is_dir():
            raise ToolError(f"{path} is not a folder of the workspace")
        if ".." in Path(pattern).parts or Path(pattern).is_absolute():
            raise ToolError(f"the pattern {pattern!r} leaves the folder")
        inside = (p for p in folder.glob(pattern) if self.root in p.resolve().parents)  # no link leads out
        found = sorted(f"{p.relative_to(self.root)}{'/' if p.is_dir() else ''}" for p in inside)
        more = f"\n… and {len(found) - 500} more; narrow the pattern" if len(found) > 500 else ""
        return "\n".join(found[:500]) + more or "(nothing)"

    def read(self, path: str, first_line: int = 1, lines: int = _LINES) -> str:
        """Read a text file of the workspace.

        Parameters
        ----------
        path : str
            Relative to the workspace.
        first_line : int
            From 1.
        lines : int
            How many, at most.
        """
        file = self._inside(path)
        text = self._text(file)
        self._note(file)
        rows = text.splitlines(keepends=True)
        shown = "".join(rows[max(0, first_line - 1) : max(0, first_line - 1) + max(1, lines)])
        left = len(rows) - (max(0, first_line - 1) + max(1, lines))
        return shown + (f"\n[{left} more lines]" if left > 0 else "") or "(empty file)"

    def edit(self, path: str, old: str, new: str) -> ToolOutcome:
        """Replace one piece of a text file that you have read; with an empty `old`, create a new file.

        Parameters
        ----------
        path : str
            Relative to the workspace.
        old : str
            The text to replace, exactly as it stands in the file, and only there.
        new : str
            What stands there afterwards.
        """
        file = self._inside(path)
        if not old:
            if file.exists():
                raise ToolError(f"{path} exists; give the text to replace in `old`")
            before, after = "", new
            file.parent.mkdir(parents=True, exist_ok=True)
        else:
            before = self._text(file)
            self._check_read(file)
            count = before.count(old)
            if count != 1:
                where = "is not in the file" if count == 0 else f"is there {count} times; give more of its surroundings"
                raise ToolError(f"the text to replace {where}: {old[:200]!r}")
            after = before.replace(old, new)
        _write_whole(file, after)
        self._note(file)
        diff = "".join(
            difflib.unified_diff(before.splitlines(True), after.splitlines(True), f"a/{path}", f"b/{path}", n=2)
        )
        return ToolOutcome(parts=(TextPart(f"edited {path}"),), details={"path": str(file), "diff": diff})

    # -- private

    def _inside(self, path: str) -> Path:
        try:
            full = (self.root / Path(path).expanduser()).resolve()
        except (OSError, ValueError, RuntimeError) as exc:
            raise ToolError(f"{path!r} is not a path ({exc})") from exc
        if full != self.root and self.root not in full.parents:
            raise ToolError(f"{path} is outside the workspace {self.root}")
        return full

    def _text(self, file: Path) -> str:
        shown = file.relative_to(self.root)
        try:
            if file.exists() and not (file.is_file() or file.is_dir()):
                raise ToolError(f"{shown} is no regular file")  # a pipe would be waited for
            if file.stat().st_size > _LIMIT_BYTES:
                raise ToolError(f"{shown} has more than {_LIMIT_BYTES} bytes; use Python to look into it")
            with file.open(encoding="utf-8", newline="") as stream:  # line ends as they are
                return stream.read()
        except FileNotFoundError:
            raise ToolError(f"there is no file {shown}") from None
        except IsADirectoryError:
            raise ToolError(f"{shown} is a folder") from None
        except UnicodeDecodeError:
            raise ToolError(f"{shown} is not a text file in UTF-8") from None

    def _note(self, file: Path) -> None:
        with self._lock:
            self._seen[file] = _digest(file)

    def _check_read(self, file: Path) -> None:
        shown = file.relative_to(self.root)
        known = self._seen.get(file)
        if known is None:
            raise ToolError(f"read {shown} before you edit it")
        if known != _digest(file):
            raise ToolError(f"{shown} has changed since you read it; read it again")


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "blake2b").hexdigest()


def _write_whole(file: Path, text: str) -> None:
    """All or nothing: a kernel that dies while writing leaves the old file."""
    handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as stream:
            stream.write(text)
        if file.exists():
            os.chmod(temporary, file.stat().st_mode)
        else:
            os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, file)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
