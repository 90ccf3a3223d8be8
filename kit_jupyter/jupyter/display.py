"""How a cell shows its turn: a live widget, display updates, one final bundle, or plain text.

Theory of operation
-------------------
Each way is a `CellDisplay`: `show` once the turn runs, `finish` when it has ended; both on the
user's thread, in the cell's context. Whatever was live, what stays in the cell is a static bundle
(`transcript.bundle`), put in place of the live view, so that the file reads without a kernel.

``KIT_UI`` (or ``c.KitNotebook.ui``) chooses: ``static`` shows the bundle once at the end (for CI and
documentation), ``plain`` prints text only, ``updates`` streams by display updates, ``widget`` insists on
widgets, ``auto`` picks: text in a terminal, the bundle where a runner executes a file (`is_runner`), updates
where widgets are known not to work or no browser answers ours, else widgets.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from kit_jupyter.jupyter.protocol import WIDGET_MIME
from kit_jupyter.jupyter.shell import Parent, bind_parent, current_parent, is_kernel, keep_frontend_routing
from kit_jupyter.jupyter.transcript import bundle, to_plain
from kit_jupyter.jupyter.turns import Item, TurnModel
from kit_jupyter.runners import is_runner

__all__ = ["MODES", "CellDisplay", "choose", "make", "publish"]

MODES = ("auto", "widget", "updates", "static", "plain")
#: How long a browser may take to say that it drew the live view, before text goes by display updates.
HELLO_SECONDS = 8.0
UPDATE_SECONDS = 0.4

#: What steers a terminal, but for ends of lines and tabs; colours are told apart.
_STEERING = re.compile(r"(?P<colour>\x1b\[[0-9;]*m)|\r(?=\n)|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_COLOUR_BEGUN = re.compile(r"\x1b(\[[0-9;]*)?$")

#: Makes of a saved turn the bundle that stays in the cell.
Pack = Callable[[dict[str, Any]], dict[str, Any]]


class CellDisplay(Protocol):
    """Shows one turn in one cell."""

    def show(self, turn: TurnModel) -> None:
        """Begin to show it."""
        ...

    def show_again(self, turn: TurnModel) -> None:
        """Show another turn in the first one's place: it was begun again."""
        ...

    def finish(self, turn: TurnModel, metadata: dict[str, Any]) -> None:
        """The turn has ended: leave what stays."""
        ...

    @property
    def can_ask(self) -> bool:
        """True if approvals can be answered in what is shown."""
        ...

    @property
    def tells_failure(self) -> bool:
        """True if what it leaves says why a turn failed, unless the cell's own error does (`TurnModel.raised`)."""
        ...


def choose(ip: Any, wish: str = "auto") -> str:
    """The way that fits this front end: ``KIT_UI``, then `wish`, then what is known of it."""
    mode = os.environ.get("KIT_UI", "").strip().lower() or wish
    if mode not in MODES:
        from kit_jupyter.errors import UsageError

        raise UsageError(f"KIT_UI must be one of {', '.join(MODES)}, got {mode!r}")
    if mode != "auto":
        return "plain" if mode in ("widget", "updates") and not is_kernel(ip) else mode
    if not is_kernel(ip):
        return "plain"
    # Colab shows custom widgets only after a switch, and may miss their messages.
    if "google.colab" in sys.modules:
        return "updates"
    return "static" if is_runner(current_parent(ip)) else "widget"


def make(
    mode: str,
    ip: Any,
    verbs: Callable[[Any, dict[str, Any]], None],
    *,
    watch: bool,
    parent: Parent,
    rich: bool = True,
    pack: Pack = bundle,
) -> CellDisplay:
    """The display of that mode.

    Parameters
    ----------
    verbs : callable
        Takes what a browser says.
    watch : bool
        Comm messages are served while the turn runs, so a browser that stays silent has no widgets.
    rich : bool
        In a terminal, draw Markdown where `rich` is installed.
    pack : callable(saved turn) -> dict
        Makes the bundle that stays.
    """
    match mode:
        case "static":
            return StaticDisplay(pack)
        case "plain":
            return TextDisplay(rich=rich and not is_kernel(ip))
        case "updates":
            return UpdatesDisplay(ip, parent, pack=pack)
    return WidgetDisplay(ip, verbs, watch=watch, parent=parent, pack=pack)


def publish(
    data: dict[str, Any], metadata: dict[str, Any], *, display_id: str | None = None, update: bool = False
) -> None:
    """Show a bundle in the present cell, or put it in the place of an earlier one."""
    from IPython.display import publish_display_data

    transient = {"display_id": display_id} if display_id else None
    publish_display_data(data, metadata, transient=transient, update=update)  # type: ignore[no-untyped-call]


def live_bundle(model_id: str) -> dict[str, Any]:
    """What shows a live view."""
    view = {"version_major": 2, "version_minor": 0, "model_id": model_id}
    return {WIDGET_MIME: view, "text/plain": "kit is answering …"}


def _new_id() -> str:
    return os.urandom(16).hex()


class StaticDisplay:
    """The final bundle, once."""

    can_ask = False
    tells_failure = True

    def __init__(self, pack: Pack = bundle) -> None:
        self._pack = pack

    def show(self, turn: TurnModel) -> None:
        """Nothing while it runs."""

    def show_again(self, turn: TurnModel) -> None:
        """Nothing while it runs."""

    def finish(self, turn: TurnModel, metadata: dict[str, Any]) -> None:
        """Show the bundle."""
        publish(self._pack(turn.saved()), {"kit": metadata})


class UpdatesDisplay:
    """Markdown by display updates, each a good deal longer than the one before.

    Every update carries the whole text, so they come at growing distances: the bytes sent stay
    in proportion to the answer.
    """

    can_ask = False
    tells_failure = True

    def __init__(
        self, ip: Any, parent: Parent, display_id: str | None = None, hint: str = "", pack: Pack = bundle
    ) -> None:
        self._pack = pack
        self._ip = ip
        self._parent = parent
        self._id = display_id
        self._hint = hint
        self._context = contextvars.copy_context()
        self._news = threading.Event()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def show(self, turn: TurnModel) -> None:
        """Begin to send updates from a thread of our own."""
        if self._id is None:
            self._id = _new_id()
            publish({"text/markdown": "…", "text/plain": "…"}, {}, display_id=self._id)
        turn.listen(lambda *_: self._news.set())
        self._news.set()
        context = self._context.copy()
        self._thread = threading.Thread(target=context.run, args=(self._run, turn), name="kit-updates", daemon=True)
        self._thread.start()

    def _run(self, turn: TurnModel) -> None:
        bind_parent(self._ip, self._parent)
        size = 0
        while not self._over.wait(UPDATE_SECONDS):
            self._news.wait(1.0)
            self._news.clear()
            saved = turn.saved()
            data = bundle(saved, keep=False)
            length = len(data["text/plain"])
            if self._over.is_set() or length < (max(size * 1.25, size + 20) if size else 1):
                continue
            size = length
            if self._hint:
                data["text/markdown"] += f"\n\n*{self._hint}*"
            with contextlib.suppress(Exception):
                publish(data, {}, display_id=self._id, update=True)

    def show_again(self, turn: TurnModel) -> None:
        """Show another turn in this one's place."""
        self.stop()
        self._over, self._news = threading.Event(), threading.Event()
        self.show(turn)

    def stop(self) -> None:
        """No more updates."""
        self._over.set()
        self._news.set()
        if self._thread is not None:
            self._thread.join(2.0)

    def finish(self, turn: TurnModel, metadata: dict[str, Any]) -> None:
        """Put the bundle in the place of the text."""
        self.stop()
        publish(self._pack(turn.saved()), {"kit": metadata}, display_id=self._id, update=True)


class WidgetDisplay:
    """A live widget while the turn runs."""

    can_ask = True
    tells_failure = True

    def __init__(
        self,
        ip: Any,
        verbs: Callable[[Any, dict[str, Any]], None],
        *,
        watch: bool,
        parent: Parent,
        pack: Pack = bundle,
    ) -> None:
        self._pack = pack
        self._ip = ip
        self._verbs = verbs
        self._watch = watch
        self._parent = parent
        self._id = _new_id()
        self._updates: UpdatesDisplay | None = None
        self._timer: threading.Timer | None = None
        self.view: Any = None

    def show(self, turn: TurnModel) -> None:
        """Show a view of the turn."""
        try:
            from kit_jupyter.jupyter.view import ChatView

            self.view = ChatView(self._verbs)
        except Exception as exc:  # no comm, no widgets: the same turn by display updates
            self._fall_back(turn, f"live view not available ({type(exc).__name__}); text by display updates", new=True)
            return
        keep_frontend_routing(self.view)
        self.view.add(turn)
        publish(live_bundle(self.view.model_id), {}, display_id=self._id)
        if self._watch:
            context = contextvars.copy_context()
            self._timer = threading.Timer(HELLO_SECONDS, lambda: context.run(self._nobody_answers, turn))
            self._timer.daemon = True
            self._timer.start()

    def _nobody_answers(self, turn: TurnModel) -> None:
        if turn.ended or self.view.hello.is_set():
            return
        hint = "no browser answered the live view; text by display updates (KIT_UI=updates begins with it)"
        self._fall_back(turn, hint, new=False)
        self.can_ask = False

    def _fall_back(self, turn: TurnModel, hint: str, *, new: bool) -> None:
        self._updates = UpdatesDisplay(self._ip, self._parent, None if new else self._id, hint, self._pack)
        self._updates.show(turn)

    def show_again(self, turn: TurnModel) -> None:
        """Show another turn in this one's place."""
        if self.view is not None:
            self.view.show_only([turn])
        if self._updates is not None:
            self._updates.show_again(turn)

    def finish(self, turn: TurnModel, metadata: dict[str, Any]) -> None:
        """Put the static bundle in the view's place and close the view."""
        if self._timer is not None:
            self._timer.cancel()
        if self.view is None and self._updates is not None:
            self._updates.finish(turn, metadata)
            return
        if self._updates is not None:
            self._updates.stop()
        self.view.flush()
        publish(self._pack(turn.saved()), {"kit": metadata}, display_id=self._id, update=True)
        self.view.close()


class TextDisplay:
    """Text as it comes, for terminals and for those who want nothing else.

    With `rich` there (and a terminal), finished blocks are drawn as Markdown and the tail as it
    grows; else text is written as it comes. What would steer the terminal is written out, so that no answer can
    hide a question; what a tool prints keeps its colours and returns to the start of its line.
    """

    can_ask = False
    tells_failure = False

    def __init__(self, *, rich: bool) -> None:
        self._rich = rich
        self._news = threading.Event()
        self._over = False
        self._seen: dict[str, dict[str, tuple[int, int]]] = {}  # pieces and characters written, by item and text
        self._told: set[str] = set()
        self._column = 0
        self._thread: threading.Thread | None = None
        self._console: Any = None
        self._live: Any = None
        self._tail = ""
        self._is_coloured = False
        self._begun: dict[str, str] = {}  # the first letters of a colour whose rest has not come yet, by item
        self._hold = threading.RLock()
        self._turn: TurnModel | None = None

    def show(self, turn: TurnModel) -> None:
        """Begin to write from a thread of our own, in the cell's context."""
        if self._rich and sys.stdout.isatty():
            with contextlib.suppress(ImportError):
                from rich.console import Console

                self._console = Console()
        turn.listen(lambda *_: self._news.set())
        self._news.set()
        self._turn = turn
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._run,), name="kit-text", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over:
            self._news.wait(1.0)
            self._news.clear()
            with self._hold:
                if self._turn is not None:
                    self._write_news(self._turn)
            time.sleep(0.03)  # joins deltas to about 30 writes a second

    @contextlib.contextmanager
    def paused(self) -> Any:
        """Hold the output while a person is asked; what is asked about is written before."""
        with self._hold:
            if self._turn is not None:
                self._write_news(self._turn)
            self._end_tail()
            yield

    def show_again(self, turn: TurnModel) -> None:
        """Write another turn below this one."""
        turn.listen(lambda *_: self._news.set())
        with self._hold:
            self._end_tail()
            self._turn = turn
        self._news.set()

    def finish(self, turn: TurnModel, metadata: dict[str, Any]) -> None:
        """Write the rest."""
        self._over = True
        self._news.set()
        if self._thread is not None:
            self._thread.join(2.0)
        with self._hold:
            self._write_news(turn)
            self._end_tail()
            if turn.status == "stopped":
                self._line("[stopped]")
            if turn.note:
                self._line(f"[note] {turn.note}")

    def _write_news(self, turn: TurnModel) -> None:
        with turn.lock:  # all that is noted as told is what is taken here: the turn goes on meanwhile
            news = [taken for item in turn.items if (taken := self._take(item)) is not None]
            waiting = turn.waiting
        if waiting and waiting not in self._told:
            self._told.add(waiting)
            self._line(f"[{waiting} …]")
        for whole, fresh in news:
            self._item(whole, fresh)

    def _take(self, item: Item) -> tuple[dict[str, Any], dict[str, str]] | None:
        """An item as it is now, and what its texts have grown by; None if there is nothing new."""
        seen = self._seen.setdefault(item.id, {})
        fresh = {name: grown.since(*seen.get(name, (0, 0))) for name, grown in item.streams.items()}
        for name, text in fresh.items():
            seen[name] = (len(item.streams[name].pieces), seen.get(name, (0, 0))[1] + len(text))
        version = f"{item.id}:{item.version}"
        if version in self._told and not any(fresh.values()):
            return None
        self._told.add(version)
        growing = item.kind in ("text", "thinking")  # what is fresh of it is all that is written
        return {"id": item.id, **item.facts} if growing else item.whole(), fresh

    def _item(self, whole: dict[str, Any], fresh: dict[str, str]) -> None:
        begun, ended = f"{whole['id']}!", f"{whole['id']}="
        match whole["kind"]:
            case "text":
                self._text(fresh.get("text", ""))
            case "thinking":
                if fresh.get("text") and begun not in self._told:
                    self._told.add(begun)
                    self._line("[thinking …]")
            case "tool":
                if whole.get("status") in ("running", "asking") and begun not in self._told:
                    self._told.add(begun)
                    self._line(to_plain({"items": [{**whole, "status": "done", "result": ""}]}))
                self._printed(whole["id"], fresh.get("output", ""))
                if "result" in whole and ended not in self._told:
                    self._told.add(ended)
                    text = to_plain({"items": [_unprinted(whole)]})
                    self._line(text.partition("\n")[2] if begun in self._told else text)
            case _:
                text = to_plain({"items": [whole]})
                if begun not in self._told and text != "(no answer)":
                    self._told.add(begun)
                    self._line(text)

    def _out(self, text: str) -> None:
        if not text:
            return
        self._end_colours()
        sys.stdout.write(text)
        sys.stdout.flush()
        self._column = 0 if text.endswith("\n") else 1

    def _end_colours(self) -> None:
        if self._is_coloured:
            self._is_coloured = False
            sys.stdout.write("\x1b[0m")
            sys.stdout.flush()

    def _printed(self, item_id: str, text: str) -> None:
        """Write what a tool printed, with its colours."""
        text = self._begun.pop(item_id, "") + text
        if begun := _COLOUR_BEGUN.search(text):
            self._begun[item_id], text = text[begun.start() :], text[: begun.start()]
        text = _harmless(text, keep_colours=True)
        was_coloured, self._is_coloured = self._is_coloured, False
        self._out(text)
        self._is_coloured = was_coloured or "\x1b" in text

    def _line(self, text: str) -> None:
        self._end_tail()
        if text:
            self._out(_harmless(text) + "\n")

    def _text(self, text: str) -> None:
        text = _harmless(text)
        if self._console is None:
            self._out(text)
            return
        from rich.live import Live
        from rich.markdown import Markdown

        self._tail += text
        blocks, self._tail = _finished(self._tail)
        if self._live is None:
            self._live = Live(console=self._console, transient=True, refresh_per_second=12, vertical_overflow="crop")
            self._live.start()
        for block in blocks:
            self._live.console.print(Markdown(block))
        self._live.update(Markdown(self._tail))

    def _end_tail(self) -> None:
        if self._live is not None:
            from rich.markdown import Markdown

            self._live.stop()
            self._live = None
            if self._tail.strip():
                self._console.print(Markdown(self._tail))
            self._tail = ""
        if self._column:
            self._out("\n")
        self._end_colours()


def _harmless(text: str, *, keep_colours: bool = False) -> str:
    """`text` with all that would steer a terminal written out; colours and returns of the carriage if not kept."""

    def written(found: re.Match[str]) -> str:
        mark = found[0]
        if keep_colours and (found["colour"] or mark == "\r"):
            return mark
        # "\r" before "\n" says nothing more.
        return "" if mark == "\r" and text.startswith("\n", found.end()) else mark.encode("unicode_escape").decode()

    return _STEERING.sub(written, text)


def _unprinted(whole: dict[str, Any]) -> dict[str, Any]:
    """A tool's item without that part of its result which was written as it came."""
    printed = whole.get("output", "").strip()
    if not printed or printed not in whole["result"]:
        return whole
    return {**whole, "result": whole["result"].replace(printed, "", 1).strip()}


def _finished(text: str) -> tuple[list[str], str]:
    """Blocks of Markdown that are complete, and the rest."""
    blocks: list[str] = []
    fence = ""
    start = at = 0
    for line in text.splitlines(keepends=True):
        bare = line.strip()
        if fence:
            if bare.startswith(fence) and set(bare) == {fence[0]}:
                fence = ""
        elif bare.startswith(("```", "~~~")):
            fence = bare[:3]
        elif not bare and text[start:at].strip():
            blocks.append(text[start:at])
            start = at
        at += len(line)
    return blocks, text[start:]
