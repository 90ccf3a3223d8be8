"""The bus: observers that cannot do harm, and a log of what nobody observes."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from typing import Any

import pytest

from kit_jupyter import Kit, event_bus
from kit_jupyter import events as ev
from kit_jupyter.event_bus import EventBus
from kit_jupyter.extension import Extension
from kit_jupyter.testing import ScriptedProvider, delay, text, tool_call

from .helpers import area, until


def stamp(n: int) -> ev.Event:
    return ev.Domain("n", n, seq=n)


def test_the_bus_is_found_among_the_events_too() -> None:
    """Its room is `event_bus`; who names what `Kit.subscribe` gives takes it from the vocabulary's page."""
    assert (ev.EventBus, ev.Subscription) == (EventBus, event_bus.Subscription)
    with pytest.raises(AttributeError, match=r"'kit_jupyter\.events' has no attribute 'Hologram'"):
        ev.Hologram  # noqa: B018


def test_observers_are_called_in_order_and_can_leave() -> None:
    """S48: many subscribers, by registration; a disposer, and a context manager; filters by type."""
    bus = EventBus()
    seen: list[tuple[str, Any]] = []
    first = bus.subscribe(lambda e: seen.append(("a", e.content)), ev.Domain, inline=True)
    bus.subscribe(lambda e: seen.append(("b", getattr(e, "content", None))), inline=True)
    bus.emit(stamp(1))
    bus.emit(ev.Reset())
    first()
    first()
    bus.emit(stamp(2))

    assert seen == [("a", 1), ("b", 1), ("b", None), ("b", 2)]
    with bus.subscribe(lambda e: seen.append(("c", e.content)), ev.Domain):
        bus.emit(stamp(3))
    bus.emit(stamp(4))
    assert [x for x in seen if x[0] == "c"] == [("c", 3)]
    assert bus.is_heard


def test_a_failing_observer_is_reported_and_stops_nobody() -> None:
    """S48, law 7: the others get every event; the failure is an event; a failure on the report ends there."""
    bus = EventBus()
    seen: list[Any] = []

    def broken(event: ev.Event) -> None:
        raise ValueError("oops")

    async def broken_async(event: ev.Event) -> None:
        raise ValueError("oops too")

    bus.subscribe(broken, inline=True)
    bus.subscribe(broken)
    bus.subscribe(broken_async)
    bus.subscribe(seen.append, inline=True)
    bus.emit(stamp(1))
    bus.settle(5)
    end = time.monotonic() + 5
    while len([e for e in seen if isinstance(e, ev.ErrorEvent)]) < 3 and time.monotonic() < end:
        time.sleep(0.001)

    errors = [e.message for e in seen if isinstance(e, ev.ErrorEvent)]
    assert len(errors) == 3
    assert all("failed on Domain: ValueError: oops" in message for message in errors)


def test_no_event_is_lost_or_out_of_order_under_a_slow_observer() -> None:
    """S38: a thousand events, a slow sync observer and a slow async one: all there, in order."""
    bus = EventBus()
    slow: list[int] = []
    slow_async: list[int] = []

    def observe(event: Any) -> None:
        if event.content % 100 == 0:
            time.sleep(0.001)
        slow.append(event.content)

    async def observe_async(event: Any) -> None:
        if event.content % 100 == 0:
            await asyncio.sleep(0.001)
        slow_async.append(event.content)

    bus.subscribe(observe)
    bus.subscribe(observe_async)
    for n in range(1_000):
        bus.emit(stamp(n))
    end = time.monotonic() + 10
    while (len(slow) < 1_000 or len(slow_async) < 1_000) and time.monotonic() < end:
        time.sleep(0.001)

    assert slow == slow_async == list(range(1_000))


async def test_blocked_observers_delay_neither_the_turn_nor_each_other(make: Any) -> None:
    """Law 7: twenty observers that block for ever: the turn ends, and another observer has seen it all."""
    kit, _ = make([text("a b c"), delay(0.01)])
    never = threading.Event()
    seen: list[str] = []
    for _ in range(20):
        kit.subscribe(lambda e: never.wait(60))
    kit.subscribe(lambda e: seen.append(type(e).__name__))

    result = await asyncio.wait_for(kit.prompt("go"), 5)

    assert str(result) == "a b c"
    await until(lambda: "TurnEnd" in seen)
    assert seen[-1] == "TurnEnd"
    never.set()


async def test_a_blocked_observer_does_not_keep_the_process_alive() -> None:
    """An observer that never returns must not hold up the interpreter's exit."""
    import os
    import subprocess
    import sys

    code = (
        "import threading\nfrom kit_jupyter import Kit\nfrom kit_jupyter.testing import ScriptedProvider\n"
        "kit = Kit(provider=ScriptedProvider('x'), session='memory')\n"
        "kit.subscribe(lambda e: threading.Event().wait())\nprint(kit.prompt_sync('hi'))\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=env
    )
    assert done.stdout == "x\n"
    assert done.returncode == 0


def test_an_observer_runs_in_the_context_that_emitted() -> None:
    """So that a print of an observer lands in the cell that runs the turn."""
    place: contextvars.ContextVar[str] = contextvars.ContextVar("place", default="nowhere")
    bus = EventBus()
    seen: list[str] = []
    bus.subscribe(lambda e: seen.append(place.get()))
    for name in ("cell one", "cell two"):
        place.set(name)
        bus.emit(stamp(1))
    bus.settle(5)

    assert seen == ["cell one", "cell two"]


def test_an_observer_thread_ends_when_nothing_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads are not kept for ever, and a new one is there for the next event."""
    monkeypatch.setattr(event_bus, "_LINGER_SECONDS", 0.01)
    bus = EventBus()
    seen: list[Any] = []
    subscription = bus.subscribe(lambda e: seen.append(e.content))
    for n in range(3):
        bus.emit(stamp(n))
        end = time.monotonic() + 5
        while subscription._has_worker and time.monotonic() < end:
            time.sleep(0.001)
        assert not subscription._has_worker
    assert seen == [0, 1, 2]
    assert bus.has_threaded


class Guard(Extension):
    """A guest with two faults."""

    def system_prompt_snippets(self) -> Any:
        return "no list"

    def before_tool(self, call: Any, arguments: Any) -> None:
        raise KeyError("width")


def _ask_twice(kit: Kit) -> None:
    kit.prompt_sync("How large?")
    kit.prompt_sync("And now?")
    kit.bus.settle()


def _guarded() -> Kit:
    calls = [[tool_call("area", width=2, height=3)], "so"] * 2
    return Kit(provider=ScriptedProvider(*calls), tools=[area], extensions=[Guard()], session="memory")


def test_a_failing_guest_is_logged_where_nobody_observes(caplog: pytest.LogCaptureFixture) -> None:
    """A script sees each fault of its guests once, whatever the number of turns."""
    with caplog.at_level("WARNING", "kit_jupyter"):
        _ask_twice(_guarded())

    assert sorted(caplog.messages) == [
        "Guard.before_tool failed: KeyError: 'width'",
        "Guard.system_prompt_snippets failed: TypeError: it returned str 'no list', not a list of text",
    ]
    assert {record.name for record in caplog.records} == {"kit_jupyter"}


@pytest.mark.parametrize("types", [(), (ev.ErrorEvent, ev.Warned)])
def test_what_an_observer_is_told_is_not_logged(types: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A view shows it; a second report would only disturb."""
    kit, seen = _guarded(), []
    kit.subscribe(seen.append, *types)
    with caplog.at_level("WARNING", "kit_jupyter"):
        caplog.clear()
        _ask_twice(kit)

    assert len([event for event in seen if isinstance(event, ev.ErrorEvent)]) == 2
    assert caplog.messages == []


def test_a_warning_is_logged_unless_observed(caplog: pytest.LogCaptureFixture) -> None:
    """An observer of something else does not count; nothing in the words steers a terminal."""
    bus = EventBus()
    bus.subscribe(lambda event: None, ev.TurnEnd, ev.ErrorEvent)
    with caplog.at_level("WARNING", "kit_jupyter"):
        bus.emit(ev.Warned("old\x1b[2J news"))
        bus.emit(ev.Warned("old\x1b[2J news"))
        with bus.subscribe(lambda event: None, ev.Warned):
            bus.emit(ev.Warned("seen"))

    assert caplog.messages == ["old\\x1b[2J news"]


def test_a_log_holds_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    """A log is kept longer than a view: keys in an error's words are masked."""
    key = "sk-proj-" + "Ab3dEf7hIj1kLm5nOp9qRs2t" * 2
    with caplog.at_level("WARNING", "kit_jupyter"):
        EventBus().emit(ev.ErrorEvent(f"Guard.before_tool failed: refused {key}"))

    assert "Guard.before_tool failed" in caplog.text
    assert key not in caplog.text


def test_an_observer_that_fails_on_everything_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """It hears of its own failure, and fails on that, too; where another hears of it, nothing is logged."""
    bus, other = EventBus(), EventBus()
    bus.subscribe(lambda event: event.delta.text, inline=True)
    other.subscribe(lambda event: event.delta.text, inline=True)
    other.subscribe(lambda event: None, ev.ErrorEvent, inline=True)
    with caplog.at_level("WARNING", "kit_jupyter"):
        for one in (bus, other):
            one.emit(ev.TurnStart("hello", "prompt"))
            one.emit(ev.TurnStart("hello", "prompt"))

    (message,) = caplog.messages
    assert "failed on TurnStart: AttributeError" in message
