"""The guest by which a Kit knows that Lab is there: where the person is, reviewed changes, and the cell tools."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from kit_jupyter.errors import UsageError
from kit_jupyter.extension import Extension, ExtensionContext

if TYPE_CHECKING:
    from kit_jupyter.jupyter.lab import Lab
    from kit_jupyter.tool import Tool

__all__ = ["Presence"]


class Presence(Extension):
    """Tells a Kit where the person is, what became of its changes, and gives it the cell tools in Lab."""

    name = "lab"

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self._ctx: ExtensionContext | None = None
        self._lock = threading.Lock()  # a page may come, on the engine, while the Kit is being made
        self._tools: list[Tool] = []

    def bind(self, ctx: ExtensionContext) -> None:
        """Tools come with the first page."""
        self._ctx = ctx
        self.equip()

    def on_user_message(self, ctx: ExtensionContext, content: str) -> str | None:
        """A reference block about "this cell" and about reviewed changes."""
        self.equip()
        words = []
        here = self.lab.here(content)
        if here is not None:
            words.append(here[1])
            ctx.emit("lab.here", {"cell": here[0]})
        reviews = self.lab.take_reviews()
        if reviews:
            words.append(reviews)
        return "\n\n".join(words) or None

    def equip(self) -> None:
        """Give the Kit the cell tools, once a page is there; a turn leaves them out for a very small model."""
        ctx = self._ctx
        if self._tools or ctx is None or not self.lab.is_attached:
            return
        from kit_jupyter.jupyter.lab_cells import cell_tools

        with self._lock:
            if self._tools:
                return
            for tool in cell_tools(self.lab):
                with suppress(UsageError):  # the person's own tool of that name was there first, and stays
                    self._tools.append(ctx.add_tool(tool))

    def leave(self) -> None:
        """Take the tools away again."""
        with self._lock:
            for tool in self._tools:
                if self._ctx is not None:
                    self._ctx.remove_tool(tool.spec.name)
            self._tools.clear()
