"""The one door to the net: any codec made a provider, over one shared HTTP client.

Theory of operation
-------------------
`WireProvider` owns what codecs must not: sockets, time-outs, retries. For each call it encodes, sends,
looks at the status before it reads events, and pumps bytes through `_framing.Answer` into deltas. It
holds no state of a stream; all of it lives in the generator, whose closing closes the socket.

The client class is named in one place, `http_library`: httpx2 where it is installed, else httpx, which
has the same API. One TLS context serves the process, and one client (`_Shared`) each event loop; providers
that reach their service the same way share its connections, the last to close ends it.

A failed call is tried again only while nothing of an answer has been handed out, and only where the
service or the line may recover. Every hint of the service is honoured up to a minute; a longer one is
raised at once as `RateLimited` with ``retry_after_seconds``. `provider.retry_listener` is told of each wait.

Stop must stop: closing the generator closes the connection. That is why HTTP/1.1 is the default. With
HTTP/2 the libraries neither reset the stream nor close the line, the service writes on, and tokens are
paid for; ``http2=True`` (or ``KIT_HTTP2=1``) takes it all the same, where ``h2`` is installed.

A redirect is followed only within one scheme, host and port: a key never goes elsewhere. Errors are
made new here, without the library's own as cause: its frames and texts hold headers, and so the key.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import importlib.util
import ipaddress
import os
import random
import ssl
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, TypeVar
from urllib.parse import urljoin, urlsplit

from kit_jupyter.errors import AuthFailed, ConnectionFailed, KitError, ProviderError, UsageError, WireError
from kit_jupyter.messages import Finished, ModelDelta, ResponseFacts, UsageDelta
from kit_jupyter.provider import ModelInfo, ModelRequest, RetryNotice, retry_listener
from kit_jupyter.providers import keys
from kit_jupyter.providers._errors import describe, request_id
from kit_jupyter.providers._framing import Answer
from kit_jupyter.providers.codec import Codec, Endpoint, HttpCall

__all__ = ["Limits", "Network", "WireProvider", "http_library", "is_loopback", "warm_up"]

T = TypeVar("T")

MAX_ERROR_BYTES = 1024 * 1024
MAX_REDIRECTS = 3
DRAIN_SECONDS = 1.0  # how long the end of a body may come after the end of its answer


@functools.cache
def http_library(name: str | None = None) -> ModuleType:
    """The HTTP client library: httpx2 where it is installed, else httpx; the only place that names it.

    Parameters
    ----------
    name : {"httpx", "httpx2"} or None
        Take this one; None looks at ``KIT_HTTP``, then at what is installed.

    Notes
    -----
    httpx2 is the maintained successor with the same API and a pool that costs 9 times less CPU at 50
    connections (extra ``fast``).
    """
    name = name or os.environ.get("KIT_HTTP") or None
    if name not in (None, "httpx", "httpx2"):
        raise UsageError(f"KIT_HTTP is {name!r}; known: httpx, httpx2")
    if name is None:
        name = "httpx2" if importlib.util.find_spec("httpx2") else "httpx"
    try:
        return importlib.import_module(name)
    except ImportError as exc:
        raise UsageError(f"{name} is not installed; pip install {name}") from exc


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long and how often.

    Parameters
    ----------
    connect_seconds : float
        Until the connection stands, TLS included.
    first_seconds : float or None
        Until the answer's first byte. None waits for ever, and is what servers on this machine get:
        a small machine may read a long prompt for many minutes.
    idle_seconds : float or None
        Between two pieces of an answer.
    silent_seconds : float or None
        Without a word while the line is kept open by comments.
    max_retries : int
        Attempts after the first.
    base_seconds, cap_seconds : float
        First wait, doubled each time with jitter; the longest wait, a service's own wish included.
    """

    connect_seconds: float = 15.0
    first_seconds: float | None = 600.0
    idle_seconds: float | None = 300.0
    silent_seconds: float | None = 900.0
    max_retries: int = 3
    base_seconds: float = 0.5
    cap_seconds: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The way to a service; providers with an equal one share a client.

    Parameters
    ----------
    proxy : str or None
        URL of a proxy; None takes ``HTTPS_PROXY``, ``HTTP_PROXY`` and ``NO_PROXY`` from the environment.
        Servers on this machine are always reached directly, unless a proxy is given here.
    ca_bundle : str or None
        File of certificates to trust besides the system's; None takes ``KIT_CA_BUNDLE``, ``SSL_CERT_FILE``
        or ``REQUESTS_CA_BUNDLE``.
    http2 : bool or None
        None takes ``KIT_HTTP2``; see the module's text for what it costs.
    library : {"httpx", "httpx2"} or None
    """

    proxy: str | None = field(default=None, repr=False)
    ca_bundle: str | None = None
    http2: bool | None = None
    library: str | None = None


# ---------------------------------------------------------------- one client


@functools.lru_cache(maxsize=8)
def tls_context(ca_bundle: str | None) -> ssl.SSLContext:
    """The process's TLS context: the system's certificates, certifi's, and a company's own. 20 ms, once.

    Raises
    ------
    UsageError
        If the bundle cannot be read.
    """
    context = ssl.create_default_context()
    if importlib.util.find_spec("certifi"):
        context.load_verify_locations(cafile=importlib.import_module("certifi").where())
    if ca_bundle:
        try:
            place = {"capath": ca_bundle} if os.path.isdir(ca_bundle) else {"cafile": ca_bundle}
            context.load_verify_locations(**place)
        except (OSError, ssl.SSLError) as exc:
            raise UsageError(f"the CA bundle {ca_bundle!r} cannot be read ({exc}); see KIT_CA_BUNDLE") from exc
    return context


def warm_up() -> None:
    """Import the client library and read the certificates on a thread, before the first call needs them.

    A third of a second of the first answer, spent while a cell is still being parsed. Any thread; no network.
    """
    threading.Thread(target=_warm, name="kit-warm-up", daemon=True).start()


def _warm() -> None:
    try:
        http_library(None)
        tls_context(_ca_bundle(Network()))
    except UsageError:
        pass  # the first call says it, to whoever asked


def _ca_bundle(network: Network) -> str | None:
    if network.ca_bundle:
        return network.ca_bundle
    return next(
        (os.environ[n] for n in ("KIT_CA_BUNDLE", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE") if os.environ.get(n)), None
    )


class _Shared:
    """The clients of one way to a service, and how many providers hold them.

    httpx looks at all its open connections for each request, so its cost grows with their square: many
    prompts at once are spread over clients of ten connections each. httpx2 does not, and has one client.
    """

    __slots__ = ("_busy", "_capacity", "_forget", "_make", "clients", "holders")

    def __init__(self, make: Callable[[], Any], capacity: int, forget: Callable[[], object]) -> None:
        self._make, self._capacity, self._forget = make, capacity, forget
        self.clients: list[Any] = []
        self._busy: list[int] = []
        self.holders = 0

    def take(self) -> tuple[int, Any]:
        """A client with room for one more request, and its number for `give`."""
        number = next((at for at, busy in enumerate(self._busy) if busy < self._capacity), len(self.clients))
        if number == len(self.clients):
            self.clients.append(self._make())
            self._busy.append(0)
        self._busy[number] += 1
        return number, self.clients[number]

    def give(self, number: int) -> None:
        """The request taken with this number has ended."""
        if number < len(self._busy):  # else all was closed meanwhile
            self._busy[number] -= 1

    async def let_go(self) -> None:
        """One holder less; the last one closes all connections. On the clients' own loop."""
        self.holders -= 1
        if self.holders <= 0:
            self._forget()
            clients, self.clients, self._busy = self.clients, [], []
            for client in clients:
                await client.aclose()


_clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[object, ...], _Shared]]
_clients = weakref.WeakKeyDictionary()


def _client_for(network: Network, *, secure: bool, loopback: bool, transport: Any) -> _Shared:
    """The shared clients for this way, on the running loop; made at first use."""
    bundle = _ca_bundle(network) if secure else None
    direct = loopback and network.proxy is None
    http2 = (
        network.http2 if network.http2 is not None else os.environ.get("KIT_HTTP2", "") in ("1", "on", "true", "yes")
    )
    key = (os.getpid(), network, secure, bundle, direct, http2, id(transport) if transport is not None else None)
    of_loop = _clients.setdefault(asyncio.get_running_loop(), {})
    shared = of_loop.get(key)
    if shared is None:
        httpx = http_library(network.library)
        # A plain http address needs no certificates, and reading them is 20 of the 30 ms that a client costs.
        verify = tls_context(bundle) if secure or not direct else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        capacity = 10 if httpx.__name__ == "httpx" and transport is None else 512
        make = functools.partial(
            httpx.AsyncClient,
            verify=verify,
            http2=http2 and importlib.util.find_spec("h2") is not None,
            proxy=network.proxy,
            trust_env=not direct,
            follow_redirects=False,
            limits=httpx.Limits(max_connections=capacity, max_keepalive_connections=capacity, keepalive_expiry=30.0),
            timeout=None,
            transport=transport,
        )
        shared = of_loop[key] = _Shared(make, capacity, functools.partial(of_loop.pop, key, None))
    return shared


@functools.lru_cache(maxsize=256)
def is_loopback(url: str) -> bool:
    """True for an address on this machine.

    Examples
    --------
    >>> is_loopback("http://localhost:11434/v1"), is_loopback("http://[::1]:80"), is_loopback("https://api.openai.com")
    (True, True, False)
    """
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or host.endswith(".localhost") or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Hidden(dict[str, str]):
    """Headers whose values no traceback shows, not even one with locals."""

    def __repr__(self) -> str:
        return f"<headers {', '.join(self)}>"


class _TimedOut(Exception):
    """Our own limit has passed."""


class _Silent(Exception):
    """The line is kept open, but nothing is said on it."""


class _Watch:
    """One timer for all reads of a stream, re-armed only when it fires: one per read costs more than the read."""

    __slots__ = ("_fired", "_handle", "_limit", "_loop", "now", "since", "task")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time
        self._handle: asyncio.TimerHandle | None = None
        self._limit: float | None = None
        self._fired = False
        self.since = self.now()
        self.task: asyncio.Task[Any] | None = None
        """Who waits; None while nobody does."""

    def limit(self, seconds: float | None, *, soonest: float | None = None) -> None:
        """How long one wait may take from now on; `soonest` is the shortest limit that will follow.

        A timer that is due before the limit is left as it is: it looks again when it fires.
        """
        self._limit = seconds
        if seconds is None:
            return
        due = self.now() + min(seconds, soonest or seconds)
        if self._handle is not None:
            if self._handle.when() <= due:
                return
            self._handle.cancel()
        self._handle = self._loop.call_at(due, self._check)

    def _check(self) -> None:
        self._handle = None
        if self._limit is None:
            return
        waited = self.now() - self.since if self.task is not None else 0.0
        if waited < self._limit - 0.001:
            self._handle = self._loop.call_later(self._limit - waited, self._check)
            return
        self._fired = True
        assert self.task is not None
        self.task.cancel()

    def begin(self) -> None:
        """A wait begins in the present task; set `task` to None after it."""
        self.since = self.now()
        self.task = asyncio.current_task()

    def is_ours(self) -> bool:
        """Whether a cancellation that came just now was this timer's; it is taken back then."""
        if not self._fired or self.task is None:
            return False
        # A stop from outside that came at the same time wins: it is counted twice then.
        return self.task.uncancel() <= 0

    async def wait(self, awaitable: Awaitable[T]) -> T:
        """The value, or `_TimedOut`."""
        self.begin()
        try:
            return await awaitable
        except asyncio.CancelledError:
            if self.is_ours():
                raise _TimedOut from None
            raise
        finally:
            self.task = None

    def close(self) -> None:
        """Stop the timer."""
        if self._handle is not None:
            self._handle.cancel()


# ---------------------------------------------------------------- the provider


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
        network: Network = Network(),
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
        self._ways: dict[tuple[int, tuple[str, str]], _Shared] = {}
        self._held: list[tuple[weakref.ref[asyncio.AbstractEventLoop], _Shared]] = []

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
        attempts = limits.max_retries + 1
        for attempt in range(1, attempts + 1):
            spoken = False
            watch = _Watch()
            response: Any = None
            shared: _Shared | None = None
            try:
                when_good: list[Callable[[], None]] = []
                way = self._shared(call.url)
                number, client = way.take()
                shared = way
                response = await self._open(client, call, request, endpoint, limits, watch, when_good)
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
                        raise _TimedOut from None
                    finally:
                        watch.task = None
                    for delta in answer.feed(chunk):
                        # Facts may come twice, words may not.
                        if not spoken and type(delta) is not ResponseFacts and type(delta) is not UsageDelta:
                            spoken = True
                        yield delta
                    if answer.events != events:
                        events, heard = answer.events, watch.since
                    elif silent is not None and watch.since - heard > silent:
                        raise _Silent
                    wanted = DRAIN_SECONDS if answer.is_complete else idle
                    if wanted != patience:
                        watch.limit(wanted)
                        patience = wanted
                for delta in answer.end():
                    spoken = True
                    if type(delta) is Finished:  # whoever reads may stop here
                        for work in when_good:
                            work()
                    yield delta
                return
            except Exception as exc:
                error = self._translate(exc, request, endpoint, limits, response, spoken=spoken)
                # Out of the handler before raising: the library's frames hold the headers.
            finally:
                watch.close()
                try:
                    if response is not None:
                        await response.aclose()
                finally:
                    if shared is not None:
                        shared.give(number)
            wait = _wait_seconds(error, attempt, limits)
            if spoken or attempt == attempts or wait is None:
                raise error
            listener = retry_listener.get()
            if listener is not None:
                listener(
                    RetryNotice(
                        attempt=attempt,
                        max_attempts=attempts,
                        delay_seconds=wait,
                        error=error.message if isinstance(error, ProviderError) else str(error),
                        code=getattr(error, "code", ""),
                    )
                )
            await asyncio.sleep(wait)

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
        attempts = limits.max_retries + 1
        for attempt in range(1, attempts + 1):
            spoken = False
            watch = _Watch()
            response: Any = None
            way = self._shared(call.url)
            number, client = way.take()
            try:
                response = await self._open(client, call, request, endpoint, limits, watch, [])
                pieces = response.aiter_bytes()
                watch.limit(limits.idle_seconds)
                while (piece := await watch.wait(anext(pieces, None))) is not None:
                    spoken = True
                    yield piece
                return
            except Exception as exc:
                error = self._translate(exc, request, endpoint, limits, response, spoken=spoken)
            finally:
                watch.close()
                try:
                    if response is not None:
                        await response.aclose()
                finally:
                    way.give(number)
            refused = getattr(error, "status", None) in (429, 503, 529)
            wait = _wait_seconds(error, attempt, limits) if is_safe or refused else None
            if spoken or attempt == attempts or wait is None:
                raise error
            await asyncio.sleep(wait)

    # -- opening

    async def _open(
        self,
        client: Any,
        call: HttpCall,
        request: ModelRequest,
        endpoint: Endpoint,
        limits: Limits,
        watch: _Watch,
        when_good: list[Callable[[], None]],
    ) -> Any:
        """A response of 200 whose body has not been read; the first part of all that can go wrong."""
        url = call.url
        # For a transport that records: who was asked, whether the call can go out at all, and what to do
        # once the answer has proved to be whole.
        told = {
            "kit_when_good": when_good,
            "kit_model": f"{endpoint.name}/{request.model.id}",
            "kit_lacks_key": self._needs_key and not endpoint.api_key,
        }
        for _ in range(MAX_REDIRECTS + 1):
            sent = client.build_request(
                call.method,
                _parsed(self.network.library, url),
                headers=_Hidden(call.headers),
                content=call.body,
                timeout=_timeout(self.network.library, limits.connect_seconds),
                extensions=told,
            )
            watch.limit(limits.first_seconds, soonest=limits.idle_seconds)
            response = await watch.wait(client.send(sent, stream=True))
            try:
                if 200 <= response.status_code < 300:
                    return response
                location = response.headers.get("location", "")
                if response.status_code in (301, 302, 303, 307, 308) and location:
                    url = self._redirect(url, location, response.status_code, request, endpoint)
                    await response.aclose()
                    continue
                watch.limit(limits.connect_seconds)
                body = await watch.wait(_read_some(response))
                raise self.codec.error(response.status_code, response.headers, body, request, endpoint)
            except BaseException:
                await response.aclose()
                raise
        raise ConnectionFailed(
            describe(endpoint, request, f"more than {MAX_REDIRECTS} redirects", step="check base_url"),
            provider=endpoint.name,
            model=request.model.id,
        )

    def _redirect(self, url: str, location: str, status: int, request: ModelRequest, endpoint: Endpoint) -> str:
        target = urljoin(url, location)
        here, there = urlsplit(url), urlsplit(target)
        same = (here.scheme, here.hostname, here.port) == (there.scheme, there.hostname, there.port)
        if same and status in (307, 308):
            return target
        where = f"{there.scheme}://{there.netloc.rpartition('@')[2]}{there.path}"
        error = ConnectionFailed(
            describe(
                endpoint,
                request,
                f"the service redirects to {where}, which is not followed with a key",
                status=status,
                step="if you trust that address, set base_url to it",
            ),
            provider=endpoint.name,
            model=request.model.id,
            status=status,
        )
        error.retryable = False
        raise error

    def _shared(self, url: str) -> _Shared:
        loop = asyncio.get_running_loop()
        way = (id(loop), urlsplit(url)[:2])
        known = self._ways.get(way)
        if known is not None:
            return known
        shared = _client_for(
            self.network,
            secure=url.startswith("https:"),
            loopback=is_loopback(url),
            transport=self._transport,
        )
        if not any(held is shared for _, held in self._held):
            shared.holders += 1
            self._held.append((weakref.ref(loop), shared))
        self._ways[way] = shared
        return shared

    # -- errors

    def _translate(
        self,
        exc: Exception,
        request: ModelRequest,
        endpoint: Endpoint,
        limits: Limits,
        response: Any,
        *,
        spoken: bool,
    ) -> Exception:
        """Our error for whatever happened, with its facts filled in and without foreign frames."""
        if isinstance(exc, ProviderError):
            if isinstance(exc, AuthFailed) and self._key_hint and self._key_hint not in exc.message:
                exc.args = (f"{exc.message} ({self._key_hint})",)
            headers: Mapping[str, str] = {} if response is None else response.headers
            exc.provider = exc.provider or endpoint.name
            exc.model = exc.model or request.model.id
            exc.request_id = exc.request_id or request_id(headers)
            if exc.status is None and response is not None:
                exc.status = response.status_code
            return exc
        if isinstance(exc, KitError):
            return exc
        status = None if response is None else response.status_code
        where = urlsplit(endpoint.base_url)
        host = where.hostname or endpoint.base_url
        httpx = http_library(self.network.library)
        cls: type[ProviderError] = ConnectionFailed
        retryable = True
        reason, step = keys.mask(str(exc), endpoint.api_key), "check the network"
        if isinstance(exc, _TimedOut) and response is None:
            words = f"no answer from {host} within {limits.first_seconds:g} s"
            step = "try again, or allow more time (first_seconds)"
        elif isinstance(exc, _TimedOut):
            words = f"the answer from {host} stood still for {limits.idle_seconds:g} s"
            step = "run it again"
        elif isinstance(exc, _Silent):
            words = f"{host} kept the line open but said nothing for {limits.silent_seconds:g} s"
            step = "run it again"
        elif isinstance(exc, httpx.ConnectTimeout | httpx.PoolTimeout):
            words = f"no connection to {host} within {limits.connect_seconds:g} s"
            step = "check the network, the proxy and base_url"
        elif isinstance(exc, httpx.ProxyError):
            words, step = (
                f"the proxy refused the way to {host} ({reason})",
                "check HTTPS_PROXY, HTTP_PROXY and NO_PROXY",
            )
        elif isinstance(exc, httpx.ConnectError):
            words, step = _no_connection(host, where.port, reason, endpoint)
            retryable = False  # a wrong name, port or certificate does not mend itself within seconds
        elif isinstance(exc, httpx.UnsupportedProtocol | httpx.InvalidURL):
            return UsageError(f"base_url {endpoint.base_url!r} cannot be reached ({reason})")
        elif isinstance(exc, httpx.LocalProtocolError | UnicodeEncodeError):
            # Its text shows the header's value, which may be the key.
            return UsageError(
                f"a header for {endpoint.name} holds a character that no header may hold; check key and headers"
            )
        elif isinstance(exc, httpx.DecodingError):
            cls, words, step = WireError, f"the answer from {host} is compressed wrongly", "check a proxy on the way"
        elif isinstance(exc, httpx.HTTPError | OSError):
            when = "in the middle of the answer" if spoken else "before an answer came"
            words, step = f"the connection to {host} broke {when} ({type(exc).__name__})", "run it again"
        else:
            # A shape the decoder did not expect: whose bytes they are decides whose fault it is called.
            cls, words = (
                WireError,
                f"the answer from {host} has a shape nobody knows ({type(exc).__name__}: {reason[:120]})",
            )
            step = "please report it, with kit.last_request"
        error = cls(
            describe(
                endpoint,
                request,
                words,
                status=status,
                request_id=None if response is None else request_id(response.headers),
                step=step,
            ),
            provider=endpoint.name,
            model=request.model.id,
            status=status,
            request_id=None if response is None else request_id(response.headers),
        )
        if cls.retryable and not retryable:
            error.retryable = False
        if cls is WireError:
            error.__cause__ = exc
        return error


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    """One spelling, so that a header given by a person replaces ours and does not stand beside it."""
    return {name.lower(): value for name, value in headers.items()}


def _checked(endpoint: Endpoint) -> Endpoint:
    """The endpoint with a key and an address that can be ones."""
    key = endpoint.api_key.strip()
    if key != endpoint.api_key:
        endpoint = replace(endpoint, api_key=key)
    if not (key.isascii() and key.isprintable()):
        raise UsageError(f"the key for {endpoint.name} holds a character that no key holds; copy it again")
    keys.remember(key, f"{endpoint.name} key")
    parts = urlsplit(endpoint.base_url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"base_url must begin with http:// or https://, got {endpoint.base_url!r}")
    return endpoint


@functools.cache
def _timeout(library: str | None, connect_seconds: float) -> Any:
    """Only connecting is limited by the library; `_Watch` sees to the rest."""
    return http_library(library).Timeout(None, connect=connect_seconds)


@functools.lru_cache(maxsize=256)
def _parsed(library: str | None, url: str) -> Any:
    """The library's form of an address: reading one anew is a third of what a request costs to build."""
    return http_library(library).URL(url)


def _no_connection(host: str, port: int | None, reason: str, endpoint: Endpoint) -> tuple[str, str]:
    at = f"{host}:{port}" if port else host
    low = reason.lower()
    if "certificate" in low or "ssl" in low or "tls" in low:
        return (
            f"no trusted connection to {at} ({reason})",
            "if a company gateway signs with its own certificate, name its file in KIT_CA_BUNDLE",
        )
    if "name or service" in low or "getaddrinfo" in low or "nodename" in low or "name resolution" in low:
        return f"the name {host} is not known ({reason})", "check base_url and the network"
    if is_loopback(endpoint.base_url):
        return f"nothing listens at {at}", "start the server, or check base_url"
    return f"no connection to {at} ({reason})", "check base_url, the network and the proxy"


async def _read_some(response: Any) -> bytes:
    """The body of a refusal, as far as a person would read it."""
    pieces, size = [], 0
    async for piece in response.aiter_bytes():
        pieces.append(piece)
        size += len(piece)
        if size > MAX_ERROR_BYTES:
            break
    return b"".join(pieces)[:MAX_ERROR_BYTES]


def _wait_seconds(error: Exception, attempt: int, limits: Limits) -> float | None:
    """How long to wait before the next attempt; None when there should be none."""
    if not isinstance(error, ProviderError) or not error.retryable:
        return None
    asked = error.retry_after_seconds
    if asked is not None and asked > limits.cap_seconds:
        return None
    backoff = min(limits.base_seconds * 2.0 ** (attempt - 1), limits.cap_seconds)
    jitter = random.uniform(0.5, 1.0)
    if asked is None:
        return float(backoff * jitter)
    # Never earlier than asked for, and not all at the same moment.
    return max(asked + backoff * 0.25 * jitter, backoff * jitter if asked == 0 else 0.0)
