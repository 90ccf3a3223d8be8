"""The Gemini wire: `ModelRequest` to ``generateContent`` and its chunks to deltas; Developer API and Vertex.

Theory of operation
-------------------
*Sent.* Contents of each prompt message are encoded once and kept; ``contents`` is the last field of the
body, and the contents of a history are a prefix of the next request's. All results of one answer's
calls stand in one content directly behind it, in the order of the calls: services without call ids match
them by order. What is said besides follows in a content of its own.

*Given back unchanged.* Thought signatures, on the very part that bore them, and parts of the service's own
tools, to the service that made them, signatures only to the same model. Thoughts themselves are not
sent (the signature stands for them), and thinking and server parts of other wires are left out. Gemini 3
refuses a step whose first call has no signature: calls of other makers get the one that the documentation
names for them.

*Instructions inside the history* (a steer) are text on the user's side in a ``<system-reminder>`` envelope;
the wire takes system text only before all contents.

*Read.* Each chunk is a whole response of its own. ``finishReason`` may come before the end, so the answer ends
with the body. Call arguments that are streamed by JSON path are put together. Without ``alt=sse`` the chunks
come as one JSON array. Ids that calls lack are made of the response's id and their number.

The key goes in a header, never in the URL, which is shown in logs and errors.

Sources: the service's reference of generateContent, its pages on thought signatures, function calling,
structured output and thinking; recorded exchanges.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

from kit_jupyter.errors import ProviderError, UsageError
from kit_jupyter.messages import (
    Citation,
    CitationDelta,
    Finished,
    MediaPart,
    ModelDelta,
    Native,
    NativeDelta,
    PartAdded,
    RefusalPart,
    ResponseFacts,
    ServerPart,
    TextDelta,
    TextPart,
    ThinkingDelta,
    ThinkingPart,
    Tokens,
    ToolCallDelta,
    ToolCallPart,
    ToolCallStart,
    UsageDelta,
)
from kit_jupyter.prompt import PromptMessage, ToolResultPart
from kit_jupyter.provider import ModelRequest
from kit_jupyter.providers._errors import cut, not_json, refusal, said_in_stream
from kit_jupyter.providers._history import (
    Beginnings,
    CallIds,
    Step,
    Written,
    arguments_of,
    cannot_carry,
    is_own,
    left_out,
    reminder,
    text_of_media,
)
from kit_jupyter.providers._json import Pieces, dumps, loads
from kit_jupyter.providers.codec import Endpoint, HttpCall, ServerEvent

__all__ = ["WIRE", "GeminiCodec"]

WIRE = "gemini"
ANSWER_TOOL = "final_answer"
FIRST = b'{"role":"user","parts":[{"text":"[the conversation goes on]"}]}'  # contents begin with the user's
# For calls that another model made; base64, as the field holds bytes.
FOREIGN_SIGNATURE = "c2tpcF90aG91Z2h0X3NpZ25hdHVyZV92YWxpZGF0b3I="
MEDIA = re.compile(r"(image/(png|jpeg|webp|heic|heif|gif)|application/pdf|audio/.+|video/.+)")
BUDGETS = {"low": 1024, "medium": 8192, "high": 24576}  # tokens, for models before Gemini 3

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


def generation(model_id: str) -> float:
    """The generation of a Gemini model; an alias or a stranger counts as the newest.

    Examples
    --------
    >>> generation("gemini-2.5-flash"), generation("models/gemini-3.1-pro-preview"), generation("gemini-flash-latest")
    (2.5, 3.1, 99.0)
    """
    match = re.search(r"gemini-(\d+(?:\.\d+)?)", model_id)
    if match:
        return float(match[1])
    return 1.0 if "gemma" in model_id else 99.0


def _answer_tool(request: ModelRequest) -> str | None:
    """Name of the tool that carries a structured answer: before Gemini 3 a schema and tools exclude each other."""
    if request.format is None or not request.tools or generation(request.model.id) >= 3:
        return None
    name = ANSWER_TOOL
    while any(spec.name == name for spec in request.tools):
        name += "_"
    return name


# ---------------------------------------------------------------- encode


class GeminiCodec:
    """The Gemini wire; see the module's text for what goes where.

    Raises
    ------
    UsageError
        From `encode`, for media the wire has no form for, and for an empty request.

    Notes
    -----
    Holds encoded bytes of prompt messages by identity, no state of a stream. `Endpoint.base_url` ends before
    ``/models``: ``…/v1beta`` for the Developer API, ``…/publishers/google`` for Vertex, where the key is a
    bearer token (quirk ``bearer`` says so for a proxy, too). ``tools`` in `ModelRequest.extra` are added to
    the request's own, ``stream`` set to false asks for one JSON body; all other keys of it replace fields of
    the body, ``generationConfig`` key by key.
    """

    wire = WIRE

    def __init__(self) -> None:
        self._pieces = Pieces()
        self._beginnings = Beginnings()

    def encode(self, request: ModelRequest, endpoint: Endpoint) -> HttpCall:
        """The HTTP request."""
        extra = dict(request.extra)
        is_stream = bool(extra.pop("stream", True))
        head = self._head(request, extra)
        start = dumps(head)[:-1] + b"," if head else b"{"
        body = b"".join((start, b'"contents":[', *self._contents(request, endpoint), b"]}"))
        headers = {
            "content-type": "application/json",
            "accept": "text/event-stream" if is_stream else "application/json",
        }
        is_vertex = "aiplatform" in endpoint.base_url
        if endpoint.api_key:
            if is_vertex or "bearer" in endpoint.quirks:
                headers["authorization"] = f"Bearer {endpoint.api_key}"
            else:
                headers["x-goog-api-key"] = endpoint.api_key
        headers.update(endpoint.headers)
        return HttpCall(url=_url(request, endpoint, is_stream), headers=headers, body=body, stream=is_stream)

    def decoder(self, request: ModelRequest, endpoint: Endpoint) -> GeminiDecoder:
        """A fresh decoder for one answer."""
        return GeminiDecoder(request, endpoint)

    def error(
        self, status: int, headers: Mapping[str, str], body: bytes, request: ModelRequest, endpoint: Endpoint
    ) -> ProviderError:
        """The error that a refused answer means."""
        return refusal(status, headers, body, request, endpoint)

    # -- all but the history

    def _head(self, request: ModelRequest, extra: dict[str, Any]) -> dict[str, Any]:
        head: dict[str, Any] = {}
        if request.system.strip():
            head["systemInstruction"] = {"parts": [{"text": request.system}]}
        answer_tool = _answer_tool(request)
        functions: list[dict[str, Any]] = []
        for spec in request.tools:
            function: dict[str, Any] = {"name": spec.name, "description": spec.description or spec.name}
            if spec.schema.get("properties"):
                function["parametersJsonSchema"] = dict(spec.schema)
            functions.append(function)
        if answer_tool is not None:
            functions.append(
                {
                    "name": answer_tool,
                    "description": "Give the final answer to the user, once, when all else is done.",
                    "parametersJsonSchema": dict(request.format or {}),
                }
            )
        tools: list[Any] = [{"functionDeclarations": functions}] if functions else []
        tools += extra.pop("tools", None) or ()
        if tools:
            head["tools"] = tools
        choice = _choice(request.tool_choice, answer_tool)
        if functions and choice is not None:
            head["toolConfig"] = {"functionCallingConfig": choice}
        config: dict[str, Any] = {}
        if request.max_tokens is not None:
            config["maxOutputTokens"] = request.max_tokens
        if request.temperature is not None:
            config["temperature"] = request.temperature
        if request.stop:
            config["stopSequences"] = list(request.stop)
        if request.format is not None and answer_tool is None:
            config["responseMimeType"] = "application/json"
            config["responseJsonSchema"] = dict(request.format)
        thinking = _thinking(request)
        if thinking is not None:
            config["thinkingConfig"] = thinking
        config.update(extra.pop("generationConfig", None) or {})
        if config:
            head["generationConfig"] = config
        head.update(extra)
        return head

    # -- the history

    def _contents(self, request: ModelRequest, endpoint: Endpoint) -> list[bytes]:
        origin, scope = endpoint.name, f"{endpoint.name}/{request.model.id}"
        new = generation(request.model.id) >= 3
        pieces = self._pieces

        def take(written: Written, step: Step) -> None:
            ids = written.ids
            ids.new_step()
            known: set[str] = set()  # calls whose id came from the service
            answers: list[bytes] = []
            for message in step.answers:
                calls = [p for p in message.parts if type(p) is ToolCallPart]
                sent = tuple([ids.of_call(p.call_id) for p in calls])
                known.update([call_id for call_id, p in zip(sent, calls, strict=True) if _has_id(p, origin)])
                make = partial(_answer, sent=sent, scope=scope, origin=origin, new=new)
                answers.append(pieces.get(message, ("answer", scope, sent), make))
            if any(answers) and not written.out:
                written.add(FIRST)
            written.add(_content(b"model", answers))
            results: list[bytes] = []
            for message in step.results:
                told = [ids.of_result(p.call_id) for p in message.parts if isinstance(p, ToolResultPart)]
                named = tuple([call_id if call_id in known else "" for call_id in told])
                results.append(pieces.get(message, ("result", named, new), partial(_results, named=named, new=new)))
            written.add(_content(b"user", results))
            if not new:
                written.add(_content(b"user", [pieces.get(m, "media", _result_media) for m in step.results]))
            written.add(_content(b"user", [pieces.get(m, "said", _said) for m in step.said]))

        written = self._beginnings.write(request.messages, scope, lambda: Written(CallIds(r"[\x21-\x7e]{1,64}")), take)
        if not written.out:
            raise UsageError("nothing to send: the request holds no message with content")
        return written.out


def _content(role: bytes, pieces: list[bytes]) -> bytes:
    parts = b",".join(filter(None, pieces))
    return b'{"role":"' + role + b'","parts":[' + parts + b"]}" if parts else b""


def _url(request: ModelRequest, endpoint: Endpoint, is_stream: bool) -> str:
    base = endpoint.base_url.rstrip("/")
    if re.fullmatch(r"https?://[^/]+", base):
        base += "/v1beta"
    model = request.model.id
    path = quote(model, safe="/:.-_@")
    if not model.startswith(("models/", "tunedModels/", "publishers/", "projects/", "endpoints/")):
        path = f"models/{path}"
    query = {"alt": "sse", **endpoint.query} if is_stream else dict(endpoint.query)
    verb = "streamGenerateContent" if is_stream else "generateContent"
    return f"{base}/{path}:{verb}" + (f"?{urlencode(query)}" if query else "")


def _choice(tool_choice: str, answer_tool: str | None) -> dict[str, Any] | None:
    match tool_choice:
        case "auto":
            return {"mode": "ANY"} if answer_tool else None
        case "none":
            return {"mode": "ANY", "allowedFunctionNames": [answer_tool]} if answer_tool else {"mode": "NONE"}
        case "required":
            return {"mode": "ANY"}
    return {"mode": "ANY", "allowedFunctionNames": [tool_choice]}


def _thinking(request: ModelRequest) -> dict[str, Any] | None:
    number = generation(request.model.id)
    if request.thinking is None or number < 2.5:
        return None
    is_pro = "pro" in request.model.id
    if request.thinking == "off":
        if number >= 3:
            return {"thinkingLevel": "low" if is_pro else "minimal"}
        return {"thinkingBudget": 128 if is_pro else 0}  # 2.5 Pro cannot do without
    if number >= 3:
        # The first Pro of the third generation knows low and high only.
        level = "high" if request.thinking == "medium" and is_pro and number < 3.1 else request.thinking
        return {"includeThoughts": True, "thinkingLevel": level}
    return {"includeThoughts": True, "thinkingBudget": BUDGETS[request.thinking]}


def _has_id(part: ToolCallPart, origin: str) -> bool:
    native = part.native
    if native is None or native.wire != WIRE or not native.data.get("id"):
        return False
    return str(native.data.get("from")).startswith(f"{origin}/")


def _answer(message: PromptMessage, sent: tuple[str, ...], scope: str, origin: str, new: bool) -> bytes:
    parts: list[bytes] = []
    calls = iter(sent)
    is_first_call = True
    for part in message.parts:
        native = getattr(part, "native", None)
        own = native.data if native is not None and is_own(native, WIRE, scope) else {}
        signature = own.get("signature")
        made: dict[str, Any]
        match part:
            case TextPart(text=text) | RefusalPart(text=text):
                if not text and not signature:
                    continue
                made = {"text": text}
            case ThinkingPart(text=text):
                if not signature:
                    continue
                made = {"text": text, "thought": True}
            case ToolCallPart(name=name):
                call_id = next(calls)
                call: dict[str, Any] = {"name": name}
                if _has_id(part, origin):
                    call["id"] = call_id
                if new and is_first_call and not signature:
                    signature = FOREIGN_SIGNATURE
                is_first_call = False
                piece = b'{"functionCall":' + dumps(call)[:-1] + b',"args":' + arguments_of(part, dumps) + b"}"
                parts.append(piece + (b',"thoughtSignature":' + dumps(signature) if signature else b"") + b"}")
                continue
            case MediaPart():
                if MEDIA.fullmatch(part.media_type):
                    made = {"inlineData": {"mimeType": part.media_type, "data": part.data}}
                else:
                    made = {"text": left_out(part)}
            case ServerPart():
                if "part" not in own:
                    continue
                made = own["part"]
            case _:
                continue
        if signature and "thoughtSignature" not in made:
            made = {**made, "thoughtSignature": signature}
        parts.append(dumps(made))
    return b",".join(parts)


def _results(message: PromptMessage, named: tuple[str, ...], new: bool) -> bytes:
    out = []
    for part, call_id in zip((p for p in message.parts if isinstance(p, ToolResultPart)), named, strict=True):
        texts = [
            inner.text if isinstance(inner, TextPart | RefusalPart) else left_out(inner)
            for inner in part.parts
            if isinstance(inner, TextPart | RefusalPart) or (isinstance(inner, MediaPart) and not _inline(inner))
        ]
        response: dict[str, Any] = {"name": part.name or "tool"}
        if call_id:
            response["id"] = call_id
        response["response"] = {"error" if part.is_error else "output": "\n".join(texts)}
        media = [_inline(inner) for inner in part.parts if isinstance(inner, MediaPart)]
        if new and any(media):
            response["parts"] = [piece for piece in media if piece]
        out.append(dumps({"functionResponse": response}))
    return b",".join(out)


def _result_media(message: PromptMessage) -> bytes:
    """Media of results for models that take none inside them: shown after, under the tool's name."""
    out: list[bytes] = []
    for part in message.parts:
        if isinstance(part, ToolResultPart):
            media = [piece for inner in part.parts if isinstance(inner, MediaPart) and (piece := _inline(inner))]
            if media:
                out.append(dumps({"text": f"[what {part.name} returned:]"}))
                out += map(dumps, media)
    return b",".join(out)


def _said(message: PromptMessage) -> bytes:
    if message.role == "system":
        text = reminder(message)
        return dumps({"text": text}) if text else b""
    out = []
    for part in message.parts:
        if isinstance(part, MediaPart):
            piece: dict[str, Any] | None = _inline(part)
            if piece is None:
                text_of = text_of_media(part)
                if text_of is None:
                    hint = "it takes images, PDF, audio, video and text; leave the part out or take another model"
                    raise cannot_carry(part, WIRE, message, hint)
                piece = {"text": text_of} if text_of else None
            if piece is not None:
                out.append(dumps(piece))
        elif isinstance(part, TextPart) and part.text:
            out.append(dumps({"text": part.text}))
    return b",".join(out)


def _inline(part: MediaPart) -> dict[str, Any] | None:
    kind = part.media_type.partition(";")[0].strip().lower()
    if not MEDIA.fullmatch(kind):
        return None
    return {"inlineData": {"mimeType": kind, "data": part.data}}


# ---------------------------------------------------------------- decode


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

    def __init__(self, request: ModelRequest, endpoint: Endpoint) -> None:
        self._request, self._endpoint = request, endpoint
        self._answer_tool = _answer_tool(request)
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
