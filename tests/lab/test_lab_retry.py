"""Retry on a finished turn, in a real Lab and Notebook 7: the cell that made it runs again. Issue 7, point 5."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import nbformat
import pytest

from kit_jupyter.jupyter.transcript import bundle

pytestmark = pytest.mark.timeout(300)  # a browser on a busy machine

RETRY = "Retry: run this cell again"
SAVED = ".jp-OutputArea-output.kit-turn"


def _button(p: Any) -> Any:
    return p.page.locator(SAVED).get_by_role("button", name=RETRY)


@pytest.mark.parametrize("kind", ["lab", "notebook"])
def test_retry_runs_the_cell_again(open_page: Callable[..., Any], kind: str) -> None:
    """By keyboard: the answer is replaced, the prompt number counts on, and the session holds one turn."""
    p = open_page(f"retry-{kind}.ipynb", ["%%kit\nWhich?", "print('other')", "1 + 1"], kind).attached()
    p.execute("script.script([text('The **first**.')], [text('The second.')])")
    p.run_cell(0)
    p.page.locator(SAVED, has_text="The first.").wait_for()
    before = p.js("return panel.content.widgets[0].model.executionCount;")
    p.picture(f"retry-{kind}-light")
    if kind == "lab":
        p.theme("JupyterLab Dark")
        p.page.locator("#jupyterlab-splash").wait_for(state="detached")
        p.picture("retry-lab-dark")
        p.theme("JupyterLab Light")

    p.js("panel.content.select(panel.content.widgets[1]); panel.content.activeCellIndex = 2;")  # people look elsewhere
    p.page.get_by_role("button", name="Copy answer").focus()
    p.page.keyboard.press("Tab")
    assert p.page.evaluate("document.activeElement.getAttribute('aria-label')") == RETRY
    p.page.keyboard.press("Enter")
    p.page.locator(SAVED, has_text="The second.").wait_for()

    assert p.js("return panel.content.widgets[0].model.executionCount;") == before + 1
    assert p.js("return shared.cells.map(c => c.cell_type === 'code' ? c.outputs.length : 0);") == [1, 0, 0]
    assert p.js("return panel.content.activeCellIndex;") == 0
    assert p.js("return panel.content.node.contains(document.activeElement);")
    assert p.execute("print(len([m for m in nb.kit().messages if m.role == 'user']))").strip() == "1"
    assert _button(p).count() == 1
    assert [error for error in p.errors if "kit" in error.lower()] == []


def test_a_failed_and_a_stopped_turn_can_be_retried(open_page: Callable[..., Any]) -> None:
    """What made it fail may be gone; who stopped it may want it after all."""
    p = open_page("retry-failed.ipynb", ["%%kit\nfails", "%%kit\nis stopped"]).attached()
    p.execute(
        "from kit_jupyter.testing import provider_error\n"
        "script.script([provider_error('rejected', 'too busy')], [text('Works now.')],"
        " [text('so'), delay(60)], [text('All of it.')])"
    )
    p.run_cell(0)
    p.page.locator(".jp-RenderedText", has_text="too busy").first.wait_for()
    _button(p).wait_for()
    assert p.page.locator(".jp-OutputArea").first.inner_text().count("too busy") == 1, "the cell's error says why"
    p.picture("failed-turn")
    _button(p).click()
    p.page.locator(SAVED, has_text="Works now.").wait_for()

    p.run_cell(1, wait=False)
    p.page.get_by_role("button", name="Stop", exact=True).click()
    second = p.page.locator(".jp-Cell").nth(1)
    second.locator(SAVED, has_text="stopped").wait_for()
    second.get_by_role("button", name=RETRY).click()
    second.locator(SAVED, has_text="All of it.").wait_for()
    assert p.errors == []


def test_no_retry_where_no_cell_can_run(server: Any, open_page: Callable[..., Any]) -> None:
    """Not in a notebook that is not trusted, until it is; not in a view of the output; not for a turn shown again."""
    turn = {"prompt": "Which?", "mode": "prompt", "status": "done", "items": [{"kind": "text", "text": "From a file."}]}
    shown = {**turn, "showPrompt": True}
    cells = []
    for source, one in (("%%kit\nWhich?", turn), ("%kit_show", shown)):
        output = nbformat.v4.new_output("display_data", data=bundle(one))
        cells.append(nbformat.v4.new_code_cell(source, outputs=[output], execution_count=1))
    written = nbformat.v4.new_notebook(cells=cells)
    written.metadata["kernelspec"] = {"name": "python3", "display_name": "python3", "language": "python"}
    nbformat.write(written, server.folder / "work" / "retry-file.ipynb")
    p = open_page("retry-file.ipynb", None)
    p.page.locator(SAVED, has_text="From a file.").first.wait_for()

    assert p.page.get_by_role("button", name="Copy answer").count() == 2
    assert _button(p).count() == 0
    p.command("notebook:trust")
    p.page.locator(".jp-Dialog .jp-mod-accept").click()
    _button(p).wait_for()
    assert _button(p).count() == 1
    assert p.page.locator(".jp-Cell").nth(1).get_by_role("button", name=RETRY).count() == 0
    p.js("panel.content.activeCellIndex = 0;")
    p.command("notebook:create-output-view")
    view = p.page.locator(".jp-LinkedOutputView")
    view.locator(SAVED, has_text="From a file.").wait_for()
    assert view.get_by_role("button", name=RETRY).count() == 0
    assert p.errors == []
