"""A provider that travels to other processes, for the tests of map on an executor."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

from kit_jupyter.errors import AuthFailed
from kit_jupyter.messages import Finished, ModelDelta, TextDelta, Tokens, UsageDelta, text_of
from kit_jupyter.provider import ModelInfo, ModelRequest


def _first_death(grave: str) -> bool:
    try:
        Path(grave).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


class Locked:
    """Answers with the prompt in upper case, but its key opens nothing from ``locked`` on."""

    name = "locked"

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        text = text_of(request.messages[-1].parts)  # type: ignore[arg-type]
        if "locked" in text:
            raise AuthFailed("the key opens nothing", provider=self.name, status=401)
        yield TextDelta(0, text.upper())
        yield Finished("stop")

    def info(self, model_id: str) -> ModelInfo:
        return ModelInfo()

    async def close(self) -> None:
        return None


class Echo:
    """Answers with the prompt in upper case; dies once when told to.

    Parameters
    ----------
    grave : str
        A file that is made before the first death of a worker; empty for immortality.
    """

    name = "echo"

    def __init__(self, grave: str = "") -> None:
        self.grave = grave

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        text = text_of(request.messages[-1].parts)  # type: ignore[arg-type]
        if self.grave and "die" in text and _first_death(self.grave):
            os._exit(1)
        yield TextDelta(0, text.upper())
        yield UsageDelta(Tokens(input=2, output=3))
        yield Finished("stop")

    def info(self, model_id: str) -> ModelInfo:
        return ModelInfo()

    async def close(self) -> None:
        return None
