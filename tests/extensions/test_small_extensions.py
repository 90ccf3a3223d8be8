"""Tasks, rules, system info: small guests, each complete."""

from __future__ import annotations

import contextlib

import pytest

from kit_jupyter import Kit, Session
from kit_jupyter.errors import BadArguments, KitError, ToolError
from kit_jupyter.events import Domain, Reset, Warned
from kit_jupyter.extensions.rules import Rules
from kit_jupyter.extensions.system_info import SystemInfo, probe
from kit_jupyter.extensions.tasks import LIST_CHANGED, Task, Tasks
from kit_jupyter.testing import ScriptedProvider, record_events, text, tool_call

# ---------------------------------------------------------------- tasks


def test_the_model_keeps_a_list_and_each_change_is_an_event():
    """S215: list tool, ListChanged with the whole list; through a Kit."""
    tasks = Tasks()
    provider = ScriptedProvider(
        [tool_call("tasks", tasks=[{"title": "Load", "status": "doing"}, {"title": "Fit"}])], [text("On it.")]
    )
    kit = Kit(provider=provider, session="memory", extensions=[tasks])

    with record_events(kit) as log:
        kit.prompt_sync("fit it")

    assert tasks.items == (Task("Load", "doing"), Task("Fit", "open"))
    (changed,) = log.of(Domain)
    assert (changed.name, changed.content) == (
        LIST_CHANGED,
        [{"title": "Load", "status": "doing"}, {"title": "Fit", "status": "open"}],
    )
    assert "task list" in provider.requests[0].system


def test_a_clear_empties_the_list_and_says_so_after_reset():
    """S174, S179, S180: Reset, then ListChanged with an empty list, both before the clear returns."""
    tasks = Tasks()
    kit = Kit(provider=ScriptedProvider(), session="memory", extensions=[tasks])
    tasks.write([Task("Load")])

    with record_events(kit) as log:
        kit.clear_conversation_sync()
        seen = [(type(e), getattr(e, "content", None)) for e in log.of(Reset, Domain)]

    assert seen == [(Reset, None), (Domain, [])]
    assert tasks.items == ()


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ([Task("a", "doing"), Task("b", "doing")], "at most one"),
        ([Task("  ")], "needs a title"),
        ([Task("x")] * 101, "at most 100"),
    ],
)
def test_a_list_that_makes_no_sense_is_refused(bad, words):
    """Bad input: the model is told what to change; the list stays."""
    tasks = Tasks()
    tasks.write([Task("kept")])

    with pytest.raises(ToolError, match=words):
        tasks.write(bad)

    assert tasks.items == (Task("kept"),)


def test_an_unknown_status_is_told_with_the_known_ones(hosted):
    """Bad input: from the schema."""
    tool = hosted(Tasks()).tool("tasks")

    with pytest.raises(BadArguments, match="status"):
        tool.validate({"tasks": [{"title": "x", "status": "later"}]})


def test_the_list_shows_in_a_notebook_escaped():
    """HTML and Markdown with the titles as text."""
    tasks = Tasks()
    tasks.write([Task("<b>Fit</b>", "done")])

    assert "[x] &lt;b&gt;Fit" in tasks._repr_html_()
    assert "Fit" in tasks._repr_markdown_()
    assert repr(tasks) == "<Tasks 1>"


# ---------------------------------------------------------------- rules


def test_rules_are_read_again_at_each_clear(tmp_path):
    """S219, S191: MACHINE.md is re-read on clear, and stays the same between clears."""
    file = tmp_path / "MACHINE.md"
    file.write_text("Use one core.")
    provider = ScriptedProvider("a", "b", "c")
    kit = Kit(provider=provider, session="memory", extensions=[Rules(tmp_path)])
    kit.prompt_sync("1")
    file.write_text("Use two cores.")
    kit.prompt_sync("2")
    kit.clear_conversation_sync()
    kit.prompt_sync("3")

    one, two, three = (request.system for request in provider.requests)
    assert "Use one core." in one
    assert one == two
    assert "Use two cores." in three
    assert "one core" not in three


def test_the_nearer_file_comes_later(tmp_path, own_config):
    """User's folder, project root, down to the working folder."""
    (tmp_path / ".git").mkdir()
    near = tmp_path / "a" / "b"
    near.mkdir(parents=True)
    for folder, words in ((own_config, "user"), (tmp_path, "root"), (near, "near")):
        (folder / "AGENTS.md").write_text(words)

    sections = Rules(near).system_prompt_snippets()

    assert [s.rsplit("\n", 1)[1] for s in sections] == ["user", "root", "near"]


def test_odd_rule_files(tmp_path):
    """Bad input: empty, not UTF-8, too long: dropped, replaced, cut with a note."""
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "EMPTY.md").write_text(" \n")
    (tmp_path / "LATIN.md").write_bytes(b"na\xefve")
    (tmp_path / "LONG.md").write_text("x" * 40_000)

    latin, long = Rules(tmp_path, names=["EMPTY.md", "LATIN.md", "LONG.md", "NONE.md"]).system_prompt_snippets()

    assert "na\ufffdve" in latin
    assert "cut here: the file has 40000 characters" in long


def test_project_rules_count_as_soft_untrusted_text(tmp_path, own_config, hosted):
    """The report knows that a clone's AGENTS.md was written by others."""
    (own_config / "AGENTS.md").write_text("mine")
    (tmp_path / "pyproject.toml").touch()
    rules = Rules(tmp_path)
    assert rules.trifecta_contribution([]) is None

    (tmp_path / "AGENTS.md").write_text("theirs")
    assert rules.trifecta_contribution([]).legs.untrusted == "soft"


# ---------------------------------------------------------------- system info


def test_the_machine_is_probed_once():
    """S220, S193: one probe over construction and three clears; the section stays the same bytes."""
    probed = []
    info = SystemInfo(lambda: probed.append(1) or "Python 3")
    kit = Kit(provider=ScriptedProvider(), session="memory", extensions=[info])
    before = kit.system
    for _ in range(3):
        kit.clear_conversation_sync()

    assert len(probed) == 1
    assert kit.system == before
    assert "This machine:\nPython 3" in before


def test_the_probe_tells_python_kernel_packages_and_hardware():
    """S220."""
    import platform

    lines = probe().splitlines()

    assert lines[0].startswith(f"Python {platform.python_version()}, ipykernel")
    assert "core" in lines[1]
    assert any(line.startswith("Installed: ") for line in lines)


# ---------------------------------------------------------------- on other branches and sessions


def with_tasks(*replies, **more):
    tasks = Tasks()
    kit = Kit(provider=ScriptedProvider(*replies), extensions=[tasks], **{"session": "memory", **more})
    return kit, tasks


def listing(title):
    return [tool_call("tasks", tasks=[{"title": title, "status": "doing"}])]


async def test_the_list_follows_the_branch():
    """S174: back before it was written it is empty, forward again it is there; each change is told."""
    kit, tasks = with_tasks(listing("Load"), "ok", listing("Fit"), "ok", "a", "b", "c")
    await kit.prompt("one")
    after_one = kit.session.leaf
    await kit.prompt("two")
    after_two = kit.session.leaf
    told = []
    kit.subscribe(lambda e: told.append([one["title"] for one in e.content]), Domain, inline=True)

    for leaf, titles in ((after_one, ["Load"]), (None, []), (after_two, ["Fit"])):
        await kit.branch(leaf)
        await kit.prompt("go on")
        assert [task.title for task in tasks.items] == titles
    assert told == [["Load"], [], ["Fit"]]


async def test_the_list_of_a_resumed_session_is_taken_up_and_a_strangers_is_not(tmp_path, monkeypatch):
    """S174: a new Kit on the file, and a Kit that goes on with another session."""
    monkeypatch.setenv("KIT_DATA_DIR", str(tmp_path))
    kit, _ = with_tasks(listing("Load"), "ok", session=None)
    await kit.prompt("one")
    path = kit.session.path
    await kit.aclose()

    again, resumed = with_tasks("ok", session=path)
    assert [task.title for task in resumed.items] == ["Load"]
    fork = await again.fork()
    await again.resume(Session.memory())
    await again.prompt("else")
    assert resumed.items == ()
    await again.resume(fork)
    with contextlib.suppress(KitError):  # the script has ended; the hook came before
        await again.prompt("back")
    assert [task.title for task in resumed.items] == ["Load"]
    await again.aclose()


async def test_a_list_that_you_wrote_yourself_stays():
    """A list written by code is not in the talk; a message does not undo it."""
    kit, tasks = with_tasks("a", "b")
    tasks.write([Task("Mine")])
    await kit.prompt("one")
    await kit.prompt("two")

    assert [task.title for task in tasks.items] == ["Mine"]


def test_rules_that_are_a_link_out_of_the_project_are_not_read(tmp_path):
    """Bad input: AGENTS.md of a clone that points to your secrets; a link within the project is fine."""
    secret = tmp_path / "secret"
    secret.write_text("the key")
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").touch()
    (project / "AGENTS.md").symlink_to(secret)
    (project / "docs.md").write_text("Be kind.")
    (project / "MACHINE.md").symlink_to("docs.md")
    told = []
    kit = Kit(
        provider=ScriptedProvider("a"),
        session="memory",
        extensions=[Rules(project)],
        configure=lambda c: c.add_listener(lambda e: told.append(e.message), Warned),
    )

    kit.clear_conversation_sync()
    kit.bus.settle()

    assert "the key" not in kit.system
    assert "Be kind." in kit.system
    assert [text for text in told if "leads out of the project" in text]
