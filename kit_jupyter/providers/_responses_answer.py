"""Answers of the OpenAI Responses wire: events, or one whole response, to deltas.

Theory of operation
-------------------
Parts are numbered in the order in which they begin. Items are matched by ``output_index``, as ids may change
from event to event. Whatever an item's end or the final response holds that was not streamed is told then;
the final ``output`` may be empty, and the last word on encrypted reasoning counts.
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
    RefusalDelta,
    ResponseFacts,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    ToolCallStart,
    UsageDelta,
)
from kit_jupyter.messages import Citation, Native, ServerPart, Tokens
from kit_jupyter.provider import ModelRequest
from kit_jupyter.providers._errors import cut, not_json, said_in_stream
from kit_jupyter.providers._json import loads
from kit_jupyter.providers.codec import Endpoint, ServerEvent

__all__ = ["WIRE", "OpenAIResponsesDecoder"]

WIRE = "openai-responses"


class _Item:
    """What is known of one output item while it streams."""

    __slots__ = ("citations", "is_done", "kind", "streamed", "where")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.where: dict[int, int] = {}  # content index to part index
        self.streamed: set[object] = set()  # content indices, or the channel of a reasoning item
        self.citations: dict[int, int] = {}
        self.is_done = False


class OpenAIResponsesDecoder:
    """Events of one answer to deltas; parts are numbered in the order in which they begin."""

    __slots__ = ("_endpoint", "_is_done", "_items", "_kinds", "_next", "_request")

    def __init__(self, request: ModelRequest, endpoint: Endpoint) -> None:
        self._request, self._endpoint = request, endpoint
        self._items: dict[int, _Item] = {}
        self._next = 0
        self._kinds: set[str] = set()  # text, refusal, call: what the answer holds
        self._is_done = False

    def feed(self, event: ServerEvent) -> Iterable[ModelDelta]:
        """Deltas of one event."""
        try:
            value = loads(event.data)
        except ValueError:
            if event.data in (b"[DONE]", "[DONE]"):
                return ()
            raise not_json(event.data, self._request, self._endpoint) from None
        try:
            kind = value.get("type") or event.name
            if kind == "response.output_text.delta":
                item = self._items.get(value["output_index"])
                content = value.get("content_index", 0)
                if item is not None and content in item.streamed:
                    return (TextDelta(item.where[content], value["delta"]),)
            return self._event(kind, value)
        except (KeyError, TypeError, AttributeError, IndexError):
            raise not_json(event.data, self._request, self._endpoint) from None

    def whole(self, body: bytes) -> Iterable[ModelDelta]:
        """Deltas of a whole answer."""
        try:
            value = loads(body)
            if "status" not in value and "output" not in value:
                raise said_in_stream(value, self._request, self._endpoint)
            return self._finish(value)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise not_json(body, self._request, self._endpoint, where="the answer") from None

    def end(self) -> Iterable[ModelDelta]:
        """The body ended."""
        if not self._is_done:
            raise cut(self._request, self._endpoint)
        return ()

    def _event(self, kind: str, value: dict[str, Any]) -> Iterable[ModelDelta]:
        match kind:
            case "response.output_text.delta":
                return self._text(value, "text", value["delta"])
            case "response.function_call_arguments.delta":
                item = self._item(value, "function_call")
                item.streamed.add(0)
                return (ToolCallDelta(self._where(item), value["delta"]),) if value["delta"] else ()
            case "response.reasoning_summary_text.delta":
                return self._thought(value, "summary", value.get("summary_index", 0))
            case "response.reasoning_text.delta":
                return self._thought(value, "content", value.get("content_index", 0))
            case "response.refusal.delta":
                return self._text(value, "refusal", value["delta"])
            case "response.output_text.annotation.added":
                return self._cited(value)
            case "response.output_item.added":
                return self._added(value.get("output_index", len(self._items)), value["item"])
            case "response.output_item.done":
                return self._ended(value.get("output_index", len(self._items)), value["item"])
            case "response.created" | "response.in_progress" | "response.queued":
                response = value["response"]
                return (ResponseFacts(response.get("id"), response.get("model")),)
            case "response.completed" | "response.incomplete" | "response.failed" | "response.cancelled":
                return self._finish(value["response"])
            case "error":
                raise said_in_stream(value, self._request, self._endpoint)
        if value.get("error"):
            raise said_in_stream(value, self._request, self._endpoint)
        return ()

    # -- items

    def _item(self, value: dict[str, Any], kind: str) -> _Item:
        # By place, not by id: Copilot changes item ids from event to event.
        place = value["output_index"]
        item = self._items.get(place)
        if item is None:
            item = self._items[place] = _Item(kind)
        return item

    def _where(self, item: _Item, content: int = 0) -> int:
        index = item.where.get(content)
        if index is None:
            index = item.where[content] = self._next
            self._next += 1
        return index

    def _added(self, place: int, item: dict[str, Any]) -> Iterable[ModelDelta]:
        kind = item["type"]
        known = self._items[place] = _Item(kind)
        match kind:
            case "reasoning":
                return (ThinkingDelta(self._where(known), ""),)
            case "function_call" | "custom_tool_call":
                return self._called(known, item)
        if kind != "message":
            self._where(known)
        return ()

    def _called(self, known: _Item, item: dict[str, Any]) -> list[ModelDelta]:
        self._kinds.add("call")
        index = self._where(known)
        start = ToolCallStart(index, item.get("call_id") or item.get("id") or f"call_{index}", item["name"])
        more = {key: item[key] for key in ("namespace", "caller") if item.get(key)}
        facts: dict[str, Any] = {"from": self._endpoint.name}
        if item["type"] == "custom_tool_call":
            facts["custom"] = True
        if more:
            facts["more"] = more
        return [start, NativeDelta(index, Native(WIRE, facts))] if len(facts) > 1 else [start]

    def _text(self, value: dict[str, Any], kind: str, text: str) -> Iterable[ModelDelta]:
        item = self._item(value, "message")
        content = value.get("content_index", 0)
        if kind == "text":
            item.streamed.add(content)
            self._kinds.add("text")
            return (TextDelta(self._where(item, content), text),)
        item.streamed.add((content, "refusal"))
        self._kinds.add("refusal")
        return (RefusalDelta(self._where(item, content), text),)

    def _thought(self, value: dict[str, Any], channel: str, piece: int) -> Iterable[ModelDelta]:
        item = self._item(value, "reasoning")
        index = self._where(item)
        if not item.streamed:
            item.streamed.add(channel)
            item.citations[0] = piece  # the piece that is being streamed
        elif channel not in item.streamed:
            return ()  # raw reasoning and its summary say the same
        if piece != item.citations[0]:
            item.citations[0] = piece
            return (ThinkingDelta(index, "\n\n" + value["delta"]),)
        return (ThinkingDelta(index, value["delta"]),)

    def _cited(self, value: dict[str, Any]) -> Iterable[ModelDelta]:
        item = self._item(value, "message")
        content = value.get("content_index", 0)
        item.citations[content] = item.citations.get(content, 0) + 1
        return (CitationDelta(self._where(item, content), _citation(value["annotation"])),)

    def _ended(self, place: int, item: dict[str, Any]) -> Iterable[ModelDelta]:
        """All of an item that was not streamed, and what goes back with it."""
        kind = item["type"]
        out: list[ModelDelta] = []
        known = self._items.get(place)
        if known is None:
            out += self._added(place, item)
            known = self._items[place]
        if known.is_done:
            if kind == "reasoning" and (item.get("encrypted_content") or item.get("content")):
                # The final response brings it encrypted anew, or under another id: the last word counts.
                out.append(NativeDelta(self._where(known), Native(WIRE, {"from": self._scope, "item": item})))
            return out
        known.is_done = True
        match kind:
            case "message":
                # The n-th streamed is the n-th here: Bedrock streams the first as content_index 1.
                streamed = sorted(known.where)
                for number, part in enumerate(item.get("content") or ()):
                    content = streamed[number] if number < len(streamed) else number
                    out += self._ended_content(known, content, part, item)
            case "reasoning":
                index = self._where(known)
                if not known.streamed:
                    texts = [piece["text"] for piece in item.get("summary") or item.get("content") or ()]
                    out.append(ThinkingDelta(index, "\n\n".join(texts)))
                out.append(NativeDelta(index, Native(WIRE, {"from": self._scope, "item": item})))
            case "function_call":
                if 0 not in known.streamed and item.get("arguments"):
                    out.append(ToolCallDelta(self._where(known), item["arguments"]))
            case "custom_tool_call":
                out.append(ToolCallDelta(self._where(known), json.dumps({"input": item.get("input", "")})))
            case _:
                out.append(PartAdded(self._where(known), _server_part(item, self._scope)))
        return out

    def _ended_content(
        self, known: _Item, content: int, part: dict[str, Any], item: dict[str, Any]
    ) -> Iterable[ModelDelta]:
        index = self._where(known, content)
        if part["type"] == "refusal":
            if (content, "refusal") not in known.streamed:
                self._kinds.add("refusal")
                yield RefusalDelta(index, part["refusal"])
            return
        if part["type"] != "output_text":
            native = Native(WIRE, {"from": self._scope, "item": {**item, "content": [part]}})
            yield PartAdded(index, ServerPart("block", part["type"], native))
            return
        if content not in known.streamed:
            self._kinds.add("text")
            yield TextDelta(index, part["text"])
        for raw in (part.get("annotations") or ())[known.citations.get(content, 0) :]:
            yield CitationDelta(index, _citation(raw))
        if item.get("phase"):
            yield NativeDelta(index, Native(WIRE, {"from": self._endpoint.name, "phase": item["phase"]}))

    @property
    def _scope(self) -> str:
        return f"{self._endpoint.name}/{self._request.model.id}"

    # -- the end

    def _finish(self, response: dict[str, Any]) -> Iterable[ModelDelta]:
        status = response.get("status") or "completed"
        if response.get("error") or status == "failed":
            raise said_in_stream(
                response if response.get("error") else {"error": {"message": "the answer failed"}},
                self._request,
                self._endpoint,
            )
        out: list[ModelDelta] = [ResponseFacts(response.get("id"), response.get("model"))]
        for place, item in enumerate(response.get("output") or ()):
            # Some servers stream nothing of an item, or all of it but its end.
            out += self._ended(place, item)
        usage = response.get("usage")
        if isinstance(usage, dict):
            out.append(UsageDelta(_tokens(usage)))
        self._is_done = True
        details = (response.get("incomplete_details") or {}).get("reason") or ""
        out.append(Finished(self._reason(status, details), status, details))
        return out

    def _reason(self, status: str, details: str) -> str:
        match status:
            case "completed":
                if "call" in self._kinds:
                    return "tool_calls"
                return "refusal" if "refusal" in self._kinds and "text" not in self._kinds else "stop"
            case "incomplete":
                return {"max_output_tokens": "length", "content_filter": "content_filter"}.get(details, "other")
            case "queued" | "in_progress":
                return "pending"
            case "cancelled":
                return "aborted"
        return "other"


def _tokens(usage: dict[str, Any]) -> Tokens:
    read = usage.get("input_tokens_details") or {}
    made = usage.get("output_tokens_details") or {}
    return Tokens(
        input=usage.get("input_tokens"),
        output=usage.get("output_tokens"),
        reasoning=made.get("reasoning_tokens"),
        cache_read=read.get("cached_tokens"),
        cache_write=read.get("cache_write_tokens"),
    )


def _citation(raw: dict[str, Any]) -> Citation:
    return Citation(
        url=raw.get("url") or "",
        title=raw.get("title") or raw.get("filename") or "",
        start=raw.get("start_index", raw.get("index")),
        end=raw.get("end_index"),
    )


def _server_part(item: dict[str, Any], scope: str) -> ServerPart:
    kind = item["type"]
    is_call = kind.endswith("_call") or kind in ("mcp_list_tools", "mcp_approval_request")
    native = Native(WIRE, {"from": scope, "item": item})
    return ServerPart("call" if is_call else "block", item.get("name") or kind, native, _shown(item))


def _shown(item: dict[str, Any]) -> str:
    """What a reader is shown of a server item: what was asked, not what came of it."""
    action = item.get("action")
    if isinstance(action, dict):
        for key in ("query", "url", "pattern", "command", "commands"):
            if action.get(key):
                said = action[key]
                return " ".join(map(str, said)) if isinstance(said, list) else str(said)
    for key in ("queries", "code", "arguments", "input", "revised_prompt", "tools"):
        said = item.get(key)
        if isinstance(said, str):
            return said
        if isinstance(said, list):
            return ", ".join(str(entry.get("name", "")) if isinstance(entry, dict) else str(entry) for entry in said)
    return ""
