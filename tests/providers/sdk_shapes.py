"""Whether a request body is what an official SDK's types allow, unknown fields and all."""

from __future__ import annotations

import collections.abc
import functools
import types
import typing
from typing import Any, Literal

import typing_extensions


def misfits(value: Any, shape: Any, where: str = "$") -> list[str]:
    """What of `value` a type of the SDK does not allow, a line each; unknown and missing keys count."""
    origin = typing_extensions.get_origin(shape)
    arguments = typing_extensions.get_args(shape)
    if shape is Any or shape is object:
        return []
    if origin in (typing.Required, typing.NotRequired, typing_extensions.Required, typing_extensions.NotRequired):
        return misfits(value, arguments[0], where)
    if origin is typing.Annotated:
        return misfits(value, arguments[0], where)
    if origin in (typing.Union, types.UnionType):
        return _of_union(value, arguments, where)
    if origin in (Literal, typing_extensions.Literal):
        return [] if value in arguments else [f"{where}: {value!r} is none of {arguments}"]
    if typing_extensions.is_typeddict(shape):
        return _of_dict(value, shape, where)
    if origin in (list, collections.abc.Iterable, collections.abc.Sequence) or "Sequence" in str(origin):
        if not isinstance(value, list):
            return [f"{where}: {type(value).__name__} is no list"]
        return [fault for at, item in enumerate(value) for fault in misfits(item, arguments[0], f"{where}[{at}]")]
    if origin in (dict, collections.abc.Mapping):
        if not isinstance(value, dict):
            return [f"{where}: {type(value).__name__} is no object"]
        return [fault for key, item in value.items() for fault in misfits(item, arguments[1], f"{where}.{key}")]
    if shape is type(None) or shape is None:
        return [] if value is None else [f"{where}: {value!r} is not null"]
    if shape is float:
        return [] if isinstance(value, int | float) and not isinstance(value, bool) else [f"{where}: no number"]
    if isinstance(shape, type):
        good = isinstance(value, shape) and not (shape is int and isinstance(value, bool))
        return [] if good else [f"{where}: {value!r} is no {shape.__name__}"]
    if "IO[" in str(shape) or "PathLike" in str(shape):
        return [f"{where}: a file cannot stand in JSON"]
    raise AssertionError(f"{where}: the checker does not know {shape!r}")


def _of_union(value: Any, shapes: tuple[Any, ...], where: str) -> list[str]:
    tried = [misfits(value, shape, where) for shape in shapes]
    if any(not faults for faults in tried):
        return []
    if isinstance(value, dict) and "type" in value:
        for shape, faults in zip(shapes, tried, strict=True):
            if not any(fault.startswith(f"{where}.type:") for fault in faults) and typing_extensions.is_typeddict(
                shape
            ):
                return faults
    return min(tried, key=len)


@functools.cache
def _hints(shape: Any) -> tuple[dict[str, Any], set[str]]:
    """Annotations and required keys; a TypedDict's own record of these is wrong for string annotations."""
    hints = typing_extensions.get_type_hints(shape, include_extras=True)
    says_required = (typing.Required, typing_extensions.Required)
    required = {name for name, hint in hints.items() if typing_extensions.get_origin(hint) in says_required}
    if getattr(shape, "__total__", True) and not required:
        optional = (typing.NotRequired, typing_extensions.NotRequired)
        required = {name for name, hint in hints.items() if typing_extensions.get_origin(hint) not in optional}
    return hints, required


def _of_dict(value: Any, shape: Any, where: str) -> list[str]:
    if not isinstance(value, dict):
        return [f"{where}: {type(value).__name__} is no object"]
    hints, required = _hints(shape)
    allows_extra = "extra" in str(getattr(shape, "__pydantic_config__", ""))
    out = [f"{where}.{name}: missing" for name in required if name not in value]
    for name, item in value.items():
        if name in hints:
            out += misfits(item, hints[name], f"{where}.{name}")
        elif not allows_extra:
            out.append(f"{where}.{name}: unknown to {shape.__name__}")
    return out
