"""The Anthropic Messages wire: `ModelRequest` to ``/v1/messages`` and its events to deltas.

Theory of operation
-------------------
*Sent.* Blocks of each prompt message are encoded once and kept; a request joins them into user and
assistant messages that alternate, results first. ``messages`` is the last field of the body, so all
that comes before a new message is the same bytes as last time.

*Cache marks.* ``cache_control`` stands on the system prompt (else the last tool) and on the last two
user-side messages that later requests will show again, so that a step finds what the step before has
written however many blocks it added. The marks move; without them the bytes of a history are a prefix
of the next request's. Quirk ``no_cache_control`` leaves them out, and so does ``cache_control`` in
`ModelRequest.extra`, which is the service's own automatic form.

*Given back unchanged.* Signatures, redacted thinking, citations and server blocks, to the service that
made them; signatures only to the model that made them, as both are bound to it. Thinking of other
wires is left out: the service refuses it without a signature, and as plain text it would teach the
model to think aloud in its answers. Server blocks of other wires are left out too.

*Instructions inside the history* (a steer) are ``role: system`` where the model takes that, which it does
only as the last thing before an answer; everywhere else they are text on the user's side in a
``<system-reminder>`` envelope.

Sources: the service's documentation of the Messages API, streaming, prompt caching, extended and
adaptive thinking, structured outputs, mid-conversation system messages; recorded exchanges.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlencode

from kit_jupyter.errors import ProviderError, UsageError
from kit_jupyter.messages import (
    MediaPart,
    RefusalPart,
    ServerPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolSpec,
)
from kit_jupyter.prompt import PromptMessage, ToolResultPart
from kit_jupyter.provider import ModelRequest
from kit_jupyter.providers._anthropic_answer import WIRE, AnthropicDecoder
from kit_jupyter.providers._errors import refusal
from kit_jupyter.providers._history import (
    Beginnings,
    CallIds,
    Step,
    Written,
    arguments_of,
    cannot_carry,
    is_own,
    is_stable,
    left_out,
    reminder,
    text_of_media,
)
from kit_jupyter.providers._json import Pieces, dumps
from kit_jupyter.providers._schema import close_objects, is_closed, is_recursive
from kit_jupyter.providers.codec import Endpoint, HttpCall

__all__ = ["WIRE", "AnthropicCodec"]

VERSION = "2023-06-01"
IMAGES = ("image/jpeg", "image/png", "image/gif", "image/webp")
MARK = b',"cache_control":{"type":"ephemeral"}'
FIRST = b'{"type":"text","text":"[the conversation goes on]"}'  # the first message must be the user's
# What structured outputs refuse of a schema; it becomes words of the description.
UNSUPPORTED = frozenset(
    {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
    | {"minLength", "maxLength", "maxItems", "uniqueItems", "minProperties", "maxProperties"}
)
STRING_FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"}
)
BUDGETS = {"low": 2048, "medium": 8192, "high": 16384}  # tokens, for models that take a budget only
ANSWER_TOOL = "final_answer"
ANSWER_TOOL_SAYS = "Give the final answer to the user, once, when all else is done."


# ---------------------------------------------------------------- what a model takes


@dataclass(frozen=True, slots=True, kw_only=True)
class Takes:
    """What a model accepts, told from its name."""

    max_tokens: int = 8192
    thinks: bool = True
    adaptive: bool = False
    can_stop_thinking: bool = True
    sampling: bool = True
    schema: bool = False
    system_turns: bool = False


_NAME = re.compile(
    r"claude-(?:(\d)(?:[-.](\d{1,2}))?-)?(opus|sonnet|haiku|fable|mythos|instant)(?:-(\d{1,2})(?!\d)(?:[-.](\d{1,2})(?!\d))?)?"
)


def takes(model_id: str) -> Takes:
    """What a model accepts; a stranger that speaks this wire is asked for nothing special.

    Examples
    --------
    >>> takes("claude-sonnet-4-5-20250929").adaptive, takes("anthropic/claude-opus-4.8").adaptive
    (False, True)
    >>> takes("claude-3-5-haiku-latest").thinks, takes("glm-4.6").schema
    (False, False)
    """
    match = _NAME.search(model_id)
    if match is None:
        return Takes()
    family = match[3]
    version = (int(match[1] or match[4] or 0), int((match[2] if match[1] else match[5]) or 0))
    if family in ("fable", "mythos"):
        return Takes(
            max_tokens=32000, adaptive=True, can_stop_thinking=False, sampling=False, schema=True, system_turns=True
        )
    if version < (3, 7):
        return Takes(max_tokens=8192 if version >= (3, 5) else 4096, thinks=False)
    is_opus = family == "opus"
    return Takes(
        max_tokens=32000,
        adaptive=version >= ((5, 0) if family == "haiku" else (4, 6)),
        can_stop_thinking=not (is_opus and version >= (5, 5)),
        sampling=version < ((4, 7) if is_opus else (5, 0)),
        schema=version >= ((4, 1) if is_opus else (4, 5)),
        system_turns=is_opus and version >= (4, 8),
    )


def _answer_tool(request: ModelRequest) -> str | None:
    """Name of the tool that carries a structured answer, where the model or the schema needs one."""
    if request.format is None:
        return None
    if takes(request.model.id).schema and _is_native(request.format):
        return None
    name = ANSWER_TOOL
    while any(spec.name == name for spec in request.tools):
        name += "_"
    return name


# ---------------------------------------------------------------- encode


class AnthropicCodec:
    """The Messages wire; see the module's text for what goes where.

    Raises
    ------
    UsageError
        From `encode`, for media the wire has no form for (audio, video, unknown images) and for an empty
        request.

    Notes
    -----
    Holds encoded bytes of prompt messages by identity, no state of a stream. `ModelRequest.temperature` is
    left out for models that refuse any. ``tools`` in `ModelRequest.extra` are added to the request's own, for
    tools that the service runs; all other keys of it replace fields of the body.
    """

    wire = WIRE

    def __init__(self) -> None:
        self._pieces = Pieces()
        self._beginnings = Beginnings()

    def encode(self, request: ModelRequest, endpoint: Endpoint) -> HttpCall:
        """The HTTP request."""
        head = self._head(request)
        marks = "no_cache_control" not in endpoint.quirks and "cache_control" not in head
        if marks:
            _mark_head(head)
        body = b"".join((dumps(head)[:-1], b',"messages":[', *self._messages(request, endpoint, marks), b"]}]}"))
        headers = {
            "content-type": "application/json",
            "accept": "text/event-stream" if head.get("stream") else "application/json",
            "anthropic-version": VERSION,
        }
        if "bearer" in endpoint.quirks:
            headers["authorization"] = f"Bearer {endpoint.api_key}"
        elif endpoint.api_key:
            headers["x-api-key"] = endpoint.api_key
        headers.update(endpoint.headers)
        return HttpCall(url=_url(endpoint), headers=headers, body=body, stream=bool(head.get("stream")))

    def decoder(self, request: ModelRequest, endpoint: Endpoint) -> AnthropicDecoder:
        """A fresh decoder for one answer."""
        return AnthropicDecoder(request, endpoint, _answer_tool(request))

    def error(
        self, status: int, headers: Mapping[str, str], body: bytes, request: ModelRequest, endpoint: Endpoint
    ) -> ProviderError:
        """The error that a refused answer means."""
        return refusal(status, headers, body, request, endpoint)

    # -- all but the history

    def _head(self, request: ModelRequest) -> dict[str, Any]:
        model = takes(request.model.id)
        extra = dict(request.extra)
        answer_tool = _answer_tool(request)
        tools, choice = _tools(request, answer_tool, extra.pop("tools", None) or ())
        max_tokens = request.max_tokens or extra.get("max_tokens") or model.max_tokens
        thinking = _thinking(request, model, max_tokens, choice)
        is_thinking = thinking is not None and thinking["type"] != "disabled"
        if is_thinking and not model.adaptive and choice is not None and choice["type"] != "none":
            choice = None  # a forced tool is refused together with a thinking budget

        head: dict[str, Any] = {"model": request.model.id, "max_tokens": max_tokens, "stream": True}
        if request.system.strip():
            head["system"] = [{"type": "text", "text": request.system}]
        if thinking is not None:
            head["thinking"] = thinking
        if request.temperature is not None and model.sampling and not is_thinking:
            head["temperature"] = request.temperature
        if request.stop:
            head["stop_sequences"] = list(request.stop)
        if tools:
            head["tools"] = tools
            if choice is not None:
                head["tool_choice"] = choice
        output = _output(request, model, is_native=answer_tool is None)
        if output:
            head["output_config"] = output
        head.update(extra)
        return head

    # -- the history

    def _messages(self, request: ModelRequest, endpoint: Endpoint, marks: bool) -> list[bytes]:
        origin, scope = endpoint.name, f"{endpoint.name}/{request.model.id}"
        system_turns = takes(request.model.id).system_turns
        pieces = self._pieces

        def take(written: Written, step: Step) -> None:
            ids = written.ids
            ids.new_step()
            lost = _lost_calls(step, origin)
            for message in step.answers:
                sent = tuple([ids.of_call(p.call_id) for p in message.parts if type(p) is ToolCallPart])
                variant = ("answer", scope, sent, lost)
                blocks = pieces.get(
                    message, variant, partial(_answer, sent=sent, scope=scope, origin=origin, lost=lost)
                )
                written.stable = written.stable and is_stable(message)
                if blocks:
                    _add(written, b"assistant", blocks)
            for message in step.results:
                sent = tuple([ids.of_result(p.call_id) for p in message.parts if isinstance(p, ToolResultPart)])
                written.stable = written.stable and (is_stable(message) or message.origin == "repair")
                _add(written, b"user", pieces.get(message, ("result", sent), partial(_results, sent=sent)))
            tail = _system_tail(step) if system_turns else len(step.said)
            for message in step.said[:tail]:
                blocks = pieces.get(message, "said", _said)
                written.stable = written.stable and is_stable(message)
                if blocks:
                    _add(written, b"user", blocks)
            for message in step.said[tail:]:
                _add(written, b"system", pieces.get(message, "system", _system))

        written = self._beginnings.write(
            request.messages, scope, lambda: Written(CallIds(r"[A-Za-z0-9_-]{1,64}")), take
        )
        if not written.out:
            raise UsageError("nothing to send: the request holds no message with content")
        if marks:
            _mark(written)
        return written.out  # the last message is still open


def _add(written: Written, role: bytes, blocks: bytes) -> None:
    """Add blocks to the open message if it is of the same role, else to a new one."""
    out = written.out
    if role == written.role:
        out.append(b",")
    else:
        if written.role:
            out.append(b"]},")
        elif role != b"user":
            out.append(b'{"role":"user","content":[' + FIRST + b"]},")
        out.append(b'{"role":"' + role + b'","content":[')
        written.role = role
        written.runs += 1
    if written.stable and role == b"user":
        written.spots.append((written.runs, len(out)))
    out.append(blocks)


def _mark(written: Written) -> None:
    """Put cache marks behind the last two user-side messages that stay."""
    for place in written.marks():
        written.out[place] = written.out[place][:-1] + MARK + b"}"


def _url(endpoint: Endpoint) -> str:
    base = endpoint.base_url.rstrip("/")
    if not base.endswith("/messages"):
        base += "/messages" if re.search(r"/v\d+$", base) else "/v1/messages"
    return base + (f"?{urlencode(endpoint.query)}" if endpoint.query else "")


def _tools(
    request: ModelRequest, answer_tool: str | None, more: Iterable[Any]
) -> tuple[list[Any], dict[str, Any] | None]:
    """The tools, and which of them to use; None leaves it to the model."""
    tools: list[Any] = [*map(_tool, request.tools), *more]
    choices: dict[str, dict[str, Any] | None] = {"auto": None, "none": {"type": "none"}, "required": {"type": "any"}}
    choice = choices.get(request.tool_choice, {"type": "tool", "name": request.tool_choice})
    if answer_tool is not None:
        schema = _object_schema(request.format or {})
        tools.append({"name": answer_tool, "description": ANSWER_TOOL_SAYS, "input_schema": schema})
        if request.tools and choice is None:
            choice = {"type": "any"}  # one of the others, or this one
        elif request.tool_choice in ("auto", "none"):
            choice = {"type": "tool", "name": answer_tool}
    if not tools:
        tools = _former_tools(request.messages)
        choice = {"type": "none"} if tools else None
    return tools, choice


def _is_refused(keyword: str, value: Any) -> bool:
    if keyword == "minItems":
        return value not in (0, 1)
    return keyword in UNSUPPORTED or (keyword == "format" and value not in STRING_FORMATS)


def _output(request: ModelRequest, model: Takes, *, is_native: bool) -> dict[str, Any]:
    output: dict[str, Any] = {}
    if request.format is not None and is_native:
        output["format"] = {"type": "json_schema", "schema": close_objects(request.format, _is_refused)}
    if model.adaptive and request.thinking not in (None, "off"):
        output["effort"] = request.thinking
    elif request.thinking == "off" and not model.can_stop_thinking:
        output["effort"] = "low"
    return output


def _former_tools(messages: Sequence[PromptMessage]) -> list[dict[str, Any]]:
    """Tools that a history calls and the request does not offer, as for a summary: without any it is refused."""
    names = {part.name: None for message in messages for part in message.parts if type(part) is ToolCallPart}
    return [
        {"name": name, "description": "Not available any more.", "input_schema": _object_schema({})} for name in names
    ]


def _tool(spec: ToolSpec) -> dict[str, Any]:
    tool: dict[str, Any] = {"name": spec.name}
    if spec.description:
        tool["description"] = spec.description
    schema = _object_schema(spec.schema)
    is_strict = spec.strict and _is_native(schema)
    tool["input_schema"] = close_objects(schema, _is_refused) if is_strict else schema
    if is_strict:
        tool["strict"] = True
    return tool


def _is_native(schema: Mapping[str, Any]) -> bool:
    """Whether the service can promise to keep to this schema."""
    return is_closed(schema) and not is_recursive(schema)


def _object_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {}} if not schema else {"type": "object", **schema}


def _mark_head(head: dict[str, Any]) -> None:
    mark = {"type": "ephemeral"}
    system = head.get("system")
    if isinstance(system, list) and system:
        head["system"] = [*system[:-1], {**system[-1], "cache_control": mark}]
    elif not system and head.get("tools"):
        head["tools"] = [*head["tools"][:-1], {**head["tools"][-1], "cache_control": mark}]


def _thinking(
    request: ModelRequest, model: Takes, max_tokens: int, choice: dict[str, Any] | None
) -> dict[str, Any] | None:
    if request.thinking is None or not model.thinks:
        return None
    if request.thinking == "off":
        return {"type": "disabled"} if model.can_stop_thinking else None
    if model.adaptive:
        return {"type": "adaptive", "display": "summarized"}
    # A budget is at least 1024 and below max_tokens, and no tool may be forced beside it.
    forced = choice is not None and choice["type"] in ("any", "tool") and _answer_tool(request) is None
    if max_tokens <= 1024 or forced:
        return None
    return {"type": "enabled", "budget_tokens": max(1024, min(BUDGETS[request.thinking], max_tokens // 2))}


def _lost_calls(step: Step, origin: str) -> frozenset[str]:
    """Server calls without a result that an interruption left behind; at the very end they are a pause."""
    calls: set[str] = set()
    results: set[str] = set()
    for message in step.answers:
        for part in message.parts:
            if type(part) is ServerPart and is_own(part.native, WIRE, origin):
                block = part.native.data["block"]
                if part.kind == "call":
                    calls.add(block.get("id", ""))
                else:
                    results.add(block.get("tool_use_id", ""))
    if not calls or not (step.results or step.said):
        return frozenset()
    return frozenset(calls - results)


def _system_tail(step: Step) -> int:
    """Where the instructions begin that close this step; there must be something of the user before them."""
    tail = len(step.said)
    while tail and step.said[tail - 1].role == "system" and _has_content(step.said[tail - 1]):
        tail -= 1
    has_user = bool(step.results) or any(_has_content(message) for message in step.said[:tail])
    return tail if has_user else len(step.said)


def _has_content(message: PromptMessage) -> bool:
    return any(isinstance(p, MediaPart) or (isinstance(p, TextPart) and p.text.strip()) for p in message.parts)


def _answer(message: PromptMessage, sent: tuple[str, ...], scope: str, origin: str, lost: frozenset[str]) -> bytes:
    blocks: list[bytes] = []
    thoughts = 0  # at the end: a last thinking block is refused
    calls = iter(sent)
    for part in message.parts:
        block: bytes | None = None
        match part:
            case TextPart(text=text, native=native):
                if text.strip():
                    made: dict[str, Any] = {"type": "text", "text": text}
                    if is_own(native, WIRE, origin) and native is not None and native.data.get("citations"):
                        made["citations"] = native.data["citations"]
                    block = dumps(made)
            case RefusalPart(text=text):
                block = dumps({"type": "text", "text": text}) if text.strip() else None
            case ThinkingPart(text=text, native=native):
                if native is not None and is_own(native, WIRE, scope):
                    if "data" in native.data:
                        block = dumps({"type": "redacted_thinking", "data": native.data["data"]})
                    elif "signature" in native.data:
                        signature = native.data["signature"]
                        block = dumps({"type": "thinking", "thinking": text, "signature": signature})
                if block is not None:
                    blocks.append(block)
                    thoughts += 1
                continue
            case ToolCallPart(name=name, native=native):
                made = {"type": "tool_use", "id": next(calls), "name": name}
                more = native.data["more"] if native is not None and is_own(native, WIRE, origin) else {}
                tail = dumps(more)[1:-1]
                block = dumps(made)[:-1] + b',"input":' + arguments_of(part, dumps) + (tail and b"," + tail) + b"}"
            case ServerPart(native=native):
                if is_own(native, WIRE, origin) and native.data["block"].get("id") not in lost:
                    block = dumps(native.data["block"])
            case MediaPart():
                block = dumps({"type": "text", "text": left_out(part)})
        if block is not None:
            blocks.append(block)
            thoughts = 0
    return b",".join(blocks[: len(blocks) - thoughts])


def _results(message: PromptMessage, sent: tuple[str, ...]) -> bytes:
    blocks = []
    for part, call_id in zip((p for p in message.parts if isinstance(p, ToolResultPart)), sent, strict=True):
        content = []
        for inner in part.parts:
            if isinstance(inner, MediaPart):
                content.append(_media(inner) or {"type": "text", "text": left_out(inner)})
            elif isinstance(inner, TextPart | RefusalPart) and inner.text.strip():
                content.append({"type": "text", "text": inner.text})
        block: dict[str, Any] = {"type": "tool_result", "tool_use_id": call_id}
        if content:
            block["content"] = content
        if part.is_error:
            block["is_error"] = True
            # An error without a word is refused.
            block.setdefault("content", [{"type": "text", "text": "error"}])
        blocks.append(dumps(block))
    return b",".join(blocks)


def _said(message: PromptMessage) -> bytes:
    if message.role == "system":
        text = reminder(message)
        return dumps({"type": "text", "text": text}) if text else b""
    blocks = []
    for part in message.parts:
        if isinstance(part, MediaPart):
            media = _media(part)
            if media is None:
                hint = "it takes PNG, JPEG, GIF and WebP images, PDF and text; leave the part out or take another model"
                raise cannot_carry(part, WIRE, message, hint)
            blocks.append(dumps(media))
        elif isinstance(part, TextPart) and part.text.strip():
            blocks.append(dumps({"type": "text", "text": part.text}))
    return b",".join(blocks)


def _system(message: PromptMessage) -> bytes:
    texts = [part.text for part in message.parts if isinstance(part, TextPart) and part.text.strip()]
    return b",".join(dumps({"type": "text", "text": text}) for text in texts)


def _media(part: MediaPart) -> dict[str, Any] | None:
    kind = part.media_type.partition(";")[0].strip().lower()
    if kind == "image/jpg":
        kind = "image/jpeg"
    if kind in IMAGES:
        return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": part.data}}
    if kind == "application/pdf":
        source = {"type": "base64", "media_type": kind, "data": part.data}
    elif (text := text_of_media(part)) is not None and text.strip():
        source = {"type": "text", "media_type": "text/plain", "data": text}
    else:
        return None
    return {"type": "document", "source": source, **({"title": part.name} if part.name else {})}
