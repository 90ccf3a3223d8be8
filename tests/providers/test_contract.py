"""Every provider keeps the contract that third parties can run: four wires, replay, scripted and bridge.

Another provider joins by one more entry in `MAKERS`.
"""

from __future__ import annotations

import asyncio
import json
import unittest
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kit_jupyter import testing
from kit_jupyter.errors import AuthFailed, Overloaded
from kit_jupyter.messages import Finished, ModelDelta, ModelRef, RefusalPart, TextDelta
from kit_jupyter.provider import ModelRequest, Provider
from kit_jupyter.providers import replay
from kit_jupyter.providers._client import Network
from kit_jupyter.providers._wire import WireProvider
from kit_jupyter.providers.codec import Endpoint
from kit_jupyter.testing_contract import CONTRACT, Check, Make, Scenario, Unsupported

from .conftest import KEY, QUICK, ask
from .contract_services import SERVICES, reply_for
from .loopback import Loopback, Out, Received
from .wire_cases import codec_of


def wire(protocol: str) -> Make:
    """A codec of ours, over real sockets."""

    @asynccontextmanager
    async def make(scenario: Scenario) -> AsyncIterator[Provider]:
        async with Loopback(reply_for(protocol, scenario)) as server:
            yield WireProvider(
                codec_of(protocol), Endpoint(name="demo", base_url=server.url, api_key=KEY), limits=QUICK
            )

    return make


def replayed(protocol: str) -> Make:
    """The same, recorded first and then played without network."""

    @asynccontextmanager
    async def make(scenario: Scenario) -> AsyncIterator[Provider]:
        if scenario.fault is not None:
            raise Unsupported("a broken answer is not kept")

        def provider(url: str, how: str) -> WireProvider:
            endpoint = Endpoint(name="demo", base_url=url, api_key=KEY if how == "record" else "")
            transport = replay.transport_for(how=how)
            return WireProvider(codec_of(protocol), endpoint, transport=transport, limits=QUICK, network=Network())

        from kit_jupyter.testing_contract import TOOLS

        async with Loopback(reply_for(protocol, scenario)) as server:
            live = provider(server.url, "record")
            asked = ask(model=ModelRef("demo", "contract-model"), tools=TOOLS if scenario.calls else ())
            async for _ in live.stream(asked):
                pass
            await live.close()
        replay.reset()
        yield provider("https://service.invalid/v1", "strict")

    return make


@asynccontextmanager
async def scripted(scenario: Scenario) -> AsyncIterator[Provider]:
    """The provider for tests of turns."""
    pieces: list[Any] = []
    if scenario.thinking:
        pieces.append(testing.thinking("".join(scenario.thinking), chunks=2))
    if scenario.text:
        pieces.append(testing.text("".join(scenario.text), chunks=3))
    if scenario.refusal:
        pieces.append(testing.Piece("part", RefusalPart(scenario.refusal)))
    pieces += [testing.tool_call(c.name, call_id=c.call_id, **c.arguments) for c in scenario.calls]
    pieces.append(testing.usage(input=scenario.input_tokens, output=scenario.output_tokens))
    match scenario.fault:
        case "refused" | "error":
            pieces.insert(0, testing.provider_error(AuthFailed("the key was refused", provider="scripted")))
        case "late error":
            pieces.append(testing.provider_error(Overloaded("the engine broke", provider="scripted")))
        case "cut":
            pieces.append(testing.cut())
        case "hang":
            pieces.append(testing.gate(asyncio.Event()))
    pieces.append(testing.finish(scenario.stop))
    yield testing.ScriptedProvider(pieces, repeat_last=True)


@asynccontextmanager
async def bridge(scenario: Scenario) -> AsyncIterator[Provider]:
    """A model of pydantic-ai."""
    function = pytest.importorskip("pydantic_ai.models.function")
    from kit_jupyter.providers.pydantic_ai import PydanticAIProvider

    if scenario.fault in ("refused", "error", "late error", "cut") or scenario.refusal or scenario.stop == "length":
        raise Unsupported("a function cannot say this")
    if not scenario.text and not scenario.calls:
        raise Unsupported("a function must say something")

    async def say(messages: Any, info: Any) -> AsyncIterator[Any]:
        for piece in scenario.thinking:
            yield {0: function.DeltaThinkingPart(content=piece)}
        for piece in scenario.text:
            yield piece
        for at, call in enumerate(scenario.calls, 1):
            yield {at: function.DeltaToolCall(call.name, json.dumps(call.arguments), tool_call_id=call.call_id)}
        if scenario.fault == "hang":
            await asyncio.Event().wait()

    yield PydanticAIProvider(function.FunctionModel(stream_function=say))


@asynccontextmanager
async def local(scenario: Scenario) -> AsyncIterator[Provider]:
    """The local provider, over a running server that knows tools."""
    from kit_jupyter.providers.llama_server import LocalProvider

    says = reply_for("openai-chat", scenario)

    async def reply(request: Received, out: Out) -> None:
        if request.method == "POST":
            await says(request, out)
            return
        facts = {
            "chat_template_caps": {"supports_tool_calls": True, "supports_tools": True},
            "default_generation_settings": {"n_ctx": 8192},
            "model_path": "a-model-of-7B.gguf",
        }
        body = json.dumps(facts if "props" in request.path else {"data": [{"id": "local", "meta": {"size": 5e9}}]})
        await out.head(200, {"content-type": "application/json"})
        await out.chunk(body.encode())
        await out.end()

    async with Loopback(reply) as server:
        provider = LocalProvider("default", base_url=server.url.removesuffix("/v1"), api_key=KEY)
        yield provider
        await provider.close()


MAKERS: dict[str, Make] = {
    **{protocol: wire(protocol) for protocol in SERVICES},
    **{f"replay of {protocol}": replayed(protocol) for protocol in SERVICES},
    "scripted": scripted,
    "local": local,
    "bridge": bridge,
}


@pytest.mark.parametrize("check", CONTRACT, ids=str)
@pytest.mark.parametrize("maker", MAKERS)
async def test_a_provider_keeps_the_contract(maker: str, check: Check, tmp_path: Path) -> None:
    """Each promise of the contract, over each provider."""
    if maker == "bridge" and check.name == "usage":
        pytest.skip("a function's usage is an estimate of pydantic-ai")
    replay.use_file(tmp_path / "recording.json")

    await check.run(MAKERS[maker])


# ---------------------------------------------------------------- the checks can fail


class Bad:
    """A provider that does one thing wrong."""

    name = "bad"

    def __init__(self, how: str) -> None:
        self.how = how

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        text = "Hello, world"
        if self.how != "says other words":
            text += "."
        if self.how == "swallows a cut":
            yield Finished("stop")
            return
        try:
            yield TextDelta(0, text)
            if self.how == "holds on to its line":
                await asyncio.Event().wait()
        finally:
            if self.how == "holds on to its line":
                await asyncio.sleep(0.7)
        if self.how == "goes on after its end":
            yield Finished("stop")
        yield Finished("stop")

    def info(self, model_id: str) -> Any:
        return None

    async def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("how", "name"),
    [
        ("says other words", "text"),
        ("goes on after its end", "text"),
        ("says nothing of usage", "usage"),
        ("swallows a cut", "a cut answer"),
        ("swallows an error", "an error first"),
        ("holds on to its line", "closing stops"),
        ("holds on to its line", "cancelling stops"),
        ("knows nothing", "info without asking"),
    ],
)
async def test_a_broken_promise_is_noticed(how: str, name: str) -> None:
    """A check that cannot fail is none."""

    @asynccontextmanager
    async def make(_: Scenario) -> AsyncIterator[Provider]:
        yield Bad(how)

    check = next(check for check in CONTRACT if check.name == name)
    with pytest.raises(AssertionError):
        await check.run(make)


async def test_what_a_service_cannot_say_is_skipped() -> None:
    """With the reason, and not counted as kept."""

    @asynccontextmanager
    async def make(_: Scenario) -> AsyncIterator[Provider]:
        raise Unsupported("no tools here")
        yield

    with pytest.raises(unittest.SkipTest, match="no tools here"):
        await CONTRACT[0].run(make)
