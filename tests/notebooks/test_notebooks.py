"""The example notebooks run in CI: strict nbval from recordings, with no network, and by other runners (issue 9)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from tests.notebooks.lessons import LESSONS
from tests.notebooks.teacher import NOTEBOOKS, ROOT

ALL = sorted(NOTEBOOKS.glob("*.ipynb"))
STEMS = [path.stem for path in ALL]


def replaying(tmp_path: Path, stem: str) -> dict[str, str]:
    """An environment without keys that only replays."""
    clean = {k: v for k, v in os.environ.items() if not k.endswith(("_API_KEY", "_TOKEN")) and not k.startswith("KIT_")}
    return {
        **clean,
        "KIT_REPLAY": "strict",
        "KIT_REPLAY_FILE": str(NOTEBOOKS / "recordings" / f"{stem}.json"),
        "KIT_UI": "static",
        "KIT_DATA_DIR": str(tmp_path),
        "PYTHONPATH": str(ROOT),
    }


def run(command: list[str], environ: dict[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=environ, cwd=cwd, capture_output=True, text=True, timeout=170, check=False)


def test_the_set_is_complete() -> None:
    """Eleven notebooks, numbered, each with a recording beside it (issue 9.1)."""
    assert [stem[:2] for stem in STEMS] == [f"{n:02d}" for n in range(1, 12)]
    for stem in STEMS:
        assert (NOTEBOOKS / "recordings" / f"{stem}.json").exists(), stem
    assert set(LESSONS) <= set(STEMS)


@pytest.mark.parametrize("stem", STEMS)
def test_strict_nbval_passes_without_a_network(stem: str, tmp_path: Path) -> None:
    """Plain --nbval, nothing of ours sanitised, in strict replay: neither key nor socket (U106, U111, issue 9.2)."""
    done = run(
        [
            sys.executable,
            *("-m", "pytest", "-q", "--nbval", "--nbval-current-env", "--nbval-cell-timeout", "60"),
            *("-p", "no:cacheprovider", "-p", "no:xdist", f"{stem}.ipynb"),
        ],
        replaying(tmp_path, stem),
        NOTEBOOKS,
    )

    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "passed" in done.stdout


@pytest.mark.parametrize("path", ALL, ids=STEMS)
def test_the_saved_file_is_valid_and_reads_without_a_kernel(path: Path) -> None:
    """No widget state, no path of a machine, text beside every card, the first cell loads us (U80, U82, U87)."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    text = path.read_text()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    cards = [
        output["data"]
        for cell in code
        for output in cell.outputs
        if "application/vnd.kit.turn+json" in output.get("data", {})
    ]

    assert "widgets" not in notebook.metadata
    assert "%load_ext kit_jupyter" in code[0].source
    assert not [place for place in ("/home/", "/root/", "/tmp/", str(ROOT)) if place in text]
    assert all(data.get("text/plain", "").strip() and data.get("text/markdown", "").strip() for data in cards)


@pytest.mark.parametrize(
    "command",
    [
        ["-m", "papermill", "--log-level", "ERROR", "--no-progress-bar", "{in}", "{out}.ipynb"],
        ["-m", "nbconvert", "--execute", "--to", "html", "--output", "{out}", "{in}"],
        ["-m", "nbconvert", "--execute", "--to", "markdown", "--output", "{out}", "{in}"],
    ],
    ids=["papermill", "nbconvert-html", "nbconvert-markdown"],
)
def test_other_runners_end_and_show_the_answers(command: list[str], tmp_path: Path) -> None:
    """papermill and nbconvert execute a notebook in replay, end by themselves, and show answers and tools (U83)."""
    stem = "04_tools"
    out = tmp_path / "out"
    filled = [part.format(**{"in": str(NOTEBOOKS / f"{stem}.ipynb"), "out": str(out)}) for part in command]
    done = run([sys.executable, *filled], replaying(tmp_path, stem), NOTEBOOKS)

    assert done.returncode == 0, done.stderr[-3000:]
    made = next(path for path in tmp_path.iterdir() if path.name.startswith("out"))
    text = made.read_text()
    assert "a small difference" in text
    assert "mean_of" in text


def test_a_failed_model_call_fails_the_notebook(tmp_path: Path) -> None:
    """A request that no recording answers is an error of its cell, and nbval notices (U113)."""
    notebook = nbformat.read(NOTEBOOKS / "11_ci.ipynb", as_version=4)
    ask = next(cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.startswith("%%kit"))
    ask.source = ask.source.replace("three", "four")
    changed = tmp_path / "changed.ipynb"
    nbformat.write(notebook, changed)
    command = [sys.executable, "-m", "pytest", "-q", "--nbval", "--nbval-current-env", "-p", "no:cacheprovider"]
    done = run([*command, "-p", "no:xdist", str(changed)], replaying(tmp_path, "11_ci"), tmp_path)

    assert done.returncode == 1
    assert "ReplayMiss" in done.stdout
    assert "four" in done.stdout


def test_recordings_hold_no_key() -> None:
    """What is beside the notebooks is redacted and readable (issue 5.6)."""
    for path in (NOTEBOOKS / "recordings").glob("*.json"):
        text = path.read_text()
        assert json.loads(text)["exchanges"], path.name
        assert "authorization" not in text.lower(), path.name
        assert "sk-" not in text, path.name
