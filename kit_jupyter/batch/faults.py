"""Whose fault a failed row is: its own stays in its row, what every row would meet ends the map.

Theory of operation
-------------------
A wrong key, a model that nobody has, a setting, a request that no recording answers: such a fault would stand in
each row, and a notebook run by CI would be green with no answer in it. So it is raised. What a row brought about
(its attachment, an answer that does not fit the schema, a timeout, a refusal of its words) and what passes
(a busy service) stays in the row's error; when that is all there is in the end, a warning says so.
"""

from __future__ import annotations

import re
import sys
import warnings

from kit_jupyter.batch.rows import MapRow
from kit_jupyter.errors import (
    AuthFailed,
    ConnectionFailed,
    KitError,
    ProviderError,
    RateLimited,
    ReplayMiss,
    UsageError,
)
from kit_jupyter.structured import Misfit

__all__ = ["Tally", "TooLarge", "first_of", "is_of_all_rows"]

_FLAGGED = re.compile(r"moderat|flagged|content polic|safety", re.IGNORECASE)  # a gateway says 403 to these words


class TooLarge(UsageError):
    """A row's request is larger than a whole batch may be."""


def is_of_all_rows(error: KitError, *, has_parts: bool, was_answered: bool, is_batch: bool) -> bool:
    """True for a fault that asking another row would only repeat.

    Parameters
    ----------
    error : KitError
        What a row's turn raised.
    has_parts : bool
        The row attaches something.
    was_answered : bool
        Another row of this run has been answered: then key, address and line are good.
    is_batch : bool
        The error may be a whole batch's, told to each of its rows: busy and full look alike there.
    """
    status = getattr(error, "status", None)
    match error:
        case ReplayMiss():
            return True
        case AuthFailed() if status == 403:
            return not was_answered and not _FLAGGED.search(error.message)
        case AuthFailed():
            return True
        case UsageError():
            return not (has_parts or isinstance(error, TooLarge) or _came_of(error, Misfit, TimeoutError))
        case ProviderError() if _no_such_model(error, has_parts=has_parts):
            return True
        case _ if is_batch:
            return False
        case ConnectionFailed():
            return not error.retryable and not was_answered
        case RateLimited():
            return not error.retryable  # no credit left
        case _:
            return status in (402, 404)


def _came_of(error: BaseException, *kinds: type[BaseException]) -> bool:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, kinds):
            return True
        cause = cause.__cause__
    return False


def _no_such_model(error: ProviderError, *, has_parts: bool) -> bool:
    from kit_jupyter.providers._errors import names_no_model

    return not has_parts and names_no_model(error)


def first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that ended a group of tasks."""
    first = group.exceptions[0]
    return first_of(first) if isinstance(first, BaseExceptionGroup) else first


class Tally:
    """Counts rows, to say it when none was answered."""

    def __init__(self) -> None:
        self._rows = 0
        self._failed = 0
        self._first = ""

    def count(self, row: MapRow) -> None:
        """One row more."""
        self._rows += 1
        if row.error:
            self._failed += 1
            self._first = self._first or row.error

    def warn(self) -> None:
        """Warn, at the caller's line, when every row failed."""
        if self._rows and self._failed == self._rows:
            none = "the only row" if self._rows == 1 else f"none of the {self._rows:,} rows"
            was = "was not answered" if self._rows == 1 else "was answered; the first error"
            warnings.warn(f"{none} {was}: {self._first}", stacklevel=_levels_to_caller())


def _levels_to_caller() -> int:
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).startswith("kit_jupyter."):
        level, frame = level + 1, frame.f_back
    return level
