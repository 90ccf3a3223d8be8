"""The `shell` tool: a command in a process group of its own, bounded, without our secrets, gone when it ends.

Theory of operation
-------------------
bash runs the command as leader of a new session; stdin is empty, stdout and stderr are one pipe read
as it comes. When the call ends, in whatever way (done, time-out, stop), the whole group is ended,
asked first and killed two seconds later; on Linux also children that left the group, found by a
marker in their environment or, where that was cleared (``env -i setsid``), by a pipe of ours that they
hold. So a background job ends with the call, by design: nothing is left
working behind anybody's back.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import re
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from kit_jupyter.checkpoints import Checkpoints
from kit_jupyter.errors import BadArguments, ToolError
from kit_jupyter.masking import clean_environment
from kit_jupyter.permissions import Access, Need
from kit_jupyter.printed import Sink
from kit_jupyter.tool import ToolContext, ToolOutcome
from kit_jupyter.tools._base import EngineTool
from kit_jupyter.tools.shellparse import Parsed, parse_shell, plainer, suggest
from kit_jupyter.tools.workspace import Workspace
from kit_jupyter.trifecta import Legs

__all__ = ["ShellTool"]

MAX_OUTPUT = 30_000
MAX_SPILL_BYTES = 100_000_000
MAX_COMMAND = 100_000  # bytes; Linux takes no argument longer than 128 KiB
GRACE_SECONDS = 2.0
MARKER = "KIT_SHELL_CALL"
_QUIET = {
    "TERM": "dumb",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "MANPAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_EDITOR": "true",
    "EDITOR": "true",
    "DEBIAN_FRONTEND": "noninteractive",
    "PIP_NO_INPUT": "1",
    "COLUMNS": "120",
}


class ShellTool(EngineTool):
    """Run shell commands.

    Parameters
    ----------
    workspace : Workspace or None
        Where commands run.
    keep_environment : names
        Variables that look like secrets and are passed on all the same.
    max_seconds : float or None
        A limit for every call; None for none.
    """

    name: ClassVar[str] = "shell"
    legs: ClassVar[Legs] = Legs(private=True, untrusted="soft", egress="reviewed", destination="any")
    bounds: ClassVar[str] = (
        "30,000 characters, the whole in a file to 100 MB; no time limit unless asked; nothing outlives it"
    )

    def __init__(
        self,
        workspace: Workspace | None = None,
        *,
        keep_environment: Iterable[str] = (),
        max_seconds: float | None = None,
    ) -> None:
        self.workspace = workspace if workspace is not None else Workspace()
        self._keep_environment = tuple(keep_environment)
        self._max_seconds = max_seconds

    def access(self, arguments: Mapping[str, Any], context: ToolContext) -> Access:
        """One need for each program the line runs, and for each file it redirects to or from."""
        command = str(arguments.get("command", ""))
        parsed = parse_shell(command)
        needs = [Need("shell", c.text, "act", suggest(c)) for c in parsed.commands]
        needs.extend(Need("shell", text) for c in parsed.commands for text in plainer(c))
        needs.extend(self._redirect_needs(parsed, str(arguments.get("cwd") or "")))
        needs.extend(Need("shell", why, "unsure") for why in parsed.unsure)
        if arguments.get("cwd"):
            place = self.workspace.resolve(str(arguments["cwd"]))
            if not place.inside:
                needs.append(Need("shell.cwd", place.shown, "outside"))
        if not parsed.commands:  # also when it only reads a file: a line never runs without a word about itself
            needs.append(Need("shell", command))
        where = f" in {arguments['cwd']}" if arguments.get("cwd") else ""
        return Access(needs=tuple(needs), question=f"Run this in a shell{where}?\n\n{command}")

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments checked; those that cannot run, before anybody is asked about them."""
        valid = super().validate(arguments)
        command, seconds = str(valid.get("command", "")), valid.get("timeout_seconds")
        if not command.strip() or "\0" in command:
            raise BadArguments("- command: empty or with a NUL")
        if len(command.encode("utf-8", "surrogatepass")) > MAX_COMMAND:
            raise BadArguments(
                f"- command: {len(command):,} characters, at most {MAX_COMMAND:,}; write a script with the write tool"
            )
        if seconds is not None and not seconds > 0:
            raise BadArguments(f"- timeout_seconds: must be above 0, got {seconds}")
        self.workspace.resolve(str(valid.get("cwd") or "."))
        return valid

    def _redirect_needs(self, parsed: Parsed, cwd: str) -> Iterable[Need]:
        folders = _folders(parsed, cwd)
        for redirect in parsed.redirects:
            action, kind = ("write", "act") if redirect.writes else ("read", "look")
            if not redirect.is_plain:
                yield Need(action, f"a computed file name: {redirect.path}", "unsure")
                continue
            if folders is None and not os.path.isabs(redirect.path):
                yield Need(action, f"{redirect.path}, in a folder that is not known", "unsure")
                continue
            for folder in folders or ("",):
                try:
                    place = self.workspace.resolve(_joined(folder, redirect.path))
                    yield place.need(action, kind)  # type: ignore[arg-type]
                except BadArguments:
                    yield Need(action, redirect.path, "unsure")

    async def call(
        self, context: ToolContext, command: str, cwd: str = "", timeout_seconds: float | None = None
    ) -> ToolOutcome:
        """Run a command in bash, in the workspace. It gets no input and no secrets, and ends with the call.

        Do not start servers or background jobs: they are ended when the command returns.

        Parameters
        ----------
        command : str
            The command line.
        cwd : str
            Folder to run in, relative to the workspace.
        timeout_seconds : float, optional
            End it after so long; no limit by default.
        """
        folder = self.workspace.resolve(cwd or ".").path
        if not folder.is_dir():
            raise ToolError(f"{cwd} is not a folder")
        written = await asyncio.to_thread(self._snapshot, context, command, cwd)
        limits = [limit for limit in (timeout_seconds, self._max_seconds) if limit is not None]
        run = _Run(context, command, folder, self._environment(), min(limits) if limits else None)
        try:
            outcome = await run.go()
        finally:
            # What the command left: an undo must not take it for the user's, nor the user's for it.
            await _finish(asyncio.ensure_future(asyncio.to_thread(_note_written, context, written)))
        if run.spill is not None:
            self.workspace.extra_readable.add(Path(run.spill))
        return outcome

    def _environment(self) -> dict[str, str]:
        return {**clean_environment(keep=self._keep_environment), **_QUIET}

    def _snapshot(self, context: ToolContext, command: str, cwd: str) -> list[Path]:
        """Files that the line visibly overwrites can be undone; which they are."""
        parsed = parse_shell(command)
        kept: list[Path] = []
        for redirect in parsed.redirects:
            if not (redirect.writes and redirect.is_plain):
                continue
            for folder in _folders(parsed, cwd) or ("",):
                place = self.workspace.resolve(_joined(folder, redirect.path))
                self.workspace.refuse_open_notebook(place)
                if place.inside:
                    with contextlib.suppress(OSError):
                        Checkpoints.of(context).before_file(place.path, context.turn_id)
                        kept.append(place.path)
        return kept


def _note_written(context: ToolContext, paths: Iterable[Path]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            Checkpoints.of(context).after_file(path, context.turn_id)


def _joined(folder: str, path: str) -> str:
    return path if path.startswith("~") or not folder else os.path.join(folder, path)


def _folders(parsed: Parsed, cwd: str) -> tuple[str, ...] | None:
    """Where the line's redirections may land: in its folder, or in the one it changes to; None if that is not plain."""
    moves = [c.words for c in parsed.commands if c.words and c.words[0] in ("cd", "pushd", "popd")]
    if not moves:
        return (cwd,)
    if (
        len(moves) > 1
        or len(moves[0]) != 2
        or not re.fullmatch(r"[\w./ +,@%=-]+", moves[0][1])
        or moves[0][1][0] == "-"
    ):
        return None
    return (cwd, _joined(cwd, moves[0][1]))


class _Run:
    """One command: started, read, ended."""

    def __init__(
        self, context: ToolContext, command: str, folder: Path, environment: dict[str, str], timeout: float | None
    ) -> None:
        self._command = command
        self._folder = folder
        self._timeout = timeout
        self._mark = _Mark()
        self._environment = {**environment, MARKER: self._mark.word}
        self._sink = Sink(lambda text, stream: context.progress(text, stream=stream), keep=MAX_OUTPUT)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._spilled = bytearray()
        self._spill_file: Any = None
        self._size = 0
        self.spill: str | None = None

    async def go(self) -> ToolOutcome:
        if not hasattr(os, "killpg"):
            raise ToolError("the shell tool needs process groups, which Windows does not have; use python")
        shell = shutil.which("bash") or shutil.which("sh")
        if shell is None:
            raise ToolError("there is no shell on this machine")
        flags = ["--noprofile", "--norc"] if shell.endswith("bash") else []
        # A pipe of our own: asyncio's would make wait() wait for everyone who holds it (before Python 3.12.4).
        read_end, write_end = os.pipe()
        self._reader = asyncio.StreamReader(limit=1 << 18)
        pipe = os.fdopen(read_end, "rb", 0)
        try:
            loop = asyncio.get_running_loop()
            self._pipe, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(self._reader), pipe)
            child = await asyncio.create_subprocess_exec(
                shell,
                *flags,
                "-c",
                self._command,
                cwd=self._folder,
                env=self._environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=write_end,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                pass_fds=self._mark.pass_fds(),
            )
        except BaseException:
            pipe.close()
            self._mark.close()
            raise
        finally:
            os.close(write_end)
            self._mark.let_go()
        timed_out = False
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._timeout):
                await self._follow(child)
        except TimeoutError:
            timed_out = True
        finally:
            # Also on a stop: the cancel goes on only when nothing of it is alive any more.
            await _finish(asyncio.ensure_future(self._end(child)))
            if self._spill_file is not None:
                self._spill_file.close()
        return self._outcome(child.returncode, timed_out, time.monotonic() - began)

    async def _follow(self, child: asyncio.subprocess.Process) -> None:
        """Read until the shell itself has ended; a background job that holds the pipe does not keep us."""
        reading = asyncio.ensure_future(self._read())
        waiting = asyncio.ensure_future(child.wait())
        try:
            await asyncio.wait({reading, waiting}, return_when=asyncio.FIRST_COMPLETED)
            await waiting
            await asyncio.wait({reading}, timeout=0.3)  # what is still in the pipe
        finally:
            for task in (reading, waiting):
                task.cancel()
            await asyncio.wait({reading, waiting})
            if not reading.cancelled():
                reading.exception()

    async def _read(self) -> None:
        while chunk := await self._reader.read(1 << 18):
            self._take(chunk)

    def _take(self, chunk: bytes) -> None:
        self._size += len(chunk)
        self._sink.write(self._decoder.decode(chunk))
        if self._spill_file is None and self._size <= MAX_OUTPUT:
            self._spilled += chunk
            return
        if self._spill_file is None:
            handle, name = tempfile.mkstemp(prefix="kit-shell-", suffix=".txt")
            self.spill = os.path.realpath(name)
            self._spill_file = os.fdopen(handle, "wb")
            self._spill_file.write(self._spilled)
            self._spilled.clear()
        if self._size <= MAX_SPILL_BYTES:
            self._spill_file.write(chunk)

    async def _end(self, child: asyncio.subprocess.Process) -> None:
        """End the group, then what left it; nothing else."""
        self._kill(child.pid, signal.SIGTERM)
        deadline = time.monotonic() + GRACE_SECONDS
        pause = 0.005
        while time.monotonic() < deadline:
            if not _group_lives(child.pid) and not self._mark.found():
                break
            await asyncio.sleep(pause)
            pause = min(0.1, 2 * pause)
        else:
            self._kill(child.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            await child.wait()
        self._pipe.close()
        self._mark.close()

    def _kill(self, group: int, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)
        for pid in self._mark.found():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def _outcome(self, code: int | None, timed_out: bool, seconds: float) -> ToolOutcome:
        self._sink.write(self._decoder.decode(b"", final=True))
        self._sink.flush()
        text = self._sink.text
        notes = []
        if timed_out:
            notes.append(f"ended after {self._timeout:g} s, it and all it started")
        elif code is not None and code < 0:
            notes.append(f"ended by signal {signal.Signals(-code).name}")
        elif code:
            notes.append(f"exit code {code}")
        if self.spill is not None:
            notes.append(f"{self._size:,} bytes in all; the whole is in {self.spill}")
        if notes or not text.strip():
            text = f"{text}{'' if text.endswith(chr(10)) or not text else chr(10)}[{'; '.join(notes) or 'no output'}]"
        details = {"exit_code": code, "seconds": round(seconds, 3), "timed_out": timed_out, "spill": self.spill}
        outcome = ToolOutcome.of_text(text, is_error=timed_out or bool(code))
        return ToolOutcome(parts=outcome.parts, is_error=outcome.is_error, details=details)


async def _finish(task: asyncio.Future[None]) -> None:
    """Await clean-up to its end, through cancels, which are passed on afterwards."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as exc:
            cancelled = exc
    if cancelled is not None:
        raise cancelled
    task.result()


def _group_lives(group: int) -> bool:
    """Any member that is no zombie."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    if sys.platform != "linux":
        return True
    # The leader's zombie still answers: look whether anyone is really alive.
    return any(state not in ("Z", "X") and member == group for _, state, member in _processes())


def _processes() -> Iterable[tuple[int, str, int]]:
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                after = Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()
                yield int(entry), after[0], int(after[2])
            except (OSError, IndexError, ValueError):
                continue


class _Mark:
    """By what the processes of one call are known, wherever they went: a word in their environment, an open pipe.

    Linux only; elsewhere nothing is found. The pipe's number is a high one, so that no command uses it by
    chance; its reading end stays open here until the call is over, so that nobody else's pipe is called so.
    """

    def __init__(self) -> None:
        self.word = secrets.token_hex(8)
        self._number = self._read_end = -1
        self._is_passed = False
        self._pipe = ""

    def pass_fds(self) -> tuple[int, ...]:
        """What the command is to inherit."""
        if sys.platform != "linux":
            return ()
        import fcntl

        self._read_end, write_end = os.pipe()
        self._pipe = f"pipe:[{os.fstat(self._read_end).st_ino}]"
        try:
            self._number = fcntl.fcntl(write_end, fcntl.F_DUPFD_CLOEXEC, 200)
        except OSError:  # so few files are allowed here: then the word alone has to do
            self.close()
            return ()
        finally:
            os.close(write_end)
        self._is_passed = True
        return (self._number,)

    def let_go(self) -> None:
        """The command has it: our own writing end goes."""
        if self._is_passed:
            os.close(self._number)
            self._is_passed = False

    def close(self) -> None:
        """The call is over."""
        if self._read_end >= 0:
            os.close(self._read_end)
            self._read_end = -1

    def found(self) -> list[int]:
        """The living ones."""
        if sys.platform != "linux":
            return []
        needle = f"{MARKER}={self.word}".encode()
        me = os.getuid()
        return [
            pid
            for pid, state, _ in _processes()
            if state not in ("Z", "X") and (self._holds(pid) or _has_in_environment(pid, needle, me))
        ]

    def _holds(self, pid: int) -> bool:
        if self._read_end < 0:
            return False
        try:
            # A fork of ours, made in the moment between, may hold it as well; it is of our own session.
            return os.readlink(f"/proc/{pid}/fd/{self._number}") == self._pipe and os.getsid(pid) != os.getsid(0)
        except OSError:
            return False


def _has_in_environment(pid: int, needle: bytes, user: int) -> bool:
    try:
        is_ours = os.stat(f"/proc/{pid}").st_uid == user
        return is_ours and needle in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
