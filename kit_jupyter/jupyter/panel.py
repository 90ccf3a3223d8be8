"""The chat panel: one view of the whole conversation, with a composer.

Theory of operation
-------------------
There is one panel per shell; opening it again shows the same model in another place, so a cell, a
view of its own and the Lab extension's side panel show one conversation. Turns that the panel
starts run detached: their tools are served by the kernel's own loop between cells, or by a cell
that waits just then. What the browser asks comes on any thread; verbs that change the session are
handed to the engine.
"""

from __future__ import annotations

import asyncio
import fnmatch
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kit_jupyter.errors import KitError, UsageError
from kit_jupyter.house import Rewritten
from kit_jupyter.jupyter import display
from kit_jupyter.jupyter.config import admin_locks
from kit_jupyter.jupyter.context import Attachments, Marks
from kit_jupyter.jupyter.history import note_branches, turns_of
from kit_jupyter.jupyter.notebook import Notebook, Run
from kit_jupyter.jupyter.protocol import WIDGET_MIME
from kit_jupyter.jupyter.shell import bind_parent, current_parent, is_kernel, keep_frontend_routing, main_loop
from kit_jupyter.jupyter.turns import TurnModel
from kit_jupyter.loop import Desk, engine
from kit_jupyter.messages import Assistant
from kit_jupyter.shelf import registry

if TYPE_CHECKING:
    from kit_jupyter.jupyter.view import ChatView
    from kit_jupyter.kit import Kit

__all__ = ["Panel", "open_panel"]

COMM_TARGET = "kit.chat"


class _Shown:
    """A panel's turn is shown by the panel; nothing stays in a cell."""

    can_ask = True

    def __init__(self, view: Any) -> None:
        self.view = view

    def show(self, turn: TurnModel) -> None:
        """The panel has it already."""

    def show_again(self, turn: TurnModel) -> None:
        """The panel has it already."""

    def finish(self, turn: TurnModel, metadata: dict[str, Any]) -> None:
        """It stays in the panel."""


class Panel:
    """The panel of one shell.

    Parameters
    ----------
    notebook : Notebook
    """

    def __init__(self, notebook: Notebook) -> None:
        from kit_jupyter.jupyter.view import ChatView

        self.nb = notebook
        self.view: ChatView = ChatView(notebook.verbs.on_message, panel=True)
        keep_frontend_routing(self.view)
        # Detached turns have no cell: what they print goes where the panel was opened.
        self.parent = current_parent(notebook.ip)
        self.desk = Desk(main_loop(notebook.ip))
        self._listening: list[Any] = []
        self._offered: list[str] = []
        self.kit: Kit = notebook.kit()
        self.follow(self.kit)
        engine.start(self._look_for_models())

    def follow(self, kit: Kit) -> None:
        """Show this Kit's conversation from here on."""
        for stop in self._listening:
            stop()
        self.kit = kit
        presenter = self.nb.presenter(kit)
        self.view.kit = kit
        self.repaint()
        self._listening = [
            presenter.on_turn(self.view.add),
            presenter.on_bar(lambda facts: self.view.set_bar(**facts)),
            presenter.on_branch(self.repaint),
        ]
        presenter.measure()
        self.view.set_bar(
            model=kit.model or "",
            models=self._models(),
            session=self.nb.name_of(kit),
            sessions=list(self.nb.kits) or ["main"],
            running=kit.is_running,
        )

    def repaint(self) -> None:
        """Show the branch that is current: stored turns, and the one that runs."""
        presenter = self.nb.presenter(self.kit)
        turns = []
        for stored in turns_of(self.kit.session.transcript()):
            live = presenter.turns.get(stored.turn_id)
            turns.append(live if live is not None else stored)
            note_branches(turns[-1], self.kit.session)
        turns += [turn for turn in presenter.turns.values() if not turn.ended and turn not in turns]
        self.view.show_only(turns)

    def _models(self) -> list[str]:
        """What the picker offers: what an administrator allows, of what can be had, and what answered here before."""
        try:
            allowed = admin_locks().models
        except KitError:
            return []
        answered = [
            str(message.run.model)
            for message in self.kit.history
            if isinstance(message, Assistant) and message.run is not None and message.run.model.id != "default"
        ]
        names = [name for name in allowed or () if "*" not in name]
        names += [name for name in (*self._offered, *dict.fromkeys(answered)) if _is_allowed(name, allowed)]
        return list(dict.fromkeys(names))

    async def _look_for_models(self) -> None:
        """Keys may lie in a keyring, servers may answer late: looked for on a thread."""
        self._offered = await asyncio.to_thread(registry().offered)
        self.view.set_bar(models=self._models())

    def marks(self) -> Marks:
        """Marks over the user's namespace."""
        ip = self.nb.ip
        return Marks(ip.user_ns, self.nb.record, self.kit.describe, ip.user_ns_hidden)

    # -- what the browser asks; any thread

    def submit(self, view: Any, kit: Kit, text: str, mode: str = "prompt") -> None:
        """Start a detached turn. Any thread.

        Raises
        ------
        UsageError
            For an empty prompt, or a model that is locked.
        """
        if mode == "prompt" and not text.strip():
            raise UsageError("the prompt is empty; write something to ask")
        self.nb.config.check_turn(kit, None)
        # Describing a user's object runs the user's code: on the user's thread, before the turn.
        engine.start(self._begin(view, kit, text, mode), self.desk)

    async def _begin(self, view: Any, kit: Kit, text: str, mode: str) -> None:
        try:
            made = Attachments(text=text)
            if mode == "prompt":
                heard = await kit.apply_input(text, "panel")
                if heard is None:
                    return
                made = await self.desk.run(self.marks().read, heard)
                if isinstance(heard, Rewritten):
                    made = replace(made, text=Rewritten(made.text, heard.original))
            bind_parent(self.nb.ip, self.parent)
            kit.is_attended = True
            how = "steer" if mode == "prompt" else "queue"
            handle = kit.start(made.text, mode=mode, parts=made.parts, desk=self.desk, when_busy=how)
        except KitError as exc:
            view.tell(exc.message)
            return

        # Only when it has begun is it a turn of its own: a running one may take it as a steer, or it may be refused.
        def begun(model: TurnModel) -> None:
            if made.chips:
                model.touch(chips=made.chips)
            run = Run(kit, handle, model, self.desk, self.parent, _Shown(view), text=text, background=True)
            self.nb.runs[handle.turn_id] = run

        forget = self.nb.presenter(kit).expect(handle.turn_id, begun)

        def ended(future: Any) -> None:
            error = future.exception()
            run = self.nb.runs.get(handle.turn_id)
            if run is not None:
                self.nb.finish(run)
            elif forget() is not None and isinstance(error, KitError) and text not in kit.queue.returned:
                view.tell(f"not sent: {text} ({error.message})")

        handle.future.add_done_callback(ended)
        if made.warning:
            view.tell(made.warning)

    def verb(self, view: Any, message: dict[str, Any]) -> None:
        """Take a ``fork`` or an ``ask``. Any thread."""
        match message.get("kind"), message.get("what") or message.get("do"):
            case "ask", "complete":
                begin = str(message.get("text", ""))
                view.answer(completions={"text": begin, "names": self.marks().names(begin)[:20]})
            case "ask", "chip":
                engine.start(self._chip(view, str(message.get("mark", ""))), self.desk)
            case "ask", "model":
                engine.start(self._choose_model(view, str(message.get("name", ""))))
            case "ask", "session":
                name = str(message.get("name", ""))
                if name in self.nb.kits:
                    self.nb.use(self.nb.kits[name], name)
            case "fork", "retry":
                engine.start(self._retry(view, message.get("turn")))
            case "fork", ("branch" | "fork") as what:
                engine.start(self._move(view, message.get("turn"), message.get("entry"), what))

    async def _chip(self, view: Any, mark: str) -> None:
        try:
            made = await self.desk.run(self.marks().attach, mark)
        except KitError:
            return
        if made is not None:
            view.answer(chip=made.chip())

    async def _choose_model(self, view: Any, name: str) -> None:
        try:
            from kit_jupyter.settings import PromptOptions

            self.nb.config.check_turn(self.kit, PromptOptions(model=name))
            self.kit.model = name
            view.set_bar(note="")
        except KitError as exc:
            view.bar.pop("model", None)  # so that the browser hears again what is chosen
            view.set_bar(model=self.kit.model)
            view.tell(exc.message)

    def _turn(self, key: Any) -> TurnModel | None:
        return next((turn for turn in self.view.turns if turn.key == key), None)

    async def _retry(self, view: Any, key: Any) -> None:
        turn = self._turn(key)
        if turn is None or not turn.prompt:
            return
        mode = turn.mode if turn.mode in ("steer", "follow_up") else "prompt"
        text = turn.prompt.removeprefix("[steer] ") if mode == "steer" else "" if mode == "follow_up" else turn.prompt
        try:
            if not turn.ended:
                run = self.nb.runs.get(turn.turn_id)
                if run is not None and run.again is not None:
                    self.nb.retry(run)  # its cell waits for it: begun again there
                    return
                await self.kit.abort()
            first = self.kit.session.turn_entries(turn.turn_id)[0]
            await self.kit.branch(first.parent)
            self.submit(view, self.kit, text, mode)
        except (KitError, IndexError) as exc:
            view.tell(str(exc))

    async def _move(self, view: Any, key: Any, entry: Any, what: str) -> None:
        turn = self._turn(key)
        target = entry or (turn.facts.get("entry") if turn is not None else None)
        try:
            if turn is not None and not entry:
                target = self.kit.session.turn_entries(turn.turn_id)[-1].id
            if what == "fork":
                await self.kit.resume(await self.kit.fork(target))
            else:
                await self.kit.branch(target)
        except (KitError, IndexError) as exc:
            view.tell(str(exc))


def _is_allowed(name: str, patterns: tuple[str, ...] | None) -> bool:
    return patterns is None or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def open_panel(notebook: Notebook) -> Panel:
    """Open the panel, or show the open one here too; the Lab extension is told of it."""
    if notebook.panel is None:
        notebook.panel = Panel(notebook)
    panel: Panel = notebook.panel
    data = {
        WIDGET_MIME: {"version_major": 2, "version_minor": 0, "model_id": panel.view.model_id},
        "text/plain": "kit panel (needs a running kernel)",
    }
    display.publish(data, {})
    return panel


def open_for(kit: Kit) -> Panel:
    """Open the panel on this Kit's conversation; ``kit.panel()``.

    Raises
    ------
    UsageError
        Outside of IPython.
    """
    from IPython import get_ipython

    from kit_jupyter.jupyter import load

    ip = get_ipython()
    if ip is None or not is_kernel(ip):
        raise UsageError("the panel needs a notebook; in a script, subscribe to the Kit's events")
    notebook = load(ip)
    panel = open_panel(notebook)
    if panel.kit is not kit:
        panel.follow(kit)
    return panel


def serve_side_panel(notebook: Notebook) -> None:
    """Answer the Lab extension, which asks over a comm which model to show at the side."""
    manager = getattr(getattr(notebook.ip, "kernel", None), "comm_manager", None)
    if manager is None:
        return

    def opened(comm: Any, message: Any) -> None:
        if notebook.panel is None:
            notebook.panel = Panel(notebook)
        comm.send({"model_id": notebook.panel.view.model_id})

    manager.register_target(COMM_TARGET, opened)
