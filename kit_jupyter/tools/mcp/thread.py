"""The one loop thread on which all connections live."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["connections_loop"]

T = TypeVar("T")


class _Loop:
    """One loop on one daemon thread for all connections; started on first use, and again after a fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0

    def submit(self, coro: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                self._loop, self._pid = asyncio.new_event_loop(), os.getpid()
                threading.Thread(target=self._loop.run_forever, name="kit-mcp", daemon=True).start()
            return asyncio.run_coroutine_threadsafe(coro, self._loop)


connections_loop = _Loop()
