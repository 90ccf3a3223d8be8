"""Which model answers, and the providers that were opened for it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from kit_jupyter.messages import ModelRef
from kit_jupyter.provider import Provider, watched
from kit_jupyter.settings import TurnOptions

__all__ = ["Shelf", "registry"]


class Shelf:
    """Opens providers by name, keeps them, closes them. Any thread.

    Parameters
    ----------
    given : Provider or None
        Used for every name that is not another provider's.
    """

    def __init__(self, given: Provider | None) -> None:
        self.given = given
        self.chosen: ModelRef | None = None
        self.reason = ""
        self._open: dict[Any, Provider] = {}
        self._lock = threading.Lock()
        self._borrowed = False

    def lend(self) -> Shelf:
        """The same providers for another Kit, which must not close them."""
        twin = Shelf(self.given)
        twin.chosen, twin.reason = self.chosen, self.reason
        twin._open, twin._lock, twin._borrowed = self._open, self._lock, True
        return twin

    def name_of(self, setting: str) -> str:
        """``provider/id`` as far as it is known now; empty until one is set or chosen."""
        if setting:
            return setting if "/" in setting or self.given is None else f"{self.given.name}/{setting}"
        if self.given is not None:
            return f"{self.given.name}/default"
        return str(self.chosen) if self.chosen is not None else ""

    def known(self, options: TurnOptions) -> tuple[Provider, ModelRef] | None:
        """The provider, when no one must be asked or opened for it."""
        given, name = self.given, options.model
        if given is not None and (not name or "/" not in name or name.split("/", 1)[0] == given.name):
            model_id = name.split("/", 1)[1] if "/" in name else name
            return watched(given), ModelRef(given.name, model_id or "default")
        ref = ModelRef.parse(name) if name else self.chosen
        found = self._open.get(self._key(ref, options)) if ref is not None else None
        return (found, ref) if found is not None and ref is not None else None

    @staticmethod
    def _key(ref: ModelRef, options: TurnOptions) -> Any:
        return ref.provider, options.prompt.base_url, options.prompt.api_key

    def find(self, options: TurnOptions) -> tuple[Provider, ModelRef]:
        """The provider and model of a turn; blocks while it looks for a server, when no model is set.

        Raises
        ------
        UsageError
            When there is no such provider.
        """
        with self._lock:
            if (known := self.known(options)) is not None:
                return known
            if options.model:
                ref = ModelRef.parse(options.model)
            elif self.chosen is not None:
                ref = self.chosen
            else:
                choice = registry().choose()
                ref = self.chosen = choice.ref
                self.reason = choice.why
            key = self._key(ref, options)
            if key not in self._open:
                self._open[key] = registry().open_provider(
                    ref, base_url=options.prompt.base_url, api_key=options.prompt.api_key
                )
            return self._open[key], ref

    async def find_soon(self, options: TurnOptions) -> tuple[Provider, ModelRef]:
        """As `find`; the engine is not held up."""
        known = self.known(options)
        return known if known is not None else await asyncio.to_thread(self.find, options)

    async def close(self) -> None:
        """Close what was opened here, and the given one."""
        if self._borrowed:
            return
        opened, self._open = list(self._open.values()), {}
        for provider in [*opened, *([self.given] if self.given is not None else [])]:
            await provider.close()


def registry() -> Any:
    """The room that knows providers by name; loaded on first use."""
    from kit_jupyter.providers import registry

    return registry
