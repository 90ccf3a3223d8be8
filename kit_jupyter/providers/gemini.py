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

import re
from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

from kit_jupyter.errors import ProviderError, UsageError
from kit_jupyter.messages import (
    MediaPart,
    RefusalPart,
    ServerPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
)
from kit_jupyter.prompt import PromptMessage, ToolResultPart
from kit_jupyter.provider import ModelRequest
from kit_jupyter.providers._errors import refusal
from kit_jupyter.providers._gemini_answer import WIRE, GeminiDecoder
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
from kit_jupyter.providers._json import Pieces, dumps
from kit_jupyter.providers.codec import Endpoint, HttpCall

__all__ = ["WIRE", "GeminiCodec"]

ANSWER_TOOL = "final_answer"
FIRST = b'{"role":"user","parts":[{"text":"[the conversation goes on]"}]}'  # contents begin with the user's
# For calls that another model made; base64, as the field holds bytes.
FOREIGN_SIGNATURE = "c2tpcF90aG91Z2h0X3NpZ25hdHVyZV92YWxpZGF0b3I="
MEDIA = re.compile(r"(image/(png|jpeg|webp|heic|heif|gif)|application/pdf|audio/.+|video/.+)")
BUDGETS = {"low": 1024, "medium": 8192, "high": 24576}  # tokens, for models before Gemini 3


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
        return GeminiDecoder(request, endpoint, _answer_tool(request))

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
