"""One run of map: workers pull rows, ask, and tell; a bar shows how far it is."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from typing import Any

from kit_jupyter.batch.bar import progress_of
from kit_jupyter.batch.faults import Tally, first_of
from kit_jupyter.batch.half_price import HalfPrice
from kit_jupyter.batch.kinds import form_of
from kit_jupyter.batch.local import Answers
from kit_jupyter.batch.plan import Ask, Plan, asks_of, check_names, make_plan, seed_of
from kit_jupyter.batch.remote import RemoteAnswers
from kit_jupyter.batch.rows import MapRow
from kit_jupyter.errors import KitError, UsageError
from kit_jupyter.kit import Kit
from kit_jupyter.loop import Desk, engine

__all__ = ["amap_rows", "map_rows", "stream_rows"]

_PULL = 64


async def _run(plan: Plan, desk: Desk, tell: Callable[[MapRow], object]) -> None:
    """Answer all rows; `tell` is called on the engine as each is done."""
    plan.seed = seed_of(plan)
    source = asks_of(plan)
    waiting: deque[Ask] = deque()
    pulling = asyncio.Lock()
    ended = False

    def pull() -> list[Ask]:
        out: list[Ask] = []
        for ask in source:
            out.append(ask)
            if len(out) >= _PULL:
                break
        return out

    async def next_ask() -> Ask | None:
        nonlocal ended
        async with pulling:
            if not waiting and not ended:
                got = await desk.run(pull)
                ended = not got
                waiting.extend(got)
            return waiting.popleft() if waiting else None

    async def local_worker(answers: Answers) -> None:
        while (ask := await next_ask()) is not None:
            tell(await answers.of(ask))

    async def remote_worker(answers: RemoteAnswers) -> None:
        while True:
            asks: list[Ask] = []
            while len(asks) < plan.chunk and (ask := await next_ask()) is not None:
                asks.append(ask)
            if not asks:
                return
            for row in await answers.of_many(asks):
                tell(row)

    failed: BaseException | None = None
    try:
        if plan.batch is not None:
            plan.half = await HalfPrice.open(plan)
            await plan.half.run(Answers(plan), next_ask, tell)
            return
        async with asyncio.TaskGroup() as group:
            if plan.executor is None:
                answers = Answers(plan)
                for _ in range(plan.concurrency):
                    group.create_task(local_worker(answers))
            else:
                remote = RemoteAnswers(plan)
                for _ in range(plan.concurrency):
                    group.create_task(remote_worker(remote))
    except BaseExceptionGroup as group_error:
        failed = first_of(group_error)
    finally:
        plan.store.close()
    if failed is not None:
        raise failed from None  # outside the handler: with a group as its context, IPython makes no error output of it


@contextlib.contextmanager
def _farewell(plan: Plan) -> Iterator[None]:
    """Say what goes on without us, to who stops in the middle."""
    try:
        yield
    except BaseException as exc:
        if plan.half is not None and (words := plan.half.farewell()):
            exc.add_note(words)
        if isinstance(exc, KitError) and plan.answered and plan.store.path is not None:
            were = "1 row was" if plan.answered == 1 else f"{plan.answered:,} rows were"
            exc.add_note(f"{were} answered before and stay in the store; the same call goes on from there")
        raise


def _rebuilt(plan: Plan, results: dict[int, MapRow], *, keep: bool) -> Any:
    rows = [results[i] for i in sorted(results)]
    tally = Tally()
    for row in rows:
        tally.count(row)
    tally.warn()
    return plan.rows.rebuild(rows, form_of(plan.format), keep)


async def amap_rows(kit: Kit, rows: Any, template: str | Callable[[Any], Any], **options: Any) -> Any:
    """`map_rows`, to be awaited."""
    check_names("amap_rows", options, ("keep", "progress"))
    keep = options.pop("keep", True)
    progress = options.pop("progress", True)
    plan = make_plan(kit, rows, template, **options)
    results: dict[int, MapRow] = {}
    with _farewell(plan), progress_of(plan.rows.total, show=progress) as bar:
        loop = asyncio.get_running_loop()
        plan.show = lambda words: loop.call_soon_threadsafe(bar.say, words)
        async for row in _stream(plan):
            results[row.position] = row
            bar.step(row)
    return _rebuilt(plan, results, keep=keep)


def map_rows(kit: Kit, rows: Any, template: str | Callable[[Any], Any], **options: Any) -> Any:
    """A prompt over many rows; errors become a column, and an interrupted run goes on where it was.

    Parameters
    ----------
    kit : Kit
        Its model, system prompt and settings are used; neither its history nor its guests are.
    rows : DataFrame, Series (pandas, polars), Arrow table, list or iterable
        A row that is no record is ``{text}`` in the template.
    template : str or callable
        Text with ``{column}`` marks, or a function of the row that gives the prompt, or
        ``(prompt, picture, …)``. A frame's or a table's row is a dict: ``lambda row: f"look at {row['n']}"``.
    schema : type or JSON schema
        Form of each answer; a record becomes one column a field.
    concurrency : int, from 1
        Rows asked at once; with `executor`, pieces out at once.
    executor : concurrent.futures.Executor, Dask client, ipyparallel client, the module ray, or None
        Where the asking is done.
    chunk : int
        Rows in a piece for the executor.
    retries : int
        For a row whose service was busy, and for a piece whose worker died.
    store : bool or path
        True keeps answers in the user's data folder, keyed by content; False only for this run. While ``KIT_REPLAY``
        records or replays, True keeps nothing, and a path gives only what this process has put there.
    missing : {"error", "text"}
        What a missing value in a marked column is.
    max_tokens_total, max_cost, max_seconds : int, float (US dollars), float (seconds) or None
        Rows beyond a budget are not asked and say so.
    batch : bool or BatchOptions
        Ask through the provider's batch API: half the price, within a day. The call waits; stopped or killed, the
        batches run on, and the same call fetches their answers without paying again.
    keep : bool
        Give the columns of the input back, too.
    progress : bool
        Show a bar; a notebook that a runner executes has none.
    options : PromptOptions
        For every row.
    tools : iterable of Tool or callable
        Offered to every row.

    Returns
    -------
    same kind of frame, or list of MapRow
        In the order of the rows, index kept, with ``answer`` (or a column a field) and ``error``.

    Raises
    ------
    UsageError
        A mark that names no column, bad limits, a setting that is wrong, a Kit that cannot travel.
    AuthFailed, ReplayMiss, ProviderError
        What every row would meet: a wrong key, no recording, no such model, a wrong address. It ends the map at once;
        what was answered stays in the store. A row's own fault is its ``error``; when all rows have one, a warning
        says so.
    KeyboardInterrupt
        After an interrupt; what was answered stays in the store.

    Examples
    --------
    >>> from kit_jupyter.testing import ScriptedProvider
    >>> kit = Kit(provider=ScriptedProvider("ok", repeat_last=True), session="memory")
    >>> [row.answer for row in map_rows(kit, ["a", "b"], "say ok to {text}", store=False, progress=False)]
    ['ok', 'ok']
    """
    desk = Desk()
    if engine.is_here:
        raise UsageError("map would wait for itself here; await kit_jupyter.batch.amap_rows instead")
    check_names("kit.map", options, ("keep", "progress"))
    keep = options.pop("keep", True)
    progress = options.pop("progress", True)
    plan = make_plan(kit, rows, template, **options)
    results: dict[int, MapRow] = {}
    with _farewell(plan), progress_of(plan.rows.total, show=progress) as bar:
        told = _Throttle(bar.step, desk)
        plan.show = lambda words: desk.post(bar.say, words)

        def tell(row: MapRow) -> None:
            results[row.position] = row
            told(row)

        desk.serve_blocking(engine.start(_run(plan, desk, tell), desk))
        told.flush()
    return _rebuilt(plan, results, keep=keep)


async def stream_rows(
    kit: Kit, rows: Any, template: str | Callable[[Any], Any], **options: Any
) -> AsyncIterator[MapRow]:
    """Rows as they finish; nothing is held. Leaving the loop stops the asking."""
    check_names("stream_rows", options)
    plan = make_plan(kit, rows, template, **options)
    tally = Tally()
    with _farewell(plan):
        async with contextlib.aclosing(_stream(plan)) as found:
            async for row in found:
                tally.count(row)
                yield row
    tally.warn()


async def _stream(plan: Plan) -> AsyncGenerator[MapRow, None]:
    desk = Desk()
    loop = asyncio.get_running_loop()
    done: asyncio.Queue[MapRow | None] = asyncio.Queue()

    def tell(row: MapRow) -> None:
        loop.call_soon_threadsafe(done.put_nowait, row)

    running = engine.start(_run(plan, desk, tell), desk)
    serving = asyncio.ensure_future(desk.serve(running))
    serving.add_done_callback(lambda _: done.put_nowait(None))
    try:
        while (row := await done.get()) is not None:
            yield row
        await serving
    finally:
        if not serving.done():
            serving.cancel()
            await asyncio.wait([serving])


class _Throttle:
    """Shows progress on the caller's thread, at most ten times a second."""

    def __init__(self, step: Callable[[MapRow], object], desk: Desk) -> None:
        self._step = step
        self._desk = desk
        self._rows: deque[MapRow] = deque()
        self._last = 0.0

    def __call__(self, row: MapRow) -> None:
        self._rows.append(row)
        if time.monotonic() - self._last > 0.1:
            self._last = time.monotonic()
            self._desk.post(self.flush)

    def flush(self) -> None:
        """Show what came."""
        while self._rows:
            self._step(self._rows.popleft())
