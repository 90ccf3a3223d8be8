"""The one door to the net: any codec made a provider, over one shared HTTP client.

Theory of operation
-------------------
`WireProvider` owns what codecs must not: sockets, time-outs, retries. For each call it encodes, sends,
looks at the status before it reads events, and pumps bytes through `_framing.Answer` into deltas. It
holds no state of a stream; all of it lives in the generator and its `_line.Line`, whose closing closes
the socket. `_client` names the HTTP library and shares its connections; `_watch` keeps the time; `_faults`
makes our errors of whatever went wrong.

A failed call is tried again only while nothing of an answer has been handed out, and only where the
service or the line may recover. Every hint of the service is honoured up to a minute; a longer one is
raised at once as `RateLimited` with ``retry_after_seconds``. `provider.retry_listener` is told of each wait.

Stop must stop: closing the generator closes the connection. That is why HTTP/1.1 is the default. With
HTTP/2 the libraries neither reset the stream nor close the line, the service writes on, and tokens are
paid for; ``http2=True`` (or ``KIT_HTTP2=1``) takes it all the same, where ``h2`` is installed.

A redirect is followed only within one scheme, host and port: a key never goes elsewhere.
"""

from __future__ import annotations

import asyncio
import itertools
import weakref
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from kit_jupyter.deltas import Finished, ModelDelta, ResponseFacts, UsageDelta
from kit_jupyter.errors import AuthFailed, ProviderError, UsageError
from kit_jupyter.provider import ModelInfo, ModelRequest, RetryNotice, retry_listener
from kit_jupyter.providers import keys
from kit_jupyter.providers._client import Network, SharedClients, clients_for, is_loopback
from kit_jupyter.providers._errors import describe
from kit_jupyter.providers._faults import wait_seconds
from kit_jupyter.providers._framing import Answer
from kit_jupyter.providers._line import Line
from kit_jupyter.providers._watch import Limits, Silent, TimedOut
from kit_jupyter.providers.codec import Codec, Endpoint, HttpCall

__all__ = ["WireProvider"]

DEFAULT_NETWORK = Network()
DRAIN_SECONDS = 1.0  # how long the end of a body may come after the end of its answer


class WireProvider:
    """A provider made of a codec and an endpoint.

    Parameters
    ----------
    codec : Codec
    endpoint : Endpoint
    transport : httpx transport or None
        Carries the bytes instead of sockets, for example `replay`'s; must fit the library in use.
    limits, network : Limits, Network
    infos : callable or None
        Facts of a model by its id.
    key_hint : str
        What to do about a missing or wrong key; appended to such errors.
    needs_key : bool
        Refuse before any byte is sent when there is no key.

    Notes
    -----
    Runs on the loop that first reads a stream, normally the engine's; each loop has its own client.
    """

    def __init__(
        self,
        codec: Codec,
        endpoint: Endpoint,
        *,
        transport: Any = None,
        limits: Limits | None = None,
        network: Network = DEFAULT_NETWORK,
        infos: Callable[[str], ModelInfo] | None = None,
        key_hint: str = "",
        needs_key: bool = False,
    ) -> None:
        self.name = endpoint.name
        self.codec = codec
        self.endpoint = replace(endpoint, headers=_lower(endpoint.headers))
        self._checked: Endpoint | None = None
        self.network = network
        self._transport = transport
        self._limits = limits
        self._infos = infos
        self._key_hint = key_hint
        self._needs_key = needs_key
        self._ways: dict[tuple[int, tuple[str, str]], SharedClients] = {}
        self._held: list[tuple[weakref.ref[asyncio.AbstractEventLoop], SharedClients]] = []

    def __repr__(self) -> str:
        return f"WireProvider({self.name!r}, wire={self.codec.wire!r}, base_url={self.endpoint.base_url!r})"

    @property
    def is_carried(self) -> bool:
        """True when something else than sockets carries the bytes, such as a recording."""
        return self._transport is not None

    def info(self, model_id: str) -> ModelInfo:
        """What is known of a model, without asking anyone."""
        return self._infos(model_id) if self._infos is not None else ModelInfo()

    async def close(self) -> None:
        """Let go of the shared client; the last one to do so closes its connections."""
        here = asyncio.get_running_loop()
        self._ways.clear()
        held, self._held = self._held, []
        for loop_ref, shared in held:
            loop = loop_ref()
            if loop is here:
                await shared.let_go()
            elif loop is not None and not loop.is_closed():
                asyncio.run_coroutine_threadsafe(shared.let_go(), loop)

    def limits_for(self, endpoint: Endpoint) -> Limits:
        """The limits given, or the defaults for this address."""
        if self._limits is not None:
            return self._limits
        return Limits(first_seconds=None) if is_loopback(endpoint.base_url) else Limits()

    def endpoint_for(self, request: ModelRequest) -> Endpoint:
        """The endpoint of one call: the provider's with what the request sets for itself.

        Raises
        ------
        UsageError
            For a base URL or a key that cannot be one.
        """
        endpoint = self.endpoint
        if request.base_url or request.api_key or request.headers:
            endpoint = replace(
                endpoint,
                base_url=(request.base_url or endpoint.base_url).rstrip("/"),
                api_key=request.api_key or endpoint.api_key,
                headers={**endpoint.headers, **_lower(request.headers)},
            )
            endpoint = _checked(endpoint)
        elif self._checked is None:
            endpoint = self._checked = _checked(endpoint)
        else:
            endpoint = self._checked
        if self._needs_key and not endpoint.api_key and self._transport is None:
            raise AuthFailed(
                describe(endpoint, request, "no key", step=self._key_hint or "give one as api_key"),
                provider=endpoint.name,
                model=request.model.id,
            )
        return endpoint

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        """Deltas of one answer, the last of them `Finished`; see `provider.Provider.stream`."""
        endpoint = self.endpoint_for(request)
        call = self.codec.encode(request, endpoint)
        limits = self.limits_for(endpoint)
        for attempt in itertools.count(1):
            line = self._line(call, request, endpoint, limits)
            watch = line.watch
            try:
                response = await line.open()
                answer = Answer(self.codec.decoder(request, endpoint), request, endpoint)
                # The stream below `aiter_raw`: that only counts bytes, for a tenth of a chunk's whole cost.
                packed = response.headers.get("content-encoding", "identity") != "identity"
                step = (response.aiter_bytes() if packed else response.stream.__aiter__()).__anext__
                idle, silent, patience = limits.idle_seconds, limits.silent_seconds, limits.first_seconds
                events, heard, now, current_task = 0, watch.since, watch.now, asyncio.current_task
                while True:
                    watch.since, watch.task = now(), current_task()  # `begin`, written out
                    try:
                        chunk = await step()
                    except StopAsyncIteration:
                        break
                    except asyncio.CancelledError:
                        if not watch.is_ours():
                            raise
                        if answer.is_complete:
                            break
                        raise TimedOut from None
                    finally:
                        watch.task = None
                    for delta in answer.feed(chunk):
                        # Facts may come twice, words may not.
                        if not line.spoken and type(delta) is not ResponseFacts and type(delta) is not UsageDelta:
                            line.spoken = True
                        yield delta
                    if answer.events != events:
                        events, heard = answer.events, watch.since
                    elif silent is not None and watch.since - heard > silent:
                        raise Silent
                    wanted = DRAIN_SECONDS if answer.is_complete else idle
                    if wanted != patience:
                        watch.limit(wanted)
                        patience = wanted
                for delta in answer.end():
                    line.spoken = True
                    if type(delta) is Finished:  # whoever reads may stop here
                        for work in line.when_good:
                            work()
                    yield delta
                return
            except Exception as exc:
                error = line.fault(exc)
                # Out of the handler before raising: the library's frames hold the headers.
            finally:
                await line.close()
            await self._again(error, attempt, line)

    async def fetch(self, call: HttpCall, request: ModelRequest, *, is_safe: bool = True) -> AsyncIterator[bytes]:
        """Pieces of the answer to a call that is no prompt: a file, a batch, a list.

        Parameters
        ----------
        call : HttpCall
        request : ModelRequest
            Names the model for messages, and the endpoint.
        is_safe : bool
            The call may be made twice. Else it is tried again only when the service said that it did nothing.

        Raises
        ------
        ProviderError
            As `stream`.
        """
        endpoint = self.endpoint_for(request)
        limits = self.limits_for(endpoint)
        for attempt in itertools.count(1):
            line = self._line(call, request, endpoint, limits)
            try:
                pieces = (await line.open()).aiter_bytes()
                line.watch.limit(limits.idle_seconds)
                while (piece := await line.watch.wait(anext(pieces, None))) is not None:
                    line.spoken = True
                    yield piece
                return
            except Exception as exc:
                error = line.fault(exc)
            finally:
                await line.close()
            did_nothing = getattr(error, "status", None) in (429, 503, 529)
            await self._again(error, attempt, line, is_safe=is_safe or did_nothing)

    def _line(self, call: HttpCall, request: ModelRequest, endpoint: Endpoint, limits: Limits) -> Line:
        return Line(
            call,
            request,
            endpoint,
            limits,
            codec=self.codec,
            reach=self._shared,
            library=self.network.library,
            key_hint=self._key_hint,
            lacks_key=self._needs_key and not endpoint.api_key,
        )

    @staticmethod
    async def _again(error: Exception, attempt: int, line: Line, *, is_safe: bool = True) -> None:
        """Wait before the next attempt, or raise `error` when there is to be none."""
        limits = line.limits
        wait = wait_seconds(error, attempt, limits)
        if line.spoken or not is_safe or attempt > limits.max_retries or wait is None:
            raise error
        listener = retry_listener.get()
        if listener is not None:
            listener(
                RetryNotice(
                    attempt=attempt,
                    max_attempts=limits.max_retries + 1,
                    delay_seconds=wait,
                    error=error.message if isinstance(error, ProviderError) else str(error),
                    code=getattr(error, "code", ""),
                )
            )
        await asyncio.sleep(wait)

    def _shared(self, url: str) -> SharedClients:
        loop = asyncio.get_running_loop()
        way = (id(loop), urlsplit(url)[:2])
        known = self._ways.get(way)
        if known is not None:
            return known
        shared = clients_for(
            self.network,
            secure=way[1][0] == "https",  # in small letters, however it was written
            loopback=is_loopback(url),
            transport=self._transport,
        )
        if not any(held is shared for _, held in self._held):
            shared.holders += 1
            self._held.append((weakref.ref(loop), shared))
        self._ways[way] = shared
        return shared


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    """One spelling, so that a header given by a person replaces ours and does not stand beside it."""
    for name, value in headers.items():
        if not (isinstance(name, str) and isinstance(value, str)):
            raise UsageError(f"a header is text, got {type(value).__name__} for {name!r}")
    return {name.lower(): value for name, value in headers.items()}


def _checked(endpoint: Endpoint) -> Endpoint:
    """The endpoint with a key and an address that can be ones."""
    key = endpoint.api_key.strip()
    if key != endpoint.api_key:
        endpoint = replace(endpoint, api_key=key)
    if not (key.isascii() and key.isprintable()):
        raise UsageError(f"the key for {endpoint.name} holds a character that no key holds; copy it again")
    keys.remember(key, f"{endpoint.name} key")
    try:
        parts = urlsplit(endpoint.base_url)
        parts.port  # noqa: B018  # it is read here, and may be none
    except ValueError as exc:
        raise UsageError(f"base_url {endpoint.base_url!r} is no address ({exc})") from exc
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"base_url must begin with http:// or https://, got {endpoint.base_url!r}")
    return endpoint
