"""Records compare, hash and print as dataclasses do by themselves."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import pytest

from kit_jupyter import deltas, events, messages
from kit_jupyter.messages import MediaPart, TextPart, ToolCallPart, Usage
from kit_jupyter.record import Record


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Mine(Record):
    a: int
    b: Any = field(default=None, hash=False)
    c: str = field(default="", repr=False)
    d: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Theirs:
    a: int
    b: Any = field(default=None, hash=False)
    c: str = field(default="", repr=False)
    d: int = field(default=0, compare=False)


Theirs.__qualname__ = "Mine"

VALUES: list[tuple[Any, ...]] = [(1,), (2,), (1, [2]), (1, [3]), (1, None, "x"), (1, None, "", 5), ("1",)]


def test_a_record_is_what_the_dataclass_would_be() -> None:
    """Each pair of values is equal, hashed and printed alike, fields that are left out of one of them included."""
    for one in VALUES:
        assert repr(Mine(*one)) == repr(Theirs(*one))
        assert hash(Mine(*one)) == hash(Theirs(*one))
        for other in VALUES:
            assert (Mine(*one) == Mine(*other)) is (Theirs(*one) == Theirs(*other))
    assert Mine(1) != Theirs(1)
    assert Mine(1).__eq__(1) is NotImplemented
    mine = Mine(1, [])
    mine.b.append(mine)
    theirs = Theirs(1, [])
    theirs.b.append(theirs)
    assert repr(mine) == repr(theirs)


def test_all_that_a_session_is_made_of_are_records() -> None:
    """Row 10: none of them compiles its own; what one hides stays hidden."""
    found = {
        cls
        for room in (events, messages, deltas)
        for cls in vars(room).values()
        if isinstance(cls, type) and dataclasses.is_dataclass(cls) and cls.__module__ == room.__name__
    }
    assert len(found) > 70
    for cls in found:
        assert issubclass(cls, Record), cls
        assert not {"__eq__", "__hash__", "__repr__"} & set(vars(cls)), cls
    assert "secret" not in repr(MediaPart("image/png", "secret"))
    call = ToolCallPart("c", "name", "{}")
    assert {call, ToolCallPart("c", "name", "{}")} == {call}
    assert TextPart("a") != TextPart("b")
    assert Usage() == Usage()
    assert repr(messages.Time("now")) == "Time(created='now')"
    with pytest.raises(dataclasses.FrozenInstanceError):
        call.name = "other"  # type: ignore[misc]
