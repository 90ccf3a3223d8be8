"""The agent's hands on cells, in a real Lab and Notebook 7: issue 8, point 5; U61, U65, U71, U104."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import nbformat
import pytest

pytestmark = pytest.mark.timeout(300)  # a browser on a busy machine


def call(p: Any, name: str, *, wait: bool = True, **arguments: Any) -> str:
    """A cell tool's outcome, as text; errors begin with ``!``."""
    p.execute(f"done = call({name!r}, **{arguments!r})")
    if not wait:
        return ""
    for _ in range(200):
        said = p.execute("print(done.done())").strip()
        if said == "True":
            break
        p.page.wait_for_timeout(30)
    return str(p.execute("r = done.result(0); print(('!' if r.is_error else '') + r.text)")).rstrip("\n")


def quiet(p: Any) -> None:
    """No reviews, for tests that are not about them."""
    p.js("await app.serviceManager.settings.save('kit-jupyter:cells', '{\"review\": false}');")
    p.page.wait_for_timeout(200)


@pytest.mark.parametrize("kind", ["lab", "notebook"])
def test_each_tool_does_what_it_says(open_page: Callable[..., Any], kind: str) -> None:
    """Point 5: read, insert, edit, move, select, run, clear, delete; by id, seen at once, ids and metadata stay."""
    p = open_page(f"tools-{kind}.ipynb", ["x = 20", "print(x + 1)"], kind).attached()
    first, second = p.ids()
    p.js("shared.cells[0].setMetadata('tags', ['keep']); shared.cells[0].setMetadata('mine', {a: 1});")

    said = call(p, "read_cells")
    assert f'<cell id="{first}" type="code" tags=["keep"]>\nx = 20' in said
    made = call(p, "insert_cell", source="# Title", type="markdown", before=first)
    new = made.removeprefix("inserted as cell ")
    assert p.ids() == [new, first, second]
    assert call(p, "edit_cell", id=first, old="20", new="30").endswith("x = 30")
    assert "x = 30" in call(p, "read_cells", ids=[first])  # a read after an edit sees it
    assert call(p, "move_cell", id=first, after=second).startswith("moved")
    assert p.ids() == [new, second, first]
    call(p, "move_cell", id=first, before=second)
    assert p.ids() == [new, first, second]
    assert p.js("return [shared.cells[1].getMetadata('tags'), shared.cells[1].getMetadata('mine')];") == [
        ["keep"],
        {"a": 1},
    ]
    call(p, "select_cell", id=second)
    assert p.js("return panel.content.activeCellIndex;") == 2
    call(p, "run_cell", id=first)
    assert "31" in call(p, "run_cell", id=second)
    assert call(p, "clear_cells") == "cleared the outputs of 2 cells"
    assert "31" not in call(p, "read_cells").split("print(x + 1)")[1]
    call(p, "delete_cell", id=new)
    assert p.ids() == [first, second]
    call(p, "run_cell", id=call(p, "insert_cell", source="1/0").removeprefix("inserted as cell "))


def test_what_cannot_be_done_is_said_in_words_to_act_on(open_page: Callable[..., Any]) -> None:
    """Point 5: unknown id, text that is not there or there twice, protected cells, a last cell."""
    p = open_page("cannot.ipynb", ["a = 1\na = 1"]).attached()
    (only,) = p.ids()

    assert f"no cell has the id nope; the cells are {only}" in call(p, "edit_cell", id="nope", old="a", new="b")
    assert "does not contain" in call(p, "edit_cell", id=only, old="zz", new="b")
    assert "more than once" in call(p, "edit_cell", id=only, old="a = 1", new="b")
    assert "beside itself" in call(p, "move_cell", id=only, after=only)
    assert call(p, "move_cell", id=only).startswith("!say either")
    p.js("shared.cells[0].setMetadata('editable', false); shared.cells[0].setMetadata('deletable', false);")
    assert "not editable" in call(p, "edit_cell", id=only, new="b")
    assert "not deletable" in call(p, "delete_cell", id=only)
    p.js("shared.cells[0].deleteMetadata('deletable');")
    call(p, "delete_cell", id=only)
    assert p.sources() == [""]  # a notebook without cells cannot be typed into


def test_undo_is_one_step(open_page: Callable[..., Any]) -> None:
    """Point 5, U65: Ctrl+Z in the cell takes the whole edit back and nothing of what the person typed."""
    p = open_page("undo.ipynb", ["value = 1"]).attached()
    (only,) = p.ids()
    p.focus_cell(0, edit=True)
    p.page.keyboard.press("End")
    p.page.keyboard.type("0")
    assert p.sources() == ["value = 10"]

    call(p, "edit_cell", id=only, new="import math\nvalue = math.pi\nprint(value)")
    p.page.keyboard.press("Control+z")

    assert p.sources() == ["value = 10"]
    p.page.keyboard.press("Control+z")
    assert p.sources() == ["value = 1"]
    p.command("kit:undo-edit")  # changed since: it stays, and that is said
    p.page.locator(".Toastify__toast, .jp-toast", has_text="changed since").first.wait_for()
    assert p.ids() == [only]


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_a_change_is_reviewed_in_its_cell(open_page: Callable[..., Any], theme: str) -> None:
    """U65: diff with Accept and Reject; Reject restores; the session learns of it; keys work too."""
    dark = "dark" if "Dark" in theme else "light"
    p = open_page(f"review-{dark}.ipynb", ["def area(r):\n    return 3.14 * r * r", "y = 2"]).attached()
    p.theme(theme)
    first, second = p.ids()
    before = p.sources()
    review = p.page.locator(".kit-review")

    call(p, "edit_cell", id=first, old="return 3.14 * r * r", new="return math.pi * r ** 2")
    call(p, "edit_cell", id=first, old="def area(r):", new="import math\n\n\ndef area(r: float) -> float:")
    review.wait_for()
    assert review.count() == 1  # two edits of one cell are one change
    assert review.locator(".cm-deletedChunk").count() >= 1
    p.picture(f"diff-{dark}")
    review.locator("button", has_text="Reject").click()
    assert p.sources() == before

    call(p, "edit_cell", id=first, old="3.14", new="3.1416")
    call(p, "insert_cell", source="z = 3")
    assert review.count() == 2
    review.nth(0).locator("button", has_text="Accept").click()
    p.focus_cell(2)
    for key in ("Control+;", "r", "r"):
        p.page.keyboard.press(key)
    p.wait("shared.cells.length === 2")

    assert p.sources() == ["def area(r):\n    return 3.1416 * r * r", "y = 2"]
    assert review.count() == 0
    notes = p.execute("print(nb.lab.take_reviews())")
    assert f"The person rejected the edit of cell {first}." in notes
    assert f"The person accepted the edit of cell {first}." in notes
    assert second in p.ids()


def test_an_edit_under_review_that_the_person_went_on_with_stays(open_page: Callable[..., Any]) -> None:
    """Bad case: Reject after typing in the cell loses nothing, and says why."""
    p = open_page("typed.ipynb", ["a = 1"]).attached()
    (only,) = p.ids()
    call(p, "edit_cell", id=only, new="a = 2")
    p.focus_cell(0, edit=True)
    p.page.keyboard.press("End")
    p.page.keyboard.type("5")

    p.page.locator(".kit-review button", has_text="Reject").click()

    p.page.locator(".kit-review [role=alert]", has_text="changed since").wait_for()
    assert p.sources() == ["a = 25"]


def test_two_browsers_do_it_once(open_page: Callable[..., Any]) -> None:
    """Point 5: with two pages on one kernel a call is done by one of them."""
    p = open_page("shared.ipynb", ["a = 1"]).attached()
    other = open_page("shared.ipynb", None)
    for _ in range(200):
        if p.execute("print(sum(page.comm is not None for page in nb.lab.pages.values()))").strip() == "2":
            break
        p.page.wait_for_timeout(50)

    call(p, "insert_cell", source="b = 2")
    p.page.wait_for_timeout(2500)  # the slower page would have claimed by now

    # Without collaboration each page has its own copy; with it the one change is seen in both.
    assert sorted([len(p.sources()), len(other.sources())]) in ([1, 2], [2, 2])


def test_a_closed_browser_is_noticed(open_page: Callable[..., Any]) -> None:
    """Point 5: when no page is there any more, the tool says so and gives the code as text."""
    p = open_page("left.ipynb", ["a = 1"]).attached()
    p.execute(
        "import threading, time\nresult = []\ndef later():\n    time.sleep(1.5)\n"
        "    result.append(call('insert_cell', source='b = 2').result(30))\nthreading.Thread(target=later).start()"
    )

    p.page.goto("about:blank")
    again = open_page("left.ipynb", None)
    said = ""
    for _ in range(200):
        said = again.execute("print(result and result[0].is_error, result and result[0].text)")
        if said.startswith(("True", "False")):
            break
        again.page.wait_for_timeout(100)

    # Either the first page was noticed to be gone, or the second one, which had come by then, did it once.
    assert "b = 2" in said or again.sources() == ["a = 1", "b = 2"], said


def test_a_turn_changes_cells_with_the_persons_leave(open_page: Callable[..., Any]) -> None:
    """Point 5 with point 2: the model calls edit_cell from a %%kit cell; the card asks; the cell changes once."""
    p = open_page("turn.ipynb", ["%%kit\nchange the other", "n = 1", "print('ran')"]).attached()
    target, last = p.ids()[1:]
    p.execute(
        f"script.script([tool_call('edit_cell', id={target!r}, old='1', new='2')],"
        f" [tool_call('run_cell', id={last!r})], [text('Done as asked.')])"
    )

    p.run_cell(0, wait=False)
    yes = p.page.locator(".kit-approval:not([hidden]) .kit-go")
    yes.first.wait_for()
    assert p.sources()[1] == "n = 1"  # nothing acts unasked
    yes.first.click()
    p.page.locator(".kit-tool[data-status=asking]", has_text="run_cell").first.wait_for()
    yes.first.click()
    p.page.locator(".jp-OutputArea", has_text="Done as asked.").first.wait_for()

    assert p.sources()[1] == "n = 2"
    sent = p.execute("print(script.requests[-1].messages)")
    assert "is queued; it runs when this turn has ended" in sent


def test_a_hundred_random_edits_and_undos(open_page: Callable[..., Any]) -> None:
    """How it is tested: after them the notebook is valid, and no cell is lost, blank or doubled."""
    p = open_page("random.ipynb", [f"cell_{n} = {n}" for n in range(6)]).attached()
    quiet(p)
    dice = random.Random(8)
    model = {cell: text for cell, text in zip(p.ids(), p.sources(), strict=True)}
    order = list(model)
    states = [(list(order), dict(model))]

    for step in range(100):
        verb = dice.choice(["edit", "edit", "insert", "delete", "move", "undo"])
        if verb == "undo" and len(states) > 1:
            p.js("await app.commands.execute('kit:undo-edit');")
            states.pop()
            order, model = list(states[-1][0]), dict(states[-1][1])
            continue
        if verb == "insert" or len(order) < 3:
            text = f"new_{step} = {step}"
            after = dice.choice(order)
            new = call(p, "insert_cell", source=text, after=after).removeprefix("inserted as cell ")
            order.insert(order.index(after) + 1, new)
            model[new] = text
        elif verb == "delete":
            gone = dice.choice(order)
            call(p, "delete_cell", id=gone)
            order.remove(gone)
            del model[gone]
        elif verb == "move":
            moved, anchor = dice.sample(order, 2)
            before = list(order)
            call(p, "move_cell", id=moved, after=anchor)
            order.remove(moved)
            order.insert(order.index(anchor) + 1, moved)
            assert sorted(before) == sorted(order)
        else:
            edited = dice.choice(order)
            text = f"edit_{step} = {step}\nprint('é😀 {step}')"
            call(p, "edit_cell", id=edited, new=text)
            model[edited] = text
        states.append((list(order), dict(model)))
        if step % 20 == 19:
            assert p.ids() == order

    assert p.ids() == order
    assert p.sources() == [model[cell] for cell in order]
    p.js("await panel.context.save();")
    saved = nbformat.reads((p.server.folder / "work" / p.path).read_text(), as_version=4)
    nbformat.validate(saved)
    assert [cell["id"] for cell in saved.cells] == order
    assert all(cell["source"].strip() for cell in saved.cells)
    assert json.dumps(saved.metadata)


def test_an_inserted_cell_is_seen_at_once(open_page: Callable[..., Any]) -> None:
    """U71: an inserted cell is on the page within 500 ms of the call, without a reload.

    The quickest of several counts: the machine may be busy, and that is not what is tested.
    """
    p = open_page("seen.ipynb", ["a = 1"]).attached()
    took = []
    for number in range(2, 8):
        p.page.evaluate(
            """number => { window.seen = new Promise(ok => { const look = () => {
                 const text = [...document.querySelectorAll('.jp-CodeCell')].map(e => e.innerText).join();
                 text.includes(`number_${number} = `) ? ok(Date.now()) : requestAnimationFrame(look);
               }; look(); }); }""",
            number,
        )
        code = f"import time; print(time.time()); done = call('insert_cell', source='number_{number} = {number}')"
        began = float(p.execute(code))
        took.append(p.page.evaluate("window.seen") / 1000 - began)

    print("seen after", ", ".join(f"{1000 * one:.0f} ms" for one in took))
    assert min(took) < 0.5


def test_a_killed_kernel_leaves_the_notebook_whole(open_page: Callable[..., Any]) -> None:
    """U104: kill -9 in the middle of a turn that edits: what was there is there, valid, with every cell."""
    p = open_page("killed.ipynb", ["%%kit\ngo on", "a = 1", "# mine"]).attached()
    first = p.ids()[1]
    p.execute(
        "import os\n@tool\ndef die() -> str:\n    'End.'\n    os.kill(os.getpid(), 9)\nkit.add_tool(die)\n"
        "from kit_jupyter.permissions import RulePolicy\nkit.policy = RulePolicy('auto')\n"
        f"script.script([tool_call('edit_cell', id={first!r}, new='a = 2')], [tool_call('die')])"
    )

    p.run_cell(0, wait=False)
    p.wait("shared.cells[1].source === 'a = 2'")
    p.wait(
        "['autorestarting', 'restarting', 'starting', 'idle', 'unknown'].includes("
        "panel.sessionContext.session.kernel.status) && !panel.sessionContext.isRestarting"
    )
    p.js("await panel.context.save();")

    saved = nbformat.reads((p.server.folder / "work" / p.path).read_text(), as_version=4)
    nbformat.validate(saved)
    assert [cell["source"] for cell in saved.cells] == ["%%kit\ngo on", "a = 2", "# mine"]
