"""SEAM Tool: what a model may call; `@tool` makes one of any function.

Theory of operation
-------------------
A `Tool` checks arguments (`validate`) and does its work (`run`) on the engine. `FunctionTool` is
the tool made of a function: its schema comes from the signature and docstring (`tool_schema`), the
function runs on the user's thread (`usercall`) with its prints caught (`printed`), and what it
returns becomes parts (`tool_value`). Errors become results; only a cancel passes through.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar, cast, overload, runtime_checkable

from kit_jupyter.errors import BadArguments, UsageError
from kit_jupyter.messages import Part, TextPart, ToolSpec, text_of
from kit_jupyter.printed import Sink, catch_prints
from kit_jupyter.tool_schema import Signature, parse_arguments, signature_of
from kit_jupyter.tool_value import describe_error, parts_of
from kit_jupyter.trifecta import Legs
from kit_jupyter.usercall import Done, UserCall

__all__ = [
    "FunctionTool",
    "Halt",
    "Tool",
    "ToolContext",
    "ToolOutcome",
    "Toolbox",
    "as_tool",
    "check_name",
    "halt",
    "outcome_of",
    "parse_arguments",
    "tool",
]

T = TypeVar("T")
Wish = Literal["allow", "ask", "deny"] | Callable[..., str] | None


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

    def progress(
        self,
        text: str | float = "",
        total: float | None = None,
        *,
        done: float | None = None,
        stream: str = "stdout",
        parts: tuple[Part, ...] = (),
    ) -> None:
        """Show live output, or how far the work is: ``progress("text")``, ``progress(3, 10)``. Any thread.

        Parameters
        ----------
        text : str or number
            Text to show; a number is `done`.
        done, total : number or None
            A bar is drawn; without `total` one that only shows that work goes on.
        """
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

    @property
    def spec(self) -> ToolSpec: ...
    @property
    def legs(self) -> Legs | None: ...
    @property
    def parallel_safe(self) -> bool: ...
    @property
    def timeout_seconds(self) -> float | None: ...
    @property
    def approve(self) -> Wish: ...

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
        self._tools: dict[str, Tool] = {}
        for item in tools:
            # A tool's own name first: its spec may cost the import of pydantic, which can wait for a turn.
            name = getattr(item, "name", None) or item.spec.name
            if name in self._tools:
                raise UsageError(f"two tools are named {name!r}; rename one of them")
            self._tools[name] = item

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

    def __repr__(self) -> str:
        return f"<Toolbox: {', '.join(self._tools) or 'empty'}>"


# ---------------------------------------------------------------- tools made of functions


@dataclass(frozen=True, slots=True)
class Halt:
    """A returned value that ends the turn; made by `halt`."""

    value: Any


def halt(value: Any = None) -> Halt:
    """Return this from a tool to end the turn after this batch, with `value` as its final value.

    Examples
    --------
    >>> @tool
    ... def choose(label: str):
    ...     "The final label."
    ...     return halt(label)
    """
    return Halt(value)


def outcome_of(value: Any, *, printed: str = "") -> ToolOutcome:
    """What a function returned, as an outcome; what it printed stands for a missing result.

    Examples
    --------
    >>> outcome_of([1, 2]).text, outcome_of(None, printed="hi").text
    ('[1,2]', 'hi')
    """
    match value:
        case ToolOutcome():
            return value
        case Halt(final):
            return ToolOutcome(parts=parts_of("done" if final is None else final), halt=True, value=final)
        case None if printed.strip():
            return ToolOutcome(parts=parts_of(printed))
    return ToolOutcome(parts=parts_of(value))


def check_name(name: str) -> str:
    """`name` if every service accepts it as a tool's name.

    Raises
    ------
    UsageError
        Else.
    """
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]{0,63}", name):
        raise UsageError(
            f"a tool's name is letters, digits, _ and -, at most 64 of them, got {name!r}; give one: @tool(name=...)"
        )
    return name


class FunctionTool:
    """A function as a `Tool`; still callable as the function it was.

    Made by `tool` and `as_tool`, which tell the parameters.

    Notes
    -----
    The function runs on the user's thread, one piece at a time, whether it is sync or async. A
    generator's yields are live output; its ``return`` value is the result, or, without one, all
    that it yielded. Prints are live output too, and the result of a function that returns None.
    A stop or a time-out interrupts it (`usercall`). ``SystemExit`` and the like become error
    results; threads that it starts are its own affair.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        name: str = "",
        description: str = "",
        legs: Legs | None = None,
        approve: Wish = None,
        timeout_seconds: float | None = None,
        parallel_safe: bool = False,
    ) -> None:
        if not callable(fn):
            raise UsageError(f"a tool is made of a function, got {type(fn).__name__}")
        if not callable(approve) and approve not in (None, "allow", "ask", "deny"):
            raise UsageError(f'approve is "allow", "ask", "deny", None or a function, got {approve!r}')
        if timeout_seconds is not None and not timeout_seconds > 0:
            raise UsageError(f"timeout_seconds is above 0, or None for no limit, got {timeout_seconds!r}")
        functools.update_wrapper(self, fn, updated=())
        self.fn = fn
        self.name = check_name(name or _name_of(fn))
        self.legs = legs
        self.approve = approve
        self.timeout_seconds = timeout_seconds
        self.parallel_safe = parallel_safe
        self._description = description

    def __repr__(self) -> str:
        return f"<tool {self.name}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself."""
        return self.fn(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """As a method: bound to its object, so that ``Kit(tools=[obj.method])`` works."""
        if instance is None:
            return self
        return FunctionTool(
            self.fn.__get__(instance, owner),
            name=self.name,
            description=self._description,
            legs=self.legs,
            approve=self.approve,
            timeout_seconds=self.timeout_seconds,
            parallel_safe=self.parallel_safe,
        )

    @functools.cached_property
    def signature(self) -> Signature:
        """The schema and how to check against it; made on first use."""
        return signature_of(self.fn, name=self.name, context_type=ToolContext)

    @functools.cached_property
    def spec(self) -> ToolSpec:
        """What the model is told."""
        described = self._description or self.signature.description or self.name.replace("_", " ")
        return ToolSpec(name=self.name, description=described, schema=self.signature.schema)

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments checked and converted; see `Tool`."""
        return self.signature.validate(arguments)

    async def run(self, context: ToolContext, arguments: dict[str, Any]) -> ToolOutcome:
        """Call the function on the user's thread."""
        positional, named = self.signature.bind(arguments, context)
        sink = Sink(lambda text, stream: context.progress(text, stream=stream))
        done = await UserCall(functools.partial(self._body, context, sink, positional, named)).run(context)
        return _outcome_of_done(done, sink)

    def _body(self, context: ToolContext, sink: Sink, positional: list[Any], named: dict[str, Any]) -> Any:
        with catch_prints(sink):
            value = self.fn(*positional, **named)
            if inspect.isgenerator(value):
                return _drive(value, context)
        if inspect.isasyncgen(value):
            value = _drive_async(value, context)
        return _await_caught(value, sink) if inspect.isawaitable(value) else _settle(value)


def _settle(value: Any) -> ToolOutcome | None:
    """Turned into parts here, on the user's thread, where figures and frames may be touched."""
    return None if value is None else outcome_of(value)


async def _await_caught(value: Awaitable[Any], sink: Sink) -> Any:
    with catch_prints(sink):
        return _settle(await value)


def _outcome_of_done(done: Done, sink: Sink) -> ToolOutcome:
    if done.interrupted:
        text = "interrupted by the user before it finished"
        return ToolOutcome(parts=(TextPart(text),), is_error=True, details={"interrupted": True})
    if isinstance(done.error, BadArguments):
        return ToolOutcome.of_text(done.error.message, is_error=True)
    if done.error is not None:
        said = describe_error(done.error)
        printed = sink.text.strip()
        return ToolOutcome.of_text(f"{said}\n\nprinted before:\n{printed[-2000:]}" if printed else said, is_error=True)
    return outcome_of(done.value, printed=sink.text)


def _drive(generator: Generator[Any, Any, Any], context: ToolContext) -> Any:
    yielded: list[Part] = []
    while True:
        try:
            piece = next(generator)
        except StopIteration as end:
            return _settle(end.value) if end.value is not None else _joined(yielded)
        if isinstance(piece, Halt | ToolOutcome):
            generator.close()
            return outcome_of(piece)
        yielded.extend(_show(piece, context))


async def _drive_async(generator: AsyncGenerator[Any, Any], context: ToolContext) -> Any:
    yielded: list[Part] = []
    try:
        async for piece in generator:
            if isinstance(piece, Halt | ToolOutcome):
                return piece
            yielded.extend(_show(piece, context))
    finally:
        await generator.aclose()
    return _joined(yielded)


def _show(piece: Any, context: ToolContext) -> tuple[Part, ...]:
    parts = parts_of(piece)
    context.progress(text_of(parts), parts=tuple(part for part in parts if not isinstance(part, TextPart)))
    return parts


def _joined(parts: list[Part]) -> ToolOutcome | None:
    """Neighbouring texts as one, bounded; None when nothing was yielded."""
    out: list[Part] = []
    for part in parts:
        if isinstance(part, TextPart) and out and isinstance(out[-1], TextPart):
            out[-1] = TextPart(out[-1].text + part.text)
        else:
            out.append(part)
    return ToolOutcome(parts=parts_of(out)) if out else None


def _name_of(fn: Callable[..., Any]) -> str:
    inner = fn.func if isinstance(fn, functools.partial) else fn
    name = getattr(inner, "__name__", "") or type(inner).__name__
    return "" if name == "<lambda>" else name


@overload
def tool(fn: Callable[..., Any], /) -> FunctionTool: ...
@overload
def tool(
    *,
    name: str = "",
    description: str = "",
    legs: Legs | None = None,
    approve: Wish = None,
    timeout_seconds: float | None = None,
    parallel_safe: bool = False,
) -> Callable[[Callable[..., Any]], FunctionTool]: ...
def tool(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    name: str = "",
    description: str = "",
    legs: Legs | None = None,
    approve: Wish = None,
    timeout_seconds: float | None = None,
    parallel_safe: bool = False,
) -> FunctionTool | Callable[[Callable[..., Any]], FunctionTool]:
    """Make a function a tool: ``@tool`` or ``@tool(...)``.

    Parameters
    ----------
    name, description : str
        What the model is told; else the function's name and docstring.
    legs : Legs or None
        What it touches, for the trifecta report.
    approve : {"allow", "ask", "deny"}, callable(arguments, context) or None
        Must a person agree? None leaves it to the policy, which lets functions that the person
        handed over run. A callable that raises, or says anything else, counts as "ask".
    timeout_seconds : float or None
        None for no limit: training runs take hours.
    parallel_safe : bool
        May run beside other calls of the same step.

    Raises
    ------
    UsageError
        For a name that services refuse, a type that cannot come from JSON (when the schema is first
        needed), or a wrong option.

    Examples
    --------
    >>> @tool(parallel_safe=True)
    ... def double(n: int) -> int:
    ...     "Twice a number."
    ...     return 2 * n
    >>> double.spec.schema["properties"], double.spec.description
    ({'n': {'type': 'integer'}}, 'Twice a number.')
    >>> double.validate({"n": "4"}), double(4)
    ({'n': 4}, 8)
    """

    def make(inner: Callable[..., Any]) -> FunctionTool:
        return FunctionTool(
            inner,
            name=name,
            description=description,
            legs=legs,
            approve=approve,
            timeout_seconds=timeout_seconds,
            parallel_safe=parallel_safe,
        )

    return make if fn is None else make(fn)


def as_tool(item: Tool | Callable[..., Any]) -> Tool:
    """`item` if it is a tool, else a tool made of the function.

    Raises
    ------
    UsageError
        If it is neither, or a function with a parameter that cannot come from JSON.
    """
    if not isinstance(item, type) and hasattr(item, "spec") and hasattr(item, "run") and hasattr(item, "validate"):
        made = cast(Tool, item)
    elif callable(item):
        made = FunctionTool(item)
    else:
        raise UsageError(f"a tool is a function or a Tool, got {type(item).__name__}")
    if isinstance(made, FunctionTool):
        _ = made.signature  # a mistake in it is told where the tool is given, not by the first prompt
    return made
