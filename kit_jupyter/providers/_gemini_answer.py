"""Answers of the Gemini wire: chunks, or the array of them, to deltas.

Theory of operation
-------------------
Each chunk is a whole response. Text of one kind that follows itself is one part, but a part with a signature
stays alone. ``finishReason`` may come before the end, so citations, usage and `Finished` are told when the
body ends. Arguments streamed by JSON path are put together by `_StreamedCall`.
"""

from __future__ import annotations

import json
import re
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
from kit_jupyter.messages import Citation, MediaPart, Native, ServerPart, Tokens
from kit_jupyter.provider import ModelRequest
from kit_jupyter.providers._errors import cut, not_json, said_in_stream
from kit_jupyter.providers._json import loads
from kit_jupyter.providers.codec import Endpoint, ServerEvent

__all__ = ["WIRE", "GeminiDecoder"]

WIRE = "gemini"
# The numbers are those of `$alt=json;enum-encoding=int`.
_REASONS = (
    "FINISH_REASON_UNSPECIFIED",
    "STOP",
    "MAX_TOKENS",
    "SAFETY",
    "RECITATION",
    "OTHER",
    "BLOCKLIST",
    "PROHIBITED_CONTENT",
    "SPII",
    "MALFORMED_FUNCTION_CALL",
)
STOPS = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    "CONTINUATION": "length",
    **dict.fromkeys(
        (
            "SAFETY",
            "RECITATION",
            "LANGUAGE",
            "BLOCKLIST",
            "PROHIBITED_CONTENT",
            "SPII",
            "IMAGE_SAFETY",
            "IMAGE_PROHIBITED_CONTENT",
            "IMAGE_RECITATION",
            "ESCALATION",
            "MODEL_ARMOR",
        ),
        "content_filter",
    ),
    **dict.fromkeys(
        (
            "MALFORMED_FUNCTION_CALL",
            "UNEXPECTED_TOOL_CALL",
            "TOO_MANY_TOOL_CALLS",
            "MISSING_THOUGHT_SIGNATURE",
            "MALFORMED_RESPONSE",
        ),
        "error",
    ),
}


_WORD_KEYS = frozenset(("content", "index"))


class GeminiDecoder:
    """Chunks of one answer to deltas; text of one kind that follows itself is one part."""

    __slots__ = (
        "_answer_tool",
        "_call",
        "_called",
        "_calls",
        "_endpoint",
        "_index",
        "_kind",
        "_last_text",
        "_pending",
        "_request",
        "_response_id",
        "_said_facts",
        "_stop",
        "_stop_message",
        "_usage",
    )

    def __init__(self, request: ModelRequest, endpoint: Endpoint, answer_tool: str | None = None) -> None:
        self._request, self._endpoint = request, endpoint
        self._answer_tool = answer_tool
        self._index = -1
        self._kind = ""  # of the open part: text, thought, or empty when the next one is new
        self._last_text: int | None = None
        self._calls = 0
        self._called = False
        self._call: _StreamedCall | None = None
        self._pending: list[dict[str, Any]] = []  # grounding, told at the end
        self._said_facts: tuple[str | None, str | None] = (None, None)
        self._response_id: str | None = None
        self._usage: dict[str, Any] | None = None
        self._stop: str | None = None
        self._stop_message = ""

    def feed(self, event: ServerEvent) -> Iterable[ModelDelta]:
        """Deltas of one chunk."""
        try:
            value = loads(event.data)
        except ValueError:
            if event.data in (b"[DONE]", "[DONE]"):
                return ()
            raise not_json(event.data, self._request, self._endpoint) from None
        try:
            if self._kind == "text":
                word = self._word(value)
                if word is not None:
                    return (TextDelta(self._index, word),)
            return self._chunk(value)
        except (KeyError, TypeError, AttributeError, IndexError):
            raise not_json(event.data, self._request, self._endpoint) from None

    def whole(self, body: bytes) -> Iterable[ModelDelta]:
        """Deltas of a whole answer: one response, or the array of chunks that comes without ``alt=sse``."""
        out: list[ModelDelta] = []
        try:
            value = loads(body)
            for chunk in value if isinstance(value, list) else [value]:
                out += self._chunk(chunk)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            raise not_json(body, self._request, self._endpoint, where="the answer") from None
        return [*out, *self.end()]

    def end(self) -> Iterable[ModelDelta]:
        """The body ended: citations, usage and why it stopped."""
        if self._stop is None:
            raise cut(self._request, self._endpoint)
        out: list[ModelDelta] = []
        if self._call is not None:
            out += self._end_call()
        if self._last_text is not None:
            out += [CitationDelta(self._last_text, citation) for raw in self._pending for citation in _citations(raw)]
        if self._usage is not None:
            out.append(UsageDelta(_tokens(self._usage)))
        raw = self._stop
        word = _REASONS[int(raw)] if raw.isdigit() and int(raw) < len(_REASONS) else raw
        reason = STOPS.get(word, "other")
        if not raw:
            reason = "content_filter"
        elif reason == "stop" and self._called:
            reason = "tool_calls"
        out.append(Finished(reason, raw or None, self._stop_message))
        return out

    def _word(self, value: dict[str, Any]) -> str | None:
        """The text of a chunk that brings nothing but more of the open part, as nearly all do; else None."""
        candidates = value.get("candidates")
        if not candidates or "error" in value:
            return None
        candidate = candidates[0]
        if candidate.keys() - _WORD_KEYS or candidate.get("index"):
            return None
        parts = candidate["content"].get("parts")
        if not parts or len(parts) != 1 or len(parts[0]) != 1:
            return None
        text: str | None = parts[0].get("text")
        if text:
            self._usage = value.get("usageMetadata") or self._usage
            self._last_text = self._index
        return text or None

    def _chunk(self, value: dict[str, Any]) -> Iterable[ModelDelta]:
        if "error" in value:
            raise said_in_stream(value, self._request, self._endpoint)
        out: list[ModelDelta] = []
        facts = (value.get("responseId"), value.get("modelVersion"))
        if facts != self._said_facts:
            self._said_facts = facts
            self._response_id = facts[0] or self._response_id
            out.append(ResponseFacts(*facts))
        usage = value.get("usageMetadata")
        if usage:
            self._usage = usage
        candidates = value.get("candidates")
        if not candidates:
            feedback = value.get("promptFeedback") or {}
            if feedback.get("blockReason"):
                self._stop = ""
                words = (feedback["blockReason"], feedback.get("blockReasonMessage"))
                self._stop_message = ": ".join(str(word) for word in words if word)
            return out
        candidate = candidates[0]
        if candidate.get("index"):  # one of several that were asked for; the first is the answer
            candidate = next((other for other in candidates if not other.get("index")), {})
        for part in (candidate.get("content") or {}).get("parts") or ():
            self._part(part, out)
        stop = candidate.get("finishReason")
        if stop:
            self._stop = str(stop)
            self._stop_message = candidate.get("finishMessage") or self._stop_message
        for key in ("groundingMetadata", "citationMetadata", "urlContextMetadata"):
            if candidate.get(key):
                self._pending.append(candidate[key])
        return out

    # -- parts

    def _part(self, part: dict[str, Any], out: list[ModelDelta]) -> None:
        signature = part.get("thoughtSignature")
        if "text" in part:
            text = part["text"]
            kind = "thought" if part.get("thought") else "text"
            if not text and not signature:
                return
            if kind != self._kind or signature:
                # A signature belongs to the part that bears it, so that part stays alone.
                self._open(kind)
            out.append(ThinkingDelta(self._index, text) if kind == "thought" else TextDelta(self._index, text))
            if kind == "text" and text:
                self._last_text = self._index
            if signature:
                out.append(self._native(signature=signature))
                self._kind = ""
            return
        if "functionCall" in part:
            self._function(part["functionCall"] or {}, signature, out)
            return
        self._open("")
        data = part.get("inlineData")
        if data:
            native = Native(WIRE, {"from": self._scope, "signature": signature}) if signature else None
            out.append(PartAdded(self._index, MediaPart(data["mimeType"], data["data"], native=native)))
            return
        out.append(PartAdded(self._index, _server_part(part, self._scope)))

    def _open(self, kind: str) -> None:
        self._index += 1
        self._kind = kind

    def _function(self, call: dict[str, Any], signature: str | None, out: list[ModelDelta]) -> None:
        if call.get("name") or self._call is None:
            if self._call is not None:
                out += self._end_call()
            self._begin_call(call, signature, out)
            if "partialArgs" not in call and not call.get("willContinue"):
                self._arguments(json.dumps(call.get("args"), ensure_ascii=False) if call.get("args") else "", out)
                self._call = None
                return
        assert self._call is not None
        for piece in call.get("partialArgs") or ():
            self._call.take(piece)
        if not call.get("willContinue"):
            out += self._end_call()

    def _begin_call(self, call: dict[str, Any], signature: str | None, out: list[ModelDelta]) -> None:
        self._open("")
        name = call.get("name") or ""
        self._call = _StreamedCall(call.get("args") or {}, name)
        if name == self._answer_tool:
            out.append(TextDelta(self._index, ""))
            return
        self._called = True
        self._calls += 1
        call_id = call.get("id")
        facts: dict[str, Any] = {"id": call_id} if call_id else {}
        if signature:
            facts["signature"] = signature
        made_up = f"call_{self._response_id or len(self._request.messages)}_{self._calls}"
        out.append(ToolCallStart(self._index, call_id or made_up, name))
        if facts:
            out.append(self._native(**facts))

    def _end_call(self) -> list[ModelDelta]:
        out: list[ModelDelta] = []
        assert self._call is not None
        self._arguments(self._call.arguments(), out)
        self._call = None
        return out

    def _arguments(self, text: str, out: list[ModelDelta]) -> None:
        if self._call is not None and self._call.name == self._answer_tool:
            out.append(TextDelta(self._index, text or "{}"))
        elif text:
            out.append(ToolCallDelta(self._index, text))

    @property
    def _scope(self) -> str:
        return f"{self._endpoint.name}/{self._request.model.id}"

    def _native(self, **facts: Any) -> NativeDelta:
        return NativeDelta(self._index, Native(WIRE, {"from": self._scope, **facts}))


class _StreamedCall:
    """Arguments that come by JSON path, strings in pieces."""

    __slots__ = ("_args", "_open", "name")

    def __init__(self, args: dict[str, Any], name: str) -> None:
        self.name = name
        self._args = args
        self._open: dict[str, list[str]] = {}  # pieces of strings by path, joined at the end

    def take(self, piece: dict[str, Any]) -> None:
        path = piece["jsonPath"]
        if "stringValue" in piece:
            pieces = self._open.get(path)
            if pieces is None:
                pieces = self._open[path] = []
                self._set(path, "")  # keeps its place among the others
            pieces.append(piece["stringValue"])
        elif "numberValue" in piece:
            number = piece["numberValue"]
            is_whole = isinstance(number, float) and number.is_integer() and abs(number) < 2**53
            self._set(path, int(number) if is_whole else number)
        elif "boolValue" in piece:
            self._set(path, piece["boolValue"])
        elif "nullValue" in piece:
            self._set(path, None)

    def _set(self, path: str, value: Any) -> None:
        steps = _path(path)
        if not steps:
            if isinstance(value, dict):
                self._args = value
            return
        place: Any = self._args
        for step, after in zip(steps, [*steps[1:], None], strict=True):
            fresh: Any = value if after is None else [] if isinstance(after, int) else {}
            if isinstance(step, int):
                while len(place) <= step:
                    place.append(None)
                if after is None or place[step] is None:
                    place[step] = fresh
            elif after is None or step not in place:
                place[step] = fresh
            place = place[step]

    def arguments(self) -> str:
        for path, pieces in self._open.items():
            self._set(path, "".join(pieces))
        return json.dumps(self._args, ensure_ascii=False) if self._args else ""


_STEP = re.compile(r"""\.([^.\[\]]+)|\[(\d+)\]|\['((?:[^'\\]|\\.)*)'\]|\["((?:[^"\\]|\\.)*)"\]""")


def _path(text: str) -> list[str | int]:
    """Steps of a JSON path without wildcards (RFC 9535): ``$.a[0]['b']``."""
    steps: list[str | int] = []
    for name, number, single, double in _STEP.findall(text.removeprefix("$")):
        if number:
            steps.append(int(number))
        else:
            steps.append(name or re.sub(r"\\(.)", r"\1", single or double))
    return steps


def _tokens(usage: dict[str, Any]) -> Tokens:
    return Tokens(
        input=(usage.get("promptTokenCount") or 0) + (usage.get("toolUsePromptTokenCount") or 0),
        output=(usage.get("candidatesTokenCount") or 0) + (usage.get("thoughtsTokenCount") or 0),
        reasoning=usage.get("thoughtsTokenCount"),
        cache_read=usage.get("cachedContentTokenCount"),
    )


def _server_part(part: dict[str, Any], scope: str) -> ServerPart:
    native = Native(WIRE, {"from": scope, "part": part})
    match part:
        case {"executableCode": {"code": str(code)}}:
            return ServerPart("call", "code_execution", native, code)
        case {"codeExecutionResult": dict(result)}:
            return ServerPart("result", "code_execution", native, str(result.get("output") or result.get("outcome")))
        case {"toolCall": dict(call)}:
            said = json.dumps(call.get("args") or {}, ensure_ascii=False)
            return ServerPart("call", str(call.get("toolType") or call.get("name") or "tool"), native, said)
        case {"toolResponse": dict(result)}:
            return ServerPart("result", str(result.get("toolType") or result.get("name") or "tool"), native)
    name = next((key for key in part if key not in ("thought", "thoughtSignature")), "part")
    return ServerPart("block", name, native)


def _citations(raw: dict[str, Any]) -> Iterable[Citation]:
    """Citations of grounding, of recitation and of fetched pages."""
    chunks = [
        chunk.get("web") or chunk.get("retrievedContext") or chunk.get("maps") or {}
        for chunk in raw.get("groundingChunks") or ()
    ]
    cited: set[int] = set()
    for support in raw.get("groundingSupports") or ():
        text = (support.get("segment") or {}).get("text") or ""
        for number in support.get("groundingChunkIndices") or ():
            if number < len(chunks):
                cited.add(number)
                yield Citation(url=chunks[number].get("uri") or "", title=chunks[number].get("title") or "", text=text)
    for number, chunk in enumerate(chunks):
        if number not in cited:
            yield Citation(url=chunk.get("uri") or "", title=chunk.get("title") or "")
    for source in raw.get("citationSources") or raw.get("citations") or ():
        yield Citation(url=source.get("uri") or "", title=source.get("title") or "")
    for page in raw.get("urlMetadata") or ():
        yield Citation(url=page.get("retrievedUrl") or "")
