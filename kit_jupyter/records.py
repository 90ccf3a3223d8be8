"""Frozen dataclasses with slots, made some twenty times faster at import.

Theory of operation
-------------------
`dataclasses` writes and compiles about seven functions for each class, a millisecond; there are over a hundred
such classes, most of which a session never makes one of. Here the comparison, the repr and the guard are closures,
and ``__init__`` is compiled when the first value is made, or when somebody asks for its signature. All else is
`dataclasses`' own: fields, ``replace``, ``match``, subclasses made by the usual decorator, pickling.
"""

from __future__ import annotations

import dataclasses
import operator
import reprlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls: type | None = None, /, **options: Any) -> Any:
        """As `dataclasses.dataclass`, for frozen classes with slots and a docstring; knows `kw_only`, `weakref_slot`.

        Examples
        --------
        >>> @dataclass(frozen=True, slots=True)
        ... class Place:
        ...     "Where."
        ...     name: str
        ...     floor: int = 0
        >>> Place("hall"), Place("hall") == Place("hall", 0), len({Place("a"), Place("a")})
        (Place(name='hall', floor=0), True, 1)
        >>> dataclasses.replace(Place("hall"), floor=2).floor
        2
        """
        if not (options.pop("frozen", False) and options.pop("slots", False)):
            raise TypeError("only for frozen classes with slots; take dataclasses.dataclass for others")
        if unknown := options.keys() - {"kw_only", "weakref_slot"}:
            raise TypeError(f"unknown here: {', '.join(unknown)}; take dataclasses.dataclass")
        return _made(cls, options) if cls is not None else lambda cls: _made(cls, options)


def _made(cls: type, options: dict[str, Any]) -> type:
    said = cls.__dict__
    named_hash = said.get("__hash__", dataclasses.MISSING)
    makes_hash = named_hash is dataclasses.MISSING or (named_hash is None and "__eq__" in said)
    # A plain class may not inherit from a frozen one; the guard is ours, so for this moment the bases do not say so.
    bases: list[Any] = [base.__dict__.get("__dataclass_params__") for base in cls.__mro__[1:]]
    frozen = [params for params in bases if params is not None and params.frozen]
    for params in frozen:
        params.frozen = False
    try:
        made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True, **options)(cls)
    finally:
        for params in frozen:
            params.frozen = True
    params = made.__dataclass_params__
    params.init = params.repr = params.eq = params.frozen = True
    fields = dataclasses.fields(made)
    compared = _getter([f.name for f in fields if f.compare])
    hashed = _getter([f.name for f in fields if (f.compare if f.hash is None else f.hash)])
    shown = [f.name for f in fields if f.repr]
    names = [f.name for f in fields]

    def __eq__(self: Any, other: Any) -> Any:
        return compared(self) == compared(other) if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self: Any) -> int:
        return hash(hashed(self))

    @reprlib.recursive_repr()
    def __repr__(self: Any) -> str:
        return f"{self.__class__.__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    def __setattr__(self: Any, name: str, value: Any) -> None:
        if type(self) is made or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(made, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:
        if type(self) is made or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(made, self).__delattr__(name)

    def __getstate__(self: Any) -> list[Any]:
        return [getattr(self, name) for name in names]

    def __setstate__(self: Any, state: list[Any]) -> None:
        for name, value in zip(names, state, strict=True):
            object.__setattr__(self, name, value)

    for method in (__eq__, __repr__, __setattr__, __delattr__, __getstate__, __setstate__):
        if method.__name__ not in said:
            method.__qualname__ = f"{made.__qualname__}.{method.__name__}"
            setattr(made, method.__name__, method)
    if makes_hash:
        made.__hash__ = __hash__
    if "__init__" not in said:
        made.__init__ = _Init(made, fields)
    return cast(type, made)


def _getter(names: list[str]) -> Callable[[Any], Any]:
    return operator.attrgetter(*names) if names else lambda _: ()


class _Init:
    """Stands for ``__init__`` until somebody looks at it, then makes it and steps aside."""

    def __init__(self, cls: Any, fields: tuple[Any, ...]) -> None:
        self._cls, self._fields = cls, fields

    def __get__(self, value: Any, owner: Any = None) -> Any:
        init = _compiled(self._cls, self._fields)
        self._cls.__init__ = init
        return init if value is None else init.__get__(value, owner)


def _compiled(cls: Any, fields: tuple[Any, ...]) -> Any:
    """An ``__init__`` that sets each slot by its descriptor."""
    given: dict[str, Any] = {"_new": dataclasses.MISSING}
    plain: list[str] = []
    keyword: list[str] = []
    body: list[str] = []
    for f in fields:
        name = f.name
        given[f"_set_{name}"] = getattr(cls, name).__set__
        value = name
        if f.default_factory is not dataclasses.MISSING:
            given[f"_make_{name}"] = f.default_factory
            value = f"_make_{name}() if {name} is _new else {name}" if f.init else f"_make_{name}()"
        elif f.default is not dataclasses.MISSING:
            given[f"_default_{name}"] = f.default
            value = name if f.init else f"_default_{name}"
        elif not f.init:
            continue
        if f.init:
            is_made = f"_make_{name}" in given
            default = "=_new" if is_made else f"=_default_{name}" if f"_default_{name}" in given else ""
            (keyword if f.kw_only else plain).append(name + default)
        body.append(f"_set_{name}(_self, {value})")
    if hasattr(cls, "__post_init__"):
        body.append("_self.__post_init__()")
    arguments = ", ".join(["_self", *plain, *(["*", *keyword] if keyword else [])])
    lines = "\n  ".join(body or ["pass"])
    found: dict[str, Any] = {}
    source = f"def make({', '.join(given)}):\n def __init__({arguments}):\n  {lines}\n return __init__"
    exec(source, sys.modules[cls.__module__].__dict__, found)
    init = found["make"](**given)
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__annotations__ = {**{f.name: f.type for f in fields if f.init}, "return": None}
    return init
