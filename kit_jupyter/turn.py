"""One turn: from a prompt to its answer, through as many model calls and tools as it takes.

Theory of operation
-------------------
The opening messages are stored; then steps follow each other: compose the request from the branch,
stream the answer, store it **before** any tool runs, judge and run its tools, store their results in
the order of the calls. After each step the inbox is polled, steers first; when the turn would stop,
follow-ups. Whatever happens, each started message ends, each call gets exactly one result, each
ticket ends committed or returned, and `TurnEnd` comes last.

A stop cancels the task; what was streamed is stored and marked. A steer with ``now`` cancels only the
step that runs. Everything here runs on the engine; user code goes over the turn's `Desk`.
"""

from __future__ import annotations

import asyncio
import difflib
import json
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from kit_jupyter import events as ev
from kit_jupyter.errors import ContextOverflow, Denied, KitError, ToolError, UnknownTool, UsageError
from kit_jupyter.extension import ExtensionHost, StepPlan
from kit_jupyter.inbox import Inbox, Ticket
from kit_jupyter.loop import Desk, current_desk
from kit_jupyter.messages import (
    Assistant,
    CellRef,
    ErrorFacts,
    Message,
    MessageBuilder,
    ModelRef,
    Part,
    PathFacts,
    RequestFacts,
    ResultFacts,
    RunFacts,
    ServerPart,
    System,
    TextDelta,
    TextPart,
    ThinkingDelta,
    ThinkingPart,
    Tokens,
    ToolCallDelta,
    ToolCallPart,
    ToolCallStart,
    ToolResult,
    Usage,
    User,
    new_id,
    now,
    text_of,
)
from kit_jupyter.permissions import Approval, Approver, Decision, Policy, Question, audit_record, question_of
from kit_jupyter.prompt import PromptEditor, PromptMessage, from_branch
from kit_jupyter.provider import ModelRequest, Provider
from kit_jupyter.session import Session, project_root
from kit_jupyter.settings import TurnOptions
from kit_jupyter.structured import Format, Misfit
from kit_jupyter.tool import Tool, Toolbox, ToolOutcome

__all__ = ["Opening", "Turn", "TurnHouse", "TurnResult"]

T = TypeVar("T")
RESULT_CHARACTERS = 400_000
CUT_RESULT = "[interrupted: the call was stopped before it finished]"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResult:
    """What came of a turn; ``str()`` of it is the final text.

    Attributes
    ----------
    text, thinking : str
        The final answer, and the reasoning of all steps.
    tool_calls : tuple of ToolCallPart
        All calls, in order.
    parts : tuple of Part
        Parts of the final answer.
    usage : Usage
        Of the whole turn; ``cost`` is None when a price is unknown.
    stop_reason : str
        ``stop``, ``length``, ``max_steps``, ``aborted``, ``halted``, ``refusal``, ``content_filter``, …
    messages : tuple of Message
        What the turn stored.
    structured : object
        The value when a schema was asked for.
    value : object
        What a halting tool gave as the final value.
    returned : tuple of str
        Steers and follow-ups that were accepted and not delivered.
    """

    text: str
    thinking: str = ""
    tool_calls: tuple[ToolCallPart, ...] = ()
    parts: tuple[Part, ...] = ()
    usage: Usage = ev.NO_USAGE
    stop_reason: str = "stop"
    steps: int = 0
    messages: tuple[Message, ...] = ()
    turn_id: str = ""
    session_id: str = ""
    entry_id: str = ""
    model: str = ""
    structured: Any = field(default=None, hash=False)
    value: Any = field(default=None, hash=False)
    returned: tuple[str, ...] = ()

    @property
    def cost(self) -> float | None:
        """US dollars, None when unknown."""
        return self.usage.cost

    def __str__(self) -> str:
        return self.text

    def _repr_markdown_(self) -> str:
        return self.text or f"*(no text: {self.stop_reason})*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """A message with which a turn begins."""

    role: str
    parts: tuple[Part, ...]
    source: str | None = None
    visible: bool = True


class CompactNow(Protocol):
    """The Kit's way to summarise the history in the middle of a turn."""

    async def __call__(self, reason: str, *, turn: Turn) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnHouse:
    """What a turn is given by its Kit; the same for all turns but for what changed in between.

    Parameters
    ----------
    provider : callable of TurnOptions
        Gives ``(Provider, ModelRef)``.
    price : callable of ModelRef and Tokens
        US dollars or None.
    sent : callable of ModelRequest
        Told of each request before it goes out.
    """

    kit_id: str
    session: Session
    bus: ev.EventBus
    inbox: Inbox
    host: ExtensionHost
    toolbox: Toolbox
    policy: Policy
    approver: Approver
    system: str
    desk: Desk
    provider: Callable[[TurnOptions], tuple[Provider, ModelRef]]
    price: Callable[[ModelRef, Tokens], float | None]
    sent: Callable[[ModelRequest], None]
    compact: CompactNow
    needs_compaction: Callable[[Provider, ModelRef, TurnOptions], bool]
    state: dict[str, Any]
    mask: Callable[[ToolOutcome], ToolOutcome] = lambda outcome: outcome


class _Context:
    """What one running tool may use."""

    def __init__(self, turn: Turn, call: ToolCallPart) -> None:
        self._turn = turn
        self.call_id = call.call_id
        self.tool_name = call.name
        self.turn_id = turn.id
        self.session_id = turn.house.session.id
        self.session = turn.house.session
        self.cell = turn.cell
        self.messages = turn.house.session.messages

    def progress(self, text: str, *, stream: str = "stdout", parts: tuple[Part, ...] = ()) -> None:
        shown = self._turn.house.mask(ToolOutcome(parts=(TextPart(text), *parts)))
        self._turn.say(ev.ToolOutput, self.call_id, shown.text, stream, parts)

    async def on_user_thread(self, fn: Callable[..., T | Awaitable[T]], *args: Any) -> T:
        return await (current_desk() or self._turn.house.desk).run(fn, *args)

    async def ask(self, question: str, *, suggestion: str = "") -> bool:
        asked = Question(
            call_id=self.call_id, tool_name=self.tool_name, arguments={}, text=question, suggestion=suggestion
        )
        return (await self._turn.ask_person(asked)).allowed

    @property
    def state(self) -> dict[str, Any]:
        return self._turn.house.state


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
        self._final: Assistant | None = None
        self._final_text: str | None = None
        self._value: Any = None
        self._structured: Any = None
        self._format = Format(options.prompt.schema) if options.prompt.schema is not None else None
        self._misfits = 0
        self._compacted = False
        self._task: asyncio.Task[Any] | None = None
        self._inner: asyncio.Task[bool] | None = None
        self._is_cutting = False
        self._abort_asked = False
        self._first_entry = ""
        self._provider: Provider | None = None
        self._wants_model = options.model

    # ------------------------------------------------------------ from outside, on the engine

    def abort(self) -> None:
        """Stop the turn; what was streamed is kept."""
        if self._task is not None and not self._abort_asked:
            self._abort_asked = True
            self._task.cancel()
        self._abort_asked = True

    def cut_step(self) -> None:
        """Stop only the step that runs, because a steer should not wait."""
        if self._inner is not None and not self._inner.done():
            self._is_cutting = True
            self._inner.cancel()

    # ------------------------------------------------------------ events

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
        failed: BaseException | None = None
        self.say(ev.TurnStart, self.label, self.mode)
        try:
            if self._abort_asked:
                raise asyncio.CancelledError
            async with asyncio.timeout(self.options.prompt.timeout_seconds):
                await self._open()
                await self._steps()
        except asyncio.CancelledError as exc:
            self.stop_reason = "aborted"
            if self._abort_asked and self._task is not None:
                while self._task.uncancel() > 0:
                    pass
            else:
                failed = exc
        except TimeoutError as exc:
            self.stop_reason = "error"
            failed = UsageError(
                f"the turn took longer than timeout_seconds={self.options.prompt.timeout_seconds} and was stopped"
                if self.options.prompt.timeout_seconds
                else f"a time limit ran out: {exc}"
            )
            failed.__cause__ = exc
        except Exception as exc:
            self.stop_reason = "error"
            failed = exc
        return await self._close(failed)

    async def _close(self, failed: BaseException | None) -> TurnResult:
        house = self.house
        returned = tuple(ticket.text for ticket in house.inbox.close())
        try:
            house.session.sync()
        except KitError as exc:
            failed = failed or exc
        text = self._text()
        error = failed if isinstance(failed, Exception) else None
        raised = self._as_error(error) if error is not None else None
        if failed is None and self.stop_reason != "aborted":
            self.say(ev.Response, text)
        await asyncio.shield(house.host.after_turn(text if error is None else "", raised))
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
        if isinstance(error, KitError):
            return error.with_prefix(self.failure)
        return KitError(f"{self.failure}: {type(error).__name__}: {error}")

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
            messages=tuple(self.stored),
            turn_id=self.id,
            session_id=self.house.session.id,
            entry_id=self.house.session.leaf or "",
            model=str(self.model),
            structured=self._structured,
            value=self._value,
            returned=returned,
        )

    # ------------------------------------------------------------ opening

    def _store(self, message: Message) -> None:
        self.house.session.append(message)
        self.stored.append(message)

    async def _open(self) -> None:
        prompt = self.options.prompt
        opening = list(self.opening)
        self._provider, self.model = self.house.provider(self.options)
        text = "\n".join(text_of(o.parts) for o in opening if o.role == "user")
        plan = await self.house.host.before_turn(text, self.house.system)
        self._system = plan.system if plan.system is not None else self.house.system
        if plan.prompt is not None and plan.prompt != text:
            opening[-1] = replace(
                opening[-1],
                parts=(TextPart(plan.prompt), *(p for p in opening[-1].parts if not isinstance(p, TextPart))),
            )
        self._check_media(opening)
        if self.house.needs_compaction(self._provider, self.model, self.options):
            await self.house.compact("threshold", turn=self)
        if prompt.system_message and prompt.persist_system:
            opening.insert(
                len(opening) - 1, Opening(role="system", parts=(TextPart(prompt.system_message),), source="option")
            )
        if plan.inject:
            opening.append(Opening(role="user", parts=(TextPart(plan.inject),), source="hook", visible=False))
        for item in opening:
            self._store_said(item)
        # A person's words, or a steer, may get reference blocks; our own "Continue." may not.
        if self.mode != "follow_up":
            await self._refer(self.label.removeprefix("[steer] ") if self.mode == "steer" else text)

    def _store_said(self, item: Opening) -> Message:
        facts: dict[str, Any] = {"id": new_id("msg"), "time": now(), "parts": item.parts, "turn_id": self.id}
        message: Message
        if item.role == "system":
            message = System(**facts, source=item.source)
        else:
            message = User(**facts, source=item.source, request=self._facts())
            self._first_entry = self._first_entry or message.id
        self._store(message)
        self.say(ev.UserMessage, message, item.visible)
        return message

    async def _refer(self, text: str) -> None:
        for name, block in await self.house.host.reference_blocks(text):
            message = User(
                id=new_id("msg"),
                time=now(),
                parts=(TextPart(block),),
                source=f"extension:{name}",
                turn_id=self.id,
            )
            self._store(message)
            self.say(ev.ReferenceAdded, message, name)

    def _facts(self) -> RequestFacts:
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
        )

    def _check_media(self, opening: Sequence[Opening]) -> None:
        assert self._provider is not None
        takes = self._provider.info(self.model.id).takes
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
        chosen = self.options.prompt.tools
        own = tuple(tool for name, tool in self.house.toolbox.items() if chosen is None or name in chosen)
        return (*own, *self.options.prompt.extra_tools)

    # ------------------------------------------------------------ steps

    async def _steps(self) -> None:
        limit = self.options.max_steps
        while True:
            self.step += 1
            self.say(ev.StepStart, self.step)
            goes_on = await self._step_or_cut(limit)
            everything = self.options.steering_mode == "all"
            if self.stop_reason == "halted":
                taken = []
            elif goes_on:
                taken = self.house.inbox.poll("steer", everything=everything)
            else:
                taken = self.house.inbox.poll_last(
                    all_steers=everything, all_follow_ups=self.options.follow_up_mode == "all"
                )
            for ticket in taken:
                await self._commit(ticket)
            if not goes_on and not taken:
                return
            if self.step >= limit:
                self.stop_reason = "max_steps"
                return
            if self.house.needs_compaction(self._must_provider(), self.model, self.options):
                await self.house.compact("threshold", turn=self)

    async def _commit(self, ticket: Ticket) -> None:
        parts: tuple[Part, ...] = (TextPart(ticket.text), *ticket.parts) if ticket.text else ticket.parts
        if ticket.kind == "steer":
            message = self._store_said(Opening(role="system", parts=parts, source="steer", visible=False))
            self.house.inbox.commit(ticket, message.id)
            await self._refer(ticket.text)
            self.say(ev.SteerCommitted, ticket.id, ticket.text, message)
        else:
            message = self._store_said(Opening(role="user", parts=parts, source="follow-up", visible=False))
            self.house.inbox.commit(ticket, message.id)

    async def _step_or_cut(self, limit: int) -> bool:
        inner = self._inner = asyncio.ensure_future(self._step(limit))
        try:
            return await inner
        except asyncio.CancelledError:
            if (
                self._is_cutting
                and not self._abort_asked
                and (task := asyncio.current_task())
                and not task.cancelling()
            ):
                return True  # a steer cut this step; it is waiting in the inbox
            raise
        finally:
            self._is_cutting = False
            self._inner = None

    async def _step(self, limit: int) -> bool:
        """One model call and its tools; True when the model must be called again."""
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
            self._provider, self.model = self.house.provider(replace(self.options, model=plan.model))
        answer = await self._answer(plan)
        self._final = answer
        calls = answer.tool_calls
        finish = answer.result.finish or "stop"
        self.stop_reason = finish
        goes_on = False
        if calls and finish not in ("content_filter", "refusal"):
            self.say(ev.ToolCallContent, text_of(answer.parts)) if text_of(answer.parts) else None
            goes_on = await self._run_tools(calls, plan, at_limit=self.step >= limit)
        elif finish == "pause":
            goes_on = True  # the service stopped in the middle of its own tools: what it said goes back as it is
        elif self._format is not None and answer.result.error is None:
            goes_on = await self._read_structured(answer)
        self.say(ev.StepEnd, self.step, finish, bool(calls), answer.usage)
        return goes_on

    def _must_provider(self) -> Provider:
        if self._provider is None:
            raise RuntimeError("the turn has not begun")
        return self._provider

    # ------------------------------------------------------------ the model call

    async def compose(self) -> tuple[PromptMessage, ...]:
        """Prompt messages of the next request: the branch, the turn's own system message, the editors' work."""
        messages = from_branch(self.house.session.messages())
        prompt = self.options.prompt
        if prompt.system_message and not prompt.persist_system:
            at = next((i for i, m in enumerate(messages) if m.message_id == self._first_entry), len(messages))
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
            self._store(synthetic(**facts, source=kept.source))
        return edited

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

    async def _answer(self, plan: StepPlan) -> Assistant:
        try:
            return await self._stream(await self._request(plan))
        except ContextOverflow:
            if self._compacted:
                raise
            self._compacted = True
            if not await self.house.compact("overflow", turn=self):
                raise
            return await self._stream(await self._request(plan))

    async def _stream(self, request: ModelRequest) -> Assistant:
        self.house.sent(request)
        message_id = new_id("msg")
        builder = MessageBuilder()
        self.say(ev.MessageStart, message_id, str(request.model))
        ears = _Ears(self, message_id)
        try:
            async with aclosing(self._must_provider().stream(request)) as deltas:  # type: ignore[type-var]
                async for delta in deltas:
                    builder.feed(delta)
                    ears.hear(delta)
        except asyncio.CancelledError:
            ears.done()
            self._end_message(message_id, builder, finish="aborted", store=not builder.is_empty)
            raise
        except Exception as exc:
            ears.done()
            code = exc.code if isinstance(exc, KitError) else type(exc).__name__
            failure = ErrorFacts(code, str(exc))
            # Nothing came and a summary may still save it: the failed try is told, not stored.
            store = not (isinstance(exc, ContextOverflow) and not self._compacted)
            self._end_message(message_id, builder, finish="error", error=failure, store=store)
            raise
        ears.done()
        if builder.finished is None:
            from kit_jupyter.errors import WireError

            failure = ErrorFacts("wire", "the stream ended before the answer was complete")
            self._end_message(message_id, builder, finish="error", error=failure, store=True)
            raise WireError(
                f"{request.model}: the stream ended before the answer was complete; try again",
                provider=request.model.provider,
                model=request.model.id,
            )
        return self._end_message(message_id, builder, finish=builder.finished.reason, store=True)

    def _end_message(
        self,
        message_id: str,
        builder: MessageBuilder,
        *,
        finish: str,
        store: bool,
        error: ErrorFacts | None = None,
    ) -> Assistant:
        parts = tuple(_clean(part) for part in builder.parts)
        if finish in ("aborted", "error"):
            # A call of a cut answer was never whole and never runs; kept, it would need a result that nobody has.
            parts = tuple(part for part in parts if not isinstance(part, ToolCallPart))
        else:
            parts = _with_ids(parts)
        answered = ModelRef(self.model.provider, builder.model) if builder.model else self.model
        usage = Usage(tokens=builder.tokens, cost=self.house.price(answered, builder.tokens))
        if builder.tokens != Tokens():
            self.usage = usage if self.usage is None else self.usage + usage
        raw = builder.finished.raw if builder.finished is not None else None
        message = Assistant(
            id=message_id,
            time=now(),
            parts=parts,
            run=RunFacts(
                agent=self.options.agent,
                model=answered,
                path=PathFacts(os.getcwd(), str(project_root())),
                cell=self.cell,
                response_id=builder.response_id,
            ),
            usage=usage,
            result=ResultFacts(finish=finish, raw=raw, error=error),
            turn_id=self.id,
        )
        if store:
            try:
                self._store(message)
            finally:
                self._final = message
                self.say(ev.MessageEnd, message)
        else:
            self.say(ev.MessageEnd, message)
        self.say(ev.UsageReport, usage.tokens, usage.cost)
        return message

    async def _read_structured(self, answer: Assistant) -> bool:
        assert self._format is not None
        try:
            self._structured = self._format.read(text_of(answer.parts))
        except Misfit as exc:
            if self._misfits >= self.options.prompt.schema_retries or answer.result.finish == "length":
                cut = " (it was cut at max_tokens)" if answer.result.finish == "length" else ""
                raise UsageError(
                    f"the model's answer does not fit the schema{cut} after {self._misfits + 1} tries:\n{exc}"
                ) from exc
            self._misfits += 1
            text = f"Your answer does not fit the required schema:\n{exc}\nAnswer again, with JSON that fits."
            self._store_said(Opening(role="user", parts=(TextPart(text),), source="schema", visible=False))
            return True
        return False

    # ------------------------------------------------------------ tools

    async def _run_tools(self, calls: Sequence[ToolCallPart], plan: StepPlan, *, at_limit: bool) -> bool:
        """Run the calls; True when the model must be told what came of them."""
        self.house.session.sync()
        outcomes: dict[int, ToolOutcome] = {}
        try:
            if at_limit:
                text = f"[not run: the turn's limit of {self.options.max_steps} steps was reached]"
                for i, call in enumerate(calls):
                    self._announce(call)
                    outcomes[i] = ToolOutcome.of_text(text, is_error=True)
                self.stop_reason = "max_steps"
            else:
                await self._run_batches(calls, plan, outcomes)
        finally:
            for i, call in enumerate(calls):
                outcome = outcomes.get(i) or ToolOutcome.of_text(CUT_RESULT, is_error=True)
                self._store_result(call, outcome)
        for outcome in outcomes.values():
            if outcome.halt:
                self.stop_reason = "halted"
                self._value = outcome.value
                self._final_text = outcome.text
                return False
        return not at_limit

    async def _run_batches(
        self, calls: Sequence[ToolCallPart], plan: StepPlan, outcomes: dict[int, ToolOutcome]
    ) -> None:
        tools = {tool.spec.name: tool for tool in plan.tools}

        async def one(i: int) -> None:
            outcomes[i] = await self._execute(calls[i], tools)

        i = 0
        while i < len(calls):
            j = i
            while j < len(calls) and getattr(tools.get(calls[j].name), "parallel_safe", False):
                j += 1
            if j - i > 1:
                async with asyncio.TaskGroup() as group:
                    for k in range(i, j):
                        group.create_task(one(k))
            else:
                j = i + 1
                await one(i)
            if any(outcome.halt for outcome in outcomes.values()):
                for k in range(j, len(calls)):
                    self._announce(calls[k])
                    outcomes[k] = ToolOutcome.of_text("[not run: an earlier call ended the turn]", is_error=True)
                return
            i = j

    def _announce(self, call: ToolCallPart) -> dict[str, Any] | None:
        parsed = _parse_arguments(call.arguments)
        self.say(ev.ToolCall, call.call_id, call.name, call.arguments, parsed)
        return parsed

    async def _execute(self, call: ToolCallPart, tools: Mapping[str, Tool]) -> ToolOutcome:
        parsed = self._announce(call)
        try:
            outcome = await self._judge_and_run(call, parsed, tools)
        except ToolError as exc:
            outcome = self.house.mask(ToolOutcome.of_text(exc.message, is_error=True))
        if outcome.details.get("interrupted"):  # a person pressed Ctrl-C or Interrupt in the tool's code
            self.abort()
        return outcome

    async def _judge_and_run(
        self, call: ToolCallPart, parsed: dict[str, Any] | None, tools: Mapping[str, Tool]
    ) -> ToolOutcome:
        tool = tools.get(call.name)
        if tool is None:
            near = difflib.get_close_matches(call.name, tools, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise UnknownTool(f"there is no tool {call.name!r}{hint}; the tools are: {', '.join(tools) or 'none'}")
        if parsed is None:
            raise ToolError(
                f"the arguments of {call.name} are not a JSON object: {call.arguments[:200]!r}; send them again, whole"
            )
        gate = await self.house.host.before_tool(call, parsed)
        if gate.block:
            self.say(ev.ApprovalGiven, call.call_id, call.name, "deny", "extension", gate.reason)
            raise Denied(f"{call.name} was not run: {gate.reason or 'an extension blocked it'}")
        arguments = tool.validate(gate.arguments if gate.arguments is not None else parsed)
        context = _Context(self, call)
        arguments = await self._permit(tool, call, arguments, context)
        outcome = await self._timed(tool, call, arguments, context)
        outcome = await self.house.host.after_tool(call, outcome)
        return self.house.mask(outcome)

    async def _permit(
        self, tool: Tool, call: ToolCallPart, arguments: dict[str, Any], context: _Context
    ) -> dict[str, Any]:
        try:
            decision = self.house.policy.decide(tool, arguments, context)
        except Exception as exc:  # a rule that fails must not let anything through
            decision = Decision(effect="ask", reason=f"a rule failed ({type(exc).__name__}: {exc})")
        if decision.effect != "ask":
            self._audit(call, arguments, decision)
            self.say(ev.ApprovalGiven, call.call_id, call.name, decision.effect, "policy", decision.reason)
            if decision.effect == "deny":
                raise Denied(f"{call.name} was not run: {decision.reason or 'the policy denies it'}")
            return arguments
        approval = await self.ask_person(question_of(tool, arguments, decision, call.call_id))
        self._audit(call, arguments, decision, approval)
        if not approval.allowed:
            raise Denied(f"{call.name} was not run: {approval.reason or 'the person said no'}")
        if approval.arguments is not None:
            return tool.validate(approval.arguments)
        return arguments

    def _audit(
        self, call: ToolCallPart, arguments: dict[str, Any], decision: Decision, approval: Approval | None = None
    ) -> None:
        record = audit_record(call.name, call.call_id, arguments, decision, approval)
        self.house.session.append_custom("permission", {**record, "turn_id": self.id})

    async def ask_person(self, question: Question) -> Approval:
        """Ask, tell of question and answer, and let the policy remember it."""
        self.say(
            ev.ApprovalAsked,
            question.call_id,
            question.tool_name,
            json.dumps(dict(question.arguments), default=repr),
            question.text,
            question.suggestion,
        )
        try:
            approval = await self.house.approver.ask(question)
        except Exception as exc:
            approval = Approval(allowed=False, by="approver", reason=f"asking failed ({type(exc).__name__}: {exc})")
        self.say(
            ev.ApprovalGiven,
            question.call_id,
            question.tool_name,
            "allow" if approval.allowed else "deny",
            approval.by or "person",
            approval.reason,
        )
        if approval.scope != "once":
            self.house.policy.remember(question, approval)
        return approval

    async def _timed(self, tool: Tool, call: ToolCallPart, arguments: dict[str, Any], context: _Context) -> ToolOutcome:
        begun = time.monotonic()
        result = "error"
        self.say(ev.ToolExecutionStart, call.call_id, call.name, begun)
        try:
            async with asyncio.timeout(tool.timeout_seconds) as limit:
                outcome = await tool.run(context, arguments)
            result = "error" if outcome.is_error else "ok"
            return outcome
        except asyncio.CancelledError:
            result = "cancelled"
            raise
        except TimeoutError as exc:
            if not limit.expired():
                return ToolOutcome.of_text(f"TimeoutError: {exc}", is_error=True)
            result = "timeout"
            text = f"{call.name} took longer than {tool.timeout_seconds:g} s and was stopped"
            return ToolOutcome.of_text(text, is_error=True)
        except ToolError:
            raise
        except Exception as exc:
            return ToolOutcome.of_text(f"{type(exc).__name__}: {exc}", is_error=True)
        finally:
            self.say(ev.ToolExecutionEnd, call.call_id, call.name, time.monotonic() - begun, result)

    def _store_result(self, call: ToolCallPart, outcome: ToolOutcome) -> None:
        parts = tuple(_clean(part) for part in _bounded(outcome.parts)) or (TextPart("(no output)"),)
        message = ToolResult(
            id=new_id("msg"),
            time=now(),
            call_id=call.call_id,
            name=call.name,
            parts=parts,
            is_error=outcome.is_error,
            details=_jsonable(outcome.details) or None,
            turn_id=self.id,
        )
        self._store(message)
        self.say(
            ev.ToolResultEvent,
            call.call_id,
            call.name,
            call.arguments,
            text_of(parts),
            outcome.is_error,
            parts,
            dict(outcome.details) or None,
        )


class _Ears:
    """Turns deltas into events; knows which part is open."""

    __slots__ = ("_calls", "_message_id", "_open", "_turn")

    def __init__(self, turn: Turn, message_id: str) -> None:
        self._turn = turn
        self._message_id = message_id
        self._open: tuple[str, int] | None = None
        self._calls: dict[int, str] = {}

    def hear(self, delta: Any) -> None:
        turn, message_id = self._turn, self._message_id
        match delta:
            case TextDelta(index, _):
                if self._open != ("text", index):
                    self._switch("text", index)
                    turn.say(ev.TextStart, message_id, index)
            case ThinkingDelta(index, _):
                if self._open != ("thinking", index):
                    self._switch("thinking", index)
                    turn.say(ev.ThinkingStart, message_id, index)
            case ToolCallStart(index, call_id, name):
                self._switch("call", index)
                self._calls[index] = call_id
                turn.say(ev.ToolCallStarted, message_id, call_id, name)
            case ToolCallDelta(index, fragment):
                turn.say(ev.ToolCallGrew, message_id, self._calls.get(index, ""), fragment)
        turn.say(ev.MessageUpdate, message_id, delta)
        part = getattr(delta, "part", None)
        if isinstance(part, ServerPart):
            turn.say(ev.Source, message_id, part)

    def _switch(self, kind: str, index: int) -> None:
        self.done(keep_calls=True)
        self._open = (kind, index)

    def done(self, *, keep_calls: bool = False) -> None:
        if self._open is not None:
            kind, index = self._open
            if kind == "text":
                self._turn.say(ev.TextEnd, self._message_id, index)
            elif kind == "thinking":
                self._turn.say(ev.ThinkingEnd, self._message_id, index)
            self._open = None
        if not keep_calls:
            for call_id in self._calls.values():
                self._turn.say(ev.ToolCallWritten, self._message_id, call_id)


def media_kind(media_type: str) -> str:
    """``image``, ``pdf``, ``audio`` or ``file``."""
    if media_type.startswith("image/"):
        return "image"
    if media_type == "application/pdf":
        return "pdf"
    return "audio" if media_type.startswith("audio/") else "file"


def _parse_arguments(text: str) -> dict[str, Any] | None:
    if not text.strip():
        return {}
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _clean(part: Part) -> Part:
    """The part with lone surrogates replaced: they are no text, and no file or wire could hold them."""
    name = "arguments" if isinstance(part, ToolCallPart) else "text"
    text = getattr(part, name, "")
    if text.isascii():
        return part
    try:
        text.encode()
    except UnicodeEncodeError:
        changed: dict[str, Any] = {name: text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")}
        return replace(part, **changed)
    return part


def _with_ids(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """Calls that came without an id, or with one that was used before in this answer, get one of ours."""
    seen: set[str] = set()
    out: list[Part] = []
    for part in parts:
        if isinstance(part, ToolCallPart):
            if not part.call_id or part.call_id in seen:
                part = replace(part, call_id=new_id("call"))
            seen.add(part.call_id)
        out.append(part)
    return tuple(out)


def _bounded(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    out: list[Part] = []
    for part in parts:
        if isinstance(part, TextPart) and len(part.text) > RESULT_CHARACTERS:
            head, tail = part.text[: RESULT_CHARACTERS // 2], part.text[-RESULT_CHARACTERS // 2 :]
            left = len(part.text) - RESULT_CHARACTERS
            part = TextPart(f"{head}\n… {left:,} characters left out …\n{tail}")
        out.append(part)
    return tuple(out)


def _jsonable(details: Mapping[str, Any]) -> dict[str, Any]:
    from pydantic_core import to_jsonable_python

    out: dict[str, Any] = to_jsonable_python(dict(details), fallback=repr) if details else {}
    return out
