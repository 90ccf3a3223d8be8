"""For tests of your own: a provider that says what you script, a recorder of events, and no network.

Examples
--------
>>> from kit_jupyter import Kit
>>> def area(width: int, height: int) -> int:
...     "Area of a rectangle."
...     return width * height
>>> provider = ScriptedProvider([tool_call("area", width=2, height=3)], [text("It is 6.")])
>>> kit = Kit(provider=provider, tools=[area], session="memory")
>>> print(kit.prompt_sync("How large is 2 by 3?"))
It is 6.
>>> [m.role for m in provider.requests[1].messages]
['user', 'assistant', 'tool']
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kit_jupyter import errors
from kit_jupyter import events as ev
from kit_jupyter.deltas import (
    Finished,
    ModelDelta,
    NativeDelta,
    PartAdded,
    ResponseFacts,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    ToolCallStart,
    UsageDelta,
)
from kit_jupyter.messages import MediaPart, Native, Tokens, ToolCallPart
from kit_jupyter.prompt import ToolResultPart
from kit_jupyter.provider import ModelInfo, ModelRequest
from kit_jupyter.testing_contract import CONTRACT, Check, Scenario, ScriptedCall, Unsupported

__all__ = [
    "CONTRACT",
    "Check",
    "EventLog",
    "Piece",
    "Scenario",
    "ScriptedCall",
    "ScriptedProvider",
    "Unsupported",
    "cut",
    "delay",
    "finish",
    "gate",
    "image",
    "offline",
    "overflow",
    "provider_error",
    "record_events",
    "text",
    "thinking",
    "tool_call",
    "unanswered_calls",
    "usage",
]


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece of a scripted reply; make it with `text`, `thinking`, `tool_call` and so on."""

    kind: str
    content: Any = None
    chunks: int | None = None
    facts: dict[str, Any] = field(default_factory=dict)


def text(content: str, *, chunks: int | None = None) -> Piece:
    """Answer text, in `chunks` deltas (default: a word each)."""
    return Piece("text", content, chunks)


def thinking(content: str, *, signature: str | None = None, chunks: int | None = None) -> Piece:
    """Reasoning."""
    return Piece("thinking", content, chunks, {"signature": signature} if signature else {})


def tool_call(name: str, /, *, call_id: str | None = None, raw: str | None = None, **arguments: Any) -> Piece:
    """A tool call; `raw` is sent in place of the arguments' JSON."""
    body = raw if raw is not None else json.dumps(arguments)
    return Piece("call", name, None, {"id": call_id, "arguments": body})


def image(raw: bytes, media_type: str = "image/png") -> Piece:
    """A picture the model made."""
    return Piece("part", MediaPart.of_bytes(raw, media_type))


def delay(seconds: float) -> Piece:
    """Wait; ends at once when the turn is stopped."""
    return Piece("delay", seconds)


def gate(event: asyncio.Event | threading.Event) -> Piece:
    """Wait until the test sets `event`."""
    return Piece("gate", event)


def provider_error(kind: str | BaseException = "overloaded", message: str = "scripted failure", **facts: Any) -> Piece:
    """Fail here.

    Parameters
    ----------
    kind : str or exception
        ``connection_failed``, ``auth_failed``, ``rate_limited``, ``overloaded``, ``context_overflow``,
        ``rejected`` or ``wire``; or the exception itself.
    """
    if isinstance(kind, BaseException):
        return Piece("error", kind)
    classes = {
        cls.code: cls
        for cls in (
            errors.ConnectionFailed,
            errors.AuthFailed,
            errors.RateLimited,
            errors.Overloaded,
            errors.ContextOverflow,
            errors.Rejected,
            errors.WireError,
        )
    }
    if kind not in classes:
        raise errors.UsageError(f"unknown kind of provider error {kind!r}; known: {', '.join(sorted(classes))}")
    return Piece("error", classes[kind](message, provider="scripted", **facts))


def overflow() -> Piece:
    """Fail because the context is full."""
    return provider_error("context_overflow", "the prompt is too long")


def cut() -> Piece:
    """End the stream here without a finish, as a broken connection does."""
    return Piece("cut")


def usage(**tokens: int) -> Piece:
    """Token counts; see `Tokens`."""
    return Piece("usage", Tokens(**tokens))


def finish(reason: str, raw: str | None = None) -> Piece:
    """Why the model stops; by default ``tool_calls`` or ``stop``."""
    return Piece("finish", Finished(reason, raw or reason))


class ScriptedProvider:
    """A provider that says what it was told to, one reply a model call.

    Parameters
    ----------
    *replies : sequence of Piece, str, or callable of ModelRequest that gives one
        One for each model call; a `str` is a reply of that text.
    name : str
    info : ModelInfo
        What `Provider.info` says.
    repeat_last : bool
        Go on with the last reply for ever, in place of an error.

    Attributes
    ----------
    requests : list of ModelRequest
        What was sent, in order.
    closed_early : int
        Streams that were closed before their end.

    Raises
    ------
    UsageError
        For a reply that is neither; one that a callable gives is looked at when it is asked for.
    """

    def __init__(
        self,
        *replies: Any,
        name: str = "scripted",
        info: ModelInfo | None = None,
        repeat_last: bool = False,
    ) -> None:
        self.name = name
        self.requests: list[ModelRequest] = []
        self.closed_early = 0
        self.is_closed = False
        self._replies = [_reply(one) for one in replies]
        self._info = info if info is not None else ModelInfo()
        self._repeat_last = repeat_last
        self._ids = itertools.count(1)

    def script(self, *replies: Any) -> None:
        """Add replies."""
        self._replies.extend(_reply(one) for one in replies)

    @property
    def last_request(self) -> ModelRequest:
        """The last request."""
        return self.requests[-1]

    def info(self, model_id: str) -> ModelInfo:
        """What the test said."""
        return self._info

    async def close(self) -> None:
        """Note that it was closed."""
        self.is_closed = True

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        """The next reply as deltas."""
        self.requests.append(request)
        reply = self._next(request)
        ended = False
        try:
            index = -1
            finished: Finished | None = None
            had_call = False
            yield ResponseFacts(f"resp_{len(self.requests)}", None)
            growing = ""  # what a delay may interrupt: text after it goes on with the same part
            for piece in reply:
                if piece.kind in ("text", "thinking", "call", "part") and piece.kind != growing:
                    index += 1
                    growing = piece.kind if piece.kind in ("text", "thinking") and not piece.facts else ""
                match piece.kind:
                    case "text" | "thinking":
                        make = TextDelta if piece.kind == "text" else ThinkingDelta
                        for chunk in _chunks(piece.content, piece.chunks):
                            yield make(index, chunk)
                            await asyncio.sleep(0)
                        if piece.facts:
                            yield NativeDelta(index, Native("scripted", piece.facts))
                    case "call":
                        had_call = True
                        yield ToolCallStart(index, piece.facts["id"] or f"call_{next(self._ids)}", piece.content)
                        for chunk in _chunks(piece.facts["arguments"], 2):
                            yield ToolCallDelta(index, chunk)
                    case "part":
                        yield PartAdded(index, piece.content)
                    case "delay":
                        await asyncio.sleep(piece.content)
                    case "gate":
                        await _opened(piece.content)
                    case "usage":
                        yield UsageDelta(piece.content)
                    case "finish":
                        finished = piece.content
                    case "error":
                        ended = True
                        raise piece.content
                    case "cut":
                        ended = True
                        return
            reason = "tool_calls" if had_call else "stop"
            ended = True
            yield finished or Finished(reason, reason)
        finally:
            if not ended:
                self.closed_early += 1

    def _next(self, request: ModelRequest) -> Sequence[Piece]:
        if not self._replies:
            raise errors.UsageError(
                f"the script has no reply for model call {len(self.requests)}; add one with script(...)"
            )
        reply = self._replies[0] if self._repeat_last and len(self._replies) == 1 else self._replies.pop(0)
        return _pieces(reply(request) if callable(reply) else reply)

    def __repr__(self) -> str:
        return f"<ScriptedProvider {len(self.requests)} requests, {len(self._replies)} replies left>"


def _reply(value: Any) -> Any:
    """A reply as a tuple of pieces, or the callable that will give it."""
    return value if callable(value) else _pieces(value)


def _pieces(value: Any) -> tuple[Piece, ...]:
    if isinstance(value, str | Piece):
        return (text(value) if isinstance(value, str) else value,)
    pieces = tuple(value) if isinstance(value, Iterable) and not isinstance(value, bytes | Mapping) else None
    if pieces is not None and all(isinstance(piece, Piece) for piece in pieces):
        return pieces
    several = pieces is not None and all(isinstance(piece, str | Piece | list | tuple) for piece in pieces)
    hint = "several replies are several arguments, ScriptedProvider('one', 'two'); " if several else ""
    raise errors.UsageError(
        f"a reply is a str, a list of pieces such as [text('hi'), tool_call('area', width=2)], or a function of the "
        f"request that gives one, got {value!r:.80}; {hint}text and tool_call are in kit_jupyter.testing"
    )


def _chunks(content: str, count: int | None) -> Iterator[str]:
    if not content:
        return
    if count is None:
        pieces = content.split(" ")
        for i, piece in enumerate(pieces):
            yield piece if i == 0 else " " + piece
        return
    size = max(1, -(-len(content) // max(1, count)))
    for at in range(0, len(content), size):
        yield content[at : at + size]


async def _opened(event: asyncio.Event | threading.Event) -> None:
    if isinstance(event, asyncio.Event):
        await event.wait()
        return
    # Looked at again and again: a thread that waits in it could not be stopped, and would hold up the exit.
    for _ in iter(event.is_set, True):
        await asyncio.sleep(0.005)


def unanswered_calls(request: ModelRequest) -> list[ToolCallPart]:
    """Calls in a request that have no result there; always empty, if the law holds."""
    answered = {p.call_id for m in request.messages for p in m.parts if isinstance(p, ToolResultPart)}
    calls = (p for m in request.messages for p in m.parts if isinstance(p, ToolCallPart))
    return [call for call in calls if call.call_id not in answered]


class EventLog(list[ev.Event]):
    """Events in order, with helpers."""

    def of(self, *types: type[ev.Event]) -> list[Any]:
        """The events of these types."""
        return [event for event in self if isinstance(event, types)]

    @property
    def names(self) -> list[str]:
        """Type names in order, transient events left out."""
        return [type(event).__name__ for event in self if not event.transient]


@contextlib.contextmanager
def record_events(kit: Any) -> Iterator[EventLog]:
    """Record all events of a Kit within the block.

    Examples
    --------
    >>> from kit_jupyter import Kit
    >>> kit = Kit(provider=ScriptedProvider("hi"), session="memory")
    >>> with record_events(kit) as log:
    ...     _ = kit.prompt_sync("hello")
    >>> log.names[0], log.names[-1]
    ('TurnStart', 'TurnEnd')
    """
    log = EventLog()
    subscription = kit.subscribe(log.append, inline=True)
    try:
        yield log
    finally:
        subscription()


@contextlib.contextmanager
def offline(*, loopback: bool = False) -> Iterator[None]:
    """No socket connects within the block; with `loopback`, those of this machine may.

    Raises
    ------
    ConnectionFailed
        Where code tries to connect, naming the address.
    """
    original: Callable[..., Any] = socket.socket.connect
    original_ex: Callable[..., Any] = socket.socket.connect_ex

    def check(self: socket.socket, address: Any) -> None:
        host = address[0] if isinstance(address, tuple) else str(address)
        local = self.family == getattr(socket, "AF_UNIX", None) or str(host) in ("127.0.0.1", "::1", "localhost")
        if not (loopback and local):
            raise errors.ConnectionFailed(f"offline(): something tried to connect to {address!r}")

    def connect(self: socket.socket, address: Any) -> Any:
        check(self, address)
        return original(self, address)

    def connect_ex(self: socket.socket, address: Any) -> Any:
        check(self, address)
        return original_ex(self, address)

    methods = (("connect", connect, original), ("connect_ex", connect_ex, original_ex))
    for name, ours, _ in methods:
        setattr(socket.socket, name, ours)
    try:
        yield
    finally:
        for name, _, theirs in methods:
            setattr(socket.socket, name, theirs)
