"""Every prompt mode: the messages it prepares, its label, its events, its error, and the one path they share."""

from __future__ import annotations

import ast
import asyncio
import re
import threading
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest

import kit_jupyter
from kit_jupyter import Kit, KitError, PromptOptions, ProviderError, Session, TurnResult, UsageError
from kit_jupyter import events as ev
from kit_jupyter.inbox import Receipt
from kit_jupyter.messages import Assistant, System, TextPart, Tokens, ToolResult, Usage, User, text_of
from kit_jupyter.testing import (
    ScriptedProvider,
    delay,
    gate,
    provider_error,
    record_events,
    text,
    thinking,
    tool_call,
    unanswered_calls,
    usage,
)

from .helpers import WIRES, area, encoded, texts, until

# ---------------------------------------------------------------- prompt


async def test_prompt_stores_question_and_answer_and_gives_the_text(make: Any) -> None:
    """S1, S51, S65: a user and an assistant entry; str() of the result is the final text; it holds all facts."""
    kit, _ = make([thinking("hm"), text("Hello there"), usage(input=7, output=3)])

    result = await kit.prompt("hi")

    assert str(result) == result.text == "Hello there"
    assert [type(m) for m in kit.messages] == [User, Assistant]
    assert result.thinking == "hm"
    assert result.usage.tokens.total == 10
    assert result.cost is None
    assert result.stop_reason == "stop"
    assert result.steps == 1
    assert result.messages == kit.messages
    assert result.session_id == kit.session_id
    assert result.entry_id == kit.session.leaf
    assert result.turn_id == kit.messages[0].turn_id
    assert result._repr_markdown_() == "Hello there"


async def test_a_prompt_is_sent_byte_for_byte(make: Any) -> None:
    """Braces, LaTeX, JSON, NULs and markup reach the model as they are."""
    kit, provider = make("ok")
    said = 'f"{x}" {{y}} $\\frac{1}{2}$ {"a": [1]} \0 <b>é</b> 🙂 %%kit'

    await kit.prompt(said)

    assert texts(provider.last_request) == [("user", said)]


@pytest.mark.parametrize("said", ["", "   ", "\n\t"])
async def test_an_empty_prompt_is_refused_before_anything_happens(make: Any, said: str) -> None:
    """Bad input: no event, no entry, no request, and the Kit goes on."""
    kit, provider = make("ok")
    with record_events(kit) as log, pytest.raises(UsageError, match="the prompt is empty"):
        await kit.prompt(said)

    assert not log
    assert not kit.messages
    assert not provider.requests
    assert str(await kit.prompt("now")) == "ok"


async def test_a_lone_surrogate_is_refused_with_its_place(make: Any) -> None:
    """Bad input: text that is no Unicode text is named, and nothing of it is stored."""
    kit, _ = make("ok")
    with pytest.raises(UsageError, match="lone surrogate at character 3"):
        await kit.prompt("abc\ud800")
    with pytest.raises(UsageError, match="must be str"):
        await kit.prompt(12)

    assert str(await kit.prompt("now")) == "ok"


async def test_a_prompt_of_fifty_megabytes_is_taken(make: Any) -> None:
    """Bad input: a huge prompt neither hangs nor is cut."""
    kit, provider = make("ok")
    said = "word " * 10_000_000

    await kit.prompt(said)

    assert len(provider.last_request.messages[0].parts[0].text) == len(said)


async def test_text_made_of_surrogates_by_a_model_is_stored_as_text(make: Any) -> None:
    """Bad input from the model's side: replaced, so that the session file stays readable."""
    kit, _ = make([text("bad \ud800 here")], session=None)

    result = await kit.prompt("hi")

    assert str(result) == "bad � here"
    kit.session.close()
    from kit_jupyter import Session

    assert Session.open(kit.session.path).messages() == kit.messages


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"max_steps": -1}, "max_steps"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"thinking": "huge"}, "thinking"),
        ({"temperature": 3.0}, "temperature"),
        ({"timeout_seconds": 0.0}, "timeout_seconds"),
        ({"schema_retries": -1}, "schema_retries"),
    ],
)
def test_options_out_of_range_raise(bad: dict[str, Any], message: str) -> None:
    """S22: negative limits and unknown values raise, with the value."""
    with pytest.raises(UsageError, match=message):
        PromptOptions(**bad)


def test_options_are_frozen_and_their_names_are_checked() -> None:
    """S23: a frozen record of keyword fields; unknown names raise TypeError."""
    with pytest.raises(TypeError):
        PromptOptions(max_step=3)  # type: ignore[call-arg]
    with pytest.raises(FrozenInstanceError):
        PromptOptions().max_steps = 3  # type: ignore[misc]


async def test_options_of_parallel_calls_never_mix() -> None:
    """S23: twenty Kits at once, each with its own options; every request shows its own."""
    kits = [Kit(provider=ScriptedProvider(f"answer {i}"), session="memory") for i in range(20)]

    results = await asyncio.gather(
        *(
            kit.prompt(f"q{i}", options=PromptOptions(system_message=f"s{i}", temperature=i / 20, max_tokens=i + 1))
            for i, kit in enumerate(kits)
        )
    )

    for i, (kit, result) in enumerate(zip(kits, results, strict=True)):
        request = kit._provider_given.last_request  # type: ignore[union-attr]
        assert str(result) == f"answer {i}"
        assert texts(request) == [("system", f"s{i}"), ("user", f"q{i}")]
        assert (request.temperature, request.max_tokens) == (i / 20, i + 1)


async def test_a_system_message_stands_before_the_prompt_and_only_this_once(make: Any) -> None:
    """S19, S20, S79: history, system message, user message; sent once; the next call lacks it; empty adds nothing."""
    kit, provider = make("one", "two", "three", "four", "five", "six")
    await kit.prompt("first")

    await kit.prompt_with_options("second", PromptOptions(system_message="be kind"))
    await kit.prompt("third")
    await kit.prompt("fourth", options=PromptOptions(system_message=""))

    said = [("user", "first"), ("assistant", "one"), ("system", "be kind"), ("user", "second")]
    assert texts(provider.requests[1]) == said
    assert provider.requests[1].system == provider.requests[0].system  # not there as well
    without = [*said[:2], said[3], ("assistant", "two"), ("user", "third")]
    assert texts(provider.requests[2]) == without
    assert texts(provider.requests[3]) == [*without, ("assistant", "three"), ("user", "fourth")]
    await kit.prompt("fifth", options=PromptOptions(system_message="stay", persist_system=True))
    await kit.prompt("sixth")
    kept = [("system", "stay"), ("user", "fifth"), ("assistant", "five"), ("user", "sixth")]
    assert texts(provider.requests[4])[-2:] == kept[:2]
    assert texts(provider.requests[5])[-4:] == kept
    assert [m.source for m in kit.messages if isinstance(m, System)] == ["option"]


@pytest.mark.parametrize("wire", WIRES)
async def test_the_body_of_a_request_has_the_system_message_of_one_call_once(make: Any, wire: str) -> None:
    """S79: the bytes that a service gets hold it exactly once, wherever that service wants such text."""
    kit, provider = make("one", "two")
    await kit.prompt("first")
    await kit.prompt("second", options=PromptOptions(system_message="be kind to whales"))

    assert encoded(wire, provider.requests[0]).count("be kind to whales") == 0
    assert encoded(wire, provider.requests[1]).count("be kind to whales") == 1


@pytest.mark.parametrize("wire", WIRES)
async def test_the_body_of_a_request_has_a_steer_at_its_tail(make: Any, wire: str) -> None:
    """S5: behind all that was said, as a system message or as what stands for one where there is none mid-way."""
    kit, provider = make("one", "two")
    await kit.prompt("a question of old")
    await kit.steer("answer in Frisian")

    body = encoded(wire, provider.last_request)
    assert body.count("answer in Frisian") == 1
    assert body.index("a question of old") < body.index("answer in Frisian") < body.index("Follow the instruction")


async def test_the_named_alias_does_the_same_as_the_options_argument() -> None:
    """S18: `prompt(text, options=…)` and `prompt_with_options`: the same request, entries, events and result."""
    seen = []
    for named in (False, True):
        provider = ScriptedProvider([tool_call("area", call_id="c", width=1, height=2)], "x")
        kit = Kit(provider=provider, session="memory", tools=[area], permissions="auto")
        options = PromptOptions(system_message="s", max_steps=1, thinking="low", max_tokens=9, temperature=0.5)
        with record_events(kit) as log:
            result = await (kit.prompt_with_options("q", options) if named else kit.prompt("q", options=options))
        request = provider.last_request
        facts = (texts(request), request.thinking, request.max_tokens, request.temperature, request.tools)
        entries = [
            (e.type, m.role, m.parts, getattr(m, "request", None)) for e in kit.session.entries if (m := e.message)
        ]
        seen.append((facts, entries, log.names, str(result), result.stop_reason, result.steps))

    assert seen[0] == seen[1]
    assert seen[0][4:] == ("max_steps", 1)


async def test_max_steps_stops_after_that_many_model_calls(make: Any) -> None:
    """S21, S22: one call even when tools are asked for, the reason reported; 0 gives the setting."""
    kit, provider = make(
        [tool_call("area", width=2, height=3)],
        "after",
        tools=[area],
        max_steps=2,
    )

    result = await kit.prompt("go", options=PromptOptions(max_steps=1))

    assert result.stop_reason == "max_steps"
    assert result.steps == 1
    assert "limit of 1 steps" in kit.messages[-1].parts[0].text
    assert unanswered_calls(provider.last_request) == []
    assert str(await kit.prompt("again")) == "after"
    for options in (PromptOptions(max_steps=0), PromptOptions(), None):  # the setting's two, though more is asked for
        provider.script(*([tool_call("area", width=1, height=1)] for _ in range(2)))
        limited = await kit.prompt("tools", options=options)
        assert (limited.steps, limited.stop_reason) == (2, "max_steps")


async def test_extra_tools_and_a_choice_of_tools_hold_for_this_call_only(make: Any) -> None:
    """S23, S114: extra tools are offered once, `tools` narrows; names that clash or are unknown raise."""

    def other() -> str:
        """Another tool."""
        return "other"

    kit, provider = make("1", "2", "3", tools=[area])

    await kit.prompt("a", options=PromptOptions(extra_tools=(other,)))
    await kit.prompt("b", options=PromptOptions(tools=()))
    await kit.prompt("c")

    assert [[t.name for t in r.tools] for r in provider.requests] == [["area", "other"], [], ["area"]]
    assert [m.request.tools for m in kit.messages if isinstance(m, User)] == [
        {"area": True, "other": True},
        {"area": False},
        {"area": True},
    ]
    with pytest.raises(UsageError, match="two tools are named 'area'"):
        await kit.prompt("d", options=PromptOptions(extra_tools=(area,)))
    with pytest.raises(UsageError, match="no tool 'nope'"):
        await kit.prompt("e", options=PromptOptions(tools=("nope",)))


async def test_base_url_and_key_of_one_call_reach_the_request_only(make: Any) -> None:
    """S23: per-call address and key; neither is stored nor shown."""
    kit, provider = make("1", "2")

    await kit.prompt("a", options=PromptOptions(base_url="http://localhost:1", api_key="secret-key-1"))
    await kit.prompt("b")

    assert (provider.requests[0].base_url, provider.requests[0].api_key) == ("http://localhost:1", "secret-key-1")
    assert provider.requests[1].api_key is None
    assert "secret-key-1" not in kit.export("jsonl") + repr(provider.requests[0])


async def test_a_result_shows_itself_in_a_line(make: Any) -> None:
    """`repr` of a result had been every field of every message; now words, counts, cost and how it ended."""
    kit, _ = make([tool_call("area", width=2, height=3)], "It is 6 " + "y" * 500, tools=[area], session=None)

    result = await kit.prompt("how large?")

    said = repr(result)
    assert said.startswith("<TurnResult 'It is 6 yyy")
    assert "508 characters: stop, 2 steps, 1 tool call (area), 4 messages, " in said
    assert "cost unknown" in said
    assert len(said) < 250
    assert str(result) == result._repr_markdown_() == result.text
    assert repr(result.messages).startswith("4 messages\n  0  user: how large?\n  1  assistant: calls area\n")


def test_a_results_value_may_be_large_or_odd() -> None:
    """What a tool or a schema gave is cut; one that cannot be shown breaks nothing; a paid turn says its price."""

    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    tokens = Tokens(input=1234, output=5)
    made = TurnResult(text="", value=Odd(), structured=list(range(10_000)), usage=Usage(tokens=tokens, cost=0.5))

    said = repr(made)
    assert said.startswith("<TurnResult '': stop, 0 steps, 0 tool calls, 0 messages, 1,234 tokens in, 5 out, $0.5000, ")
    assert "structured=[0, 1, 2" in said
    assert "Odd" in said


# ---------------------------------------------------------------- steer


async def test_steer_while_idle_is_one_turn_with_a_system_message(make: Any) -> None:
    """S5, S6, S7, S8, S9, S77: system instruction at the tail, synthetic request, label, no visible bubble."""
    kit, provider = make("one", "ok")
    await kit.prompt("hi")

    with record_events(kit) as log:
        result = await kit.steer("answer in German")

    assert isinstance(result, TurnResult)
    assert str(result) == "ok"
    assert [role for role, _ in texts(provider.last_request)] == ["user", "assistant", "system", "user"]
    assert texts(provider.last_request)[2][1] == "answer in German"
    assert "Follow the instruction above" in texts(provider.last_request)[3][1]
    assert [(e.prompt, e.mode) for e in log.of(ev.TurnStart)] == [("[steer] answer in German", "steer")]
    assert [type(m) for m in kit.messages[2:4]] == [System, User]
    assert [e.visible for e in log.of(ev.UserMessage)] == [False, False]
    assert [getattr(m, "source", None) for m in kit.messages[2:4]] == ["steer", "steer"]
    assert len(provider.requests) == 2


async def test_a_steer_holds_for_later_turns_and_after_reopening(make: Any) -> None:
    """S10: the instruction is in the rebuilt context of the reopened session."""
    kit, _ = make("a", "b", session=None)
    await kit.steer("be brief")
    path = kit.session.path
    kit.close()

    again, provider = make("c", session=path)
    await again.prompt("next")

    assert ("system", "be brief") in texts(provider.last_request)


async def test_steer_during_tools_is_delivered_before_the_next_model_call(make: Any) -> None:
    """S11, U26: the whole batch of tools finishes; then the steer, stored once, and it stays in its place."""
    going, may_end = threading.Event(), threading.Event()

    def slow() -> str:
        """Slow."""
        going.set()
        may_end.wait(5)
        return "tool done"

    batch = [tool_call("slow"), tool_call("area", width=2, height=3)]
    kit, provider = make(batch, "after", "later", tools=[slow, area])
    task = asyncio.ensure_future(asyncio.to_thread(kit.prompt_sync, "go"))
    await asyncio.to_thread(going.wait, 5)

    receipt = await kit.steer("mind the gap")
    assert isinstance(receipt, Receipt)
    assert receipt.state == "queued"
    assert kit.queue.steering == ("mind the gap",)
    may_end.set()
    await task

    assert await receipt == "committed"
    assert receipt.message_id == kit.messages[4].id
    assert [role for role, _ in texts(provider.requests[1])] == ["user", "assistant", "tool", "tool", "system"]
    assert [(m.is_error, text_of(m.parts)) for m in kit.messages[2:4]] == [(False, "tool done"), (False, "6")]
    assert texts(provider.requests[1])[-1][1] == "mind the gap"
    await kit.prompt("again")
    assert [m.source for m in kit.messages if isinstance(m, System)] == ["steer"]
    assert texts(provider.requests[2])[:5] == texts(provider.requests[1])


async def test_steer_now_cuts_a_running_tool_and_the_next_call_has_the_text(make: Any) -> None:
    """U26: `now` cancels the tool, records it as interrupted, and the next request contains the text."""
    going = asyncio.Event()

    async def forever() -> str:
        """Waits."""
        going.set()
        await asyncio.sleep(60)
        return "never"

    kit, provider = make([tool_call("forever")], "changed", tools=[forever])
    task = asyncio.ensure_future(kit.prompt("go"))
    await asyncio.wait_for(going.wait(), 5)

    receipt = await kit.steer("stop that", now=True)
    result = await asyncio.wait_for(task, 5)

    assert str(result) == "changed"
    assert await receipt == "committed"
    assert unanswered_calls(provider.last_request) == []
    cut = next(m for m in kit.messages if isinstance(m, ToolResult))
    assert cut.is_error
    assert "interrupted" in cut.parts[0].text
    assert texts(provider.last_request)[-1] == ("system", "stop that")


async def test_steer_now_cuts_a_stream_and_keeps_what_came(make: Any) -> None:
    """U26: partial text is stored, marked aborted; the text is in the next call."""
    hold = threading.Event()
    kit, provider = make([text("I was say"), gate(hold)], "fine")
    seen: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    loop = asyncio.get_running_loop()
    kit.subscribe(
        lambda e: loop.call_soon_threadsafe(lambda: seen.done() or seen.set_result(None)), ev.MessageUpdate, inline=True
    )
    task = asyncio.ensure_future(kit.prompt("go"))
    await asyncio.wait_for(seen, 5)

    await kit.steer("other way", now=True)
    result = await asyncio.wait_for(task, 5)

    assert str(result) == "fine"
    cut = kit.messages[1]
    assert isinstance(cut, Assistant)
    assert cut.result.finish == "aborted"
    assert "I was say".startswith(cut.parts[0].text)
    assert provider.closed_early == 1


async def test_a_now_steer_that_was_taken_already_does_not_cut_the_call_that_has_it(make: Any) -> None:
    """Found by reading: the cut came late and cancelled the very call that contained the steer."""
    kit, _ = make("one")
    turn_step: list[str] = []

    class Fake:
        def cut_step(self, ticket: Any) -> None:
            turn_step.append(ticket.state)

    from kit_jupyter.inbox import Ticket
    from kit_jupyter.turn import Turn

    kit._inbox.open()
    ticket = Ticket("steer", "x", now=True)
    kit._inbox.offer(ticket)
    kit._inbox.poll("steer")
    turn = Turn.__new__(Turn)
    turn._inner = asyncio.ensure_future(asyncio.sleep(60))  # type: ignore[assignment]
    turn._is_cutting = False

    turn.cut_step(ticket)

    assert not turn._is_cutting
    turn._inner.cancel()
    kit._inbox.close()


# ---------------------------------------------------------------- follow up


async def test_follow_up_goes_on_without_a_word_of_the_user(make: Any) -> None:
    """S13, S14, S16, S78: no user-authored entry, `Continue.` by default, label `[follow-up]`."""
    kit, provider = make("one", "two", "three")
    await kit.prompt("hi")

    with record_events(kit) as log:
        result = await kit.follow_up()

    assert str(result) == "two"
    assert texts(provider.last_request)[-1] == ("user", "Continue.")
    assert log.of(ev.TurnStart)[0].prompt == "[follow-up]"
    assert [e.visible for e in log.of(ev.UserMessage)] == [False]
    assert [m.source for m in kit.messages if isinstance(m, User)] == [None, "follow-up"]
    await kit.follow_up("And then?")
    assert texts(provider.last_request)[-1] == ("user", "And then?")


async def test_follow_up_on_nothing_raises_and_emits_nothing(make: Any) -> None:
    """S15: a typed error with that text, no event."""
    kit, _ = make("x")
    with record_events(kit) as log, pytest.raises(UsageError, match="cannot follow up: no previous messages"):
        await kit.follow_up()

    assert not log
    assert not kit.is_running


async def test_follow_up_while_running_waits_until_the_turn_would_stop(make: Any) -> None:
    """S13: delivered after the tools are done and the model stopped, in the same turn."""
    hold = threading.Event()
    kit, provider = make([tool_call("area", width=1, height=2), gate(hold)], "done", "more", tools=[area])
    task = asyncio.ensure_future(kit.prompt("go"))
    await until(lambda: provider.requests)

    receipt = await kit.follow_up("and the rest")
    hold.set()
    result = await task

    assert await receipt == "committed"  # type: ignore[misc]
    assert str(result) == "more"
    assert result.steps == 3
    assert texts(provider.requests[1])[-1][0] == "tool"
    assert texts(provider.requests[2])[-1] == ("user", "and the rest")


async def test_queue_modes_take_one_or_all(make: Any) -> None:
    """Queue modes: one-at-a-time and all, for steers and for follow-ups, order kept."""
    for mode, expected in (("one", [["a"], ["b"], ["c"]]), ("all", [["a", "b", "c"]])):
        hold = threading.Event()
        kit, provider = make([text("x"), gate(hold)], "1", "2", "3", follow_up_mode=mode)
        task = asyncio.ensure_future(kit.prompt("go"))
        await until(lambda p=provider: p.requests)
        receipts = [kit.queue_follow_up(t) for t in "abc"]
        hold.set()
        await task
        batches = []
        for earlier, later in zip(provider.requests, provider.requests[1:], strict=False):
            batches.append([t for r, t in texts(later)[len(earlier.messages) :] if r == "user"])
        assert batches == expected
        assert {r.state for r in receipts} == {"committed"}


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("mode", "prefix"),
    [
        ("prompt", "generation failed: "),
        ("prompt_with_options", "generation failed: "),
        ("steer", "steer failed: "),
        ("follow_up", "follow-up failed: "),
    ],
)
async def test_a_failure_names_its_mode_and_keeps_the_cause(make: Any, mode: str, prefix: str) -> None:
    """S12, S17, S46, S50: prefix, typed class, __cause__; TurnEnd is last, with the error and no response."""
    kit, _ = make("one", [text("part"), provider_error("rate_limited", "slow down", retry_after_seconds=3.0)], "ok")
    await kit.prompt("hi")

    with record_events(kit) as log, pytest.raises(ProviderError) as caught:
        await run_mode(kit, mode)

    assert str(caught.value) == f"{prefix}slow down"
    assert caught.value.retry_after_seconds == 3.0
    assert isinstance(caught.value.__cause__, ProviderError)
    assert str(caught.value.__cause__) == "slow down"
    end = log[-1]
    assert isinstance(end, ev.TurnEnd)
    assert (end.response, end.error, end.error_code) == ("", f"{prefix}slow down", "rate_limited")
    assert len(log.of(ev.MessageStart)) == len(log.of(ev.MessageEnd)) == 1
    assert log.of(ev.MessageEnd)[0].message.result.error.code == "rate_limited"
    assert str(await kit.prompt("again")) == "ok"


async def test_an_error_that_is_not_ours_is_wrapped(make: Any) -> None:
    """S50: a bug in a provider becomes a KitError that names it, cause chained."""
    kit, _ = make([provider_error(ZeroDivisionError("oops"))], "ok")

    with pytest.raises(KitError, match="generation failed: ZeroDivisionError: oops") as caught:
        await kit.prompt("hi")

    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert str(await kit.prompt("again")) == "ok"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
async def test_an_exit_raised_on_the_engine_does_not_take_it_down(make: Any, error: BaseException) -> None:
    """Found by reading: asyncio lets these two out of the loop, and every Kit of the process would hang."""
    kit, _ = make([provider_error(error)], "ok")

    with record_events(kit) as log, pytest.raises(type(error)):
        await kit.prompt("hi")

    assert isinstance(log[-1], ev.TurnEnd)
    assert str(await asyncio.wait_for(kit.prompt("again"), 5)) == "ok"


async def test_a_turn_that_takes_too_long_is_stopped_with_its_limit_in_the_text(make: Any) -> None:
    """`timeout_seconds` is for the whole turn; what was streamed is kept."""
    kit, _ = make([text("begun"), delay(60)], "ok")

    with pytest.raises(UsageError, match=r"took longer than timeout_seconds=0\.05"):
        await kit.prompt("hi", options=PromptOptions(timeout_seconds=0.05))

    assert kit.messages[-1].result.finish == "aborted"
    assert str(await kit.prompt("again")) == "ok"


async def test_an_unknown_model_is_a_clear_error_and_the_kit_goes_on(make: Any) -> None:
    """Bad input: names the provider and what is known; setting it is refused at once."""
    kit, _ = make("ok")
    with pytest.raises(UsageError, match="nosuch"):
        await kit.prompt("hi", options=PromptOptions(model="nosuch/model"))
    with pytest.raises(UsageError, match="provider/id"):
        kit.model = "nonsense"
    with pytest.raises(UsageError, match="unknown setting 'max_step'; did you mean 'max_steps'"):
        Kit(provider=ScriptedProvider(), session="memory", max_step=3)
    with pytest.raises(UsageError):
        Kit(provider=ScriptedProvider(), session="memory", max_steps=-3)

    assert str(await kit.prompt("again")) == "ok"


# ---------------------------------------------------------------- one path, one set of events


MODES = ("prompt", "prompt_with_options", "steer", "follow_up", "start", "stream", "prompt_sync")


async def run_mode(kit: Kit, mode: str) -> Any:
    """Run a turn by the mode of that name."""
    match mode:
        case "prompt_with_options":
            return await kit.prompt_with_options("x", PromptOptions())
        case "steer":
            return await kit.steer("x")
        case "follow_up":
            return await kit.follow_up()
        case "start":
            return await kit.start("x")
        case "stream":
            return [event async for event in kit.stream("x")]
        case "prompt_sync":
            return await asyncio.to_thread(kit.prompt_sync, "x")
    return await kit.prompt("x")


@pytest.mark.parametrize("mode", MODES)
async def test_one_private_coroutine_runs_every_mode(make: Any, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """S34, S73: `_run_turn` is reached once from each mode, and no other method makes a Turn."""
    kit, _ = make("one", "two")
    await kit.prompt("first")
    calls = []
    original = Kit._run_turn

    async def spy(self: Kit, *args: Any, **facts: Any) -> Any:
        calls.append(args[0])
        return await original(self, *args, **facts)

    monkeypatch.setattr(Kit, "_run_turn", spy)

    await run_mode(kit, mode)

    assert calls == [mode if mode in ("steer", "follow_up") else "prompt"]


def test_no_other_place_makes_a_turn() -> None:
    """S2, S34: `Turn(…)` is made and run in `_run_turn` only; a row of `kit.map` is a turn in a session of its own."""
    package = Path(kit_jupyter.__file__).parent
    made, run = [], []
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef):
                source = ast.unparse(node)
                if re.search(r"(?<![\w.])Turn\(", source):
                    made.append((path.name, node.name))
                if "turn.run(" in source:
                    run.append((path.name, node.name))

    assert sorted(made) == sorted(run) == [("kit_path.py", "_run_turn"), ("local.py", "_one_turn")]


GOLDEN = [
    "TurnStart",
    "UserMessage",
    "StepStart",
    "MessageStart",
    "MessageEnd",
    "UsageReport",
    "ToolCallContent",
    "ToolCall",
    "ApprovalGiven",
    "ToolExecutionStart",
    "ToolExecutionEnd",
    "ToolResultEvent",
    "StepEnd",
    "StepStart",
    "MessageStart",
    "MessageEnd",
    "UsageReport",
    "StepEnd",
    "Response",
    "TurnEnd",
]


@pytest.mark.parametrize("mode", MODES)
async def test_events_come_in_one_fixed_order_in_every_mode(make: Any, mode: str) -> None:
    """S24-S29, S35-S45, S47, S49: the golden sequence; only the opening messages differ by mode."""
    kit, _ = make(
        "one", [text("let me see", chunks=4), tool_call("area", width=2, height=3)], [text("It is 6")], tools=[area]
    )
    await kit.prompt("first")

    with record_events(kit) as log:
        came = await run_mode(kit, mode)

    golden = [GOLDEN[0], "UserMessage", *GOLDEN[1:]] if mode == "steer" else GOLDEN
    assert log.names == golden
    labels = {"steer": "[steer] x", "follow_up": "[follow-up]"}
    assert isinstance(log[0], ev.TurnStart)
    assert log[0].prompt == labels.get(mode, "x")
    call = log.of(ev.ToolCall)[0]
    assert call.call_id
    assert {e.call_id for e in log.of(ev.ToolExecutionStart, ev.ToolExecutionEnd)} == {call.call_id}
    assert (call.name, call.parsed, call.arguments) == ("area", {"width": 2, "height": 3}, '{"width": 2, "height": 3}')
    result = log.of(ev.ToolResultEvent)[0]
    assert (result.call_id, result.name, result.result, result.is_error) == (call.call_id, "area", "6", False)
    assert result.arguments == call.arguments
    assert log.of(ev.ToolExecutionStart)[0].monotonic > 0
    assert log.of(ev.ToolExecutionEnd)[0].duration_seconds >= 0
    first, second = log.of(ev.MessageEnd)
    for end in (first, second):
        deltas = [e.delta for e in log.of(ev.MessageUpdate) if e.message_id == end.message.id]
        assert "".join(d.text for d in deltas if type(d).__name__ == "TextDelta") == end.message.parts[0].text
    chunks = [e.delta.text for e in log.of(ev.MessageUpdate) if type(e.delta).__name__ == "TextDelta"]
    assert chunks == ["let", " me", " se", "e", "It", " is", " 6"]
    assert log.of(ev.ToolCallContent)[0].content == "let me see"
    assert kit.messages[-3] == first.message
    assert kit.messages[-1] == second.message
    assert log.of(ev.Response)[0].content == log[-1].response == "It is 6"
    assert log[-1].stop_reason == "stop"
    assert [e.seq for e in log] == sorted({e.seq for e in log})
    assert len({e.turn_id for e in log}) == 1
    if isinstance(came, TurnResult):
        assert str(came) == log.of(ev.Response)[0].content


async def test_the_tools_run_until_no_call_is_left(make: Any) -> None:
    """S27, S35: five steps of calls, then words: each call answered, one `Response`, for the final text only."""
    steps = [
        [text(f"step {i}"), tool_call("area", width=i, height=2), tool_call("area", width=i, height=3)]
        for i in range(5)
    ]
    kit, provider = make(*steps, "all done", tools=[area])

    with record_events(kit) as log:
        result = await kit.prompt("go")

    assert (str(result), result.steps, len(provider.requests)) == ("all done", 6, 6)
    assert [e.result for e in log.of(ev.ToolResultEvent)] == [str(i * h) for i in range(5) for h in (2, 3)]
    assert [e.content for e in log.of(ev.Response)] == ["all done"]
    assert [e.content for e in log.of(ev.ToolCallContent)] == [f"step {i}" for i in range(5)]


async def test_entries_are_stored_in_order_and_before_any_tool_runs(make: Any) -> None:
    """S30, S32, S33: user, assistant, tool result, assistant; the call is in the session when its tool runs."""
    seen: list[list[str]] = []
    kit, _ = make([tool_call("look")], "done")

    def look() -> str:
        """Looks."""
        seen.append([m.role for m in kit.messages])
        return "ok"

    kit.add_tool(look)
    await kit.prompt("go")

    assert seen == [["user", "assistant"]]
    assert [m.role for m in kit.messages] == ["user", "assistant", "tool", "assistant"]
    assert [m.turn_id for m in kit.messages] == [kit.messages[0].turn_id] * 4


@pytest.mark.parametrize("where", ["memory", "file"])
async def test_history_is_the_conversation_after_a_failed_call_too(make: Any, tmp_path: Path, where: str) -> None:
    """S30, S33: in memory and in a file alike: what was said stands there, cut answers too, and is what is sent."""
    session = Session.create(tmp_path) if where == "file" else "memory"
    replies = ([tool_call("area", width=2, height=3)], "six", [text("half"), provider_error("overloaded")], "whole")
    kit, provider = make(*replies, session=session, tools=[area], permissions="auto")
    await kit.prompt("one")
    with pytest.raises(KitError):
        await kit.prompt("two")
    said = [(m.role, text_of(m.parts)) for m in kit.messages]

    await kit.prompt("three")

    assert said == [
        ("user", "one"),
        ("assistant", ""),
        ("tool", "6"),
        ("assistant", "six"),
        ("user", "two"),
        ("assistant", "half"),
    ]
    assert [(m.role, text_of(m.parts)) for m in kit.messages] == [*said, ("user", "three"), ("assistant", "whole")]
    sent = [role for role, words in texts(provider.last_request)]
    assert texts(provider.last_request)[-3:] == [("user", "two"), ("assistant", "half"), ("user", "three")]
    assert len(sent) == 7
    if where == "file":
        kit.close()
        assert Session.open(kit.session.path).messages() == kit.messages


# ---------------------------------------------------------------- sync twins, concurrency


async def test_sync_twins_work_under_a_running_loop(make: Any) -> None:
    """S3, U31, U32: the blocking form works in a cell that has a running loop, without any loop patch."""
    kit, _ = make("a", "b", "c", "d", [text("Summary")], "e")

    assert str(kit.prompt_sync("hi")) == "a"
    assert str(kit.steer_sync("x")) == "b"
    assert str(kit.follow_up_sync()) == "c"
    assert str(await kit.prompt("hi " * 400)) == "d"
    assert kit.compact_sync() == "Summary"
    kit.branch_sync(None)
    assert kit.messages == ()
    fork = kit.fork_sync()
    kit.resume_sync(fork)
    kit.clear_conversation_sync()
    assert str(kit.prompt_with_options_sync("x", PromptOptions())) == "e"
    assert kit.apply_input_sync("x") == "x"
    kit.abort_sync()


def test_every_async_verb_has_a_sync_twin_and_docs() -> None:
    """S3: prompt, steer, follow_up, compact and the others exist, are async, and have a one-line twin."""
    import inspect

    verbs = [n for n, f in inspect.getmembers(Kit, inspect.iscoroutinefunction) if not n.startswith("_")]
    assert {"prompt", "steer", "follow_up", "compact", "prompt_with_options"} <= set(verbs)
    for name in verbs:
        if name == "aclose":
            continue
        twin = getattr(Kit, f"{name}_sync")
        assert not inspect.iscoroutinefunction(twin), name
        assert (getattr(Kit, name).__doc__ or "").strip(), name


async def test_many_kits_run_at_once() -> None:
    """Concurrency: fifty Kits in one process at the same time, each with its own answer and history."""
    kits = [Kit(provider=ScriptedProvider([delay(0.01), text(f"n{i}")]), session="memory") for i in range(50)]

    answers = await asyncio.gather(*(kit.prompt(f"q{i}") for i, kit in enumerate(kits)))

    assert [str(a) for a in answers] == [f"n{i}" for i in range(50)]
    assert all(len(kit.messages) == 2 for kit in kits)


async def test_a_second_prompt_is_refused_queued_or_said_to_the_turn(make: Any) -> None:
    """Concurrency: refused by default; `queue` waits in order; `steer` joins the running turn."""
    hold = threading.Event()
    kit, provider = make([text("one"), gate(hold)], "two", "three", "four")
    first = asyncio.ensure_future(kit.prompt("1"))
    await until(lambda: provider.requests)

    with pytest.raises(UsageError, match="a turn is running"):
        await kit.prompt("no")
    with pytest.raises(UsageError, match="when_busy must be"):
        await kit.prompt("no", when_busy="maybe")
    steered = asyncio.ensure_future(kit.prompt("join", when_busy="steer"))
    queued = [asyncio.ensure_future(kit.prompt(str(n), when_busy="queue")) for n in (2, 3)]
    await until(lambda: kit.queue.steering == ("join",) and len(kit._claims.waiting) == 2)
    hold.set()

    assert str(await first) == str(await steered) == "two"
    assert [str(await q) for q in queued] == ["three", "four"]
    assert [t for r, t in texts(provider.requests[-1]) if r == "user"] == ["1", "2", "3"]


async def test_a_queued_prompt_that_is_cancelled_leaves_the_line(make: Any) -> None:
    """Concurrency: the ones behind it still get their move."""
    hold = threading.Event()
    kit, provider = make([text("one"), gate(hold)], "two")
    first = asyncio.ensure_future(kit.prompt("1"))
    await until(lambda: provider.requests)
    gone = asyncio.ensure_future(kit.prompt("gone", when_busy="queue"))
    stays = asyncio.ensure_future(kit.prompt("stays", when_busy="queue"))
    await until(lambda: len(kit._claims.waiting) == 2)
    gone.cancel()
    hold.set()

    await first
    assert str(await stays) == "two"
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert [t for r, t in texts(provider.requests[-1]) if r == "user"] == ["1", "stays"]


async def test_stop_turns_away_prompts_that_wait(make: Any) -> None:
    """U16, U27: Stop does not let the next one begin; its caller is told and has the text."""
    hold = threading.Event()
    kit, provider = make([text("one"), gate(hold)], "two")
    first = asyncio.ensure_future(kit.prompt("1"))
    await until(lambda: provider.requests)
    waits = asyncio.ensure_future(kit.prompt("2", when_busy="queue"))
    await until(lambda: kit._claims.waiting)

    await kit.abort()

    assert (await first).stop_reason == "aborted"
    with pytest.raises(UsageError, match="was not sent"):
        await waits
    assert len(provider.requests) == 1
    assert str(await kit.prompt("3")) == "two"


# ---------------------------------------------------------------- the talk goes on


async def test_follow_up_cells_remember_and_a_new_conversation_does_not(make: Any) -> None:
    """U34, U35: request 2 contains turn 1; clearing empties messages, says so, and keeps the old branch."""
    kit, provider = make("a", "b", "c")
    await kit.prompt("one")
    await kit.prompt("two")
    assert texts(provider.requests[1])[0] == ("user", "one")

    with record_events(kit) as log:
        await kit.clear_conversation()
    await kit.prompt("three")

    assert log.names == ["Reset"]
    assert texts(provider.requests[2]) == [("user", "three")]
    assert len(kit.session.entries) == 7


async def test_switching_the_model_keeps_the_talk(make: Any) -> None:
    """U36: the next request to the other model has the earlier turns with their tool calls."""
    kit, provider = make([tool_call("area", width=1, height=1)], "a", "b", tools=[area], model="scripted/small")
    await kit.prompt("one")
    with record_events(kit) as log:
        kit.model = "scripted/large"
    await kit.prompt("two")

    assert [str(r.model) for r in provider.requests] == ["scripted/small"] * 2 + ["scripted/large"]
    assert [r for r, _ in texts(provider.requests[2])] == ["user", "assistant", "tool", "assistant", "user"]
    assert (log[0].model, log[0].previous) == ("scripted/large", "scripted/small")


async def test_running_a_cell_again_replaces_its_turn(make: Any) -> None:
    """U38: C1 twice and C2 once: each user turn is seen once; C2 is told to be stale; old turns stay as a branch."""
    from kit_jupyter import CellRef

    kit, provider = make("a1", "b1", "a2", "b2", "x")
    c1, c2 = CellRef("n.ipynb", "c1"), CellRef("n.ipynb", "c2")
    await kit.prompt("one", cell=c1)
    await kit.prompt("two", cell=c2)

    old = kit.messages
    with record_events(kit) as log:
        await kit.prompt("one", cell=c1)
    with record_events(kit) as quiet:
        await kit.prompt("two", cell=c2)

    assert texts(provider.requests[2]) == [("user", "one")]
    assert texts(provider.requests[3]) == [("user", "one"), ("assistant", "a2"), ("user", "two")]
    assert log.names[:4] == ["TurnStart", "BranchChanged", "Warned", "UserMessage"]
    stale = log.of(ev.Warned)[0].message
    assert stale.startswith("the answer of a later cell is no longer part of the conversation")
    assert not quiet.of(ev.Warned)
    back = re.findall(r"kit\.branch\('(\w+)'\)", stale)
    new = kit.session.leaf
    await kit.branch(back[0])
    assert kit.messages == old
    await kit.branch(new)
    assert len(kit.session.children(None)) == 2
    kit.settings.update({"rerun": "append"})
    await kit.prompt("two", cell=c2)
    assert len(provider.requests[4].messages) == 5


async def test_a_cell_whose_turn_cannot_begin_keeps_its_old_one(make: Any) -> None:
    """Found by reading: with a model that is not to be had the old turn went, and nothing came in its place."""
    from kit_jupyter import CellRef

    kit, _ = make("a", "b")
    cell = CellRef("n.ipynb", "c1")
    await kit.prompt("one", cell=cell)
    before = kit.messages

    with pytest.raises(UsageError, match="nosuch"):
        await kit.prompt("one", cell=cell, options=PromptOptions(model="nosuch/model"))

    assert kit.messages == before


async def test_run_all_in_a_fresh_kernel_sends_the_same_requests() -> None:
    """U38: the request sequence of two fresh runs is equal."""
    from kit_jupyter import CellRef

    def once() -> list[Any]:
        provider = ScriptedProvider("a", "b", [tool_call("area", call_id="c1", width=1, height=2)], "d")
        kit = Kit(provider=provider, session="memory", tools=[area], permissions="auto")
        for i, said in enumerate(("one", "two", "three")):
            kit.prompt_sync(said, cell=CellRef("n.ipynb", f"c{i}"))
        return [(texts(r), r.system, r.tools) for r in provider.requests]

    assert await asyncio.to_thread(once) == await asyncio.to_thread(once)


# ---------------------------------------------------------------- input hooks


async def test_input_hooks_change_handle_or_pass(make: Any) -> None:
    """S55-S58: chained before the prompt; handled stops all; the original is kept; no hook costs nothing."""
    from kit_jupyter.extension import HANDLED

    class Guest:
        pass

    seen: list[tuple[str, str]] = []

    def configure(c: Any) -> None:
        def hook(said: str, source: str) -> Any:
            seen.append((said, source))
            if said.startswith("/help"):
                return HANDLED
            return said.replace(":smile:", "🙂")

        c.add_hook("on_input", hook)

    kit, provider = make("ok", "ok", configure=configure)
    with record_events(kit) as log:
        assert await kit.apply_input("/help me", "cell") is None
    assert not log
    assert not provider.requests
    assert not kit.messages

    said = await kit.apply_input("hi :smile:", "magic")
    assert said == "hi 🙂"
    await kit.prompt(said)

    assert texts(provider.last_request) == [("user", "hi 🙂")]
    assert kit.messages[0].request.original == "hi :smile:"
    assert seen[-1] == ("hi :smile:", "magic")
    plain, _ = make("ok")
    same = "".join(["words", " of one"])
    with record_events(plain) as log:
        assert await plain.apply_input(same) is same  # nothing was asked, copied or sent to another thread
    assert not log
    assert not plain.host.has_hooks("on_input")


async def test_a_turn_hook_can_inject_text_and_replace_the_system_prompt(make: Any) -> None:
    """S64, S72: from the API; injected text is stored, the system prompt holds for this run only."""
    from kit_jupyter.extension import BeforeTurn

    first = [True]

    def configure(c: Any) -> None:
        def hook(turn: BeforeTurn) -> BeforeTurn | None:
            if not first.pop() if first else True:
                return None
            return BeforeTurn(system="You are a pirate.", inject="the sea is calm")

        c.add_hook("before_turn", hook)

    kit, provider = make("arr", "hm", configure=configure)
    await kit.prompt("hi")
    await kit.prompt("again")

    assert provider.requests[0].system == "You are a pirate."
    assert texts(provider.requests[0]) == [("user", "hi"), ("user", "the sea is calm")]
    assert provider.requests[1].system == kit.system
    assert texts(provider.requests[1])[1] == ("user", "the sea is calm")


# ---------------------------------------------------------------- streams, handles


async def test_stream_gives_the_events_of_one_prompt(make: Any) -> None:
    """`async for event in kit.stream(…)`: from TurnStart to TurnEnd; errors are raised after the last event."""
    kit, _ = make([text("a b c")], [provider_error("overloaded")])

    events = [event async for event in kit.stream("hi")]
    assert isinstance(events[0], ev.TurnStart)
    assert isinstance(events[-1], ev.TurnEnd)

    seen = []
    stream = kit.stream("again")
    with pytest.raises(ProviderError):  # noqa: PT012
        async for event in stream:
            seen.append(event)
    assert isinstance(seen[-1], ev.TurnEnd)


async def test_leaving_a_stream_early_stops_the_turn(make: Any) -> None:
    """The turn is closed when the loop is left, and the Kit is free."""
    kit, provider = make([text("one"), delay(60)], "ok")

    stream = kit.stream("hi")
    async for event in stream:
        if isinstance(event, ev.MessageUpdate):
            break
    await stream.aclose()  # type: ignore[attr-defined]

    assert not kit.is_running
    assert provider.closed_early == 1
    assert str(await kit.prompt("again")) == "ok"


async def test_a_detached_turn_can_be_awaited_stopped_and_used_from_any_thread(make: Any) -> None:
    """`start` returns at once; its handle stops only its own turn."""
    kit, provider = make([text("one"), delay(60)], "two")

    handle = await asyncio.to_thread(kit.start, "hi")
    await until(lambda: provider.requests)
    handle.abort()
    result = await handle

    assert result.stop_reason == "aborted"
    assert result.turn_id == handle.turn_id
    other = kit.start("again")
    await handle.abort()
    assert str(await other) == "two"
    with pytest.raises(UsageError, match="mode must be"):
        kit.start("x", mode="nope")


async def test_an_abort_right_after_start_is_not_lost(make: Any) -> None:
    """Found by reading: the stop came before the turn's first step and was dropped."""
    kit, _ = make([delay(60)], [delay(60)])
    for stop in ("kit", "handle"):
        handle = kit.start("hi")
        (kit if stop == "kit" else handle).abort()
        result = await asyncio.wait_for(asyncio.wrap_future(handle.future), 5)
        assert result.stop_reason == "aborted"


async def test_a_closed_kit_says_so(make: Any) -> None:
    """Close is safe twice, stops what runs, closes provider and guests; later verbs raise."""
    kit, provider = make([text("x"), delay(60)])
    task = asyncio.ensure_future(kit.prompt("hi"))
    await until(lambda: provider.requests)

    await kit.aclose()
    await kit.aclose()

    assert (await task).stop_reason == "aborted"
    assert provider.is_closed
    with pytest.raises(UsageError, match="this Kit is closed"):
        await kit.prompt("more")
    async with Kit(provider=ScriptedProvider("x"), session="memory") as other:
        await other.prompt("y")
    with Kit(provider=ScriptedProvider("x"), session="memory") as other:
        other.prompt_sync("y")
    assert "Kit" in repr(other)


async def test_start_may_wait_in_line_or_be_said_to_the_running_turn(make: Any) -> None:
    """Issue 7: a detached turn while one runs: refused, after it, or (a prompt) as a steer with its parts."""
    open_it = threading.Event()
    kit, provider = make([gate(open_it), text("one")], "steered", "two", "three")
    first = kit.start("first")
    await until(lambda: kit.is_running)
    refused = kit.start("refused")
    after = [kit.start("be brief", mode="steer", when_busy="queue"), kit.start(mode="follow_up", when_busy="queue")]
    said = kit.start("about", parts=[TextPart("<attached/>")], when_busy="steer")
    with pytest.raises(UsageError, match="a turn is running"):
        await refused
    open_it.set()
    results = [str(await handle) for handle in (first, said, *after)]

    assert results == ["steered", "steered", "two", "three"]
    assert "<attached/>" in str(provider.requests[1].messages)


async def test_what_came_back_unsent_can_be_taken_back(make: Any) -> None:
    """Issue 7: whoever says it in another way strikes it from the list of the unsent."""
    kit, _ = make("a")
    receipt = kit.queue_steer("too late")
    assert kit.queue.returned == ("too late",)

    kit.take_back(receipt)
    kit.take_back(receipt)

    assert kit.queue.returned == ()
