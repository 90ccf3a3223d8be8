"""What the built-in tools share: their schema from a method's signature, their work on the engine."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, ClassVar

from kit_jupyter.messages import ToolSpec
from kit_jupyter.permissions import Access, Need
from kit_jupyter.tool import ToolContext, ToolOutcome, Wish, outcome_of
from kit_jupyter.tool_schema import Signature, signature_of
from kit_jupyter.trifecta import Legs

__all__ = ["EngineTool"]


class EngineTool:
    """A tool whose `call` runs on the engine; its signature and docstring are the schema.

    A subclass sets the class attributes and writes ``async def call(self, context: ToolContext, …)``
    and `access`. Whatever blocks goes to a thread or a child process there, and what touches the
    user's objects to the user's thread.
    """

    name: ClassVar[str]
    legs: ClassVar[Legs]
    bounds: ClassVar[str]
    """The limits, in one line for the documentation's table."""
    default: ClassVar[str] = "ask"
    """What the "ask" preset says of an ordinary call, for the same table."""
    is_builtin: ClassVar[bool] = True
    """Not offered to models that are too small for it (`ModelInfo.lean`), unless named."""
    approve: Wish = None
    parallel_safe: bool = False
    timeout_seconds: float | None = None

    @functools.cached_property
    def signature(self) -> Signature:
        """The schema and how to check against it; made on first use."""
        return signature_of(self.call, name=self.name, context_type=ToolContext)  # type: ignore[attr-defined]

    @functools.cached_property
    def spec(self) -> ToolSpec:
        """What the model is told."""
        return ToolSpec(name=self.name, description=self.signature.description, schema=self.signature.schema)

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments checked and converted; see `kit_jupyter.tool.Tool`."""
        return self.signature.validate(arguments)

    def access(self, arguments: Mapping[str, Any], context: ToolContext) -> Access:
        """What a call needs; overridden by tools that can tell more."""
        texts = [value for value in arguments.values() if isinstance(value, str)]
        return Access(needs=(Need(self.name, texts[0] if texts else ""),))

    async def run(self, context: ToolContext, arguments: dict[str, Any]) -> ToolOutcome:
        """Do it."""
        positional, named = self.signature.bind(arguments, context)
        return outcome_of(await self.call(*positional, **named))  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        return f"<tool {self.name}>"
