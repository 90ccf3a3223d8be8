"""The real engine with the real demo model: plumbing and shape, never its words. Skipped where either is absent."""

import asyncio
import importlib.util
import json
import os
import signal
import time
import urllib.request
from contextlib import aclosing
from dataclasses import replace

import jsonschema
import pytest

from kit_jupyter.errors import ConnectionFailed, ContextOverflow, UsageError
from kit_jupyter.messages import MessageBuilder, ModelRef, TextPart, ToolSpec
from kit_jupyter.prompt import PromptMessage, ToolResultPart
from kit_jupyter.provider import ModelRequest
from kit_jupyter.providers import local_install, local_models
from kit_jupyter.providers.llama_server import LocalProvider
from kit_jupyter.providers.schema_mode import rewrite

MODEL = "smollm2"

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("xllamacpp") is None,
        reason='the engine is not installed: pip install "kit-jupyter[local]"',
    ),
    pytest.mark.skipif(
        local_models.find(MODEL) is None, reason=f"no weights here: run kit-jupyter local install {MODEL}"
    ),
    pytest.mark.skipif(os.environ.get("KIT_LOCAL_URL", "") != "", reason="KIT_LOCAL_URL names another server"),
    pytest.mark.asyncio(loop_scope="module"),
]

WEATHER = ToolSpec(
    name="get_weather",
    description="Get the weather of a city.",
    schema={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)


@pytest.fixture(scope="module")
def provider():
    """One child for the whole file."""
    made = LocalProvider(MODEL)
    yield made
    for server in made.servers:
        server.stop()


@pytest.fixture(autouse=True)
def _live(monkeypatch):
    for name in ("KIT_REPLAY", "KIT_LLAMA_SERVER", "KIT_LOCAL_MODEL"):
        monkeypatch.delenv(name, raising=False)


def request(*messages, **facts):
    told = tuple(PromptMessage("user", (TextPart(m),)) if isinstance(m, str) else m for m in messages)
    return ModelRequest(model=ModelRef("local", MODEL), messages=told, **facts)


async def answer(provider, asked):
    builder = MessageBuilder()
    async with aclosing(provider.stream(asked)) as deltas:
        async for delta in deltas:
            builder.feed(delta)
    return builder


async def running(provider):
    """Its server, started if this is the first test."""
    if not provider.servers:
        await answer(provider, request("Hi", max_tokens=1))
    return provider.servers[0]


async def is_busy(provider):
    served = await (await running(provider)).served()
    asked = urllib.request.Request(f"{served.address}/slots", headers={"Authorization": f"Bearer {served.key}"})
    slots = await asyncio.to_thread(lambda: json.load(urllib.request.urlopen(asked, timeout=5)))
    return any(slot["is_processing"] for slot in slots)


async def test_streamed_chat_ends_with_text_usage_and_a_reason(provider):
    """The default without a key: words come, in pieces, and end."""
    pieces = 0
    builder = MessageBuilder()
    async with aclosing(provider.stream(request("Write one sentence about the sea.", max_tokens=40))) as deltas:
        async for delta in deltas:
            pieces += 1
            builder.feed(delta)

    assert builder.text.strip()
    assert pieces > 5
    assert builder.finished.reason in {"stop", "length"}
    assert builder.tokens.output > 0
    assert provider.info(MODEL).context_window == 8192


async def test_free_text_is_the_same_twice(provider):
    """Temperature 0 unless asked otherwise, so a notebook can be run again."""
    asked = request("Name a colour.", max_tokens=12)

    # The first may fill the cache; what comes from it twice must agree.
    await answer(provider, asked)

    assert (await answer(provider, asked)).text == (await answer(provider, asked)).text


async def test_schema_answer_validates_and_the_example_helps(provider):
    """Extraction with one example: always of the right shape, and right here (5 of 5 when measured)."""
    schema = {
        "type": "object",
        "properties": {"person": {"type": "string"}, "company": {"type": "string"}, "amount": {"type": "integer"}},
        "required": ["person", "company", "amount"],
        "additionalProperties": False,
    }
    text = (
        "Text: Ben Okafor of Alpha Tools paid 120 euros.\n"
        '{"person": "Ben Okafor", "company": "Alpha Tools", "amount": 120}\n\n'
        "Text: Marta Silva of Northwind Traders paid 350 euros.\n"
    )

    builder = await answer(provider, request(text, format=schema))

    value = json.loads(builder.text)
    jsonschema.validate(value, schema)
    assert value["amount"] == 350


async def test_one_tool_loop_in_schema_mode(provider):
    """The model calls the tool, is shown its result, and then answers: no tool template needed."""
    asked = PromptMessage("user", (TextPart("What's the weather in Madrid?"),))

    call = await answer(provider, request(asked, tools=(WEATHER,)))

    (part,) = call.parts
    assert part.name == "get_weather"
    assert isinstance(json.loads(part.arguments)["city"], str)
    assert call.finished.reason == "tool_calls"
    history = (
        asked,
        PromptMessage("assistant", call.parts),
        PromptMessage("tool", (ToolResultPart(part.call_id, part.name, (TextPart("21 degrees, sunny"),)),)),
    )
    said = await answer(provider, request(*history, tools=(WEATHER,)))
    assert said.text.strip()
    assert not [p for p in said.parts if p.type != "text"]


async def test_the_form_costs_less_than_300_tokens(provider):
    """A long system prompt would be seconds of silence on such a model."""
    tools = tuple(
        ToolSpec(name=f"get_{word}", description=f"Get the {word} of a city.", schema=WEATHER.schema)
        for word in ("weather", "map", "time")
    )
    changed = rewrite(request("Hi", tools=tools, system="You are a helpful assistant. Answer briefly."), tiny=True)
    text = changed.system + "\n".join(m.parts[0].text for m in changed.messages)
    served = await (await running(provider)).served()
    asked = urllib.request.Request(
        f"{served.address}/tokenize",
        data=json.dumps({"content": text}).encode(),
        headers={"Authorization": f"Bearer {served.key}"},
    )
    tokens = await asyncio.to_thread(lambda: json.load(urllib.request.urlopen(asked, timeout=5)))

    assert len(tokens["tokens"]) < 300


async def test_stop_in_the_middle_frees_the_slot_within_a_second(provider):
    """U26: what was asked next does not wait for what was stopped."""
    async with aclosing(provider.stream(request("Tell me a very long story.", max_tokens=4000))) as deltas:
        for _ in range(6):
            await anext(deltas)

    end = time.monotonic() + 1.0
    while busy := await is_busy(provider):
        if time.monotonic() > end:
            break

    assert not busy


async def test_context_error_is_mapped(provider):
    """Compaction waits for this class."""
    with pytest.raises(ContextOverflow):
        await answer(provider, request("word " * 9000))


async def test_prompts_are_not_in_the_log(provider):
    """The child's log can be shown to anyone."""
    await answer(provider, request("My secret is xyzzy-plugh.", max_tokens=5))

    assert "xyzzy" not in provider.servers[0].log_tail(200)


async def test_server_killed_in_mid_answer(provider):
    """A clear error, then one restart, and the next turn works."""
    await answer(provider, request("Hi", max_tokens=2))
    starts = provider.servers[0].starts
    stream = provider.stream(request("Tell me a very long story.", max_tokens=4000))
    for _ in range(6):
        await anext(stream)
    os.kill(provider.servers[0].pid, signal.SIGKILL)

    with pytest.raises(ConnectionFailed, match="in the middle of the answer"):
        async for _ in stream:
            pass

    assert (await answer(provider, request("Hi", max_tokens=5))).text
    assert provider.servers[0].starts == starts + 1


async def test_a_damaged_file_is_named(tmp_path, monkeypatch):
    """The real engine's words, and what to do."""
    path = tmp_path / "half.gguf"
    with local_install.ready(local_models.find(MODEL)).open("rb") as file:
        path.write_bytes(file.read(3_000_000))
    monkeypatch.setenv("KIT_LOCAL_MODEL", str(path))
    provider = LocalProvider()

    with pytest.raises(UsageError, match=r"half\.gguf cannot be loaded: damaged") as caught:
        await answer(provider, replace(request("Hi"), model=ModelRef("local", "default")))

    assert "give another GGUF file" in str(caught.value)
    await provider.close()
