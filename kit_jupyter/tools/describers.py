"""Describers of the objects that data scientists have: tables, arrays, tensors, figures, estimators, graphs.

Each looks at shapes, dtypes and the first few rows; none imports its library, scans, copies or loads data.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kit_jupyter.masking import shortened
from kit_jupyter.messages import Part
from kit_jupyter.printed import clip
from kit_jupyter.tool_value import media_of
from kit_jupyter.tools.brief import bounded_repr, brief, safe_repr, short, size_text, type_name

__all__ = ["LIBRARIES", "Describer", "Page"]

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


Describer = Callable[[Any, Page], None]


# ---------------------------------------------------------------- tables


def _pandas_frame(frame: Any, page: Page) -> None:
    rows, columns = frame.shape
    memory = int(frame.iloc[:, :500].memory_usage(index=False, deep=False).sum())
    if columns > 500:
        memory = memory * columns // 500
    page.line(f"{type_name(frame)}, {rows:,} rows x {columns:,} columns, {size_text(memory)}")
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
            examples = ", ".join(short(value, 24) for value in head.iloc[:, i].tolist())
            label = name[:60] if isinstance(name, str) else short(name, 40)
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
    ends = f", {short(index[0], 30)} … {short(index[-1], 30)}" if len(index) else ""
    return f"{kind}{f' {names}' if names else ''} {index.dtype}{ends}"


def _pandas_series(series: Any, page: Page) -> None:
    memory = int(series.memory_usage(index=False, deep=False))
    page.line(f"{type_name(series)} {series.name!r}, {len(series):,} values, {series.dtype}, {size_text(memory)}")
    page.line(f"index: {_pandas_index(series.index)}")
    sample = series.iloc[:SAMPLE]
    if len(sample) and sample.dtype.kind in "iufM":
        page.line(f"first {len(sample):,}: min {short(sample.min())}, max {short(sample.max())}")
    page.line(f"nulls in the first {len(sample):,}: {int(sample.isna().sum())}")
    page.lines((f"  {short(k)}: {short(v, 80)}" for k, v in series.iloc[:8].items()), len(series), "more")


def _pandas_any_index(index: Any, page: Page) -> None:
    page.line(f"{type_name(index)} of {len(index):,}: {_pandas_index(index)}")


def _pandas_groupby(grouped: Any, page: Page) -> None:
    page.line(f"{type_name(grouped)} by {short(grouped.keys, 80)}")
    page.line(f"of {brief(grouped.obj)}")


def _polars_frame(frame: Any, page: Page) -> None:
    rows, columns = frame.shape
    page.line(f"{type_name(frame)}, {rows:,} rows x {columns:,} columns, {size_text(frame.estimated_size())}")
    head = frame[: _examples(rows, columns)]

    def column_lines() -> Iterable[str]:
        for name, dtype in itertools.islice(frame.schema.items(), 200):
            column = frame.get_column(name)
            nulls = column.null_count()  # kept by the column, not counted
            examples = ", ".join(short(value, 24) for value in head.get_column(name).to_list())
            yield f"  {name[:60]}: {dtype}{f', {nulls:,} null' if nulls else ''}; {examples}"

    page.lines(column_lines(), columns, "more columns", limit=WHOLE_LINE)


def _polars_series(series: Any, page: Page) -> None:
    page.line(
        f"{type_name(series)} {series.name!r}, {len(series):,} values, {series.dtype}, {series.null_count():,} null"
    )
    page.line(f"first: {', '.join(short(v) for v in series[:8].to_list())}")


def _polars_lazy(frame: Any, page: Page) -> None:
    page.line(f"{type_name(frame)}: not computed yet; collect() it to see data")
    page.line(f"plan: {clip(frame.explain(optimized=False), 800)}", limit=900)


def _arrow_table(table: Any, page: Page) -> None:
    rows, columns = table.num_rows, table.num_columns
    shown = _examples(rows, columns)
    page.line(f"{type_name(table)}, {rows:,} rows x {columns:,} columns, {size_text(table.nbytes)}")

    def column_lines() -> Iterable[str]:
        for i, entry in enumerate(itertools.islice(table.schema, 200)):
            examples = ", ".join(short(value, 24) for value in table.column(i).slice(0, shown).to_pylist())
            nulls = table.column(i).null_count
            yield f"  {entry.name[:60]}: {entry.type}{f', {nulls:,} null' if nulls else ''}; {examples}"

    page.lines(column_lines(), columns, "more columns", limit=WHOLE_LINE)


def _arrow_schema(schema: Any, page: Page) -> None:
    page.line(f"{type_name(schema)} of {len(schema)} fields")
    page.lines((f"  {entry.name[:60]}: {entry.type}" for entry in schema), len(schema), "more fields")


def _arrow_array(array: Any, page: Page) -> None:
    page.line(f"{type_name(array)}, {len(array):,} values, {array.type}, {array.null_count:,} null")
    page.line(f"first: {', '.join(short(v) for v in array.slice(0, 8).to_pylist())}")


# ---------------------------------------------------------------- arrays


def _numpy(array: Any, page: Page) -> None:
    if array.ndim == 0:
        page.line(f"{type_name(array)} {array.dtype}: {short(array.item())}")
        return
    shape = " x ".join(f"{n:,}" for n in array.shape)
    page.line(f"{type_name(array)}, shape {shape}, {array.dtype}, {size_text(array.nbytes)}")
    if array.size == 0:
        return
    flat = _corner(array)
    if array.dtype.kind in "iufb":
        few = flat[:SAMPLE]
        numbers = few[few == few] if array.dtype.kind == "f" else few
        if len(numbers):
            nans = len(few) - len(numbers)
            page.line(
                f"first {len(few):,}: min {short(numbers.min().item())}, max {short(numbers.max().item())}"
                f"{f', {nans} nan' if nans else ''}"
            )
    if array.dtype.names:
        page.line(f"fields: {', '.join(f'{n} {array.dtype[n]}' for n in array.dtype.names)}")
    page.line(f"values: {', '.join(short(v) for v in flat[:12].tolist())}{', …' if array.size > 12 else ''}")


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
    page.line(f"{type_name(matrix)}, {rows:,} x {columns:,}, {matrix.dtype}, {matrix.nnz:,} stored values")


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
    page.line(f"{type_name(tensor)}, shape {shape}, {tensor.dtype}, on {tensor.device}{grad}, {size_text(memory)}")
    if is_plain and str(tensor.device) == "cpu" and tensor.nelement():
        corner = _corner(tensor.detach())
        page.line(
            f"values: {', '.join(short(v) for v in corner[:12].tolist())}{', …' if tensor.nelement() > 12 else ''}"
        )


def _torch_module(module: Any, page: Page) -> None:
    parameters = list(itertools.islice(module.parameters(), 10_000))
    count = sum(p.nelement() for p in parameters)
    trainable = sum(p.nelement() for p in parameters if p.requires_grad)
    mode = "training" if module.training else "eval"
    page.line(f"{type_name(module)}, {count:,} parameters, {trainable:,} trainable, {mode} mode")
    page.lines(f"  {name}: {bounded_repr(child, 100)}" for name, child in itertools.islice(module.named_children(), 30))


def _xarray_array(array: Any, page: Page) -> None:
    sizes = ", ".join(f"{name} {size:,}" for name, size in array.sizes.items())
    lazy = "" if array.variable._in_memory else ", not loaded"
    page.line(f"{type_name(array)} {array.name!r}, {sizes or 'scalar'}, {array.dtype}, {size_text(array.nbytes)}{lazy}")
    page.lines(
        f"  coordinate {name}: {_coordinate(coord)}" for name, coord in itertools.islice(array.coords.items(), 20)
    )
    page.lines(f"  attribute {key}: {short(value, 80)}" for key, value in itertools.islice(array.attrs.items(), 10))


def _xarray_dataset(dataset: Any, page: Page) -> None:
    sizes = ", ".join(f"{name} {size:,}" for name, size in dataset.sizes.items())
    page.line(f"{type_name(dataset)}, {sizes}, {size_text(dataset.nbytes)}")
    variables = itertools.islice(dataset.data_vars.items(), 60)
    page.lines((f"  {n}: {v.dtype} over {', '.join(map(str, v.dims))}" for n, v in variables), len(dataset.data_vars))
    page.lines(f"  coordinate {name}: {_coordinate(c)}" for name, c in itertools.islice(dataset.coords.items(), 20))
    page.lines(f"  attribute {key}: {short(value, 80)}" for key, value in itertools.islice(dataset.attrs.items(), 10))


def _coordinate(coord: Any) -> str:
    ends = ""
    if coord.ndim == 1 and coord.size and coord.variable._in_memory:
        ends = f", {short(coord[0].item(), 30)} … {short(coord[-1].item(), 30)}"
    return f"{coord.dtype} over {', '.join(map(str, coord.dims)) or 'nothing'}{ends}"


# ---------------------------------------------------------------- figures, estimators, graphs


def _figure(figure: Any, page: Page) -> None:
    page.line(f"{type_name(figure)} with {len(figure.axes)} axes")
    for axes in figure.axes[:6]:
        _axes_line(axes, page)
    picture = media_of(figure)
    if picture is not None:
        page.parts.append(picture)


def _axes(axes: Any, page: Page) -> None:
    page.line(type_name(axes))
    _axes_line(axes, page)
    picture = media_of(axes)
    if picture is not None:
        page.parts.append(picture)


def _axes_line(axes: Any, page: Page) -> None:
    facts = [axes.get_title(), f"x {axes.get_xlabel()}", f"y {axes.get_ylabel()}"]
    said = ", ".join(fact for fact in facts if len(fact) > 2)
    page.line(f"  axes: {said or 'no titles'}; {len(axes.lines)} lines, {len(axes.patches)} patches")


def _picture(image: Any, page: Page) -> None:
    page.line(f"{type_name(image)} {image.size[0]} x {image.size[1]} {image.mode}")
    picture = media_of(image)
    if picture is not None:
        page.parts.append(picture)


def _estimator(model: Any, page: Page) -> None:
    fitted = {name: value for name, value in vars(model).items() if name.endswith("_") and not name.startswith("_")}
    page.line(f"{type_name(model)}, {'fitted' if fitted else 'not fitted'}")
    given = model.get_params(deep=False)
    try:
        defaults = {n: p.default for n, p in inspect.signature(type(model)).parameters.items()}
        given = {n: v for n, v in given.items() if n not in defaults or safe_repr(defaults[n]) != safe_repr(v)}
    except (TypeError, ValueError):
        pass
    page.line(f"set: {', '.join(f'{n}={short(v, 60)}' for n, v in given.items()) or 'all defaults'}", limit=600)
    for step_name, step in getattr(model, "steps", None) or ():
        page.line(f"  step {step_name}: {type_name(step)}")
    page.lines(f"  {name}: {brief(value)}" for name, value in itertools.islice(fitted.items(), 30))


def _graph(graph: Any, page: Page) -> None:
    nodes = len(graph)
    edges = f"{graph.number_of_edges():,} edges" if nodes <= 20_000 else "edges not counted"
    kind = "directed" if graph.is_directed() else "undirected"
    page.line(f"{type_name(graph)}, {kind}, {nodes:,} nodes, {edges}")
    page.line(f"attributes: {bounded_repr(dict(graph.graph), 100)}")
    page.lines((f"  node {short(n)}: {bounded_repr(d, 60)}" for n, d in itertools.islice(graph.nodes(data=True), 6)))
    page.lines(
        f"  edge {short(a)} – {short(b)}: {bounded_repr(d, 60)}"
        for a, b, d in itertools.islice(graph.edges(data=True), 6)
    )


#: By package and class; a class that inherits from one of these is described by it, too.
LIBRARIES: Mapping[tuple[str, str], Describer] = {
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
