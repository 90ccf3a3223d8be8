"""What ``%load_ext`` puts into a shell at once, and how the rest comes when it is needed.

Theory of operation
-------------------
Loading an extension is felt in every session, so `Early` installs only what must be there from the
first cell on: the transformer that makes ``%%kit`` an async cell, the record of cells, the answer to
the control channel, a `Sign` for pages, and stand-ins: for each magic a function, for ``kit`` a
`Later`. The first use of any of them loads the rest; a kernel that is idle imports it on a thread
of its own and finishes on its loop.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from typing import Any

from kit_jupyter.jupyter.record import CellRecord
from kit_jupyter.jupyter.shell import Parent, ShellHooks, current_parent, main_loop
from kit_jupyter.jupyter.sign import Sign

__all__ = ["MAGICS", "Early", "Later"]

#: Line magics; `kit` is a cell magic, too. A test holds them against `magics.KitMagics`.
MAGICS = (
    "kit",
    "kit_approve",
    "kit_compact",
    "kit_context",
    "kit_continue",
    "kit_deny",
    "kit_doctor",
    "kit_fix",
    "kit_fork",
    "kit_keys",
    "kit_mode",
    "kit_model",
    "kit_new",
    "kit_panel",
    "kit_resume",
    "kit_sessions",
    "kit_show",
    "kit_steer",
    "kit_stop",
    "kit_tools",
    "kit_tree",
    "kit_trifecta",
    "kit_undo",
    "kit_usage",
)
ASYNC = ("kit_async", "kit_steer_async", "kit_continue_async", "kit_compact_async", "kit_fix_async")
WARM_AFTER_SECONDS = 0.3
_ROOMS = ("notebook", "magics", "completion", "panel", "lab", "keymap", "view")


class Later:
    """Stands for the session until it is first used; from then on it is that `Kit`."""

    def __init__(self, make: Callable[[], Any]) -> None:
        object.__setattr__(self, "_make", make)

    def _become(self) -> Any:
        kit = object.__getattribute__(self, "_make")()
        # Whoever holds this object holds the session: the same class and the very same state.
        object.__setattr__(self, "__dict__", kit.__dict__)
        object.__dict__["__class__"].__set__(self, type(kit))
        return kit

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # for isinstance, which must not change the class while it looks
        kit: type = importlib.import_module("kit_jupyter.kit").Kit
        return kit

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("__", "_repr_", "_ipython_", "_ipy")):
            raise AttributeError(name)
        return getattr(self._become(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._become(), name, value)

    def __repr__(self) -> str:
        return repr(self._become())


class Early:
    """The light part of kit in one shell.

    Parameters
    ----------
    ip : InteractiveShell
    complete : callable() -> Notebook
        Loads the rest.
    """

    def __init__(self, ip: Any, complete: Callable[[], Any]) -> None:
        self.ip = ip
        self.notebook: Any = None
        self._complete = complete
        self.hooks = ShellHooks(ip, self._on_request, self._is_running)
        self.record = CellRecord(ip)
        self.loaded_by: Parent = {}  # the message that loaded kit
        self._sign: Sign | None = None
        self._is_warming = False
        self._gone = False

    def install(self) -> None:
        """Put it in."""
        self.hooks.install()
        self.loaded_by = current_parent(self.ip)
        self._sign = Sign(self.ip)
        if self.notebook is None:
            for name in (*MAGICS, *ASYNC):
                cell = name in ("kit", "kit_async")
                self.ip.magics_manager.register_function(
                    self._stand_in(name), magic_kind="line_cell" if cell else "line", magic_name=name
                )
        if "kit" not in self.ip.user_ns:
            self.ip.user_ns["kit"] = Later(lambda: self._complete().kit("main"))
        loop = main_loop(self.ip)
        if loop is not None:
            loop.call_later(WARM_AFTER_SECONDS, self._warm, loop)

    def remove(self) -> None:
        """Take it out."""
        self._gone = True
        if self._sign is not None:
            self._sign.remove()
        self.hooks.remove()
        self.record.close()
        if type(self.ip.user_ns.get("kit")) is Later:
            del self.ip.user_ns["kit"]

    def _stand_in(self, name: str) -> Callable[..., Any]:
        def magic(line: str, cell: str | None = None) -> Any:
            self._complete()
            kind = "line" if cell is None else "cell"
            real = self.ip.magics_manager.magics[kind][name]
            return real(line) if cell is None else real(line, cell)

        magic.__name__ = name
        magic.__doc__ = f"%{name} of kit; %{name} --help shows its options."
        # IPython's mark for magics whose text must not be searched for $names and {expressions}.
        magic._ipython_magic_no_var_expand = True  # type: ignore[attr-defined]
        return magic

    def _is_running(self) -> bool:
        return self.notebook is not None and bool(self.notebook.running())

    def _on_request(self, content: dict[str, Any]) -> dict[str, Any]:
        if self.notebook is None:
            loop = main_loop(self.ip)  # while the kernel's configuration is read there is none yet
            if loop is not None and not self._is_warming:
                loop.call_soon_threadsafe(self._warm, loop)
            return {"status": "error", "loading": True, "message": "kit is still loading here; ask again"}
        answer: dict[str, Any] = self.notebook.verbs.on_request(content)
        return answer

    def _warm(self, loop: Any) -> None:
        if self._gone or self._is_warming or self.notebook is not None:
            return
        self._is_warming = True

        def imports() -> None:
            for room in _ROOMS:
                importlib.import_module(f"kit_jupyter.jupyter.{room}")
            loop.call_soon_threadsafe(finish)

        def finish() -> None:
            if not self._gone:
                self._complete()

        threading.Thread(target=imports, name="kit-load", daemon=True).start()
