"""The engine thread and the desk: user code on the user's thread, one piece at a time, and it can be stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from typing import Any

import pytest

from kit_jupyter.loop import Desk, Running, current_desk, engine, is_job_on, wait


def run(code: str) -> str:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, env=env
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def _here() -> str:
    return threading.current_thread().name


def test_wait_runs_a_coroutine_on_the_engine_from_a_script() -> None:
    """Blocking from a plain thread; errors come through; on the engine itself it is refused."""
    assert wait(_here()) == "kit-loop"

    async def bad() -> None:
        raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        wait(bad())

    async def inner() -> None:
        wait(_here())

    with pytest.raises(RuntimeError, match="wait for itself"):
        wait(inner())


async def test_wait_works_under_a_running_loop() -> None:
    """U31: no loop patch is needed, and the running loop is there again afterwards."""
    assert wait(_here()) == "kit-loop"
    await asyncio.sleep(0)


@pytest.mark.parametrize("blocking", [False, True])
async def test_jobs_run_on_the_waiting_thread_one_at_a_time(blocking: bool) -> None:
    """Law 8: sync and async jobs of one turn, each on the caller's thread, never two at once."""
    desk, running, most = Desk(), [0], [0]
    names: set[str] = set()

    def sync_job(n: int) -> int:
        running[0] += 1
        most[0] = max(most[0], running[0])
        names.add(threading.current_thread().name)
        time.sleep(0.001)
        running[0] -= 1
        return n

    async def async_job(n: int) -> int:
        running[0] += 1
        most[0] = max(most[0], running[0])
        names.add(threading.current_thread().name)
        await asyncio.sleep(0.001)
        running[0] -= 1
        return n

    async def work() -> list[int]:
        assert current_desk() is desk
        return list(await asyncio.gather(*(desk.run(sync_job if n % 2 else async_job, n) for n in range(10))))

    if blocking:
        me, result = await asyncio.to_thread(lambda: (threading.current_thread().name, wait(work(), desk)))
    else:
        me, result = threading.current_thread().name, await desk.serve(engine.start(work(), desk))

    assert result == list(range(10))
    assert most == [1]
    assert names == {me}


async def test_what_a_job_raises_reaches_the_engine() -> None:
    """Exceptions, SystemExit and a coroutine's error are carried over."""
    desk = Desk()

    def leave() -> None:
        raise SystemExit(3)

    async def fail() -> None:
        raise ValueError("async")

    async def work() -> list[str]:
        out = []
        for job in (leave, fail):
            try:
                await desk.run(job)
            except BaseException as exc:
                out.append(type(exc).__name__)
        return out

    assert await desk.serve(engine.start(work(), desk)) == ["SystemExit", "ValueError"]


def test_a_desk_that_nobody_serves_has_a_worker() -> None:
    """A detached turn in a script: its jobs run on one thread of their own."""
    desk = Desk()
    job = desk.post(lambda: threading.current_thread().name)
    assert job.future.result(5) == "kit-user"
    again = desk.post(lambda: threading.current_thread().name)
    assert again.future.result(5) == "kit-user"


async def test_an_idle_loop_takes_jobs_while_nobody_waits() -> None:
    """The kernel's own loop drains the queue of a detached turn."""
    desk = Desk(asyncio.get_running_loop())

    async def work() -> str:
        return await desk.run(lambda: threading.current_thread().name)

    running = engine.start(work(), desk)
    name = await asyncio.wait_for(asyncio.wrap_future(running.future), 5)

    assert name == threading.current_thread().name


async def test_cancelling_the_wait_cancels_the_work_and_ends_when_that_has_ended() -> None:
    """`Desk.serve`: no orphan runs on."""
    desk, ended = Desk(), []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            ended.append(True)

    task = asyncio.ensure_future(desk.serve(engine.start(work(), desk)))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [True]


async def test_a_job_that_will_not_end_does_not_keep_a_turn_that_has() -> None:
    """Found by reading: the wait sat inside the job and missed that the turn was over."""
    desk, release = Desk(), asyncio.Event()

    async def stubborn() -> None:
        while not release.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                pass

    async def work() -> str:
        desk.post(stubborn)
        await asyncio.sleep(0.05)
        return "over"

    assert await asyncio.wait_for(desk.serve(engine.start(work(), desk)), 5) == "over"
    release.set()
    await asyncio.sleep(0.02)


@pytest.mark.parametrize("kind", ["sync", "async", "queued"])
async def test_a_job_can_be_interrupted(kind: str) -> None:
    """Code gets a KeyboardInterrupt or a cancel; one still in the queue is dropped."""
    desk = Desk()
    begun = threading.Event()

    def spin() -> str:
        begun.set()
        for _ in range(10_000):
            time.sleep(0.001)
        return "never"

    async def sleep() -> str:
        begun.set()
        await asyncio.sleep(60)
        return "never"

    async def work() -> str:
        task = asyncio.ensure_future(desk.run(spin if kind != "async" else sleep))
        if kind == "queued":
            await asyncio.sleep(0)
        else:
            while not begun.is_set():  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            return "stopped"

    if kind == "queued":
        running: Running[str] = engine.start(work(), desk)
        assert await asyncio.wait_for(asyncio.wrap_future(running.future), 10) == "stopped"
    else:
        assert await asyncio.wait_for(asyncio.to_thread(wait, work(), desk), 10) == "stopped"


def test_interrupting_a_blocking_wait_closes_the_work_first() -> None:
    """Ctrl-C in a script: the coroutine is cancelled, its cleanup runs, KeyboardInterrupt is raised."""
    out = run(
        """
        import asyncio, os, signal, threading
        from kit_jupyter.loop import wait
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent in the background has it ignored
        async def work():
            try:
                threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
                await asyncio.sleep(60)
            finally:
                print("closed")
        try:
            wait(work())
        except KeyboardInterrupt:
            print("interrupted")
        """
    )
    assert out.split() == ["closed", "interrupted"]


def test_user_code_is_told_by_its_frames() -> None:
    """A SIGINT handler can know whether it hit user code."""
    desk = Desk()
    seen: list[bool] = []

    async def work() -> None:
        await desk.run(lambda: seen.append(is_job_on(sys._getframe())))

    wait(work(), desk)
    assert seen == [True]
    assert not is_job_on(sys._getframe())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_the_engine_starts_anew_in_a_forked_process() -> None:
    """os.fork: no thread of the parent is there, and no lock of it is held for ever."""
    out = run(
        """
        import os
        from kit_jupyter.loop import engine, wait
        async def name():
            import threading
            return threading.current_thread().name
        print(wait(name()), flush=True)
        engine._lock.acquire()
        pid = os.fork()
        if pid == 0:
            print(wait(name()), flush=True)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
        """
    )
    assert out.split() == ["kit-loop", "kit-loop", "0"]


async def test_exits_raised_on_the_engine_leave_it_running() -> None:
    """SystemExit and KeyboardInterrupt go through a task; the loop goes on for everyone else."""

    async def leave() -> None:
        raise SystemExit(1)

    running = engine.start(leave())
    with pytest.raises(SystemExit):
        await asyncio.to_thread(running.future.result, 5)
    assert await asyncio.to_thread(wait, _here()) == "kit-loop"


def test_the_callers_loop_may_be_closed_meanwhile() -> None:
    """A waker of a closed loop wakes nobody and breaks nothing."""
    desk = Desk()

    async def slow() -> None:
        await asyncio.sleep(0.05)

    async def give_up() -> Any:
        running = engine.start(slow(), desk)
        task = asyncio.ensure_future(desk.serve(running))
        await asyncio.sleep(0.01)
        task.cancel()
        return running

    running = asyncio.run(give_up())
    with pytest.raises((asyncio.CancelledError, Exception)):
        running.future.result(5)
    assert signal.getsignal(signal.SIGINT) is not None
    assert wait(_here()) == "kit-loop"


# ---------------------------------------------------------------- pieces of user code beside each other


async def test_a_job_in_the_queue_is_dropped_and_one_that_is_over_cannot_be_stopped() -> None:
    """`Job.interrupt` says whether there was anything left to stop; what was dropped never runs."""
    ran: list[str] = []
    desk = Desk(asyncio.get_running_loop())
    queued = desk.post(ran.append, "queued")
    assert queued.interrupt()
    over = desk.post(ran.append, "over")
    await asyncio.wait_for(asyncio.wrap_future(over.future), 5)

    assert not over.interrupt()
    assert queued.future.cancelled()
    assert ran == ["over"]


def test_code_on_a_thread_that_is_not_the_main_one_is_interrupted() -> None:
    """A detached turn in a script: its code runs on the worker, where no signal comes."""
    desk, begun, ended = Desk(), threading.Event(), threading.Event()

    def spin() -> None:
        begun.set()
        try:
            while True:
                time.sleep(0.001)
        finally:
            ended.set()

    job = desk.post(spin)
    assert begun.wait(5)
    assert job.interrupt()

    assert isinstance(job.future.exception(5), KeyboardInterrupt)
    assert ended.is_set()
    assert desk.post(lambda: "next").future.result(5) == "next"


def test_a_worker_that_has_nothing_to_do_ends_and_another_begins() -> None:
    """A script is not left with a thread for each Kit; what comes later is served all the same."""
    desk = Desk()
    first = desk.post(threading.current_thread).future.result(5)
    first.join(5)
    second = desk.post(threading.current_thread).future.result(5)

    assert not first.is_alive()
    assert second is not first
    assert second.name == "kit-user"


async def test_code_of_two_turns_in_one_loop_never_runs_at_once() -> None:
    """Law 8: what one turn's code awaits is over before the other's begins, whichever desk it came from."""
    order: list[str] = []

    async def slow(name: str) -> None:
        order.append(f"{name} begins")
        await asyncio.sleep(0.05)
        order.append(f"{name} ends")

    async def turn(desk: Desk, name: str, pause: float) -> None:
        await asyncio.sleep(pause)
        await desk.run(slow, name)
        await desk.run(order.append, f"{name} again")

    desks = [Desk(), Desk()]
    await asyncio.gather(
        *(d.serve(engine.start(turn(d, n, p), d)) for d, n, p in zip(desks, "ab", (0, 0.02), strict=True))
    )

    assert order.index("a ends") < order.index("b begins")
    assert sorted(order) == sorted(["a begins", "a ends", "a again", "b begins", "b ends", "b again"])


@pytest.mark.parametrize("idle", [False, True])
async def test_a_turn_that_user_code_starts_does_not_wait_for_that_code(idle: bool) -> None:
    """Else it would wait for itself: the code inside runs though the code around it is not over."""
    outer = Desk(asyncio.get_running_loop() if idle else None)

    async def inside() -> str:
        await asyncio.sleep(0)
        return "inside"

    async def around() -> str:
        inner = Desk()

        async def work() -> str:
            return await inner.run(inside)

        return await inner.serve(engine.start(work(), inner))

    async def turn() -> str:
        return await outer.run(around)

    running = engine.start(turn(), outer)
    waiting = asyncio.wrap_future(running.future) if idle else outer.serve(running)
    assert await asyncio.wait_for(waiting, 10) == "inside"


def test_code_that_awaits_when_its_loop_ends_is_closed_and_counts_as_cancelled() -> None:
    """A script that returns from `asyncio.run` in the middle: nothing waits for ever for what cannot come."""
    desk, seen, begun = Desk(), [], threading.Event()

    async def endless() -> None:
        seen.append("begun")
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            seen.append("closed")

    async def work() -> Any:
        job = desk.post(endless)
        await asyncio.to_thread(begun.wait, 5)
        return job

    async def script() -> Any:
        return await desk.serve(engine.start(work(), desk))

    job = asyncio.run(script())

    assert seen == ["begun", "closed"]
    assert isinstance(job.future.exception(5), asyncio.CancelledError)


def test_code_whose_loop_ends_before_it_could_begin_counts_as_cancelled() -> None:
    """Its coroutine is closed unrun, and whoever waits for it is told."""
    desk, seen = Desk(), []

    async def never() -> None:
        seen.append("begun")

    async def script() -> Any:
        loop = asyncio.get_running_loop()
        job = desk.post(never)
        with desk._lock:  # nobody serves it but us, once
            rest = desk._take_one(loop)
        assert rest is not None
        rest.cancel()
        return job

    job = asyncio.run(script())

    assert seen == []
    assert isinstance(job.future.exception(5), asyncio.CancelledError)
    assert not desk._draining
