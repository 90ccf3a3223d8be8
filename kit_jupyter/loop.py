"""The engine thread, and the way back from it to the thread that owns the user's objects.

Theory of operation
-------------------
One daemon thread, ``kit-loop``, runs one asyncio loop for the whole process: turns, sessions and
sockets live there, user code never does. A caller hands a coroutine to the engine and waits at a
`Desk`: while it waits it serves the jobs that the engine posts there (a tool that must run in the
user's thread). A caller under a running loop awaits `Desk.serve`; a plain script blocks in
`Desk.serve_blocking`; both serve the same queue, so a sync call works in a cell and in a script.
A desk that nobody serves yet can be given to the kernel's own loop (`Desk.attach_loop`), or, with
no kernel, to one worker thread.

Only the standard library is used here.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import os
import queue
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["Desk", "Engine", "current_desk", "engine", "wait"]

T = TypeVar("T")
Job = Callable[[], Any]


class Engine:
    """One asyncio loop on one daemon thread; started on first use, and again after a fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The engine's loop; starts the thread when needed."""
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                ready = threading.Event()
                self._loop, self._pid = asyncio.new_event_loop(), os.getpid()
                thread = threading.Thread(target=self._run, args=(self._loop, ready), name="kit-loop", daemon=True)
                thread.start()
                ready.wait()
            return self._loop

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop, ready: threading.Event) -> None:
        asyncio.set_event_loop(loop)
        loop.call_soon(ready.set)
        loop.run_forever()

    def submit(self, coro: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run `coro` on the engine, in a copy of the caller's context. Any thread.

        Cancelling the returned future cancels the task.
        """
        return asyncio.run_coroutine_threadsafe(coro, self.loop)

    def call(self, fn: Callable[..., object], *args: object) -> None:
        """Call `fn` on the engine soon. Any thread."""
        self.loop.call_soon_threadsafe(fn, *args)

    @property
    def is_here(self) -> bool:
        """True on the engine's own thread."""
        return threading.current_thread().name == "kit-loop"


engine = Engine()

_desk: contextvars.ContextVar[Desk | None] = contextvars.ContextVar("kit_desk", default=None)


def current_desk() -> Desk | None:
    """The desk of the turn that runs in this context, if any."""
    return _desk.get()


class Desk:
    """Where a waiting caller takes jobs from the engine.

    Parameters
    ----------
    loop : asyncio loop or None
        A loop on the user's thread that takes jobs when nobody waits (the kernel's own).
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], Awaitable[None] | None]] = queue.SimpleQueue()
        self._servers = 0
        self._waker: Callable[[], None] | None = None
        self._idle_loop = loop
        self._idle_context = contextvars.copy_context() if loop is not None else None
        self._lock = threading.Lock()
        self._worker: threading.Thread | None = None

    def attach_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let `loop` take jobs while nobody waits here, in the present context."""
        self._idle_loop, self._idle_context = loop, contextvars.copy_context()
        self._kick()

    # -- engine side

    def post(self, fn: Callable[..., T | Awaitable[T]], *args: Any) -> concurrent.futures.Future[T]:
        """Run ``fn(*args)`` on the caller's thread; an awaitable result is awaited there.

        The future holds the value or the exception, `KeyboardInterrupt` and `SystemExit` included.
        Any thread. A job whose future is cancelled before it starts does not run.
        """
        future: concurrent.futures.Future[T] = concurrent.futures.Future()

        def job() -> Awaitable[None] | None:
            if not future.set_running_or_notify_cancel():
                return None
            try:
                value = fn(*args)
            except BaseException as exc:
                future.set_exception(exc)
                return None
            if not isinstance(value, Awaitable):
                future.set_result(value)
                return None
            return _finish(value, future)

        self._jobs.put(job)
        self._kick()
        return future

    def _kick(self) -> None:
        with self._lock:
            if self._servers:
                if self._waker is not None:
                    self._waker()
                return
            loop, context = self._idle_loop, self._idle_context
            if loop is not None and not loop.is_closed():
                loop.call_soon_threadsafe(lambda: loop.create_task(self._drain_async(), context=context))
            elif self._worker is None and not self._jobs.empty():
                # Nobody waits and there is no kernel: a detached turn in a script. One thread, one job at a time.
                self._worker = threading.Thread(target=self._work, name="kit-user", daemon=True)
                self._worker.start()

    def _work(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=1.0)
            except queue.Empty:
                with self._lock:
                    if self._jobs.empty():
                        self._worker = None
                        return
                continue
            waiting = job()
            if waiting is not None:
                asyncio.run(_awaited(waiting))

    async def _drain_async(self) -> None:
        while True:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return
            waiting = job()
            if waiting is not None:
                await waiting

    # -- the caller's side

    async def serve(self, future: concurrent.futures.Future[T]) -> T:
        """Wait for `future` under the running loop, taking jobs meanwhile.

        Cancelling this wait cancels `future` and waits until it has ended.
        """
        loop = asyncio.get_running_loop()
        wake = asyncio.Event()

        def waker() -> None:
            loop.call_soon_threadsafe(wake.set)

        with self._lock:
            self._servers += 1
            self._waker = waker
        future.add_done_callback(lambda _: _quietly(loop, wake.set))
        try:
            while not future.done():
                await self._drain_async()
                if future.done():
                    break
                try:
                    await wake.wait()
                except asyncio.CancelledError:
                    if future.done():
                        raise
                    future.cancel()
                    raise
                wake.clear()
            await self._drain_async()
            return future.result()
        finally:
            with self._lock:
                self._servers -= 1
                self._waker = None
            self._kick()

    def serve_blocking(self, future: concurrent.futures.Future[T]) -> T:
        """Wait for `future` on this thread, taking jobs meanwhile; `KeyboardInterrupt` passes through."""
        nothing: Callable[[], None] = lambda: None  # noqa: E731
        with self._lock:
            self._servers += 1
        future.add_done_callback(lambda _: self._jobs.put(nothing))
        try:
            while not future.done():
                try:
                    # A time-out, so that an interrupt is seen on every platform.
                    job = self._jobs.get(timeout=0.25)
                except queue.Empty:
                    continue
                waiting = job()
                if waiting is not None:
                    _run_here(waiting)
            return future.result()
        finally:
            with self._lock:
                self._servers -= 1


async def _finish(value: Awaitable[T], future: concurrent.futures.Future[T]) -> None:
    try:
        result = await value
    except asyncio.CancelledError as exc:
        future.set_exception(exc)
        raise
    except BaseException as exc:
        future.set_exception(exc)
    else:
        future.set_result(result)


async def _awaited(value: Awaitable[None]) -> None:
    await value


def _run_here(waiting: Awaitable[None]) -> None:
    """Await on this thread: a loop of its own, set aside from one that already runs here."""
    outer = asyncio._get_running_loop()  # documented for event loop implementers: a private pair, used only here
    asyncio._set_running_loop(None)
    try:
        asyncio.run(_awaited(waiting))
    finally:
        asyncio._set_running_loop(outer)


def _quietly(loop: asyncio.AbstractEventLoop, fn: Callable[[], object]) -> None:
    try:
        loop.call_soon_threadsafe(fn)
    except RuntimeError:  # the caller's loop was closed meanwhile: nobody is left to wake
        pass


def submit_with_desk(coro: Coroutine[Any, Any, T], desk: Desk) -> concurrent.futures.Future[T]:
    """Run `coro` on the engine, with `desk` as its `current_desk`."""
    token = _desk.set(desk)
    try:
        return engine.submit(coro)
    finally:
        _desk.reset(token)


def wait(coro: Coroutine[Any, Any, T], desk: Desk | None = None) -> T:
    """Run `coro` on the engine and block this thread until it ends, serving its jobs.

    Works in a cell under a running loop and in a plain script. A `KeyboardInterrupt` cancels it,
    waits until it has closed what it opened, and is raised again.

    Raises
    ------
    RuntimeError
        On the engine's own thread, where blocking would stop everything.
    """
    if engine.is_here:
        coro.close()
        raise RuntimeError("a sync call on the engine thread would wait for itself; await the async one")
    desk = desk or Desk()
    future = submit_with_desk(coro, desk)
    try:
        return desk.serve_blocking(future)
    except KeyboardInterrupt:
        future.cancel()
        raise
