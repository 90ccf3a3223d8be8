"""A transport of the ``mcp`` client: a child process, its three pipes, and its end."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import os
import re
import signal
import sys
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from kit_jupyter.tools.mcp.server import Server

__all__ = ["ServerDied", "Stdio"]

_TOO_LARGE: Final = -32099
_HEAD_BYTES: Final = 4096


class ServerDied(Exception):
    """The connection is gone; the text says why."""


_processes: weakref.WeakSet[Stdio] = weakref.WeakSet()


def _kill_all() -> None:
    for one in list(_processes):
        one.kill()


class Stdio:
    """A transport of the ``mcp`` client: a child process and its three pipes."""

    def __init__(self, server: Server, on_rubbish: Callable[[str], None]) -> None:
        self._server = server
        self._on_rubbish = on_rubbish
        self._tasks: list[asyncio.Task[None]] = []
        self._last_words: deque[str] = deque(maxlen=12)
        self._fault = ""
        self.patience_seconds = 2.0  # for each way of ending, the polite one first
        self.process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> tuple[Any, Any]:
        import anyio
        from mcp.client.stdio import get_default_environment

        server = self._server
        self.process = await asyncio.create_subprocess_exec(
            server.command,
            *server.args,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**get_default_environment(), **server.env},
            cwd=server.cwd,
            start_new_session=sys.platform != "win32",  # a Ctrl-C in the terminal is ours, not the server's
            limit=1 << 20,
        )
        if not _processes:
            atexit.unregister(_kill_all)
            atexit.register(_kill_all)  # a Kit that nobody closes leaves no process behind
        _processes.add(self)
        self._in, incoming = anyio.create_memory_object_stream[Any](0)
        outgoing, self._out = anyio.create_memory_object_stream[Any](0)
        self._ends = (self._in, incoming, outgoing, self._out)
        self._listening = asyncio.ensure_future(self._listen())
        self._tasks = [asyncio.ensure_future(self._read()), asyncio.ensure_future(self._write()), self._listening]
        return incoming, outgoing

    async def __aexit__(self, *exc_info: object) -> None:
        process = self.process
        assert process is not None
        assert process.stdin is not None
        with contextlib.suppress(OSError, RuntimeError):
            process.stdin.close()  # the polite way: a server ends when its input does
        for signal_name in ("", "SIGTERM", "SIGKILL"):
            if signal_name:
                self.kill(signal_name)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), self.patience_seconds)
                break
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for end in self._ends:
            end.close()
        _processes.discard(self)

    def kill(self, signal_name: str = "SIGKILL") -> None:
        """End the process and what it started."""
        process = self.process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if sys.platform == "win32":
                process.kill()
            else:
                os.killpg(process.pid, getattr(signal, signal_name))

    async def _read(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        limit = self._server.max_message_bytes
        pieces: list[bytes] = []
        size = 0
        try:
            while chunk := await self.process.stdout.read(1 << 18):
                *lines, rest = chunk.split(b"\n")
                for line in lines:
                    size += len(line)
                    pieces.append(line)
                    await self._take(pieces, size)
                    pieces, size = [], 0
                size += len(rest)
                if size <= limit or sum(map(len, pieces)) < _HEAD_BYTES:
                    pieces.append(rest)
                else:  # too large: only its head is kept, to know whose answer it is
                    pieces = [b"".join(pieces)[:_HEAD_BYTES]]
        finally:
            self._in.close()

    async def _take(self, pieces: list[bytes], size: int) -> None:
        import mcp_types as types
        from mcp.shared.message import SessionMessage

        line = b"".join(pieces).strip()
        if not line:
            return
        message: Any
        if size > self._server.max_message_bytes:
            found = re.search(rb'"id"\s*:\s*(\d+|"[^"]{0,200}")', line)
            if found is None:
                self._fault = f"it sent a message of {size} bytes without an id in its head"
                raise ServerDied(self._fault)
            text = f"the answer has {size} bytes, more than the limit of {self._server.max_message_bytes}; ask for less"
            error = types.ErrorData(code=_TOO_LARGE, message=text)
            message = types.JSONRPCError(jsonrpc="2.0", id=json.loads(found[1]), error=error)
        else:
            try:
                message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
            except ValueError:
                self._on_rubbish(line[:120].decode("utf-8", "replace"))
                return
        import anyio

        with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            await self._in.send(SessionMessage(message))

    async def _write(self) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        try:
            async for item in self._out:
                line = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                self.process.stdin.write(line.encode() + b"\n")
                await self.process.stdin.drain()
        except (OSError, RuntimeError):
            self._in.close()  # so that the call that waits sees the end

    async def _listen(self) -> None:
        assert self.process is not None
        assert self.process.stderr is not None
        stream = self.process.stderr
        while True:
            try:
                line = await stream.readline()
            except ValueError:  # a line longer than the pipe's limit
                continue
            if not line:
                return
            self._last_words.append(line[:500].decode("utf-8", "replace").rstrip())

    async def obituary(self) -> str:
        """Exit code and last words, or why we hung up, for an error's text."""
        assert self.process is not None
        if self._fault:
            return self._fault
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.process.wait(), 1.0)
        code = self.process.returncode
        how = "it closed its output" if code is None else f"exit code {code}"
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._listening), 0.5)
        return f"{how}; its last words:\n{self.words}" if self.words else how

    @property
    def words(self) -> str:
        """The end of what it wrote to stderr."""
        return "\n".join(self._last_words)[-1500:]
