"""What several core tests share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any


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
