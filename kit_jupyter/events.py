"""The events of a session on one screen, and the bus that carries them.

Theory of operation
-------------------
An event is a frozen record: its own fields first (for ``match``), then the stamp (session, turn,
step, sequence, time) by keyword. Law: each `TurnStart` has one `TurnEnd`, last of its turn; each
`MessageStart` has one `MessageEnd`; each `ToolExecutionStart` one `ToolExecutionEnd`; each
`ToolCall` one `ToolResultEvent`. ``transient`` events may be drawn but need not be kept: what they
said is said again, whole, by a lasting one.

Observers only watch. Each has a queue of its own, in order; a slow or failing one cannot delay,
change or break a turn, nor keep another observer waiting. A sync observer runs on a thread of its
own, which ends when nothing comes for a while; an async one as a task on the engine, so it must not
block. ``inline=True`` is for our own views, which promise to be fast and not to raise.

What a person should know goes to the log (``kit_jupyter``, once a message) when no observer takes it: a script
that observes nothing would never learn that its guest fails.
"""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import inspect
import itertools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, ClassVar, cast

from kit_jupyter.deltas import ModelDelta
from kit_jupyter.errors import UsageError
from kit_jupyter.messages import Assistant, Message, Part, ServerPart, Tokens, Usage

__all__ = ["EVENT_TYPES", "Event", "EventBus", "Subscription"]  # and every record below, see EVENT_TYPES


_log = logging.getLogger("kit_jupyter")

NO_USAGE = Usage()


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Stamp of every event.

    Parameters
    ----------
    session_id, turn_id : str
        Where it belongs; `turn_id` is empty outside a turn.
    step : int
        Model call within the turn, from 1; 0 before the first.
    seq : int
        Counts up within a Kit, no gaps at emission.
    time : float, seconds
        Since the epoch.
    """

    transient: ClassVar[bool] = False

    session_id: str = ""
    turn_id: str = ""
    step: int = 0
    seq: int = 0
    time: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """JSON values, with ``type`` and ``transient``; `event_from_json` reads them back."""
        from pydantic_core import to_jsonable_python

        # catch-all for live objects in tool details: their repr stands for them
        body = to_jsonable_python(self, fallback=repr)
        return {"type": type(self).__name__, "transient": self.transient, **body}


@dataclass(frozen=True, slots=True)
class TurnStart(Event):
    """A turn begins; `prompt` is its label, for example ``[steer] be brief``."""

    prompt: str
    mode: str = "prompt"


@dataclass(frozen=True, slots=True)
class TurnEnd(Event):
    """The last event of a turn; `error` is empty when it went well."""

    response: str
    stop_reason: str
    error: str = ""
    error_code: str = ""
    usage: Usage = NO_USAGE
    steps: int = 0
    entry_id: str = ""


@dataclass(frozen=True, slots=True)
class StepStart(Event):
    """A model call begins; `number` counts from 1."""

    number: int


@dataclass(frozen=True, slots=True)
class StepEnd(Event):
    """A model call and its tools are done."""

    number: int
    finish: str
    has_tool_calls: bool
    usage: Usage


@dataclass(frozen=True, slots=True)
class UserMessage(Event):
    """A message from the user's side was stored; `visible` is False for synthetic ones."""

    message: Message
    visible: bool = True


@dataclass(frozen=True, slots=True)
class ReferenceAdded(Event):
    """An extension's reference block was stored after the user's message."""

    message: Message
    extension: str


@dataclass(frozen=True, slots=True)
class MessageStart(Event):
    """An answer begins."""

    message_id: str
    model: str = ""


@dataclass(frozen=True, slots=True)
class MessageUpdate(Event):
    """The answer grew."""

    transient: ClassVar[bool] = True

    message_id: str
    delta: ModelDelta


@dataclass(frozen=True, slots=True)
class TextStart(Event):
    """Answer text of part `index` begins."""

    transient: ClassVar[bool] = True

    message_id: str
    index: int


@dataclass(frozen=True, slots=True)
class TextEnd(Event):
    """Answer text of part `index` is complete."""

    transient: ClassVar[bool] = True

    message_id: str
    index: int


@dataclass(frozen=True, slots=True)
class PartialObject(Event):
    """The wanted object as far as it has come: plain JSON values, checked against the schema only when it is whole."""

    transient: ClassVar[bool] = True

    message_id: str
    value: Any


@dataclass(frozen=True, slots=True)
class ThinkingStart(Event):
    """Reasoning begins."""

    transient: ClassVar[bool] = True

    message_id: str
    index: int


@dataclass(frozen=True, slots=True)
class ThinkingEnd(Event):
    """Reasoning is complete."""

    transient: ClassVar[bool] = True

    message_id: str
    index: int


@dataclass(frozen=True, slots=True)
class ToolCallStarted(Event):
    """The model begins to write a call; arguments are still coming."""

    transient: ClassVar[bool] = True

    message_id: str
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallGrew(Event):
    """More of a call's arguments."""

    transient: ClassVar[bool] = True

    message_id: str
    call_id: str
    fragment: str


@dataclass(frozen=True, slots=True)
class ToolCallWritten(Event):
    """A call's arguments are complete."""

    transient: ClassVar[bool] = True

    message_id: str
    call_id: str


@dataclass(frozen=True, slots=True)
class MessageEnd(Event):
    """The answer is complete, or as complete as it got; `message` is what was stored."""

    message: Assistant


@dataclass(frozen=True, slots=True)
class ToolCallContent(Event):
    """Text that stood beside tool calls."""

    content: str


@dataclass(frozen=True, slots=True)
class ToolCall(Event):
    """A call is about to be judged and run; `arguments` is JSON text, `parsed` its value or None."""

    call_id: str
    name: str
    arguments: str
    parsed: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class ApprovalAsked(Event):
    """A person is asked; answer with ``kit.approve(call_id)`` or ``kit.deny(call_id)``; see ``approver="events"``."""

    call_id: str
    name: str
    arguments: str
    question: str
    suggestion: str = ""


@dataclass(frozen=True, slots=True)
class ApprovalGiven(Event):
    """The answer to a question, or the policy's decision: who decided, and what."""

    call_id: str
    name: str
    effect: str
    by: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ToolExecutionStart(Event):
    """The tool really starts; `monotonic` in seconds."""

    call_id: str
    name: str
    monotonic: float


@dataclass(frozen=True, slots=True)
class ToolOutput(Event):
    """A running tool says something; `parts` holds media, `done` of `total` how far it is."""

    transient: ClassVar[bool] = True

    call_id: str
    text: str
    stream: str = "stdout"
    parts: tuple[Part, ...] = ()
    done: float | None = None
    total: float | None = None


@dataclass(frozen=True, slots=True)
class ToolExecutionEnd(Event):
    """The tool ended: success, error, time-out or cancel."""

    call_id: str
    name: str
    duration_seconds: float
    outcome: str


@dataclass(frozen=True, slots=True)
class ToolResultEvent(Event):
    """What the model is told of a call."""

    call_id: str
    name: str
    arguments: str
    result: str
    is_error: bool
    parts: tuple[Part, ...] = ()
    details: dict[str, Any] | None = field(default=None, hash=False)


@dataclass(frozen=True, slots=True)
class Response(Event):
    """The final text of a turn."""

    content: str


@dataclass(frozen=True, slots=True)
class UsageReport(Event):
    """Token counts of a model call."""

    tokens: Tokens
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class Retry(Event):
    """A failed model call will be tried again."""

    attempt: int
    max_attempts: int
    delay_seconds: float
    error: str


@dataclass(frozen=True, slots=True)
class QueueUpdate(Event):
    """Tickets that wait: texts of steers and of follow-ups, in order; and those returned unsent."""

    steering: tuple[str, ...]
    follow_up: tuple[str, ...]
    returned: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SteerCommitted(Event):
    """A steer said to a running turn is stored in its place."""

    ticket_id: str
    text: str
    message: Message


@dataclass(frozen=True, slots=True)
class CompactionStart(Event):
    """History is being summarised; `reason` is manual, threshold or overflow."""

    reason: str
    tokens_before: int


@dataclass(frozen=True, slots=True)
class CompactionEnd(Event):
    """The summary is stored, or `error` says why not."""

    reason: str
    summary: str
    tokens_before: int
    messages_removed: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class BranchChanged(Event):
    """The leaf moved: later entries are set aside, or brought back."""

    from_entry: str
    to_entry: str


@dataclass(frozen=True, slots=True)
class Reset(Event):
    """The conversation was cleared."""


@dataclass(frozen=True, slots=True)
class ModelChanged(Event):
    """Another model answers from here on."""

    model: str
    previous: str


@dataclass(frozen=True, slots=True)
class Source(Event):
    """A source the service's own tools used."""

    message_id: str
    part: ServerPart


@dataclass(frozen=True, slots=True)
class Domain(Event):
    """An extension's own event, for example ``tasks.list_changed``."""

    name: str
    content: Any = field(hash=False, default=None)


@dataclass(frozen=True, slots=True)
class Warned(Event):
    """Something a person should know; nothing failed."""

    message: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class ErrorEvent(Event):
    """A guest or an observer failed; the turn went on."""

    message: str
    source: str = ""
    code: str = ""


EVENT_TYPES: dict[str, type[Event]] = {
    cls.__name__: cls for cls in list(globals().values()) if isinstance(cls, type) and issubclass(cls, Event)
}
__all__ += [name for name in EVENT_TYPES if name != "Event"]


def event_from_json(value: dict[str, Any]) -> Event:
    """The event that `Event.to_json` wrote.

    Raises
    ------
    KeyError
        If ``type`` is not one of `EVENT_TYPES`.
    """
    from pydantic import TypeAdapter

    cls = EVENT_TYPES[value["type"]]
    names = {f.name for f in dataclasses.fields(cls)}
    return TypeAdapter(cls).validate_python({k: v for k, v in value.items() if k in names})


Observer = Callable[[Any], object]
_LINGER_SECONDS = 5.0


class Subscription(AbstractContextManager["Subscription"]):
    """Handle of one observer: call it, or leave its ``with`` block, to end it.

    Safe from any thread.
    """

    def __init__(self, bus: EventBus, fn: Observer, types: tuple[type[Event], ...], *, inline: bool) -> None:
        self._bus = bus
        self._fn = fn
        self._types = types
        self._inline = inline
        self._is_async = inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__)
        self._queue: deque[tuple[Event, contextvars.Context]] = deque()
        self._lock = threading.Lock()
        self._came = threading.Condition(self._lock)
        self._has_worker = False
        self._pid = os.getpid()
        self._open = True
        self._idle = threading.Event()
        self._idle.set()

    def __call__(self) -> None:
        """End the subscription; queued events are not delivered any more."""
        with self._lock:
            self._open = False
            self._queue.clear()
            self._came.notify_all()
        self._bus._remove(self)

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._bus.settle(timeout_seconds=1.0)
        self()

    def _takes(self, event: Event) -> bool:
        return self._open and (not self._types or isinstance(event, self._types))

    def _offer(self, event: Event) -> None:
        # Each event in the context that emitted it, so that a print lands in the cell that runs the turn.
        context = contextvars.copy_context()
        with self._lock:
            self._queue.append((event, context))
            self._idle.clear()
            if self._has_worker and self._pid == os.getpid():
                self._came.notify()
                return
            self._has_worker, self._pid = True, os.getpid()
        if self._is_async:
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:
                # Emitted on some other thread: a loop of its own for this burst.
                self._start(lambda: asyncio.run(self._drain_async()))
            else:
                task = loop.create_task(self._drain_async(), context=context)
                self._bus._tasks.add(task)
                task.add_done_callback(self._bus._tasks.discard)
        else:
            self._start(self._drain)

    @staticmethod
    def _start(fn: Callable[[], None]) -> None:
        # A daemon: an observer that blocks for ever must not keep the process from ending.
        threading.Thread(target=fn, name="kit-observer", daemon=True).start()

    def _next(self, linger_seconds: float) -> tuple[Event, contextvars.Context] | None:
        with self._lock:
            if not self._queue:
                self._idle.set()
                if linger_seconds and self._open:
                    self._came.wait_for(lambda: self._queue or not self._open, linger_seconds)
                if not self._queue:
                    self._has_worker = False
                    return None
            return self._queue.popleft()

    def _drain(self) -> None:
        while (item := self._next(_LINGER_SECONDS)) is not None:
            event, context = item
            context.run(self._call, event)

    async def _drain_async(self) -> None:
        while (item := self._next(0.0)) is not None:
            event, _ = item
            try:
                await cast(Awaitable[object], self._fn(event))
            except Exception as exc:
                self._failed(exc, event)

    def _call(self, event: Event) -> None:
        try:
            self._fn(event)
        except Exception as exc:
            self._failed(exc, event)

    def _failed(self, exc: Exception, event: Event) -> None:
        if isinstance(event, ErrorEvent):
            # An observer that fails on the report of its own failure would go round for ever.
            self._bus._log_unheard(event, but=self)
            return
        name = getattr(self._fn, "__qualname__", repr(self._fn))
        self._bus.emit(
            ErrorEvent(
                f"observer {name} failed on {type(event).__name__}: {type(exc).__name__}: {exc}",
                source=name,
                session_id=event.session_id,
                turn_id=event.turn_id,
                step=event.step,
                seq=self._bus.next_seq(),
                time=time.time(),
            )
        )


class EventBus:
    """Carries events to observers, in order of registration; safe from any thread."""

    def __init__(self) -> None:
        self._subscriptions: tuple[Subscription, ...] = ()
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._logged: set[str] = set()

    @property
    def is_heard(self) -> bool:
        """True when somebody observes."""
        return bool(self._subscriptions)

    def next_seq(self) -> int:
        """The next sequence number."""
        return next(self._numbers)  # one call into C: no other thread comes between

    def subscribe(self, fn: Observer, *types: type[Event], inline: bool = False) -> Subscription:
        """Call `fn` with each event, or with those of `types` only.

        Parameters
        ----------
        fn : callable or async callable of one event
        types : event classes
            None given: all events.
        inline : bool
            Called on the emitting thread, at once: only for code that is fast and blocks on nothing.

        Returns
        -------
        Subscription
            Call it to unsubscribe, or use it in a ``with`` statement.

        Raises
        ------
        UsageError
            If `fn` cannot be called, or a type is none.
        """
        if not callable(fn):
            raise UsageError(f"an observer is a function of one event, got {fn!r}")
        for kind in types:
            if not (isinstance(kind, type) and issubclass(kind, Event)):
                near = f": write {kind} without quotes" if kind in EVENT_TYPES else ""
                raise UsageError(f"events are chosen by their classes, from kit_jupyter.events, got {kind!r}{near}")
        subscription = Subscription(self, fn, types, inline=inline)
        with self._lock:
            self._subscriptions = (*self._subscriptions, subscription)
        return subscription

    def _remove(self, subscription: Subscription) -> None:
        with self._lock:
            self._subscriptions = tuple(s for s in self._subscriptions if s is not subscription)

    def emit(self, event: Event) -> None:
        """Hand one event to every observer; returns at once."""
        for subscription in self._subscriptions:
            # As `_takes` and `_call`, without a call for each: a step of a turn has some twenty events.
            if not subscription._open or (subscription._types and not isinstance(event, subscription._types)):
                continue
            if not subscription._inline:
                subscription._offer(event)
                continue
            try:
                subscription._fn(event)
            except Exception as exc:
                subscription._failed(exc, event)
        if isinstance(event, (Warned, ErrorEvent)):
            self._log_unheard(event)

    def _log_unheard(self, event: Warned | ErrorEvent, but: Subscription | None = None) -> None:
        """Log what no observer, or none besides `but`, is told of; the same words once."""
        if any(one is not but and one._takes(event) for one in self._subscriptions):
            return
        with self._lock:
            if event.message in self._logged:
                return
            self._logged.add(event.message)
        from kit_jupyter.approvers import visible
        from kit_jupyter.masking import mask

        _log.warning("%s", visible(mask(event.message)))

    def settle(self, timeout_seconds: float = 1.0) -> bool:
        """Wait until observers on threads have seen all that was emitted; True if they have."""
        end = time.monotonic() + timeout_seconds
        return all(s._idle.wait(max(0.0, end - time.monotonic())) for s in self._threaded())

    @property
    def has_threaded(self) -> bool:
        """True if an observer runs on worker threads."""
        return any(True for _ in self._threaded())

    def _threaded(self) -> Iterator[Subscription]:
        return (s for s in self._subscriptions if not s._inline and not s._is_async)
