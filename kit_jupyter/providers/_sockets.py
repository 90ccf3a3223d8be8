"""The straight way to a service: HTTP/1.1 over asyncio's own sockets, h11 reading and writing it.

Theory of operation
-------------------
A transport of the HTTP library, for requests that need neither a proxy nor HTTP/2. The library's own serves any
event loop, guards each step with a lock and traces it; that is half of what a request costs, and a step of an agent
is little more than a request. Here the loop is asyncio's and nothing is shared between threads, so none of it is
needed. The protocol is left to h11, which the library's own transport uses, too; names and TLS are left to asyncio.

A connection carries one exchange at a time. One that was read to its end, and on which nothing came after it, waits
among the idle ones, the last one to come is the first to go, and for `IDLE_SECONDS` at most; any other is closed,
which is how a service learns of a stop. A request is never sent twice: whether it may be is known one floor up
(`_wire`).
"""

from __future__ import annotations

import asyncio
import base64
import functools
import itertools
import re
import select
import socket
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from types import ModuleType
from typing import Any

import h11

from kit_jupyter.providers._client import IDLE_SECONDS

__all__ = ["socket_transport"]

PIECE_BYTES = 64 * 1024
FULL_BYTES = 256 * 1024  # come in and not read: the service has to wait
HEADER_BYTES = 100 * 1024  # of an answer; as much as httpcore allows
MAX_INTERIM = 100  # answers before the answer: a service that sends them without end would keep us busy for ever
RACE_SECONDS = 0.25  # how long an address may take before the next one is tried beside it, as RFC 8305 has it


class _Connection(asyncio.Protocol):
    """A socket, the state of its protocol, and where it leads."""

    def __init__(self, origin: tuple[str, str, int]) -> None:
        self.origin = origin
        self.state = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEADER_BYTES)
        self.idle_since = 0.0
        self._loop = asyncio.get_running_loop()
        self._socket: asyncio.Transport
        self._pieces: list[bytes] = []  # come in and not read yet
        self._size = 0
        self._has_ended = False
        self._error: Exception | None = None
        self._change: asyncio.Future[None] | None = None  # who waits for something to come in, or to be written
        self._may_write = True

    # ---- what the socket tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._pieces.append(data)
        self._size += len(data)
        if self._size > FULL_BYTES:
            self._socket.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self._has_ended = True
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._has_ended, self._error = True, exc
        self._wake()

    def pause_writing(self) -> None:
        self._may_write = False

    def resume_writing(self) -> None:
        self._may_write = True
        self._wake()

    def _wake(self) -> None:
        if self._change is not None and not self._change.done():
            self._change.set_result(None)

    # ---- what an exchange asks of it

    @property
    def is_usable(self) -> bool:
        """The service has read all it was sent, and neither closed it nor said anything behind its answer."""
        is_quiet = not (self._has_ended or self._pieces or self.state.trailing_data[0])
        return is_quiet and not self._socket.get_write_buffer_size()

    @property
    def has_news(self) -> bool:
        """Something lies in the socket that the loop has not seen yet: of an idle one, nearly always its end."""
        number = self._socket.get_extra_info("socket").fileno()
        if number < 0:
            return True
        if not hasattr(select, "poll"):  # Windows
            return bool(select.select([number], [], [], 0)[0])
        poll = select.poll()
        poll.register(number, select.POLLIN)
        return bool(poll.poll(0))

    async def ask(self, request: Any) -> None:
        """Send head and body. A service that has not read all, or hangs up, may have answered all the same.

        So the last piece, which is mostly the only one, is not waited for: it goes out while the answer is read.
        """
        head = h11.Request(method=request.method, target=request.url.raw_path, headers=request.headers.raw)
        data = self.state.send(head) or b""
        async for piece in request.stream:
            data += self.state.send(h11.Data(data=piece)) or b""
            if len(data) >= PIECE_BYTES:
                while not (self._may_write or self._has_ended):
                    await self._changed()
                self._write(data)
                data = b""
        self._write(data + (self.state.send(h11.EndOfMessage()) or b""))

    def _write(self, data: bytes) -> None:
        if not self._has_ended:
            self._socket.write(data)

    async def event(self) -> Any:
        """The next event of the answer."""
        while (event := self.state.next_event()) is h11.NEED_DATA:
            data = await self._read()
            if not data and self.state.their_state is h11.SEND_RESPONSE:
                raise h11.RemoteProtocolError("the server closed the connection without an answer")
            self.state.receive_data(data)
        return event

    async def _read(self) -> bytes:
        """What has come in, waiting for some; nothing at the end."""
        while not (self._pieces or self._has_ended):
            await self._changed()
        if self._pieces:
            pieces, self._pieces = self._pieces, []
            if self._size > FULL_BYTES:
                self._socket.resume_reading()
            self._size = 0
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if self._error is not None:
            raise self._error
        return b""

    async def _changed(self) -> None:
        self._change = self._loop.create_future()
        try:
            await self._change
        finally:
            self._change = None

    def close(self) -> None:
        """At once: what is under way is given up."""
        self._socket.abort()


@functools.cache
def socket_transport(library: ModuleType) -> Callable[[ssl.SSLContext | None], Any]:
    """The transport as a class of `library`, which is httpx or httpx2.

    Its parameter is the TLS context.
    """

    user_agent = f"python-{library.__name__}/{library.__version__}"

    class Body(library.AsyncByteStream):  # type: ignore[misc, name-defined]
        """What is left to read of an answer; its closing gives the connection back, or closes it."""

        _connection: _Connection | None

        def __init__(self, transport: SocketTransport, connection: _Connection) -> None:
            self._transport, self._connection = transport, connection

        async def __aiter__(self) -> AsyncIterator[bytes]:
            connection = self._connection
            assert connection is not None
            try:
                while type(event := await connection.event()) is h11.Data:
                    yield bytes(event.data)
            except h11.RemoteProtocolError as exc:
                raise library.RemoteProtocolError(str(exc)) from exc
            except OSError as exc:
                raise library.ReadError(str(exc)) from exc

        async def aclose(self) -> None:
            connection, self._connection = self._connection, None
            if connection is not None:
                self._transport.give_back(connection)

    class SocketTransport(library.AsyncBaseTransport):  # type: ignore[misc, name-defined]
        """Connections to services, on the loop that first uses it.

        It also stands where a client of the library would: a call needs no cookies, redirects or authentication of
        a client's, and they cost as much as all that is here.
        """

        def __init__(self, context: ssl.SSLContext | None) -> None:
            self.is_closed = False
            self._context = context
            self._idle: dict[tuple[str, str, int], deque[_Connection]] = {}
            self._sweep: asyncio.TimerHandle | None = None  # stands while any is idle

        def build_request(
            self, method: str, url: Any, *, headers: Any, content: Any, timeout: Any, extensions: dict[str, Any]
        ) -> Any:
            known = type(headers)({"accept": "*/*", "user-agent": user_agent, **headers})
            if url.userinfo:  # as a client of the library has it: name and password of an address go before a key
                words = f"{url.username}:{url.password}".encode()
                known["authorization"] = f"Basic {base64.b64encode(words).decode()}"
            extensions = {"timeout": timeout.as_dict(), **extensions}
            if not isinstance(content, bytes) or not content:
                return library.Request(method, url, headers=known, content=content, extensions=extensions)
            # What the library would find out about the body, and write its headers anew for.
            known = type(headers)({"host": url.netloc.decode("ascii"), "content-length": str(len(content)), **known})
            stream = library.ByteStream(content)
            return library.Request(method, url, headers=known, stream=stream, extensions=extensions)

        async def send(self, request: Any, *, stream: bool = True) -> Any:
            """The response, its body unread; `stream` says so where clients can do otherwise."""
            response = await self.handle_async_request(request)
            response.request = request
            return response

        async def handle_async_request(self, request: Any) -> Any:
            connection = self._take(_origin(request.url)) or await self._connect(request)
            try:
                await connection.ask(request)
                for _ in range(MAX_INTERIM):
                    if type(event := await connection.event()) is not h11.InformationalResponse:
                        break
                if type(event) is not h11.Response:
                    raise h11.RemoteProtocolError("the server sent no answer to what it was asked")
            except BaseException as exc:
                connection.close()
                if isinstance(exc, h11.LocalProtocolError):
                    raise library.LocalProtocolError(str(exc)) from exc
                if isinstance(exc, h11.RemoteProtocolError):
                    raise library.RemoteProtocolError(str(exc)) from exc
                if isinstance(exc, OSError):
                    raise library.ReadError(str(exc)) from exc
                raise
            return library.Response(
                event.status_code,
                headers=event.headers.raw_items(),
                stream=Body(self, connection),
                extensions={"http_version": b"HTTP/" + event.http_version, "reason_phrase": event.reason},
            )

        def _take(self, origin: tuple[str, str, int]) -> _Connection | None:
            """The idle connection that was used last, if it still stands; those that do not are closed."""
            idle = self._idle.get(origin)
            oldest = asyncio.get_running_loop().time() - IDLE_SECONDS
            while idle:
                connection = idle.pop()
                if connection.idle_since >= oldest and connection.is_usable and not connection.has_news:
                    return connection
                connection.close()
            return None

        async def _connect(self, request: Any) -> _Connection:
            origin = _origin(request.url)
            context = self._context if origin[0] == "https" else None
            try:
                async with asyncio.timeout(request.extensions.get("timeout", {}).get("connect")):
                    return await _connected(origin, context)
            except TimeoutError as exc:
                raise library.ConnectTimeout(str(exc)) from exc
            except (OSError, UnicodeError) as exc:
                raise library.ConnectError(str(exc)) from exc

        def give_back(self, connection: _Connection) -> None:
            """Keep it for the next request if this one's answer was read to its end, else close it."""
            state = connection.state
            is_read = state.our_state is h11.DONE and state.their_state is h11.DONE
            if self.is_closed or not is_read or not connection.is_usable:
                connection.close()
                return
            state.start_next_cycle()
            loop = asyncio.get_running_loop()
            connection.idle_since = loop.time()
            self._idle.setdefault(connection.origin, deque()).append(connection)
            if self._sweep is None:
                self._sweep = loop.call_later(IDLE_SECONDS, self._close_old)

        def _close_old(self) -> None:
            """Close what nobody used for `IDLE_SECONDS`, and look again when the next one will be as old."""
            loop = asyncio.get_running_loop()
            oldest = loop.time() - IDLE_SECONDS + 0.01
            for origin, idle in list(self._idle.items()):
                while idle and idle[0].idle_since <= oldest:
                    idle.popleft().close()
                if not idle:
                    del self._idle[origin]
            first = min((idle[0].idle_since for idle in self._idle.values()), default=None)
            self._sweep = None if first is None else loop.call_at(first + IDLE_SECONDS, self._close_old)

        async def aclose(self) -> None:
            self.is_closed = True
            if self._sweep is not None:
                self._sweep.cancel()
                self._sweep = None
            idle, self._idle = self._idle, {}
            for connections in idle.values():
                for connection in connections:
                    connection.close()

    return SocketTransport


async def _connected(origin: tuple[str, str, int], context: ssl.SSLContext | None) -> _Connection:
    """A connection to the address of the service that answers first."""
    loop, (_, host, port) = asyncio.get_running_loop(), origin
    if re.fullmatch(r"[\d.]+|.*:.*", host):  # an address already
        _, connection = await loop.create_connection(lambda: _Connection(origin), host, port, ssl=context)
        return connection
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    _, connection = await loop.create_connection(
        lambda: _Connection(origin),
        sock=await _first_to_stand(found),
        ssl=context,
        server_hostname=host if context is not None else None,
    )
    return connection


async def _first_to_stand(found: Sequence[Any]) -> socket.socket:
    """A socket to one of the addresses; each has `RACE_SECONDS` before the next one is tried beside it.

    asyncio's own race (``happy_eyeballs_delay``) forgets the winner when it is stopped as one has won, and before
    Python 3.13.6 any error that is no OSError.
    """
    first = found[0][0] if found else None
    families = [one for one in found if one[0] == first], [one for one in found if one[0] != first]
    waiting = deque(one for pair in itertools.zip_longest(*families) for one in pair if one is not None)
    running: set[asyncio.Task[socket.socket]] = set()
    errors: list[BaseException] = []
    try:
        while waiting or running:
            if waiting:
                running.add(asyncio.create_task(_stands(*waiting.popleft())))
            await asyncio.wait(running, timeout=RACE_SECONDS if waiting else None, return_when=asyncio.FIRST_COMPLETED)
            for task in [task for task in running if task.done()]:
                running.remove(task)
                error = task.exception()
                if error is None:
                    return task.result()
                errors.append(error)
    finally:
        for task in running:
            task.add_done_callback(_let_go)
            task.cancel()
    for error in errors:
        if len(errors) == 1 or not isinstance(error, OSError):
            raise error
    raise OSError("; ".join(dict.fromkeys(map(str, errors))) or "the name has no address")


async def _stands(family: int, kind: int, protocol: int, _: str, address: Any) -> socket.socket:
    made = socket.socket(family, kind, protocol)
    try:
        made.setblocking(False)
        await asyncio.get_running_loop().sock_connect(made, address)
    except BaseException:
        made.close()
        raise
    return made


def _let_go(task: asyncio.Task[socket.socket]) -> None:
    """Of one that came too late."""
    if not task.cancelled() and task.exception() is None:
        task.result().close()


def _origin(url: Any) -> tuple[str, str, int]:
    return url.scheme, url.raw_host.decode("ascii"), url.port or (443 if url.scheme == "https" else 80)
