"""A failed turn fails its cell with one readable line; the cause is shown on demand."""

from __future__ import annotations

import traceback
from typing import TypeVar

__all__ = ["Short", "causes", "shortened"]

E = TypeVar("E", bound=BaseException)


class Short:
    """What IPython shows in place of a traceback; a value, so that the error can still be pickled."""

    def __init__(self, line: str) -> None:
        self.line = line

    def __call__(self) -> list[str]:
        """Lines, as IPython's ``_render_traceback_`` wants them."""
        return [self.line]


def shortened(error: E, hint: str = "") -> E:
    """`error`, which IPython will show as one line.

    Examples
    --------
    >>> shortened(ValueError("no such\\nmodel"))._render_traceback_()
    ['ValueError: no such model']
    """
    words = " ".join(str(error).split()) or type(error).__name__
    name = type(error).__name__
    line = words if words == name else f"{name}: {words}"
    error._render_traceback_ = Short(line + (f"  ({hint})" if hint else ""))  # type: ignore[attr-defined]
    return error


def causes(error: BaseException) -> str:
    """The whole story: the traceback with all causes."""
    return "".join(traceback.format_exception(error))
