"""SEAM Extension: how guests add prompt sections, tools and hooks to a Kit.

Theory of operation
-------------------
::

    Kit(extensions=[...])                       a user message        each step            clear
      configure ─▶ snippets ─▶ bind    on_input ─▶ (stored) ─▶      prepare_step        snippets
      (Configurator)           (ctx)   on_user_message ─▶ block     edit_prompt         Reset event
                                       before_turn … after_turn     before/after_tool   on_conversation_reset

`HOOKS` is the whole list: there is no hidden hook. The Kit drives its guests through one
`ExtensionHost` and through nothing else. A guest that fails while the Kit is built makes the
building fail, and what was opened is closed again; later a hook that raises, hangs or answers with
something else is reported and passed over, except a gate (`before_tool`), which then blocks.

What a guest is stands in `guest`, what it may add in `configurator` and `guest_context`, what hooks get and
the table of them in `hooks`, how the chained ones run in `chain`, and all guests together in `host`. Import
any of it from here.

The protocol follows the extension protocol of Pikuri (the seed document); chained hooks with
priorities follow Kit's SDK.
"""

from __future__ import annotations

from kit_jupyter.configurator import Configurator
from kit_jupyter.guest import Extension, ExtensionContext, ExtensionProtocol, KitView, once, reference_block
from kit_jupyter.guest_context import GuestContext
from kit_jupyter.hooks import HANDLED, HOOKS, BeforeTool, BeforeTurn, CompactionPlan, HookFacts, StepPlan
from kit_jupyter.host import ExtensionHost
from kit_jupyter.installed import ENTRY_POINT_GROUP, Installed, list_installed

__all__ = [
    "ENTRY_POINT_GROUP",
    "HANDLED",
    "HOOKS",
    "BeforeTool",
    "BeforeTurn",
    "CompactionPlan",
    "Configurator",
    "Extension",
    "ExtensionContext",
    "ExtensionHost",
    "ExtensionProtocol",
    "GuestContext",
    "HookFacts",
    "Installed",
    "KitView",
    "StepPlan",
    "list_installed",
    "once",
    "reference_block",
]
