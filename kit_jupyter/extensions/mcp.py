"""Servers of the Model Context Protocol: their tools, resources and prompts."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kit_jupyter.errors import ExtensionError, ToolError, UsageError
from kit_jupyter.extension import Configurator, Extension, ExtensionContext
from kit_jupyter.extensions._tool import GuestTool
from kit_jupyter.hooks import StepPlan
from kit_jupyter.messages import Part
from kit_jupyter.tool import Tool, ToolOutcome
from kit_jupyter.tools.mcp import Connection, McpTool, Server
from kit_jupyter.trifecta import ALL_LEGS, Contribution, Legs

__all__ = ["Mcp", "Server"]

_REMOTE = Legs(untrusted="hard")


class Mcp(Extension):
    """Connects MCP servers.

    Parameters
    ----------
    servers : sequence of Server, or dict of name to settings
        Settings as in the ``mcpServers`` block that other clients read: ``command``, ``args``, ``env``,
        ``cwd``, or ``url``, ``headers``; and any other field of `Server`.

    Notes
    -----
    First all connections are made and their closer is armed, then all servers start at the same time. One
    that does not start is told of and can be had later through the ``mcp_connect`` tool; with ``required=True``
    the Kit is not built. A clear keeps the processes. What a server says of itself does not reach the
    system prompt, only what you wrote in `Server.description`. Calls ask a person unless a rule allows them:
    ``Rule("mcp", "server/tool", "allow")``.

    Examples
    --------
    >>> mcp = Mcp({"files": {"command": "files-server", "args": ["--root", "."], "lazy": True}})
    >>> print(mcp.system_prompt_snippets()[0])
    MCP servers, whose tools are named server__tool:
    - files: not connected; mcp_connect brings its tools
    """

    name = "Mcp"
    hook_timeout_seconds = 30.0

    def __init__(self, servers: Sequence[Server] | Mapping[str, Mapping[str, Any]]) -> None:
        if isinstance(servers, Mapping):
            servers = [_server(name, settings) for name, settings in servers.items()]
        names = [server.name for server in servers]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise UsageError(f"two MCP servers are named {', '.join(twice)}; rename one of them")
        self.connections = {
            server.name: Connection(server, on_warning=self._warn, on_tools=self._tools_changed) for server in servers
        }
        self._ctx: ExtensionContext | None = None
        self._early: list[str] = []
        self._offered: dict[str, McpTool] = {}
        self._new: dict[str, McpTool] = {}
        self._lock = threading.Lock()

    # -- hooks

    def configure(self, c: Configurator) -> None:
        """Arm the closer, start all servers that are not lazy, add their tools."""
        c.on_close(self.close)
        self._start_all()
        for connection in self.connections.values():
            for tool in connection.tools:
                self._offered[tool.spec.name] = tool
                c.add_tool(tool)
        c.add_tool(GuestTool(self.mcp_connect, name="mcp_connect", legs=Legs(), kind="act", resource="server"))
        everything = [*self.connections.values()]
        if any(one.has_resources or not one.is_connected for one in everything):
            c.add_tool(GuestTool(self.mcp_resource, name="mcp_resource", legs=_REMOTE, kind="act", resource="server"))
        if any(one.has_prompts or not one.is_connected for one in everything):
            c.add_tool(GuestTool(self.mcp_prompt, name="mcp_prompt", legs=_REMOTE, kind="act", resource="server"))

    def bind(self, ctx: ExtensionContext) -> None:
        """Tell what was odd so far."""
        self._ctx = ctx
        for text in self._early:
            ctx.warn(text)

    def system_prompt_snippets(self) -> list[str]:
        """The servers, a line each."""
        if not self.connections:
            return []
        lines = []
        for name, connection in self.connections.items():
            about = f": {' '.join(connection.server.description.split())}" if connection.server.description else ""
            if connection.is_connected:
                count = len(connection.tools)
                state = f"{count} tool{'s' * (count != 1)}"
            else:
                state = "not connected; mcp_connect brings its tools"
            lines.append(f"- {name}{about}{'; ' if about else ': '}{state}")
        return ["MCP servers, whose tools are named server__tool:\n" + "\n".join(lines)]

    def on_conversation_reset(self, ctx: ExtensionContext) -> None:
        """Nothing: servers are infrastructure, and a clear is not a quit."""

    def prepare_step(self, plan: StepPlan) -> StepPlan | None:
        """Give this turn the tools that `mcp_connect` has just brought."""
        with self._lock:
            known = {tool.spec.name for tool in plan.tools}
            added = tuple(tool for name, tool in self._new.items() if name not in known)
        return replace(plan, tools=(*plan.tools, *added)) if added else None

    def after_turn(self, response: str, error: BaseException | None) -> None:
        """From the next turn on they are there anyway."""
        with self._lock:
            self._new.clear()

    def trifecta_contribution(self, tools: Sequence[Tool]) -> Contribution | None:
        """All legs for servers that declare none, until somebody does."""
        unknown = [name for name, one in self.connections.items() if one.server.legs is None and not _all_declared(one)]
        if not unknown:
            return None
        foreign = [tool for name in unknown for tool in self.connections[name].tools if tool.legs is None]
        asked = self._ctx is not None and foreign and all(self._ctx.always_asks(tool) for tool in foreign)
        return Contribution(
            label=f"MCP {', '.join(unknown)} (assumed)",
            legs=ALL_LEGS.cap_payload_review("reviewed" if asked else "unreviewed"),
            gaps=tuple(f"server {name} declares no legs; give Server(legs=…)" for name in unknown),
        )

    # -- tools

    async def mcp_connect(self, server: str) -> str:
        """Connect an MCP server, or connect it again, and get its tools.

        Parameters
        ----------
        server : str
            Its name in the list of servers.
        """
        connection = self._named(server)
        await connection.connect()
        self._tools_changed()
        names = ", ".join(tool.spec.name for tool in connection.tools) or "none"
        return f"{server} is connected; its tools: {names}"

    async def mcp_resource(self, server: str, uri: str = "") -> ToolOutcome:
        """Read a resource of an MCP server.

        Parameters
        ----------
        server : str
            Its name in the list of servers.
        uri : str
            The resource; empty lists what there is.
        """
        connection = self._named(server)
        if uri:
            parts: tuple[Part, ...] = await connection.read_resource(uri)
            return ToolOutcome(parts=parts) if parts else ToolOutcome.of_text("(empty)")
        return ToolOutcome.of_text(_listed(await connection.resources(), "resources"))

    async def mcp_prompt(self, server: str, name: str = "", arguments: dict[str, str] | None = None) -> str:
        """Get a prompt that an MCP server offers.

        Parameters
        ----------
        server : str
            Its name in the list of servers.
        name : str
            The prompt; empty lists what there is.
        arguments : dict
            What the prompt asks for.
        """
        connection = self._named(server)
        if name:
            return await connection.prompt(name, arguments or {})
        return _listed(await connection.prompts(), "prompts")

    # -- private

    def _named(self, server: str) -> Connection:
        try:
            return self.connections[server]
        except KeyError:
            known = ", ".join(self.connections) or "none"
            raise ToolError(f"there is no MCP server {server!r}; there are: {known}") from None

    def _start_all(self) -> None:
        eager = [one for one in self.connections.values() if not one.server.lazy]
        if not eager:
            return
        with concurrent.futures.ThreadPoolExecutor(len(eager), thread_name_prefix="kit-mcp-start") as pool:
            starts = [(one, pool.submit(one.start)) for one in eager]
        for one, done in starts:
            error = done.exception()
            if error is None:
                continue
            if one.server.required or not isinstance(error, ToolError):
                raise ExtensionError(str(error), extension=self.name, hook="configure") from error
            self._warn(error.message)

    def _warn(self, text: str) -> None:
        if self._ctx is None:
            self._early.append(text)
        else:
            self._ctx.warn(text)

    def _tools_changed(self) -> None:
        """Offer what the servers have now, and take away what is gone. Any thread."""
        ctx = self._ctx
        if ctx is None:
            return
        with self._lock:
            current = {tool.spec.name: tool for one in self.connections.values() for tool in one.tools}
            for name in [name for name, tool in self._offered.items() if current.get(name) is not tool]:
                ctx.remove_tool(name)
                del self._offered[name]
            for name, tool in current.items():
                if name not in self._offered:
                    try:
                        ctx.add_tool(tool)
                    except UsageError as exc:
                        ctx.warn(f"MCP tool {name} is left out: {exc.message}")
                        continue
                    self._offered[name] = tool
                    self._new[name] = tool

    def close(self) -> None:
        """End all servers."""
        if self.connections:
            with concurrent.futures.ThreadPoolExecutor(len(self.connections)) as pool:
                list(pool.map(Connection.close, self.connections.values()))


def _all_declared(connection: Connection) -> bool:
    return connection.is_connected and all(tool.legs is not None for tool in connection.tools)


def _listed(rows: Sequence[tuple[str, str]], what: str) -> str:
    return "\n".join(f"- {name}: {about}" for name, about in rows[:500]) or f"it has no {what}"


def _server(name: str, settings: Mapping[str, Any]) -> Server:
    known = {field for field in Server.__dataclass_fields__ if field != "name"}
    ignored = {"type", "transport", "disabled"}
    if unknown := sorted(set(settings) - known - ignored):
        raise UsageError(
            f"MCP server {name!r}: unknown settings {', '.join(unknown)}; known: {', '.join(sorted(known))}"
        )
    return Server(name=name, **{key: value for key, value in settings.items() if key in known})
