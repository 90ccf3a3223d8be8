"""Histories to encode: made by hand, by hypothesis, and from recorded answers."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from kit_jupyter.errors import KitError
from kit_jupyter.messages import (
    MediaPart,
    ModelDelta,
    ModelRef,
    Native,
    Part,
    RefusalPart,
    ServerPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolSpec,
)
from kit_jupyter.prompt import PromptMessage, ToolResultPart
from kit_jupyter.provider import ModelRequest
from kit_jupyter.providers._framing import Answer
from kit_jupyter.providers.codec import Codec, Decoder, Endpoint, ServerEvent

PNG = "iVBORw0KGgo="
PDF = "JVBERi0xLjQK"
WEATHER = ToolSpec(
    name="weather",
    description="Weather of a city",
    schema={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
POINT = {
    "type": "object",
    "title": "Point",
    "properties": {"x": {"type": "integer", "minimum": 0}, "y": {"type": "integer"}},
    "required": ["x", "y"],
    "additionalProperties": False,
}

_numbers = itertools.count()


def said(*parts: Part | str, role: Any = "user", **facts: Any) -> PromptMessage:
    """A stored message as it is sent."""
    made = tuple(TextPart(part) if isinstance(part, str) else part for part in parts)
    facts.setdefault("message_id", f"msg_{next(_numbers)}")
    return PromptMessage(role, made, **facts)


def answer(*parts: Part | str) -> PromptMessage:
    return said(*parts, role="assistant")


def call(call_id: str = "call_1", name: str = "weather", arguments: str = '{"city": "Oslo"}', **facts: Any) -> Part:
    return ToolCallPart(call_id, name, arguments, **facts)


def result(call_id: str = "call_1", *parts: Part | str, name: str = "weather", is_error: bool = False) -> PromptMessage:
    made = tuple(TextPart(part) if isinstance(part, str) else part for part in parts or ("4 °C",))
    return PromptMessage("tool", (ToolResultPart(call_id, name, made, is_error),), message_id=f"msg_{next(_numbers)}")


def request(*messages: PromptMessage, model: str = "openai/gpt-5", **facts: Any) -> ModelRequest:
    return ModelRequest(model=ModelRef.parse(model), messages=messages, **facts)


def deltas_of(codec: Codec, asked: ModelRequest, endpoint: Endpoint, body: bytes) -> list[ModelDelta]:
    """What our framing and decoder make of a body, `Finished` last."""
    reader = Answer(codec.decoder(asked, endpoint), asked, endpoint)
    return [*reader.feed(body), *reader.end()]


def read(
    codec: Codec, asked: ModelRequest, endpoint: Endpoint, body: bytes
) -> tuple[list[ModelDelta], KitError | None]:
    """The same, with the error that ended it."""
    reader = Answer(codec.decoder(asked, endpoint), asked, endpoint)
    out: list[ModelDelta] = []
    try:
        for delta in itertools.chain(reader.feed(body), reader.end()):
            out.append(delta)
    except KitError as exc:
        return out, exc
    return out, None


def sse(*events: Any) -> bytes:
    """Events as a stream sends them."""
    return b"".join(
        b"data: " + (event if isinstance(event, bytes) else json.dumps(event).encode()) + b"\n\n" for event in events
    )


# ---------------------------------------------------------------- laws of every codec


def calls_of(fn: Callable[[], object]) -> int:
    """How many Python calls `fn` makes."""
    calls = 0

    def count(frame: Any, event: str, arg: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        fn()
    finally:
        sys.setprofile(None)
    return calls


def assert_a_step_costs_what_is_new(codec: Codec, endpoint: Endpoint, model: str) -> None:
    """Python calls per request do not grow with the history."""
    history = [said("begin")]
    costs = []
    for number in range(60):
        history += [answer(call(f"c{number}")), result(f"c{number}")]
        asked = request(*history, model=model)
        costs.append(calls_of(lambda asked=asked: codec.encode(asked, endpoint)))  # type: ignore[misc]
    assert costs[-1] <= costs[9] * 1.1


def assert_a_chunk_costs_few_calls(decoder: Decoder, event: ServerEvent, most: int) -> None:
    """Python calls per chunk: at most `most`, and the same at the 10,000th."""
    for _ in range(2):
        list(decoder.feed(event))
    first = calls_of(lambda: decoder.feed(event))
    for _ in range(10_000):
        decoder.feed(event)
    assert calls_of(lambda: decoder.feed(event)) == first <= most


def assert_each_body_begins_the_next(
    new: Callable[[], Codec],
    endpoint: Endpoint,
    model: str,
    talk: list[tuple[PromptMessage, ...]],
    history_bytes: Callable[[bytes], bytes],
) -> None:
    """The prefix cache law for a talk; and what a codec keeps never changes what is sent."""
    codec, before = new(), b""
    for messages in talk:
        asked = request(*messages, model=model, system="S")
        body = codec.encode(asked, endpoint).body
        assert body == new().encode(asked, endpoint).body
        now = history_bytes(body)
        assert now.startswith(before)
        before = now


# ---------------------------------------------------------------- by hypothesis

Own = Callable[[str], Native]
_text = st.one_of(st.just(""), st.just("  "), st.text(max_size=12), st.sampled_from(["héllo", "日本", '"}]}', "\n\n"]))
_ids = st.sampled_from(["call_0", "call_0", "call_1", "toolu_a", "fn.weather:0", "x" * 90, "ü"])
_arguments = st.sampled_from(["", "{}", '{"city": "Oslo"}', '{"city": "Os', "[1]", '{"n": NaN}'])


def _parts(own: Own) -> st.SearchStrategy[Part]:
    other = Native("another-wire", {"from": "another", "signature": "SECRET", "item": {"type": "x"}})
    return st.one_of(
        st.builds(TextPart, _text),
        st.builds(RefusalPart, _text),
        st.builds(lambda t: ThinkingPart(t, own("thinking")), _text),
        st.builds(lambda t: ThinkingPart(t, other), _text),
        st.builds(lambda: MediaPart("image/png", PNG)),
        st.builds(lambda: ServerPart("block", "thing", own("server"))),
        st.builds(lambda: ServerPart("block", "thing", other)),
        st.builds(lambda i, a: ToolCallPart(i, "weather", a), _ids, _arguments),
    )


@st.composite
def talks(draw: st.DrawFn, own: Own, *, with_system: bool = True) -> list[tuple[PromptMessage, ...]]:
    """Requests of one growing talk, as turns make them: each ends on the user's side, and an answer follows."""
    roles = st.sampled_from(["user", "user", "system"] if with_system else ["user"])
    history: list[PromptMessage] = [said(draw(st.text("ab", min_size=1, max_size=3)))]
    out = [tuple(history)]
    for _ in range(draw(st.integers(1, 6))):
        parts = draw(st.lists(_parts(own), min_size=1, max_size=4))
        history.append(answer(*parts))
        calls = [part for part in parts if isinstance(part, ToolCallPart)]
        for part in draw(st.permutations(calls)):
            media = draw(st.booleans())
            history.append(result(part.call_id, draw(_text), *([MediaPart("image/png", PNG)] if media else [])))
        for role in draw(st.lists(roles, min_size=0 if calls else 1, max_size=2)):
            history.append(said(draw(st.text("xyz", min_size=1, max_size=3)), role=role))
        if not calls and history[-1].role == "system":
            history.append(said("go on"))
        out.append(tuple(history))
    return out
