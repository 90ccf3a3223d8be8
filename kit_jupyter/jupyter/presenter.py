"""Listens to one Kit and keeps its turns as views show them."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable
from itertools import count
from typing import Any

from kit_jupyter import events as ev
from kit_jupyter.errors import KitError
from kit_jupyter.jupyter.turns import TurnModel
from kit_jupyter.messages import Assistant

__all__ = ["Presenter"]

#: Ended turns whose models are kept for panels; older ones are in the session.
KEPT = 200
_keys = count(1)


class Presenter:
    """The turns of one Kit.

    Parameters
    ----------
    kit : Kit
    on_question : callable(ApprovalAsked) -> None
        Told when a person is asked; called on the engine's thread, must only hand over.
    is_news : callable(str) -> bool
        Whether a model's note (that it is small, and often wrong) is still to be shown.

    Notes
    -----
    It observes inline, and so is fast: an event costs one dict look-up and one append.
    """

    def __init__(
        self,
        kit: Any,
        on_question: Callable[[ev.ApprovalAsked], None] | None = None,
        is_news: Callable[[str], bool] = bool,
    ) -> None:
        self.kit = kit
        self.turns: OrderedDict[str, TurnModel] = OrderedDict()
        self.bar: dict[str, Any] = {}
        self._on_question = on_question
        self._is_news = is_news
        self._lock = threading.Lock()
        self._bar_listeners: list[Callable[[dict[str, Any]], None]] = []
        self._turn_listeners: list[Callable[[TurnModel], None]] = []
        self._branch_listeners: list[Callable[[], None]] = []
        self._expected: dict[str, Callable[[TurnModel], None]] = {}
        self._stop = kit.subscribe(self.take, inline=True)

    def catch_up(self) -> None:
        """Take what the Kit holds already: questions that wait, and what is queued, told before anyone listened."""
        queue = self.kit.queue
        if queue.steering or queue.follow_up or queue.returned:
            self.take(ev.QueueUpdate(queue.steering, queue.follow_up, queue.returned))
        running = getattr(self.kit, "_turn", None)
        for one in self.kit.pending_approvals:
            if running is None:
                break
            asked = (one.call_id, one.tool_name, json.dumps(dict(one.arguments)), one.text, one.suggestion)
            self.turn(running.id).take(ev.ApprovalAsked(*asked))

    def close(self) -> None:
        """Stop listening."""
        self._stop()

    def turn(self, turn_id: str) -> TurnModel:
        """The model of that turn, made when it does not exist yet. Any thread."""
        with self._lock:
            found = self.turns.get(turn_id)
            if found is not None:
                return found
            found = self.turns[turn_id] = TurnModel(turn_id, f"t{next(_keys)}")
            excess = len(self.turns) - KEPT
            for old in [key for key, turn in self.turns.items() if turn.ended][: max(0, excess)]:
                del self.turns[old]
        for fn in tuple(self._turn_listeners):
            fn(found)
        return found

    def expect(self, turn_id: str, fn: Callable[[TurnModel], None]) -> Callable[[], object]:
        """Call ``fn(model)`` when that turn begins, if it ever does; returns the way to expect it no more."""
        self._expected[turn_id] = fn
        return lambda: self._expected.pop(turn_id, None)

    def by_key(self, key: str) -> TurnModel | None:
        """The turn that browsers call `key`."""
        with self._lock:
            return next((turn for turn in self.turns.values() if turn.key == key), None)

    def on_turn(self, fn: Callable[[TurnModel], None]) -> Callable[[], None]:
        """Call ``fn(turn)`` for each new turn; returns the way to end it."""
        return _listen(self._turn_listeners, fn)

    def on_bar(self, fn: Callable[[dict[str, Any]], None]) -> Callable[[], None]:
        """Call ``fn(facts)`` when facts of the whole session change; returns the way to end it."""
        fn(dict(self.bar))
        return _listen(self._bar_listeners, fn)

    def on_branch(self, fn: Callable[[], None]) -> Callable[[], None]:
        """Call ``fn()`` when the conversation was cleared or another branch is shown."""
        return _listen(self._branch_listeners, fn)

    def tell_bar(self, **facts: Any) -> None:
        """Change facts of the whole session. Any thread."""
        self.bar.update(facts)
        for fn in tuple(self._bar_listeners):
            fn(facts)

    def take(self, event: ev.Event) -> None:
        """Take one event of the Kit."""
        if event.turn_id and (isinstance(event, ev.TurnStart) or event.turn_id in self.turns):
            turn = self.turn(event.turn_id)
            if isinstance(event, ev.TurnStart) and (begun := self._expected.pop(event.turn_id, None)) is not None:
                begun(turn)
            turn.take(event)
        match event:
            case ev.MessageUpdate():
                return
            case ev.TurnStart():
                for turn in reversed(self.turns.values()):  # the one before has been sent whole by now
                    if turn.ended:
                        turn.settle()
                        break
                self.tell_bar(running=True)
            case ev.MessageEnd(message):
                self._note(event.turn_id, message)
                self._gauge(message.usage.tokens.total)
            case ev.TurnEnd():
                self.tell_bar(running=False, usage=_usage(self.kit))
            case ev.ApprovalAsked():
                if self._on_question is not None:
                    self._on_question(event)
            case ev.QueueUpdate(steering, follow_up, returned):
                queue = {"steering": list(steering), "follow_up": list(follow_up), "returned": list(returned)}
                self.tell_bar(queue=queue)
            case ev.ModelChanged(model):
                self.tell_bar(model=model)
                self._gauge((self.bar.get("gauge") or {}).get("tokens", 0))
            case ev.Domain(name, content) if name == "tasks.list_changed":
                self.tell_bar(tasks=_tasks(content))
            case ev.CompactionEnd():
                self.measure()
            case ev.Reset() | ev.BranchChanged():
                self.measure()
                for fn in tuple(self._branch_listeners):
                    fn()

    def measure(self) -> None:
        """Estimate how much of the model's window the conversation fills, where no answer has just told. Any thread."""
        from kit_jupyter.compaction import context_tokens

        self._gauge(context_tokens(self.kit.messages))

    def _gauge(self, tokens: int) -> None:
        try:
            window = getattr(self.kit.model_info, "context_window", None)
        except KitError:
            window = None
        if tokens or "gauge" in self.bar:
            self.tell_bar(gauge={"tokens": tokens, "window": window})

    def _note(self, turn_id: str, message: Assistant) -> None:
        """What there is to say of the model that has answered, once; nothing of one that has not."""
        turn = self.turns.get(turn_id)
        if turn is None or message.run is None or not message.parts or message.result.error is not None:
            return
        try:
            note = getattr(self.kit.info_of(message.run.model), "note", "")
        except KitError:
            return
        if note and self._is_news(str(note)):
            turn.touch(note=str(note))


def _listen(listeners: list[Any], fn: Any) -> Callable[[], None]:
    listeners.append(fn)

    def stop() -> None:
        if fn in listeners:
            listeners.remove(fn)

    return stop


def _usage(kit: Any) -> dict[str, Any]:
    usage = getattr(kit, "usage", None)
    tokens = getattr(usage, "tokens", None)
    if tokens is None:
        return {}
    return {"input": tokens.input, "output": tokens.output, "cost": getattr(usage, "cost", None)}


def _tasks(content: Any) -> list[dict[str, str]]:
    tasks = content.get("tasks", content) if isinstance(content, dict) else content
    out = []
    for task in tasks if isinstance(tasks, list | tuple) else ():
        get = task.get if isinstance(task, dict) else lambda name, of=task: getattr(of, name, None)
        text = get("text") or get("title") or get("content") or get("description") or ""
        out.append({"text": str(text), "status": str(get("status") or "")})
    return out
