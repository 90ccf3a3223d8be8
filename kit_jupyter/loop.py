"""The engine thread, and the way back from it to the thread that owns the user's objects.

Theory of operation
-------------------
One daemon thread, ``kit-loop``, runs one asyncio loop for the whole process: turns, sessions and
sockets live there, user code never does. A caller hands a coroutine to the engine (`Engine.start`)
and waits at a `Desk`: while it waits it serves the jobs that the engine posts there (a tool that
must run in the user's thread). A caller under a running loop awaits `Desk.serve`; a plain script
blocks in `Desk.serve_blocking`; both serve the same queue, so a sync call works in a cell and in a
script. A desk that nobody serves can be given to the kernel's own loop (`Desk.attach_loop`), or,
with no kernel, is served by one worker thread.

User code runs one piece at a time: jobs of one loop pass a turnstile; a turn that user code itself
started inside a job does not wait for it.

A job can be interrupted (`Desk.interrupt`): a coroutine is cancelled, synchronous code gets a
`KeyboardInterrupt`: on the main thread by SIGINT, which also ends a blocking system call, elsewhere
by an asynchronous exception. A SIGINT handler can tell with `is_job_on` whether the interrupted
frame is user code.

Only the standard library is used here.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import ctypes
import inspect
import os
import queue
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from types import FrameType
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

__all__ = ["Desk", "Engine", "Job", "Running", "current_desk", "engine", "is_job_on", "wait"]

T = TypeVar("T")


class Running(Generic[T]):
    """A coroutine that runs on the engine.

    Attributes
    ----------
    future : concurrent.futures.Future
        Its result; done only when the coroutine has really ended, a cancelled one included.
    """

    def __init__(self) -> None:
        self.future: concurrent.futures.Future[T] = concurrent.futures.Future()
        self.future.set_running_or_notify_cancel()  # so that a stray cancel() cannot part it from the task
        self.task: asyncio.Task[T] | None = None
        self._cancelled = False

    def cancel(self) -> None:
        """Ask the coroutine to end. Any thread."""
        engine.call(self._cancel_here)

    def _cancel_here(self) -> None:
        self._cancelled = True
        if self.task is not None:
            self.task.cancel()

    def _begin(self, coro: Coroutine[Any, Any, T]) -> None:
        self.task = engine.loop.create_task(coro)
        self.task.add_done_callback(self._ended)
        if self._cancelled:
            self.task.cancel()

    def _ended(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self.future.set_exception(asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(task.result())


class Engine:
    """One asyncio loop on one daemon thread; started on first use, and again in a forked process."""

    def __init__(self) -> None:
        self._forget()
        if hasattr(os, "register_at_fork"):
            # A fork copies no thread, and maybe a lock that is held: the child begins without them.
            os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The engine's loop; starts the thread when needed. Any thread."""
        loop = self._loop
        if loop is not None:
            return loop
        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                ready = threading.Event()
                self._thread = threading.Thread(target=self._run, args=(loop, ready), name="kit-loop", daemon=True)
                self._thread.start()
                ready.wait()
                self._loop = loop
            return self._loop

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop, ready: threading.Event) -> None:
        asyncio.set_event_loop(loop)
        loop.call_soon(ready.set)
        while True:
            try:
                loop.run_forever()
            except (KeyboardInterrupt, SystemExit):
                # asyncio lets these two through a task and out of the loop; the task holds its error already,
                # and all other turns live on this thread.
                continue

    @property
    def is_here(self) -> bool:
        """True on the engine's own thread."""
        return threading.current_thread() is self._thread

    def start(self, coro: Coroutine[Any, Any, T], desk: Desk | None = None) -> Running[T]:
        """Run `coro` on the engine, in a copy of the caller's context, with `desk` as its `current_desk`.

        Any thread.
        """
        running: Running[T] = Running()
        context = contextvars.copy_context()
        if desk is not None:
            context.run(_desk.set, desk)
        self.loop.call_soon_threadsafe(running._begin, coro, context=context)
        return running

    def call(self, fn: Callable[..., object], *args: object) -> None:
        """Call `fn` on the engine soon. Any thread."""
        self.loop.call_soon_threadsafe(fn, *args)


engine = Engine()

_desk: contextvars.ContextVar[Desk | None] = contextvars.ContextVar("kit_desk", default=None)
_inside_job: contextvars.ContextVar[bool] = contextvars.ContextVar("kit_inside_job", default=False)
_turnstiles: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


def current_desk() -> Desk | None:
    """The desk of the turn that runs in this context, if any."""
    return _desk.get()


class Job(Generic[T]):
    """One piece of user code on its way to the user's thread; `future` holds what came of it."""

    def __init__(self, fn: Callable[..., T | Awaitable[T]], args: tuple[Any, ...]) -> None:
        self.future: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._fn = fn
        self._args = args
        self._thread: int | None = None  # set while synchronous code runs
        self._task: asyncio.Task[Any] | None = None
        self._left: object = None  # what the synchronous part left to await
        self._rest: Awaitable[None] | None = None  # and what is to be awaited for it
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._interrupted = False

    def run(self) -> Awaitable[None] | None:
        """Run the synchronous part here; the rest, if any, is returned to be awaited."""
        if not self.future.set_running_or_notify_cancel():
            return None
        try:
            value = run_job(self)
        except BaseException as exc:  # carried to the engine, KeyboardInterrupt and SystemExit too
            self.future.set_exception(exc)
            return None
        if not inspect.isawaitable(value):
            self.future.set_result(value)
            return None
        self._left = value
        self._rest = self._finish(value)
        return self._rest

    def give_up(self) -> None:
        """An interrupt hit it before its first step, where nobody awaits it: whoever waits for it must be told."""
        if self._rest is not None and not self.future.done():
            self.drop(self._rest)

    def drop(self, waiting: Awaitable[None]) -> None:
        """What `run` returned was cancelled before its first step: nothing of it has run, and nothing will."""
        for unrun in (waiting, self._left):
            close = getattr(unrun, "close", None)
            if close is not None:
                close()
        self.future.set_exception(asyncio.CancelledError())

    async def _finish(self, value: Awaitable[T]) -> None:
        task = asyncio.ensure_future(value)
        with self._lock:
            self._task, self._loop = task, asyncio.get_running_loop()
            if self._interrupted:
                task.cancel()
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task])
            done = task.result() if not task.cancelled() and task.exception() is None else None
            if done is not None and getattr(done, "by_person", False):
                self.future.set_result(done)
            else:
                self.future.set_exception(asyncio.CancelledError())
            raise
        if task.cancelled():
            self.future.set_exception(asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(task.result())

    @property
    def was_interrupted(self) -> bool:
        """True when its result says (``by_person``) that Ctrl-C ended it; the wait should end too."""
        done = self.future.done() and not self.future.cancelled() and self.future.exception() is None
        return done and bool(getattr(self.future.result(), "by_person", False))

    def interrupt(self) -> bool:
        """Stop it: drop it, cancel its coroutine, or raise `KeyboardInterrupt` in its code. Any thread.

        Returns
        -------
        bool
            False when there was nothing left to stop.
        """
        if self.future.cancel():
            return True
        with self._lock:
            self._interrupted = True
            if self.future.done():
                return False
            if self._task is not None and self._loop is not None:
                self._loop.call_soon_threadsafe(self._task.cancel)
                return True
            ident = self._thread
            if ident is None:
                return False
            if ident == threading.main_thread().ident and hasattr(signal, "pthread_kill"):
                signal.pthread_kill(ident, signal.SIGINT)
            else:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(KeyboardInterrupt))
            return True


def run_job(job: Job[T]) -> T | Awaitable[T]:
    """Call a job's function; this frame marks user code for `is_job_on`."""
    with job._lock:
        job._thread = threading.get_ident()
        stopped = job._interrupted
    try:
        if stopped:
            raise KeyboardInterrupt
        return job._fn(*job._args)
    finally:
        with job._lock:
            job._thread = None


def is_job_on(frame: FrameType | None) -> bool:
    """True if `frame` or a caller of it is user code of a job: for SIGINT handlers."""
    while frame is not None:
        if frame.f_code is run_job.__code__:
            return True
        frame = frame.f_back
    return False


class Desk:
    """Where a waiting caller takes jobs from the engine.

    Parameters
    ----------
    loop : asyncio loop or None
        A loop on the user's thread that takes jobs while nobody waits (the kernel's own).
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._jobs: queue.SimpleQueue[Job[Any] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._wakers: list[Callable[[], None]] = []
        self._idle_loop: asyncio.AbstractEventLoop | None = None
        self._idle_context: contextvars.Context | None = None
        self._draining = False
        self._worker: threading.Thread | None = None
        if loop is not None:
            self.attach_loop(loop)

    def attach_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let `loop` take jobs while nobody waits here, in the present context. Any thread."""
        self._idle_loop, self._idle_context = loop, contextvars.copy_context()
        self._kick()

    def post(self, fn: Callable[..., T | Awaitable[T]], *args: Any) -> Job[T]:
        """Run ``fn(*args)`` on the caller's thread; an awaitable result is awaited there. Any thread."""
        job: Job[T] = Job(fn, args)
        self._jobs.put(job)
        self._kick()
        return job

    async def run(self, fn: Callable[..., T | Awaitable[T]], *args: Any) -> T:
        """As `post`, awaited on the engine. Cancelling it interrupts the code and waits until it has ended."""
        job = self.post(fn, *args)
        try:
            return await asyncio.wrap_future(job.future)
        except asyncio.CancelledError:
            if not job.future.done():
                await self._stop(job)
            raise

    @staticmethod
    async def _stop(job: Job[Any]) -> None:
        # Code may catch an interrupt or be deep in C: ask again, with patience, but never wait for ever.
        ended = asyncio.wrap_future(job.future)
        for pause in (0.2, 0.3, 0.5, 1.0, 1.0, 2.0):
            job.interrupt()
            done, _ = await asyncio.wait([ended], timeout=pause)
            if done:
                break
        if ended.done() and not ended.cancelled():
            ended.exception()  # seen: an interrupted job's KeyboardInterrupt is what was asked for

    def _kick(self) -> None:
        with self._lock:
            if self._wakers:
                for waker in self._wakers:
                    waker()
                return
            if self._jobs.empty():
                return
            loop, context = self._idle_loop, self._idle_context
            if loop is not None and not loop.is_closed():
                loop.call_soon_threadsafe(lambda: loop.create_task(self._drain(), context=context))
            elif self._worker is None:
                # Nobody waits and there is no kernel: a detached turn in a script.
                self._worker = threading.Thread(target=self._work, name="kit-user", daemon=True)
                self._worker.start()

    def _work(self) -> None:
        # A caller who has just started a turn and is about to wait for it serves its jobs itself.
        time.sleep(0.1)
        while True:
            with self._lock:
                if self._wakers:
                    self._worker = None
                    return
            try:
                job = self._jobs.get(timeout=1.0)
            except queue.Empty:
                with self._lock:
                    if self._jobs.empty():
                        self._worker = None
                        return
                continue
            with self._lock:
                if self._wakers:  # somebody waits now: it is theirs
                    self._worker = None
                    self._jobs.put(job)
                    for waker in self._wakers:
                        waker()
                    return
            _run_here(job)

    async def _drain(self) -> None:
        if self._draining:
            return
        self._draining = True
        try:
            while not self._jobs.empty():
                try:
                    job = self._jobs.get_nowait()
                except queue.Empty:
                    return
                if job is None:
                    continue
                if _inside_job.get():
                    await self._pass(job)
                else:
                    loop = asyncio.get_running_loop()
                    async with _turnstiles.setdefault(loop, asyncio.Lock()):
                        await self._pass(job)
        finally:
            self._draining = False

    @staticmethod
    async def _pass(job: Job[Any]) -> None:
        token = _inside_job.set(True)
        try:
            waiting = job.run()
            if waiting is not None:
                await waiting
        finally:
            _inside_job.reset(token)

    def _take_one(self, loop: asyncio.AbstractEventLoop) -> asyncio.Task[None] | None:
        """Run the next job here and now, without a task; what of it is left to await comes back as one."""
        turnstile = _turnstiles.setdefault(loop, asyncio.Lock())
        inside = _inside_job.get()
        if turnstile.locked() and not inside:
            return loop.create_task(self._drain())
        try:
            job = self._jobs.get_nowait()
        except queue.Empty:
            return None
        if job is None:
            return None
        context = contextvars.copy_context()
        context.run(_inside_job.set, True)
        waiting = context.run(job.run)
        if waiting is None:
            return None
        self._draining = True
        rest = loop.create_task(self._rest(waiting, None if inside else turnstile), context=context)

        def over(_: object) -> None:
            self._draining = False
            if not job.future.done():
                job.drop(waiting)

        rest.add_done_callback(over)
        return rest

    @staticmethod
    async def _rest(waiting: Awaitable[None], turnstile: asyncio.Lock | None) -> None:
        if turnstile is None:
            await waiting
            return
        async with turnstile:
            await waiting

    async def serve(self, running: Running[T]) -> T:
        """Wait for `running` under the running loop, taking jobs meanwhile.

        Cancelling this wait cancels `running` and ends when that has ended.
        """
        loop = asyncio.get_running_loop()
        wake = asyncio.Event()

        def waker() -> None:
            try:
                loop.call_soon_threadsafe(wake.set)
            except RuntimeError:  # the caller's loop was closed meanwhile: nobody is left to wake
                pass

        with self._lock:
            self._wakers.append(waker)
        running.future.add_done_callback(lambda _: waker())
        cancelled: asyncio.CancelledError | None = None
        try:
            while not running.future.done():
                wake.clear()
                if not self._jobs.empty() and not self._draining:
                    rest = self._take_one(loop)
                    if rest is None:
                        continue
                    # Apart from this wait: a job that will not end must not keep a turn that has ended.
                    rest.add_done_callback(lambda _: wake.set())
                if running.future.done():
                    break
                try:
                    await wake.wait()
                except asyncio.CancelledError as exc:
                    cancelled = exc
                    running.cancel()
        finally:
            with self._lock:
                self._wakers.remove(waker)
            self._kick()
        if cancelled is not None:
            raise cancelled
        return running.future.result()

    def serve_blocking(self, running: Running[T]) -> T:
        """Wait for `running` on this thread, taking jobs meanwhile.

        `KeyboardInterrupt` cancels it, waits until it has ended, and is raised again; a second one
        does not wait.
        """
        try:
            return self._serve_blocking(running)
        except KeyboardInterrupt:
            running.cancel()  # it may have come before the wait had begun, and then nobody has told it yet
            raise

    def _serve_blocking(self, running: Running[T]) -> T:
        def waker() -> None:
            self._jobs.put(None)

        with self._lock:
            self._wakers.append(waker)
        interrupted: KeyboardInterrupt | None = None
        job: Job[Any] | None = None
        try:
            running.future.add_done_callback(lambda _: waker())
            while not running.future.done():
                try:
                    # With a time-out, so that an interrupt is seen on every platform.
                    job = self._jobs.get(timeout=0.25)
                    _run_here(job)
                    if job is not None and job.was_interrupted:
                        raise KeyboardInterrupt
                except queue.Empty:
                    continue
                except KeyboardInterrupt as exc:
                    if interrupted is not None:
                        raise
                    interrupted = exc
                    running.cancel()
                    if job is not None:
                        job.give_up()  # after the cancel: or the turn would go on without what this was to give
        finally:
            with self._lock:
                self._wakers.remove(waker)
            self._kick()
        if interrupted is not None:
            raise interrupted
        return running.future.result()


def _run_here(job: Job[Any] | None) -> None:
    """Run a job on this thread; a coroutine gets a loop of its own, set aside from one that already runs here."""
    if job is None:
        return
    token = _inside_job.set(True)
    try:
        waiting = job.run()
        if waiting is not None:
            outer = asyncio._get_running_loop()
            asyncio._set_running_loop(None)  # the pair is documented for authors of event loops; used only here
            try:
                asyncio.run(_awaited(waiting))
            finally:
                asyncio._set_running_loop(outer)
    finally:
        _inside_job.reset(token)


async def _awaited(value: Awaitable[None]) -> None:
    await value


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
    running: Running[T] | None = None
    try:
        running = engine.start(coro, desk)
        return desk.serve_blocking(running)
    except KeyboardInterrupt:
        if running is not None:
            running.cancel()  # it may have hit between the two
        raise
