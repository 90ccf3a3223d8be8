"""What came of one row, and rows of every kind of table: read in order, given back with answers beside them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import Any

from kit_jupyter.batch.kinds import Column, Form
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
    rebuild: Callable[[list[MapRow], Form, bool], Any]


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
        return Rows(
            zip(data.index, records, strict=True), columns, len(data), lambda r, f, k: _to_pandas(data, r, f, keep=k)
        )
    if kind[0] == "pandas" and kind[1] == "Series":
        name = str(data.name) if data.name is not None else "text"
        records = ({name: value} for value in data)
        return Rows(
            zip(data.index, records, strict=True),
            [name],
            len(data),
            lambda r, f, k: _to_pandas(data.to_frame(name), r, f, keep=k),
        )
    if kind[0] == "polars" and kind[1] == "DataFrame":
        return Rows(
            enumerate(data.iter_rows(named=True)),
            list(data.columns),
            len(data),
            lambda r, f, k: _to_polars(data, r, f, keep=k),
        )
    if kind[0] == "polars" and kind[1] == "Series":
        frame = data.to_frame(data.name or "text")
        return Rows(
            enumerate(frame.iter_rows(named=True)),
            list(frame.columns),
            len(frame),
            lambda r, f, k: _to_polars(frame, r, f, keep=k),
        )
    if kind[0] == "pyarrow" and kind[1] in ("Table", "RecordBatch"):
        names = list(data.schema.names)
        batches = data.to_batches() if kind[1] == "Table" else [data]
        records = (row for batch in batches for row in batch.to_pylist())
        return Rows(enumerate(records), names, data.num_rows, lambda r, f, k: _to_arrow(data, r, f, keep=k))
    if isinstance(data, str | bytes | Mapping) or not isinstance(data, Iterable):
        raise UsageError(
            f"map goes over a frame, a table, a list or another iterable of rows; got {type(data).__name__}"
        )
    total = len(data) if isinstance(data, Sized) else None
    items = iter(data)
    head = next(items, None)
    whole: Iterator[Any] = items if head is None else _chain(head, items)
    keys = [str(k) for k in head] if isinstance(head, Mapping) else None
    return Rows(enumerate(whole), keys, total, lambda r, _f, _k: r)


def _chain(head: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield head
    yield from rest


def _columns(results: list[MapRow], form: Form) -> dict[str, Column]:
    """Result columns: one per field when every answer is a record, else ``answer``; and ``error``.

    Fields that the schema names are there, whether a row was answered or not.
    """
    answers = [_plain(r.answer) for r in results]
    fields = [name for answer in answers if isinstance(answer, dict) for name in answer]
    fields = list(dict.fromkeys((*fields, *form.fields)))
    if fields and all(answer is None or isinstance(answer, dict) for answer in answers):
        table = {
            name: Column([None if a is None else a.get(name) for a in answers], form.fields.get(name, ""))
            for name in fields
        }
    else:
        plain = [r.answer if not isinstance(a, dict) else a for r, a in zip(results, answers, strict=True)]
        table = {"answer": Column(plain, form.kind)}
    return {**table, "error": Column([r.error or None for r in results])}


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


def _free(table: dict[str, Column], taken: Iterable[str]) -> dict[str, Column]:
    """Result columns under names that the frame does not have yet."""
    used = set(taken)
    out: dict[str, Column] = {}
    for name, column in table.items():
        free = name
        while free in used:
            free += "_"
        out[free] = column
    return out


def _to_pandas(frame: Any, results: list[MapRow], form: Form, *, keep: bool) -> Any:
    import pandas as pd

    table = _free(_columns(results, form), map(str, frame.columns) if keep else ())
    made = pd.DataFrame({k: pd.Series(c.values, index=range(len(c.values)), dtype=_dtype(c)) for k, c in table.items()})
    made.index = frame.index
    if not keep:
        return made
    out = frame.copy(deep=False)
    for name in made.columns:
        out[name] = made[name].array
    return out


def _dtype(column: Column) -> Any:
    """Numbers and truths stay such beside a hole, as float64 or in pandas' types that know holes."""
    match column.kind_of(column.values):
        case "boolean":
            return "boolean" if column.has_holes else "bool"
        case "integer":
            return "Int64" if column.has_holes else "int64"
        case "number":
            return "float64"
    # object columns: pandas would turn a column of None into NaN, and lists into something else
    is_plain = not column.has_holes and all(isinstance(v, bool | int | float | str) for v in column.values)
    return None if is_plain else object


def _to_polars(frame: Any, results: list[MapRow], form: Form, *, keep: bool) -> Any:
    import polars as pl

    table = _free(_columns(results, form), frame.columns if keep else ())
    made = [_polars_series(pl, name, column) for name, column in table.items()]
    return frame.with_columns(made) if keep else pl.DataFrame(made)


def _polars_series(pl: Any, name: str, column: Column) -> Any:
    values = [_plain(v) for v in column.values]
    dtypes = {"boolean": pl.Boolean, "integer": pl.Int64, "number": pl.Float64}
    if (dtype := dtypes.get(column.kind_of(values))) is not None:
        return pl.Series(name, values, dtype=dtype, strict=False)  # a whole float is a fine integer
    if all(v is None for v in values):
        return pl.Series(name, values, dtype=pl.String)
    try:
        return pl.Series(name, values)
    except (TypeError, pl.exceptions.PolarsError):
        return pl.Series(name, [None if v is None else json.dumps(v, default=str) for v in values])


def _to_arrow(table: Any, results: list[MapRow], form: Form, *, keep: bool) -> Any:
    import pyarrow as pa

    made = _free(_columns(results, form), table.schema.names if keep else ())
    out = (pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table) if keep else None
    arrays = {name: _arrow_array(pa, column) for name, column in made.items()}
    if out is None:
        return pa.table(arrays)
    for name, array in arrays.items():
        out = out.append_column(name, array)
    return out


def _arrow_array(pa: Any, column: Column) -> Any:
    values = [_plain(v) for v in column.values]
    types = {"boolean": pa.bool_(), "integer": pa.int64(), "number": pa.float64()}
    wanted = types.get(column.kind_of(values))
    try:
        return pa.array(values, type=wanted or (pa.string() if all(v is None for v in values) else None))
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array([None if v is None else json.dumps(v, default=str) for v in values])
