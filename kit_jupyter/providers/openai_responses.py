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

import json
import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any
from urllib.parse import urlencode

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
    RefusalDelta,
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
    text_of_media,
)
from kit_jupyter.providers._json import Pieces, dumps, loads
from kit_jupyter.providers._schema import is_strict, title_of
from kit_jupyter.providers.codec import Endpoint, HttpCall, ServerEvent

__all__ = ["WIRE", "OpenAIResponsesCodec"]

WIRE = "openai-responses"
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
                # Left out, it would mean true.
                "strict": spec.strict,
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


# ---------------------------------------------------------------- decode


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
    for key in ("queries", "code", "arguments", "input", "tools"):
        said = item.get(key)
        if isinstance(said, str):
            return said
        if isinstance(said, list):
            return ", ".join(str(entry.get("name", "")) if isinstance(entry, dict) else str(entry) for entry in said)
    return ""
