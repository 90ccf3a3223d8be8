"""The OpenAI Responses wire: `ModelRequest` to ``/responses`` and its events to deltas.

Theory of operation
-------------------
*Sent.* Every request is stateless (``store: false``) and asks for encrypted reasoning. Items of each
prompt message are encoded once and kept; ``input`` is the last field of the body, and the items of a
history are a prefix of the next request's.

*Given back unchanged.* Reasoning items go back whole, to the service and model that made them, with the
items that followed them in their order: a reasoning item without its successor is refused, so one that
an interruption left at the end is dropped, and so is one that has neither ciphertext nor raw text, as
the service keeps none. Calls and messages go back without their ids, since an id makes the service ask
for the reasoning item before it. Server items (searches, code runs, compaction) go back as they are,
but not where the reasoning before them cannot. Thinking and server items of other wires are left out.

*Instructions inside the history* (a steer) are input messages of role ``system``.

*Read.* Events are matched by ``output_index``: item ids may change from event to event. What was not
streamed is taken from ``output_item.done``, or from the final response; the final ``output`` may be empty.

Sources: the service's reference of the Responses API and its streaming events; recorded exchanges.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
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
)
from kit_jupyter.prompt import PromptMessage, ToolResultPart
from kit_jupyter.provider import ModelRequest
from kit_jupyter.providers._errors import refusal
from kit_jupyter.providers._history import (
    Beginnings,
    CallIds,
    Step,
    Written,
    arguments_of,
    cannot_carry,
    is_own,
    left_out,
    text_of_media,
)
from kit_jupyter.providers._json import Pieces, dumps, loads
from kit_jupyter.providers._responses_answer import WIRE, OpenAIResponsesDecoder
from kit_jupyter.providers._schema import is_strict, title_of
from kit_jupyter.providers.codec import Endpoint, HttpCall

__all__ = ["WIRE", "OpenAIResponsesCodec"]

IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
NO_REASONING = re.compile(r"(^|[/.])(gpt-[34]|chatgpt-|gpt-5(\.\d+)?-chat)")
OPENAI_REASONING = re.compile(r"(^|[/.])(o\d|gpt-[5-9])")


# ---------------------------------------------------------------- encode


class OpenAIResponsesCodec:
    """The Responses wire; see the module's text for what goes where.

    Raises
    ------
    UsageError
        From `encode`, for stop sequences and for media the wire has no form for (audio, video, unknown
        images).

    Notes
    -----
    Holds encoded bytes of prompt messages by identity, no state of a stream. `ModelRequest.temperature` is
    left out for models that refuse any. ``tools`` and ``include`` in `ModelRequest.extra` are added to the
    request's own; all other keys of it replace fields of the body. Quirks: ``api_key_header`` sends the key in that
    header instead of as bearer, ``no_include`` does not ask for encrypted reasoning, ``prompt_cache_key``
    sends the session's id for cache routing (always done for ``openai`` and ``azure``).
    """

    wire = WIRE

    def __init__(self) -> None:
        self._pieces = Pieces()
        self._beginnings = Beginnings()

    def encode(self, request: ModelRequest, endpoint: Endpoint) -> HttpCall:
        """The HTTP request."""
        head = self._head(request, endpoint)
        if "input" in head:  # given by the caller, as it is
            body = dumps(head)
        else:
            body = b"".join((dumps(head)[:-1], b',"input":[', *self._input(request, endpoint), b"]}"))
        headers = {
            "content-type": "application/json",
            "accept": "text/event-stream" if head.get("stream") else "application/json",
        }
        if "api_key_header" in endpoint.quirks:
            headers["api-key"] = endpoint.api_key
        elif endpoint.api_key:
            headers["authorization"] = f"Bearer {endpoint.api_key}"
        headers.update(endpoint.headers)
        url = endpoint.base_url.rstrip("/")
        url += "" if url.endswith("/responses") else "/responses"
        if endpoint.query:
            url += "?" + urlencode(endpoint.query)
        return HttpCall(url=url, headers=headers, body=body, stream=bool(head.get("stream")))

    def decoder(self, request: ModelRequest, endpoint: Endpoint) -> OpenAIResponsesDecoder:
        """A fresh decoder for one answer."""
        return OpenAIResponsesDecoder(request, endpoint)

    def error(
        self, status: int, headers: Mapping[str, str], body: bytes, request: ModelRequest, endpoint: Endpoint
    ) -> ProviderError:
        """The error that a refused answer means."""
        return refusal(status, headers, body, request, endpoint)

    # -- all but the history

    def _head(self, request: ModelRequest, endpoint: Endpoint) -> dict[str, Any]:
        if request.stop:
            raise UsageError(f"{WIRE} has no stop sequences; leave stop={request.stop!r} out or take another model")
        model = request.model.id
        extra = dict(request.extra)
        head: dict[str, Any] = {"model": model, "stream": True, "store": False}
        if request.system.strip():
            head["instructions"] = request.system
        include = list(extra.pop("include", None) or ())
        if "no_include" not in endpoint.quirks and not NO_REASONING.search(model):
            include = list(dict.fromkeys(["reasoning.encrypted_content", *include]))
        if include:
            head["include"] = include
        tools: list[Any] = [
            {
                "type": "function",
                "name": spec.name,
                "description": spec.description,
                "parameters": dict(spec.schema) or {"type": "object", "properties": {}},
                # Left out, it would mean true; asked of a schema that is not, it is a refusal.
                "strict": spec.strict and is_strict(spec.schema),
            }
            for spec in request.tools
        ] + list(extra.pop("tools", None) or ())
        if tools:
            head["tools"] = tools
            if request.tool_choice in ("none", "required"):
                head["tool_choice"] = request.tool_choice
            elif request.tool_choice != "auto":
                head["tool_choice"] = {"type": "function", "name": request.tool_choice}
        if request.max_tokens is not None:
            head["max_output_tokens"] = request.max_tokens
        is_thinking = OPENAI_REASONING.search(model) is not None and not NO_REASONING.search(model)
        if request.temperature is not None and not (is_thinking and request.thinking != "off"):
            head["temperature"] = request.temperature
        if request.thinking is not None and not NO_REASONING.search(model):
            head["reasoning"] = (
                {"effort": _least_effort(model)}
                if request.thinking == "off"
                else {"effort": request.thinking, "summary": "auto"}
            )
        if request.format is not None:
            schema = dict(request.format)
            head["text"] = {
                "format": {
                    "type": "json_schema",
                    "name": title_of(schema),
                    "schema": schema,
                    "strict": is_strict(schema),
                }
            }
        routed = endpoint.name in ("openai", "azure") or "prompt_cache_key" in endpoint.quirks
        if request.session_id and routed:
            head["prompt_cache_key"] = request.session_id[:64]
        head.update(extra)
        return head

    # -- the history

    def _input(self, request: ModelRequest, endpoint: Endpoint) -> list[bytes]:
        origin, scope = endpoint.name, f"{endpoint.name}/{request.model.id}"
        pieces = self._pieces

        def take(written: Written, step: Step) -> None:
            ids = written.ids
            ids.new_step()
            custom: set[str] = set()
            for message in step.answers:
                sent = tuple([ids.of_call(p.call_id) for p in message.parts if type(p) is ToolCallPart])
                if sent:
                    custom |= _custom_calls(message, sent, origin)
                variant = ("answer", scope, sent)
                written.add(pieces.get(message, variant, partial(_answer, sent=sent, scope=scope, origin=origin)))
            for message in step.results:
                sent = tuple([ids.of_result(p.call_id) for p in message.parts if isinstance(p, ToolResultPart)])
                free = frozenset(custom.intersection(sent))
                written.add(pieces.get(message, ("result", sent, free), partial(_results, sent=sent, custom=free)))
            for message in step.said:
                written.add(pieces.get(message, "said", _said))

        written = self._beginnings.write(request.messages, scope, lambda: Written(CallIds(r"[\x21-\x7e]{1,64}")), take)
        if not written.out and "previous_response_id" not in request.extra and "prompt" not in request.extra:
            raise UsageError("nothing to send: the request holds no message with content")
        return written.out


def _least_effort(model: str) -> str:
    if re.search(r"(^|[/.])o\d", model) or re.search(r"gpt-5(\.\d+)?-(codex|pro)", model):
        return "low"
    return "minimal" if re.search(r"(^|[/.])gpt-5(-|$)", model) else "none"


def _custom_calls(message: PromptMessage, sent: tuple[str, ...], origin: str) -> set[str]:
    calls = (part for part in message.parts if type(part) is ToolCallPart)
    return {call_id for part, call_id in zip(calls, sent, strict=True) if _is_custom(part, origin)}


def _is_custom(part: ToolCallPart, origin: str) -> bool:
    return part.native is not None and is_own(part.native, WIRE, origin) and bool(part.native.data.get("custom"))


def _answer(message: PromptMessage, sent: tuple[str, ...], scope: str, origin: str) -> bytes:
    items: list[bytes] = []
    thoughts = 0  # reasoning items at the end, refused without what they led to
    is_whole = True  # no reasoning item of this answer had to be left out
    calls = iter(sent)
    texts: list[str] = []
    phase: str | None = None

    def close_text() -> None:
        nonlocal phase, thoughts
        text = "".join(texts)
        texts.clear()
        if text.strip():
            item: dict[str, Any] = {"role": "assistant", "content": text}
            if phase:
                item["phase"] = phase
            items.append(dumps(item))
            thoughts = 0
        phase = None

    for part in message.parts:
        if isinstance(part, TextPart | RefusalPart | MediaPart):
            native = part.native if isinstance(part, TextPart) and is_own(part.native, WIRE, origin) else None
            new_phase = native.data.get("phase") if native is not None else None
            if texts and new_phase != phase:
                close_text()
            phase = new_phase
            texts.append(left_out(part) if isinstance(part, MediaPart) else part.text)
            continue
        close_text()
        match part:
            case ThinkingPart(native=native):
                if native is None or not is_own(native, WIRE, scope):
                    is_whole = is_whole and (native is None or native.wire != WIRE)
                    continue
                item = native.data["item"]
                if item.get("encrypted_content") or item.get("content"):
                    items.append(dumps(item))
                    thoughts += 1
                else:
                    is_whole = False
                continue
            case ToolCallPart(name=name, native=native):
                call_id = next(calls)
                arguments = arguments_of(part, dumps).decode()
                if _is_custom(part, origin):
                    written = loads(arguments).get("input", "")
                    item = {"type": "custom_tool_call", "call_id": call_id, "name": name, "input": written}
                else:
                    item = {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}
                if native is not None and is_own(native, WIRE, origin):
                    item.update(native.data.get("more") or {})
                items.append(dumps(item))
                thoughts = 0
            case ServerPart(native=native):
                if is_whole and is_own(native, WIRE, scope):
                    items.append(dumps(native.data["item"]))
                    thoughts = 0
    close_text()
    return b",".join(items[: len(items) - thoughts])


def _results(message: PromptMessage, sent: tuple[str, ...], custom: frozenset[str]) -> bytes:
    items = []
    for part, call_id in zip((p for p in message.parts if isinstance(p, ToolResultPart)), sent, strict=True):
        content: list[dict[str, Any]] = []
        for inner in part.parts:
            if isinstance(inner, MediaPart):
                content.append(_media(inner) or {"type": "input_text", "text": left_out(inner)})
            elif isinstance(inner, TextPart | RefusalPart):
                content.append({"type": "input_text", "text": inner.text})
        is_text = all(block["type"] == "input_text" for block in content)
        output: Any = "\n".join(block["text"] for block in content) if is_text else content
        kind = "custom_tool_call_output" if call_id in custom else "function_call_output"
        items.append(dumps({"type": kind, "call_id": call_id, "output": output}))
    return b",".join(items)


def _said(message: PromptMessage) -> bytes:
    content: list[dict[str, Any]] = []
    for part in message.parts:
        if isinstance(part, MediaPart):
            media = _media(part)
            if media is None:
                hint = "it takes PNG, JPEG, GIF and WebP images, PDF and text; leave the part out or take another model"
                raise cannot_carry(part, WIRE, message, hint)
            content.append(media)
        elif isinstance(part, TextPart) and part.text:
            content.append({"type": "input_text", "text": part.text})
    return dumps({"role": message.role, "content": content}) if content else b""


def _media(part: MediaPart) -> dict[str, Any] | None:
    kind = part.media_type.partition(";")[0].strip().lower()
    if kind == "image/jpg":
        kind = "image/jpeg"
    if kind in IMAGES:
        return {"type": "input_image", "image_url": f"data:{kind};base64,{part.data}", "detail": "auto"}
    if kind == "application/pdf":
        name = part.name or "document.pdf"
        return {"type": "input_file", "filename": name, "file_data": f"data:{kind};base64,{part.data}"}
    text = text_of_media(part)
    return None if text is None else {"type": "input_text", "text": text}
