"""An answer over HTTP is read up to a limit."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

__all__ = ["limiter"]


def limiter(limit: int) -> Callable[[Any], Coroutine[Any, Any, None]]:
    """A response hook of an httpx client that refuses an answer of more than `limit` bytes."""

    async def limit_json(response: Any) -> None:
        # A stream of events has a limit for each event; a JSON answer is read whole.
        if "event-stream" not in response.headers.get("content-type", ""):
            # The client asks for its own kind of stream, which cannot be imported here without naming its package.
            kind = next(cls for cls in type(response.stream).__mro__ if cls.__name__ == "AsyncByteStream")
            response.stream = type("Limited", (_Limited, kind), {})(response.stream, limit)

    return limit_json


class _Limited:
    """Bytes of a response, up to a limit."""

    def __init__(self, stream: Any, limit: int) -> None:
        self._stream = stream
        self._left = self._limit = limit

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            self._left -= len(chunk)
            if self._left < 0:
                raise OSError(f"the answer has more bytes than the limit of {self._limit}; ask for less")
            yield chunk
