"""`kit.map`: one prompt over many rows, on this machine or on any executor.

Theory of operation
-------------------
Rows are pulled a handful at a time on the caller's thread (an iterable may be user code), turned into
prompts, and answered on the engine, ``concurrency`` at once. Each answer is put into a store on disk
under a key made of all that decides it (model, system prompt, options, schema, prompt), so an
interrupted run goes on where it was and nothing is paid twice; equal rows are asked once. A service
that asks for patience pauses every row, not one. Nothing but the answers is held in memory.

With ``executor=`` the same work is cut into small picklable pieces and given to any
``concurrent.futures`` executor, a Dask client or an ipyparallel client; each worker makes a Kit of
its own, and takes its keys from its own environment.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import difflib
import json
import math
import pickle
import re
import sqlite3
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from kit_jupyter.errors import KitError, UsageError
from kit_jupyter.extension import ExtensionHost
from kit_jupyter.inbox import Inbox
from kit_jupyter.kit import Kit
from kit_jupyter.loop import Desk, engine
from kit_jupyter.media import as_part
from kit_jupyter.messages import Part, TextPart
from kit_jupyter.provider import retry_listener
from kit_jupyter.session import Session, data_dir
from kit_jupyter.settings import PromptOptions
from kit_jupyter.structured import Format, Misfit
from kit_jupyter.tool import Toolbox, as_tool
from kit_jupyter.turn import Opening, Turn

__all__ = ["MapRow", "Template", "amap_rows", "map_rows", "stream_rows"]

_MARK = re.compile(r"\{\{|\}\}|\{([^{}\n]+)\}")
_PULL = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class MapRow:
    """What came of one row.

    Attributes
    ----------
    position : int
        Row number from 0.
    label : object
        The row's index label in a frame, else its position.
    answer : object
        Text, or the value of the schema; None when there is an error.
    error : str
        Empty when it went well.
    tokens : int
        Spent on this row now; 0 when it came from the store.
    cost : float or None
        US dollars; None when unknown.
    is_stored : bool
        True when it had been paid before.
    """

    position: int
    label: Any
    answer: Any = None
    error: str = ""
    tokens: int = 0
    cost: float | None = None
    is_stored: bool = False


# ---------------------------------------------------------------- templates


class Template:
    """A prompt with marks: ``{column}`` is replaced by the row's value, as it is.

    Only a name of a column between braces is a mark, so JSON and LaTeX in the template stay text and
    braces in the data are never looked at; ``{{`` and ``}}`` stand for single braces.

    Raises
    ------
    UsageError
        If something that looks like a mark names no column; the nearest one is named.

    Examples
    --------
    >>> Template('{"say": 1} {text}', ["text"]).fill({"text": "a {brace}"})
    '{"say": 1} a {brace}'
    """

    def __init__(self, text: str, columns: Sequence[str]) -> None:
        self.columns: list[str] = []
        self._pieces: list[str] = []  # text, column, text, column, …, text
        known = set(columns)
        at, piece = 0, ""
        for mark in _MARK.finditer(text):
            piece += text[at : mark.start()]
            at = mark.end()
            name = mark.group(1)
            if name is None:
                piece += mark.group(0)[0]
            elif name in known:
                self._pieces += [piece, name]
                self.columns.append(name)
                piece = ""
            elif name.strip().isidentifier():
                near = difflib.get_close_matches(name, list(known), n=1)
                hint = f"; did you mean {{{near[0]}}}?" if near else ""
                raise UsageError(
                    f"the template names {{{name}}}, which is no column{hint}; columns: "
                    f"{', '.join(columns) or 'none'}; "
                    "write {{ and }} for braces that are text"
                )
            else:
                piece += mark.group(0)
        self._pieces.append(piece + text[at:])

    def fill(self, row: Mapping[str, Any]) -> str:
        """The prompt of one row."""
        return "".join(piece if i % 2 == 0 else _as_text(row[piece]) for i, piece in enumerate(self._pieces))


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else str(value)


def _is_missing(value: Any) -> bool:
    if value is None:
        return True
    if isinstance(value, float):
        return math.isnan(value)
    return type(value).__name__ in ("NAType", "NaTType")


# ---------------------------------------------------------------- rows of any kind


@dataclass(slots=True)
class _Rows:
    """Rows as ``(label, row)``; `columns` is None when rows are not records."""

    items: Iterator[tuple[Any, Any]]
    columns: list[str] | None
    total: int | None
    rebuild: Callable[[list[MapRow], bool], Any]


def _rows_of(data: Any) -> _Rows:
    kind = type(data).__module__.split(".")[0], type(data).__name__
    if kind[0] == "pandas" and kind[1] == "DataFrame":
        columns = [str(c) for c in data.columns]
        records = (dict(zip(columns, values, strict=True)) for values in data.itertuples(index=False, name=None))
        return _Rows(
            zip(data.index, records, strict=True), columns, len(data), lambda r, k: _to_pandas(data, r, keep=k)
        )
    if kind[0] == "pandas" and kind[1] == "Series":
        name = str(data.name) if data.name is not None else "text"
        records = ({name: value} for value in data)
        return _Rows(
            zip(data.index, records, strict=True),
            [name],
            len(data),
            lambda r, k: _to_pandas(data.to_frame(name), r, keep=k),
        )
    if kind[0] == "polars" and kind[1] == "DataFrame":
        return _Rows(
            enumerate(data.iter_rows(named=True)),
            list(data.columns),
            len(data),
            lambda r, k: _to_polars(data, r, keep=k),
        )
    if kind[0] == "polars" and kind[1] == "Series":
        frame = data.to_frame(data.name or "text")
        return _Rows(
            enumerate(frame.iter_rows(named=True)),
            list(frame.columns),
            len(frame),
            lambda r, k: _to_polars(frame, r, keep=k),
        )
    if kind[0] == "pyarrow" and kind[1] in ("Table", "RecordBatch"):
        names = list(data.schema.names)
        batches = data.to_batches() if kind[1] == "Table" else [data]
        records = (row for batch in batches for row in batch.to_pylist())
        return _Rows(enumerate(records), names, data.num_rows, lambda r, k: _to_arrow(data, r, keep=k))
    if isinstance(data, str | bytes | Mapping) or not isinstance(data, Iterable):
        raise UsageError(
            f"map goes over a frame, a table, a list or another iterable of rows; got {type(data).__name__}"
        )
    total = len(data) if hasattr(data, "__len__") else None
    items = iter(data)
    head = next(items, None)
    whole: Iterator[Any] = items if head is None else _chain(head, items)
    columns = [str(k) for k in head] if isinstance(head, Mapping) else None
    return _Rows(enumerate(whole), columns, total, lambda r, _k: r)


def _chain(head: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield head
    yield from rest


def _columns(results: list[MapRow]) -> dict[str, list[Any]]:
    """Result columns: one per field when every answer is a record, else ``answer``; and ``error``."""
    answers = [_plain(r.answer) for r in results]
    fields: list[str] = []
    for answer in answers:
        if isinstance(answer, dict):
            fields += [name for name in answer if name not in fields]
    if fields and all(answer is None or isinstance(answer, dict) for answer in answers):
        table = {name: [None if a is None else a.get(name) for a in answers] for name in fields}
    else:
        table = {"answer": [r.answer if not isinstance(a, dict) else a for r, a in zip(results, answers, strict=True)]}
    errors: list[Any] = [r.error or None for r in results]
    return {**table, "error": errors}


def _plain(value: Any) -> Any:
    """A record as a dict, an enum as its value; others as they are."""
    from enum import Enum

    if isinstance(value, Enum):
        return value.value
    if hasattr(value, "model_dump"):
        return value.model_dump()
    if hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        from dataclasses import asdict

        return asdict(value)
    return value


def _free(table: dict[str, list[Any]], taken: Iterable[str]) -> dict[str, list[Any]]:
    """Result columns under names that the frame does not have yet."""
    used = set(taken)
    out: dict[str, list[Any]] = {}
    for name, values in table.items():
        free = name
        while free in used:
            free += "_"
        out[free] = values
    return out


def _to_pandas(frame: Any, results: list[MapRow], *, keep: bool) -> Any:
    import pandas as pd

    table = _free(_columns(results), map(str, frame.columns) if keep else ())
    # object columns: pandas would turn a column of None into NaN, and lists into something else
    made = pd.DataFrame({k: pd.Series(v, index=range(len(v)), dtype=_dtype(v)) for k, v in table.items()})
    made.index = frame.index
    if not keep:
        return made
    out = frame.copy(deep=False)
    for name in made.columns:
        out[name] = made[name].array
    return out


def _dtype(values: list[Any]) -> Any:
    return None if values and all(isinstance(v, bool | int | float | str) for v in values) else object


def _to_polars(frame: Any, results: list[MapRow], *, keep: bool) -> Any:
    import polars as pl

    table = _free(_columns(results), frame.columns if keep else ())
    made = [_polars_series(pl, name, [_plain(v) for v in values]) for name, values in table.items()]
    return frame.with_columns(made) if keep else pl.DataFrame(made)


def _polars_series(pl: Any, name: str, values: list[Any]) -> Any:
    if all(v is None for v in values):
        return pl.Series(name, values, dtype=pl.String)
    try:
        return pl.Series(name, values)
    except (TypeError, pl.exceptions.PolarsError):
        return pl.Series(name, [None if v is None else json.dumps(v, default=str) for v in values])


def _to_arrow(table: Any, results: list[MapRow], *, keep: bool) -> Any:
    import pyarrow as pa

    made = _free(_columns(results), table.schema.names if keep else ())
    out = (pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table) if keep else None
    arrays = {}
    for name, values in made.items():
        plain = [_plain(v) for v in values]
        try:
            arrays[name] = pa.array(plain, type=pa.string() if all(v is None for v in plain) else None)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            arrays[name] = pa.array([None if v is None else json.dumps(v, default=str) for v in plain])
    if out is None:
        return pa.table(arrays)
    for name, array in arrays.items():
        out = out.append_column(name, array)
    return out


# ---------------------------------------------------------------- the store


class ResultStore:
    """Answers on disk by key; safe for several processes, and for a kill at any time.

    Parameters
    ----------
    path : Path or None
        None keeps them in memory for the length of one run.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                path.touch(mode=0o600, exist_ok=True)
            except OSError as exc:
                raise UsageError(
                    f"cannot keep results in {path}: {exc.strerror or exc}; pass store=False or a path"
                ) from exc
        self._lock = threading.Lock()
        try:
            self._db = sqlite3.connect(str(path or ""), check_same_thread=False, isolation_level=None, timeout=30)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS results (key BLOB PRIMARY KEY, answer TEXT NOT NULL) WITHOUT ROWID"
            )
        except sqlite3.DatabaseError as exc:
            raise UsageError(f"{path} is no result store ({exc}); delete it or pass another path as store=") from exc

    def get(self, key: bytes) -> str | None:
        """The answer's text, or None."""
        with self._lock:
            row = self._db.execute("SELECT answer FROM results WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def put(self, key: bytes, answer: str) -> None:
        """Keep an answer."""
        with self._lock:
            self._db.execute("INSERT OR REPLACE INTO results VALUES (?, ?)", (key, answer))

    def __len__(self) -> int:
        with self._lock:
            return int(self._db.execute("SELECT count(*) FROM results").fetchone()[0])

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()


# ---------------------------------------------------------------- the plan


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ask:
    """One prompt, ready to be asked anywhere."""

    position: int
    label: Any
    key: bytes
    text: str
    parts: tuple[Part, ...] = ()
    error: str = ""


@dataclass(slots=True, kw_only=True)
class _Plan:
    """All that one run of map goes by."""

    kit: Kit
    rows: _Rows
    template: str | Callable[[Any], Any]
    options: PromptOptions
    tools: tuple[Any, ...]
    concurrency: int
    retries: int
    store: ResultStore
    missing: str
    max_tokens_total: int | None
    max_cost: float | None
    max_seconds: float | None
    executor: Any
    chunk: int
    format: Format | None
    seed: bytes = b""
    begun: float = field(default_factory=time.monotonic)
    spent_tokens: int = 0
    spent_cost: float = 0.0
    resume_at: float = 0.0
    stop: str = ""

    def over_budget(self) -> str:
        """Why no more rows may be asked, else empty."""
        if not self.stop:
            if self.max_tokens_total is not None and self.spent_tokens >= self.max_tokens_total:
                self.stop = f"not asked: the budget of {self.max_tokens_total:,} tokens is used up"
            elif self.max_cost is not None and self.spent_cost >= self.max_cost:
                self.stop = f"not asked: the budget of ${self.max_cost:g} is used up"
            elif self.max_seconds is not None and time.monotonic() - self.begun >= self.max_seconds:
                self.stop = f"not asked: the time limit of {self.max_seconds:g} s is over"
        return self.stop


def _plan(
    kit: Kit,
    rows: Any,
    template: str | Callable[[Any], Any],
    *,
    schema: Any = None,
    options: PromptOptions | None = None,
    tools: Iterable[Any] = (),
    concurrency: int = 8,
    executor: Any = None,
    chunk: int = 32,
    retries: int = 2,
    store: Any = True,
    missing: str = "error",
    max_tokens_total: int | None = None,
    max_cost: float | None = None,
    max_seconds: float | None = None,
) -> _Plan:
    if concurrency < 1:
        raise UsageError(f"concurrency must be 1 or more, got {concurrency}")
    if chunk < 1:
        raise UsageError(f"chunk must be 1 or more, got {chunk}")
    if retries < 0:
        raise UsageError(f"retries must be 0 or more, got {retries}")
    if missing not in ("error", "text"):
        raise UsageError(f'missing must be "error" or "text", got {missing!r}')
    if not callable(template) and not isinstance(template, str):
        raise UsageError(
            f"the template must be text with {{column}} marks or a function, got {type(template).__name__}"
        )
    if executor is not None and not (
        hasattr(executor, "submit") or hasattr(executor, "executor") or hasattr(executor, "load_balanced_view")
    ):
        raise UsageError("executor= takes a concurrent.futures executor, a Dask client or an ipyparallel client")
    options = options or PromptOptions()
    if schema is not None:
        options = replace(options, schema=schema)
    fmt = Format(options.schema) if options.schema is not None else None
    found = _rows_of(rows)
    made_tools = tuple(as_tool(item) for item in tools)
    if executor is not None and made_tools:
        raise UsageError("tools stay on this machine; map with executor= and with tools cannot go together")
    plan = _Plan(
        kit=kit,
        rows=found,
        template=template,
        options=replace(options, extra_tools=made_tools),
        tools=made_tools,
        concurrency=concurrency,
        retries=retries,
        store=_store_of(store),
        missing=missing,
        max_tokens_total=max_tokens_total,
        max_cost=max_cost,
        max_seconds=max_seconds,
        executor=executor,
        chunk=chunk,
        format=fmt,
    )
    return plan


def _store_of(store: Any) -> ResultStore:
    if store is True:
        return ResultStore(data_dir() / "map" / "results.sqlite")
    if store is False or store is None:
        return ResultStore(None)
    return ResultStore(Path(store))


def _seed(plan: _Plan) -> bytes:
    """All that decides every answer of this run, but for the prompt itself."""
    kit, options = plan.kit, plan.options
    turn = kit.settings.options(options)
    _, ref = kit._provider_for(turn)
    facts = {
        "model": str(ref),
        "base_url": options.base_url,
        "system": kit.system,
        "system_message": options.system_message,
        "thinking": turn.thinking,
        "temperature": turn.temperature,
        "max_tokens": turn.max_tokens,
        "schema": plan.format.schema if plan.format is not None else None,
        "tools": [tool.spec.name for tool in plan.tools],
        "extra": dict(options.extra),
    }
    return blake2b(json.dumps(facts, sort_keys=True, default=repr).encode(), digest_size=16).digest()


def _asks(plan: _Plan) -> Iterator[_Ask]:
    """Prompts of all rows, made as they are pulled; on the caller's thread."""
    template = plan.template
    filled: Template | None = None
    for position, (label, row) in enumerate(plan.rows.items):
        parts: tuple[Part, ...] = ()
        try:
            if callable(template):
                made = template(row)
                text, *attached = made if isinstance(made, tuple | list) else (made,)
                if not isinstance(text, str):
                    raise TypeError(f"the template function gave {type(text).__name__}, not text")
                parts = tuple(as_part(part) for part in attached)
            else:
                record = row if isinstance(row, Mapping) else {"text": row, "row": row}
                if filled is None:
                    filled = Template(template, plan.rows.columns or [str(k) for k in record])
                for name in filled.columns:
                    if name not in record:
                        raise KeyError(f"the row has no {name!r}")
                    if plan.missing == "error" and _is_missing(record[name]):
                        raise ValueError(f"{name} is missing in this row (missing='text' asks all the same)")
                text = filled.fill(record)
            if not text.strip() and not parts:
                raise ValueError("the prompt of this row is empty")
            text.encode()
        except UsageError:
            raise
        except Exception as exc:  # a row's own fault is its answer; the others go on
            yield _Ask(position=position, label=label, key=b"", text="", error=_told(exc))
            continue
        digest = blake2b(plan.seed, digest_size=16)
        digest.update(text.encode())
        for part in parts:
            digest.update(repr(part).encode() + str(getattr(part, "data", "")).encode())
        yield _Ask(position=position, label=label, key=digest.digest(), text=text, parts=parts)


def _told(exc: BaseException) -> str:
    if isinstance(exc, KitError):
        return exc.message
    text = str(exc.args[0]) if isinstance(exc, KeyError) and exc.args else str(exc)
    return f"{type(exc).__name__}: {text}"


# ---------------------------------------------------------------- asking, on the engine


class _Answers:
    """Asks each different prompt once, and knows what was asked before."""

    def __init__(self, plan: _Plan) -> None:
        self._plan = plan
        self._flying: dict[bytes, asyncio.Future[MapRow]] = {}

    async def of(self, ask: _Ask) -> MapRow:
        """The row's result, from the store, from an equal row that is being asked, or from the model."""
        plan = self._plan
        if ask.error:
            return MapRow(position=ask.position, label=ask.label, error=ask.error)
        stored = plan.store.get(ask.key)
        if stored is not None:
            with contextlib.suppress(Misfit, ValueError):
                return self._read(ask, stored, is_stored=True)
        if (twin := self._flying.get(ask.key)) is not None:
            row = await asyncio.shield(twin)
            return replace(row, position=ask.position, label=ask.label, tokens=0, cost=0.0, is_stored=True)
        future: asyncio.Future[MapRow] = asyncio.get_running_loop().create_future()
        self._flying[ask.key] = future
        try:
            row = await self._ask(ask)
        except BaseException as exc:
            future.set_exception(exc if isinstance(exc, Exception) else asyncio.CancelledError())
            future.exception()  # seen, also when no twin waits
            raise
        finally:
            del self._flying[ask.key]
        future.set_result(row)
        return row

    def _read(self, ask: _Ask, text: str, *, is_stored: bool, tokens: int = 0, cost: float | None = 0.0) -> MapRow:
        fmt = self._plan.format
        answer = fmt.read(text) if fmt is not None else text
        return MapRow(
            position=ask.position, label=ask.label, answer=answer, tokens=tokens, cost=cost, is_stored=is_stored
        )

    async def _ask(self, ask: _Ask) -> MapRow:
        plan = self._plan
        attempt = 0
        while True:
            if why := plan.over_budget():
                return MapRow(position=ask.position, label=ask.label, error=why)
            if (pause := plan.resume_at - time.monotonic()) > 0:
                await asyncio.sleep(pause)
                continue
            try:
                text, tokens, cost = await _one_turn(plan, ask)
            except KitError as exc:
                attempt += 1
                retryable = bool(getattr(exc, "retryable", False))
                if retryable:
                    wait = getattr(exc, "retry_after_seconds", None) or min(2.0**attempt, 30.0) / 4
                    plan.resume_at = max(plan.resume_at, time.monotonic() + min(wait, 60.0))
                if not retryable or attempt > plan.retries:
                    return MapRow(position=ask.position, label=ask.label, error=exc.message)
                continue
            plan.spent_tokens += tokens
            plan.spent_cost += cost or 0.0
            plan.store.put(ask.key, text)
            return self._read(ask, text, is_stored=False, tokens=tokens, cost=cost)


async def _one_turn(plan: _Plan, ask: _Ask) -> tuple[str, int, float | None]:
    kit = plan.kit
    frozen = kit.settings.options(plan.options)
    house = replace(
        kit._house(frozen),
        session=Session.memory(),
        inbox=Inbox(),
        host=ExtensionHost(),
        toolbox=Toolbox(),
    )
    parts = (TextPart(ask.text), *ask.parts) if ask.text else ask.parts
    turn = Turn(
        house, frozen, (Opening(role="user", parts=parts),), mode="prompt", label=ask.text[:80], failure="row failed"
    )

    def slow_down(notice: Any) -> None:
        plan.resume_at = max(plan.resume_at, time.monotonic() + float(notice.delay_seconds))

    token = retry_listener.set(slow_down)
    try:
        result = await turn.run()
    finally:
        retry_listener.reset(token)
    return result.text, result.usage.tokens.total, result.cost


# ---------------------------------------------------------------- asking, elsewhere


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


def run_piece(piece: Piece) -> list[tuple[str, str, int, float | None]]:
    """Answer a piece's prompts here, with keys of this process: ``(text, error, tokens, cost)`` each."""
    options = PromptOptions(**piece.options)
    kit = Kit(model=piece.model or None, provider=piece.provider, session="memory", **piece.settings)
    rows = [{"text": text, "parts": parts} for text, parts in piece.asks]

    def prompt(row: Mapping[str, Any]) -> Any:
        return (row["text"], *row["parts"])

    plan = _plan(kit, rows, prompt, options=options, concurrency=piece.concurrency, retries=piece.retries, store=False)
    plan.seed = _seed(plan)
    out: dict[int, tuple[str, str, int, float | None]] = {}

    async def go() -> None:
        answers = _Answers(plan)
        gate = asyncio.Semaphore(plan.concurrency)

        async def one(ask: _Ask) -> None:
            async with gate:
                row = await answers.of(ask)
                text = "" if row.error else (plan.store.get(ask.key) or "")
                out[ask.position] = (text, row.error, row.tokens, row.cost)

        async with asyncio.TaskGroup() as group:
            for ask in _asks(plan):
                group.create_task(one(ask))

    try:
        Desk().serve_blocking(engine.start(go()))
    finally:
        plan.store.close()
        kit.close()
    return [out[i] for i in range(len(piece.asks))]


def _submit(executor: Any, piece: Piece) -> Any:
    """Give a piece to whatever kind of executor this is; a future."""
    if hasattr(executor, "load_balanced_view"):  # ipyparallel client
        return executor.load_balanced_view().apply_async(run_piece, piece)
    if hasattr(executor, "scheduler_info"):  # Dask client; pure=False: the same piece may be asked again after a death
        return executor.submit(run_piece, piece, pure=False)
    return executor.submit(run_piece, piece)


async def _remote(executor: Any, piece: Piece) -> list[tuple[str, str, int, float | None]]:
    future = await asyncio.to_thread(_submit, executor, piece)
    try:
        if isinstance(future, concurrent.futures.Future):
            return await asyncio.wrap_future(future)
        get = future.get if hasattr(future, "get") and not hasattr(future, "result_as") else future.result
        get = future.result if hasattr(executor, "scheduler_info") else get
        return await asyncio.to_thread(get)
    except asyncio.CancelledError:
        for name in ("cancel", "abort"):
            with contextlib.suppress(Exception):
                getattr(future, name)()
        raise


def _piece(plan: _Plan, asks: Sequence[_Ask]) -> Piece:
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


class _RemoteAnswers:
    """Cuts the rows into pieces for an executor; a piece whose worker died is given out again."""

    def __init__(self, plan: _Plan) -> None:
        self._plan = plan

    async def of_many(self, asks: Sequence[_Ask]) -> list[MapRow]:
        """Results of a chunk of rows."""
        plan = self._plan
        rows: dict[int, MapRow] = {}
        wanted: dict[bytes, list[_Ask]] = {}
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
            answers = await self._send(firsts)
            for first, (text, error, tokens, cost) in zip(firsts, answers, strict=True):
                plan.spent_tokens += tokens
                plan.spent_cost += cost or 0.0
                if not error:
                    plan.store.put(first.key, text)
                for i, ask in enumerate(wanted[first.key]):
                    if error:
                        rows[ask.position] = MapRow(position=ask.position, label=ask.label, error=error)
                    else:
                        rows[ask.position] = self._read(
                            ask, text, tokens if i == 0 else 0, cost if i == 0 else 0.0, is_stored=i > 0
                        )
        return [rows[ask.position] for ask in asks]

    async def _send(self, asks: Sequence[_Ask]) -> list[tuple[str, str, int, float | None]]:
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
                last = _told(exc)
            except asyncio.CancelledError:
                raise
            except Exception as exc:  # a dead worker, whatever its executor calls it
                last = _told(exc)
        return [("", f"the worker failed {plan.retries + 1} times; last: {last}", 0, None)] * len(asks)

    def _read(self, ask: _Ask, text: str, tokens: int, cost: float | None, *, is_stored: bool) -> MapRow:
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


# ---------------------------------------------------------------- the run


async def _run(plan: _Plan, desk: Desk, tell: Callable[[MapRow], object]) -> None:
    """Answer all rows; `tell` is called on the engine as each is done."""
    plan.seed = _seed(plan)
    source = _asks(plan)
    waiting: deque[_Ask] = deque()
    pulling = asyncio.Lock()
    ended = False

    def pull() -> list[_Ask]:
        out: list[_Ask] = []
        for ask in source:
            out.append(ask)
            if len(out) >= _PULL:
                break
        return out

    async def next_ask() -> _Ask | None:
        nonlocal ended
        async with pulling:
            if not waiting and not ended:
                got = await desk.run(pull)
                ended = not got
                waiting.extend(got)
            return waiting.popleft() if waiting else None

    async def local_worker(answers: _Answers) -> None:
        while (ask := await next_ask()) is not None:
            tell(await answers.of(ask))

    async def remote_worker(answers: _RemoteAnswers) -> None:
        while True:
            asks: list[_Ask] = []
            while len(asks) < plan.chunk and (ask := await next_ask()) is not None:
                asks.append(ask)
            if not asks:
                return
            for row in await answers.of_many(asks):
                tell(row)

    try:
        async with asyncio.TaskGroup() as group:
            if plan.executor is None:
                answers = _Answers(plan)
                for _ in range(plan.concurrency):
                    group.create_task(local_worker(answers))
            else:
                remote = _RemoteAnswers(plan)
                for _ in range(plan.concurrency):
                    group.create_task(remote_worker(remote))
    except BaseExceptionGroup as group_error:
        first = group_error.exceptions[0]
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from None
    finally:
        plan.store.close()


async def amap_rows(kit: Kit, rows: Any, template: str | Callable[[Any], Any], **options: Any) -> Any:
    """`map_rows`, to be awaited."""
    keep = options.pop("keep", True)
    progress = options.pop("progress", True)
    plan = _plan(kit, rows, template, **options)
    results: dict[int, MapRow] = {}
    with _progress(plan.rows.total, show=progress) as step:
        async for row in _stream(plan):
            results[row.position] = row
            step(row)
    return plan.rows.rebuild([results[i] for i in sorted(results)], keep)


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
        ``(prompt, picture, …)``.
    schema : type or JSON schema
        Form of each answer; a record becomes one column a field.
    concurrency : int, from 1
        Rows asked at once; with `executor`, pieces out at once.
    executor : concurrent.futures.Executor, Dask client, ipyparallel client or None
        Where the asking is done.
    chunk : int
        Rows in a piece for the executor.
    retries : int
        For a row whose service was busy, and for a piece whose worker died.
    store : bool or path
        True keeps answers in the user's data folder, keyed by content; False only for this run.
    missing : {"error", "text"}
        What a missing value in a marked column is.
    max_tokens_total, max_cost, max_seconds : int, float (US dollars), float (seconds) or None
        Rows beyond a budget are not asked and say so.
    keep : bool
        Give the columns of the input back, too.
    progress : bool
        Show a bar.
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
        A mark that names no column, bad limits, a Kit that cannot travel.
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
    keep = options.pop("keep", True)
    progress = options.pop("progress", True)
    plan = _plan(kit, rows, template, **options)
    results: dict[int, MapRow] = {}
    with _progress(plan.rows.total, show=progress) as step:
        told = _Throttle(step, desk)

        def tell(row: MapRow) -> None:
            results[row.position] = row
            told(row)

        desk.serve_blocking(engine.start(_run(plan, desk, tell), desk))
        told.flush()
    return plan.rows.rebuild([results[i] for i in sorted(results)], keep)


async def stream_rows(
    kit: Kit, rows: Any, template: str | Callable[[Any], Any], **options: Any
) -> AsyncIterator[MapRow]:
    """Rows as they finish; nothing is held. Leaving the loop stops the asking."""
    async for row in _stream(_plan(kit, rows, template, **options)):
        yield row


async def _stream(plan: _Plan) -> AsyncIterator[MapRow]:
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


@contextlib.contextmanager
def _progress(total: int | None, *, show: bool) -> Iterator[Callable[[MapRow], object]]:
    if not show:
        yield lambda row: None
        return
    try:
        from tqdm.auto import tqdm
    except ImportError:
        yield lambda row: None
        return
    with tqdm(total=total, unit="row") as bar:
        errors = 0

        def step(row: MapRow) -> None:
            nonlocal errors
            bar.update(1)
            if row.error:
                errors += 1
                bar.set_postfix(errors=errors, refresh=False)

        yield step
