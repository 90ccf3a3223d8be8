"""The bus that carries events to observers.

Theory of operation
-------------------
Observers only watch. Each has a queue of its own, in order; a slow or failing one cannot delay,
change or break a turn, nor keep another observer waiting. A sync observer runs on a thread of its
own, which ends when nothing comes for a while; an async one as a task on the engine, so it must not
block. ``inline=True`` is for our own views, which promise to be fast and not to raise.

What a person should know goes to the log (``kit_jupyter``, once a message) when no observer takes it: a script
that observes nothing would never learn that its guest fails.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import itertools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, cast

from kit_jupyter.errors import UsageError
from kit_jupyter.events import EVENT_TYPES, ErrorEvent, Event, Warned

__all__ = ["EventBus", "Observer", "Subscription"]

Observer = Callable[[Any], object]
_LINGER_SECONDS = 5.0
_log = logging.getLogger("kit_jupyter")


class Subscription(AbstractContextManager["Subscription"]):
    """Handle of one observer: call it, or leave its ``with`` block, to end it.

    Safe from any thread.
    """

    def __init__(self, bus: EventBus, fn: Observer, types: tuple[type[Event], ...], *, inline: bool) -> None:
        self._bus = bus
        self._fn = fn
        self._types = types
        self._inline = inline
        self._is_async = inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__)
        self._queue: deque[tuple[Event, contextvars.Context]] = deque()
        self._lock = threading.Lock()
        self._came = threading.Condition(self._lock)
        self._has_worker = False
        self._pid = os.getpid()
        self._open = True
        self._idle = threading.Event()
        self._idle.set()

    def __call__(self) -> None:
        """End the subscription; queued events are not delivered any more."""
        with self._lock:
            self._open = False
            self._queue.clear()
            self._came.notify_all()
        self._bus._remove(self)

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._bus.settle(timeout_seconds=1.0)
        self()

    def _takes(self, event: Event) -> bool:
        return self._open and (not self._types or isinstance(event, self._types))

    def _offer(self, event: Event) -> None:
        # Each event in the context that emitted it, so that a print lands in the cell that runs the turn.
        context = contextvars.copy_context()
        with self._lock:
            self._queue.append((event, context))
            self._idle.clear()
            if self._has_worker and self._pid == os.getpid():
                self._came.notify()
                return
            self._has_worker, self._pid = True, os.getpid()
        if self._is_async:
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:
                # Emitted on some other thread: a loop of its own for this burst.
                self._start(lambda: asyncio.run(self._drain_async()))
            else:
                task = loop.create_task(self._drain_async(), context=context)
                self._bus._tasks.add(task)
                task.add_done_callback(self._bus._tasks.discard)
        else:
            self._start(self._drain)

    @staticmethod
    def _start(fn: Callable[[], None]) -> None:
        # A daemon: an observer that blocks for ever must not keep the process from ending.
        threading.Thread(target=fn, name="kit-observer", daemon=True).start()

    def _next(self, linger_seconds: float) -> tuple[Event, contextvars.Context] | None:
        with self._lock:
            if not self._queue:
                self._idle.set()
                if linger_seconds and self._open:
                    self._came.wait_for(lambda: self._queue or not self._open, linger_seconds)
                if not self._queue:
                    self._has_worker = False
                    return None
            return self._queue.popleft()

    def _drain(self) -> None:
        while (item := self._next(_LINGER_SECONDS)) is not None:
            event, context = item
            context.run(self._call, event)

    async def _drain_async(self) -> None:
        while (item := self._next(0.0)) is not None:
            event, _ = item
            try:
                await cast(Awaitable[object], self._fn(event))
            except Exception as exc:
                self._failed(exc, event)

    def _call(self, event: Event) -> None:
        try:
            self._fn(event)
        except Exception as exc:
            self._failed(exc, event)

    def _failed(self, exc: Exception, event: Event) -> None:
        if isinstance(event, ErrorEvent):
            # An observer that fails on the report of its own failure would go round for ever.
            self._bus._log_unheard(event, but=self)
            return
        name = getattr(self._fn, "__qualname__", repr(self._fn))
        self._bus.emit(
            ErrorEvent(
                f"observer {name} failed on {type(event).__name__}: {type(exc).__name__}: {exc}",
                source=name,
                session_id=event.session_id,
                turn_id=event.turn_id,
                step=event.step,
                seq=self._bus.next_seq(),
                time=time.time(),
            )
        )


class EventBus:
    """Carries events to observers, in order of registration; safe from any thread."""

    def __init__(self) -> None:
        self._subscriptions: tuple[Subscription, ...] = ()
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._logged: set[str] = set()

    @property
    def is_heard(self) -> bool:
        """True when somebody observes."""
        return bool(self._subscriptions)

    def next_seq(self) -> int:
        """The next sequence number."""
        return next(self._numbers)  # one call into C: no other thread comes between

    def subscribe(self, fn: Observer, *types: type[Event], inline: bool = False) -> Subscription:
        """Call `fn` with each event, or with those of `types` only.

        Parameters
        ----------
        fn : callable or async callable of one event
        types : event classes
            None given: all events.
        inline : bool
            Called on the emitting thread, at once: only for code that is fast and blocks on nothing.

        Returns
        -------
        Subscription
            Call it to unsubscribe, or use it in a ``with`` statement.

        Raises
        ------
        UsageError
            If `fn` cannot be called, or a type is none.
        """
        if not callable(fn):
            raise UsageError(f"an observer is a function of one event, got {fn!r}")
        for kind in types:
            if not (isinstance(kind, type) and issubclass(kind, Event)):
                near = f": write {kind} without quotes" if kind in EVENT_TYPES else ""
                raise UsageError(f"events are chosen by their classes, from kit_jupyter.events, got {kind!r}{near}")
        subscription = Subscription(self, fn, types, inline=inline)
        with self._lock:
            self._subscriptions = (*self._subscriptions, subscription)
        return subscription

    def _remove(self, subscription: Subscription) -> None:
        with self._lock:
            self._subscriptions = tuple(s for s in self._subscriptions if s is not subscription)

    def emit(self, event: Event) -> None:
        """Hand one event to every observer; returns at once."""
        for subscription in self._subscriptions:
            # As `_takes` and `_call`, without a call for each: a step of a turn has some twenty events.
            if not subscription._open or (subscription._types and not isinstance(event, subscription._types)):
                continue
            if not subscription._inline:
                subscription._offer(event)
                continue
            try:
                subscription._fn(event)
            except Exception as exc:
                subscription._failed(exc, event)
        if isinstance(event, (Warned, ErrorEvent)):
            self._log_unheard(event)

    def _log_unheard(self, event: Warned | ErrorEvent, but: Subscription | None = None) -> None:
        """Log what no observer, or none besides `but`, is told of; the same words once."""
        if any(one is not but and one._takes(event) for one in self._subscriptions):
            return
        with self._lock:
            if event.message in self._logged:
                return
            self._logged.add(event.message)
        from kit_jupyter.approvers import visible
        from kit_jupyter.masking import mask

        _log.warning("%s", visible(mask(event.message)))

    def settle(self, timeout_seconds: float = 1.0) -> bool:
        """Wait until observers on threads have seen all that was emitted; True if they have."""
        end = time.monotonic() + timeout_seconds
        return all(s._idle.wait(max(0.0, end - time.monotonic())) for s in self._threaded())

    @property
    def has_threaded(self) -> bool:
        """True if an observer runs on worker threads."""
        return any(True for _ in self._threaded())

    def _threaded(self) -> Iterator[Subscription]:
        return (s for s in self._subscriptions if not s._inline and not s._is_async)
