"""What is stored: messages and their parts.

Theory of operation
-------------------
Stored messages (`User`, `Assistant`, `ToolResult`, `System`) are frozen values with an id, a
time and the facts that replay and resume need. What a wire needs back unchanged (signatures,
encrypted reasoning, item ids) rides in a part's `native` and is only ever shown to the wire that
made it. The deltas from which an answer grows have a room of their own, `deltas`; their names are
found here, too.

Frozen dataclasses with slots, so that a value can be shared between threads; `pydantic_core`
turns them to JSON, `session` reads them back.
"""

from __future__ import annotations

import base64
import secrets
import time as _time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_args

from kit_jupyter.errors import UsageError
from kit_jupyter.record import Record

if TYPE_CHECKING:
    from kit_jupyter.deltas import (
        CitationDelta,
        Finished,
        MessageBuilder,
        ModelDelta,
        NativeDelta,
        PartAdded,
        RefusalDelta,
        ResponseFacts,
        TextDelta,
        ThinkingDelta,
        ToolCallDelta,
        ToolCallStart,
        UsageDelta,
    )

__all__ = [
    "Assistant",
    "CellRef",
    "Citation",
    "CitationDelta",
    "ErrorFacts",
    "Finished",
    "MediaPart",
    "Message",
    "MessageBuilder",
    "ModelDelta",
    "ModelRef",
    "Native",
    "NativeDelta",
    "Part",
    "PartAdded",
    "PathFacts",
    "RefusalDelta",
    "RefusalPart",
    "RequestFacts",
    "ResponseFacts",
    "ResultFacts",
    "RunFacts",
    "ServerPart",
    "System",
    "TextDelta",
    "TextPart",
    "ThinkingDelta",
    "ThinkingPart",
    "Time",
    "Tokens",
    "ToolCallDelta",
    "ToolCallPart",
    "ToolCallStart",
    "ToolResult",
    "ToolSpec",
    "Usage",
    "UsageDelta",
    "User",
    "new_id",
    "now",
    "text_of",
]

FinishReason = Literal[
    "stop",
    "length",
    "tool_calls",
    "stop_sequence",
    "content_filter",
    "refusal",
    "pause",
    "error",
    "pending",
    "aborted",
    "other",
]


def new_id(prefix: str) -> str:
    """A new id such as ``msg_01j9…``: a prefix, the time in milliseconds and 40 random bits, sortable by time."""
    return f"{prefix}_{int(_time.time() * 1000):012x}{secrets.token_hex(5)}"


def id_time(made_id: str) -> str:
    """The time in an id of `new_id`, sortable; empty for an id that was made elsewhere.

    Examples
    --------
    >>> id_time("msg_019abcdef0123456789abc"), id_time("call_7")
    ('019abcdef012', '')
    """
    time = made_id[-22:-10]
    return time if len(made_id) > 22 and made_id[-23] == "_" and not time.strip("0123456789abcdef") else ""


# ---------------------------------------------------------------- small facts


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ModelRef(Record):
    """A model by provider and id, written ``provider/id``.

    Examples
    --------
    >>> ModelRef.parse("openai/gpt-4o-mini")
    ModelRef(provider='openai', id='gpt-4o-mini')
    >>> str(ModelRef("openrouter", "qwen/qwen3"))
    'openrouter/qwen/qwen3'
    """

    provider: str
    id: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Split at the first slash; an id may hold slashes itself."""
        provider, slash, model = text.strip().partition("/")
        if not slash or not provider or not model:
            raise UsageError(f"a model is written provider/id, for example openai/gpt-4o-mini; got {text!r}")
        return cls(provider, model)

    def __str__(self) -> str:
        return f"{self.provider}/{self.id}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Time(Record):
    """When a message came to be: UTC, ISO 8601 with milliseconds."""

    created: str


_second = (0, "")  # the last one asked for, as text


def now() -> Time:
    """The present moment as a stored `Time`."""
    global _second
    second, milliseconds = divmod(_time.time_ns() // 1_000_000, 1000)
    known = _second
    if known[0] != second:
        known = _second = (second, datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S"))
    return Time(f"{known[1]}.{milliseconds:03d}Z")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CellRef(Record):
    """The notebook cell that made a turn.

    Parameters
    ----------
    notebook : str
        Name of the notebook as far as it is known, else empty.
    cell_id : str
        The cell's nbformat id, or a hash of its text and an ordinal when `weak`.
    weak : bool
        True when the front end told no id.
    """

    notebook: str
    cell_id: str
    weak: bool = False


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Tokens(Record):
    """Token counts with one meaning for all wires; None where the service did not say.

    `input` is every prompt token including cached ones, `output` every generated token including
    reasoning.
    """

    input: int | None = None
    output: int | None = None
    reasoning: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None

    @property
    def total(self) -> int:
        """Input and output, unknown counted as zero."""
        return (self.input or 0) + (self.output or 0)

    def __add__(self, other: Tokens) -> Tokens:
        def add(a: int | None, b: int | None) -> int | None:
            return None if a is None and b is None else (a or 0) + (b or 0)

        return Tokens(
            input=add(self.input, other.input),
            output=add(self.output, other.output),
            reasoning=add(self.reasoning, other.reasoning),
            cache_read=add(self.cache_read, other.cache_read),
            cache_write=add(self.cache_write, other.cache_write),
        )


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Usage(Record):
    """Tokens and their price in US dollars; `cost` is None when the price is unknown, never a false zero."""

    tokens: Tokens = Tokens()
    cost: float | None = None

    def __add__(self, other: Usage) -> Usage:
        both = self.cost is not None and other.cost is not None
        return Usage(
            tokens=self.tokens + other.tokens,
            cost=(self.cost or 0.0) + (other.cost or 0.0) if both else None,
        )


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class ToolSpec(Record):
    """What a model is told of a tool: name, description, JSON schema of its arguments (an object schema)."""

    name: str
    description: str
    schema: Mapping[str, Any]
    strict: bool = False


# ---------------------------------------------------------------- parts


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Native(Record):
    """State of one wire that must go back unchanged, for example a signature.

    Parameters
    ----------
    wire : str
        Name of the codec that made it; other codecs ignore it.
    data : dict
        JSON values.
    """

    wire: str
    data: dict[str, Any] = field(hash=False)


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Citation(Record):
    """Where a stretch of answer text comes from."""

    url: str = ""
    title: str = ""
    text: str = ""
    start: int | None = None
    end: int | None = None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TextPart(Record):
    """Plain text."""

    text: str
    citations: tuple[Citation, ...] = ()
    native: Native | None = None
    type: Literal["text"] = "text"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ThinkingPart(Record):
    """Visible reasoning; `text` may be empty while `native` holds a signature or redacted data."""

    text: str
    native: Native | None = None
    redacted: bool = False
    type: Literal["thinking"] = "thinking"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RefusalPart(Record):
    """The model's own words of refusal."""

    text: str
    type: Literal["refusal"] = "refusal"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class MediaPart(Record):
    """An image, PDF, audio or other file.

    Parameters
    ----------
    media_type : str
        For example ``image/png``.
    data : str
        Base64.
    name : str
        File name or label, may be empty.
    """

    media_type: str
    data: str = field(repr=False)
    name: str = ""
    native: Native | None = None
    type: Literal["media"] = "media"

    @classmethod
    def of_bytes(cls, raw: bytes, media_type: str, name: str = "") -> Self:
        """Part of raw bytes."""
        return cls(media_type, base64.b64encode(raw).decode("ascii"), name)

    @property
    def raw(self) -> bytes:
        """The bytes."""
        return base64.b64decode(self.data)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ToolCallPart(Record):
    """A call the model asks for; `arguments` is the JSON text exactly as it came, empty for none."""

    call_id: str
    name: str
    arguments: str = ""
    native: Native | None = None
    type: Literal["tool_call"] = "tool_call"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ServerPart(Record):
    """A block of the service's own tools, or one we do not know: kept in order, sent back unchanged.

    Parameters
    ----------
    kind : {"call", "result", "block"}
        A server-side tool call, its result, anything else.
    name : str
        The service's name of the tool or block.
    text : str
        What a reader is shown; may be empty.
    """

    kind: Literal["call", "result", "block"]
    name: str
    native: Native
    text: str = ""
    type: Literal["server"] = "server"


Part = TextPart | ThinkingPart | RefusalPart | MediaPart | ToolCallPart | ServerPart


class _ByType:
    """Tells pydantic to choose a part's class by its ``type``, in place of trying one after the other."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        union = handler(source)
        names = (cls.__dataclass_fields__["type"].default for cls in get_args(Part))
        return core_schema.tagged_union_schema(dict(zip(names, union["choices"], strict=True)), discriminator="type")


Parts = tuple[Annotated[Part, _ByType()], ...]


def text_of(parts: tuple[Part, ...] | list[Part]) -> str:
    """All text parts joined with nothing between them (citations split text mid-sentence)."""
    return "".join([part.text for part in parts if isinstance(part, TextPart)])


# ---------------------------------------------------------------- stored messages


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class RequestFacts(Record):
    """How a user message was asked; enough to ask it again.

    Parameters
    ----------
    agent : str
        Name of the agent used for the turn.
    variant : str or None
        Thinking level.
    format : dict or None
        JSON schema of the answer.
    system : str or None
        System text of this turn only.
    tools : dict or None
        Tool name to on or off.
    original : str or None
        What the person wrote, when an input hook put other text in its place.
    """

    agent: str
    model: ModelRef
    variant: str | None = None
    format: dict[str, Any] | None = None
    system: str | None = None
    tools: dict[str, bool] | None = None
    cell: CellRef | None = None
    original: str | None = None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PathFacts(Record):
    """Working directory and project root at the time."""

    cwd: str
    root: str


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class RunFacts(Record):
    """Who answered, and where."""

    agent: str
    model: ModelRef
    path: PathFacts
    cell: CellRef | None = None
    response_id: str | None = None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ErrorFacts(Record):
    """A failure as it is stored: code of the class, message without secrets."""

    code: str
    message: str


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class ResultFacts(Record):
    """How an answer ended.

    Parameters
    ----------
    finish : str or None
        One of `FinishReason`; None when the service never said.
    raw : str or None
        The service's own word.
    structured : object
        The parsed answer when a format was asked for.
    kind : {"reply", "summary"}
        Compaction summaries are ``summary``.
    """

    finish: str | None = None
    raw: str | None = None
    error: ErrorFacts | None = None
    structured: Any = None
    kind: Literal["reply", "summary"] = "reply"


class _Stored(Record):
    """Room for weak references, before the fields of a message."""

    __slots__ = ("__weakref__",)


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class User(_Stored):
    """A stored user message; `source` names who made it when it was not the person."""

    id: str
    time: Time
    parts: Parts
    request: RequestFacts | None = None
    source: str | None = None
    turn_id: str = ""
    role: Literal["user"] = "user"


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class System(_Stored):
    """A stored instruction inside the history, for example a steer."""

    id: str
    time: Time
    parts: Parts
    source: str | None = None
    turn_id: str = ""
    role: Literal["system"] = "system"


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Assistant(_Stored):
    """A stored answer of the model."""

    id: str
    time: Time
    parts: Parts
    run: RunFacts | None = None
    usage: Usage = Usage()
    result: ResultFacts = ResultFacts()
    source: str | None = None
    turn_id: str = ""
    role: Literal["assistant"] = "assistant"

    @property
    def tool_calls(self) -> tuple[ToolCallPart, ...]:
        """The calls asked for, in order."""
        return tuple([part for part in self.parts if isinstance(part, ToolCallPart)])


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class ToolResult(_Stored):
    """A stored answer to one tool call."""

    id: str
    time: Time
    call_id: str
    name: str
    parts: Parts
    is_error: bool = False
    details: dict[str, Any] | None = field(default=None, hash=False)
    turn_id: str = ""
    role: Literal["tool"] = "tool"


Message = User | System | Assistant | ToolResult


# ---------------------------------------------------------------- names whose home is above


def __getattr__(name: str) -> Any:
    """Deltas and `MessageBuilder`: their room is `deltas`, which stands on this one."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("kit_jupyter.deltas"), name)
