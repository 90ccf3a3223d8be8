"""The live view of one or many turns: an anywidget that sends only what is new.

Theory of operation
-------------------
A `ChatView` listens to `TurnModel` values and notes which items were touched; the kernel's one
`pace.Pacer` says when to send. A frame holds, per touched item, its changed facts and the new
pieces of its texts, nothing else: bytes grow with the answer, not with its square or with the
history. The synced trait ``view`` holds the whole, computed only when a page asks for it (a reload,
a second tab); a browser that finds a gap asks for it too.

The module that draws, `static/chat.js`, travels once per kernel: the first view carries it, later
ones a loader of a few hundred bytes that takes it from the page or asks for it.

Comm messages may come on any thread: they are handed to `Verbs` and nothing is done here.
"""

from __future__ import annotations

import contextlib
import contextvars
import re
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import anywidget
import traitlets
from IPython.core.getipython import get_ipython

from kit_jupyter.jupyter import protocol
from kit_jupyter.jupyter.pace import pacer
from kit_jupyter.jupyter.shell import forget_parent
from kit_jupyter.jupyter.turns import Item, TurnModel
from kit_jupyter.loop import engine

__all__ = ["ChatView", "module_text"]

_STATIC = Path(__file__).parent / "static"

_LOADER = """
const K=(globalThis.__kit__??={});
const get=model=>K.factory?Promise.resolve(K.factory):new Promise(ok=>{
 const ask=()=>{if(K.factory){done(K.factory)}else model.send({kind:"ask",what:"module",name:"chat"})};
 const done=f=>{clearInterval(timer);model.off("msg:custom",on);ok(f)};
 const on=async f=>{for(const m of f?.m||[])if(m.kind==="state"&&m.module?.name==="chat"){
  const u=URL.createObjectURL(new Blob([m.module.code],{type:"text/javascript"}));
  try{K.factory??=(await import(u)).default}finally{URL.revokeObjectURL(u)}done(K.factory)}};
 model.on("msg:custom",on);const timer=setInterval(ask,1000);ask()});
export default()=>{let w;const us=m=>(w??=get(m).then(f=>f()));return{
 async initialize(c){return (await us(c.model)).initialize(c)},async render(c){return (await us(c.model)).render(c)}}};
"""

#: How long a closed view's words are still heard.
LATE_SECONDS = 15.0

_shown_once = False


@cache
def module_text(name: str) -> str:
    """Source of a module a page may ask for; empty when this installation lacks it."""
    path = _STATIC / protocol.MODULES[name] if name in protocol.MODULES else None
    text = path.read_text(encoding="utf-8") if path is not None and path.exists() else ""
    if name == "chat":  # written by hand: without indentation and lines of comment it is a tenth shorter
        text = re.sub(r"(?m)^[ \t]+|^[ \t]*//.*\n|^\n", "", text)
    return text


class _Sent:
    """What of an item has gone out: its version, and per text the number of pieces and of units."""

    __slots__ = ("texts", "version")

    def __init__(self) -> None:
        self.version = 0
        self.texts: dict[str, tuple[int, int]] = {}


class ChatView(anywidget.AnyWidget):
    """Turns in a browser.

    Parameters
    ----------
    verbs : callable(view, message) -> None
        Takes what the browser says; any thread; must return at once.
    panel : bool
        With a composer, and a prompt above each answer.
    full_module : bool or None
        Carry the whole drawing module; None: only the first view of this kernel does.

    Notes
    -----
    `send` and `flush` are safe on any thread.
    """

    _esm = traitlets.Unicode().tag(sync=True)
    view = traitlets.Dict().tag(sync=True)

    def __init__(
        self, verbs: Callable[[ChatView, dict[str, Any]], None], *, panel: bool = False, full_module: bool | None = None
    ) -> None:
        global _shown_once
        full = not _shown_once if full_module is None else full_module
        _shown_once = True
        self.turns: list[TurnModel] = []
        self.panel = panel
        self.bar: dict[str, Any] = {}
        self.hello = threading.Event()  # a browser has spoken: widgets work here
        self._verbs = verbs
        self._lock_out = threading.RLock()
        self._frame = 0
        self._sent: dict[str, _Sent] = {}
        self._touched: dict[str, tuple[TurnModel, Item]] = {}
        self._heads: dict[str, int] = {}
        self._bar_news: dict[str, Any] = {}
        self._listening: dict[str, Callable[[], None]] = {}
        self._closed = False
        self.kit: Any = None  # whose conversation a panel shows
        # A frame is sent in the context of the cell that made the view, so that it bears that cell's parent; where
        # all pages have said that they do without, in one that has none (see `protocol`).
        self._context = self._frame_context = contextvars.copy_context()
        self._needs_parent = False
        super().__init__(_esm=module_text("chat") if full else _LOADER)
        self.on_msg(self._heard)

    def __repr__(self) -> str:
        return "kit panel" if self.panel else "kit answer"

    # -- turns

    def add(self, turn: TurnModel) -> None:
        """Show `turn` from here on. Any thread."""
        with self._lock_out:
            if turn.key in self._listening or self._closed:
                return
            self.turns.append(turn)
            self._listening[turn.key] = turn.listen(self._changed)
        with turn.lock:
            items = tuple(turn.items)
            ended = turn.ended
        if not ended:
            pacer.begin(self)
        self._changed(turn, items, True)

    def show_only(self, turns: list[TurnModel]) -> None:
        """Replace what is shown: another branch, another session."""
        with self._lock_out:
            for stop in self._listening.values():
                stop()
            self._listening.clear()
            self._touched.clear()
            self._sent.clear()
            self._heads.clear()
            self.turns = list(turns)
            for turn in turns:
                self._listening[turn.key] = turn.listen(self._changed)
            self._send_whole()

    def set_bar(self, **facts: Any) -> None:
        """Change the bar: model, queue, usage, tasks and so on. Any thread."""
        with self._lock_out:
            news = {key: value for key, value in facts.items() if self.bar.get(key) != value}
            if not news or self._closed:
                return
            self.bar.update(news)
            self._bar_news.update(news)
        pacer.mark(self)

    def tell(self, note: str) -> None:
        """Show a note for the person, also the same one again. Any thread."""
        with self._lock_out:
            self.bar.pop("note", None)
        self.set_bar(note=note)

    def _changed(self, turn: TurnModel, items: tuple[Item, ...], urgent: bool) -> None:
        # The short way of most deltas: what is noted already goes out with the frame that is on its way, for a frame
        # reads the texts after it took the notes.
        if not urgent and len(items) == 1 and items[0].id in self._touched:
            return
        with self._lock_out:
            if self._closed:
                return
            for item in items:
                self._touched[item.id] = (turn, item)
            self._heads.setdefault(turn.key, 0)
        pacer.mark(self, urgent=urgent)

    # -- out

    def flush(self) -> None:
        """Send what is new in one frame; nothing when nothing is."""
        with self._lock_out:
            if self._closed:
                return
            messages = self._news()
            if messages:
                self._send_frame(messages)

    def _news(self) -> list[dict[str, Any]]:
        out: list[dict[str, Any]] = []
        deltas: list[list[Any]] = []
        ends: list[dict[str, Any]] = []
        for turn in self.turns[-8:] if not self._touched else self._touched_turns():
            known = self._heads.get(turn.key, 0)
            with turn.lock:
                if known == turn.version:
                    continue
                self._heads[turn.key] = turn.version
                head = turn.head()
                if known == 0:
                    out.append({"kind": "start", "turn": head})
                if turn.ended:
                    ends.append({"turn": turn, "head": head})
                elif known:
                    out.append({"kind": "state", "head": head})
        touched, self._touched = self._touched, {}
        for turn, item in touched.values():
            with turn.lock:
                self._item_news(turn, item, out, deltas)
        if deltas:
            out.append({"kind": "delta", "d": deltas})
        for end in ends:
            turn = end["turn"]
            with turn.lock:
                sizes = {item.id: _sizes(item) for item in turn.items if item.streams}
            keys = ("status", "error", "facts")
            out.append({"kind": "end", "turn": turn.key, **{key: end["head"][key] for key in keys}, "sizes": sizes})
        if self._bar_news:
            out.append({"kind": "state", "bar": self._bar_news})
            self._bar_news = {}
        return out

    def _touched_turns(self) -> list[TurnModel]:
        turns = {turn.key: turn for turn, _ in self._touched.values()}
        for turn in self.turns[-8:]:
            turns.setdefault(turn.key, turn)
        return list(turns.values())

    def _item_news(self, turn: TurnModel, item: Item, out: list[dict[str, Any]], deltas: list[list[Any]]) -> None:
        sent = self._sent.get(item.id)
        is_new = sent is None
        if sent is None:
            sent = self._sent[item.id] = _Sent()
        fresh: list[list[Any]] = []
        for name, grown in item.streams.items():
            pieces, units = sent.texts.get(name, (0, 0))
            if len(grown.pieces) > pieces:
                fresh.append([item.id, name, units, "".join(grown.pieces[pieces:])])
                sent.texts[name] = (len(grown.pieces), grown.units)
        changed = sent.version != item.version
        if is_new and not (changed and "done" in item.facts):
            # Facts before text: the browser must know the item first.
            out.append({"kind": "commit", "turn": turn.key, "item": {"id": item.id, **item.facts}, "sizes": {}})
            deltas.extend(fresh)
        elif changed:
            if fresh:  # text before the facts that say it is complete
                if is_new:
                    first = {"id": item.id, "kind": item.kind}
                    out.append({"kind": "commit", "turn": turn.key, "item": first, "sizes": {}})
                out.append({"kind": "delta", "d": fresh})
            question_known = "question" in item.facts
            out.append(
                {"kind": "commit", "turn": turn.key, "item": {"id": item.id, **item.facts}, "sizes": _sizes(item)}
            )
            if question_known:
                out.append(
                    {"kind": "approval", "turn": turn.key, "call": item.id, "question": item.facts.get("question")}
                )
        else:
            deltas.extend(fresh)
        sent.version = item.version

    def _send_frame(self, messages: list[dict[str, Any]]) -> None:
        self._frame += 1
        frame = {"n": self._frame, "m": messages}
        with contextlib.suppress(Exception):  # the comm may be gone: a page was closed, the kernel is ending
            self._frame_context.copy().run(self.send, frame)

    def _send_whole(self) -> None:
        whole = self._whole()
        whole["n"] = self._frame + 1
        self._send_frame([{"kind": "state", "view": whole}])

    def _whole(self) -> dict[str, Any]:
        with self._lock_out:
            # What is in the whole needs not be sent again: note it as sent.
            turns = []
            for turn in self.turns:
                with turn.lock:
                    turns.append(turn.whole())
                    self._heads[turn.key] = turn.version
                    for item in turn.items:
                        sent = self._sent.setdefault(item.id, _Sent())
                        sent.version = item.version
                        sent.texts = {name: (len(grown.pieces), grown.units) for name, grown in item.streams.items()}
            self._touched.clear()
            self._bar_news.clear()
            return {"n": self._frame, "turns": turns, "bar": self.bar, "panel": self.panel}

    def get_state(self, key: Any = None, drop_defaults: bool = False) -> dict[str, Any]:
        """State for a page that opens or reloads: ``view`` is made now, of what there is."""
        state: dict[str, Any] = super().get_state(key, drop_defaults)
        if "view" in state and hasattr(self, "_lock_out"):
            with self._lock_out:
                # Others must not miss what this one gets whole: send it to them first.
                self.flush()
                state["view"] = self._whole()
        return state

    # -- in

    def _heard(self, _: Any, content: Any, buffers: Any) -> None:
        if not isinstance(content, dict) or content.get("kind") not in protocol.TO_KERNEL:
            return
        self.hello.set()
        if content["kind"] == "ask":
            match content.get("what"):
                case "sync":
                    with self._lock_out:
                        self._met_page(content.get("page"))
                        self.flush()
                        if content.get("n") != self._frame:
                            self._send_whole()
                    return
                case "module":
                    name = str(content.get("name", ""))
                    self.answer(module={"name": name, "code": module_text(name)})
                    return
        self._verbs(self, content)

    def _met_page(self, lacks_need: object) -> None:
        """A page says whether it does without a parent; None where it asks once more, having said so before."""
        if lacks_need is False:  # one kernel, two front ends: all get the same frames
            self._needs_parent, self._frame_context = True, self._context
        elif lacks_need is True and not self._needs_parent and self._frame_context is self._context:
            without = self._context.copy()
            without.run(forget_parent, get_ipython())
            self._frame_context = without

    def in_cell(self, fn: Callable[[], object]) -> None:
        """Call `fn` so that what it shows lands in the cell that made this view. Any thread."""
        self._context.copy().run(fn)

    def answer(self, **facts: Any) -> None:
        """Send a ``state`` that is not part of the tree: a module, completions, a chip."""
        with self._lock_out:
            self._send_frame([{"kind": "state", **facts}])

    def close(self) -> None:
        """Flush and close the comm; the saved bundle stands in its place. Any thread."""
        with self._lock_out:
            if self._closed:
                return
            self.flush()
            self._closed = True
            for stop in self._listening.values():
                stop()
            self._listening.clear()
        pacer.leave(self)
        comm_id = self.model_id
        self._context.copy().run(super().close)
        if comm_id and not self.panel:
            _Late(comm_id, self._heard).listen()


class _Late:
    """Hears for a while what a browser says to a view that was closed meanwhile: words may be on their way.

    Stands in the comm's place, under a target that no front end opens again.
    """

    target_name = "kit.late"

    def __init__(self, comm_id: str, heard: Callable[[Any, Any, Any], None]) -> None:
        self.comm_id = comm_id
        self._took = heard
        self._closed = False

    def listen(self) -> None:
        """From now on, for `LATE_SECONDS`."""
        from comm import get_comm_manager

        manager: Any = get_comm_manager()
        manager.register_comm(self)
        engine.call(lambda: engine.loop.call_later(LATE_SECONDS, manager.comms.pop, self.comm_id, None))

    def handle_msg(self, message: Any) -> None:
        """What came for the view; what only asks gets no answer any more."""
        content = message["content"]["data"].get("content")
        if isinstance(content, dict) and content.get("kind") == "steer":
            self._took(self, content, [])

    def handle_close(self, message: Any) -> None:
        """The browser's side is gone, too."""


def _sizes(item: Item) -> dict[str, int]:
    return {name: grown.units for name, grown in item.streams.items()}
