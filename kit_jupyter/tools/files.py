"""File tools: read, write, edit, grep, glob, ls, within a workspace.

Theory of operation
-------------------
What a tool has read is remembered by a digest for this Kit; `edit`, and `write` over a file that
exists, need the file to be as it was read, so a change by someone else is never overwritten. Before
a change the old content is kept (`checkpoints`), and the change is shown as a diff. All disk work
runs on threads or in child processes, never on the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import fnmatch
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from kit_jupyter.checkpoints import Checkpoints
from kit_jupyter.errors import BadArguments, ToolError
from kit_jupyter.masking import shortened
from kit_jupyter.messages import MediaPart, Part, TextPart
from kit_jupyter.permissions import Access
from kit_jupyter.printed import clip
from kit_jupyter.tool import ToolContext, ToolOutcome
from kit_jupyter.tool_value import media_of
from kit_jupyter.tools._base import EngineTool
from kit_jupyter.tools.workspace import Place, Workspace, digest_of
from kit_jupyter.trifecta import Legs

__all__ = ["EditTool", "GlobTool", "GrepTool", "LsTool", "ReadTool", "WriteTool", "file_tools", "replaced"]

MAX_READ_BYTES = 10_000_000
MAX_READ_LINES = 2_000
MAX_LINE = 2_000
MAX_TEXT = 50_000
MAX_WRITE = 5_000_000
MAX_MATCHES = 200
MAX_FILES = 300
MAX_FOUND_LINE = 400
LINE_READ = 5_000  # of a line found, before it is cut: a secret must be seen whole to be masked
GREP_SECONDS = 30.0
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class _FileTool(EngineTool):
    action: ClassVar[str] = "read"
    acts: ClassVar[bool] = False

    def __init__(self, workspace: Workspace | None = None) -> None:
        self.workspace = workspace if workspace is not None else Workspace()

    def access(self, arguments: Mapping[str, Any], context: ToolContext) -> Access:
        """Inside the workspace: looking is free, changing asks; outside and secrets always ask."""
        text = str(arguments.get("path") or ".")
        place = self.workspace.resolve(text)
        self._judged(context)[text] = (place.path, place.has_other_names)
        need = place.need(self.action, "act" if self.acts else "look")
        question = self.question(place, arguments)
        if need.kind == "sensitive" and not self.acts and not place.is_sensitive:
            question += "\n\n(The file has other names, hard links: under one of them it may be a file for secrets.)"
        return Access(needs=(need,), question=question)

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments checked; the path, too, before anybody is asked about it."""
        valid = super().validate(arguments)
        self.workspace.resolve(str(valid.get("path") or "."))
        return valid

    async def run(self, context: ToolContext, arguments: dict[str, Any]) -> ToolOutcome:
        """Do it; what the disk refuses is told in a line."""
        try:
            return await super().run(context, arguments)
        except OSError as exc:
            raise ToolError(f"{str(arguments.get('path', ''))[:200]}: {exc.strerror or exc}") from exc

    def place(self, context: ToolContext, text: str) -> Place:
        """Where `text` leads now; refused if it led elsewhere when it was judged, perhaps minutes ago.

        Raises
        ------
        ToolError
            When a link was put in its way since.
        """
        place = self.workspace.resolve(text)
        path, has_other_names = self._judged(context).get(text, (place.path, True))
        if path != place.path or (place.has_other_names and not has_other_names and not self.acts):
            raise ToolError(f"{text} leads elsewhere than when it was judged: a link was put in its way; try again")
        return place

    @staticmethod
    def _judged(context: ToolContext) -> dict[str, tuple[Path, bool]]:
        """What was judged for this call, by the text of the path."""
        state = getattr(context, "state", None)
        if state is None:
            return {}
        calls: dict[str, dict[str, tuple[Path, bool]]] = state.setdefault("files_judged", {})
        judged = calls.setdefault(context.call_id, {})
        while len(calls) > 1_000:  # more than ever run beside each other
            del calls[next(iter(calls))]
        return judged

    def question(self, place: Place, arguments: Mapping[str, Any]) -> str:
        """How it is put to a person."""
        return f"{self.name} {place.shown}?"

    def _seen(self, context: ToolContext) -> dict[Path, str]:
        seen: dict[Path, str] = context.state.setdefault("files_read", {})
        return seen


class ReadTool(_FileTool):
    """Read files."""

    name: ClassVar[str] = "read"
    legs: ClassVar[Legs] = Legs(private=True, untrusted="soft")
    bounds: ClassVar[str] = f"{MAX_READ_LINES:,} lines and {MAX_TEXT // 1000},000 characters a call; files to 10 MB"
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
        text = _decoded(raw)
        if text is None:
            raise ToolError(f"{place.shown} is not text ({len(raw):,} bytes, begins with {raw[:16]!r})")
        if place.path.suffix == ".ipynb":
            return ToolOutcome(parts=_notebook(text))
        return ToolOutcome.of_text(_numbered(text, max(1, offset), max(1, limit)))


def _decoded(raw: bytes) -> str | None:
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        return raw.decode("utf-16", "replace")
    if b"\0" in raw[:8000]:
        return None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


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


# ---------------------------------------------------------------- writing


class _ChangeTool(_FileTool):
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

    async def _store(self, context: ToolContext, place: Place, old: bytes | None, new: bytes) -> ToolOutcome:
        checkpoints = Checkpoints.of(context)

        def work() -> None:
            checkpoints.before_file(place.path, context.turn_id)
            self.workspace.write(place, new)
            checkpoints.after_file(place.path, context.turn_id)

        # A stop must not leave the snapshot without the write or the write without its note.
        await _finished(asyncio.to_thread(work))
        self._seen(context)[place.path] = digest_of(new)
        diff = _diff(_decoded(old or b"") or "", _decoded(new) or "", place.shown)
        added = sum(line.startswith("+") and not line.startswith("+++") for line in diff.splitlines())
        removed = sum(line.startswith("-") and not line.startswith("---") for line in diff.splitlines())
        what = "made" if old is None else "changed"
        return ToolOutcome(
            parts=(TextPart(f"{what} {place.shown} (+{added} -{removed} lines)\n{clip(diff, 4000)}".rstrip()),),
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
        encoding = "utf-8-sig" if raw.startswith(b"\xef\xbb\xbf") else "utf-8"
        try:
            text = raw.decode(encoding)
        except UnicodeDecodeError:
            encoding, text = "latin-1", raw.decode("latin-1")
        changed, how = replaced(text, old, new, replace_all=replace_all)
        try:
            encoded = changed.encode(encoding)
        except UnicodeEncodeError:
            raise ToolError(f"{place.shown} is {encoding} and cannot hold the new text") from None
        outcome = await self._store(context, place, raw, encoded)
        if how:
            first = outcome.parts[0]
            assert isinstance(first, TextPart)
            outcome = ToolOutcome(parts=(TextPart(f"{first.text}\n(matched {how})"),), details=outcome.details)
        return outcome


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


def _line_matches(text: str, old: str, fold: Any) -> list[tuple[int, int]]:
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


# ---------------------------------------------------------------- searching


class GrepTool(_FileTool):
    """Search in files."""

    name: ClassVar[str] = "grep"
    action: ClassVar[str] = "grep"
    legs: ClassVar[Legs] = Legs(private=True, untrusted="soft")
    bounds: ClassVar[str] = f"{MAX_MATCHES} lines, {GREP_SECONDS:g} s"
    default: ClassVar[str] = "allow; outside the workspace: ask"
    parallel_safe = True

    async def call(
        self,
        context: ToolContext,
        pattern: str,
        path: str = ".",
        glob: str = "",
        ignore_case: bool = False,
        context_lines: int = 0,
    ) -> ToolOutcome:
        """Search file contents by regular expression. What git ignores, and files for secrets, are left out.

        Parameters
        ----------
        pattern : str
            Regular expression.
        path : str
            Folder or file.
        glob : str
            Only files whose name fits, for example ``*.py``.
        ignore_case : bool
        context_lines : int
            Lines around each match.
        """
        place = self.place(context, path)
        if not place.path.exists():
            raise ToolError(f"{place.shown} does not exist")
        if "\0" in pattern or not pattern:
            raise BadArguments("- pattern: empty or with a NUL")
        around = max(0, min(context_lines, 10))
        if rg := shutil.which("rg"):
            # fmt: off
            command = [rg, "--no-config", "--line-number", "--with-filename", "--no-heading", "--color=never",
                       f"--max-columns={LINE_READ}", "--max-columns-preview", "--sort=path", "--null",
                       f"--context={around}"]
            # fmt: on
            command += ["--ignore-case"] if ignore_case else []
            command += ["--glob", glob] if glob else []
            command += ["--regexp", pattern, "--", str(place.path)]
            text, error, code = await _lines_of(command, b"", lambda line: self._shown(place, line))
        else:
            flags = re.IGNORECASE if ignore_case else 0
            try:
                re.compile(pattern, flags)
            except re.error as exc:
                raise BadArguments(f"- pattern: not a regular expression ({exc})") from None
            names = await asyncio.to_thread(self._names, place, glob)
            job = json.dumps(
                {"pattern": pattern, "flags": int(flags), "files": names, "around": around, "cut": LINE_READ}
            )
            # In a child process: a pattern that explodes can be stopped there.
            text, error, code = await _lines_of([sys.executable, "-I", "-c", _SEARCH], job.encode(), _short_line)
        if code == 2 and not text:
            raise BadArguments(f"- pattern: {error.strip()[:500]}")
        root = f"{self.workspace.root}{os.sep}"
        return ToolOutcome.of_text(clip(text.replace(root, ""), MAX_TEXT) or "no matches")

    def _names(self, place: Place, glob: str) -> list[str]:
        if place.path.is_file():
            return [str(place.path)]
        found = (p for p in self.workspace.files(place) if not glob or fnmatch.fnmatch(p.name, glob))
        return [str(p) for p in found if not _is_guarded(place, p)]

    @staticmethod
    def _shown(place: Place, line: str) -> str:
        """A line of rg's as we show it; nothing of a file that would have to be asked for."""
        name, found, rest = line.partition("\0")
        if not found:
            return _short_line(line)
        if _is_guarded(place, Path(name)):
            return ""
        sign = "-" if re.match(r"\d+-", rest) else ":"
        return f"{name}{sign}{_short_line(rest)}"


def _short_line(line: str) -> str:
    return line if len(line) <= MAX_FOUND_LINE else f"{shortened(line.rstrip(), MAX_FOUND_LINE)}…\n"


def _is_guarded(place: Place, path: Path) -> bool:
    """Found under a folder and may hold secrets: a person was asked about the folder, not about this."""
    found = replace(place, path=path)
    return path != place.path and (found.is_sensitive or found.has_other_names)


_SEARCH = """
import json, re, sys
job = json.load(sys.stdin)
pattern = re.compile(job["pattern"], job["flags"])
found = False
for name in job["files"]:
    try:
        with open(name, "rb") as file:
            head = file.read(10_000_000)
    except OSError:
        continue
    if b"\\0" in head[:8000]:
        continue
    lines = head.decode("utf-8", "replace").splitlines()
    hits = [i for i, line in enumerate(lines) if pattern.search(line)]
    last = -1
    for i in hits:
        found = True
        for j in range(max(last + 1, i - job["around"]), min(len(lines), i + job["around"] + 1)):
            sign = ":" if j in hits else "-"
            print(f"{name}{sign}{j + 1}{sign}{lines[j][: job['cut']]}")
            last = j
sys.exit(0 if found else 1)
"""


async def _lines_of(
    command: list[str], stdin: bytes, shown: Callable[[str], str] = lambda line: line
) -> tuple[str, str, int]:
    """Output of a searching child, at most `MAX_MATCHES` lines and `GREP_SECONDS`; it never outlives the call."""
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe, limit=1 << 20)
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    lines: list[str] = []
    note = ""
    try:
        async with asyncio.timeout(GREP_SECONDS):
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                child.stdin.write(stdin)
                await child.stdin.drain()
            child.stdin.close()
            while line := await child.stdout.readline():
                if text := shown(line.decode("utf-8", "replace")):
                    lines.append(text)
                if len(lines) > MAX_MATCHES:
                    note = f"… more than {MAX_MATCHES} lines; narrow the search\n"
                    break
    except TimeoutError:
        note = f"… stopped after {GREP_SECONDS:g} s\n"
    except ValueError:
        note = "… a line too long to show\n"
    finally:
        if child.returncode is None and (note or sys.exc_info()[0] is not None):
            with contextlib.suppress(ProcessLookupError):
                child.kill()
    error = (await child.stderr.read()).decode("utf-8", "replace")
    code = await child.wait()
    return "".join(lines[:MAX_MATCHES]) + note, error, code


class GlobTool(_FileTool):
    """Find files by name."""

    name: ClassVar[str] = "glob"
    action: ClassVar[str] = "glob"
    legs: ClassVar[Legs] = Legs(private=True)
    bounds: ClassVar[str] = f"{MAX_FILES} files"
    default: ClassVar[str] = "allow; outside the workspace: ask"
    parallel_safe = True

    async def call(self, context: ToolContext, pattern: str, path: str = ".") -> ToolOutcome:
        """Find files by name pattern, newest first. What git ignores is left out.

        Parameters
        ----------
        pattern : str
            For example ``**/*.py`` or ``data/*.csv``; a pattern without ``/`` fits names in any folder.
        path : str
            Folder to look in.
        """
        if "\0" in pattern or not pattern.strip():
            raise BadArguments("- pattern: empty or with a NUL")
        place = self.place(context, path)
        if not place.path.is_dir():
            raise ToolError(f"{place.shown} is not a folder")
        found = await asyncio.to_thread(self._find, place, pattern)
        lines = [self.workspace.resolve(str(p)).shown for p in found[:MAX_FILES]]
        if len(found) > MAX_FILES:
            lines.append(f"… {len(found) - MAX_FILES:,} more")
        return ToolOutcome.of_text("\n".join(lines) or "no files")

    def _find(self, place: Place, pattern: str) -> list[Path]:
        fits = _glob_pattern(pattern)
        found: list[tuple[float, Path]] = []
        deadline = time.monotonic() + GREP_SECONDS
        for path in self.workspace.files(place):
            if fits.fullmatch(path.relative_to(place.path).as_posix()):
                with contextlib.suppress(OSError):
                    found.append((-path.stat().st_mtime, path))
            if time.monotonic() > deadline:
                break
        return [path for _, path in sorted(found)]


_PIECES = r"\*\*/|\*\*|\*|\?|\{[^{}]*\}|\[[^\]]*\]|."


def _glob_pattern(pattern: str) -> re.Pattern[str] | _Steps:
    """``**`` any folders, ``*`` and ``?`` within one, ``{a,b}`` choices.

    A pattern with many wildcards would make a regular expression try for ever, and nothing could stop
    it; such a one is followed step by step.

    Examples
    --------
    >>> bool(_glob_pattern("src/**/*.{py,pyi}").fullmatch("src/a/b/c.pyi"))
    True
    """
    text = pattern.removeprefix("./")
    if "/" not in text:
        text = f"**/{text}"
    if len(text) > 1000:
        raise BadArguments(f"- pattern: {len(text):,} characters, at most 1,000")
    if len(re.findall(r"\*\*|\*|\{", text)) > 3:
        return _Steps(text)
    out = ""
    for piece in re.findall(_PIECES, text):
        if piece == "**/":
            out += "(?:.*/)?"
        elif piece == "**":
            out += ".*"
        elif piece == "*":
            out += "[^/]*"
        elif piece == "?":
            out += "[^/]"
        elif piece.startswith("{") and piece.endswith("}"):
            out += f"(?:{'|'.join(fnmatch.translate(p)[4:-3] for p in piece[1:-1].split(','))})"
        elif piece.startswith("[") and piece.endswith("]") and len(piece) > 2:
            out += (
                "[" + ("^" if piece[1] in "!^" else "") + re.sub(r"([\\\[])", r"\\\1", piece[1:-1].lstrip("!^")) + "]"
            )
        else:
            out += re.escape(piece)
    try:
        return re.compile(out)
    except re.error as exc:
        raise BadArguments(f"- pattern: not a file pattern ({exc})") from None


class _Steps:
    """A file pattern, matched in time that grows with its length times the path's.

    Examples
    --------
    >>> steps = _Steps("a/**/b*/**/{c,d}*.[ch]")
    >>> [steps.fullmatch(path) for path in ("a/b/c.h", "a/x/bb/y/dd.c", "a/b/e.h", "b/b/c.h")]
    [True, True, False, False]
    """

    def __init__(self, text: str) -> None:
        self._choices = [re.findall(_PIECES, choice) for choice in _unbraced(text)]

    def fullmatch(self, path: str) -> bool:
        return any(self._fits(pieces, path) for pieces in self._choices)

    @staticmethod
    def _fits(pieces: list[str], path: str) -> bool:
        # A state is a piece that comes next, or one of ``**/`` that is amid a folder's name.
        def with_skipped(states: set[tuple[int, bool]]) -> set[tuple[int, bool]]:
            for number, amid in list(states):
                at = number
                while not amid and at < len(pieces) and pieces[at] in ("*", "**", "**/"):
                    at += 1
                    states.add((at, False))
            return states

        states = with_skipped({(0, False)})
        for letter in path:
            following: set[tuple[int, bool]] = set()
            for number, amid in states:
                piece = pieces[number] if number < len(pieces) else ""
                if piece == "**/":
                    following.add((number, True))
                    if letter == "/":
                        following.add((number + 1, False))
                elif piece == "**" or (piece == "*" and letter != "/"):
                    following.add((number, amid))
                elif piece and piece != "*" and _is_letter(piece, letter):
                    following.add((number + 1, False))
            states = with_skipped(following)
            if not states:
                return False
        return (len(pieces), False) in states


def _is_letter(piece: str, letter: str) -> bool:
    if piece == "?":
        return letter != "/"
    return fnmatch.fnmatchcase(letter, piece) if len(piece) > 2 else piece == letter


def _unbraced(text: str) -> list[str]:
    """Each choice of ``{a,b}`` written out."""
    done, todo = [], [text]
    while todo:
        head, found, rest = (one := todo.pop()).partition("{")
        inner, closed, tail = rest.partition("}")
        if not found or not closed:
            done.append(one)
        else:
            todo.extend(f"{head}{choice}{tail}" for choice in reversed(inner.split(",")))
        if len(done) + len(todo) > 100:
            raise BadArguments("- pattern: more than 100 choices in braces")
    return done


class LsTool(_FileTool):
    """List folders."""

    name: ClassVar[str] = "ls"
    action: ClassVar[str] = "ls"
    legs: ClassVar[Legs] = Legs(private=True)
    bounds: ClassVar[str] = f"{MAX_FILES} entries"
    default: ClassVar[str] = "allow; outside the workspace: ask"
    parallel_safe = True

    async def call(self, context: ToolContext, path: str = ".") -> ToolOutcome:
        """List a folder: names, sizes, folders first.

        Parameters
        ----------
        path : str
            Relative to the workspace, or absolute.
        """
        place = self.place(context, path)
        if not place.path.is_dir():
            raise ToolError(f"{place.shown} is not a folder")
        return ToolOutcome.of_text(await asyncio.to_thread(_listing, place))


def _listing(place: Place) -> str:
    try:
        entries = sorted(os.scandir(place.path), key=lambda e: (not e.is_dir(follow_symlinks=False), e.name))
    except OSError as exc:
        raise ToolError(f"{place.shown}: {exc.strerror or exc}") from None
    lines = []
    for entry in entries[:MAX_FILES]:
        if entry.is_symlink():
            lines.append(f"{entry.name} -> {os.readlink(entry.path)}")
        elif entry.is_dir():
            lines.append(f"{entry.name}/")
        else:
            with contextlib.suppress(OSError):
                lines.append(f"{entry.name}  {entry.stat().st_size:,}")
    if len(entries) > MAX_FILES:
        lines.append(f"… {len(entries) - MAX_FILES:,} more")
    return "\n".join(lines) or "(empty)"


def file_tools(workspace: Workspace | None = None) -> tuple[EngineTool, ...]:
    """All six over one workspace."""
    shared = workspace if workspace is not None else Workspace()
    return tuple(make(shared) for make in (ReadTool, WriteTool, EditTool, GrepTool, GlobTool, LsTool))
