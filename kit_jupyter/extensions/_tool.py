"""A guest's function as a tool that runs on the engine, not on the user's thread."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal

from kit_jupyter.messages import ToolSpec
from kit_jupyter.permissions import Access, Need
from kit_jupyter.tool import ToolContext, ToolOutcome, Wish, check_name, outcome_of
from kit_jupyter.tool_schema import Signature, signature_of
from kit_jupyter.trifecta import Legs

__all__ = ["GuestTool"]


class GuestTool:
    """A tool of an extension.

    Parameters
    ----------
    fn : callable or async callable
        Signature and docstring are the schema; a parameter annotated `ToolContext` gets the
        context. A sync one runs on a thread, so it may read files.
    kind : {"look", "act", "function"}
        How the policy is to see a call.
    resource : str
        Name of the parameter that rules match; empty for none.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        name: str,
        legs: Legs,
        kind: Literal["look", "act", "function"] = "look",
        resource: str = "",
        description: str = "",
        approve: Wish = None,
        parallel_safe: bool = True,
        timeout_seconds: float | None = 60.0,
    ) -> None:
        self.fn = fn
        self.name = check_name(name)
        self.legs = legs
        self.kind: Literal["look", "act", "function"] = kind
        self.resource = resource
        self.approve = approve
        self.parallel_safe = parallel_safe
        self.timeout_seconds = timeout_seconds
        self._description = description

    @functools.cached_property
    def signature(self) -> Signature:
        """The schema and how to check against it; made on first use."""
        return signature_of(self.fn, name=self.name, context_type=ToolContext)

    @functools.cached_property
    def spec(self) -> ToolSpec:
        """What the model is told."""
        described = self._description or self.signature.description
        return ToolSpec(name=self.name, description=described, schema=self.signature.schema)

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments checked and converted."""
        return self.signature.validate(arguments)

    def access(self, arguments: Mapping[str, Any], context: ToolContext) -> Access:
        """One need: the tool's name, and what it is called with."""
        return Access(needs=(Need(self.name, str(arguments.get(self.resource, "")), self.kind),))

    async def run(self, context: ToolContext, arguments: dict[str, Any]) -> ToolOutcome:
        """Do it; a `ToolError` tells the model what to do differently."""
        positional, named = self.signature.bind(arguments, context)
        if inspect.iscoroutinefunction(self.fn):
            return outcome_of(await self.fn(*positional, **named))
        return outcome_of(await asyncio.to_thread(self.fn, *positional, **named))

    def __repr__(self) -> str:
        return f"<tool {self.name}>"
