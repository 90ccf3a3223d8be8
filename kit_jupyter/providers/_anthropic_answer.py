"""Answers of the Anthropic Messages wire: events, or one whole message, to deltas.

Theory of operation
-------------------
A block's index is the part's. Text, thinking and arguments are passed on as they come; what must be whole
to mean something (inputs and results of server tools, citations, blocks of a kind not known yet) is kept
until its block ends. Usage is merged field by field, nulls passed over: the start brings the input and a
placeholder for the output, the end the rest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from kit_jupyter.deltas import (
    CitationDelta,
    Finished,
    ModelDelta,
    NativeDelta,
    PartAdded,
    ResponseFacts,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    ToolCallStart,
    UsageDelta,
)
from kit_jupyter.messages import Citation, Native, ServerPart, ThinkingPart, Tokens
from kit_jupyter.provider import ModelRequest
from kit_jupyter.providers._errors import cut, not_json, said_in_stream
from kit_jupyter.providers._json import loads
from kit_jupyter.providers.codec import Endpoint, ServerEvent

__all__ = ["WIRE", "AnthropicDecoder"]

WIRE = "anthropic-messages"
STOPS = {
    "end_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "stop_sequence": "stop_sequence",
    "tool_use": "tool_calls",
    "pause_turn": "pause",
    "compaction": "pause",
    "refusal": "refusal",
}


class AnthropicDecoder:
    """Events of one answer to deltas; a part's index is the block's."""

    __slots__ = (
        "_answer_tool",
        "_blocks",
        "_called",
        "_endpoint",
        "_inputs",
        "_is_done",
        "_request",
        "_stop",
        "_usage",
    )

    def __init__(self, request: ModelRequest, endpoint: Endpoint, answer_tool: str | None = None) -> None:
        self._request, self._endpoint = request, endpoint
        self._answer_tool = answer_tool
        self._blocks: dict[int, dict[str, Any]] = {}  # open blocks
        self._inputs: dict[int, list[str]] = {}  # pieces of an input that is not streamed on
        self._usage: dict[str, Any] = {}
        self._stop: dict[str, Any] = {}
        self._called = False
        self._is_done = False

    def feed(self, event: ServerEvent) -> Iterable[ModelDelta]:
        """Deltas of one event."""
        try:
            value = loads(event.data)
        except ValueError:
            if event.data in (b"[DONE]", "[DONE]"):  # gateways
                return ()
            raise not_json(event.data, self._request, self._endpoint) from None
        try:
            kind = value.get("type") or event.name
            if kind == "content_block_delta":
                delta = value["delta"]
                if delta["type"] == "text_delta":
                    return (TextDelta(value["index"], delta["text"]),)
                return self._delta(value["index"], delta)
            return self._event(kind, value)
        except (KeyError, TypeError, AttributeError, IndexError):
            raise not_json(event.data, self._request, self._endpoint) from None

    def whole(self, body: bytes) -> Iterable[ModelDelta]:
        """Deltas of a whole answer."""
        try:
            value = loads(body)
            if value.get("type") == "error" or "content" not in value:
                raise said_in_stream(value, self._request, self._endpoint)
            out = [*self._event("message_start", {"message": value})]
            for index, block in enumerate(value["content"] or ()):
                out += self._begin(index, block)
                out += self._end_block(index)
            out += self._event("message_delta", {"delta": value, "usage": value.get("usage")})
            out += self._finish()
        except (ValueError, KeyError, TypeError, AttributeError):
            raise not_json(body, self._request, self._endpoint, where="the answer") from None
        return out

    def end(self) -> Iterable[ModelDelta]:
        """The body ended."""
        if self._is_done:
            return ()
        if not self._stop.get("stop_reason"):
            raise cut(self._request, self._endpoint)
        return self._finish()

    def _event(self, kind: str, value: dict[str, Any]) -> Iterable[ModelDelta]:
        match kind:
            case "content_block_start":
                return self._begin(value["index"], value["content_block"])
            case "content_block_stop":
                return self._end_block(value["index"])
            case "message_start":
                message = value["message"]
                facts = ResponseFacts(message.get("id"), message.get("model"))
                tokens = self._count(message.get("usage"), is_first=True)
                return (facts, UsageDelta(tokens)) if tokens != Tokens() else (facts,)
            case "message_delta":
                self._stop.update(
                    {k: v for k, v in (value.get("delta") or {}).items() if v is not None and k.startswith("stop")}
                )
                tokens = self._count(value.get("usage"))
                return (UsageDelta(tokens),) if tokens != Tokens() else ()
            case "message_stop":
                return self._finish()
            case "error":
                raise said_in_stream(value, self._request, self._endpoint)
        if "error" in value and kind not in ("ping",):
            raise said_in_stream(value, self._request, self._endpoint)
        return ()

    # -- blocks

    def _begin(self, index: int, block: dict[str, Any]) -> Iterable[ModelDelta]:
        self._blocks[index] = block
        kind = block["type"]
        match kind:
            case "text":
                cited = [self._cite(index, c) for c in block.get("citations") or ()]
                return [TextDelta(index, block.get("text") or ""), *cited]
            case "thinking":
                opened: list[ModelDelta] = [ThinkingDelta(index, block.get("thinking") or "")]
                if block.get("signature"):
                    opened.append(self._native(index, signature=block["signature"]))
                return opened
            case "redacted_thinking":
                native = Native(WIRE, {"from": self._scope, "data": block["data"]})
                return (PartAdded(index, ThinkingPart("", native, redacted=True)),)
            case "tool_use":
                self._inputs[index] = []
                if block["name"] == self._answer_tool:
                    return (TextDelta(index, ""),)
                self._called = True
                start = ToolCallStart(index, block["id"], block["name"])
                more = {k: v for k, v in block.items() if k not in ("type", "id", "name", "input")}
                if not more:
                    return (start,)
                return (start, NativeDelta(index, Native(WIRE, {"from": self._endpoint.name, "more": more})))
        if "input" in block:
            self._inputs[index] = []
        return ()

    def _delta(self, index: int, delta: dict[str, Any]) -> Iterable[ModelDelta]:
        match delta["type"]:
            case "input_json_delta":
                piece = delta["partial_json"]
                block = self._blocks[index]
                self._inputs.setdefault(index, []).append(piece)
                if block["type"] != "tool_use" or not piece:
                    return ()
                if block["name"] == self._answer_tool:
                    return (TextDelta(index, piece),)
                return (ToolCallDelta(index, piece),)
            case "thinking_delta":
                return (ThinkingDelta(index, delta["thinking"]),)
            case "signature_delta":
                return (self._native(index, signature=delta["signature"]),)
            case "citations_delta":
                return (self._cite(index, delta["citation"], keep=True),)
        # What we do not know yet: strings grow, all else is replaced, as with the kinds we know.
        block = self._blocks[index]
        for key, value in delta.items():
            if key != "type":
                old = block.get(key)
                block[key] = old + value if isinstance(old, str) and isinstance(value, str) else value
        return ()

    def _end_block(self, index: int) -> Iterable[ModelDelta]:
        block = self._blocks.pop(index, None)
        if block is None:
            return ()
        kind = block["type"]
        pieces = "".join(self._inputs.pop(index, ()))
        match kind:
            case "text":
                cited = block.get("citations")
                if not cited:
                    return ()
                return (NativeDelta(index, Native(WIRE, {"from": self._endpoint.name, "citations": cited})),)
            case "thinking" | "redacted_thinking":
                return ()
            case "tool_use":
                is_answer = block["name"] == self._answer_tool
                if pieces or (not block.get("input") and not is_answer):
                    return ()
                # A whole answer, or a gateway that sends the input at once.
                text = json.dumps(block.get("input") or {}, ensure_ascii=False)
                return (TextDelta(index, text) if is_answer else ToolCallDelta(index, text),)
        if pieces:
            try:
                block["input"] = loads(pieces)
            except ValueError:
                block["input"] = {"INVALID_JSON": pieces}
        return (PartAdded(index, _server_part(block, self._endpoint.name)),)

    @property
    def _scope(self) -> str:
        return f"{self._endpoint.name}/{self._request.model.id}"

    def _native(self, index: int, **facts: Any) -> NativeDelta:
        return NativeDelta(index, Native(WIRE, {"from": self._scope, **facts}))

    def _cite(self, index: int, raw: dict[str, Any], *, keep: bool = False) -> CitationDelta:
        if keep:
            block = self._blocks[index]
            block["citations"] = [*(block.get("citations") or ()), raw]
        return CitationDelta(
            index,
            Citation(
                url=raw.get("url") or raw.get("source") or "",
                title=raw.get("title") or raw.get("document_title") or "",
                text=raw.get("cited_text") or "",
            ),
        )

    # -- facts

    def _count(self, usage: Any, *, is_first: bool = False) -> Tokens:
        if not isinstance(usage, dict):
            return Tokens()
        self._usage.update({key: value for key, value in usage.items() if value is not None})
        known = self._usage
        if "input_tokens" not in known and "output_tokens" not in known:
            return Tokens()
        read, written = known.get("cache_read_input_tokens"), known.get("cache_creation_input_tokens")
        fresh = known.get("input_tokens")
        details = known.get("output_tokens_details") or {}
        return Tokens(
            input=None if fresh is None else fresh + (read or 0) + (written or 0),
            # At the start it is a placeholder of a few tokens.
            output=None if is_first else known.get("output_tokens"),
            reasoning=None if is_first else details.get("thinking_tokens"),
            cache_read=read or 0,  # services before caching, and some gateways, do not name the two
            cache_write=written or 0,
        )

    def _finish(self) -> Iterable[ModelDelta]:
        if self._is_done:
            return ()
        self._is_done = True
        raw = self._stop.get("stop_reason")
        reason = STOPS.get(raw or "", "other")
        if raw == "tool_use" and self._answer_tool is not None and not self._called:
            reason = "stop"
        details = self._stop.get("stop_details")
        said = ""
        if raw == "stop_sequence":
            said = self._stop.get("stop_sequence") or ""
        elif raw == "model_context_window_exceeded":
            said = "the context window is full"
        elif isinstance(details, dict):
            said = details.get("explanation") or details.get("category") or ""
        return (Finished(reason, raw, said),)


def _server_part(block: dict[str, Any], origin: str) -> ServerPart:
    kind = block["type"]
    native = Native(WIRE, {"from": origin, "block": block})
    if kind.endswith("tool_use"):
        return ServerPart("call", block.get("name") or kind, native, _shown(block.get("input")))
    if kind.endswith("tool_result"):
        return ServerPart("result", kind.removesuffix("_tool_result"), native, _shown(block.get("content")))
    return ServerPart("block", kind, native, _shown(block.get("content")))


def _shown(value: Any) -> str:
    """What a reader is shown of a server block: its words, not its ciphers."""
    match value:
        case str():
            return value
        case list():
            return "\n".join(line for line in map(_shown, value) if line)
        case {"url": str(url), **rest}:
            title = rest.get("title") or ""
            return f"{title} {url}".strip()
        case {"error_code": str(code)}:
            return f"error: {code}"
        case {"stdout": str(out), **rest}:
            return "\n".join(text for text in (out.rstrip(), str(rest.get("stderr") or "").rstrip()) if text)
        case dict():
            for key in ("text", "query", "code", "command", "url", "content", "tool_references", "tool_name"):
                if value.get(key):
                    return _shown(value[key])
            return ", ".join(f"{k}: {v}" for k, v in value.items() if isinstance(v, str | int) and k != "type")
    return ""
