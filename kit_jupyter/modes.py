"""The modes: each prepares opening messages and a label, and what is said to a running turn from any thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Literal, Never, cast

from kit_jupyter import events as ev
from kit_jupyter.errors import UsageError
from kit_jupyter.handles import Handle, Stopping
from kit_jupyter.house import FOLLOW_UP, Opening, Rewritten, TurnResult
from kit_jupyter.inbox import Receipt, Ticket
from kit_jupyter.kit_path import STEER_REQUEST
from kit_jupyter.loop import Desk, engine
from kit_jupyter.media import as_parts, checked_text
from kit_jupyter.messages import CellRef, TextPart, new_id
from kit_jupyter.permissions import (
    Approval,
)
from kit_jupyter.settings import PromptOptions, refuse_arguments
from kit_jupyter.tree import TreeVerbs

__all__ = ["ModeVerbs"]

Scope = Literal["once", "session", "always"]
_ARGUMENTS = ("options", "parts", "when_busy", "cell")


class ModeVerbs(TreeVerbs):
    """Mixed into `Kit`: prompt, steer, follow up, compact, stop."""

    async def apply_input(self, text: str, source: str = "api") -> str | None:
        """What the input hooks make of a text, before it is prompted: for front ends. ``/clear`` alone clears.

        Parameters
        ----------
        source : str
            Where it came from, for example ``cell``, ``magic``, ``panel``, ``cli``.

        Returns
        -------
        str or None
            Give it to `prompt`; what the person wrote is stored beside it. None: a hook has dealt with it,
            and nothing is to be asked.
        """
        if checked_text(text).strip() == "/clear":
            await self.clear_conversation()
            return None
        if not self.host.has_hooks("on_input"):
            return text
        changed = await self._drive(lambda: self.host.on_input(text, source))
        return changed if changed is None or changed == text else Rewritten(changed, text)

    async def prompt(
        self,
        text: str = "",
        *,
        options: PromptOptions | None = None,
        parts: Sequence[Any] = (),
        when_busy: str | None = None,
        cell: CellRef | None = None,
        schema: Any = None,
        desk: Desk | None = None,
        **wrong: Never,
    ) -> TurnResult:
        """Ask, and wait for the answer.

        Parameters
        ----------
        text : str
            Sent byte for byte.
        options : PromptOptions or None
        parts : sequence
            Pictures, files, parts; see `media.as_part`.
        when_busy : {"refuse", "queue", "steer"} or None
            What to do while a turn runs; None takes the setting.
        cell : CellRef or None
            Running the same cell again replaces its turn.
        schema : type or JSON schema
            Shorthand for ``options.schema``.

        Raises
        ------
        UsageError
            An empty prompt, text that is no Unicode, a running turn.
        KitError
            ``generation failed: …`` with the cause chained.
        """
        if wrong:
            refuse_arguments("prompt", wrong, (*_ARGUMENTS, "schema"))
        if schema is not None:
            options = replace(options or PromptOptions(), schema=schema)
        opening = self._prompt_opening(text, parts)  # here, since figures belong to the caller's thread
        how = when_busy or str(self.settings.when_busy)
        return await self._drive(lambda: self._prompting(text, opening, options, how, cell), desk)

    async def prompt_with_options(self, text: str, options: PromptOptions) -> TurnResult:
        """As `prompt`, with the options second."""
        return await self.prompt(text, options=options)

    async def steer(self, instruction: str, *, now: bool = False, desk: Desk | None = None) -> TurnResult | Receipt:
        """Give an instruction that holds from here on.

        While a turn runs: queued for its next step, a `Receipt` comes back at once; with `now` the
        running step is stopped first. While idle: one turn that follows it; no user bubble is shown.
        """
        opening = self._steer_opening(instruction)
        return await self._drive(
            lambda: self._saying(
                lambda: self.queue_steer(instruction, now=now),
                lambda: self._run_turn("steer", opening, f"[steer] {instruction}"),
            ),
            desk,
        )

    async def follow_up(self, text: str = FOLLOW_UP, *, desk: Desk | None = None) -> TurnResult | Receipt:
        """Let the model go on.

        While a turn runs: queued until it would stop, a `Receipt` comes back at once.

        Raises
        ------
        UsageError
            When there is nothing to follow up.
        """
        _going_on(text)

        def begin() -> Coroutine[Any, Any, TurnResult]:
            return self._run_turn("follow_up", self._follow_up_opening(text), "[follow-up]")

        return await self._drive(lambda: self._saying(lambda: self.queue_follow_up(text), begin), desk)

    async def compact(self, instructions: str | None = None) -> str:
        """Summarise old history now; the summary. What is said meanwhile is delivered right after.

        Raises
        ------
        UsageError
            While a turn runs, or when there is nothing to summarise.
        """
        if instructions is not None:
            checked_text(instructions, "what to keep in mind")
        return await self._drive(lambda: self._compacting(instructions))

    async def stream(
        self,
        text: str = "",
        *,
        options: PromptOptions | None = None,
        parts: Sequence[Any] = (),
        when_busy: str | None = None,
        cell: CellRef | None = None,
        **wrong: Never,
    ) -> AsyncIterator[ev.Event]:
        """Events of one prompt, as they come, to its `TurnEnd`.

        Leaving the loop early stops the turn. Errors are raised after the last event.
        """
        if wrong:
            refuse_arguments("stream", wrong, _ARGUMENTS)
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[ev.Event | None] = asyncio.Queue()
        turn_id = new_id("trn")
        opening = self._prompt_opening(text, parts)
        how = when_busy or str(self.settings.when_busy)

        def hear(event: ev.Event) -> None:
            if event.turn_id == turn_id:
                loop.call_soon_threadsafe(queue.put_nowait, event)

        subscription = self.subscribe(hear, inline=True)
        task = asyncio.ensure_future(
            self._drive(lambda: self._prompting(text, opening, options, how, cell, turn_id=turn_id))
        )
        task.add_done_callback(lambda _: loop.call_soon(queue.put_nowait, None))
        try:
            while (event := await queue.get()) is not None:
                yield event
            await task
        finally:
            subscription()
            if not task.done():
                task.cancel()  # which stops the turn, and waits until it has closed
                await asyncio.wait([task])

    # ------------------------------------------------------------ from any thread

    def start(
        self,
        text: str = "",
        *,
        mode: str = "prompt",
        options: PromptOptions | None = None,
        parts: Sequence[Any] = (),
        cell: CellRef | None = None,
        desk: Desk | None = None,
        when_busy: str = "refuse",
        **wrong: Never,
    ) -> Handle:
        """Begin a turn and do not wait. Any thread.

        Parameters
        ----------
        mode : {"prompt", "steer", "follow_up"}
        when_busy : {"refuse", "queue", "steer"}
            While a turn runs: fail, wait for its end, or (a prompt) say it to that turn.
        desk : Desk or None
            Where tools that need the user's thread are served; None takes the Kit's own.

        Raises
        ------
        UsageError
            As `prompt`, `steer` and `follow_up`; a running turn shows in the handle's future.
        """
        if wrong:
            refuse_arguments("start", wrong, (*_ARGUMENTS, "mode"))
        turn_id = new_id("trn")
        desk = desk or self._desk
        coro: Coroutine[Any, Any, TurnResult]
        if mode == "prompt":
            opening = self._prompt_opening(text, parts)
            coro = self._prompting(text, opening, options, when_busy, cell, turn_id=turn_id)
        elif mode == "steer":
            opening = self._steer_opening(text)
            coro = self._in_line("steer", opening, f"[steer] {text}", when_busy, turn_id=turn_id, cell=cell)
        elif mode == "follow_up":
            opening = self._follow_up_opening(text or FOLLOW_UP)
            coro = self._in_line("follow_up", opening, "[follow-up]", when_busy, turn_id=turn_id, cell=cell)
        else:
            raise UsageError(f"mode must be prompt, steer or follow_up, got {mode!r}")
        return Handle(turn_id, engine.start(coro, desk), desk, self._stop)

    def queue_steer(self, instruction: str, *, now: bool = False, parts: Sequence[Any] = ()) -> Receipt:
        """Say something to the running turn; it comes back ``returned`` when none runs. Any thread."""
        attached = as_parts(parts)
        text = checked_text(instruction, "the instruction") if attached else _instruction(instruction)
        return self._offer(Ticket("steer", text, attached, now=now))

    def queue_follow_up(self, text: str = FOLLOW_UP, *, parts: Sequence[Any] = ()) -> Receipt:
        """Let the running turn go on with this when it would stop. Any thread."""
        attached = as_parts(parts)
        text = checked_text(text, "the text of a follow-up") if attached else _going_on(text)
        return self._offer(Ticket("follow_up", text, attached))

    def _offer(self, ticket: Ticket) -> Receipt:
        if not self._inbox.offer(ticket):
            self._inbox.refuse(ticket)
        elif ticket.now:
            engine.call(self._cut_step, ticket)
        return ticket.receipt

    def take_back(self, receipt: Receipt) -> None:
        """Strike what came back unsent from the list of the unsent: it is said in another way. Any thread."""
        self._inbox.forget_receipt(receipt)

    def _cut_step(self, ticket: Ticket) -> None:
        if self._turn is not None:
            self._turn.cut_step(ticket)

    def abort(self) -> Stopping:
        """Stop what runs; partial text is kept, unsent steers come back. Any thread.

        A prompt that waits for the running turn (``when_busy="queue"``) is turned away: its caller gets
        a `UsageError`.

        Returns
        -------
        Stopping
            Await it, or call its ``wait()``, to know that the turn has ended.
        """
        return self._stop(None)

    def clear_queue(self) -> list[str]:
        """Take back what waits, and what came back unsent; the texts. Any thread."""
        return self._inbox.clear()

    def approve(self, call_id: str, *, arguments: Any = None, scope: str = "once", by: str = "") -> None:
        """Say yes to a question. Any thread.

        Parameters
        ----------
        arguments : dict or None
            Edited arguments.
        scope : {"once", "session", "always"}

        Raises
        ------
        UsageError
            If no such question waits.
        """
        if scope not in ("once", "session", "always"):
            raise UsageError(f"scope must be once, session or always, got {scope!r}")
        yes = Approval(allowed=True, arguments=arguments, scope=cast(Scope, scope), by=by)
        self._front.pending.answer(call_id, yes)

    def deny(self, call_id: str, reason: str = "", *, by: str = "") -> None:
        """Say no to a question; the reason reaches the model. Any thread.

        Raises
        ------
        UsageError
            If no such question waits.
        """
        self._front.pending.answer(call_id, Approval(allowed=False, reason=reason, by=by))

    # ------------------------------------------------------------ how they begin

    async def _prompting(
        self,
        text: str,
        opening: tuple[Opening, ...],
        options: PromptOptions | None,
        when_busy: str,
        cell: CellRef | None,
        *,
        turn_id: str | None = None,
    ) -> TurnResult:
        while _way_of_waiting(when_busy) == "steer" and self._claims.taken:
            busy = self._claims.busy
            ticket = Ticket("steer", str(text), opening[0].parts[1 if text else 0 :])
            receipt = self._offer(ticket)
            if receipt.state != "returned":
                self._claims.must_not_wait()
                if await receipt == "committed":
                    if busy is None or busy.turn is None:  # said to a compaction: the turn after it took it
                        busy = self._claims.busy or self._claims.last
                    result = await asyncio.shield(asyncio.wrap_future(busy.done)) if busy is not None else None
                    if result is not None:
                        return result
                raise UsageError("the turn it was said to was stopped before it was delivered; send it again")
            self._inbox.forget(ticket)  # it becomes a prompt of its own
            await self._claims.until_free()
        place = await self._claims.stand_in_line() if when_busy == "queue" and self._claims.taken else None
        return await self._run_turn("prompt", opening, text, options=options, cell=cell, turn_id=turn_id, place=place)

    async def _in_line(
        self,
        mode: str,
        opening: tuple[Opening, ...],
        label: str,
        when_busy: str,
        *,
        turn_id: str | None = None,
        cell: CellRef | None = None,
    ) -> TurnResult:
        waits = _way_of_waiting(when_busy) == "queue" and self._claims.taken
        place = await self._claims.stand_in_line() if waits else None
        return await self._run_turn(mode, opening, label, turn_id=turn_id, cell=cell, place=place)

    async def _saying(
        self, offer: Callable[[], Receipt], begin: Callable[[], Coroutine[Any, Any, TurnResult]]
    ) -> TurnResult | Receipt:
        """To the running turn, if it takes it; else in a turn of its own. Never both, never neither."""
        while self._claims.taken:
            receipt = offer()
            if receipt.state != "returned":
                return receipt
            self._inbox.forget_receipt(receipt)
            await self._claims.until_free()
        return await begin()

    def _prompt_opening(self, text: str, parts: Sequence[Any]) -> tuple[Opening, ...]:
        attached = as_parts(parts)
        original = text.original if isinstance(text, Rewritten) else None
        text = checked_text(text)
        if not text.strip() and not any(getattr(part, "text", "…").strip() for part in attached):
            raise UsageError("the prompt is empty; write something to ask")
        text_parts = (TextPart(text),) if text else ()
        return (Opening(role="user", parts=(*text_parts, *attached), original=original),)

    @staticmethod
    def _steer_opening(instruction: str) -> tuple[Opening, ...]:
        return (
            Opening(role="system", parts=(TextPart(_instruction(instruction)),), source="steer", visible=False),
            Opening(role="user", parts=(TextPart(STEER_REQUEST),), source="steer", visible=False),
        )

    def _follow_up_opening(self, text: str) -> tuple[Opening, ...]:
        if not self.session.messages():
            raise UsageError("cannot follow up: no previous messages; ask something first")
        parts = (TextPart(_going_on(text)),)
        return (Opening(role="user", parts=parts, source="follow-up", visible=text != FOLLOW_UP),)


def _instruction(text: str) -> str:
    if not checked_text(text, "the instruction").strip():
        raise UsageError("the instruction is empty; say what should change")
    return text


def _going_on(text: str) -> str:
    if not checked_text(text, "the text of a follow-up").strip():
        raise UsageError("the follow-up is empty; leave the text out to let the model go on")
    return text


def _way_of_waiting(when_busy: str) -> str:
    if when_busy not in ("refuse", "queue", "steer"):
        raise UsageError(f"when_busy must be refuse, queue or steer, got {when_busy!r}")
    return when_busy
