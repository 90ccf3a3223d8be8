"""The parts of a Kit: who answers, tools, guests, Kits like it, and what can be seen."""

from __future__ import annotations

import asyncio
import copy
import pickle
import time
from types import SimpleNamespace
from typing import Any

import pytest

from kit_jupyter import Extension, ExtensionError, Kit, PromptOptions, UsageError, tool
from kit_jupyter import events as ev
from kit_jupyter.extension import BeforeTurn
from kit_jupyter.handles import Stopping
from kit_jupyter.kit_parts import DEFAULT_SYSTEM, LEAN_SYSTEM
from kit_jupyter.loop import engine
from kit_jupyter.messages import Assistant, ModelRef, TextPart, ToolResult
from kit_jupyter.permissions import Approval, Decision, Rule
from kit_jupyter.provider import ModelInfo
from kit_jupyter.providers import registry
from kit_jupyter.shelf import Shelf
from kit_jupyter.testing import ScriptedProvider, delay, record_events, text, thinking, tool_call

from .helpers import area, encoded, texts, until


class Named(ScriptedProvider):
    """One that was opened by name."""


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Named]:
    """Providers that the registry would open, scripted; choosing takes a while, as a look for a server does."""
    made: list[Named] = []

    def open_provider(ref: ModelRef, **facts: Any) -> Named:
        if ref.provider == "nosuch":
            raise UsageError(f"unknown provider {ref.provider!r}")
        made.append(Named("one", "two", repeat_last=True, name=ref.provider, info=ModelInfo(context_window=77)))
        return made[-1]

    def choose() -> Any:
        time.sleep(0.2)
        return SimpleNamespace(ref=ModelRef("local", "tiny"), why="nothing else was found")

    monkeypatch.setattr(registry, "open_provider", open_provider)
    monkeypatch.setattr(registry, "choose", choose)
    return made


async def test_a_model_is_chosen_once_and_the_engine_is_not_held_up(opened: list[Named]) -> None:
    """With no model set one is chosen, with a reason; another Kit's turn goes on meanwhile."""
    kit = Kit(session="memory")
    assert (kit.model, kit.model_reason, kit.model_info) == ("", "", None)
    other = Kit(provider=ScriptedProvider("quick"), session="memory")

    slow = asyncio.ensure_future(kit.prompt("x"))
    await asyncio.sleep(0.02)
    assert str(await other.prompt("y")) == "quick"
    assert not slow.done()

    assert str(await slow) == "one"
    assert (kit.model, kit.model_reason) == ("local/tiny", "nothing else was found")
    assert kit.model_info is not None
    assert kit.model_info.context_window == 77
    await kit.prompt("again")
    assert len(opened) == 1
    kit.model = "local/tiny"
    assert kit.model_reason == ""  # a person said so
    await kit.aclose()
    assert opened[0].is_closed


async def test_providers_are_kept_by_name_address_and_key(opened: list[Named]) -> None:
    """A call's own address or key opens another one; the same again does not; a turn may name another model."""
    kit = Kit("openai/a", session="memory")
    await kit.prompt("1")
    await kit.prompt("2", options=PromptOptions(model="openai/b"))
    await kit.prompt("3", options=PromptOptions(base_url="http://localhost:1"))
    await kit.prompt("4", options=PromptOptions(base_url="http://localhost:1"))
    await kit.prompt("5", options=PromptOptions(model="anthropic/c"))

    assert [p.name for p in opened] == ["openai", "openai", "anthropic"]
    assert [str(r.model) for r in opened[0].requests] == ["openai/a", "openai/b"]
    await kit.aclose()


async def test_a_kit_like_this_one_borrows_and_does_not_close(opened: list[Named]) -> None:
    """Found by reading: closing a sub-agent closed its parent's provider."""
    kit = Kit("openai/a", session="memory", temperature=0.5)
    await kit.prompt("1")
    twin = kit.sibling(system="other")
    await twin.prompt("2")
    await twin.aclose()

    assert not opened[0].is_closed
    assert len(opened) == 1
    assert opened[0].requests[1].temperature == 0.5
    assert opened[0].requests[1].system.startswith("other")
    await kit.prompt("3")


async def test_a_child_has_its_personas_prompt_and_tools_only(make: Any) -> None:
    """Found by reading: a task for a sub-agent of a session in memory was taken for a setting."""
    kit, provider = make("parent", "child", tools=[area], session=None)
    persona = SimpleNamespace(name="critic", system_prompt="Be strict.", tools=())
    await kit.prompt("x")
    for session in (None, "memory"):
        child = kit.child(persona, task="judge it", session=None if session is None else kit._open_session("memory"))
        provider.script("child")
        await child.prompt("judge")
        assert provider.last_request.system.startswith("Be strict.")
        assert provider.last_request.tools == ()
        assert child.settings.agent == "critic"
    first = kit.child(persona, task="t")
    assert (first.session.header["parent"], first.session.header["task"]) == (kit.session_id, "t")


async def test_tools_come_and_go_between_turns(make: Any) -> None:
    """Added and removed for the next turn; two of one name are refused."""
    kit, provider = make("a", "b", "c")
    kit.add_tool(area)
    with pytest.raises(UsageError, match="two tools are named 'area'"):
        kit.add_tool(area)
    await kit.prompt("1")
    kit.remove_tool("area")
    kit.remove_tool("nothing")
    await kit.prompt("2")

    @tool
    def other() -> str:
        """Other."""
        return "x"

    assert [len(r.tools) for r in provider.requests] == [1, 0]
    with pytest.raises(UsageError):
        Kit(provider=ScriptedProvider(), session="memory", tools=[other, other])


def test_a_guest_that_fails_while_the_kit_is_built_closes_those_before_it() -> None:
    """Construction is all or nothing."""
    closed: list[str] = []

    def configure(c: Any) -> None:
        c.on_close(lambda: closed.append("first"))
        raise ValueError("cannot begin")

    with pytest.raises((ExtensionError, ValueError), match="cannot begin"):
        Kit(provider=ScriptedProvider(), session="memory", configure=configure)

    assert closed == ["first"]


async def test_what_can_be_seen(make: Any) -> None:
    """Properties from any thread: session, history, usage, trifecta, pending questions, the approver."""
    kit, _ = make("a", tools=[area])
    await kit.prompt("x")

    assert kit.history == kit.messages
    assert kit.session_id == kit.session.id
    assert kit.pending_approvals == ()
    assert kit.trifecta is not None
    assert kit.usage.tokens.total == 0
    assert kit.describe([1, 2])
    approver = kit.approver
    kit.approver = approver
    assert kit.approver is approver
    kit.model = ""
    assert kit.model == "scripted/default"
    assert "tools, idle" in repr(kit)
    with pytest.raises(UsageError):
        kit.approve("nothing")
    with pytest.raises(UsageError):
        kit.deny("nothing")


async def test_an_abort_of_nothing_is_over_at_once(make: Any) -> None:
    """Idle: nothing to stop; both ways to wait for it return."""
    kit, _ = make("a")
    stopping = kit.abort()
    assert isinstance(stopping, Stopping)
    await asyncio.wait_for(asyncio.to_thread(stopping.wait, 5), 6)
    await kit.abort()
    assert str(await kit.prompt("x")) == "a"


async def test_retries_of_a_provider_are_told(make: Any) -> None:
    """Retry: attempt, limit, wait, and why."""
    from kit_jupyter.provider import RetryNotice, retry_listener

    class Retries(ScriptedProvider):
        async def stream(self, request: Any) -> Any:
            listener = retry_listener.get()
            assert listener is not None
            listener(RetryNotice(attempt=1, max_attempts=3, delay_seconds=0.5, error="busy", code="overloaded"))
            async for delta in super().stream(request):
                yield delta

    kit, _ = make(provider=Retries("x"))
    with record_events(kit) as log:
        await kit.prompt("hi")

    retry = log.of(ev.Retry)[0]
    assert (retry.attempt, retry.max_attempts, retry.delay_seconds, retry.error) == (1, 3, 0.5, "busy")


async def test_what_a_model_waits_for_is_told(make: Any) -> None:
    """Issue 7: a provider that loads its weights says so within its turn, from any thread, and never after it."""
    from kit_jupyter.provider import status_listener

    class Loads(ScriptedProvider):
        async def stream(self, request: Any) -> Any:
            self.listener = status_listener.get()
            assert self.listener is not None
            await asyncio.to_thread(self.listener, "loading 98 MB")
            await asyncio.to_thread(self.listener, "")
            async for delta in super().stream(request):
                yield delta

    provider = Loads("x")
    kit, _ = make(provider=provider)
    with record_events(kit) as log:
        await kit.prompt("hi")
        provider.listener("too late")
        await asyncio.sleep(0)
        await kit.abort()

    told = [event for event in log.of(ev.Domain) if event.name == "model.status"]
    assert [event.content["text"] for event in told] == ["loading 98 MB", ""]
    assert all(event.turn_id for event in told)


async def test_guests_may_emit_warn_and_fail_without_harm(make: Any) -> None:
    """Domain events, warnings and failures of guests are events with their source."""
    from kit_jupyter import Extension

    class Guest(Extension):
        def bind(self, ctx: Any) -> None:
            self.ctx = ctx

        def on_user_message(self, ctx: Any, content: str) -> str | None:
            ctx.emit("tasks.changed", [1])
            ctx.warn("careful")
            raise ValueError("guest broke")

    kit, _ = make("a", extensions=[Guest()])
    with record_events(kit) as log:
        assert str(await kit.prompt("x")) == "a"

    assert (log.of(ev.Domain)[0].name, log.of(ev.Domain)[0].content) == ("tasks.changed", [1])
    assert "careful" in log.of(ev.Warned)[0].message
    assert "guest broke" in log.of(ev.ErrorEvent)[0].message


async def test_a_closed_kit_turns_away_those_in_line(make: Any) -> None:
    """Nobody waits for ever: prompts in line when the Kit closes are told."""
    kit, provider = make([text("a"), delay(60)])
    first = asyncio.ensure_future(kit.prompt("1"))
    await until(lambda: provider.requests)
    waits = [asyncio.ensure_future(kit.prompt("2", when_busy="queue")) for _ in range(2)]
    await until(lambda: len(kit._claims.waiting) == 2)
    await kit.aclose()

    assert (await first).stop_reason == "aborted"
    for outcome in await asyncio.gather(*waits, return_exceptions=True):
        assert isinstance(outcome, UsageError)


async def test_a_queued_prompt_with_bad_options_passes_the_move_on(make: Any) -> None:
    """One that fails before its turn begins does not block those behind it."""
    kit, provider = make([text("a"), delay(0.05)], "last")
    first = asyncio.ensure_future(kit.prompt("1"))
    await until(lambda: provider.requests)
    bad = asyncio.ensure_future(kit.prompt("2", when_busy="queue", options=PromptOptions(tools=("nope",))))
    good = asyncio.ensure_future(kit.prompt("3", when_busy="queue"))

    await first
    with pytest.raises(UsageError, match="nope"):
        await bad
    assert str(await good) == "last"
    assert texts(provider.last_request)[-1] == ("user", "3")


def test_a_shelf_says_the_name_as_far_as_it_is_known() -> None:
    """Setting, given provider, choice, nothing."""
    assert Shelf(None).name_of("") == ""
    assert Shelf(None).name_of("a/b") == "a/b"
    assert Shelf(ScriptedProvider()).name_of("big") == "scripted/big"
    assert tool_call("x").kind == "call"


def test_a_whole_file_is_read_typed_as_it_is_read_on_touch(tmp_path: Any) -> None:
    """Both ways to read a line give the same entries, unknown ones and fields of tomorrow included."""
    import json

    from kit_jupyter import Session

    kit = Kit(
        provider=ScriptedProvider([text("t"), tool_call("area", width=1, height=1)], "x", "S"),
        session=Session.create(tmp_path),
        tools=[area],
        permissions="auto",
    )
    kit.prompt_sync("hi")
    kit.name = "n"
    kit.close()
    path = kit.session.path
    assert path is not None
    lines = path.read_text().splitlines()
    odd = {**json.loads(lines[1]), "id": "odd", "mood": "good"}
    path.write_text("\n".join([*lines, json.dumps(odd), json.dumps({"type": "new", "id": "n1"})]) + "\n")

    typed, touched = Session.open(path).load_typed(), Session.open(path).entries

    assert [(e.type, e.id, e.parent, e.time, e.message) for e in typed] == [
        (e.type, e.id, e.parent, e.time, e.message) for e in touched
    ]
    assert typed[-2].body["mood"] == "good"
    assert len(Session.open(path).load_typed()) == len(typed)


@pytest.mark.parametrize("make_one", [copy.copy, copy.deepcopy, pickle.dumps, lambda kit: copy.deepcopy({"a": [kit]})])
def test_a_kit_is_not_copied(make: Any, make_one: Any) -> None:
    """Two writers of one session: refused with what to use instead, and the Kit goes on as it was."""
    kit, _ = make("a")

    with pytest.raises(UsageError, match=r"kit\.sibling\(\).*kit\.fork\(\)"):
        make_one(kit)

    assert str(kit.prompt_sync("x")) == "a"


# ---------------------------------------------------------------- who is asked


class Asks(Extension):
    """A guest that asks a person whenever one speaks, and keeps the answers."""

    def __init__(self) -> None:
        self.answers: list[Any] = []

    def bind(self, ctx: Any) -> None:
        self.ctx = ctx

    async def on_user_message(self, ctx: Any, content: str) -> str | None:
        self.answers.append(await ctx.ask("May I look?", action="look", resource="the shelf"))
        return None


class Terminal:
    """A terminal, or a pipe; nothing is read from it."""

    def __init__(self, is_one: bool) -> None:
        self.isatty = lambda: is_one


async def test_a_guest_asks_whoever_is_there(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Kit's own approver, a view that can ask, a terminal; nobody means no, without an event or an entry."""
    guest = Asks()
    kit, _ = make("a", "b", "c", "d", "e", extensions=[guest], permissions="ask", approver=lambda asked: asked.text)
    with record_events(kit) as log:
        await kit.prompt("one")
    assert [e.question for e in log.of(ev.ApprovalAsked)] == ["May I look?"]

    kit.approver = None
    monkeypatch.setattr("sys.stdin", Terminal(is_one=False))
    with record_events(kit) as log:
        await kit.prompt("two")
    assert log.of(ev.ApprovalAsked) == []

    kit.is_attended = True
    kit.subscribe(lambda asked: kit.approve(asked.call_id), ev.ApprovalAsked, inline=True)
    await kit.prompt("three")

    kit.is_attended = False
    monkeypatch.setattr("sys.stdin", Terminal(is_one=True))
    monkeypatch.setattr("builtins.input", lambda prompt="": "n not today")
    await kit.prompt("four")
    monkeypatch.setattr("sys.stdin", None)
    await kit.prompt("five")

    told = [(answer.allowed, answer.by, answer.reason) for answer in guest.answers]
    assert told == [
        (False, "callback", "May I look?"),
        (False, "nobody", ""),
        (True, "", ""),
        (False, "stdin", "not today"),
        (False, "nobody", ""),
    ]
    assert len(kit.session.custom("permission")) == 3


async def test_a_guest_that_asks_between_turns_is_told_that_nobody_is_there(make: Any) -> None:
    """A question belongs to a turn: outside of one there is nothing it could be shown with."""
    guest = Asks()
    told: list[Any] = []

    async def look(said: str, source: str) -> None:
        told.append(await guest.ctx.ask("Now?", action="look"))

    kit, _ = make(extensions=[guest], approver=lambda asked: True, configure=lambda c: c.add_hook("on_input", look))

    assert await kit.apply_input("x") == "x"
    assert [(answer.allowed, answer.by) for answer in told] == [(False, "nobody")]


async def test_an_own_approver_is_told_before_it_is_asked(make: Any) -> None:
    """`expect` comes before the event, so that an answer in the moment of asking finds its question."""
    order: list[str] = []

    class Own:
        is_there = True

        def expect(self, question: Any) -> None:
            order.append(f"expect {question.text}")

        async def ask(self, question: Any) -> Any:
            order.append("ask")
            return Approval(allowed=True)

    guest = Asks()
    kit, _ = make("a", "b", extensions=[guest], permissions="ask", approver=Own())
    kit.subscribe(lambda asked: order.append("shown"), ev.ApprovalAsked, inline=True)
    await kit.prompt("x")

    assert order == ["expect May I look?", "shown", "ask"]
    kit.approver = "nobody"
    await kit.prompt("y")
    assert (guest.answers[-1].allowed, guest.answers[-1].by) == (False, "nobody")


async def test_permissions_can_be_changed_for_the_next_call(make: Any) -> None:
    """Set to what the Kit itself takes; a policy of a person's own need not know all that ours does."""
    outcomes: list[bool] = []
    kit, _ = make(*([tool_call("area", width=1, height=1)], "x") * 3, tools=[area])
    for permissions in ("auto", [Rule("*", "*", "deny")], Own()):
        kit.permissions = permissions
        assert kit.permissions is kit.policy
        await kit.prompt("go")
        outcomes.append(next(m for m in reversed(kit.messages) if isinstance(m, ToolResult)).is_error)

    assert outcomes == [False, True, False]
    assert kit.policy_for_child() is kit.policy
    assert kit._always_asks(kit.tools["area"]) is None
    with pytest.raises(UsageError):
        kit.permissions = "whatever"


class Own:
    """A person's own policy: the least a policy must do."""

    def decide(self, tool: Any, arguments: Any, context: Any) -> Decision:
        return Decision(effect="allow")

    def remember(self, question: Any, approval: Any) -> None:
        return None


# ---------------------------------------------------------------- what is known of models and requests


async def test_what_would_be_sent_is_what_is_sent(make: Any) -> None:
    """`next_request` shows it without sending; then the same words go out."""
    kit, provider = make("one", "two", tools=[area], system="Be kind.")
    await kit.prompt("first")
    shown = kit.next_request("second", parts=[TextPart("attached")])
    assert len(provider.requests) == 1
    bare = kit.next_request()

    await kit.prompt("second", parts=[TextPart("attached")])

    sent = provider.last_request
    assert [(m.role, m.parts) for m in shown.request.messages] == [(m.role, m.parts) for m in sent.messages]
    assert (shown.request.system, shown.request.tools) == (sent.system, sent.tools)
    assert "Be kind." in str(shown)
    assert len(bare.request.messages) == 2


async def test_a_request_under_a_hooks_system_prompt_is_shown_as_it_was(make: Any) -> None:
    """Where the system text is none of the Kit's own, it stands whole, without origins that would be guesses."""
    kit, provider = make(
        "one", configure=lambda c: c.add_hook("before_turn", lambda turn: BeforeTurn(system="You are a pirate."))
    )
    await kit.prompt("hi")

    assert kit.last_request.request is provider.last_request
    assert "You are a pirate." in str(kit.last_request)
    assert DEFAULT_SYSTEM[:40] not in str(kit.last_request)


async def test_a_small_model_gets_the_short_system_prompt(make: Any) -> None:
    """And the view of its request says so."""
    kit, provider = make("one", info=ModelInfo(lean=True))
    assert kit.system == DEFAULT_SYSTEM

    await kit.prompt("hi")

    assert provider.last_request.system == LEAN_SYSTEM
    assert "base" in {row.origin for row in kit.last_request}


async def test_what_is_known_of_the_model_that_answered(opened: list[Named]) -> None:
    """`info_of`: by the provider that is open for it; None while none is."""
    kit = Kit("openai/a", session="memory")
    assert kit.info_of(ModelRef("openai", "a")) is None
    await kit.prompt("x")

    info = kit.info_of(ModelRef("openai", "b"))
    assert info is not None
    assert info.context_window == 77
    assert kit.info_of(ModelRef("anthropic", "c")) is None
    await kit.aclose()


async def test_the_talk_goes_on_with_another_provider(opened: list[Named]) -> None:
    """U36: the first request to provider B has A's turns, calls and results included, and fits B's wire."""
    kit = Kit("openai/a", session="memory", tools=[area], permissions="auto")
    await kit.prompt("hello")
    opened[0]._replies = [[thinking("hm"), text("let me"), tool_call("area", width=2, height=3)], "it is 6"]
    await kit.prompt("how large?")

    with record_events(kit) as log:
        kit.model = "anthropic/b"
    await kit.prompt("and now?")

    assert [p.name for p in opened] == ["openai", "anthropic"]
    assert [(e.model, e.previous) for e in log.of(ev.ModelChanged)] == [("anthropic/b", "openai/a")]
    request = opened[1].last_request
    assert str(request.model) == "anthropic/b"
    assert [m.role for m in request.messages] == ["user", "assistant", "user", "assistant", "tool", "assistant", "user"]
    body = encoded("anthropic", request)
    for piece in ('"hello"', '"tool_use"', '"tool_result"', '"area"', '"it is 6"', '"and now?"'):
        assert piece in body
    assert {str(m.run.model) for m in kit.messages if isinstance(m, Assistant)} == {"openai/a", "anthropic/b"}
    await kit.aclose()


# ---------------------------------------------------------------- the rest of the tree


async def test_going_back_restores_the_very_messages(make: Any) -> None:
    """S31, U43: through the Kit: the other branch is not sent; going back restores the list; the tree shows both."""
    kit, provider = make("a", "b", "c", "d")
    await kit.prompt("one")
    fork = kit.session.leaf
    await kit.prompt("two")
    whole, leaf = kit.messages, kit.session.leaf

    await kit.branch(fork)
    await kit.prompt("other")
    assert [words for _, words in texts(provider.last_request)] == ["one", "a", "other"]
    await kit.branch(leaf)

    assert kit.messages == whole
    assert all(again is before for again, before in zip(kit.messages, whole, strict=True))
    tree = kit.session.tree()
    assert "two" in tree
    assert "other" in tree
    await kit.prompt("on")
    assert [words for _, words in texts(provider.last_request)] == ["one", "a", "two", "b", "on"]


async def test_undo_is_refused_while_tools_may_still_change_things(make: Any) -> None:
    """Idle it says what it put back; while a turn runs it says to stop it first."""
    kit, provider = make([text("x"), delay(60)])
    assert not kit.undo().restored

    task = asyncio.ensure_future(kit.prompt("go"))
    await until(lambda: provider.requests)
    with pytest.raises(UsageError, match="stop it before you undo"):
        kit.undo()
    await kit.abort()
    await task


async def test_nothing_left_behind_needs_no_summary(make: Any) -> None:
    """A branch that goes nowhere asks no model; one that leaves something does."""
    kit, provider = make("a")
    await kit.prompt("one")

    await kit.branch(kit.session.leaf, summarise=True)

    assert len(provider.requests) == 1
    assert [m.role for m in kit.messages] == ["user", "assistant"]


async def test_resuming_the_session_that_is_open_keeps_it_open(make: Any) -> None:
    """Its own session given again: nothing is closed under it."""
    kit, _ = make("a", "b", session=None)
    await kit.prompt("one")

    await kit.resume(kit.session)

    assert str(await kit.prompt("two")) == "b"
    assert [m.role for m in kit.messages] == ["user", "assistant"] * 2


async def test_options_can_be_checked_before_a_turn_is_shown(make: Any) -> None:
    """Front ends ask first: what a turn would be refused for is said before anything is drawn."""
    kit, _ = make("a", tools=[area])
    kit.check_options(None)
    kit.check_options(PromptOptions(tools=("area",), tool_choice="area"))

    with pytest.raises(UsageError, match="there is no tool 'nope'"):
        kit.check_options(PromptOptions(tools=("nope",)))
    with pytest.raises(UsageError, match="tool_choice is auto, none, required or a tool's name"):
        kit.check_options(PromptOptions(tools=(), tool_choice="area"))


def test_a_blocking_verb_on_the_engine_says_what_to_await(make: Any) -> None:
    """It would wait for the thread it stands on."""
    kit, _ = make("a")

    async def on_engine() -> None:
        kit.prompt_sync("x")

    with pytest.raises(UsageError, match="prompt_sync would wait for itself here; await prompt instead"):
        engine.start(on_engine()).future.result(5)


async def test_a_verb_may_be_awaited_on_the_engine(make: Any) -> None:
    """As guests of the async kind do: no hop, no deadlock."""
    kit, _ = make("a")

    assert str(await asyncio.wrap_future(engine.start(kit.prompt("x")).future)) == "a"


async def test_rows_and_the_panel_are_verbs_of_the_kit(make: Any) -> None:
    """`kit.map` asks of each row; `kit.panel` needs a notebook and says so."""
    kit, _ = make("yes", "no")

    table = await asyncio.to_thread(kit.map, [{"n": 1}, {"n": 2}], "is {n} odd?", concurrency=1)

    assert [row.answer for row in table] == ["yes", "no"]
    with pytest.raises(UsageError, match="the panel needs a notebook"):
        kit.panel()


async def test_a_tool_cannot_close_the_kit_that_runs_it(make: Any) -> None:
    """It would wait for its own end; another one may."""
    held: list[Any] = []

    async def shut() -> str:
        """Closes."""
        await held[0].aclose()
        return "closed"

    kit, _ = make([tool_call("shut")], "done", tools=[shut])
    held.append(kit)

    assert str(await asyncio.wait_for(kit.prompt("go"), 10)) == "done"
    told = next(m for m in kit.messages if isinstance(m, ToolResult))
    assert "cannot close its Kit" in told.parts[0].text
