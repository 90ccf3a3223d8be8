"""What a view shows of a turn, grown from its events; knows no widget and no browser.

Theory of operation
-------------------
A `TurnModel` takes events one by one and keeps a list of items. Small facts of an item sit in a
dict with a version that counts its changes; long texts sit in `Growing` pieces that are only ever
appended to. A view remembers, per item, which version and how many pieces it has sent, and so can
say what is new without a queue, however late it came. Everything happens under one lock per
model; the work per event does not grow with the answer.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from typing import Any

from kit_jupyter import events as ev
from kit_jupyter.deltas import (
    CitationDelta,
    PartAdded,
    RefusalDelta,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    ToolCallStart,
)
from kit_jupyter.jupyter.protocol import clean, utf16_units
from kit_jupyter.messages import (
    Assistant,
    MediaPart,
    Message,
    Part,
    RefusalPart,
    ServerPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    Usage,
    text_of,
)

__all__ = ["Growing", "Item", "Listener", "TurnModel"]

Listener = Callable[["TurnModel", tuple["Item", ...], bool], None]

#: Most text of one tool's live output, or of one result, that is kept for views, in characters.
OUTPUT_LIMIT = 200_000
#: Most base64 characters of one medium that a view or a saved file carries.
MEDIA_LIMIT = 4_000_000

_OUTCOMES = {"success": "done", "ok": "done", "error": "error", "timeout": "error", "cancelled": "stopped"}


class Growing:
    """A text that only grows: pieces in a list, its length in UTF-16 units beside them."""

    __slots__ = ("is_joined", "limit", "pieces", "units")

    def __init__(self, limit: int | None = None) -> None:
        self.pieces: list[str] = []
        self.units = 0
        self.limit = limit
        self.is_joined = False

    def add(self, text: str) -> bool:
        """Append; True if anything was added."""
        text = clean(text)
        if self.limit is not None:
            room = self.limit - self.units
            if room <= 0:
                return False
            if len(text) > room:
                text = text[:room] + "\n… more output is not shown live"
                self.limit = 0
        if not text:
            return False
        self.pieces.append(text)
        self.units += utf16_units(text)
        return True

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self.pieces)

    def join(self) -> None:
        """Keep it as one piece: a tenth of the memory. Only when every view has sent what there is."""
        if len(self.pieces) > 1:
            self.pieces[:] = ["".join(self.pieces)]
            self.is_joined = True

    def since(self, pieces: int, characters: int) -> str:
        """What came after so many pieces of so many characters."""
        return self.text[characters:] if self.is_joined else "".join(self.pieces[pieces:])


class Item:
    """One thing in a turn: small facts with a version, and texts that grow."""

    __slots__ = ("facts", "id", "streams", "version")

    def __init__(self, id: str, kind: str, **facts: Any) -> None:
        self.id = id
        self.facts: dict[str, Any] = {"kind": kind, **facts}
        self.streams: dict[str, Growing] = {}
        self.version = 1

    @property
    def kind(self) -> str:
        """One of `protocol.ITEM_KINDS`."""
        return str(self.facts["kind"])

    def set(self, **facts: Any) -> None:
        """Change facts; counts as one change, and as none if nothing differs."""
        if any(self.facts.get(key) != value for key, value in facts.items()):
            self.facts.update(facts)
            self.version += 1

    def stream(self, name: str) -> Growing:
        """The growing text of that name."""
        if name not in self.streams:
            self.streams[name] = Growing(OUTPUT_LIMIT if name == "output" else None)
        return self.streams[name]

    def whole(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return {"id": self.id, **self.facts, **{name: grown.text for name, grown in self.streams.items()}}


class TurnModel:
    """A turn as views show it.

    Parameters
    ----------
    turn_id : str
    key : str
        Its name towards browsers, unique within the kernel.

    Notes
    -----
    `take` is called on the engine's thread, the rest on any thread.
    """

    def __init__(self, turn_id: str, key: str) -> None:
        self.turn_id = turn_id
        self.key = key
        self.lock = threading.RLock()
        self.items: list[Item] = []
        self.prompt = ""
        self.mode = "prompt"
        self.status = "running"
        self.error: dict[str, str] | None = None
        self.raised = False  # its cell fails, and says why: what is saved need not say it again
        self.chips: list[dict[str, Any]] = []
        self.note = ""
        self.waiting = ""  # what is waited for before an answer can begin
        self.facts: dict[str, Any] = {}
        self.version = 1  # of the turn's own facts
        self.ended = False
        self.branches: list[str] = []  # leaves of this turn's branch and of those beside it
        self.entry = ""  # the one of `branches` that is shown
        self._prompted = False
        self._touched: dict[str, Item] = {}
        self._parts: dict[tuple[str, int], Item] = {}
        self._text_of: dict[str, Item] = {}  # the last text of each message
        self._calls: dict[str, Item] = {}
        self._questions: set[str] = set()  # those of guests, which no call belongs to
        self._listeners: list[Listener] = []

    # -- listeners

    def listen(self, fn: Listener) -> Callable[[], None]:
        """Call ``fn(turn, items touched, urgent)`` after each change; returns the way to end it."""
        with self.lock:
            self._listeners.append(fn)

        def stop() -> None:
            with self.lock:
                if fn in self._listeners:
                    self._listeners.remove(fn)

        return stop

    def _changed(self, items: tuple[Item, ...] = (), *, urgent: bool = False) -> None:
        for fn in tuple(self._listeners):
            fn(self, items, urgent)

    def touch(self, *, chips: Iterable[dict[str, Any]] | None = None, note: str | None = None, **facts: Any) -> None:
        """Set facts of the turn that do not come by events."""
        with self.lock:
            if chips is not None:
                self.chips = list(chips)
            if note is not None:
                self.note = note
            self.facts.update(facts)
            self.version += 1
        self._changed()

    # -- growing

    def _new(self, kind: str, **facts: Any) -> Item:
        item = Item(f"{self.key}.{len(self.items)}", kind, **facts)
        self.items.append(item)
        return self._touch(item)

    def _touch(self, item: Item) -> Item:
        self._touched[item.id] = item
        return item

    def _part(self, message_id: str, index: int, kind: str, **facts: Any) -> Item:
        found = self._parts.get((message_id, index))
        if found is None:
            last = self.items[-1] if self.items else None
            if kind == "text" and not facts and last is not None and last is self._text_of.get(message_id):
                found = last  # services split text for citations in mid-sentence; it is read as one
            else:
                found = self._new(kind, **facts)
                if kind == "text" and not facts:
                    self._text_of[message_id] = found
            self._parts[message_id, index] = found
        return self._touch(found)

    def _call(self, call_id: str, name: str) -> Item:
        found = self._calls.get(call_id)
        if found is None:
            found = self._calls[call_id] = self._new("tool", call_id=call_id, name=name, status="called")
        return self._touch(found)

    def take(self, event: ev.Event) -> None:
        """Take one event of this turn."""
        if type(event) is ev.MessageUpdate and type(event.delta) is TextDelta and self._took_text(event):
            return
        with self.lock:
            urgent = self._take(event)
            touched = tuple(self._touched.values())
            self._touched.clear()
        self._changed(touched, urgent=urgent)

    def _took_text(self, event: ev.MessageUpdate) -> bool:
        """The short way of nearly all events: more text of a part that is there; False when it is not that."""
        delta = event.delta
        assert isinstance(delta, TextDelta)
        with self.lock:
            item = self._parts.get((event.message_id, delta.index))
            grown = item.streams.get("text") if item is not None and item.facts["kind"] == "text" else None
            if item is None or grown is None or self._touched:
                return False
            if not grown.add(delta.text):
                return True
            listeners = tuple(self._listeners)
        touched = (item,)
        for fn in listeners:
            fn(self, touched, False)
        return True

    def _take(self, event: ev.Event) -> bool:
        match event:
            case ev.MessageUpdate(message_id, delta):
                self._grow(message_id, delta)
                return False
            case ev.Response(text):
                self._answer_of_tool(clean(text))
            case ev.ToolOutput(call_id, text):
                item = self._call(call_id, "")
                if event.stream == "stderr":
                    item.set(has_stderr=True)
                if event.done is not None:
                    item.set(progress=[event.done, event.total])
                item.stream("output").add(text)
                self._add_media(item, event.parts)
                return False
            case ev.TurnStart(prompt):
                self.prompt, self.mode = clean(prompt), event.mode
                # The first visible user message is the prompt itself; a steer or follow-up has none.
                self._prompted = event.mode != "prompt"
                self.version += 1
                return True
            case ev.UserMessage(message):
                if event.visible and self._prompted:
                    self._new("said", text=clean(text_of(message.parts)), mode="follow_up", done=True)
                self._prompted = self._prompted or event.visible
            case ev.SteerCommitted(_, text):
                self._new("said", text=clean(text), mode="steer", done=True)
            case ev.MessageStart(_, model):
                if model:
                    self.facts["model"] = model
                    self.version += 1
            case ev.MessageEnd(message):
                self._end_message(message)
            case ev.ToolCall(call_id, name, arguments):
                item = self._call(call_id, name)
                if not item.stream("arguments").pieces:
                    item.stream("arguments").add(arguments)
                item.set(status="called")
            case ev.ApprovalAsked(call_id, name, arguments, question, suggestion):
                if call_id not in self._calls:
                    self._questions.add(call_id)
                self._call(call_id, name).set(
                    status="asking",
                    question={"text": question, "suggestion": suggestion, "arguments": _pretty(arguments)},
                )
                return True
            case ev.ApprovalGiven(call_id, name, effect, by, reason):
                item = self._call(call_id, name)
                if item.facts.get("question") or effect == "deny":
                    answer = {"effect": effect, "by": by, "reason": clean(reason)}
                    allowed = "done" if call_id in self._questions else "called"
                    item.set(question=None, answer=answer, status="denied" if effect == "deny" else allowed)
                return True
            case ev.ToolExecutionStart(call_id, name):
                self._call(call_id, name).set(status="running", question=None)
            case ev.ToolExecutionEnd(call_id, name, seconds, outcome):
                item = self._call(call_id, name)
                item.set(seconds=round(seconds, 3), status=_OUTCOMES.get(outcome, outcome))
                if "progress" in item.facts:
                    item.set(progress=None)
            case ev.ToolResultEvent(call_id, name):
                self._result(event)
            case ev.UsageReport(tokens, cost):
                total = self.facts.get("usage", Usage(cost=0.0)) + Usage(tokens=tokens, cost=cost)
                self.facts["usage"] = total
                self.version += 1
            case ev.Retry(attempt, most, delay, error):
                self._new(
                    "notice",
                    level="info",
                    transient=True,
                    done=True,
                    text=f"attempt {attempt} of {most} failed ({clean(error)}); next try in {delay:.1f} s",
                )
            case ev.CompactionEnd(_, _, _, removed):
                text = f"compaction failed: {clean(event.error)}" if event.error else f"{removed} messages summarised"
                self._new("notice", level="warning" if event.error else "info", text=text, done=True)
            case ev.Source(_, part):
                self._new("source", name=part.name, text=clean(part.text), done=True)
            case ev.Warned(text) | ev.ErrorEvent(text):
                level = "warning" if isinstance(event, ev.Warned) else "error"
                self._new("notice", level=level, text=clean(text), done=True)
            case ev.Domain(name, content) if name == "model.status" and isinstance(content, dict):
                self.waiting = clean(str(content.get("text", "")))
                self.version += 1
            case ev.TurnEnd():
                self._end(event)
                return True
        return False

    def _grow(self, message_id: str, delta: Any) -> None:
        match delta:
            case TextDelta(index, text):
                if text:
                    self._part(message_id, index, "text").stream("text").add(text)
            case ThinkingDelta(index, text):
                self._part(message_id, index, "thinking").stream("text").add(text)
            case RefusalDelta(index, text):
                self._part(message_id, index, "text", refusal=True).stream("text").add(text)
            case ToolCallStart(index, call_id, name):
                item = self._call(call_id, name)
                item.set(status="writing")
                self._parts[message_id, index] = item
            case ToolCallDelta(index, fragment):
                known = self._parts.get((message_id, index))
                if known is not None:
                    self._touch(known).stream("arguments").add(fragment)
            case CitationDelta(index, citation):
                item = self._part(message_id, index, "text")
                cited = [*item.facts.get("citations", ()), {"url": citation.url, "title": clean(citation.title)}]
                item.set(citations=cited)
            case PartAdded(index, part):
                self._whole_part(message_id, index, part)

    def _whole_part(self, message_id: str, index: int, part: Part) -> None:
        match part:
            case TextPart(text):
                self._part(message_id, index, "text").stream("text").add(text)
            case RefusalPart(text):
                self._part(message_id, index, "text", refusal=True).stream("text").add(text)
            case ThinkingPart(text):
                self._part(message_id, index, "thinking", redacted=part.redacted).stream("text").add(text)
            case ToolCallPart(call_id, name, arguments):
                item = self._parts[message_id, index] = self._call(call_id, name)
                if not item.stream("arguments").pieces:
                    item.stream("arguments").add(arguments)
            case MediaPart():
                item = self._part(message_id, index, "text")
                self._add_media(item, (part,))
            case ServerPart(_, name):
                self._part(message_id, index, "source", name=name, text=clean(part.text), done=True)

    def _end_message(self, message: Assistant) -> None:
        seen = [item for (owner, _), item in self._parts.items() if owner == message.id]
        if not seen:  # an answer that came whole: a replay, a summary
            for index, part in enumerate(message.parts):
                self._whole_part(message.id, index, part)
            seen = [item for (owner, _), item in self._parts.items() if owner == message.id]
        for item in seen:
            if item.kind in ("text", "thinking"):
                self._touch(item).set(done=True)
        if message.run is not None:
            self.facts["model"] = str(message.run.model)

    def _result(self, event: ev.ToolResultEvent) -> None:
        item = self._call(event.call_id, event.name)
        if not item.stream("arguments").pieces:
            item.stream("arguments").add(event.arguments)
        self._add_media(item, event.parts)
        status = item.facts.get("status")
        if status not in ("denied", "stopped", "error"):
            status = "error" if event.is_error else "done"
        details = event.details or {}
        facts: dict[str, Any] = {"result": bounded(clean(event.result)), "is_error": event.is_error, "status": status}
        if isinstance(details.get("diff"), str):
            facts["diff"] = bounded(clean(details["diff"]))
        item.set(**facts, question=None, done=True)

    def _answer_of_tool(self, text: str) -> None:
        """A tool that ends the turn has the last word: it is shown as the answer, not only in its folded card."""
        last = next((item for item in reversed(self.items) if item.kind in ("text", "tool")), None)
        said = (item.stream("text").text.strip() for item in self.items if item.kind == "text")
        if text.strip() and last is not None and last.kind == "tool" and text.strip() not in said:
            self._new("text", done=True).stream("text").add(text)

    def _add_media(self, item: Item, parts: tuple[Part, ...]) -> None:
        media = list(item.facts.get("media", ()))
        for part in parts:
            if not isinstance(part, MediaPart):
                continue
            entry: dict[str, Any] = {"type": part.media_type, "name": part.name, "data": part.data}
            if len(part.data) > MEDIA_LIMIT:
                entry = {"type": part.media_type, "name": part.name, "data": "", "size": len(part.data) * 3 // 4}
            if entry not in media:
                media.append(entry)
        if media:
            item.set(media=media)

    def _end(self, event: ev.TurnEnd) -> None:
        stopped = event.stop_reason in ("aborted", "interrupted", "stopped", "cancelled")
        self.status = "error" if event.error and not stopped else "stopped" if stopped else "done"
        if self.status == "error":
            self.error = {"code": event.error_code, "message": clean(event.error)}
        self.facts["usage"] = event.usage
        self.facts["entry"] = event.entry_id
        self.facts["steps"] = event.steps
        self.waiting = ""
        for item in self.items:
            if item.kind == "tool" and item.facts.get("status") in ("writing", "called", "asking", "running"):
                item.set(status="stopped", question=None)
            self._touch(item).set(done=True)
        self.ended = True
        self.version += 1

    def remark(self, text: str, level: str = "warning") -> None:
        """Add a notice that comes by no event."""
        with self.lock:
            item = self._new("notice", level=level, text=clean(text), done=True)
            self._touched.clear()
        self._changed((item,), urgent=True)

    def never_began(self, code: str, message: str) -> None:
        """The turn was refused before it could begin: there will be no events."""
        with self.lock:
            self.status, self.error, self.ended = "error", {"code": code, "message": clean(message)}, True
            self.version += 1
        self._changed(urgent=True)

    def settle(self) -> None:
        """Keep an ended turn small: its texts in one piece each."""
        with self.lock:
            for item in self.items:
                for grown in item.streams.values():
                    grown.join()

    # -- shown whole

    def head(self) -> dict[str, Any]:
        """The turn without its items."""
        return {
            "key": self.key,
            "prompt": self.prompt,
            "mode": self.mode,
            "status": self.status,
            "chips": self.chips,
            "note": self.note,
            "waiting": self.waiting,
            "error": self.error,
            "facts": self.live_facts(),
            **({"branches": self.branches, "entry": self.entry} if len(self.branches) > 1 else {}),
        }

    def live_facts(self) -> dict[str, Any]:
        """Model, tokens, cost, entry: what a live view shows and a saved one does not."""
        out: dict[str, Any] = {k: v for k, v in self.facts.items() if isinstance(v, str | int | float)}
        usage = self.facts.get("usage")
        if isinstance(usage, Usage):
            out["input"], out["output"] = usage.tokens.input, usage.tokens.output
            out["cache_read"], out["cost"] = usage.tokens.cache_read, usage.cost
        return out

    def whole(self) -> dict[str, Any]:
        """All of it as JSON values."""
        with self.lock:
            return {**self.head(), "items": [item.whole() for item in self.items]}

    def saved(self) -> dict[str, Any]:
        """What the file keeps: no ids, times, costs, nothing that passes."""
        with self.lock:
            items = [_lasting(item.whole()) for item in self.items if not item.facts.get("transient")]
            chips = [{key: value for key, value in chip.items() if key != "preview"} for chip in self.chips]
            turn: dict[str, Any] = {"prompt": self.prompt, "mode": self.mode, "status": self.status, "items": items}
            error = {**self.error, "raised": True} if self.error and self.raised else self.error
            for key, value in (("chips", chips), ("note", self.note), ("error", error)):
                if value:
                    turn[key] = value
            return turn

    @property
    def text(self) -> str:
        """The answer text so far."""
        with self.lock:
            return "".join(item.stream("text").text for item in self.items if item.kind == "text")


def _lasting(item: dict[str, Any]) -> dict[str, Any]:
    passing = ("id", "call_id", "seconds", "done", "question", "progress")
    return {key: value for key, value in item.items() if key not in passing and value not in (None, "", [], False)}


def bounded(text: str, limit: int = OUTPUT_LIMIT) -> str:
    """`text`, its middle left out when it is longer than `limit` characters."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"


def _pretty(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments or "{}"), indent=2, ensure_ascii=False)
    except ValueError:
        return arguments


def said_of(message: Message) -> str:
    """The text of a stored message, for lists."""
    return clean(text_of(message.parts))
