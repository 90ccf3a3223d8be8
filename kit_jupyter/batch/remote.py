"""Rows answered elsewhere: small picklable pieces for any executor, given out again when a worker dies."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from kit_jupyter.batch.faults import first_of
from kit_jupyter.batch.local import Answers
from kit_jupyter.batch.plan import Ask, Plan, asks_of, is_ray, make_plan, seed_of, told
from kit_jupyter.batch.rows import MapRow
from kit_jupyter.errors import KitError, UsageError
from kit_jupyter.kit import Kit
from kit_jupyter.loop import Desk, engine
from kit_jupyter.messages import Part
from kit_jupyter.settings import PromptOptions
from kit_jupyter.structured import Misfit

__all__ = ["Piece", "RemoteAnswers", "run_piece"]

Told = tuple[str, str, int, float | None]
"""A row's text, error, tokens and cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A piece of work that travels: small, picklable, without a key."""

    model: str
    provider: Any
    settings: dict[str, Any]
    options: dict[str, Any]
    concurrency: int
    retries: int
    asks: tuple[tuple[str, tuple[Part, ...]], ...]


def run_piece(piece: Piece) -> tuple[list[Told | None], KitError | None]:
    """Answer a piece's prompts here, with keys of this process.

    Returns
    -------
    list of (text, error, tokens, cost) or None
        None for a row that was not asked any more.
    KitError or None
        What would meet every row here; a value, since executors wrap what is raised each in its own way.
    """
    out: dict[int, Told] = {}
    fault: KitError | None = None
    try:
        _answer(piece, out)
    except KitError as exc:
        fault = exc
    return [out.get(i) for i in range(len(piece.asks))], fault


def _answer(piece: Piece, out: dict[int, Told]) -> None:
    options = PromptOptions(**piece.options)
    kit = Kit(model=piece.model or None, provider=piece.provider, session="memory", **piece.settings)
    rows = [{"text": text, "parts": parts} for text, parts in piece.asks]

    def prompt(row: Mapping[str, Any]) -> Any:
        return (row["text"], *row["parts"])

    plan = make_plan(
        kit, rows, prompt, options=options, concurrency=piece.concurrency, retries=piece.retries, store=False
    )
    plan.seed = seed_of(plan)

    async def go() -> None:
        answers = Answers(plan)
        gate = asyncio.Semaphore(plan.concurrency)

        async def one(ask: Ask) -> None:
            async with gate:
                row = await answers.of(ask)
                text = "" if row.error else (plan.store.get(ask.key) or "")
                out[ask.position] = (text, row.error, row.tokens, row.cost)

        async with asyncio.TaskGroup() as group:
            for ask in asks_of(plan):
                group.create_task(one(ask))

    failed: BaseException | None = None
    try:
        Desk().serve_blocking(engine.start(go()))
    except BaseExceptionGroup as group:
        failed = first_of(group)
    finally:
        plan.store.close()
        kit.close()
    if failed is not None:
        raise failed from None  # outside the handler: a thread's error reaches the notebook with its context


def _submit(executor: Any, piece: Piece) -> tuple[Any, Callable[[], object]]:
    """Give a piece to whatever kind of executor this is; a future, and how to stop it."""
    if is_ray(executor):
        # Deaths are counted here, as for all executors: Ray's own repeats would multiply with ours.
        task = executor.remote(run_piece).options(max_retries=0).remote(piece)
        return task.future(), partial(executor.cancel, task)
    if hasattr(executor, "load_balanced_view"):  # ipyparallel client
        result = executor.load_balanced_view().apply_async(run_piece, piece)
        return result, result.abort
    if hasattr(executor, "scheduler_info"):  # Dask client; pure=False: the same piece may be asked again after a death
        future = executor.submit(run_piece, piece, pure=False)
    else:
        future = executor.submit(run_piece, piece)
    return future, future.cancel


async def _remote(executor: Any, piece: Piece) -> tuple[list[Told | None], KitError | None]:
    future, stop = await asyncio.to_thread(_submit, executor, piece)
    try:
        if isinstance(future, concurrent.futures.Future):
            return await asyncio.wrap_future(future)
        get = future.get if hasattr(future, "get") and not hasattr(future, "result_as") else future.result
        get = future.result if hasattr(executor, "scheduler_info") else get
        return await asyncio.to_thread(get)
    except asyncio.CancelledError:
        with contextlib.suppress(Exception):
            stop()
        raise


def _piece(plan: Plan, asks: Sequence[Ask]) -> Piece:
    kit, options = plan.kit, plan.options
    settings = {name: getattr(kit.settings, name) for name in kit.settings.trait_names(config=True)}
    default = {name: getattr(type(kit.settings)(), name) for name in settings}
    changed = {name: value for name, value in settings.items() if value != default[name] and name != "model"}
    if not isinstance(changed.get("permissions", ""), str):
        changed.pop("permissions")  # a policy object stays here; no tools travel, so it judges nothing there
    own = {name: getattr(options, name) for name in options.__dataclass_fields__}
    unset = PromptOptions()
    travelling = {n: v for n, v in own.items() if v != getattr(unset, n) and n not in ("extra_tools", "api_key")}
    if options.api_key:
        raise UsageError("keys do not travel in tasks: set the key in the workers' environment and leave api_key out")
    if plan.format is not None:
        travelling["schema"] = (
            plan.format.schema
        )  # a schema, not a type: a type made in a notebook cannot be imported there
    _, ref = kit._provider_for(kit.settings.options(options))
    return Piece(
        model=str(ref),
        provider=kit._provider_given,
        settings=changed,
        options=travelling,
        concurrency=plan.concurrency,
        retries=plan.retries,
        asks=tuple((ask.text, ask.parts) for ask in asks),
    )


class RemoteAnswers:
    """Cuts the rows into pieces for an executor; a piece whose worker died is given out again."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    async def of_many(self, asks: Sequence[Ask]) -> list[MapRow]:
        """Results of a chunk of rows."""
        plan = self._plan
        rows: dict[int, MapRow] = {}
        wanted: dict[bytes, list[Ask]] = {}
        for ask in asks:
            stored = plan.store.get(ask.key) if not ask.error else None
            if ask.error:
                rows[ask.position] = MapRow(position=ask.position, label=ask.label, error=ask.error)
            elif stored is not None:
                rows[ask.position] = self._read(ask, stored, 0, 0.0, is_stored=True)
            else:
                wanted.setdefault(ask.key, []).append(ask)
        if wanted and (why := plan.over_budget()):
            for group in wanted.values():
                rows.update((a.position, MapRow(position=a.position, label=a.label, error=why)) for a in group)
        elif wanted:
            firsts = [group[0] for group in wanted.values()]
            answers, fault = await self._send(firsts)
            for first, answer in zip(firsts, answers, strict=True):
                if answer is None:
                    continue
                text, error, tokens, cost = answer
                plan.spent_tokens += tokens
                plan.spent_cost += cost or 0.0
                if not error:
                    plan.answered += 1
                    plan.store.put(first.key, text)
                for i, ask in enumerate(wanted[first.key]):
                    if error:
                        rows[ask.position] = MapRow(position=ask.position, label=ask.label, error=error)
                    else:
                        rows[ask.position] = self._read(
                            ask, text, tokens if i == 0 else 0, cost if i == 0 else 0.0, is_stored=i > 0
                        )
            if fault is not None:
                raise fault
        return [rows[ask.position] for ask in asks]

    async def _send(self, asks: Sequence[Ask]) -> tuple[Sequence[Told | None], KitError | None]:
        plan = self._plan
        piece = _piece(plan, asks)
        last = ""
        for _ in range(plan.retries + 1):
            try:
                return await _remote(plan.executor, piece)
            except (pickle.PicklingError, AttributeError, TypeError) as exc:
                if "pickle" in str(exc).lower():
                    raise UsageError(
                        f"this Kit cannot travel to other processes ({exc}); name a model in place of a provider object"
                    ) from exc
                last = told(exc)
            except asyncio.CancelledError:
                raise
            except Exception as exc:  # a dead worker, whatever its executor calls it
                last = told(exc)
        return [("", f"the worker failed {plan.retries + 1} times; last: {last}", 0, None)] * len(asks), None

    def _read(self, ask: Ask, text: str, tokens: int, cost: float | None, *, is_stored: bool) -> MapRow:
        fmt = self._plan.format
        try:
            answer = fmt.read(text) if fmt is not None else text
        except Misfit as exc:
            return MapRow(
                position=ask.position, label=ask.label, error=f"the answer does not fit: {exc}", tokens=tokens
            )
        return MapRow(
            position=ask.position, label=ask.label, answer=answer, tokens=tokens, cost=cost, is_stored=is_stored
        )
