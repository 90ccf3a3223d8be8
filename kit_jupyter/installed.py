"""Extensions that installed packages offer: listed, loaded on request, never enabled by themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from kit_jupyter.errors import ExtensionError

__all__ = ["ENTRY_POINT_GROUP", "Installed", "list_installed"]

ENTRY_POINT_GROUP: Final = "kit_jupyter.extensions"


@dataclass(frozen=True, slots=True)
class Installed:
    """An extension that some package offers; nothing is imported until `load`.

    Parameters
    ----------
    name, target : str
        Its entry point, for example ``weather`` and ``weather_kit:Weather``.
    package, version : str
        Who brings it.
    """

    name: str
    target: str
    package: str
    version: str

    def load(self) -> Any:
        """Import it: the class or factory, to be called and given to ``Kit(extensions=[…])``.

        Raises
        ------
        ExtensionError
            If the import fails.
        """
        from importlib.metadata import EntryPoint

        try:
            return EntryPoint(self.name, self.target, ENTRY_POINT_GROUP).load()
        except Exception as exc:
            raise ExtensionError(
                f"extension {self.name!r} of {self.package} {self.version} cannot be imported: "
                f"{type(exc).__name__}: {exc}",
                extension=self.name,
                hook="load",
            ) from exc


def list_installed() -> tuple[Installed, ...]:
    """Extensions that installed packages offer under ``kit_jupyter.extensions``; never enabled by themselves."""
    from importlib.metadata import entry_points

    found = (
        Installed(
            point.name,
            point.value,
            point.dist.name if point.dist is not None else "",
            point.dist.version if point.dist is not None else "",
        )
        for point in entry_points(group=ENTRY_POINT_GROUP)
    )
    return tuple(sorted(found, key=lambda one: (one.name, one.package)))
