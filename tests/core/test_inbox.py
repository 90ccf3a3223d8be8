"""Tickets: each ends committed or returned, whatever comes between; nothing said is lost."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit_jupyter import Kit, KitError
from kit_jupyter import events as ev
from kit_jupyter.inbox import Inbox, QueueState, Receipt, Ticket
from kit_jupyter.messages import text_of
from kit_jupyter.provider import ModelInfo
from kit_jupyter.testing import (
    ScriptedProvider,
    gate,
    overflow,
    provider_error,
    record_events,
    text,
    tool_call,
    unanswered_calls,
)

from .helpers import area, texts, until

# ---------------------------------------------------------------- the inbox by itself


def test_a_ticket_goes_from_queued_to_delivered_to_committed() -> None:
    """The states in order, each told by the receipt; a snapshot has each text in one place."""
    states: list[QueueState] = []
    inbox = Inbox(states.append)
    ticket = Ticket("steer", "hi")
    assert not inbox.offer(ticket)  # nobody takes any yet
    inbox.open()
    assert inbox.offer(ticket)
    assert (ticket.state, inbox.state.steering) == ("queued", ("hi",))
    assert inbox.poll("steer") == [ticket]
    assert ticket.state == "delivered"
    inbox.commit(ticket, "msg_1")

    receipt = ticket.receipt
    assert (receipt.state, receipt.message_id, receipt.text, receipt.id) == ("committed", "msg_1", "hi", ticket.id)
    assert receipt.result(0) == "committed"
    assert "committed" in repr(receipt)
    assert [s.steering for s in states] == [("hi",), ()]


def test_closing_returns_all_in_the_order_they_were_said() -> None:
    """U27: listed as unsent, restorable by `clear`, then forgotten."""
    inbox = Inbox()
    inbox.open()
    tickets = [Ticket("follow_up", "1"), Ticket("steer", "2"), Ticket("steer", "3")]
    for ticket in tickets:
        inbox.offer(ticket)
    inbox.poll("steer")

    assert [t.text for t in inbox.close()] == ["1", "2", "3"]
    assert inbox.state.returned == ("1", "2", "3")
    assert {t.state for t in tickets} == {"returned"}
    assert inbox.clear() == ["1", "2", "3"]
    assert inbox.state == QueueState()
    assert inbox.clear() == []


def test_no_ticket_slips_in_between_the_last_look_and_the_end() -> None:
    """`poll_last` that finds nothing closes the inbox under the same lock."""
    inbox = Inbox()
    inbox.open()
    assert inbox.poll_last() == []
    assert not inbox.is_open
    late = Ticket("steer", "late")
    assert not inbox.offer(late)
    inbox.refuse(late)
    assert late.state == "returned"
    inbox.forget(late)
    inbox.forget(late)
    assert inbox.state.returned == ()


async def test_whoever_stops_awaiting_a_receipt_cannot_break_the_ticket() -> None:
    """Found by reading: cancelling an await of a receipt cancelled the ticket's future, and the turn failed later."""
    inbox = Inbox()
    inbox.open()
    ticket = Ticket("steer", "x")
    inbox.offer(ticket)
    waiting = asyncio.ensure_future(_awaited(ticket.receipt))
    delivered = asyncio.ensure_future(ticket.receipt.delivered())
    await asyncio.sleep(0)
    waiting.cancel()
    delivered.cancel()
    await asyncio.gather(waiting, delivered, return_exceptions=True)

    inbox.poll("steer")
    inbox.commit(ticket, "m")

    assert await ticket.receipt == "committed"
    assert await ticket.receipt.delivered() == "delivered"


async def _awaited(receipt: Receipt) -> Any:
    return await receipt


# ---------------------------------------------------------------- any interleaving

ACTIONS = ("steer", "steer_now", "follow_up", "abort", "clear", "wait", "queue_thread")
REPLIES = ("text", "tool", "error", "overflow", "slow")


@settings(max_examples=120, deadline=None)
@given(
    replies=st.lists(st.sampled_from(REPLIES), min_size=1, max_size=5),
    actions=st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 6)), max_size=8),
    one_at_a_time=st.booleans(),
    seed=st.integers(0, 1 << 16),
)
def test_each_ticket_ends_in_exactly_one_fate(
    replies: list[str], actions: list[tuple[str, int]], one_at_a_time: bool, seed: int
) -> None:
    """U28, law 4: for any interleaving of steer, follow-up, abort, tool end, error and compaction."""
    asyncio.run(_play(replies, actions, one_at_a_time, random.Random(seed)))


def _reply(kind: str) -> list[Any]:
    return {
        "text": [text("fine", chunks=2)],
        "tool": [text("t"), tool_call("area", width=1, height=2), tool_call("area", width=2, height=2)],
        "error": [text("h"), provider_error("overloaded")],
        "overflow": [overflow()],
        "slow": [text("a b c d e f g h")],
    }[kind]


async def _play(replies: list[str], actions: list[tuple[str, int]], one_at_a_time: bool, rng: random.Random) -> None:
    mode = "one" if one_at_a_time else "all"
    provider = ScriptedProvider(*(_reply(kind) for kind in replies), "end", repeat_last=True)
    kit = Kit(
        provider=provider,
        session="memory",
        tools=[area],
        permissions="auto",
        steering_mode=mode,
        follow_up_mode=mode,
        max_steps=8,
    )
    said: dict[str, Receipt] = {}
    cleared: list[str] = []
    lost: list[str] = []

    def say(kind: str) -> None:
        name = f"{kind} {len(said)}"
        if kind == "follow_up":
            said[name] = kit.queue_follow_up(name)
        else:
            said[name] = kit.queue_steer(name, now=kind == "steer_now")

    async def act() -> None:
        for action, pause in actions:
            for _ in range(pause):
                await asyncio.sleep(0)
            match action:
                case "abort":
                    kit.abort()
                case "clear":
                    cleared.extend(kit.clear_queue())
                case "wait":
                    await asyncio.sleep(0.001 * rng.random())
                case "queue_thread":
                    await asyncio.to_thread(say, "steer")
                case _:
                    say(action)

    with record_events(kit) as log:
        first = asyncio.ensure_future(kit.prompt("go"))
        acting = asyncio.ensure_future(act())
        with contextlib.suppress(KitError):
            await first
        await acting
        await kit.abort()

    stored = [text_of(m.parts) for m in kit.history if getattr(m, "source", None) in ("steer", "follow-up")]
    unsent = [*cleared, *kit.queue.returned]
    for name, receipt in said.items():
        assert receipt.state in ("committed", "returned"), name
        assert receipt.result(0) == receipt.state
        assert stored.count(name) == (1 if receipt.state == "committed" else 0), name
        assert unsent.count(name) == (1 if receipt.state == "returned" else 0), name
    assert not lost
    assert kit.queue.steering == kit.queue.follow_up == ()
    # The other laws hold in the same breath.
    assert len(log.of(ev.TurnStart)) == len(log.of(ev.TurnEnd))
    assert len(log.of(ev.MessageStart)) == len(log.of(ev.MessageEnd))
    assert [e.call_id for e in log.of(ev.ToolCall)] == [e.call_id for e in log.of(ev.ToolResultEvent)]
    assert len(log.of(ev.CompactionStart)) == len(log.of(ev.CompactionEnd))
    assert all(unanswered_calls(request) == [] for request in provider.requests)
    await kit.aclose()


# ---------------------------------------------------------------- what a person sees


async def test_stop_lists_what_was_queued_and_the_next_turn_does_not_send_it(make: Any) -> None:
    """U27: two queued, a stop: both unsent and restorable; the next turn's request has neither."""
    hold = threading.Event()
    kit, provider = make([text("x"), gate(hold)], "next")
    task = asyncio.ensure_future(kit.prompt("go"))
    await until(lambda: provider.requests)
    steer, follow = kit.queue_steer("one"), kit.queue_follow_up("two")

    with record_events(kit) as log:
        await kit.abort()
    result = await task

    assert result.returned == kit.queue.returned == ("one", "two")
    assert log.of(ev.QueueUpdate)[-1].returned == ("one", "two")
    assert (steer.state, follow.state) == ("returned", "returned")
    await kit.prompt("next")
    assert "one" not in str(texts(provider.last_request))
    assert kit.clear_queue() == ["one", "two"]


async def test_what_is_said_during_a_compaction_is_delivered_right_after(make: Any) -> None:
    """U29: a steer said while the history is summarised begins a turn of its own when that is done."""
    hold = threading.Event()
    kit, provider = make("a" * 4000, "b" * 40, [text("Summary"), gate(hold)], "steered")
    await kit.prompt("one")
    await kit.prompt("two")
    compacting = asyncio.ensure_future(kit.compact())
    await until(lambda: len(provider.requests) == 3)

    receipt = await kit.steer("be brief")
    assert isinstance(receipt, Receipt)
    refused = await asyncio.gather(kit.prompt("no"), return_exceptions=True)
    joined = asyncio.ensure_future(kit.prompt("joined", when_busy="steer"))
    await until(lambda: len(kit.queue.steering) == 2)
    hold.set()

    assert await compacting == "Summary"
    assert await receipt == "committed"
    assert str(await joined) == "steered"
    assert "being summarised" in str(refused[0])
    assert [role for role, _ in texts(provider.last_request)][-3:] == ["system", "system", "user"]
    assert str(texts(provider.last_request)).count("be brief") == 1


async def test_a_stop_during_a_compaction_returns_what_was_said(make: Any) -> None:
    """Stop stops a compaction too; nothing has changed, and nothing is sent by itself."""
    hold = threading.Event()
    kit, provider = make("a" * 4000, "b" * 40, [text("Summary"), gate(hold)], "next")
    await kit.prompt("one")
    await kit.prompt("two")
    before = kit.messages
    compacting = asyncio.ensure_future(kit.compact())
    await until(lambda: len(provider.requests) == 3)
    receipt = kit.queue_steer("be brief")

    with record_events(kit) as log:
        await kit.abort()
    with pytest.raises(KitError, match="the summary was stopped"):
        await compacting

    assert receipt.state == "returned"
    assert kit.messages == before
    assert log.of(ev.CompactionEnd)[0].error == "stopped"
    assert str(await kit.prompt("next")) == "next"


async def test_steers_at_the_step_limit_come_back(make: Any) -> None:
    """A steer that no step can take any more is returned, not stored unseen; one that restarts a stop gets steps."""
    hold = threading.Event()
    kit, provider = make(
        [tool_call("area", width=1, height=1), gate(hold)], [text("end"), gate(hold)], "more", tools=[area], max_steps=1
    )
    task = asyncio.ensure_future(kit.prompt("go"))
    await until(lambda: provider.requests)
    receipt = kit.queue_steer("too late")
    hold.set()
    assert (await task).stop_reason == "max_steps"
    assert receipt.state == "returned"

    hold.clear()
    task = asyncio.ensure_future(kit.prompt("go"))
    await until(lambda: len(provider.requests) == 2)
    receipt = kit.queue_follow_up("and?")
    hold.set()
    assert str(await task) == "more"
    assert receipt.state == "committed"


async def test_a_full_window_in_the_middle_of_queued_steers_loses_none(make: Any) -> None:
    """U29, pi 6728: compaction between steps, with steers waiting: all are committed."""
    hold = threading.Event()
    kit, provider = make(
        "w " * 3000,
        [tool_call("area", width=1, height=1), gate(hold)],
        [text("Summary")],
        "done",
        tools=[area],
        info=ModelInfo(context_window=2000),
        keep_recent_tokens=100,
    )
    await kit.prompt("x")
    kit.settings.update({"auto_compact": False})
    task = asyncio.ensure_future(kit.prompt("go"))
    await until(lambda: len(provider.requests) == 2)
    receipts = [kit.queue_steer(f"s{i}") for i in range(3)]
    hold.set()
    await task

    assert {r.state for r in receipts} == {"committed"}
