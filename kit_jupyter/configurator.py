"""What a guest may add while a Kit is built: the `Configurator`, and how long it works."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from kit_jupyter.chain import Handler, current_guest, name_of
from kit_jupyter.errors import UsageError
from kit_jupyter.guestcall import HOOK_TIMEOUT_SECONDS, limit_seconds
from kit_jupyter.tool import Tool, as_tool

if TYPE_CHECKING:
    from kit_jupyter.events import Event

__all__ = ["Building", "Configurator", "building"]


class Building(Protocol):
    """What a `Configurator` adds to; the host of the guests."""

    tools: list[Tool]
    sub_agent_tools: list[Tool]
    listeners: list[tuple[Callable[[Any], object], tuple[type[Event], ...]]]

    def add_handler(self, name: str, handler: Handler) -> Callable[[], None]:
        """Add a handler to a chained hook."""

    def add_closer(self, owner: str, fn: Callable[[], Any]) -> None:
        """Have `fn` called at the end."""

    def add_extension(self, extension: Any, configurator: Configurator) -> None:
        """Check an extension, take it in and configure it."""


class Configurator:
    """Given to `Extension.configure`; works only while the Kit is being built.

    Every method raises `UsageError` afterwards.
    """

    def __init__(self, host: Building) -> None:
        self._host = host
        self._open = True

    def _check_open(self, method: str) -> None:
        if not self._open:
            raise UsageError(
                f"Configurator.{method} works only while the Kit is being built; at run time use the context"
            )

    def add_tool(self, tool: Tool | Callable[..., Any]) -> Tool:
        """Add a tool for the model; a function is made into one."""
        self._check_open("add_tool")
        made = as_tool(tool)
        self._host.tools.append(made)
        return made

    def add_sub_agent_tool(self, tool: Tool | Callable[..., Any]) -> Tool:
        """Add a tool that personas may use and this agent may not."""
        self._check_open("add_sub_agent_tool")
        made = as_tool(tool)
        self._host.sub_agent_tools.append(made)
        return made

    def add_listener(self, fn: Callable[[Any], object], *types: type[Event]) -> None:
        """Have `fn` called with each event, or with those of `types` only; it observes and cannot change."""
        self._check_open("add_listener")
        if not callable(fn):
            raise UsageError(f"a listener is a function of one event, got {fn!r}")
        self._host.listeners.append((fn, types))

    def add_hook(
        self,
        name: str,
        fn: Callable[..., Any],
        *,
        priority: int = 50,
        timeout_seconds: float | None = HOOK_TIMEOUT_SECONDS,
    ) -> None:
        """Add a chained hook.

        Parameters
        ----------
        name : str
            A chained hook of `HOOKS`, for example ``before_tool``.
        fn : callable or async callable
            Gets what the table says. A sync one runs on a thread of its own.
        priority : int
            Lower ones run earlier; the same priority in order of registration.
        timeout_seconds : float or None
            A hook that takes longer is reported and passed over; a gate then blocks. None: no limit.
        """
        self._check_open("add_hook")
        limit = limit_seconds(timeout_seconds, "timeout_seconds")
        self._host.add_handler(name, Handler(current_guest(name_of(fn)), fn, priority, limit))

    def on_close(self, fn: Callable[[], Any]) -> None:
        """Have `fn` called when the Kit closes, or when its construction fails; last added, first called."""
        self._check_open("on_close")
        if not callable(fn):
            raise UsageError(f"a closer is a function without arguments, got {fn!r}")
        self._host.add_closer(current_guest(name_of(fn)), fn)

    def add_extension(self, extension: Any) -> None:
        """Add an extension: its `configure` runs before this returns.

        Raises
        ------
        UsageError
            If a required hook is missing (the text names it), if a method bears nearly the name of a
            gate and would never be called, if it is a class and not an instance, or if this very instance
            was added before.
        """
        self._check_open("add_extension")
        self._host.add_extension(extension, self)


@contextmanager
def building(host: Building) -> Iterator[Configurator]:
    """A `Configurator` that works within the block."""
    configurator = Configurator(host)
    try:
        yield configurator
    finally:
        configurator._open = False
