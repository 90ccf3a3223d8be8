"""What a browser, the control channel or a magic in another cell may say to a shell's turns.

Each is one safe call of a Kit, may come on any thread, and hands over without waiting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kit_jupyter.errors import KitError, UsageError
from kit_jupyter.jupyter import display

if TYPE_CHECKING:
    from kit_jupyter.jupyter.notebook import Notebook, Run
    from kit_jupyter.kit import Kit

__all__ = ["Verbs"]


class Verbs:
    """The verbs of one shell."""

    def __init__(self, notebook: Notebook) -> None:
        self.nb = notebook

    def on_message(self, view: Any, message: dict[str, Any]) -> None:
        """Take what a browser says; never blocks, never raises."""
        try:
            self._verb(view, message)
        except KitError as exc:
            view.tell(exc.message)

    def _verb(self, view: Any, message: dict[str, Any]) -> None:
        run = self._run_of(view, message.get("turn"))
        kit = run.kit if run is not None else getattr(view, "kit", None) or self.nb.kit()
        match message.get("kind"):
            case "abort":
                if message.get("clear"):
                    kit.clear_queue()
                self.stop(kit)
            case "steer":
                self._steer_from(view, kit, run, str(message.get("text", "")), now=bool(message.get("now")))
            case "follow_up":
                text = str(message.get("text", ""))
                receipt = kit.queue_follow_up(text or "Continue.") if kit.is_running else None
                if receipt is None or receipt.state == "returned":
                    if receipt is not None:
                        kit.take_back(receipt)
                    self._panel_turn(view, kit, text, mode="follow_up" if not text else "prompt")
            case "submit":
                text = str(message.get("text", ""))
                self._panel_turn(view, kit, text)
            case "approve":
                self.answer(
                    kit,
                    str(message.get("call", "")),
                    allow=message.get("allow") is True,
                    reason=str(message.get("reason") or ""),
                    scope="always" if message.get("scope") == "always" else "once",
                    arguments=message.get("arguments"),
                    by="widget",
                )
            case "fork" if message.get("do") == "retry" and run is not None and run.again is not None:
                self.nb.retry(run)
            case "ask" if message.get("what") == "insert" and run is not None and not run.background:
                run.below.append(str(message.get("text", "")))
            case "fork" | "ask" if self.nb.panel is not None:
                self.nb.panel.verb(view, message)

    def _run_of(self, view: Any, key: Any) -> Run | None:
        for run in list(self.nb.runs.values()):
            if run.model.key == key or getattr(run.shown, "view", None) is view:
                return run
        return None

    def _steer_from(self, view: Any, kit: Kit, run: Run | None, text: str, *, now: bool) -> None:
        """A steer typed into a view; said too late, it is not lost."""
        receipt = self.steer(kit, text, now=now)
        if receipt.state != "returned":
            return
        if getattr(view, "panel", False):  # there a person goes on talking: it becomes the next prompt
            kit.take_back(receipt)
            self._panel_turn(view, kit, text)
        elif run is None or run.finished:  # the cell's view is gone: its cell says so
            said = f"not sent, the turn was over: {text}"
            view.in_cell(lambda: display.publish({"text/plain": said}, {}))

    def _panel_turn(self, view: Any, kit: Kit, text: str, mode: str = "prompt") -> None:
        if self.nb.panel is None:
            raise UsageError("no turn is running here; write a new %%kit cell")
        self.nb.panel.submit(view, kit, text, mode)

    def stop(self, kit: Kit) -> None:
        """Stop the running turn of `kit`, user code that it runs included. Any thread."""
        kit.abort()  # the desk interrupts the user's code, if any runs, as part of it

    def steer(self, kit: Kit, text: str, *, now: bool = False) -> Any:
        """Say something to the running turn. Any thread.

        Raises
        ------
        UsageError
            If there is nothing to say, or no turn to say it to.
        """
        if not text.strip():
            raise UsageError("the steer is empty; say what should change")
        return kit.queue_steer(text, now=now)

    def answer(
        self,
        kit: Kit,
        call: str,
        *,
        allow: bool,
        reason: str = "",
        scope: str = "once",
        arguments: Any = None,
        by: str = "",
    ) -> bool:
        """Answer a question; False when it waits no more. Any thread."""
        try:
            if allow:
                kit.approve(call, arguments=arguments, scope="always" if scope == "always" else "once", by=by)
            else:
                kit.deny(call, reason, by=by)
        except UsageError:
            return False
        return True

    def on_request(self, content: dict[str, Any]) -> dict[str, Any]:
        """Answer a request of the control channel; on its thread, hands over only.

        Operations: ``hello``, ``stop`` (with ``clear``), ``steer`` (``text``, ``now``), ``approve``,
        and those of the Lab extension (`lab.OPS`).
        """
        answer = self.nb.lab.on_request(content) if self.nb.lab is not None else None
        if answer is not None:
            return dict(answer)
        more = self.nb.requests.get(str(content.get("op")))
        if more is not None:
            return more(content)
        runs = self.nb.running()
        match content.get("op"):
            case "hello":
                return {
                    "version": 1,
                    "running": bool(runs),
                    "turns": [run.model.key for run in runs],
                    "panel": getattr(getattr(self.nb.panel, "view", None), "model_id", None),
                }
            case "stop":
                kits = self.nb.answering_kits()
                for kit in kits:
                    if content.get("clear"):
                        kit.clear_queue()
                    self.stop(kit)
                return {"stopped": len(kits)}
            case "steer":
                if not runs:
                    return {"status": "error", "message": "no turn is running"}
                receipt = self.steer(runs[-1].kit, str(content.get("text", "")), now=bool(content.get("now")))
                return {"state": receipt.state}
            case "approve":
                done = any(
                    self.answer(
                        run.kit,
                        str(content.get("call", "")),
                        allow=content.get("allow") is True,
                        reason=str(content.get("reason") or ""),
                        by="control",
                    )
                    for run in runs
                )
                return {"answered": done}
        return {"status": "error", "message": f"unknown op {content.get('op')!r}; known: hello, stop, steer, approve"}
