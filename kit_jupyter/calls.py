"""The tool calls of one answer: judged, run, and each answered exactly once.

Theory of operation
-------------------
Per call: the extensions' gates, the policy, a person if need be, then the tool. Denied, unknown, bad
arguments, crashed, timed out: all take the same road to an error result, and the model is told. Calls
beside each other run so only when their tools say that they may. Results are stored in the order of the
calls, also when the turn is stopped in the middle; a call that has none yet gets one that says so.

A tool runs in a task of its own: one that ignores being stopped is left behind, with a warning, so that
Stop always stops. User code goes over the turn's desk to the user's thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import difflib
import inspect
import json
import math
import operator
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from kit_jupyter import events as ev
from kit_jupyter.answer import clean
from kit_jupyter.errors import Denied, KitError, ToolError, UnknownTool
from kit_jupyter.house import turns_here
from kit_jupyter.loop import current_desk
from kit_jupyter.masking import masker
from kit_jupyter.messages import MediaPart, Part, TextPart, ToolCallPart, ToolResult, new_id, now, text_of
from kit_jupyter.permissions import Approval, Decision, Question, audit_record, question_of
from kit_jupyter.tool import Tool, ToolOutcome, outcome_of

if TYPE_CHECKING:
    from kit_jupyter.turn import Turn

__all__ = ["Calls", "parse_arguments"]

T = TypeVar("T")
RESULT_CHARACTERS = 400_000
RESULT_MEDIA_CHARACTERS = 30_000_000
DETAILS_BYTES = 1_000_000
STOP_PATIENCE_SECONDS = 3.0
# A process that is killed loses nothing. A machine that loses its power may lose this much of a burst of quick steps;
# waiting for the disk between those would be a third of their cost.
SYNC_SECONDS = 0.5
CUT_RESULT = "[interrupted: the call was stopped before it finished]"


class CallContext:
    """What one running tool may use: fulfils `ToolContext`."""

    def __init__(self, turn: Turn, call: ToolCallPart, calls: Calls) -> None:
        self._turn = turn
        self._calls = calls
        self.call_id = call.call_id
        self.tool_name = call.name
        self.turn_id = turn.id
        self.session_id = turn.house.session.id
        self.session = turn.house.session
        self.cell = turn.cell
        self.messages = turn.house.session.messages
        self._held: dict[str, str] = {}
        self._holding = threading.Lock()

    def progress(
        self,
        text: str | float = "",
        total: float | None = None,
        *,
        done: float | None = None,
        stream: str = "stdout",
        parts: tuple[Part, ...] = (),
    ) -> None:
        if not isinstance(text, str):
            done, text = text, ""
        if done is not None and (share := _share(done, total)) is not None:
            self._turn.say(ev.ToolOutput, self.call_id, "", stream, (), *share)
        with self._holding:  # a secret may come in pieces, and a piece alone is not known as one
            text = self._held.pop(stream, "") + text
            if n := masker.held(text):
                self._held[stream], text = text[-n:], text[:-n]
        self._show(text, stream, parts)

    def flush(self) -> None:
        """Show what was held back; the call is over."""
        with self._holding:
            held, self._held = self._held, {}
        for stream, text in held.items():
            self._show(text, stream, ())

    def _show(self, text: str, stream: str, parts: tuple[Part, ...]) -> None:
        if text or parts:
            shown = self._turn.house.mask(ToolOutcome.of_text(text))
            self._turn.say(ev.ToolOutput, self.call_id, shown.text, stream, parts)

    async def on_user_thread(self, fn: Callable[..., T | Awaitable[T]], *args: Any) -> T:
        desk = current_desk() or self._turn.house.desk
        return await desk.run(_within(self._turn.house.kit_id, fn), *args)

    def post_to_user_thread(self, fn: Callable[[], T | Awaitable[T]]) -> concurrent.futures.Future[T]:
        """As `on_user_thread`, without a wait: for `UserCall`, which waits and stops by itself."""
        desk = current_desk() or self._turn.house.desk
        return desk.post(_within(self._turn.house.kit_id, fn)).future

    async def ask(self, question: str, *, suggestion: str = "") -> bool:
        asked = Question(
            call_id=self.call_id, tool_name=self.tool_name, arguments={}, text=question, suggestion=suggestion
        )
        return (await self._calls.ask_person(asked)).allowed

    @property
    def state(self) -> dict[str, Any]:
        return self._turn.house.state


def _share(done: Any, total: Any) -> tuple[float, float | None] | None:
    """How far a tool is, as numbers that can be drawn and sent; None when they are none."""
    try:
        far, all_of_it = float(done), None if total is None else float(total)
    except (TypeError, ValueError, OverflowError):
        return None
    if not math.isfinite(far):
        return None
    if all_of_it is None or not math.isfinite(all_of_it) or all_of_it <= 0:
        return max(0.0, far), None
    return min(max(0.0, far), all_of_it), all_of_it


def _within(kit_id: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn`, knowing in whose turn it runs, on whichever thread that is."""

    async def awaiting(value: Awaitable[Any]) -> Any:
        turns_here.set(turns_here.get() | {kit_id})
        return await value

    def run(*args: Any) -> Any:
        token = turns_here.set(turns_here.get() | {kit_id})
        try:
            value = fn(*args)
        finally:
            turns_here.reset(token)
        return awaiting(value) if inspect.isawaitable(value) else value

    return run


class Calls:
    """The calls of one answer; make it and await `run` once."""

    def __init__(self, turn: Turn, calls: Sequence[ToolCallPart], tools: Sequence[Tool]) -> None:
        self._turn = turn
        self._calls = tuple(calls)
        self._tools = {tool.spec.name: tool for tool in tools}
        self._announced: set[int] = set()
        self.outcomes: dict[int, ToolOutcome] = {}

    async def run(self) -> ToolOutcome | None:
        """Run them all and store their results; the outcome that ends the turn, if one does."""
        await self._turn.house.session.sync_soon(within_seconds=SYNC_SECONDS)
        try:
            await self._run_batches()
        except BaseExceptionGroup as group:
            raise _first_of(group) from group
        finally:
            self._store()
        return next((self.outcomes[i] for i in sorted(self.outcomes) if self.outcomes[i].halt), None)

    def refuse(self, text: str) -> None:
        """Answer all of them with an error and run none."""
        for i in range(len(self._calls)):
            self.outcomes[i] = ToolOutcome.of_text(text, is_error=True)
        self._store()

    # ------------------------------------------------------------ running

    async def _run_batches(self) -> None:
        calls = self._calls
        i = 0
        while i < len(calls):
            j = i
            while j < len(calls) and getattr(self._tools.get(calls[j].name), "parallel_safe", False):
                j += 1
            if j - i > 1:
                async with asyncio.TaskGroup() as group:
                    for k in range(i, j):
                        group.create_task(self._execute(k))
            else:
                j = i + 1
                await self._execute(i)
            if any(outcome.halt for outcome in self.outcomes.values()):
                for k in range(j, len(calls)):
                    self.outcomes[k] = ToolOutcome.of_text("[not run: an earlier call ended the turn]", is_error=True)
                return
            i = j

    def _announce(self, i: int) -> dict[str, Any] | None:
        """Tell of the call, once, before anything else is told of it; its arguments as a value."""
        call = self._calls[i]
        parsed = parse_arguments(call.arguments)
        self._announced.add(i)
        self._turn.say(ev.ToolCall, call.call_id, call.name, call.arguments, parsed)
        return parsed

    async def _execute(self, i: int) -> None:
        try:
            outcome = await self._judge_and_run(self._calls[i], self._announce(i))
        except ToolError as exc:
            outcome = self._turn.house.mask(ToolOutcome.of_text(exc.message, is_error=True))
        self.outcomes[i] = outcome
        if outcome.details.get("interrupted"):  # a person pressed Ctrl-C or Interrupt in the tool's code
            self._turn.abort()

    async def _judge_and_run(self, call: ToolCallPart, parsed: dict[str, Any] | None) -> ToolOutcome:
        house, tools = self._turn.house, self._tools
        tool = tools.get(call.name)
        if tool is None:
            near = difflib.get_close_matches(call.name, tools, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise UnknownTool(f"there is no tool {call.name!r}{hint}; the tools are: {', '.join(tools) or 'none'}")
        if parsed is None:
            raise ToolError(
                f"the arguments of {call.name} are not a JSON object: {call.arguments[:200]!r}; send them again, whole"
            )
        gate = await house.host.before_tool(call, parsed)
        if gate.block:
            self._turn.say(ev.ApprovalGiven, call.call_id, call.name, "deny", "extension", gate.reason)
            raise Denied(f"{call.name} was not run: {gate.reason or 'an extension blocked it'}")
        arguments = tool.validate(gate.arguments if gate.arguments is not None else parsed)
        context = CallContext(self._turn, call, self)
        prepare = getattr(tool, "prepare", None)  # what it must know before a person can be asked well
        if prepare is not None:
            await prepare(context, arguments)
        arguments = await self._permit(tool, call, arguments, context)
        outcome = _bounded(await self._timed(tool, call, arguments, context))
        outcome = await house.host.after_tool(call, outcome)
        return house.mask(_bounded(outcome))

    # ------------------------------------------------------------ asking

    async def _permit(
        self, tool: Tool, call: ToolCallPart, arguments: dict[str, Any], context: CallContext
    ) -> dict[str, Any]:
        policy = self._turn.house.policy
        try:
            if _is_users_own(tool.approve):
                decision = await context.on_user_thread(policy.decide, tool, arguments, context)
            else:
                decision = policy.decide(tool, arguments, context)
        except Exception as exc:  # a rule that fails must not let anything through
            decision = Decision(effect="ask", reason=f"a rule failed ({type(exc).__name__}: {exc})")
        if decision.effect != "ask":
            self._audit(call, arguments, decision)
            self._turn.say(ev.ApprovalGiven, call.call_id, call.name, decision.effect, "policy", decision.reason)
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
        self._turn.house.session.append_custom("permission", {**record, "turn_id": self._turn.id})

    async def ask_person(self, question: Question) -> Approval:
        """Ask, tell of question and answer, and let the policy remember it."""
        turn = self._turn
        expect = getattr(turn.house.approver, "expect", None)
        if expect is not None:
            expect(question)
        turn.say(
            ev.ApprovalAsked,
            question.call_id,
            question.tool_name,
            json.dumps(dict(question.arguments), default=repr),
            question.text,
            question.suggestion,
        )
        approval = Approval(allowed=False, by="stop", reason="the turn was stopped")
        try:
            approval = await turn.house.approver.ask(question)
        except Exception as exc:
            approval = Approval(allowed=False, by="approver", reason=f"asking failed ({type(exc).__name__}: {exc})")
        finally:
            turn.say(
                ev.ApprovalGiven,
                question.call_id,
                question.tool_name,
                "allow" if approval.allowed else "deny",
                approval.by or "person",
                approval.reason,
            )
        if approval.scope != "once":
            turn.house.policy.remember(question, approval)
        return approval

    # ------------------------------------------------------------ the tool itself

    async def _timed(
        self, tool: Tool, call: ToolCallPart, arguments: dict[str, Any], context: CallContext
    ) -> ToolOutcome:
        begun = time.monotonic()
        how = "error"
        self._turn.say(ev.ToolExecutionStart, call.call_id, call.name, begun)
        try:
            task = asyncio.ensure_future(_caught(tool, context, arguments))
            try:
                done, _ = await asyncio.wait([task], timeout=tool.timeout_seconds)
            except asyncio.CancelledError:
                how = "cancelled"
                await self._stop(task, call)
                raise
            if not done:
                how = "timeout"
                await self._stop(task, call)
                text = f"{call.name} took longer than {tool.timeout_seconds:g} s and was stopped"
                return ToolOutcome.of_text(text, is_error=True)
            outcome = task.result()
            how = "error" if outcome.is_error else "ok"
            return outcome
        finally:
            context.flush()
            self._turn.say(ev.ToolExecutionEnd, call.call_id, call.name, time.monotonic() - begun, how)

    async def _stop(self, task: asyncio.Task[ToolOutcome], call: ToolCallPart) -> None:
        """Cancel it and wait; a second stop, or a tool that ignores this, ends the wait."""
        task.cancel()
        try:
            await asyncio.wait([task], timeout=STOP_PATIENCE_SECONDS)
        except asyncio.CancelledError:
            pass  # asked twice; our caller goes on with its own cancel
        if not task.done():
            self._turn.say(ev.Warned, f"{call.name} does not stop when it is told to; it may still be running", "tool")

    # ------------------------------------------------------------ results

    def _store(self) -> None:
        failed: KitError | None = None
        for i, call in enumerate(self._calls):
            if i not in self._announced:
                self._announce(i)
            outcome = self.outcomes.get(i) or ToolOutcome.of_text(CUT_RESULT, is_error=True)
            try:
                self._store_one(call, outcome)
            except KitError as exc:  # the disk: the rest must still be told
                failed = failed or exc
        if failed is not None:
            raise failed

    def _store_one(self, call: ToolCallPart, outcome: ToolOutcome) -> None:
        parts = tuple(clean(part) for part in outcome.parts) or (TextPart("(no output)"),)
        details = _storable(outcome.details)
        message = ToolResult(
            id=new_id("msg"),
            time=now(),
            call_id=call.call_id,
            name=call.name,
            parts=parts,
            is_error=outcome.is_error,
            details=details,
            turn_id=self._turn.id,
        )
        try:
            self._turn.store(message)
        finally:
            self._turn.say(
                ev.ToolResultEvent,
                call.call_id,
                call.name,
                call.arguments,
                text_of(parts),
                outcome.is_error,
                parts,
                dict(outcome.details) or None,
            )


async def _caught(tool: Tool, context: CallContext, arguments: dict[str, Any]) -> ToolOutcome:
    """What the tool gives, whatever it raises; only a cancel from outside goes through."""
    try:
        outcome: Any = await tool.run(context, arguments)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return ToolOutcome.of_text("the tool cancelled itself", is_error=True)
    except ToolError as exc:
        return ToolOutcome.of_text(exc.message, is_error=True)
    except BaseException as exc:  # SystemExit and KeyboardInterrupt too: they would tear down the engine's loop
        return ToolOutcome.of_text(f"{type(exc).__name__}: {exc}", is_error=True)
    return outcome if isinstance(outcome, ToolOutcome) else outcome_of(outcome)


def _is_users_own(approve: Any) -> bool:
    """Code of a person, as against a tool of this package: it runs on the person's thread."""
    return callable(approve) and not str(getattr(approve, "__module__", "")).startswith("kit_jupyter.")


def _first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    inner = group.exceptions[0]
    return _first_of(inner) if isinstance(inner, BaseExceptionGroup) else inner


def parse_arguments(text: str) -> dict[str, Any] | None:
    """The JSON object in a call's arguments; none when it is not one."""
    if not text.strip():
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _bounded(outcome: ToolOutcome) -> ToolOutcome:
    """The outcome without what no model could take: a text loses its middle, a huge file its content."""
    parts = tuple([_bounded_part(part) for part in outcome.parts])
    if all(map(operator.is_, parts, outcome.parts)):
        return outcome
    return ToolOutcome(
        parts=parts, is_error=outcome.is_error, halt=outcome.halt, value=outcome.value, details=outcome.details
    )


def _bounded_part(part: Part) -> Part:
    if isinstance(part, TextPart) and len(part.text) > RESULT_CHARACTERS:
        half = RESULT_CHARACTERS // 2 - 100  # so that with the note it is short enough
        head, tail = part.text[:half], part.text[-half:]
        left = len(part.text) - 2 * half
        return TextPart(f"{head}\n… {left:,} characters left out …\n{tail}")
    if isinstance(part, MediaPart) and len(part.data) > RESULT_MEDIA_CHARACTERS:
        return TextPart(f"[{part.media_type} {part.name}: {len(part.data) * 3 // 4:,} bytes, too large to be shown]")
    return part


def _storable(details: Mapping[str, Any]) -> dict[str, Any] | None:
    """Details as JSON values; what cannot be stored stands as a note."""
    if not details:
        return None
    from pydantic_core import from_json, to_json

    try:
        raw = to_json(dict(details), fallback=repr, inf_nan_mode="null")
    except Exception as exc:
        return {"not_stored": f"{type(exc).__name__}"}
    if len(raw) > DETAILS_BYTES:
        return {"not_stored": f"{len(raw):,} bytes"}
    value: dict[str, Any] = from_json(raw)
    return value
