"""Columns of `kit.map` keep the kinds of their fields, whatever rows failed (U50)."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pydantic import BaseModel, Field

from kit_jupyter import Kit
from kit_jupyter.batch.kinds import Form, form_of
from kit_jupyter.messages import text_of
from kit_jupyter.provider import ModelRequest
from kit_jupyter.structured import Format
from kit_jupyter.testing import ScriptedProvider, overflow

pytestmark = pytest.mark.filterwarnings("ignore:(none of the|the only row)")


class Mood(enum.Enum):
    good = "good"
    bad = "bad"


class Rank(enum.IntEnum):
    low = 1
    high = 2


@dataclass
class Place:
    city: str


class Review(BaseModel):
    stars: int
    share: float
    is_kind: bool
    tone: str
    grade: Literal[1, 2]
    rank: Rank
    mood: Mood
    age: int | None = None
    size: int | float = 0
    code: int | str = "x"
    place: Place | None = None


GOOD = {
    "stars": 4, "share": 1, "is_kind": True, "tone": "warm", "grade": 2, "rank": 1, "mood": "bad", "age": 30,
    "size": 2.5, "code": "b1", "place": {"city": "Bonn"},
}  # fmt: skip


@pytest.fixture
def kit() -> Kit:
    """Says the row back; a row that is empty braces is refused."""

    def reply(request: ModelRequest) -> object:
        words = text_of(request.messages[-1].parts)  # type: ignore[arg-type]
        return overflow() if words == "{}" else words

    return Kit(provider=ScriptedProvider(reply, repeat_last=True), session="memory")


def mapped(kit: Kit, rows: list[Any], schema: Any, kind: Any = pd.DataFrame, **more: Any) -> Any:
    texts = [json.dumps(row) for row in rows]
    return kit.map(kind({"t": texts}), "{t}", schema=schema, progress=False, store=False, **more)


def dtypes(frame: pd.DataFrame) -> dict[str, str]:
    return {str(name): str(dtype) for name, dtype in frame.dtypes.items()}


NUMBERS = {
    "stars": "Int64", "share": "float64", "is_kind": "boolean", "grade": "Int64", "rank": "Int64", "age": "Int64",
    "size": "float64",
}  # fmt: skip


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("rows", [[GOOD, {}], [{}, {}], []], ids=("one failed", "all failed", "no row"))
def test_numbers_stay_numbers_in_pandas(kit: Kit, rows: list[Any], keep: bool) -> None:
    """A column of numbers with a failed row, or of failed rows alone, can still be computed with."""
    out = mapped(kit, rows, Review, keep=keep)

    found = dtypes(out)
    assert {name: found[name] for name in NUMBERS} == NUMBERS
    assert list(out.columns)[-12:] == [*Review.model_fields, "error"]
    assert out["stars"].count() == sum(row != {} for row in rows)


def test_what_describe_says_of_a_column_with_a_failed_row(kit: Kit) -> None:
    """Mean and quartiles, not count and top."""
    out = mapped(kit, [GOOD, GOOD | {"stars": 1}, {}], Review)

    assert out["stars"].describe()["mean"] == 2.5
    assert out["stars"].sum() == 5
    assert out["stars"].isna().tolist() == [False, False, True]
    assert out["share"].isna().tolist() == [False, False, True]
    assert out["is_kind"].sum() == 2
    assert out["tone"].tolist()[:2] == ["warm", "warm"]
    assert out["code"].tolist()[:2] == ["b1", "b1"]
    assert out["place"].tolist() == [{"city": "Bonn"}, {"city": "Bonn"}, None]
    assert out["mood"].tolist()[:2] == [Mood.bad, Mood.bad]


def test_without_a_hole_the_types_are_the_plain_ones(kit: Kit) -> None:
    """Types that know holes come only where there are holes; an optional field that is left out is one."""
    out = mapped(kit, [GOOD, GOOD], Review)

    found = dtypes(out)
    plain = {"stars": "int64", "share": "float64", "is_kind": "bool", "grade": "int64", "age": "int64"}
    assert {name: found[name] for name in plain} == plain
    assert dtypes(mapped(kit, [GOOD, GOOD | {"age": None}], Review))["age"] == "Int64"


@pytest.mark.parametrize("rows", [[GOOD, {}], [{}, {}]], ids=("one failed", "all failed"))
def test_numbers_stay_numbers_in_polars_and_arrow(kit: Kit, rows: list[Any]) -> None:
    """The same in tables that have nulls of their own; mixed numbers are floats, not text."""
    frame = mapped(kit, rows, Review, pl.DataFrame)
    table = mapped(kit, rows, Review, pa.table)

    types = {"stars": pl.Int64, "share": pl.Float64, "is_kind": pl.Boolean, "age": pl.Int64, "size": pl.Float64}
    assert {name: frame.schema[name] for name in types} == types
    assert frame["stars"].null_count() == sum(row == {} for row in rows)
    known = {"stars": pa.int64(), "share": pa.float64(), "is_kind": pa.bool_(), "rank": pa.int64()}
    assert {name: table.schema.field(name).type for name in known} == known
    assert table.column("stars").to_pylist() == [row.get("stars") for row in rows]


@pytest.mark.parametrize(
    ("schema", "dtype"),
    [(int, "Int64"), (float | None, "float64"), (bool, "boolean"), (Rank, "Int64"), (list[int], "object")],
    ids=("int", "float", "bool", "enum", "list"),
)
def test_an_answer_that_is_no_record_has_its_kind(kit: Kit, schema: Any, dtype: str) -> None:
    """A schema of one value gives one column, of its type."""
    out = mapped(kit, [{}, {}], schema)

    assert dtypes(out)["answer"] == dtype
    assert out["answer"].isna().all()


def test_values_that_do_not_fit_a_column_are_left_as_they_are(kit: Kit) -> None:
    """A whole number beyond 64 bits, an enum whose values are numbers: no value is bent (bad input)."""
    huge = {"type": "object", "properties": {"n": {"type": "integer"}, "x": {"type": "number"}}}

    out = mapped(kit, [{"n": 2**70, "x": 2**60}, {"n": 3.0, "x": 0.5}, {}], huge)

    assert out["n"].tolist()[:2] == [2**70, 3.0]
    assert out["x"].tolist()[:2] == [2**60, 0.5]
    assert out["error"].notna().tolist() == [False, False, True]
    again = mapped(kit, [{"n": 3.0, "x": 2}, {}], huge)
    assert dtypes(again) | {"n": "Int64", "x": "float64"} == dtypes(again)
    polar = mapped(kit, [{"n": 3.0, "x": 2}, {}], huge, pl.DataFrame)
    assert polar["n"].to_list() == [3, None]


def test_an_alias_is_no_column_of_its_own(kit: Kit) -> None:
    """Columns bear the names of the fields, as they do where every row was answered."""

    class Aliased(BaseModel):
        stars: int = Field(alias="Stars")

    answered = mapped(kit, [{"Stars": 3}], Aliased)
    failed = mapped(kit, [{"Stars": 3}, {}], Aliased)

    assert list(answered.columns) == list(failed.columns) == ["t", "stars", "error"]
    assert dtypes(failed)["stars"] == "Int64"


def test_a_union_of_records_gives_the_fields_of_all(kit: Kit) -> None:
    """Also when no row was answered; a field that is a number in one and text in the other has no kind."""

    @dataclass
    class Dog:
        legs: int
        name: str

    @dataclass
    class Road:
        name: int

    out = mapped(kit, [{}], Dog | Road)

    assert list(out.columns) == ["t", "legs", "name", "error"]
    assert dtypes(out) | {"legs": "Int64", "name": "object"} == dtypes(out)


def schemas() -> Iterator[tuple[Any, Form]]:
    loop: dict[str, Any] = {"$defs": {"A": {"$ref": "#/$defs/A"}}, "$ref": "#/$defs/A"}
    yield loop, Form()
    yield {"type": ["boolean", "null"]}, Form(kind="boolean")
    yield {"type": "object", "additionalProperties": {"type": "integer"}}, Form()
    yield {"type": "object", "properties": {"a": True, "b": {"type": "null"}}}, Form({"a": "", "b": ""})
    yield Review | None, Form({**dict.fromkeys(Review.model_fields, ""), **form_of(Format(Review)).fields})


@pytest.mark.parametrize(("schema", "form"), list(schemas()), ids=("a ring", "a list", "free", "odd", "optional"))
def test_odd_schemas_say_what_they_can(schema: Any, form: Form) -> None:
    """References in a ring, types in a list, `true` as a schema: no error, no invented kind (bad input)."""
    assert form_of(Format(schema)) == form
