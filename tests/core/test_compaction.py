"""Compaction: where it cuts, what it keeps, when it comes, and that nothing vanishes twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit_jupyter import ContextOverflow, KitError, Session, UsageError
from kit_jupyter import events as ev
from kit_jupyter.compaction import (
    Meter,
    context_tokens,
    estimate_tokens,
    files_touched,
    find_cut,
    summary_prompt,
    transcript_text,
)
from kit_jupyter.extension import CompactionPlan
from kit_jupyter.messages import (
    Assistant,
    MediaPart,
    Message,
    Native,
    ResultFacts,
    ServerPart,
    System,
    TextPart,
    ThinkingPart,
    Tokens,
    ToolCallPart,
    ToolResult,
    Usage,
    User,
    new_id,
    now,
    text_of,
)
from kit_jupyter.prompt import SUMMARY_LEAD
from kit_jupyter.provider import ModelInfo
from kit_jupyter.testing import overflow, provider_error, record_events, text, tool_call, unanswered_calls, usage

from .helpers import area, texts, until


def user(said: str, turn: str = "t", source: str | None = None) -> User:
    return User(id=new_id("msg"), time=now(), parts=(TextPart(said),), turn_id=turn, source=source)


def answer(said: str, turn: str = "t", *calls: str, tokens: int = 0) -> Assistant:
    parts = (TextPart(said), *(ToolCallPart(c, "tool", "{}") for c in calls))
    counted = Tokens(input=tokens) if tokens else Tokens()
    return Assistant(id=new_id("msg"), time=now(), parts=parts, turn_id=turn, usage=Usage(tokens=counted))


def result(call: str, said: str, turn: str = "t") -> ToolResult:
    return ToolResult(id=new_id("msg"), time=now(), call_id=call, name="tool", parts=(TextPart(said),), turn_id=turn)


def summary(said: str = "S") -> Assistant:
    return Assistant(id=new_id("msg"), time=now(), parts=(TextPart(said),), result=ResultFacts(kind="summary"))


def size(request: Any) -> int:
    """Characters of a request's messages."""
    return sum(len(said) for _, said in texts(request))


# ---------------------------------------------------------------- where to cut

STEP = st.tuples(st.sampled_from(["short", "long", "tools", "steer", "beside"]), st.integers(1, 3))


@settings(max_examples=150, deadline=None)
@given(rounds=st.lists(st.tuples(st.lists(STEP, min_size=1, max_size=5), st.integers(0, 300)), min_size=1, max_size=5))
def test_repeated_compactions_keep_or_summarise_each_message_exactly_once(
    rounds: list[tuple[list[tuple[str, int]], int]],
) -> None:
    """The first-kept rule: what one compaction kept is kept or summarised by the next one; no call loses its result."""
    session = Session.memory()
    waiting: list[str] = []  # messages that no summary stands for yet, in order
    turn = 0
    for steps, keep in rounds:
        for kind, n in steps:
            turn += 1
            name = f"t{turn}"
            said: list[Message] = [user("q" * 4 * (200 if kind == "long" else 5), name)]
            if kind == "steer":
                said.append(System(id=new_id("m"), time=now(), parts=(TextPart("steer"),), turn_id=name))
            if kind == "beside":
                said.append(user("block", name, "extension:x"))
            if kind == "tools":
                for i in range(n):
                    ids = [f"{name}-{i}-{k}" for k in range(n)]
                    said += [answer("", name, *ids), *(result(c, "r" * 80, name) for c in ids)]
            said.append(answer("a" * 40, name))
            for message in said:
                session.append(message)
                waiting.append(message.id)
        cut = find_cut(session, keep)
        if cut is None:
            continue
        removed = [m.id for m in (*cut.history, *cut.turn_prefix)]
        assert removed == waiting[: len(removed)]
        waiting = waiting[len(removed) :]
        session.append_compaction(summary(f"summary {turn}"), first_kept=cut.first_kept)
        context = session.messages()
        assert [m.id for m in context[1:]] == waiting
        assert context[0].result.kind == "summary"  # type: ignore[union-attr]
        calls = {c.call_id for m in context if isinstance(m, Assistant) for c in m.tool_calls}
        assert {m.call_id for m in context if isinstance(m, ToolResult)} == calls
        if len(context) > 1:
            assert not isinstance(context[1], ToolResult)
        assert find_cut(session, keep) is None  # at once again there is nothing to do
    assert len(session.transcript()) == len([e for e in session.entries if e.message is not None])


def test_a_cut_inside_a_turn_summarises_its_beginning_apart() -> None:
    """A split turn: the history, and the turn's own beginning; an earlier summary is updated, not summarised again."""
    session = Session.memory()
    for message in (user("one", "t1"), answer("1", "t1"), user("two", "t2")):
        session.append(message)
    for i in range(6):
        session.append(answer("work", "t2", f"c{i}"))
        session.append(result(f"c{i}", "r" * 400, "t2"))

    cut = find_cut(session, 150)

    assert cut is not None
    assert [text_of(m.parts) for m in cut.history] == ["one", "1"]
    assert text_of(cut.turn_prefix[0].parts) == "two"
    assert cut.removed == len(cut.history) + len(cut.turn_prefix)
    session.append_compaction(summary("old summary"), first_kept=cut.first_kept)
    for i in range(6, 9):
        session.append(answer("work", "t2", f"c{i}"))
        session.append(result(f"c{i}", "r" * 400, "t2"))
    again = find_cut(session, 150)
    assert again is not None
    assert again.previous == "old summary"


def test_nothing_to_cut_is_none() -> None:
    """Empty, short, and just compacted."""
    session = Session.memory()
    assert find_cut(session, 10) is None
    session.append(user("hi"))
    assert find_cut(session, 1_000) is None


def test_a_last_batch_of_results_is_kept_with_its_answer() -> None:
    """Never between a call and its result, also when the results alone are more than is kept."""
    session = Session.memory()
    for message in (user("q"), answer("x"), user("more"), answer("", "t", "a", "b"), result("a", "r" * 9000)):
        session.append(message)
    session.append(result("b", "r" * 9000))

    cut = find_cut(session, 100)

    assert cut is not None
    assert cut.first_kept == session.entries[3].id


# ---------------------------------------------------------------- tokens


def test_counts_of_the_service_go_before_estimates() -> None:
    """The last good count plus an estimate of what follows; counts from before a summary are not used."""
    long = user("x" * 400)
    assert estimate_tokens(long) == 100
    assert estimate_tokens(User(id="u", time=now(), parts=(MediaPart("image/png", "AAAA"),))) == 1_200
    server = ServerPart("block", "n", Native("w", {"a": "b" * 100}))
    assert estimate_tokens(Assistant(id="a", time=now(), parts=(server, ThinkingPart("x" * 40)))) > 30
    counted = answer("y", tokens=5_000)
    assert context_tokens([long, counted]) == 5_000
    assert context_tokens([long, counted, long]) == 5_100
    failed = Assistant(
        id="f", time=now(), parts=(), usage=Usage(tokens=Tokens(input=9)), result=ResultFacts(finish="aborted")
    )
    assert context_tokens([long, counted, failed]) == 5_000
    assert context_tokens([summary("s" * 40), counted, long]) < 5_000  # made in the same millisecond at most
    assert context_tokens([]) == 0


def test_a_meter_that_has_read_before_says_the_same_as_one_that_has_not() -> None:
    """The incremental count never differs from the whole one, over growth and branches."""
    meter = Meter()
    messages: tuple[Message, ...] = ()
    for i in range(60):
        messages = (*messages, user("x" * i) if i % 2 else answer("y" * i, tokens=0 if i % 6 else 50 * i))
        if i % 17 == 16:
            messages = messages[: i // 2]
        assert meter.read(messages) == context_tokens(messages)


# ---------------------------------------------------------------- what is asked


def test_the_transcript_is_plain_labelled_text_and_bounded() -> None:
    """Results are cut at 2,000 characters with a note; the model reads it and does not continue it."""
    messages = [
        user("hello"),
        System(id="s", time=now(), parts=(TextPart("be brief"),)),
        Assistant(id="a", time=now(), parts=(ThinkingPart("hm"), TextPart("hi"), ToolCallPart("c", "read", "{}"))),
        result("c", "z" * 5_000),
        User(id="u", time=now(), parts=(MediaPart("image/png", "AA", "p.png"),)),
    ]
    said = transcript_text(messages)
    for line in ("[User]: hello", "[Instruction]: be brief", "[Assistant thinking]: hm", "[Assistant calls read]: {}"):
        assert line in said
    assert "[3,000 characters left out]" in said
    assert "[User attached image/png p.png]" in said
    assert "<previous-summary>\nold" in summary_prompt(messages, "old", None)
    assert "special attention to: the data" in summary_prompt(messages, "", "the data")
    assert "beginning of a turn" in summary_prompt(messages, "", None, prefix=True)


def test_files_come_from_the_arguments_of_calls() -> None:
    """Files only read, and files changed; nonsense arguments are passed over."""

    def call(name: str, arguments: str) -> Assistant:
        return Assistant(id=new_id("m"), time=now(), parts=(ToolCallPart("c", name, arguments),))

    messages = [
        call("read", '{"path": "a.py"}'),
        call("read", '{"path": "b.py"}'),
        call("edit", '{"path": "b.py"}'),
        call("write", "nonsense"),
        call("read", "[1]"),
        call("other", '{"path": "c.py"}'),
    ]
    assert files_touched(messages) == (["a.py"], ["b.py"])


# ---------------------------------------------------------------- in a Kit


async def test_compact_writes_one_entry_and_the_next_request_is_smaller(make: Any) -> None:
    """S4, S124: a summary entry; the next request shows it from the user's side; the transcript is as it was."""
    kit, provider = make("a" * 4000, "b" * 40, [text("The summary"), usage(input=900, output=20)], "c")
    await kit.prompt("one")
    await kit.prompt("two")
    seen = kit.history

    with record_events(kit) as log:
        said = await kit.compact("keep the numbers")

    assert said == "The summary"
    assert [e.type for e in kit.session.entries].count("compaction") == 1
    assert "keep the numbers" in texts(provider.requests[2])[0][1]
    assert "[User]: one" in texts(provider.requests[2])[0][1]
    start, end = log.of(ev.CompactionStart, ev.CompactionEnd)
    assert (start.reason, end.summary, end.error) == ("manual", "The summary", "")
    assert end.messages_removed >= 1
    await kit.prompt("three")
    assert texts(provider.last_request)[0] == ("user", SUMMARY_LEAD + "The summary")
    assert size(provider.last_request) < size(provider.requests[1]) / 2
    assert [text_of(m.parts) for m in kit.messages] == ["The summary", "two", "b" * 40, "three", "c"]
    assert kit.history[: len(seen)] == seen
    marker = next(m for m in kit.history if isinstance(m, Assistant) and m.result.kind == "summary")
    assert marker.usage.tokens.total == 920
    assert kit.usage.tokens.total == 920


async def test_a_long_last_answer_is_summarised_with_the_rest(make: Any) -> None:
    """S4: it was kept whole, and the next request was larger than the one before."""
    kit, provider = make("a" * 4000, [text("The summary")], "b")
    await kit.prompt("one")

    assert await kit.compact() == "The summary"
    await kit.prompt("two")

    assert "a" * 100 in texts(provider.requests[1])[0][1]
    assert texts(provider.last_request) == [("user", SUMMARY_LEAD + "The summary"), ("user", "two")]
    assert size(provider.last_request) < 1000


def test_a_message_far_larger_than_what_should_stay_is_summarised() -> None:
    """With the rest of its turn, the last one, too, between turns; not the question that a turn is about to answer."""
    session = Session.memory()
    said = [user("one", "t1"), answer("a" * 4000, "t1"), user("two", "t2"), answer("b" * 40, "t2")]
    for message in said:
        session.append(message)

    def kept(keep: int, *, between: bool = True) -> Any:
        cut = find_cut(session, keep, is_between_turns=between)
        assert cut is not None
        return next((i for i, entry in enumerate(session.entries) if entry.id == cut.first_kept), None)

    assert [kept(keep) for keep in (100, 400, 600)] == [2, 2, 1]
    session.append(user("three " * 1000, "t3"))
    assert kept(100, between=False) == 4
    session.append(answer("c", "t3", "call"))
    session.append(result("call", "r" * 4000, "t3"))
    assert kept(100, between=False) == 5  # never a result without its call
    session.append(answer("d" * 40, "t3"))
    assert kept(20, between=False) == 7
    assert kept(100) is None  # the whole turn goes, rather than all but its last words
    cut = find_cut(session, 100, is_between_turns=True)
    assert cut is not None
    assert len(cut.history) == 8
    assert cut.turn_prefix == ()


async def test_compact_says_why_it_cannot(make: Any) -> None:
    """Nothing there, nothing to do, a running turn, an empty summary, a failing model: each its own words."""
    kit, provider = make("a")
    with pytest.raises(UsageError, match="no conversation yet"):
        await kit.compact()
    await kit.prompt("x")
    provider.script([text("  ")])
    with pytest.raises(UsageError, match="nothing to compact"):
        await kit.compact()

    kit, provider = make("a" * 4000, "b" * 40, [text(" ")], [provider_error("overloaded", "busy")], "S")
    await kit.prompt("one")
    await kit.prompt("two")
    before = kit.messages
    with record_events(kit) as log:
        with pytest.raises(KitError, match="the summary came back empty"):
            await kit.compact()
        with pytest.raises(KitError, match="busy"):
            await kit.compact()
    assert [e.error != "" for e in log.of(ev.CompactionEnd)] == [True, True]
    assert kit.messages == before
    assert await kit.compact() == "S"
    with pytest.raises(UsageError, match="nothing to compact"):
        await kit.compact()


async def test_near_the_window_the_history_is_summarised_before_the_turn(make: Any) -> None:
    """Automatic: at the threshold, by the service's own counts; the prompt itself is never summarised away."""
    kit, provider = make(
        [text("w " * 800), usage(input=1000, output=900)],
        "Summary",
        "done",
        info=ModelInfo(context_window=2000),
    )
    await kit.prompt("one")

    with record_events(kit) as log:
        await kit.prompt("two")

    assert log.of(ev.CompactionStart)[0].reason == "threshold"
    assert texts(provider.last_request)[0][1] == SUMMARY_LEAD + "Summary"
    assert texts(provider.last_request)[-1] == ("user", "two")


async def test_an_overflow_is_met_by_one_summary_and_one_more_try(make: Any) -> None:
    """U46: compact once, replay; the transcript is unchanged but for the marker; a second overflow is raised."""
    kit, provider = make("a" * 4000, "b" * 40, overflow(), "Summary", "made it", overflow(), "S2", overflow())
    await kit.prompt("one")
    await kit.prompt("two")
    seen = kit.history

    with record_events(kit) as log:
        answer_ = await kit.prompt("three")

    assert str(answer_) == "made it"
    assert answer_.usage.tokens.total == 0
    assert log.of(ev.CompactionStart)[0].reason == "overflow"
    assert len(log.of(ev.MessageStart)) == len(log.of(ev.MessageEnd)) == 2
    assert kit.history[: len(seen)] == seen
    assert [m for m in kit.history if isinstance(m, Assistant) and m.result.kind == "summary"]
    assert not any(m.result.error for m in kit.history if isinstance(m, Assistant))
    with pytest.raises(KitError, match="generation failed: the prompt is too long"):
        await kit.prompt("four")
    assert unanswered_calls(provider.last_request) == []


async def test_an_overflow_that_no_summary_can_help_is_raised_as_it_came(make: Any) -> None:
    """One huge prompt: nothing to summarise; the service's words reach the caller."""
    kit, provider = make(overflow(), "ok")
    with pytest.raises(KitError, match="the prompt is too long"):
        await kit.prompt("x" * 1000)
    assert len(provider.requests) == 1


async def test_a_prompt_that_is_too_large_alone_is_left_out_and_costs_no_history(make: Any) -> None:
    """U46: no summary can help it; the talk goes on as if it had not been asked, and it can be asked again."""
    kit, provider = make("one", overflow(), "two", "made it", info=ModelInfo(context_window=2000))
    await kit.prompt("first")
    before = kit.messages

    with record_events(kit) as log, pytest.raises(ContextOverflow, match="this prompt alone, of about 2,500 tokens"):
        await kit.prompt("x" * 10_000)

    assert kit.messages == before
    assert not log.of(ev.CompactionStart)
    assert [e for e in kit.session.entries if e.message is not None and "xxx" in text_of(e.message.parts)], "lost"
    assert str(await kit.prompt("second")) == "two"
    assert texts(provider.last_request) == [("user", "first"), ("assistant", "one"), ("user", "second")]


async def test_a_prompt_that_was_left_out_can_be_asked_again(make: Any) -> None:
    """With a larger model, say: the turn stands beside the branch, and is found by its id."""
    kit, provider = make("one", overflow(), "made it", info=ModelInfo(context_window=2000))
    await kit.prompt("first")
    with record_events(kit) as log, pytest.raises(ContextOverflow):
        await kit.prompt("x" * 10_000)

    assert str(await kit.ask_again(log.of(ev.TurnStart)[0].turn_id)) == "made it"
    assert [said for _, said in texts(provider.last_request)] == ["first", "one", "x" * 10_000]


async def test_compaction_in_the_middle_of_a_turn_keeps_calls_with_their_results(make: Any) -> None:
    """Between steps, with tools: the next request answers every call, and the split turn has its own part."""

    def big() -> str:
        """Much text."""
        return "word " * 600

    kit, provider = make(
        "first",
        [tool_call("big")],
        [tool_call("big")],
        *(["Summary"] * 6),
        "end",
        tools=[big],
        info=ModelInfo(context_window=2000),
        max_steps=6,
    )
    provider._repeat_last = True
    await kit.prompt("one")
    with record_events(kit) as log:
        await kit.prompt("go")

    assert log.of(ev.CompactionStart)
    assert all(unanswered_calls(request) == [] for request in provider.requests)
    assert len(log.of(ev.CompactionStart)) == len(log.of(ev.CompactionEnd))


async def test_a_failing_summary_is_tried_once_a_turn_and_does_not_end_it(make: Any) -> None:
    """At the threshold a failure is told and the turn goes on; not again at every step."""
    kit, provider = make(
        [text("w " * 800), usage(input=1000, output=900)],
        [provider_error("overloaded")],
        [tool_call("area", width=1, height=1)],
        "done",
        tools=[area],
        info=ModelInfo(context_window=2000),
    )
    await kit.prompt("one")
    with record_events(kit) as log:
        assert str(await kit.prompt("two")) == "done"

    assert len(log.of(ev.CompactionEnd)) == 1
    assert log.of(ev.CompactionEnd)[0].error
    assert len(provider.requests) == 4


async def test_a_hook_can_cancel_or_bring_the_summary(make: Any) -> None:
    """S72: before-compact gets the plan; cancelled is said so; its own summary needs no model call."""
    from dataclasses import replace

    say: list[Any] = []

    def configure(c: Any) -> None:
        def hook(plan: CompactionPlan) -> CompactionPlan:
            return replace(plan, cancel=True, cancel_reason="not now") if not say else replace(plan, summary=say[0])

        c.add_hook("before_compact", hook)

    kit, provider = make("a" * 4000, "b" * 40, configure=configure)
    await kit.prompt("one")
    await kit.prompt("two")
    with record_events(kit) as log, pytest.raises(UsageError, match="cancelled: not now"):
        await kit.compact()
    assert log.names == ["Warned"]

    say.append("my own words")
    assert await kit.compact() == "my own words"
    assert len(provider.requests) == 2
    assert kit.session.entries[-1].body["from_hook"] is True


async def test_a_stop_during_a_compaction_inside_a_turn_ends_the_turn(make: Any) -> None:
    """Abort while the history is summarised: closed, aborted, history as it was."""
    import threading

    from kit_jupyter.testing import gate

    hold = threading.Event()
    kit, provider = make(
        [text("w " * 800), usage(input=1000, output=900)],
        [text("S"), gate(hold)],
        "ok",
        info=ModelInfo(context_window=2000),
    )
    await kit.prompt("one")
    before = kit.messages
    with record_events(kit) as log:
        task = asyncio.ensure_future(kit.prompt("two"))
        await until(lambda: len(provider.requests) == 2)
        await kit.abort()

    assert (await task).stop_reason == "aborted"
    assert log.names[-2:] == ["CompactionEnd", "TurnEnd"]
    assert kit.messages == before


async def test_a_branch_can_leave_a_summary_behind(make: Any) -> None:
    """Branch summary: made before the leaf moves, stored on the new branch; a failure moves nothing."""
    kit, provider = make("a", "b", [provider_error("overloaded")], "what was tried", "c")
    await kit.prompt("one")
    back_to = kit.session.leaf
    await kit.prompt("two")
    leaf = kit.session.leaf

    with pytest.raises(KitError):
        await kit.branch(back_to, summarise=True)
    assert kit.session.leaf == leaf
    with record_events(kit) as log:
        await kit.branch(back_to, summarise=True)

    assert log.names == ["BranchChanged"]
    assert "Another branch" in kit.messages[-1].parts[0].text
    await kit.prompt("three")
    assert [r for r, _ in texts(provider.last_request)] == ["user", "assistant", "user", "user"]
    assert "two" not in [t for _, t in texts(provider.last_request)]
