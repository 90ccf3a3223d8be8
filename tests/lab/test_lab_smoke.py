"""The extension in one sitting: what must work in each Lab, and beside other extensions. Issue 8, point 1; U71, U95.

``make lab-matrix`` runs this file in environments of their own (`KIT_LAB_PYTHON`): the oldest Lab that we support,
and a Lab with jupyter-collaboration, jupyter-ai and pyviz_comms.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import pytest
from test_lab_cells import call

pytestmark = pytest.mark.timeout(300)  # a browser on a busy machine


def test_panel_keys_and_review_work_together(open_page: Callable[..., Any]) -> None:
    """U95: load, chat, leader, a key of Lab's own, a reviewed change, undo; nothing throws in the page."""
    p = open_page("smoke.ipynb", ["a = 1", "print('b')"]).attached()
    version = p.js("return app.version;")
    print("JupyterLab", version)
    p.execute("script.script([text('I am **here**.')])")

    p.command("kit:focus-panel")
    box = p.page.locator(".kit-side-chat:not([hidden]) textarea.kit-in").first
    box.fill("Where are you?")
    box.press("Enter")
    p.page.locator(".kit-side-chat", has_text="I am here.").wait_for()
    first = p.ids()[0]
    call(p, "edit_cell", id=first, old="1", new="2")
    review = p.page.locator(".kit-review")
    review.locator(".cm-deletedChunk").first.wait_for()

    p.focus_cell(0)
    p.page.keyboard.press("Control+;")
    p.page.locator(".kit-whichkey:not([hidden])").wait_for()
    p.picture(f"smoke-{version}{'-' + os.environ['KIT_LAB_NAME'] if os.environ.get('KIT_LAB_NAME') else ''}")
    p.page.keyboard.press("r")
    p.page.keyboard.press("r")
    review.wait_for(state="detached")
    assert p.sources() == ["a = 1", "print('b')"]
    p.focus_cell(1)
    p.page.keyboard.press("Shift+Enter")  # Lab's own keys are Lab's
    p.page.locator(".jp-OutputArea-output", has_text="b").first.wait_for()

    assert [error for error in p.errors if "kit" in error.lower()] == []


def test_typing_reaches_the_editor_only(open_page: Callable[..., Any]) -> None:
    """U95, U96: with all extensions on, printable keys in a cell and in the composer are text and nothing else."""
    p = open_page("smoke-keys.ipynb", ["a = 1", ""]).attached()
    p.focus_cell(1, edit=True)
    typed = "".join(c for c in map(chr, range(33, 127)) if c not in "()[]{}\"'`")
    for character in typed:
        p.page.keyboard.press(character)
    p.page.keyboard.press("Escape")
    p.page.keyboard.press("Escape")
    assert p.sources() == ["a = 1", typed]

    p.command("kit:focus-panel")
    box = p.page.locator(".kit-side-chat:not([hidden]) textarea.kit-in").first
    box.wait_for()
    for character in typed:
        box.press(character)
    assert box.input_value() == typed
    assert p.sources() == ["a = 1", typed]


def test_two_browsers_see_one_change(open_page: Callable[..., Any]) -> None:
    """Point 5, U71: a call is done by one page; with jupyter-collaboration the other sees it, once."""
    p = open_page("smoke-two.ipynb", ["a = 1"]).attached()
    other = open_page("smoke-two.ipynb", None)
    for _ in range(200):
        if p.execute("print(sum(page.comm is not None for page in nb.lab.pages.values()))").strip() == "2":
            break
        p.page.wait_for_timeout(50)
    is_shared = any("docprovider" in name for name in p.js("return app.listPlugins();"))

    call(p, "insert_cell", source="b = 2")
    p.page.wait_for_timeout(2500)  # the slower page would have claimed by now

    found = sorted([p.sources(), other.sources()], key=len)
    print("shared editing" if is_shared else "no shared editing")
    if is_shared:
        assert found == [["a = 1", "b = 2"]] * 2
        ids = p.ids()
        assert ids == other.ids()
        call(p, "edit_cell", id=ids[1], old="2", new="3")
        other.wait("shared.cells[1].source === 'b = 3'")
    else:
        assert found == [["a = 1"], ["a = 1", "b = 2"]]


def test_a_kernel_that_loads_kit_by_itself_is_found(server: Any, open_page: Callable[..., Any]) -> None:
    """Point 1: loaded by the kernel's configuration, before any cell: the chat is ready, and nobody ran anything."""
    server.offer_kernel("with-kit", sys.executable)
    path = server.folder / "share" / "kernels" / "with-kit" / "kernel.json"
    spec = json.loads(path.read_text())
    spec["argv"].append("--ext=kit_jupyter")
    path.write_text(json.dumps(spec))
    p = open_page("smoke-auto.ipynb", ["1 + 1"], kernel="with-kit")

    p.command("kit:focus-panel")
    p.page.locator(".kit-side-chat:not([hidden]) textarea.kit-in").first.wait_for()

    assert [error for error in p.errors if "kit" in error.lower()] == []
