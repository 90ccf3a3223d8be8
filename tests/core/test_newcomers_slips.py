"""What a newcomer gets wrong at first is said plainly, or works."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kit_jupyter import Kit, PromptOptions
from kit_jupyter.errors import SessionError, UsageError, WireError
from kit_jupyter.events import ApprovalAsked, ApprovalGiven
from kit_jupyter.messages import Finished, TextDelta
from kit_jupyter.provider import ModelInfo, ModelRequest
from kit_jupyter.testing import ScriptedProvider, text, tool_call
from kit_jupyter.tool import tool


@tool(approve="ask")
def area(width: int) -> int:
    """Area of a square."""
    return width * width


def scripted(*replies: Any, **more: Any) -> Kit:
    return Kit(provider=ScriptedProvider(*replies), session="memory", **more)


@pytest.mark.parametrize(("answer", "is_error"), [("approve", False), ("deny", True)])
async def test_an_observer_answers_in_a_script(answer: str, is_error: bool) -> None:
    """approver="events": whoever observes ApprovalAsked is the person; no terminal, no view (U69)."""
    kit = scripted([tool_call("area", width=7)], [text("done")], tools=area, approver="events")
    given: list[str] = []
    kit.subscribe(lambda e: getattr(kit, answer)(e.call_id), ApprovalAsked)
    kit.subscribe(lambda e: given.append(e.effect), ApprovalGiven, inline=True)

    await kit.prompt("how large?")

    (result,) = [m for m in kit.history if m.role == "tool"]
    assert result.is_error is is_error  # type: ignore[union-attr]
    assert given == ["deny" if is_error else "allow"]
    assert not kit.pending_approvals


@pytest.mark.parametrize(
    ("fn", "types", "words"),
    [
        (None, (), "function of one event, got None"),
        (print, ("ApprovalAsked",), "without quotes"),
        (print, (int,), "by their classes"),
        (print, (ApprovalAsked, "Nothing"), "got 'Nothing'"),
    ],
)
def test_a_wrong_subscription_is_refused(fn: Any, types: tuple[Any, ...], words: str) -> None:
    """An observer that would never be called, or fail at each event, is said at once."""
    with pytest.raises(UsageError, match=words):
        scripted([text("x")]).subscribe(fn, *types)


def test_one_tool_needs_no_list() -> None:
    """tools=f is tools=[f], and what is there can be read."""
    kit = scripted([text("x")], tools=area, max_steps=7)

    assert list(kit.tools) == ["area"]
    assert repr(kit.tools) == "<Toolbox: area>"
    assert "max_steps=7" in repr(kit.settings)
    assert "temperature" not in repr(kit.settings)


def test_a_session_to_be_made_is_told_how() -> None:
    """A name that is not here yet."""
    with pytest.raises(SessionError, match=r"kit\.name = 'study-that-is-not-here'"):
        Kit(provider=ScriptedProvider(), session="study-that-is-not-here")


def test_an_option_of_a_prompt_is_told_as_one() -> None:
    """base_url and the like go with a prompt."""
    with pytest.raises(UsageError, match=r"option of a prompt: .*PromptOptions\(base_url="):
        Kit(provider=ScriptedProvider(), session="memory", base_url="http://127.0.0.1:1")
    assert PromptOptions(base_url="http://127.0.0.1:1").base_url


async def test_a_template_without_a_mark_is_refused() -> None:
    """Else every row asks the same."""
    kit = scripted([text("x")], [text("y")])
    with pytest.raises(UsageError, match=r"no mark.*\{text\}"):
        await kit.map(["a", "b"], "Is it good?")


@pytest.mark.parametrize(
    ("given", "near"), [("sesion", "session"), ("tool", "tools"), ("extension", "extensions"), ("aprover", "approver")]
)
def test_a_misspelt_argument_of_a_kit_is_told(given: str, near: str) -> None:
    """The arguments count beside the settings."""
    with pytest.raises(UsageError, match=f"unknown setting '{given}'; did you mean '{near}'"):
        scripted([text("x")], **{given: ()})


def test_what_a_kit_takes_is_listed() -> None:
    """Where nothing is near, all of it."""
    with pytest.raises(UsageError) as told:
        scripted([text("x")], zebra=1)
    assert {"provider", "tools", "extensions", "session", "model", "permissions"} <= set(
        told.value.message.split("known: ")[1].split(", ")
    )


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (ScriptedProvider("x"), r"model's name, got ScriptedProvider; write Kit\(provider=ScriptedProvider\("),
        (ScriptedProvider, r"write Kit\(provider=ScriptedProvider\("),
        (3, "such as 'openai/.*', got int"),
    ],
)
def test_a_provider_in_the_place_of_the_model_is_told(model: Any, words: str) -> None:
    """The first argument is a name."""
    with pytest.raises(UsageError, match=words):
        Kit(model, session="memory")


async def test_an_option_given_to_a_verb_is_told_as_one() -> None:
    """temperature= and the like go with PromptOptions, or with the Kit; as a TypeError, too, and nothing is asked."""
    kit = scripted([text("x")])
    words = r"'temperature' is no argument of {}, but an option: .*PromptOptions\(temperature=.*or Kit\(temperature="
    with pytest.raises(UsageError, match=words.format("prompt")):
        kit.prompt_sync("x", temperature=0.2)
    with pytest.raises(TypeError, match=words.format("prompt")):
        await kit.prompt("x", temperature=0.2)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=words.format("start")):
        kit.start("x", temperature=0.2)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=words.format("stream")):
        async for _ in kit.stream("x", temperature=0.2):  # type: ignore[arg-type]
            pass
    with pytest.raises(UsageError, match=r"'part' is no argument of prompt; did you mean 'parts'\?"):
        kit.prompt_sync("x", part=[])
    with pytest.raises(UsageError, match="'zebra' is no argument of prompt; known: options, parts"):
        kit.prompt_sync("x", zebra=1)
    assert kit.messages == ()


class Echo:
    """A provider of one's own, that is right."""

    name = "echo"

    async def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        yield TextDelta(0, "hello")
        yield Finished("stop")

    def info(self, model_id: str) -> Any:
        return ModelInfo()

    async def close(self) -> None:
        pass


async def _no_generator(self: Any, request: Any) -> Any:
    return [TextDelta(0, "hello")]


def _sync(self: Any, request: Any) -> Any:
    yield TextDelta(0, "hello")


@pytest.mark.parametrize(
    ("provider", "words"),
    [
        (Echo, r"write Echo\(\) instead of Echo"),
        ("openai", r"a name stands first: Kit\('openai/MODEL'\)"),
        (type("Mine", (Echo,), {"stream": None})(), r"Mine is no provider: it has no stream\(\);"),
        (type("Mine", (Echo,), {"info": None})(), r"Mine is no provider: it has no info\(\);"),
        (type("Mine", (Echo,), {"close": None})(), r"Mine is no provider: it has no close\(\);"),
        (type("Mine", (Echo,), {"name": None, "close": None})(), r"it has no name, a str .*, no close\(\);"),
        (type("Mine", (Echo,), {"stream": _no_generator})(), "Mine.stream is no async generator: it must yield"),
        (type("Mine", (Echo,), {"stream": _sync})(), "Mine.stream is no async generator: write async def"),
    ],
)
def test_what_is_no_provider_is_told_at_once(provider: Any, words: str) -> None:
    """Before anything is asked."""
    with pytest.raises(UsageError, match=words):
        Kit(provider=provider, session="memory")


def _yielding(*pieces: Any) -> Any:
    async def stream(self: Any, request: Any) -> AsyncIterator[Any]:
        for piece in pieces:
            yield piece

    return stream


@pytest.mark.parametrize(
    ("methods", "kind", "words"),
    [
        ({"stream": _yielding("hello")}, UsageError, r"Mine.stream yielded str 'hello'; .*TextDelta\(0, 'hello'\)"),
        ({"stream": _yielding(None)}, UsageError, "Mine.stream yielded None; it yields deltas"),
        (
            {"stream": _yielding(TextDelta(0, "hello"))},
            WireError,
            r"Mine.stream ended without Finished.*Finished\('stop'",
        ),
        ({"stream": lambda self, request: [1]}, UsageError, r"Mine.stream returned list \[1\]; .*async generator"),
        ({"info": lambda self, model_id: None}, UsageError, "Mine.info returned None, not a ModelInfo"),
    ],
)
def test_what_is_wrong_with_a_provider_is_told_by_its_name(methods: Any, kind: Any, words: str) -> None:
    """Trying again would not help who writes it."""
    kit = Kit(provider=type("Mine", (Echo,), methods)(), session="memory")
    with pytest.raises(kind, match=words):
        kit.prompt_sync("x")


async def test_a_provider_of_ones_own_is_closed_with_its_turn() -> None:
    """What looks at the deltas closes the stream as soon as the turn stops."""
    began, closed = asyncio.Event(), asyncio.Event()
    here = asyncio.get_running_loop()

    class Slow(Echo):
        async def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
            try:
                yield TextDelta(0, "hello")
                here.call_soon_threadsafe(began.set)
                await asyncio.sleep(60)
            finally:
                here.call_soon_threadsafe(closed.set)

    provider = Slow()
    kit = Kit(provider=provider, session="memory")
    turn = asyncio.ensure_future(kit.prompt("x"))
    await asyncio.wait_for(began.wait(), 10)
    kit.abort()

    assert (await turn).stop_reason == "aborted"
    await asyncio.wait_for(closed.wait(), 10)
    assert kit._provider_given is provider
    assert str(Kit(provider=Echo(), session="memory").prompt_sync("x")) == "hello"


@pytest.mark.parametrize("reply", [["hi"], [["hi"]], [text("hi"), "there"], 3, None, b"hi", {"text": "hi"}])
def test_how_a_scripted_reply_is_written_is_told(reply: Any) -> None:
    """At once, not when the model is called; what a function gives is looked at then."""
    words = r"a reply is a str, a list of pieces such as \[text\('hi'\), tool_call"
    with pytest.raises(UsageError, match=words):
        ScriptedProvider(reply)
    with pytest.raises(UsageError, match=words):
        ScriptedProvider().script("fine", reply)
    with pytest.raises(UsageError, match=words):
        scripted(lambda request: reply).prompt_sync("x")
    with pytest.raises(UsageError, match=words):
        scripted(lambda request: text).prompt_sync("x")


def test_scripted_replies_of_every_form_are_said() -> None:
    """A str, a piece, pieces, a function of the request, and the last one for ever."""
    kit = scripted("a", text("b"), (text("c"),), lambda request: request.messages[-1].parts[0].text)

    assert [str(kit.prompt_sync("d")) for _ in range(4)] == ["a", "b", "c", "d"]
    for_ever = Kit(provider=ScriptedProvider("again", repeat_last=True), session="memory")
    assert [str(for_ever.prompt_sync("x")) for _ in range(3)] == ["again"] * 3
