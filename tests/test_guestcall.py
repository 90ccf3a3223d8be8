"""Guest functions: off the engine, within a limit, and never the end of the program."""

from __future__ import annotations

import asyncio
import threading

import pytest

from kit_jupyter.guestcall import GuestFailed, GuestTimeout, call, call_blocking, is_async


class AsyncCallable:
    async def __call__(self):
        return "awaited"


async def twice(n):
    return 2 * n


@pytest.mark.parametrize(
    ("fn", "args", "result"),
    [(lambda n: n + 1, (1,), 2), (twice, (2,), 4), (lambda n: twice(n), (3,), 6), (AsyncCallable(), (), "awaited")],
    ids=["sync", "async", "sync that returns a coroutine", "async callable"],
)
async def test_sync_and_async_alike(fn, args, result):
    """The result is awaited where it must be."""
    assert await call(fn, *args, timeout_seconds=20) == result


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
async def test_an_exit_is_only_a_failure(error):
    """Neither a thread's nor a task's exit ends the loop."""

    def leave():
        raise error

    async def leave_async():
        raise error

    for fn in (leave, leave_async):
        with pytest.raises(GuestFailed, match=error.__name__):
            await call(fn, timeout_seconds=20)
    with pytest.raises(GuestFailed):
        call_blocking(leave, timeout_seconds=20)


async def test_what_it_raises_comes_through():
    """The guest's own errors, its own TimeoutError included, are told apart from ours."""

    def fails():
        raise TimeoutError("the service's")

    with pytest.raises(TimeoutError, match="the service's"):
        await call(fails, timeout_seconds=20)
    with pytest.raises(TimeoutError, match="the service's"):
        call_blocking(fails, timeout_seconds=20)


async def test_a_limit_is_kept_and_the_loop_stays_free():
    """A thread that waits, a task that waits, a task that ignores its cancel."""
    release = threading.Event()
    asked = asyncio.Event()

    async def stubborn():
        while not release.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                asked.set()

    for fn in (lambda: release.wait(20), lambda: asyncio.Event().wait(), stubborn):
        with pytest.raises(GuestTimeout, match=r"0\.05 seconds"):
            await call(fn, timeout_seconds=0.05)
    with pytest.raises(GuestTimeout):
        call_blocking(lambda: release.wait(20), timeout_seconds=0.05)
    await asyncio.wait_for(asked.wait(), 20)
    release.set()


async def test_threads_are_used_again():
    """A call that returns gives its thread back."""
    names = set()
    for _ in range(20):
        names.add(await call(threading.get_ident, timeout_seconds=20))

    assert len(names) < 20


def test_what_is_async():
    """Functions, callables, and neither."""
    assert is_async(twice)
    assert is_async(AsyncCallable())
    assert not is_async(len)
    assert not is_async(lambda: twice(1))
