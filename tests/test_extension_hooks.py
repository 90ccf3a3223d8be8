"""The chained hooks: order, middleware, gates that fail closed, and what a bad one does."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest

from kit_jupyter.errors import ExtensionError, UsageError
from kit_jupyter.extension import (
    HANDLED,
    BeforeTool,
    BeforeTurn,
    CompactionPlan,
    Extension,
    ExtensionHost,
    StepPlan,
)
from kit_jupyter.messages import TextPart, ToolCallPart
from kit_jupyter.prompt import PromptEditor, PromptMessage, ToolResultPart
from kit_jupyter.tool import ToolOutcome

CALL = ToolCallPart("c1", "shell", '{"line": "ls"}')


def hosted(*hooks, extensions=(), limit=10.0):
    """A host with ``(name, function)`` or ``(name, function, priority)`` hooks, and the list of its reports."""

    def configure(c):
        for name, fn, *priority in hooks:
            c.add_hook(name, fn, priority=priority[0] if priority else 50, timeout_seconds=limit)

    told: list[ExtensionError] = []
    host = ExtensionHost.build(extensions, configure, on_error=told.append)
    host.bind(SimpleNamespace(id="k", tools={}), lambda name, content: None)
    return host, told


def user(text, message_id="u1"):
    return PromptMessage("user", (TextPart(text),), message_id=message_id)


def raises(*args):
    raise RuntimeError("broken")


# ---------------------------------------------------------------- order and registration


async def test_lower_priority_first_and_stable_inside_one():
    """Kit SDK order: 0, 50, 100; inside a priority in order of registration."""
    said: list[str] = []
    host, _ = hosted(
        ("after_turn", lambda r, e: said.append("late"), 100),
        ("after_turn", lambda r, e: said.append("b"), 50),
        ("after_turn", lambda r, e: said.append("early"), 0),
        ("after_turn", lambda r, e: said.append("c"), 50),
    )

    await host.after_turn("done", None)

    assert said == ["early", "b", "c", "late"]


def test_an_unknown_hook_is_named():
    """Bad input: a slip in the name is told at once, with the names there are."""
    with pytest.raises(UsageError, match=r"'before_tools'.*before_tool"):
        hosted(("before_tools", print))
    with pytest.raises(UsageError, match="is a function"):
        hosted(("before_tool", "print"))


async def test_a_method_of_the_name_is_a_hook():
    """An extension may define a chained hook as a method; it gets no context, as the table says."""

    class Gate(Extension):
        def before_tool(self, call, arguments):
            return BeforeTool(block=True, reason=f"no {call.name} here")

    host, _ = hosted(extensions=[Gate()])

    assert (await host.before_tool(CALL, {})).reason == "no shell here"


async def test_a_hook_of_the_kit_itself_can_be_taken_away():
    """`host.add_hook` works at any time and returns its disposer."""
    host, _ = hosted()
    remove = host.add_hook("on_input", lambda text, source: text.upper())

    assert await host.on_input("a", "prompt") == "A"
    remove()

    assert await host.on_input("a", "prompt") == "a"


# ---------------------------------------------------------------- input


async def test_input_is_chained_and_can_be_handled():
    """Transform, pass, handled: a handled text begins no turn, and later hooks are not asked."""
    later: list[str] = []
    host, _ = hosted(
        ("on_input", lambda text, source: f"{text}!"),
        ("on_input", lambda text, source: None),
        ("on_input", lambda text, source: HANDLED if text == "/tasks!" else None),
        ("on_input", lambda text, source: later.append(text)),
    )

    assert host.has_hooks("on_input")
    assert await host.on_input("hi", "cell") == "hi!"
    assert await host.on_input("/tasks", "cell") is None
    assert later == ["hi!"]
    assert not hosted()[0].has_hooks("on_input")


@pytest.mark.parametrize("bad", [raises, lambda text, source: 3])
async def test_a_bad_input_hook_leaves_the_text(bad):
    """S229: reported, passed over."""
    host, told = hosted(("on_input", bad))

    assert await host.on_input("hi", "cell") == "hi"
    assert told[0].hook == "on_input"


# ---------------------------------------------------------------- turns


async def test_before_turn_chains_and_injects_add_up():
    """Each sees what the last one made; texts beside the prompt are joined."""
    host, told = hosted(
        ("before_turn", lambda turn: BeforeTurn(prompt=turn.prompt + "?", inject="one")),
        ("before_turn", lambda turn: BeforeTurn(system=f"{turn.system} Be brief.", inject="two")),
        ("before_turn", lambda turn: None),
        ("before_turn", lambda turn: turn),
        ("before_turn", raises),
        ("before_turn", lambda turn: "text"),
        ("before_turn", lambda turn: BeforeTurn(prompt=3)),
    )

    turn = await host.before_turn("hi", "Base.")

    assert (turn.prompt, turn.system, turn.inject) == ("hi?", "Base. Be brief.", "one\n\ntwo")
    assert len(told) == 3


async def test_without_hooks_a_turn_is_as_it_was():
    """Nothing registered changes nothing."""
    host, _ = hosted()

    assert await host.before_turn("p", "s") == BeforeTurn(prompt="p", system="s")
    assert await host.before_tool(CALL, {"a": 1}) == BeforeTool(arguments={"a": 1})
    assert await host.edit_prompt((user("x"),)) == (user("x"),)


async def test_after_turn_observers_are_isolated():
    """One that raises does not keep the next one from hearing."""
    heard: list[object] = []
    host, told = hosted(("after_turn", raises), ("after_turn", lambda response, error: heard.append((response, error))))
    error = ValueError("x")

    await host.after_turn("", error)

    assert heard == [("", error)]
    assert len(told) == 1


async def test_prepare_step_chains_over_a_plan():
    """A changed copy is handed on; another type is reported."""
    from dataclasses import replace

    host, told = hosted(
        ("prepare_step", lambda plan: replace(plan, tool_choice="none")),
        ("prepare_step", lambda plan: {"tool_choice": "required"}),
        ("prepare_step", lambda plan: replace(plan, temperature=0.0)),
    )

    plan = await host.prepare_step(StepPlan(number=1, tools=()))

    assert (plan.tool_choice, plan.temperature) == ("none", 0.0)
    assert [e.hook for e in told] == ["prepare_step"]


async def test_the_first_cancel_of_a_compaction_stops():
    """Chained; a cancel needs no reason of its own."""
    from dataclasses import replace

    later: list[object] = []
    host, _ = hosted(
        ("before_compact", lambda plan: replace(plan, summary="mine")),
        ("before_compact", lambda plan: replace(plan, cancel=True)),
        ("before_compact", later.append),
    )

    plan = await host.before_compact(CompactionPlan(reason="manual", messages=(), tokens_before=9))

    assert plan.cancel
    assert plan.cancel_reason.startswith("cancelled by")
    assert plan.summary == "mine"
    assert later == []


# ---------------------------------------------------------------- gates


async def test_gates_change_arguments_in_turn_and_the_first_block_stops():
    """Each gate sees the arguments as the last one left them."""
    seen: list[dict] = []
    host, _ = hosted(
        ("before_tool", lambda call, arguments: BeforeTool(arguments={**arguments, "cwd": "data"})),
        ("before_tool", lambda call, arguments: seen.append(dict(arguments))),
        ("before_tool", lambda call, arguments: BeforeTool(block=True) if "cwd" in arguments else None),
        ("before_tool", lambda call, arguments: seen.append({"never": 1})),
    )

    gate = await host.before_tool(CALL, {"line": "ls"})

    assert gate.block
    assert gate.reason
    assert seen == [{"line": "ls", "cwd": "data"}]


@pytest.mark.parametrize(
    "sneaks",
    [
        lambda call, arguments: arguments.__setitem__("line", "rm -rf ."),
        lambda call, arguments: arguments.update(line="rm -rf ."),
        lambda call, arguments: arguments["flags"].append("--force"),
    ],
    ids=["top", "update", "nested"],
)
async def test_a_gate_cannot_change_the_arguments_in_place(sneaks):
    """Bad input, editing a read-only view: the gate has failed, and a gate that fails blocks."""
    arguments = {"line": "ls", "flags": []}
    host, told = hosted(("before_tool", sneaks))

    gate = await host.before_tool(CALL, arguments)

    assert gate.block
    assert arguments == {"line": "ls", "flags": []}
    assert told[0].hook == "before_tool"


NEVER = threading.Event()


def asks_forever(call, arguments):
    NEVER.wait(20)


async def asks_forever_async(call, arguments):
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    "gate",
    [
        raises,
        lambda call, arguments: True,
        lambda call, arguments: "no",
        lambda call, arguments: BeforeTool(arguments=["ls"]),
        lambda call, arguments: (_ for _ in ()).throw(SystemExit),
        asks_forever,
        asks_forever_async,
    ],
    ids=["raises", "bool", "text", "bad arguments", "exits", "hangs", "hangs async"],
)
async def test_a_gate_that_fails_blocks(gate):
    """S229: gates fail closed, and the reason says that the gate failed."""
    host, told = hosted(("before_tool", gate), limit=0.05)

    said = await host.before_tool(CALL, {"line": "ls"})

    assert said.block
    assert "gate failed" in said.reason
    assert told[0].hook == "before_tool"


async def test_a_hook_that_still_hangs_is_not_called_again():
    """A hook that never returns costs one thread, not one per call."""
    release = threading.Event()
    entered: list[int] = []

    def hangs(response, error):
        entered.append(1)
        release.wait(20)

    host, told = hosted(("after_turn", hangs), limit=0.05)
    for _ in range(3):
        await host.after_turn("", None)

    assert len(entered) == 1
    assert "earlier call" in str(told[-1])

    release.set()
    await asyncio.to_thread(host._handlers["after_turn"][0].stuck.wait, 20)
    await host.after_turn("", None)
    assert len(entered) == 2  # it has come back, so it is asked again


async def test_after_tool_is_middleware():
    """U68: a hook can rewrite what a tool returned; each sees the last one's outcome; a bad one changes nothing."""
    host, told = hosted(
        ("after_tool", lambda call, outcome: ToolOutcome.of_text(outcome.text.replace("secret", "***"))),
        ("after_tool", raises),
        ("after_tool", lambda call, outcome: "text"),
        ("after_tool", lambda call, outcome: ToolOutcome.of_text(f"{call.name}: {outcome.text}")),
    )

    outcome = await host.after_tool(CALL, ToolOutcome.of_text("a secret"))

    assert outcome.text == "shell: a ***"
    assert len(told) == 2


# ---------------------------------------------------------------- prompt editing


async def test_edits_carry_the_name_of_the_extension():
    """S138: who edited can be read in the request."""

    class Tone(Extension):
        def edit_prompt(self, editor):
            editor.append_to("last-user", "Be brief.")
            editor.append("user", "And kind.")

    class Late(Tone):
        name = "Second"

    host, _ = hosted(extensions=[Tone(), Late()])

    messages = await host.edit_prompt((user("hi"),))

    assert messages[0].edits == ("hook:Tone",)
    assert [m.origin for m in messages[1:]] == ["hook:Tone", "hook:Second"]
    assert messages[1].edits == ("hook:Second",)  # its last user message is the one the first hook added
    assert messages[0].parts == (TextPart("hi"), TextPart("Be brief."))


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (raises, "broken"),
        (lambda editor: editor.append("tool", [ToolResultPart("c", "x", ())]), "user and assistant"),
        (lambda editor: editor.append("user", [ToolResultPart("c", "x", ())]), "exactly one result"),
        (lambda editor: editor.insert_after("nope", "user", "x"), "nope"),
        (lambda editor: list(editor.messages), "through the editor"),
        (lambda editor: setattr(editor, "messages", ()), "messages"),
    ],
    ids=["raises", "role", "unpaired result", "unknown id", "returns a list", "reassigns"],
)
async def test_a_bad_edit_is_reported_and_all_its_edits_dropped(bad, words):
    """Bad input, S229: the other hooks' edits stand, a half-made edit does not."""

    def half(editor):
        editor.append("user", "half")
        return bad(editor)

    host, told = hosted(("edit_prompt", half), ("edit_prompt", lambda editor: editor.append("user", "whole") and None))

    messages = await host.edit_prompt((user("hi"),))

    assert [m.parts[0].text for m in messages] == ["hi", "whole"]
    assert words in str(told[0])
    assert told[0].hook == "edit_prompt"


async def test_an_editor_kept_beyond_its_hook_is_closed():
    """A hook that hangs, or keeps its editor, cannot change what was sent."""
    kept: list[PromptEditor] = []
    host, _ = hosted(("edit_prompt", kept.append))

    await host.edit_prompt((user("hi"),))

    with pytest.raises(UsageError, match="closed"):
        kept[0].append("user", "late")


async def test_persisted_edits_are_handed_to_the_caller():
    """S140: what a hook persists is told through the editor the caller gives."""
    messages = (user("hi"),)
    editor = PromptEditor(messages)
    host, _ = hosted(("edit_prompt", lambda e: e.append("user", "kept", persist=True) and None))

    edited = await host.edit_prompt(messages, editor=editor)

    (kept,) = editor.persisted
    assert kept.message_id == edited[-1].message_id
    assert kept.source.startswith("hook:")


ANSWER = PromptMessage("assistant", (TextPart("yes"),), message_id="a1")


@pytest.mark.parametrize(
    ("edit", "costs"),
    [
        (lambda editor: editor.append_to("last-user", "brief"), True),  # it moves on with the last user message
        (lambda editor: editor.append("user", f"now {len(editor.messages)}") and None, False),
        (lambda editor: editor.prepend("user", "the same each time") and None, False),
        (lambda editor: editor.prepend("user", f"now {len(editor.messages)}") and None, True),
        (lambda editor: editor.insert_after("u1", "user", "the same each time") and None, False),
        (lambda editor: editor.append_to("last-user", "late") if len(editor.messages) > 2 else None, False),
    ],
    ids=["moving reminder", "append", "steady prepend", "changing prepend", "steady insert", "on the newest"],
)
async def test_an_edit_that_costs_the_prompt_cache_is_told(edit, costs):
    """S130, S136: measured on what was sent: a warning when an edit made a message differ, none when it did not."""
    warned: list[str] = []
    host, _ = hosted(("edit_prompt", edit))
    host.on_warning = lambda message, source: warned.append(message)

    await host.edit_prompt((user("hi"),))
    await host.edit_prompt((user("hi"), ANSWER))
    await host.edit_prompt((user("hi"), ANSWER, user("more", "u2")))

    assert bool(warned) is costs
    assert all("cache" in text and "hook:" in text for text in warned)


async def test_a_branch_or_compaction_is_no_edit():
    """When the talk itself changed, nobody is blamed."""
    warned: list[str] = []
    host, _ = hosted(("edit_prompt", lambda editor: editor.append("user", "x") and None))
    host.on_warning = lambda message, source: warned.append(message)

    await host.edit_prompt((user("hi"), ANSWER, user("more", "u2")))
    await host.edit_prompt((user("a summary", "s1"), user("more", "u2")))

    assert warned == []
