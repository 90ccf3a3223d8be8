"""How long an answer may take, and the one timer that sees to it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, TypeVar

__all__ = ["Limits", "Silent", "TimedOut", "Watch"]

T = TypeVar("T")


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


class TimedOut(Exception):
    """Our own limit has passed."""


class Silent(Exception):
    """The line is kept open, but nothing is said on it."""


class Watch:
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
        """The value, or `TimedOut`."""
        self.begin()
        try:
            return await awaitable
        except asyncio.CancelledError:
            if self.is_ours():
                raise TimedOut from None
            raise
        finally:
            self.task = None

    def close(self) -> None:
        """Stop the timer."""
        if self._handle is not None:
            self._handle.cancel()
