"""What this kernel has run: sources, outputs and errors of cells, for context marks and `%kit_fix`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from kit_jupyter.jupyter.shell import current_parent

__all__ = ["CellRecord", "RanCell"]

#: How many cells are kept.
KEPT = 1000


@dataclass(slots=True)
class RanCell:
    """One execution of a cell; a later run of the same cell takes its place."""

    cell_id: str
    number: int
    source: str
    error: BaseException | None = None
    outputs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def is_prompt(self) -> bool:
        """True for cells that talk to kit."""
        return self.source.lstrip().startswith(("%%kit", "%kit", "%load_ext kit"))

    @property
    def output_text(self) -> str:
        """Printed text and plain forms of what was shown, in order."""
        out: list[str] = []
        for bundle in self.outputs:
            text = bundle.get("stream") if "stream" in bundle else bundle.get("text/plain", "")
            out.append("".join(text) if isinstance(text, list) else str(text))
        return "\n".join(part.rstrip("\n") for part in out if part)


class CellRecord:
    """Cells in the order in which they were first run.

    Parameters
    ----------
    ip : InteractiveShell
        Its ``pre_run_cell`` and ``post_run_cell`` events are heard until `close`.
    """

    def __init__(self, ip: Any) -> None:
        self._ip = ip
        self._cells: dict[str, RanCell] = {}
        self.last_error: RanCell | None = None
        self.raw: list[str] = []  # raw text of the cells that run now, outermost first
        self._shown: list[dict[str, Any]] = []  # by the cell that runs now
        ip.events.register("pre_run_cell", self._before)
        ip.events.register("post_run_cell", self._after)
        if hasattr(ip.display_pub, "register_hook"):  # a kernel keeps no displays of its own; hooks are per thread
            ip.display_pub.register_hook(self._see)

    def _see(self, message: Any) -> Any:
        data = message.get("content", {}).get("data", {}) if isinstance(message, dict) else {}
        ours = ("application/vnd.kit", "application/vnd.jupyter.widget")
        if self.raw and not any(key.startswith(ours) for key in data):
            self._shown.append(dict(data))
        return message

    def close(self) -> None:
        """Hear no more."""
        for name, fn in (("pre_run_cell", self._before), ("post_run_cell", self._after)):
            try:
                self._ip.events.unregister(name, fn)
            except ValueError:
                pass
        if hasattr(self._ip.display_pub, "unregister_hook"):
            self._ip.display_pub.unregister_hook(self._see)

    def _before(self, info: Any = None) -> None:
        if not self.raw:
            self._shown = []
        self.raw.append(getattr(info, "raw_cell", "") or "")

    def _after(self, result: Any = None) -> None:
        if self.raw:
            self.raw.pop()
        info = getattr(result, "info", None)
        if info is None or (self.raw and not getattr(info, "store_history", False)):
            return  # a cell inside a cell: a tool's code, or %%time
        metadata = current_parent(self._ip).get("metadata") or {}
        number = int(getattr(result, "execution_count", None) or 0)
        cell_id = metadata.get("cellId") or getattr(info, "cell_id", None) or f"#{number}"
        error = getattr(result, "error_in_exec", None) or getattr(result, "error_before_exec", None)
        cell = RanCell(str(cell_id), number, info.raw_cell or "", error, self._outputs(number, result))
        self._cells.pop(cell.cell_id, None)
        self._cells[cell.cell_id] = cell
        if error is not None and not cell.is_prompt:
            self.last_error = cell
        while len(self._cells) > KEPT:
            self._cells.pop(next(iter(self._cells)))

    def _outputs(self, number: int, result: Any) -> list[dict[str, Any]]:
        outputs = getattr(self._ip.history_manager, "outputs", {}) if self._ip.history_manager else {}
        found = [_bundle(output) for output in outputs.get(number, ())]
        found += [bundle for bundle in self._shown if bundle not in found]
        value = getattr(result, "result", None)
        if value is not None and not any("text/plain" in bundle for bundle in found):
            found.append({"text/plain": repr(value)[:4000]})
        return found

    def __iter__(self) -> Iterator[RanCell]:
        return iter(list(self._cells.values()))

    def find(self, cell_id: str) -> RanCell | None:
        """The cell of that id, or the one whose id begins so, if only one does."""
        exact = self._cells.get(cell_id)
        if exact is not None or not cell_id:
            return exact
        near = [cell for key, cell in self._cells.items() if key.startswith(cell_id)]
        return near[0] if len(near) == 1 else None

    def outputs_of(self, number: int) -> list[dict[str, Any]]:
        """What the execution of that number showed."""
        outputs = getattr(self._ip.history_manager, "outputs", {}) if self._ip.history_manager else {}
        return [_bundle(output) for output in outputs.get(number, ())]

    def last_picture(self) -> str | None:
        """Base64 of the picture shown last, if any."""
        for cell in reversed(list(self._cells.values())):
            for bundle in reversed(cell.outputs):
                if isinstance(bundle.get("image/png"), str):
                    return str(bundle["image/png"])
        return None


def _bundle(output: Any) -> dict[str, Any]:
    kind = getattr(output, "output_type", "")
    bundle = dict(getattr(output, "bundle", {}) or {})
    if "stream" in kind or "out_stream" in kind or "err_stream" in kind:
        return {"stream": bundle.get("stream", bundle.get("text", ""))}
    return bundle
