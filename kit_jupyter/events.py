"""The events of a session on one screen.

Theory of operation
-------------------
An event is a frozen record: its own fields first (for ``match``), then the stamp (session, turn,
step, sequence, time) by keyword. Law: each `TurnStart` has one `TurnEnd`, last of its turn; each
`MessageStart` has one `MessageEnd`; each `ToolExecutionStart` one `ToolExecutionEnd`; each
`ToolCall` one `ToolResultEvent`. ``transient`` events may be drawn but need not be kept: what they
said is said again, whole, by a lasting one.

`event_bus` carries them to observers.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from kit_jupyter.deltas import ModelDelta
from kit_jupyter.messages import Assistant, Message, Part, ServerPart, Tokens, Usage
from kit_jupyter.record import Record

if TYPE_CHECKING:
    from kit_jupyter.event_bus import EventBus, Subscription

__all__ = ["EVENT_TYPES", "Event", "EventBus", "Subscription"]  # and every record below, see EVENT_TYPES


NO_USAGE = Usage()


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Event(Record):
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


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TurnStart(Event):
    """A turn begins; `prompt` is its label, for example ``[steer] be brief``."""

    prompt: str
    mode: str = "prompt"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TurnEnd(Event):
    """The last event of a turn; `error` is empty when it went well."""

    response: str
    stop_reason: str
    error: str = ""
    error_code: str = ""
    usage: Usage = NO_USAGE
    steps: int = 0
    entry_id: str = ""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class StepStart(Event):
    """A model call begins; `number` counts from 1."""

    number: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class StepEnd(Event):
    """A model call and its tools are done."""

    number: int
    finish: str
    has_tool_calls: bool
    usage: Usage


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class UserMessage(Event):
    """A message from the user's side was stored; `visible` is False for synthetic ones."""

    message: Message
    visible: bool = True


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ReferenceAdded(Event):
    """An extension's reference block was stored after the user's message."""

    message: Message
    extension: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class MessageStart(Event):
    """An answer begins."""

    message_id: str
    model: str = ""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class MessageUpdate(Event):
    """The answer grew."""

    transient: ClassVar[bool] = True

    message_id: str
    delta: ModelDelta


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TextStart(Event):
    """Answer text of part `index` begins."""

    transient: ClassVar[bool] = True

    message_id: str
    index: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TextEnd(Event):
    """Answer text of part `index` is complete."""

    transient: ClassVar[bool] = True

    message_id: str
    index: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PartialObject(Event):
    """The wanted object as far as it has come: plain JSON values, checked against the schema only when it is whole."""

    transient: ClassVar[bool] = True

    message_id: str
    value: Any


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ThinkingStart(Event):
    """Reasoning begins."""

    transient: ClassVar[bool] = True

    message_id: str
    index: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ThinkingEnd(Event):
    """Reasoning is complete."""

    transient: ClassVar[bool] = True

    message_id: str
    index: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ToolCallStarted(Event):
    """The model begins to write a call; arguments are still coming."""

    transient: ClassVar[bool] = True

    message_id: str
    call_id: str
    name: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ToolCallGrew(Event):
    """More of a call's arguments."""

    transient: ClassVar[bool] = True

    message_id: str
    call_id: str
    fragment: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ToolCallWritten(Event):
    """A call's arguments are complete."""

    transient: ClassVar[bool] = True

    message_id: str
    call_id: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class MessageEnd(Event):
    """The answer is complete, or as complete as it got; `message` is what was stored."""

    message: Assistant


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ToolCallContent(Event):
    """Text that stood beside tool calls."""

    content: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ToolCall(Event):
    """A call is about to be judged and run; `arguments` is JSON text, `parsed` its value or None."""

    call_id: str
    name: str
    arguments: str
    parsed: dict[str, Any] | None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ApprovalAsked(Event):
    """A person is asked; answer with ``kit.approve(call_id)`` or ``kit.deny(call_id)``; see ``approver="events"``."""

    call_id: str
    name: str
    arguments: str
    question: str
    suggestion: str = ""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ApprovalGiven(Event):
    """The answer to a question, or the policy's decision: who decided, and what."""

    call_id: str
    name: str
    effect: str
    by: str
    reason: str = ""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ToolExecutionStart(Event):
    """The tool really starts; `monotonic` in seconds."""

    call_id: str
    name: str
    monotonic: float


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ToolOutput(Event):
    """A running tool says something; `parts` holds media, `done` of `total` how far it is."""

    transient: ClassVar[bool] = True

    call_id: str
    text: str
    stream: str = "stdout"
    parts: tuple[Part, ...] = ()
    done: float | None = None
    total: float | None = None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ToolExecutionEnd(Event):
    """The tool ended: success, error, time-out or cancel."""

    call_id: str
    name: str
    duration_seconds: float
    outcome: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ToolResultEvent(Event):
    """What the model is told of a call."""

    call_id: str
    name: str
    arguments: str
    result: str
    is_error: bool
    parts: tuple[Part, ...] = ()
    details: dict[str, Any] | None = field(default=None, hash=False)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Response(Event):
    """The final text of a turn."""

    content: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class UsageReport(Event):
    """Token counts of a model call."""

    tokens: Tokens
    cost: float | None = None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Retry(Event):
    """A failed model call will be tried again."""

    attempt: int
    max_attempts: int
    delay_seconds: float
    error: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class QueueUpdate(Event):
    """Tickets that wait: texts of steers and of follow-ups, in order; and those returned unsent."""

    steering: tuple[str, ...]
    follow_up: tuple[str, ...]
    returned: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SteerCommitted(Event):
    """A steer said to a running turn is stored in its place."""

    ticket_id: str
    text: str
    message: Message


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CompactionStart(Event):
    """History is being summarised; `reason` is manual, threshold or overflow."""

    reason: str
    tokens_before: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CompactionEnd(Event):
    """The summary is stored, or `error` says why not."""

    reason: str
    summary: str
    tokens_before: int
    messages_removed: int
    error: str = ""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class BranchChanged(Event):
    """The leaf moved: later entries are set aside, or brought back."""

    from_entry: str
    to_entry: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Reset(Event):
    """The conversation was cleared."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ModelChanged(Event):
    """Another model answers from here on."""

    model: str
    previous: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Source(Event):
    """A source the service's own tools used."""

    message_id: str
    part: ServerPart


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Domain(Event):
    """An extension's own event, for example ``tasks.list_changed``."""

    name: str
    content: Any = field(hash=False, default=None)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Warned(Event):
    """Something a person should know; nothing failed."""

    message: str
    source: str = ""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
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


def __getattr__(name: str) -> Any:
    """The bus, whose room stands on this one, is found here, too."""
    if name not in ("EventBus", "Subscription"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("kit_jupyter.event_bus"), name)
