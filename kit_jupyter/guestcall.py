"""Calling a guest's function: sync or async, within a time limit, never stopping the engine.

Theory of operation
-------------------
A sync function runs on a daemon thread of ours, in a copy of the caller's context, so one that
sleeps for ever stops neither the engine nor the interpreter's exit. An async one runs as a task on
the running loop and is cancelled when its time is over; one that ignores the cancel is left behind.
Python cannot end a thread: what runs on after its limit is only not waited for any more.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import inspect
import os
import queue
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from kit_jupyter.errors import UsageError

__all__ = ["HOOK_TIMEOUT_SECONDS", "GuestFailed", "GuestTimeout", "call", "call_blocking", "is_async", "limit_seconds"]

HOOK_TIMEOUT_SECONDS: Final = 10.0

T = TypeVar("T")
Job = Callable[[], None]

_idle: list[queue.SimpleQueue[Job]] = []
_lock = threading.Lock()
_left_behind: set[asyncio.Future[Any]] = set()
os.register_at_fork(after_in_child=_idle.clear)  # the threads stayed in the parent


class GuestTimeout(Exception):
    """The guest's function did not return in time."""


class GuestFailed(Exception):
    """The guest tried to end the program (`SystemExit`, `KeyboardInterrupt`); that is only a failed hook."""


def _serve(box: queue.SimpleQueue[Job]) -> None:
    while True:
        box.get()()
        with _lock:
            _idle.append(box)


def _on_thread(fn: Callable[..., T], args: tuple[Any, ...]) -> concurrent.futures.Future[T]:
    future: concurrent.futures.Future[T] = concurrent.futures.Future()
    context = contextvars.copy_context()

    def job() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = context.run(fn, *args)
        except Exception as exc:
            future.set_exception(exc)
        except BaseException as exc:
            future.set_exception(_tamed(exc))
        else:
            future.set_result(result)

    with _lock:
        box = _idle.pop() if _idle else None
    if box is None:
        box = queue.SimpleQueue()
        threading.Thread(target=_serve, args=(box,), name="kit-guest", daemon=True).start()
    box.put(job)
    return future


def _tamed(exc: BaseException) -> GuestFailed:
    failed = GuestFailed(f"it raised {type(exc).__name__}")
    failed.__cause__ = exc
    return failed


async def _awaited(value: Awaitable[T]) -> T:
    try:
        return await value
    except (SystemExit, KeyboardInterrupt) as exc:
        raise _tamed(exc) from exc  # in a task it would end the engine's loop


def is_async(fn: object) -> bool:
    """True for an async function, and for an object whose call is one."""
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__)


async def call(fn: Callable[..., Any], *args: Any, timeout_seconds: float | None) -> Any:
    """The result of ``fn(*args)``, awaited when it is awaitable.

    Raises
    ------
    GuestTimeout
        After `timeout_seconds`; None waits without limit.
    Exception
        Whatever the function raised; `GuestFailed` for `SystemExit`, `KeyboardInterrupt` and a
        cancel that the function made itself.
    """
    loop = asyncio.get_running_loop()
    end = None if timeout_seconds is None else loop.time() + timeout_seconds
    if is_async(fn):
        value: Any = fn(*args)
    else:
        value = await _within(asyncio.wrap_future(_on_thread(fn, args)), end, timeout_seconds)
    if inspect.isawaitable(value):
        value = await _within(asyncio.ensure_future(_awaited(value)), end, timeout_seconds)
    return value


async def _within(future: asyncio.Future[T], end: float | None, limit: float | None) -> T:
    try:
        left = None if end is None else max(0.0, end - asyncio.get_running_loop().time())
        await asyncio.wait({future}, timeout=left)
    finally:
        if not future.done():
            future.cancel()
            _left_behind.add(future)
            future.add_done_callback(_forget)
    if not future.done() or future in _left_behind:
        raise GuestTimeout(f"it did not return within {limit:g} seconds")
    if future.cancelled():
        raise GuestFailed("it cancelled itself")
    return future.result()


def _forget(future: asyncio.Future[Any]) -> None:
    _left_behind.discard(future)
    if not future.cancelled():
        future.exception()  # read, so that asyncio does not complain of an exception nobody saw


def call_blocking(fn: Callable[..., T], *args: Any, timeout_seconds: float | None) -> T:
    """The result of a sync ``fn(*args)``, from sync code; raises as `call` does."""
    future = _on_thread(fn, args)
    try:
        return future.result(timeout_seconds)
    except concurrent.futures.TimeoutError:
        if future.done():
            raise  # the guest's own TimeoutError
        raise GuestTimeout(f"it did not return within {timeout_seconds:g} seconds") from None


def limit_seconds(value: Any, name: str) -> float | None:
    """A limit as a guest gave it, checked; `name` is what it is called in the error.

    Raises
    ------
    UsageError
        If it is neither None nor a number above 0.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise UsageError(f"{name} is a number of seconds above 0, or None for no limit; got {value!r}")
    return float(value)
