"""SEAM Tool: what a model may call; `@tool` makes one of any function."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from kit_jupyter.messages import Part, TextPart, ToolSpec, text_of
from kit_jupyter.trifecta import Legs

__all__ = ["Tool", "ToolContext", "ToolOutcome", "Toolbox"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutcome:
    """What came of a call.

    Parameters
    ----------
    parts : tuple of Part
        What the model is told.
    is_error : bool
    halt : bool
        End the turn after this batch, with `value` as the turn's final value.
    details : dict
        For views only, never sent: diffs, figures' names, namespace changes.
    """

    parts: tuple[Part, ...] = ()
    is_error: bool = False
    halt: bool = False
    value: Any = None
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The text parts joined."""
        return text_of(self.parts)

    @classmethod
    def of_text(cls, text: str, *, is_error: bool = False) -> ToolOutcome:
        """An outcome of one text."""
        return cls(parts=(TextPart(text),), is_error=is_error)


class ToolContext(Protocol):
    """What a running tool may use; the turn fulfils it."""

    call_id: str
    tool_name: str
    turn_id: str
    session_id: str

    def progress(self, text: str, *, stream: str = "stdout", parts: tuple[Part, ...] = ()) -> None:
        """Show live output. Any thread."""
        ...

    async def on_user_thread(self, fn: Callable[..., T | Awaitable[T]], *args: Any) -> T:
        """Run ``fn(*args)`` on the thread that owns the user's objects, one piece at a time."""
        ...

    async def ask(self, question: str, *, suggestion: str = "") -> bool:
        """Ask the person once more, in the middle of the call; False when nobody is there."""
        ...

    @property
    def state(self) -> dict[str, Any]:
        """A dict kept for this Kit, for tools that remember (read records, running jobs)."""
        ...


@runtime_checkable
class Tool(Protocol):
    """Something a model may call.

    Attributes
    ----------
    spec : ToolSpec
        What the model is told.
    legs : Legs or None
        What it touches; None means not declared, which the trifecta report shows as a gap.
    parallel_safe : bool
        May run beside other calls of the same step.
    timeout_seconds : float or None
        None for no limit.
    approve : {"allow", "ask", "deny"} or callable(arguments, context) -> one of them, or None
        The tool's own wish; None leaves it to the policy. A callable that raises counts as "ask".
    """

    spec: ToolSpec
    legs: Legs | None
    parallel_safe: bool
    timeout_seconds: float | None
    approve: Literal["allow", "ask", "deny"] | Callable[..., str] | None

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments checked and converted.

        Raises
        ------
        BadArguments
            One line per fault, in words the model can act on.
        """
        ...

    async def run(self, context: ToolContext, arguments: dict[str, Any]) -> ToolOutcome:
        """Do it, on the engine's loop; user code goes through `ToolContext.on_user_thread`."""
        ...


class Toolbox(Mapping[str, Tool]):
    """Tools by name, in order; frozen.

    Raises
    ------
    UsageError
        If two tools bear one name.
    """

    def __init__(self, tools: tuple[Tool, ...] = ()) -> None:
        from kit_jupyter.errors import UsageError

        self._tools: dict[str, Tool] = {}
        for item in tools:
            if item.spec.name in self._tools:
                raise UsageError(f"two tools are named {item.spec.name!r}; rename one of them")
            self._tools[item.spec.name] = item

    def __getitem__(self, name: str) -> Tool:
        return self._tools[name]

    def __iter__(self) -> Any:
        return iter(self._tools)

    def __len__(self) -> int:
        return len(self._tools)

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """What the model is told, in order."""
        return tuple(item.spec for item in self._tools.values())
