"""The one handle of a Kit that its guests hold at run time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from kit_jupyter.chain import current_guest
from kit_jupyter.errors import UsageError
from kit_jupyter.guest import KitView
from kit_jupyter.loop import engine
from kit_jupyter.permissions import Approval
from kit_jupyter.tool import Tool, as_tool

__all__ = ["GuestContext", "Home"]


class Home(Protocol):
    """What a `GuestContext` changes; the host of the guests."""

    tools: list[Tool]
    sub_agent_tools: list[Tool]
    tools_version: int

    def queue_block(self, name: str, text: str) -> None:
        """Keep text for a guest's next reference block."""

    def warn(self, message: str, source: str) -> None:
        """Tell a person something, once in a conversation."""


class GuestContext:
    """The `ExtensionContext` of a Kit.

    Parameters
    ----------
    host : Home
        The host of all guests.
    kit : KitView
    emit : callable (name, content)
        Emits a `Domain` event at once.
    child : callable (persona, **options) or None
        Makes an agent for a persona.
    ask : async callable (question, action, resource) or None
        Asks a person.
    always_asks : callable (tool, arguments) or None
        What the policy in force says of a tool.
    """

    __slots__ = ("_always_asks", "_ask", "_child", "_emit", "_host", "kit")

    def __init__(
        self,
        host: Home,
        kit: KitView,
        *,
        emit: Callable[[str, Any], object],
        child: Callable[..., Any] | None = None,
        ask: Callable[[str, str, str], Awaitable[Approval]] | None = None,
        always_asks: Callable[[Tool, Mapping[str, Any] | None], bool | None] | None = None,
    ) -> None:
        self._host = host
        self._emit = emit
        self._child = child
        self._ask = ask
        self._always_asks = always_asks
        self.kit = kit

    @property
    def agent(self) -> KitView:
        """The same as `kit`."""
        return self.kit

    def emit(self, name: str, content: Any = None) -> None:
        """Emit a `Domain` event, at once."""
        self._emit(name, content)

    def append_reference_block(self, text: str) -> None:
        """Add `text` to this extension's reference block after the next user message."""
        self._host.queue_block(current_guest(), text)

    def add_tool(self, tool: Tool | Callable[..., Any]) -> Tool:
        """Add a tool at run time; the next turn has it."""
        made = as_tool(tool)
        name = made.spec.name
        if name in getattr(self.kit, "tools", ()) or any(known.spec.name == name for known in self._host.tools):
            raise UsageError(f"there is a tool named {name!r} already; choose another name or remove it first")
        self._host.tools.append(made)
        self._host.tools_version += 1
        return made

    def remove_tool(self, name: str) -> None:
        """Take away a tool that an extension added; unknown names are ignored."""
        self._host.tools[:] = [tool for tool in self._host.tools if tool.spec.name != name]
        self._host.tools_version += 1

    @property
    def delegable_tools(self) -> tuple[Tool, ...]:
        """Tools that a persona may have: the agent's own and the sub-agent tools."""
        return (*self.kit.tools.values(), *self._host.sub_agent_tools)

    def child(self, persona: Any, **options: Any) -> Any:
        """A new agent for `persona`."""
        if self._child is None:
            raise UsageError("this Kit cannot make sub-agents")
        return self._child(persona, **options)

    async def ask(self, question: str, *, action: str, resource: str = "") -> Approval:
        """Put a question to whoever answers approvals; on the engine, while a turn runs."""
        if not engine.is_here:
            raise UsageError("ctx.ask waits for a person: await it in an async hook")
        if self._ask is None:
            return Approval(allowed=False, by="nobody")
        return await self._ask(question, action, resource)

    def always_asks(self, tool: Tool, arguments: Mapping[str, Any] | None = None) -> bool | None:
        """Whether the policy in force puts every call of `tool` that acts to a person, or refuses it."""
        return self._always_asks(tool, arguments) if self._always_asks is not None else None

    def warn(self, message: str) -> None:
        """Tell a person something."""
        self._host.warn(message, current_guest())
