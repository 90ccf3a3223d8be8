"""The panel's side in the kernel: verbs from a browser, branches, sessions, whole states."""

from __future__ import annotations

from typing import Any

import pytest
from kernels import Kernel


@pytest.fixture
def panel(nb: Kernel) -> Kernel:
    """A fresh panel; its comm id is in `panel_id` of the kernel."""
    nb.ok("nbk = notebook_of(get_ipython())\nnbk.panel = None")
    return nb


def _open(nb: Kernel) -> tuple[str, str]:
    msg = nb.send("p = kit.panel()")
    nb.wait(msg)
    return msg, str(nb.value("p.view.model_id"))


def _frames(nb: Kernel, comm: str) -> list[dict[str, Any]]:
    return [
        m
        for one in nb.log
        if one["msg_type"] == "comm_msg" and one["content"]["comm_id"] == comm
        for m in one["content"]["data"].get("content", {}).get("m", ())
    ]


def _ended(nb: Kernel, comm: str, count: int) -> None:
    nb.pump(lambda: len([m for m in _frames(nb, comm) if m["kind"] == "end"]) >= count)


def test_submit_steer_and_branches(panel: Kernel) -> None:
    """Point 8, U43: a prompt from the composer; retry makes a branch; the switcher brings the old one back."""
    panel.script('[text("one")]', '[text("two")]', '[text("three")]')
    _, comm = _open(panel)

    panel.comm(comm, {"kind": "submit", "text": "ask", "when_busy": "steer"})
    _ended(panel, comm, 1)
    key = panel.value("p.view.turns[-1].key")
    panel.comm(comm, {"kind": "fork", "turn": key, "do": "retry"})
    _ended(panel, comm, 2)
    panel.ok("p.repaint()")

    assert panel.value("[t.text for t in p.view.turns]") == ["two"]
    branches = panel.value("p.view.turns[-1].branches")
    assert len(branches) == 2
    key = panel.value("p.view.turns[-1].key")
    panel.comm(comm, {"kind": "fork", "turn": key, "do": "branch", "entry": branches[0]})
    panel.pump(lambda: panel.value("[t.text for t in p.view.turns]") == ["one"])
    assert panel.value("[m.parts[0].text for m in kit.messages]") == ["ask", "one"]


def test_the_panel_follows_the_kit_of_the_namespace(panel: Kernel) -> None:
    """README: "`kit` in your namespace is the session itself": after ``kit = Kit(…)`` the panel talks to that one."""
    panel.script('[text("old")]')
    panel.ok("%kit hello")
    _, comm = _open(panel)
    panel.ok("old = kit")

    panel.ok("kit = Kit(provider=ScriptedProvider([text('new')], [text('newer')]), session='memory')")
    panel.comm(comm, {"kind": "submit", "text": "who are you?"})
    panel.pump(lambda: panel.value("len(kit.messages)") == 2)

    assert panel.value("(p.kit is kit, p.view.kit is kit)") == (True, True)
    panel.pump(lambda: panel.value("[t.text for t in p.view.turns]") == ["new"])
    assert panel.value("len(old.messages)") == 2
    panel.ok("old.panel()\n1")
    assert panel.value("p.kit is old") is True, "opened on it: it stays"
    panel.ok("%kit_panel")
    assert panel.value("p.kit is kit") is True
    panel.ok("kit = old")
    assert panel.value("[t.text for t in p.view.turns]") == ["old"]


def test_questions_that_wait_in_the_new_kit_are_shown(panel: Kernel) -> None:
    """A Kit that asks already when it becomes `kit`: the panel has its question, and can answer it."""
    _, comm = _open(panel)
    panel.ok(
        "import threading\n@tool(approve='ask')\ndef act() -> str:\n    'Acts.'\n    return 'acted'\n"
        "asking = Kit(provider=ScriptedProvider([tool_call('act')], [text('done')]), tools=[act], session='memory', "
        "permissions='ask')\nasking.is_attended = True\n"
        "t = threading.Thread(target=asking.prompt_sync, args=('go',), daemon=True); t.start()"
    )
    panel.pump(lambda: panel.value("len(asking.pending_approvals)") == 1)

    panel.ok("kit = asking")

    panel.pump(lambda: panel.value("[i.facts.get('status') for t in p.view.turns for i in t.items]") == ["asking"])
    call = panel.value("kit.pending_approvals[0].call_id")
    panel.comm(comm, {"kind": "approve", "call": call, "allow": True})
    panel.pump(lambda: panel.value("[m.role for m in kit.messages][-1]") == "assistant")
    panel.pump(lambda: panel.value("len(kit.pending_approvals)") == 0)


def test_marks_in_the_composer(panel: Kernel) -> None:
    """U52: completion, the chip, and what is sent are one."""
    panel.ok("df_of_mine = {'a': 1}")
    panel.script('[text("ok")]')
    _, comm = _open(panel)

    panel.comm(comm, {"kind": "ask", "what": "complete", "text": "df_of"})
    panel.pump(lambda: any(m.get("completions", {}).get("names") == ["df_of_mine"] for m in _frames(panel, comm)))
    panel.comm(comm, {"kind": "ask", "what": "chip", "mark": "df_of_mine"})
    panel.pump(lambda: any(m.get("chip") for m in _frames(panel, comm)))
    panel.comm(comm, {"kind": "submit", "text": "about @df_of_mine"})
    _ended(panel, comm, 1)

    preview = next(m["chip"]["preview"] for m in _frames(panel, comm) if m.get("chip"))
    assert panel.value("provider.requests[-1].messages[-1].parts[1].text") == preview


def test_an_empty_prompt_is_said_in_the_panel(panel: Kernel) -> None:
    """Bad input: white space only; nothing is sent, nothing breaks."""
    panel.script('[text("never")]')
    _, comm = _open(panel)

    panel.comm(comm, {"kind": "submit", "text": "   \n"})
    panel.pump(lambda: any("empty" in str(m.get("bar", {}).get("note")) for m in _frames(panel, comm)))

    assert panel.value("len(provider.requests)") == 0


@pytest.mark.parametrize(
    "message",
    [
        {"kind": "nonsense"},
        {"kind": "approve", "call": "no-such", "allow": True},
        {"kind": "fork", "turn": "x", "do": "branch"},
        {"kind": "fork", "turn": None, "do": "retry"},
        {"kind": "ask", "what": "model", "name": "no slash"},
        {"kind": "abort"},
        {"kind": "ask", "what": "session", "name": "none"},
        {"kind": "steer", "text": ""},
        {"kind": "ask"},
        {"kind": "follow_up"},
        {"kind": "ask", "what": "module", "name": "../../etc/passwd"},
        {"kind": "ask", "what": "chip", "mark": "file:/etc/passwd"},
        {"kind": "submit"},
        {"kind": "approve"},
        {"kind": "ask", "what": "sync", "n": "x"},
        {"kind": 7},
        "text",
        None,
        [],
    ],
)
def test_whatever_a_browser_says_breaks_nothing(panel: Kernel, message: Any) -> None:
    """Design §4: comm threads own nothing; bad messages are ignored or answered with a note."""
    panel.script('[text("still fine")]')
    _, comm = _open(panel)

    panel.comm(comm, message)

    assert panel.ok("%%kit\nhi").kit()["text/plain"] == "still fine"
    assert not [m for m in panel.log if m["msg_type"] == "stream" and "Traceback" in m["content"]["text"]]
    assert panel.value("type(p.view.get_state()['view']['turns']).__name__") == "list"


def test_the_whole_is_what_the_frames_said(panel: Kernel) -> None:
    """Design §8: a reopened page gets, by the trait, exactly what the frames brought."""
    panel.ok("def f() -> str:\n    'F.'\n    return 'told'")
    panel.script("[thinking('hm'), tool_call('f')]", "[text('done 😀', chunks=3)]", more=", tools=[f]")
    _, comm = _open(panel)
    panel.ok("%%kit\nhi")
    _ended(panel, comm, 1)

    items: dict[str, dict[str, Any]] = {}
    for m in _frames(panel, comm):
        if m["kind"] == "commit":
            items.setdefault(m["item"]["id"], {}).update(m["item"])
        elif m["kind"] == "delta":
            for item_id, field, at, text in m["d"]:
                have = items[item_id].get(field, "")
                assert at == len(have.encode("utf-16-le")) // 2
                items[item_id][field] = have + text
    whole = panel.value("[i for t in p.view.get_state()['view']['turns'] for i in t['items']]")
    assert list(items.values()) == whole


def test_a_resumed_session_is_painted_without_a_model_call(panel: Kernel) -> None:
    """U39: another kernel's session, as it was."""
    panel.ok("provider = ScriptedProvider([text('kept')])\nkit = Kit(provider=provider)")
    panel.ok("%%kit\nremember")
    where = panel.value("str(kit.session.path)")
    panel.ok("kit.session.sync(); kit.close()")
    panel.script("[text('never')]")
    _open(panel)

    panel.ok(f"%kit_resume {where}")

    assert panel.value("[(t.prompt, t.text) for t in p.view.turns]") == [("remember", "kept")]
    assert panel.value("len(provider.requests)") == 0
    assert "kept" in panel.ok("%kit_show").shown[0]["data"]["text/plain"]
