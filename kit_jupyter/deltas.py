"""What a provider streams: deltas, and the builder that joins them into the parts of an answer.

Theory of operation
-------------------
A delta says what has changed in one part, by the part's `index`; parts may grow in turns. The last
delta is `Finished`. A `MessageBuilder` keeps the pieces of each part in a list and joins them when
it is asked, so that a delta costs the same at any length of the answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from kit_jupyter.messages import (
    Citation,
    Native,
    Part,
    RefusalPart,
    TextPart,
    ThinkingPart,
    Tokens,
    ToolCallPart,
    text_of,
)
from kit_jupyter.record import Record

__all__ = [
    "CitationDelta",
    "Finished",
    "MessageBuilder",
    "ModelDelta",
    "NativeDelta",
    "PartAdded",
    "RefusalDelta",
    "ResponseFacts",
    "TextDelta",
    "ThinkingDelta",
    "ToolCallDelta",
    "ToolCallStart",
    "UsageDelta",
]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TextDelta(Record):
    """More text of part `index`."""

    index: int
    text: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ThinkingDelta(Record):
    """More reasoning of part `index`; may be empty, to open the part."""

    index: int
    text: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RefusalDelta(Record):
    """More of a refusal."""

    index: int
    text: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ToolCallStart(Record):
    """A tool call begins: id and name are known."""

    index: int
    call_id: str
    name: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ToolCallDelta(Record):
    """More of the arguments' JSON text."""

    index: int
    fragment: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CitationDelta(Record):
    """A citation of text part `index`."""

    index: int
    citation: Citation


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class NativeDelta(Record):
    """State of the wire for part `index`; keys are merged, later ones win."""

    index: int
    native: Native


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PartAdded(Record):
    """A whole part at once."""

    index: int
    part: Part


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class UsageDelta(Record):
    """Token counts so far; replaces field by field, None changes nothing."""

    tokens: Tokens


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ResponseFacts(Record):
    """The service's id of the answer and the model that really answers."""

    response_id: str | None
    model: str | None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Finished(Record):
    """Why the model stopped: our word, the service's word, and details it gave."""

    reason: str
    raw: str | None = None
    details: str = ""


ModelDelta = (
    TextDelta
    | ThinkingDelta
    | RefusalDelta
    | ToolCallStart
    | ToolCallDelta
    | CitationDelta
    | NativeDelta
    | PartAdded
    | UsageDelta
    | ResponseFacts
    | Finished
)


class _Growing:
    """One part under construction: pieces in a list, joined once."""

    __slots__ = ("call_id", "citations", "kind", "name", "native", "pieces", "redacted", "whole")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.pieces: list[str] = []
        self.citations: list[Citation] = []
        self.native: Native | None = None
        self.whole: Part | None = None
        self.call_id = self.name = ""
        self.redacted = False

    def build(self) -> Part | None:
        text = "".join(self.pieces)
        match self.kind:
            case "text":
                return TextPart(text, tuple(self.citations), self.native)
            case "thinking":
                return ThinkingPart(text, self.native, redacted=self.redacted)
            case "refusal":
                return RefusalPart(text)
            case "tool_call":
                return ToolCallPart(self.call_id, self.name, text, self.native)
        return self.whole


_NOTHING: tuple[Part, ...] = (TextPart(""), ThinkingPart(""))


class MessageBuilder:
    """Joins deltas into parts; cost per delta does not grow with the answer.

    Parts are ordered by their `index`. Not safe for several threads at once.

    Examples
    --------
    >>> b = MessageBuilder()
    >>> for d in (TextDelta(0, "Hel"), TextDelta(0, "lo"), Finished("stop")):
    ...     b.feed(d)
    >>> b.text, b.finished.reason
    ('Hello', 'stop')
    """

    def __init__(self) -> None:
        self._parts: dict[int, _Growing] = {}
        self.tokens = Tokens()
        self.finished: Finished | None = None
        self.response_id: str | None = None
        self.model: str | None = None

    def _part(self, index: int, kind: str) -> _Growing:
        part = self._parts.get(index)
        if part is None:
            part = self._parts[index] = _Growing(kind)
        return part

    def feed(self, delta: ModelDelta) -> None:
        """Take one delta."""
        if type(delta) is TextDelta:  # nearly every delta: a third of what matching costs
            self._part(delta.index, "text").pieces.append(delta.text)
            return
        match delta:
            case TextDelta(index, text):
                self._part(index, "text").pieces.append(text)
            case ThinkingDelta(index, text):
                self._part(index, "thinking").pieces.append(text)
            case ToolCallDelta(index, fragment):
                self._part(index, "tool_call").pieces.append(fragment)
            case ToolCallStart(index, call_id, name):
                part = self._part(index, "tool_call")
                part.call_id, part.name = call_id, name
            case RefusalDelta(index, text):
                self._part(index, "refusal").pieces.append(text)
            case CitationDelta(index, citation):
                self._part(index, "text").citations.append(citation)
            case NativeDelta(index, native):
                part = self._part(index, "text")
                old = part.native.data if part.native is not None else {}
                part.native = Native(native.wire, {**old, **native.data})
            case PartAdded(index, whole):
                self._part(index, "whole").whole = whole
            case UsageDelta(tokens):
                old_tokens = self.tokens
                self.tokens = Tokens(
                    input=old_tokens.input if tokens.input is None else tokens.input,
                    output=old_tokens.output if tokens.output is None else tokens.output,
                    reasoning=old_tokens.reasoning if tokens.reasoning is None else tokens.reasoning,
                    cache_read=old_tokens.cache_read if tokens.cache_read is None else tokens.cache_read,
                    cache_write=old_tokens.cache_write if tokens.cache_write is None else tokens.cache_write,
                )
            case ResponseFacts(response_id, model):
                self.response_id = response_id or self.response_id
                self.model = model or self.model
            case Finished():
                self.finished = delta

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts so far, in order; empty text without any wire state is left out."""
        built = [self._parts[index].build() for index in sorted(self._parts)]
        return tuple(
            [part for part in built if part is not None and (getattr(part, "text", True) or part not in _NOTHING)]
        )

    @property
    def text(self) -> str:
        """The answer text so far."""
        return text_of(self.parts)

    @property
    def is_empty(self) -> bool:
        """True until a part has come."""
        return not self._parts
