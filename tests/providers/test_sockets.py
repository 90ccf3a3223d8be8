"""The straight way to a service: connections used again or not, bodies that flow, answers that are odd."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from kit_jupyter.providers import _sockets
from kit_jupyter.providers._client import IDLE_SECONDS, Network, clients_for, connect_timeout, http_library
from kit_jupyter.providers._sockets import FULL_BYTES, socket_transport

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture(params=["httpx", "httpx2"])
def httpx(request: pytest.FixtureRequest) -> Any:
    """Both libraries whose transport it can be."""
    pytest.importorskip(request.param)
    return http_library(request.param)


class Served:
    """A server that `serve`s each connection, counting them; its transport, closed at the end."""

    def __init__(self, httpx: Any, serve: Serve) -> None:
        self.httpx, self.transport = httpx, socket_transport(httpx)(None)
        self._serve = serve
        self.connections = 0
        self.over = asyncio.Event()

    async def __aenter__(self) -> Served:
        async def counted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.connections += 1
            try:
                await self._serve(reader, writer)
            except (ConnectionError, asyncio.IncompleteReadError):
                pass
            finally:
                self.over.set()
                writer.close()

        self._server = await asyncio.start_server(counted, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.transport.aclose()
        self._server.close()

    async def ask(self, content: Any = b"{}", **headers: str) -> Any:
        """The response, its body not read."""
        library = self.httpx.__name__
        request = self.transport.build_request(
            "POST",
            self.httpx.URL(self.url),
            headers=headers,
            content=content,
            timeout=connect_timeout(library, 5),
            extensions={},
        )
        return await self.transport.send(request, stream=True)

    async def read(self, **more: Any) -> bytes:
        """The whole body."""
        response = await self.ask(**more)
        return b"".join([piece async for piece in response.aiter_bytes()])


async def head_of(reader: asyncio.StreamReader) -> bytes:
    """A request's head, its body of two bytes read, too."""
    head = await reader.readuntil(b"\r\n\r\n")
    if b"content-length: 2\r\n" in head.lower():
        await reader.readexactly(2)
    return head


async def test_a_connection_is_used_again_and_closed_with_the_transport(httpx: Any) -> None:
    """One connection for calls that follow each other; closing the transport ends it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await head_of(reader)
            writer.write(OK)

    async with Served(httpx, serve) as it:
        assert [await it.read() for _ in range(3)] == [b"ok"] * 3
        assert it.connections == 1
        await it.transport.aclose()
        await asyncio.wait_for(it.over.wait(), 5)

    assert it.transport.is_closed


@pytest.mark.parametrize("farewell", [b"", b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n"])
async def test_a_connection_that_the_service_ended_is_not_used_again(httpx: Any, farewell: bytes) -> None:
    """Closed, or with something said unasked, which would be taken for the next answer."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        writer.write(OK)
        if it.connections == 1:
            await asyncio.sleep(0.05)  # after the answer was read
            writer.write(farewell)
        else:
            await head_of(reader)

    async with Served(httpx, serve) as it:
        first = await it.read()
        await asyncio.wait_for(it.over.wait(), 5)
        await asyncio.sleep(0.05)  # for its end to arrive here
        second = await it.read()

    assert (first, second, it.connections) == (b"ok", b"ok", 2)


@pytest.mark.parametrize("more", [OK.replace(b"ok", b"no"), b"?"], ids=["an answer", "anything"])
async def test_what_comes_behind_an_answer_is_not_taken_for_the_next_one(httpx: Any, more: bytes) -> None:
    """A service that says more than it was asked, in one piece with the answer: the connection is closed."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await head_of(reader)
            writer.write(OK + more)

    async with Served(httpx, serve) as it:
        assert [await it.read(), await it.read()] == [b"ok"] * 2

    assert it.connections == 2


async def test_a_connection_whose_end_the_loop_has_not_seen_is_not_used(httpx: Any) -> None:
    """A service that hangs up behind its answer without a word, while something else keeps the loop busy."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        writer.write(OK)

    async with Served(httpx, serve) as it:
        response = await it.ask()
        body = response.stream.__aiter__()
        assert await anext(body) == b"ok"
        connection = response.stream._connection
        held = connection._socket
        held.pause_reading()  # as a loop that does not come to it
        await asyncio.wait_for(it.over.wait(), 5)
        await asyncio.sleep(0.05)  # for its end to arrive here
        assert await anext(body, None) is None
        await response.aclose()
        assert connection.is_usable

        assert await asyncio.wait_for(it.read(), 5) == b"ok"

    assert it.connections == 2


async def test_idle_connections_are_closed_after_a_while(httpx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where their service is not asked again: a burst of prompts leaves no sockets behind."""
    monkeypatch.setattr(_sockets, "IDLE_SECONDS", 0.2)
    gone: list[None] = []
    all_gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        await asyncio.sleep(0.02)  # until all are asked
        writer.write(OK)
        assert await reader.read(1) == b""
        gone.append(None)
        if len(gone) == 5:
            all_gone.set()

    async with Served(httpx, serve) as it:
        await asyncio.gather(*(it.read() for _ in range(5)))
        assert it.connections == 5
        await asyncio.wait_for(all_gone.wait(), 5)

        assert not it.transport._idle
        assert it.transport._sweep is None


async def test_name_and_password_of_an_address_are_sent(httpx: Any) -> None:
    """``http://user:password@host``, as a gateway asks for it; the library's client sends it, too."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await head_of(reader))
        writer.write(OK)

    async with Served(httpx, serve) as it:
        it.url = it.url.replace("//", "//user:p%40ss@")
        await it.read(authorization="Bearer key")

    assert b"authorization: Basic dXNlcjpwQHNz\r\n" in heads[0]
    assert b"Bearer" not in heads[0]


async def test_headers_stay_hidden(httpx: Any) -> None:
    """What hides its values from a traceback with locals is not opened on the way."""

    class Hidden(dict[str, str]):
        pass

    made: list[type] = []

    class Spy(httpx.Request):  # type: ignore[misc]
        def __init__(self, *args: Any, headers: Any, **more: Any) -> None:
            made.append(type(headers))
            super().__init__(*args, headers=headers, **more)

    transport = socket_transport(httpx)(None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(httpx, "Request", Spy)
        request = transport.build_request(
            "POST",
            httpx.URL("http://127.0.0.1/"),
            headers=Hidden({"authorization": "key"}),
            content=b"",
            timeout=connect_timeout(httpx.__name__, 5),
            extensions={},
        )

    assert made == [Hidden]
    assert request.headers["authorization"] == "key"


async def test_a_connection_that_waited_for_long_is_not_used_again(httpx: Any) -> None:
    """Services close idle connections in the moment when one is used; an old one is not tried."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await head_of(reader)
            writer.write(OK)

    async with Served(httpx, serve) as it:
        await it.read()
        ((kept,),) = it.transport._idle.values()
        kept.idle_since -= IDLE_SECONDS + 1
        await it.read()

    assert it.connections == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\n\r\nok",
        b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\nHTTP/1.1 200 OK\r\nconnection: close\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n",
    ],
    ids=["closing", "1.0", "early hints", "chunked"],
)
async def test_each_way_to_end_an_answer_is_read(httpx: Any, answer: bytes) -> None:
    """By length, by closing, in chunks, after an interim answer; and no connection is used that was to be closed."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        writer.write(answer)

    async with Served(httpx, serve) as it:
        assert [await it.read(), await it.read()] == [b"ok", b"ok"]

    assert it.connections == 2


async def test_an_answer_that_comes_before_the_body_is_sent_is_read(httpx: Any) -> None:
    """A gateway refuses a large body at once and hangs up: its reason counts, not the broken line."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 3\r\nconnection: close\r\n\r\nbig")
        await writer.drain()
        for _ in range(200):  # it takes a part only, then hangs up
            await reader.read(1 << 16)
            if reader.at_eof():
                break
            await asyncio.sleep(0)

    async with Served(httpx, serve) as it:
        response = await it.ask(content=b"x" * 30_000_000)
        body = b"".join([piece async for piece in response.aiter_bytes()])

    assert (response.status_code, body) == (413, b"big")


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_an_answer_to_a_body_that_nobody_reads_is_read(httpx: Any, is_streamed: bool) -> None:
    """A gateway that refuses by the head alone, reads no more and does not hang up: no wait for what it will not read.

    The connection, with the rest of the body still in it, is not used again.
    """
    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 3\r\n\r\nbig")
        await over.wait()

    async def pieces() -> AsyncIterator[bytes]:
        yield b"x" * 30_000_000

    async with Served(httpx, serve) as it:
        response = await asyncio.wait_for(it.ask(content=pieces() if is_streamed else b"x" * 30_000_000), 5)
        assert await response.aread() == b"big"
        await response.aclose()
        over.set()

        assert response.status_code == 413
        assert not it.transport._idle


async def test_a_body_is_sent_piece_by_piece(httpx: Any) -> None:
    """An upload that is made while it is sent, larger than any buffer on the way."""
    got = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        while size := int(await reader.readline(), 16):
            got.extend(await reader.readexactly(size))
            await reader.readline()
        writer.write(OK)

    async def pieces() -> AsyncIterator[bytes]:
        for number in range(40):
            yield bytes([number]) * 50_000

    async with Served(httpx, serve) as it:
        assert await it.read(content=pieces()) == b"ok"

    assert len(got) == 2_000_000
    assert got[-1] == 39


async def test_a_service_that_writes_faster_than_we_read_has_to_wait(httpx: Any) -> None:
    """What has come in and was not read stays small, and nothing of it is lost."""
    sent = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await head_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 40000000\r\n\r\n")
        for _ in range(400):
            writer.write(b"x" * 100_000)
            await writer.drain()
            sent += 100_000

    async with Served(httpx, serve) as it:
        response = await it.ask()
        await asyncio.sleep(0.3)
        connection = response.stream._connection
        held, sent_by_then = connection._size, sent
        size = 0
        async for piece in response.aiter_bytes():
            size += len(piece)

    assert held < FULL_BYTES + 300_000
    assert sent_by_then < 40_000_000
    assert size == 40_000_000


async def test_closing_in_the_middle_of_an_answer_hangs_up(httpx: Any) -> None:
    """How a service learns of a stop; the connection is not used for the next call."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nbegun")
        assert await reader.read(1) == b""  # a reset raises, which ends it as well

    async with Served(httpx, serve) as it:
        response = await it.ask()
        async for _piece in response.aiter_bytes():
            break
        await response.aclose()
        await asyncio.wait_for(it.over.wait(), 2)

        assert not it.transport._idle


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"", "RemoteProtocolError"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "RemoteProtocolError"),
        (b"HTTP/1.1 200 OK\r\n" + b"x-long: " + b"y" * 200_000 + b"\r\n\r\n", "RemoteProtocolError"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nok", "RemoteProtocolError"),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n" * 1000 + OK, "RemoteProtocolError"),
        (b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nok", "RemoteProtocolError"),
    ],
    ids=["nothing", "no http", "endless head", "cut", "hints without end", "another protocol"],
)
async def test_what_is_no_answer_is_an_error_of_the_library(httpx: Any, answer: bytes, kind: str) -> None:
    """One of its own kinds, as its own transport raises them."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        writer.write(answer)
        await writer.drain()

    async with Served(httpx, serve) as it:
        with pytest.raises(getattr(httpx, kind)):
            await it.read()


async def test_connecting_has_its_time(httpx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An address that does not answer is given up after ``connect_seconds``."""

    async def never(*_: object) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(_sockets, "_connected", never)
    transport = socket_transport(httpx)(None)
    timeout = connect_timeout(httpx.__name__, 0.05)
    request = transport.build_request(
        "POST", httpx.URL("http://127.0.0.1:9/"), headers={}, content=b"", timeout=timeout, extensions={}
    )

    with pytest.raises(httpx.ConnectTimeout):
        await transport.send(request)


async def test_no_cookie_comes_back(httpx: Any) -> None:
    """What a service sets is not kept: calls do not know of each other."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            heads.append(await head_of(reader))
            writer.write(OK.replace(b"\r\n\r\n", b"\r\nset-cookie: a=b\r\n\r\n"))

    async with Served(httpx, serve) as it:
        await it.read()
        await it.read()

    assert b"cookie" not in heads[1].lower()
    assert b"user-agent: python-httpx" in heads[1].lower()


@pytest.mark.parametrize(
    ("environment", "more", "is_straight"),
    [
        ({}, {}, True),
        ({"HTTPS_PROXY": "http://127.0.0.1:1"}, {}, False),
        ({"all_proxy": "http://127.0.0.1:1"}, {}, False),
        ({"NO_PROXY": "example.org"}, {}, True),
        ({"ftp_proxy": "http://127.0.0.1:1"}, {}, True),
        ({"KIT_HTTP": "httpx"}, {}, False),
        ({}, {"library": "httpx"}, False),
        ({}, {"proxy": "http://127.0.0.1:1"}, False),
        ({"KIT_HTTP2": "1"}, {}, False),
    ],
    ids=[
        "plain",
        "proxy set",
        "for all",
        "no proxy",
        "for other things",
        "library set",
        "library asked for",
        "proxy asked for",
        "http2",
    ],
)
async def test_the_straight_way_is_taken_where_nothing_else_is_asked_for(
    environment: dict[str, str], more: dict[str, Any], is_straight: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy, HTTP/2 or a library that was named: then its own transport is used."""
    if "KIT_HTTP2" in environment:
        pytest.importorskip("h2")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    shared = clients_for(Network(**more), secure=True, loopback=False, transport=None)
    _, client = shared.take()
    shared.holders = 1
    await shared.let_go()

    assert (type(client).__name__ == "SocketTransport") is is_straight


# ---------------------------------------------------------------- one name, several addresses


def at(port: int) -> tuple[Any, ...]:
    """An address as the resolver gives it."""
    return (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", port))


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """Of a server that takes connections and says nothing."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


@pytest.fixture
def closed_port() -> int:
    """Where nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


async def test_an_address_that_refuses_gives_way_to_the_next(port: int, closed_port: int) -> None:
    """At once: no time is waited for."""
    with await asyncio.wait_for(_sockets._first_to_stand([at(closed_port), at(port)]), 5) as made:
        assert made.getpeername()[1] == port


async def test_an_address_that_says_nothing_is_overtaken(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """IPv6 that leads nowhere: the other one is tried after a moment, and the first one given up."""
    given_up = asyncio.Event()
    real = _sockets._stands

    async def stands(family: int, *more: Any) -> socket.socket:
        if family != socket.AF_INET6:
            return await real(family, *more)
        try:
            await asyncio.Event().wait()
        finally:
            given_up.set()
        raise AssertionError

    monkeypatch.setattr(_sockets, "_stands", stands)
    nowhere = (socket.AF_INET6, *at(port)[1:])
    with await asyncio.wait_for(_sockets._first_to_stand([nowhere, nowhere, at(port)]), 5) as made:
        assert made.getpeername()[1] == port
    await asyncio.wait_for(given_up.wait(), 5)


@pytest.mark.parametrize("how_many", [0, 1, 2])
async def test_no_address_that_answers_is_an_error_of_the_system(closed_port: int, how_many: int) -> None:
    """With what each of them said, once."""
    with pytest.raises(OSError, match=r"^\[Errno 111\] [^;]*$|^\[Errno 61\] [^;]*$" if how_many else "no address"):
        await _sockets._first_to_stand([at(closed_port)] * how_many)


async def test_what_forbids_connecting_is_told_as_it_is(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`testing.offline` and the like raise what is no error of the system."""

    def connect(*_: object) -> None:
        raise RuntimeError("not from here")

    monkeypatch.setattr(socket.socket, "connect", connect)
    with pytest.raises(RuntimeError, match="not from here"):
        await _sockets._first_to_stand([at(port), at(port)])


async def test_a_stop_at_any_moment_of_connecting_leaves_no_socket(port: int) -> None:
    """Also as one has just stood: nothing is left for the garbage collector to close."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for steps in range(12):
            task = asyncio.create_task(_sockets._first_to_stand([at(port), at(port)]))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            try:
                (await task).close()
            except asyncio.CancelledError:
                pass
            del task
            for _ in range(3):
                await asyncio.sleep(0)
            gc.collect()

    assert [str(each.message) for each in caught if issubclass(each.category, ResourceWarning)] == []
