"""Export: readable for people, and whole for another Kit."""

from __future__ import annotations

import ast
import json
import re
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from kit_jupyter import Kit, MediaPart, Session, SessionError, UsageError
from kit_jupyter.export import export_session
from kit_jupyter.markdown_html import MAX_CHARACTERS, _parser, markdown_html
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


# ---------------------------------------------------------------- Markdown in a page


def corpus(file: str, name: str) -> list[str]:
    """The hostile texts of another test's list, read without importing its browser or kernel."""
    source = (Path(__file__).parents[1] / "jupyter" / file).read_text(encoding="utf-8")
    lists = (node for node in ast.parse(source).body if isinstance(node, ast.Assign))
    found = next(node for node in lists if getattr(node.targets[0], "id", "") == name)
    return list(ast.literal_eval(found.value))


ATTACKS = [*corpus("test_view.py", "XSS"), *corpus("test_transcript.py", "HOSTILE")]
TAGS = "h3 h4 h5 h6 p em strong del ul ol li blockquote pre code table thead tbody tr th td br hr a img"
VALUES = {
    ("a", "href"): r"(?i)(https?://|mailto:)\S+",
    ("a", "rel"): "noopener noreferrer",
    ("img", "src"): r"data:image/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]+",
    ("img", "alt"): r"(?s).*",
    ("ol", "start"): r"\d+",
    ("th", "class"): "left|right|center",
    ("td", "class"): "left|right|center",
    ("p", "class"): "text",
}


class Foreign(HTMLParser):
    """Notes each tag and attribute that is not one of those a page may have."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in TAGS.split():
            self.found.append(tag)
        self.found += [f"{tag} {k}={v}" for k, v in attrs if not re.fullmatch(VALUES.get((tag, k), "(?!)"), v or "")]

    def handle_comment(self, data: str) -> None:
        self.found.append(f"<!--{data}")

    def handle_decl(self, decl: str) -> None:
        self.found.append(f"<!{decl}")

    def handle_pi(self, data: str) -> None:
        self.found.append(f"<?{data}")


def foreign(page: str) -> list[str]:
    finder = Foreign()
    finder.feed(page)
    finder.close()
    return finder.found


def test_markdown_of_an_answer_is_drawn_in_a_page() -> None:
    """Headings, lists, tables, code, links and pictures that lie in the text; the person's own words stay as typed."""
    pytest.importorskip("mistune")
    answer = (
        "# Result\n\nIt is *so*, **very**:\n\n1. one\n2. two\n   - [x] done\n\n| a | b |\n|:--|--:|\n| 1 | `x<y` |\n\n"
        "```python\nif a < b:\n    pass\n```\n\n[here](https://example.org/?a=1&b=2) ![p](data:image/png;base64,AAAA) "
        "![far](https://example.org/spy.png) $a_1 < b_1$ 3 &lt; 4 <b>x</b>\n\n> said"
    )
    kit = Kit(provider=ScriptedProvider([text(answer)]), session="memory")
    kit.prompt_sync("# not a heading\n- *as typed*")

    page = kit.export("html")

    assert '<div class="text"># not a heading\n- *as typed*</div>' in page
    for piece in (
        "<h3>Result</h3>",
        "<p>It is <em>so</em>, <strong>very</strong>:</p>",
        '<ol start="1"><li>one</li><li>two<ul><li>☑ done</li></ul></li></ol>',
        '<thead><tr><th class="left">a</th><th class="right">b</th></tr></thead>',
        '<td class="right"><code>x&lt;y</code></td>',
        "<pre><code>if a &lt; b:\n    pass\n</code></pre>",
        '<a href="https://example.org/?a=1&amp;b=2" rel="noopener noreferrer">here</a>',
        '<img alt="p" src="data:image/png;base64,AAAA">',
        '<a href="https://example.org/spy.png" rel="noopener noreferrer">far</a>',  # a picture from elsewhere waits
        "$a_1 &lt; b_1$ 3 &lt; 4 &lt;b&gt;x&lt;/b&gt;",
        "<blockquote><p>said</p></blockquote>",
    ):
        assert piece in page, piece


@pytest.mark.parametrize("attack", ATTACKS)
def test_hostile_markdown_becomes_nothing_but_known_tags(attack: str) -> None:
    """No script, no handler, nothing from elsewhere: each tag and attribute of the page is one that we write."""
    pytest.importorskip("mistune")

    for written in (attack, f"before\n\n{attack}\n\nafter", f"- {attack}", f"> {attack}", f"[{attack}](https://e.org)"):
        page = markdown_html(written)
        assert page is not None
        assert foreign(page) == []


def test_what_the_check_of_hostile_texts_would_find() -> None:
    """The check above can fail."""
    bad = "<script>1</script><img src=https://e.org><a href=javascript:x><p onclick=x><!-- x --><?x><p style=x>"
    assert len(foreign(bad)) == 7


@pytest.mark.parametrize(
    "text", ["![" * 90_000, "- " * 3000, ">" * 20_000, "*a_" * 30_000, "[a](" * 20_000, "<a b=" * 20_000]
)
def test_a_bomb_does_not_hold_up_the_page(text: str) -> None:
    """Bad input: the page comes, with the text drawn or as it is, and what is too long is not parsed at all."""
    begin = time.monotonic()

    page = markdown_html(text)
    too_long = markdown_html("x" * (MAX_CHARACTERS + 1))

    assert page is None or foreign(page) == []
    assert too_long is None
    assert time.monotonic() - begin < 30


def test_a_page_is_made_without_the_parser(monkeypatch: Any) -> None:
    """Where nbconvert is not installed the answer stands there as it was written."""
    monkeypatch.setitem(sys.modules, "mistune", None)
    _parser.cache_clear()
    try:
        kit = Kit(provider=ScriptedProvider([text("# So <b>it</b> is")]), session="memory")
        kit.prompt_sync("x")

        assert '<div class="text"># So &lt;b&gt;it&lt;/b&gt; is</div>' in kit.export("html")
    finally:
        _parser.cache_clear()
