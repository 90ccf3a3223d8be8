"""Turns: tools and their results, stopping, cancelling, and that whatever was begun is ended."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from kit_jupyter import KitError, PromptOptions, Session, SessionError, UsageError, halt, tool
from kit_jupyter import events as ev
from kit_jupyter.extension import BeforeTool, StepPlan
from kit_jupyter.messages import MediaPart, ServerPart, ToolResult, ToolSpec
from kit_jupyter.provider import ModelInfo
from kit_jupyter.testing import (
    Piece,
    cut,
    delay,
    finish,
    gate,
    image,
    overflow,
    provider_error,
    record_events,
    text,
    thinking,
    tool_call,
    unanswered_calls,
)
from kit_jupyter.tool import ToolOutcome

from .helpers import area, texts, until


@tool(approve="ask")
def asked_area(width: int, height: int) -> int:
    """Area of a rectangle, after a person agreed."""
    return width * height


class RawTool:
    """A tool written by hand, run on the engine."""

    legs = None
    parallel_safe = False
    timeout_seconds: float | None = None
    approve = "allow"

    def __init__(self, name: str, fn: Any, **facts: Any) -> None:
        self.spec = ToolSpec(name=name, description=name, schema={"type": "object", "properties": {}})
        self.fn = fn
        for key, value in facts.items():
            setattr(self, key, value)

    def validate(self, arguments: Any) -> dict[str, Any]:
        return dict(arguments)

    async def run(self, context: Any, arguments: dict[str, Any]) -> Any:
        return await self.fn(context, **arguments)


def results(kit: Any) -> list[ToolResult]:
    """The stored tool results, in order."""
    return [m for m in kit.messages if isinstance(m, ToolResult)]


# ---------------------------------------------------------------- each call, one result


async def test_each_kind_of_failure_takes_the_same_road(make: Any) -> None:
    """S26, S42, law 2: unknown, bad JSON, bad arguments, crash, denied: is_error, told to the model, and on it goes."""

    def crash() -> None:
        """Crashes."""
        raise ValueError("broken pipe")

    @tool(approve="deny")
    def secret() -> str:
        """Denied."""
        return "no"

    kit, provider = make(
        [
            tool_call("areaa", width=1),
            tool_call("area", raw="{not json"),
            tool_call("area", raw="[1]"),
            tool_call("area", width="wide", height=2),
            tool_call("crash"),
            tool_call("secret"),
            tool_call("area", width=2, height=3),
        ],
        "done",
        tools=[area, crash, secret],
    )
    with record_events(kit) as log:
        result = await kit.prompt("go")

    assert str(result) == "done"
    told = [m.parts[0].text for m in results(kit)]
    assert "did you mean 'area'" in told[0]
    assert "not a JSON object" in told[1]
    assert "not a JSON object" in told[2]
    assert "width" in told[3]
    assert "ValueError: broken pipe" in told[4]
    assert "was not run" in told[5]
    assert told[6] == "6"
    assert [m.is_error for m in results(kit)] == [True] * 6 + [False]
    calls = [e.call_id for e in log.of(ev.ToolCall)]
    assert calls == [e.call_id for e in log.of(ev.ToolResultEvent)] == [m.call_id for m in results(kit)]
    said = [(e.name, e.arguments) for e in log.of(ev.ToolCall)]
    assert said[1] == ("area", "{not json")
    assert [(e.name, e.arguments) for e in log.of(ev.ToolResultEvent)] == said
    assert [(e.result, e.is_error) for e in log.of(ev.ToolResultEvent)] == [
        (m.parts[0].text, m.is_error) for m in results(kit)
    ]
    assert log.of(ev.ToolCall)[1].parsed is None
    assert [e.call_id for e in log.of(ev.ToolExecutionStart)] == [e.call_id for e in log.of(ev.ToolExecutionEnd)]
    assert [e.outcome for e in log.of(ev.ToolExecutionEnd)] == ["error", "ok"]
    assert unanswered_calls(provider.last_request) == []


async def test_calls_without_ids_or_with_one_id_twice_get_ids_of_their_own(make: Any) -> None:
    """Law 2: services repeat or leave out call ids; every result still has its call."""
    kit, provider = make(
        [tool_call("area", call_id="same", width=1, height=1), tool_call("area", call_id="same", width=2, height=2)],
        "done",
        tools=[area],
    )

    await kit.prompt("go")

    ids = [m.call_id for m in results(kit)]
    assert len(set(ids)) == 2
    assert unanswered_calls(provider.last_request) == []


async def test_results_of_parallel_calls_are_stored_in_the_order_of_the_calls(make: Any) -> None:
    """S32: the first to end is not the first stored; both ran at once."""
    both = asyncio.Barrier(2)
    order: list[str] = []

    async def one(context: Any, name: str = "", wait: float = 0) -> ToolOutcome:
        await asyncio.wait_for(both.wait(), 5)
        await asyncio.sleep(wait)
        order.append(name)
        return ToolOutcome.of_text(name)

    kit, _ = make(
        [tool_call("both", name="slow", wait=0.05), tool_call("both", name="quick", wait=0)],
        "done",
        tools=[RawTool("both", one, parallel_safe=True)],
    )

    await kit.prompt("go")

    assert order == ["quick", "slow"]
    assert [m.parts[0].text for m in results(kit)] == ["slow", "quick"]


async def test_a_disk_error_beside_parallel_tools_is_one_clear_error(make: Any, monkeypatch: Any) -> None:
    """Law 2: no exception group reaches the caller; every call has its result event."""
    kit, _ = make(
        [tool_call("x"), tool_call("x")],
        tools=[RawTool("x", lambda context: asyncio.sleep(0, ToolOutcome.of_text("ok")), parallel_safe=True)],
        session=None,
    )

    def refuse(*_: Any) -> None:
        raise SessionError("the disk is full")

    monkeypatch.setattr(kit.session, "append_custom", refuse)
    with record_events(kit) as log, pytest.raises(SessionError, match="generation failed: the disk is full"):
        await kit.prompt("go")

    assert len(log.of(ev.ToolCall)) == len(log.of(ev.ToolResultEvent)) == 2
    assert isinstance(log[-1], ev.TurnEnd)


@pytest.mark.parametrize("error", [SystemExit(2), KeyboardInterrupt(), asyncio.CancelledError()])
async def test_what_a_tool_of_the_engine_raises_stays_in_its_result(make: Any, error: BaseException) -> None:
    """Found by reading: SystemExit in a tool ended the engine's thread; a cancel of its own ended the turn."""

    async def bad(context: Any) -> None:
        raise error

    kit, _ = make([tool_call("bad")], "done", tools=[RawTool("bad", bad)])

    result = await asyncio.wait_for(kit.prompt("go"), 5)

    assert str(result) == "done"
    assert results(kit)[0].is_error


async def test_a_tool_may_return_plain_values(make: Any) -> None:
    """A hand-written tool that forgets the outcome type is not an error of the turn."""

    async def plain(context: Any) -> Any:
        return {"a": 1}

    kit, _ = make([tool_call("plain")], "done", tools=[RawTool("plain", plain)])

    await kit.prompt("go")

    assert results(kit)[0].parts[0].text == '{"a":1}'


async def test_a_tool_that_takes_too_long_is_stopped_and_told(make: Any) -> None:
    """S25, S41: time-out has its own end, which has its start; the model is told the limit."""

    async def slow(context: Any) -> None:
        await asyncio.sleep(60)

    kit, _ = make([tool_call("slow")], "done", tools=[RawTool("slow", slow, timeout_seconds=0.05)])
    with record_events(kit) as log:
        await kit.prompt("go")

    start, end = log.of(ev.ToolExecutionStart, ev.ToolExecutionEnd)
    assert start.call_id == end.call_id == results(kit)[0].call_id
    assert end.outcome == "timeout"
    assert 0.05 <= end.duration_seconds < 30
    assert "longer than 0.05 s" in results(kit)[0].parts[0].text


async def test_a_time_out_inside_a_tool_is_its_own_error(make: Any) -> None:
    """A TimeoutError that the tool raises is not taken for our limit."""

    async def slow(context: Any) -> None:
        raise TimeoutError("the other side")

    kit, _ = make([tool_call("slow")], "done", tools=[RawTool("slow", slow, timeout_seconds=9)])

    await kit.prompt("go")

    assert results(kit)[0].parts[0].text == "TimeoutError: the other side"


async def test_a_result_of_a_gigabyte_is_bounded(make: Any) -> None:
    """Bad input: text loses its middle and says how much; a huge file its content; huge details their value."""

    async def huge(context: Any, what: str = "") -> ToolOutcome:
        match what:
            case "text":
                return ToolOutcome.of_text("x" * (1 << 30))
            case "file":
                return ToolOutcome(parts=(MediaPart("image/png", "A" * 40_000_000, "plot.png"),))
        return ToolOutcome(details={"a": "x" * 2_000_000, "b": object()})

    kit, _ = make(
        [tool_call("huge", what="text"), tool_call("huge", what="file"), tool_call("huge", what="details")],
        "done",
        tools=[RawTool("huge", huge)],
    )

    await kit.prompt("go")

    first, second, third = results(kit)
    assert len(first.parts[0].text) < 410_000
    assert f"{(1 << 30) - 399_800:,} characters left out" in first.parts[0].text
    assert "30,000,000 bytes, too large" in second.parts[0].text
    assert third.details is not None
    assert "not_stored" in third.details


async def test_lone_surrogates_and_odd_values_in_results_are_stored(make: Any, tmp_path: Path) -> None:
    """Bad input from tools: text is repaired, details that cannot be JSON stand as a note; the file opens again."""

    async def odd(context: Any) -> ToolOutcome:
        return ToolOutcome(
            parts=ToolOutcome.of_text("a\udc80b\0").parts, details={"x": "\ud800", "y": float("nan"), "z": {1, 2}}
        )

    kit, _ = make([tool_call("odd")], "done", tools=[RawTool("odd", odd)], session=None)

    await kit.prompt("go")

    kit.session.close()
    from kit_jupyter import Session

    assert Session.open(kit.session.path).messages()[2].parts[0].text == "a�b\0"


async def test_halt_ends_the_turn_with_a_value(make: Any) -> None:
    """A halting tool ends the turn after its batch; later calls are answered; no more model calls."""

    def choose(label: str) -> Any:
        """Choose."""
        return halt({"label": label})

    kit, provider = make([tool_call("choose", label="b"), tool_call("area", width=1, height=1)], tools=[choose, area])

    result = await kit.prompt("go")

    assert result.value == {"label": "b"}
    assert result.stop_reason == "halted"
    assert len(provider.requests) == 1
    assert "an earlier call ended the turn" in results(kit)[1].parts[0].text


# ---------------------------------------------------------------- stopping


async def test_stop_in_a_stream_keeps_what_came(make: Any) -> None:
    """S52, U16: within a second; the partial text is the result and is stored, marked; the next turn is valid."""
    kit, provider = make([thinking("hm"), text("half an"), delay(60)], "ok")
    task = asyncio.ensure_future(kit.prompt("go"))
    await until(lambda: provider.requests)
    await asyncio.sleep(0.05)
    begun = time.monotonic()

    with record_events(kit) as log:
        await kit.abort()
    result = await task

    assert time.monotonic() - begun < 1
    assert (str(result), result.stop_reason) == ("half an", "aborted")
    assert kit.messages[-1].result.finish == "aborted"
    assert log.names[-3:] == ["UsageReport", "StepEnd", "TurnEnd"]
    assert (log[-1].stop_reason, log[-1].error) == ("aborted", "")
    assert str(await kit.prompt("next")) == "ok"
    assert [role for role, _ in texts(provider.last_request)] == ["user", "assistant", "user"]


async def test_stop_in_a_tool_answers_every_call(make: Any) -> None:
    """S25, S41, S52, law 2: the running tool is stopped, those behind it do not run; the next request answers all."""
    going = asyncio.Event()
    loop = asyncio.get_running_loop()

    def block() -> str:
        """Blocks."""
        loop.call_soon_threadsafe(going.set)
        for _ in range(3_000):
            time.sleep(0.01)
        return "never"

    kit, provider = make([tool_call("block"), tool_call("area", width=1, height=1)], "ok", tools=[block, area])
    with record_events(kit) as log:
        task = asyncio.ensure_future(asyncio.to_thread(kit.prompt_sync, "go"))
        await asyncio.wait_for(going.wait(), 5)
        begun = time.monotonic()
        await kit.abort()
        result = await task

    assert time.monotonic() - begun < 3
    assert result.stop_reason == log[-1].stop_reason == "aborted"
    assert [m.is_error for m in results(kit)] == [True, True]
    assert [e.call_id for e in log.of(ev.ToolExecutionStart)] == [results(kit)[0].call_id]
    assert [(e.call_id, e.outcome) for e in log.of(ev.ToolExecutionEnd)] == [(results(kit)[0].call_id, "cancelled")]
    assert len(log.of(ev.ToolCall)) == len(log.of(ev.ToolResultEvent)) == 2
    await kit.prompt("next")
    assert unanswered_calls(provider.last_request) == []


async def test_a_tool_that_ignores_being_stopped_is_left_behind(make: Any, monkeypatch: Any) -> None:
    """Stop stops: a warning says that it may still run; a second stop does not wait at all."""
    monkeypatch.setattr("kit_jupyter.calls.STOP_PATIENCE_SECONDS", 0.2)
    release = asyncio.Event()
    going = threading.Event()

    async def stubborn(context: Any) -> ToolOutcome:
        going.set()
        while not release.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                pass
        return ToolOutcome.of_text("at last")

    kit, _ = make([tool_call("stubborn")], "ok", tools=[RawTool("stubborn", stubborn)])
    with record_events(kit) as log:
        task = asyncio.ensure_future(kit.prompt("go"))
        await until(going.is_set)
        await asyncio.wait_for(_awaited(kit.abort()), 3)
        result = await task

    assert result.stop_reason == "aborted"
    assert "does not stop" in log.of(ev.Warned)[0].message
    release.set()
    assert str(await kit.prompt("next")) == "ok"


async def test_a_second_stop_does_not_wait(make: Any) -> None:
    """Asked twice, the turn ends at once."""
    going = threading.Event()
    release = threading.Event()

    async def stubborn(context: Any) -> ToolOutcome:
        going.set()
        while not release.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                pass
        return ToolOutcome.of_text("at last")

    kit, _ = make([tool_call("stubborn")], tools=[RawTool("stubborn", stubborn)])
    task = asyncio.ensure_future(kit.prompt("go"))
    await until(going.is_set)
    begun = time.monotonic()
    first = kit.abort()
    await asyncio.sleep(0.1)
    await kit.abort()
    await first
    release.set()

    assert (await task).stop_reason == "aborted"
    assert time.monotonic() - begun < 2


async def _awaited(thing: Any) -> None:
    await thing


async def test_cancelling_the_await_stops_the_turn_and_is_raised(make: Any) -> None:
    """S52: an external cancel stores the partial text, closes everything and comes out as CancelledError."""
    kit, provider = make([text("half"), delay(60)], "ok")
    with record_events(kit) as log:
        task = asyncio.ensure_future(kit.prompt("go"))
        await until(lambda: any(isinstance(e, ev.MessageUpdate) for e in log))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert not kit.is_running
    assert provider.closed_early == 1
    assert isinstance(log[-1], ev.TurnEnd)
    assert log[-1].stop_reason == "aborted"
    assert kit.messages[-1].parts[0].text == "half"
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(kit.prompt("late", when_busy="refuse"), 0.0)
    kit._provider_given.script("ok")
    assert str(await kit.prompt("next")) in ("ok",)


async def test_a_stop_together_with_the_time_limit_ends_the_turn_once(make: Any) -> None:
    """`asyncio.timeout` and abort at the same moment: one end, no leak of a cancel into the caller."""
    for _ in range(20):
        kit, _ = make([delay(60)], "ok")
        task = asyncio.ensure_future(kit.prompt("go", options=PromptOptions(timeout_seconds=0.01)))
        with record_events(kit) as log:
            await asyncio.sleep(0.01)
            kit.abort()
            outcome = (await asyncio.gather(task, return_exceptions=True))[0]
        assert isinstance(outcome, UsageError) or outcome.stop_reason == "aborted"
        assert len(log.of(ev.TurnEnd)) <= 1
        assert str(await kit.prompt("next")) == "ok"


async def test_a_stop_while_guests_look_at_the_end_still_ends_the_turn(make: Any) -> None:
    """Law 1: TurnEnd is last, also when the stop comes during the after-turn hooks."""
    going = threading.Event()

    def configure(c: Any) -> None:
        async def slow(response: str, error: Any) -> None:
            going.set()
            await asyncio.sleep(0.3)

        c.add_hook("after_turn", slow)

    for how in ("abort", "cancel"):
        kit, _ = make("answer", configure=configure)
        going.clear()
        with record_events(kit) as log:
            task = asyncio.ensure_future(kit.prompt("go"))
            await until(going.is_set)
            if how == "abort":
                await kit.abort()
                assert str(await task) == "answer"
            else:
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
        assert isinstance(log[-1], ev.TurnEnd)
        assert not kit.is_running


async def test_a_steer_in_a_turns_last_moment_begins_a_turn_of_its_own(make: Any) -> None:
    """Found by reading: it was refused while guests looked at the end. Now neither lost nor doubled."""
    going = threading.Event()

    def configure(c: Any) -> None:
        async def slow(response: str, error: Any) -> None:
            going.set()
            await asyncio.sleep(0.1)

        c.add_hook("after_turn", slow)

    kit, provider = make("answer", "steered", "again", configure=configure)
    task = asyncio.ensure_future(kit.prompt("go"))
    await until(going.is_set)

    result = await kit.steer("be brief")

    assert str(result) == "steered"
    assert str(await task) == "answer"
    assert kit.queue.returned == ()
    assert str(texts(provider.last_request)).count("be brief") == 1
    going.clear()


# ---------------------------------------------------------------- a Kit inside a tool


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_tool_that_prompts_its_own_kit_is_told_so(make: Any, is_async: bool) -> None:
    """No deadlock: a UsageError reaches the model, in each way to wait for it."""
    held: list[Any] = []

    def again(how: str) -> str:
        """Prompts its own Kit."""
        return str(held[0].prompt_sync("inner", when_busy=how))

    async def again_async(how: str) -> str:
        """Prompts its own Kit."""
        return str(await held[0].prompt("inner", when_busy=how))

    fn = again_async if is_async else again
    kit, _ = make([tool_call(fn.__name__, how=how) for how in ("refuse", "queue", "steer")], "done", tools=[fn])
    held.append(kit)

    result = await asyncio.wait_for(kit.prompt("go"), 10)

    assert str(result).startswith("done")
    told = [m.parts[0].text for m in results(kit)]
    assert "a turn is running" in told[0]
    assert "cannot wait for that turn" in told[1]
    assert "cannot wait for that turn" in told[2]


@pytest.mark.parametrize("outer_sync", [False, True])
@pytest.mark.parametrize("inner_sync", [False, True])
async def test_a_tool_may_use_another_kit(make: Any, outer_sync: bool, inner_sync: bool) -> None:
    """Sync and async, inside and outside, without deadlock; the inner Kit's tools run too."""
    where: list[str] = []

    def note() -> str:
        """Notes the thread."""
        where.append(threading.current_thread().name)
        return "noted"

    inner, _ = make([tool_call("note")], "inner answer", tools=[note])

    def ask() -> str:
        """Asks another Kit."""
        where.append(threading.current_thread().name)
        return str(inner.prompt_sync("x"))

    async def ask_async() -> str:
        """Asks another Kit."""
        where.append(threading.current_thread().name)
        return str(await inner.prompt("x"))

    fn = ask if inner_sync else ask_async
    outer, _ = make([tool_call(fn.__name__)], "outer answer", tools=[fn])

    if outer_sync:
        result = await asyncio.wait_for(asyncio.to_thread(outer.prompt_sync, "go"), 10)
    else:
        result = await asyncio.wait_for(outer.prompt("go"), 10)

    assert str(result) == "outer answer"
    assert results(outer)[0].parts[0].text == "inner answer"
    assert len(set(where)) == 1


async def test_a_tool_on_the_engine_may_use_another_kit_and_not_block(make: Any) -> None:
    """A tool written for the engine awaits another Kit; the blocking form there is refused."""
    inner, _ = make("inner")

    async def ask(context: Any, sync: bool = False) -> str:
        return str(inner.prompt_sync("x") if sync else await inner.prompt("x"))

    outer, _ = make([tool_call("ask"), tool_call("ask", sync=True)], "outer", tools=[RawTool("ask", ask)])

    await asyncio.wait_for(outer.prompt("go"), 10)

    assert results(outer)[0].parts[0].text == "inner"
    assert "await prompt instead" in results(outer)[1].parts[0].text


async def test_stopping_an_inner_kit_does_not_stop_the_outer_turn(make: Any) -> None:
    """The inner turn's cancel is its own, although both run in one task on the engine."""
    inner, inner_provider = make([text("half"), delay(60)])

    async def ask(context: Any) -> str:
        return (await inner.prompt("x")).stop_reason

    outer, _ = make([tool_call("ask")], "outer", tools=[RawTool("ask", ask)])
    task = asyncio.ensure_future(outer.prompt("go"))
    await until(lambda: inner_provider.requests)
    await inner.abort()

    assert str(await asyncio.wait_for(task, 5)) == "outer"
    assert results(outer)[0].parts[0].text == "aborted"


async def test_stopping_the_outer_turn_stops_the_inner_one(make: Any) -> None:
    """Nothing runs on behind the person's back."""
    inner, inner_provider = make([delay(60)])

    async def ask(context: Any) -> str:
        return str(await inner.prompt("x"))

    outer, _ = make([tool_call("ask")], tools=[RawTool("ask", ask)])
    task = asyncio.ensure_future(outer.prompt("go"))
    await until(lambda: inner_provider.requests)
    await outer.abort()

    assert (await asyncio.wait_for(task, 5)).stop_reason == "aborted"
    assert not inner.is_running
    assert inner_provider.closed_early == 1


async def test_a_tool_may_steer_its_own_turn_and_cannot_close_its_kit(make: Any) -> None:
    """Verbs that do not wait work from inside; those that would wait for themselves say so."""
    held: list[Any] = []

    def inside() -> str:
        """Uses its own Kit."""
        held[0].queue_steer("from inside")
        try:
            held[0].close()
        except UsageError as exc:
            return str(exc)
        return "closed"

    kit, provider = make([tool_call("inside")], "done", tools=[inside])
    held.append(kit)

    await asyncio.wait_for(kit.prompt("go"), 10)

    assert "cannot close its Kit" in results(kit)[0].parts[0].text
    assert texts(provider.last_request)[-1] == ("system", "from inside")


# ---------------------------------------------------------------- what models do


async def test_a_stream_that_is_cut_is_an_error_and_what_came_is_kept(make: Any) -> None:
    """A stream without its finish is a wire error; its calls never run."""
    kit, provider = make([text("half"), tool_call("run"), cut()], "ok")

    with pytest.raises(KitError, match="the stream ended before the answer was complete"):
        await kit.prompt("go")

    assert [p.type for p in kit.messages[-1].parts] == ["text"]
    assert str(await kit.prompt("next")) == "ok"
    assert unanswered_calls(provider.last_request) == []


async def test_a_refusal_with_calls_runs_no_tools(make: Any) -> None:
    """`content_filter` and `refusal` end the turn with that reason; the calls are answered in the next request."""
    for reason in ("content_filter", "refusal"):
        kit, provider = make([tool_call("area", width=1, height=1), finish(reason)], "ok", tools=[area])
        result = await kit.prompt("go")
        assert result.stop_reason == reason
        assert results(kit) == []
        await kit.prompt("next")
        assert unanswered_calls(provider.last_request) == []


async def test_a_pause_goes_on_with_what_was_said(make: Any) -> None:
    """A service that stops in the middle of its own tools is called again, up to the limit."""
    from kit_jupyter.messages import Native, PartAdded, ServerPart

    part = ServerPart("result", "web_search", Native("scripted", {"x": 1}), "found")
    kit, _ = make([Piece("part", part), finish("pause")], "done", [finish("pause")])
    with record_events(kit) as log:
        assert str(await kit.prompt("go")) == "done"
    assert log.of(ev.Source)[0].part == part
    assert PartAdded(0, part)
    assert (await kit.prompt("again", options=PromptOptions(max_steps=1))).stop_reason == "max_steps"


async def test_a_finish_that_nobody_knows_is_kept_as_it_came(make: Any) -> None:
    """S121: unknown reasons stay as raw text."""
    kit, _ = make([text("x"), finish("other", "strange_new_reason")])

    await kit.prompt("go")

    assert (kit.messages[-1].result.finish, kit.messages[-1].result.raw) == ("other", "strange_new_reason")
    kit, _ = make([text("x"), finish("invented", "invented")])  # a provider that says a word of its own

    result = await kit.prompt("go")

    assert result.stop_reason == kit.messages[-1].result.finish == "other"
    assert kit.messages[-1].result.raw == "invented"


async def test_pictures_and_files_go_where_the_model_can_take_them(make: Any, tmp_path: Path) -> None:
    """Parts in: bytes, path, text file; a model that cannot see refuses clearly, and nothing is stored."""
    png = b"\x89PNG\r\n\x1a\n" + b"0" * 20
    (tmp_path / "notes.txt").write_text("read me")
    kit, provider = make("ok", info=ModelInfo(takes=frozenset({"image"})))

    await kit.prompt("look", parts=[png, tmp_path / "notes.txt"])

    parts = provider.last_request.messages[0].parts
    assert [p.type for p in parts] == ["text", "media", "text"]
    assert parts[1].media_type == "image/png"
    assert parts[2].text == "notes.txt:\nread me"
    with pytest.raises(UsageError, match="cannot take application/pdf: it takes image besides text"):
        await kit.prompt("read", parts=[b"%PDF-1.4"])
    blind, _ = make("ok", info=ModelInfo(takes=frozenset()))
    with pytest.raises(UsageError, match="it takes text only"):
        await blind.prompt("look", parts=[png])
    assert blind.messages == ()


async def test_a_picture_the_model_made_is_kept(make: Any) -> None:
    """Media in an answer are parts of the message."""
    kit, _ = make([text("here"), image(b"\x89PNG\r\n\x1a\nxx")])

    result = await kit.prompt("draw")

    assert [p.type for p in result.parts] == ["text", "media"]
    assert not any(isinstance(p, ServerPart) for p in result.parts)


# ---------------------------------------------------------------- structured answers


async def test_an_answer_that_fits_is_parsed_and_stored(make: Any) -> None:
    """S112, S123: the schema is stored with the question, the value with the answer; a misfit is sent back."""
    kit, provider = make('{"value": ["x"]}', '{"value": [1, 2]}')

    result = await kit.prompt("numbers", schema=list[int])

    assert result.structured == [1, 2]
    assert kit.messages[-1].result.structured == [1, 2]
    assert kit.messages[1].result.structured is None
    assert kit.messages[0].request.format == provider.requests[0].format
    assert "does not fit the required schema" in kit.messages[2].parts[0].text
    assert kit.messages[2].source == "schema"


async def test_an_answer_that_never_fits_raises_with_the_faults(make: Any) -> None:
    """S112: after the allowed tries, or when the answer was cut, or at the step limit."""
    kit, _ = make("no", "no", [text('{"value": [1'), finish("length")], "no")

    with pytest.raises(UsageError, match="after 2 tries"):
        await kit.prompt("numbers", options=PromptOptions(schema=list[int], schema_retries=1))
    with pytest.raises(UsageError, match="it was cut at max_tokens"):
        await kit.prompt("numbers", schema=list[int])
    with pytest.raises(UsageError, match="after 1 tries"):
        await kit.prompt("numbers", options=PromptOptions(schema=list[int], max_steps=1))


async def test_extract_leaves_the_conversation_alone(make: Any) -> None:
    """Asked apart: the value comes back, nothing is stored."""
    kit, _ = make('{"value": 3}')

    assert await kit.extract("three apples", int) == 3
    assert kit.messages == ()


async def test_a_wanted_object_is_told_while_it_grows(make: Any) -> None:
    """Partial objects stream (issue 9.3): plain values that only grow, the last one whole, then the message ends."""
    answer = json.dumps({"value": [{"name": "Ada", "born": 1815}, {"name": "Grace", "born": 1906}]})
    steps: list[Any] = []
    for piece in (answer[i : i + 9] for i in range(0, len(answer), 9)):
        steps += [text(piece), delay(0.06)]
    kit, _ = make(steps)
    seen: list[ev.Event] = []

    async for event in kit.stream("who", options=PromptOptions(schema=list[dict[str, Any]])):
        seen.append(event)

    grown = [e.value for e in seen if isinstance(e, ev.PartialObject)]
    assert len(grown) > 3
    assert grown[-1] == json.loads(answer)["value"]
    assert grown[0] != grown[-1]
    assert all(len(a) <= len(b) for a, b in itertools.pairwise(grown))
    last = max(i for i, e in enumerate(seen) if isinstance(e, ev.PartialObject))
    assert any(isinstance(e, ev.MessageEnd) for e in seen[last:])
    assert {e.message_id for e in seen if isinstance(e, ev.PartialObject)} == {kit.messages[-1].id}


async def test_a_burst_of_words_is_not_a_burst_of_objects(make: Any) -> None:
    """What comes within a moment is told once, whole; a kit without a schema tells none."""
    answer = json.dumps({"value": list(range(2000))})
    kit, _ = make([text(c) for c in answer], "no schema")
    grown: list[Any] = []
    kit.subscribe(lambda e: grown.append(e.value), ev.PartialObject, inline=True)

    result = await kit.prompt("count", schema=list[int])
    after = len(grown)
    await kit.prompt("hello")

    assert result.structured == list(range(2000)) == grown[-1]
    assert after < 200
    assert len(grown) == after


async def test_extract_tells_what_it_has_so_far_on_the_callers_thread(make: Any) -> None:
    """on_partial is called where it was given, async or not; the last call has all of it (issue 9.3)."""
    answer = ['{"value": [1', delay(0.1), ", 2, ", delay(0.1), "3]}"]
    kit, _ = make([text(s) if isinstance(s, str) else s for s in answer], '{"value": [1, 2]}', '{"value": [3]}')
    seen: list[Any] = []
    threads: set[str] = set()

    def tell(value: Any) -> None:
        seen.append(value)
        threads.add(threading.current_thread().name)

    async def tell_later(value: Any) -> None:
        await asyncio.sleep(0)
        tell(value)

    assert await kit.extract("a", list[int], on_partial=tell) == [1, 2, 3]
    assert seen[-1] == [1, 2, 3]
    assert seen[0] != [1, 2, 3]
    assert await kit.extract("b", list[int], on_partial=tell_later) == [1, 2]
    assert seen[-1] == [1, 2]
    assert await asyncio.to_thread(kit.extract_sync, "c", list[int], on_partial=seen.append) == [3]
    assert seen[-1] == [3]
    assert threads == {threading.main_thread().name}


def test_a_blocking_extract_tells_on_the_callers_thread(make: Any) -> None:
    """extract_sync serves on_partial on the thread that waits."""
    kit, _ = make('{"value": [1]}')
    threads: list[bool] = []

    def tell(value: Any) -> None:
        threads.append(threading.current_thread() is threading.main_thread())

    kit.extract_sync("a", list[int], on_partial=tell)

    assert threads
    assert all(threads)


async def test_an_on_partial_that_fails_stops_the_asking(make: Any) -> None:
    """Its error is the caller's to see; the request does not go on in secret."""
    kit, provider = make([text('{"value": [1'), delay(30), text("]}")])

    def fail(value: Any) -> None:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        await kit.extract("a", list[int], on_partial=fail)

    assert len(provider.requests) == 1


async def test_what_a_service_said_is_stored_without_its_secrets(make: Any, tmp_path: Path) -> None:
    """S122: a failed answer keeps the error's code and words; a key in them is masked, in the file and in events."""
    key = "sk-proj-" + "a1B2" * 10
    said = provider_error("auth_failed", f"the key {key} is not known")
    kit, _ = make([text("half"), said], session=Session.create(tmp_path))
    with record_events(kit) as log, pytest.raises(KitError) as caught:
        await kit.prompt("hi")

    stored = kit.messages[-1].result
    assert (stored.finish, stored.error.code) == ("error", "auth_failed")
    assert "is not known" in stored.error.message
    assert key not in kit.session.path.read_text()
    assert key not in str(caught.value)
    assert key not in "".join(json.dumps(event.to_json()) for event in log)


# ---------------------------------------------------------------- hooks around the step


async def test_a_step_hook_changes_model_tools_and_choice(make: Any) -> None:
    """S72: prepare-step gets the plan and returns a changed copy; for that step only."""

    def configure(c: Any) -> None:
        def hook(plan: StepPlan) -> StepPlan | None:
            from dataclasses import replace

            return replace(plan, tools=(), model="scripted/big", temperature=0.5) if plan.number == 2 else None

        c.add_hook("prepare_step", hook)

    kit, provider = make([tool_call("area", width=1, height=1)], "done", tools=[area], configure=configure)
    result = await kit.prompt("go")

    assert [str(r.model) for r in provider.requests] == ["scripted/default", "scripted/big"]
    assert [len(r.tools) for r in provider.requests] == [1, 0]
    assert provider.requests[1].temperature == 0.5
    assert result.model == "scripted/big"


async def test_gates_and_result_hooks_see_each_call(make: Any) -> None:
    """S72: before-tool may change arguments or block; after-tool may change the outcome."""

    def configure(c: Any) -> None:
        def before(call: Any, arguments: Any) -> BeforeTool | None:
            if arguments["width"] == 13:
                return BeforeTool(block=True, reason="unlucky")
            return BeforeTool(arguments={**arguments, "height": 10})

        def after(call: Any, outcome: ToolOutcome) -> ToolOutcome:
            return ToolOutcome.of_text(outcome.text + "!")

        c.add_hook("before_tool", before)
        c.add_hook("after_tool", after)

    kit, _ = make(
        [tool_call("area", width=2, height=3), tool_call("area", width=13, height=1)],
        "done",
        tools=[area],
        configure=configure,
    )
    await kit.prompt("go")

    assert results(kit)[0].parts[0].text == "20!"
    assert "unlucky" in results(kit)[1].parts[0].text


async def test_approval_is_asked_answered_and_remembered(make: Any) -> None:
    """S40: the tool starts only when a person has agreed; edited arguments are checked; a failing asker denies."""
    kit, _ = make(
        [tool_call("asked_area", width=2, height=3)],
        "a",
        [tool_call("asked_area", width=2, height=3)],
        "b",
        tools=[asked_area],
        permissions="ask",
    )
    kit.is_attended = True
    with record_events(kit) as log:
        task = asyncio.ensure_future(kit.prompt("go"))
        await until(lambda: kit.pending_approvals)
        call_id = kit.pending_approvals[0].call_id
        with pytest.raises(UsageError, match="scope must be"):
            kit.approve(call_id, scope="ever")
        assert log.names[-1] == "ApprovalAsked"
        assert not log.of(ev.ToolExecutionStart)
        answered = time.monotonic()
        await asyncio.to_thread(kit.approve, call_id, arguments={"width": 5, "height": 5})
        await task
    assert results(kit)[0].parts[0].text == "25"
    assert log.of(ev.ToolExecutionStart)[0].call_id == call_id
    assert log.of(ev.ToolExecutionStart)[0].monotonic >= answered

    async def broken(question: Any) -> bool:
        raise OSError("no screen")

    kit.approver = type("A", (), {"ask": staticmethod(broken)})()
    await kit.prompt("again")
    assert "was not run" in results(kit)[1].parts[0].text


async def test_an_answer_in_the_moment_of_asking_counts(make: Any) -> None:
    """U60: who answers as soon as the question is announced is heard; the question waits before it is shown."""
    kit, _ = make([tool_call("asked_area", width=2, height=3)], "a", tools=[asked_area], permissions="ask")
    kit.is_attended = True
    kit.subscribe(lambda asked: kit.deny(asked.call_id, "at once"), ev.ApprovalAsked, inline=True)

    await asyncio.wait_for(kit.prompt("go"), 10)

    assert "at once" in results(kit)[0].parts[0].text
    assert kit.pending_approvals == ()


async def test_a_stop_while_a_person_is_asked_closes_the_question(make: Any) -> None:
    """Each ApprovalAsked has its ApprovalGiven, also when the turn is stopped."""
    kit, _ = make([tool_call("asked_area", width=2, height=3)], tools=[asked_area], permissions="ask")
    kit.is_attended = True
    with record_events(kit) as log:
        task = asyncio.ensure_future(kit.prompt("go"))
        await until(lambda: kit.pending_approvals)
        await kit.abort()
        await task

    assert [e.effect for e in log.of(ev.ApprovalGiven)] == ["deny"]
    assert log.of(ev.ApprovalGiven)[0].by == "stop"


async def test_a_rule_of_the_persons_runs_on_the_persons_thread(make: Any) -> None:
    """Law 8: an `approve` function written by a person does not run on the engine; when it fails, a person is asked."""
    where: list[str] = []

    def judge(arguments: Any, context: Any) -> str:
        where.append(threading.current_thread().name)
        if arguments["width"] == 0:
            raise ZeroDivisionError
        return "allow"

    @tool(approve=judge)
    def width_of(width: int) -> int:
        """Width."""
        return width

    kit, _ = make([tool_call("width_of", width=2), tool_call("width_of", width=0)], "done", tools=[width_of])
    await kit.prompt("go")

    assert where
    assert all(name != "kit-loop" for name in where)
    assert results(kit)[0].parts[0].text == "2"
    assert results(kit)[1].is_error


async def test_live_output_of_a_tool_is_an_event(make: Any) -> None:
    """ToolOutput comes while the tool runs; the result holds what is needed."""

    def talk(context: Any = None) -> str:
        """Talks."""
        print("line one")
        return "end"

    kit, _ = make([tool_call("talk")], "done", tools=[talk])
    with record_events(kit) as log:
        await kit.prompt("go")

    assert "line one" in "".join(e.text for e in log.of(ev.ToolOutput))
    assert all(e.transient for e in log.of(ev.ToolOutput))


async def test_a_deleted_working_folder_does_not_break_a_turn(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by reading: `os.getcwd` raised in the middle of closing the answer."""
    kit, _ = make("ok")
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    assert str(await kit.prompt("hi")) == "ok"
    assert kit.messages[-1].run.path.cwd == ""


async def test_overflow_after_text_came_is_not_tried_again(make: Any) -> None:
    """Compaction may replay only what was not shown yet."""
    kit, provider = make([text("begun"), overflow()])

    with pytest.raises(KitError, match="generation failed: the prompt is too long"):
        await kit.prompt("go")

    assert len(provider.requests) == 1
    assert kit.messages[-1].parts[0].text == "begun"


async def test_a_gate_of_the_script_can_be_stopped(make: Any) -> None:
    """A scripted wait on a thread's event neither hangs the stop nor the exit."""
    never = threading.Event()
    kit, _ = make([gate(never)])
    task = asyncio.ensure_future(kit.prompt("go"))
    await until(lambda: kit.is_running)
    await asyncio.wait_for(_awaited(kit.abort()), 2)

    assert (await task).stop_reason == "aborted"
