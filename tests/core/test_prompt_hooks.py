"""What hooks may put into a request, as the turn carries it out."""

from __future__ import annotations

import inspect
import itertools
import json
from typing import Any

import pytest

from kit_jupyter import PromptEditor, UsageError
from kit_jupyter import events as ev
from kit_jupyter.messages import Assistant, Finished, ResponseFacts, TextDelta, User
from kit_jupyter.provider import ModelInfo
from kit_jupyter.testing import record_events, tool_call

from .helpers import WIRES, area, encoded, texts


async def test_a_hook_appends_messages_to_this_request_only(make: Any) -> None:
    """S101, S102: one line in a hook; the model sees it; stored history does not change; roles are checked."""
    said: list[Exception] = []

    def configure(c: Any) -> None:
        def hook(prompt: PromptEditor) -> None:
            prompt.append("user", "look at the plot")
            prompt.append("assistant", "I see it")
            try:
                prompt.append("system", "no")  # type: ignore[arg-type]
            except UsageError as exc:
                said.append(exc)

        c.add_hook("edit_prompt", hook)

    kit, provider = make("a", "b", configure=configure)
    await kit.prompt("hi")
    await kit.prompt("more")

    assert texts(provider.requests[0]) == [("user", "hi"), ("user", "look at the plot"), ("assistant", "I see it")]
    assert [m.parts[0].text for m in kit.messages] == ["hi", "a", "more", "b"]
    assert "role 'system'" in str(said[0])


@pytest.mark.parametrize("wire", WIRES)
async def test_an_assistants_message_of_a_hook_keeps_the_order_each_service_wants(make: Any, wire: str) -> None:
    """S102: at the head, in a row and between: the words are sent once, and roles alternate where they must."""
    refused: list[str] = []

    def configure(c: Any) -> None:
        def hook(prompt: PromptEditor) -> None:
            call = next((m.message_id for m in prompt.messages if m.role == "assistant"), "")
            if call:
                with pytest.raises(UsageError) as caught:
                    prompt.insert_after(call, "assistant", "in between")
                refused.append(str(caught.value))
            prompt.prepend("assistant", "I remember")
            prompt.append("assistant", "I see")
            prompt.append("assistant", "so it is")
            prompt.append("user", "go on, then")

        c.add_hook("edit_prompt", hook)

    kit, provider = make([tool_call("area", width=1, height=2)], "b", tools=[area], configure=configure)
    await kit.prompt("hi")

    body = encoded(wire, provider.last_request)
    said = [f'"{words}"' for words in ("I remember", "hi", "I see", "so it is", "go on, then")]
    assert [body.count(words) for words in said] == [1] * 5
    assert sorted(said, key=body.index) == said
    assert "between tool call" in refused[0]
    assert "no wire allows that; choose a place before the call or after its last result" in refused[0]
    if wire in ("anthropic", "gemini"):
        messages = json.loads(body)["messages" if wire == "anthropic" else "contents"]
        roles = [message["role"] for message in messages]
        assert roles[0] == "user"
        assert all(one != next_one for one, next_one in itertools.pairwise(roles))


async def test_a_hook_cannot_fake_ids_times_or_metadata(make: Any) -> None:
    """S103-S105: the hook API has no such parameters; the runtime gives an id and notes the author."""
    for name in ("append", "push", "prepend", "append_to", "insert_after", "insert_before"):
        parameters = set(inspect.signature(getattr(PromptEditor, name)).parameters)
        assert not parameters & {"id", "time", "created", "agent", "model", "usage", "request"}, name

    def configure(c: Any) -> None:
        c.add_hook("edit_prompt", lambda prompt: prompt.append("user", "x") and None)
        c.add_hook("edit_prompt", lambda prompt: prompt.append("user", "x") and None)

    kit, provider = make("a", configure=configure)
    await kit.prompt("hi")

    first, second = provider.last_request.messages[1:]
    assert first.message_id != second.message_id
    assert first.message_id.startswith("edit_")
    assert first.origin.startswith("hook:")


async def test_an_edit_that_persists_is_stored_once_as_a_synthetic_message(make: Any) -> None:
    """S101: with `persist` it stays in its place for every later request, marked with its author."""
    once = [True]

    def configure(c: Any) -> None:
        def hook(prompt: PromptEditor) -> None:
            if once:
                once.pop()
                prompt.append("user", "kept", persist=True)

        c.add_hook("edit_prompt", hook)

    kit, provider = make("a", "b", configure=configure)
    await kit.prompt("hi")
    await kit.prompt("more")

    assert [t for _, t in texts(provider.requests[1])] == ["hi", "kept", "a", "more"]
    kept = kit.messages[1]
    assert isinstance(kept, User)
    assert kept.source.startswith("hook:")
    assert kept.id == provider.requests[0].messages[1].message_id


async def test_the_model_that_really_answered_is_stored(make: Any) -> None:
    """S116, S117: after a fallback of the service; the agent's name stays as it was when it was renamed later."""

    class Falls:
        name = "falls"

        def info(self, model_id: str) -> ModelInfo:
            return ModelInfo()

        async def close(self) -> None:
            return None

        async def stream(self, request: Any) -> Any:
            yield ResponseFacts("resp_1", "small-2026")
            yield TextDelta(0, "x")
            yield Finished("stop", "stop")

    kit, _ = make(provider=Falls(), model="falls/large", agent="first")
    with record_events(kit) as log:
        await kit.prompt("hi")
    kit.settings.update({"agent": "second"})

    question, answer = kit.messages
    assert isinstance(answer, Assistant)
    assert str(question.request.model) == "falls/large"
    assert str(answer.run.model) == "falls/small-2026"
    assert (answer.run.agent, answer.run.response_id) == ("first", "resp_1")
    assert log.of(ev.MessageStart)[0].model == "falls/large"


async def test_the_system_text_of_one_turn_is_stored_with_its_question(make: Any) -> None:
    """S113: enough to replay it; it is not in the history of later requests."""
    from kit_jupyter import PromptOptions

    kit, _ = make("a", "b")
    await kit.prompt("hi", options=PromptOptions(system_message="be kind", thinking="low"))
    await kit.prompt("more")

    assert [m.request.system for m in kit.messages if isinstance(m, User)] == ["be kind", None]
    assert [m.request.variant for m in kit.messages if isinstance(m, User)] == ["low", None]


async def test_reference_blocks_follow_the_message_they_belong_to(make: Any) -> None:
    """A guest's block is stored right after the person's words, for prompts and steers; not for our `Continue.`."""
    from kit_jupyter import Extension

    class Guest(Extension):
        def on_user_message(self, ctx: Any, content: str) -> str | None:
            return f"about {content}"

    kit, provider = make("a", "b", "c", "d", extensions=[Guest()])
    with record_events(kit) as log:
        await kit.prompt("one")
        await kit.steer("two")
        await kit.follow_up()
        await kit.follow_up("three")

    blocks = [m.parts[0].text for m in kit.messages if (getattr(m, "source", "") or "").startswith("extension:")]
    assert [b.split("about ")[1].split("\n")[0].split("<")[0].strip() for b in blocks] == ["one", "two", "three"]
    assert len(log.of(ev.ReferenceAdded)) == 3
    assert "about one" in texts(provider.requests[0])[1][1]


async def test_a_guests_block_with_broken_text_does_not_break_the_turn(make: Any) -> None:
    """Found by reading: a lone surrogate in a guest's text could not be stored and failed the turn."""
    from kit_jupyter import Extension

    class Guest(Extension):
        def on_user_message(self, ctx: Any, content: str) -> str | None:
            return "bad \ud800 text"

    kit, _ = make("a", extensions=[Guest()], session=None)

    assert str(await kit.prompt("one")) == "a"
    assert "\ud800" not in kit.messages[1].parts[0].text
    with pytest.raises(UsageError):
        await kit.prompt("\ud800")
