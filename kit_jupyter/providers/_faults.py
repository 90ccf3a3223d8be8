"""What went wrong on the way to a service, as our errors: made new, without the library's own as cause.

Its frames and texts hold headers, and so the key.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from kit_jupyter.errors import AuthFailed, ConnectionFailed, KitError, ProviderError, UsageError, WireError
from kit_jupyter.provider import ModelRequest
from kit_jupyter.providers import keys
from kit_jupyter.providers._client import http_library, is_loopback
from kit_jupyter.providers._errors import describe, request_id
from kit_jupyter.providers._watch import Limits, Silent, TimedOut
from kit_jupyter.providers.codec import Endpoint

__all__ = ["translated", "wait_seconds"]


def translated(
    exc: Exception,
    request: ModelRequest,
    endpoint: Endpoint,
    limits: Limits,
    response: Any,
    *,
    spoken: bool,
    key_hint: str,
    library: str | None,
) -> Exception:
    """Our error for whatever happened, with its facts filled in and without foreign frames."""
    while isinstance(exc, ExceptionGroup) and len(exc.exceptions) == 1:  # of anyio, when a name has several addresses
        exc = exc.exceptions[0]
    if isinstance(exc, ProviderError):
        if isinstance(exc, AuthFailed) and key_hint and key_hint not in exc.message:
            exc.args = (f"{exc.message} ({key_hint})",)
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
    httpx = http_library(library)
    cls: type[ProviderError] = ConnectionFailed
    retryable = True
    reason, step = keys.mask(str(exc), endpoint.api_key), "check the network"
    if isinstance(exc, TimedOut) and response is None:
        words = f"no answer from {host} within {limits.first_seconds:g} s"
        step = "try again, or allow more time (first_seconds)"
    elif isinstance(exc, TimedOut):
        words = f"the answer from {host} stood still for {limits.idle_seconds:g} s"
        step = "run it again"
    elif isinstance(exc, Silent):
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


def _no_connection(host: str, port: int | None, reason: str, endpoint: Endpoint) -> tuple[str, str]:
    at = f"{host}:{port}" if port else host
    low = reason.lower()
    if "certificate" in low or "ssl" in low or "tls" in low:
        return (
            f"no trusted connection to {at} ({reason})",
            "if a company gateway signs with its own certificate, name its file in KIT_CA_BUNDLE",
        )
    if any(words in low for words in ("name or service", "getaddrinfo", "nodename", "name resolution", "idna")):
        return f"the name {host} is not known ({reason})", "check base_url and the network"
    if is_loopback(endpoint.base_url):
        return f"nothing listens at {at}", "start the server, or check base_url"
    return f"no connection to {at} ({reason})", "check base_url, the network and the proxy"


def wait_seconds(error: Exception, attempt: int, limits: Limits) -> float | None:
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
