"""The laws of the design that belong to the core, and what a reader of the code may rely on."""

from __future__ import annotations

import ast
import asyncio
import os
import random
import re
import subprocess
import sys
import threading
import tomllib
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import kit_jupyter
from kit_jupyter import Kit, KitError, PromptOptions
from kit_jupyter import events as ev
from kit_jupyter.events import EVENT_TYPES
from kit_jupyter.house import History
from kit_jupyter.loop import engine
from kit_jupyter.messages import Assistant, ToolResult
from kit_jupyter.prompt import from_branch
from kit_jupyter.testing import (
    ScriptedProvider,
    cut,
    delay,
    offline,
    overflow,
    provider_error,
    record_events,
    text,
    thinking,
    tool_call,
    unanswered_calls,
)

from .helpers import area, until

PACKAGE = Path(kit_jupyter.__file__).parent
CORE = [
    "errors",
    "messages",
    "deltas",
    "loop",
    "events",
    "event_bus",
    "entry",
    "places",
    "session",
    "session_file",
    "inbox",
    "settings",
    "structured",
    "media",
    "price",
    "house",
    "answer",
    "calls",
    "turn",
    "compaction",
    "compactor",
    "shelf",
    "handles",
    "claims",
    "kit_parts",
    "kit_path",
    "tree",
    "modes",
    "sync_verbs",
    "kit",
    "testing",
    "export",
]

PIECES: dict[str, list[Any]] = {
    "text": [text("one two three")],
    "thinking": [thinking("hm"), text("x")],
    "empty": [text("")],
    "tool": [text("t"), tool_call("area", width=1, height=2)],
    "tools": [tool_call("area", width=1, height=2), tool_call("nope"), tool_call("area", raw="{")],
    "error": [text("h"), provider_error("overloaded")],
    "overflow": [overflow()],
    "cut": [text("half"), tool_call("area", width=1, height=1), cut()],
    "slow": [text("a"), delay(0.002), text("b")],
}


@settings(max_examples=120, deadline=None)
@given(
    replies=st.lists(st.sampled_from(sorted(PIECES)), min_size=1, max_size=5),
    stop_after=st.none() | st.integers(0, 40),
    how=st.sampled_from(["abort", "cancel"]),
)
def test_whatever_happens_what_was_begun_is_ended(replies: list[str], stop_after: int | None, how: str) -> None:
    """Laws 1 and 2: TurnEnd is last; starts have ends; every call that reaches a provider has exactly one result."""
    asyncio.run(_whatever(replies, stop_after, how))


async def _whatever(replies: list[str], stop_after: int | None, how: str) -> None:
    provider = ScriptedProvider(*(PIECES[r] for r in replies), "end", repeat_last=True)
    kit = Kit(provider=provider, session="memory", tools=[area], permissions="auto", max_steps=6)
    with record_events(kit) as log:
        task = asyncio.ensure_future(kit.prompt("go"))
        if stop_after is not None:
            for _ in range(stop_after):
                await asyncio.sleep(0)
            if how == "abort":
                kit.abort()
            else:
                task.cancel()
        outcome = (await asyncio.gather(task, return_exceptions=True))[0]
    assert not kit.is_running
    if log:
        assert isinstance(log[0], ev.TurnStart)
        assert isinstance(log[-1], ev.TurnEnd)
        assert len(log.of(ev.TurnEnd)) == 1
        if isinstance(outcome, KitError):
            assert log[-1].error == str(outcome)
    assert [e.message_id for e in log.of(ev.MessageStart)] == [e.message.id for e in log.of(ev.MessageEnd)]
    assert [e.number for e in log.of(ev.StepStart)] == [e.number for e in log.of(ev.StepEnd)]
    assert [e.call_id for e in log.of(ev.ToolExecutionStart)] == [e.call_id for e in log.of(ev.ToolExecutionEnd)]
    assert [e.call_id for e in log.of(ev.ToolCall)] == [e.call_id for e in log.of(ev.ToolResultEvent)]
    kit.abort_sync()
    provider._replies = ["after"]
    await kit.prompt("next")
    for request in provider.requests:
        assert unanswered_calls(request) == []
        results = [p.call_id for m in request.messages for p in m.parts if p.type == "tool_result"]
        assert len(results) == len(set(results))
    await kit.aclose()


async def test_a_step_is_told_once_also_when_the_answer_is_empty(make: Any) -> None:
    """S62: StepEnd once per step; MessageEnd and Response with empty text."""
    kit, _ = make([text("")])
    with record_events(kit) as log:
        result = await kit.prompt("x")

    assert [e.number for e in log.of(ev.StepEnd)] == [1]
    assert log.of(ev.Response)[0].content == str(result) == ""
    assert result._repr_markdown_() == "*(no text: stop)*"


async def test_the_history_of_each_request_is_a_prefix_of_the_next(make: Any) -> None:
    """Prefix law: over turns with tools, steers and follow-ups the earlier messages are the same objects."""
    kit, provider = make(
        *([tool_call("area", width=i, height=1)] if i % 2 else [text(f"t{i}")] for i in range(30)),
        tools=[area],
    )
    for i in range(8):
        await kit.prompt(f"p{i}")
        if i % 3 == 0:
            await kit.steer(f"s{i}")
        if i % 4 == 0:
            await kit.follow_up()

    for earlier, later in zip(provider.requests, provider.requests[1:], strict=False):
        n = len(earlier.messages)
        assert all(a is b for a, b in zip(earlier.messages, later.messages[:n], strict=True))
        assert (earlier.system, earlier.tools) == (later.system, later.tools)


async def test_what_was_shown_is_not_shown_anew_and_is_what_a_fresh_look_shows(make: Any) -> None:
    """Law 10: work per request does not grow with the history; over branches and stops the result is the same."""
    kit, _ = make(*(PIECES["tool"] if i % 2 else PIECES["text"] for i in range(60)), tools=[area])
    history = History()
    entries: list[str | None] = [None]
    rng = random.Random(3)
    for i in range(12):
        await kit.prompt(f"p{i}")
        entries += [e.id for e in kit.session.branch()]
        if rng.random() < 0.4:
            await kit.branch(rng.choice(entries))
        stored = kit.messages
        shown = history.show(stored)
        fresh = from_branch(stored)
        assert [(m.role, m.parts) for m in shown] == [(m.role, m.parts) for m in fresh]


async def test_what_is_sent_can_be_shown(make: Any) -> None:
    """Law 9: the last request, part by part, with where each came from."""
    kit, provider = make("a", "b", tools=[area], system="Base text.")
    assert kit.last_request is None
    await kit.prompt("hi")
    await kit.steer("be brief")

    view = kit.last_request
    assert view is not None
    assert view.request is provider.last_request
    assert "be brief" in str(view)
    assert {"base", "area", "steer"} <= {row.origin for row in view}


def test_stored_messages_never_change() -> None:
    """Law 3: there is no call to update or delete an entry; messages are frozen."""
    from kit_jupyter.session import Session

    verbs = [name for name in dir(Session) if not name.startswith("_")]
    assert not [name for name in verbs if re.search("update|replace|remove|edit|insert|rewrite", name)]


def _python(code: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(PACKAGE.parent), *sys.path]), **env},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_touches_nothing_and_needs_no_notebook() -> None:
    """Law 11, S70: no IPython, no httpx, no pydantic; no disk, net or terminal; a turn runs without IPython at all."""
    out = _python(
        "import sys\n"
        "class Wall:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('IPython', 'ipywidgets', 'anywidget', 'comm', 'ipykernel'):\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Wall())\n"
        "import kit_jupyter\n"
        "print([m for m in ('httpx', 'httpx2', 'pydantic', 'traitlets') if m in sys.modules])\n"
        "from kit_jupyter import Kit, tool\n"
        "from kit_jupyter.testing import ScriptedProvider\n"
        "print(Kit(provider=ScriptedProvider('fine'), session='memory').prompt_sync('x'))\n"
        "print('httpx' in sys.modules)\n"
    )
    assert out.split("\n")[:3] == ["[]", "fine", "False"]


async def test_a_turn_of_a_scripted_model_opens_no_socket(make: Any) -> None:
    """Law 11: nothing reaches for the net by itself."""
    with offline():
        kit, _ = make("x", session=None)
        assert str(await kit.prompt("hi")) == "x"


def test_no_ignores_in_the_core() -> None:
    """S76: strict types and lint hold without a single exception; both are run by `make check`."""
    for room in CORE:
        source = (PACKAGE / f"{room}.py").read_text()
        assert not re.search(r"#\s*(type:\s*ignore|noqa|pragma)", source), room


def test_no_mode_is_longer_than_its_preparations() -> None:
    """S73: statements of each mode, docstring aside."""
    tree = ast.parse((PACKAGE / "modes.py").read_text())
    bodies = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef)}
    for mode in ("prompt", "prompt_with_options", "steer", "follow_up", "compact"):
        statements = [node for node in ast.walk(bodies[mode]) if isinstance(node, ast.stmt)]
        assert len(statements) <= 9, mode


def test_the_linter_limits_how_tangled_a_function_may_be() -> None:
    """S73: in the core no function has more than ten ways through it; the few rooms of long lists are named."""
    lint = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]

    assert "C90" in lint["select"]
    assert lint["mccabe"]["max-complexity"] <= 10
    exempt = " ".join(pattern for pattern, rules in lint["per-file-ignores"].items() if "C90" in rules)
    assert [room for room in CORE if re.search(rf"[{{,/]{room}[}},.]", exempt)] == ["deltas", "testing"]


def _calls(folder: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for path in (PACKAGE / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                found.setdefault(name, set()).add(path.name)
    return found


def test_front_ends_hold_no_loop_of_their_own() -> None:
    """S2, S53, S54, S66-S69, S80: the Jupyter wing makes no turns, requests or stored messages; it calls the Kit."""
    calls = _calls("jupyter")
    for name in ("Turn", "ModelRequest", "MessageBuilder", "from_branch", "Calls", "Answer"):
        assert name not in calls, (name, calls.get(name))
    for name in ("Assistant", "ToolResult"):  # read back from a saved notebook, where the session's file is gone
        assert calls.get(name, set()) <= {"rebuild.py"}, (name, calls[name])
    assert calls["start"] >= {"notebook.py", "panel.py"}
    assert "_run_turn" not in calls
    for cls in EVENT_TYPES.keys() - {"Event"}:  # events are the Kit's to tell; here they are matched, or taken again
        assert calls.get(cls, set()) <= {"presenter.py"}, (cls, calls.get(cls))


async def test_hooks_exist_in_their_stated_order(make: Any) -> None:
    """S71, S72: input, before turn, context, step, before tool, after tool, after turn; sync or async; by priority."""
    order: list[str] = []

    def configure(c: Any) -> None:
        for name in ("before_turn", "edit_prompt", "prepare_step", "before_tool", "after_tool", "after_turn"):

            async def late(*_: Any, name: str = name) -> None:
                order.append(f"{name} late")

            def early(*_: Any, name: str = name) -> None:
                order.append(name)

            c.add_hook(name, late, priority=90)
            c.add_hook(name, early, priority=10)

    kit, _ = make([tool_call("area", width=1, height=1)], "x", tools=[area], configure=configure)
    await kit.prompt("go")

    step = ["prepare_step", "edit_prompt"]
    expected = ["before_turn", *step, "before_tool", "after_tool", *step, "after_turn"]
    by_priority = [name for name in order if not name.endswith(" late")]
    assert by_priority == expected
    late = [name.removesuffix(" late") for name in order if name.endswith(" late")]
    assert late in (expected, by_priority)


async def test_callbacks_of_one_call_are_the_bus(make: Any) -> None:
    """S2: a subscription for the length of a call sees what any other subscriber sees; there is no second path."""
    kit, _ = make("a b")
    one: list[Any] = []
    with record_events(kit) as log, kit.subscribe(one.append, inline=True):
        await kit.prompt("x")

    assert one == list(log)
    assert "on_" not in " ".join(PromptOptions.__dataclass_fields__)


# ---------------------------------------------------------------- stress


def test_a_thousand_rounds_of_threads_tasks_and_stops() -> None:
    """S75: under asyncio's debug mode; after each round the laws hold and the Kit is free."""
    engine.loop.call_soon_threadsafe(engine.loop.set_debug, True)
    try:
        asyncio.run(_rounds(1_000), debug=True)
    finally:
        engine.loop.call_soon_threadsafe(engine.loop.set_debug, False)


async def _rounds(count: int) -> None:
    rng = random.Random(11)
    kits = [_stress_kit() for _ in range(4)]
    for first in range(0, count, 4):
        await asyncio.gather(*(_round(kit, rng, first + i) for i, kit in enumerate(kits)))
        if first % 100 == 0:
            for kit in kits:
                await kit.clear_conversation()
                kit.clear_queue()
    for kit in kits:
        assert not kit.is_running
        await kit.aclose()


def _stress_kit() -> Kit:
    turn = iter(range(1 << 30))

    def reply(request: Any) -> list[Any]:
        with_tool = next(turn) % 3 == 0 and request.messages[-1].role != "tool"
        return [tool_call("area", width=1, height=1)] if with_tool else [text("a b", chunks=1)]

    return Kit(
        provider=ScriptedProvider(reply, repeat_last=True),
        session="memory",
        tools=[area],
        permissions="auto",
        max_steps=3,
    )


async def _round(kit: Kit, rng: random.Random, number: int) -> None:
    task = asyncio.ensure_future(kit.prompt(f"round {number}"))
    receipts = []
    for _ in range(rng.randrange(4)):
        await asyncio.sleep(0)
    match number % 8:
        case 0:
            threading.Thread(target=kit.abort).start()
        case 1:
            receipts = [await asyncio.to_thread(kit.queue_steer, "s", now=rng.random() < 0.5)]
        case 2:
            task.cancel()
        case 3:
            receipts = [kit.queue_follow_up("f"), kit.queue_steer("s")]
            kit.abort()
    await asyncio.gather(task, return_exceptions=True)
    kit.abort()
    await until(lambda: not kit.is_running)
    assert all(receipt.state in ("committed", "returned") for receipt in receipts)
    messages = kit.messages
    calls = [c.call_id for m in messages if isinstance(m, Assistant) for c in m.tool_calls]
    assert sorted(calls) == sorted(m.call_id for m in messages if isinstance(m, ToolResult))


INTERRUPTS = """
import asyncio, os, random, signal, threading, time
from kit_jupyter import Kit
from kit_jupyter import events as ev
from kit_jupyter.loop import engine
from kit_jupyter.messages import Assistant, ToolResult
from kit_jupyter.testing import ScriptedProvider, delay, record_events, text, tool_call, unanswered_calls

signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent in the background has it ignored
engine.loop.call_soon_threadsafe(engine.loop.set_debug, True)
going = threading.Event()

def work(n: int) -> str:
    "Works."
    going.set()
    time.sleep(30)
    return "never"

async def wait(n: int) -> str:
    "Waits."
    going.set()
    await asyncio.sleep(30)
    return "never"

kit = Kit(provider=ScriptedProvider(), session="memory", tools=[work, wait], permissions="auto")
kit.subscribe(lambda event: going.set(), ev.TextStart, inline=True)
rng = random.Random(5)

def interrupt() -> None:
    going.wait(20)
    time.sleep(0.04 + rng.random() * 0.01)
    os.kill(os.getpid(), signal.SIGINT)

slowest = 0.0
for number in range(60):
    provider = kit._provider_given
    call = [tool_call(rng.choice(["work", "wait"]), n=number)]
    provider._replies = [call if number % 2 else [text("half a word"), delay(30)], "never"]
    going.clear()
    sender = threading.Thread(target=interrupt)
    with record_events(kit) as log:
        begun = time.monotonic()
        sender.start()
        try:
            came = kit.prompt_sync(f"round {number}")
        except KeyboardInterrupt:
            pass
        else:
            raise AssertionError(("it was not interrupted", number, came, log.names))
        slowest = max(slowest, time.monotonic() - begun)
        while kit.is_running and time.monotonic() < begun + 20:
            time.sleep(0.001)
    sender.join()
    assert not kit.is_running, number
    assert isinstance(log[-1], ev.TurnEnd), log.names
    assert log[-1].stop_reason == "aborted", (number, [m.parts for m in kit.messages[-4:]], log.names)
    assert len(log.of(ev.MessageStart)) == len(log.of(ev.MessageEnd))
    assert len(log.of(ev.ToolCall)) == len(log.of(ev.ToolResultEvent))
    if number % 20 == 0:
        provider._replies = ["fine"]
        assert str(kit.prompt_sync("and now?")) == "fine"
        assert unanswered_calls(provider.last_request) == []
        kit.clear_conversation_sync()
calls = [c.call_id for m in kit.messages if isinstance(m, Assistant) for c in m.tool_calls]
assert sorted(calls) == sorted(m.call_id for m in kit.messages if isinstance(m, ToolResult))
kit.close()
print("done", slowest < 20)
"""


def test_interrupts_of_a_script_stop_model_and_tools_each_time() -> None:
    """S52, S75: Ctrl-C in a stream, in code and in an awaiting tool, in asyncio's debug mode: closed each time."""
    assert _python(INTERRUPTS).split() == ["done", "True"]
