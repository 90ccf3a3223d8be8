"""Extensions in a real kernel: the question about a project's skills, and what a clear does (issue 4)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from kernels import Kernel, Said, kernel

SKILL = "---\nname: deploy\ndescription: Ship it.\n---\n\nDo it well.\n"
SENT = "'\\n'.join(p.text for m in provider.last_request.messages for p in m.parts if p.type == 'text')"


@pytest.fixture
def project(nb: Kernel, tmp_path: Path) -> Path:
    """The kernel in a project that brings a skill, with a configuration of the test's own."""
    lay_out(nb, tmp_path)
    return tmp_path / "project"


def lay_out(kernel: Kernel, tmp_path: Path) -> None:
    place = tmp_path / "project" / ".agents" / "skills" / "deploy"
    place.mkdir(parents=True)
    (tmp_path / "project" / "pyproject.toml").touch()
    (place / "SKILL.md").write_text(SKILL)
    kernel.ok(f"os.environ['KIT_CONFIG_DIR'] = {str(tmp_path / 'config')!r}; os.chdir({str(tmp_path / 'project')!r})")
    kernel.ok(f"os.environ['HOME'] = {str(tmp_path)!r}\nfrom kit_jupyter.extensions import Skills")


def question_in(kernel: Kernel, msg_id: str) -> str:
    """Call id of the question that the cell's view shows; waits for it."""
    found: list[str] = []

    def shown() -> bool:
        frames = Said({}, kernel.mine(msg_id), 0).frames
        items = [m["item"] for frame in frames for m in frame["m"] if m["kind"] == "commit"]
        found[:] = [item["call_id"] for item in items if item.get("status") == "asking"]
        return bool(found)

    kernel.pump(shown)
    return found[0]


@pytest.mark.parametrize("road", ["view", "magic", "control"])
@pytest.mark.parametrize("allow", [True, False])
def test_a_person_is_asked_about_a_projects_skills(nb: Kernel, project: Path, road: str, allow: bool) -> None:
    """Trust question: shown in the cell's view with a call id, answered there, by a magic or the control channel."""
    nb.script("[text('fine')]", more=", extensions=[Skills()]")
    msg_id = nb.send("%%kit\nship it")
    view = nb.view_of(msg_id)
    nb.comm(view, {"kind": "ask", "what": "sync", "n": -1})
    call = question_in(nb, msg_id)
    lane = ""
    if road == "view":
        nb.comm(view, {"kind": "approve", "call": call, "allow": allow, "reason": "", "scope": "always"})
    elif road == "magic":
        lane = nb.send("%kit_approve --always" if allow else "%kit_deny not mine")
    else:
        assert nb.control({"op": "approve", "call": call, "allow": allow})["answered"]
    said = nb.wait(msg_id)
    if lane:
        nb.pump(lambda: nb.is_idle(lane))

    assert said.reply["status"] == "ok"
    assert ("- deploy: Ship it." in nb.value(SENT)) is allow
    item = said.kit()["application/vnd.kit.turn+json"]["turn"]["items"][0]
    assert (item["name"], item["status"]) == ("skills.project", "done" if allow else "denied")
    if road != "control":
        nb.script("[text('fine')]", more=", extensions=[Skills()]")
        assert nb.value("'- deploy: Ship it.' in kit.system") is allow


def test_a_front_end_without_widgets_asks_by_stdin(nb: Kernel, project: Path) -> None:
    """Trust question: it comes before the cell's view is there, and is put by input() all the same."""
    nb.script("[text('fine')]", more=", extensions=[Skills()]")
    nb.ok("os.environ['KIT_UI'] = 'updates'")
    try:
        msg_id = nb.send("%%kit\nship it", allow_stdin=True)
        asked = nb.client.get_stdin_msg(timeout=20)
        nb.client.input("a")
        nb.wait(msg_id)
    finally:
        nb.ok("os.environ['KIT_UI'] = ''")

    assert "brings skills: deploy" in asked["content"]["prompt"]
    assert "- deploy: Ship it." in nb.value(SENT)
    assert len(nb.value("[r.action for r in kit.policy.store.rules]")) == 1


def test_nobody_to_ask_means_no_and_says_so_once(nb: Kernel, project: Path) -> None:
    """Trust question: without widgets and without input nothing hangs; the second cell does not ask again."""
    nb.script("[text('fine')]", "[text('fine')]", more=", extensions=[Skills()]")
    nb.ok("os.environ['KIT_UI'] = 'updates'")
    try:
        first, second = nb.ok("%%kit\nship it"), nb.ok("%%kit\nand on")
    finally:
        nb.ok("os.environ['KIT_UI'] = ''")

    items = [said.kit()["application/vnd.kit.turn+json"]["turn"]["items"] for said in (first, second)]
    assert [item["status"] for item in items[0] if item["kind"] == "tool"] == ["denied"]
    assert [item["text"] for item in items[0] if item["kind"] == "notice" and "Skills(trust=True)" in item["text"]]
    assert [item["kind"] for item in items[1]] == ["text"]
    assert "deploy" not in nb.value(SENT)


@pytest.mark.parametrize("way", ["/clear", "%kit_new", "kit.clear_conversation_sync()", "%kit /clear"])
def test_every_way_to_clear_does_the_same(nb: Kernel, way: str) -> None:
    """S183, S171, S188: method, magic and slash command: one Reset, one sweep, snippets pulled again, nothing asked."""
    nb.ok(GUEST)
    nb.script("[text('one')]", "[text('two')]", more=", extensions=[Counts()]")
    nb.ok("kit.subscribe(lambda e: seen.append(type(e).__name__), Reset, inline=True)")
    nb.ok("%%kit\nhello")
    nb.ok("seen.clear()")

    said = nb.ok(f"%%kit\n{way}" if way == "/clear" else way)

    assert nb.value("seen") == ["snippets", "Reset", "reset"]
    assert nb.value("len(kit.messages)") == 0
    assert nb.value("len(provider.requests)") == 1
    assert not said.shown
    nb.ok("%%kit\nanew")
    assert nb.value("[m.parts[0].text for m in provider.last_request.messages]") == ["anew"]


GUEST = """
from kit_jupyter import Extension
from kit_jupyter.events import Reset
seen = []

class Counts(Extension):
    def system_prompt_snippets(self):
        seen.append("snippets")
        return []
    def on_conversation_reset(self, ctx):
        seen.append("reset")
"""


@pytest.mark.skipif(not os.environ.get("KIT_OTHER_PYTHON"), reason="KIT_OTHER_PYTHON names no older kernel's python")
def test_an_older_kernel_asks_by_stdin(tmp_path: Path) -> None:
    """Trust question: no comm is served while a cell waits there, so the question comes by input()."""
    env = {"XDG_DATA_HOME": str(tmp_path), "IPYTHONDIR": str(tmp_path / "ipython"), "KIT_UI": ""}
    with kernel(env, python=os.environ["KIT_OTHER_PYTHON"]) as old:
        lay_out(old, tmp_path)
        old.script("[text('fine')]", more=", extensions=[Skills()]")
        msg_id = old.send("%%kit\nship it", allow_stdin=True)
        asked = old.client.get_stdin_msg(timeout=20)
        old.client.input("y")
        old.wait(msg_id)

        assert "brings skills: deploy" in asked["content"]["prompt"]
        assert "- deploy: Ship it." in old.value(SENT)
