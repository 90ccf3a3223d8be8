"""Guests at their worst: each hook, each way to be bad, in a live Kit that goes on."""

from __future__ import annotations

import asyncio
import threading
from unittest.mock import MagicMock

import pytest

from kit_jupyter import Kit, Session
from kit_jupyter.errors import ExtensionError, UsageError
from kit_jupyter.events import ApprovalAsked, ApprovalGiven, ErrorEvent
from kit_jupyter.extension import HOOKS, Extension
from kit_jupyter.messages import MediaPart, TextPart
from kit_jupyter.permissions import Approval, CallbackApprover
from kit_jupyter.prompt import ToolResultPart
from kit_jupyter.testing import ScriptedProvider, record_events, text, tool_call
from kit_jupyter.tool import tool

RUN_TIME = [row.name for row in HOOKS if row.name not in ("configure", "bind")]
OBSERVERS = [row.name for row in HOOKS if row.returns == "-"]  # what they return is nobody's business
SYNC_ONLY = ("system_prompt_snippets", "trifecta_contribution")
WAYS = [
    "raises",
    "hangs",
    "hangs async",
    "wrong type",
    "exits",
    "recurses",
    "raises what cannot be shown",
    "returns what cannot be shown",
]


class Unshowable(Exception):
    def __str__(self):
        raise ValueError("no text")


class Unreprable:
    def __repr__(self):
        raise ValueError("no look")


def bad(way, release):
    """A hook that is bad in one way."""

    def sync(*args):
        match way:
            case "raises":
                raise ValueError("guest's fault")
            case "hangs":
                release.wait(30)
            case "exits":
                raise SystemExit(3)
            case "recurses":
                return sync(*args)
            case "raises what cannot be shown":
                raise Unshowable
            case "returns what cannot be shown":
                return Unreprable()
        return 4711

    async def hangs(*args):
        await asyncio.Event().wait()

    return hangs if way == "hangs async" else sync


@tool
def note(words: str) -> str:
    """Note words."""
    return f"noted {words}"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("hook", RUN_TIME)
async def test_a_bad_hook_is_reported_and_the_kit_goes_on(hook, way):
    """S229, bad input: every hook of the table, every way: an event names it, all verbs work, gates block."""
    if hook in SYNC_ONLY and way == "hangs async":
        pytest.skip("cannot be async")
    returns = "type" in way or "returns" in way
    release = threading.Event()
    wrong = bad(way, release)

    class Guest(Extension):
        hook_timeout_seconds = 0.3

    setattr(Guest, hook, staticmethod(wrong))
    long = "x" * 4000
    provider = ScriptedProvider([text(long)], [tool_call("note", words="w")], [text("done")], repeat_last=True)
    kit = Kit(provider=provider, session="memory", extensions=[Guest()], tools=[note], permissions="auto")
    try:
        with record_events(kit) as log:
            assert await kit.apply_input("hi", "cell") == "hi"
            await kit.prompt("hi")
            result = await kit.prompt("use the tool")
            if hook == "before_compact":
                await kit.compact()
            elif hook == "trifecta_contribution" and returns:
                with pytest.raises(ExtensionError, match=r"trifecta_contribution returned (int|Unreprable)"):
                    _ = kit.trifecta
            else:
                assert kit.trifecta.verdict
            await kit.clear_conversation()
            await kit.prompt("anew")
    finally:
        release.set()

    assert str(result) == "done"
    results = [m for request in provider.requests for m in request.messages if m.role == "tool"]
    assert results[0].parts[0].is_error is (hook == "before_tool")
    if not (returns and hook in ("trifecta_contribution", *OBSERVERS)):
        assert [e for e in log.of(ErrorEvent) if hook in e.message and e.source == "Guest"]
    kit.close()


# ---------------------------------------------------------------- edits at their worst


class Edits(Extension):
    """Edits the first request only."""

    def __init__(self, edit):
        self._edit = edit

    def edit_prompt(self, editor):
        edit, self._edit = self._edit, lambda editor: None
        edit(editor)


@pytest.mark.parametrize("persist", [False, True])
async def test_an_edit_with_text_that_is_no_unicode_is_sent_and_stored(tmp_path, monkeypatch, persist):
    """Bad input: half a character, as a cut string has it: replaced, so that neither file nor wire fails."""
    monkeypatch.setenv("KIT_DATA_DIR", str(tmp_path))
    provider = ScriptedProvider("a", "b")
    kit = Kit(provider=provider, extensions=[Edits(lambda e: e.append("user", "cut \ud83d", persist=persist))])

    await kit.prompt("hi")
    await kit.prompt("ho")
    path = kit.session.path
    await kit.aclose()

    assert provider.requests[0].messages[-1].parts[0].text == "cut \ufffd"
    stored = [m.parts[0].text for m in Session.open(path).messages()]
    assert stored == (["hi", "cut \ufffd", "a", "ho", "b"] if persist else ["hi", "a", "ho", "b"])


@pytest.mark.parametrize(
    "edit",
    [
        lambda e: e.append("user", MediaPart("image/png", "no base64!"), persist=True),
        lambda e: e.insert_after("no-such-id", "user", "x"),
        lambda e: e.append("user", [ToolResultPart("c9", "add", (TextPart("x"),))]),
        lambda e: e.append("system", "x"),
        lambda e: e.messages[0].parts.append(TextPart("x")),
        lambda e: setattr(e, "messages", ()),
        lambda e: setattr(e.messages[0], "parts", ()),
        lambda e: [e.append("user", "x"), e.append_to("last-assistant", "y")],
        lambda e: e._messages.clear() or e.append("user", "x"),
    ],
    ids=["media", "id", "unpaired", "role", "view", "list", "frozen", "half way", "inside"],
)
async def test_a_bad_edit_leaves_request_and_session_whole(edit):
    """Bad input: reported with the guest's name; nothing of the hook's edits is sent or stored."""
    provider = ScriptedProvider("a", "b")
    kit = Kit(provider=provider, session="memory", extensions=[Edits(edit)])

    with record_events(kit) as log:
        await kit.prompt("hi")
        await kit.prompt("ho")

    if edit.__code__.co_names[0] != "_messages":
        assert [m.parts[0].text for m in provider.requests[0].messages] == ["hi"]
        assert [e for e in log.of(ErrorEvent) if "Edits.edit_prompt failed" in e.message]
    assert [m.parts[0].text for m in kit.messages] == ["hi", "a", "ho", "b"]
    assert [m.parts[0].text for m in provider.requests[1].messages] == ["hi", "a", "ho"]


async def test_a_long_talk_of_edits_does_not_grow_a_request():
    """Transient edits of two hundred requests leave nothing behind."""

    class Always(Extension):
        def edit_prompt(self, editor):
            editor.append("user", "only now")
            editor.append_to("last-user", "and this")
            editor.insert_before(editor.messages[0].message_id, "user", "first")

    provider = ScriptedProvider("ok", repeat_last=True)
    kit = Kit(provider=provider, session="memory", extensions=[Always()])
    for _ in range(200):
        await kit.prompt("hi")

    assert len(provider.last_request.messages) == 199 * 2 + 1 + 2
    assert len(kit.messages) == 400


# ---------------------------------------------------------------- construction at its worst


def build(*extensions, **more):
    return Kit(provider=ScriptedProvider("ok"), session="memory", extensions=extensions, **more)


def test_extensions_that_add_extensions_without_end_fail_and_close():
    """Bad input: each adds another; the error is an ExtensionError, what was opened is closed."""
    closed = []

    class More(Extension):
        def configure(self, c):
            c.on_close(lambda: closed.append(1))
            c.add_extension(More())

    with pytest.raises(ExtensionError, match="More"):
        build(More())
    assert len(closed) > 10


@pytest.mark.parametrize("what", ["name", "hook_timeout_seconds", "before_tool", "on_user_message"])
def test_an_attribute_that_raises_is_the_guests_fault(what):
    """Bad input: a property that fails is an ExtensionError that names guest and attribute; closers run."""
    closed = []

    class Opens(Extension):
        def configure(self, c):
            c.on_close(lambda: closed.append(1))

    class Guest(Extension):
        pass

    setattr(Guest, what, property(lambda self: 1 / 0))

    with pytest.raises(ExtensionError, match=f"Guest.*{what}"):
        build(Opens(), Guest())
    assert closed == [1]


@pytest.mark.parametrize("limit", ["ten", -1, 0, float("nan"), True, [10]])
def test_a_time_limit_that_is_none_is_told_when_it_is_added(limit):
    """Bad input: of a class, and of add_hook; not at the first call, hours later."""

    class Guest(Extension):
        hook_timeout_seconds = limit

    with pytest.raises(UsageError, match="hook_timeout_seconds"):
        build(Guest())
    with pytest.raises(UsageError, match="timeout_seconds"):
        Kit.build(
            lambda c: c.add_hook("before_tool", print, timeout_seconds=limit),
            provider=ScriptedProvider(),
            session="memory",
        )


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_while_the_kit_is_built_closes_what_was_opened(error):
    """Ctrl-C in a slow `configure`: it goes through, and no server is left running."""
    closed = []

    class Slow(Extension):
        def configure(self, c):
            c.on_close(lambda: closed.append(1))
            raise error

    with pytest.raises(error):
        build(Slow())
    assert closed == [1]


def test_a_closer_that_adds_or_fails_does_not_stop_the_others():
    """Bad input: closing is no construction; each closer runs once."""
    closed = []

    class Guest(Extension):
        def configure(self, c):
            c.on_close(lambda: closed.append("first"))
            c.on_close(lambda: c.on_close(lambda: closed.append("late")))
            c.on_close(lambda: 1 / 0)
            c.on_close(lambda: closed.append("last"))

    kit = build(Guest())
    kit.close()
    kit.close()

    assert closed == ["last", "first"]


def test_a_mock_in_place_of_an_extension_is_told():
    """Bad input: an object that has every attribute."""
    with pytest.raises(UsageError, match="hook_timeout_seconds"):
        build(MagicMock())


# ---------------------------------------------------------------- a guest asks a person


class Asks(Extension):
    """Asks at each message, and says what came of it."""

    hook_timeout_seconds = None

    async def on_user_message(self, ctx, content):
        answer = await ctx.ask("Send your weather along?", action="weather.place", resource="Basel")
        return f"allowed={answer.allowed} by={answer.by}"


def said_of(provider):
    return provider.last_request.messages[-1].parts[0].text.splitlines()[1]


async def test_a_guests_question_goes_the_way_of_a_tools(tmp_path):
    """Asked, told as events with one call id, logged, remembered as a rule; the second message is not asked."""
    asked = []

    def always(question):
        asked.append(question)
        return Approval(allowed=True, scope="session", by="test")

    provider = ScriptedProvider("a", "b")
    kit = Kit(
        provider=provider, session=Session.create(tmp_path), extensions=[Asks()], approver=CallbackApprover(always)
    )

    with record_events(kit) as log:
        await kit.prompt("hi")
        first = said_of(provider)
        await kit.prompt("ho")

    assert (first, said_of(provider)) == ("allowed=True by=test", "allowed=True by=policy")
    (question,) = asked
    assert (question.tool_name, question.suggestion) == ("weather.place", "weather.place Basel")
    assert [(e.call_id, e.question) for e in log.of(ApprovalAsked)] == [(question.call_id, "Send your weather along?")]
    assert [(e.call_id, e.effect) for e in log.of(ApprovalGiven)] == [(question.call_id, "allow")]
    entries = [e.body for e in kit.session.entries if e.type == "custom"]
    assert len([body for body in entries if "weather.place" in str(body)]) == 2
    await kit.aclose()


@pytest.mark.parametrize(
    ("hook", "limit", "words"),
    [
        (lambda self, ctx, content: str(asyncio.run(ctx.ask("?", action="a.b"))), None, "async hook"),
        (Asks.on_user_message, 0.2, "did not return within 0.2 seconds"),
    ],
    ids=["from a thread", "within a limit"],
)
async def test_a_question_asked_wrongly_is_reported_and_none_stays_open(hook, limit, words):
    """Bad input: from a sync hook, and with a limit that no person meets."""

    class Guest(Extension):
        hook_timeout_seconds = limit
        on_user_message = hook

    kit = Kit(provider=ScriptedProvider("a"), session="memory", extensions=[Guest()])
    kit.is_attended = True

    with record_events(kit) as log:
        assert str(await kit.prompt("hi")) == "a"

    assert [e for e in log.of(ErrorEvent) if words in e.message]
    assert kit.pending_approvals == ()


async def test_a_failing_policy_lets_no_guest_through():
    """Bad input: a policy that raises counts as "ask", and an approver that raises as no."""

    class Broken:
        def decide(self, tool, arguments, context):
            raise RuntimeError("broken")

        def remember(self, question, approval):
            raise AssertionError

    provider = ScriptedProvider("a")
    fails = CallbackApprover(lambda question: 1 / 0)
    kit = Kit(provider=provider, session="memory", extensions=[Asks()], permissions=Broken(), approver=fails)

    await kit.prompt("hi")

    assert said_of(provider) == "allowed=False by=callback"


async def test_outside_of_a_turn_nobody_can_be_asked():
    """A clear has no view to ask in: no, by nobody, at once."""
    said = []

    class Guest(Extension):
        async def on_conversation_reset(self, ctx):
            said.append(await ctx.ask("?", action="a.b"))

    kit = Kit(provider=ScriptedProvider(), session="memory", extensions=[Guest()])
    kit.is_attended = True
    await kit.clear_conversation()

    assert [(answer.allowed, answer.by) for answer in said] == [(False, "nobody")]
