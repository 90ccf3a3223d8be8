"""The bridge to pydantic-ai's models: asked with its own test doubles, no network."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("pydantic_ai", reason="the extra pydantic-ai is not installed")

from pydantic_ai import exceptions
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.messages import TextPart as TheirText
from pydantic_ai.messages import ThinkingPart as TheirThinking
from pydantic_ai.messages import ToolCallPart as TheirCall
from pydantic_ai.models.function import AgentInfo, DeltaThinkingPart, DeltaToolCall, FunctionModel
from pydantic_ai.models.test import TestModel

from kit_jupyter.errors import (
    AuthFailed,
    ConnectionFailed,
    ContextOverflow,
    Overloaded,
    RateLimited,
    UsageError,
    WireError,
)
from kit_jupyter.messages import (
    Finished,
    MediaPart,
    MessageBuilder,
    ModelDelta,
    Native,
    ServerPart,
    TextDelta,
    TextPart,
    ThinkingPart,
    ToolCallPart,
)
from kit_jupyter.prompt import PromptMessage
from kit_jupyter.provider import Provider
from kit_jupyter.providers.pydantic_ai import WIRE, PydanticAIProvider, to_messages

from .histories import PNG, POINT, WEATHER, answer, call, request, result, said

MODEL = "pydantic-ai/test"
SCOPE = "pydantic-ai/test"


async def build(provider: Provider, *messages: PromptMessage, **facts: Any) -> MessageBuilder:
    builder = MessageBuilder()
    async for delta in provider.stream(request(*messages, model=MODEL, **facts)):
        builder.feed(delta)
    return builder


def saying(*pieces: Any, seen: list[Any] | None = None) -> PydanticAIProvider:
    """A provider whose model streams these pieces; what it was asked goes to `seen`."""

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        if seen is not None:
            seen.append((messages, info))
        for piece in pieces:
            if isinstance(piece, Exception):
                raise piece
            yield piece

    return PydanticAIProvider(FunctionModel(stream_function=stream))


async def test_it_is_a_provider() -> None:
    """The bridge fulfils the seam."""
    assert isinstance(PydanticAIProvider(TestModel()), Provider)


async def test_text_with_usage_and_finish() -> None:
    """Text streams, usage is told, and `Finished` is last."""
    deltas: list[ModelDelta] = []
    async for delta in PydanticAIProvider(TestModel(custom_output_text="héllo 日本")).stream(
        request(said("hi"), model=MODEL)
    ):
        deltas.append(delta)
    builder = MessageBuilder()
    for delta in deltas:
        builder.feed(delta)

    assert builder.text == "héllo 日本"
    assert builder.model == "test"
    assert builder.tokens.input
    assert isinstance(deltas[-1], Finished)
    assert builder.finished == Finished("stop")


async def test_a_call_its_result_and_the_answer() -> None:
    """pydantic-ai's TestModel calls the tool, is told the result, and answers."""
    provider = PydanticAIProvider(TestModel())
    first = await build(provider, said("weather?"), tools=(WEATHER,))
    (part,) = first.parts
    assert isinstance(part, ToolCallPart)

    second = await build(
        provider,
        said("weather?"),
        PromptMessage("assistant", first.parts),
        result(part.call_id, "4 °C"),
        tools=(WEATHER,),
    )

    assert part.name == "weather"
    assert json.loads(part.arguments) == {"city": "a"}
    assert first.finished == Finished("tool_calls")
    assert "4 °C" in second.text


async def test_parallel_calls_in_fragments() -> None:
    """Arguments that come in pieces, interleaved, end up with their call."""
    provider = saying(
        {
            0: DeltaToolCall("weather", '{"ci', tool_call_id="a"),
            1: DeltaToolCall("weather", '{"city"', tool_call_id="b"),
        },
        {0: DeltaToolCall(json_args='ty": "Oslo"}')},
        {1: DeltaToolCall(json_args=': "Rom"}')},
    )

    builder = await build(provider, said("q"), tools=(WEATHER,))

    assert [(p.call_id, p.arguments) for p in builder.parts if isinstance(p, ToolCallPart)] == [
        ("a", '{"city": "Oslo"}'),
        ("b", '{"city": "Rom"}'),
    ]


async def test_thinking_goes_back_to_the_same_model_only() -> None:
    """A signature is kept and handed back unchanged; another model gets the text and the calls only."""
    seen: list[Any] = []
    provider = saying({0: DeltaThinkingPart(content="hm")}, {0: DeltaThinkingPart(signature="c2ln")}, "so", seen=seen)
    builder = await build(provider, said("q"))

    await build(provider, said("q"), PromptMessage("assistant", builder.parts), said("go on"))
    elsewhere = to_messages(
        request(said("q"), PromptMessage("assistant", builder.parts), said("go on"), model=MODEL), "pydantic-ai/other"
    )

    assert [type(part) for part in builder.parts] == [ThinkingPart, TextPart]
    back = seen[1][0][1]
    assert isinstance(back, ModelResponse)
    assert [type(part) for part in back.parts] == [TheirThinking, TheirText]
    thought = back.parts[0]
    assert isinstance(thought, TheirThinking)
    assert (thought.content, thought.signature) == ("hm", "c2ln")
    assert isinstance(elsewhere[1], ModelResponse)
    assert [type(part) for part in elsewhere[1].parts] == [TheirText]


async def test_citations_and_server_tools_are_told_and_go_back() -> None:
    """Where a stretch comes from is shown; a part of the service's own tools is kept, in place."""
    from pydantic_ai.messages import Citation, NativeToolCallPart, WebCitationSource

    from kit_jupyter.providers.pydantic_ai import _Reader

    web = WebCitationSource("https://e.test", title="E", excerpts=["said"])
    response = ModelResponse(
        [
            NativeToolCallPart("web_search", {"query": "q"}, "s1", provider_name="x"),
            TheirText("so", citations=[Citation([web])]),
        ],
        provider_name="x",
    )
    builder = MessageBuilder()

    from pydantic_ai.usage import RequestUsage

    reader = _Reader(request(said("q"), model=MODEL), SCOPE, set())
    for delta in (TextDelta(1, "so"), *reader.end(response, RequestUsage(input_tokens=1, output_tokens=2))):
        builder.feed(delta)
    back = to_messages(request(said("q"), PromptMessage("assistant", builder.parts), said("b"), model=MODEL), SCOPE)

    search, text = builder.parts
    assert isinstance(search, ServerPart)
    assert (search.kind, search.name, search.text) == ("call", "web_search", '{"query": "q"}')
    assert isinstance(text, TextPart)
    assert [(c.url, c.title, c.text) for c in text.citations] == [("https://e.test", "E", "said")]
    assert isinstance(back[1], ModelResponse)
    assert [type(part) for part in back[1].parts] == [NativeToolCallPart, TheirText]
    assert back[1].provider_name == "x"


async def test_structured_output_native_or_through_a_tool() -> None:
    """A model without JSON schemas answers through a tool; the reader sees text either way."""
    through_tool = await build(PydanticAIProvider(TestModel()), said("q"), format=POINT)
    seen: list[Any] = []
    native = PydanticAIProvider(
        FunctionModel(
            stream_function=_json_answer(seen),
            profile={"supports_json_schema_output": True},  # type: ignore[arg-type]
        )
    )
    builder = await build(native, said("q"), format=POINT)

    assert json.loads(through_tool.text) == {"x": 0, "y": 0}
    assert through_tool.finished == Finished("stop")
    assert json.loads(builder.text) == {"x": 1, "y": 2}
    parameters = seen[0].model_request_parameters
    assert parameters.output_mode == "native"
    assert parameters.output_object.json_schema == POINT


def _json_answer(seen: list[Any]) -> Any:
    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        seen.append(info)
        yield '{"x": 1, '
        yield '"y": 2}'

    return stream


async def test_settings_and_tools_are_passed_on() -> None:
    """Limits, temperature, thinking, stop, choice, headers and vendor's own settings arrive."""
    seen: list[Any] = []

    await build(
        saying("ok", seen=seen),
        said("q"),
        system="Be short.",
        tools=(WEATHER,),
        tool_choice="weather",
        max_tokens=9,
        temperature=0.5,
        thinking="low",
        stop=("END",),
        headers={"x-a": "b"},
        extra={"seed": 7},
    )

    messages, info = seen[0]
    assert isinstance(messages[0].parts[0], SystemPromptPart)
    assert messages[0].parts[0].content == "Be short."
    assert [tool.name for tool in info.function_tools] == ["weather"]
    settings = dict(info.model_settings)
    assert settings["max_tokens"] == 9
    assert settings["temperature"] == 0.5
    assert settings["stop_sequences"] == ["END"]
    assert settings["tool_choice"] == ["weather"]
    assert settings["extra_headers"] == {"x-a": "b"}
    assert settings["seed"] == 7


def test_a_history_of_other_makers() -> None:
    """Calls, results, images, steers and refusals are sent; foreign thinking and server parts are not (U36)."""
    foreign = Native("anthropic-messages", {"from": "anthropic/claude", "signature": "SECRET", "block": {}})

    made = to_messages(
        request(
            said("look", MediaPart("image/png", PNG), MediaPart.of_bytes(b"a,b", "text/csv", "t.csv")),
            answer(
                ThinkingPart("hm", foreign),
                ServerPart("call", "search", foreign),
                "I see",
                call("call_0"),
                call("call_0", arguments='{"cut'),
            ),
            result("call_0", "one"),
            result("call_0", "two", MediaPart("image/png", PNG), is_error=True),
            said("In French.", role="system"),
            answer("bon"),
            said("merci"),
            model=MODEL,
            system="S",
        ),
        SCOPE,
    )

    assert [type(message) for message in made] == [
        ModelRequest,
        ModelResponse,
        ModelRequest,
        ModelResponse,
        ModelRequest,
    ]
    look = made[0].parts[1]
    assert isinstance(look, UserPromptPart)
    assert look.content[0] == "look"
    assert isinstance(look.content[1], BinaryContent)
    assert look.content[2] == "t.csv:\na,b"
    text, first, second = made[1].parts
    assert isinstance(text, TheirText)
    assert isinstance(first, TheirCall)
    assert isinstance(second, TheirCall)
    assert [c.tool_call_id for c in (first, second)] == ["call_0", "call_0-2"]
    assert second.args_as_dict() == {"INVALID_JSON": '{"cut'}
    one, two, steer = made[2].parts
    assert isinstance(one, ToolReturnPart)
    assert isinstance(two, ToolReturnPart)
    assert isinstance(steer, UserPromptPart)
    assert (one.tool_call_id, one.content, one.outcome) == ("call_0", "one", "success")
    assert (two.tool_call_id, two.outcome) == ("call_0-2", "failed")
    assert steer.content == "<system-reminder>\nIn French.\n</system-reminder>"
    assert "SECRET" not in repr(made)


def test_an_empty_request_is_refused_here() -> None:
    """No message with content: say so."""
    with pytest.raises(UsageError, match="no message with content"):
        to_messages(request(said(" "), model=MODEL), SCOPE)


async def test_address_and_key_of_one_call_cannot_be_passed() -> None:
    """pydantic-ai owns them: refused rather than ignored, and no key in the text."""
    with pytest.raises(UsageError, match="api_key from pydantic-ai's own settings") as caught:
        await build(PydanticAIProvider(TestModel()), said("q"), api_key="sk-planted")

    assert "planted" not in str(caught.value)


@pytest.mark.parametrize(
    ("error", "cls", "retryable"),
    [
        (exceptions.ModelHTTPError(401, "m", {"error": {"message": "bad key"}}), AuthFailed, False),
        (exceptions.ModelHTTPError(429, "m", {"message": "slow"}, headers={"Retry-After": "7"}), RateLimited, True),
        (exceptions.ModelHTTPError(503, "m", "busy"), Overloaded, True),
        (exceptions.ModelHTTPError(400, "m", {"message": "prompt is too long"}), ContextOverflow, False),
        (exceptions.ModelConnectionError("m", "gone"), ConnectionFailed, True),
        (exceptions.UserError("no such setting"), UsageError, None),
        (exceptions.UnexpectedModelBehavior("odd"), WireError, False),
        (OSError("gone"), ConnectionFailed, True),
        (KeyError("odd"), WireError, False),
    ],
)
async def test_errors_are_ours(error: Exception, cls: type[Exception], retryable: bool | None) -> None:
    """Each error has our class, names provider and model, and keeps its cause."""
    provider = saying("begun", error)

    with pytest.raises(cls) as caught:
        await build(provider, said("q"))

    assert caught.value.__cause__ is error
    assert MODEL in str(caught.value)
    if retryable is not None:
        assert caught.value.retryable is retryable  # type: ignore[attr-defined]
    if isinstance(caught.value, RateLimited):
        assert caught.value.retry_after_seconds == 7


async def test_an_unknown_model_name_says_what_is_wrong() -> None:
    """A name that pydantic-ai does not know is a UsageError with its words."""
    provider = PydanticAIProvider("no-such-vendor:x")

    with pytest.raises(UsageError, match="no-such-vendor"):
        async for _ in provider.stream(request(said("q"), model="pydantic-ai/no-such-vendor:x")):
            pass


async def test_a_name_is_looked_up_once() -> None:
    """`pydantic-ai/test` is its TestModel; the model is kept."""
    provider = PydanticAIProvider("test")

    first = await build(provider, said("q"))
    await build(provider, said("q"))

    assert first.text == "success (no tool calls)"
    assert list(provider._found) == ["test"]


async def test_two_streams_at_once_never_meet() -> None:
    """A provider holds no state of a stream."""

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        part = messages[-1].parts[-1]
        assert isinstance(part, UserPromptPart)
        for letter in str(part.content):
            await asyncio.sleep(0)
            yield letter

    provider = PydanticAIProvider(FunctionModel(stream_function=stream))

    first, second = await asyncio.gather(build(provider, said("aaaa")), build(provider, said("bbbb")))

    assert (first.text, second.text) == ("aaaa", "bbbb")


async def test_closing_the_iterator_ends_the_model() -> None:
    """Closing in the middle closes what it streams from."""
    ended = asyncio.Event()

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        try:
            while True:
                yield "x"
                await asyncio.sleep(0)
        finally:
            ended.set()

    deltas = PydanticAIProvider(FunctionModel(stream_function=stream)).stream(request(said("q"), model=MODEL))
    await anext(deltas)
    await deltas.aclose()  # type: ignore[attr-defined]

    await asyncio.wait_for(ended.wait(), 0.5)


def test_state_is_plain_json() -> None:
    """What is kept of a part survives a session file."""
    builder = asyncio.run(build(saying({0: DeltaThinkingPart(content="hm", signature="s")}, "so"), said("q")))

    kept = [part.native for part in builder.parts if getattr(part, "native", None) is not None]  # type: ignore[union-attr]

    assert kept
    assert all(native is not None and native.wire == WIRE for native in kept)
    assert all(json.loads(json.dumps(native.data)) == native.data for native in kept if native is not None)


def test_nothing_is_imported_before_the_first_answer() -> None:
    """Importing the room and making a provider by name does not import pydantic-ai (budget of the import)."""
    code = (
        "import sys; from kit_jupyter.providers.pydantic_ai import open_model; open_model('bedrock:x'); "
        "print('pydantic_ai' in sys.modules)"
    )

    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert out.stdout.strip() == "False"
