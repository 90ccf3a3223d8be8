"""What works in this kernel and what does not; and the keys of the Lab extension."""

from __future__ import annotations

import json
import os
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit_jupyter.errors import KitError
from kit_jupyter.jupyter import display
from kit_jupyter.jupyter.config import admin_locks
from kit_jupyter.jupyter.shell import is_kernel, probes

if TYPE_CHECKING:
    from kit_jupyter.jupyter.notebook import Notebook

__all__ = ["keys", "report"]

_ROADS = {
    "comm_routing": "Stop in the view while code of a tool runs",
    "parent_variable": "output of background turns in their own cell",
    "thread_parent": "printed text of background turns in their own cell",
    "control_handlers": "Stop and steer by the Lab extension",
    "fast_lane": "%kit_steer in another cell while a turn runs",
    "concurrent_comms": "the view answers while a turn runs",
}


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def report(notebook: Notebook) -> str:
    """Lines to read."""
    ip = notebook.ip
    names = ("kit-jupyter", "ipykernel", "ipython", "ipywidgets", "anywidget", "jupyterlab")
    lines = ["versions: " + ", ".join(f"{name} {_version(name)}" for name in names)]
    kit = notebook.kit()
    lines.append(f"model: {kit.model or 'chosen at the first prompt'} {getattr(kit, 'model_reason', '')}".rstrip())
    lines.append(f"session: {kit.session.path or 'in memory'}")
    lines.append(f"display: {display.choose(ip, notebook.config.ui)} (KIT_UI={os.environ.get('KIT_UI', '')!r})")
    if is_kernel(ip):
        lines += [f"{'yes' if works else 'no '}  {_ROADS.get(name, name)}" for name, works in probes(ip).items()]
    else:
        lines.append("a terminal: text only")
    lines.append(f"Lab extension: {_extension() or 'not found; cell editing and the side panel need it'}")
    try:
        locks = admin_locks()
        if locks.source:
            lines.append(f"locked by {locks.source}")
    except KitError as exc:
        lines.append(f"no   {exc}")
    return "\n".join(lines)


def _extension() -> str:
    from jupyter_core.paths import jupyter_path

    for folder in jupyter_path("labextensions"):
        path = Path(folder) / "kit-jupyter" / "package.json"
        if path.is_file():
            return str(path.parent)
    return ""


def keys() -> str:
    """The extension's default keys, read from its own schema."""
    here = Path(__file__).resolve().parent.parent / "labextension"
    folders = [here, Path(_extension())] if _extension() else [here]
    for folder in folders:
        for path in sorted(folder.glob("schemas/**/*.json")):
            found = _bindings(path)
            if found:
                return "\n".join(f"{keys:<14} {what}" for keys, what in found)
    return "the Lab extension is not installed; its keys are in its settings (Settings > kit)"


def _bindings(path: Path) -> list[tuple[str, str]]:
    try:
        schema: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    out: list[tuple[str, str]] = []
    for prop in schema.get("properties", {}).values():
        default = prop.get("default") if isinstance(prop, dict) else None
        for entry in default if isinstance(default, list) else ():
            if isinstance(entry, dict) and entry.get("keys") and entry.get("command"):
                shown = entry["keys"] if isinstance(entry["keys"], str) else " ".join(entry["keys"])
                out.append((shown, str(entry.get("description") or entry["command"])))
    for entry in schema.get("jupyter.lab.shortcuts", ()):
        out.append((" ".join(entry.get("keys", [])), str(entry.get("command", ""))))
    return out
