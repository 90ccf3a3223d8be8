"""A real JupyterLab and Notebook 7 in Debian's Chromium: a live turn, Stop, reload, the panel, the saved file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from kernels import TURN_MIME
from labs import CHROMIUM, Page, Server, browser, server

STATIC = Path(__file__).parents[2] / "kit_jupyter" / "jupyter" / "static"

pytestmark = [
    pytest.mark.skipif(not Path(CHROMIUM).exists(), reason="Debian's chromium is not installed"),
    pytest.mark.skipif(not (STATIC / "render.js").exists(), reason="render.js is not built (npm run build:modules)"),
    pytest.mark.timeout(240),
]

SETUP = """%load_ext kit_jupyter
from kit_jupyter import Kit, tool
from kit_jupyter.testing import *
def columns(name: str) -> str:
    "Columns of a table."
    return "\\n".join(f"column {i}: int64" for i in range(30))
@tool(approve="ask")
def drop(column: str) -> str:
    "Drop a column."
    return "dropped"
MD = '''## What I see

The table has **30 columns**; the mean is $\\\\bar x = \\\\frac{1}{n}\\\\sum_i x_i$.

| column | kind | share |
|---|---|---|
| a | int64 | 12 % |

```python
df = pd.read_csv("data.csv")  # read it
```
'''
slow = lambda n: [text("begin "), *[x for i in range(n) for x in (delay(0.05), text("w%d " % i))]]
"""
ASK = """first = [thinking("I should look."), text("Let me look.")]
calls = [tool_call("columns", name="df"), tool_call("drop", column="empty")]
provider = ScriptedProvider([*first, *calls], [text(MD, chunks=30)])
kit = Kit(session="memory", tools=[columns, drop], provider=provider)"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as it:
        yield it


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server(tmp_path_factory.mktemp("lab")) as it:
        yield it


def _live_turn(page: Page, app: str) -> None:
    page.run(0)
    page.run(1)
    page.start(2)
    page.page.wait_for_selector(".kit-view", timeout=30_000)
    approve = page.page.get_by_role("button", name="Approve", exact=True)
    approve.wait_for(timeout=30_000)
    page.shot(f"{app}-approval")
    approve.click()
    page.done(2)
    page.page.wait_for_function(
        "() => document.querySelectorAll('.jp-CodeCell')[2].innerText.includes('30 columns')", timeout=30_000
    )
    page.shot(f"{app}-done")


def test_a_live_turn_in_lab_and_what_the_file_keeps(lab: Server, chromium: Any) -> None:
    """Points 5 and 7, U80: approve in the cell, the answer flows in; the file holds a static bundle and reads."""
    book = lab.notebook("live.ipynb", SETUP, ASK, "%%kit\nWhat is in my table?")
    page = Page(lab, chromium, book)
    _live_turn(page, "lab")
    assert page.page.locator(".kit-view:not(.kit-turn *)").count() in (0, 1)  # the live view is gone; Lab may draw ours
    page.save()
    page.page.wait_for_function("() => true")
    for _ in range(60):
        if TURN_MIME in book.read_text():
            break
        page.page.wait_for_timeout(250)
    page.close()

    saved = nbformat.read(book, as_version=4)
    nbformat.validate(saved)
    assert len(saved.cells[2].outputs) == 1, saved.cells[2].outputs
    (output,) = saved.cells[2].outputs
    assert set(output["data"]) == {TURN_MIME, "text/markdown", "text/plain"}
    assert saved.metadata.get("widgets") is None
    assert "widget-view" not in book.read_text()
    assert page.errors == []
    again = Page(lab, chromium, book)
    again.page.wait_for_selector("text=30 columns", timeout=30_000)
    assert "model not found" not in again.page.inner_text("body")
    again.shot("lab-reopened")
    again.close()


def test_stop_in_lab(lab: Server, chromium: Any) -> None:
    """U16, U17: the button ends the turn, and the next one works."""
    cells = (SETUP, "kit = Kit(session='memory', provider=ScriptedProvider(slow(600), [text('fine now')]))")
    book = lab.notebook("stop.ipynb", *cells, "%%kit\ngo", "%%kit\nagain")
    page = Page(lab, chromium, book)
    page.run(0)
    page.run(1)
    page.start(2)
    page.page.wait_for_selector(".kit-view >> text=w5", timeout=30_000)
    page.page.get_by_role("button", name="Stop", exact=True).click()
    page.done(2, timeout=5)
    page.run(3)
    page.page.wait_for_selector("text=fine now", timeout=15_000)

    page.output(2, holding="stopped")
    assert page.errors == []
    page.close()


def test_reload_in_mid_turn_restores_the_view_and_stop(lab: Server, chromium: Any) -> None:
    """Point 7: after a reload the text is whole, goes on, and Stop works."""
    cells = (SETUP, "kit = Kit(session='memory', provider=ScriptedProvider(slow(900)))", "%kit_panel", "%%kit\ngo")
    book = lab.notebook("reload.ipynb", *cells)
    page = Page(lab, chromium, book)
    for index in range(3):
        page.run(index)
    page.start(3)
    page.page.wait_for_selector(".kit-panel >> text=w10", timeout=30_000)
    page.save()
    page.page.wait_for_timeout(1500)
    page.page.reload()
    panel = page.page.locator(".kit-panel")
    panel.first.wait_for(timeout=60_000)
    page.page.wait_for_function(
        "() => document.querySelector('.kit-panel')?.innerText.includes('begin w0 w1 w2 ')", timeout=30_000
    )
    before = panel.first.inner_text()
    page.page.wait_for_function("n => document.querySelector('.kit-panel').innerText.length > n + 20", arg=len(before))
    panel.first.get_by_role("button", name="Stop", exact=True).click()
    page.page.wait_for_selector(".kit-panel >> text=stopped", timeout=10_000)

    assert page.errors == []
    page.shot("lab-reload")
    page.close()


def test_panel_and_cells_show_one_conversation(lab: Server, chromium: Any) -> None:
    """Point 8, U96, U99: prompts by the panel's composer, with a variable attached; cells' turns are there, too."""
    cells = (
        SETUP + "df = {'a': [1, 2]}",
        "provider = ScriptedProvider([text('from the cell')], [text('from the panel')])\n"
        "kit = Kit(session='memory', provider=provider)",
        "kit_panel = get_ipython().run_line_magic('kit_panel', '')",
        "%%kit\nfirst question",
        "print([p.text for p in provider.requests[-1].messages[-1].parts])",
    )
    page = Page(lab, chromium, lab.notebook("panel.ipynb", *cells))
    for index in range(4):
        page.run(index)
    panel = page.page.locator(".kit-panel").first
    panel.locator("text=from the cell").wait_for(timeout=15_000)
    box = panel.get_by_label("Prompt")
    box.click()
    page.page.keyboard.type("second about @d", delay=30)
    page.page.get_by_role("option", name="df").wait_for(timeout=10_000)
    page.page.keyboard.type("f aA bB lL 00", delay=30)
    panel.locator(".kit-foot .kit-chip[data-mark=df]").wait_for(timeout=10_000)
    page.page.keyboard.press("Enter")
    panel.locator("text=from the panel").wait_for(timeout=15_000)
    page.shot("lab-panel")
    page.run(4)
    sent = page.output(4, holding="second about @df aA bB lL 00")

    assert "attached" in sent
    assert panel.inner_text().count("first question") == 1
    assert page.page.locator(".jp-CodeCell").count() == 5, "a key went to the notebook"
    assert page.errors == []
    page.close()


def test_two_pages_show_the_same(lab: Server, chromium: Any) -> None:
    """Bad input: two tabs on one notebook see one conversation, and neither breaks the other."""
    cells = (SETUP, "kit = Kit(session='memory', provider=ScriptedProvider(slow(60)))", "%kit_panel", "%%kit\ngo")
    book = lab.notebook("two.ipynb", *cells)
    one = Page(lab, chromium, book)
    for index in range(3):
        one.run(index)
    one.save()
    one.page.wait_for_timeout(1000)
    two = Page(lab, chromium, book)
    two.page.locator(".kit-panel").first.wait_for(timeout=60_000)
    one.start(3)
    one.done(3)
    for page in (one, two):
        page.page.wait_for_function(
            "() => document.querySelector('.kit-panel').innerText.includes('w57 w58 w59')", timeout=30_000
        )
        assert page.errors == []
        page.close()


def test_dark(lab: Server, chromium: Any) -> None:
    """Point 5: the dark theme, for eyes."""
    book = lab.notebook("dark.ipynb", SETUP, ASK, "%%kit\nWhat is in my table?")
    page = Page(lab, chromium, book, dark=True)
    _live_turn(page, "lab-dark")
    assert page.errors == []
    page.close()


# A line break within ten milliseconds of Ctrl+End: Lab's guard takes it, unless it is kept from seeing it.
LINE_BREAK_AFTER_A_CHORD = """field => {
  field.dispatchEvent(new KeyboardEvent('keydown', { key: 'End', code: 'End', ctrlKey: true, bubbles: true }));
  const line = { inputType: 'insertLineBreak', bubbles: true, cancelable: true };
  return field.dispatchEvent(new InputEvent('beforeinput', line));
}"""


def test_code_is_read_and_edited_line_by_line_before_it_runs(lab: Server, chromium: Any) -> None:
    """U60: the card shows Python as lines; what the person made of them, in the field, is what the kernel runs."""
    code = "total = 0\nfor i in range(4):\n    if i % 2:\n        total += i\nopen('n.txt', 'w').write(str(total))"
    made = (
        "from kit_jupyter.builtin import builtin_tools\n"
        f"provider = ScriptedProvider([tool_call('python', code={code!r})], [text('ok')])\n"
        "kit = Kit(session='memory', tools=builtin_tools('python'), provider=provider)"
    )
    book = lab.notebook("code.ipynb", SETUP, made, "%%kit\nadd up")
    page = Page(lab, chromium, book)
    page.run(0)
    page.run(1)
    page.start(2)
    page.page.get_by_role("button", name="Edit arguments").click(timeout=30_000)
    shown = page.page.get_by_label("argument code", exact=True)
    question = page.page.locator(".kit-q").inner_text()
    field = page.page.get_by_label("Edited argument code")
    page.shot("lab-code-approval")
    field.press("Control+End")
    field.press("Enter")
    field.type("open('m.txt', 'w').write(str(total * 100))")
    drawn = shown.evaluate("e => e.textContent")
    assert field.evaluate(LINE_BREAK_AFTER_A_CHORD)
    assert field.input_value() == code + "\nopen('m.txt', 'w').write(str(total * 100))"
    page.page.get_by_role("button", name="Approve", exact=True).click()
    page.done(2)

    assert drawn == code
    assert "python and python.files change something or run code" in question
    assert "range(4)" not in question
    assert (lab.folder / "m.txt").read_text() == "400"
    assert page.errors == []
    page.close()


def test_always_is_a_rule_that_holds(lab: Server, chromium: Any) -> None:
    """U60: from the click on "Always" to the stored rule, and the next call, in another session, does not ask."""
    made = (
        "Kit(session='memory', tools=[drop], provider=ScriptedProvider([tool_call('drop', column='%s')], [text('%s')]))"
    )
    cells = (
        SETUP,
        f"kit = {made % ('a', 'one gone')}",
        "%%kit\nclean",
        f"kit = {made % ('b', 'two gone')}",
        "%%kit\nmore",
    )
    rules = "import json; print([json.load(open(f))['rules'] for f in [kit.policy.store.path]])"
    book = lab.notebook("always.ipynb", *cells, rules)
    page = Page(lab, chromium, book)
    page.run(0)
    page.run(1)
    page.start(2)
    always = page.page.get_by_role("button", name="Always: drop")
    always.wait_for(timeout=30_000)
    always.click()
    page.done(2)
    page.page.wait_for_selector("text=one gone", timeout=15_000)
    page.run(3)
    page.run(4)  # to its end, with nobody asked
    page.page.wait_for_selector("text=two gone", timeout=15_000)
    page.run(5)
    stored = page.output(5, holding="'drop'")

    assert page.page.get_by_role("button", name="Approve", exact=True).count() == 0
    assert "'allow'" in stored
    assert page.errors == []
    page.close()


def test_a_cell_that_is_deleted_while_it_runs(lab: Server, chromium: Any) -> None:
    """Bad input: its turn goes on and is in the session; the notebook stays valid, the next cell works."""
    cells = (SETUP, "kit = Kit(session='memory', provider=ScriptedProvider(slow(30), [text('works on')]))")
    book = lab.notebook("deleted.ipynb", *cells, "%%kit\ngo", "%kit_show", "%%kit\nnext")
    page = Page(lab, chromium, book)
    page.run(0)
    page.run(1)
    page.start(2)
    page.page.wait_for_selector(".kit-view >> text=w3", timeout=30_000)
    page.cell(2).locator(".jp-InputPrompt").click()
    page.page.keyboard.press("Escape")
    page.page.keyboard.press("d")
    page.page.keyboard.press("d")
    page.page.wait_for_function("() => document.querySelectorAll('.jp-Notebook .jp-CodeCell').length === 4")
    page.run(2)  # %kit_show comes after the turn, which nobody stopped

    page.output(2, holding="w28 w29")
    page.run(3)
    page.page.wait_for_selector("text=works on", timeout=15_000)
    page.save()
    page.page.wait_for_timeout(1000)
    nbformat.validate(nbformat.read(book, as_version=4))
    assert page.errors == []
    page.close()


def test_a_cut_connection_heals_by_itself(lab: Server, chromium: Any) -> None:
    """U44: the socket breaks in mid-turn: once Lab has connected again the view is whole, and Stop works."""
    cells = (SETUP, "kit = Kit(session='memory', provider=ScriptedProvider(slow(300)))", "%%kit\ngo")
    book = lab.notebook("cut.ipynb", *cells)
    page = Page(lab, chromium, book, through_us=True)
    page.run(0)
    page.run(1)
    page.start(2)
    page.page.wait_for_selector(".kit-view >> text=w5", timeout=30_000)
    before = len(page.sockets)
    assert before >= 1
    page.cut()
    for _ in range(120):
        if page.sockets:
            break
        page.page.wait_for_timeout(250)
    page.page.wait_for_function(
        "() => { const t = document.querySelector('.kit-view')?.innerText ?? ''; "
        "const n = Math.max(...[...t.matchAll(/w(\\d+)/g)].map(m => +m[1])); "
        "return n > 60 && Array.from({length: n}, (_, i) => 'w' + i + ' ').every(w => (t + ' ').includes(w)); }",
        timeout=60_000,
    )
    page.page.get_by_role("button", name="Stop", exact=True).click()
    page.page.wait_for_function(
        "() => document.querySelectorAll('.jp-CodeCell')[2].innerText.includes('stopped')",
        timeout=20_000,
    )
    page.close()


def test_a_live_turn_in_notebook_7(tmp_path_factory: pytest.TempPathFactory, chromium: Any) -> None:
    """Point 5: the same in Notebook 7."""
    with server(tmp_path_factory.mktemp("nb7"), app="notebook") as it:
        book = it.notebook("live.ipynb", SETUP, ASK, "%%kit\nWhat is in my table?")
        page = Page(it, chromium, book, app="notebook")
        _live_turn(page, "notebook7")
        page.close()
        assert [e for e in page.errors if "schema" not in e] == []


def test_a_lost_connection_loses_nothing(lab: Server, chromium: Any) -> None:
    """U44: the page is gone while the turn ends; `%kit_show` has all of it."""
    cells = (SETUP, "kit = Kit(session='memory', provider=ScriptedProvider(slow(40)))", "%%kit\ngo", "%kit_show")
    book = lab.notebook("lost.ipynb", *cells)
    page = Page(lab, chromium, book)
    page.run(0)
    page.run(1)
    page.start(2)
    page.page.wait_for_selector(".kit-view >> text=w3", timeout=30_000)
    page.save()
    page.page.wait_for_timeout(800)
    page.close()
    again = Page(lab, chromium, book)
    again.run(3)
    again.page.wait_for_function(
        "() => document.querySelectorAll('.jp-CodeCell')[3].innerText.includes('w37 w38 w39')", timeout=30_000
    )
    assert json.loads(book.read_text())["nbformat"] == 4
    again.close()
