"""What a codec is: pure translation between `ModelRequest` and one wire; no I/O, no state of a stream.

Theory of operation
-------------------
``encode`` turns a request into an `HttpCall`. ``decoder`` makes a fresh `Decoder` for one answer:
it is fed framed events (or one whole body) and yields deltas. ``error`` turns a refused answer into
the right class of `ProviderError`. `_wire` owns sockets, framing, time-outs and retries and calls
these three; nothing else does I/O.

Law: the result of a stream does not depend on how its bytes are cut (framing happens before), and
the wire bytes of request *n*'s history are a prefix of request *n+1*'s. Encoded pieces are kept per
`PromptMessage` by identity (`_json.Pieces`), so that a request costs what is new in it.

What all wires share stands beside: ``_json`` (`dumps`, `loads`, `Pieces`) and ``_errors`` (`refusal`
for a refused answer, `said_in_stream` for an error inside a 200 answer, `cut`, `not_json`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from kit_jupyter.deltas import ModelDelta
from kit_jupyter.errors import ProviderError
from kit_jupyter.provider import ModelRequest

__all__ = ["Codec", "Decoder", "Endpoint", "HttpCall", "ServerEvent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where and how a service is reached.

    Parameters
    ----------
    name : str
        Provider name, as before the slash in ``provider/model``.
    base_url : str
        Without a trailing slash.
    api_key : str
        Never shown; may be empty.
    headers : dict
        Added to each request.
    quirks : frozenset of str
        Known differences of a compatible service, named in its registry row.
    """

    name: str
    base_url: str
    api_key: str = field(default="", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    query: Mapping[str, str] = field(default_factory=dict, repr=False)
    quirks: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpCall:
    """One HTTP request, ready to send; `body` is JSON bytes."""

    url: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    method: str = "POST"
    stream: bool = True


class ServerEvent(NamedTuple):
    """One framed event; `name` is the ``event:`` field or empty, `data` the joined ``data:`` lines."""

    name: str
    data: str | bytes


class Decoder(Protocol):
    """Turns one answer into deltas."""

    def feed(self, event: ServerEvent) -> Iterable[ModelDelta]:
        """Deltas of one event; unknown events are kept or passed over, never an error.

        `Finished` may come here when the protocol says that the answer is complete (``[DONE]``,
        ``message_stop``): `_wire` holds it back, waits a moment for the body's end, and calls `end`.
        The last `Finished` counts.

        Raises
        ------
        ProviderError
            An error the service sent inside the stream, or `WireError` for bytes that are not its protocol.
        """
        ...

    def whole(self, body: bytes) -> Iterable[ModelDelta]:
        """Deltas of an answer that came as one JSON body, `Finished` included."""
        ...

    def end(self) -> Iterable[ModelDelta]:
        """The body ended: last deltas with `Finished`.

        Raises
        ------
        WireError
            If the answer was cut.
        """
        ...


class Codec(Protocol):
    """One wire."""

    wire: str

    def encode(self, request: ModelRequest, endpoint: Endpoint) -> HttpCall:
        """The HTTP request.

        Raises
        ------
        UsageError
            If the request holds something this wire cannot carry, named.
        """
        ...

    def decoder(self, request: ModelRequest, endpoint: Endpoint) -> Decoder:
        """A fresh decoder for one answer."""
        ...

    def error(
        self, status: int, headers: Mapping[str, str], body: bytes, request: ModelRequest, endpoint: Endpoint
    ) -> ProviderError:
        """The error that an HTTP answer of 400 or more means, with retry hints read."""
        ...
