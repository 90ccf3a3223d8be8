"""What a cell shows that forgot ``await``: the coroutine, and how to get the answer."""

from __future__ import annotations

from types import CoroutineType
from typing import Any

from kit_jupyter.kit import Kit

__all__ = ["install", "remove"]


def _show(coroutine: Any, printer: Any, cycle: bool) -> None:
    printer.text(repr(coroutine))
    frame, name = coroutine.cr_frame, coroutine.__name__
    if frame is None or not str(frame.f_globals.get("__name__")).startswith("kit_jupyter."):
        return
    twin = f", or  kit.{name}_sync(...)" if hasattr(Kit, f"{name}_sync") else ""
    printer.text(f"\nNothing has run yet: put await in front of it,  await kit.{name}(...){twin}")


def _plain(ip: Any) -> Any:
    return ip.display_formatter.formatters["text/plain"] if ip.display_formatter is not None else None


def install(ip: Any) -> None:
    """Show coroutines of kit so in a shell; others look as ever."""
    plain = _plain(ip)
    if plain is not None and CoroutineType not in plain:
        plain.for_type(CoroutineType, _show)


def remove(ip: Any) -> None:
    """Show them as IPython does."""
    plain = _plain(ip)
    if plain is not None and CoroutineType in plain and plain.lookup_by_type(CoroutineType) is _show:
        plain.pop(CoroutineType)
