"""One server: started, called, started again when it died, closed."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, TypeVar

from kit_jupyter.errors import ToolError, UsageError
from kit_jupyter.messages import Part, TextPart
from kit_jupyter.tool import ToolOutcome
from kit_jupyter.tools.mcp.limit import limiter
from kit_jupyter.tools.mcp.parts import cut, described, parts_of_block, parts_of_contents
from kit_jupyter.tools.mcp.server import Server
from kit_jupyter.tools.mcp.sieve import sieved
from kit_jupyter.tools.mcp.stdio import ServerDied, Stdio
from kit_jupyter.tools.mcp.thread import connections_loop
from kit_jupyter.tools.mcp.tool import McpTool, tools_of

__all__ = ["Connection"]

T = TypeVar("T")


RELIST_SECONDS: Final = 0.05


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
        self._stdio: Stdio | None = None
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
        connections_loop.submit(self._connected()).result()

    async def connect(self) -> None:
        """The same, awaited, on any loop."""
        await self._on_loop(self._connected())

    def close(self) -> None:
        """End the server; a connection that is closed does not start again. Safe to call twice."""
        if not self._is_closed:
            self._is_closed = True
            connections_loop.submit(self._end()).result(15)

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
            parts = [part for block in result.content for part in parts_of_block(block)]
            if not parts and result.structured_content is not None:
                parts = [TextPart(cut(json.dumps(result.structured_content, ensure_ascii=False)))]
            return ToolOutcome(parts=tuple(parts) or (TextPart("(nothing)"),), is_error=bool(result.is_error))

        return await self._on_loop(self._ask(f"tool {name}", ask))

    async def resources(self) -> list[tuple[str, str]]:
        """``(uri, name and description)`` of each resource; templates with their placeholders."""

        async def ask(client: Any) -> list[tuple[str, str]]:
            found = [(str(r.uri), described(r)) for r in await _pages(client.list_resources, "resources")]
            with contextlib.suppress(Exception):  # many servers have resources and no templates
                templates = await _pages(client.list_resource_templates, "resource_templates")
                found += [(str(t.uri_template), described(t)) for t in templates]
            return found

        return await self._on_loop(self._ask("the list of resources", ask))

    async def read_resource(self, uri: str) -> tuple[Part, ...]:
        """Contents of a resource."""

        async def ask(client: Any) -> tuple[Part, ...]:
            result = await client.read_resource(uri)
            return tuple(part for content in result.contents for part in parts_of_contents(content))

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
                parts = parts_of_block(message.content)
                text = "".join(p.text if isinstance(p, TextPart) else f"[{p.type}]" for p in parts)
                lines.append(f"{message.role}: {text}")
            return "\n\n".join(lines)

        return await self._on_loop(self._ask(f"prompt {name}", ask))

    @staticmethod
    async def _on_loop(coro: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(connections_loop.submit(coro))

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
                    raise ServerDied(why)
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
        stdio = Stdio(self.server, self._rubbish) if self.server.command else None
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
                ready.set_exception(ServerDied(await _reason(exc, stdio)))
            elif not stop.is_set():
                self._warn(f"the connection broke: {_plain(exc)}")
        finally:
            self._client = None

    async def _open(self, stack: contextlib.AsyncExitStack, stdio: Stdio | None) -> Any:
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
            http.event_hooks = {"response": [limiter(limit)]}
            transport = streamable_http_client(self.server.url, http_client=http, max_sse_event_size=limit)
        client = Client(
            sieved(transport, self._warn),
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
        listed = await _pages(client.list_tools, "tools")
        self.tools = tools_of(listed, self, before=self.tools, warn=self._warn)

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


async def _reason(exc: BaseException, stdio: Stdio | None) -> str:
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
