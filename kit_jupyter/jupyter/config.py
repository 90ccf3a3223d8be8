"""Configuration of kit in a notebook, and what an administrator may lock.

``c.Kit…`` (sessions) and ``c.KitNotebook…`` (cells) in ``ipython_config.py`` or
``ipython_kernel_config.py``; ``%config Kit`` and ``%config KitNotebook`` show and set what a user may
set. A file ``jupyter_kit_config.json`` in a Jupyter configuration folder of the *system* or the
*environment* sets the same traits for everyone, and its ``locked`` part holds against users: see
`Locks`.
"""

from __future__ import annotations

import fnmatch
import json
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import traitlets
from traitlets.config import Configurable

from kit_jupyter.errors import UsageError
from kit_jupyter.settings import Settings

__all__ = ["Kit", "KitNotebook", "Locks", "admin_locks"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Locks:
    """What users cannot change; patterns are shell-like (``anthropic/*``).

    Parameters
    ----------
    models : tuple of str or None
        Only these; None leaves all.
    base_urls : tuple of str or None
        Only these addresses may be given.
    deny_tools : tuple of str
        Tools that no Kit may have.
    source : str
        Where this stands, for messages.
    """

    models: tuple[str, ...] | None = None
    base_urls: tuple[str, ...] | None = None
    deny_tools: tuple[str, ...] = ()
    source: str = ""


def _admin_files() -> list[Path]:
    """Files a user cannot write in a well-kept installation: system and environment, not home."""
    from jupyter_core.paths import ENV_CONFIG_PATH, SYSTEM_CONFIG_PATH

    named = os.environ.get("KIT_ADMIN_CONFIG")
    folders = [Path(p) for p in (*SYSTEM_CONFIG_PATH, *ENV_CONFIG_PATH)]
    files = [folder / "jupyter_kit_config.json" for folder in folders]
    return [*files, *([Path(named)] if named else [])]


@cache
def admin_locks() -> Locks:
    """The locks of this machine: the first file that has any.

    Raises
    ------
    UsageError
        If a file is there and cannot be read: a lock that fails open is none.
    """
    for path in _admin_files():
        if not path.is_file():
            continue
        try:
            locked = json.loads(path.read_text(encoding="utf-8")).get("locked")
        except (OSError, ValueError, AttributeError) as exc:
            raise UsageError(f"the administrator's file {path} cannot be read ({exc}); ask them to mend it") from exc
        if not isinstance(locked, dict):
            continue
        return Locks(
            models=_names(locked.get("models"), path),
            base_urls=_names(locked.get("base_urls"), path),
            deny_tools=_names(locked.get("deny_tools"), path) or (),
            source=str(path),
        )
    return Locks()


def _names(value: Any, path: Path) -> tuple[str, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise UsageError(f"the administrator's file {path}: locked lists hold strings, got {value!r}")
    return tuple(value)


def admin_defaults() -> dict[str, Any]:
    """Traits that the administrator's file sets for everyone: class name to values."""
    out: dict[str, Any] = {}
    for path in _admin_files():
        if path.is_file():
            try:
                loaded = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                continue  # `admin_locks` says what is wrong
            out.update({k: v for k, v in loaded.items() if k != "locked" and isinstance(v, dict)})
    return out


class Kit(Settings):
    """Settings of this kernel's sessions: ``c.Kit.model = …`` in a configuration, ``%config Kit.model = …`` later.

    A change reaches the session that cells talk to, and every later one.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        given = self.config.get("Kit", {})
        for name, value in admin_defaults().get("Kit", {}).items():
            if name not in given and self.has_trait(name):
                setattr(self, name, value)

    def for_session(self) -> dict[str, Any]:
        """What differs from the defaults: arguments for a new Kit."""
        names = self.trait_names(config=True)
        return {name: getattr(self, name) for name in names if getattr(self, name) != self.traits()[name].default()}


class KitNotebook(Configurable):
    """Kit in a notebook; the sessions themselves are configured by ``c.Kit``."""

    ui = traitlets.Enum(
        ("auto", "widget", "updates", "static", "plain"),
        default_value="auto",
        help="How a cell shows its turn; the environment variable KIT_UI goes before it.",
    ).tag(config=True)
    context = traitlets.Unicode(
        "none", help="Cells sent with each prompt: none, above, all, or ids and numbers such as 3-7."
    ).tag(config=True)
    rich = traitlets.Bool(True, help="Draw Markdown in a terminal with rich, where it is installed.").tag(config=True)
    tools = traitlets.List(
        traitlets.Unicode(),
        None,
        allow_none=True,
        help="Built-in tools of notebook sessions by name; None for all, [] for none.",
    ).tag(config=True)
    session = traitlets.Unicode(
        "new", help="What cells begin with: new, memory, or last (this notebook's last session, else the project's)."
    ).tag(config=True)

    keep_turns = traitlets.Bool(
        True,
        help="Keep each turn as data in the notebook, for cards and %kit_resume --from-notebook; off: its text only.",
    ).tag(config=True)
    keep_limit = traitlets.Int(
        1_000_000,
        min=0,
        help="Most characters of one turn's data in the notebook; beyond, results, thinking, pictures are cut. 0: all.",
    ).tag(config=True)

    keymap = traitlets.Dict(
        help="Your keys: command id to keys, a list of them, or None to remove; what is set in Lab goes before it."
    ).tag(config=True)

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        given = self.config.get("KitNotebook", {})
        for name, value in admin_defaults().get("KitNotebook", {}).items():
            if name not in given and self.has_trait(name):
                setattr(self, name, value)

    def pack(self, turn: dict[str, Any]) -> dict[str, Any]:
        """The bundle that stays in a cell."""
        from kit_jupyter.jupyter.transcript import bundle

        return bundle(turn, keep=self.keep_turns, limit=self.keep_limit)

    def notebook_tools(self, ip: Any) -> list[Any]:
        """The built-in tools of a new session, without those that are locked."""
        from kit_jupyter.jupyter.runner import notebook_tools

        return notebook_tools(ip, self.tools, denied=admin_locks().deny_tools)

    @staticmethod
    def check_kit(kit: Any) -> None:
        """Hold a Kit against the locks.

        Raises
        ------
        UsageError
            If it has a tool that is denied here.
        """
        locks = admin_locks()
        for name in kit.tools:
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in locks.deny_tools):
                raise UsageError(f"the tool {name!r} is not allowed here ({locks.source})")

    @classmethod
    def check_turn(cls, kit: Any, options: Any) -> None:
        """Hold a turn against the locks: its model, its address, its tools.

        Raises
        ------
        UsageError
            Names what is locked and what may be used.
        """
        locks = admin_locks()
        if locks == Locks():
            return
        cls.check_kit(kit)
        model = (options.model if options is not None else None) or kit.model
        if locks.models is not None and model and not any(fnmatch.fnmatchcase(model, p) for p in locks.models):
            allowed = ", ".join(locks.models)
            raise UsageError(f"the model {model!r} is not allowed here; allowed: {allowed} ({locks.source})")
        if locks.models is not None and not model:
            kit.model = locks.models[0]
        url = options.base_url if options is not None else None
        if url and locks.base_urls is not None and not any(fnmatch.fnmatchcase(url, p) for p in locks.base_urls):
            raise UsageError(f"the address {url!r} is not allowed here ({locks.source})")
        for tool in options.extra_tools if options is not None else ():
            name = getattr(getattr(tool, "spec", None), "name", getattr(tool, "__name__", ""))
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in locks.deny_tools):
                raise UsageError(f"the tool {name!r} is not allowed here ({locks.source})")
