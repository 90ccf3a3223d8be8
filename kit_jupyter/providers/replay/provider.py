"""A provider that plays a recording under a name of its own."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

from kit_jupyter.deltas import ModelDelta
from kit_jupyter.errors import UsageError
from kit_jupyter.messages import ModelRef
from kit_jupyter.provider import ModelInfo, ModelRequest, Provider
from kit_jupyter.providers.replay.playing import first_exchanges
from kit_jupyter.providers.replay.setting import recording_file
from kit_jupyter.providers.replay.transport import transport_for

__all__ = ["ReplayProvider"]


class ReplayProvider:
    """Plays a recording under the name ``replay/provider/model``, whatever ``KIT_REPLAY`` says.

    Parameters
    ----------
    model_id : str
        ``provider/model`` as recorded; ``default`` takes the recording's first.
    open_inner : callable
        Makes the provider of a model on a transport.
    """

    name = "replay"

    def __init__(self, model_id: str, open_inner: Callable[[ModelRef, Any], Provider]) -> None:
        if model_id in ("default", "auto", ""):
            exchanges = first_exchanges()
            if not exchanges:
                raise UsageError(f"there is no recording at {recording_file()}; see KIT_REPLAY_FILE")
            model_id = exchanges[0].model
        self._ref = ModelRef.parse(model_id)
        self._inner = open_inner(self._ref, transport_for(how="strict"))

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        """Deltas of the recorded answer."""
        async with contextlib.aclosing(self._inner.stream(replace(request, model=self._ref))) as deltas:  # type: ignore[type-var]
            async for delta in deltas:
                yield delta

    def info(self, model_id: str) -> ModelInfo:
        """What is known of the recorded model."""
        return self._inner.info(self._ref.id)

    async def close(self) -> None:
        """Free what the inner provider holds."""
        await self._inner.close()
