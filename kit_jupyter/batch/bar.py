"""The bar of a map: how far it is, shown on the caller's thread.

Theory of operation
-------------------
A page gets a widget, a terminal a line on stderr. What a runner executes (`is_runner`) gets none: a widget's state
would stay in the file, with other ids at each run and a bar that stands at its beginning, and a line would stay as
output. ``KIT_UI`` goes before that, as it does for what shows a turn.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

from kit_jupyter.batch.rows import MapRow
from kit_jupyter.runners import is_runner

__all__ = ["Bar", "progress_of"]


class Bar:
    """How far a run is; shows nothing without a bar."""

    def __init__(self, bar: Any = None) -> None:
        self._bar = bar
        self._errors = 0

    def step(self, row: MapRow) -> None:
        """One row more."""
        if self._bar is None:
            return
        self._bar.update(1)
        if row.error:
            self._errors += 1
            self._bar.set_postfix(errors=self._errors, refresh=False)

    def say(self, words: str) -> None:
        """Words before the bar, while there is nothing to count."""
        if self._bar is not None:
            self._bar.set_description_str(words)


@contextlib.contextmanager
def progress_of(total: int | None, *, show: bool) -> Iterator[Bar]:
    """A bar for the length of the block."""
    make = _maker() if show else None
    if make is None:
        yield Bar()
        return
    with make(total=total, unit="row") as bar:
        yield Bar(bar)


def _maker() -> Any:
    """What makes the bar that fits here, if one does."""
    mode = os.environ.get("KIT_UI", "").strip().lower()
    if mode == "static" or (mode in ("", "auto") and is_runner(_present_parent())):
        return None
    try:
        if mode in ("plain", "updates"):
            from tqdm.std import tqdm
        else:
            from tqdm.auto import tqdm
    except ImportError:
        return None
    return tqdm


def _present_parent() -> dict[str, Any]:
    """The message that a kernel executes now; empty elsewhere. IPython is asked where it runs, and never loaded."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    get_parent = getattr(get_ipython() if get_ipython is not None else None, "get_parent", None)
    parent = get_parent() if get_parent is not None else None
    return parent if isinstance(parent, dict) else {}
