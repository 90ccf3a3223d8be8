"""Inline completion in a real cell: issue 8, point 7: off until switched on, debounced, cancellable, ghost text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(300)  # a browser on a busy machine

SETTING = "@jupyterlab/completer-extension:inline-completer"


def switched_on(p: Any, **more: Any) -> None:
    """Switch our provider on, as the settings editor does, and load the page anew."""
    providers = {"kit-jupyter": {"enabled": True, "debouncerDelay": 350, "timeout": 20000, **more}}
    p.js(
        "await app.serviceManager.settings.save(arg[0], JSON.stringify({providers: arg[1]}));",
        [SETTING, providers],
    )
    p.page.reload()
    p.open().attached()


def asked(p: Any) -> int:
    """How many requests the model got."""
    return int(p.execute("print(len(script.requests))"))


def until_asked(p: Any, count: int) -> None:
    """Wait until the model got that many requests."""
    for _ in range(200):
        if asked(p) >= count:
            return
        p.page.wait_for_timeout(50)
    raise AssertionError(f"{asked(p)} requests, not {count}")


def test_it_is_off_until_switched_on(open_page: Callable[..., Any]) -> None:
    """Point 7: as shipped, typing asks no model, and asking for a completion by hand asks none either."""
    p = open_page("off-inline.ipynb", [""]).attached()
    p.execute("script.script([text('1 + 1')])")
    p.focus_cell(0, edit=True)

    p.page.keyboard.type("total = ")
    p.page.wait_for_timeout(1500)  # longer than the delay of the debouncer
    p.command("inline-completer:invoke")
    p.page.wait_for_timeout(1500)

    assert asked(p) == 0
    assert p.page.locator(".jp-GhostText").count() == 0


def test_ghost_text_comes_after_a_pause_and_is_accepted(open_page: Callable[..., Any]) -> None:
    """Point 7: quick typing asks once, after the last key; Tab takes the text; the conversation knows nothing of it."""
    p = open_page("ghost.ipynb", ["radius = 3", ""])
    switched_on(p)
    p.execute("script.script([text('```python\\narea = math.pi * radius ** 2\\n```')])")
    p.focus_cell(1, edit=True)

    p.page.keyboard.type("area = ", delay=20)
    ghost = p.page.locator(".jp-GhostText", has_text="math.pi * radius ** 2")
    ghost.first.wait_for()

    assert asked(p) == 1
    sent = p.execute("print(script.requests[0].messages)")
    assert "area = " in sent
    assert "radius = 3" in sent  # the cells above are context
    assert p.sources()[1] == "area = "  # ghost text is no text yet
    p.picture("ghost-text")
    p.page.keyboard.press("Tab")
    p.wait("shared.cells[1].source === 'area = math.pi * radius ** 2'")
    assert p.execute("print(len(kit.messages))").strip() == "0"


def test_typing_on_cancels_what_was_asked(open_page: Callable[..., Any]) -> None:
    """Point 7: the older request is closed in the kernel; what is shown belongs to the text as it is now."""
    p = open_page("cancel.ipynb", [""])
    switched_on(p, debouncerDelay=100)
    p.execute("script.script([delay(600), text('never')], [text('z = 26')])")
    p.focus_cell(0, edit=True)

    p.page.keyboard.type("y")
    until_asked(p, 1)
    first = "list(nb.lab._completions.values())[0]"
    p.execute(f"first = {first}")
    p.page.keyboard.type("z = ")
    until_asked(p, 2)
    p.page.locator(".jp-GhostText", has_text="26").first.wait_for()

    assert p.execute("print(first.future.cancelled() or first.future.done())").strip() == "True"
    assert p.page.locator(".jp-GhostText", has_text="never").count() == 0


def test_a_prompt_cell_is_not_completed(open_page: Callable[..., Any]) -> None:
    """Point 7: a %%kit cell is a letter to the model, not code."""
    p = open_page("prompt-inline.ipynb", [""])
    switched_on(p, debouncerDelay=50)
    p.execute("script.script([text('never')])")
    p.focus_cell(0, edit=True)

    p.page.keyboard.type("%%kit\nplot the ")
    p.page.wait_for_timeout(1500)

    # "%%ki" is none yet, and may have been asked about.
    assert "plot the" not in p.execute("print([one.messages for one in script.requests])")
