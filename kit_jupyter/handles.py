"""What a caller holds of a turn that runs by itself: its handle, and the promise that it stops."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Generator
from typing import Any

from kit_jupyter.house import TurnResult
from kit_jupyter.loop import Desk, Running

__all__ = ["Handle", "Stopping"]


class Stopping:
    """What `Kit.abort` gives: await it, or call `wait`, to know that the turn has ended."""

    def __init__(self, future: concurrent.futures.Future[Any]) -> None:
        self._future = future

    def __await__(self) -> Generator[Any, None, None]:
        if not self._future.done():
            yield from asyncio.wait([asyncio.wrap_future(self._future)]).__await__()

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Block until the turn has ended; True if it has."""
        return bool(concurrent.futures.wait([self._future], timeout_seconds).done)


class Handle:
    """A detached turn. Any thread.

    Attributes
    ----------
    turn_id : str
    future : concurrent.futures.Future of TurnResult
    """

    def __init__(
        self, turn_id: str, running: Running[TurnResult], desk: Desk, abort: Callable[[str], Stopping]
    ) -> None:
        self._running = running
        self._desk = desk
        self._abort = abort
        self.turn_id = turn_id

    @property
    def future(self) -> concurrent.futures.Future[TurnResult]:
        """Done when the turn has ended."""
        return self._running.future

    def __await__(self) -> Generator[Any, None, TurnResult]:
        return self._desk.serve(self._running).__await__()

    def result(self) -> TurnResult:
        """Block until the turn has ended, serving its jobs on this thread."""
        return self._desk.serve_blocking(self._running)

    def abort(self) -> Stopping:
        """Stop this turn, if it is the one that runs."""
        return self._abort(self.turn_id)
