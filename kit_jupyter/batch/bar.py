"""The bar of a map: how far it is, shown on the caller's thread."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from kit_jupyter.batch.rows import MapRow

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
    if not show:
        yield Bar()
        return
    try:
        from tqdm.auto import tqdm
    except ImportError:
        yield Bar()
        return
    with tqdm(total=total, unit="row") as bar:
        yield Bar(bar)
