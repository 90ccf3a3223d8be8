"""One model call of a turn: the stream of deltas told as events and joined to the message that is stored."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

from kit_jupyter import events as ev
from kit_jupyter.deltas import Finished, MessageBuilder, TextDelta, ThinkingDelta, ToolCallDelta, ToolCallStart
from kit_jupyter.errors import ContextOverflow, KitError, WireError
from kit_jupyter.messages import (
    Assistant,
    ErrorFacts,
    FinishReason,
    ModelRef,
    Part,
    PathFacts,
    ResultFacts,
    RunFacts,
    ServerPart,
    Tokens,
    ToolCallPart,
    Usage,
    new_id,
    now,
)
from kit_jupyter.places import project_root, storable, working_dir
from kit_jupyter.provider import ModelRequest

if TYPE_CHECKING:
    from kit_jupyter.turn import Turn

__all__ = ["Answer", "clean"]

PARTIAL_SECONDS = 0.05  # between two looks at an object that grows

FINISH_REASONS = frozenset(get_args(FinishReason))


class Answer:
    """One try to get an answer; make it and await `stream` once.

    Parameters
    ----------
    can_compact : bool
        An overflow before anything came is not stored: a summary may still save the turn.
    """

    def __init__(self, turn: Turn, request: ModelRequest, *, can_compact: bool) -> None:
        self._turn = turn
        self._request = request
        self._can_compact = can_compact
        self._id = new_id("msg")
        self._builder = MessageBuilder()

    @property
    def is_empty(self) -> bool:
        """True until a part has come."""
        return self._builder.is_empty

    async def stream(self) -> Assistant:
        """The whole answer, stored. Whatever happens, the message that was started ends.

        Raises
        ------
        ProviderError
            What the provider raised; `WireError` when the stream ended without its finish.
        """
        turn, builder, request = self._turn, self._builder, self._request
        turn.house.sent(request)
        known = turn.has_prices(request.model)
        prices = None if known else asyncio.ensure_future(turn.price_table(request.model))
        turn.say(ev.MessageStart, self._id, str(request.model))
        ears = Ears(turn, self._id, Growing(turn, self._id) if turn.format is not None else None)
        try:
            stream: Any = turn.provider.stream(request)  # an async generator, by the seam's contract
            async with aclosing(stream) as deltas:
                async for delta in deltas:
                    builder.feed(delta)
                    ears.hear(delta)
            if builder.finished is None:
                raise WireError(
                    f"{request.model}: the stream ended before the answer was complete; try again",
                    provider=request.model.provider,
                    model=request.model.id,
                )
            if prices is not None:
                await prices
        except asyncio.CancelledError:
            if prices is not None:
                prices.cancel()
            ears.done()
            self._end("aborted", store=not builder.is_empty)
            raise
        except BaseException as exc:
            if prices is not None:
                prices.cancel()
            ears.done()
            code = exc.code if isinstance(exc, KitError) else type(exc).__name__
            saved = isinstance(exc, ContextOverflow) and self._can_compact and builder.is_empty
            self._end("error", error=ErrorFacts(code, _masked(str(exc))), store=not saved)
            raise
        ears.done()
        said = builder.finished
        if said.reason not in FINISH_REASONS:  # a provider's own word
            said = builder.finished = Finished("other", said.raw or said.reason, said.details)
        return self._end(said.reason, store=True)

    def _end(self, finish: str, *, store: bool, error: ErrorFacts | None = None) -> Assistant:
        turn, builder = self._turn, self._builder
        parts = tuple(clean(part) for part in builder.parts)
        if finish in ("aborted", "error"):
            # A call of a cut answer was never whole and never runs; kept, it would need a result that nobody has.
            parts = tuple(part for part in parts if not isinstance(part, ToolCallPart))
        else:
            parts = _with_ids(parts)
        asked = self._request.model
        answered = ModelRef(asked.provider, builder.model) if builder.model else asked
        usage = Usage(tokens=builder.tokens, cost=turn.house.price(answered, builder.tokens))
        if builder.tokens != Tokens():
            turn.count(usage)
        message = Assistant(
            id=self._id,
            time=now(),
            parts=parts,
            run=RunFacts(
                agent=turn.options.agent,
                model=answered,
                path=PathFacts(storable(working_dir()), storable(project_root())),
                cell=turn.cell,
                response_id=builder.response_id,
            ),
            usage=usage,
            result=ResultFacts(
                finish=finish,
                raw=builder.finished.raw if builder.finished is not None else None,
                error=error,
                structured=turn.read_format(parts, finish) if error is None else None,
            ),
            turn_id=turn.id,
        )
        try:
            if store:
                turn.answered(message)
        finally:
            turn.say(ev.MessageEnd, message)
            turn.say(ev.UsageReport, usage.tokens, usage.cost)
        return message


class Ears:
    """Tells deltas as events; knows which part is open."""

    __slots__ = ("_calls", "_growing", "_message_id", "_open", "_turn")

    def __init__(self, turn: Turn, message_id: str, growing: Growing | None = None) -> None:
        self._turn = turn
        self._growing = growing
        self._message_id = message_id
        self._open: tuple[str, int] | None = None
        self._calls: dict[int, str] = {}

    def hear(self, delta: Any) -> None:
        """Take one delta."""
        turn, message_id = self._turn, self._message_id
        match delta:
            case TextDelta(index, _):
                if self._open != ("text", index):
                    self._switch("text", index)
                    turn.say(ev.TextStart, message_id, index)
            case ThinkingDelta(index, _):
                if self._open != ("thinking", index):
                    self._switch("thinking", index)
                    turn.say(ev.ThinkingStart, message_id, index)
            case ToolCallStart(index, call_id, name):
                self._switch("call", index)
                self._calls[index] = call_id
                turn.say(ev.ToolCallStarted, message_id, call_id, name)
            case ToolCallDelta(index, fragment):
                turn.say(ev.ToolCallGrew, message_id, self._calls.get(index, ""), fragment)
        turn.say(ev.MessageUpdate, message_id, delta)
        if self._growing is not None and isinstance(delta, TextDelta):
            self._growing.add(delta.text)
        part = getattr(delta, "part", None)
        if isinstance(part, ServerPart):
            turn.say(ev.Source, message_id, part)

    def _switch(self, kind: str, index: int) -> None:
        self._close()
        self._open = (kind, index)

    def _close(self) -> None:
        if self._open is None:
            return
        kind, index = self._open
        if kind == "text":
            self._turn.say(ev.TextEnd, self._message_id, index)
        elif kind == "thinking":
            self._turn.say(ev.ThinkingEnd, self._message_id, index)
        self._open = None

    def done(self) -> None:
        """No more deltas come."""
        if self._growing is not None:
            self._growing.tell()
        self._close()
        for call_id in self._calls.values():
            self._turn.say(ev.ToolCallWritten, self._message_id, call_id)


class Growing:
    """Tells a wanted object while it comes: what is there after a while, and what is there at the end.

    All of the text is read anew each time, so the longer that takes, the rarer it is done.
    """

    __slots__ = ("_due", "_last", "_later", "_message_id", "_pieces", "_told", "_turn")

    def __init__(self, turn: Turn, message_id: str) -> None:
        self._turn = turn
        self._message_id = message_id
        self._pieces: list[str] = []
        self._told = 0
        self._due = 0.0
        self._last: Any = None
        self._later: asyncio.TimerHandle | None = None

    def add(self, text: str) -> None:
        """More of the answer's text."""
        self._pieces.append(text)
        early = self._due - time.monotonic()
        if early <= 0:
            self.tell()
        elif self._later is None:  # what ends a burst is told too, though nothing may follow for long
            self._later = asyncio.get_running_loop().call_later(early, self.tell)

    def tell(self) -> None:
        """Say what is there, if somebody listens and it is more than was said before."""
        turn = self._turn
        if self._later is not None:
            self._later.cancel()
            self._later = None
        if self._told == len(self._pieces) or not turn.house.bus.is_heard or turn.format is None:
            return
        began = time.monotonic()
        self._pieces = ["".join(self._pieces)]
        self._told = 1
        value = turn.format.read_partial(self._pieces[0])
        now_seconds = time.monotonic()
        self._due = now_seconds + max(PARTIAL_SECONDS, 20 * (now_seconds - began))
        if value is not None and value != self._last:
            self._last = value
            turn.say(ev.PartialObject, self._message_id, value)


def clean(part: Part) -> Part:
    """The part with lone surrogates replaced: they are no text, and no file or wire could hold them."""
    name = "arguments" if isinstance(part, ToolCallPart) else "text"
    text = getattr(part, name, "")
    if text.isascii():
        return part
    try:
        text.encode()
    except UnicodeEncodeError:
        changed: dict[str, Any] = {name: text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")}
        return replace(part, **changed)
    return part


def _with_ids(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """Calls that came without an id, or with one that was used before in this answer, get one of ours."""
    seen: set[str] = set()
    out: list[Part] = []
    for part in parts:
        if isinstance(part, ToolCallPart):
            if not part.call_id or part.call_id in seen:
                part = replace(part, call_id=new_id("call"))
            seen.add(part.call_id)
        out.append(part)
    return tuple(out)


def _masked(text: str) -> str:
    from kit_jupyter.masking import mask

    return mask(text)
