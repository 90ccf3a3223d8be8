"""What several core tests share."""

from __future__ import annotations

import asyncio
import importlib
import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kit_jupyter.messages import ModelRef


async def until(is_so: Callable[[], Any], *, seconds: float = 10.0) -> None:
    """Wait for a state that no event tells of; fails when it does not come."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "it never came to be"
        await asyncio.sleep(0.001)


def texts(request: Any) -> list[tuple[str, str]]:
    """Role and text of each message of a request."""
    return [(m.role, "".join(getattr(p, "text", "") for p in m.parts)) for m in request.messages]


def area(width: int, height: int) -> int:
    """Area of a rectangle."""
    return width * height


#: Rooms of the wires, and the names of their codecs.
WIRES = {
    "openai_chat": "OpenAIChat",
    "openai_responses": "OpenAIResponses",
    "anthropic": "Anthropic",
    "gemini": "Gemini",
}


def encoded(wire: str, request: Any) -> str:
    """The body that a service of that wire would get for this request."""
    from kit_jupyter.providers.codec import Endpoint

    codec = getattr(importlib.import_module(f"kit_jupyter.providers.{wire}"), f"{WIRES[wire]}Codec")()
    asked = replace(request, model=ModelRef.parse("some/model"))
    body = codec.encode(asked, Endpoint(name="some", base_url="https://example.org", api_key="k")).body
    return json.dumps(json.loads(body), ensure_ascii=False)
