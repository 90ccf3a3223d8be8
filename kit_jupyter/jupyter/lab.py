"""The kernel's side of the Lab extension: pages, what they ask, and what is asked of them.

Theory of operation
-------------------
A *page* is one browser tab that shows this kernel's notebook. Up, from page to kernel, everything
comes as a ``kit_request`` on the control channel, because that is answered while user code holds
the main thread, and by ipykernel 6 too. Down it goes over a comm that the kernel opens for each
page that says hello; comm messages may be sent from any thread. A page that connects finds kit by its
`Sign`; one that was there before is told to say hello by an announcement, a comm with no page's name.
That goes only where a page may listen: others would log that they know no such comm.

A call of a cell tool goes to all pages; the one where the person was last claims it at once, the
others after a moment, and only the first claim is granted: two browsers do it once. Pages that let
a call lie are forgotten; one that lives says hello again when its comm closes.

Requests are taken on the control thread, which owns nothing: each is a note in a dict, or is handed
to the engine.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kit_jupyter.errors import KitError, ToolError
from kit_jupyter.jupyter.keymap import Keymap
from kit_jupyter.jupyter.presence import Presence
from kit_jupyter.jupyter.settled import live_views
from kit_jupyter.jupyter.shell import Parent, current_parent, is_kernel, main_loop
from kit_jupyter.jupyter.sign import LAB_TARGET
from kit_jupyter.loop import Desk, engine
from kit_jupyter.messages import new_id
from kit_jupyter.runners import is_runner

if TYPE_CHECKING:
    from kit_jupyter.jupyter.notebook import Notebook
    from kit_jupyter.jupyter.record import RanCell
    from kit_jupyter.kit import Kit

__all__ = ["KINDS", "LAB_TARGET", "OPS", "PANEL_TARGET", "Lab", "NoFrontEnd", "may_be_page"]

PANEL_TARGET = "kit.panel"

#: Operations a page may ask for; `labextension/src/protocol.ts` has the same list.
OPS = (
    "hello", "bye", "stop", "steer", "approve",
    "panel", "panel-message", "panel-close",
    "focus", "claim", "done", "key", "complete", "review", "settled",
)  # fmt: skip
#: Kinds of messages to a page.
KINDS = ("call", "keymap", "completion", "command", "settled")

CLAIM_SECONDS = 5.0
SHOW_SECONDS = 15.0  # a page that has just begun to draw a turn may be slow; nobody else can be asked meanwhile
COMPLETION_CHARACTERS = 2000
COMPLETION_SYSTEM = (
    "You complete Python code in a notebook. You get the code before the cursor and the code after it. "
    "Answer with the text to insert at the cursor and nothing else: no explanation, no code fence. "
    "Answer with nothing when there is nothing to add."
)

_HERE = re.compile(
    r"\b(?:this|current|selected|active)\s+(?:cell|code|output|error|plot|figure|selection|line|function)\b"
    r"|\bselection\b|\babove cell\b",
    re.IGNORECASE,
)


class NoFrontEnd(ToolError):
    """No page of the extension shows this notebook, or none took the call."""


def may_be_page(parent: Parent) -> bool:
    """True if a page of Lab or Notebook may have sent that cell.

    A runner of files (`is_runner`) tells nothing of the cell; VS Code tells a URI, which is no cell id of a notebook.

    Examples
    --------
    >>> cell = {"header": {"msg_type": "execute_request"}, "content": {"allow_stdin": True}}
    >>> may_be_page({**cell, "metadata": {"cellId": "c0ffee"}})
    True
    >>> may_be_page({**cell, "metadata": {"cellId": "vscode-notebook-cell:/a.ipynb#W0"}})
    False
    """
    if (parent.get("header") or {}).get("msg_type") != "execute_request" or is_runner(parent):
        return False
    return ":" not in str((parent.get("metadata") or {}).get("cellId", ""))


@dataclass(slots=True)
class Page:
    """One browser tab."""

    client: str
    path: str = ""
    comm: Any = None
    focus: dict[str, Any] = field(default_factory=dict)
    panel: Any = None


@dataclass(slots=True)
class _Call:
    claimed: asyncio.Event
    result: asyncio.Future[dict[str, Any]]
    by: str = ""


class Lab:
    """What one kernel has of the Lab extension.

    Parameters
    ----------
    notebook : Notebook
    """

    def __init__(self, notebook: Notebook) -> None:
        self.nb = notebook
        self.pages: dict[str, Page] = {}  # the one where the person was last stands last
        self.keymap = Keymap()
        self.reviews: list[dict[str, str]] = []
        self.parent = current_parent(notebook.ip)
        self.desk = Desk(main_loop(notebook.ip))
        self._guests: list[Presence] = []
        self._calls: dict[str, _Call] = {}
        self._completions: dict[str, Any] = {}
        self._announcement: Any = None
        self._panel_outlets: dict[str, Any] = {}
        self._lock = threading.RLock()
        self.keymap.subscribe(lambda: self._send_all(self._keymap_message()))

    # -- life

    def announce(self, loaded_by: Parent) -> None:
        """Tell pages that kit is here now, where there may be one; they say hello. User's thread.

        Parameters
        ----------
        loaded_by : message
            What loaded the extension; empty where the kernel's configuration did. What runs now counts, too.
        """
        is_served = is_kernel(self.nb.ip) and hasattr(self.nb.ip.kernel, "comm_manager")
        if is_served and (may_be_page(loaded_by) or may_be_page(self.parent)):
            self._announcement = _open_comm(LAB_TARGET, {"client": ""})

    def close(self) -> None:
        """Let go of all pages, and of the Kits."""
        for guest in self._guests:
            guest.leave()
        with self._lock:
            comms = [page.comm for page in self.pages.values()] + list(self._panel_outlets.values())
            self.pages.clear()
            self._panel_outlets.clear()
        for comm in [*comms, self._announcement]:
            _close_comm(comm)

    @property
    def is_attached(self) -> bool:
        """True while a page shows this notebook."""
        return bool(self.pages)

    @property
    def focus(self) -> dict[str, Any]:
        """Where the person is, as the page said that had the focus last; empty when none did."""
        with self._lock:
            return next((page.focus for page in reversed(self.pages.values()) if page.focus), {})

    # -- what pages ask; control thread

    def on_request(self, content: dict[str, Any]) -> dict[str, Any] | None:
        """Answer a request, or None when it is not for us. Hands over, never blocks."""
        client = str(content.get("client") or "")
        match content.get("op"):
            case "hello":
                if client:
                    self._welcome(client, str(content.get("path") or ""))
                return None  # the rest of the answer is the notebook's
            case "bye":
                self._forget(client)
                return {}
            case "focus":
                with self._lock:
                    page = self.pages.pop(client, None)
                    if page is not None:
                        page.focus = dict(content.get("focus") or {})
                        self.pages[client] = page
                return {}
            case "claim":
                return {"granted": self._claim(str(content.get("id")), client)}
            case "done":
                self._done(str(content.get("id")), content)
                return {}
            case "panel":
                if content.get("do") == "new":
                    engine.start(self._new_conversation())
                else:
                    engine.start(self._open_panel(client))
                return {}
            case "panel-message":
                return self._panel_message(content)
            case "panel-close":
                _close_comm(self._panel_outlets.pop(str(content.get("comm")), None))
                return {}
            case "key":
                return self._key(content)
            case "complete":
                return self._start_completion(client, content)
            case "settled":
                views = _listed(content, "views")
                return {
                    "outputs": self.nb.settled.outputs(views),
                    "counts": self.nb.settled.counts(views),
                    "running": live_views(self.nb.running()),
                    "ended": self.nb.settled.of_cells(_listed(content, "empty")),
                }
            case "review":
                note = {name: str(content.get(name) or "") for name in ("cell", "change", "word")}
                with self._lock:
                    self.reviews.append(note)
                return {}
        return None

    def _welcome(self, client: str, path: str) -> None:
        with self._lock:
            before = self.pages.pop(client, None)
            page = self.pages[client] = Page(client, path, focus=before.focus if before else {})
        if before is not None:
            _close_comm(before.comm)

        def opened() -> None:
            comm = _open_comm(LAB_TARGET, {"client": client})
            if self.pages.get(client) is page:
                page.comm = comm
                _send(comm, self._keymap_message())
            for guest in self._guests:
                guest.equip()

        engine.call(opened)

    def _forget(self, client: str) -> None:
        with self._lock:
            page = self.pages.pop(client, None)
        if page is not None:
            engine.call(_close_comm, page.comm)

    def _send_all(self, message: dict[str, Any]) -> None:
        for page in list(self.pages.values()):
            _send(page.comm, message)

    # -- calls of cell tools

    async def call(
        self,
        tool: str,
        arguments: dict[str, Any],
        *,
        timeout_seconds: float | None = 60.0,
        claim_seconds: float | None = None,
    ) -> Any:
        """Let a page do something to the notebook; on the engine.

        Raises
        ------
        NoFrontEnd
            If no page is there, or none takes the call.
        ToolError
            If the page says that it cannot be done, and why.
        """
        with self._lock:
            clients = list(self.pages)
        if not clients:
            raise NoFrontEnd("no JupyterLab or Notebook page of kit shows this notebook")
        call = _Call(asyncio.Event(), asyncio.get_running_loop().create_future())
        call_id = new_id("call")
        self._calls[call_id] = call
        try:
            self._send_all({"kind": "call", "id": call_id, "tool": tool, "arguments": arguments, "first": clients[-1]})
            try:
                await asyncio.wait_for(call.claimed.wait(), claim_seconds or CLAIM_SECONDS)
            except TimeoutError:
                for client in clients:
                    self._forget(client)
                raise NoFrontEnd("the page that shows this notebook does not answer; it may be closed") from None
            answer = await asyncio.wait_for(call.result, timeout_seconds)
        except TimeoutError:
            raise ToolError(f"the page did not finish {tool} within {timeout_seconds:g} seconds") from None
        finally:
            del self._calls[call_id]
        if answer.get("ok") is not True:
            raise ToolError(str(answer.get("error") or "the page could not do it"))
        return answer.get("value")

    def _claim(self, call_id: str, client: str) -> bool:
        with self._lock:
            call = self._calls.get(call_id)
            if call is None or call.by:
                return False
            call.by = client or "?"
        engine.call(call.claimed.set)
        return True

    def _done(self, call_id: str, content: dict[str, Any]) -> None:
        call = self._calls.get(call_id)
        if call is None:
            return

        def settle() -> None:
            if not call.result.done():
                call.result.set_result(content)

        engine.call(settle)

    @property
    def must_queue(self) -> bool:
        """True while a cell waits for its turn: another cell cannot run before it has ended."""
        return any(not run.background for run in self.nb.running())

    # -- the side panel: the one conversation view, sent to more places

    async def _open_panel(self, client: str) -> None:
        if client not in self.pages:
            return
        view = self._panel_view()
        comm = _open_comm(PANEL_TARGET, {"client": client})
        with self._lock:
            self._panel_outlets[comm.comm_id] = comm
        view.hello.set()

    def _panel_view(self) -> Any:
        from kit_jupyter.jupyter.panel import Panel

        with self._lock:
            if self.nb.panel is None:
                self.nb.panel = Panel(self.nb)
            view = self.nb.panel.view
            if not getattr(view, "_kit_outlets", False):
                own = view.send

                def send(content: Any, buffers: Any = None) -> None:
                    own(content, buffers)
                    for comm in list(self._panel_outlets.values()):
                        _send(comm, {"method": "custom", "content": content})

                view.send = send
                view._kit_outlets = True
        return view

    def _panel_message(self, content: dict[str, Any]) -> dict[str, Any]:
        message = content.get("content")
        if content.get("comm") not in self._panel_outlets or not isinstance(message, dict):
            return {"status": "error", "message": "this panel is not open; open it again"}
        view = self._panel_view()
        engine.call(view._heard, None, message, None)
        return {}

    def show_chat(self, otherwise: Callable[[], object]) -> bool:
        """Let a page show the chat, for a question that waits there; `otherwise` if none does. Any thread.

        Returns
        -------
        bool
            False when no page is known at all; then `otherwise` is not called.
        """
        if not self.is_attached:
            return False

        async def asking() -> None:
            try:
                await self.call("show_chat", {}, timeout_seconds=SHOW_SECONDS, claim_seconds=SHOW_SECONDS)
            except ToolError:
                otherwise()

        engine.start(asking())
        return True

    async def _new_conversation(self) -> None:
        kit = self.nb.kit()
        try:
            await kit.clear_conversation()
        except KitError as exc:
            self.notify(exc.message)

    def notify(self, text: str, *, kind: str = "warning") -> None:
        """Say something at the edge of the page. Any thread."""
        args = {"message": f"kit: {text}", "type": kind, "options": {"autoClose": 6000}}
        self._send_all({"kind": "command", "command": "apputils:notify", "args": args})

    def tell_settled(self, view: str) -> None:
        """A live view has given place to what stays. A page that was opened while it ran is told so only here."""
        self._send_all({"kind": "settled", "view": view})

    def command(self, name: str, **args: Any) -> None:
        """Ask the pages to run one of their commands, by id. Any thread."""
        self._send_all({"kind": "command", "command": name, "args": args})

    # -- keys

    def adopt(self, kit: Kit) -> None:
        """Let ``kit.keymap(...)`` map keys here, and a Kit that the person made have what one of ours has."""
        kit.keymap = self.keymap.add  # type: ignore[attr-defined]
        if not any(isinstance(guest, Presence) and guest.lab is self for guest in kit.host.extensions):
            kit.host.admit(self.guest())

    def _keymap_message(self) -> dict[str, Any]:
        bindings = [binding.to_json() for binding in self.keymap.bindings]
        return {"kind": "keymap", "bindings": bindings, "overrides": self._overrides()}

    def _overrides(self) -> dict[str, Any]:
        """``c.KitNotebook.keymap``: command id to keys, a list of them, or None to remove."""
        return dict(self.nb.config.keymap)

    def _key(self, content: dict[str, Any]) -> dict[str, Any]:
        binding = self.keymap.find(str(content.get("id")))
        if binding is None or binding.function is None:
            return {"status": "error", "message": "this mapping is gone; the kernel was restarted or it was removed"}
        names = content.get("context")
        context = {str(name): True for name in names} if isinstance(names, list) else {}
        count = content.get("count")
        engine.start(self._run_key(binding, context, count if isinstance(count, int) else None))
        return {}

    async def _run_key(self, binding: Any, context: dict[str, bool], count: int | None) -> None:
        from kit_jupyter.jupyter.shell import bind_parent

        def on_user_thread() -> Any:
            bind_parent(self.nb.ip, self.parent)
            return binding.call({**context, "focus": self.focus, "count": count, "kit": self.nb.kit()})

        try:
            await self.desk.run(on_user_thread)
        except Exception as exc:  # the person's own code: said where they pressed the key
            self.notify(f"{binding.text} ({binding.description}): {type(exc).__name__}: {exc}", kind="error")

    # -- inline completion

    def _start_completion(self, client: str, content: dict[str, Any]) -> dict[str, Any]:
        page = self.pages.get(client)
        if page is None:
            return {"status": "error", "message": "say hello first"}
        before = self._completions.pop(client, None)
        if before is not None:
            before.cancel()
        prefix, suffix = str(content.get("prefix") or ""), str(content.get("suffix") or "")
        running = engine.start(self._complete(page, str(content.get("id")), prefix, suffix))
        self._completions[client] = running
        return {}

    async def _complete(self, page: Page, request_id: str, prefix: str, suffix: str) -> None:
        message = {"kind": "completion", "id": request_id, "text": ""}
        try:
            message["text"] = await self._completion(prefix, suffix)
        except KitError as exc:
            message["error"] = exc.message
        _send(page.comm, message)

    async def _completion(self, prefix: str, suffix: str) -> str:
        kit = self.nb.kit().sibling(system=COMPLETION_SYSTEM, max_steps=1)
        try:
            result = await kit.prompt(f"<before>\n{prefix}\n</before>\n<after>\n{suffix}\n</after>")
        finally:
            await kit.aclose()
        return _insertion(str(result), prefix)[:COMPLETION_CHARACTERS]

    # -- where the person is

    def guest(self) -> Presence:
        """The guest that tells a Kit of this notebook where the person is, and gives it the cell tools."""
        made = Presence(self)
        self._guests.append(made)
        return made

    def here(self, text: str) -> tuple[str, str] | None:
        """What "this cell" means in a prompt: a cell's id, and words about it; None when nothing is meant."""
        if not _HERE.search(text):
            return None
        focus = self.focus
        source = str(focus.get("source") or "")
        if focus.get("cell") and source.strip() and not source.lstrip().startswith(("%%kit", "%kit")):
            words = [f"The person is in cell {focus['cell']} ({focus.get('type')}):", source]
            if focus.get("selection"):
                words += ["Selected in it:", str(focus["selection"])]
            ran = self.nb.record.find(str(focus["cell"]))
            if ran is not None:
                words += _outcome(ran)
            return str(focus["cell"]), "\n".join(words)
        ran = next((cell for cell in reversed(list(self.nb.record)) if not cell.is_prompt), None)
        if ran is None:
            return None
        return ran.cell_id, "\n".join(["The cell run last:", ran.source, *_outcome(ran)])

    def take_reviews(self) -> str:
        """What became of changes to cells since this was last asked; empty when nothing did."""
        with self._lock:
            notes, self.reviews = self.reviews, []
        lines = [f"The person {note['word']} the {note['change']} of cell {note['cell']}." for note in notes]
        return "\n".join(lines)


def _outcome(cell: RanCell) -> list[str]:
    if cell.error is not None:
        return [f"It failed: {type(cell.error).__name__}: {cell.error}"]
    text = cell.output_text.strip()
    return ["Its output:", text[:4000]] if text else []


def _insertion(answer: str, prefix: str) -> str:
    """What to insert of a model's answer: without a fence, and without what stands before the cursor already."""
    fenced = re.fullmatch(r"\s*```[\w+-]*\n(.*?)\n?```\s*", answer, re.DOTALL)
    text = fenced[1] if fenced else answer
    line = prefix.rsplit("\n", 1)[-1]
    if line.strip() and text.lstrip().startswith(line.strip()):
        text = text.lstrip()[len(line.strip()) :]
        if line.endswith((" ", "\t")):
            text = text.lstrip(" \t")
    return text.rstrip()


def _open_comm(target: str, content: dict[str, Any]) -> Any:
    from comm import create_comm

    return create_comm(target_name=target, data=content)


def _send(comm: Any, message: dict[str, Any]) -> None:
    if comm is None:
        return
    try:
        comm.send(message)
    except Exception:  # the page, or the kernel, is gone: nobody is left to tell
        pass


def _close_comm(comm: Any) -> None:
    try:
        if comm is not None:
            comm.close()
    except Exception:  # as above
        pass


def _listed(content: dict[str, Any], name: str) -> list[Any]:
    value = content.get(name)
    return value if isinstance(value, list) else []
