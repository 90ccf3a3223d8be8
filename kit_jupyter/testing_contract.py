"""What every provider must do, as checks that anybody can run over their own.

Theory of operation
-------------------
A `Scenario` says in plain values what the service answers: parts, usage, why it stopped, and what goes
wrong. You turn it into your service's way of saying it and give back a provider that meets it; each
`Check` asks that provider and looks at its deltas. Checks know nothing of wires.

    import pytest
    from kit_jupyter.testing_contract import CONTRACT, Check, Scenario

    @asynccontextmanager
    async def make(scenario: Scenario):
        async with my_fake_service(scenario) as url:
            yield MyProvider(url)

    @pytest.mark.parametrize("check", CONTRACT, ids=str)
    async def test_contract(check: Check) -> None:
        await check.run(make)

What a service cannot say at all is told by ``raise Unsupported("why")`` in ``make``: the check is skipped.
"""

from __future__ import annotations

import asyncio
import json
import time
import unittest
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field
from typing import Any, Literal

from kit_jupyter.deltas import (
    Finished,
    MessageBuilder,
    ModelDelta,
    RefusalDelta,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    ToolCallStart,
    UsageDelta,
)
from kit_jupyter.errors import ProviderError
from kit_jupyter.messages import ModelRef, RefusalPart, TextPart, ThinkingPart, ToolCallPart, ToolSpec
from kit_jupyter.prompt import PromptMessage
from kit_jupyter.provider import ModelInfo, ModelRequest, Provider

__all__ = ["CONTRACT", "Check", "Make", "Scenario", "ScriptedCall", "Unsupported"]

STOP_SECONDS = 0.5


class Unsupported(unittest.SkipTest):
    """Raised by ``make`` for a scenario that a service cannot say; the check is skipped with this reason."""


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """A tool call the model asks for."""

    call_id: str
    name: str
    arguments: dict[str, Any] = field(hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What the service answers.

    Parameters
    ----------
    thinking, text : tuple of str
        In pieces, as they are streamed; thinking comes first.
    refusal : str
        The model's own words of refusal, in place of text.
    calls : tuple of ScriptedCall
        After the text, all in one answer.
    input_tokens, output_tokens : int
    stop : {"stop", "length", "tool_calls", "refusal"}
    fault : {"cut", "error", "late error", "refused", "hang"} or None
        ``cut``: the bytes end in the middle, after the text. ``error``: an error before anything else, inside a
        good answer where the service can. ``late error``: the same after the text. ``refused``: HTTP 401 or its
        like. ``hang``: nothing more comes after the text.
    cut_characters : bool
        Send the bytes in pieces that end inside characters.
    """

    name: str
    thinking: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    refusal: str = ""
    calls: tuple[ScriptedCall, ...] = ()
    input_tokens: int = 12
    output_tokens: int = 34
    stop: Literal["stop", "length", "tool_calls", "refusal"] = "stop"
    fault: Literal["cut", "error", "late error", "refused", "hang"] | None = None
    cut_characters: bool = False

    def __str__(self) -> str:
        return self.name


Make = Callable[[Scenario], AbstractAsyncContextManager[Provider]]


@dataclass(frozen=True, slots=True)
class Check:
    """One promise, with the scenario it is looked at in."""

    name: str
    scenario: Scenario
    look: Callable[[Provider, Scenario], Awaitable[None]] = field(repr=False)

    def __str__(self) -> str:
        return self.name

    async def run(self, make: Make) -> None:
        """Make the provider and look.

        Raises
        ------
        AssertionError
            If the promise is not kept; the text says how.
        unittest.SkipTest
            If `make` raised `Unsupported`.
        """
        async with make(self.scenario) as provider:
            try:
                await asyncio.wait_for(self.look(provider, self.scenario), 30)
            finally:
                await provider.close()


TOOLS = (
    ToolSpec(
        name="weather",
        description="Weather of a city",
        schema={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    ),
    ToolSpec(name="now", description="The time", schema={"type": "object", "properties": {}}),
)


def _request(provider: Provider, **more: Any) -> ModelRequest:
    values: dict[str, Any] = {
        "model": ModelRef(provider.name, "contract-model"),
        "messages": (PromptMessage("user", (TextPart("Hi"),)),),
    }
    return ModelRequest(**(values | more))


async def _deltas(provider: Provider, **more: Any) -> list[ModelDelta]:
    return [delta async for delta in provider.stream(_request(provider, **more))]


def _built(deltas: list[ModelDelta]) -> MessageBuilder:
    builder = MessageBuilder()
    for delta in deltas:
        builder.feed(delta)
    return builder


def _well_formed(deltas: list[ModelDelta]) -> None:
    """What holds of every good answer."""
    assert deltas, "no delta came"
    assert isinstance(deltas[-1], Finished), f"the last delta is {deltas[-1]!r}, not Finished"
    count = sum(isinstance(delta, Finished) for delta in deltas)
    assert count == 1, f"Finished came {count} times"
    kinds: dict[int, str] = {}
    for delta in deltas:
        kind = _KINDS.get(type(delta))
        index = getattr(delta, "index", None)
        if kind is not None and index is not None:
            assert kinds.setdefault(index, kind) == kind, f"part {index} is {kinds[index]} and {kind}"
    ids = [delta.call_id for delta in deltas if isinstance(delta, ToolCallStart)]
    assert all(ids), "a tool call has no id"
    assert len(set(ids)) == len(ids), f"ids are used twice: {ids}"
    started = {delta.index for delta in deltas if isinstance(delta, ToolCallStart)}
    assert started >= {d.index for d in deltas if isinstance(d, ToolCallDelta)}, "arguments of a call that never began"


_KINDS: dict[type, str] = {
    TextDelta: "text",
    ThinkingDelta: "thinking",
    RefusalDelta: "refusal",
    ToolCallStart: "call",
    ToolCallDelta: "call",
}


# ---------------------------------------------------------------- checks


async def _says(provider: Provider, scenario: Scenario) -> None:
    deltas = await _deltas(provider, tools=TOOLS if scenario.calls else ())
    _well_formed(deltas)
    built = _built(deltas)
    assert built.text == "".join(scenario.text), f"text is {built.text!r}"
    thought = "".join(part.text for part in built.parts if isinstance(part, ThinkingPart))
    assert thought == "".join(scenario.thinking), f"thinking is {thought!r}"
    refusal = "".join(part.text for part in built.parts if isinstance(part, RefusalPart))
    assert refusal == scenario.refusal, f"refusal is {refusal!r}"
    calls = [part for part in built.parts if isinstance(part, ToolCallPart)]
    got = [(part.name, json.loads(part.arguments or "{}")) for part in calls]
    assert got == [(call.name, call.arguments) for call in scenario.calls], f"calls are {got}"
    order = [_ORDER[type(part)] for part in built.parts if type(part) in _ORDER]
    assert order == sorted(order), f"parts are out of order: {[type(part).__name__ for part in built.parts]}"
    finished = built.finished
    assert finished is not None
    assert finished.reason == scenario.stop, f"it stopped for {finished.reason!r}, not {scenario.stop!r}"


_ORDER = {ThinkingPart: 0, TextPart: 1, RefusalPart: 1, ToolCallPart: 2}


async def _counts(provider: Provider, scenario: Scenario) -> None:
    deltas = await _deltas(provider)
    assert any(isinstance(delta, UsageDelta) for delta in deltas), "no usage came"
    tokens = _built(deltas).tokens
    assert tokens.input == scenario.input_tokens, f"input is {tokens.input}"
    assert tokens.output == scenario.output_tokens, f"output is {tokens.output}"


async def _streams(provider: Provider, scenario: Scenario) -> None:
    """Text is handed on while the answer is still coming."""
    deltas = provider.stream(_request(provider))
    async with _closing(deltas):
        async for delta in deltas:
            if isinstance(delta, TextDelta) and delta.text:
                return
    raise AssertionError("no text was handed on before the answer ended")


def _says_who(error: ProviderError) -> None:
    assert error.provider, "the error does not say which provider"
    assert error.message.strip(), "the error says nothing"


async def _fails_after_words(provider: Provider, scenario: Scenario) -> None:
    heard: list[ModelDelta] = []
    try:
        async for delta in provider.stream(_request(provider)):
            heard.append(delta)
    except ProviderError as exc:
        _says_who(exc)
    else:
        finished = [delta for delta in heard if isinstance(delta, Finished)]
        assert not finished, f"a broken answer was called whole: {finished}"
        assert scenario.fault == "cut", "an error was swallowed"
    assert _built(heard).text == "".join(scenario.text), f"of the words before it came {_built(heard).text!r}"


async def _fails(provider: Provider, scenario: Scenario) -> None:
    try:
        heard = await _deltas(provider)
    except ProviderError as exc:
        _says_who(exc)
        return
    raise AssertionError(f"an error was swallowed; deltas are {heard}")


async def _stays_usable(provider: Provider, scenario: Scenario) -> None:
    for _ in range(2):
        await _fails(provider, scenario)


async def _two_at_once(provider: Provider, scenario: Scenario) -> None:
    many = await asyncio.gather(*(_deltas(provider) for _ in range(4)))
    for deltas in many:
        _well_formed(deltas)
        assert _built(deltas).text == "".join(scenario.text), "streams at the same time met"


async def _one_step_at_a_time(provider: Provider, scenario: Scenario) -> None:
    """Two streams read in turns, step by step: nothing of one shows in the other."""
    streams = [provider.stream(_request(provider)) for _ in range(2)]
    heard: list[list[ModelDelta]] = [[], []]
    ended = [False, False]
    while not all(ended):
        for at, stream in enumerate(streams):
            if not ended[at]:
                try:
                    heard[at].append(await anext(stream))
                except StopAsyncIteration:
                    ended[at] = True
    for deltas in heard:
        _well_formed(deltas)
        assert _built(deltas).text == "".join(scenario.text), "streams at the same time met"


async def _stops_when_closed(provider: Provider, scenario: Scenario) -> None:
    deltas = provider.stream(_request(provider))
    async for delta in deltas:
        if isinstance(delta, TextDelta) and delta.text:
            break
    begin = time.monotonic()
    await deltas.aclose()  # type: ignore[attr-defined]
    spent = time.monotonic() - begin
    assert spent < STOP_SECONDS, f"closing took {spent:.2f} s"


async def _stops_when_cancelled(provider: Provider, scenario: Scenario) -> None:
    spoken = asyncio.Event()

    async def read() -> None:
        async for delta in provider.stream(_request(provider)):
            if isinstance(delta, TextDelta):
                spoken.set()

    task = asyncio.ensure_future(read())
    await asyncio.wait_for(spoken.wait(), 10)
    begin = time.monotonic()
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        pass
    else:
        raise AssertionError("a cancelled read ended as if nothing had happened")
    spent = time.monotonic() - begin
    assert spent < STOP_SECONDS, f"the cancel took {spent:.2f} s"


async def _waits_to_be_read(provider: Provider, scenario: Scenario) -> None:
    """It is an async generator: making a stream sends nothing, and an unread one need not be closed."""
    stream = provider.stream(_request(provider))
    assert isinstance(stream, AsyncIterator), f"stream() gives {type(stream).__name__}"
    assert hasattr(stream, "aclose"), "the stream cannot be closed"
    await stream.aclose()


async def _knows_without_asking(provider: Provider, scenario: Scenario) -> None:
    assert provider.name, "it has no name"
    for model in ("contract-model", "", "a/b:c", "日本"):
        info = provider.info(model)
        assert isinstance(info, ModelInfo), f"info() gives {info!r}"
    assert isinstance(provider, Provider), "it does not fulfil the Provider protocol"


def _closing(deltas: AsyncIterator[ModelDelta]) -> AbstractAsyncContextManager[Any]:
    return aclosing(deltas)


def _calls(*names: str) -> tuple[ScriptedCall, ...]:
    made = {
        "weather": ScriptedCall("call_a1", "weather", {"city": 'Zürich \\ "the" 日本'}),
        "now": ScriptedCall("call_b2", "now", {}),
        "weather again": ScriptedCall("call_c3", "weather", {"city": "Oslo"}),
    }
    return tuple(made[name] for name in names)


_HELLO = ("Hel", "lo, ", "world.")
_TEXT = Scenario(name="text", text=_HELLO)

CONTRACT: tuple[Check, ...] = (
    Check("text", _TEXT, _says),
    Check("text without a word", Scenario(name="no text", text=()), _says),
    Check("thinking", Scenario(name="thinking", thinking=("Let me ", "see."), text=_HELLO), _says),
    Check("a tool", Scenario(name="a tool", calls=_calls("weather"), stop="tool_calls"), _says),
    Check("a tool without arguments", Scenario(name="no arguments", calls=_calls("now"), stop="tool_calls"), _says),
    Check(
        "parallel tools after text",
        Scenario(
            name="parallel tools",
            text=("Two ", "things."),
            calls=_calls("weather", "now", "weather again"),
            stop="tool_calls",
        ),
        _says,
    ),
    Check("usage", _TEXT, _counts),
    Check("length", Scenario(name="length", text=("Once upon",), stop="length"), _says),
    Check("refusal", Scenario(name="refusal", refusal="I cannot help with that.", stop="refusal"), _says),
    Check(
        "unicode cut inside characters",
        Scenario(name="unicode", text=("héllo ", "日本語", " 👩‍👩‍👧 ", "\u2028Ω"), cut_characters=True),
        _says,
    ),
    Check("text comes while it is written", Scenario(name="hang", text=("Hi",), fault="hang"), _streams),
    Check("a cut answer", Scenario(name="cut", text=_HELLO, fault="cut"), _fails_after_words),
    Check("an error first", Scenario(name="error", fault="error"), _fails),
    Check("an error after words", Scenario(name="late error", text=_HELLO, fault="late error"), _fails_after_words),
    Check("a refused key", Scenario(name="refused", fault="refused"), _fails),
    Check("usable after an error", Scenario(name="refused", fault="refused"), _stays_usable),
    Check("streams at once", _TEXT, _two_at_once),
    Check("streams in turns", _TEXT, _one_step_at_a_time),
    Check("closing stops", Scenario(name="hang", text=("Hi",), fault="hang"), _stops_when_closed),
    Check("cancelling stops", Scenario(name="hang", text=("Hi",), fault="hang"), _stops_when_cancelled),
    Check("nothing before it is read", _TEXT, _waits_to_be_read),
    Check("info without asking", _TEXT, _knows_without_asking),
)
"""All checks, to be given to ``pytest.mark.parametrize``."""
