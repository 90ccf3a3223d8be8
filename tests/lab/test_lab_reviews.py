"""Each kind of change is under review, in a real Lab: issue 8, point 5; U65."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from test_lab_cells import call

pytestmark = pytest.mark.timeout(300)  # a browser on a busy machine


def notes_of(p: Any) -> str:
    """What the session is told of the reviews, once the page has said it."""
    for _ in range(100):
        said = str(p.execute("print(nb.lab.take_reviews())")).strip()
        if said:
            return said
        p.page.wait_for_timeout(50)
    return ""


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_a_deleted_cell_is_shown_with_its_source(open_page: Callable[..., Any], theme: str) -> None:
    """Point 5: the card stands where the cell stood, with what went; Reject brings it back whole; Accept ends it."""
    dark = "dark" if "Dark" in theme else "light"
    p = open_page(f"deleted-{dark}.ipynb", ["a = 1", "raw = load('b')\nprint(raw)", "c = 3"]).attached()
    p.theme(theme)
    p.js("shared.cells[1].setMetadata('tags', ['keep']);")
    first, second, third = p.ids()
    card = p.page.locator(".kit-review")

    call(p, "delete_cell", id=second)
    card.wait_for()
    assert card.count() == 1
    assert "kit deleted a cell" in card.inner_text()
    assert "raw = load('b')" in card.inner_text()
    assert p.page.locator(".jp-CodeCell").nth(1).locator(".kit-review").count() == 1
    p.picture(f"review-deleted-{dark}")
    card.locator("button", has_text="Reject").click()
    assert p.ids() == [first, second, third]
    assert p.sources()[1] == "raw = load('b')\nprint(raw)"
    assert p.js("return shared.cells[1].getMetadata('tags');") == ["keep"]
    assert card.count() == 0
    assert notes_of(p) == f"The person rejected the delete of cell {second}."

    call(p, "delete_cell", id=third)  # nothing below it: shown at the end of the one above
    card.locator("button", has_text="Accept").click()
    assert p.ids() == [first, second]
    assert notes_of(p) == f"The person accepted the delete of cell {third}."
    p.js("app.commands.execute('kit:undo-edit');")
    p.wait("shared.cells.length === 3")


def test_a_moved_cell_says_where_from(open_page: Callable[..., Any]) -> None:
    """Point 5: the card goes with the cell and says the way; Reject is one step back; an edit before it joins."""
    p = open_page("moved.ipynb", ["a = 1", "b = 2", "c = 3"]).attached()
    first, second, third = p.ids()
    card = p.page.locator(".kit-review")

    call(p, "edit_cell", id=first, old="1", new="10")
    card.wait_for()
    call(p, "move_cell", id=first, after=third)
    p.page.locator(".jp-CodeCell").nth(2).locator(".kit-review").wait_for()
    assert card.count() == 1  # the move made another widget; the card went with the cell
    assert "kit edited and moved this cell from the top to below “c = 3”" in card.inner_text()
    card.locator("button", has_text="Reject").click()
    assert (p.ids(), p.sources()) == ([first, second, third], ["a = 1", "b = 2", "c = 3"])
    assert {f"The person rejected the {what} of cell {first}." for what in ("edit", "move")} == set(
        notes_of(p).split("\n")
    )

    call(p, "move_cell", id=third, before=first)
    p.page.locator(".jp-CodeCell").nth(0).locator(".kit-review").wait_for()
    p.command("kit:undo-edit")
    p.wait("shared.cells[2].id === arg && !document.querySelector('.kit-review')", third)
    assert notes_of(p) == f"The person took back the move of cell {third}."


def test_cleared_outputs_are_shown_and_come_back(open_page: Callable[..., Any]) -> None:
    """Point 5: a card for each cell that had outputs; Reject restores one; one undo takes back the whole call."""
    p = open_page("cleared.ipynb", ["print('one')", "print('two'); 2", "x = 3"]).attached()
    for index in range(3):
        p.run_cell(index)
    card = p.page.locator(".kit-review")
    before = p.js("return shared.cells.map(c => [c.getOutputs(), c.execution_count]);")

    assert call(p, "clear_cells") == "cleared the outputs of 3 cells"
    card.nth(1).wait_for()
    assert card.count() == 2  # the third had none
    assert "kit cleared this cell's outputs" in card.nth(0).inner_text()
    assert "one" in card.nth(0).inner_text()
    card.nth(0).locator("button", has_text="Reject").click()
    assert p.js("return shared.cells.map(c => c.getOutputs().length);") == [1, 0, 0]
    assert card.count() == 1
    card.locator("button", has_text="Accept").click()

    call(p, "clear_cells", ids=p.ids()[:1])
    card.wait_for()
    p.run_cell(0)  # run since: what is there now stays, and that is said
    card.locator("button", has_text="Reject").click()
    p.page.locator(".kit-review [role=alert]", has_text="run since").wait_for()
    card.locator("button", has_text="Accept").click()
    for index in (1, 2):
        p.run_cell(index)
    again = p.js("return shared.cells.map(c => [c.getOutputs(), c.execution_count]);")
    call(p, "clear_cells")
    p.js("await app.commands.execute('kit:undo-edit');")
    assert p.js("return shared.cells.map(c => [c.getOutputs(), c.execution_count]);") == again
    assert card.count() == 0
    assert len(before) == 3


def test_what_the_editor_undid_needs_no_word(open_page: Callable[..., Any]) -> None:
    """Point 5: Ctrl+Z in the cell, or Z in command mode, takes a change back in one step, and its card goes."""
    p = open_page("undone.ipynb", ["a = 1", "b = 2"]).attached()
    first, second = p.ids()
    card = p.page.locator(".kit-review")

    call(p, "edit_cell", id=first, new="a = 2")
    card.wait_for()
    p.focus_cell(0, edit=True)
    p.page.keyboard.press("Control+z")
    card.wait_for(state="detached")
    assert p.sources() == ["a = 1", "b = 2"]
    assert notes_of(p) == f"The person took back the edit of cell {first}."

    call(p, "edit_cell", id=second, new="b = 3")
    call(p, "delete_cell", id=second)
    p.page.locator(".kit-review", has_text="deleted").wait_for()
    assert "b = 2" in card.inner_text()  # what it was before kit touched it
    p.focus_cell(0)
    p.page.keyboard.press("z")
    p.wait("shared.cells.length === 2")
    p.page.locator(".kit-review", has_text="edited").wait_for()  # the edit before still waits for a word
    card.locator("button", has_text="Reject").click()
    assert p.sources() == ["a = 1", "b = 2"]
    assert p.ids() == [first, second]

    made = call(p, "insert_cell", source="c = 3").removeprefix("inserted as cell ")
    card.wait_for()
    call(p, "delete_cell", id=made)
    card.wait_for(state="detached")  # what came and went leaves nothing to decide
