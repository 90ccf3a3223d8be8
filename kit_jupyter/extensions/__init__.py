"""Who fulfils `kit_jupyter.extension`: small, complete guests, each imported when it is first named here.

Examples
--------
>>> from kit_jupyter.extensions import Tasks
>>> Tasks().items
()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kit_jupyter.extensions.mcp import Mcp, Server
    from kit_jupyter.extensions.memory import Memory
    from kit_jupyter.extensions.rules import Rules
    from kit_jupyter.extensions.skills import Skills
    from kit_jupyter.extensions.subagents import Persona, SubAgents
    from kit_jupyter.extensions.system_info import SystemInfo
    from kit_jupyter.extensions.tasks import Tasks
    from kit_jupyter.extensions.triangle import TriangleGuard
    from kit_jupyter.extensions.workspace import Workspace

__all__ = [
    "Mcp",
    "Memory",
    "Persona",
    "Rules",
    "Server",
    "Skills",
    "SubAgents",
    "SystemInfo",
    "Tasks",
    "TriangleGuard",
    "Workspace",
]

_ROOM_OF = {
    "Mcp": "mcp",
    "Memory": "memory",
    "Persona": "subagents",
    "Rules": "rules",
    "Server": "mcp",
    "Skills": "skills",
    "SubAgents": "subagents",
    "SystemInfo": "system_info",
    "Tasks": "tasks",
    "TriangleGuard": "triangle",
    "Workspace": "workspace",
}


def __getattr__(name: str) -> Any:
    room = _ROOM_OF.get(name)
    if room is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{room}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
