"""Records: our quick frozen dataclasses are what the standard library makes."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from dataclasses import field

import pytest

from kit_jupyter import events, messages
from kit_jupyter.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """By keyword."""

    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Ours(Stamp):
    """With every kind of field."""

    name: str
    tags: list[str] = field(default_factory=list)
    secret: str = field(default="s", repr=False, compare=False)
    made: int = field(default=7, init=False)
    size: int = 0

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("no name")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StampOfTheirs:
    """By keyword."""

    at: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Theirs(StampOfTheirs):
    """With every kind of field."""

    name: str
    tags: list[str] = field(default_factory=list)
    secret: str = field(default="s", repr=False, compare=False)
    made: int = field(default=7, init=False)
    size: int = 0

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("no name")


@dataclass(frozen=True, slots=True)
class Point:
    """Hashable."""

    x: int
    y: int = 0


def test_a_record_is_made_shown_and_described_as_by_the_standard_library() -> None:
    """The signature, fields, repr and match arguments are the same."""
    ours, theirs = inspect.signature(Ours).parameters, inspect.signature(Theirs).parameters
    assert [(p.name, p.kind, p.annotation) for p in ours.values()] == [
        (p.name, p.kind, p.annotation) for p in theirs.values()
    ]
    assert repr(Ours("a", ["x"], size=2, at=1.0)) == repr(Theirs("a", ["x"], size=2, at=1.0)).replace("Theirs", "Ours")
    assert Ours.__match_args__ == Theirs.__match_args__
    assert [f.name for f in dataclasses.fields(Ours)] == [f.name for f in dataclasses.fields(Theirs)]
    assert dataclasses.asdict(Ours("a")) == dataclasses.asdict(Theirs("a"))
    assert Ours("a").tags is not Ours("a").tags


def test_a_record_is_frozen_compared_hashed_copied_and_pickled() -> None:
    """A value, whatever is done with it."""
    one = Ours("a", secret="1")
    assert one == Ours("a", secret="2")
    assert one not in (Ours("b"), Theirs("a"))
    for name in ("name", "new"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(one, name, "b")
        with pytest.raises(dataclasses.FrozenInstanceError):
            delattr(one, name)
    assert hash(Point(1)) == hash(Point(1, 0))
    assert len({Point(1), Point(1), Point(2)}) == 2
    assert pickle.loads(pickle.dumps(one)) == copy.copy(one) == copy.deepcopy(one) == one
    assert dataclasses.replace(one, size=3).size == 3
    with pytest.raises(ValueError, match="no name"):
        Ours("")
    with pytest.raises(TypeError, match="name"):
        Ours()  # type: ignore[call-arg]


def test_the_usual_decorator_makes_subclasses_of_records() -> None:
    """An extension's own event is a dataclass of one of ours."""

    @dataclasses.dataclass(frozen=True, slots=True)
    class Mine(Point):
        z: int = 3

    mine = Mine(1, z=5)
    assert (mine.x, mine.y, mine.z) == (1, 0, 5)
    with pytest.raises(dataclasses.FrozenInstanceError):
        mine.x = 2  # type: ignore[misc]
    with pytest.raises(TypeError, match="non-frozen"):

        @dataclasses.dataclass
        class Loose(Point):  # type: ignore[misc]
            pass


def test_what_is_no_record_is_refused() -> None:
    """A class that is not frozen, or with an option that is not known here, is an error at once."""
    with pytest.raises(TypeError, match="only for frozen"):
        dataclass(slots=True)(type("Loose", (), {}))
    with pytest.raises(TypeError, match="unknown here: order"):
        dataclass(frozen=True, slots=True, order=True)(type("Ordered", (), {}))


def test_the_values_of_a_session_are_dataclasses() -> None:
    """Events and messages can be looked into by `dataclasses`, and have no dict."""
    for kind in (*events.EVENT_TYPES.values(), messages.User, messages.TextPart, messages.Usage):
        assert dataclasses.is_dataclass(kind)
        assert "__dict__" not in dir(kind)
