"""What came of one row, and rows of every kind of table: read in order, given back with answers beside them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import Any

from kit_jupyter.errors import UsageError

__all__ = ["MapRow", "Rows", "rows_of"]


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


@dataclass(slots=True)
class Rows:
    """Rows as ``(label, row)``; `columns` is None when rows are not records."""

    items: Iterator[tuple[Any, Any]]
    columns: list[str] | None
    total: int | None
    rebuild: Callable[[list[MapRow], bool], Any]


def rows_of(data: Any) -> Rows:
    """The rows of a pandas, polars or Arrow table, or of any iterable.

    Raises
    ------
    UsageError
        If `data` has no rows to go over.
    """
    kind = type(data).__module__.split(".")[0], type(data).__name__
    if kind[0] == "pandas" and kind[1] == "DataFrame":
        columns = [str(c) for c in data.columns]
        records = (dict(zip(columns, values, strict=True)) for values in data.itertuples(index=False, name=None))
        return Rows(zip(data.index, records, strict=True), columns, len(data), lambda r, k: _to_pandas(data, r, keep=k))
    if kind[0] == "pandas" and kind[1] == "Series":
        name = str(data.name) if data.name is not None else "text"
        records = ({name: value} for value in data)
        return Rows(
            zip(data.index, records, strict=True),
            [name],
            len(data),
            lambda r, k: _to_pandas(data.to_frame(name), r, keep=k),
        )
    if kind[0] == "polars" and kind[1] == "DataFrame":
        return Rows(
            enumerate(data.iter_rows(named=True)),
            list(data.columns),
            len(data),
            lambda r, k: _to_polars(data, r, keep=k),
        )
    if kind[0] == "polars" and kind[1] == "Series":
        frame = data.to_frame(data.name or "text")
        return Rows(
            enumerate(frame.iter_rows(named=True)),
            list(frame.columns),
            len(frame),
            lambda r, k: _to_polars(frame, r, keep=k),
        )
    if kind[0] == "pyarrow" and kind[1] in ("Table", "RecordBatch"):
        names = list(data.schema.names)
        batches = data.to_batches() if kind[1] == "Table" else [data]
        records = (row for batch in batches for row in batch.to_pylist())
        return Rows(enumerate(records), names, data.num_rows, lambda r, k: _to_arrow(data, r, keep=k))
    if isinstance(data, str | bytes | Mapping) or not isinstance(data, Iterable):
        raise UsageError(
            f"map goes over a frame, a table, a list or another iterable of rows; got {type(data).__name__}"
        )
    total = len(data) if isinstance(data, Sized) else None
    items = iter(data)
    head = next(items, None)
    whole: Iterator[Any] = items if head is None else _chain(head, items)
    keys = [str(k) for k in head] if isinstance(head, Mapping) else None
    return Rows(enumerate(whole), keys, total, lambda r, _k: r)


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
