"""One turn: from a prompt to its answer, through as many model calls and tools as it takes.

Theory of operation
-------------------
The opening messages are stored; then steps follow each other: compose the request from the branch,
stream the answer (`answer`), store it **before** any tool runs, judge and run its tools (`calls`), store
their results in the order of the calls. After each step the inbox is polled, steers first; when the turn
would stop, follow-ups. Whatever happens, each started message ends, each call gets exactly one result,
each ticket ends committed or returned, and `TurnEnd` comes last.

A stop cancels the task; what was streamed is stored and marked. A steer with ``now`` cancels only the
step that runs. Everything here runs on the engine; user code goes over the turn's `Desk`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kit_jupyter import events as ev
from kit_jupyter.answer import Answer, clean
from kit_jupyter.calls import Calls
from kit_jupyter.compaction import estimate_tokens
from kit_jupyter.errors import ContextOverflow, KitError, UsageError
from kit_jupyter.extension import StepPlan
from kit_jupyter.glance import Messages
from kit_jupyter.house import FOLLOW_UP, History, Opening, TurnHouse, TurnResult, turns_here
from kit_jupyter.inbox import Ticket
from kit_jupyter.masking import mask
from kit_jupyter.messages import (
    Assistant,
    CellRef,
    Message,
    ModelRef,
    Part,
    RequestFacts,
    System,
    TextPart,
    ThinkingPart,
    Usage,
    User,
    new_id,
    now,
    text_of,
)
from kit_jupyter.prompt import PromptEditor, PromptMessage
from kit_jupyter.provider import ModelInfo, ModelRequest, Provider
from kit_jupyter.settings import PromptOptions, TurnOptions
from kit_jupyter.structured import Format, Misfit
from kit_jupyter.tool import Tool

__all__ = ["FOLLOW_UP", "History", "Opening", "Turn", "TurnHouse", "TurnResult"]

OWN_SHARE = 0.75  # of the window, as estimated, that a refused prompt must fill to be called too large by itself


class Turn:
    """One turn. Make it and await `run` once, on the engine.

    Parameters
    ----------
    house : TurnHouse
    options : TurnOptions
    opening : sequence of Opening
        Stored first.
    mode, label : str
        For events: ``prompt``, ``steer`` or ``follow_up``; and the text that names the turn.
    failure : str
        Prefix of the error that a failed turn raises.
    """

    def __init__(
        self,
        house: TurnHouse,
        options: TurnOptions,
        opening: Sequence[Opening],
        *,
        mode: str,
        label: str,
        failure: str,
        cell: CellRef | None = None,
        turn_id: str | None = None,
    ) -> None:
        self.house = house
        self.options = options
        self.opening = tuple(opening)
        self.mode = mode
        self.label = label
        self.failure = failure
        self.cell = cell
        self.id = turn_id or new_id("trn")
        self.step = 0
        self.model = ModelRef("none", "none")
        self.stop_reason = "stop"
        self.stored: list[Message] = []
        self.usage: Usage | None = None
        self.no_compaction = False  # one was tried at the threshold and could not help
        self._final: Assistant | None = None
        self._final_text: str | None = None
        self._value: Any = None
        self._structured: Any = None
        self._misfit: Misfit | None = None
        self._misfits = 0
        self._format = Format(options.prompt.schema) if options.prompt.schema is not None else None
        self._allowed_steps = options.max_steps
        self._overflowed = False
        self._task: asyncio.Task[Any] | None = None
        self._is_in_step = False
        self._cuts = 0
        self._priced: set[ModelRef] = set()
        self._abort_asked = False
        self._cancels = self._cancels_before = 0
        self._first_entry = ""
        self._came_from: str | None = None  # where the session stood before this turn
        self._provider: Provider | None = None
        self._system = ""

    # ------------------------------------------------------------ from outside, on the engine

    def abort(self) -> None:
        """Stop the turn; what was streamed is kept. Asked again, it does not wait for what will not stop."""
        self._abort_asked = True
        if self._task is not None:
            self._cancels += 1
            self._task.cancel()

    def _is_cancelled_from_outside(self) -> bool:
        """Take our own cancels back; True if others remain."""
        task = self._task
        if task is None:
            return False
        for _ in range(self._cancels):
            task.uncancel()
        self._cancels = 0
        return not self._abort_asked or task.cancelling() > self._cancels_before

    def cut_step(self, ticket: Ticket) -> None:
        """Stop only the step that runs, because a steer should not wait; not when it was taken already."""
        if ticket.state == "queued" and self._is_in_step and self._task is not None:
            self._cuts += 1
            self._task.cancel()

    # ------------------------------------------------------------ for the rooms that work for it

    @property
    def provider(self) -> Provider:
        """Who answers."""
        if self._provider is None:
            raise RuntimeError("the turn has not begun")
        return self._provider

    @property
    def format(self) -> Format | None:
        """What the answer must fit."""
        return self._format

    def say(self, kind: Callable[..., ev.Event], *args: Any, **facts: Any) -> None:
        """Emit an event with this turn's stamp. Any thread."""
        house = self.house
        house.bus.emit(
            kind(
                *args,
                **facts,
                session_id=house.session.id,
                turn_id=self.id,
                step=self.step,
                seq=house.bus.next_seq(),
                time=time.time(),
            )
        )

    async def price_table(self, model: ModelRef) -> None:
        """Wait until what `model` costs can be told; once a turn for each model."""
        await self.house.load_prices(model)
        self._priced.add(model)

    def has_prices(self, model: ModelRef) -> bool:
        """True when `price_table` has been waited for."""
        return model in self._priced

    def store(self, message: Message) -> None:
        """Append a message to the session."""
        self.house.session.append(message)
        self.stored.append(message)

    def answered(self, message: Assistant) -> None:
        """Store the answer of a step: its text is the turn's, unless another comes."""
        self._final = message
        self.store(message)

    def count(self, usage: Usage) -> None:
        """Add to what the turn has used."""
        self.usage = usage if self.usage is None else self.usage + usage

    def read_format(self, parts: tuple[Part, ...], finish: str) -> Any:
        """The JSON value of an answer that fits the wanted format, for its stored facts."""
        self._misfit = None
        if self._format is None or any(part.type == "tool_call" for part in parts) or finish in ("aborted", "pause"):
            return None
        try:
            self._structured = self._format.read(text_of(parts))
        except Misfit as exc:
            self._misfit = exc
            return None
        from pydantic_core import to_jsonable_python

        return to_jsonable_python(self._structured, fallback=repr)

    # ------------------------------------------------------------ the turn

    async def run(self) -> TurnResult:
        """Run it to its end.

        Raises
        ------
        KitError
            What went wrong, its message beginning with the mode's prefix, the cause chained.
        asyncio.CancelledError
            When the task was cancelled from outside; everything is closed and stored by then.
        """
        self._task = asyncio.current_task()
        self._cancels_before = self._task.cancelling() if self._task is not None else 0
        failed: BaseException | None = None
        seconds = self.options.prompt.timeout_seconds
        token = turns_here.set(turns_here.get() | {self.house.kit_id})
        try:
            self.say(ev.TurnStart, self.label, self.mode)
            try:
                if self._abort_asked:
                    raise asyncio.CancelledError
                async with asyncio.timeout(seconds) as limit:
                    await self._open()
                    await self._steps()
            except asyncio.CancelledError as exc:
                self.stop_reason = "aborted"
                failed = exc if self._is_cancelled_from_outside() else None
            except TimeoutError as exc:
                self.stop_reason = "error"
                failed = exc
                if limit.expired():
                    failed = UsageError(f"the turn took longer than timeout_seconds={seconds:g} and was stopped")
                    failed.__cause__ = exc
            except BaseException as exc:
                self.stop_reason = "error"
                failed = exc
            return await self._close(failed)
        finally:
            turns_here.reset(token)

    async def _close(self, failed: BaseException | None) -> TurnResult:
        house = self.house
        returned = tuple(ticket.text for ticket in house.inbox.close())
        try:
            await asyncio.shield(house.session.sync_soon())
        except KitError as exc:
            failed = failed or exc
        except asyncio.CancelledError as exc:  # stopped once more; the disk goes on by itself
            failed = failed or (exc if self._is_cancelled_from_outside() else None)
        text = self._text()
        error = failed if isinstance(failed, Exception) else None
        raised = self._as_error(error) if error is not None else None
        if failed is None and self.stop_reason != "aborted":
            self.say(ev.Response, text)
        try:
            await asyncio.shield(house.host.after_turn(text if error is None else "", raised))
        except asyncio.CancelledError as exc:  # stopped once more while guests look at the end
            failed = failed or (exc if self._is_cancelled_from_outside() else None)
        finally:
            self.say(
                ev.TurnEnd,
                text if error is None else "",
                self.stop_reason,
                error=raised.message if raised is not None else "",
                error_code=raised.code if raised is not None else "",
                usage=self.usage or Usage(),
                steps=self.step,
                entry_id=house.session.leaf or "",
            )
        if raised is not None:
            raise raised from error
        if failed is not None:
            raise failed
        return self._result(text, returned)

    def _as_error(self, error: Exception) -> KitError:
        twin = error if isinstance(error, KitError) else KitError(f"{type(error).__name__}: {error}")
        raised = twin.with_prefix(self.failure)
        raised.args = (mask(raised.message),)  # a service may say the key back that it was given
        return raised

    def _text(self) -> str:
        if self._final_text is not None:
            return self._final_text
        return text_of(self._final.parts) if self._final is not None else ""

    def _result(self, text: str, returned: tuple[str, ...]) -> TurnResult:
        answers = [m for m in self.stored if isinstance(m, Assistant)]
        thoughts = [p.text for m in answers for p in m.parts if isinstance(p, ThinkingPart) and p.text]
        return TurnResult(
            text=text,
            thinking="\n\n".join(thoughts),
            tool_calls=tuple(call for m in answers for call in m.tool_calls),
            parts=self._final.parts if self._final is not None else (),
            usage=self.usage or Usage(),
            stop_reason=self.stop_reason,
            steps=self.step,
            messages=Messages(self.stored),
            turn_id=self.id,
            session_id=self.house.session.id,
            entry_id=self.house.session.leaf or "",
            model=str(self.model),
            structured=self._structured,
            value=self._value,
            returned=returned,
        )

    # ------------------------------------------------------------ opening

    async def _open(self) -> None:
        prompt = self.options.prompt
        opening = list(self.opening)
        self._provider, self.model = await self.house.provider(self.options)
        self._system = self.house.system(self._provider, self.model)
        text = "\n".join(text_of(o.parts) for o in opening if o.role == "user")
        plan = await self.house.host.before_turn(text, self._system)
        self._system = plan.system if plan.system is not None else self._system
        if plan.prompt is not None and plan.prompt != text:
            opening[-1] = replace(
                opening[-1],
                parts=(TextPart(plan.prompt), *(p for p in opening[-1].parts if not isinstance(p, TextPart))),
            )
        self._check_media(opening)
        await self._compact_if_full()
        self._came_from = self.house.session.leaf
        if prompt.system_message and prompt.persist_system:
            opening.insert(
                len(opening) - 1, Opening(role="system", parts=(TextPart(prompt.system_message),), source="option")
            )
        if plan.inject:
            opening.append(Opening(role="user", parts=(TextPart(plan.inject),), source="hook", visible=False))
        for item in opening:
            self._store_said(item)
        # A person's words get reference blocks, and so does a steer; our own "Continue." does not.
        if self.mode == "steer":
            await self._refer(self.label.removeprefix("[steer] "))
        elif not (self.mode == "follow_up" and text == FOLLOW_UP):
            await self._refer(text)

    def _store_said(self, item: Opening) -> Message:
        parts = tuple(clean(part) for part in item.parts)
        facts: dict[str, Any] = {"id": new_id("msg"), "time": now(), "parts": parts, "turn_id": self.id}
        message: Message
        if item.role == "system":
            message = System(**facts, source=item.source)
        else:
            message = User(**facts, source=item.source, request=self._facts(item.original))
            self._first_entry = self._first_entry or message.id
        self.store(message)
        if item.ticket is not None:
            self.house.inbox.commit(item.ticket, message.id)
        self.say(ev.UserMessage, message, item.visible)
        return message

    async def _refer(self, text: str) -> None:
        for name, block in await self.house.host.reference_blocks(text):
            message = User(
                id=new_id("msg"),
                time=now(),
                parts=(clean(TextPart(block)),),
                source=f"extension:{name}",
                turn_id=self.id,
            )
            self.store(message)
            self.say(ev.ReferenceAdded, message, name)

    def _facts(self, original: str | None) -> RequestFacts:
        options, prompt = self.options, self.options.prompt
        offered = {tool.spec.name: True for tool in self._tools()}
        offered.update((name, False) for name in self.house.toolbox if name not in offered)
        return RequestFacts(
            agent=options.agent,
            model=self.model,
            variant=options.thinking,
            format=self._format.schema if self._format is not None else None,
            system=prompt.system_message or None,
            tools=offered or None,
            cell=self.cell,
            original=original,
        )

    def _check_media(self, opening: Sequence[Opening]) -> None:
        takes = self.provider.info(self.model.id).takes
        if takes is None:
            return
        for item in opening:
            for part in item.parts:
                media_type = getattr(part, "media_type", "")
                if media_type and media_kind(media_type) not in takes:
                    able = f"it takes {', '.join(sorted(takes))} besides text" if takes else "it takes text only"
                    raise UsageError(
                        f"{self.model} cannot take {media_type}: {able}; choose another model, or say it in words"
                    )

    def _tools(self) -> tuple[Tool, ...]:
        return offered_tools(self.house.toolbox, self.options.prompt, self.provider.info(self.model.id))

    # ------------------------------------------------------------ steps

    async def _steps(self) -> None:
        options, inbox = self.options, self.house.inbox
        all_steers = options.steering_mode == "all"
        while True:
            self.step += 1
            goes_on = await self._step_or_cut()
            if goes_on and self.step >= self._allowed_steps:
                self.stop_reason, goes_on = "max_steps", False
            if self.stop_reason in ("halted", "max_steps"):
                return  # what waits comes back unsent
            if goes_on:
                taken = inbox.poll("steer", everything=all_steers)
            else:
                taken = inbox.poll_last(all_steers=all_steers, all_follow_ups=options.follow_up_mode == "all")
                if not taken:
                    return
                self._allowed_steps = self.step + options.max_steps  # said by a person: a new allowance
            for ticket in taken:
                await self._commit(ticket)
            await self._compact_if_full()

    async def _commit(self, ticket: Ticket) -> None:
        parts: tuple[Part, ...] = (TextPart(ticket.text), *ticket.parts) if ticket.text else ticket.parts
        if ticket.kind == "steer":
            message = self._store_said(
                Opening(role="system", parts=parts, source="steer", visible=False, ticket=ticket)
            )
            self.say(ev.SteerCommitted, ticket.id, ticket.text, message)
            await self._refer(ticket.text)
            return
        own = ticket.text == FOLLOW_UP
        self._store_said(Opening(role="user", parts=parts, source="follow-up", visible=not own, ticket=ticket))
        if not own:
            await self._refer(ticket.text)

    async def _compact_if_full(self) -> None:
        if self.no_compaction or not self.house.needs_compaction(self.provider, self.model, self.options):
            return
        if not await self.house.compact("threshold", turn=self):
            self.no_compaction = True  # once is enough to know; an overflow may still come and be met

    async def _step_or_cut(self) -> bool:
        self._is_in_step = True
        try:
            return await self._step()
        except asyncio.CancelledError:
            was_cut, task = self._take_back_cuts(), self._task
            if was_cut and not self._abort_asked and task is not None and task.cancelling() <= self._cancels_before:
                return True  # a steer cut this step; it is waiting in the inbox
            raise
        finally:
            self._is_in_step = False
            self._take_back_cuts()

    def _take_back_cuts(self) -> bool:
        """Our cuts are no cancels of the turn's task; True if there were any."""
        cuts, self._cuts = self._cuts, 0
        for _ in range(cuts):
            assert self._task is not None
            self._task.uncancel()
        return cuts > 0

    async def _step(self) -> bool:
        """One model call and its tools; True when the model must be called again."""
        finish, answer = "aborted", None
        self.say(ev.StepStart, self.step)
        try:
            plan = await self.house.host.prepare_step(
                StepPlan(
                    number=self.step,
                    tools=self._tools(),
                    tool_choice=self.options.prompt.tool_choice if self.step == 1 else "auto",
                    model=str(self.model),
                    temperature=self.options.temperature,
                    max_tokens=self.options.max_tokens,
                )
            )
            if plan.model and plan.model != str(self.model):
                self._provider, self.model = await self.house.provider(replace(self.options, model=plan.model))
            finish = "error"
            answer = await self._answer(plan)
            finish = self.stop_reason = answer.result.finish or "stop"
            return await self._act_on(answer, plan)
        except asyncio.CancelledError:
            finish = "aborted"
            raise
        finally:
            calls = bool(answer is not None and answer.tool_calls)
            self.say(ev.StepEnd, self.step, finish, calls, answer.usage if answer is not None else Usage())

    async def _act_on(self, answer: Assistant, plan: StepPlan) -> bool:
        calls = answer.tool_calls
        if calls and self.stop_reason not in ("content_filter", "refusal"):
            if text := text_of(answer.parts):
                self.say(ev.ToolCallContent, text)
            return await self._run_calls(Calls(self, calls, plan.tools))
        if self.stop_reason == "pause":
            return True  # the service stopped in the middle of its own tools: what it said goes back as it is
        return self._misfit is not None and self._ask_for_fit(answer)

    async def _run_calls(self, calls: Calls) -> bool:
        if self.step >= self._allowed_steps:
            calls.refuse(f"[not run: the turn's limit of {self.options.max_steps} steps was reached]")
            self.stop_reason = "max_steps"
            return False
        halting = await calls.run()
        if halting is None:
            return True
        self.stop_reason = "halted"
        self._value = halting.value
        self._final_text = halting.text
        return False

    def _ask_for_fit(self, answer: Assistant) -> bool:
        assert self._misfit is not None
        is_last = self._misfits >= self.options.prompt.schema_retries or self.step >= self._allowed_steps
        if is_last or answer.result.finish == "length":
            cut = " (it was cut at max_tokens)" if answer.result.finish == "length" else ""
            raise UsageError(
                f"the model's answer does not fit the schema{cut} after {self._misfits + 1} tries:\n{self._misfit}"
            ) from self._misfit
        self._misfits += 1
        text = f"Your answer does not fit the required schema:\n{self._misfit}\nAnswer again, with JSON that fits."
        self._store_said(Opening(role="user", parts=(TextPart(text),), source="schema", visible=False))
        return True

    # ------------------------------------------------------------ the model call

    async def _answer(self, plan: StepPlan) -> Assistant:
        first = Answer(self, await self._request(plan), can_compact=not self._overflowed)
        try:
            return await first.stream()
        except ContextOverflow as exc:
            if self._overflowed or not first.is_empty:
                raise
            if (error := self._too_large_alone(exc)) is not None:
                raise error from None
            self._overflowed = True
            if not await self.house.compact("overflow", turn=self):
                raise
        return await Answer(self, await self._request(plan), can_compact=False).stream()

    def _too_large_alone(self, exc: ContextOverflow) -> ContextOverflow | None:
        """When what this turn asks fills the window by itself, no summary of what came before can help.

        It is left out of the conversation then: every later turn would meet the same end.
        """
        window = self.provider.info(self.model.id).context_window
        tokens = sum(estimate_tokens(message) for message in self.stored)
        if self.step != 1 or not window or tokens < OWN_SHARE * window:
            return None
        self.house.session.move_leaf(self._came_from)
        text = (
            f"{self.model}: this prompt alone, of about {tokens:,} tokens, is too large for a window of {window:,}; "
            "shorten it, or take a model with a larger window (it was left out of the conversation)"
        )
        return ContextOverflow(text, provider=exc.provider, model=exc.model, status=exc.status)

    async def _request(self, plan: StepPlan) -> ModelRequest:
        prompt, options = self.options.prompt, self.options
        return ModelRequest(
            model=self.model,
            messages=await self.compose(),
            system=self._system,
            tools=tuple(tool.spec for tool in plan.tools),
            tool_choice=plan.tool_choice if plan.tools else "auto",
            format=self._format.schema if self._format is not None else None,
            max_tokens=plan.max_tokens,
            temperature=plan.temperature,
            thinking=options.thinking,
            base_url=prompt.base_url,
            api_key=prompt.api_key,
            session_id=self.house.session.id,
            extra=prompt.extra,
        )

    async def compose(self) -> tuple[PromptMessage, ...]:
        """Prompt messages of the next request: the branch, the turn's own system message, the editors' work."""
        messages = self.house.history.show(self.house.session.messages())
        prompt = self.options.prompt
        if prompt.system_message and not prompt.persist_system:
            # Right before this prompt; behind the summary, if that has taken the prompt in.
            at = next((i for i, m in enumerate(messages) if m.message_id == self._first_entry), 1)
            said = PromptMessage("system", (TextPart(prompt.system_message),), origin="option:system_message")
            messages = (*messages[:at], said, *messages[at:])
        host = self.house.host
        if not host.has_hooks("edit_prompt"):
            return messages
        editor = PromptEditor(messages)
        edited = await host.edit_prompt(messages, editor=editor)
        for kept in editor.persisted:
            facts: dict[str, Any] = {"id": kept.message_id, "time": now(), "parts": kept.parts, "turn_id": self.id}
            synthetic = User if kept.role == "user" else Assistant
            self.store(synthetic(**facts, source=kept.source))
        return edited


def offered_tools(toolbox: Mapping[str, Tool], prompt: PromptOptions, model: ModelInfo) -> tuple[Tool, ...]:
    """The tools that a turn offers to this model."""
    own = [tool for name, tool in toolbox.items() if prompt.tools is None or name in prompt.tools]
    if prompt.tools is None and model.lean:
        # A very small model is drowned by descriptions of tools that it cannot use well.
        own = [tool for tool in own if not getattr(tool, "is_builtin", False)]
    return (*own, *prompt.extra_tools)


def media_kind(media_type: str) -> str:
    """``image``, ``pdf``, ``audio`` or ``file``."""
    if media_type.startswith("image/"):
        return "image"
    if media_type == "application/pdf":
        return "pdf"
    return "audio" if media_type.startswith("audio/") else "file"
