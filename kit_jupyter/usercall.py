"""One run of user code on the user's thread, which the engine can stop.

Theory of operation
-------------------
The engine hands a `UserCall` to the user's thread (`ToolContext.on_user_thread`) and awaits it.
Whatever the code does, raises `SystemExit` or recurses without end, comes back as a value (`Done`),
so nothing can tear down the engine's loop or the kernel's. When the engine's wait is cancelled (a
stop, a time-out), the code is stopped *before* the cancel goes on: code that awaits by cancelling
its task, code that computes or blocks by a `KeyboardInterrupt` in its thread. So no work stays
behind the user's back.

On the main thread the interrupt is a real SIGINT, since only that ends a blocking call such as
``time.sleep``. Our handler raises only while this call's frames are on the stack, swallows a signal
of ours that came too late, and passes everyone else's on to the handler that was there before. On
another thread the exception is set asynchronously and is seen at the next bytecode.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import ctypes
import importlib
import inspect
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any, Literal, Protocol

__all__ = ["Done", "UserCall", "UserThread", "shielded"]

GRACE_SECONDS = 1.5
# The bare functions: those of `signal` look each handler up in an enum, and one that is not there (asyncio's own)
# becomes an error that holds its repr, with the task and its frames in it. A tenth of a millisecond, thrice a call.
_bare: Any = importlib.import_module("_signal")


@dataclass(frozen=True, slots=True)
class Done:
    """How the code ended.

    Parameters
    ----------
    value : object
        What it returned.
    error : BaseException or None
        What it raised.
    interrupted : bool
        A person or the engine stopped it; its own ``raise KeyboardInterrupt`` does not count.
    by_person : bool
        It was a person's SIGINT.
    """

    value: Any = None
    error: BaseException | None = None
    interrupted: bool = False
    by_person: bool = False


class UserThread(Protocol):
    """The way to the user's thread; a `ToolContext` is one."""

    async def on_user_thread(self, fn: Callable[..., Any], *args: Any) -> Any: ...


class UserCall:
    """Runs ``fn()`` on the user's thread; an awaitable result is awaited there.

    Parameters
    ----------
    fn : callable
        Without arguments.

    Notes
    -----
    Use it once: ``done = await UserCall(fn).run(context)``. A call that was stopped before it
    began does not begin.
    """

    def __init__(self, fn: Callable[[], Any]) -> None:
        self._fn = fn
        self._lock = threading.Lock()
        # between: the synchronous part is over, the awaiting has not begun
        self._state: Literal["waiting", "running", "between", "ended"] = "waiting"
        self._ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = 0
        self._began = False
        self._on_main = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Done] | None = None
        self._unawaited: Any = None
        self._pending = False  # an interrupt of ours is on its way
        self._sent_async = False  # one was sent to a thread that is not the main one
        self._stopped = False  # the engine asked for a stop
        self._met_sigint = False
        self._signalled = False  # a person's SIGINT came while our frames were on the stack

    # -- the user's thread

    def __call__(self) -> Done | Awaitable[Done]:
        """Run; called by the user's thread."""
        try:
            return self._taken()
        except KeyboardInterrupt as exc:
            # A person's interrupt, before our handler was in place. Left as it is, the call would count as running
            # for ever, and the engine would go on to interrupt whatever runs on this thread next.
            return self._close(Done(error=exc))

    def _taken(self) -> Done | Awaitable[Done]:
        with self._lock:
            if self._state != "waiting":
                return Done(interrupted=True)
            self._state = "running"
            self._began = True
            self._thread = threading.get_ident()
            self._on_main = threading.current_thread() is threading.main_thread()
        _enter(self)
        try:
            done = _guard(self, self._fn)
        except KeyboardInterrupt as exc:  # it hit between our own lines
            done = Done(error=exc)
        if done.error is None and inspect.isawaitable(done.value):
            # Whoever is to await may be cancelled before the first step, and then nothing of it runs:
            # so nothing may be left open here.
            self._unawaited = done.value
            self._drain(then="between")
            return self._await(done.value)
        return self._close(done)

    async def _await(self, value: Awaitable[Any]) -> Done:
        with self._lock:
            self._state = "running"
        self._unawaited = None
        _enter(self)
        self._loop = asyncio.get_running_loop()
        if self._stopped or self._signalled:  # a task cancelled before its first step would not close anything
            close = getattr(value, "close", None)
            if close is not None:
                close()
            return self._close(Done(error=KeyboardInterrupt()))
        self._task = asyncio.ensure_future(_guard_async(self, value))
        try:
            return self._close(await asyncio.shield(self._task))
        except asyncio.CancelledError:
            self._task.cancel()
            self._stopped = True
            await asyncio.wait([self._task])
            done = Done(error=asyncio.CancelledError()) if self._task.cancelled() else self._task.result()
            if self._met_sigint and isinstance(done.error, asyncio.CancelledError):
                self._signalled = True
                return self._close(Done(error=KeyboardInterrupt()))
            self._close(done)
            raise

    def _drain(self, *, then: Literal["between", "ended"]) -> None:
        """Our part on this thread is over: take what is still on its way, put the handler back."""
        while True:
            try:
                with self._lock:
                    self._state = then  # from here on the engine sends no more
                # A signal that is on its way must still meet our handler, not the one we put back.
                deadline = time.monotonic() + 0.5
                while self._pending and self._on_main and time.monotonic() < deadline:
                    time.sleep(0.001)
                self._pending = False
                break
            except KeyboardInterrupt:
                continue
        if self._sent_async:
            # Nothing more is sent from here on; what is still on its way arrives in this loop. It is not taken
            # back with a NULL: that leaves the interpreter's flag set for ever, and CPython 3.11 then hangs in
            # the next call of a traced thread (coverage, a debugger).
            self._sent_async = False
            try:
                for _ in range(100):
                    pass
            except KeyboardInterrupt:
                pass
        _leave(self)

    def _close(self, done: Done) -> Done:
        while self._state != "ended" or self in _active:
            try:
                self._drain(then="ended")
            except KeyboardInterrupt as exc:
                done = Done(done.value, done.error or exc)
        if not self._ended.done():
            self._ended.set_result(None)
        stopped = self._stopped or self._signalled
        cut = isinstance(done.error, KeyboardInterrupt | asyncio.CancelledError)
        return Done(done.value, done.error, interrupted=stopped and cut, by_person=self._signalled and cut)

    def _never_awaited(self, there: object) -> None:
        """The job is over; if its coroutine was dropped before it began, so are we."""
        with self._lock:
            if self._state != "between":
                return
            self._state = "ended"
        close = getattr(self._unawaited, "close", None)
        if close is not None:
            close()
        self._ended.set_result(None)

    @property
    def was_stopped(self) -> bool:
        """True when the engine or a person's SIGINT broke into it, even if the code made a result of that."""
        return self._stopped or self._signalled

    # -- the engine

    async def run(self, context: UserThread) -> Done:
        """Run it there and wait; a cancelled wait stops the code first, then is cancelled."""
        post = getattr(context, "post_to_user_thread", None)
        if post is not None:
            return await self._run_posted(post(self))
        there = asyncio.ensure_future(context.on_user_thread(self))
        there.add_done_callback(self._never_awaited)
        try:
            done = await asyncio.shield(there)
        except asyncio.CancelledError:
            # Stopped by us, gently and then firmly; only a call still in the queue, or one that
            # will not end, is left to the queue's own cancel.
            ended = await self.stop()
            if not self._began:
                # If it is just being taken up, it returns at once; the queue's cancel would send a signal that
                # comes too late for it and hits whatever runs next.
                await _settled(there, 0.5)
            if not ended or not self._began:
                there.cancel()
            await asyncio.wait([there])
            raise
        return done if isinstance(done, Done) else Done(interrupted=True)

    async def _run_posted(self, job: concurrent.futures.Future[Any]) -> Done:
        """As `run`, for a call that is in the queue: no task stands between it and us."""
        job.add_done_callback(self._never_awaited)
        try:
            done = await asyncio.wrap_future(job)  # cancelled with us: that drops the job only while it is queued
        except asyncio.CancelledError:
            ended = await self.stop()
            there = asyncio.wrap_future(job)
            if not self._began:
                await _settled(there, 0.5)
            if not ended or not self._began:
                job.cancel()
            if ended:
                await _settled(there, GRACE_SECONDS)
            raise
        return done if isinstance(done, Done) else Done(interrupted=True)

    async def stop(self, *, patience_seconds: float = 10.0) -> bool:
        """End the code: cancel, then interrupt, again and again; False when it would not end.

        Code that holds the interpreter in one long call of a compiled library, or that catches
        every interrupt, cannot be ended from outside; that is the one case of False.
        """
        self._stopped = True
        with self._lock:
            if self._state == "waiting":
                self._state = "ended"
                self._ended.set_result(None)
                return True
        ended = asyncio.wrap_future(self._ended)
        deadline = time.monotonic() + patience_seconds
        loop, task = self._loop, self._task
        if self._signalled:  # a person has broken into it already: let it clean up
            await _settled(ended, GRACE_SECONDS)
        elif loop is not None and task is not None:
            loop.call_soon_threadsafe(task.cancel)  # first the gentle way; it may be blocking inside
            await _settled(ended, 0.25)
        while not self._ended.done() and time.monotonic() < deadline:
            loop, task = self._loop, self._task
            if loop is not None and task is not None:  # it may be awaiting, where no signal reaches it
                loop.call_soon_threadsafe(task.cancel)
            self.interrupt()
            # Long enough for `finally` blocks: a second interrupt would break those.
            grace = time.monotonic() + GRACE_SECONDS
            while not self._ended.done() and time.monotonic() < grace:
                await _settled(ended, 0.05)
                if self._pending:
                    # A signal between two bytecodes is not noticed by the blocking call that follows.
                    self.interrupt()
        return self._ended.done()

    def interrupt(self) -> None:
        """Raise `KeyboardInterrupt` in the code if it runs right now. Any thread."""
        self._stopped = True
        with self._lock:
            if self._state != "running":
                return  # over, or not yet awaiting: then the cancel of its task ends it
            if self._on_main:
                self._pending = True
                if hasattr(signal, "pthread_kill"):
                    signal.pthread_kill(self._thread, signal.SIGINT)
                else:  # Windows: no signal to a thread; seen when the running call returns
                    signal.raise_signal(signal.SIGINT)
            else:
                self._sent_async = True
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self._thread), ctypes.py_object(KeyboardInterrupt)
                )


async def _settled(ended: asyncio.Future[Any], seconds: float) -> None:
    """Wait for the end or the time; a cancel that comes twice changes nothing, our caller has it already."""
    until = time.monotonic() + seconds
    while not ended.done() and (left := until - time.monotonic()) > 0:
        try:
            await asyncio.wait([ended], timeout=left)
        except asyncio.CancelledError:
            continue


def _guard(call: UserCall, fn: Callable[[], Any]) -> Done:
    """Run; its frame on the stack means that user code is running now."""
    try:
        return Done(fn())
    except BaseException as exc:
        return Done(error=exc)


async def _guard_async(call: UserCall, value: Awaitable[Any]) -> Done:
    try:
        return Done(await value)
    except BaseException as exc:  # cancelled included: this task is ours and ends here
        return Done(error=exc)


# ---------------------------------------------------------------- SIGINT, main thread only

_active: list[UserCall] = []
#: Who laid our handler over which other; a turn inside a tool lays one more.
_laid: list[tuple[UserCall, Any]] = []
_GUARDS = (_guard.__code__, _guard_async.__code__)
_shields = 0


@contextlib.contextmanager
def shielded() -> Iterator[None]:
    """Within this, on the main thread, no interrupt is raised: for clean-up that must be done whole, and is short."""
    global _shields
    on_main = threading.current_thread() is threading.main_thread()
    if on_main:
        _shields += 1
    try:
        yield
    finally:
        if on_main:
            _shields -= 1


def _enter(call: UserCall) -> None:
    if not call._on_main:
        return
    _active.append(call)
    current = _bare.getsignal(signal.SIGINT)
    if current is not _on_sigint:
        _laid.append((call, signal.default_int_handler if current is None else current))
        _bare.signal(signal.SIGINT, _on_sigint)


def _leave(call: UserCall) -> None:
    if call not in _active:
        return
    _active.remove(call)
    for i, (owner, previous) in enumerate(_laid):
        if owner is not call:
            continue
        owners = [known for known, _ in _laid]
        heirs = [other for other in _active if other not in owners]
        if heirs:  # others run beside it under the same handler
            _laid[i] = (heirs[0], previous)
            return
        del _laid[i]
        if _bare.getsignal(signal.SIGINT) is _on_sigint:  # else someone laid theirs over ours; leave it
            _bare.signal(signal.SIGINT, previous)
        return


def _note(on_stack: list[UserCall]) -> None:
    """A person's interrupt: what runs was broken into; what awaits will be cancelled by asyncio's own handler."""
    for call in on_stack:
        call._signalled = True
    for call in _active if not on_stack else ():
        call._met_sigint = call._task is not None


def _on_sigint(signum: int, frame: FrameType | None) -> None:
    on_stack = []
    while frame is not None:
        if frame.f_code in _GUARDS:
            on_stack.append(frame.f_locals["call"])
        frame = frame.f_back
    # One that comes while we are stopping a call is ours, or means the same.
    ours = [call for call in _active if call._pending or call._stopped]
    for call in ours:
        call._pending = False
    if ours:
        if any(call in on_stack for call in ours) and not _shields:
            raise KeyboardInterrupt
        return
    _note(on_stack)
    previous = _laid[-1][1] if _laid else signal.default_int_handler
    if callable(previous):
        if on_stack and _shields and previous is signal.default_int_handler:
            return  # the clean-up goes on; the call is recorded as interrupted
        previous(signum, frame)
        if on_stack and not _shields:  # one that only notes the signal (asyncio's) would leave blocking code running
            raise KeyboardInterrupt
