"""The one path of a turn, and of a compaction: every verb of a Kit ends here."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar, cast

from kit_jupyter import events as ev
from kit_jupyter.claims import Place
from kit_jupyter.errors import KitError, UsageError
from kit_jupyter.handles import Stopping
from kit_jupyter.house import FOLLOW_UP, Opening, TurnHouse, TurnResult, turns_here
from kit_jupyter.inbox import Ticket
from kit_jupyter.kit_parts import KitParts
from kit_jupyter.loop import Desk, Running, current_desk, engine
from kit_jupyter.messages import CellRef, ModelRef, RequestFacts, TextPart, User
from kit_jupyter.places import storable
from kit_jupyter.price import load_prices, price_of
from kit_jupyter.provider import Provider, RetryNotice, asking_cell, retry_listener, status_listener
from kit_jupyter.settings import THINKING, PromptOptions, Thinking, TurnOptions
from kit_jupyter.tool import Toolbox, as_tool
from kit_jupyter.turn import Turn

__all__ = ["STEER_REQUEST", "KitPath"]

T = TypeVar("T")

STEER_REQUEST = "Follow the instruction above from here on. Acknowledge it by acting on it."
_MODES = {"prompt": "generation failed", "steer": "steer failed", "follow_up": "follow-up failed"}


class KitPath(KitParts):
    """Runs on the engine what the verbs prepare."""

    async def _drive(self, make: Callable[[], Coroutine[Any, Any, T]], desk: Desk | None = None) -> T:
        """Run a coroutine on the engine while this caller serves its jobs; on the engine itself, await it."""
        if engine.is_here:
            return await make()
        desk = desk or Desk()
        result = await desk.serve(engine.start(make(), desk))
        if isinstance(result, TurnResult) and self.bus.has_threaded:
            # So that what observers print stands before what comes next; not for long.
            await asyncio.get_running_loop().run_in_executor(None, self.bus.settle, 0.2)
        return result

    def _wait(self, verb: Callable[..., Coroutine[Any, Any, T]], *args: Any, **kwargs: Any) -> T:
        if engine.is_here:
            raise UsageError(f"{verb.__name__}_sync would wait for itself here; await {verb.__name__} instead")
        desk = kwargs.pop("desk", None) or Desk()
        # On the engine `_drive` awaits directly, so this thread is the only one that serves the desk.
        running: Running[T] | None = None
        try:
            running = engine.start(verb(*args, **kwargs), desk)
            return desk.serve_blocking(running)
        except KeyboardInterrupt:
            if running is not None:
                running.cancel()  # it may have hit between the two
            raise
        finally:
            self.bus.settle(0.2)

    # ------------------------------------------------------------ turns

    async def _run_turn(
        self,
        mode: str,
        opening: tuple[Opening, ...],
        label: str,
        *,
        options: PromptOptions | None = None,
        cell: CellRef | None = None,
        turn_id: str | None = None,
        place: Place | None = None,
    ) -> TurnResult:
        """The one path of every mode; on the engine."""
        try:
            cell = _known(cell)
            frozen = self.settings.options(self._with_tools(options))
            house = replace(self._house(frozen), provider=lambda options: self._begin_turn(turn, options))
            turn = Turn(
                house, frozen, opening, mode=mode, label=str(label), failure=_MODES[mode], cell=cell, turn_id=turn_id
            )
        except BaseException:
            self._claims.give_up(place)
            raise
        with self._claims.claim("a turn is running", turn, place) as busy:
            self._inbox.open()
            token = retry_listener.set(lambda notice: self._retrying(turn, notice))
            waiter = status_listener.set(lambda status: engine.call(self._waiting_for, turn, status))
            asker = asking_cell.set(f"cell {cell.cell_id}" if cell is not None else "")
            try:
                result = await turn.run()
            except BaseException as exc:
                busy.done.set_exception(exc)
                raise
            finally:
                self._inbox.close()
                retry_listener.reset(token)
                status_listener.reset(waiter)
                asking_cell.reset(asker)
            busy.done.set_result(result)
            return result

    def check_options(self, options: PromptOptions | None) -> None:
        """Say at once what a turn with these options would be refused for, before it is begun and shown.

        Raises
        ------
        UsageError
            For tools that are not there.
        """
        self._with_tools(options)

    def options_of(self, facts: RequestFacts) -> PromptOptions:
        """Options with which a stored question is asked as it was; what is not here now is told with the next turn.

        Parameters
        ----------
        facts : RequestFacts
            ``message.request`` of a stored `User` message.

        Examples
        --------
        >>> from kit_jupyter import Kit, PromptOptions
        >>> from kit_jupyter.testing import ScriptedProvider
        >>> kit = Kit(provider=ScriptedProvider("x"), session="memory")
        >>> _ = kit.prompt_sync("q", options=PromptOptions(system_message="be brief", thinking="low"))
        >>> options = kit.options_of(kit.messages[0].request)
        >>> options.system_message, options.thinking
        ('be brief', 'low')
        """
        wanted = [name for name, is_on in (facts.tools or {}).items() if is_on]
        missing = [name for name in wanted if name not in self.tools]
        if missing:
            self._notes.append((f"it was asked with tools that are not here now: {', '.join(missing)}", "session"))
        return PromptOptions(
            system_message=facts.system or "",
            model=self._adopted_model(facts.model) or None,
            thinking=cast(Thinking, facts.variant) if facts.variant in THINKING else None,
            schema=facts.format,
            tools=tuple(name for name in wanted if name in self.tools),
        )

    def _with_tools(self, options: PromptOptions | None) -> PromptOptions:
        options = PromptOptions() if options is None else options
        if not isinstance(options, PromptOptions):
            raise UsageError(f"options must be PromptOptions, got {type(options).__name__}")
        if options.extra_tools:
            extra = tuple(as_tool(item) for item in options.extra_tools)
            Toolbox((*self.tools.values(), *extra))  # names must differ
            options = replace(options, extra_tools=extra)
        if options.tools is not None:
            for name in options.tools:
                if name not in self.tools:
                    raise UsageError(f"there is no tool {name!r}; the tools are: {', '.join(self.tools) or 'none'}")
        if options.tool_choice not in ("auto", "none", "required"):
            own = self.tools if options.tools is None else options.tools
            offered = [*own, *(tool.spec.name for tool in options.extra_tools)]
            if options.tool_choice not in offered:
                raise UsageError(
                    f"tool_choice is auto, none, required or a tool's name, got {options.tool_choice!r}; "
                    f"the tools are: {', '.join(offered) or 'none'}"
                )
        return options

    async def _begin_turn(self, turn: Turn, options: TurnOptions) -> tuple[Provider, ModelRef]:
        """What a turn does first, after it has said that it begins: who answers, what is to be known, from where on."""
        found = await self._shelf.find_soon(options)
        if not turn.stored:
            self._tell_notes(turn)
            if turn.cell is not None and options.rerun == "replace":
                self._leave_cell(turn.cell, turn)
        return found

    def _leave_cell(self, cell: CellRef, turn: Turn) -> None:
        """Move the leaf before the turn that this cell made; later turns are set aside with it."""
        turn_id = self.session.turn_of_cell(cell)
        if not turn_id:
            return
        first = self.session.turn_entries(turn_id)[0]
        before, later = self.session.leaf or "", self._later_cells(first.id, cell)
        self.session.move_leaf(first.parent)
        turn.say(ev.BranchChanged, before, first.parent or "")
        if later:
            what = "the answer of a later cell is" if later == 1 else f"the answers of {later} later cells are"
            turn.say(
                ev.Warned,
                f"{what} no longer part of the conversation, since this one was run again: "
                f"run what comes after it again, or go back with kit.branch({before[-6:]!r})",
                "session",
            )

    def _later_cells(self, entry_id: str, cell: CellRef) -> int:
        """How many other cells have turns after that entry."""
        branch = self.session.branch()
        at = next(i for i, entry in enumerate(branch) if entry.id == entry_id)
        cells = {
            (made.notebook, made.cell_id)
            for entry in branch[at:]
            if isinstance(entry.message, User) and entry.message.request is not None
            if (made := entry.message.request.cell) is not None
        }
        return len(cells - {(cell.notebook, cell.cell_id)})

    def _tell_notes(self, turn: Turn) -> None:
        notes, self._notes = self._notes, []
        warnings, self.session.warnings = self.session.warnings, []
        for message, source in [*notes, *((text, "session") for text in warnings)]:
            turn.say(ev.Warned, message, source)

    def _house(self, options: TurnOptions) -> TurnHouse:
        return TurnHouse(
            kit_id=self.id,
            session=self.session,
            bus=self.bus,
            inbox=self._inbox,
            host=self.host,
            toolbox=self.tools,
            policy=self.policy,
            approver=self._front,
            system=self._system_for,
            desk=current_desk() or self._desk,
            history=self._history,
            provider=self._shelf.find_soon,
            price=price_of,
            load_prices=load_prices,
            sent=self._remember_sent,
            compact=self._compact_in_turn,
            needs_compaction=lambda provider, ref, asked: self._compactor.is_needed(self.session, provider, ref, asked),
            state=self._state,
            mask=_mask(),
        )

    def _waiting_for(self, turn: Turn, status: str) -> None:
        if self._turn is turn:  # after its end nothing is said of a turn
            turn.say(ev.Domain, "model.status", {"text": status})

    @staticmethod
    def _retrying(turn: Turn, notice: RetryNotice) -> None:
        turn.say(ev.Retry, notice.attempt, notice.max_attempts, notice.delay_seconds, str(notice.error))

    def _stop(self, turn_id: str | None) -> Stopping:
        told: concurrent.futures.Future[None] = concurrent.futures.Future()
        told.set_running_or_notify_cancel()
        engine.call(self._claims.stop, turn_id, told)
        return Stopping(told)

    # ------------------------------------------------------------ compaction

    async def _compact_in_turn(self, reason: str, *, turn: Turn) -> bool:
        session = turn.house.session
        summary = await self._compactor.in_turn(reason, session, turn.provider, turn.model, turn.options, turn.say)
        if summary is None:
            return False
        turn.count(summary.usage)
        return True

    async def _compacting(self, instructions: str | None) -> str:
        with self._claims.claim("the history is being summarised") as busy:
            if not self.session.messages():
                raise UsageError("cannot compact: there is no conversation yet")
            options = self.settings.options()
            self._inbox.open()  # what is said meanwhile waits, and is delivered right after
            try:
                provider, ref = await self._shelf.find_soon(options)
                summary = await self._compactor.now(instructions, self.session, provider, ref, options, self._say)
            except asyncio.CancelledError:
                self._inbox.close()
                if not busy.is_stopped:
                    raise
                busy.take_back_stop()
                raise KitError("the summary was stopped; nothing has changed") from None
            finally:
                self._begin_with(self._inbox.take_all())
        return "".join(part.text for part in summary.parts if isinstance(part, TextPart))

    def _begin_with(self, tickets: list[Ticket]) -> None:
        """A turn of its own for what was said while none ran."""
        if not tickets:
            return
        said = [
            Opening(
                role="system" if ticket.kind == "steer" else "user",
                parts=(TextPart(ticket.text), *ticket.parts) if ticket.text else ticket.parts,
                source="steer" if ticket.kind == "steer" else "follow-up",
                visible=ticket.kind != "steer" and ticket.text != FOLLOW_UP,
                ticket=ticket,
            )
            for ticket in tickets
        ]
        mode, label = "follow_up", "[follow-up]"
        if tickets[0].kind == "steer":
            mode, label = "steer", "[steer] " + "; ".join(ticket.text for ticket in tickets)
            said.append(Opening(role="user", parts=(TextPart(STEER_REQUEST),), source="steer", visible=False))
        place = self._claims.reserve()
        engine.start(self._run_turn(mode, tuple(said), label, place=place), self._desk)

    # ------------------------------------------------------------ the end

    async def aclose(self) -> None:
        """Stop what runs, close guests, providers and the session. Safe to call twice."""
        if self._claims.is_closed:
            return
        if self.id in turns_here.get():
            raise UsageError("a tool or hook of the running turn cannot close its Kit; stop it with abort()")
        self._claims.is_closed = True
        await self._stop(None)
        await self._drive(self._close)

    async def _close(self) -> None:
        await self.host.close()
        await self._shelf.close()
        self.session.close()

    def close(self) -> None:
        """`aclose`, blocking."""
        self._wait(self.aclose)

    def _close_quietly(self) -> None:
        self._claims.is_closed = True


def _known(cell: Any) -> CellRef | None:
    """The cell with names that can be stored: a notebook's file need not have one in Unicode."""
    if cell is None:
        return None
    if not isinstance(cell, CellRef):
        raise UsageError(f"cell must be a CellRef, got {type(cell).__name__}")
    return replace(cell, notebook=storable(cell.notebook), cell_id=storable(cell.cell_id))


def _mask() -> Callable[[Any], Any]:
    from kit_jupyter.masking import mask_outcome

    return mask_outcome
