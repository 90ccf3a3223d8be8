"""Which model is taken when none is named, and which ones a person may pick."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType

from kit_jupyter.errors import UsageError
from kit_jupyter.messages import ModelRef
from kit_jupyter.providers import keys
from kit_jupyter.providers.registry.catalogue import ROWS, Row
from kit_jupyter.providers.registry.local_servers import listed_models
from kit_jupyter.providers.registry.names import check_name

__all__ = ["Choice", "choose", "offered"]


@dataclass(frozen=True, slots=True)
class Choice:
    """A model and why it was taken, in words for a person."""

    ref: ModelRef
    why: str


def choose(environ: Mapping[str, str] | None = None, explicit: str | None = None, probe: bool = True) -> Choice:
    """The model to use when none is named by the call.

    Parameters
    ----------
    environ : mapping or None
        None is the process's environment.
    explicit : str or None
        A setting; goes before all else.
    probe : bool
        Look for servers on this machine: three ports of the loopback address, in parallel, 0.2 s each.

    Raises
    ------
    UsageError
        If the setting or ``KIT_MODEL`` names no model.
    """
    environ = os.environ if environ is None else environ
    for name, why in ((explicit, "the setting"), (environ.get("KIT_MODEL", "").strip(), "KIT_MODEL")):
        if name:
            ref = ModelRef.parse(name)
            check_name(ref)
            return Choice(ref, why)
    replay = _replay(environ)
    if replay and (recorded := replay.recorded_model(environ)):
        return Choice(ModelRef.parse(recorded), "the recording was made with it (KIT_REPLAY)")
    for row in ROWS:
        if row.model and row.needs_key:
            key = next((name for name in row.key_env if environ.get(name, "").strip()), None)
            if key:
                return Choice(ModelRef(row.name, row.model), f"{key} is set")
    for row in ROWS:
        if row.model and row.needs_key and keys.provider_config(row.name).get("api_key"):
            return Choice(ModelRef(row.name, row.model), f"a key for {row.name} is in {keys.config_file()}")
    if probe and not (replay and replay.is_strict(environ)):
        for row, address, models in listed_models(environ):
            if models:
                return Choice(ModelRef(row.name, models[0]), f"{row.title} answers at {address}")
    return Choice(
        ModelRef("local", "default"), "no key and no local server were found, so the built-in local model answers"
    )


def offered(environ: Mapping[str, str] | None = None, *, probe: bool = True) -> list[str]:
    """Models a person may pick: of services with a key, of servers on this machine, and the built-in ones.

    A service comes with the model that `choose` would take. Price tables know more names, but not all of
    them are names a service answers to; whoever wants another types it.

    Notes
    -----
    Reads keyring and files, and asks three loopback ports with `probe`: call it on a thread of its own.

    Examples
    --------
    >>> "openai/gpt-5.6-luna" in offered({"OPENAI_API_KEY": "k"}, probe=False)
    True
    """
    from kit_jupyter.providers import local_models

    environ = os.environ if environ is None else environ
    keyed = [row for row in ROWS if row.model and row.needs_key]
    found = [f"{row.name}/{row.model}" for row in keyed if _has_key(row, environ)]
    replay = _replay(environ)
    if probe and not (replay and replay.is_strict(environ)):
        found += [f"{row.name}/{name}" for row, _, models in listed_models(environ) for name in models]
    return [*found, *(f"local/{name}" for name in local_models.names())]


def _has_key(row: Row, environ: Mapping[str, str]) -> bool:
    try:
        return bool(keys.find_key(row.name, row.key_env, environ=environ).value)
    except UsageError:
        return False  # a key that cannot be one


def _replay(environ: Mapping[str, str]) -> ModuleType | None:
    """The room of recordings where they are in use; a first answer need not pay for it elsewhere."""
    if not environ.get("KIT_REPLAY"):
        return None
    from kit_jupyter.providers import replay

    return replay
