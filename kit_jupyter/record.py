"""What the many small records of a session share: comparison, hash and repr, written once.

Theory of operation
-------------------
`dataclass` compiles these three for each class by itself. There are some seventy records, all needed
for the first answer, and it is an eighth of the time to it. So they say ``eq=False, repr=False`` and
take them from here. They mean the same, `field` with ``compare``, ``hash`` and ``repr`` included.
"""

from __future__ import annotations

from dataclasses import Field, fields
from reprlib import recursive_repr
from typing import Any

__all__ = ["Record"]


_known: dict[type, tuple[Field[Any], ...]] = {}


def _fields(cls: type) -> tuple[Field[Any], ...]:
    found = _known.get(cls)
    if found is None:
        found = _known[cls] = fields(cls)
    return found


class Record:
    """Base of a frozen dataclass made with ``eq=False, repr=False``."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if other.__class__ is not self.__class__:
            return NotImplemented
        return all(getattr(self, f.name) == getattr(other, f.name) for f in _fields(type(self)) if f.compare)

    def __hash__(self) -> int:
        counts = [f.name for f in _fields(type(self)) if (f.compare if f.hash is None else f.hash)]
        return hash(tuple([getattr(self, name) for name in counts]))

    @recursive_repr()
    def __repr__(self) -> str:
        shown = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in _fields(type(self)) if f.repr)
        return f"{type(self).__qualname__}({shown})"
