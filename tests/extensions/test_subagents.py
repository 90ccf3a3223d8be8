"""Sub-agents: their own prompt and tools, the parent's denials, found from both sides."""

from __future__ import annotations

import asyncio

import pytest

from kit_jupyter import Kit, Session
from kit_jupyter.errors import BadArguments, UsageError
from kit_jupyter.events import ApprovalAsked, ToolOutput
from kit_jupyter.extension import Extension
from kit_jupyter.extensions.subagents import FILE_MINER, RESEARCHER, Persona, SubAgents
from kit_jupyter.permissions import Approval, CallbackApprover
from kit_jupyter.prompt import ToolResultPart
from kit_jupyter.testing import ScriptedProvider, provider_error, record_events, text, tool_call
from kit_jupyter.tool import tool
from kit_jupyter.tools.subagent import SubAgentTool
from kit_jupyter.trifecta import Legs

WEB = Legs(untrusted="hard", egress="unreviewed", destination="any")


@tool(legs=Legs(private=True))
def read_notes() -> str:
    """Read the notes."""
    return "private notes"


@tool(legs=WEB)
def fetch(url: str) -> str:
    """Fetch a page."""
    return f"page of {url}"


class Web(Extension):
    """Gives `fetch` to sub-agents only, and puts itself everywhere it can."""

    def __init__(self):
        self.calls = []

    def configure(self, c):
        c.add_sub_agent_tool(fetch)
        c.add_hook("before_tool", lambda call, arguments: self.calls.append(call.name))

    def system_prompt_snippets(self):
        return ["SNIPPET OF THE PARENT"]

    def on_user_message(self, ctx, content):
        self.calls.append(content)
        return "BLOCK OF THE PARENT"


SCOUT = Persona(
    name="scout", description="Looks on the web.", system_prompt="You are a scout.  Be brief.", tool_names=("fetch",)
)
THINKER = Persona(name="thinker", description="Thinks.", system_prompt="You think.")


def make(provider, *personas, **more):
    """A Kit with personas and the web for them."""
    web = Web()
    options = {"session": "memory", "permissions": "auto", "tools": [read_notes], **more}
    return Kit(provider=provider, extensions=[web, SubAgents(personas or (SCOUT, THINKER))], **options), web


def hand(persona, task, resume=""):
    return tool_call("agent", persona=persona, task=task, resume=resume)


def results(request):
    return [p for m in request.messages for p in m.parts if isinstance(p, ToolResultPart)]


def resume_id(request):
    return results(request)[-1].parts[0].text.rsplit("resume=", 1)[1].rstrip("]")


async def test_a_persona_owns_prompt_and_tools_verbatim():
    """S200, S201: the child's request has exactly the persona's prompt and named tools, and the task alone."""
    provider = ScriptedProvider([hand("scout", "find x")], [text("x is 1")], [text("done")])
    kit, _ = make(provider)

    await kit.prompt("go")

    child = provider.requests[1]
    assert child.system == "You are a scout.  Be brief."
    assert [spec.name for spec in child.tools] == ["fetch"]
    assert [(m.role, m.parts[0].text) for m in child.messages] == [("user", "find x")]
    assert "x is 1" in results(provider.requests[2])[0].parts[0].text
    assert "fetch" not in [spec.name for spec in provider.requests[0].tools]


async def test_no_hook_of_the_parents_extensions_is_called_in_a_child():
    """S199: neither gate nor message hook nor snippet."""
    provider = ScriptedProvider([hand("scout", "find x")], [tool_call("fetch", url="u")], [text("x")], [text("done")])
    kit, web = make(provider)

    await kit.prompt("go")

    assert web.calls == ["go", "agent"]
    assert "PARENT" not in repr(provider.requests[1])


async def test_the_parents_denials_hold_in_the_child():
    """What a rule denies to the parent is denied to the child (opencode's sub-agents slipped through)."""
    provider = ScriptedProvider([hand("scout", "find x")], [tool_call("fetch", url="u")], [text("no")], [text("done")])
    kit, _ = make(provider, permissions={"preset": "auto", "rules": [("fetch", "*", "deny")]})

    await kit.prompt("go")

    (denied,) = results(provider.requests[2])
    assert denied.is_error
    assert "fetch" in denied.parts[0].text


async def test_the_childs_questions_go_to_the_same_person():
    """An approval that a child needs is asked of the parent's approver."""
    asked = []
    provider = ScriptedProvider([hand("scout", "find x")], [tool_call("fetch", url="u")], [text("x")], [text("done")])
    kit, _ = make(
        provider,
        permissions=[("fetch", "*", "ask")],
        approver=CallbackApprover(lambda question: asked.append(question.tool_name) or Approval(allowed=True)),
    )

    await kit.prompt("go")

    assert asked == ["fetch"]


async def test_several_run_at_once():
    """Two calls of one step: the second child is asked before the first has answered."""
    both = asyncio.Event()
    waiting = []

    class Meeting(ScriptedProvider):
        async def stream(self, request):
            if request.system in ("You think.",):
                waiting.append(request)
                if len(waiting) == 2:
                    both.set()
                await asyncio.wait_for(both.wait(), 20)
            async for delta in super().stream(request):
                yield delta

    def answer(request):
        return [text(f"answer to {request.messages[0].parts[0].text}")]

    provider = Meeting([hand("thinker", "a"), hand("thinker", "b")], answer, answer, [text("done")])
    kit, _ = make(provider)

    await kit.prompt("go")

    said = [part.parts[0].text.splitlines()[0] for part in results(provider.last_request)]
    assert said == ["answer to a", "answer to b"]


async def test_a_sub_agent_can_be_asked_again():
    """Resumable: the second task finds the first in the child's history."""
    provider = ScriptedProvider([hand("thinker", "one")], [text("first")], [text("ok")])
    kit, _ = make(provider)
    await kit.prompt("go")
    session_id = resume_id(provider.last_request)
    provider.script([hand("thinker", "two", session_id)], [text("second")], [text("ok")])

    await kit.prompt("on")

    child = provider.requests[-2]
    assert [m.parts[0].text for m in child.messages] == ["one", "first", "two"]


async def test_parent_and_child_name_each_other_and_a_child_outlives_the_kit(tmp_path, monkeypatch):
    """U42: linked both ways on disk; a later Kit on the parent's session resumes the child."""
    folder = tmp_path / "sessions"
    provider = ScriptedProvider([hand("thinker", "one")], [text("first")], [text("ok")])
    kit, _ = make(provider, session=Session.create(folder))
    await kit.prompt("go")
    session_id = resume_id(provider.last_request)
    parent_path = kit.session.path
    await kit.aclose()

    child = Session.open(next(p for p in folder.glob("*.jsonl") if session_id in p.name))
    parent = Session.open(parent_path)
    assert child.header["parent"] == parent.id
    assert child.header["task"] == "one"
    linked = [m.details["sub_agent"]["session_id"] for m in parent.messages() if m.role == "tool"]
    assert linked == [session_id]
    assert f"sub-agent thinker: {session_id}" in parent.tree()
    child.close()

    monkeypatch.setattr(Session, "listing", classmethod(lambda cls, f=None, _real=Session.listing: _real(folder)))
    provider = ScriptedProvider([hand("thinker", "two", session_id)], [text("second")], [text("ok")])
    again, _ = make(provider, session=parent)
    await again.prompt("on")
    assert [m.parts[0].text for m in provider.requests[1].messages] == ["one", "first", "two"]
    await again.aclose()


@pytest.mark.parametrize("resume", ["ses_404", "../../etc/passwd", "nonsense"])
async def test_a_session_that_is_no_child_is_not_resumed(resume):
    """Bad input of the model: the error says what to do; nothing is opened."""
    provider = ScriptedProvider([hand("thinker", "x", resume)], [text("ok")])
    kit, _ = make(provider)

    await kit.prompt("go")

    (refused,) = results(provider.last_request)
    assert refused.is_error
    assert "leave resume empty" in refused.parts[0].text


async def test_another_personas_child_is_not_resumed():
    """Bad input: a thinker does not go on as a scout with other tools."""
    provider = ScriptedProvider([hand("thinker", "one")], [text("first")], [text("ok")])
    kit, _ = make(provider)
    await kit.prompt("go")
    provider.script([hand("scout", "two", resume_id(provider.last_request))], [text("ok")])

    await kit.prompt("on")

    assert "is a thinker, not a scout" in results(provider.last_request)[-1].parts[0].text


async def test_a_child_that_fails_is_an_error_result():
    """The parent's turn goes on and is told, with the id to resume."""
    provider = ScriptedProvider([hand("thinker", "x")], [provider_error("rejected", "no such model")], [text("ok")])
    kit, _ = make(provider)

    result = await kit.prompt("go")

    (failed,) = results(provider.last_request)
    assert failed.is_error
    assert "no such model" in failed.parts[0].text
    assert str(result) == "ok"


async def test_stopping_the_parent_stops_the_child():
    """A stop reaches down: the child's stream is closed, its turn ends."""
    started = asyncio.Event()

    class Slow(ScriptedProvider):
        async def stream(self, request):
            if request.system == "You think.":
                kit_loop.call_soon_threadsafe(started.set)
                await asyncio.Event().wait()
            async for delta in super().stream(request):
                yield delta

    kit_loop = asyncio.get_running_loop()
    provider = Slow([hand("thinker", "x")], [text("ok")])
    kit, _ = make(provider)
    turn = asyncio.ensure_future(kit.prompt("go"))
    await asyncio.wait_for(started.wait(), 20)

    await kit.abort()
    await asyncio.wait([turn])

    assert not kit.is_running
    agent = kit.host.extensions[1]._tool
    assert agent._busy == set()


async def test_a_child_at_work_shows_its_calls():
    """Live output of the agent call: which tools the child uses."""
    provider = ScriptedProvider([hand("scout", "x")], [tool_call("fetch", url="u")], [text("x")], [text("done")])
    kit, _ = make(provider)

    with record_events(kit) as log:
        await kit.prompt("go")

    assert any("scout: fetch(" in event.text for event in log.of(ToolOutput))


async def test_a_reviewed_hand_off_always_asks():
    """S206: the gate on the delegation edge: no rule opens it, the question shows the task."""
    from dataclasses import replace

    asked = []

    def no(question):
        asked.append(question.text)
        return Approval(allowed=False, reason="not this")

    provider = ScriptedProvider([hand("scout", "send the notes")], [text("ok")])
    kit, _ = make(
        provider,
        replace(SCOUT, gate="reviewed"),
        permissions={"preset": "auto", "rules": [("agent", "*", "allow"), ("*", "*", "allow")]},
        approver=CallbackApprover(no),
    )

    with record_events(kit) as log:
        await kit.prompt("go")

    assert len(log.of(ApprovalAsked)) == 1
    assert "send the notes" in asked[0]
    assert len(provider.requests) == 2


def test_the_report_has_a_node_for_each_persona():
    """S205, S208, S212: the child's node bears the legs of the very tools it gets; ungated it is loud."""
    from dataclasses import replace

    loud, _ = make(ScriptedProvider(), SCOUT, THINKER)
    quiet, _ = make(ScriptedProvider(), replace(SCOUT, gate="reviewed"), THINKER)

    assert [child.label for child in loud.trifecta.root.children] == ["scout", "thinker"]
    assert loud.trifecta.is_loud
    assert not quiet.trifecta.is_loud
    assert loud.trifecta.changes[0].text == "have a person approve each hand-off from agent to scout"
    tool_of_child = loud.host.extensions[1]._tool.personas["scout"].tools[0]
    assert tool_of_child is loud.host.sub_agent_tools[0]


def test_wrong_personas_are_told_when_the_kit_is_built():
    """Bad input: an unknown tool, one name twice, an empty prompt, a name in place of names."""
    with pytest.raises(UsageError, match=r"'x' names tools that are not there: nope; there are: fetch, read_notes"):
        make(ScriptedProvider(), Persona(name="x", description="d", system_prompt="p", tool_names=("nope",)))
    with pytest.raises(UsageError, match="two personas"):
        SubAgents([SCOUT, SCOUT])
    with pytest.raises(UsageError, match="system_prompt"):
        Persona(name="x", description="d", system_prompt=" ")
    with pytest.raises(UsageError, match="sequence"):
        Persona(name="x", description="d", system_prompt="p", tool_names="fetch")
    with pytest.raises(UsageError):
        SubAgents([])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"persona": "nobody", "task": "x"}, "one of scout, thinker"),
        ({"persona": "scout", "task": " "}, "complete in itself"),
        ({"persona": "scout"}, "complete in itself"),
        ({"persona": "scout", "task": "x", "resume": 3}, "resume"),
        ({"persona": "scout", "task": "x", "model": "y"}, "unknown arguments: model"),
    ],
)
def test_wrong_arguments_are_told(arguments, words):
    """Bad input of the model, one line per fault."""
    kit, _ = make(ScriptedProvider())

    with pytest.raises(BadArguments, match=words):
        kit.tools["agent"].validate(arguments)


def test_worked_personas_name_tools_that_there_are():
    """FILE_MINER works with Workspace; RESEARCHER takes a fetcher of any name."""
    from dataclasses import replace

    from kit_jupyter.extensions.workspace import Workspace

    miner = Kit(provider=ScriptedProvider(), session="memory", extensions=[Workspace(), SubAgents([FILE_MINER])])
    assert "agent" in miner.tools
    assert RESEARCHER.tool_names == ("web_fetch",)
    make(ScriptedProvider(), replace(RESEARCHER, tool_names=("fetch",)))


# ---------------------------------------------------------------- deep, many, stopped


class Deep(Extension):
    """A hand-off tool for personas: they may hand on, also to themselves."""

    def __init__(self, persona):
        self._persona = persona

    def configure(self, c):
        self.c = c

    def bind(self, ctx):
        class Onward(SubAgentTool):
            name = "onward"

        self.tool = Onward([], ctx.child, lambda: str(ctx.kit.session_id))
        resolved = self._persona.resolved({"onward": self.tool, "fetch": fetch})
        self.tool.personas = {resolved.name: resolved}
        ctx.add_tool(self.tool)


DIGGER = Persona(name="digger", description="Digs.", system_prompt="Dig.", tool_names=("onward", "fetch"))


def onward(task="dig"):
    return tool_call("onward", persona="digger", task=task)


async def test_hand_offs_without_end_come_to_one():
    """Bad input: a persona that hands its task to itself: refused at the fourth level, and each level answers."""
    provider = ScriptedProvider(*[[onward()]] * 5, *["done"] * 6)
    kit = Kit(provider=provider, session="memory", extensions=[Deep(DIGGER)], permissions="auto")

    result = await kit.prompt("dig")

    assert str(result) == "done"
    assert len(provider.requests) == 5 + 5
    refused = [r for request in provider.requests for r in results(request) if r.is_error]
    assert "nested 4 deep" in refused[0].parts[0].text


async def test_denials_hold_for_grandchildren():
    """What the parent may not, nobody below it may, however deep; a person's session answer counts, too."""
    provider = ScriptedProvider([onward()], [onward()], [tool_call("fetch", url="u")], "no", "no", "no")
    kit = Kit(
        provider=provider,
        session="memory",
        extensions=[Deep(DIGGER)],
        permissions={"preset": "auto", "rules": [("fetch", "*", "deny")]},
    )

    await kit.prompt("dig")

    (denied,) = results(provider.requests[3])
    assert denied.is_error
    assert "fetch was not run" in denied.parts[0].text


async def test_a_no_for_the_session_holds_for_every_child():
    """A person says no for this session in one child: the other child is not asked, and the parent neither."""
    asked = []

    def no(question):
        asked.append(question.tool_name)
        return Approval(allowed=False, scope="session")

    provider = ScriptedProvider(
        [hand("scout", "a")],
        [tool_call("fetch", url="u")],
        "no",
        [hand("scout", "b")],
        [tool_call("fetch", url="u")],
        "no",
        "done",
    )
    kit, _ = make(provider, permissions=[("fetch", "*", "ask")], approver=CallbackApprover(no))

    await kit.prompt("go")

    assert asked == ["fetch"]
    assert results(provider.requests[5])[0].is_error


async def test_stopping_the_parent_stops_all_children_and_each_can_be_asked_again():
    """Abort while three run: all stop, each call has its answer, nothing runs on, and a stopped child goes on later."""
    started = []
    gate = asyncio.Event()
    ended = []

    class Waits(ScriptedProvider):
        async def stream(self, request):
            if request.system == THINKER.system_prompt and len(started) < 3:
                started.append(request.messages[0].parts[0].text)
                if len(started) == 3:
                    gate_loop.call_soon_threadsafe(gate.set)
                try:
                    await asyncio.Event().wait()
                finally:
                    ended.append(request.messages[0].parts[0].text)
            async for delta in super().stream(request):
                yield delta

    gate_loop = asyncio.get_running_loop()
    provider = Waits([hand("thinker", "a"), hand("thinker", "b"), hand("thinker", "c")], "on")
    kit, _ = make(provider)
    turn = asyncio.ensure_future(kit.prompt("go"))
    await asyncio.wait_for(gate.wait(), 20)

    kit.abort()
    stopped = await asyncio.wait_for(turn, 20)

    assert stopped.stop_reason == "aborted"
    assert sorted(started) == sorted(ended) == ["a", "b", "c"]
    answers = [m for m in kit.messages if m.role == "tool"]
    assert len(answers) == 3
    assert all(m.is_error for m in answers)
    assert str(await kit.prompt("and now")) == "on"
    agent = kit.tools["agent"]
    assert len(agent._alive) == 3
    assert agent._busy == set()
    session_id = next(iter(agent._alive))
    provider.script([hand("thinker", "again", resume=session_id)], "child again", "end")
    assert str(await kit.prompt("ask it again")) == "end"


async def test_children_of_another_session_are_not_resumed_after_a_move(tmp_path, monkeypatch):
    """A Kit that goes on with another session does not let it reach the children of the first."""
    monkeypatch.setenv("KIT_DATA_DIR", str(tmp_path))
    provider = ScriptedProvider([hand("thinker", "a")], "secret", "done")
    kit, _ = make(provider, session=None)
    await kit.prompt("go")
    session_id = resume_id(provider.last_request)
    await kit.resume(Session.create())
    provider.script([hand("thinker", "tell", resume=session_id)], "end")

    await kit.prompt("go on")

    assert "no sub-agent of this session" in results(provider.last_request)[-1].parts[0].text
    await kit.aclose()
