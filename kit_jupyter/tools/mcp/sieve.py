"""Tools that no model can be given are taken out of a server's list, which they would make unreadable."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

__all__ = ["sieved"]


@contextlib.asynccontextmanager
async def sieved(transport: Any, warn: Callable[[str], None]) -> AsyncIterator[tuple[Any, Any]]:
    """The streams of a transport, the incoming one sieved; `warn` is told of each tool that is left out."""
    async with transport as (incoming, outgoing):
        yield _Sieve(incoming, warn), outgoing


class _Sieve:
    """The incoming stream of a transport, with tools taken out of a list that would make all of it unreadable."""

    def __init__(self, stream: Any, warn: Callable[[str], None]) -> None:
        self._stream = stream
        self._warn = warn

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def receive(self) -> Any:
        return self._clean(await self._stream.receive())

    def __aiter__(self) -> _Sieve:
        return self

    async def __anext__(self) -> Any:
        return self._clean(await self._stream.__anext__())

    async def __aenter__(self) -> _Sieve:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *exc_info: Any) -> Any:
        return await self._stream.__aexit__(*exc_info)

    def _clean(self, item: Any) -> Any:
        result = getattr(getattr(item, "message", None), "result", None)
        if isinstance(result, dict) and isinstance(result.get("tools"), list):
            kept = []
            for tool in result["tools"]:
                fault = _tool_fault(tool)
                if fault:
                    self._warn(fault)
                else:
                    kept.append(tool)
            result["tools"] = kept
        return item


def _tool_fault(tool: Any) -> str:
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str) or not tool["name"]:
        return f"a tool without a name is left out: {json.dumps(tool)[:120]}"
    schema = tool.get("inputSchema")
    if not isinstance(schema, dict):
        return f"tool {tool['name']!r} is left out, its schema is {json.dumps(schema)[:80]} and not an object"
    if fault := _schema_fault(schema):
        return f"tool {tool['name']!r} is left out, its schema is invalid: {fault}"
    schema.setdefault("type", "object")
    return ""


def _schema_fault(schema: Mapping[str, Any]) -> str:
    """Why a schema cannot be given to a model; empty if it can."""
    from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
    from jsonschema.exceptions import SchemaError  # type: ignore[import-untyped]

    if schema.get("type", "object") != "object":
        return f"its type is {schema['type']!r}, not 'object'"
    try:
        Draft202012Validator.check_schema(dict(schema))
    except SchemaError as exc:
        return " ".join(exc.message.split())[:200]
    except RecursionError:
        return "it is nested too deep"
    return ""
