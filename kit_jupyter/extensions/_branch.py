"""Whether the talk has moved to another branch or session since a guest last looked."""

from __future__ import annotations

from typing import Any

__all__ = ["Place"]


class Place:
    """The last message that a guest has seen; state of the conversation holds only where that still stands."""

    def __init__(self) -> None:
        self._last = ""

    def look(self, history: tuple[Any, ...]) -> bool:
        """Note the end of `history`; False if what was seen before is no part of it."""
        ids = [message.id for message in history]
        stayed = not self._last or self._last in ids
        self._last = ids[-1] if ids else ""
        return stayed

    def forget(self) -> None:
        """The conversation was cleared."""
        self._last = ""
