"""A server's tool as a tool of ours, and a server's list of them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from kit_jupyter.errors import BadArguments
from kit_jupyter.messages import ToolSpec
from kit_jupyter.permissions import Access, Need
from kit_jupyter.tool import ToolContext, ToolOutcome, Wish
from kit_jupyter.tools.mcp.server import Server
from kit_jupyter.trifecta import Legs

__all__ = ["McpTool", "tools_of"]


class Owner(Protocol):
    """The connection that a tool belongs to."""

    server: Server

    async def call(
        self, name: str, arguments: Mapping[str, Any], progress: Callable[..., None] | None = None
    ) -> ToolOutcome:
        """Call a tool by the server's name for it."""


class McpTool:
    """A server's tool; its name here is ``server__tool``."""

    parallel_safe = True
    timeout_seconds: float | None = None  # the connection has its own limit
    approve: Wish = None

    def __init__(
        self, connection: Owner, name: str, description: str, schema: Mapping[str, Any], *, salt: str = ""
    ) -> None:
        self.connection = connection
        self.remote_name = name  # the server's own; `name` is what tools are known by here
        server = connection.server
        self.legs: Legs | None = server.tool_legs.get(name, server.legs)
        self.name = _tool_name(server.name, name, salt)
        self.spec = ToolSpec(
            name=self.name,
            description=description[:4000] or f"{name}, of {server.name}",
            schema={"type": "object", "properties": {}, **schema},
        )

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Checked against the server's schema; nothing is converted."""
        from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
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


def tools_of(
    listed: Iterable[Any], owner: Owner, *, before: Sequence[McpTool], warn: Callable[[str], None]
) -> tuple[McpTool, ...]:
    """Tools from a server's list; one that stayed as it was stays the same object: nothing moves in a request."""
    only = owner.server.only
    made: dict[str, McpTool] = {}
    seen: set[str] = set()
    for tool in listed:
        if only is not None and tool.name not in only:
            continue
        if tool.name in seen:
            warn(f"two tools are named {tool.name!r}; only the first is used")
            continue
        seen.add(tool.name)
        one = McpTool(owner, tool.name, tool.description or "", tool.input_schema)
        while one.spec.name in made:  # two names that differ only in letters that are not allowed
            one = McpTool(owner, tool.name, tool.description or "", tool.input_schema, salt=one.spec.name)
        made[one.spec.name] = one
    if only is not None and (missing := set(only) - seen):
        warn(f"it has no tools named {', '.join(sorted(missing))}")
    known = {tool.spec.name: tool for tool in before}
    return tuple(
        old if (old := known.get(name)) is not None and old.spec == new.spec else new for name, new in made.items()
    )


def _tool_name(server: str, name: str, salt: str = "") -> str:
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", f"{server}__{name}")
    if plain[0].isdigit():
        plain = f"_{plain}"
    if len(plain) > 64 or salt:
        mark = hashlib.blake2b(f"{server}\0{name}\0{salt}".encode(), digest_size=3).hexdigest()
        plain = f"{plain[:57]}_{mark}"
    return plain
