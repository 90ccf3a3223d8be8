"""The HTTP client: which library, which certificates, and one shared client for each way to a service.

Theory of operation
-------------------
The library is named in one place, `http_library`: httpx2 where it is installed, else httpx, which has the same
API. Its own transport is taken where it was named, and for proxies and HTTP/2; all else goes over `_sockets`, at
half the cost. One TLS context serves the process, and one `SharedClients` each event loop and way; providers that
reach their service the same way share its connections, the last to close ends it.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import importlib.util
import ipaddress
import os
import ssl
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from kit_jupyter.errors import UsageError

__all__ = [
    "Network",
    "SharedClients",
    "ca_bundle",
    "clients_for",
    "connect_timeout",
    "http_library",
    "is_loopback",
    "parsed_url",
    "tls_context",
]


IDLE_SECONDS = 30.0  # a connection that nobody used for so long is not used again


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
        None takes ``KIT_HTTP2``; see `_wire` for what it costs.
    library : {"httpx", "httpx2"} or None
        Go through this one's own transport; None takes ``KIT_HTTP``, else our own where it will do.
    """

    proxy: str | None = field(default=None, repr=False)
    ca_bundle: str | None = None
    http2: bool | None = None
    library: str | None = None


@functools.lru_cache(maxsize=8)
def tls_context(bundle: str | None, http2: bool = False) -> ssl.SSLContext:
    """The process's TLS context: the system's certificates, certifi's, and a company's own. 20 ms, once.

    Parameters
    ----------
    bundle : str or None
        File or folder of certificates to trust besides.
    http2 : bool
        For connections that offer HTTP/2: the library writes the offer into the context.

    Raises
    ------
    UsageError
        If the bundle cannot be read.
    """
    context = ssl.create_default_context()
    if not http2:  # else the library says so itself; some gateways refuse who offers nothing
        context.set_alpn_protocols(["http/1.1"])
    if importlib.util.find_spec("certifi"):
        context.load_verify_locations(cafile=importlib.import_module("certifi").where())
    if bundle:
        try:
            place = {"capath": bundle} if os.path.isdir(bundle) else {"cafile": bundle}
            context.load_verify_locations(**place)
        except (OSError, ssl.SSLError) as exc:
            raise UsageError(f"the CA bundle {bundle!r} cannot be read ({exc}); see KIT_CA_BUNDLE") from exc
    return context


def ca_bundle(network: Network) -> str | None:
    """The file of certificates to trust besides the system's, from the network's facts or the environment."""
    if network.ca_bundle:
        return network.ca_bundle
    return next(
        (os.environ[n] for n in ("KIT_CA_BUNDLE", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE") if os.environ.get(n)), None
    )


class SharedClients:
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


_clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[object, ...], SharedClients]]
_clients = weakref.WeakKeyDictionary()


def clients_for(network: Network, *, secure: bool, loopback: bool, transport: Any) -> SharedClients:
    """The shared clients for this way, on the running loop; made at first use."""
    bundle = ca_bundle(network) if secure else None
    direct = loopback and network.proxy is None
    http2 = (
        network.http2 if network.http2 is not None else os.environ.get("KIT_HTTP2", "") in ("1", "on", "true", "yes")
    )
    key = (os.getpid(), network, secure, bundle, direct, http2, id(transport) if transport is not None else None)
    of_loop = _clients.setdefault(asyncio.get_running_loop(), {})
    shared = of_loop.get(key)
    if shared is None:
        httpx = http_library(network.library)
        http2 = http2 and importlib.util.find_spec("h2") is not None
        # A plain http address needs no certificates, and reading them is 20 of the 30 ms that a client costs.
        verify = tls_context(bundle, http2) if secure or not direct else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        capacity = 512
        make: Callable[[], Any]
        if transport is None and not http2 and not _is_chosen(network) and (direct or not _may_need_proxy(network)):
            from kit_jupyter.providers._sockets import socket_transport  # it brings h11, which nobody needs sooner

            make = functools.partial(socket_transport(httpx), verify)
        else:
            if transport is None and httpx.__name__ == "httpx":
                capacity = 10
            make = functools.partial(
                _library_client,
                httpx,
                verify=verify,
                http2=http2,
                proxy=network.proxy,
                trust_env=not direct,
                follow_redirects=False,
                limits=httpx.Limits(
                    max_connections=capacity, max_keepalive_connections=capacity, keepalive_expiry=IDLE_SECONDS
                ),
                timeout=None,
                transport=transport,
            )
        shared = of_loop[key] = SharedClients(make, capacity, functools.partial(of_loop.pop, key, None))
    return shared


def _library_client(library: ModuleType, **options: Any) -> Any:
    """A client of the library; it looks at the proxies at once."""
    try:
        return library.AsyncClient(**options)
    except ImportError:
        raise UsageError("a SOCKS proxy is set, which needs socksio; pip install socksio") from None
    except (ValueError, library.InvalidURL) as exc:  # its text bears no password
        raise UsageError(
            f"the proxy that is set cannot be one ({exc}); check HTTPS_PROXY, HTTP_PROXY and ALL_PROXY"
        ) from None


def _is_chosen(network: Network) -> bool:
    """A library was named, for its own transport."""
    return bool(network.library or os.environ.get("KIT_HTTP"))


def _may_need_proxy(network: Network) -> bool:
    """A proxy is set for some address; which, the library knows."""
    # Not those for FTP and the like, nor ``no``, which is how NO_PROXY comes.
    return network.proxy is not None or not {"http", "https", "all"}.isdisjoint(getproxies())


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


@functools.cache
def connect_timeout(library: str | None, connect_seconds: float) -> Any:
    """Only connecting is limited by the library; `_watch` sees to the rest."""
    return http_library(library).Timeout(None, connect=connect_seconds)


@functools.lru_cache(maxsize=256)
def parsed_url(library: str | None, url: str) -> Any:
    """The library's form of an address: reading one anew is a third of what a request costs to build."""
    return http_library(library).URL(url)
