"""What the file tools share: a path is judged, asked about, and used only where it led when it was judged."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from kit_jupyter.errors import ToolError
from kit_jupyter.permissions import Access
from kit_jupyter.tool import ToolContext, ToolOutcome
from kit_jupyter.tools._base import EngineTool
from kit_jupyter.tools.workspace import Place, Workspace

__all__ = ["MAX_TEXT", "FileTool"]

MAX_TEXT = 50_000  # characters of an answer


class FileTool(EngineTool):
    """A tool for one path of a workspace; a subclass sets `action`, and `acts` where it changes files."""

    action: ClassVar[str] = "read"
    acts: ClassVar[bool] = False

    def __init__(self, workspace: Workspace | None = None) -> None:
        self.workspace = workspace if workspace is not None else Workspace()

    def access(self, arguments: Mapping[str, Any], context: ToolContext) -> Access:
        """Inside the workspace: looking is free, changing asks; outside and secrets always ask."""
        text = str(arguments.get("path") or ".")
        place = self.workspace.resolve(text)
        self._judged(context)[text] = (place.path, place.has_other_names)
        need = place.need(self.action, "act" if self.acts else "look")
        question = self.question(place, arguments)
        if need.kind == "sensitive" and not self.acts and not place.is_sensitive:
            question += "\n\n(The file has other names, hard links: under one of them it may be a file for secrets.)"
        return Access(needs=(need,), question=question)

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments checked; the path, too, before anybody is asked about it."""
        valid = super().validate(arguments)
        self.workspace.resolve(str(valid.get("path") or "."))
        return valid

    async def run(self, context: ToolContext, arguments: dict[str, Any]) -> ToolOutcome:
        """Do it; what the disk refuses is told in a line."""
        try:
            return await super().run(context, arguments)
        except OSError as exc:
            raise ToolError(f"{str(arguments.get('path', ''))[:200]}: {exc.strerror or exc}") from exc

    def place(self, context: ToolContext, text: str) -> Place:
        """Where `text` leads now; refused if it led elsewhere when it was judged, perhaps minutes ago.

        Raises
        ------
        ToolError
            When a link was put in its way since.
        """
        place = self.workspace.resolve(text)
        path, has_other_names = self._judged(context).get(text, (place.path, True))
        if path != place.path or (place.has_other_names and not has_other_names and not self.acts):
            raise ToolError(f"{text} leads elsewhere than when it was judged: a link was put in its way; try again")
        return place

    @staticmethod
    def _judged(context: ToolContext) -> dict[str, tuple[Path, bool]]:
        """What was judged for this call, by the text of the path."""
        state = getattr(context, "state", None)
        if state is None:
            return {}
        calls: dict[str, dict[str, tuple[Path, bool]]] = state.setdefault("files_judged", {})
        judged = calls.setdefault(context.call_id, {})
        while len(calls) > 1_000:  # more than ever run beside each other
            del calls[next(iter(calls))]
        return judged

    def question(self, place: Place, arguments: Mapping[str, Any]) -> str:
        """How it is put to a person."""
        return f"{self.name} {place.shown}?"

    def _seen(self, context: ToolContext) -> dict[Path, str]:
        seen: dict[Path, str] = context.state.setdefault("files_read", {})
        return seen
