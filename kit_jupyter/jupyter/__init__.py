"""The only rooms that know IPython, ipywidgets and anywidget."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kit_jupyter.jupyter.notebook import Notebook

__all__ = ["load", "notebook_of", "prepare", "unload"]

_ATTRIBUTE = "_kit_notebook"
_EARLY = "_kit_early"


def prepare(ip: Any, make_kit: Callable[..., Any] | None = None) -> None:
    """What ``%load_ext kit_jupyter`` does: the names are there at once, what stands behind them comes later.

    The magics, the session ``kit`` and the rooms they need are loaded when the first of them is
    used, or by a kernel that has nothing else to do. Loading twice is loading once. A variable
    ``kit`` of the user's own stays; if it is a `Kit`, cells talk to it.
    """
    if getattr(ip, _EARLY, None) is None and getattr(ip, _ATTRIBUTE, None) is None:
        from kit_jupyter.jupyter.early import Early

        early = Early(ip, lambda: load(ip, make_kit))
        setattr(ip, _EARLY, early)
        early.install()


def load(ip: Any, make_kit: Callable[..., Any] | None = None) -> Notebook:
    """Everything at once; see `prepare`.

    Parameters
    ----------
    ip : InteractiveShell
    make_kit : callable(session=…, config=…, **settings) -> Kit, or None
        Makes the sessions' Kits, with their tools and guests; None: a plain `Kit`.
    """
    known: Notebook | None = getattr(ip, _ATTRIBUTE, None)
    if known is not None:
        return known
    from kit_jupyter.jupyter import unawaited
    from kit_jupyter.jupyter.completion import install as install_completion
    from kit_jupyter.jupyter.early import Early
    from kit_jupyter.jupyter.keymap import terminal_of
    from kit_jupyter.jupyter.lab import Lab
    from kit_jupyter.jupyter.magics import KitMagics
    from kit_jupyter.jupyter.notebook import Notebook
    from kit_jupyter.jupyter.panel import serve_side_panel
    from kit_jupyter.turn import TurnResult

    early: Early | None = getattr(ip, _EARLY, None)
    if early is None:
        early = Early(ip, lambda: load(ip, make_kit))
        setattr(ip, _EARLY, early)
        early.install()
    notebook = Notebook(ip, early, make_kit)
    early.notebook = notebook
    notebook.lab = Lab(notebook)
    magics = KitMagics(ip, notebook)
    ip.register_magics(magics)
    notebook.magics = magics
    if ip.display_formatter is not None:
        ip.display_formatter.ipython_display_formatter.for_type(TurnResult, magics.show_result)
    install_completion(ip, magics)
    unawaited.install(ip)
    serve_side_panel(notebook)
    ip.configurables += [notebook.config, notebook.settings]  # so that %config shows them
    setattr(ip, _ATTRIBUTE, notebook)
    notebook.terminal = terminal_of(ip, notebook.lab.keymap)
    notebook.lab.announce(early.loaded_by)
    return notebook


def unload(ip: Any) -> None:
    """Take everything out of a shell again; running turns are stopped."""
    early = getattr(ip, _EARLY, None)
    if early is not None:
        early.remove()
        delattr(ip, _EARLY)
    notebook: Notebook | None = getattr(ip, _ATTRIBUTE, None)
    if notebook is not None:
        _unload_notebook(ip, notebook)
    for kind in ("line", "cell"):
        table = ip.magics_manager.magics[kind]
        for name in [name for name in table if name == "kit" or name.startswith("kit_")]:
            del table[name]
    ip.magics_manager.registry.pop("KitMagics", None)


def _unload_notebook(ip: Any, notebook: Notebook) -> None:
    from kit_jupyter.jupyter import unawaited
    from kit_jupyter.jupyter.completion import remove as remove_completion
    from kit_jupyter.turn import TurnResult

    notebook.lab.close()
    if notebook.terminal is not None:
        notebook.terminal.close()
    notebook.close()
    remove_completion(ip)
    unawaited.remove(ip)
    if ip.display_formatter is not None:
        ip.display_formatter.ipython_display_formatter.pop(TurnResult, None)
    for configurable in (notebook.config, notebook.settings):
        if configurable in ip.configurables:
            ip.configurables.remove(configurable)
    mine = ip.user_ns.get("kit")
    if any(mine is kit for kit in notebook.kits.values()):
        del ip.user_ns["kit"]
    delattr(ip, _ATTRIBUTE)


def notebook_of(ip: Any) -> Notebook | None:
    """What kit has in this shell, loaded to the end; None when kit is not loaded."""
    if getattr(ip, _EARLY, None) is not None:
        load(ip)
    return getattr(ip, _ATTRIBUTE, None)
