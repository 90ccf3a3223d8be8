"""ipykernel 6.29 … 7.3: fewer roads, the same promises.

Runs on ipykernel 6.29 beside the installed one; with ``KIT_OTHER_PYTHON=path/to/python`` of an environment that
has an older ipykernel and this package's dependencies, on that; with ``KIT_IPYKERNEL=7.0.1``, on that version.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernels import OLD, TURN_MIME, Kernel, kernel, overlay

PYTHON = os.environ.get("KIT_OTHER_PYTHON", "")
ROOT = Path(__file__).parents[2]

SLOW = '[text("begin "), *[x for i in range(300) for x in (delay(0.05), text("w%d " % i))]]'


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    home = str(tmp_path_factory.mktemp("old"))
    other = "" if PYTHON else overlay(os.environ.get("KIT_IPYKERNEL", OLD))
    path = os.pathsep.join(filter(None, (other, str(ROOT), os.environ.get("PYTHONPATH", ""))))
    with kernel({"PYTHONPATH": path, "XDG_DATA_HOME": home, "IPYTHONDIR": home, "KIT_UI": ""}, python=PYTHON) as it:
        yield it


def test_it_is_another_kernel(old: Kernel) -> None:
    """Else this file tests nothing new."""
    assert tuple(old.value("__import__('ipykernel').version_info[:2]")) < (7, 4)


def test_an_answer_and_its_bundle(old: Kernel) -> None:
    """`%%kit` is an async cell here, too."""
    old.script('[text("Hello", chunks=3)]')

    said = old.ok("%%kit\nhi {x}", cell_id="c1")

    assert said.kit()["text/plain"] == "Hello"
    assert old.value("provider.requests[-1].messages[-1].parts[0].text") == "hi {x}"


def test_interrupt(old: Kernel) -> None:
    """U19 on older kernels."""
    old.script(SLOW, "[text('fine')]")
    msg = old.send("%%kit\ngo", cell_id="i")
    old.pump(lambda: "begin" in old.text_in_frames(msg))

    begin = time.monotonic()
    old.manager.interrupt_kernel()
    said = old.wait(msg)

    assert time.monotonic() - begin < 2
    assert said.reply["status"] == "error"
    assert said.kit()[TURN_MIME]["turn"]["status"] == "stopped"
    assert old.ok("%%kit\nnext").kit()["text/plain"] == "fine"


def test_stop_and_steer_by_the_control_channel(old: Kernel) -> None:
    """Jupyter facts 2.6: works while user code holds the main thread."""
    old.ok("def nap() -> str:\n    'Nap.'\n    import time\n    time.sleep(30)\n    return 'x'")
    old.script("[tool_call('nap')]", more=", tools=[nap], permissions='auto'")
    msg = old.send("%%kit\ngo", cell_id="s")
    old.pump(lambda: old.tool_runs(msg))

    begin = time.monotonic()
    assert old.control({"op": "steer", "text": "be brief"})["status"] == "ok"
    assert old.control({"op": "stop"})["status"] == "ok"
    old.wait(msg)

    assert time.monotonic() - begin < 4


def test_background(old: Kernel) -> None:
    """`-b` returns; the final bundle replaces the view wherever it is."""
    old.script("[delay(0.3), text('later')]")
    seen = len(old.log)
    first = old.send("%%kit -b\ngo", cell_id="b")
    old.pump(lambda: old.is_idle(first))
    old.ok("1")
    old.pump(lambda: any(m["msg_type"] == "update_display_data" for m in old.log[seen:]))

    bundle = [m for m in old.log[seen:] if m["msg_type"] == "update_display_data"][-1]["content"]["data"]
    assert bundle["text/plain"] == "later"


def test_an_approval_without_a_road_is_denied_at_once(old: Kernel) -> None:
    """No comm is served while the cell waits and no input is allowed: nothing hangs."""
    old.ok("ran = []\n@tool(approve='ask')\ndef act() -> str:\n    'Act.'\n    ran.append(1)\n    return 'acted'")
    old.script("[tool_call('act')]", "[text('ok')]", more=", tools=[act], permissions='ask'")

    said = old.ok("%%kit\nact", cell_id="a")

    assert said.kit()[TURN_MIME]["turn"]["items"][0]["status"] == "denied"
    assert old.value("ran") == []


def test_the_python_tool(old: Kernel) -> None:
    """User code with a last value and a display, captured for the card and not in the cell."""
    old.ok("from kit_jupyter.jupyter.runner import notebook_tools")
    code = "from IPython.display import Markdown, display; display(Markdown('**m**')); print('p'); 6 * 7"
    old.script(
        f"[tool_call('python', code={code!r})]",
        "[text('ok')]",
        more=", tools=notebook_tools(get_ipython()), permissions='auto'",
    )

    said = old.ok("%%kit\ngo", cell_id="p")

    assert "42" in said.kit()[TURN_MIME]["turn"]["items"][0]["result"]
    assert said.stream == ""
    assert len(said.shown) == 1
