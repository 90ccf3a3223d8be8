"""A scripted HTTP server on this machine: full control over every byte, and over when it comes."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass
class Received:
    """One request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Reply = Callable[[Received, "Out"], Awaitable[None]]


@dataclass
class Out:
    """The answering side of a connection."""

    writer: asyncio.StreamWriter
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    async def raw(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self, status: int = 200, headers: dict[str, str] | None = None, *, chunked: bool = True) -> None:
        names = {"content-type": "text/event-stream", **(headers or {})}
        if chunked:
            names["transfer-encoding"] = "chunked"
        lines = "".join(f"{name}: {value}\r\n" for name, value in names.items())
        await self.raw(f"HTTP/1.1 {status} Whatever\r\n{lines}\r\n".encode("latin-1"))

    async def chunk(self, data: bytes) -> None:
        if data:
            await self.raw(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    async def end(self) -> None:
        await self.raw(b"0\r\n\r\n")


class Loopback:
    """Answers requests with `replies`, one after the other; the last one is used again.

    `connections` counts those made, `asked` is set by the first request, `closed` when a client lets a connection go.
    """

    def __init__(self, *replies: Reply, tls: ssl.SSLContext | None = None) -> None:
        self.replies = list(replies)
        self.requests: list[Received] = []
        self.connections = 0
        self.closed = asyncio.Event()
        self.asked = asyncio.Event()
        self._tls = tls
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}/v1"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        number = self.connections
        try:
            while True:
                request = await self._read(reader, number)
                if request is None:
                    break
                self.requests.append(request)
                self.asked.set()
                reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
                watcher = asyncio.ensure_future(self._watch(reader))
                try:
                    await reply(request, Out(writer, self.closed))
                finally:
                    watcher.cancel()
                    await asyncio.gather(watcher, return_exceptions=True)
                if self.closed.is_set():
                    break
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _watch(self, reader: asyncio.StreamReader) -> None:
        """See the client close while a reply is being written; nothing is pipelined, so nothing is lost."""
        if await reader.read(1) == b"":
            self.closed.set()

    @staticmethod
    async def _read(reader: asyncio.StreamReader, number: int) -> Received | None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        first, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ", 2)
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        return Received(method, path, headers, body, number)


# ---------------------------------------------------------------- replies


def event(**chunk: Any) -> bytes:
    """One chunk of a chat stream."""
    return b"data: " + json.dumps(chunk, ensure_ascii=False).encode() + b"\n\n"


def said(text: str) -> bytes:
    """A piece of text."""
    return event(id="r1", model="m", choices=[{"index": 0, "delta": {"content": text}, "finish_reason": None}])


STOP = event(id="r1", model="m", choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])
USED = event(id="r1", model="m", choices=[], usage={"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5})
DONE = b"data: [DONE]\n\n"


def stream(*pieces: bytes, headers: dict[str, str] | None = None, end: bool = True) -> Reply:
    """A chunked event stream, a network write per piece."""

    async def reply(_: Received, out: Out) -> None:
        await out.head(200, headers)
        for piece in pieces:
            await out.chunk(piece)
            await asyncio.sleep(0)
        if end:
            await out.end()

    return reply


def answer(text: str = "Hello") -> Reply:
    """A whole good answer."""
    return stream(*(said(word) for word in text), STOP, USED, DONE)


def refuse(status: int, body: bytes | dict[str, Any] = b"", headers: dict[str, str] | None = None) -> Reply:
    """A refusal with a body."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def reply(_: Received, out: Out) -> None:
        names = {"content-type": "application/json", "content-length": str(len(data)), **(headers or {})}
        await out.head(status, names, chunked=False)
        await out.raw(data)

    return reply


def whole(body: bytes, content_type: str = "application/json") -> Reply:
    """A 200 answer that came at once."""
    return refuse(200, body, {"content-type": content_type})


def hang_up(after: bytes = b"") -> Reply:
    """Break the connection, after some bytes of a stream if given."""

    async def reply(_: Received, out: Out) -> None:
        if after:
            await out.head()
            await out.chunk(after)
        transport = out.writer.transport
        transport.abort()

    return reply


def silence(after: bytes = b"", *, head: bool = True) -> Reply:
    """Say nothing more until the client goes."""

    async def reply(_: Received, out: Out) -> None:
        if head:
            await out.head()
            await out.chunk(after)
        await out.closed.wait()

    return reply
