"""What works in this kernel and what does not; and the keys of the Lab extension."""

from __future__ import annotations

import importlib.util
import json
import os
from difflib import get_close_matches
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit_jupyter.errors import KitError
from kit_jupyter.jupyter import display
from kit_jupyter.jupyter.config import admin_locks
from kit_jupyter.jupyter.keymap import TERMINAL_LEADER, listing, overridden
from kit_jupyter.jupyter.shell import is_kernel, probes
from kit_jupyter.shelf import registry

if TYPE_CHECKING:
    from kit_jupyter.jupyter.notebook import Notebook
    from kit_jupyter.kit import Kit

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


def _model(kit: Kit) -> str:
    """Which model answers, and why; without a prompt so far, which one would."""
    if kit.model:
        return f"{kit.model}, {f'because {kit.model_reason}' if kit.model_reason else 'as it was set'}"
    try:
        choice = registry().choose()
    except KitError as exc:
        return f"none to be had ({exc.message})"
    return f"{choice.ref} from the first prompt on, because {choice.why}"


def report(notebook: Notebook) -> str:
    """Lines to read."""
    ip = notebook.ip
    names = ("kit-jupyter", "ipykernel", "ipython", "ipywidgets", "anywidget", "jupyterlab")
    lines = ["versions: " + ", ".join(f"{name} {_version(name)}" for name in names)]
    kit = notebook.kit()
    lines.append(f"model: {_model(kit)}")
    lines.append(f"session: {kit.session.path or 'in memory'}")
    lines.append(f"display: {display.choose(ip, notebook.config.ui)} (KIT_UI={os.environ.get('KIT_UI', '')!r})")
    if is_kernel(ip):
        lines += [f"{'yes' if works else 'no '}  {_ROADS.get(name, name)}" for name, works in probes(ip).items()]
    else:
        lines.append("a terminal: text only")
    if importlib.util.find_spec("bashlex") is None:
        lines.append("no   shell lines are read for their permissions: each one asks. pip install 'kit-jupyter[tools]'")
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


def keys(notebook: Notebook | None = None) -> str:
    """What is mapped: the extension's keys after the person's map, those of this kernel, and what is doubtful."""
    if notebook is not None and not is_kernel(notebook.ip):  # Lab's keys do nothing in a terminal
        return listing(notebook.lab.keymap, leader=TERMINAL_LEADER.title())
    lines: list[str] = ["<leader> is Ctrl+; in Lab, unless its settings say another (Settings > kit)"]
    shipped = _shipped()
    if notebook is not None:
        shipped = overridden(shipped, notebook.config.keymap)
        focus = notebook.lab.focus
        if notebook.lab.is_attached:
            where = f"cell {focus['cell']} is active" if focus.get("cell") else "a page is attached"
            lines.append(f"{where}; in Lab, <leader>? tells which of these count where the cursor is")
    lines += [
        f"{one['keys']:<14}{one['description']} ({one['command']}"
        + (f", when {one['when']}" if one.get("when") else "")
        + ")"
        for one in shipped
    ]
    if not shipped:
        lines.append("the Lab extension is not installed; its keys are in its settings (Settings > kit)")
    if notebook is not None:
        own = listing(notebook.lab.keymap)
        lines += [own] if own else []
        known = {one["command"] for one in _shipped()}
        lines += [
            f"your key map: unknown command {name}; near it: {', '.join(get_close_matches(name, known)) or 'none'}"
            for name in notebook.config.keymap
            if known and name not in known and name.startswith("kit:")
        ]
    return "\n".join(lines)


def _shipped() -> list[dict[str, Any]]:
    here = Path(__file__).resolve().parent.parent / "labextension"
    folders = [Path(_extension())] if _extension() else [here]
    return [one for folder in folders for path in sorted(folder.glob("schemas/**/*.json")) for one in _bindings(path)]


def _as_lab(keys: str) -> str:
    """Keys as Lab's menus show them.

    Examples
    --------
    >>> _as_lab("Accel Shift ;")
    'Ctrl+Shift+;'
    """
    return "+".join("Ctrl" if key == "Accel" else key for key in keys.split())


def _bindings(path: Path) -> list[dict[str, Any]]:
    try:
        schema: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    mappings = schema.get("properties", {}).get("mappings", {}).get("default", [])
    shortcuts = [
        {
            "keys": ", ".join(_as_lab(keys) for keys in one["keys"]),
            "command": one["command"],
            "description": "shortcut of Lab",
        }
        for one in schema.get("jupyter.lab.shortcuts", ())
    ]
    return [*mappings, *shortcuts]
