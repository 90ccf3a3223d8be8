"""What `kit_jupyter.testing` gives to people who test with it."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import pytest

from kit_jupyter import ConnectionFailed, Kit, ProviderError, UsageError, WireError
from kit_jupyter import testing as kt
from kit_jupyter.provider import ModelInfo, Provider


async def test_a_scripted_provider_says_what_it_was_told(make: Any) -> None:
    """Text, thinking, calls, pictures, usage, finish, delays, errors, cut streams, overflow: each as scripted."""
    provider = kt.ScriptedProvider(
        [kt.thinking("hm", signature="s"), kt.text("a b", chunks=1), kt.usage(input=3), kt.finish("length")],
        "plain",
        lambda request: f"saw {len(request.messages)}",
        [kt.delay(0.01), kt.text("")],
        info=ModelInfo(context_window=9),
    )
    kit, _ = make(provider=provider)
    assert isinstance(provider, Provider)
    first = await kit.prompt("1")
    assert (first.thinking, str(first), first.stop_reason) == ("hm", "a b", "length")
    assert str(await kit.prompt("2")) == "plain"
    assert str(await kit.prompt("3")) == "saw 5"
    assert str(await kit.prompt("4")) == ""
    assert provider.last_request is provider.requests[-1]
    assert provider.info("x").context_window == 9
    assert "4 requests, 0 replies left" in repr(provider)
    with pytest.raises(UsageError, match="no reply for model call 5"):
        await kit.prompt("5")


@pytest.mark.parametrize(
    "kind",
    ["connection_failed", "auth_failed", "rate_limited", "overloaded", "context_overflow", "rejected", "wire"],
)
async def test_each_kind_of_provider_error_can_be_scripted(make: Any, kind: str) -> None:
    """By its code; unknown kinds name the known ones; an exception is raised as it is."""
    kit, _ = make([kt.provider_error(kind, "because")])
    with pytest.raises(ProviderError, match="because") as caught:
        await kit.prompt("x")
    assert caught.value.code == kind
    with pytest.raises(UsageError, match="unknown kind"):
        kt.provider_error("nope")


async def test_cut_streams_and_repeats(make: Any) -> None:
    """A cut ends without a finish; the last reply can go on for ever."""
    kit, _ = make([kt.text("a"), kt.cut()])
    with pytest.raises(WireError):
        await kit.prompt("x")
    again, _ = make(provider=kt.ScriptedProvider("same", repeat_last=True))
    assert [str(await again.prompt("x")) for _ in range(3)] == ["same"] * 3


async def test_an_asyncio_event_holds_a_reply(make: Any) -> None:
    """Gates take both kinds of event."""
    event = asyncio.Event()
    kit, _ = make([kt.gate(event), kt.text("x")])
    task = asyncio.ensure_future(kit.prompt("a"))
    await asyncio.sleep(0.02)
    assert not task.done()
    kit_loop = __import__("kit_jupyter.loop", fromlist=["engine"]).engine
    kit_loop.call(event.set)
    assert str(await task) == "x"


def test_offline_refuses_connections_and_names_the_address() -> None:
    """No socket connects; with loopback, those of this machine may; afterwards all is as before."""
    with kt.offline(), pytest.raises(ConnectionFailed, match="192\\.0\\.2\\.1"):
        socket.create_connection(("192.0.2.1", 9), timeout=1)
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    with kt.offline():
        probe = socket.socket()
        with pytest.raises(ConnectionFailed):
            probe.connect_ex(address)
        probe.close()
    with kt.offline(loopback=True):
        socket.create_connection(address, timeout=1).close()
        probe = socket.socket()
        assert probe.connect_ex(address) == 0
        probe.close()
    listener.close()


async def test_recording_ends_with_its_block(make: Any) -> None:
    """`record_events`: what happens after the block is not recorded; types can be picked."""
    kit, _ = make("a", "b")
    with kt.record_events(kit) as log:
        await kit.prompt("x")
    count = len(log)
    await kit.prompt("y")
    from kit_jupyter import events as ev

    assert len(log) == count
    assert len(log.of(ev.TurnStart, ev.TurnEnd)) == 2


def test_every_public_name_is_documented() -> None:
    """The room is public: each name has a docstring."""
    for name in kt.__all__:
        assert getattr(kt, name).__doc__, name
    assert time.monotonic() > 0
    assert Kit.__doc__
