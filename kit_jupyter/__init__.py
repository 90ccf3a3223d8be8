"""kit-jupyter: an AI agent that lives in the Jupyter kernel.

The names below are the public face; each is loaded when it is first used, so that importing the
package costs next to nothing and touches neither disk nor net.

Examples
--------
>>> from kit_jupyter import Kit
>>> from kit_jupyter.testing import ScriptedProvider
>>> kit = Kit(provider=ScriptedProvider("Four."), session="memory")
>>> print(kit.prompt_sync("What is 2 + 2?"))
Four.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kit_jupyter.errors import (
        AuthFailed,
        BadArguments,
        ConnectionFailed,
        ContextOverflow,
        Denied,
        ExtensionError,
        KitError,
        Overloaded,
        ProviderError,
        RateLimited,
        Rejected,
        ReplayMiss,
        SessionError,
        ToolError,
        ToolTimeout,
        UnknownTool,
        UsageError,
        WireError,
    )
    from kit_jupyter.extension import Extension, ExtensionProtocol
    from kit_jupyter.inbox import Receipt
    from kit_jupyter.kit import Kit
    from kit_jupyter.messages import CellRef, MediaPart, ModelRef, TextPart, Usage
    from kit_jupyter.permissions import Rule
    from kit_jupyter.prompt import PromptEditor, PromptMessage
    from kit_jupyter.session import Session
    from kit_jupyter.settings import PromptOptions
    from kit_jupyter.tool import ToolContext, halt, tool
    from kit_jupyter.trifecta import Legs
    from kit_jupyter.turn import TurnResult

__version__ = "0.1.0"

__all__ = [
    "AuthFailed",
    "BadArguments",
    "CellRef",
    "ConnectionFailed",
    "ContextOverflow",
    "Denied",
    "Extension",
    "ExtensionError",
    "ExtensionProtocol",
    "Kit",
    "KitError",
    "Legs",
    "MediaPart",
    "ModelRef",
    "Overloaded",
    "PromptEditor",
    "PromptMessage",
    "PromptOptions",
    "ProviderError",
    "RateLimited",
    "Receipt",
    "Rejected",
    "ReplayMiss",
    "Rule",
    "Session",
    "SessionError",
    "TextPart",
    "ToolContext",
    "ToolError",
    "ToolTimeout",
    "TurnResult",
    "UnknownTool",
    "Usage",
    "UsageError",
    "WireError",
    "__version__",
    "halt",
    "tool",
]

_HOME = {
    "errors": (
        "AuthFailed BadArguments ConnectionFailed ContextOverflow "
        "Denied ExtensionError KitError Overloaded ProviderError "
        "RateLimited Rejected ReplayMiss SessionError ToolError ToolTimeout UnknownTool UsageError WireError"
    ),
    "extension": "Extension ExtensionProtocol",
    "inbox": "Receipt",
    "kit": "Kit",
    "messages": "CellRef MediaPart ModelRef TextPart Usage",
    "permissions": "Rule",
    "prompt": "PromptEditor PromptMessage",
    "session": "Session",
    "settings": "PromptOptions",
    "tool": "ToolContext halt tool",
    "trifecta": "Legs",
    "turn": "TurnResult",
}
_ROOM_OF = {name: room for room, names in _HOME.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    room = _ROOM_OF.get(name)
    if room is None:
        raise AttributeError(f"module 'kit_jupyter' has no attribute {name!r}")
    value = getattr(import_module(f"kit_jupyter.{room}"), name)
    globals()[name] = value
    return value


class _Face(ModuleType):
    """This module. `tool` is a room, too, and importing a room sets its module under that name."""

    @property
    def tool(self) -> Any:
        return import_module("kit_jupyter.tool").tool

    @tool.setter
    def tool(self, value: object) -> None:
        """The room; it is found in `sys.modules`."""


sys.modules[__name__].__class__ = _Face


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def load_ipython_extension(ip: Any) -> None:
    """``%load_ext kit_jupyter``: the magics, and the live session as ``kit``."""
    from kit_jupyter import jupyter

    jupyter.prepare(ip)


def unload_ipython_extension(ip: Any) -> None:
    """``%unload_ext kit_jupyter``."""
    from kit_jupyter import jupyter

    jupyter.unload(ip)


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    """Where the built JupyterLab extension lies, for ``jupyter-builder develop``."""
    return [{"src": "labextension", "dest": "kit-jupyter"}]
