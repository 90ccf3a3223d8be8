"""The one door to the net: time-outs, retries, stops, errors and secrets, against a server on this machine."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from kit_jupyter.errors import (
    AuthFailed,
    ConnectionFailed,
    ContextOverflow,
    KitError,
    Overloaded,
    ProviderError,
    RateLimited,
    Rejected,
    UsageError,
    WireError,
)
from kit_jupyter.messages import Finished, TextDelta, ToolCallPart
from kit_jupyter.provider import RetryNotice, retry_listener
from kit_jupyter.providers import _client
from kit_jupyter.providers._client import Network
from kit_jupyter.providers._watch import Limits
from kit_jupyter.providers._wire import WireProvider
from kit_jupyter.testing import offline

from .conftest import KEY, QUICK, ask, read
from .loopback import (
    DONE,
    STOP,
    USED,
    Loopback,
    Out,
    Received,
    answer,
    event,
    hang_up,
    refuse,
    said,
    silence,
    stream,
    whole,
)

Make = Callable[..., WireProvider]


async def failure(provider: WireProvider, **more: Any) -> KitError:
    """The error that a call ends with; it names who, and shows no key."""
    with pytest.raises(KitError) as caught:
        await read(provider.stream(ask(**more)))
    error = caught.value
    shown = "".join(traceback.format_exception(error)) + repr(error) + repr(provider) + str(error.__dict__)
    assert KEY not in shown
    if isinstance(error, ProviderError):
        assert "demo/m" in error.message
        assert (error.provider, error.model) == ("demo", "m")
        assert ";" in error.message  # what to do next stands after it
    return error


async def heard_before_failing(provider: WireProvider) -> tuple[str, ProviderError]:
    """The text that was handed out before the error."""
    heard = ""
    try:
        async for delta in provider.stream(ask()):
            heard += delta.text if isinstance(delta, TextDelta) else ""
    except ProviderError as exc:
        return heard, exc
    raise AssertionError("the stream did not fail")


# ---------------------------------------------------------------- the good way


async def test_a_stream_becomes_deltas_that_end_with_finished(provider: Make) -> None:
    """Text, usage and stop arrive; `Finished` is the last delta."""
    async with Loopback(answer("Héllo 🌍")) as server:
        deltas = [delta async for delta in provider(server.url).stream(ask())]

    assert "".join(d.text for d in deltas if isinstance(d, TextDelta)) == "Héllo 🌍"
    assert isinstance(deltas[-1], Finished)
    assert sum(isinstance(d, Finished) for d in deltas) == 1


async def test_the_request_carries_key_model_and_extra_headers(provider: Make) -> None:
    """The key goes as bearer, headers of the provider and of the request are added (U74)."""
    async with Loopback(answer()) as server:
        made = provider(server.url, headers={"x-team": "a"})
        await read(made.stream(ask(headers={"x-turn": "b"})))

    request = server.requests[0]
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert (request.headers["x-team"], request.headers["x-turn"]) == ("a", "b")
    assert request.json["model"] == "m"
    assert request.path == "/v1/chat/completions"


async def test_base_url_and_key_of_a_request_go_before_the_provider_s(provider: Make) -> None:
    """One call can go elsewhere (U74)."""
    async with Loopback(answer()) as server:
        made = provider("http://127.0.0.1:1/v1")
        await read(made.stream(ask(base_url=server.url + "/", api_key="other-key")))

    assert server.requests[0].headers["authorization"] == "Bearer other-key"


async def test_the_connection_is_used_again(provider: Make) -> None:
    """Keep-alive: three calls, one connection, also across two providers of the same way."""
    async with Loopback(answer()) as server:
        one, two = provider(server.url), provider(server.url)
        for each in (one, one, two):
            await read(each.stream(ask()))

    assert server.connections == 1


async def test_two_streams_at_once_do_not_meet(provider: Make) -> None:
    """One provider, two answers at the same time, each whole (law 5)."""

    async def echo(request: Received, out: Out) -> None:
        word = request.json["messages"][-1]["content"]
        await out.head()
        for letter in word:
            await out.chunk(said(letter))
            await asyncio.sleep(0.002)
        await out.chunk(STOP + DONE)
        await out.end()

    async with Loopback(echo) as server:
        made = provider(server.url)
        one, two = await asyncio.gather(read(made.stream(ask("abcdefgh"))), read(made.stream(ask("stuvwxyz"))))

    assert (one.text, two.text) == ("abcdefgh", "stuvwxyz")


async def test_plain_json_instead_of_a_stream_is_read(provider: Make) -> None:
    """A server that ignores ``stream`` is understood, blank lines before the body included."""
    body = {"id": "x", "model": "m", "choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]}
    async with Loopback(whole(b"\n\n   \n" + json.dumps(body).encode())) as server:
        built = await read(provider(server.url).stream(ask()))

    assert built.text == "Hi"


async def test_a_gzipped_answer_is_read(provider: Make) -> None:
    """A proxy may compress although it was asked not to."""
    import gzip

    packed = gzip.compress(said("Hi") + STOP + DONE)
    async with Loopback(stream(packed[:20], packed[20:], headers={"content-encoding": "gzip"})) as server:
        assert (await read(provider(server.url).stream(ask()))).text == "Hi"


async def test_a_body_that_does_not_end_after_its_answer_is_left(provider: Make) -> None:
    """``[DONE]`` is enough: nobody waits for ever for the last byte."""
    async with Loopback(silence(said("Hi") + STOP + DONE)) as server:
        begin = time.monotonic()
        built = await read(provider(server.url).stream(ask()))

    assert built.text == "Hi"
    assert time.monotonic() - begin < 4


async def test_an_answer_without_done_marker_ends_with_its_body(provider: Make) -> None:
    """Perplexity and others close without ``[DONE]``."""
    async with Loopback(stream(said("Hi"), STOP)) as server:
        assert (await read(provider(server.url).stream(ask()))).text == "Hi"


async def test_nothing_is_sent_before_the_first_read(provider: Make) -> None:
    """`stream` is an async generator: making it costs nothing and asks nobody."""
    async with Loopback(answer()) as server:
        provider(server.url).stream(ask())
        await asyncio.sleep(0.02)

    assert server.requests == []


# ---------------------------------------------------------------- stop


async def test_a_stop_closes_the_connection_within_half_a_second(provider: Make) -> None:
    """Closing the stream lets the service stop writing, and nothing is paid for that nobody reads (U18)."""
    async with Loopback(silence(said("Hi"))) as server:
        deltas = provider(server.url).stream(ask())
        async with aclosing(deltas):  # type: ignore[type-var]
            async for delta in deltas:
                if isinstance(delta, TextDelta):
                    break
        begin = time.monotonic()
        await asyncio.wait_for(server.closed.wait(), 2)

    assert time.monotonic() - begin < 0.5


@pytest.mark.parametrize("when", ["waiting for the head", "in the middle"])
async def test_a_cancelled_task_closes_the_connection(provider: Make, when: str) -> None:
    """Cancelling the reading task is a stop, also before any byte came."""
    reply = silence(head=False) if when == "waiting for the head" else silence(said("Hi"))
    async with Loopback(reply) as server:
        task = asyncio.ensure_future(read(provider(server.url).stream(ask())))
        await asyncio.wait_for(server.asked.wait(), 5)
        await asyncio.sleep(0.02)
        task.cancel()
        begin = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(server.closed.wait(), 2)

    assert time.monotonic() - begin < 0.5


async def test_a_cancel_during_a_retry_wait_ends_it(provider: Make) -> None:
    """A stop need not wait until the service may be asked again."""
    async with Loopback(refuse(429, {"error": {"message": "slow down"}}, {"retry-after": "1"})) as server:
        task = asyncio.ensure_future(read(provider(server.url).stream(ask())))
        await asyncio.wait_for(server.asked.wait(), 5)
        await asyncio.sleep(0.02)
        begin = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert time.monotonic() - begin < 0.5


# ---------------------------------------------------------------- retries


async def noticed(provider: WireProvider) -> tuple[str, list[RetryNotice]]:
    """The answer's text, and the retries that were told."""
    notices: list[RetryNotice] = []
    token = retry_listener.set(notices.append)
    try:
        return (await read(provider.stream(ask()))).text, notices
    finally:
        retry_listener.reset(token)


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
async def test_a_passing_failure_is_tried_again(provider: Make, status: int) -> None:
    """The listener is told of the wait, and the answer comes."""
    async with Loopback(refuse(status, {"error": {"message": "not now"}}), answer("ok")) as server:
        text, notices = await noticed(provider(server.url))

    assert text == "ok"
    assert [(n.attempt, n.max_attempts) for n in notices] == [(1, 4)]
    assert "not now" in notices[0].error


async def test_a_broken_connection_is_tried_again(provider: Make) -> None:
    """Also one that was dropped before any byte."""
    async with Loopback(hang_up(), answer("ok")) as server:
        text, notices = await noticed(provider(server.url))

    assert (text, len(notices)) == ("ok", 1)


async def test_an_overload_inside_a_200_answer_is_tried_again(provider: Make) -> None:
    """As long as nothing was said."""
    busy = event(error={"message": "server overloaded", "code": 503})
    async with Loopback(stream(busy), answer("ok")) as server:
        text, _ = await noticed(provider(server.url))

    assert text == "ok"


async def test_nothing_is_tried_again_once_something_was_said(provider: Make) -> None:
    """Words may not come twice."""
    async with Loopback(hang_up(said("Hel")), answer("ok")) as server:
        made = provider(server.url)
        heard, error = await heard_before_failing(made)

    assert heard == "Hel"
    assert isinstance(error, ConnectionFailed)
    assert "in the middle of the answer" in error.message
    assert len(server.requests) == 1


async def test_it_gives_up_after_the_last_attempt(provider: Make) -> None:
    """Four attempts, then the service's error."""
    async with Loopback(refuse(503, b"<html><title>Bad day</title></html>")) as server:
        error = await failure(provider(server.url))

    assert isinstance(error, Overloaded)
    assert len(server.requests) == 4
    assert "Bad day" in error.message


@pytest.mark.parametrize(
    ("headers", "at_least"),
    [
        ({"retry-after": "0.2"}, 0.2),
        ({"retry-after-ms": "200"}, 0.2),
        ({"retry-after": "0", "retry-after-ms": "0"}, 0.0),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "200ms"}, 0.2),
    ],
)
async def test_a_wait_that_was_asked_for_is_kept(provider: Make, headers: dict[str, str], at_least: float) -> None:
    """Every kind of hint in headers."""
    async with Loopback(refuse(429, {"error": {"message": "slow"}}, headers), answer("ok")) as server:
        begin = time.monotonic()
        text, notices = await noticed(provider(server.url))

    assert text == "ok"
    assert time.monotonic() - begin >= at_least
    assert notices[0].delay_seconds >= at_least


async def test_a_wait_in_the_body_is_kept(provider: Make) -> None:
    """Google's RetryInfo."""
    details = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "0.2s"}]
    body = {"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "quota", "details": details}}
    async with Loopback(refuse(429, body), answer("ok")) as server:
        _, notices = await noticed(provider(server.url))

    assert 0.2 <= notices[0].delay_seconds < 1


@pytest.mark.parametrize("form", ["seconds", "date"])
async def test_a_wait_of_a_day_is_told_not_waited_for(provider: Make, form: str) -> None:
    """``Retry-After`` of a day must not hang a notebook: the error says how long."""
    date = format_datetime(datetime.now(UTC) + timedelta(days=1), usegmt=True)
    async with Loopback(
        refuse(429, {"error": {"message": "quota"}}, {"retry-after": "86400" if form == "seconds" else date})
    ) as server:
        begin = time.monotonic()
        error = await failure(provider(server.url))

    assert isinstance(error, RateLimited)
    assert error.retry_after_seconds == pytest.approx(86400, abs=5)
    assert time.monotonic() - begin < 2
    assert len(server.requests) == 1


async def test_x_should_retry_is_obeyed(provider: Make) -> None:
    """A service may forbid what its status would allow."""
    async with Loopback(refuse(503, {"error": {"message": "no"}}, {"x-should-retry": "false"}), answer()) as server:
        assert isinstance(await failure(provider(server.url)), Overloaded)

    assert len(server.requests) == 1


async def test_retry_after_on_a_good_answer_is_no_reason_to_wait(provider: Make) -> None:
    """Anthropic and others send it near their limits."""
    async with Loopback(stream(said("ok"), STOP, DONE, headers={"retry-after": "30"})) as server:
        begin = time.monotonic()
        await read(provider(server.url).stream(ask()))

    assert time.monotonic() - begin < 3


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("status", "body", "cls", "step"),
    [
        (401, {"error": {"message": "Incorrect API key provided"}}, AuthFailed, "check the key"),
        (403, {"message": "no access", "type": "x", "code": "y"}, AuthFailed, "rights"),
        (400, {"code": "invalid-argument", "error": "Incorrect API key provided"}, AuthFailed, "check the key"),
        (404, {"error": {"message": "The model `x` does not exist", "code": "model_not_found"}}, Rejected, "name"),
        (404, {"detail": "Not Found"}, Rejected, "base_url"),
        (400, {"error": {"code": "context_length_exceeded", "message": "too long"}}, ContextOverflow, "compact"),
        (402, {"error": "You have depleted your credits"}, Rejected, "billing"),
        (422, {"detail": [{"loc": ["body", "tools"], "msg": "Field required"}]}, Rejected, "change"),
    ],
)
async def test_a_refusal_says_whose_move_it_is(
    provider: Make, status: int, body: dict[str, Any], cls: type[ProviderError], step: str
) -> None:
    """Class, status, request id and next step, from any shape of body."""
    async with Loopback(refuse(status, body, {"x-request-id": "req_42"})) as server:
        error = await failure(provider(server.url))

    assert type(error) is cls
    assert error.status == status
    assert error.request_id == "req_42"
    assert "req_42" in error.message
    assert f"HTTP {status}" in error.message
    assert step in error.message
    assert len(server.requests) == 1


async def test_a_wrong_key_that_is_echoed_is_not_shown(provider: Make) -> None:
    """A service that repeats the key in its error does not make us print it."""
    async with Loopback(refuse(401, {"error": {"message": f"Incorrect API key provided: {KEY}."}})) as server:
        error = await failure(provider(server.url, key_hint="set DEMO_API_KEY, or call kit.login('demo')"))

    assert "DEMO_API_KEY" in error.message


async def test_a_missing_key_is_an_error_before_anything_is_sent(provider: Make) -> None:
    """The message names the variable to set."""
    async with Loopback(answer()) as server:
        made = provider(server.url, api_key="", needs_key=True, key_hint="set DEMO_API_KEY")
        error = await failure(made)

    assert isinstance(error, AuthFailed)
    assert "DEMO_API_KEY" in error.message
    assert server.requests == []


@pytest.mark.parametrize("key", ["sk-a\nb", "sk-ключ", "sk-a\x00b"])
async def test_a_key_that_cannot_be_one_is_named_not_shown(provider: Make, key: str) -> None:
    """A line break or a stray letter from copying is the caller's move, and is not printed."""
    with pytest.raises(UsageError) as caught:
        await read(provider("http://127.0.0.1:1/v1", api_key=key).stream(ask()))

    assert "sk-a" not in str(caught.value)
    assert "ключ" not in "".join(traceback.format_exception(caught.value))


async def test_a_header_with_a_line_break_is_refused_without_its_value(provider: Make) -> None:
    """The library's own error would show the value."""
    async with Loopback(answer()) as server:
        error = await failure(provider(server.url, headers={"x-secret": "hush\r\nx: y"}))

    assert isinstance(error, UsageError)
    assert "hush" not in "".join(traceback.format_exception(error))


async def test_a_header_that_is_no_text_is_refused_by_its_name(provider: Make) -> None:
    """A number given for a header is the caller's slip, not an answer nobody knows."""
    with pytest.raises(UsageError, match="a header is text, got int for 'x-number'"):
        await read(provider("http://127.0.0.1:9/v1").stream(ask(headers={"x-number": 5})))


@pytest.mark.parametrize("url", ["http://127.0.0.1:99999/v1", "http://127.0.0.1:eight/v1", "http://[::1/v1"])
async def test_an_address_that_is_none_is_refused_with_its_text(provider: Make, url: str) -> None:
    """A port too high, or a bracket that is not closed: told before anything is sent."""
    with pytest.raises(UsageError, match="base_url"):
        await read(provider("http://127.0.0.1:9/v1").stream(ask(base_url=url)))


async def test_a_name_that_cannot_be_one_is_not_known(provider: Make) -> None:
    """Two dots in a row: no resolver is asked, and it says the same as for one that knows nothing."""
    error = await failure(provider("http://a..b/v1"))

    assert "the name a..b is not known" in str(error)


# ---------------------------------------------------------------- redirects


async def test_a_redirect_to_another_host_is_not_followed(provider: Make) -> None:
    """The key never goes elsewhere; the error names the address to set."""
    async with Loopback(answer("stolen")) as other:
        async with Loopback(
            refuse(307, b"", {"location": f"http://127.0.0.1:{other.port}/v1/chat/completions"})
        ) as server:
            error = await failure(provider(server.url))
        assert other.requests == []

    assert isinstance(error, ConnectionFailed)
    assert f"127.0.0.1:{other.port}" in error.message
    assert "base_url" in error.message
    assert len(server.requests) == 1


async def test_a_redirect_within_the_host_is_followed(provider: Make) -> None:
    """A service may rename its paths."""
    async with Loopback(refuse(308, b"", {"location": "/v2/chat"}), answer("ok")) as server:
        assert (await read(provider(server.url).stream(ask()))).text == "ok"

    assert [request.path for request in server.requests] == ["/v1/chat/completions", "/v2/chat"]
    assert server.requests[1].json["model"] == "m"


async def test_offline_is_told_by_its_own_words(provider: Make) -> None:
    """anyio hands on what happened while it connected as a group of one."""
    with offline(), pytest.raises(ConnectionFailed, match=r"^offline\(\): something tried to connect"):
        await read(provider("http://localhost:9/v1").stream(ask()))


async def test_a_redirect_in_a_ring_ends(provider: Make) -> None:
    """Three are enough, and trying again would go round again."""
    async with Loopback(refuse(307, b"", {"location": "/v1/chat/completions"})) as server:
        error = await failure(provider(server.url))

    assert "redirects" in error.message
    assert len(server.requests) == 4


# ---------------------------------------------------------------- broken answers


HTML = b"<!DOCTYPE html><html><head><title>Sign in to Wi-Fi</title></head></html>"


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (whole(HTML, "text/html"), "Sign in to Wi-Fi"),
        (whole(b"all good!", "text/plain"), "all good!"),
        (whole(b""), "empty answer"),
        (whole(b"[1, 2"), "JSON"),
        (whole(b'"ok"'), "JSON"),
        (stream(b"data: {not json}\n\n"), "not json"),
        (stream(said("a")[:40]), "stopped before its end"),
        (stream(), "empty answer"),
    ],
)
async def test_bytes_that_are_no_answer_are_a_wire_error(provider: Make, reply: Any, words: str) -> None:
    """HTML, plain text, nothing, or broken JSON: what came is shown, and where to look."""
    async with Loopback(reply) as server:
        error = await failure(provider(server.url))

    assert isinstance(error, WireError)
    assert words in error.message


async def test_a_cut_answer_is_an_error_after_its_words(provider: Make) -> None:
    """A clean end of the body in the middle of an answer is noticed."""
    async with Loopback(stream(said("Hel"), said("lo"))) as server:
        heard, error = await heard_before_failing(provider(server.url))

    assert heard == "Hello"
    assert isinstance(error, WireError)
    assert "stopped before its end" in error.message


async def test_half_an_event_then_silence_times_out(provider: Make) -> None:
    """A line that stands still is given up after the idle limit."""
    async with Loopback(silence(said("Hi") + b'data: {"choices": [')) as server:
        begin = time.monotonic()
        error = await failure(provider(server.url, limits=Limits(idle_seconds=0.3, max_retries=0)))

    assert isinstance(error, ConnectionFailed)
    assert "stood still" in error.message
    assert 0.25 < time.monotonic() - begin < 3


async def test_no_first_byte_times_out(provider: Make) -> None:
    """The limit for the first byte is its own."""
    async with Loopback(silence(head=False)) as server:
        error = await failure(provider(server.url, limits=Limits(first_seconds=0.3, max_retries=0)))

    assert isinstance(error, ConnectionFailed)
    assert "no answer" in error.message


async def test_a_server_on_this_machine_may_read_a_long_prompt(library: str) -> None:
    """No limit for the first byte of loopback servers, one for all others."""
    from kit_jupyter.providers.codec import Endpoint
    from kit_jupyter.providers.openai_chat import OpenAIChatCodec

    local = WireProvider(OpenAIChatCodec(), Endpoint(name="demo", base_url="http://localhost:1/v1"))
    far = WireProvider(OpenAIChatCodec(), Endpoint(name="demo", base_url="https://host.invalid/v1"))

    assert local.limits_for(local.endpoint).first_seconds is None
    assert far.limits_for(far.endpoint).first_seconds == 600


async def test_a_slow_answer_within_the_limit_is_not_cut(provider: Make) -> None:
    """The idle limit counts from the last piece, not from the beginning."""

    async def slow(_: Received, out: Out) -> None:
        await out.head()
        for letter in "abcdef":
            await out.chunk(said(letter))
            await asyncio.sleep(0.12)
        await out.chunk(STOP + DONE)
        await out.end()

    async with Loopback(slow) as server:
        built = await read(
            provider(server.url, limits=Limits(first_seconds=0.5, idle_seconds=0.4, max_retries=0)).stream(ask())
        )

    assert built.text == "abcdef"


async def test_endless_comments_end(provider: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Comments keep a line open, but not for ever: many bytes without an event are an error."""
    monkeypatch.setattr("kit_jupyter.providers._framing.MAX_SILENT_BYTES", 200_000)

    async def flood(_: Received, out: Out) -> None:
        await out.head()
        while not out.closed.is_set():
            await out.chunk(b": still here\n\n" * 500)

    async with Loopback(flood) as server:
        error = await failure(provider(server.url, limits=QUICK))

    assert isinstance(error, WireError)
    assert "without an event" in error.message


async def test_slow_comments_end(provider: Make) -> None:
    """So does a trickle of comments with nothing else, after its own limit."""

    async def trickle(_: Received, out: Out) -> None:
        await out.head()
        while not out.closed.is_set():
            await out.chunk(b": still here\n\n")
            await asyncio.sleep(0.02)

    async with Loopback(trickle) as server:
        limits = Limits(first_seconds=2, idle_seconds=2, silent_seconds=0.3, max_retries=0)
        error = await failure(provider(server.url, limits=limits))

    assert isinstance(error, ConnectionFailed)
    assert "said nothing" in error.message


@pytest.mark.parametrize("shape", ["one line", "many lines", "whole body"])
async def test_an_event_of_100_megabytes_is_refused(
    provider: Make, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is held is bounded, so a broken service cannot eat the kernel's memory."""
    for name in ("MAX_EVENT_BYTES", "MAX_BODY_BYTES"):
        monkeypatch.setattr(f"kit_jupyter.providers._framing.{name}", 1_000_000)
    sent = 0

    async def huge(_: Received, out: Out) -> None:
        nonlocal sent
        await out.head()
        await out.chunk(b'{"x": "' if shape == "whole body" else b'data: {"x": "')
        piece = b"x" * 65_536 if shape != "many lines" else b"data: x\n" * 8_000
        while sent < 100_000_000 and not out.closed.is_set():
            await out.chunk(piece)
            sent += len(piece)

    async with Loopback(huge) as server:
        error = await failure(provider(server.url))

    assert isinstance(error, WireError)
    assert "1,000,000 bytes" in error.message
    assert sent < 50_000_000


async def test_invalid_utf8_does_not_end_an_answer(provider: Make) -> None:
    """A broken character is shown as such; the rest is kept."""
    bad = said("a").replace(b'"a"', b'"a\xff\xfeb"')
    async with Loopback(stream(bad, STOP, DONE)) as server:
        built = await read(provider(server.url).stream(ask()))

    assert built.text == "a\ufffd\ufffdb"


async def test_shapes_nobody_knows_are_a_wire_error(provider: Make) -> None:
    """Not a TypeError from our insides."""
    async with Loopback(stream(b'data: {"choices": {"a": 1}}\n\n')) as server:
        error = await failure(provider(server.url))

    assert isinstance(error, WireError)


def calls(*deltas: dict[str, Any]) -> bytes:
    return event(id="r", model="m", choices=[{"index": 0, "delta": {"tool_calls": list(deltas)}}])


async def test_tool_ids_repeated_null_or_missing_become_distinct(provider: Make) -> None:
    """Each call has an id of its own, whatever the service gave; invalid arguments are kept as they came."""
    pieces = calls(
        {"index": 0, "id": "x", "function": {"name": "f", "arguments": "{}"}},
        {"index": 1, "id": "x", "function": {"name": "g", "arguments": "{"}},
        {"index": 2, "id": None, "function": {"name": "h", "arguments": ""}},
        {"index": 3, "function": {"name": "i", "arguments": {"a": 1}}},
    )
    async with Loopback(stream(pieces, STOP, DONE)) as server:
        built = await read(provider(server.url).stream(ask()))

    found = [part for part in built.parts if isinstance(part, ToolCallPart)]
    assert len({part.call_id for part in found}) == 4
    assert all(part.call_id for part in found)
    assert [(part.name, part.arguments) for part in found] == [("f", "{}"), ("g", "{"), ("h", ""), ("i", '{"a":1}')]
    assert built.finished is not None
    assert built.finished.reason == "tool_calls"


# ---------------------------------------------------------------- no connection


async def test_a_closed_port_is_told_at_once(provider: Make) -> None:
    """Not after three waits: nobody starts a server within seconds."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    begin = time.monotonic()

    error = await failure(provider(f"http://127.0.0.1:{port}/v1"))

    assert isinstance(error, ConnectionFailed)
    assert "start the server" in error.message
    assert time.monotonic() - begin < 2


async def test_an_unknown_name_is_told(provider: Make) -> None:
    """DNS failure."""
    error = await failure(provider("http://no-such-host.invalid/v1"))

    assert isinstance(error, ConnectionFailed)
    assert "no-such-host.invalid" in error.message


@pytest.mark.parametrize("url", ["ftp://host/v1", "host/v1", "http:///v1", ""])
async def test_what_is_no_address_is_the_caller_s_move(provider: Make, url: str) -> None:
    """A wrong base_url is a `UsageError` that shows it."""
    error = await failure(provider(url))

    assert isinstance(error, UsageError)
    assert "base_url" in error.message


def certificate(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """A server's TLS context and the file of the private CA that signed it."""
    pytest.importorskip("cryptography")
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a company")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - timedelta(days=1))
        .not_valid_after(datetime.now(UTC) + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "ca.pem").write_bytes(made.public_bytes(pem))
    (folder / "key.pem").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "ca.pem", folder / "key.pem")
    return context, folder / "ca.pem"


async def test_an_untrusted_certificate_is_told_with_the_way_out(provider: Make, tmp_path: Path) -> None:
    """TLS failure: the error names the variable for a company's own certificate; nothing is sent."""
    context, _ = certificate(tmp_path)
    async with Loopback(answer(), tls=context) as server:
        error = await failure(provider(server.url))

    assert isinstance(error, ConnectionFailed)
    assert "KIT_CA_BUNDLE" in error.message
    assert server.requests == []


@pytest.mark.parametrize("way", ["argument", "KIT_CA_BUNDLE", "SSL_CERT_FILE"])
async def test_a_private_ca_is_trusted_when_named(
    provider: Make, library: str, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway with a company's certificate works, by argument or environment (U74)."""
    context, bundle = certificate(tmp_path)
    if way != "argument":
        monkeypatch.setenv(way, str(bundle))
    network = Network(library=library, ca_bundle=str(bundle) if way == "argument" else None)
    async with Loopback(answer("ok"), tls=context) as server:
        assert (await read(provider(server.url, network=network).stream(ask()))).text == "ok"
        capitals = server.url.replace("https", "HTTPS")
        assert (await read(provider(capitals, network=network).stream(ask()))).text == "ok"


async def test_http_1_is_offered_and_nothing_else(provider: Make, library: str, tmp_path: Path) -> None:
    """Some gateways refuse who offers no protocol; one that has both must not take HTTP/2."""
    context, bundle = certificate(tmp_path)
    context.set_alpn_protocols(["h2", "http/1.1"])
    chosen: list[str | None] = []

    async def reply(_: Received, out: Out) -> None:
        chosen.append(out.writer.get_extra_info("ssl_object").selected_alpn_protocol())
        await out.head()
        await out.chunk(said("ok") + STOP + DONE)
        await out.end()

    async with Loopback(reply, tls=context) as server:
        network = Network(library=library, ca_bundle=str(bundle))
        await read(provider(server.url, network=network).stream(ask()))

    assert chosen == ["http/1.1"]


async def test_a_ca_bundle_that_is_none_is_the_caller_s_move(provider: Make, library: str, tmp_path: Path) -> None:
    """Missing or not certificates."""
    for path in (tmp_path / "missing.pem", tmp_path):
        (tmp_path / "junk.pem").write_text("junk")
        network = Network(library=library, ca_bundle=str(path if path != tmp_path else tmp_path / "junk.pem"))
        error = await failure(provider("https://127.0.0.1:1/v1", network=network))

        assert isinstance(error, UsageError)
        assert "CA bundle" in error.message


@pytest.mark.parametrize("way", ["argument", "HTTPS_PROXY", "all_proxy"])
@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ftp://user:hush@127.0.0.1:1", "cannot be one .*HTTPS_PROXY"),
        ("http://user:hush@127.0.0.1:port", "cannot be one .*HTTPS_PROXY"),
        ("socks5://user:hush@127.0.0.1:1", "pip install socksio"),
    ],
)
async def test_a_proxy_that_is_none_is_the_caller_s_move(
    provider: Make, library: str, url: str, words: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheme nobody speaks, a port that is no number, a part that is not installed: told without the password."""
    monkeypatch.setitem(sys.modules, "socksio", None)
    if way != "argument":
        monkeypatch.setenv(way, url)
    network = Network(library=library, proxy=url if way == "argument" else None)
    with pytest.raises(UsageError, match=words) as caught:
        await read(provider("https://service.invalid/v1", network=network).stream(ask()))

    assert "hush" not in "".join(traceback.format_exception(caught.value))


async def test_a_proxy_carries_the_request(provider: Make, library: str) -> None:
    """The proxy sees the absolute address (U74)."""
    async with Loopback(answer("by proxy")) as proxy:
        network = Network(library=library, proxy=f"http://127.0.0.1:{proxy.port}")
        built = await read(provider("http://service.invalid/v1", network=network).stream(ask()))

    assert built.text == "by proxy"
    assert proxy.requests[0].path == "http://service.invalid/v1/chat/completions"


async def test_the_environment_s_proxy_is_used_but_not_for_this_machine(
    provider: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HTTP_PROXY carries what goes out; a local server is reached directly, NO_PROXY or not."""
    async with Loopback(answer("by proxy")) as proxy, Loopback(answer("direct")) as server:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
        away = await read(provider("http://service.invalid/v1").stream(ask()))
        here = await read(provider(server.url).stream(ask()))

    assert (away.text, here.text) == ("by proxy", "direct")


# ---------------------------------------------------------------- the client


async def test_one_client_serves_all_and_is_closed_by_the_last(library: str) -> None:
    """Clients are counted: closing one provider leaves the others their connections."""
    from kit_jupyter.providers.codec import Endpoint
    from kit_jupyter.providers.openai_chat import OpenAIChatCodec

    async with Loopback(answer()) as server:
        one, two = (
            WireProvider(
                OpenAIChatCodec(), Endpoint(name="demo", base_url=server.url), network=Network(library=library)
            )
            for _ in range(2)
        )
        await read(one.stream(ask()))
        await read(two.stream(ask()))
        (shared,) = one._held[0][1].clients
        assert two._held[0][1].clients == [shared]
        await one.close()
        assert not shared.is_closed
        await two.close()

        assert shared.is_closed


async def test_many_calls_at_once_share_connections_sensibly(library: str) -> None:
    """httpx pays for the square of its open connections: ten a client; httpx2 does not."""
    from kit_jupyter.providers.codec import Endpoint
    from kit_jupyter.providers.openai_chat import OpenAIChatCodec

    gate = asyncio.Event()

    async def late(request: Received, out: Out) -> None:
        await gate.wait()
        await answer("ok")(request, out)

    async with Loopback(late) as server:
        made = WireProvider(
            OpenAIChatCodec(), Endpoint(name="demo", base_url=server.url), network=Network(library=library)
        )
        tasks = [asyncio.ensure_future(read(made.stream(ask()))) for _ in range(25)]
        await asyncio.wait_for(server.asked.wait(), 5)
        await asyncio.sleep(0.1)
        gate.set()
        texts = [(await task).text for task in tasks]
        clients = made._held[0][1].clients
        gate.set()
        again = [(await read(made.stream(ask()))).text for _ in range(3)]
        count = len(clients)
        await made.close()

    assert set(texts + again) == {"ok"}
    assert count == (3 if library == "httpx" else 1)
    assert server.connections == 25


async def test_a_stop_gives_its_place_back(provider: Make) -> None:
    """A stopped or failed call does not hold a connection's place for ever."""
    async with Loopback(silence(said("Hi"))) as server:
        made = provider(server.url)
        for _ in range(3):
            deltas = made.stream(ask())
            async for _delta in deltas:
                break
            await deltas.aclose()  # type: ignore[attr-defined]
        assert made._held[0][1]._busy == [0]


@pytest.mark.parametrize("way", ["argument", "environment", "off"])
async def test_http2_is_taken_when_asked_for(library: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTP/1.1 by default, as a stop must close the line; HTTP/2 by argument or KIT_HTTP2."""
    pytest.importorskip("h2")
    from kit_jupyter.providers.codec import Endpoint
    from kit_jupyter.providers.openai_chat import OpenAIChatCodec

    if way == "environment":
        monkeypatch.setenv("KIT_HTTP2", "1")
    network = Network(library=library, http2=True if way == "argument" else None)
    made = WireProvider(OpenAIChatCodec(), Endpoint(name="demo", base_url="https://127.0.0.1:9/v1"), network=network)

    await failure(made)

    transport = getattr(made._held[0][1].clients[0], "_transport", None)  # ours speaks HTTP/1.1 only
    assert (transport is not None and transport._pool._http2) is (way != "off")
    await made.close()


def test_importing_the_door_imports_no_client() -> None:
    """httpx is imported at the first call, not with the module (budget 8)."""
    import subprocess
    import sys

    code = "import kit_jupyter.providers._wire, sys; assert not {'httpx', 'httpx2'} & set(sys.modules), 'imported'"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_fast_client_is_taken_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """httpx2 before httpx; KIT_HTTP chooses; another word is refused."""
    _client.http_library.cache_clear()
    assert _client.http_library().__name__ in ("httpx2", "httpx")
    for name in ("httpx", "httpx2"):
        assert _client.http_library(name).__name__ == name
    with pytest.raises(UsageError, match="curl"):
        _client.http_library("curl")


async def test_usage_after_the_stop_is_counted(provider: Make) -> None:
    """The chunk that only brings usage comes last."""
    async with Loopback(stream(said("Hi"), STOP, USED, DONE)) as server:
        built = await read(provider(server.url).stream(ask()))

    assert (built.tokens.input, built.tokens.output) == (3, 2)


def test_a_chunk_costs_few_python_calls(library: str) -> None:
    """Counted twin of the budget: at most 50 calls a chunk with the stock client, and no more for a longer answer."""
    import sys
    import threading

    from kit_jupyter.providers.codec import Endpoint
    from kit_jupyter.providers.openai_chat import OpenAIChatCodec

    ready, done, url = threading.Event(), threading.Event(), ""

    async def by_length(request: Received, out: Out) -> None:
        count = int(request.json["messages"][-1]["content"])
        # In one write: whether reads join what was written apart depends on how busy the machine is.
        await stream(b"".join((*(said("word") for _ in range(count)), STOP, DONE)))(request, out)

    async def serve() -> None:
        nonlocal url
        async with Loopback(by_length) as server:
            url = server.url
            ready.set()
            while not done.is_set():  # noqa: ASYNC110 (a flag of another thread)
                await asyncio.sleep(0.01)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))  # so that the server's calls are not counted
    thread.start()
    ready.wait(5)

    async def count(chunks: int) -> int:
        made = WireProvider(OpenAIChatCodec(), Endpoint(name="demo", base_url=url), network=Network(library=library))
        await read(made.stream(ask("1")))
        calls = 0

        def see(frame: Any, event: str, argument: Any) -> None:
            nonlocal calls
            calls += event == "call"

        sys.setprofile(see)
        try:
            await read(made.stream(ask(str(chunks))))
        finally:
            sys.setprofile(None)
        await made.close()
        return calls

    try:
        few, some, many = (asyncio.run(count(chunks)) for chunks in (100, 600, 1100))
    finally:
        done.set()
        thread.join(5)

    assert (some - few) / 500 <= 50
    assert (many - some) / 500 <= 50
