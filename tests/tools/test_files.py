"""File tools: inside the workspace, nothing lost, nothing escapes without a yes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from kit_jupyter.checkpoints import Checkpoints
from kit_jupyter.errors import BadArguments, ToolError, UsageError
from kit_jupyter.messages import MediaPart
from kit_jupyter.tools import workspace as workspace_room
from kit_jupyter.tools.files import (
    EditTool,
    GlobTool,
    GrepTool,
    LsTool,
    ReadTool,
    WriteTool,
    file_tools,
    replaced,
)
from kit_jupyter.tools.files.glob_pattern import glob_pattern
from kit_jupyter.tools.workspace import Workspace


@pytest.fixture
def root(tmp_path):
    """A small project."""
    (tmp_path / "project" / "src").mkdir(parents=True)
    project = tmp_path / "project"
    (project / "src" / "a.py").write_text("import os\n\n\ndef f(x):\n    return x + 1\n")
    (project / "src" / "b.txt").write_text("needle in text\n")
    (project / ".gitignore").write_text("*.log\nbuild/\n!keep.log\n")
    (project / "noise.log").write_text("needle\n")
    (project / "keep.log").write_text("needle\n")
    (project / "build").mkdir()
    (project / "build" / "out.txt").write_text("needle\n")
    (tmp_path / "outside.txt").write_text("private\n")
    return project


@pytest.fixture
def workspace(root):
    """Over it."""
    return Workspace(root)


def test_read_numbers_lines_and_goes_on(bench, workspace, root):
    """Offsets, limits, long lines, empty files."""
    (root / "long.txt").write_text("\n".join(f"line {i}" for i in range(1, 5001)) + "\n" + "x" * 10_000)
    (root / "empty.txt").write_text("")
    read = ReadTool(workspace)

    assert bench.run(read, path="src/a.py").text.splitlines()[3] == "    4\tdef f(x):"
    text = bench.run(read, path="long.txt", offset=10, limit=2).text
    assert text == "   10\tline 10\n   11\tline 11\n… 4,990 more lines; go on with offset=12"
    assert "(10,000 characters)" in bench.run(read, path="long.txt", offset=5001).text
    assert bench.run(read, path="empty.txt").text == "(the file is empty)"
    assert "src/" in bench.run(read, path=".").text


def test_read_pictures_notebooks_and_binaries(bench, workspace, root):
    """Pictures come as pictures, notebooks as cells with ids and outputs, other bytes are refused."""
    (root / "p.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"\0" * 20)
    cells = [
        {"cell_type": "markdown", "id": "m1", "source": ["# Title\n", "text"]},
        {"cell_type": "code", "id": "c1", "source": "1/0", "outputs": [
            {"output_type": "stream", "text": ["hi\n"]},
            {"output_type": "display_data", "data": {"image/png": "aGk=", "text/plain": "<fig>"}},
            {"output_type": "error", "traceback": ["\x1b[31mZeroDivisionError\x1b[0m"]},
        ]},
    ]  # fmt: skip
    (root / "n.ipynb").write_text(json.dumps({"cells": cells, "nbformat": 4, "nbformat_minor": 5, "metadata": {}}))
    (root / "x.bin").write_bytes(b"\0\1\2")
    read = ReadTool(workspace)

    assert isinstance(bench.run(read, path="p.png").parts[1], MediaPart)
    notebook = bench.run(read, path="n.ipynb")
    assert "--- cell 1 code c1\n1/0\n[output] hi\n" in notebook.text
    assert "[output] ZeroDivisionError" in notebook.text
    assert sum(isinstance(part, MediaPart) for part in notebook.parts) == 1
    with pytest.raises(ToolError, match="not text"):
        bench.run(read, path="x.bin")


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("src/a.py", True),
        (".", True),
        ("src/../src/a.py", True),
        ("../outside.txt", False),
        ("/etc/passwd", False),
        ("src/../../outside.txt", False),
        ("~/x", False),
        ("link", False),
        ("linkdir/outside.txt", False),
        ("inner", True),
    ],
)
def test_paths_are_judged_where_they_lead(workspace, root, text, inside):
    """`..`, absolute paths, home and links (bad input)."""
    (root / "link").symlink_to(root.parent / "outside.txt")
    (root / "linkdir").symlink_to(root.parent)
    (root / "inner").symlink_to(root / "src" / "a.py")

    assert workspace.resolve(text).inside is inside


@pytest.mark.parametrize("text", ["", " ", "a\0b", "\0"])
def test_no_paths(workspace, text):
    """Empty ones and NULs are told in one line (bad input)."""
    with pytest.raises(BadArguments, match="- path"):
        workspace.resolve(text)


@pytest.mark.parametrize("text", ["x" * 5_000, "a/" * 3_000 + "x", "x" * 300, "src/" + "é" * 200])
def test_long_paths_are_told_in_a_line(bench, workspace, text):
    """What the file system cannot hold is an error for the model, not a traceback, and nobody is asked (bad input)."""
    for make in file_tools(workspace):
        more = {"write": {"content": "x"}, "edit": {"old": "a", "new": "b"}, "grep": {"pattern": "x"}}
        more["glob"] = {"pattern": "*"}
        with pytest.raises(BadArguments) as error:
            make.validate({"path": text, **more.get(make.name, {})})
        assert "- path: too long (" in error.value.message
        assert len(error.value.message) < 250
        assert "\n" not in error.value.message.strip()


def test_a_hard_link_to_a_file_for_secrets_asks(bench, workspace, root):
    """A second name opens nothing: reading asks, grep through the folder leaves it out; writing is as ever."""
    (root / ".env").write_text("needle=PRIVATE\n")
    os.link(root / ".env", root / "notes.txt")
    os.link(root.parent / "outside.txt", root / "outside-too.txt")

    for name in ("notes.txt", "outside-too.txt"):
        for tool in (ReadTool(workspace), GrepTool(workspace)):
            decision = bench.decide(tool, "auto", path=name, pattern="x")
            assert decision.effect == "ask"
            assert "other names" in decision.question
        assert bench.decide(ReadTool(workspace), "read-only", path=name).effect == "deny"
    assert bench.decide(WriteTool(workspace), "auto", path="notes.txt", content="x").effect == "allow"
    assert bench.decide(ReadTool(workspace), path="src/b.txt").effect == "allow"
    found = bench.run(GrepTool(workspace), pattern="needle", path=".").text
    assert "src/b.txt" in found
    assert "PRIVATE" not in found


@pytest.mark.parametrize("link", ["soft", "folder", "hard"])
def test_a_link_put_in_after_the_question_is_refused(bench, workspace, root, link):
    """Between a person's yes and the opening there may be minutes: what they said yes to is what is opened."""
    read, write = ReadTool(workspace), WriteTool(workspace)
    (root.parent / "b.txt").write_text("stolen")
    assert bench.decide(read, path="src/b.txt").effect == "allow"
    bench.decide(write, path="src/new.txt", content="x")
    if link == "folder":
        (root / "src").rename(root / "moved")
        (root / "src").symlink_to(root.parent)
    else:
        (root / "src" / "b.txt").unlink()
        if link == "soft":
            (root / "src" / "b.txt").symlink_to(root.parent / "b.txt")
            (root / "src" / "new.txt").symlink_to(root.parent / "new.txt")
        else:
            os.link(root.parent / "b.txt", root / "src" / "b.txt")

    with pytest.raises(ToolError, match="leads elsewhere"):
        bench.run(read, path="src/b.txt")
    if link != "hard":
        with pytest.raises(ToolError, match="leads elsewhere"):
            bench.run(write, path="src/new.txt", content="x")
    assert not (root.parent / "new.txt").exists()


def test_permissions(bench, workspace, root):
    """Inside: reading is free, changing asks. Outside and secrets always ask, even in auto; hooks too."""
    read, write, edit, grep = ReadTool(workspace), WriteTool(workspace), EditTool(workspace), GrepTool(workspace)
    (root / "link").symlink_to(root.parent / "outside.txt")

    assert bench.decide(read, path="src/a.py").effect == "allow"
    assert bench.decide(read, "auto", path="link").effect == "ask"
    assert bench.decide(read, "auto", path="../outside.txt").effect == "ask"
    assert bench.decide(read, "read-only", path="../outside.txt").effect == "deny"
    for secret in (".env", "sub/.env.local", "id_rsa", "server.pem", ".aws/credentials", ".git-credentials"):
        assert bench.decide(read, "auto", path=secret).effect == "ask", secret
    assert bench.decide(read, "ask", path=".env.example").effect == "allow"
    assert bench.decide(write, path="new.txt", content="x").effect == "ask"
    assert bench.decide(write, "auto", path="new.txt", content="x").effect == "allow"
    assert bench.decide(write, "auto", path=".git/hooks/pre-commit", content="x").effect == "ask"
    assert bench.decide(write, "auto", path="link", content="x").effect == "ask"
    assert bench.decide(edit, "read-only", path="src/a.py", old="a", new="b").effect == "deny"
    assert bench.decide(edit, [("edit", "src/*", "allow")], path="src/a.py", old="a", new="b").effect == "allow"
    assert bench.decide(grep, "auto", pattern="x", path="/etc").effect == "ask"
    question = bench.decide(edit, path="src/a.py", old="x + 1", new="x + 2").question
    assert "-x + 1\n+x + 2" in question


def test_a_nul_in_a_path_is_told_before_anybody_is_asked(bench, workspace):
    """The arguments are refused; a policy that gets to see them all the same cannot judge them, and asks."""
    for make in (ReadTool(workspace), LsTool(workspace)):
        with pytest.raises(BadArguments, match="- path: not a path"):
            make.validate({"path": "a\0b"})
    assert bench.decide(ReadTool(workspace), "auto", path="a\0b").effect == "ask"


def test_write_and_edit_need_a_read(bench, workspace, root):
    """Nothing is overwritten unseen, or after someone else changed it."""
    write, edit, read = WriteTool(workspace), EditTool(workspace), ReadTool(workspace)
    made = bench.run(write, path="deep/new.txt", content="one\n")
    assert made.text.startswith("made deep/new.txt (+1 -0 lines)")
    assert bench.run(edit, path="deep/new.txt", old="one", new="two").text.startswith("changed deep/new.txt (+1 -1")

    with pytest.raises(ToolError, match=r"read src/a\.py before"):
        bench.run(edit, path="src/a.py", old="x", new="y")
    with pytest.raises(ToolError, match=r"read src/a\.py before"):
        bench.run(write, path="src/a.py", content="")
    bench.run(read, path="src/a.py")
    (root / "src" / "a.py").write_text("changed by someone else\n")
    with pytest.raises(ToolError, match="has changed since you read it"):
        bench.run(edit, path="src/a.py", old="changed", new="y")
    assert (root / "src" / "a.py").read_text() == "changed by someone else\n"


def test_the_mode_encoding_and_line_ends_stay(bench, workspace, root):
    """An edit changes what it says and nothing else."""
    path = root / "run.sh"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\nthree\r\n")
    path.chmod(0o755)
    bench.run(ReadTool(workspace), path="run.sh")
    outcome = bench.run(EditTool(workspace), path="run.sh", old="one\ntwo", new="1\n2")

    assert path.read_bytes() == b"\xef\xbb\xbf1\r\n2\r\nthree\r\n"
    assert path.stat().st_mode & 0o777 == 0o755
    assert "+1" in outcome.details["diff"]
    assert list(root.glob(".run.sh*")) == []


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_a_file_of_two_bytes_a_letter_is_edited_as_text(bench, workspace, root, encoding):
    """Windows writes such files; they were read as text and edited as bytes, which broke them."""
    path = root / "windows.txt"
    path.write_bytes("\ufeffα = 1\r\nb = 2\r\n".encode(encoding))
    assert "α = 1" in bench.run(ReadTool(workspace), path="windows.txt").text

    bench.run(EditTool(workspace), path="windows.txt", old="α = 1", new="α = 3")

    assert path.read_bytes() == "\ufeffα = 3\r\nb = 2\r\n".encode(encoding)


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"\x7fELF\0\0a", "is not text; change it with python"), (b"\xff\xfea\0b", "is broken utf-16-le")],
)
def test_what_is_no_text_is_not_edited(bench, workspace, root, content, says):
    """A letter of a binary file may stand anywhere."""
    (root / "program").write_bytes(content)
    with contextlib.suppress(ToolError):
        bench.run(ReadTool(workspace), path="program")

    with pytest.raises(ToolError, match=says):
        bench.run(EditTool(workspace), path="program", old="a", new="b")
    assert (root / "program").read_bytes() == content


@pytest.mark.parametrize(
    ("text", "old", "new", "expected"),
    [
        ("a\nb\n", "b", "c", "a\nc\n"),
        ("a  \nb\n", "a\nb\n", "c\n", "c\n"),
        ("if x:\n        a = 1\n        b = 2\n", "a = 1\nb = 2", "a = 3\nif a:\n    b = 4", None),
        ("say “hello” – now\n", 'say "hello" - now', "say bye", "say bye\n"),
    ],
)
def test_fuzzy_edits(text, old, new, expected):
    """Exact first, then what models get wrong: blanks, indentation, typographic signs."""
    changed, _ = replaced(text, old, new)
    wanted = expected or "if x:\n        a = 3\n        if a:\n            b = 4\n"

    assert changed == wanted


@pytest.mark.parametrize(
    ("old", "says"),
    [
        ("nothing like it at all zzz", "not in the file"),
        ("def g(x):", "nearest is line 4"),
        ("x", "occurs"),
        ("", "empty"),
        ("    return x + 1", "the same"),
    ],
)
def test_edits_that_do_not_fit(old, says):
    """The model is told enough to mend it."""
    text = "import os\n\n\ndef f(x):\n    return x + 1\n"
    with pytest.raises(ToolError, match=says):
        replaced(text, old, old if says == "the same" else "new")


def test_replace_all_and_doubtful_fuzzy_matches():
    """Several places are changed only when asked for."""
    assert replaced("a a a", "a", "b", replace_all=True)[0] == "b b b"
    with pytest.raises(ToolError, match="fits 2 places"):
        replaced("  a = 1  \n    a = 1  \nx\n", "a = 1\n", "a = 2\n")


def test_the_open_notebook_is_refused(bench, root, monkeypatch):
    """U61: by any path to it; the message names the cell tools; other notebooks may be written."""
    notebook = root / "open.ipynb"
    notebook.write_text("{}")
    (root / "alias.ipynb").symlink_to(notebook)
    workspace = Workspace(root, open_notebooks=lambda: [notebook])
    bench.run(ReadTool(workspace), path="open.ipynb")

    for path in ("open.ipynb", "src/../open.ipynb", "alias.ipynb", str(notebook)):
        for tool, more in ((WriteTool, {"content": "x"}), (EditTool, {"old": "{", "new": "["})):
            with pytest.raises(ToolError, match="edit_cell"):
                bench.run(tool(workspace), path=path, **more)
    assert notebook.read_text() == "{}"
    bench.run(WriteTool(workspace), path="other.ipynb", content="{}")
    monkeypatch.setenv("JPY_SESSION_NAME", str(notebook))
    with pytest.raises(ToolError, match="edit_cell"):
        bench.run(WriteTool(Workspace(root)), path="open.ipynb", content="x")


def test_a_link_swapped_in_after_the_judging_is_refused(workspace, root):
    """A race between judging and opening: the descriptor says where it is (bad input)."""
    place = workspace.resolve("src/a.py")
    (root / "src").rename(root / "src2")
    (root / "src").symlink_to(root.parent)
    (root.parent / "a.py").write_text("stolen")

    with pytest.raises(ToolError):
        workspace.read(place, 100)
    with pytest.raises(ToolError):
        workspace.write(place, b"escaped")
    assert (root.parent / "a.py").read_text() == "stolen"
    file_place = workspace.resolve("src2/b.txt")
    (root / "src2" / "b.txt").unlink()
    (root / "src2" / "b.txt").symlink_to(root.parent / "outside.txt")
    with pytest.raises(ToolError, match="link"):
        workspace.read(file_place, 100)
    with pytest.raises(ToolError, match="not a regular file"):
        workspace.write(file_place, b"x")


def test_pipes_and_devices_do_not_hang(bench, workspace, root):
    """A FIFO or a device is no file to read."""
    os.mkfifo(root / "pipe")
    began = time.monotonic()
    with pytest.raises(ToolError, match="not a regular file"):
        bench.run(ReadTool(workspace), path="pipe")
    with pytest.raises(ToolError, match="not a regular file"):
        bench.run(ReadTool(workspace), path="/dev/zero")
    assert time.monotonic() - began < 5


def test_missing_files_are_suggested(bench, workspace):
    """A slip in a name is told."""
    with pytest.raises(ToolError, match=r"did you mean a\.py"):
        bench.run(ReadTool(workspace), path="src/a.pyy")


# ---------------------------------------------------------------- searching


@pytest.mark.parametrize(
    "pattern",
    ["**/" * 30 + "zz", "*a" * 30 + "b", "**a" * 30 + "b", "{*a,*aa}" * 5 + "b", "?*" * 30 + "b", "**" * 40 + "b"],
)
def test_a_glob_cannot_hang_the_kernel(bench, workspace, root, pattern):
    """A regular expression that explodes holds the whole process, and no interrupt ends it."""
    folder = root.joinpath(*["a" * 5] * 12)
    folder.mkdir(parents=True)
    (folder / ("a" * 120)).write_text("")

    assert bench.run(GlobTool(workspace), pattern=pattern).text == "no files"


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("**/a/**/*b*/*.py", "x/a/abc/m.py", True),
        ("**/a/**/*b*/*.py", "a/abc/m.py", True),
        ("**/a/**/*b*/*.py", "a/q/r/b/m.py", True),
        ("**/a/**/*b*/*.py", "xa/b/m.py", False),
        ("**/a/**/*b*/*.py", "a/b/x/m.py", False),
        ("*/*/*/*/?[!x].{c,h}", "1/2/3/4/ab.h", True),
        ("*/*/*/*/?[!x].{c,h}", "1/2/3/4/ax.h", False),
        ("*/*/*/*", "1/2/3", False),
        ("src/**/t**/*/*", "src/tx/y/z/w", True),
    ],
)
def test_patterns_with_many_wildcards(pattern, path, fits):
    """They fit as short ones do."""
    assert bool(glob_pattern(pattern).fullmatch(path)) is fits


def test_too_many_choices_are_refused(bench, workspace):
    """Bad input: braces multiply."""
    for pattern in ("{a,b}" * 20, "x" * 5000):
        with pytest.raises(BadArguments, match="- pattern"):
            bench.run(GlobTool(workspace), pattern=pattern)


@pytest.mark.parametrize("with_rg", [True, False])
def test_grep(bench, workspace, root, monkeypatch, with_rg):
    """ripgrep when present, else our own; both leave out what git ignores."""
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    if not with_rg:
        monkeypatch.setattr("shutil.which", lambda name: None)
    grep = GrepTool(workspace)
    found = bench.run(grep, pattern="needle").text

    assert sorted(found.splitlines()) == ["keep.log:1:needle", "src/b.txt:1:needle in text"]
    assert bench.run(grep, pattern="NEEDLE", ignore_case=True, glob="*.txt").text == "src/b.txt:1:needle in text\n"
    assert bench.run(grep, pattern="zzz").text == "no matches"
    assert "5-    return" in bench.run(grep, pattern="def f", path="src", context_lines=1).text
    with pytest.raises(BadArguments, match="- pattern"):
        bench.run(grep, pattern="(")
    assert bench.run(grep, pattern="-needle").text == "no matches"


@pytest.mark.parametrize("with_rg", [True, False])
@pytest.mark.parametrize("options", [{}, {"glob": "*"}, {"glob": ".env"}, {"path": "keys"}, {"context_lines": 1}])
def test_grep_shows_nothing_that_read_would_ask_for(bench, workspace, root, monkeypatch, with_rg, options):
    """Searching a folder is free; the lines of `.env` and of private keys in it are not."""
    if with_rg and not shutil.which("rg"):
        pytest.skip("ripgrep is not installed")
    if not with_rg:
        monkeypatch.setattr("shutil.which", lambda name: None)
    (root / "keys").mkdir()
    (root / "keys" / "id_rsa").write_text("the word sesame\n")
    (root / ".env").write_text("WORD=sesame\n")
    (root / "keys" / "fine.txt").write_text("no\nsesame street\n")

    found = bench.run(GrepTool(workspace), pattern="sesame", **options).text

    assert "the word" not in found
    assert "WORD" not in found
    assert ("sesame street" in found) is (options.get("glob") != ".env")
    asked = bench.run(GrepTool(workspace), pattern="sesame", path=".env").text
    assert asked == ".env:1:WORD=sesame\n" or "[masked" in asked


@pytest.mark.parametrize("with_rg", [True, False])
def test_grep_is_bounded(bench, workspace, root, monkeypatch, with_rg):
    """A match on every line is cut; a pattern that explodes is stopped with its child."""
    (root / "many.txt").write_text("needle\n" * 100_000)
    (root / "evil.txt").write_text("a" * 40 + "!")
    if not with_rg:
        monkeypatch.setattr("shutil.which", lambda name: None)
        monkeypatch.setattr("kit_jupyter.tools.files.grep.GREP_SECONDS", 1.0)
        assert "stopped after 1 s" in bench.run(GrepTool(workspace), pattern="(a+)+$", path="evil.txt").text

    text = bench.run(GrepTool(workspace), pattern="needle", path="many.txt").text
    assert len(text.splitlines()) == 201
    assert "narrow the search" in text


def test_glob_and_ls(bench, workspace, root):
    """Patterns with folders, choices and newest first; listing with sizes and links."""
    os.utime(root / "src" / "a.py", (1, 1))
    (root / "link").symlink_to(root.parent / "outside.txt")
    glob = GlobTool(workspace)

    assert bench.run(glob, pattern="**/*.{py,txt}").text == "src/b.txt\nsrc/a.py"
    assert bench.run(glob, pattern="*.py").text == "src/a.py"
    assert bench.run(glob, pattern="src/*").text == "src/b.txt\nsrc/a.py"
    assert bench.run(glob, pattern="*.nothing").text == "no files"
    assert bench.run(LsTool(workspace)).text.splitlines()[:2] == ["build/", "src/"]
    assert "link -> " in bench.run(LsTool(workspace)).text
    with pytest.raises(ToolError, match="not a folder"):
        bench.run(LsTool(workspace), path="src/a.py")


@pytest.mark.parametrize(
    "path",
    [
        *(".envrc", "tls/server.key", "infra/terraform.tfstate", "kaggle.json", ".config/gh/hosts.yml", ".htpasswd"),
        *("service-account-prod.json", ".cache/huggingface/token", ".local/share/jupyter/runtime/jpserver-1.json"),
    ],
)
def test_more_files_that_hold_secrets_ask(path, bench, workspace):
    """Keys, tokens and state files of well-known programs, wherever they lie in the workspace."""
    assert bench.decide(ReadTool(workspace), "auto", path=path).effect == "ask"


@pytest.mark.parametrize(
    "path", [".vscode/tasks.json", ".zshenv", ".pre-commit-config.yaml", ".agents/skills/a/SKILL.md", ".gitattributes"]
)
def test_writing_what_other_programs_act_on_asks(path, bench, workspace):
    """Files by which an editor, a shell, git or the next session does something by itself; reading them is free."""
    assert bench.decide(WriteTool(workspace), "auto", path=path, content="x").effect == "ask"
    assert bench.decide(ReadTool(workspace), "auto", path=path).effect == "allow"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_other_processes_are_not_free_to_read_from_the_root(bench):
    """In a container that starts in the root folder everything is inside the workspace; other processes still ask."""
    everything = Workspace("/")

    assert bench.decide(ReadTool(everything), "auto", path="/proc/1/environ").effect == "ask"
    assert bench.decide(ReadTool(everything), "auto", path="/etc/shadow").effect == "ask"
    assert bench.decide(ReadTool(everything), "auto", path="/etc/hostname").effect == "allow"


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell script")
def test_listing_runs_no_program_of_the_repository(root, monkeypatch):
    """A clone's own git configuration may name a monitor program: looking for files does not start it."""
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    program = root / "monitor.sh"
    program.write_text(f"#!/bin/sh\ntouch '{root.parent}/RAN'\n")
    program.chmod(0o755)
    subprocess.run(["git", "-C", str(root), "config", "core.fsmonitor", "./monitor.sh"], check=True)
    monkeypatch.setitem(sys.modules, "pathspec", None)
    workspace = Workspace(root)

    assert root / "src" / "a.py" in list(workspace.files(workspace.resolve(".")))
    assert not (root.parent / "RAN").exists()


def test_a_folder_called_like_a_home_is_none(bench, workspace, root):
    """A file under a folder named ``~`` is told from one in the home folder, and a rule for it holds for it alone."""
    write = WriteTool(workspace)

    decision = bench.decide(write, path="src/../~/notes", content="x")

    assert "./~/notes" in decision.question
    rules = [tuple([*line.split(" ", 1), "allow"]) for line in decision.suggestion.splitlines()]
    assert bench.decide(write, rules, path="~/notes", content="x").effect == "ask"
    assert bench.decide(write, rules, path="src/../~/notes", content="x").effect == "allow"


def test_a_workspace_that_is_gone_says_so(tmp_path, monkeypatch):
    """The working directory was removed under our feet (bad input)."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()

    with pytest.raises(UsageError, match="working directory has been removed"):
        Workspace()


def test_ignored_files_without_pathspec(bench, root, monkeypatch):
    """git answers when pathspec is not installed."""
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    monkeypatch.setitem(sys.modules, "pathspec", None)
    workspace = Workspace(root)

    names = [p.relative_to(root).as_posix() for p in workspace.files(workspace.resolve("."))]
    assert names == [".gitignore", "keep.log", "src/a.py", "src/b.txt"]


def test_nested_ignore_files(root):
    """A folder's own .gitignore goes before its parent's."""
    (root / "src" / ".gitignore").write_text("*.txt\n!special.log\n")
    (root / "src" / "special.log").write_text("")
    workspace = Workspace(root)

    names = [p.relative_to(root).as_posix() for p in workspace.files(workspace.resolve("."))]
    assert "src/b.txt" not in names
    assert "src/special.log" in names


# ---------------------------------------------------------------- undo


def test_undo_restores_files_of_the_last_turn(bench, workspace, root):
    """Content and mode come back, files that were made go; the turn before comes next (item 9)."""
    context = bench.context
    (root / "src" / "a.py").chmod(0o755)
    before = (root / "src" / "a.py").read_text()
    bench.run(ReadTool(workspace), path="src/a.py")
    bench.run(EditTool(workspace), path="src/a.py", old="x + 1", new="x + 2")
    context.turn_id = "turn-2"
    bench.run(EditTool(workspace), path="src/a.py", old="x + 2", new="x + 3")
    bench.run(EditTool(workspace), path="src/a.py", old="x + 3", new="x + 4")
    bench.run(WriteTool(workspace), path="new.txt", content="n")
    undo = Checkpoints.of(context).undo

    second = undo()
    assert second.turn_id == "turn-2"
    assert "x + 2" in (root / "src" / "a.py").read_text()
    assert not (root / "new.txt").exists()
    assert second.removed == (str(root / "new.txt"),)
    first = undo()
    assert first.turn_id == "turn-1"
    assert (root / "src" / "a.py").read_text() == before
    assert (root / "src" / "a.py").stat().st_mode & 0o777 == 0o755
    assert str(undo()) == "nothing to undo"


def test_undo_leaves_alone_what_someone_changed_since(bench, workspace, root):
    """A person's later work is not lost by an undo; it is reported."""
    bench.run(WriteTool(workspace), path="new.txt", content="n")
    (root / "new.txt").write_text("mine now")

    undone = Checkpoints.of(bench.context).undo()

    assert (root / "new.txt").read_text() == "mine now"
    assert "changed since" in str(undone)


def test_snapshots_beside_the_session_survive_the_process(tmp_path):
    """Kept on disk for a stored session, for the owner only; a broken index is no catastrophe."""
    folder, target = tmp_path / "s.undo", tmp_path / "f.txt"
    target.write_text("old")
    first = Checkpoints(folder)
    first.before_file(target, "t1")
    target.write_text("new")
    first.after_file(target, "t1")

    assert folder.stat().st_mode & 0o777 == 0o700
    assert Checkpoints(folder).undo().restored == (str(target),)
    assert target.read_text() == "old"
    (folder / "index.json").write_text("{")
    assert Checkpoints(folder).undo().turn_id == ""


def test_nothing_planted_beside_a_session_file_is_undone(tmp_path, monkeypatch):
    """A session file from elsewhere may bring pickles and paths along: an undo neither runs nor writes them."""
    monkeypatch.setenv("KIT_DATA_DIR", str(tmp_path / "data"))
    planted = tmp_path / "clone" / "s.undo"
    planted.mkdir(parents=True)
    first = Checkpoints(planted)
    target = tmp_path / "bashrc"
    target.write_text("planted")
    first.before_file(target, "t1")
    target.write_text("mine")
    first.after_file(target, "t1")
    session = SimpleNamespace(path=tmp_path / "clone" / "s.jsonl")

    checkpoints = Checkpoints.of(SimpleNamespace(state={}, session=session))

    assert checkpoints.undo().turn_id == ""
    assert target.read_text() == "mine"
    checkpoints.before_file(target, "t2")
    target.write_text("changed")
    again = Checkpoints.of(SimpleNamespace(state={}, session=session))
    assert again.undo().restored == (str(target),)  # what we kept ourselves is still there for the next process


def test_undo_goes_with_the_session(tmp_path, monkeypatch):
    """After another session was resumed, its own turns are undone, not those of the one before."""
    monkeypatch.setenv("KIT_DATA_DIR", str(tmp_path))
    target = tmp_path / "f"
    target.write_text("old")
    state: dict = {}
    one, two = (SimpleNamespace(path=tmp_path / "sessions" / "p" / f"{name}.jsonl") for name in "ab")
    Checkpoints.of(SimpleNamespace(state=state, session=one)).before_file(target, "t1")
    target.write_text("new")

    assert Checkpoints.of(SimpleNamespace(state=state, session=two)).undo().turn_id == ""
    assert Checkpoints.of(SimpleNamespace(state=state, session=one)).undo().restored == (str(target),)
    assert (tmp_path / "sessions" / "p" / "a.undo").is_dir()


@pytest.mark.parametrize("index", ["{", "[]", '{"t": 1}', '{"t": {"files": []}}', "[" * 100_000])
def test_a_broken_index_is_no_catastrophe(tmp_path, index):
    """Whatever stands in it: there is nothing to undo, and the next change is kept (bad input)."""
    (tmp_path / "s.undo").mkdir()
    (tmp_path / "s.undo" / "index.json").write_text(index)
    checkpoints = Checkpoints(tmp_path / "s.undo")

    assert checkpoints.undo().turn_id == ""
    checkpoints.before_file(tmp_path / "f", "t1")
    assert checkpoints.turns() == ("t1",)


def test_file_tools_share_one_workspace(tmp_path):
    """Six tools, one root."""
    tools = file_tools(Workspace(tmp_path))
    assert [tool.name for tool in tools] == ["read", "write", "edit", "grep", "glob", "ls"]
    assert workspace_room.Workspace().root == Path.cwd().resolve()
