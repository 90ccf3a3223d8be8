"""The notebook's shell as the runner of the `python` and `inspect` tools, and the tools of a notebook."""

from __future__ import annotations

import fnmatch
from collections.abc import Awaitable, Callable, Collection, Iterable, MutableMapping
from pathlib import Path
from typing import Any

from kit_jupyter.jupyter.shell import CodeRun, run_user_code

__all__ = ["IPythonRunner", "notebook_tools"]


class IPythonRunner:
    """Runs code as a cell of `ip` would; nothing of it reaches a cell.

    Fulfils `kit_jupyter.tools.python.Runner`.
    """

    def __init__(self, ip: Any) -> None:
        self._ip = ip

    @property
    def namespace(self) -> MutableMapping[str, Any]:
        """The user's variables."""
        names: MutableMapping[str, Any] = self._ip.user_ns
        return names

    def run(self, code: str, on_text: Callable[[str, str], object]) -> Awaitable[CodeRun]:
        """Run on the user's thread; ``on_text`` is told what is printed, as it is printed."""
        return run_user_code(self._ip, code, on_text=on_text)


def notebook_tools(ip: Any, names: Iterable[str] | None = None, *, denied: Iterable[str] = ()) -> list[Any]:
    """The built-in tools over this notebook's variables and working directory.

    Parameters
    ----------
    names : names or None
        Which; None for all.
    denied : patterns
        Left out, because an administrator locked them.
    """
    from kit_jupyter.builtin import NAMES, builtin_tools
    from kit_jupyter.tools.workspace import Workspace, open_notebooks_of_environment

    def open_notebooks() -> Collection[Path]:
        told = ip.user_ns.get("__vsc_ipynb_file__")
        editor = [Path(told)] if isinstance(told, str) and told else []
        return [*open_notebooks_of_environment(), *editor]

    wanted = [n for n in (NAMES if names is None else names) if not any(fnmatch.fnmatchcase(n, p) for p in denied)]
    if not wanted:
        return []
    return builtin_tools(*wanted, runner=IPythonRunner(ip), workspace=Workspace(open_notebooks=open_notebooks))
