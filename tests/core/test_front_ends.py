"""The front ends as consumers of the SDK: they hear events, call verbs, and hold nothing of a turn themselves."""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kit_jupyter
from kit_jupyter import KitError
from kit_jupyter import events as ev
from kit_jupyter.jupyter.presenter import Presenter
from kit_jupyter.jupyter.turns import TurnModel
from kit_jupyter.testing import delay, provider_error, record_events, text, thinking, tool_call

from .helpers import area, until
from .test_events import VOCABULARY, sample

PACKAGE = Path(kit_jupyter.__file__).parent


@dataclasses.dataclass(frozen=True, slots=True)
class Tomorrow(ev.Event):
    """An event of a later version."""

    colour: str = "blue"


def trees() -> Iterator[tuple[str, ast.Module]]:
    """The rooms of the Jupyter wing and of the command line."""
    for path in [*(PACKAGE / "jupyter").rglob("*.py"), PACKAGE / "__main__.py"]:
        yield path.name, ast.parse(path.read_text())


def called() -> dict[str, set[str]]:
    """Method or function name to the rooms that call it."""
    found: dict[str, set[str]] = {}
    for name, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                what = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                found.setdefault(what, set()).add(name)
    return found


def imported() -> dict[str, set[str]]:
    """Room of the package to the front ends' rooms that import from it."""
    found: dict[str, set[str]] = {}
    for name, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kit_jupyter."):
                found.setdefault(str(node.module).split(".")[1], set()).add(name)
    return found


def test_front_ends_import_what_the_sdk_is_made_of_to_be_used() -> None:
    """S53, S54, S69: no room that runs turns, calls, answers or codecs; of the turn only its result's name."""
    rooms = imported()

    for inner in (
        "answer",
        "calls",
        "compactor",
        "claims",
        "kit_parts",
        "kit_path",
        "modes",
        "chain",
        "host",
        "asking",
    ):
        assert inner not in rooms, (inner, rooms.get(inner))
    names = {
        alias.name
        for _, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "kit_jupyter.turn"
        for alias in node.names
    }
    assert names <= {"TurnResult"}


def test_extensions_are_reached_through_the_hooks_of_the_sdk_only() -> None:
    """S68, S69: no front end calls a guest's hook or its host's chain; input goes by `Kit.apply_input`."""
    calls = called()

    for hook in (
        *("on_input", "before_turn", "after_turn", "prepare_step", "edit_prompt", "before_tool", "after_tool"),
        *("before_compact", "reference_blocks", "system_sections", "on_user_message", "on_conversation_reset"),
    ):
        assert hook not in calls, (hook, calls.get(hook))
    assert calls["apply_input"] | calls["apply_input_sync"] >= {"panel.py", "notebook.py"}


def test_nothing_is_stored_or_asked_of_a_model_by_a_front_end() -> None:
    """S54: sessions are written to by the Kit; only a talk read back from a notebook is put into a fresh one."""
    appends = {
        name
        for name, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("append", "append_compaction", "append_branch_summary", "move_leaf")
        and "session" in ast.unparse(node.func.value)
    }
    assert appends == {"rebuild.py"}
    assert not called().keys() & {"open_provider", "from_branch", "stream_text", "encode_request", "find_soon"}


def test_one_room_hears_the_bus_for_all_views() -> None:
    """S66: the bridge is the presenter; whoever else subscribes would be a second one."""
    hears = {
        name
        for name, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "subscribe"
        and ast.unparse(node.func.value).endswith("kit")
    }
    assert hears == {"presenter.py"}


@pytest.mark.parametrize("name", sorted(VOCABULARY.split()))
def test_the_bridge_takes_every_event(make: Any, name: str) -> None:
    """S66: each event of the vocabulary goes through, before and after its turn has begun; none raises."""
    kit, _ = make()
    presenter = Presenter(kit)
    event = dataclasses.replace(sample(ev.EVENT_TYPES[name]), turn_id="trn_1")

    presenter.take(event)
    presenter.take(ev.TurnStart("hi", "prompt", turn_id="trn_1"))
    presenter.take(event)

    assert list(presenter.turns) == ["trn_1"]
    presenter.close()


def test_what_the_bridge_does_not_know_changes_nothing(make: Any) -> None:
    """S66: an event of a later version, or a guest's own, leaves view and bar as they are."""
    kit, _ = make()
    presenter = Presenter(kit)
    presenter.take(ev.TurnStart("hi", "prompt", turn_id="trn_1"))
    turn = presenter.turns["trn_1"]
    before = ([item.whole() for item in turn.items], turn.version, dict(presenter.bar))

    for event in (Tomorrow(turn_id="trn_1"), Tomorrow(), ev.Domain("somebody.else", {"x": 1}, turn_id="trn_1")):
        presenter.take(event)

    assert ([item.whole() for item in turn.items], turn.version, dict(presenter.bar)) == before
    presenter.close()


SHOWN = {
    "MessageUpdate": "text",
    "ToolCall": "tool",
    "ToolResultEvent": "tool",
    "ToolOutput": "tool",
    "ApprovalAsked": "tool",
    "SteerCommitted": "said",
    "Retry": "notice",
    "CompactionEnd": "notice",
    "Warned": "notice",
    "ErrorEvent": "notice",
    "Source": "source",
    "MessageEnd": "text",
}


@pytest.mark.parametrize("name", SHOWN)
def test_the_bridge_shows_what_is_to_be_seen(name: str) -> None:
    """S66: the display update that each event stands for."""
    turn = TurnModel("trn_1", "t1")
    changes: list[Any] = []
    turn.listen(lambda model, items, urgent: changes.append(items))

    turn.take(sample(ev.EVENT_TYPES[name]))

    assert SHOWN[name] in [item.kind for item in turn.items]
    assert changes


async def test_a_steer_is_no_bubble_of_the_user(make: Any) -> None:
    """S8: while idle the turn has its answer only, its label in the head; while running a small note at its place."""
    kit, provider = make("one", "two", [tool_call("area", width=1, height=1)], "three", tools=[area])
    await kit.prompt("hi")
    presenter = Presenter(kit)
    result = await kit.steer("be brief")
    idle = presenter.turns[result.turn_id]

    assert [item.kind for item in idle.items] == ["text"]
    assert (idle.mode, idle.prompt) == ("steer", "[steer] be brief")
    assert "Follow the instruction" not in str([item.whole() for item in idle.items])
    once = [True]
    kit.subscribe(lambda e: once and once.pop() and kit.queue_steer("shorter"), ev.ToolExecutionStart, inline=True)
    result = await kit.prompt("go")
    running = presenter.turns[result.turn_id]
    assert [(i.kind, i.facts.get("mode")) for i in running.items] == [("tool", None), ("said", "steer"), ("text", None)]
    assert running.items[1].facts["text"] == "shorter"
    assert len(provider.requests) == 4
    presenter.close()


@pytest.mark.parametrize("how", ["well", "fails", "stopped"])
async def test_a_view_is_busy_from_the_first_event_to_the_last(make: Any, how: str) -> None:
    """S59, S60, S61, S62: before the first word the turn runs; at its end it does not, and a failure is one line."""
    last = {"well": text(""), "fails": provider_error("rate_limited", "slow down"), "stopped": delay(60)}[how]
    kit, _ = make([thinking("hm"), last])
    presenter = Presenter(kit)
    seen: list[tuple[str, bool]] = []
    kit.subscribe(
        lambda e: seen.append((next(iter(presenter.turns.values())).status, presenter.bar["running"])),
        ev.MessageStart,
        inline=True,
    )
    task = asyncio.ensure_future(kit.prompt("go"))
    if how == "stopped":
        await until(lambda: seen)
        await kit.abort()
    outcome = (await asyncio.gather(task, return_exceptions=True))[0]

    turn = next(iter(presenter.turns.values()))
    assert seen == [("running", True)]
    assert turn.ended
    assert presenter.bar["running"] is False
    assert turn.status == {"well": "done", "fails": "error", "stopped": "stopped"}[how]
    if how == "fails":
        assert isinstance(outcome, KitError)
        assert turn.error is not None
        assert turn.error["message"] == "generation failed: slow down"
        assert turn.error["code"] == outcome.code == "rate_limited"
    else:
        assert turn.error is None
    presenter.close()


def test_a_view_that_came_late_draws_the_same(make: Any) -> None:
    """S63: rebuilt from replayed events, kept as JSON, in another Kit's presenter."""
    kit, _ = make([thinking("hm"), text("a b"), tool_call("area", width=2, height=3)], "six", tools=[area])
    live = Presenter(kit)
    with record_events(kit) as log:
        result = kit.prompt_sync("how large?")
    other, _ = make()
    late = Presenter(other)

    for said in [json.dumps(event.to_json()) for event in log if not event.transient]:
        late.take(ev.event_from_json(json.loads(said)))

    def drawn(presenter: Presenter) -> Any:
        turn = presenter.turns[result.turn_id]
        left_out = ("id", "seconds", "redacted")
        items = [{k: v for k, v in item.whole().items() if k not in left_out} for item in turn.items]
        return items, turn.prompt, turn.status

    assert drawn(late) == drawn(live)
    live.close()
    late.close()
