"""Answers of the chat completions wire, in any dialect: chunks in, deltas out.

Theory of operation
-------------------
Dialects change without notice, so answers are read the same way for all: reasoning is looked for in its
five homes, usage in its six, tool calls are told apart by index, id or place, and whether an answer is
complete is decided by what came, not by one marker. Parts get their index in the order they appear; a
new one begins when the kind changes. Nearly every chunk of a stream is one piece of text and takes a
short way past all this.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from kit_jupyter.errors import ProviderError
from kit_jupyter.messages import Citation, MediaPart, Native, Tokens, new_id
from kit_jupyter.provider import ModelRequest
from kit_jupyter.providers._errors import cut, not_json, said_in_stream
from kit_jupyter.providers._json import dumps, loads
from kit_jupyter.providers.codec import Endpoint, ServerEvent

__all__ = ["WIRE", "ChatDecoder", "tokens_of"]

WIRE = "openai-chat"


def origin_of(request: ModelRequest, endpoint: Endpoint) -> str:
    """Who made reasoning, and so may get it back: signatures are good at one model only."""
    return f"{endpoint.name}/{request.model.id}"


class _Call:
    """A tool call as it comes in, piece by piece and in any dialect."""

    __slots__ = ("arguments", "call_id", "index", "key", "name", "native", "told")

    def __init__(self, key: object, index: int) -> None:
        self.key, self.index = key, index
        self.call_id = self.name = ""
        self.arguments: list[str] = []
        self.native: Native | None = None
        self.told = False


class ChatDecoder:
    """Turns one answer into deltas."""

    def __init__(self, request: ModelRequest, endpoint: Endpoint) -> None:
        self._request, self._endpoint = request, endpoint
        self._origin = origin_of(request, endpoint)
        self._next_index = 0
        self._kind = ""  # of the part that is growing
        self._open = -1
        self._text_index = -1
        self._thinking_index = -1
        self._named = False
        self._response_id = self._model = ""
        self._calls: list[_Call] = []
        self._ids: set[str] = set()
        self._details: dict[int, list[dict[str, Any]]] = {}
        self._tokens: Tokens | None = None
        self._raw: str | None = None
        self._native_reason = ""
        self._said_text = self._said_refusal = False
        self._audio: dict[str, Any] = {}
        self._audio_index = -1
        self._citations: list[str] = []
        self._is_complete = self._is_finished = False
        self._tags: _ThinkTags | None = _ThinkTags() if "think_tags" in endpoint.quirks else None

    # -- entry points

    def feed(self, event: ServerEvent) -> Iterable[ModelDelta]:
        """Deltas of one event; see `codec.Decoder.feed`."""
        name, data = event
        try:
            chunk = loads(data)
        except ValueError:
            if data in (b"[DONE]", "[DONE]"):
                return self._finish()
            raise not_json(data, self._request, self._endpoint) from None
        if type(chunk) is not dict:
            return ()
        if self._kind == "text" and not name and self._tags is None:
            text = _only_text(chunk)
            if text:
                return (TextDelta(self._open, text),)  # nearly every event: nothing else to look at
        out: list[ModelDelta] = []
        if not self._named:
            self._name(chunk, out)
        choices = chunk.get("choices")
        if choices:
            for choice in choices:
                if not choice.get("index"):  # 0, null or missing; the others are alternatives nobody asked for
                    self._choice(choice, choice.get("delta"), out, whole=False)
        usage = chunk.get("usage") or (chunk["x_groq"].get("usage") if chunk.get("x_groq") else None)
        if usage:
            self._usage(usage, out)
            if choices == []:
                self._is_complete = True  # the chunk that only brings usage is the last one
        if "citations" in chunk:
            self._sources(chunk)
        if chunk.get("error") or name == "error" or chunk.get("object") == "error":
            # What came with the error is real, and comes first.
            return _then_raise(out, said_in_stream(chunk, self._request, self._endpoint))
        return out

    def whole(self, body: bytes) -> Iterable[ModelDelta]:
        """Deltas of an answer that came as one JSON body."""
        try:
            answer = loads(body)
        except ValueError:
            raise not_json(body, self._request, self._endpoint, where="the answer") from None
        if isinstance(answer, list) and len(answer) == 1:
            answer = answer[0]
        if not isinstance(answer, dict):
            raise not_json(body, self._request, self._endpoint, where="the answer")
        choices = answer.get("choices")
        if answer.get("error") or not isinstance(choices, list):
            raise said_in_stream(answer, self._request, self._endpoint)
        out: list[ModelDelta] = []
        self._name(answer, out)
        for choice in choices:
            if not choice.get("index"):
                self._choice(choice, choice.get("message"), out, whole=True)
        if answer.get("usage"):
            self._usage(answer["usage"], out)
        self._sources(answer)
        self._is_complete = True
        out += self._finish()
        return out

    def end(self) -> Iterable[ModelDelta]:
        """The body ended: last deltas with `Finished`; `WireError` if the answer was cut."""
        if self._is_finished:
            return ()
        # Some services close without a reason or a marker. A call whose arguments parse is whole.
        is_whole = self._is_complete or self._raw is not None
        if not is_whole and not (self._calls and all(_parses(call) for call in self._calls)):
            raise cut(self._request, self._endpoint)
        return self._finish()

    # -- pieces

    def _name(self, chunk: Mapping[str, Any], out: list[ModelDelta]) -> None:
        self._response_id = self._response_id or str(chunk.get("id") or "")
        self._model = self._model or str(chunk.get("model") or "")
        if self._response_id and self._model:
            self._named = True
            out.append(ResponseFacts(self._response_id, self._model))

    def _choice(self, choice: Mapping[str, Any], delta: Any, out: list[ModelDelta], *, whole: bool) -> None:
        if type(delta) is dict:
            content = delta.get("content")
            if len(delta) > 1 or content is None:
                self._reasoning(delta, out)
            if content:
                if type(content) is str:
                    self._text(content, out)
                else:
                    self._content(content, out)
            if len(delta) > 1 or content is None:
                self._rest(delta, out, whole=whole)
        reason = choice.get("finish_reason")
        if reason is not None:
            # OpenRouter says it twice; the empty one of a later chunk takes nothing back.
            self._raw = reason if reason or self._raw is None else self._raw
            self._native_reason = str(choice.get("native_finish_reason") or self._native_reason)
        if choice.get("usage"):  # Moonshot
            self._usage(choice["usage"], out)

    def _part(self, kind: str) -> int:
        """Index of the growing part of this kind; a new one when the kind changes."""
        if self._kind != kind:
            self._kind = kind
            self._open = self._next_index
            self._next_index += 1
        return self._open

    def _text(self, text: str, out: list[ModelDelta]) -> None:
        if self._tags is not None:
            for is_thought, piece in self._tags.split(text):
                if is_thought:
                    self._thought(piece, "think_tags", out)
                else:
                    self._plain(piece, out)
            if self._tags.is_over:
                self._tags = None
            return
        self._plain(text, out)

    def _plain(self, text: str, out: list[ModelDelta]) -> None:
        index = self._open if self._kind == "text" else self._part("text")
        self._text_index = index
        self._said_text = True
        out.append(TextDelta(index, text))

    def _thought(self, text: str, field: str, out: list[ModelDelta], more: Mapping[str, Any] | None = None) -> None:
        is_new = self._kind != "thinking"
        index = self._part("thinking")
        self._thinking_index = index
        out.append(ThinkingDelta(index, text))
        if is_new or more:
            data: dict[str, Any] = {"from": self._origin, "field": field}
            if more:
                data["more"] = dict(more)
            out.append(NativeDelta(index, Native(WIRE, data)))

    def _reasoning(self, delta: Mapping[str, Any], out: list[ModelDelta]) -> None:
        """Reasoning text from the first of its homes that holds some: two of them may say the same."""
        details = delta.get("reasoning_details")
        text, field = "", "reasoning_content"
        for name in ("reasoning_content", "reasoning"):
            value = delta.get(name)
            if value and isinstance(value, str):
                text, field = value, name
                break
        if details and isinstance(details, list):
            self._detail_list([d for d in details if isinstance(d, dict)], text, out)
        elif text:
            self._thought(text, field, out)

    def _detail_list(self, details: Sequence[dict[str, Any]], text: str, out: list[ModelDelta]) -> None:
        """OpenRouter's list: pieces of one entry are joined, so that it goes back as it was meant."""
        if not text:
            text = "".join(str(d.get("text") or d.get("summary") or "") for d in details)
        is_late = self._kind != "thinking" and self._thinking_index >= 0 and not text
        index = self._thinking_index if is_late else self._part("thinking")
        self._thinking_index = index
        out.append(ThinkingDelta(index, text))
        known = self._details.setdefault(index, [])
        for piece in details:
            last = known[-1] if known else None
            same = last is not None and (last.get("index"), last.get("type")) == (piece.get("index"), piece.get("type"))
            if not same or last is None or "data" in piece:
                known.append(dict(piece))
                continue
            for key, value in piece.items():
                if key in ("text", "summary") and isinstance(value, str):
                    last[key] = (last.get(key) or "") + value
                elif value is not None:
                    last[key] = value

    def _content(self, content: Any, out: list[ModelDelta]) -> None:
        """Content that is no string: Mistral's list, or an object that was parsed already."""
        if not isinstance(content, list):
            self._plain(json.dumps(content, ensure_ascii=False), out)
            return
        for piece in content:
            if isinstance(piece, str):
                self._plain(piece, out)
            elif isinstance(piece, dict):
                self._content_piece(piece, out)

    def _content_piece(self, piece: Mapping[str, Any], out: list[ModelDelta]) -> None:
        kind = piece.get("type")
        if kind == "thinking":
            inner = piece.get("thinking")
            texts = (
                [inner]
                if isinstance(inner, str)
                else [str(p.get("text") or "") for p in inner or () if isinstance(p, dict)]
            )
            more = {k: v for k, v in piece.items() if k not in ("type", "thinking") and v is not None}
            self._thought("".join(texts), "content", out, more)
        elif kind == "refusal" and piece.get("refusal"):
            self._refusal(str(piece["refusal"]), out)
        elif kind == "image_url":
            self._images([piece], out)
        elif kind == "reference":
            self._citations += [str(ref) for ref in piece.get("reference_ids") or ()]
        elif isinstance(piece.get("text"), str) and piece["text"]:
            self._plain(piece["text"], out)

    def _refusal(self, text: str, out: list[ModelDelta]) -> None:
        self._said_refusal = True
        out.append(RefusalDelta(self._part("refusal"), text))

    def _rest(self, delta: Mapping[str, Any], out: list[ModelDelta], *, whole: bool) -> None:
        if delta.get("refusal"):
            self._refusal(str(delta["refusal"]), out)
        calls = delta.get("tool_calls")
        if calls:
            for place, call in enumerate(calls):
                self._call(call, place if whole else None, out)
        legacy = delta.get("function_call")
        if legacy and (legacy.get("name") or legacy.get("arguments")):
            self._call({"index": "function_call", "function": legacy}, None, out)
        if delta.get("audio"):
            self._heard(delta["audio"])
        if delta.get("images"):
            self._images(delta["images"], out)
        for note in delta.get("annotations") or ():
            self._annotation(note, out)

    # -- tool calls

    def _call(self, piece: Mapping[str, Any], place: int | None, out: list[ModelDelta]) -> None:
        function = piece.get("function") or {}
        name, arguments = function.get("name") or "", function.get("arguments")
        if isinstance(arguments, dict | list):
            arguments = dumps(arguments).decode()
        call = self._find(piece, str(piece.get("id") or ""), name, place)
        if call is None:
            if not name and not arguments and not piece.get("id"):
                return  # an empty object beside real calls
            call = _Call(piece.get("index", place), self._next_index)
            self._next_index += 1
            self._kind = "tool_call"
            self._calls.append(call)
        # Id and name are set once: some services repeat them in every piece.
        call.call_id = call.call_id or str(piece.get("id") or "")
        call.name = call.name or name
        extra = piece.get("extra_content")
        if extra:
            call.native = Native(WIRE, {"from": self._origin, "extra_content": extra})
        if call.name and not call.told:
            self._tell(call, out)
        if arguments:
            call.arguments.append(arguments)
            if call.told:
                out.append(ToolCallDelta(call.index, arguments))

    def _find(self, piece: Mapping[str, Any], call_id: str, name: str, place: int | None) -> _Call | None:
        """The call that a piece belongs to; None for a new one."""
        if place is not None:
            return None  # a whole answer lists each call once
        index = piece.get("index")
        if index is None:
            if call_id:
                return next((call for call in self._calls if call.call_id == call_id), None)
            return None if name or not self._calls else self._calls[-1]
        known = next((call for call in reversed(self._calls) if call.key == index), None)
        # Every call under index 0, each whole: told apart by id and name.
        if known is not None and call_id and name and known.call_id and known.call_id != call_id:
            return next((call for call in self._calls if call.call_id == call_id), None)
        return known

    def _tell(self, call: _Call, out: list[ModelDelta]) -> None:
        wanted = call.call_id or new_id("call")
        unique, count = wanted, 1
        while unique in self._ids:
            count += 1
            unique = f"{wanted}-{count}"
        self._ids.add(unique)
        call.told = True
        out.append(ToolCallStart(call.index, unique, call.name))
        if call.native is not None:
            out.append(NativeDelta(call.index, call.native))
        if call.arguments:
            out.append(ToolCallDelta(call.index, "".join(call.arguments)))

    # -- media and sources

    def _heard(self, audio: Mapping[str, Any]) -> None:
        if self._audio_index < 0 and (audio.get("data") or audio.get("transcript")):
            self._kind = "media"
            self._audio_index = self._next_index
            self._next_index += 1
        for key in ("data", "transcript"):
            if audio.get(key):
                self._audio.setdefault(key, []).append(str(audio[key]))
        if audio.get("id"):
            self._audio["id"] = audio["id"]

    def _images(self, images: Iterable[Any], out: list[ModelDelta]) -> None:
        for image in images:
            where = image.get("image_url") if isinstance(image, dict) else None
            url = where.get("url") if isinstance(where, dict) else where
            match = re.match(r"data:([^;,]+);base64,", url) if isinstance(url, str) else None
            if match and isinstance(url, str):
                self._kind = "media"
                out.append(PartAdded(self._next_index, MediaPart(match[1], url[match.end() :])))
                self._next_index += 1

    def _annotation(self, note: Any, out: list[ModelDelta]) -> None:
        where = note.get("url_citation") if isinstance(note, dict) else None
        if isinstance(where, dict):
            index = self._text_index if self._text_index >= 0 else self._part("text")
            self._text_index = index
            citation = Citation(
                url=str(where.get("url") or ""),
                title=str(where.get("title") or ""),
                text=str(where.get("content") or ""),
                start=_count(where.get("start_index")),
                end=_count(where.get("end_index")),
            )
            out.append(CitationDelta(index, citation))

    def _sources(self, chunk: Mapping[str, Any]) -> None:
        """Perplexity's and xAI's lists of addresses, repeated and growing: the last one counts."""
        listed = chunk.get("citations")
        if isinstance(listed, list) and listed:
            self._citations = [str(item.get("url") if isinstance(item, dict) else item) for item in listed]

    # -- usage and end

    def _usage(self, usage: Any, out: list[ModelDelta]) -> None:
        if isinstance(usage, dict):
            tokens = tokens_of(usage)
            if tokens != self._tokens:
                self._tokens = tokens
                out.append(UsageDelta(tokens))

    def _finish(self) -> list[ModelDelta]:
        out: list[ModelDelta] = []
        if self._is_finished:
            return out
        self._is_finished = True
        if not self._named and (self._response_id or self._model):
            out.append(ResponseFacts(self._response_id or None, self._model or None))
        if self._tags is not None:
            for is_thought, piece in self._tags.rest():
                if is_thought:
                    self._thought(piece, "think_tags", out)
                else:
                    self._plain(piece, out)
        for index, details in self._details.items():
            out.append(NativeDelta(index, Native(WIRE, {"from": self._origin, "field": "details", "details": details})))
        for call in self._calls:
            if not call.told:
                self._tell(call, out)
        self._finish_audio(out)
        if self._citations and self._text_index >= 0:
            out += [CitationDelta(self._text_index, Citation(url=url)) for url in dict.fromkeys(self._citations)]
        reason, raw = self._reason(), self._raw
        details_text = self._native_reason if self._native_reason != raw else ""
        out.append(Finished(reason, raw, details_text))
        return out

    def _finish_audio(self, out: list[ModelDelta]) -> None:
        if self._audio_index < 0:
            return
        transcript = "".join(self._audio.get("transcript", ()))
        native = Native(WIRE, {"from": self._origin, "audio": {"id": self._audio.get("id"), "transcript": transcript}})
        data = "".join(self._audio.get("data", ()))
        out.append(PartAdded(self._audio_index, MediaPart("audio/L16", data, transcript[:80], native)))

    def _reason(self) -> str:
        """Our word for why it stopped: decided by what came, as services' own words do not agree."""
        raw, native = (self._raw or "").lower(), self._native_reason.lower()
        if raw in _LENGTH or (native in _LENGTH and not all(_parses(call) for call in self._calls)):
            return "length"
        if raw in ("content_filter", "safety", "sensitive"):
            return "content_filter"
        if raw == "error":
            return "error"
        if self._calls:
            return "tool_calls"
        if self._said_refusal and not self._said_text:
            return "refusal"
        if raw in ("", "stop", "eos", "end_turn", "stop_sequence", "tool_calls", "function_call"):
            return "stop"
        return "other"


def _only_text(chunk: dict[str, Any]) -> str | None:
    """The text of a chunk that holds one choice, one piece of text, and nothing else; None or empty for others."""
    if chunk.get("usage") or not _ODD.isdisjoint(chunk):
        return None
    choices = chunk.get("choices")
    if type(choices) is not list or len(choices) != 1:
        return None
    choice = choices[0]
    delta = choice.get("delta")
    if type(delta) is not dict or len(delta) != 1 or choice.get("finish_reason") is not None:
        return None
    text = delta.get("content")
    return text if type(text) is str and not choice.get("index") and "usage" not in choice else None


_ODD = frozenset(("error", "x_groq", "citations"))


def _then_raise(deltas: Sequence[ModelDelta], error: ProviderError) -> Iterator[ModelDelta]:
    yield from deltas
    raise error


_LENGTH = frozenset(("length", "max_tokens", "model_length", "max_output_tokens", "max_completion_tokens"))


def _parses(call: _Call) -> bool:
    text = "".join(call.arguments).strip()
    if not text:
        return True
    try:
        loads(text)
    except ValueError:
        return False
    return True


def _count(value: Any) -> int | None:
    return value if type(value) is int else None


def tokens_of(usage: Mapping[str, Any]) -> Tokens:
    """Counts with one meaning, from any dialect's usage object.

    Examples
    --------
    >>> tokens_of({"prompt_tokens": 9, "completion_tokens": 2, "prompt_cache_hit_tokens": 8})
    Tokens(input=9, output=2, reasoning=None, cache_read=8, cache_write=None)
    """
    into = usage.get("prompt_tokens_details") or {}
    made = usage.get("completion_tokens_details") or {}
    prompt, output = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
    read = _count(into.get("cached_tokens"))
    if read is None:
        read = _count(usage.get("prompt_cache_hit_tokens"))
    if read is None:
        read = _count(usage.get("cached_tokens"))
    write = _count(into.get("cache_write_tokens"))
    reasoning = _count(made.get("reasoning_tokens"))
    if reasoning is None:
        reasoning = _count(usage.get("reasoning_tokens"))
    total = _count(usage.get("total_tokens"))
    if reasoning and None not in (prompt, output, total) and total == (prompt or 0) + (output or 0) + reasoning:
        output = (output or 0) + reasoning  # xAI counts reasoning beside the answer, all others within it
    return Tokens(input=prompt, output=output, reasoning=reasoning, cache_read=read, cache_write=write)


class _ThinkTags:
    """Splits ``<think>…</think>`` off the beginning of a text that comes in pieces."""

    __slots__ = ("_held", "_state")

    def __init__(self) -> None:
        self._state = "before"  # before, inside, between (the line ends after the tag), after
        self._held = ""

    @property
    def is_over(self) -> bool:
        """True once no tag can come any more."""
        return self._state == "after"

    def split(self, text: str) -> list[tuple[bool, str]]:
        """Pieces with whether they are thought; what may be part of a tag is held back."""
        if self._state == "after":
            return [(False, text)]
        text = self._held + text
        self._held = ""
        if self._state == "between":
            return self._after(text)
        if self._state == "before":
            bare = text.lstrip()
            if "<think>".startswith(bare[:7]) and len(bare) < 7:
                self._held = text
                return []
            if not bare.startswith("<think>"):
                self._state = "after"
                return [(False, text)]
            self._state = "inside"
            text = bare[7:]
        return self._inside(text)

    def _inside(self, text: str) -> list[tuple[bool, str]]:
        thought, tag, answer = text.partition("</think>")
        if tag:
            return ([(True, thought)] if thought else []) + self._after(answer)
        for size in range(min(7, len(text)), 0, -1):
            if "</think>".startswith(text[-size:]):
                self._held, text = text[-size:], text[:-size]
                break
        return [(True, text)] if text else []

    def _after(self, text: str) -> list[tuple[bool, str]]:
        text = text.lstrip("\n")
        self._state = "after" if text else "between"
        return [(False, text)] if text else []

    def rest(self) -> list[tuple[bool, str]]:
        """What was held back when the answer ended."""
        held, self._held = self._held, ""
        return [(self._state == "inside", held)] if held else []
