"""A provider's key: asked of a person, and where it comes from."""

from __future__ import annotations

from collections.abc import Mapping

from kit_jupyter.messages import ModelRef
from kit_jupyter.providers import keys
from kit_jupyter.providers.registry.catalogue import ROWS, row_of
from kit_jupyter.providers.registry.names import check_name

__all__ = ["key_source", "login"]


def login(provider: str | None = None, *, where: str | None = None) -> str:
    """Ask for a provider's key without showing it, and keep it; see `keys.login`.

    Parameters
    ----------
    provider : str or None
        None asks for the name first.
    """
    if not provider:
        provider = input(f"provider ({', '.join(row.name for row in ROWS[:8])} …): ").strip()
    check_name(ModelRef(provider, "model"))
    return keys.login(provider, where=where)


def key_source(provider: str, environ: Mapping[str, str] | None = None) -> str:
    """Where a provider's key comes from, for status pages; never the key."""
    row = row_of(provider)
    found = keys.find_key(provider, row.key_env if row else (), environ=environ)
    return found.source or ("not needed" if row is None or not row.needs_key else "none")
