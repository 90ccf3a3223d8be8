"""The only rooms that know IPython, ipywidgets and anywidget."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kit_jupyter.jupyter.notebook import Notebook

__all__ = ["load", "notebook_of", "unload"]

_ATTRIBUTE = "_kit_notebook"


def load(ip: Any, make_kit: Callable[..., Any] | None = None) -> Notebook:
    """Put the magics and the live session ``kit`` into a shell.

    Parameters
    ----------
    ip : InteractiveShell
    make_kit : callable(session=…, config=…, **settings) -> Kit, or None
        Makes the sessions' Kits, with their tools and guests; None: a plain `Kit`.

    Notes
    -----
    Loading twice is loading once. A variable ``kit`` of the user's own stays; if it is a `Kit`, cells talk to it.
    """
    known: Notebook | None = getattr(ip, _ATTRIBUTE, None)
    if known is not None:
        return known
    from kit_jupyter.jupyter.completion import install as install_completion
    from kit_jupyter.jupyter.keymap import terminal_of
    from kit_jupyter.jupyter.lab import Lab
    from kit_jupyter.jupyter.magics import KitMagics
    from kit_jupyter.jupyter.notebook import Notebook
    from kit_jupyter.jupyter.panel import serve_side_panel
    from kit_jupyter.turn import TurnResult

    notebook = Notebook(ip, make_kit)
    notebook.lab = Lab(notebook)
    magics = KitMagics(ip, notebook)
    ip.register_magics(magics)
    notebook.hooks.install()
    notebook.magics = magics
    if ip.display_formatter is not None:
        ip.display_formatter.ipython_display_formatter.for_type(TurnResult, magics.show_result)
    install_completion(ip, magics)
    serve_side_panel(notebook)
    if notebook.config not in ip.configurables:
        ip.configurables.append(notebook.config)  # so that %config KitNotebook shows it
    setattr(ip, _ATTRIBUTE, notebook)
    if "kit" not in ip.user_ns:
        ip.user_ns["kit"] = notebook.kit("main")
    else:
        notebook.kit()
    notebook.terminal = terminal_of(ip, notebook.lab.keymap)
    notebook.lab.announce()
    return notebook


def unload(ip: Any) -> None:
    """Take everything out of a shell again; running turns are stopped."""
    notebook: Notebook | None = getattr(ip, _ATTRIBUTE, None)
    if notebook is None:
        return
    from kit_jupyter.jupyter.completion import remove as remove_completion
    from kit_jupyter.turn import TurnResult

    notebook.hooks.remove()
    notebook.lab.close()
    if notebook.terminal is not None:
        notebook.terminal.close()
    notebook.close()
    remove_completion(ip)
    for kind in ("line", "cell"):
        table = ip.magics_manager.magics[kind]
        for name in [name for name in table if name == "kit" or name.startswith("kit_")]:
            del table[name]
    ip.magics_manager.registry.pop("KitMagics", None)
    if ip.display_formatter is not None:
        ip.display_formatter.ipython_display_formatter.pop(TurnResult, None)
    if notebook.config in ip.configurables:
        ip.configurables.remove(notebook.config)
    if ip.user_ns.get("kit") in list(notebook.kits.values()):
        del ip.user_ns["kit"]
    delattr(ip, _ATTRIBUTE)


def notebook_of(ip: Any) -> Notebook | None:
    """What `load` made for this shell, if it did."""
    return getattr(ip, _ATTRIBUTE, None)
