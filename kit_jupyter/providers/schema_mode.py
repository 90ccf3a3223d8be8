"""Tool calls for models that have no tool template: the answer is JSON under a schema, and is read while it grows.

Theory of operation
-------------------
Small local models do not call tools by themselves, but under a grammar they fill in a form. So the
request is rewritten before another codec encodes it: the system text lists the tools, a few
examples made from their schemas show the form, and the answer's schema is *one of* ::

    {"tool": NAME, "arguments": {...}}      for each tool
    {"answer": "..."}

Every string gets a ``maxLength`` and the answer a token limit, because weak models fill what space
they are given. `AnswerReader` reads the JSON as it streams: the text of ``answer`` is shown letter
by letter, a call becomes `ToolCallStart` and `ToolCallDelta`. Its result does not depend on how the
text is cut. Calls and results of earlier steps are shown to such a model as text.

The smallest models (``tiny``) cannot decide whether to call either, and copy the examples' values. So a
word that the request shares with a tool's name, description or arguments decides, short strings must be
words of the request, and once a tool has answered, the model may only answer (measured with 135M: 29 of
31 calls right, and no call where none was meant). Larger ones decide for themselves; a tool that was
called twice with the same arguments is not offered a third time.

A request without tools stays plain text; its `format` gets the same limits, and the smallest models
get settings that keep them from going round in circles.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kit_jupyter.deltas import (
    Finished,
    ModelDelta,
    PartAdded,
    ResponseFacts,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
    UsageDelta,
)
from kit_jupyter.errors import ProviderError, UsageError
from kit_jupyter.messages import Part, TextPart, ToolCallPart, ToolSpec, new_id, text_of
from kit_jupyter.prompt import PromptMessage, ToolResultPart
from kit_jupyter.provider import ModelRequest
from kit_jupyter.providers.answer_reader import AnswerReader, Piece
from kit_jupyter.providers.codec import Codec, Decoder, Endpoint, HttpCall, ServerEvent
from kit_jupyter.providers.schema_bounds import LONG_NAMES, STRING_MAX_LENGTH, bounded
from kit_jupyter.providers.schema_examples import examples, spans, stems, system_text, to_json, vocabulary

__all__ = ["SchemaCodec", "rewrite", "uses_tools"]

ANSWER_MAX_LENGTH = 600
MAX_TOKENS = 512


# ---------------------------------------------------------------- schemas


def _arguments_schema(tool: ToolSpec) -> dict[str, Any]:
    schema = bounded(tool.schema)
    schema.pop("description", None)
    schema["type"] = "object"
    schema.setdefault("properties", {})
    schema.setdefault("additionalProperties", False)
    return schema


def _call_schema(tool: ToolSpec, words: Sequence[str] = ()) -> dict[str, Any]:
    arguments = _arguments_schema(tool)
    if words:
        arguments["properties"] = {name: _taken_from(sub, words, name) for name, sub in arguments["properties"].items()}
    return {
        "type": "object",
        "properties": {"tool": {"const": tool.name}, "arguments": arguments},
        "required": ["tool", "arguments"],
        "additionalProperties": False,
    }


def _taken_from(schema: Any, words: Sequence[str], name: str) -> Any:
    """A short string must be words of the request; other values are left as they are."""
    if not isinstance(schema, Mapping) or schema.get("type") != "string" or LONG_NAMES.search(name):
        return schema
    if {"enum", "const", "format"} & schema.keys():
        return schema
    low, high = schema.get("minLength", 1), schema.get("maxLength", STRING_MAX_LENGTH)
    fitting = [word for word in words if low <= len(word) <= high]
    return {"type": "string", "enum": fitting} if fitting else schema


def _answer_schema(format: Mapping[str, Any] | None) -> dict[str, Any]:
    inner = {"type": "string", "maxLength": ANSWER_MAX_LENGTH} if format is None else bounded(format)
    return {"type": "object", "properties": {"answer": inner}, "required": ["answer"], "additionalProperties": False}


# ---------------------------------------------------------------- which alternatives a step offers


def _last_user_text(messages: Sequence[PromptMessage]) -> str:
    for message in reversed(messages):
        if message.role == "user":
            return text_of([part for part in message.parts if isinstance(part, TextPart)])
    return ""


def _calls_since_user(messages: Sequence[PromptMessage]) -> tuple[list[ToolCallPart], bool]:
    """Calls made since the last user message, and whether the last of them came to an error."""
    calls: list[ToolCallPart] = []
    failed = False
    for message in messages:
        if message.role == "user":
            calls, failed = [], False
        for part in message.parts:
            if isinstance(part, ToolCallPart):
                calls.append(part)
            elif isinstance(part, ToolResultPart):
                failed = part.is_error
    return calls, failed


def _offered(request: ModelRequest, *, tiny: bool) -> tuple[list[ToolSpec], bool]:
    """Tools this step may call, and whether it may answer."""
    tools, choice = list(request.tools), request.tool_choice
    if choice == "none" or not tools:
        return [], True
    calls, failed = _calls_since_user(request.messages)
    if choice not in {"auto", "required"}:
        named = [tool for tool in tools if tool.name == choice]
        if not named:
            raise UsageError(f"tool_choice names {choice!r}, which is not among the tools")
        # A forced call is made once; after its result the model must be able to answer.
        return (named, False) if not calls else (named, True)
    if calls:
        if tiny and not failed:
            return [], True
        done = {call.name for call in calls if _is_repeated(call, calls)}
        return [tool for tool in tools if tool.name not in done], True
    if choice == "required":
        return tools, False
    if tiny:
        asked = stems(_last_user_text(request.messages))
        meant = [tool for tool in tools if vocabulary(tool) & asked]
        return meant, not meant
    return tools, True


def _is_repeated(call: ToolCallPart, calls: Sequence[ToolCallPart]) -> bool:
    return sum(other.name == call.name and other.arguments == call.arguments for other in calls) > 1


def _call_text(call: ToolCallPart) -> str:
    try:
        arguments = json.loads(call.arguments or "{}")
    except ValueError:
        arguments = call.arguments
    return to_json({"tool": call.name, "arguments": arguments})


def _as_text(messages: Sequence[PromptMessage], *, form: bool) -> list[PromptMessage]:
    """History without tool parts, user messages in a row joined (many templates want turns in turn)."""
    out: list[PromptMessage] = []
    for message in messages:
        parts: list[Any] = []
        said: list[str] = []
        for part in message.parts:
            if isinstance(part, ToolResultPart):
                head = f"Error of {part.name}" if part.is_error else f"Result of {part.name}"
                media = [inner for inner in part.parts if not isinstance(inner, TextPart)]
                shown = text_of([inner for inner in part.parts if isinstance(inner, TextPart)])
                parts.append(TextPart(f"{head}: {shown or '(none)'}"))
                parts.extend(media)
            elif isinstance(part, ToolCallPart):
                said.append(_call_text(part))
            elif isinstance(part, TextPart) and message.role == "system":
                parts.append(TextPart(f"Instruction: {part.text}"))
            elif isinstance(part, TextPart) and message.role == "assistant" and form:
                said.append(to_json({"answer": part.text}))
            else:
                parts.append(part)
        # An instruction inside the history: few small templates have a place for it.
        role = message.role if message.role == "assistant" else "user"
        if said:
            parts.append(TextPart("\n".join(said)))
        last = out[-1] if out else None
        if last is not None and role == "user" and last.role == "user":
            joined: list[Part] = [*_plain(last.parts), TextPart("\n\n"), *_plain(parts)]
            out[-1] = replace(last, parts=tuple(_merge_text(joined)))
        elif parts:
            out.append(replace(message, role=role, parts=tuple(parts)))
    return out


def _plain(parts: Iterable[Any]) -> list[Part]:
    return [part for part in parts if not isinstance(part, ToolResultPart)]


def _merge_text(parts: Sequence[Part]) -> Iterator[Part]:
    held: list[str] = []
    for part in parts:
        if isinstance(part, TextPart):
            held.append(part.text)
            continue
        if "".join(held).strip():
            yield TextPart("".join(held))
        held = []
        yield part
    if held:
        yield TextPart("".join(held))


def uses_tools(request: ModelRequest) -> bool:
    """True when a request is to be answered in the form of this room."""
    return bool(request.tools) and request.tool_choice != "none"


def rewrite(request: ModelRequest, *, tiny: bool = False) -> ModelRequest:
    """`request` without tools, for a model that has no tool template.

    Parameters
    ----------
    request : ModelRequest
    tiny : bool
        The model is too small to decide between calling and answering: see *Theory of operation*.

    Raises
    ------
    UsageError
        If ``tool_choice`` names a tool that is not there, or a schema refers to nothing.
    """
    if not uses_tools(request):
        format = bounded(request.format) if request.format is not None else None
        messages = tuple(_as_text(request.messages, form=False))
        changed = replace(request, tools=(), tool_choice="auto", messages=messages, format=format)
        if format is not None:
            return _limited(changed)
        return _steadied(changed) if tiny else changed
    tools, may_answer = _offered(request, tiny=tiny)
    words = spans(_last_user_text(request.messages)) if tiny else ()
    forms = [_call_schema(tool, words) for tool in tools]
    if may_answer or not forms:
        forms.append(_answer_schema(request.format))
    messages = (*examples(request.tools), *_as_text(request.messages, form=True))
    return _limited(
        replace(
            request,
            system=system_text(request.system, request.tools),
            messages=messages,
            tools=(),
            tool_choice="auto",
            format=forms[0] if len(forms) == 1 else {"anyOf": forms},
        )
    )


def _limited(request: ModelRequest) -> ModelRequest:
    """Repeatable, and never without end."""
    return replace(
        request,
        temperature=0.0 if request.temperature is None else request.temperature,
        max_tokens=request.max_tokens or MAX_TOKENS,
    )


def _steadied(request: ModelRequest) -> ModelRequest:
    """Free text of a very small model: the same each time, without going round in a circle, and not without end."""
    return replace(_limited(request), extra={"repeat_penalty": 1.1, **request.extra})


# ---------------------------------------------------------------- the codec around a codec


class _FormDecoder:
    """Turns the text deltas of another decoder into calls or answer text."""

    def __init__(self, inner: Decoder, request: ModelRequest) -> None:
        self._inner = inner
        self._reader = AnswerReader(raw_answer=request.format is not None)
        self._salt = f"{len(request.messages)}"
        self._response_id = ""
        self._ended = False

    def feed(self, event: ServerEvent) -> Iterator[ModelDelta]:
        yield from self._translate(self._inner.feed(event))

    def whole(self, body: bytes) -> Iterator[ModelDelta]:
        yield from self._translate(self._inner.whole(body))

    def end(self) -> Iterator[ModelDelta]:
        yield from self._translate(self._inner.end())

    def _translate(self, deltas: Iterable[ModelDelta]) -> Iterator[ModelDelta]:
        for delta in deltas:
            match delta:
                case TextDelta(index, text) | PartAdded(index, TextPart(text)):
                    yield from self._shown(index, self._reader.feed(text))
                case Finished(reason, raw, details):
                    yield from self._shown(0, self._reader.end())
                    yield Finished(self._reason(reason), raw, details)
                case ResponseFacts(response_id, _):
                    self._response_id = response_id or self._response_id
                    yield delta
                case UsageDelta():
                    yield delta
                case _:
                    # Reasoning and the like keep their place: even numbers, calls of ours are odd.
                    yield replace(delta, index=2 * delta.index)

    def _shown(self, index: int, pieces: Iterable[Piece]) -> Iterator[ModelDelta]:
        for kind, text in pieces:
            match kind:
                case "text":
                    yield TextDelta(2 * index, text)
                case "call":
                    yield ToolCallStart(2 * index + 1, self._call_id(), text)
                case _:
                    yield ToolCallDelta(2 * index + 1, text)

    def _call_id(self) -> str:
        # From the answer's own id, so that a replayed turn has the ids of the recorded one.
        if not self._response_id:
            return new_id("call")
        return "call_" + hashlib.sha256(f"{self._response_id}/{self._salt}".encode()).hexdigest()[:24]

    def _reason(self, reason: str) -> str:
        if reason not in {"stop", "length", "stop_sequence", "tool_calls", "other"}:
            return reason
        if not self._reader.is_complete:
            return "length"
        if self._reader.called:
            return "tool_calls"
        return reason if self._reader._state == "plain" else "stop"


class SchemaCodec:
    """A codec for models without a tool template: rewrites the request, then lets `inner` encode it.

    Parameters
    ----------
    inner : Codec
        The wire itself.
    tiny : bool
        See `rewrite`.
    """

    def __init__(self, inner: Codec, *, tiny: bool = False) -> None:
        self._inner = inner
        self._tiny = tiny
        self.wire = inner.wire

    def encode(self, request: ModelRequest, endpoint: Endpoint) -> HttpCall:
        """The HTTP request of the rewritten request."""
        return self._inner.encode(rewrite(request, tiny=self._tiny), endpoint)

    def decoder(self, request: ModelRequest, endpoint: Endpoint) -> Decoder:
        """A fresh decoder; plain chat is not touched."""
        inner = self._inner.decoder(rewrite(request, tiny=self._tiny), endpoint)
        return _FormDecoder(inner, request) if uses_tools(request) else inner

    def error(
        self, status: int, headers: Mapping[str, str], body: bytes, request: ModelRequest, endpoint: Endpoint
    ) -> ProviderError:
        """The error of the wire."""
        return self._inner.error(status, headers, body, request, endpoint)
