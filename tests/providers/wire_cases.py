"""Recorded exchanges with expectations: where they are, and what a decoded answer is compared by."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kit_jupyter.errors import AuthFailed, KitError, ProviderError
from kit_jupyter.messages import (
    MediaPart,
    MessageBuilder,
    ModelRef,
    Part,
    RefusalPart,
    ServerPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
)
from kit_jupyter.provider import ModelRequest
from kit_jupyter.providers._framing import Answer
from kit_jupyter.providers.codec import Codec, Endpoint

ROOT = Path(os.environ.get("KIT_WIRE_CASES", Path(__file__).resolve().parents[2].parent / "shared" / "wire"))
CODECS = {
    "openai-chat": "kit_jupyter.providers.openai_chat:OpenAIChatCodec",
    "anthropic-messages": "kit_jupyter.providers.anthropic:AnthropicCodec",
    "openai-responses": "kit_jupyter.providers.openai_responses:OpenAIResponsesCodec",
    "gemini": "kit_jupyter.providers.gemini:GeminiCodec",
}


@dataclass(frozen=True)
class WireCase:
    """One recorded exchange."""

    protocol: str
    name: str
    folder: Path = field(repr=False)

    def load(self, file: str) -> Any:
        return json.loads((self.folder / f"{file}.json").read_text("utf-8"))

    @property
    def body(self) -> bytes:
        return (self.folder / self.load("case")["body"]["file"]).read_bytes()

    def __str__(self) -> str:
        return f"{self.protocol}/{self.name}"


def all_cases(*protocols: str) -> list[WireCase]:
    """The cases of these protocols (all, if none is named); empty where the folder is absent."""
    return [
        WireCase(protocol, folder.name, folder)
        for protocol in protocols or CODECS
        if (ROOT / protocol).is_dir()
        for folder in sorted((ROOT / protocol).iterdir())
        if (folder / "expect.json").is_file()
    ]


def codec_of(protocol: str) -> Codec:
    """A codec of this protocol; the one place that knows where it lives."""
    module, _, name = CODECS[protocol].partition(":")
    made: Codec = getattr(importlib.import_module(module), name)()
    return made


@dataclass
class Outcome:
    """What came of an answer: parts and facts, and the error that ended it."""

    builder: MessageBuilder
    error: KitError | None = None
    is_refused: bool = False

    @property
    def parts(self) -> tuple[Part, ...]:
        return self.builder.parts

    def facts(self) -> dict[str, Any]:
        """Everything that must not depend on how the bytes were cut; made-up ids left out."""
        finished = self.builder.finished
        error = self.error
        return {
            "parts": [_without_made_up_id(part) for part in self.parts],
            "finished": None if finished is None else (finished.reason, finished.raw, finished.details),
            "tokens": self.builder.tokens,
            "response": (self.builder.response_id, self.builder.model),
            "error": None if error is None else (type(error), error.message, getattr(error, "details", None)),
        }


def _without_made_up_id(part: Part) -> Part:
    if isinstance(part, ToolCallPart):
        made_up = part.call_id.startswith("call_") and len(part.call_id) == len("call_") + 22
        return ToolCallPart("made-up" if made_up else part.call_id, part.name, part.arguments, part.native)
    return part


def request_of(case: WireCase) -> ModelRequest:
    meta = case.load("case")
    return ModelRequest(model=ModelRef(meta["provider"], meta["model"] or "unknown"), messages=())


def endpoint_of(case: WireCase, quirks: frozenset[str] = frozenset()) -> Endpoint:
    meta = case.load("case")
    return Endpoint(name=meta["provider"], base_url="https://host.invalid/v1", api_key="sk-not-a-key", quirks=quirks)


def decode(case: WireCase, pieces: Iterator[bytes], quirks: frozenset[str] = frozenset()) -> Outcome:
    """What our own framing and decoder make of the body, fed as `pieces`."""
    codec, request, endpoint = codec_of(case.protocol), request_of(case), endpoint_of(case, quirks)
    response = case.load("response")
    builder = MessageBuilder()
    if response["status"] >= 400:
        body = b"".join(pieces)
        return Outcome(builder, codec.error(response["status"], response["headers"], body, request, endpoint), True)
    answer = Answer(codec.decoder(request, endpoint), request, endpoint)
    try:
        for piece in pieces:
            for delta in answer.feed(piece):
                builder.feed(delta)
        for delta in answer.end():
            builder.feed(delta)
    except KitError as exc:
        return Outcome(builder, exc)
    return Outcome(builder)


# ---------------------------------------------------------------- ways to cut


def whole(body: bytes) -> Iterator[bytes]:
    yield body


def bytewise(body: bytes) -> Iterator[bytes]:
    for at in range(len(body)):
        yield body[at : at + 1]


def by_event(body: bytes) -> Iterator[bytes]:
    """One event a read, as most services send them."""
    end = b"\r\n\r\n" if b"\r\n\r\n" in body else b"\n\n"
    pieces = body.split(end)
    yield from (piece + end for piece in pieces[:-1])
    yield pieces[-1]


def randomly(body: bytes, seed: int) -> Iterator[bytes]:
    """Mostly small pieces, with empty ones and cuts inside line ends and characters among them."""
    dice = random.Random(seed)
    at = 0
    while at < len(body):
        size = dice.choice((0, 1, 2, 3, 7, 40, 200, 1500))
        yield body[at : at + size]
        at += size


# ---------------------------------------------------------------- comparison


def differences(case: WireCase, got: Outcome) -> list[str]:
    """What differs from the expectation, a line each; empty when the answer was read right."""
    expect = case.load("expect")
    out: list[str] = []

    def same(what: str, ours: Any, theirs: Any) -> None:
        if ours != theirs:
            out.append(f"{what}: got {_short(ours)}, expected {_short(theirs)}")

    outcome = expect["outcome"]
    if outcome in ("http_error", "stream_error", "body_error"):
        if not isinstance(got.error, ProviderError):
            return [f"outcome: got {got.error!r}, expected {outcome}"]
        _compare_error(case, expect, got, out)
        if outcome == "http_error":
            return out
    elif outcome == "message" and got.error is not None:
        if "error_in_response" not in expect:
            return [f"outcome: got {got.error!r}, expected a message"]
        _compare_error(case, expect, got, out)
    elif outcome == "blocked":
        blocked = got.error is not None or (
            got.builder.finished is not None and got.builder.finished.reason in ("content_filter", "refusal")
        )
        same("blocked", blocked, True)
    same("text", "".join(p.text for p in got.parts if isinstance(p, TextPart)), expect.get("text") or "")
    same("thinking", _thinking_text(case, got, expect), expect.get("thinking") or "")
    refusal = "".join(p.text for p in got.parts if isinstance(p, RefusalPart))
    same("refusal", refusal or None, expect.get("refusal") or None)
    _compare_calls(got, expect, out)
    same("parts", _kinds(_ours(got.parts)), _kinds(_theirs(expect["parts"])))
    _compare_secrets(got, expect, same)
    if outcome == "message":
        finished = got.builder.finished
        same("stop.raw", None if finished is None else finished.raw, _raw(expect["stop"]["raw"]))
        if expect["stop"].get("normalized") is not None and finished is not None:
            wanted = expect["stop"]["normalized"]
            # We decide by the calls, whatever the service's word for the stop (GOTCHAS 41).
            same(
                "stop.normalized",
                finished.reason,
                "tool_calls" if wanted == "stop" and expect["tool_calls"] else wanted,
            )
        same("model", got.builder.model, expect.get("model") or None)
        same("response_id", got.builder.response_id, expect.get("response_id") or None)
    _compare_usage(got, expect, same)
    return out


def _raw(value: Any) -> str | None:
    return None if value is None else str(value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 700 else text[:350] + " … " + text[-300:]


def _thinking_text(case: WireCase, got: Outcome, expect: dict[str, Any]) -> str:
    texts = [p.text for p in got.parts if isinstance(p, ThinkingPart)]
    joined = "".join(texts)
    if joined != (expect.get("thinking") or ""):
        for glue in ("\n\n", "\n"):  # parts of a summary are shown as paragraphs
            if glue.join(texts) == expect.get("thinking"):
                return glue.join(texts)
    return joined


def _compare_error(case: WireCase, expect: dict[str, Any], got: Outcome, out: list[str]) -> None:
    theirs: dict[str, Any] = next(
        expect[key] for key in ("error", "stream_error", "body_error", "error_in_response") if key in expect
    )
    error = got.error
    assert isinstance(error, ProviderError)
    if theirs.get("status") is not None and error.status != theirs["status"]:
        out.append(f"error.status: got {error.status}, expected {theirs['status']}")
    for key in ("type", "code", "param", "failed_generation", "upstream_raw", "reason", "retry_delay"):
        if theirs.get(key) is not None and error.details.get(key) != theirs[key]:
            out.append(f"error.{key}: got {error.details.get(key)!r}, expected {theirs[key]!r}")
    message = theirs.get("message")
    if message and not message.startswith("[{") and error.details.get("message") != message:
        out.append(f"error.message: got {error.details.get('message')!r}, expected {message!r}")
    if message and message.startswith("[{"):  # FastAPI's list: each fault's text is in ours
        for fault in json.loads(message):
            if fault["msg"] not in error.message:
                out.append(f"error.message: {fault['msg']!r} is missing in {error.message!r}")
    if theirs.get("retry_after") and not isinstance(error, AuthFailed):
        asked = float(theirs["retry_after"])
        if error.retry_after_seconds is None or abs(error.retry_after_seconds - asked) > 0.01:
            out.append(f"error.retry_after: got {error.retry_after_seconds}, expected {asked}")
    if theirs.get("x_should_retry") == "false" and error.retryable:
        out.append("error.retryable: the service said not to")


def _compare_calls(got: Outcome, expect: dict[str, Any], out: list[str]) -> None:
    ours = [part for part in got.parts if isinstance(part, ToolCallPart)]
    theirs = expect.get("tool_calls") or []
    # Calls in a form of their own ("custom") are not client-side function calls to the corpus.
    custom = [part for part in expect["parts"] if part["type"] == "custom_tool_call"]
    if len(ours) not in (len(theirs), len(theirs) + len(custom)):
        out.append(f"tool_calls: got {len(ours)}, expected {len(theirs)}")
        return
    if len(ours) > len(theirs):
        names = {part["name"] for part in custom}
        ours = [part for part in ours if part.name not in names]
    seen: set[str] = set()
    for mine, call in zip(ours, theirs, strict=True):
        if call["id"] and mine.call_id != call["id"]:
            out.append(f"tool_call.id: got {mine.call_id!r}, expected {call['id']!r}")
        if not mine.call_id or mine.call_id in seen:
            out.append(f"tool_call.id: {mine.call_id!r} is empty or used twice")
        seen.add(mine.call_id)
        if mine.name != call["name"]:
            out.append(f"tool_call.name: got {mine.name!r}, expected {call['name']!r}")
        try:
            parsed = json.loads(mine.arguments) if mine.arguments.strip() else {}
        except ValueError:
            parsed = None
        wanted = call["args"] if call["args_valid"] else None
        if parsed != wanted:
            out.append(f"tool_call.args: got {mine.arguments!r}, expected {wanted!r}")
        if mine.arguments != (call.get("args_json") or "") and "partial" not in str(call) and not _is_dump(mine, call):
            out.append(f"tool_call.args_json: got {mine.arguments!r}, expected {call.get('args_json')!r}")


def _is_dump(mine: ToolCallPart, call: dict[str, Any]) -> bool:
    """True where the corpus holds a dump of an object (Gemini), so that only its value is comparable."""
    return json.dumps(call["args"], sort_keys=True) == json.dumps(json.loads(mine.arguments or "{}"), sort_keys=True)


def _theirs(parts: list[dict[str, Any]]) -> list[str]:
    out = []
    for part in parts:
        kind = part["type"]
        if kind == "text" and not part.get("text"):
            continue
        out.append({"custom_tool_call": "tool_call", "redacted_thinking": "thinking"}.get(kind, kind))
    return out


def _ours(parts: tuple[Part, ...]) -> list[str]:
    out = []
    for part in parts:
        match part:
            case TextPart(text):
                if text:
                    out.append("text")
            case ThinkingPart():
                out.append("thinking")
            case RefusalPart():
                out.append("refusal")
            case ToolCallPart():
                out.append("tool_call")
            case MediaPart():
                out.append("media")
            case ServerPart(kind):
                out.append(
                    {"call": "server_tool_call", "result": "server_tool_result", "block": "provider_block"}[kind]
                )
    return out


def _kinds(kinds: list[str]) -> list[str]:
    """Order of kinds; a run of one kind counts once, as services and clients cut text differently."""
    return [
        kind for at, kind in enumerate(kinds) if kind not in ("text", "thinking") or at == 0 or kinds[at - 1] != kind
    ]


def _compare_secrets(got: Outcome, expect: dict[str, Any], same: Any) -> None:
    """Each signature or encrypted piece of the answer is kept somewhere in the native state, unchanged."""
    kept = {hashlib.sha256(text.encode()).hexdigest() for part in got.parts for text in _strings(part)}
    for part in expect["parts"]:
        for key in ("signature", "encrypted_content", "data", "thought_signature"):
            value = part.get(key)
            if isinstance(value, dict) and "sha256" in value:
                same(f"{part['type']}.{key} kept", value["sha256"] in kept, True)


def _strings(part: Part) -> Iterator[str]:
    native = getattr(part, "native", None)
    if isinstance(part, MediaPart):
        yield part.data
    if native is not None:
        yield from _strings_in(native.data)


def _strings_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings_in(item)


def _compare_usage(got: Outcome, expect: dict[str, Any], same: Any) -> None:
    tokens = got.builder.tokens
    usage = (expect.get("usage") or {}).get("normalized")
    if usage is None:
        usage = dict.fromkeys(("input_total", "output_total", "cache_read", "cache_write", "reasoning"))
    for ours, theirs in (
        ("input", "input_total"),
        ("output", "output_total"),
        ("cache_read", "cache_read"),
        ("cache_write", "cache_write"),
        ("reasoning", "reasoning"),
    ):
        same(f"usage.{ours}", getattr(tokens, ours), usage[theirs])
