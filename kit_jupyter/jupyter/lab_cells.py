"""Tools on the notebook's cells, done by the page that shows it.

Theory of operation
-------------------
The page works on the model that the editor, undo and collaborators use: what it changes is seen at
once, is one step of undo, keeps ids and metadata, and needs no document backend of ours. Cells are
named by id, never by index. No page, no editing: then the tool says so and gives the code as text.
Nothing here writes a notebook file.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from kit_jupyter.errors import ToolError
from kit_jupyter.jupyter.lab import NoFrontEnd
from kit_jupyter.messages import MediaPart, Part, TextPart
from kit_jupyter.permissions import Access, Kind, Need
from kit_jupyter.tool import FunctionTool, ToolContext, ToolOutcome
from kit_jupyter.trifecta import Legs

if TYPE_CHECKING:
    from kit_jupyter.jupyter.lab import Lab

__all__ = ["CellTool", "cell_tools"]

MAX_OUTPUT = 8_000
MAX_PICTURES = 6
RUN_SECONDS = 600.0

_LEGS = Legs(private=True, untrusted="soft")
Body = Callable[..., Awaitable[ToolOutcome]]


class CellTool(FunctionTool):
    """A tool that a page carries out; runs on the engine, for it touches nothing of the user's.

    Parameters
    ----------
    shows : lab or None
        Whose page tells the text of the cell in question before a person is asked, so that they see what
        will run or go; the call is refused when that text has changed since.
    """

    #: One of kit's own: a turn does not offer it to a model so small that eight more tools would drown it.
    is_builtin: ClassVar[bool] = True

    def __init__(self, fn: Body, kind: Kind, question: str, shows: Lab | None = None) -> None:
        super().__init__(fn, legs=_LEGS)
        self._body_on_engine = fn
        self._kind = kind
        self._question = question
        self._shows = shows
        self._shown: dict[str, str] = {}  # by call

    async def prepare(self, context: ToolContext, arguments: Mapping[str, Any]) -> None:
        """Learn the text of the cell; a page that is not there, or has no such cell, is told by the call itself."""
        if self._shows is None:
            return
        try:
            text = await self._source(str(arguments["id"]))
        except ToolError:
            return
        if text is not None:
            self._shown[context.call_id] = text
        while len(self._shown) > 100:
            del self._shown[next(iter(self._shown))]

    async def _source(self, cell: str) -> str | None:
        assert self._shows is not None
        found = await self._shows.call("read_cells", {"ids": [cell], "outputs": False})
        return next((one["source"] for one in found.get("cells") or () if one.get("id") == cell), None)

    def access(self, arguments: Mapping[str, Any], context: ToolContext) -> Access:
        """Reading looks; the rest acts on the notebook."""
        where = str(arguments.get("id") or arguments.get("after") or arguments.get("before") or "")
        need = Need(self.name, where, self._kind, "*")
        return Access(needs=(need,), question=self._asked(where, arguments, context) if self._question else "")

    def _asked(self, where: str, arguments: Mapping[str, Any], context: ToolContext) -> str:
        words = [self._question.format(id=where)]
        shown = self._shown.get(getattr(context, "call_id", ""))
        if shown is not None:
            words.append(shown)
        if arguments.get("old"):
            words.append(f"{arguments['old']}\n\n→")
        words.extend(str(arguments[name]) for name in ("source", "new") if arguments.get(name))
        return "\n\n".join(_clip(text) for text in words)

    async def run(self, context: ToolContext, arguments: dict[str, Any]) -> ToolOutcome:
        """Ask the page."""
        try:
            shown = self._shown.pop(getattr(context, "call_id", ""), None)
            if shown is not None and await self._source(str(arguments["id"])) not in (shown, None):
                raise ToolError(f"cell {arguments['id']} has changed since it was shown to the person; ask again")
            return await self._body_on_engine(**arguments)
        except NoFrontEnd as exc:
            return ToolOutcome.of_text(_without_page(exc.message, arguments), is_error=True)
        except ToolError as exc:
            return ToolOutcome.of_text(exc.message, is_error=True)


def _without_page(reason: str, arguments: Mapping[str, Any]) -> str:
    code = arguments.get("source") or arguments.get("new")
    words = (
        f"{reason}. Cells can only be changed in JupyterLab or Notebook with the kit extension, while the page is open."
    )
    if code:
        words += f" Give the person this text to paste instead:\n\n{code}"
    return words


def cell_tools(lab: Lab) -> tuple[CellTool, ...]:
    """The tools over one kernel's pages: read, insert, edit, delete, move, run, select, clear."""

    async def read_cells(ids: list[str] | None = None, outputs: bool = True) -> ToolOutcome:
        """Read cells of the notebook as it is now: ids, sources, outputs and pictures.

        Parameters
        ----------
        ids : list of str
            Which cells; none for all.
        outputs : bool
            With their outputs.
        """
        found = await lab.call("read_cells", {"ids": ids, "outputs": outputs})
        return _shown(found)

    async def insert_cell(
        source: str,
        type: Literal["code", "markdown", "raw"] = "code",
        after: str | None = None,
        before: str | None = None,
    ) -> ToolOutcome:
        """Insert a cell; at the end of the notebook unless told where. It is not run.

        Parameters
        ----------
        source : str
            Its whole text.
        type : str
            code, markdown or raw.
        after, before : str
            Id of the cell beside it.
        """
        made = await lab.call("insert_cell", {"source": source, "type": type, "after": after, "before": before})
        return ToolOutcome(
            parts=(TextPart(f"inserted as cell {made['id']}"),),
            details={"cell": made["id"], "before": "", "after": source},
        )

    async def edit_cell(id: str, new: str, old: str | None = None) -> ToolOutcome:
        """Change a cell's text. With `old`, which must occur exactly once, only that piece is replaced.

        Parameters
        ----------
        id : str
            The cell.
        new : str
            The new text.
        old : str
            The piece to replace, copied exactly; leave it out to replace the whole text.
        """
        arguments = {"id": id, "new": new} | ({} if old is None else {"old": old})
        made = await lab.call("edit_cell", arguments)
        return ToolOutcome(
            parts=(TextPart(f"cell {id} is now:\n{made['source']}"),),
            details={"cell": id, "before": old or "", "after": new},
        )

    async def delete_cell(id: str) -> ToolOutcome:
        """Delete a cell.

        Parameters
        ----------
        id : str
            The cell.
        """
        await lab.call("delete_cell", {"id": id})
        return ToolOutcome.of_text(f"deleted cell {id}")

    async def move_cell(id: str, after: str | None = None, before: str | None = None) -> ToolOutcome:
        """Move a cell after or before another one.

        Parameters
        ----------
        id : str
            The cell.
        after, before : str
            Id of the cell beside which it shall stand; one of the two.
        """
        if (after is None) == (before is None):
            raise ToolError("say either after or before which cell")
        await lab.call("move_cell", {"id": id, "after": after, "before": before})
        return ToolOutcome.of_text(f"moved cell {id} " + (f"after {after}" if after else f"before {before}"))

    async def run_cell(id: str) -> ToolOutcome:
        """Run a code cell and give its outputs.

        Parameters
        ----------
        id : str
            The cell.
        """
        # While a cell waits for this turn the kernel takes no other cell: it is queued, not awaited.
        queued = lab.must_queue
        done = await lab.call("run_cell", {"id": id, "wait": not queued}, timeout_seconds=RUN_SECONDS)
        if queued:
            return ToolOutcome.of_text(
                f"cell {id} is queued; it runs when this turn has ended, and its output can be read in the next turn"
            )
        outcome = _shown({"cells": [done]})
        return ToolOutcome(parts=outcome.parts, is_error=done.get("state") == "error")

    async def select_cell(id: str) -> ToolOutcome:
        """Select a cell and bring it into view, to point at it.

        Parameters
        ----------
        id : str
            The cell.
        """
        await lab.call("select_cell", {"id": id})
        return ToolOutcome.of_text(f"cell {id} is selected")

    async def clear_cells(ids: list[str] | None = None) -> ToolOutcome:
        """Clear outputs of code cells.

        Parameters
        ----------
        ids : list of str
            Which cells; none for all.
        """
        made = await lab.call("clear_cells", {"ids": ids})
        return ToolOutcome.of_text(f"cleared the outputs of {made['cleared']} cells")

    return (
        CellTool(read_cells, "look", ""),
        CellTool(insert_cell, "act", "Insert a cell?"),
        CellTool(edit_cell, "act", "Change cell {id}?"),
        CellTool(delete_cell, "act", "Delete cell {id}?", lab),
        CellTool(move_cell, "act", "Move cell {id}?"),
        CellTool(run_cell, "act", "Run cell {id}?", lab),
        CellTool(select_cell, "look", ""),
        CellTool(clear_cells, "act", "Clear outputs?"),
    )


def _shown(found: Mapping[str, Any]) -> ToolOutcome:
    """Cells as a model reads them: a line of facts, the text, the outputs; pictures as parts."""
    parts: list[Part] = []
    words: list[str] = []
    pictures = 0
    if found.get("active"):
        words.append(f"active cell: {found['active']}")
    for cell in found.get("cells") or ():
        count = cell.get("execution_count")
        facts = [f'id="{cell["id"]}"', f'type="{cell["type"]}"', *([f'run="{count}"'] if count else [])]
        tags = (cell.get("metadata") or {}).get("tags")
        words.append(f"<cell {' '.join([*facts, *([f'tags={json.dumps(tags)}'] if tags else [])])}>\n{cell['source']}")
        for output in cell.get("outputs") or ():
            text, picture = _output(output)
            if picture is not None:
                pictures += 1
                if pictures <= MAX_PICTURES:
                    words.append(f"<output>picture {pictures}, below</output>")
                    parts.append(picture)
                else:
                    words.append("<output>a picture, not shown: ask for this cell alone</output>")
            elif text.strip():
                words.append(f"<output>\n{_clip(text)}\n</output>")
        words.append("</cell>")
    return ToolOutcome(parts=(TextPart("\n".join(words) or "the notebook is empty"), *parts))


def _output(output: Mapping[str, Any]) -> tuple[str, MediaPart | None]:
    match output.get("output_type"):
        case "stream":
            return _joined(output.get("text")), None
        case "error":
            trace = "\n".join(output.get("traceback") or ())
            return _plain(trace) or f"{output.get('ename')}: {output.get('evalue')}", None
    bundle = output.get("data") or {}
    for kind in ("image/png", "image/jpeg"):
        if kind in bundle:
            return "", MediaPart(kind, _joined(bundle[kind]).replace("\n", ""))
    for kind in ("text/markdown", "text/plain", "text/html"):
        if kind in bundle:
            return _joined(bundle[kind]), None
    return f"({', '.join(bundle) or 'nothing'})", None


def _joined(text: Any) -> str:
    return "".join(text) if isinstance(text, list) else str(text or "")


def _plain(text: str) -> str:
    import re

    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def _clip(text: str) -> str:
    if len(text) <= MAX_OUTPUT:
        return text
    half = MAX_OUTPUT // 2
    return f"{text[:half]}\n… {len(text) - MAX_OUTPUT:,} characters left out …\n{text[-half:]}"
