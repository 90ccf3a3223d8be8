"""Who is called what: built-in rows, special ones, what was registered, what installed packages bring."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from typing import Any

from kit_jupyter.errors import UsageError
from kit_jupyter.messages import ModelRef
from kit_jupyter.provider import Provider
from kit_jupyter.providers.registry.catalogue import ROWS, Row, row_of

__all__ = ["SPECIAL", "Factory", "check_name", "known_names", "maker_of", "register"]

GROUP = "kit_jupyter.providers"
SPECIAL = frozenset(("local", "pydantic-ai", "replay"))
"""Providers that are no row: `opening` makes each in a way of its own."""
Factory = Callable[..., Provider]
_registered: dict[str, Row | Factory] = {}


def register(name: str, provider: Row | Factory) -> None:
    """Add a provider for this process; the same as an entry point of the group ``kit_jupyter.providers``.

    Parameters
    ----------
    name : str
        Before the slash in ``provider/model``; goes before a built-in one of the same name.
    provider : Row or callable
        Called as ``provider(ref, base_url=…, api_key=…)``; returns a `Provider`.
    """
    if not re.fullmatch(r"[a-z0-9][a-z0-9_.-]*", name):
        raise UsageError(f"a provider's name is lower-case letters, digits, dot, dash and underscore; got {name!r}")
    _registered[name] = provider


def _entry_points() -> dict[str, Any]:
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=GROUP)}


def known_names() -> list[str]:
    """Names of all providers, those of other packages included."""
    return sorted({*(row.name for row in ROWS), *SPECIAL, *_registered, *_entry_points()})


def maker_of(name: str) -> Row | Factory | None:
    """What a provider of this name is made by; None for the special ones.

    Raises
    ------
    UsageError
        If another package's provider cannot be loaded.
    """
    if name in _registered:
        return _registered[name]
    row = row_of(name)
    if row is not None or name in SPECIAL:
        return row
    return _loaded(name)


def check_name(ref: ModelRef) -> None:
    """Raise `UsageError` if nobody is called so, with the nearest name; model ids are not checked."""
    name = ref.provider
    if row_of(name) is not None or name in SPECIAL or name in _registered or name in _entry_points():
        return
    near = difflib.get_close_matches(name, known_names(), n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]}/{ref.id}?" if near else ""
    raise UsageError(
        f"unknown provider {name!r} in {str(ref)!r}{hint} "
        "(%kit_model --list, or registry.known_names() of kit_jupyter.providers, names all)"
    )


def _loaded(name: str) -> Row | Factory:
    point = _entry_points()[name]
    try:
        made: Row | Factory = point.load()
    except Exception as exc:
        raise UsageError(f"provider {name!r} of {point.value} cannot be loaded ({type(exc).__name__}: {exc})") from exc
    return made
