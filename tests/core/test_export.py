"""Export: readable for people, and whole for another Kit."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kit_jupyter import Kit, MediaPart, Session, SessionError, UsageError
from kit_jupyter.export import export_session
from kit_jupyter.testing import ScriptedProvider, delay, provider_error, text, thinking, tool_call

from .helpers import area, until

PNG = MediaPart.of_bytes(b"\x89PNG\r\n\x1a\nxx", "image/png", "plot.png")


@pytest.fixture
async def kit(make: Any) -> Any:
    kit, _ = make(
        [thinking("let me\nthink"), text("I **compute**"), tool_call("area", width=2, height=3)],
        "It is `6` <b>&</b> ```x```",
        "brief",
        [text("half"), provider_error("overloaded", "busy")],
        tools=[area],
        session=None,
    )
    await kit.prompt("How <large> is it?", parts=[PNG, b"%PDF-1.4"])
    await kit.steer("be brief")
    with pytest.raises(Exception, match="busy"):
        await kit.prompt("more")
    kit.name = "Areas & more"
    return kit


async def test_markdown_shows_every_message(kit: Any) -> None:
    """Headings by who speaks, thinking as a quote, calls and results in fences, pictures, failures."""
    said = kit.export()

    for piece in (
        "# Areas & more",
        "## You\n\nHow &lt;large> is it?",  # as it is seen once it is rendered
        "![plot.png](data:image/png;base64,",
        "[application/pdf]",
        "> let me\n> think",
        'Calls `area`:\n\n```json\n{"width": 2, "height": 3}\n```',
        "## Result of area\n\n```\n6\n```",
        "## Instruction\n\nbe brief",
        "## Added by steer",
        "*failed: busy*",
    ):
        assert piece in said, piece
    short = kit.export("md", thinking=False, tools=False)
    assert "think" not in short
    assert "Calls" not in short
    assert "Result of" not in short


async def test_html_is_one_safe_page(kit: Any) -> None:
    """No script, nothing of a model's or person's text is markup, nothing is loaded from elsewhere."""
    page = kit.export("html")

    assert "&lt;large&gt;" in page
    assert "<b>&</b>" not in page
    assert "<script" not in page
    assert 'src="data:image/png' in page
    assert "http" not in page
    assert page.startswith("<!doctype html>")
    assert "<title>Areas &amp; more</title>" in page


async def test_jsonl_and_notebook_can_be_brought_back(kit: Any, tmp_path: Path) -> None:
    """Import: the whole tree with names, labels and branches, under a new id; a notebook takes it along."""
    first = kit.session.entries[0].id
    kit.label(first, "start")
    await kit.branch(kit.session.entries[1].id)

    for name, options in (("s.jsonl", {}), ("s.ipynb", {"embed": "tree", "relative_paths": False})):
        written = kit.export(name.split(".")[1], tmp_path / name, **options)
        assert written == str(tmp_path / name)
        copy = Session.import_from(tmp_path / name, tmp_path / "in")
        assert copy.messages() == kit.messages
        assert [e.id for e in copy.entries] == [e.id for e in kit.session.entries]
        assert copy.leaf == kit.session.leaf
        assert (copy.name, copy.labels) == ("Areas & more", {first: "start"})
        assert copy.id != kit.session_id
        assert Session.open(copy.path).messages() == kit.messages  # type: ignore[arg-type]


async def test_a_notebook_takes_neither_left_branches_nor_folders_along(kit: Any, tmp_path: Path) -> None:
    """What is passed on holds the branch that is shown, with its name and labels, and no path of this machine."""
    first, second, *left = [entry.id for entry in kit.session.branch()]
    kit.label(first, "start")
    await kit.branch(second)
    kit.export("ipynb", tmp_path / "s.ipynb")

    text = (tmp_path / "s.ipynb").read_text()
    copy = Session.import_from(tmp_path / "s.ipynb", tmp_path / "in")

    assert [m.id for m in copy.messages()] == [m.id for m in kit.messages]
    assert (copy.name, copy.labels) == ("Areas & more", {first: "start"})
    assert left
    assert not [entry_id for entry_id in left if entry_id in text]
    assert json.loads(text)["metadata"]["kit_jupyter"]["session"]["header"]["cwd"] == "."
    assert str(Path.cwd()) not in text


async def test_a_notebook_is_valid_and_its_prompts_run(kit: Any, tmp_path: Path) -> None:
    """U40: prompts are `%%kit` cells, answers Markdown; valid for nbformat; the copy can be left out."""
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.reads(kit.export("ipynb"), as_version=4)
    nbformat.validate(notebook)

    codes = [c.source for c in notebook.cells if c.cell_type == "code"]
    assert codes == ["%load_ext kit_jupyter", "%%kit\nHow <large> is it?", "%%kit\nmore"]
    bare = json.loads(kit.export("notebook", embed=False))
    assert set(bare["metadata"]["kit_jupyter"]) == {"session_id"}
    (tmp_path / "bare.ipynb").write_text(json.dumps(bare))
    with pytest.raises(SessionError, match="holds no session"):
        Session.import_from(tmp_path / "bare.ipynb")
    with pytest.raises(SessionError, match="cannot read"):
        Session.import_from(tmp_path / "nope.ipynb")


async def test_paths_can_be_made_relative(make: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """S118: an export need not tell where the project lies on this machine."""
    (tmp_path / "work").mkdir()
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.chdir(tmp_path / "work")
    kit, _ = make("x", session=None)
    await kit.prompt("hi")

    assert str(tmp_path) in kit.export("jsonl")
    said = kit.export("jsonl", relative_paths=True)
    assert str(tmp_path) not in said
    assert '"path":{"cwd":"work","root":"."}' in said


async def test_summaries_and_stopped_answers_are_marked(make: Any) -> None:
    """S124: a summary is drawn in another way; a stopped answer says so; the other branch is not shown."""
    kit, provider = make("a" * 4000, "b" * 40, "The summary", [text("half"), delay(60)])
    await kit.prompt("one")
    await kit.prompt("two")
    await kit.compact()
    import asyncio

    task = asyncio.ensure_future(kit.prompt("three"))
    await until(lambda: len(provider.requests) == 4)
    await asyncio.sleep(0.02)
    await kit.abort()
    await task

    said = kit.export()
    assert "## Summary of what came before\n\nThe summary" in said
    assert "*stopped*" in said


async def test_an_unknown_format_names_the_known_ones(kit: Any) -> None:
    """Bad input."""
    with pytest.raises(UsageError, match="known: markdown, html, jsonl, ipynb"):
        kit.export("docx")
    assert export_session(Session.memory()) == "# Conversation\n"


HOSTILE = "<script>run()</script> <img src=x onerror=run()> [a](javascript:run()) ![x](https://example.org/spy.png)"


@pytest.mark.parametrize("format", ["markdown", "html", "ipynb"])
def test_what_a_model_wrote_runs_nowhere(format: str) -> None:
    """A page made of an export, by whatever renderer, holds no tag, script link or remote picture of a model's."""
    provider = ScriptedProvider([tool_call("x`<b onclick=run()>`", a=1)], [thinking(HOSTILE), text(HOSTILE)])
    kit = Kit(provider=provider, session="memory")
    kit.prompt_sync("go")

    written = kit.export(format)
    if format == "ipynb":
        cells = json.loads(written)["cells"]
        written = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")

    written = re.sub(r"(?ms)^(`{3,}).*?^\1$", "", written)  # what is fenced is code everywhere
    assert "run()" in written
    for live in ("<script", "<img src", "<b onclick"):
        assert live not in written
    if format != "html":  # there all is text
        assert "](javascript:" not in written
        assert "![" not in written


def test_an_answer_as_a_cells_value_is_harmless() -> None:
    """`kit.prompt_sync(…)` as the last line of a cell goes to nbconvert as Markdown, which lets tags through."""
    kit = Kit(provider=ScriptedProvider(HOSTILE), session="memory")

    shown = kit.prompt_sync("go")._repr_markdown_()

    assert "&lt;script>" in shown
    assert "<img" not in shown
    assert "![" not in shown
