"""What one IPython shell has of kit: its sessions, the turns that its cells run, its configuration.

Theory of operation
-------------------
A cell's turn is a `Run`: `begin` starts it on the engine and shows it; `wait` (or `wait_blocking`)
serves it on the user's thread and leaves the final bundle; a background run is finished by the
kernel's own loop. Whoever starts a turn, the cell's parent message is bound in the turn's context,
so its output lands in its cell. What a browser or the control channel may ask for is in `verbs`.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from kit_jupyter import events as ev
from kit_jupyter.errors import KitError
from kit_jupyter.jupyter import config, display
from kit_jupyter.jupyter.approvals import ask_by_stdin
from kit_jupyter.jupyter.cells import CellFinder, notebook_name
from kit_jupyter.jupyter.config import KitNotebook
from kit_jupyter.jupyter.early import Early, Later
from kit_jupyter.jupyter.presenter import Presenter
from kit_jupyter.jupyter.settled import Settled, cell_view
from kit_jupyter.jupyter.shell import (
    Parent,
    bind_parent,
    current_parent,
    is_kernel,
    main_loop,
    probes,
    turn_interrupts,
)
from kit_jupyter.jupyter.turns import TurnModel
from kit_jupyter.jupyter.verbs import Verbs
from kit_jupyter.kit import Handle, Kit
from kit_jupyter.loop import Desk
from kit_jupyter.messages import CellRef, Part
from kit_jupyter.settings import PromptOptions
from kit_jupyter.turn import TurnResult

if TYPE_CHECKING:
    from kit_jupyter.session_list import SessionInfo

__all__ = ["Notebook", "Run"]


@dataclass(slots=True, eq=False)
class Run:
    """A turn that a cell (or the panel) started."""

    kit: Kit
    handle: Handle
    model: TurnModel
    desk: Desk
    parent: Parent
    shown: Any
    text: str = ""
    background: bool = False
    began: float = field(default_factory=time.monotonic)
    finished: bool = False
    again: Callable[[], Handle] | None = None  # begins the same turn once more; None where that cannot be
    is_again: bool = False
    below: list[str] = field(default_factory=list)  # code that becomes a cell below at the end
    unsent: tuple[str, ...] = ()  # what had come back unsent before it began
    asked: dict[str, object] = field(default_factory=dict)  # questions that have been put, by call id
    count: int | None = None  # the number of the cell's execution
    raises: bool = False  # a failure fails the cell, whose error then says why


class Watch:
    """Whether an interrupt came, before or after the turn began."""

    def __init__(self) -> None:
        self.asked = False
        self._run: Run | None = None

    def stop(self) -> None:
        """Called by the interrupt, in a signal handler."""
        self.asked = True
        if self._run is not None:
            self._run.handle.abort()

    def follow(self, run: Run) -> None:
        """The turn has begun."""
        self._run = run
        if self.asked:
            run.handle.abort()


class Notebook:
    """Everything kit has in one shell.

    Parameters
    ----------
    ip : InteractiveShell
    early : Early
        What `prepare` has put into the shell.
    make_kit : callable(session) -> Kit, or None
        Makes a session's Kit; `session` is as for `Kit`. None: a plain `Kit` with the configuration's settings.
    """

    def __init__(self, ip: Any, early: Early, make_kit: Callable[..., Kit] | None = None) -> None:
        self.ip = ip
        self.hooks = early.hooks
        self.record = early.record
        self.config = KitNotebook(parent=ip)
        self.settings = config.Kit(parent=ip)
        self.settings.observe(self._setting_changed)
        self.finder = CellFinder()
        self.runs: dict[str, Run] = {}
        self.kits: dict[str, Kit] = {}
        self.name = "main"
        self.panel: Any = None
        self.terminal: Any = None  # keys of a terminal
        self.lab: Any = None  # the Lab extension's side, in a kernel
        self.magics: Any = None
        #: More operations of the control channel, by name; the Lab side adds its own here.
        self.requests: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {}
        self.verbs = Verbs(self)
        self._make_kit = make_kit
        self._presenters: dict[Kit, Presenter] = {}
        self._lock = threading.RLock()
        self.last_error: tuple[str, BaseException] | None = None
        self._noted: set[str] = set()
        self.settled = Settled(self.config.pack)
        self._mine: Kit | None = None  # what `kit` in the namespace was when it was last looked at
        early.hooks.after_cell = self.notice

    # -- sessions

    def kit(self, name: str | None = None) -> Kit:
        """The Kit of session `name`; without a name, the one in the namespace, made when there is none."""
        if name is None:
            mine = self.ip.user_ns.get("kit")
            if type(mine) is not Later and isinstance(mine, Kit):
                self.notice()
                self.presenter(mine)
                return mine
            name = self.name
        with self._lock:
            kit = self.kits.get(name)
            if kit is None or getattr(kit, "_is_closed", False):
                kit = self.kits[name] = self.make()
                mine = self.ip.user_ns.get("kit")
                ours = self._make_kit is None and not kit.messages
                if ours and type(mine) is not Later and isinstance(mine, Kit):
                    kit.share_model(mine)  # a talk at the side must not go to another service than the others
                if name == "main" and type(self.ip.user_ns.get("kit")) is Later:
                    self.ip.user_ns["kit"] = kit
        self.presenter(kit)
        return kit

    def notice(self) -> None:
        """Let an open panel follow what `kit` in the namespace is.

        Notes
        -----
        Looked at when a cell has run and when a turn begins. A panel that was opened on another Kit stays there as
        long as `kit` is what it was.
        """
        mine = self.ip.user_ns.get("kit")
        if type(mine) is Later or not isinstance(mine, Kit):
            return
        if mine is self._mine:
            return
        self._mine = mine
        if self.panel is not None and self.panel.kit is not mine:
            self.panel.follow(mine)

    def holder(self, session_id: str) -> Kit | None:
        """The Kit of this kernel that has the session of that id open, if one has."""
        mine = [kit for kit in list(self.ip.user_ns.values()) if type(kit) is not Later and isinstance(kit, Kit)]
        known = [*self.kits.values(), *self._presenters, *mine]
        return next((kit for kit in known if kit.session.id == session_id and not getattr(kit, "_is_closed", 0)), None)

    def make(self, session: Any = None) -> Kit:
        """A new Kit with this shell's configuration."""
        settings: dict[str, Any] = self.settings.for_session()
        if session is None:
            session = self._first_session()
        if self.lab is not None:
            settings["extensions"] = (*settings.get("extensions", ()), self.lab.guest())
        settings["tools"] = (*settings.get("tools", ()), *self.config.notebook_tools(self.ip))
        if self._make_kit is not None:
            kit = self._make_kit(session=session, config=self.ip.config, **settings)
        else:
            kit = Kit(session=session, config=self.ip.config, **settings)
        self.config.check_kit(kit)
        return kit

    def _first_session(self) -> Any:
        match self.config.session:
            case "memory":
                return "memory"
            case "last":
                from kit_jupyter.session_list import list_sessions

                return self.earlier(list_sessions(), {kit.session.id for kit in self.kits.values()})
        return None

    def earlier(self, listing: Sequence[SessionInfo], besides: Container[str]) -> str | None:
        """The id of the session to go on with: this notebook's last one, else the project's last one."""
        others = [info for info in listing if info.id not in besides]
        here = notebook_name(self.ip)
        ours = [info for info in others if here and info.notebook == here]
        return next((info.id for info in [*ours, *others]), None)

    def _setting_changed(self, change: Any) -> None:
        mine, name = self.ip.user_ns.get("kit"), change["name"]
        if type(mine) is not Later and isinstance(mine, Kit) and name in mine.settings.trait_names(config=True):
            mine.settings.update({name: change["new"]})

    def use(self, kit: Kit, name: str) -> None:
        """Make `kit` the session that cells talk to."""
        self.kits[name] = kit
        self.name = name
        self.ip.user_ns["kit"] = self._mine = kit
        self.presenter(kit)
        if self.panel is not None:
            self.panel.follow(kit)

    def name_of(self, kit: Kit) -> str:
        """The name under which `kit` is known here."""
        return next((name for name, known in self.kits.items() if known is kit), "kit")

    def presenter(self, kit: Kit) -> Presenter:
        """The presenter of `kit`."""
        with self._lock:
            found = self._presenters.get(kit)
            if found is None:
                found = self._presenters[kit] = Presenter(kit, self._on_question, self._is_news)
                found.catch_up()
                found.tell_bar(model=kit.model, session=self.name_of(kit))
                if self.lab is not None:
                    self.lab.adopt(kit)
            return found

    def running(self) -> list[Run]:
        """Runs that have not ended, oldest first."""
        return [run for run in list(self.runs.values()) if not run.handle.future.done()]

    # -- a cell's turn

    @staticmethod
    def heard(kit: Kit, text: str, source: str) -> str | None:
        """What guests that look at input make of a text; None when one of them has dealt with it.

        Without such a guest the text itself, at no cost.
        """
        if text.strip() != "/clear" and not kit.host.has_hooks("on_input"):
            return text
        return kit.apply_input_sync(text, source)

    def begin(
        self,
        kit: Kit,
        text: str,
        *,
        mode: str = "prompt",
        options: PromptOptions | None = None,
        parts: Sequence[Part] = (),
        chips: Sequence[dict[str, Any]] = (),
        cell: CellRef | None = None,
        background: bool = False,
        ui: str | None = None,
        when_busy: str = "refuse",
        raises: bool = False,
    ) -> Run:
        """Start a turn and show it in the present cell.

        Parameters
        ----------
        raises : bool
            Whoever waits for the turn raises its failure, so that the reason stands in the cell's error; what is left
            of the turn then does not say it, too.
        when_busy : {"refuse", "queue"}
            While another turn of this session runs.

        Raises
        ------
        UsageError
            What `Kit.start` refuses at once, and a model or address that the configuration locks.
        """
        self.config.check_turn(kit, options)
        kit.check_options(options)
        way = display.choose(self.ip, ui or self.config.ui)
        parent = current_parent(self.ip)
        presenter = self.presenter(kit)
        loop = main_loop(self.ip)
        desk = Desk(loop)
        kit.is_attended = is_kernel(self.ip) and way != "static"
        context = contextvars.copy_context()
        context.run(bind_parent, self.ip, parent)

        def start() -> Handle:
            # A copy: a context that a turn still runs in cannot be entered again.
            start = partial(kit.start, text, mode=mode, options=options, parts=parts, cell=cell, desk=desk)
            return context.copy().run(lambda: start(when_busy=when_busy))

        unsent = tuple(kit.queue.returned)
        handle = start()
        model = presenter.turn(handle.turn_id)
        if chips:
            model.touch(chips=chips)
        shown = display.make(
            way,
            self.ip,
            self.verbs.on_message,
            watch=not background and is_kernel(self.ip) and probes(self.ip)["concurrent_comms"],
            parent=parent,
            rich=self.config.rich,
            pack=self.config.pack,
        )
        run = Run(kit, handle, model, desk, parent, shown, text=text, background=background)
        run.raises = raises and not background
        run.count = getattr(self.ip, "execution_count", None)
        run.unsent = unsent
        if cell is not None and not background:
            run.again = start  # the cell's earlier turn is left as a branch, as when the cell runs again
        self.runs[handle.turn_id] = run
        try:
            shown.show(model)
            view = getattr(shown, "view", None)
            if not background and view is not None:
                view.set_bar(attached=True, retry=run.again is not None)
        except BaseException:
            handle.abort()
            raise
        if background:
            self._finish_later(run)
        for question in kit.pending_approvals:  # a guest may ask before the cell's view is there
            self._put_question(run, question.call_id)
        return run

    def _is_news(self, note: str) -> bool:
        """True the first time that a model's note is to be shown in this kernel."""
        with self._lock:
            is_new = note not in self._noted
            self._noted.add(note)
            return is_new

    @contextmanager
    def interrupts(self) -> Iterator[Watch]:
        """From before a turn begins until it has ended: Kernel → Interrupt stops it."""
        watch = Watch()
        with turn_interrupts(watch.stop):
            yield watch

    async def wait(self, run: Run, watch: Watch) -> TurnResult:
        """Wait for a run under the kernel's loop.

        Raises
        ------
        KeyboardInterrupt
            If Kernel → Interrupt stopped it, so that the cells queued behind it do not run.
        """
        watch.follow(run)
        try:
            while True:
                try:
                    result = await run.handle
                except KitError:
                    if watch.asked or not self._begins_again(run):
                        raise
                else:
                    if watch.asked or not self._begins_again(run):
                        break
        except asyncio.CancelledError:
            run.handle.abort()
            raise KeyboardInterrupt from None
        finally:
            self.finish(run)
        if watch.asked:
            raise KeyboardInterrupt
        return result

    def _begins_again(self, run: Run) -> bool:
        """Start the run's turn once more if somebody asked for it, in the same view."""
        with self._lock:
            if not run.is_again or run.again is None:
                return False
            run.is_again = False
            self.runs.pop(run.handle.turn_id, None)
            run.handle = run.again()
            run.model = self.presenter(run.kit).turn(run.handle.turn_id)
            self.runs[run.handle.turn_id] = run
        run.shown.show_again(run.model)
        return True

    def wait_blocking(self, run: Run) -> TurnResult:
        """Wait for a run on this thread."""
        try:
            while True:
                try:
                    result = run.handle.result()
                except KitError:
                    if not self._begins_again(run):
                        raise
                else:
                    if not self._begins_again(run):
                        return result
        finally:
            self.finish(run)

    def finish(self, run: Run) -> None:
        """Leave the final bundle in the cell; on the user's thread, in the cell's context."""
        if run.finished:
            return
        run.finished = True
        self._say_how_it_ended(run)
        self.runs.pop(run.handle.turn_id, None)
        if run.below and not run.background:
            self.ip.set_next_input("\n\n".join(run.below), replace=False)  # travels with the cell's reply
        run.model.raised = run.raises
        metadata = self.metadata(run)
        view = cell_view(run)
        run.shown.finish(run.model, metadata)
        if view is not None and self.lab is not None:
            cell = (run.parent.get("metadata") or {}).get("cellId")
            self.settled.keep(view, run.model, metadata, cell, run.count)
            self.lab.tell_settled(view)

    @staticmethod
    def _say_how_it_ended(run: Run) -> None:
        """What no event of the turn has told: that it was refused, and what was said to it and not sent."""
        if not run.model.ended and run.handle.future.done():
            error = run.handle.future.exception()
            told = error.message if isinstance(error, KitError) else str(error or "it did not begin")
            run.model.never_began(getattr(error, "code", "error"), told)
        for text in (Counter(run.kit.queue.returned) - Counter(run.unsent)).elements():
            run.model.remark(f"not sent, the turn was over: {text}")

    def metadata(self, run: Run) -> dict[str, Any]:
        """What the output's metadata says of the turn; no secrets."""
        usage = run.model.facts.get("usage")
        tokens = getattr(usage, "tokens", None)
        prompt = run.text.encode("utf-8", "replace")
        names = [name for name, kit in self.kits.items() if kit is run.kit and kit is not self.ip.user_ns.get("kit")]
        return {
            "model": str(run.model.facts.get("model", run.kit.model)),
            "session": run.kit.session.id,
            "turn": run.handle.turn_id,
            "tokens": {"input": getattr(tokens, "input", None), "output": getattr(tokens, "output", None)},
            "prompt_sha256": hashlib.sha256(prompt).hexdigest(),
            **({"name": names[0]} if names else {}),  # of a session at the side: ``%%kit -s NAME``
        }

    def _finish_later(self, run: Run) -> None:
        context = contextvars.copy_context()
        loop = main_loop(self.ip)

        def done(_: Any) -> None:
            if loop is not None and not loop.is_closed():
                loop.call_soon_threadsafe(self._finish_quietly, run, context=context)
            else:
                context.run(self._finish_quietly, run)

        run.handle.future.add_done_callback(done)

    def _finish_quietly(self, run: Run) -> None:
        run.handle.future.exception()  # seen: the cell shows it
        self.finish(run)

    # -- questions

    def _on_question(self, event: ev.ApprovalAsked) -> None:
        run = self.runs.get(event.turn_id)
        if run is not None:
            with getattr(run.shown, "paused", nullcontext)():
                pass  # text that is written as it comes: the call stands there before its question
            self._put_question(run, event.call_id)

    def _put_question(self, run: Run, call_id: str) -> None:
        if run.background or not run.kit.is_attended:
            return  # the panel, or %kit_approve, or nobody
        mine = object()
        if run.asked.setdefault(call_id, mine) is not mine:  # atomic: the engine waits for no lock
            return
        state = probes(self.ip) if is_kernel(self.ip) else {}
        served = state.get("concurrent_comms") or state.get("fast_lane")
        if run.shown.can_ask and served:
            hello = run.shown.view.hello if getattr(run.shown, "view", None) is not None else None
            if hello is None or hello.is_set():
                return

            def nobody_answered() -> None:
                if not hello.is_set():
                    ask_by_stdin(run, call_id)

            timer = threading.Timer(display.HELLO_SECONDS, nobody_answered)
            timer.daemon = True
            timer.start()
            return
        # Messages of the view wait for the cell here. The chat at the side answers by the control channel.
        if self.lab is None or not self.lab.show_chat(lambda: ask_by_stdin(run, call_id)):
            ask_by_stdin(run, call_id)

    # -- said from outside; any thread

    def retry(self, run: Run) -> None:
        """Stop a cell's turn and begin it again in its place. Any thread."""
        with self._lock:
            run.is_again = True
            handle = run.handle
        handle.abort()

    def answering_kits(self) -> list[Kit]:
        """Those that answer now: of cells, of cells that are just about to show it, and of plain Python."""
        of_cells = [run.kit for run in self.running()]
        return list(dict.fromkeys([*of_cells, *(kit for kit in self._presenters if kit.is_running)]))

    # -- the end

    def close(self) -> None:
        """Stop what runs and let go of everything."""
        for run in self.running():
            run.handle.abort()
        for presenter in self._presenters.values():
            presenter.close()
        self._presenters.clear()
