"""File tools: read, write, edit, grep, glob, ls, within a workspace.

Theory of operation
-------------------
What a tool has read is remembered by a digest for this Kit; `edit`, and `write` over a file that
exists, need the file to be as it was read, so a change by someone else is never overwritten. Before
a change the old content is kept (`checkpoints`), and the change is shown as a diff. All disk work
runs on threads or in child processes, never on the engine.
"""

from __future__ import annotations

from kit_jupyter.tools._base import EngineTool
from kit_jupyter.tools.files.changing import EditTool, WriteTool
from kit_jupyter.tools.files.grep import GrepTool
from kit_jupyter.tools.files.listing import GlobTool, LsTool
from kit_jupyter.tools.files.reading import ReadTool
from kit_jupyter.tools.files.replacing import replaced
from kit_jupyter.tools.workspace import Workspace

__all__ = ["EditTool", "GlobTool", "GrepTool", "LsTool", "ReadTool", "WriteTool", "file_tools", "replaced"]


def file_tools(workspace: Workspace | None = None) -> tuple[EngineTool, ...]:
    """All six over one workspace."""
    shared = workspace if workspace is not None else Workspace()
    return tuple(make(shared) for make in (ReadTool, WriteTool, EditTool, GrepTool, GlobTool, LsTool))
