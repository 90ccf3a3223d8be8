"""The model on this machine as a provider: over a child process of ours, or a server that runs already.

Theory of operation
-------------------
`LocalProvider` speaks chat completions to one of two things: a server that already runs on this machine
(``KIT_LOCAL_URL``), or a child process (`llama_process`), which serves the weights that `local_models` finds.

Requests go to a made-up address, ``http://kit.localhost/v1``, and `_ChildTransport` carries them to
wherever the child listens; it starts the child on the first one, and once more if the child has died
before an answer began. So what is sent does not depend on a port, and a replayed request never starts
anything. A child that dies in the middle of an answer is an error that shows its last log lines; the next
prompt starts another.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from kit_jupyter.deltas import ModelDelta
from kit_jupyter.errors import ConnectionFailed, ReplayMiss, UsageError, WireError
from kit_jupyter.messages import ModelRef
from kit_jupyter.provider import ModelInfo, ModelRequest, status_listener
from kit_jupyter.providers import local_models, replay
from kit_jupyter.providers._client import http_library, is_loopback
from kit_jupyter.providers._watch import Limits
from kit_jupyter.providers._wire import WireProvider
from kit_jupyter.providers.codec import Codec, Endpoint
from kit_jupyter.providers.llama_process import (
    BINARY_VARIABLE,
    CONTEXT,
    URL_VARIABLE,
    LlamaServer,
    Served,
    ask,
    engine_name,
    hold,
    in_thread,
    let_go,
    no_engine,
)
from kit_jupyter.providers.openai_chat import OpenAIChatCodec
from kit_jupyter.providers.schema_mode import SchemaCodec

__all__ = ["BINARY_VARIABLE", "URL_VARIABLE", "LlamaServer", "LocalProvider", "Served", "engine_name", "no_engine"]

ADDRESS = "http://kit.localhost/v1"
QUIRKS = frozenset(("reminders", "thinking:template"))
TINY_PARAMETERS, LEAN_PARAMETERS = 300_000_000, 3_000_000_000
KEY_VARIABLE = "KIT_LOCAL_KEY"


class _ChildTransport:
    """Carries requests for `ADDRESS` to the child, and starts it when the first one comes."""

    def __init__(self, server: LlamaServer) -> None:
        self._server = server
        self._inner: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = weakref.WeakKeyDictionary()

    async def __aenter__(self) -> _ChildTransport:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def handle_async_request(self, request: Any) -> Any:
        """The child's response; a child that died before it answered is started once more."""
        httpx = http_library()
        loop = asyncio.get_running_loop()  # connections belong to one loop
        inner = self._inner.get(loop)
        if inner is None:
            # A connection for each request: the server closes idle ones, at the very moment when one is used again.
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
            inner = self._inner[loop] = httpx.AsyncHTTPTransport(limits=limits)
        for attempt in (1, 2):
            served = await self._server.served()
            target = urlsplit(served.address)
            headers = [(k, v) for k, v in request.headers.raw if k.lower() not in (b"host", b"authorization")]
            headers += [(b"Host", target.netloc.encode()), (b"Authorization", f"Bearer {served.key}".encode())]
            sent = httpx.Request(
                request.method,
                request.url.copy_with(host=target.hostname, port=target.port),
                headers=headers,
                stream=request.stream,
                extensions=request.extensions,
            )
            try:
                return await inner.handle_async_request(sent)
            except httpx.TransportError:
                if not await self._server.is_dead_soon():
                    raise
                if attempt == 2:
                    raise self._server.failure("ended twice before it answered") from None
        raise AssertionError("unreachable")

    async def aclose(self) -> None:
        inner = self._inner.pop(asyncio.get_running_loop(), None)
        if inner is not None:
            await inner.aclose()


# ---------------------------------------------------------------- the provider


class LocalProvider:
    """Answers from a model on this machine; nothing leaves it.

    Parameters
    ----------
    model_id : str or None
        A model of `local_models` (``smollm2``, ``gemma``, a file's name, a path), None for the first found.
    base_url, api_key : str or None
        A server that runs on this machine already; None takes ``KIT_LOCAL_URL`` and ``KIT_LOCAL_KEY``.
    context : int or None, tokens
        Context window of a child of ours; None takes ``KIT_LOCAL_CONTEXT``, else 8192.
    transport : httpx transport or None
        Carries the bytes in place of child and sockets, for example `replay`'s.

    Notes
    -----
    `status` says in a few words what is being waited for while the model loads, else it is empty;
    `on_status`, if set, is called with it at each change, on any thread.

    Examples
    --------
    >>> LocalProvider("smollm2").info("smollm2").lean
    True
    """

    name = "local"

    def __init__(
        self,
        model_id: str | None = None,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        context: int | None = None,
        transport: Any = None,
    ) -> None:
        self.model_id = model_id or "default"
        self.on_status: Callable[[str], None] | None = None
        self._base_url = base_url
        self._api_key = api_key
        self._context = context
        self._transport = transport
        self._servers: dict[str, LlamaServer] = {}
        self._wires: dict[tuple[object, ...], WireProvider] = {}
        self._asked: dict[str, Served] = {}
        self._waiting: list[Callable[[str], None]] = []  # told of the status: those whose answer waits for it

    def __repr__(self) -> str:
        return f"LocalProvider({self.model_id!r})"

    @property
    def status(self) -> str:
        """What is being waited for; empty when nothing is."""
        return next((server.status for server in self._servers.values() if server.status), "")

    @property
    def servers(self) -> tuple[LlamaServer, ...]:
        """The child processes this provider uses."""
        return tuple(self._servers.values())

    # -- what is known

    def info(self, model_id: str) -> ModelInfo:
        """What is known of a model without asking anyone: by its size, and what its server said at the start."""
        url = self._url(None)
        if url:
            served = self._asked.get(url)
            window = served.context_window if served is not None else None
            takes = None if served is None or served.calls_tools is None else _takes(served)
            return ModelInfo(context_window=window, takes=takes, note="")
        wanted = self._wanted(model_id)
        try:
            found = self._found(wanted)
        except UsageError:
            found = None
        weights = found.weights if found is not None else local_models.CATALOG.get(_known_name(wanted))
        server = self._servers.get(str(found.path)) if found is not None else None
        served = server.facts if server is not None else None
        window = served.context_window if served is not None else self._context_tokens()
        size = found.size if found is not None else 0
        note = weights.note if weights is not None else ""
        if not note and size < local_models.LEAN_BYTES:
            note = "A small model on this machine: often wrong."
        return ModelInfo(
            context_window=window or self._context_tokens(),
            takes=_takes(served) if served is not None else frozenset(),
            lean=size < local_models.LEAN_BYTES,
            note=note,
        )

    def _wanted(self, model_id: str) -> str:
        return model_id if model_id not in ("", "default") else self.model_id

    def _context_tokens(self) -> int:
        if self._context is not None:
            return self._context
        text = os.environ.get("KIT_LOCAL_CONTEXT", "").strip()
        if not text:
            return CONTEXT
        if not text.isdigit() or int(text) < 256:
            raise UsageError(f"KIT_LOCAL_CONTEXT is {text!r}; give a number of tokens, 256 or more")
        return int(text)

    def _url(self, of_request: str | None) -> str:
        """Address of a server that runs already, with its version; empty for a child of ours."""
        url = (of_request or self._base_url or os.environ.get(URL_VARIABLE, "")).strip().rstrip("/")
        if not url:
            return ""
        if "://" not in url:
            url = f"http://{url}"
        if not is_loopback(url):
            raise UsageError(
                f"local/… answers from this machine only, {url} is elsewhere; "
                "use an OpenAI-compatible provider with base_url for it"
            )
        return url if urlsplit(url).path.strip("/") else f"{url}/v1"

    # -- answers

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        """Deltas of one answer; the first prompt starts the child."""
        with self._told_while_waiting(status_listener.get()):
            async with aclosing(self._stream(request)) as deltas:
                async for delta in deltas:
                    yield delta

    @contextlib.contextmanager
    def _told_while_waiting(self, listener: Callable[[str], None] | None) -> Iterator[None]:
        if listener is None:
            yield
            return
        if self.status:
            listener(self.status)
        self._waiting.append(listener)
        try:
            yield
        finally:
            self._waiting.remove(listener)

    async def _stream(self, request: ModelRequest) -> AsyncGenerator[ModelDelta]:
        url = self._url(request.base_url)
        if url:
            wires, server = await self._wires_to(url, request), None
            asked = replace(request, base_url=None, api_key=None)
        else:
            name, wires, server = await self._wires_to_child(request)
            asked = replace(request, api_key=None, model=ModelRef(self.name, name))
        first_miss: ReplayMiss | None = None
        for wire in wires:
            spoken = False
            try:
                async with aclosing(wire.stream(asked)) as deltas:  # type: ignore[type-var]
                    async for delta in deltas:
                        spoken = True
                        yield delta
                return
            except ReplayMiss as exc:
                if spoken:
                    raise
                first_miss = first_miss or exc
            except (ConnectionFailed, WireError) as exc:
                if server is not None and exc is not server.last_failure and await server.is_dead_soon():
                    raise server.failure("ended in the middle of the answer") from exc
                raise
        assert first_miss is not None
        if replay.mode() == "auto" and self._transport is None and not url:
            raise local_models.missing(self._wanted(request.model.id)) from first_miss
        raise first_miss

    def _told(self, status: str) -> None:
        for listener in (self.on_status, *self._waiting):
            if listener is not None:
                listener(status)

    async def _wires_to(self, url: str, request: ModelRequest) -> list[WireProvider]:
        """A server that runs already: asked once what it is."""
        key = request.api_key or self._api_key or os.environ.get(KEY_VARIABLE, "")
        if self._transport is not None or replay.is_strict():
            return self._ways(url, key)
        served = self._asked.get(url)
        if served is None:
            base = url.removesuffix("/v1")
            try:
                served = await asyncio.wrap_future(in_thread(lambda: ask(base, key), "kit-llama-ask"))
            except OSError:
                raise ConnectionFailed(
                    f"nothing answers at {base}; start the server, or unset {URL_VARIABLE}", provider=self.name
                ) from None
            self._asked[url] = served
        tiny = served.parameters is not None and served.parameters < TINY_PARAMETERS
        return [self._wire(url, key, schema=_wants_schema(served, 0), tiny=tiny)]

    async def _wires_to_child(self, request: ModelRequest) -> tuple[str, list[WireProvider], LlamaServer | None]:
        """The model's name on the wire, the ways to ask it, and its server; none where a recording answers."""
        wanted = self._wanted(request.model.id)
        found = self._found(wanted)
        if found is None and (self._transport is not None or replay.mode() in ("auto", "strict")):
            name = _known_name(wanted)
            weights = local_models.CATALOG.get(name)
            if weights is not None:
                tiny = weights.size < local_models.TINY_BYTES
                return name, [self._wire(ADDRESS, "", schema=True, tiny=tiny)], None
            return name, self._ways(ADDRESS, ""), None
        if found is None:
            raise local_models.missing(wanted)
        server = self._servers.get(str(found.path))
        if server is None:
            binary = os.environ.get(BINARY_VARIABLE, "").strip()
            server = self._servers[str(found.path)] = hold(found, binary, self._context_tokens())
            server.listeners.append(self._told)
        if found.size >= local_models.LEAN_BYTES and server.facts is None:
            await server.served()  # a larger one may call tools by itself: its template says so
        schema, tiny = _wants_schema(server.facts, found.size), found.size < local_models.TINY_BYTES
        return found.name, [self._wire(ADDRESS, "", schema=schema, tiny=tiny, server=server)], server

    def _found(self, wanted: str) -> local_models.Found | None:
        """The weights; none where only a recording may answer, so that what is here does not change what is sent."""
        if self._transport is not None or replay.is_strict():
            return None
        return local_models.find(wanted)

    def _ways(self, url: str, key: str) -> list[WireProvider]:
        """All ways a model might have been asked when it was recorded; the recording knows which."""
        kinds = ((True, False), (True, True), (False, False))
        return [self._wire(url, key, schema=schema, tiny=tiny) for schema, tiny in kinds]

    def _wire(self, url: str, key: str, *, schema: bool, tiny: bool, server: LlamaServer | None = None) -> WireProvider:
        kind = (url, key, schema, tiny, id(server), replay.mode())
        wire = self._wires.get(kind)
        if wire is None:
            transport = self._transport
            if transport is None:
                if server is not None:
                    child = _ChildTransport(server)
                    transport = replay.transport_for(inner=child) or child
                else:  # a server that runs already; or none, and then only a recording can answer
                    transport = replay.transport_for(how="strict" if url == ADDRESS else None)
            codec: Codec = SchemaCodec(OpenAIChatCodec(), tiny=tiny) if schema else OpenAIChatCodec()
            endpoint = Endpoint(name=self.name, base_url=url, api_key=key, quirks=QUIRKS)
            # Our own child is started again by its transport; a foreign server gets the usual second chance.
            limits = Limits(
                connect_seconds=5.0, first_seconds=None, idle_seconds=None, max_retries=0 if server is not None else 2
            )
            wire = self._wires[kind] = WireProvider(codec, endpoint, transport=transport, limits=limits)
        return wire

    async def close(self) -> None:
        """Let go of the child; the last Kit to do so stops it."""
        wires, self._wires = list(self._wires.values()), {}
        servers, self._servers = list(self._servers.values()), {}
        for wire in wires:
            await wire.close()
        for server in servers:
            if self._told in server.listeners:
                server.listeners.remove(self._told)
            if let_go(server):
                await asyncio.wrap_future(in_thread(server.stop, "kit-llama-stop"))


def _known_name(wanted: str) -> str:
    return local_models.DEFAULT if wanted in ("", "default") else wanted


def _takes(served: Served) -> frozenset[str]:
    return frozenset(("image",)) if served.sees else frozenset()


def _wants_schema(served: Served | None, size: int) -> bool:
    """Whether tools are called by schema: no tool template, or too small to use one (measured: 0 of 5)."""
    if 0 < size < local_models.LEAN_BYTES:
        return True
    if served is None or served.calls_tools is None:
        return False
    return not served.calls_tools or (served.parameters is not None and served.parameters < LEAN_PARAMETERS)
