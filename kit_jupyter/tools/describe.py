"""What a model is shown of an object: type, shape, schema, a few values; small and quick, whatever its size.

Theory of operation
-------------------
A describer is found by the names of the object's classes, so no library is ever imported here: an
object of pandas means that pandas is loaded. Describers look at shapes, dtypes and the first few
rows; nothing scans, copies or loads data, so a frame of a gigabyte costs milliseconds. An object
with ``_repr_llm_()`` speaks for itself; other methods that the user wrote, ``__repr__`` among them, are
not called. `register` adds describers for other types.

The words of `register` and ``_repr_llm_`` follow IPython's formatters; that an object may describe
itself to a model was asked for by users of other assistants.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import math
import types
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_args

from kit_jupyter.masking import shortened
from kit_jupyter.messages import Part, TextPart
from kit_jupyter.printed import clip
from kit_jupyter.tool_value import media_of, parts_of
from kit_jupyter.tool_value import safe_repr as _any_repr
from kit_jupyter.tools.pysurvey import runs_code

__all__ = ["brief", "describe", "register", "size_text"]

Describer = Callable[[Any, "Page"], None]
_PART_TYPES = get_args(Part)
_by_type: dict[type, Callable[[Any], Any]] = {}
_by_name: dict[tuple[str, str], Describer] = {}
SAMPLE = 1000
WHOLE_ROWS = 20  # a table of no more rows is shown with all of them
WHOLE_VALUES = 160
WHOLE_LINE = 800  # characters of a column's line then


class Page:
    """Lines within a budget; later lines are left out, and counted, when it is used up."""

    def __init__(self, budget_chars: int) -> None:
        self.left = budget_chars
        self.parts: list[Part] = []
        self._lines: list[str] = []
        self._dropped = 0

    def line(self, text: str, limit: int = 300) -> bool:
        """Add a line of at most `limit` characters; False when there is no room left."""
        text = text if len(text) <= limit else f"{shortened(text, limit - 1)}…"
        if self.left < len(text) + 40:
            self._dropped += 1
            return False
        self.left -= len(text) + 1
        self._lines.append(text)
        return True

    def lines(self, texts: Iterable[str], total: int | None = None, what: str = "more", *, limit: int = 300) -> None:
        """Add lines while there is room; `total` lets the rest be counted."""
        shown = 0
        for text in texts:
            if not self.line(text, limit):
                break
            shown += 1
        if total is not None and total > shown:
            self._lines.append(f"… {total - shown:,} {what}")
            self._dropped = 0

    @property
    def text(self) -> str:
        """All lines."""
        return "\n".join(self._lines)


def register(kind: type | str, describer: Callable[[Any], Any]) -> None:
    """Describe objects of a type your own way.

    Parameters
    ----------
    kind : type or str
        The class, or ``"package.ClassName"`` without importing it.
    describer : callable(obj) -> str or parts
        Called on the user's thread; should not scan large data.

    Examples
    --------
    >>> class Robot: pass
    >>> register(Robot, lambda robot: "a robot")
    >>> describe(Robot(), "r")[0].text
    'r: a robot'
    """
    if isinstance(kind, str):
        package, _, name = kind.rpartition(".")
        _by_name[package.split(".")[0], name] = _wrapped(describer)
    else:
        _by_type[kind] = describer


def _wrapped(describer: Callable[[Any], Any]) -> Describer:
    def show(obj: Any, page: Page) -> None:
        _say(describer(obj), page)

    return show


def describe(obj: Any, name: str = "", *, budget_chars: int = 2000) -> tuple[Part, ...]:
    """Text, and a picture for what is one.

    Parameters
    ----------
    name : str
        Shown before the type.
    budget_chars : int, characters
        The text is never longer.

    Notes
    -----
    Call it on the thread that owns the object. Never raises.

    Examples
    --------
    >>> describe([1, 2, 3], "xs")[0].text
    'xs: list of 3 int\\n[1, 2, 3]'
    """
    budget_chars = max(80, budget_chars)
    page = Page(budget_chars - len(name) - 2)
    try:
        _describe(obj, page)
    except Exception as exc:
        page = Page(budget_chars - len(name) - 2)
        page.line(f"{_type_name(obj)} (describing it failed: {type(exc).__name__}: {exc})")
    text = f"{name}: {page.text}" if name else page.text
    return (TextPart(clip(text, budget_chars) if len(text) > budget_chars else text), *page.parts)


def _describe(obj: Any, page: Page) -> None:
    for cls in type(obj).__mro__:
        if cls in _by_type:
            _say(_by_type[cls](obj), page)
            return
    speak = getattr(type(obj), "_repr_llm_", None)
    if speak is not None and not isinstance(obj, type):
        _say(speak(obj), page)
        return
    for cls in type(obj).__mro__:
        found = _by_name.get((str(cls.__module__).split(".")[0], cls.__qualname__))
        if found is not None:
            found(obj, page)
            return
    _plain(obj, page)


def _say(said: Any, page: Page) -> None:
    parts = (said,) if isinstance(said, _PART_TYPES) else parts_of(said, limit=page.left)
    for part in parts:
        if isinstance(part, TextPart):
            page.line(part.text, limit=page.left - 40)
        else:
            page.parts.append(part)


# ---------------------------------------------------------------- small helpers


def _type_name(obj: Any) -> str:
    cls = type(obj)
    module = str(cls.__module__).split(".")[0]
    return cls.__qualname__ if module in ("builtins", "__main__") else f"{module}.{cls.__qualname__}"


def safe_repr(value: Any) -> str:
    """A repr that runs nothing of the user's; one they wrote is not called."""
    kinds = {type(value), *map(type, itertools.islice(value, 100))} if type(value) is deque else {type(value)}
    if any(map(runs_code, kinds)):
        return f"<{_type_name(value)}>"
    return _any_repr(value)


def size_text(size: float) -> str:
    """Bytes as a person writes them.

    Examples
    --------
    >>> size_text(1_234_567)
    '1.2 MB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def _value(value: Any, limit: int = 40) -> str:
    """One value, short; a long text is cut before it is quoted."""
    module = str(type(value).__module__).split(".")[0]
    if module == "numpy" and hasattr(value, "item") and not _shape_of(value):
        value = value.item()  # 1 instead of np.int64(1)
    if module in ("pandas", "datetime") and hasattr(value, "isoformat"):
        return str(value)
    if isinstance(value, str):
        return repr(value) if len(value) <= limit else f"{shortened(value, limit)!r}… ({len(value):,} characters)"
    if isinstance(value, bytes | bytearray):
        if len(value) <= limit:
            return repr(value[:limit])
        start = shortened(bytes(value[: limit + 4_096]).decode("latin-1"), limit).encode("latin-1", "replace")
        return f"{start!r}… ({len(value):,} bytes)"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, int):
        return str(value) if abs(value) < 10**limit else f"int of {value.bit_length():,} bits"
    if isinstance(value, list | tuple | dict | set | frozenset):
        return brief(value) if len(value) > 5 else _bounded_repr(value, limit)
    if _is_large(value):
        return brief(value)
    return _bounded_repr(value, limit)


def _bounded_repr(value: Any, limit: int, depth: int = 2) -> str:
    """A repr that never builds more than it shows."""
    if isinstance(value, list | tuple | set | frozenset | dict):
        if depth == 0 or len(value) > 20:
            return brief(value)
        left, right = {list: ("[", "]"), tuple: ("(", ")")}.get(type(value), ("{", "}"))
        if isinstance(value, dict):
            items = [f"{_bounded_repr(k, 40, depth - 1)}: {_bounded_repr(v, 40, depth - 1)}" for k, v in value.items()]
        else:
            items = [_bounded_repr(v, 40, depth - 1) for v in value]
        text = left + ", ".join(items) + ("," if isinstance(value, tuple) and len(items) == 1 else "") + right
        return text if len(text) <= limit * 4 else f"{shortened(text, limit * 4)}…"
    if isinstance(value, str | bytes | bytearray | float | int):
        return _value(value, limit)
    if _is_large(value):
        return brief(value)
    text = " ".join(safe_repr(value).split())
    return text if len(text) <= limit else f"{shortened(text, limit)}…"


def _is_large(value: Any) -> bool:
    return (
        str(type(value).__module__).split(".")[0]
        in {
            "pandas",
            "polars",
            "numpy",
            "torch",
            "xarray",
            "pyarrow",
        }
        and _shape_of(value) != ()
    )


def _shape_of(value: Any) -> tuple[Any, ...]:
    if runs_code(type(value), ("shape", "dtype", "__getattr__", "__getattribute__")):
        return ()
    try:
        return tuple(value.shape)
    except Exception:
        return ()


def brief(obj: Any) -> str:
    """One short line: type and size.

    Examples
    --------
    >>> brief({"a": 1}), brief("hi"), brief(3.5)
    ("dict of 1: 'a'", "str 'hi'", 'float 3.5')
    """
    try:
        if isinstance(obj, bool | int | float | complex) or obj is None:
            return f"{_type_name(obj)} {_value(obj)}" if obj is not None else "None"
        if isinstance(obj, str | bytes):
            return f"{_type_name(obj)} {_value(obj)}"
        if isinstance(obj, types.ModuleType):
            return f"module {obj.__name__}"
        if isinstance(obj, type):
            return f"class {obj.__qualname__}"
        if callable(obj) and hasattr(obj, "__name__"):
            return f"function {obj.__name__}{_signature(obj)}"
        if isinstance(obj, dict):
            keys = ", ".join(_value(key, 20) for key in itertools.islice(obj, 5))
            return f"dict of {len(obj):,}: {keys}{', …' if len(obj) > 5 else ''}"
        if isinstance(obj, list | tuple | set | frozenset):
            return f"{_type_name(obj)} of {len(obj):,}{_kinds(obj)}"
        shape = _shape_of(obj)
        if shape:
            dtype = getattr(obj, "dtype", None)
            sizes = " x ".join(f"{n:,}" if isinstance(n, int) else str(n) for n in shape)
            return f"{_type_name(obj)} {sizes}{f' {dtype}' if dtype is not None else ''}"
        return _type_name(obj)
    except Exception:  # an object whose attributes raise
        return type(obj).__name__


def _kinds(items: Any) -> str:
    names = list(dict.fromkeys(type(item).__qualname__ for item in itertools.islice(items, 50)))
    return f" {' | '.join(names[:3])}{' | …' if len(names) > 3 else ''}" if names else ""


def _signature(fn: Any) -> str:
    try:
        return str(inspect.signature(fn))
    except (TypeError, ValueError):
        return "(…)"


# ---------------------------------------------------------------- plain Python


def _plain(obj: Any, page: Page) -> None:
    if isinstance(obj, str | bytes | bytearray):
        page.line(f"{_type_name(obj)} of {len(obj):,} {'characters' if isinstance(obj, str) else 'bytes'}")
        page.line(_value(obj, max(100, page.left - 100)), limit=page.left)
    elif isinstance(obj, dict):
        page.line(f"{_type_name(obj)} of {len(obj):,}")
        page.lines(
            (f"{_value(k)}: {_value(v, 80)}" for k, v in itertools.islice(obj.items(), 200)), len(obj), "more keys"
        )
    elif isinstance(obj, list | tuple | set | frozenset):
        page.line(f"{_type_name(obj)} of {len(obj):,}{_kinds(obj)}")
        if len(obj) <= 20:
            page.line(_bounded_repr(obj, 200), limit=800)
        else:
            page.lines((_value(item, 80) for item in itertools.islice(obj, 10)), len(obj), "more")
    elif isinstance(obj, types.ModuleType):
        page.line(f"module {obj.__name__} {getattr(obj, '__version__', '')}".rstrip())
        page.line((inspect.getdoc(obj) or "").split("\n")[0])
        names = [name for name in vars(obj) if not name.startswith("_")]
        page.line(f"has: {', '.join(names[:60])}{' …' if len(names) > 60 else ''}", limit=900)
    elif isinstance(obj, type):
        _class(obj, page)
    elif callable(obj) and hasattr(obj, "__name__"):
        page.line(f"{type(obj).__name__} {obj.__name__}{_signature(obj)}", limit=500)
        page.lines((inspect.getdoc(obj) or "").split("\n")[:12])
    elif isinstance(obj, bool | int | float | complex) or obj is None:
        page.line(brief(obj))
    elif media_of(obj) is not None:
        picture = media_of(obj)
        page.line(f"{_type_name(obj)}, shown as a picture")
        if picture is not None:
            page.parts.append(picture)
    else:
        _object(obj, page)


def _class(obj: type, page: Page) -> None:
    page.line(f"class {obj.__qualname__}{_signature(obj)} from {obj.__module__}", limit=400)
    bases = [base.__qualname__ for base in obj.__mro__[1:-1]]
    if bases:
        page.line(f"bases: {', '.join(bases)}")
    page.lines((inspect.getdoc(obj) or "").split("\n")[:8])
    methods = [name for name, item in vars(obj).items() if callable(item) and not name.startswith("_")]
    page.line(f"methods: {', '.join(methods)}", limit=500)


def _object(obj: Any, page: Page) -> None:
    page.line(_type_name(obj))
    text = safe_repr(obj)
    if not text.startswith("<"):
        page.line(" ".join(text.split()), limit=min(600, page.left))
    if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        values = {f.name: getattr(obj, f.name, None) for f in dataclasses.fields(obj)}
    else:
        values = getattr(obj, "__dict__", {}) if isinstance(getattr(obj, "__dict__", None), dict) else {}
    values = {name: value for name, value in values.items() if not name.startswith("_")}
    page.lines((f"  .{name}: {brief(value)}" for name, value in itertools.islice(values.items(), 40)))
    if isinstance(doc := inspect.getdoc(type(obj)), str) and type(obj).__module__ != "builtins":
        page.line(doc.split("\n")[0])
    methods = [n for n, item in vars(type(obj)).items() if callable(item) and not n.startswith("_")]
    if methods:
        page.line(f"methods: {', '.join(methods[:40])}", limit=500)


# ---------------------------------------------------------------- tables


def _pandas_frame(frame: Any, page: Page) -> None:
    rows, columns = frame.shape
    memory = int(frame.iloc[:, :500].memory_usage(index=False, deep=False).sum())
    if columns > 500:
        memory = memory * columns // 500
    page.line(f"{_type_name(frame)}, {rows:,} rows x {columns:,} columns, {size_text(memory)}")
    page.line(f"index: {_pandas_index(frame.index)}")
    sample = frame.iloc[:SAMPLE, :60]
    head = frame.iloc[: _examples(rows, columns), :60]
    names = list(sample.columns)

    def column_lines() -> Iterable[str]:
        for i, name in enumerate(names):
            column = sample.iloc[:, i]
            nulls = int(column.isna().sum())
            of = f" of the first {len(column):,}" if rows > SAMPLE else ""
            missing = f", {nulls} null{of}" if nulls else ""
            examples = ", ".join(_value(value, 24) for value in head.iloc[:, i].tolist())
            label = name[:60] if isinstance(name, str) else _value(name, 40)
            yield f"  {label}: {column.dtype}{missing}; {examples}"

    page.lines(column_lines(), columns, "more columns", limit=WHOLE_LINE)


def _examples(rows: int, columns: int) -> int:
    """How many rows of a table are shown: all of a small one."""
    return rows if rows <= WHOLE_ROWS and rows * columns <= WHOLE_VALUES else 3


def _pandas_index(index: Any) -> str:
    kind = type(index).__name__
    if kind == "RangeIndex":
        return f"0 … {len(index) - 1}" if len(index) else "empty"
    names = [str(n) for n in index.names if n is not None]
    ends = f", {_value(index[0], 30)} … {_value(index[-1], 30)}" if len(index) else ""
    return f"{kind}{f' {names}' if names else ''} {index.dtype}{ends}"


def _pandas_series(series: Any, page: Page) -> None:
    memory = int(series.memory_usage(index=False, deep=False))
    page.line(f"{_type_name(series)} {series.name!r}, {len(series):,} values, {series.dtype}, {size_text(memory)}")
    page.line(f"index: {_pandas_index(series.index)}")
    sample = series.iloc[:SAMPLE]
    if len(sample) and sample.dtype.kind in "iufM":
        page.line(f"first {len(sample):,}: min {_value(sample.min())}, max {_value(sample.max())}")
    page.line(f"nulls in the first {len(sample):,}: {int(sample.isna().sum())}")
    page.lines((f"  {_value(k)}: {_value(v, 80)}" for k, v in series.iloc[:8].items()), len(series), "more")


def _pandas_any_index(index: Any, page: Page) -> None:
    page.line(f"{_type_name(index)} of {len(index):,}: {_pandas_index(index)}")


def _pandas_groupby(grouped: Any, page: Page) -> None:
    page.line(f"{_type_name(grouped)} by {_value(grouped.keys, 80)}")
    page.line(f"of {brief(grouped.obj)}")


def _polars_frame(frame: Any, page: Page) -> None:
    rows, columns = frame.shape
    page.line(f"{_type_name(frame)}, {rows:,} rows x {columns:,} columns, {size_text(frame.estimated_size())}")
    head = frame[: _examples(rows, columns)]

    def column_lines() -> Iterable[str]:
        for name, dtype in itertools.islice(frame.schema.items(), 200):
            column = frame.get_column(name)
            nulls = column.null_count()  # kept by the column, not counted
            examples = ", ".join(_value(value, 24) for value in head.get_column(name).to_list())
            yield f"  {name[:60]}: {dtype}{f', {nulls:,} null' if nulls else ''}; {examples}"

    page.lines(column_lines(), columns, "more columns", limit=WHOLE_LINE)


def _polars_series(series: Any, page: Page) -> None:
    page.line(
        f"{_type_name(series)} {series.name!r}, {len(series):,} values, {series.dtype}, {series.null_count():,} null"
    )
    page.line(f"first: {', '.join(_value(v) for v in series[:8].to_list())}")


def _polars_lazy(frame: Any, page: Page) -> None:
    page.line(f"{_type_name(frame)}: not computed yet; collect() it to see data")
    page.line(f"plan: {clip(frame.explain(optimized=False), 800)}", limit=900)


def _arrow_table(table: Any, page: Page) -> None:
    rows, columns = table.num_rows, table.num_columns
    shown = _examples(rows, columns)
    page.line(f"{_type_name(table)}, {rows:,} rows x {columns:,} columns, {size_text(table.nbytes)}")

    def column_lines() -> Iterable[str]:
        for i, entry in enumerate(itertools.islice(table.schema, 200)):
            examples = ", ".join(_value(value, 24) for value in table.column(i).slice(0, shown).to_pylist())
            nulls = table.column(i).null_count
            yield f"  {entry.name[:60]}: {entry.type}{f', {nulls:,} null' if nulls else ''}; {examples}"

    page.lines(column_lines(), columns, "more columns", limit=WHOLE_LINE)


def _arrow_schema(schema: Any, page: Page) -> None:
    page.line(f"{_type_name(schema)} of {len(schema)} fields")
    page.lines((f"  {entry.name[:60]}: {entry.type}" for entry in schema), len(schema), "more fields")


def _arrow_array(array: Any, page: Page) -> None:
    page.line(f"{_type_name(array)}, {len(array):,} values, {array.type}, {array.null_count:,} null")
    page.line(f"first: {', '.join(_value(v) for v in array.slice(0, 8).to_pylist())}")


# ---------------------------------------------------------------- arrays


def _numpy(array: Any, page: Page) -> None:
    if array.ndim == 0:
        page.line(f"{_type_name(array)} {array.dtype}: {_value(array.item())}")
        return
    shape = " x ".join(f"{n:,}" for n in array.shape)
    page.line(f"{_type_name(array)}, shape {shape}, {array.dtype}, {size_text(array.nbytes)}")
    if array.size == 0:
        return
    flat = _corner(array)
    if array.dtype.kind in "iufb":
        few = flat[:SAMPLE]
        numbers = few[few == few] if array.dtype.kind == "f" else few
        if len(numbers):
            nans = len(few) - len(numbers)
            page.line(
                f"first {len(few):,}: min {_value(numbers.min().item())}, max {_value(numbers.max().item())}"
                f"{f', {nans} nan' if nans else ''}"
            )
    if array.dtype.names:
        page.line(f"fields: {', '.join(f'{n} {array.dtype[n]}' for n in array.dtype.names)}")
    page.line(f"values: {', '.join(_value(v) for v in flat[:12].tolist())}{', …' if array.size > 12 else ''}")


def _corner(array: Any) -> Any:
    """Up to 1000 first values, without copying the whole (``ravel`` of a view would)."""
    corner, left = array, SAMPLE
    slices = []
    for size in reversed(array.shape):
        take = max(1, min(size, left))
        slices.append(slice(0, take))
        left = max(1, math.ceil(left / take))
    return corner[tuple(reversed(slices))].reshape(-1)


def _sparse(matrix: Any, page: Page) -> None:
    rows, columns = matrix.shape[0], matrix.shape[-1]
    page.line(f"{_type_name(matrix)}, {rows:,} x {columns:,}, {matrix.dtype}, {matrix.nnz:,} stored values")


def _tensor(tensor: Any, page: Page) -> None:
    shape = " x ".join(f"{n:,}" for n in tensor.shape) or "scalar"
    layout = str(getattr(tensor, "layout", "torch.strided"))
    is_plain = layout == "torch.strided" and not getattr(tensor, "is_quantized", False)
    if layout == "torch.sparse_coo":
        memory = tensor._nnz() * (8 * tensor.sparse_dim() + tensor.element_size())
    else:
        memory = tensor.element_size() * tensor.nelement()
    grad = ", requires grad" if tensor.requires_grad else ""
    grad += "" if layout == "torch.strided" else f", {layout}"
    page.line(f"{_type_name(tensor)}, shape {shape}, {tensor.dtype}, on {tensor.device}{grad}, {size_text(memory)}")
    if is_plain and str(tensor.device) == "cpu" and tensor.nelement():
        corner = _corner(tensor.detach())
        page.line(
            f"values: {', '.join(_value(v) for v in corner[:12].tolist())}{', …' if tensor.nelement() > 12 else ''}"
        )


def _torch_module(module: Any, page: Page) -> None:
    parameters = list(itertools.islice(module.parameters(), 10_000))
    count = sum(p.nelement() for p in parameters)
    trainable = sum(p.nelement() for p in parameters if p.requires_grad)
    mode = "training" if module.training else "eval"
    page.line(f"{_type_name(module)}, {count:,} parameters, {trainable:,} trainable, {mode} mode")
    page.lines(
        f"  {name}: {_bounded_repr(child, 100)}" for name, child in itertools.islice(module.named_children(), 30)
    )


def _xarray_array(array: Any, page: Page) -> None:
    sizes = ", ".join(f"{name} {size:,}" for name, size in array.sizes.items())
    lazy = "" if array.variable._in_memory else ", not loaded"
    page.line(
        f"{_type_name(array)} {array.name!r}, {sizes or 'scalar'}, {array.dtype}, {size_text(array.nbytes)}{lazy}"
    )
    page.lines(
        f"  coordinate {name}: {_coordinate(coord)}" for name, coord in itertools.islice(array.coords.items(), 20)
    )
    page.lines(f"  attribute {key}: {_value(value, 80)}" for key, value in itertools.islice(array.attrs.items(), 10))


def _xarray_dataset(dataset: Any, page: Page) -> None:
    sizes = ", ".join(f"{name} {size:,}" for name, size in dataset.sizes.items())
    page.line(f"{_type_name(dataset)}, {sizes}, {size_text(dataset.nbytes)}")
    variables = itertools.islice(dataset.data_vars.items(), 60)
    page.lines((f"  {n}: {v.dtype} over {', '.join(map(str, v.dims))}" for n, v in variables), len(dataset.data_vars))
    page.lines(f"  coordinate {name}: {_coordinate(c)}" for name, c in itertools.islice(dataset.coords.items(), 20))
    page.lines(f"  attribute {key}: {_value(value, 80)}" for key, value in itertools.islice(dataset.attrs.items(), 10))


def _coordinate(coord: Any) -> str:
    ends = ""
    if coord.ndim == 1 and coord.size and coord.variable._in_memory:
        ends = f", {_value(coord[0].item(), 30)} … {_value(coord[-1].item(), 30)}"
    return f"{coord.dtype} over {', '.join(map(str, coord.dims)) or 'nothing'}{ends}"


# ---------------------------------------------------------------- figures, estimators, graphs


def _figure(figure: Any, page: Page) -> None:
    page.line(f"{_type_name(figure)} with {len(figure.axes)} axes")
    for axes in figure.axes[:6]:
        _axes_line(axes, page)
    picture = media_of(figure)
    if picture is not None:
        page.parts.append(picture)


def _axes(axes: Any, page: Page) -> None:
    page.line(_type_name(axes))
    _axes_line(axes, page)
    picture = media_of(axes)
    if picture is not None:
        page.parts.append(picture)


def _axes_line(axes: Any, page: Page) -> None:
    facts = [axes.get_title(), f"x {axes.get_xlabel()}", f"y {axes.get_ylabel()}"]
    said = ", ".join(fact for fact in facts if len(fact) > 2)
    page.line(f"  axes: {said or 'no titles'}; {len(axes.lines)} lines, {len(axes.patches)} patches")


def _picture(image: Any, page: Page) -> None:
    page.line(f"{_type_name(image)} {image.size[0]} x {image.size[1]} {image.mode}")
    picture = media_of(image)
    if picture is not None:
        page.parts.append(picture)


def _estimator(model: Any, page: Page) -> None:
    fitted = {name: value for name, value in vars(model).items() if name.endswith("_") and not name.startswith("_")}
    page.line(f"{_type_name(model)}, {'fitted' if fitted else 'not fitted'}")
    given = model.get_params(deep=False)
    try:
        defaults = {n: p.default for n, p in inspect.signature(type(model)).parameters.items()}
        given = {n: v for n, v in given.items() if n not in defaults or safe_repr(defaults[n]) != safe_repr(v)}
    except (TypeError, ValueError):
        pass
    page.line(f"set: {', '.join(f'{n}={_value(v, 60)}' for n, v in given.items()) or 'all defaults'}", limit=600)
    for step_name, step in getattr(model, "steps", None) or ():
        page.line(f"  step {step_name}: {_type_name(step)}")
    page.lines(f"  {name}: {brief(value)}" for name, value in itertools.islice(fitted.items(), 30))


def _graph(graph: Any, page: Page) -> None:
    nodes = len(graph)
    edges = f"{graph.number_of_edges():,} edges" if nodes <= 20_000 else "edges not counted"
    kind = "directed" if graph.is_directed() else "undirected"
    page.line(f"{_type_name(graph)}, {kind}, {nodes:,} nodes, {edges}")
    page.line(f"attributes: {_bounded_repr(dict(graph.graph), 100)}")
    page.lines((f"  node {_value(n)}: {_bounded_repr(d, 60)}" for n, d in itertools.islice(graph.nodes(data=True), 6)))
    page.lines(
        f"  edge {_value(a)} – {_value(b)}: {_bounded_repr(d, 60)}"
        for a, b, d in itertools.islice(graph.edges(data=True), 6)
    )


_LIBRARIES: Mapping[tuple[str, str], Describer] = {
    ("pandas", "DataFrame"): _pandas_frame,
    ("pandas", "Series"): _pandas_series,
    ("pandas", "Index"): _pandas_any_index,
    ("pandas", "BaseGroupBy"): _pandas_groupby,
    ("polars", "DataFrame"): _polars_frame,
    ("polars", "Series"): _polars_series,
    ("polars", "LazyFrame"): _polars_lazy,
    ("pyarrow", "Table"): _arrow_table,
    ("pyarrow", "RecordBatch"): _arrow_table,
    ("pyarrow", "Schema"): _arrow_schema,
    ("pyarrow", "Array"): _arrow_array,
    ("pyarrow", "ChunkedArray"): _arrow_array,
    ("numpy", "ndarray"): _numpy,
    ("scipy", "spmatrix"): _sparse,
    ("scipy", "sparray"): _sparse,
    ("scipy", "_spbase"): _sparse,
    ("torch", "Tensor"): _tensor,
    ("torch", "Module"): _torch_module,
    ("xarray", "DataArray"): _xarray_array,
    ("xarray", "Dataset"): _xarray_dataset,
    ("matplotlib", "FigureBase"): _figure,
    ("matplotlib", "_AxesBase"): _axes,
    ("PIL", "Image"): _picture,
    ("sklearn", "BaseEstimator"): _estimator,
    ("networkx", "Graph"): _graph,
}
_by_name.update(_LIBRARIES)
