"""A talk begun with one provider goes on with any other (ask U36), also after a stop in the middle (U41)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from kit_jupyter.messages import (
    Assistant,
    MediaPart,
    Message,
    Native,
    Part,
    ServerPart,
    System,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResult,
    User,
    now,
)
from kit_jupyter.prompt import PromptMessage, from_branch
from kit_jupyter.provider import ModelRequest
from kit_jupyter.providers.codec import Codec, Endpoint

from .histories import PNG, WEATHER, request
from .sdk_shapes import misfits
from .wire_cases import CODECS, ROOT, WireCase, codec_of, decode, request_of, whole

# An answer that thinks and calls, of each wire; and the model that goes on.
MAKERS = {
    "anthropic-messages": "chain-thinking-tool-turn1",
    "openai-chat": "openrouter-stream-reasoning-details-tool",
    "openai-responses": "stream-encrypted-reasoning-tool",
    "gemini": "stream-thinking-tool",
}
READERS = {
    "anthropic-messages": ("anthropic", "claude-sonnet-4-5", "https://api.anthropic.com"),
    "openai-chat": ("groq", "llama-4", "https://api.groq.com/openai/v1"),
    "openai-responses": ("openai", "gpt-5.4", "https://api.openai.com/v1"),
    "gemini": ("gemini", "gemini-3-pro", "https://generativelanguage.googleapis.com/v1beta"),
}
HAND_MADE: dict[str, tuple[Part, ...]] = {
    "a hand-made answer of every part": (
        ThinkingPart("hm", Native("some-wire", {"from": "x/y", "signature": "SECRET"})),
        ServerPart("call", "search", Native("some-wire", {"from": "x/y", "item": {"secret": "SECRET"}})),
        TextPart("Let me look."),
        MediaPart("image/png", PNG),
        ToolCallPart("functions.weather:0", "weather", '{"city": "Oslo"}'),
        ToolCallPart("functions.weather:0", "weather", '{"city": "Ro'),
    )
}


def parts_of(maker: str) -> tuple[Part, ...]:
    if maker in HAND_MADE:
        return HAND_MADE[maker]
    folder = ROOT / maker / MAKERS[maker]
    if not folder.is_dir():
        pytest.skip(f"no recorded cases at {ROOT}; set KIT_WIRE_CASES to their folder")
    case = WireCase(maker, MAKERS[maker], folder)
    return decode(case, whole(case.body)).parts


def talk_of(maker: str, *, is_stopped: bool) -> list[Message]:
    """A stored branch: a picture, an answer that thinks and calls, results, a steer, and a word more."""
    parts = parts_of(maker)
    calls = [part for part in parts if isinstance(part, ToolCallPart)]
    assert calls, f"{maker}: the example has no call"
    stored: list[Message] = [
        User(id="u1", time=now(), parts=(TextPart("What is this?"), MediaPart("image/png", PNG))),
        Assistant(id="a1", time=now(), parts=parts),
    ]
    for number, part in enumerate(calls):
        if not is_stopped:
            picture = (MediaPart("image/png", PNG),) if number == 0 else ()
            stored.append(
                ToolResult(
                    id=f"t{number}",
                    time=now(),
                    call_id=part.call_id,
                    name=part.name,
                    parts=(TextPart(f"RESULT-{number}"), *picture),
                )
            )
    stored.append(System(id="s1", time=now(), parts=(TextPart("STEER"),)))
    stored.append(User(id="u2", time=now(), parts=(TextPart("GO ON"),)))
    return stored


def endpoint_and_request(reader: str, messages: tuple[PromptMessage, ...]) -> tuple[Endpoint, ModelRequest]:
    name, model, base = READERS[reader]
    asked = request(*messages, model=f"{name}/{model}", system="SYSTEM", tools=(WEATHER,))
    return Endpoint(name=name, base_url=base, api_key="sk-planted"), asked


def fits_anthropic(body: dict[str, Any]) -> list[str]:
    params = pytest.importorskip("anthropic.types.message_create_params")
    return misfits(body, params.MessageCreateParamsStreaming)


def fits_chat(body: dict[str, Any]) -> list[str]:
    params = pytest.importorskip("openai.types.chat.completion_create_params")
    return misfits(body, params.CompletionCreateParamsStreaming)


def fits_responses(body: dict[str, Any]) -> list[str]:
    params = pytest.importorskip("openai.types.responses.response_create_params")
    return misfits(body, params.ResponseCreateParamsStreaming)


def fits_gemini(body: dict[str, Any]) -> list[str]:
    types = pytest.importorskip("google.genai.types")
    for content in body["contents"]:
        types.Content.model_validate(content)
    for tool in body["tools"]:
        types.Tool.model_validate(tool)
    return []


FITS: dict[str, Callable[[dict[str, Any]], list[str]]] = {
    "anthropic-messages": fits_anthropic,
    "openai-chat": fits_chat,
    "openai-responses": fits_responses,
    "gemini": fits_gemini,
}


@pytest.mark.parametrize("is_stopped", [False, True], ids=["answered", "stopped"])
@pytest.mark.parametrize("reader", list(CODECS))
@pytest.mark.parametrize("maker", [*MAKERS, *HAND_MADE])
def test_a_talk_is_accepted_by_every_other_wire(maker: str, reader: str, is_stopped: bool) -> None:
    """Text, calls with arguments, results, pictures, steer: all there, in the reader's schema; no foreign state."""
    codec: Codec = codec_of(reader)
    messages = from_branch(talk_of(maker, is_stopped=is_stopped))
    endpoint, asked = endpoint_and_request(reader, messages)

    sent = codec.encode(asked, endpoint)

    body = json.loads(sent.body)
    assert FITS[reader](body) == []
    text = sent.body.decode()
    for word in ("What is this?", "STEER", "GO ON", "SYSTEM", PNG):
        assert word in text
    wanted = "RESULT-0" if not is_stopped else "interrupted before it finished"
    assert wanted in text
    for part in parts_of(maker):
        match part:
            case TextPart(said) if said.strip():
                assert json.dumps(said, ensure_ascii=False)[1:-1] in text
            case ToolCallPart(name=name):
                assert name in text
    assert "SECRET" not in text
    assert "sk-planted" not in text
    for secret in _secrets(parts_of(maker)):
        assert secret not in text


def _secrets(parts: tuple[Part, ...]) -> list[str]:
    """Signatures and ciphers of the maker, which no other service may see."""
    found: list[str] = []

    def walk(value: Any, key: str = "") -> None:
        if isinstance(value, dict):
            for name, item in value.items():
                walk(item, name)
        elif isinstance(value, list):
            for item in value:
                walk(item, key)
        elif isinstance(value, str) and len(value) > 60:
            found.append(value)

    for part in parts:
        native = getattr(part, "native", None)
        if isinstance(part, ThinkingPart | ToolCallPart | TextPart) and native is not None:
            walk(native.data)
    visible = {part.text for part in parts if isinstance(part, TextPart | ThinkingPart)}
    return [secret for secret in found if secret not in visible]


@pytest.mark.parametrize("maker", list(MAKERS))
def test_back_at_its_maker_nothing_is_lost(maker: str) -> None:
    """A talk that went elsewhere and comes back still bears its own signatures, unchanged."""
    messages = from_branch(talk_of(maker, is_stopped=False))
    other = next(name for name in CODECS if name != maker)
    mine = request_of(WireCase(maker, MAKERS[maker], ROOT / maker / MAKERS[maker])).model
    home = Endpoint(name=mine.provider, base_url="https://host.invalid/v1")

    endpoint, asked = endpoint_and_request(other, messages)
    codec_of(other).encode(asked, endpoint)
    sent = codec_of(maker).encode(request(*messages, model=str(mine), tools=(WEATHER,)), home).body.decode()

    secrets = _secrets(parts_of(maker))
    assert secrets
    assert any(json.dumps(secret)[1:-1] in sent for secret in secrets)
