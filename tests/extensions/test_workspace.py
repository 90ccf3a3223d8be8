"""Workspace: a root, and no edit of what was not read."""

from __future__ import annotations

import json
import os

import pytest

from kit_jupyter import Kit, Session
from kit_jupyter.errors import ToolError
from kit_jupyter.extensions.workspace import Workspace
from kit_jupyter.messages import ToolCallPart
from kit_jupyter.testing import ScriptedProvider, text, tool_call
from kit_jupyter.tool import ToolOutcome


@pytest.fixture
def space(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    (root / "a.py").write_text("x = 1\ny = 2\n")
    (tmp_path / "secret.txt").write_text("no")
    return Workspace(root)


def test_an_edit_needs_a_read_first(space):
    """S216: refused with what to do; after a read it works, and a second edit needs no second read."""
    with pytest.raises(ToolError, match=r"read a\.py before"):
        space.edit("a.py", "x = 1", "x = 3")

    space.read("a.py")
    outcome = space.edit("a.py", "x = 1", "x = 3")
    space.edit("a.py", "y = 2", "y = 4")

    assert (space.root / "a.py").read_text() == "x = 3\ny = 4\n"
    assert "+x = 3" in outcome.details["diff"]


async def test_a_clear_empties_the_read_record(space, hosted):
    """S174, S216: conversation-scoped state goes."""
    host = hosted(space)
    space.read("a.py")
    assert len(space.read_record) == 1

    await host.reset()

    assert space.read_record == ()
    with pytest.raises(ToolError, match="before you edit"):
        space.edit("a.py", "x = 1", "x = 3")


def test_a_file_changed_on_disk_must_be_read_again(space):
    """Somebody else's change is not overwritten unseen."""
    space.read("a.py")
    (space.root / "a.py").write_text("x = 1\nz = 9\n")

    with pytest.raises(ToolError, match="has changed"):
        space.edit("a.py", "x = 1", "x = 3")


@pytest.mark.parametrize("path", ["../secret.txt", "/etc/passwd", "link/secret.txt", "~/x", "a\0b"])
def test_nothing_outside_the_root(space, path):
    """Bad input: a path that leaves the root, by dots, absolute, through a link."""
    (space.root / "link").symlink_to(space.root.parent)

    for act in (lambda: space.read(path), lambda: space.edit(path, "", "x"), lambda: space.list_files(path)):
        with pytest.raises(ToolError):
            act()


@pytest.mark.parametrize(("old", "words"), [("nope", "is not in the file"), ("= ", "is there 2 times"), ("", "exists")])
def test_an_edit_must_be_exact(space, old, words):
    """Bad input: the model is told why; the file is as it was."""
    space.read("a.py")

    with pytest.raises(ToolError, match=words):
        space.edit("a.py", old, "z")

    assert (space.root / "a.py").read_text() == "x = 1\ny = 2\n"


def test_files_that_are_no_text(space):
    """Bad input: binary, folder, missing, too large."""
    (space.root / "b.bin").write_bytes(b"\xff\xfe\x00")
    (space.root / "big.txt").write_text("x" * 2_000_001)

    for path, words in (("b.bin", "UTF-8"), (".", "folder"), ("none", "no file"), ("big.txt", "more than")):
        with pytest.raises(ToolError, match=words):
            space.read(path)


def test_line_ends_and_mode_survive_an_edit(space):
    """Only the replaced piece changes."""
    file = space.root / "w.sh"
    file.write_bytes(b"a\r\nb\r\n")
    file.chmod(0o755)
    space.read("w.sh")

    space.edit("w.sh", "b", "c")

    assert file.read_bytes() == b"a\r\nc\r\n"
    assert file.stat().st_mode & 0o777 == 0o755
    assert [p.name for p in space.root.iterdir() if p.name.startswith(".w.sh")] == []


def test_new_files_and_listing(space):
    """An empty `old` creates; a pattern lists; a pattern cannot climb."""
    space.edit("pkg/new.py", "", "pass\n")

    assert space.list_files(pattern="**/*.py").splitlines() == ["a.py", "pkg/new.py"]
    with pytest.raises(ToolError, match="leaves"):
        space.list_files(pattern="../*")


def call(name, **arguments):
    return ToolCallPart("c", name, json.dumps(arguments)), arguments


async def test_other_file_tools_are_watched(space, hosted):
    """S216: the gate blocks an edit by another tool until its reader has read the file."""
    host = hosted(space)
    edit, arguments = call("edit", path="a.py", text="z")

    assert (await host.before_tool(edit, arguments)).block
    read, read_arguments = call("read", path="a.py")
    assert not (await host.before_tool(read, read_arguments)).block
    await host.after_tool(read, ToolOutcome.of_text("x = 1"))
    assert not (await host.before_tool(edit, arguments)).block
    outside, outside_arguments = call("read", path="../secret.txt")
    gate = await host.before_tool(outside, outside_arguments)
    assert gate.block
    assert "outside" in gate.reason
    new, new_arguments = call("write", path="new.txt", text="z")
    assert not (await host.before_tool(new, new_arguments)).block


async def test_a_failed_read_is_no_read(space, hosted):
    """An error result leaves no record."""
    host = hosted(space)
    read, _ = call("read", path="a.py")

    await host.after_tool(read, ToolOutcome.of_text("denied", is_error=True))

    assert space.read_record == ()


def test_through_a_kit(space):
    """The model is refused, reads, and edits; its prompt names the root."""
    provider = ScriptedProvider(
        [tool_call("workspace_edit", path="a.py", old="x = 1", new="x = 5")],
        [tool_call("workspace_read", path="a.py")],
        [tool_call("workspace_edit", path="a.py", old="x = 1", new="x = 5")],
        [text("done")],
    )
    kit = Kit(provider=provider, session="memory", extensions=[space], permissions="auto")

    kit.prompt_sync("set x to 5")

    results = [m.parts[0].parts[0].text for m in provider.last_request.messages if m.role == "tool"]
    assert results[0] == "read a.py before you edit it"
    assert results[2] == "edited a.py"
    assert str(space.root) in provider.requests[0].system


@pytest.mark.parametrize("move", ["branch", "other session"])
async def test_a_file_read_on_another_branch_must_be_read_again(tmp_path, move):
    """S216: where the talk does not hold the file, the model has not seen it."""
    (tmp_path / "a.txt").write_text("one")
    workspace = Workspace(tmp_path)
    edit = [tool_call("workspace_edit", path="a.txt", old="one", new="two")]
    provider = ScriptedProvider([tool_call("workspace_read", path="a.txt")], "read", edit, "no", repeat_last=True)
    kit = Kit(provider=provider, session="memory", extensions=[workspace], permissions="auto")
    await kit.prompt("read it")
    if move == "branch":
        await kit.branch(None)
    else:
        await kit.resume(Session.memory())

    await kit.prompt("change it")

    result = provider.last_request.messages[-1].parts[0]
    assert "before you edit it" in result.parts[0].text
    assert (tmp_path / "a.txt").read_text() == "one"


async def test_a_fork_keeps_what_was_read(tmp_path):
    """S216: a fork holds the same talk up to there."""
    (tmp_path / "a.txt").write_text("one")
    workspace = Workspace(tmp_path)
    edit = [tool_call("workspace_edit", path="a.txt", old="one", new="two")]
    provider = ScriptedProvider([tool_call("workspace_read", path="a.txt")], "read", edit, "ok")
    kit = Kit(provider=provider, session="memory", extensions=[workspace], permissions="auto")
    await kit.prompt("read it")
    await kit.resume(await kit.fork())

    await kit.prompt("change it")

    assert (tmp_path / "a.txt").read_text() == "two"


def test_a_list_does_not_name_what_lies_behind_a_link_out(tmp_path):
    """Bad input: a link in the workspace to a folder outside; a pipe is not waited for."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").touch()
    root = tmp_path / "root"
    root.mkdir()
    (root / "in.txt").touch()
    (root / "link").symlink_to(outside)
    os.mkfifo(root / "pipe")
    workspace = Workspace(root)

    assert workspace.list_files(".", "**/*").splitlines() == ["in.txt", "pipe"]
    assert workspace.list_files(".", "link/*") == "(nothing)"
    with pytest.raises(ToolError, match="no regular file"):
        workspace.read("pipe")
