"""What runs a notebook's file gets the bundle alone; what shows pages gets live views."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

from kit_jupyter.jupyter.display import is_runner
from tests.jupyter.kernels import TURN_MIME, Kernel

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
