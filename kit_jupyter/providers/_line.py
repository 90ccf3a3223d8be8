"""One try of one call: a connection taken, watched and given back, and a refusal read before any answer is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urljoin, urlsplit

from kit_jupyter.errors import ConnectionFailed
from kit_jupyter.provider import ModelRequest
from kit_jupyter.providers._client import SharedClients, connect_timeout, parsed_url
from kit_jupyter.providers._errors import describe
from kit_jupyter.providers._faults import translated
from kit_jupyter.providers._watch import Limits, Watch
from kit_jupyter.providers.codec import Codec, Endpoint, HttpCall

__all__ = ["Line"]

MAX_ERROR_BYTES = 1024 * 1024
MAX_REDIRECTS = 3


class _Hidden(dict[str, str]):
    """Headers whose values no traceback shows, not even one with locals."""

    def __repr__(self) -> str:
        return f"<headers {', '.join(self)}>"


class Line:
    """One try of `call`; `open` it, read ``response``, and `close` it whatever happened.

    Parameters
    ----------
    call : HttpCall
    request : ModelRequest
        Names the model in messages.
    endpoint, limits : Endpoint, Limits
    codec : Codec
        Reads a refusal.
    reach : callable(url) -> SharedClients
        The way to an address.
    library : str or None
        Of the clients, see `_client.http_library`.
    key_hint : str
        What to do about a missing or wrong key.
    lacks_key : bool
        A key is needed and there is none: only what carries the bytes instead of sockets may go on.

    Attributes
    ----------
    response : response of the library, or None
    spoken : bool
        Something of an answer was handed out, so that the call cannot be made again.
    watch : Watch
    when_good : list of callables
        What a transport that records wants done once the answer has proved to be whole.
    """

    __slots__ = (
        "_clients",
        "_codec",
        "_key_hint",
        "_lacks_key",
        "_library",
        "_number",
        "_reach",
        "call",
        "endpoint",
        "limits",
        "request",
        "response",
        "spoken",
        "watch",
        "when_good",
    )

    def __init__(
        self,
        call: HttpCall,
        request: ModelRequest,
        endpoint: Endpoint,
        limits: Limits,
        *,
        codec: Codec,
        reach: Callable[[str], SharedClients],
        library: str | None,
        key_hint: str,
        lacks_key: bool,
    ) -> None:
        self.call, self.request, self.endpoint, self.limits = call, request, endpoint, limits
        self.response: Any = None
        self.spoken = False
        self.watch = Watch()
        self.when_good: list[Callable[[], None]] = []
        self._codec, self._reach, self._library = codec, reach, library
        self._key_hint, self._lacks_key = key_hint, lacks_key
        self._clients: SharedClients | None = None
        self._number = 0

    async def open(self) -> Any:
        """The response, of status 200, its body not read yet; the first part of all that can go wrong."""
        clients, watch, limits = self._reach(self.call.url), self.watch, self.limits
        self._number, client = clients.take()
        self._clients = clients
        url = self.call.url
        told = {
            "kit_when_good": self.when_good,
            "kit_model": f"{self.endpoint.name}/{self.request.model.id}",
            "kit_lacks_key": self._lacks_key,
        }
        for _ in range(MAX_REDIRECTS + 1):
            sent = client.build_request(
                self.call.method,
                parsed_url(self._library, url),
                headers=_Hidden(self.call.headers),
                content=self.call.body,
                timeout=connect_timeout(self._library, limits.connect_seconds),
                extensions=told,
            )
            watch.limit(limits.first_seconds, soonest=limits.idle_seconds)
            response = await watch.wait(client.send(sent, stream=True))
            try:
                if 200 <= response.status_code < 300:
                    self.response = response
                    return response
                location = response.headers.get("location", "")
                if response.status_code in (301, 302, 303, 307, 308) and location:
                    url = self._redirected(url, location, response.status_code)
                    await response.aclose()
                    continue
                watch.limit(limits.connect_seconds)
                body = await watch.wait(_read_some(response))
                raise self._codec.error(response.status_code, response.headers, body, self.request, self.endpoint)
            except BaseException:
                await response.aclose()
                raise
        error = ConnectionFailed(
            describe(self.endpoint, self.request, f"more than {MAX_REDIRECTS} redirects", step="check base_url"),
            provider=self.endpoint.name,
            model=self.request.model.id,
        )
        error.retryable = False  # they lead round again
        raise error

    async def close(self) -> None:
        """Give the connection back; one whose answer was not read to its end is closed."""
        self.watch.close()
        try:
            if self.response is not None:
                await self.response.aclose()
        finally:
            if self._clients is not None:
                self._clients.give(self._number)

    def fault(self, exc: Exception) -> Exception:
        """Our error for what happened."""
        return translated(
            exc,
            self.request,
            self.endpoint,
            self.limits,
            self.response,
            spoken=self.spoken,
            key_hint=self._key_hint,
            library=self._library,
        )

    def _redirected(self, url: str, location: str, status: int) -> str:
        target = urljoin(url, location)
        here, there = urlsplit(url), urlsplit(target)
        same = (here.scheme, here.hostname, here.port) == (there.scheme, there.hostname, there.port)
        if same and status in (307, 308):
            return target
        where = f"{there.scheme}://{there.netloc.rpartition('@')[2]}{there.path}"
        error = ConnectionFailed(
            describe(
                self.endpoint,
                self.request,
                f"the service redirects to {where}, which is not followed with a key",
                status=status,
                step="if you trust that address, set base_url to it",
            ),
            provider=self.endpoint.name,
            model=self.request.model.id,
            status=status,
        )
        error.retryable = False
        raise error


async def _read_some(response: Any) -> bytes:
    """The body of a refusal, as far as a person would read it."""
    pieces, size = [], 0
    async for piece in response.aiter_bytes():
        pieces.append(piece)
        size += len(piece)
        if size > MAX_ERROR_BYTES:
            break
    return b"".join(pieces)[:MAX_ERROR_BYTES]
