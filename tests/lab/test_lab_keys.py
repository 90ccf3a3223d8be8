"""Keys in a real Lab and Notebook 7: issue 8, points 3 and 4; rows S81-S98 where they meet the page."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(300)  # a browser on a busy machine

SETTINGS = Path("settings/kit-jupyter")


def settings_of(p: Any, **values: Any) -> None:
    """Set the keymap plugin's settings, as the settings editor does."""
    p.js(
        "await app.serviceManager.settings.save('kit-jupyter:keymap', JSON.stringify(arg));",
        values,
    )
    (p.server.folder / SETTINGS).mkdir(parents=True, exist_ok=True)


@pytest.mark.parametrize("kind", ["lab", "notebook"])
def test_leader_shows_what_may_come_next(open_page: Callable[..., Any], kind: str) -> None:
    """S87, point 4: the overlay comes after a moment, narrows, goes back, clears; the command runs."""
    p = open_page(f"leader-{kind}.ipynb", ["a = 1"], kind).attached()
    p.focus_cell(0)
    overlay = p.page.locator(".kit-whichkey")

    p.page.keyboard.press("Control+;")
    overlay.wait_for()
    assert overlay.locator("kbd", has_text="c").count() == 1
    p.picture(f"whichkey-{kind}")
    p.page.keyboard.press("c")
    overlay.locator("li", has_text="Explain this cell's output").wait_for()
    assert overlay.locator("li", has_text="Go to the chat").count() == 0
    assert "Explain" in p.page.locator(".kit-whichkey-spoken").inner_text()
    p.page.keyboard.press("Backspace")
    overlay.locator("li", has_text="Go to the chat").wait_for()
    p.page.keyboard.press("Escape")
    overlay.wait_for(state="hidden")
    p.page.keyboard.press("Control+;")
    p.page.keyboard.press("p")

    assert p.sources() == ["a = 1", "%%kit\n"]
    assert overlay.is_hidden()


def test_a_wrong_key_clears_and_is_not_typed(open_page: Callable[..., Any]) -> None:
    """S87: after the leader a key that leads nowhere ends the sequence and reaches nobody else."""
    p = open_page("wrong.ipynb", ["a = 1"]).attached()
    p.focus_cell(0, edit=True)

    p.page.keyboard.press("Control+;")
    p.page.keyboard.press("z")
    p.page.keyboard.press("x")

    assert sorted(p.sources()[0]) == sorted("xa = 1")


def test_the_person_changes_and_removes_keys(open_page: Callable[..., Any]) -> None:
    """S88, S91, S84: leader and keys by the settings, `none` removes, an unknown id is told with the nearest."""
    p = open_page("mine.ipynb", ["a = 1"])
    settings_of(
        p,
        leader="ctrl+,",
        whichKeyDelay=0,
        overrides={
            "kit:insert-prompt-cell": "<leader>y, ctrl+alt+y",
            "kit:focus-panel": "none",
            "kit:stop-trun": "<leader>q",
        },
    )
    p.page.reload()
    p.open().attached()
    p.page.locator(".Toastify__toast, .jp-toast", has_text="did you mean kit:stop-turn").first.wait_for()
    p.focus_cell(0)

    p.page.keyboard.press("Control+,")
    overlay = p.page.locator(".kit-whichkey")
    overlay.wait_for()
    assert overlay.locator("li", has_text="Go to the chat").count() == 0
    p.page.keyboard.press("y")
    p.wait("shared.cells.length === 2")
    p.focus_cell(0)
    p.page.keyboard.press("Control+Alt+y")
    p.wait("shared.cells.length === 3")


def test_which_key_and_the_layer_can_be_switched_off(open_page: Callable[..., Any]) -> None:
    """Point 4: without the overlay the sequences work; without the layer the commands and shortcuts do."""
    p = open_page("off.ipynb", ["a = 1"])
    settings_of(p, whichKey=False)
    p.page.reload()
    p.open().attached()
    p.focus_cell(0)
    p.page.keyboard.press("Control+;")
    p.page.wait_for_timeout(600)
    assert p.page.locator(".kit-whichkey").is_hidden()
    p.page.keyboard.press("p")
    p.wait("shared.cells.length === 2")

    settings_of(p, enabled=False)
    p.page.reload()
    p.open().attached()
    p.focus_cell(0)
    count = len(p.sources())
    p.page.keyboard.press("Control+;")
    p.page.keyboard.press("p")
    p.page.keyboard.press("Control+Shift+Semicolon")
    p.page.wait_for_function("document.activeElement && document.activeElement.matches('.kit-side textarea')")
    assert len(p.sources()) == count


def test_a_sequence_that_is_not_shown_is_dropped_in_time(open_page: Callable[..., Any]) -> None:
    """S88: the time-out is a setting."""
    p = open_page("late.ipynb", ["a = 1"])
    settings_of(p, whichKey=False, timeout=200)
    p.page.reload()
    p.open().attached()
    p.focus_cell(0)

    p.page.keyboard.press("Control+;")
    p.page.wait_for_timeout(1000)
    p.page.keyboard.press("p")
    p.page.wait_for_timeout(200)

    assert p.sources() == ["a = 1"]


def test_python_maps_keys_to_functions_and_commands(open_page: Callable[..., Any]) -> None:
    """S85, S90, S96, point 3: kit.keymap works in the page; what it returns takes it away and restores."""
    p = open_page("python.ipynb", ["a = 1"]).attached()
    p.execute(
        "pressed = []\n"
        "def note(context): pressed.append((context['focus'].get('cell'), context['count'], sorted(context)[:2]))\n"
        "one = kit.keymap('<leader>gs', note, description='Note where I am', category='Mine')\n"
        "two = kit.keymap('<leader>g<count>j', note, description='Note a count', category='Mine')\n"
        "three = kit.keymap('<leader>p', 'notebook:insert-cell-above', description='Cell above')"
    )
    p.focus_cell(0)
    p.page.keyboard.press("Control+;")
    group = p.page.locator(".kit-whichkey li", has_text="Mine")
    group.wait_for()
    p.page.keyboard.press("g")
    p.page.locator(".kit-whichkey li", has_text="Note where I am").wait_for()
    p.page.keyboard.press("s")
    for key in ("Control+;", "g", "1", "2", "j"):
        p.page.keyboard.press(key)

    said = ""
    for _ in range(100):
        said = p.execute("print(len(pressed), pressed)")
        if said.startswith("2"):
            break
        p.page.wait_for_timeout(50)
    assert p.ids()[0] in said
    assert ", 12," in said

    p.focus_cell(0)
    p.page.keyboard.press("Control+;")
    p.page.keyboard.press("p")
    p.wait("shared.cells.length === 2")
    assert p.sources()[0] == ""  # above, by the higher layer
    p.execute("three()")
    p.page.wait_for_timeout(300)
    p.focus_cell(1)
    p.page.keyboard.press("Control+;")
    p.page.keyboard.press("p")
    p.wait("shared.cells.length === 3")
    assert "%%kit\n" in p.sources()  # what was below is back

    listed = p.execute("%kit_keys")
    assert "Note where I am (note(), in Python)" in listed
    assert "Go to the chat (kit:focus-panel)" in listed
    assert "is active" in listed


def test_a_function_that_fails_is_told_where_the_key_was_pressed(open_page: Callable[..., Any]) -> None:
    """Point 3: an exception in a mapped function is a notice on the page, and the kernel goes on."""
    p = open_page("fails.ipynb", ["a = 1"]).attached()
    p.execute("remove = kit.keymap('<leader>gf', lambda: 1 / 0, description='Fail')")
    p.focus_cell(0)

    p.page.keyboard.press("Control+;")
    p.page.locator(".kit-whichkey li", has_text="Fail").or_(
        p.page.locator(".kit-whichkey li", has_text="Python")
    ).first.wait_for()
    for key in ("g", "f"):
        p.page.keyboard.press(key)

    p.page.locator(".Toastify__toast, .jp-toast", has_text="ZeroDivisionError").first.wait_for()
    assert p.execute("print('alive')").strip() == "alive"


def test_the_keys_dialog_says_what_is_active_and_why(open_page: Callable[..., Any]) -> None:
    """S94, S97: keys, command, source, condition; conflicts with both sources."""
    p = open_page("dialog.ipynb", ["a = 1"]).attached()
    p.execute("remove = kit.keymap('<leader>p', 'notebook:run-cell', description='Run it')")
    p.page.wait_for_timeout(300)
    p.focus_cell(0)

    p.page.keyboard.press("Control+;")
    p.page.keyboard.press("?")
    dialog = p.page.locator(".jp-Dialog .kit-keys")
    dialog.wait_for()

    said = dialog.inner_text()
    assert "Here:" in said
    assert "command" in said
    assert "kit:explain-cell" in said
    assert "python (Run it) before kit (Prompt cell below)" in said
    p.picture("keys-dialog")


def test_commands_run_without_any_key(open_page: Callable[..., Any]) -> None:
    """S82, S98: by id, by its old name, and from the palette."""
    p = open_page("bykey.ipynb", ["a = 1"]).attached()

    p.command("kit:open-panel")
    p.page.locator(".kit-side textarea").first.wait_for()
    p.command("kit:insert-prompt-cell")
    p.wait("shared.cells.length === 2")

    assert p.js("return app.commands.label('kit:show-keys');") == "kit: Show the Keys"
    assert p.js("return app.commands.keyBindings.filter(b => b.command === 'kit:show-keys').length;") == 0

    p.command("apputils:activate-command-palette")
    p.page.locator("#modal-command-palette input, .lm-CommandPalette-input").first.fill("kit: Show the Keys")
    p.page.locator(".lm-CommandPalette-item[data-command='kit:show-keys']").first.click()
    p.page.locator(".jp-Dialog .kit-keys").wait_for()


@pytest.mark.parametrize("plugin", ["keymap", "panel", "cells", "outputs", "inline-completion", "mime"])
def test_each_plugin_can_be_disabled_alone(open_page: Callable[..., Any], server: Any, plugin: str) -> None:
    """Point 1: the rest goes on without it."""
    config = server.folder / "config" / "labconfig"
    config.mkdir(parents=True, exist_ok=True)
    page_config = config / "page_config.json"
    page_config.write_text(json.dumps({"disabledExtensions": {f"kit-jupyter:{plugin}": True}}))
    bundle = {"version": 1, "turn": {"prompt": "p", "mode": "prompt", "status": "done", "items": [
        {"kind": "text", "text": "a **bold** word", "done": True}]}}  # fmt: skip
    show = (
        "from IPython.display import display\n"
        f"display({{'application/vnd.kit.turn+json': {bundle!r}, 'text/markdown': 'fallback **text**'}}, raw=True)"
    )
    try:
        p = open_page(f"without-{plugin}.ipynb", [show])
        p.run_cell(0)
        has = p.js("return app.commands.listCommands().filter(id => id.startsWith('kit:'));")
        drawn = p.page.locator(".jp-OutputArea-output strong").first
        drawn.wait_for()
    finally:
        page_config.unlink()

    expected = {"keymap": "kit:show-keys", "panel": "kit:focus-panel", "cells": "kit:undo-edit"}
    for name, command in expected.items():
        assert (command in has) == (name != plugin), (name, has)
    assert drawn.inner_text() == ("text" if plugin == "mime" else "bold")
    assert p.page.locator(".kit-output-bar").count() == 0  # our own output has no buttons
