"""Stop, steer and approvals from the side panel on ipykernel 6, in a real Lab: issue 8, point 2.

There comm messages wait for the main thread, so everything said while user code holds it goes by the control channel.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "jupyter"))
from kernels import OLD, overlay

pytestmark = pytest.mark.timeout(300)  # a browser on a busy machine

#: A tool that holds the main thread until a file says so; it is user code, which never lets the kernel's loop run.
HOLD = """
@tool
def hold() -> str:
    'Hold the main thread.'
    import os, time
    while not os.path.exists(GO):
        time.sleep(0.02)
    return 'let go'
kit.add_tool(hold)
"""


@pytest.fixture
def page(server: Any, open_page: Callable[..., Any], request: pytest.FixtureRequest) -> Any:
    """A notebook whose kernel is ipykernel 6, with kit, and with the panel open."""
    python = os.environ.get("KIT_OTHER_PYTHON") or ""
    server.offer_kernel("other", python or sys.executable, "" if python else overlay(OLD))
    name = re.sub(r"\W+", "-", request.node.name).strip("-")
    p = open_page(f"{name}.ipynb", ["%%kit\nrun it"], kernel="other").attached()
    version = p.execute("import ipykernel; print(ipykernel.__version__)").strip()
    if not version.startswith("6."):
        pytest.skip(f"KIT_OTHER_PYTHON has ipykernel {version}")
    p.go = p.server.folder / "work" / f"go-{name}"
    p.execute(f"GO = {str(p.go)!r}" + HOLD)
    if "question_of_a_cell" not in request.node.name:  # there the chat comes by itself
        p.command("kit:focus-panel")
        p.page.locator(".kit-side-chat:not([hidden]) textarea.kit-in").first.wait_for()
    return p


def until_held(p: Any) -> None:
    """Wait until the tool holds the kernel's main thread, as the side panel shows it."""
    p.page.locator(".kit-side .kit-tool[data-status=running]", has_text="hold").first.wait_for()


def test_the_panel_answers_on_ipykernel_6(page: Any) -> None:
    """Point 2: a prompt typed into the side panel is answered there."""
    page.execute("script.script([text('from six')])")
    box = page.page.locator(".kit-side-chat textarea.kit-in").first

    box.fill("hello")
    box.press("Enter")

    page.page.locator(".kit-side-chat", has_text="from six").wait_for()


def test_stop_while_user_code_holds_the_main_thread(page: Any) -> None:
    """Point 2: the panel's own Stop ends a turn whose tool blocks the kernel; the kernel is free again."""
    page.execute("script.script([tool_call('hold')], [text('never')])")
    page.run_cell(0, wait=False)
    until_held(page)

    page.page.locator(".kit-side button[aria-label=Stop]:visible").first.click()
    page.wait("panel.sessionContext.session.kernel.status === 'idle'")

    assert page.execute("print(kit.is_running, len(script.requests))").strip() == "False 1"
    assert not page.go.exists()


def test_steer_while_user_code_holds_the_main_thread(page: Any) -> None:
    """Point 2: what is typed into the panel meanwhile is shown as waiting, and reaches the next request."""
    page.execute("script.script([tool_call('hold')], [text('in metres then')])")
    page.run_cell(0, wait=False)
    until_held(page)
    box = page.page.locator(".kit-side-chat textarea.kit-in").first

    box.fill("Use metres, please")
    box.press("Enter")
    page.page.locator(".kit-side .kit-view", has_text="Use metres, please").first.wait_for()
    assert not page.go.exists()
    page.go.touch()
    page.page.locator(".jp-OutputArea", has_text="in metres then").first.wait_for()

    sent = page.execute("print(len(script.requests), script.requests[-1].messages)")
    assert sent.startswith("2 ")
    assert "Use metres, please" in sent


@pytest.mark.parametrize("word", ["approve", "deny"])
def test_a_question_of_a_cell_brings_the_chat_which_answers_it(page: Any, word: str) -> None:
    """Point 2: a card of a running cell is answered at the side; the cell's own buttons could not be heard."""
    page.execute(
        "ran = []\n@tool(approve='ask')\ndef act() -> str:\n    'Act.'\n    ran.append(1)\n    return 'acted'\n"
        "kit.add_tool(act)\nscript.script([tool_call('act')], [text('that was it')])"
    )
    page.run_cell(0, wait=False)
    card = page.page.locator(".kit-side .kit-approval:not([hidden])").first
    card.wait_for()

    card.locator(".kit-go" if word == "approve" else ".kit-no").first.click()
    page.page.locator(".jp-OutputArea", has_text="that was it").first.wait_for()

    assert page.execute("print(len(ran))").strip() == ("1" if word == "approve" else "0")


def test_a_question_in_a_panel_turn_while_another_cell_holds_the_kernel(page: Any) -> None:
    """Point 2: a detached turn asks while a plain cell holds the main thread; the answer counts at once.

    The tool itself is the user's code, so it runs when the cell has ended.
    """
    page.execute(
        "ran = []\n@tool(approve='ask')\ndef act() -> str:\n    'Act.'\n    ran.append(1)\n    return 'acted'\n"
        "kit.add_tool(act)\nscript.script([tool_call('act')], [text('that was it')])"
    )
    box = page.page.locator(".kit-side-chat textarea.kit-in").first
    box.fill("go")
    box.press("Enter")
    card = page.page.locator(".kit-side .kit-approval:not([hidden])").first
    card.wait_for()
    page.js("shared.cells[0].setSource(arg);", "import os, time\nwhile not os.path.exists(GO): time.sleep(0.02)")
    page.run_cell(0, wait=False)
    page.wait("panel.sessionContext.session.kernel.status === 'busy'")

    card.locator(".kit-go").first.click()
    page.page.locator(".kit-side .kit-approval", has_text="approved").first.wait_for()
    assert not page.go.exists()
    page.go.touch()

    page.page.locator(".kit-side-chat", has_text="that was it").first.wait_for()
    assert page.execute("print(len(ran))").strip() == "1"
