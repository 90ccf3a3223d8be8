"""A tool context over a desk, and a way to run a tool as a turn does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from kit_jupyter.loop import Desk, engine
from kit_jupyter.permissions import Decision, policy_of
from kit_jupyter.tool import Tool, ToolOutcome


class Context:
    """A `ToolContext` for tests."""

    def __init__(self) -> None:
        self.call_id, self.tool_name, self.turn_id, self.session_id = "c1", "t", "turn-1", "session"
        self.desk = Desk()
        self.said: list[tuple[str, str]] = []
        self.media: list[Any] = []
        self.state: dict[str, Any] = {}
        self.started = threading.Event()
        self.answer = False
        self.asked: list[str] = []

    def progress(self, text: str, *, stream: str = "stdout", parts: tuple[Any, ...] = ()) -> None:
        self.said.append((stream, text))
        self.media.extend(parts)
        self.started.set()

    async def on_user_thread(self, fn: Any, *args: Any) -> Any:
        return await self.desk.run(fn, *args)

    async def ask(self, question: str, *, suggestion: str = "") -> bool:
        self.asked.append(question)
        return self.answer


class Bench:
    """Runs tools with this thread as the user's; one context, so that tools remember."""

    def __init__(self) -> None:
        self.context = Context()

    def run(self, tool: Tool, **arguments: Any) -> ToolOutcome:
        """Validate and run."""

        async def go() -> ToolOutcome:
            return await tool.run(self.context, tool.validate(arguments))

        return self.context.desk.serve_blocking(engine.start(go(), self.context.desk))

    def stop(self, tool: Tool, *, when: Callable[[], bool] | None = None, **arguments: Any) -> None:
        """Run, cancel as a stop does once it has begun (said something), and wait until it has ended."""

        async def go() -> None:
            task = asyncio.ensure_future(tool.run(self.context, tool.validate(arguments)))
            await asyncio.to_thread(self.context.started.wait, 20)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        self.context.desk.serve_blocking(engine.start(go(), self.context.desk))

    def decide(self, tool: Tool, permissions: Any = "ask", **arguments: Any) -> Decision:
        """What a fresh policy says."""
        return policy_of(permissions).decide(tool, arguments, self.context)


@pytest.fixture
def bench() -> Bench:
    """A bench of its own for each test."""
    return Bench()
