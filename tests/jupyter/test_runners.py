"""What runs a notebook's file gets the bundle alone; what shows pages gets live views."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

from kit_jupyter.jupyter.lab import may_be_page
from kit_jupyter.runners import is_runner
from tests.jupyter.kernels import TURN_MIME, Kernel, kernel

ROOT = Path(__file__).parents[2]
KERNEL = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
CELLS = (
    "%load_ext kit_jupyter\nfrom kit_jupyter import Kit\nfrom kit_jupyter.testing import ScriptedProvider, text\n"
    "kit = Kit(provider=ScriptedProvider([text('Hello there.')]), session='memory')",
    "%%kit\nsay hello",
)
NBCLIENT = (
    "import nbformat, nbclient\nnotebook = nbformat.read('mine.ipynb', 4)\n"
    "nbclient.NotebookClient(notebook, timeout=60).execute()\nnbformat.write(notebook, 'mine.ipynb')"
)


@pytest.mark.parametrize(
    "command",
    [
        ("-c", NBCLIENT),
        ("-m", "jupyter", "nbconvert", "--to", "notebook", "--execute", "--inplace", "mine.ipynb"),
        ("-m", "papermill", "--no-progress-bar", "mine.ipynb", "mine.ipynb"),
    ],
    ids=("nbclient", "nbconvert", "papermill"),
)
def test_a_runner_s_file_holds_no_widget_state(tmp_path: Path, command: tuple[str, ...]) -> None:
    """No dead views and none of their source in the file: what stays is the bundle (U80, U82)."""
    cells = [nbformat.v4.new_code_cell(text) for text in CELLS]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=KERNEL), tmp_path / "mine.ipynb")
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("KIT_", "JPY_"))}
    environ |= {"KIT_DATA_DIR": str(tmp_path / "data"), "PYTHONPATH": str(ROOT)}

    done = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120
    )

    assert done.returncode == 0, done.stderr[-2000:]
    assert "comm target" not in done.stderr, "nobody there has heard of the Lab extension, and so nobody is told"
    notebook: Any = nbformat.read(tmp_path / "mine.ipynb", 4)
    assert "widgets" not in notebook.metadata
    assert [TURN_MIME in output.data for output in notebook.cells[1].outputs] == [True]
    assert "Hello there." in notebook.cells[1].outputs[0].data["text/markdown"]


@pytest.mark.parametrize(
    ("allow_stdin", "metadata", "runs"),
    [(False, {}, True), (True, {}, False), (False, {"cellId": "a"}, False), (True, {"cellId": "a"}, False)],
)
def test_who_is_a_runner(allow_stdin: bool, metadata: dict[str, str], runs: bool) -> None:
    """Taking input, or telling the cell, is a sign of a person's page; a comm message is no execution."""
    parent = {
        "header": {"msg_type": "execute_request"},
        "content": {"allow_stdin": allow_stdin},
        "metadata": metadata,
    }

    assert is_runner(parent) is runs
    assert not is_runner({"header": {"msg_type": "comm_msg"}, "content": {}})
    assert not is_runner({})


def test_a_page_that_takes_input_still_gets_the_live_view(nb: Kernel) -> None:
    """As Lab executes: input allowed, a cell's id (U80)."""
    nb.script("[text('Hello there.')]")

    msg_id = nb.send("%%kit\nsay hello", cell_id="c1", allow_stdin=True)
    nb.wait(msg_id)

    assert nb.view_of(msg_id)


@pytest.mark.parametrize(
    ("allow_stdin", "metadata", "is_page"),
    [
        (False, {}, False),
        (True, {}, True),
        (True, {"cellId": "0b9a", "trusted": True}, True),
        (True, {"cellId": "vscode-notebook-cell:/home/me/a.ipynb#W0sZmlsZQ=="}, False),
    ],
)
def test_who_may_be_a_page(allow_stdin: bool, metadata: dict[str, Any], is_page: bool) -> None:
    """Only such a cell's front end is told that kit is here."""
    content = {"allow_stdin": allow_stdin}
    parent = {"header": {"msg_type": "execute_request"}, "content": content, "metadata": metadata}

    assert may_be_page(parent) is is_page
    assert not may_be_page({})


@pytest.mark.parametrize("cell_id", ["", "c0ffee"], ids=("runner", "page"))
def test_a_page_finds_kit_and_is_told_only_where_one_may_be(tmp_path: Path, cell_id: str) -> None:
    """Loaded for a runner, kit is silent; a page that comes later finds it among the kernel's comms all the same."""
    code = "%load_ext kit_jupyter\nfrom kit_jupyter.jupyter import notebook_of; notebook_of(get_ipython())"
    with kernel({"IPYTHONDIR": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)}, setup="") as nb:
        if cell_id:
            nb.wait(nb.send(code, cell_id=cell_id, allow_stdin=True))
        else:
            nb.wait(nb.client.execute(code, allow_stdin=False))
        asked = nb.client.comm_info("kit.lab")
        found = nb.client.get_shell_msg(timeout=10)
        while found["parent_header"].get("msg_id") != asked:
            found = nb.client.get_shell_msg(timeout=10)
        told = [m["content"]["target_name"] for m in nb.log if m["msg_type"] == "comm_open"]

    assert len(found["content"]["comms"]) == 1 + bool(cell_id)
    assert told == ["kit.lab"] * bool(cell_id)
