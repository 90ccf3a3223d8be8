"""What a page that was reloaded is given in the place of a live view, while its turn runs and after it.

Theory of operation
-------------------
A display is updated in the page that showed it from the start. A page that was reloaded in mid-turn
has the live view from the file, where no display id is kept, or an empty cell when the notebook was
not saved: it asks. So the last turns whose live view is gone are kept by the view's model id and by
their cell, and those that still run are told by their cell.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kit_jupyter.jupyter import display
from kit_jupyter.jupyter.turns import TurnModel

if TYPE_CHECKING:
    from kit_jupyter.jupyter.notebook import Run

__all__ = ["Settled", "cell_view", "live_views"]

#: Turns whose live view is gone and for which a page may still ask.
SETTLED = 50


class _Kept(NamedTuple):
    turn: TurnModel
    metadata: dict[str, Any]
    cell: str
    at: float  # seconds since the epoch
    number: int | None  # of the cell's execution


class Settled:
    """The turns whose live view is gone, by the view's model id. Any thread."""

    def __init__(self, pack: display.Pack) -> None:
        self._pack = pack
        self._lock = threading.Lock()
        self._turns: OrderedDict[str, _Kept] = OrderedDict()

    def keep(
        self, view: str, turn: TurnModel, metadata: dict[str, Any], cell: object = None, count: int | None = None
    ) -> None:
        """The view has given place to what stays of its turn, in the cell of that id if it is known.

        `count` is the number of the cell's execution: a page that came later never hears the kernel's reply.
        """
        with self._lock:
            self._turns[view] = _Kept(turn, metadata, cell if isinstance(cell, str) else "", time.time(), count)
            while len(self._turns) > SETTLED:
                self._turns.popitem(last=False)

    def outputs(self, views: Sequence[Any]) -> dict[str, Any]:
        """What stands in the place of live views that are gone, as outputs by the view's model id."""
        with self._lock:
            found = {view: self._turns[view] for view in views if isinstance(view, str) and view in self._turns}
        return {view: self._output(kept) for view, kept in found.items()}

    def counts(self, views: Sequence[Any]) -> dict[str, int]:
        """Numbers of the executions that showed these views, by the view's model id, where they are known."""
        with self._lock:
            kept = {view: self._turns[view].number for view in views if isinstance(view, str) and view in self._turns}
        return {view: count for view, count in kept.items() if count is not None}

    def of_cells(self, cells: Sequence[Any]) -> dict[str, Any]:
        """What stays of the last turn of each cell, as ``{output, at, count}`` by the cell's id; `at` is its end.

        For a page that finds the cell empty: it was closed before the turn ended, and the file was not saved since.
        """
        with self._lock:
            found = {kept.cell: kept for kept in self._turns.values() if kept.cell and kept.cell in cells}
        return {
            cell: {"output": self._output(kept), "at": kept.at, "count": kept.number} for cell, kept in found.items()
        }

    def _output(self, kept: _Kept) -> dict[str, Any]:
        data, metadata = self._pack(kept.turn.saved()), {"kit": kept.metadata}
        return {"output_type": "display_data", "data": data, "metadata": metadata}


def live_views(runs: Iterable[Run]) -> dict[str, Any]:
    """The live views of turns that run, as outputs by the id of their cell. Any thread.

    For a page that was reloaded before the notebook was saved: its cell is empty.
    """
    out: dict[str, Any] = {}
    for run in runs:
        view = cell_view(run)
        cell = (run.parent.get("metadata") or {}).get("cellId")
        if view and isinstance(cell, str):
            data = display.live_bundle(view)
            out[cell] = {"output_type": "display_data", "data": data, "metadata": {}}
    return out


def cell_view(run: Run) -> str | None:
    """Model id of the live view that this run has in its cell; None for other displays, such as a panel's."""
    shown = run.shown
    return shown.view.model_id if isinstance(shown, display.WidgetDisplay) and shown.view is not None else None
