"""A page that is opened while a turn runs shows its answer, and so does the file. Issue 7, point 7."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from kit_jupyter.jupyter.protocol import TURN_MIME, WIDGET_MIME

pytestmark = pytest.mark.timeout(300)  # a browser on a busy machine

GATES = """
import pathlib, threading, time
from kit_jupyter.testing import gate
def opened(name):
    "An event that is set when the test writes a file of that name."
    event = threading.Event()
    def watch():
        while not pathlib.Path(name).exists():
            time.sleep(0.05)
        event.set()
    threading.Thread(target=watch, daemon=True).start()
    return gate(event)
script.script([text('Begun. '), opened('first.go'), text('And **ended**.')],
              [text('B. '), opened('second.go'), text('E.')])
"""


def _saved(server: Any, page: Any, cell: int) -> list[dict[str, Any]]:
    page.js("await panel.context.save();")  # the command passes over a file whose last saving is not quite done
    book = json.loads((server.folder / "work" / page.path).read_text())
    return list(book["cells"][cell]["outputs"])


def _numbered(page: Any, index: int) -> None:
    """The cell shows the number of its execution, whose reply went to a page that is gone."""
    cell = page.page.locator(".jp-CodeCell").nth(index)
    cell.locator(".jp-InputPrompt", has_text=re.compile(r"\[\d+\]")).wait_for()


def test_a_reload_in_mid_turn_loses_no_answer(server: Any, open_page: Callable[..., Any]) -> None:
    """The view goes on after the reload; at the end the answer stands in its place, on the page and in the file.

    So it does where the page was closed when the turn ended.
    """
    p = open_page("reload.ipynb", ["%%kit\ngo", "%%kit\nonce more"]).attached()
    assert p.execute(GATES) == ""

    p.run_cell(0, wait=False)
    p.page.locator(".kit-view", has_text="Begun.").wait_for()
    assert WIDGET_MIME in _saved(server, p, 0)[0]["data"]
    p.page.reload()
    p.page.locator(".kit-view", has_text="Begun.").wait_for()
    assert p.page.get_by_role("button", name="Stop", exact=True).count() == 1
    (server.folder / "work" / "first.go").touch()
    p.page.locator(".jp-OutputArea-output.kit-turn", has_text="Begun. And ended.").wait_for()
    _numbered(p, 0)
    (output,) = _saved(server, p, 0)

    assert set(output["data"]) == {TURN_MIME, "text/markdown", "text/plain"}
    assert output["metadata"]["kit"]["turn"]
    p.run_cell(1, wait=False)
    p.page.locator(".kit-view", has_text="B.").wait_for()
    assert WIDGET_MIME in _saved(server, p, 1)[0]["data"]
    p.page.close()
    (server.folder / "work" / "second.go").touch()
    again = open_page("reload.ipynb", None)
    again.page.locator(".jp-OutputArea-output.kit-turn", has_text="B. E.").wait_for()
    _numbered(again, 1)
    (output,) = _saved(server, again, 1)
    assert set(output["data"]) == {TURN_MIME, "text/markdown", "text/plain"}
    assert p.errors == again.errors == []


def test_a_reload_before_the_file_was_saved_brings_the_view_back(server: Any, open_page: Callable[..., Any]) -> None:
    """Nothing of the cell's output is in the file: the view and Stop come back, and then the answer, once."""
    p = open_page("reload-unsaved.ipynb", ["%%kit\ngo", "%%kit\nonce more"]).attached()
    assert p.execute(GATES.replace("first", "third").replace("second", "fourth")) == ""
    p.run_cell(0, wait=False)
    p.page.locator(".kit-view", has_text="Begun.").wait_for()
    p.page.evaluate("window.onbeforeunload = null")
    p.page.on("dialog", lambda dialog: dialog.accept())
    p.page.reload()

    p.page.locator(".kit-view", has_text="Begun.").wait_for()
    assert p.page.get_by_role("button", name="Stop", exact=True).count() == 1
    (server.folder / "work" / "third.go").touch()
    p.page.locator(".jp-OutputArea-output.kit-turn", has_text="Begun. And ended.").wait_for()
    _numbered(p, 0)

    assert len(_saved(server, p, 0)) == 1
    assert p.errors == []


def test_a_page_that_was_closed_before_the_end_finds_the_answer(server: Any, open_page: Callable[..., Any]) -> None:
    """Nothing was saved, the turn ended meanwhile: the answer stands there; once cleared and saved, it stays away."""
    p = open_page("reload-closed.ipynb", ["%%kit\ngo"]).attached()
    assert p.execute(GATES.replace("first", "fifth").replace("second", "sixth")) == ""
    p.run_cell(0, wait=False)
    p.page.locator(".kit-view", has_text="Begun.").wait_for()
    p.page.close()
    (server.folder / "work" / "fifth.go").touch()
    again = open_page("reload-closed.ipynb", None)
    again.page.locator(".jp-OutputArea-output.kit-turn", has_text="Begun. And ended.").wait_for()
    _numbered(again, 0)
    assert len(_saved(server, again, 0)) == 1

    again.command("notebook:clear-all-cell-outputs")
    assert _saved(server, again, 0) == []
    last = open_page("reload-closed.ipynb", None).attached()
    last.page.wait_for_timeout(1500)
    assert last.page.locator(".jp-OutputArea-output").count() == 0
    assert p.errors == again.errors == last.errors == []


def test_a_kernel_that_ends_in_mid_turn_leaves_what_there_was(server: Any, open_page: Callable[..., Any]) -> None:
    """Bad input: the kernel is restarted during a run: the text so far stays, in the page and in the file."""
    p = open_page("reload-restart.ipynb", ["%%kit\ngo"]).attached()
    p.execute("script.script([text('So **far**. '), delay(600)])")
    p.run_cell(0, wait=False)
    p.page.locator(".kit-view", has_text="So far.").wait_for()
    p.js("await panel.sessionContext.restartKernel();")
    left = p.page.locator(".jp-OutputArea-output.kit-turn", has_text="So far.")
    left.wait_for()
    assert "the kernel ended during this turn" in left.inner_text()
    assert p.page.get_by_role("button", name="Stop", exact=True).count() == 0
    (output,) = _saved(server, p, 0)

    assert set(output["data"]) == {TURN_MIME, "text/plain"}
    assert "".join(output["data"]["text/plain"]).startswith("So **far**.")
    assert [item.get("id") for item in output["data"][TURN_MIME]["turn"]["items"]] == [None]
    assert p.errors == []
