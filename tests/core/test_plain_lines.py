"""Lines by hand: the same bytes and the same values as by the schema, or none."""

from __future__ import annotations

import copy
import json
from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_core import from_json, to_json

from kit_jupyter import entry as entries
from kit_jupyter import plain_lines
from kit_jupyter.entry import Entry, decode_line
from kit_jupyter.messages import (
    Assistant,
    CellRef,
    Citation,
    ErrorFacts,
    MediaPart,
    Message,
    ModelRef,
    Native,
    PathFacts,
    RequestFacts,
    ResultFacts,
    RunFacts,
    System,
    TextPart,
    ThinkingPart,
    Time,
    Tokens,
    ToolCallPart,
    ToolResult,
    Usage,
    User,
)

WORDS = st.text(st.characters(codec="utf-8"), max_size=12)
NAMES = st.one_of(WORDS, st.just("msg_1"))
NATIVE = st.none() | st.just(Native("w", {"big": 2**70, "n": None}))
PARTS: Any = st.lists(
    st.one_of(
        st.builds(TextPart, WORDS),
        st.builds(TextPart, WORDS, st.just((Citation(url="u"),)), NATIVE),
        st.builds(ThinkingPart, WORDS, NATIVE, st.booleans()),
        st.builds(ToolCallPart, NAMES, NAMES, WORDS, NATIVE),
        st.builds(MediaPart, st.just("image/png"), st.just("AAAA")),
    ),
    max_size=3,
).map(tuple)
COMMON: dict[str, Any] = {"id": NAMES, "time": st.builds(Time, NAMES), "parts": PARTS, "turn_id": NAMES}
COUNT = st.none() | st.integers(0, 2**70)
RUN = st.builds(
    RunFacts,
    agent=WORDS,
    model=st.builds(ModelRef, WORDS, WORDS),
    path=st.builds(PathFacts, WORDS, WORDS),
    cell=st.none() | st.just(CellRef("n", "c")),
    response_id=st.none() | WORDS,
)
RESULT = st.builds(
    ResultFacts,
    finish=st.none() | WORDS,
    raw=st.none() | WORDS,
    error=st.none() | st.builds(ErrorFacts, WORDS, WORDS),
    structured=st.none() | st.just({"n": 2**70, "x": [1.5]}),
    kind=st.sampled_from(["reply", "summary"]),
)
USAGE = st.builds(
    Usage,
    tokens=st.builds(Tokens, input=COUNT, output=COUNT, cache_read=COUNT),
    cost=st.none() | st.floats(0, 9),
)
REQUEST = st.none() | st.just(RequestFacts(agent="a", model=ModelRef("p", "m"), format={"k": 1}))
MESSAGES: Any = st.one_of(
    st.builds(User, **COMMON, source=st.none() | WORDS, request=REQUEST),
    st.builds(System, **COMMON, source=st.none() | WORDS),
    st.builds(Assistant, **COMMON, run=st.none() | RUN, usage=USAGE, result=RESULT),
    st.builds(
        ToolResult,
        **COMMON,
        call_id=NAMES,
        name=NAMES,
        is_error=st.booleans(),
        details=st.none() | st.just({"n": 2**70}),
    ),
)


def by_schema(message: Message) -> bytes:
    """What pydantic writes."""
    return bytes(entries._encoders()[type(message)].to_json(message, exclude_none=True))


@pytest.fixture(params=["orjson", "pydantic"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both parsers; orjson need not be there."""
    if request.param == "orjson":
        monkeypatch.setattr(plain_lines, "_loads", pytest.importorskip("orjson").loads)
    else:
        monkeypatch.setattr(plain_lines, "_loads", lambda line: from_json(line, cache_strings="keys"))


@settings(max_examples=300, deadline=None)
@given(MESSAGES, st.none() | NAMES)
def test_what_is_written_by_hand_is_what_the_schema_writes(message: Message, parent: str | None) -> None:
    """Byte for byte, whatever is in the texts; and the line is read as the same entry."""
    line = Entry("message", message.id, parent, message.time.created, {}, message).to_line()

    assert plain_lines.plain_json(message) in (None, by_schema(message))
    head = {"type": "message", "id": message.id, "parent": parent, "time": message.time.created}
    assert line == to_json(head)[:-1] + b',"message":' + by_schema(message) + b"}\n"
    again = decode_line(line)
    assert (again.id, again.parent, again.time) == (message.id, parent, message.time.created)
    assert again.message == message
    assert repr(again.message) == repr(message)
    assert type(again.message) is type(message)


OTHER: tuple[Any, ...] = (
    None,
    True,
    0,
    1.5,
    -1,
    2**70,
    "",
    "x",
    [],
    [["kind", "reply"]],
    {},
    {"tokens": {}},
    {"kind": "reply"},
)


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Each container in a JSON value with each of its keys."""
    found = []
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            found += [(value, key), *_places(value[key])]
    return found


SAMPLES: list[Message] = [
    User(id="m", time=Time("t"), parts=(TextPart("x"),), turn_id="t"),
    System(id="m", time=Time("t"), parts=(), turn_id="t"),
    ToolResult(id="m", time=Time("t"), parts=(TextPart("x"),), call_id="c", name="n"),
    Assistant(
        id="m",
        time=Time("t"),
        parts=(ThinkingPart("x"), TextPart("x"), ToolCallPart("c", "n", "{}")),
        run=RunFacts(agent="a", model=ModelRef("p", "m"), path=PathFacts("c", "r"), response_id="r"),
        usage=Usage(tokens=Tokens(input=1, output=2), cost=0.5),
        result=ResultFacts(finish="stop", raw="stop", error=ErrorFacts("c", "m")),
    ),
]


@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: message.role)
def test_a_line_changed_by_hand_is_read_as_the_schema_reads_it_or_left_to_it(message: Message) -> None:
    """Every value of a line replaced by others, taken out, or joined by an unknown one."""
    whole = json.loads(Entry("message", "m", None, "t", {}, message).to_line())
    assert plain_lines.plain_line(json.dumps(whole).encode()) is not None
    read = refused = 0

    for at in range(len(_places(whole))):
        for other in (*OTHER, "take out", "add"):
            value = copy.deepcopy(whole)
            container, key = _places(value)[at]
            if other == "take out":
                del container[key]
            elif other == "add" and isinstance(container, dict):
                container["tomorrow"] = 1
            else:
                container[key] = other
            line = json.dumps(value).encode()
            got = plain_lines.plain_line(line)
            if got is None:
                refused += 1
                continue
            read += 1
            wanted = entries._line_validator()(line)
            assert got == (wanted["id"], wanted["parent"], wanted["time"], wanted["message"]), line

    assert read > 10
    assert refused > 10


@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize("line", [b"", b"[]", b"1", b"{", b'"x"', b"null", b"\xff", b'{"a":' * 5000])
def test_no_line_at_all_is_left_to_the_schema(line: bytes) -> None:
    """Torn, empty, not JSON, not UTF-8, nested too deeply."""
    assert plain_lines.plain_line(line) is None


def test_half_a_surrogate_pair_is_replaced_in_the_line() -> None:
    """UTF-8 cannot hold it and the schema refuses it; rooms above mend texts, and a line with one is still stored."""
    message = User(id="m", time=Time("t"), parts=(TextPart("a\ud800b"),), turn_id="t")

    with pytest.raises(ValueError, match=r"surrogate|utf-8"):
        by_schema(message)
    stored = json.loads(Entry("message", "m", None, "t", {"\ud800": ["\udc80"]}, message).to_line())
    assert stored["message"]["parts"][0]["text"] == "a\N{REPLACEMENT CHARACTER}b"
    assert stored["\N{REPLACEMENT CHARACTER}"] == ["\N{REPLACEMENT CHARACTER}"]


ODD: list[Any] = [
    None,
    5,
    True,
    1.5,
    b"x",
    ["x"],
    {"x": 1},
    datetime(2026, 1, 1, tzinfo=UTC),
    type("Sub", (str,), {})("x"),
]
MADE: list[Any] = [
    User(id="i", parts=(TextPart("t"),), turn_id="u", time=Time("now")),
    System(id="i", parts=(TextPart("t"),), turn_id="u", time=Time("now")),
    ToolResult(id="i", parts=(TextPart("t"),), turn_id="u", time=Time("now"), call_id="c", name="n", is_error=False),
]


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize("message", MADE, ids=lambda message: message.role)
def test_a_message_made_by_hand_of_other_types_is_not_plain(message: Any) -> None:
    """A number as an id, a date as a time, parts in a list: by the schema, or the same bytes as by the schema."""
    made = [replace(message, **{field.name: odd}) for field in fields(message) for odd in ODD]
    made += [replace(message, time=Time(odd)) for odd in ODD]
    made += [replace(message, parts=(TextPart(odd),)) for odd in ODD]
    made += [replace(message, parts=[TextPart("x")]), replace(message, parts=(TextPart("x", citations=None),))]  # type: ignore[arg-type]
    for odd in made:
        plain = plain_lines.plain_json(odd)
        assert plain is None or plain == entries._encoders()[type(odd)].to_json(odd, exclude_none=True)
