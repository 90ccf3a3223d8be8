"""Values in a few words: short texts that build no more than they show, and run nothing that a user wrote."""

from __future__ import annotations

import inspect
import itertools
import types
from collections import deque
from typing import Any

from kit_jupyter.masking import shortened
from kit_jupyter.tool_value import safe_repr as _any_repr
from kit_jupyter.tools.pysurvey import runs_code

__all__ = ["bounded_repr", "brief", "kinds_of", "safe_repr", "signature_of", "size_text", "type_name", "short"]


def type_name(obj: Any) -> str:
    """The type's name, with its library's."""
    cls = type(obj)
    module = str(cls.__module__).split(".")[0]
    return cls.__qualname__ if module in ("builtins", "__main__") else f"{module}.{cls.__qualname__}"


def safe_repr(value: Any) -> str:
    """A repr that runs nothing of the user's; one they wrote is not called."""
    kinds = {type(value), *map(type, itertools.islice(value, 100))} if type(value) is deque else {type(value)}
    if any(map(runs_code, kinds)):
        return f"<{type_name(value)}>"
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


def short(value: Any, limit: int = 40) -> str:
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
        return brief(value) if len(value) > 5 else bounded_repr(value, limit)
    if _is_large(value):
        return brief(value)
    return bounded_repr(value, limit)


def bounded_repr(value: Any, limit: int, depth: int = 2) -> str:
    """A repr that never builds more than it shows."""
    if isinstance(value, list | tuple | set | frozenset | dict):
        if depth == 0 or len(value) > 20:
            return brief(value)
        left, right = {list: ("[", "]"), tuple: ("(", ")")}.get(type(value), ("{", "}"))
        if isinstance(value, dict):
            items = [f"{bounded_repr(k, 40, depth - 1)}: {bounded_repr(v, 40, depth - 1)}" for k, v in value.items()]
        else:
            items = [bounded_repr(v, 40, depth - 1) for v in value]
        text = left + ", ".join(items) + ("," if isinstance(value, tuple) and len(items) == 1 else "") + right
        return text if len(text) <= limit * 4 else f"{shortened(text, limit * 4)}…"
    if isinstance(value, str | bytes | bytearray | float | int):
        return short(value, limit)
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
            return f"{type_name(obj)} {short(obj)}" if obj is not None else "None"
        if isinstance(obj, str | bytes):
            return f"{type_name(obj)} {short(obj)}"
        if isinstance(obj, types.ModuleType):
            return f"module {obj.__name__}"
        if isinstance(obj, type):
            return f"class {obj.__qualname__}"
        if callable(obj) and hasattr(obj, "__name__"):
            return f"function {obj.__name__}{signature_of(obj)}"
        if isinstance(obj, dict):
            keys = ", ".join(short(key, 20) for key in itertools.islice(obj, 5))
            return f"dict of {len(obj):,}: {keys}{', …' if len(obj) > 5 else ''}"
        if isinstance(obj, list | tuple | set | frozenset):
            return f"{type_name(obj)} of {len(obj):,}{kinds_of(obj)}"
        shape = _shape_of(obj)
        if shape:
            dtype = getattr(obj, "dtype", None)
            sizes = " x ".join(f"{n:,}" if isinstance(n, int) else str(n) for n in shape)
            return f"{type_name(obj)} {sizes}{f' {dtype}' if dtype is not None else ''}"
        return type_name(obj)
    except Exception:  # an object whose attributes raise
        return type(obj).__name__


def kinds_of(items: Any) -> str:
    """Types of the first items, with a space before them; empty when there are none."""
    names = list(dict.fromkeys(type(item).__qualname__ for item in itertools.islice(items, 50)))
    return f" {' | '.join(names[:3])}{' | …' if len(names) > 3 else ''}" if names else ""


def signature_of(fn: Any) -> str:
    """The parameters of a function, in brackets."""
    try:
        return str(inspect.signature(fn))
    except (TypeError, ValueError):
        return "(…)"
