"""The tool `grep`: by ripgrep where that is installed, else by Python in a child process."""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from kit_jupyter.errors import BadArguments, ToolError
from kit_jupyter.masking import shortened
from kit_jupyter.printed import clip
from kit_jupyter.tool import ToolContext, ToolOutcome
from kit_jupyter.tools.files.fence import MAX_TEXT, FileTool
from kit_jupyter.tools.workspace import Place
from kit_jupyter.trifecta import Legs

__all__ = ["GrepTool"]

MAX_MATCHES = 200
MAX_FOUND_LINE = 400
LINE_READ = 5_000  # of a line found, before it is cut: a secret must be seen whole to be masked
GREP_SECONDS = 30.0


class GrepTool(FileTool):
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
