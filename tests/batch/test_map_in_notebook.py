"""What `kit.map` leaves in a notebook: its errors, its bar (U50, U80)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.jupyter.kernels import Kernel, kernel

ROOT = Path(__file__).parents[2]
SETUP = """
from concurrent.futures import ThreadPoolExecutor
from kit_jupyter import Kit
from kit_jupyter.errors import AuthFailed
from kit_jupyter.testing import ScriptedProvider, provider_error
kit = Kit(provider=ScriptedProvider([provider_error("auth_failed", "wrong key")], repeat_last=True), session="memory")
"""


@pytest.fixture(scope="module")
def nb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    folder = str(tmp_path_factory.mktemp("kernel"))
    with kernel({"IPYTHONDIR": folder, "KIT_DATA_DIR": folder, "PYTHONPATH": str(ROOT)}, setup=SETUP) as it:
        yield it


@pytest.mark.parametrize(
    ("code", "name", "words"),
    [
        ("kit.map(['a'], 'Say {nope}', store=False, progress=False)", "UsageError", "{nope}, which is no column"),
        ("kit.map(['a'], 'Say {text}', store=False, progress=False)", "AuthFailed", "map stopped: wrong key"),
        (
            "from kit_jupyter.batch import amap_rows\n"
            "await amap_rows(kit, ['a'], 'Say {text}', store=False, progress=False)",
            "AuthFailed",
            "map stopped: wrong key",
        ),
        (
            "from tests.batch.workers import Locked\n"
            "far = Kit(provider=Locked(), session='memory')\n"
            "far.map(['locked', 'b'], '{text}', executor=ThreadPoolExecutor(1), store=False, progress=False)",
            "AuthFailed",
            "the key opens nothing",
        ),
    ],
    ids=("a mark", "a key", "awaited", "a worker's thread"),
)
def test_what_ends_a_map_is_the_cells_error(nb: Kernel, code: str, name: str, words: str) -> None:
    """An error output with our class and one line, as runners and CI read it; nothing on stderr in its place (U50)."""
    said = nb.run(code)

    [error] = said.of("error")
    assert said.reply["status"] == "error"
    assert said.reply["ename"] == error["ename"] == name
    assert words in error["evalue"]
    assert "\n" not in error["evalue"]
    assert error["traceback"]
    assert said.stream == ""


MAP = """from kit_jupyter import Kit
from kit_jupyter.testing import ScriptedProvider
kit = Kit(provider=ScriptedProvider("ok", repeat_last=True), session="memory")
[row.answer for row in kit.map(["a", "b"], "Say {text}", store=False)]"""


def run_by_nbclient(folder: Path, monkeypatch: pytest.MonkeyPatch, **environ: str) -> Any:
    for name, value in {"KIT_DATA_DIR": str(folder), "IPYTHONDIR": str(folder), "PYTHONPATH": str(ROOT)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("KIT_UI", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    v4: Any = nbformat.v4
    notebook = v4.new_notebook(cells=[v4.new_code_cell(MAP)])
    NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    return notebook


def test_a_runner_s_file_holds_no_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No widget state with other ids at each run, no bar that stands at 0%: the value is the only output (U80)."""
    notebook = run_by_nbclient(tmp_path, monkeypatch)

    assert "widgets" not in notebook.metadata
    [output] = notebook.cells[0].outputs
    assert output["data"]["text/plain"] == "['ok', 'ok']"


def test_who_insists_on_widgets_gets_the_bar_in_a_runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """KIT_UI goes before what is known of the front end, as it does for turns."""
    assert "widgets" in run_by_nbclient(tmp_path, monkeypatch, KIT_UI="widget").metadata


@pytest.mark.parametrize(
    ("mode", "has_widget", "has_line"),
    [
        ("", True, False),
        ("auto", True, False),
        ("plain", False, True),
        ("updates", False, True),
        ("static", False, False),
    ],
)
def test_a_page_gets_the_bar_that_kit_ui_says(nb: Kernel, mode: str, has_widget: bool, has_line: bool) -> None:
    """A widget by itself, a line of text where widgets are not wanted, nothing for documentation."""
    good = MAP.replace("kit = ", "good = ").replace("kit.map", "good.map")

    said = nb.ok(f"import os; os.environ['KIT_UI'] = {mode!r}\n{good}")

    assert any("application/vnd.jupyter.widget-view+json" in shown["data"] for shown in said.shown) is has_widget
    assert ("2/2" in said.stream) is has_line
