"""What a page that was reloaded in mid-turn is given in the place of a live view."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from kit_jupyter import events as ev
from kit_jupyter.jupyter import settled
from kit_jupyter.jupyter.display import TextDisplay, WidgetDisplay
from kit_jupyter.jupyter.settled import Settled, cell_view, live_views
from kit_jupyter.jupyter.transcript import bundle
from kit_jupyter.jupyter.turns import TurnModel


def _turn(text: str) -> TurnModel:
    turn = TurnModel(text, "t1")
    turn.take(ev.TurnStart(text, "prompt"))
    turn.take(ev.TurnEnd(text, "stop"))
    return turn


def _run(model_id: str | None, cell: Any) -> Any:
    shown: Any = TextDisplay(rich=False)
    if model_id is not None:
        shown = object.__new__(WidgetDisplay)
        shown.view = SimpleNamespace(model_id=model_id) if model_id else None
    return SimpleNamespace(shown=shown, parent={"metadata": {"cellId": cell}} if cell else {})


def test_what_stays_of_a_turn_is_told_by_its_view() -> None:
    """As it stands in the cell of another page; what nobody knows, or is no id, is passed over."""
    store = Settled(bundle)
    store.keep("v1", _turn("one"), {"turn": "a"})
    store.keep("v2", _turn("two"), {"turn": "b"})

    found = store.outputs(["v2", "unknown", 3, None, ["v1"]])

    assert found == {
        "v2": {
            "output_type": "display_data",
            "data": bundle(_turn("two").saved()),
            "metadata": {"kit": {"turn": "b"}},
        }
    }


def test_the_last_turn_of_a_cell_is_told_with_its_end() -> None:
    """For a page that finds the cell empty; only of cells it asks for, and of turns whose cell is known."""
    store = Settled(bundle)
    store.keep("v1", _turn("one"), {}, "cell-1")
    store.keep("v2", _turn("two"), {}, "cell-1", 5)
    store.keep("v3", _turn("three"), {}, "cell-2")
    store.keep("v4", _turn("four"), {}, 7)

    found = store.of_cells(["cell-1", "cell-3", 7, None, ""])

    assert list(found) == ["cell-1"]
    assert found["cell-1"]["output"]["data"] == bundle(_turn("two").saved())
    assert abs(found["cell-1"]["at"] - time.time()) < 60
    assert found["cell-1"]["count"] == 5
    assert store.counts(["v1", "v2", "unknown", 3, ["v1"]]) == {"v2": 5}


def test_only_the_last_turns_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that runs for days does not keep every turn's views."""
    monkeypatch.setattr(settled, "SETTLED", 2)
    store = Settled(lambda saved: {})
    for n in range(4):
        store.keep(f"v{n}", _turn("x"), {})

    assert list(store.outputs([f"v{n}" for n in range(4)])) == ["v2", "v3"]


def test_turns_that_run_are_told_by_their_cell() -> None:
    """Only live views of cells that are known: not text, not a view that fell back, not a cell without an id."""
    runs = [_run("v1", "cell-1"), _run(None, "cell-2"), _run("", "cell-3"), _run("v4", None), _run("v5", 5)]

    found = live_views(runs)

    assert list(found) == ["cell-1"]
    assert found["cell-1"]["data"]["application/vnd.jupyter.widget-view+json"]["model_id"] == "v1"
    assert [cell_view(run) for run in runs] == ["v1", None, None, "v4", "v5"]
