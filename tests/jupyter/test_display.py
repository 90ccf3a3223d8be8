"""Where widgets do not work: static, plain, updates, a terminal, a notebook run by nbclient."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from kernels import TURN_MIME, Kernel, kernel
from labs import CHROMIUM

from kit_jupyter import events as ev
from kit_jupyter.jupyter.display import TextDisplay
from kit_jupyter.jupyter.transcript import bundle
from kit_jupyter.jupyter.turns import TurnModel
from kit_jupyter.messages import TextDelta


@pytest.fixture
def ui(nb: Kernel):
    def choose(mode: str) -> None:
        nb.ok(f"os.environ['KIT_UI'] = {mode!r}")

    yield choose
    nb.ok("os.environ['KIT_UI'] = ''")


def test_static_shows_the_bundle_once(nb: Kernel, ui) -> None:
    """Jupyter facts 7: no widget, no update; what nbval compares."""
    nb.script('[text("static", chunks=3)]')
    ui("static")

    said = nb.ok("%%kit\nhi")

    lab = ("status", "execute_input", "comm_open")  # kit tells pages of the Lab extension that it is here
    kinds = [m["msg_type"] for m in said.messages if m["msg_type"] not in lab]
    assert kinds == ["display_data"]
    assert set(said.shown[0]["data"]) == {TURN_MIME, "text/markdown", "text/plain"}


def test_plain_is_text_only(nb: Kernel, ui) -> None:
    """U117: pure text output, as it comes."""
    nb.ok("def f(x: int) -> str:\n    'F.'\n    return 'r%d' % x")
    nb.script("[thinking('hm'), tool_call('f', x=1)]", "[text('the '), text('answer')]", more=", tools=[f]")
    ui("plain")

    cell = nb.send("%%kit\nhi")
    said = nb.wait(cell)

    def stream() -> str:
        return "".join(m["content"]["text"] for m in nb.mine(cell) if m["msg_type"] == "stream")

    nb.pump(lambda: "the answer" in stream())  # the kernel may send what a thread wrote after the cell is idle
    assert said.reply["status"] == "ok"
    assert said.shown == []
    assert stream().index("[f]") < stream().index("r1") < stream().index("the answer")


def test_a_terminal_shows_a_call_before_its_question_and_its_output_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Output of a shell command was printed as it came and again as the result; the choices stood above the call."""
    turn, shown = TurnModel("trn", "t1"), TextDisplay(rich=False)
    turn.take(ev.TurnStart("go"))
    shown.show(turn)
    turn.take(ev.ToolCall("c1", "shell", '{"command": "ls"}', {"command": "ls"}))
    turn.take(ev.ApprovalAsked("c1", "shell", '{"command": "ls"}', "Run shell?"))

    with shown.paused():
        before = capsys.readouterr().out

    assert before == '[shell] {"command": "ls"}\n'
    turn.take(ev.ToolExecutionStart("c1", "shell", 0.0))
    turn.take(ev.ToolOutput("c1", "a.txt\nb.txt\n"))
    turn.take(ev.ToolExecutionEnd("c1", "shell", 0.1, "success"))
    turn.take(ev.ToolResultEvent("c1", "shell", "{}", "a.txt\nb.txt\n(exit code 3)", False))
    turn.take(ev.TurnEnd("", "stop"))
    shown.finish(turn, {})
    assert capsys.readouterr().out == "a.txt\nb.txt\n(exit code 3)\n"


def test_what_changes_while_the_terminal_is_written_to_is_written_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that ran and ended between the look at it and its line was never shown: seen once on a busy machine."""
    turn, shown = TurnModel("trn", "t1"), TextDisplay(rich=False)
    turn.take(ev.TurnStart("go"))
    turn.take(ev.ToolCall("c1", "f", '{"x": 1}', {"x": 1}))
    write, meanwhile = shown._item, [True]

    def late(*args: Any) -> None:
        if meanwhile:
            meanwhile.clear()
            turn.take(ev.ToolExecutionStart("c1", "f", 0.0))
            turn.take(ev.ToolExecutionEnd("c1", "f", 0.1, "success"))
            turn.take(ev.ToolResultEvent("c1", "f", "{}", "r1", False))
        write(*args)

    monkeypatch.setattr(shown, "_item", late)
    shown.show(turn)
    with shown.paused():
        pass
    turn.take(ev.TurnEnd("", "stop"))
    shown.finish(turn, {})

    out = capsys.readouterr().out
    assert out.count("[f]") == out.count("r1") == 1
    assert out.index("[f]") < out.index("r1")


def test_a_text_that_was_joined_before_its_end_was_written_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """The next turn makes the last one small; what the terminal has not written of it by then is not lost."""
    turn, shown = TurnModel("trn", "t1"), TextDisplay(rich=False)
    turn.take(ev.TurnStart("go"))
    turn.take(ev.MessageStart("m1"))
    shown.show(turn)
    for word in ("one ", "two "):
        turn.take(ev.MessageUpdate("m1", TextDelta(0, word)))
        with shown.paused():
            pass
    with shown._hold:  # the writer is held up
        for word in ("three ", "four"):
            turn.take(ev.MessageUpdate("m1", TextDelta(0, word)))
        turn.take(ev.TurnEnd("", "stop"))
        turn.settle()
    shown.finish(turn, {})

    assert "".join(capsys.readouterr().out.split()) == "onetwothreefour"


def test_nothing_steers_the_terminal_but_colours_of_a_tool(capsys: pytest.CaptureFixture[str]) -> None:
    """A model's or a tool's text can wipe no question and hide none: found by a model that cleared the screen."""
    turn, shown = TurnModel("trn", "t1"), TextDisplay(rich=False)
    turn.take(ev.TurnStart("go"))
    shown.show(turn)
    turn.take(ev.MessageStart("m1"))
    turn.take(ev.MessageUpdate("m1", TextDelta(0, "see\x1b[2J\x1b]0;pwn\x07\x9b8mthis\r\n")))
    turn.take(ev.ToolCall("c1", "rm\x1b[8m", "{}", {}))
    turn.take(ev.ToolExecutionStart("c1", "rm", 0.0))
    for piece in ("10 %\r20 %\n\x1b[3", "1mred\x1b[8m hidden\x1b[2A"):
        turn.take(ev.ToolOutput("c1", piece))
        with shown.paused():
            pass
    with shown.paused():
        before = capsys.readouterr().out

    assert "see\\x1b[2J\\x1b]0;pwn\\x07\\x9b8mthis\n" in before
    assert "[rm\\x1b[8m]" in before
    assert "10 %\r20 %\n" in before
    assert before.endswith("\x1b[31mred\x1b[8m hidden\\x1b[2A\x1b[0m\n")
    turn.take(ev.TurnEnd("", "stop"))
    shown.finish(turn, {})


def test_updates_stream_without_widgets_and_stay_linear(nb: Kernel, ui) -> None:
    """Point 6, U85, U86: the text grows by display updates; bytes do not grow with the square."""
    nb.script("[x for i in range(40) for x in (text('many words ' * 40), delay(0.05))]")
    ui("updates")

    said = nb.ok("%%kit\nhi", timeout=60)

    updates = [m["content"]["data"] for m in said.messages if m["msg_type"] == "update_display_data"]
    assert len(updates) >= 3
    assert said.frames == []
    total = len(said.kit()["text/plain"])
    assert sum(len(u["text/plain"]) for u in updates) < 7 * total
    assert len([m for m in said.messages if m["msg_type"] == "display_data"]) == 1


def test_a_view_that_cannot_be_made_falls_back(nb: Kernel) -> None:
    """U85: no traceback, one hint, the same answer."""
    nb.script("[text('still here')]")
    nb.ok("import kit_jupyter.jupyter.view as v\nkept = v.ChatView\ndel v.ChatView")

    said = nb.ok("%%kit\nhi")
    nb.ok("v.ChatView = kept")

    assert said.kit()["text/plain"] == "still here"


def test_a_wrong_mode_is_named(nb: Kernel, ui) -> None:
    """One line that says what is allowed."""
    nb.script('[text("never")]')
    ui("fancy")

    said = nb.run("%%kit\nhi")

    assert "KIT_UI must be one of" in said.reply["traceback"][0]


def _in_terminal(script: Path) -> subprocess.CompletedProcess[str]:
    """Run it in a plain IPython whose files all lie beside it."""
    home = str(script.parent)
    env = {"IPYTHONDIR": home, "XDG_DATA_HOME": home, "PATH": "/usr/bin:/bin", "HOME": home}
    if "PYTHONPATH" in os.environ:
        env["PYTHONPATH"] = os.environ["PYTHONPATH"]
    return subprocess.run(
        [sys.executable, "-m", "IPython", "--no-banner", "--colors=NoColor", str(script)],
        capture_output=True, text=True, timeout=90, env=env, check=False,
    )  # fmt: skip


def test_in_a_terminal_it_prints_as_it_comes(tmp_path: Path) -> None:
    """Issue 2, point 4: plain IPython: text, tools, then the prompt again; `_` holds the result."""
    script = tmp_path / "s.ipy"
    script.write_text(
        "%load_ext kit_jupyter\n"
        "from kit_jupyter import Kit\nfrom kit_jupyter.testing import *\n"
        "def f() -> str:\n    'F.'\n    return 'told'\n\n"
        "provider = ScriptedProvider([tool_call('f')], [text('Hello terminal', chunks=4)])\n"
        "kit = Kit(session='memory', tools=[f], provider=provider)\n"
        "%kit say {hello} $HOME\n"
        "print(kit.messages[0].parts[0].text)\n"
    )
    ran = _in_terminal(script)

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.index("[f]") < ran.stdout.index("told") < ran.stdout.index("Hello terminal")
    assert "say {hello} $HOME" in ran.stdout


def test_finished_blocks_of_a_terminal() -> None:
    """Rich draws blocks when they are complete; an open fence is one block."""
    from kit_jupyter.jupyter.display import _finished

    assert _finished("a\n\nb\n\nc") == (["a\n", "\nb\n"], "\nc")
    assert _finished("```\nx\n\ny\n") == ([], "```\nx\n\ny\n")


def test_a_notebook_run_headless_reads_everywhere(tmp_path: Path) -> None:
    """U80, U82, U83: nbclient, then nbconvert to HTML and Markdown: answers and tools as text, no widget state."""
    nbclient = pytest.importorskip("nbclient")
    nbconvert = pytest.importorskip("nbconvert")
    cells = [
        "%load_ext kit_jupyter\nfrom kit_jupyter import Kit\nfrom kit_jupyter.testing import *\n"
        "def area(w: int) -> int:\n    'Area.'\n    return w * w\n"
        "kit = Kit(session='memory', tools=[area], provider=ScriptedProvider([tool_call('area', w=7)], "
        "[text('The area is **49**. <script>alert(1)</script>')]))",
        "%%kit\nHow large is it?",
    ]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(book, timeout=90, kernel_name="python3").execute()
    nbformat.validate(book)

    assert "widgets" not in book.metadata
    (output,) = book.cells[1].outputs
    assert set(output["data"]) == {TURN_MIME, "text/markdown", "text/plain"}
    text = nbformat.writes(book)
    assert "widget-view" not in text
    html, _ = nbconvert.HTMLExporter(embed_images=False).from_notebook_node(book)
    assert "<strong>49</strong>" in html
    assert "<b>area</b>" in html
    assert "<script>alert(1)" not in html.replace("&lt;script", "")
    markdown, _ = nbconvert.MarkdownExporter().from_notebook_node(book)
    assert "The area is **49**" in markdown


def test_a_failed_turn_says_why_once_in_a_page(tmp_path: Path) -> None:
    """Point 9: nbclient stops at the cell; the page that nbconvert makes of it holds the reason once."""
    nbclient = pytest.importorskip("nbclient")
    nbconvert = pytest.importorskip("nbconvert")
    cells = [
        "%load_ext kit_jupyter\nfrom kit_jupyter import Kit\nfrom kit_jupyter.testing import *\n"
        "failing = [text('So far. '), provider_error('rejected', 'it broke', status=400)]\n"
        "kit = Kit(session='memory', provider=ScriptedProvider(failing, failing))",
        "%%kit\nhi",
        "%%kit --no-raise\nhi",
    ]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    client = nbclient.NotebookClient(book, timeout=90, kernel_name="python3")
    with pytest.raises(nbclient.exceptions.CellExecutionError, match="it broke"):
        client.execute()
    client.allow_errors = True
    client.execute()

    for cell in book.cells[1:]:
        cell.source = ""
        page = nbformat.v4.new_notebook(cells=[cell])
        html, _ = nbconvert.HTMLExporter().from_notebook_node(page)
        shown = re.sub(r"(?s)<(style|script).*?</\1>|<[^>]*>", "", html)
        assert shown.count("it broke") == 1
        assert "So far." in shown
    assert [output.output_type for output in book.cells[1].outputs] == ["display_data", "error"]
    assert [output.output_type for output in book.cells[2].outputs] == ["display_data"]


def test_a_failed_turn_says_why_once_in_a_terminal(tmp_path: Path) -> None:
    """Point 9: by the error; with `--no-raise` it is printed."""
    script = tmp_path / "s.ipy"
    script.write_text(
        "%load_ext kit_jupyter\n"
        "from kit_jupyter import Kit\nfrom kit_jupyter.testing import *\n"
        "failing = [provider_error('rejected', 'it ' + 'broke', status=400)]\n"
        "kit = Kit(session='memory', provider=ScriptedProvider(failing, failing))\n"
        "%kit --no-raise hi\n"
        "print('between')\n"
        "%kit hi\n"
    )
    ran = _in_terminal(script)

    before, after = (ran.stdout + ran.stderr).split("between")
    assert before.count("it broke") == 1
    assert after.count("it broke") == 1
    assert "Traceback" not in after


def test_in_colab_text_goes_by_updates(tmp_path: Path) -> None:
    """U86, simulated: where `google.colab` is loaded no custom widget is made, the turn streams as text."""
    stub = tmp_path / "google" / "colab"
    stub.mkdir(parents=True)
    (stub / "__init__.py").write_text("")
    env = {"PYTHONPATH": str(tmp_path), "XDG_DATA_HOME": str(tmp_path), "IPYTHONDIR": str(tmp_path / "ip")}
    with kernel(env, setup="import google.colab") as colab:
        colab.ok("%load_ext kit_jupyter\nfrom kit_jupyter import Kit\nfrom kit_jupyter.testing import *")
        colab.script("[text('first '), delay(1.2), text('a good deal more than before')]")
        said = colab.ok("%%kit\nhi", cell_id="c")

        assert not [m for m in said.messages if m["msg_type"] == "comm_open" and "view" in str(m["content"]["data"])]
        assert len(said.of("update_display_data")) >= 2
        assert said.kit()["text/plain"] == "first a good deal more than before"


def test_in_vs_code_a_view_that_no_browser_draws_becomes_text(tmp_path: Path) -> None:
    """U85, simulated: VS Code's environment and no page that loads the widget's module: text, and one hint line."""
    env = {"VSCODE_PID": "1", "VSCODE_CWD": "/", "XDG_DATA_HOME": str(tmp_path), "IPYTHONDIR": str(tmp_path / "ip")}
    with kernel(env) as code:
        code.ok("from kit_jupyter.jupyter import display; display.HELLO_SECONDS = 0.5")
        code.script("[text('first '), delay(2.5), text('and the rest of a long answer')]")
        code.ok("__vsc_ipynb_file__ = '/home/me/book.ipynb'")
        said = code.ok("%%kit\nhi", cell_id="c")

        texts = [content["data"].get("text/markdown", "") for content in said.of("update_display_data")]
        hints = [text for text in texts if "no browser answered the live view" in text]
        assert hints
        assert hints[-1].count("KIT_UI=updates") == 1
        assert said.reply["status"] == "ok"
        assert said.kit()["text/plain"] == "first and the rest of a long answer"
        assert "Traceback" not in said.stream
        assert code.value("kit.session.branch()[0].message.request.cell.notebook") == "book.ipynb"
        opened = [m["content"]["data"].get("state", {}) for m in said.messages if m["msg_type"] == "comm_open"]
        assert not any("http" in str(state.get("_esm", "")).replace("http://www.w3.org", "") for state in opened)


def test_a_pdf_shows_answers_and_tools(tmp_path: Path) -> None:
    """U83: nbconvert's page, printed by Debian's Chromium: answers and tool summaries are text in the PDF."""
    nbconvert = pytest.importorskip("nbconvert")
    pypdf = pytest.importorskip("pypdf")
    if not Path(CHROMIUM).exists():
        pytest.skip("Debian's chromium is not installed")
    html, _ = nbconvert.HTMLExporter(template_name="webpdf").from_notebook_node(_saved_notebook())
    page = tmp_path / "book.html"
    page.write_text(html, encoding="utf-8")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    command += [
        "--host-resolver-rules=MAP * ~NOTFOUND",
        "--no-pdf-header-footer",
        f"--print-to-pdf={tmp_path / 'p.pdf'}",
    ]
    subprocess.run([*command, str(page)], check=True, timeout=120, capture_output=True)
    pages = pypdf.PdfReader(tmp_path / "p.pdf").pages
    text = " ".join(" ".join(one.extract_text() for one in pages).split())

    assert "The area is 49." in text
    assert 'area {"w": 7} (done)' in text
    assert "How large is it?" in text


@pytest.mark.skipif(shutil.which("pandoc") is None, reason="pandoc is not installed")
def test_latex_shows_answers_and_tools() -> None:
    """U83: the road by LaTeX (`nbconvert --to pdf`): pandoc drops the fold of a card, its text stays."""
    nbconvert = pytest.importorskip("nbconvert")

    latex, _ = nbconvert.LatexExporter().from_notebook_node(_saved_notebook())

    assert r"\textbf{49}" in latex
    assert "area" in latex.partition("How large is it?")[2]


def _saved_notebook() -> nbformat.NotebookNode:
    """A notebook as it is saved: a turn with a tool call."""
    items = [
        {"kind": "tool", "name": "area", "arguments": '{"w": 7}', "status": "done", "result": "49"},
        {"kind": "text", "text": "The area is **49**."},
    ]
    made = bundle({"prompt": "How large is it?", "mode": "prompt", "status": "done", "items": items})
    output = nbformat.v4.new_output("display_data", data=made)
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("%%kit\nHow large is it?", outputs=[output])])
