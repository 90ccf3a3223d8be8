"""Tools of a Model Context Protocol server, over stdio or streamable HTTP, by the official ``mcp`` package.

Theory of operation
-------------------
A `Connection` keeps one server: made without touching anything, started later, so that whoever owns it
can arm its closer in between. All connections live on one loop thread of their own (``kit-mcp``): a Kit
may be built on the engine, which must not wait for a server to start, and the protocol's bytes must not
hold up a turn. Connection, handshake and end belong to one task, `Connection._life`.

A server that dies fails the calls that are open, with its exit code and last words; the next call starts
it again. A call is never repeated by itself: it may have done its work before the server died.

Foreign bytes are kept small at the door: a line above `Server.max_message_bytes` is thrown away while
it is read, and the call that waits for it gets an error. Lines on stdout that are no messages are passed
over and told once.

The ``mcp`` package is imported on first use only.
"""

from __future__ import annotations

import asyncio
import atexit
import base64
import binascii
import concurrent.futures
import contextlib
import hashlib
import importlib
import json
import os
import re
import signal
import sys
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from kit_jupyter.errors import BadArguments, ToolError, UsageError
from kit_jupyter.messages import MediaPart, Part, TextPart, ToolSpec
from kit_jupyter.permissions import Access, Need
from kit_jupyter.tool import ToolContext, ToolOutcome, Wish
from kit_jupyter.trifecta import Legs

__all__ = ["Connection", "McpTool", "Server"]

T = TypeVar("T")
_CUT_CHARS: Final = 100_000
_TOO_LARGE: Final = -32099
RELIST_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """How to reach a server, and what is known of it.

    Parameters
    ----------
    name : str
        Small letters, digits and hyphens; the first part of its tools' names.
    command, args, env, cwd
        A program that speaks over stdin and stdout. It sees a clean environment: home, path, language
        and what `env` adds.
    url, headers
        Or a server over streamable HTTP.
    description : str
        For the model: what it is for.
    legs : Legs or None
        What all its tools touch; None: not known, and all legs are assumed.
    tool_legs : dict of str to Legs
        For single tools, by the server's name for them.
    only : sequence of str or None
        Tools to take; None takes all.
    lazy : bool
        Connect only when the model asks for it.
    required : bool
        A Kit cannot be built without it; else a server that does not start is warned of.
    start_timeout_seconds, call_timeout_seconds : float
    max_message_bytes : int
        Longest message that is read.

    Raises
    ------
    UsageError
        If the name is wrong, or there is neither or both of `command` and `url`.
    """

    name: str
    command: str = ""
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | None = None
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    description: str = ""
    legs: Legs | None = None
    tool_legs: Mapping[str, Legs] = field(default_factory=dict)
    only: Sequence[str] | None = None
    lazy: bool = False
    required: bool = False
    start_timeout_seconds: float = 30.0
    call_timeout_seconds: float = 300.0
    max_message_bytes: int = 16_000_000

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9]+([-_][a-z0-9]+)*", self.name) or len(self.name) > 30:
            raise UsageError(f"a server's name is small letters, digits and hyphens, at most 30, got {self.name!r}")
        if bool(self.command) == bool(self.url):
            raise UsageError(f"server {self.name!r} needs a command or a url, and not both")


# ---------------------------------------------------------------- the loop


class _Loop:
    """One loop on one daemon thread for all connections; started on first use, and again after a fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0

    def submit(self, coro: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                self._loop, self._pid = asyncio.new_event_loop(), os.getpid()
                threading.Thread(target=self._loop.run_forever, name="kit-mcp", daemon=True).start()
            return asyncio.run_coroutine_threadsafe(coro, self._loop)


_loop = _Loop()


class _ServerDied(Exception):
    """The connection is gone; the text says why."""


# ---------------------------------------------------------------- stdio


_processes: weakref.WeakSet[_Stdio] = weakref.WeakSet()


def _kill_all() -> None:
    for one in list(_processes):
        one.kill()


class _Stdio:
    """A transport of the ``mcp`` client: a child process and its three pipes."""

    def __init__(self, server: Server, on_rubbish: Callable[[str], None]) -> None:
        self._server = server
        self._on_rubbish = on_rubbish
        self._tasks: list[asyncio.Task[None]] = []
        self._last_words: deque[str] = deque(maxlen=12)
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
        self._tasks = [asyncio.ensure_future(job()) for job in (self._read, self._write, self._listen)]
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
                if size <= limit:
                    pieces.append(rest)
                elif sum(map(len, pieces)) > 4096:
                    pieces = [b"".join(pieces)[:4096]]  # too large: only its head is kept, to know whose answer it is
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
                raise _ServerDied(f"a message of {size} bytes without an id in its head")
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
        """Exit code and last words, for an error's text."""
        assert self.process is not None
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.process.wait(), 1.0)
        code = self.process.returncode
        how = "it closed its output" if code is None else f"exit code {code}"
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._tasks[2]), 0.5)
        return f"{how}; its last words:\n{self.words}" if self.words else how

    @property
    def words(self) -> str:
        """The end of what it wrote to stderr."""
        return "\n".join(self._last_words)[-1500:]


class _Limited:
    """Bytes of a response, up to a limit."""

    def __init__(self, stream: Any, limit: int) -> None:
        self._stream = stream
        self._left = self._limit = limit

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            self._left -= len(chunk)
            if self._left < 0:
                raise OSError(f"the answer has more bytes than the limit of {self._limit}; ask for less")
            yield chunk


def _limiter(limit: int) -> Callable[[Any], Coroutine[Any, Any, None]]:
    async def limit_json(response: Any) -> None:
        # A stream of events has a limit for each event; a JSON answer is read whole.
        if "event-stream" not in response.headers.get("content-type", ""):
            # The client asks for its own kind of stream, which cannot be imported here without naming its package.
            kind = next(cls for cls in type(response.stream).__mro__ if cls.__name__ == "AsyncByteStream")
            response.stream = type("Limited", (_Limited, kind), {})(response.stream, limit)

    return limit_json


class _Sieve:
    """The incoming stream of a transport, with tools taken out of a list that would make all of it unreadable."""

    def __init__(self, stream: Any, warn: Callable[[str], None]) -> None:
        self._stream = stream
        self._warn = warn

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def receive(self) -> Any:
        return self._clean(await self._stream.receive())

    def __aiter__(self) -> _Sieve:
        return self

    async def __anext__(self) -> Any:
        return self._clean(await self._stream.__anext__())

    async def __aenter__(self) -> _Sieve:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *exc_info: Any) -> Any:
        return await self._stream.__aexit__(*exc_info)

    def _clean(self, item: Any) -> Any:
        result = getattr(getattr(item, "message", None), "result", None)
        if isinstance(result, dict) and isinstance(result.get("tools"), list):
            kept = []
            for tool in result["tools"]:
                fault = _tool_fault(tool)
                if fault:
                    self._warn(fault)
                else:
                    kept.append(tool)
            result["tools"] = kept
        return item


@contextlib.asynccontextmanager
async def _sieved(transport: Any, warn: Callable[[str], None]) -> AsyncIterator[tuple[Any, Any]]:
    async with transport as (incoming, outgoing):
        yield _Sieve(incoming, warn), outgoing


def _tool_fault(tool: Any) -> str:
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str) or not tool["name"]:
        return f"a tool without a name is left out: {json.dumps(tool)[:120]}"
    schema = tool.get("inputSchema")
    if not isinstance(schema, dict):
        return f"tool {tool['name']!r} is left out, its schema is {json.dumps(schema)[:80]} and not an object"
    if fault := _schema_fault(schema):
        return f"tool {tool['name']!r} is left out, its schema is invalid: {fault}"
    schema.setdefault("type", "object")
    return ""


# ---------------------------------------------------------------- one server


class Connection:
    """One server: started, called, started again when it died, closed.

    Parameters
    ----------
    server : Server
    on_warning : callable (text)
        Told of what is odd, from the connections' thread.
    on_tools : callable () or None
        Told when the list of tools changed.

    Notes
    -----
    The methods may be called from any thread but the connections' own.
    """

    def __init__(
        self,
        server: Server,
        *,
        on_warning: Callable[[str], None] = lambda text: None,
        on_tools: Callable[[], None] | None = None,
    ) -> None:
        self.server = server
        self.on_warning = on_warning
        self.on_tools = on_tools
        self.tools: tuple[McpTool, ...] = ()
        self.has_resources = False
        self.has_prompts = False
        self.problem = ""
        self._client: Any = None
        self._stdio: _Stdio | None = None
        self._task: asyncio.Task[None] | None = None
        self._stop: asyncio.Event | None = None
        self._lock: asyncio.Lock | None = None
        self._relisting: asyncio.Future[None] | None = None
        self._is_stale = False
        self._warned: set[str] = set()
        self._is_closed = False

    @property
    def is_connected(self) -> bool:
        """True while the server can be called."""
        return self._client is not None and (self._stdio is None or self.pid is not None)

    @property
    def pid(self) -> int | None:
        """Process id of a stdio server; None while there is none."""
        process = self._stdio.process if self._stdio is not None else None
        return process.pid if process is not None and process.returncode is None else None

    # -- from any thread

    def start(self) -> None:
        """Connect, and read the list of tools; nothing if it is connected.

        Raises
        ------
        ToolError
            If that fails within ``start_timeout_seconds``; the text says why, with the server's last words.
        """
        _loop.submit(self._connected()).result()

    async def connect(self) -> None:
        """The same, awaited, on any loop."""
        await self._on_loop(self._connected())

    def close(self) -> None:
        """End the server; a connection that is closed does not start again. Safe to call twice."""
        if not self._is_closed:
            self._is_closed = True
            _loop.submit(self._end()).result(15)

    async def call(
        self, name: str, arguments: Mapping[str, Any], progress: Callable[..., None] | None = None
    ) -> ToolOutcome:
        """Call a tool by the server's name for it.

        Raises
        ------
        ToolError
            If the server refuses, dies, or takes longer than ``call_timeout_seconds``.
        """

        async def report(done: float, total: float | None, message: str | None) -> None:
            if progress is not None:
                share = f"{done:g}/{total:g}" if total else f"{done:g}"
                progress(f"{message or 'working'} ({share})\n", done=done, total=total)

        async def ask(client: Any) -> ToolOutcome:
            result = await client.call_tool(name, dict(arguments), progress_callback=report)
            parts = [part for block in result.content for part in _parts_of(block)]
            if not parts and result.structured_content is not None:
                parts = [TextPart(_cut(json.dumps(result.structured_content, ensure_ascii=False)))]
            return ToolOutcome(parts=tuple(parts) or (TextPart("(nothing)"),), is_error=bool(result.is_error))

        return await self._on_loop(self._ask(f"tool {name}", ask))

    async def resources(self) -> list[tuple[str, str]]:
        """``(uri, name and description)`` of each resource; templates with their placeholders."""

        async def ask(client: Any) -> list[tuple[str, str]]:
            found = [(str(r.uri), _described(r)) for r in await _pages(client.list_resources, "resources")]
            with contextlib.suppress(Exception):  # many servers have resources and no templates
                templates = await _pages(client.list_resource_templates, "resource_templates")
                found += [(str(t.uri_template), _described(t)) for t in templates]
            return found

        return await self._on_loop(self._ask("the list of resources", ask))

    async def read_resource(self, uri: str) -> tuple[Part, ...]:
        """Contents of a resource."""

        async def ask(client: Any) -> tuple[Part, ...]:
            result = await client.read_resource(uri)
            return tuple(part for content in result.contents for part in _contents(content))

        return await self._on_loop(self._ask(f"resource {uri}", ask))

    async def prompts(self) -> list[tuple[str, str]]:
        """``(name, description and arguments)`` of each prompt."""

        async def ask(client: Any) -> list[tuple[str, str]]:
            found = []
            for prompt in await _pages(client.list_prompts, "prompts"):
                names = [a.name if a.required else f"{a.name}?" for a in prompt.arguments or ()]
                found.append((prompt.name, f"{prompt.description or ''} ({', '.join(names)})".strip()))
            return found

        return await self._on_loop(self._ask("the list of prompts", ask))

    async def prompt(self, name: str, arguments: Mapping[str, str]) -> str:
        """Text of a prompt, filled in."""

        async def ask(client: Any) -> str:
            result = await client.get_prompt(name, dict(arguments))
            lines = []
            for message in result.messages:
                text = "".join(p.text if isinstance(p, TextPart) else f"[{p.type}]" for p in _parts_of(message.content))
                lines.append(f"{message.role}: {text}")
            return "\n\n".join(lines)

        return await self._on_loop(self._ask(f"prompt {name}", ask))

    @staticmethod
    async def _on_loop(coro: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(_loop.submit(coro))

    # -- on the connections' loop

    def _warn(self, text: str) -> None:
        if text not in self._warned and len(self._warned) < 50:
            self._warned.add(text)
            self.on_warning(f"MCP server {self.server.name}: {text}")

    async def _connected(self) -> Any:
        self._lock = self._lock or asyncio.Lock()
        async with self._lock:
            if self._is_closed:
                raise ToolError(f"MCP server {self.server.name} is closed")
            if self.is_connected:
                return self._client
            await self._end()
            ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self._stop = asyncio.Event()
            self._task = asyncio.ensure_future(self._life(ready, self._stop))
            limit = self.server.start_timeout_seconds
            try:
                await asyncio.wait({ready}, timeout=limit)
                if not ready.done():
                    why = f"it did not answer within {limit:g} s"
                    if self._stdio is not None:
                        self._stdio.patience_seconds = 0.2  # it does not listen
                        why += f"; its last words:\n{self._stdio.words}" if self._stdio.words else ""
                    raise _ServerDied(why)
                client = ready.result()
            except asyncio.CancelledError:
                await self._end()
                raise
            except Exception as exc:
                await self._end()
                self.problem = str(exc) or type(exc).__name__
                raise ToolError(f"MCP server {self.server.name} did not start: {self.problem}") from exc
            self.problem = ""
            return client

    async def _life(self, ready: asyncio.Future[Any], stop: asyncio.Event) -> None:
        """Connection, handshake and end, all in this one task."""
        stdio = _Stdio(self.server, self._rubbish) if self.server.command else None
        self._stdio = stdio
        try:
            async with contextlib.AsyncExitStack() as stack:
                client = await self._open(stack, stdio)
                await self._list_tools(client)
                capabilities = client.server_capabilities
                self.has_resources = capabilities.resources is not None
                self.has_prompts = capabilities.prompts is not None
                self._client = client
                ready.set_result(client)
                watching = asyncio.ensure_future(self._watch(client))
                try:
                    await stop.wait()
                finally:
                    watching.cancel()
        except asyncio.CancelledError:
            if not ready.done():
                ready.cancel()
            raise
        except BaseException as exc:
            if not ready.done():
                ready.set_exception(_ServerDied(await _reason(exc, stdio)))
            elif not stop.is_set():
                self._warn(f"the connection broke: {_plain(exc)}")
        finally:
            self._client = None

    async def _open(self, stack: contextlib.AsyncExitStack, stdio: _Stdio | None) -> Any:
        try:
            from mcp import Client
            from mcp.client.streamable_http import streamable_http_client
            from mcp.shared._httpx_utils import create_mcp_http_client
            from mcp_types import Implementation
        except ImportError as exc:
            raise UsageError(f"MCP needs the package mcp, version 2 or later: pip install mcp ({exc})") from exc
        # Over a second where Jupyter's format checkers are installed: while the server starts.
        asyncio.get_running_loop().run_in_executor(None, importlib.import_module, "jsonschema")
        transport: Any = stdio
        if transport is None:
            http = await stack.enter_async_context(create_mcp_http_client(headers=dict(self.server.headers)))
            limit = self.server.max_message_bytes
            http.event_hooks = {"response": [_limiter(limit)]}
            transport = streamable_http_client(self.server.url, http_client=http, max_sse_event_size=limit)
        client = Client(
            _sieved(transport, self._warn),
            read_timeout_seconds=self.server.call_timeout_seconds,
            message_handler=self._notified,
            client_info=Implementation(name="kit-jupyter", version="0"),
            cache=None,
        )
        return await stack.enter_async_context(client)

    def _rubbish(self, line: str) -> None:
        self._warn(f"lines on its stdout that are no messages are passed over, for example {line!r}")

    async def _notified(self, message: Any) -> None:
        from mcp_types import ToolListChangedNotification

        root = getattr(message, "root", message)
        if isinstance(root, ToolListChangedNotification) and self._client is not None:
            self._note_change(self._client)

    def _note_change(self, client: Any) -> None:
        # Not in the handler: the answer comes through it. And not for each of many notices at once.
        self._is_stale = True
        if self._relisting is None or self._relisting.done():
            self._relisting = asyncio.ensure_future(self._relist_while_stale(client))

    async def _relist_while_stale(self, client: Any) -> None:
        while self._is_stale:
            await asyncio.sleep(RELIST_SECONDS)  # more notices often follow the first
            self._is_stale = False
            await self._relist(client)

    async def _watch(self, client: Any) -> None:
        """Changes of the list of tools; since protocol 2026-07-28 they come to those only who listen."""
        with contextlib.suppress(Exception):  # an older protocol, or a server that does not tell
            async with client.listen(tools_list_changed=True) as changes:
                await self._relist(client)  # what changed before the server listened to our listening
                async for _ in changes:
                    self._note_change(client)

    async def _relist(self, client: Any) -> None:
        before = self.tools
        try:
            await self._list_tools(client)
        except Exception as exc:
            self._warn(f"its new list of tools cannot be read: {_plain(exc)}")
            return
        if self.on_tools is not None and self.tools != before:
            self.on_tools()

    async def _list_tools(self, client: Any) -> None:
        if client.server_capabilities.tools is None:
            self.tools = ()
            return
        made: dict[str, McpTool] = {}
        seen: set[str] = set()
        for tool in await _pages(client.list_tools, "tools"):
            if self.server.only is not None and tool.name not in self.server.only:
                continue
            if tool.name in seen:
                self._warn(f"two tools are named {tool.name!r}; only the first is used")
                continue
            seen.add(tool.name)
            one = McpTool(self, tool.name, tool.description or "", tool.input_schema)
            while one.spec.name in made:  # two names that differ only in letters that are not allowed
                one = McpTool(self, tool.name, tool.description or "", tool.input_schema, salt=one.spec.name)
            made[one.spec.name] = one
        if self.server.only is not None and (missing := set(self.server.only) - seen):
            self._warn(f"it has no tools named {', '.join(sorted(missing))}")
        # A tool that stayed as it was stays the same object, so that nothing moves in a request.
        known = {tool.spec.name: tool for tool in self.tools}
        kept = (known.get(name) for name in made)
        self.tools = tuple(
            old if old is not None and old.spec == new.spec else new
            for old, new in zip(kept, made.values(), strict=True)
        )

    async def _ask(self, what: str, ask: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
        import anyio
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT
        from pydantic import ValidationError

        client = await self._connected()
        name = self.server.name
        try:
            return await ask(client)
        except MCPError as exc:
            if exc.code == CONNECTION_CLOSED and exc.message == "Connection closed":
                why = await self._why()
            elif exc.code == REQUEST_TIMEOUT:
                raise ToolError(f"{what} of MCP server {name} took longer than the limit: {exc.message}") from exc
            else:
                raise ToolError(f"MCP server {name}: {exc.message}") from exc
        except ToolError:
            raise
        except (ValidationError, RuntimeError, ValueError) as exc:
            raise ToolError(f"MCP server {name} gave {what} an answer that breaks the protocol: {_plain(exc)}") from exc
        except (OSError, anyio.ClosedResourceError, anyio.BrokenResourceError) as exc:
            why = _plain(exc)
        if self._client is client:
            await self._end()
        raise ToolError(
            f"MCP server {name} died during {what} ({why}). It is started again at the next call; "
            "whether this call did its work is not known"
        )

    async def _why(self) -> str:
        return await self._stdio.obituary() if self._stdio is not None else "the connection was closed"

    async def _end(self) -> None:
        task, self._task = self._task, None
        was_connected, self._client = self._client is not None, None
        if self._stop is not None:
            self._stop.set()
        if task is None:
            return
        if not was_connected:
            task.cancel()  # it hangs in the handshake and hears no stop
        done, _ = await asyncio.wait({task}, timeout=8)
        if not done:
            task.cancel()
            await asyncio.wait({task}, timeout=5)
        if self._stdio is not None:
            self._stdio.kill()


async def _pages(ask: Callable[..., Coroutine[Any, Any, Any]], field_name: str) -> list[Any]:
    """All pages of a list; at most 100, a paginator that never ends cannot hang us."""
    found: list[Any] = []
    cursor: str | None = None
    for _ in range(100):
        page = await ask(cursor=cursor)
        found += getattr(page, field_name)
        cursor = page.next_cursor
        if not cursor:
            break
    return found


async def _reason(exc: BaseException, stdio: _Stdio | None) -> str:
    text = _plain(exc)
    if stdio is not None and stdio.process is not None:
        return f"{text} ({await stdio.obituary()})"
    return text


def _plain(exc: BaseException) -> str:
    """The first real error of a group, in a line."""
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    text = " ".join(str(exc).split())
    return f"{type(exc).__name__}: {text}"[:500] if text else type(exc).__name__


# ---------------------------------------------------------------- what comes back


def _cut(text: str) -> str:
    if len(text) <= _CUT_CHARS:
        return text
    return f"{text[:_CUT_CHARS]}\n[cut: {len(text) - _CUT_CHARS} more characters]"


def _described(thing: Any) -> str:
    return " ".join(text for text in (thing.name, thing.description, thing.mime_type) if text)


def _media(media_type: str | None, data: str, name: str = "") -> Part:
    try:
        base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return TextPart(f"[{media_type} {name}: not valid base64]")
    return MediaPart(media_type or "application/octet-stream", data, name)


def _contents(content: Any) -> list[Part]:
    text = getattr(content, "text", None)
    if isinstance(text, str):
        return [TextPart(_cut(text))]
    return [_media(content.mime_type, content.blob, str(content.uri))]


def _parts_of(block: Any) -> list[Part]:
    match block.type:
        case "text":
            return [TextPart(_cut(block.text))]
        case "image" | "audio":
            return [_media(block.mime_type, block.data)]
        case "resource":
            return _contents(block.resource)
        case "resource_link":
            return [TextPart(f"[resource {block.uri}: {_described(block)}]")]
    return [TextPart(f"[{block.type}]")]


def _schema_fault(schema: Mapping[str, Any]) -> str:
    """Why a schema cannot be given to a model; empty if it can."""
    from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
    from jsonschema.exceptions import SchemaError  # type: ignore[import-untyped]

    if schema.get("type", "object") != "object":
        return f"its type is {schema['type']!r}, not 'object'"
    try:
        Draft202012Validator.check_schema(dict(schema))
    except SchemaError as exc:
        return " ".join(exc.message.split())[:200]
    except RecursionError:
        return "it is nested too deep"
    return ""


# ---------------------------------------------------------------- one tool


def _tool_name(server: str, name: str, salt: str = "") -> str:
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", f"{server}__{name}")
    if plain[0].isdigit():
        plain = f"_{plain}"
    if len(plain) > 64 or salt:
        mark = hashlib.blake2b(f"{server}\0{name}\0{salt}".encode(), digest_size=3).hexdigest()
        plain = f"{plain[:57]}_{mark}"
    return plain


class McpTool:
    """A server's tool; its name here is ``server__tool``."""

    parallel_safe = True
    timeout_seconds: float | None = None  # the connection has its own limit
    approve: Wish = None

    def __init__(
        self, connection: Connection, name: str, description: str, schema: Mapping[str, Any], *, salt: str = ""
    ) -> None:
        self.connection = connection
        self.remote_name = name  # the server's own; `name` is what tools are known by here
        server = connection.server
        self.legs: Legs | None = server.tool_legs.get(name, server.legs)
        self.name = _tool_name(server.name, name, salt)
        self.spec = ToolSpec(
            name=self.name,
            description=_cut(description)[:4000] or f"{name}, of {server.name}",
            schema={"type": "object", "properties": {}, **schema},
        )

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Checked against the server's schema; nothing is converted."""
        from jsonschema import Draft202012Validator
        from referencing import Registry

        # An empty registry: a schema of a stranger must not make us fetch what it refers to.
        validator = Draft202012Validator(dict(self.spec.schema), registry=Registry())
        try:
            faults = sorted(validator.iter_errors(dict(arguments)), key=lambda fault: list(map(str, fault.path)))
        except Exception:  # a reference to elsewhere, a pattern that is none, endless nesting
            return dict(arguments)  # the server checks again
        if faults:
            lines = (
                f"{'.'.join(map(str, f.path)) or 'arguments'}: {' '.join(f.message.split())[:300]}" for f in faults
            )
            raise BadArguments("\n".join(lines))
        return dict(arguments)

    def access(self, arguments: Mapping[str, Any], context: ToolContext) -> Access:
        """Rules match the action ``mcp`` and the resource ``server/tool``; without one a person is asked."""
        return Access(needs=(Need("mcp", f"{self.connection.server.name}/{self.remote_name}", "act"),))

    async def run(self, context: ToolContext, arguments: dict[str, Any]) -> ToolOutcome:
        """Ask the server."""
        return await self.connection.call(self.remote_name, arguments, context.progress)

    def __repr__(self) -> str:
        return f"<tool {self.spec.name}>"
