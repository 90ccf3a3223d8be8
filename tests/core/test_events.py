"""Events: a fixed vocabulary, and JSON both ways."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from kit_jupyter import events as ev
from kit_jupyter.events import EVENT_TYPES, event_from_json
from kit_jupyter.jupyter.turns import TurnModel
from kit_jupyter.messages import (
    Assistant,
    Native,
    ServerPart,
    TextDelta,
    TextPart,
    Tokens,
    ToolCallPart,
    Usage,
    User,
    new_id,
    now,
)
from kit_jupyter.testing import record_events, text, thinking, tool_call

from .helpers import area

VOCABULARY = """
TurnStart TurnEnd StepStart StepEnd UserMessage ReferenceAdded MessageStart MessageUpdate MessageEnd
TextStart TextEnd PartialObject ThinkingStart ThinkingEnd
ToolCallStarted ToolCallGrew ToolCallWritten ToolCallContent ToolCall
ApprovalAsked ApprovalGiven ToolExecutionStart ToolOutput ToolExecutionEnd ToolResultEvent Response UsageReport
Retry QueueUpdate SteerCommitted CompactionStart CompactionEnd BranchChanged Reset ModelChanged Source Domain
Warned ErrorEvent
"""


def test_the_vocabulary_is_complete_and_described() -> None:
    """S71: the union of what comparable systems tell, each with a docstring; a change of it is a change of the API."""
    assert {name for name in EVENT_TYPES if name != "Event"} == set(VOCABULARY.split())
    for cls in EVENT_TYPES.values():
        assert cls.__doc__
        assert dataclasses.is_dataclass(cls)
        assert isinstance(cls.transient, bool)


def _value(field: dataclasses.Field[Any]) -> Any:
    message = Assistant(id="m", time=now(), parts=(TextPart("x"), ToolCallPart("c", "t", "{}")))
    known: dict[str, Any] = {
        "message": message,
        "delta": TextDelta(0, "x"),
        "usage": Usage(tokens=Tokens(input=1), cost=0.5),
        "tokens": Tokens(output=2),
        "part": ServerPart("block", "n", Native("w", {"a": 1})),
        "parts": (TextPart("x"),),
        "parsed": {"a": [1, None]},
        "details": {"b": 2},
        "steering": ("a",),
        "follow_up": (),
        "returned": ("c", "d"),
        "content": {"z": 1},
        "value": {"a": [1, "x"]},
        "cost": None,
    }
    if field.name in known and field.type != "str":
        return known[field.name]
    kinds = {"str": "text", "int": 3, "float": 1.5, "bool": True, "float | None": 0.5}
    return kinds[str(field.type)]


def sample(cls: type[ev.Event]) -> Any:
    """An event of that class with something in each field."""
    return cls(**{f.name: _value(f) for f in dataclasses.fields(cls)})


@pytest.mark.parametrize("name", sorted(set(VOCABULARY.split())))
def test_each_event_survives_json(name: str) -> None:
    """Frozen, hashable where its values are, and the same after JSON."""
    cls = EVENT_TYPES[name]
    event = sample(cls)

    said = json.loads(json.dumps(event.to_json()))

    assert (said["type"], said["transient"]) == (name, cls.transient)
    assert event_from_json(said) == event
    with pytest.raises((dataclasses.FrozenInstanceError, AttributeError)):
        event.seq = 3  # type: ignore[misc]


def test_an_unknown_event_in_json_is_a_key_error() -> None:
    """Bad input: a record of tomorrow."""
    with pytest.raises(KeyError):
        event_from_json({"type": "Hologram"})


def test_live_objects_in_details_do_not_break_json() -> None:
    """What cannot be JSON stands as its repr."""
    event = ev.ToolResultEvent("c", "t", "{}", "x", False, details={"frame": object()})
    assert "object" in json.dumps(event.to_json())


async def test_every_event_of_a_turn_bears_its_stamp(make: Any) -> None:
    """Ids, step, sequence without a gap, time that does not go back."""
    kit, _ = make([thinking("hm"), text("a"), tool_call("area", width=1, height=1)], "b", tools=[area])
    with record_events(kit) as log:
        await kit.prompt("go")

    assert {e.session_id for e in log} == {kit.session_id}
    assert len({e.turn_id for e in log}) == 1
    assert [e.seq for e in log] == list(range(log[0].seq, log[0].seq + len(log)))
    assert [e.time for e in log] == sorted(e.time for e in log)
    assert [e.step for e in log] == sorted(e.step for e in log)
    kinds = [type(e).__name__ for e in log if e.transient]
    for start, end in (
        ("TextStart", "TextEnd"),
        ("ThinkingStart", "ThinkingEnd"),
        ("ToolCallStarted", "ToolCallWritten"),
    ):
        assert kinds.count(start) == kinds.count(end) > 0


def shown(turn: TurnModel) -> Any:
    """What a view draws of a turn."""
    return [item.whole() | {"seconds": None} for item in turn.items], turn.prompt, turn.status, turn.error


async def test_a_widget_attached_late_is_rebuilt_from_what_lasts(make: Any) -> None:
    """S63: lasting events, replayed from JSON, hold every message of the turn; a view fed with them shows it all."""
    kit, _ = make([text("a b c"), tool_call("area", width=2, height=2)], "done", tools=[area])
    with record_events(kit) as log:
        await kit.prompt("go")

    replayed = [event_from_json(json.loads(json.dumps(e.to_json()))) for e in log if not e.transient]
    messages = [e.message for e in replayed if isinstance(e, ev.UserMessage | ev.MessageEnd)]
    assert [m.id for m in messages] == [m.id for m in kit.messages if m.role != "tool"]
    assert [e.result for e in replayed if isinstance(e, ev.ToolResultEvent)] == ["4"]
    live, late = (TurnModel(log[0].turn_id, "t1") for _ in range(2))
    for event in log:
        live.take(event)
    for event in replayed:
        late.take(event)
    assert shown(late) == shown(live)
    assert [item.kind for item in late.items] == ["text", "tool", "text"]
    assert (late.status, late.ended) == ("done", True)


def test_users_and_messages_are_shared_not_copied() -> None:
    """Events carry the stored value itself: work per event does not grow with the history."""
    message = User(id=new_id("m"), time=now(), parts=(TextPart("x"),))
    assert ev.UserMessage(message).message is message
