"""The httpx transport that stands in for the network: it answers from a recording, or asks and records."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from kit_jupyter.provider import asking_cell
from kit_jupyter.providers._client import Network, SharedClients, clients_for, http_library, is_loopback
from kit_jupyter.providers.replay.exchange import Exchange, recordable
from kit_jupyter.providers.replay.meaning import normalised
from kit_jupyter.providers.replay.miss import miss
from kit_jupyter.providers.replay.playing import find, recording_of
from kit_jupyter.providers.replay.setting import mode, recording_file

__all__ = ["transport_for"]

_NOT_PASSED_ON = frozenset(("content-encoding", "content-length", "transfer-encoding"))
_KEPT_ERRORS = frozenset((400, 404, 413, 422))  # what the request itself causes; the rest is weather


def transport_for(network: Network | None = None, *, inner: Any = None, how: str | None = None) -> Any:
    """The transport that replays or records; None when replay is off.

    Parameters
    ----------
    network : Network or None
        The way to the service for what must be asked; None takes the environment's.
    inner : httpx transport or None
        Carries what must be asked in place of the network, for example one that starts a server at its first
        request; it is not called as long as the recording answers. Give such a provider any fixed base URL.
    how : str or None
        One of `MODES`; None takes ``KIT_REPLAY``.
    """
    how = how or mode()
    if how == "off":
        return None
    network = network or Network()
    return _transport_class(network.library)(how, network, inner)


@cache
def _transport_class(library: str | None) -> Any:
    httpx = http_library(library)

    class _Body(httpx.AsyncByteStream):  # type: ignore[misc, name-defined]
        """A recorded answer, read by read."""

        def __init__(self, exchange: Exchange) -> None:
            self._exchange = exchange

        async def __aiter__(self) -> AsyncIterator[bytes]:
            for chunk in self._exchange.chunks():
                yield chunk
                await asyncio.sleep(0)  # as the network would: let others run between two reads

    class _Tee(httpx.AsyncByteStream):  # type: ignore[misc, name-defined]
        """A live answer that is kept once it has come to its end."""

        def __init__(self, response: Any, keep: Callable[[list[bytes]], None], give: Callable[[], None]) -> None:
            self._response, self._keep, self._give = response, keep, give

        async def __aiter__(self) -> AsyncIterator[bytes]:
            pieces: list[bytes] = []
            async for chunk in self._response.aiter_bytes():
                pieces.append(chunk)
                yield chunk
            self._keep(pieces)

        async def aclose(self) -> None:
            give, self._give = self._give, _nothing
            give()
            await self._response.aclose()

    class ReplayTransport(httpx.AsyncBaseTransport):  # type: ignore[misc, name-defined]
        """Answers from a recording, or asks and records."""

        def __init__(self, how: str, network: Network, inner: Any) -> None:
            self.how = how
            self._network, self._inner = network, inner
            self._held: list[SharedClients] = []

        def __repr__(self) -> str:
            return f"ReplayTransport({self.how!r}, {str(recording_file())!r})"

        async def handle_async_request(self, request: Any) -> Any:
            asked = _Asked.of(request, await request.aread())
            kept = recording_of()
            if self.how != "record":
                found = find(asked.path, asked.body)
                if found is not None:
                    return httpx.Response(
                        found.status, headers={"content-type": found.content_type}, stream=_Body(found), request=request
                    )
                if self.how == "strict":
                    raise miss(asked.model, asked.path, asked.body)
                if asked.lacks_key:
                    raise miss(asked.model, asked.path, asked.body, why=", and there is no key to ask the service")
            try:
                response, give = await self._ask(request)
            except httpx.ConnectError:
                if self.how == "auto":
                    why = f", and {request.url.host} cannot be reached"
                    raise miss(asked.model, asked.path, asked.body, why=why) from None
                raise
            headers = [(n, v) for n, v in response.headers.multi_items() if n.lower() not in _NOT_PASSED_ON]

            def keep(pieces: list[bytes]) -> None:
                if response.status_code >= 400 and response.status_code not in _KEPT_ERRORS:
                    return
                exchange = asked.answered(response.status_code, response.headers.get("content-type", ""), pieces)
                when_good = request.extensions.get("kit_when_good")
                if response.status_code >= 400 or when_good is None:
                    kept.add(exchange, renew=self.how == "record")
                else:  # an answer that was cut, or is none, is not worth keeping: whoever reads it knows
                    when_good.append(lambda: kept.add(exchange, renew=self.how == "record"))

            return httpx.Response(
                response.status_code, headers=headers, stream=_Tee(response, keep, give), request=request
            )

        async def _ask(self, request: Any) -> tuple[Any, Callable[[], None]]:
            """The service's response, and what to call when it is read."""
            if self._inner is not None:
                response = await self._inner.handle_async_request(request)
                response.request = request
                return response, _nothing
            url = str(request.url)
            shared = clients_for(
                self._network, secure=url.startswith("https:"), loopback=is_loopback(url), transport=None
            )
            if not any(held is shared for held in self._held):
                shared.holders += 1
                self._held.append(shared)
            number, client = shared.take()
            try:
                return await client.send(request, stream=True), partial(shared.give, number)
            except BaseException:
                shared.give(number)
                raise

        async def aclose(self) -> None:
            held, self._held = self._held, []
            for shared in held:
                await shared.let_go()
            if self._inner is not None:
                await self._inner.aclose()

    return ReplayTransport


def _nothing() -> None:
    """What is left to do for a response that no client of ours brought."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request as it is matched and recorded."""

    model: str
    path: str
    body: Any
    lacks_key: bool

    @classmethod
    def of(cls, request: Any, content: bytes) -> _Asked:
        try:
            body: Any = json.loads(content)
        except ValueError:
            body = content.decode("utf-8", "replace")
        model = (
            request.extensions.get("kit_model") or (body.get("model") if isinstance(body, dict) else "") or "a model"
        )
        path = re.sub(r"^.*?(?=/(?:chat/completions|responses|messages|models/|publishers/))", "", request.url.path)
        return cls(
            str(model), path or request.url.path, normalised(body), bool(request.extensions.get("kit_lacks_key"))
        )

    def answered(self, status: int, content_type: str, pieces: list[bytes]) -> Exchange:
        """This request with its answer, made readable and private."""
        return Exchange(
            model=self.model,
            path=self.path,
            request=self.body,
            status=status,
            content_type=content_type.partition(";")[0] or "application/json",
            body=recordable(pieces),
            cell=asking_cell.get(),
        )
