"""The chat completions wire: OpenAI's, and that of the many services and servers that follow it.

Theory of operation
-------------------
One wire, forty dialects. What all of them take is written here; where one differs, its registry row
names a quirk, and the quirk decides:

=======================  ==================================================================================
``max_completion_tokens``  the limit's new name (OpenAI, Azure); all others read ``max_tokens``
``no_stream_options``      refuses ``stream_options`` (it sends usage anyway)
``prompt_cache_key``       routes by the session for the sake of its cache
``strict``                 takes ``strict`` for tools whose schema allows it
``json_object``            knows JSON but no schema: the schema is said in the system prompt
``tool_choice_any``        says ``any`` for ``required``
``short_ids``              call ids of exactly nine letters and digits (Mistral)
``reminders``              no system message inside the history: said on the user's side, in an envelope
``ok_after_tool``          wants an answer between tool results and what a user says (Mistral)
``tool_media``             takes images inside tool results; for others they follow in a user message
``document_url``           PDF as ``document_url`` (Mistral); others take ``file``
``refusal``                takes a refusal back as such; for others it is text
``think_tags``             reasoning comes inside ``<think>`` at the beginning of the text
``give_back:FIELD``        reasoning goes back in this field of the answer it came with
``thinking:FORM``          how a thinking level is said: effort, openrouter, type, enable, template
``api_key_header``         the key goes in ``api-key`` (Azure)
=======================  ==================================================================================

Answers are read by `_chat_answer`, the same way for all. What was encoded is kept: messages by identity,
beginnings of histories, tool lists; so a request costs what is new in it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from kit_jupyter.errors import ProviderError
from kit_jupyter.messages import (
    MediaPart,
    RefusalPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolSpec,
)
from kit_jupyter.prompt import PromptMessage, ToolResultPart
from kit_jupyter.provider import ModelRequest
from kit_jupyter.providers._chat_answer import WIRE, ChatDecoder, origin_of
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
    reminder,
    text_of_media,
)
from kit_jupyter.providers._json import Pieces, dumps
from kit_jupyter.providers._schema import is_strict, title_of
from kit_jupyter.providers.codec import Endpoint, HttpCall

__all__ = ["WIRE", "ChatDecoder", "OpenAIChatCodec"]

_AUDIO = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/wave": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}
_IDS, _SHORT_IDS = "[A-Za-z0-9_.:|-]{1,64}", "[A-Za-z0-9]{9}"


class OpenAIChatCodec:
    """Codec of chat completions; holds encoded messages, no state of a stream."""

    wire = WIRE

    def __init__(self) -> None:
        self._pieces = Pieces()
        self._beginnings = Beginnings()
        self._kept_tools: dict[object, tuple[tuple[ToolSpec, ...], bytes]] = {}

    def __repr__(self) -> str:
        return "OpenAIChatCodec()"

    # -- out

    def encode(self, request: ModelRequest, endpoint: Endpoint) -> HttpCall:
        """The HTTP request; `UsageError` for media that this wire has no form for."""
        quirks = endpoint.quirks
        head: dict[str, Any] = {"model": request.model.id, "stream": True}
        if "no_stream_options" not in quirks:
            head["stream_options"] = {"include_usage": True}
        if request.max_tokens is not None:
            head["max_completion_tokens" if "max_completion_tokens" in quirks else "max_tokens"] = request.max_tokens
        if request.temperature is not None:
            head["temperature"] = request.temperature
        if request.stop:
            head["stop"] = list(request.stop)
        head.update(_thinking(request, quirks))
        if request.tools:
            choice = _tool_choice(request.tool_choice, quirks)
            if choice is not None:
                head["tool_choice"] = choice
        if request.format is not None:
            head["response_format"] = _response_format(request.format, quirks)
        if request.session_id and "prompt_cache_key" in quirks:
            head["prompt_cache_key"] = request.session_id
        head.update({key: value for key, value in request.extra.items() if key != "messages"})
        parts = [dumps(head)[:-1]]
        if request.tools and "tools" not in head:
            parts += (b',"tools":', self._tools(request.tools, quirks))
        parts += (b',"messages":[', self._history(request, endpoint), b"]}")
        return HttpCall(url=_url(endpoint), headers=_headers(endpoint), body=b"".join(parts))

    def _tools(self, tools: tuple[ToolSpec, ...], quirks: frozenset[str]) -> bytes:
        """The tool list, encoded once per list: thirty schemas cost more than the rest of a request."""
        key = (tuple(map(id, tools)), quirks)
        known = self._kept_tools.get(key)
        if known is None:
            if len(self._kept_tools) >= 32:
                self._kept_tools.clear()
            # The list is kept beside its bytes, so that no other one can have its ids.
            known = self._kept_tools[key] = (tools, dumps([_tool(spec, quirks) for spec in tools]))
        return known[1]

    def _history(self, request: ModelRequest, endpoint: Endpoint) -> bytes:
        """The messages, joined; only what is new since the last request is encoded."""
        quirks, origin = endpoint.quirks, origin_of(request, endpoint)
        out: list[bytes] = []
        system = request.system
        if request.format is not None and "json_object" in quirks:
            shape = dumps(request.format).decode()
            wish = f"Answer with one JSON value and nothing else. It must fit this JSON schema:\n{shape}"
            system = f"{system}\n\n{wish}" if system else wish
        if system:
            out.append(dumps({"role": "system", "content": system}))
        allowed = _SHORT_IDS if "short_ids" in quirks else _IDS
        written = self._beginnings.write(
            request.messages,
            (quirks, origin),
            lambda: Written(CallIds(allowed)),
            partial(self._take, quirks=quirks, origin=origin),
        )
        return (b"," if out and written.out else b"").join((b",".join(out), b"".join(written.out)))

    def _take(self, written: Written, step: Step, *, quirks: frozenset[str], origin: str) -> None:
        """Write a step: answers, results, images that results cannot hold here, and what was said."""
        of, ids = self._pieces.get, written.ids
        ids.new_step()
        for message in step.answers:
            sent = tuple(_sent_id(ids, p.call_id, quirks) for p in message.parts if type(p) is ToolCallPart)
            make = partial(_answer, sent_ids=sent, quirks=quirks, origin=origin)
            written.add(of(message, (quirks, origin, sent), make))
        media: list[MediaPart] = []
        for message in step.results:
            for number, part in enumerate(message.parts):
                if type(part) is not ToolResultPart:
                    continue
                call = _result_id(ids, part.call_id, quirks)
                written.add(of(message, (quirks, call, number), partial(_result, part, call, quirks)))
                if "tool_media" not in quirks:
                    media += [p for p in part.parts if type(p) is MediaPart and _is_image(p)]
        if step.results and "ok_after_tool" in quirks and (media or step.said):
            written.add(b'{"role":"assistant","content":"OK"}')
        if media:
            written.add(_shown_media(media))
        for message in step.said:
            written.add(of(message, quirks, partial(_said, quirks=quirks)))

    # -- in

    def decoder(self, request: ModelRequest, endpoint: Endpoint) -> ChatDecoder:
        """A fresh decoder for one answer."""
        return ChatDecoder(request, endpoint)

    def error(
        self, status: int, headers: Mapping[str, str], body: bytes, request: ModelRequest, endpoint: Endpoint
    ) -> ProviderError:
        """The error that a refused answer means."""
        return refusal(status, headers, body, request, endpoint)


def _url(endpoint: Endpoint) -> str:
    query = "&".join(f"{name}={value}" for name, value in endpoint.query.items())
    return f"{endpoint.base_url}/chat/completions" + (f"?{query}" if query else "")


def _headers(endpoint: Endpoint) -> dict[str, str]:
    headers = {"content-type": "application/json", "accept": "text/event-stream", "accept-encoding": "identity"}
    if endpoint.api_key:
        if "api_key_header" in endpoint.quirks:
            headers["api-key"] = endpoint.api_key
        else:
            headers["authorization"] = f"Bearer {endpoint.api_key}"
    headers.update(endpoint.headers)
    return headers


# ---------------------------------------------------------------- requests: options


def _thinking(request: ModelRequest, quirks: frozenset[str]) -> dict[str, Any]:
    """How this dialect says a thinking level."""
    level = request.thinking
    if level is None:
        return {}
    form = next((quirk[9:] for quirk in quirks if quirk.startswith("thinking:")), "effort")
    is_on = level != "off"
    match form:
        case "openrouter":
            return {"reasoning": {"effort": level} if is_on else {"enabled": False}}
        case "type":
            return {"thinking": {"type": "enabled" if is_on else "disabled"}}
        case "enable":
            return {"enable_thinking": is_on}
        case "template":
            return {"chat_template_kwargs": {"enable_thinking": is_on}}
        case "none":
            return {}
    if is_on:
        return {"reasoning_effort": level}
    least = _least_effort(request.model.id)
    return {"reasoning_effort": least} if least else {}


def _least_effort(model: str) -> str:
    """The lowest effort that a model takes; empty for models that never think."""
    if re.search(r"(^|/)o[1-9]", model):
        return "low"
    if re.search(r"(^|/)gpt-5(-mini|-nano)?(-\d{4}|$)", model):
        return "minimal"
    return "" if re.search(r"(^|/)(gpt-4|gpt-3|chatgpt)", model) else "none"


def _tool(spec: ToolSpec, quirks: frozenset[str]) -> dict[str, Any]:
    function: dict[str, Any] = {"name": spec.name, "description": spec.description, "parameters": spec.schema}
    if spec.strict and "strict" in quirks and is_strict(spec.schema):
        function["strict"] = True
    return {"type": "function", "function": function}


def _tool_choice(choice: str, quirks: frozenset[str]) -> Any:
    match choice:
        case "auto":
            return None
        case "none":
            return "none"
        case "required":
            return "any" if "tool_choice_any" in quirks else "required"
    return {"type": "function", "function": {"name": choice}}


def _response_format(schema: Mapping[str, Any], quirks: frozenset[str]) -> dict[str, Any]:
    if "json_object" in quirks:
        return {"type": "json_object"}
    named = {"name": title_of(schema), "schema": schema, "strict": is_strict(schema)}
    return {"type": "json_schema", "json_schema": named}


# ---------------------------------------------------------------- requests: messages


def _sent_id(ids: CallIds, call_id: str, quirks: frozenset[str]) -> str:
    return ids.of_call(_nine(call_id) if "short_ids" in quirks else call_id)


def _result_id(ids: CallIds, call_id: str, quirks: frozenset[str]) -> str:
    return ids.of_result(_nine(call_id) if "short_ids" in quirks else call_id)


def _nine(call_id: str) -> str:
    """The id as nine letters and digits, the same each time."""
    if re.fullmatch(_SHORT_IDS, call_id):
        return call_id
    return hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:9]


def _answer(message: PromptMessage, sent_ids: Sequence[str], quirks: frozenset[str], origin: str) -> bytes:
    """An assistant message; empty when nothing of it can be said here."""
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    thoughts: list[ThinkingPart] = []
    out: dict[str, Any] = {"role": "assistant", "content": None}
    ids = iter(sent_ids)
    for part in message.parts:
        match part:
            case TextPart():
                texts.append(part.text)
            case RefusalPart():
                if "refusal" in quirks:
                    out["refusal"] = out.get("refusal", "") + part.text
                else:
                    texts.append(part.text)
            case ToolCallPart():
                calls.append(_call(part, next(ids), origin))
            case ThinkingPart() if is_own(part.native, WIRE, origin):
                thoughts.append(part)
            case MediaPart():
                texts.append(left_out(part))
            # Reasoning of others and blocks of other services' own tools: nothing here understands them.
    text = "".join(texts)
    blocks = _give_back(out, thoughts, quirks)
    if blocks:
        out["content"] = [*blocks, {"type": "text", "text": text}] if text else blocks
    elif text:
        out["content"] = text
    if calls:
        out["tool_calls"] = calls
    if len(out) == 2 and out["content"] is None:
        return b""
    if out["content"] is None and not calls and "refusal" not in out:
        out["content"] = ""
    return dumps(out)


def _give_back(out: dict[str, Any], thoughts: Sequence[ThinkingPart], quirks: frozenset[str]) -> list[dict[str, Any]]:
    """Put reasoning into the fields it came in; what comes back are blocks of ``content``."""
    details: list[Any] = []
    blocks: list[dict[str, Any]] = []
    for part in thoughts:
        data = part.native.data if part.native is not None else {}
        field = data.get("field")
        if "details" in data:
            details += data["details"]
        elif field == "content":
            blocks.append(
                {"type": "thinking", "thinking": [{"type": "text", "text": part.text}], **data.get("more", {})}
            )
        elif isinstance(field, str) and part.text and f"give_back:{field}" in quirks:
            out[field] = out.get(field, "") + part.text
    if details:
        out["reasoning_details"] = details
    return blocks


def _call(part: ToolCallPart, call_id: str, origin: str) -> dict[str, Any]:
    call: dict[str, Any] = {
        "id": call_id,
        "type": "function",
        "function": {"name": part.name, "arguments": arguments_of(part, dumps).decode("utf-8")},
    }
    if part.native is not None and is_own(part.native, WIRE, origin) and "extra_content" in part.native.data:
        call["extra_content"] = part.native.data["extra_content"]  # Gemini's signatures
    return call


def _result(part: ToolResultPart, call_id: str, quirks: frozenset[str], _: object = None) -> bytes:
    texts: list[str] = []
    images: list[dict[str, Any]] = []
    for piece in part.parts:
        if isinstance(piece, TextPart | RefusalPart):
            texts.append(piece.text)
        elif isinstance(piece, MediaPart):
            inside = text_of_media(piece)
            if inside is not None:
                texts.append(inside)
            elif not _is_image(piece):
                texts.append(left_out(piece))
            elif "tool_media" in quirks:
                images.append(_image(piece))
            else:
                texts.append(f"[{piece.media_type}{' ' + piece.name if piece.name else ''}: shown in the next message]")
    text = "\n".join(texts)
    content: Any = text if not images else [*([{"type": "text", "text": text}] if text else []), *images]
    return dumps({"role": "tool", "tool_call_id": call_id, "content": content})


def _shown_media(media: Sequence[MediaPart]) -> bytes:
    label = {"type": "text", "text": "What the tools above returned as images:"}
    return dumps({"role": "user", "content": [label, *map(_image, media)]})


def _said(message: PromptMessage, quirks: frozenset[str]) -> bytes:
    if message.role == "system":
        if "reminders" in quirks:
            words = reminder(message)
            return dumps({"role": "user", "content": words}) if words else b""
        text = "\n".join(part.text for part in message.parts if isinstance(part, TextPart))
        return dumps({"role": "system", "content": text}) if text else b""
    content: list[dict[str, Any]] = []
    for part in message.parts:
        if isinstance(part, TextPart | RefusalPart):
            content.append({"type": "text", "text": part.text})
        elif isinstance(part, MediaPart):
            content.append(_media(part, message, quirks))
    if all(piece["type"] == "text" for piece in content):
        # Text alone goes as a string: not every dialect reads a list.
        return dumps({"role": "user", "content": "\n\n".join(piece["text"] for piece in content)})
    return dumps({"role": "user", "content": content})


def _is_image(part: MediaPart) -> bool:
    return part.media_type.startswith("image/") and part.media_type != "image/svg+xml"


def _image(part: MediaPart) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:{part.media_type};base64,{part.data}"}}


def _media(part: MediaPart, message: PromptMessage, quirks: frozenset[str]) -> dict[str, Any]:
    if _is_image(part):
        return _image(part)
    kind = part.media_type.partition(";")[0].strip().lower()
    if kind == "application/pdf":
        url = f"data:application/pdf;base64,{part.data}"
        if "document_url" in quirks:
            return {"type": "document_url", "document_url": url, "document_name": part.name or "file.pdf"}
        return {"type": "file", "file": {"filename": part.name or "file.pdf", "file_data": url}}
    if kind in _AUDIO:
        if "document_url" in quirks:
            return {"type": "input_audio", "input_audio": part.data}
        return {"type": "input_audio", "input_audio": {"data": part.data, "format": _AUDIO[kind]}}
    text = text_of_media(part) if not part.media_type.startswith("image/") or kind == "image/svg+xml" else None
    if kind == "image/svg+xml":
        text = part.raw.decode("utf-8", "replace")
    if text is not None:
        return {"type": "text", "text": text}
    raise cannot_carry(part, "the chat wire", message, "it takes images, PDF, WAV and MP3, and files that are text")
