"""The example notebooks run in CI: strict nbval from recordings, with no network, and by other runners (issue 9)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import nbformat
import psutil
import pytest
from nbclient import NotebookClient

from tests.jupyter.kernels import OLD, overlay
from tests.notebooks.lessons import LESSONS
from tests.notebooks.teacher import NOTEBOOKS, ROOT

ALL = sorted(NOTEBOOKS.glob("*.ipynb"))
STEMS = [path.stem for path in ALL]
SLOW = pytest.mark.slow  # make matrix runs these


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


@pytest.mark.parametrize("stem", [pytest.param(s, marks=() if s == "04_tools" else SLOW) for s in STEMS])
def test_strict_nbval_passes_on_ipykernel_6(stem: str, tmp_path: Path) -> None:
    """The same files, the same outputs, on the oldest kernel we take (U109, issue 9.2)."""
    environ = replaying(tmp_path, stem) | {"JUPYTER_PATH": str(tmp_path / "jupyter")}
    path = os.pathsep.join((overlay(OLD), str(ROOT)))
    version = run(
        [sys.executable, "-c", "print(__import__('ipykernel').__version__)"], {**environ, "PYTHONPATH": path}, ROOT
    )
    folder = tmp_path / "jupyter" / "kernels" / "older"
    folder.mkdir(parents=True)
    kernel = {
        "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "older",
        "language": "python",
        "env": {"PYTHONPATH": path},
    }
    (folder / "kernel.json").write_text(json.dumps(kernel))
    command = [sys.executable, *("-m", "pytest", "-q", "--nbval", "--nbval-kernel-name", "older")]
    command += ["--nbval-cell-timeout", "60", "-p", "no:cacheprovider", "-p", "no:xdist", f"{stem}.ipynb"]
    done = run(command, environ, NOTEBOOKS)

    assert version.stdout.strip() == OLD, version.stderr
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


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
    assert "importlib.util.find_spec" in code[0].source
    assert ":\n    %pip install" in code[0].source
    assert code[0].source.endswith("\n%load_ext kit_jupyter")
    assert not re.search(r"/(home|root|tmp)/", text)
    assert str(ROOT) not in text
    assert all(data.get("text/plain", "").strip() and data.get("text/markdown", "").strip() for data in cards)


@pytest.fixture
def mark() -> Iterator[str]:
    """A word in the environment, by which every process that a run started is found; what is left is ended."""
    word = uuid.uuid4().hex
    yield word
    for process in left_behind(word):
        process.kill()


def left_behind(word: str) -> list[psutil.Process]:
    """Processes of this run that live on; those that are just ending get a moment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get("KIT_TEST_RUN") == word:
                found.append(process)
        except psutil.Error:
            continue
    return psutil.wait_procs(found, timeout=5)[1]


RUNNERS = {
    "nbclient": ["-m", "jupyter", "execute", "{in}", "--output={out}"],
    "papermill": ["-m", "papermill", "--log-level", "ERROR", "--no-progress-bar", "{in}", "{out}.ipynb"],
    "nbconvert-html": ["-m", "nbconvert", "--execute", "--to", "html", "--output", "{out}", "{in}"],
    "nbconvert-markdown": ["-m", "nbconvert", "--execute", "--to", "markdown", "--output", "{out}", "{in}"],
}


# 04 shows answers and tools, 09 starts a server; each of the others by each runner with make matrix.
RUNS = [
    pytest.param(runner, stem, marks=() if stem == "04_tools" or (runner, stem) == ("nbclient", "09_mcp") else SLOW)
    for runner in RUNNERS
    for stem in STEMS
]


@pytest.mark.parametrize(("runner", "stem"), RUNS)
def test_other_runners_end_and_leave_nothing(runner: str, stem: str, tmp_path: Path, mark: str) -> None:
    """nbclient, papermill and nbconvert execute a notebook in replay, end by themselves (within a minute; more only
    on a busy machine), and leave no process: no kernel, no server or worker that the notebook started (issue 9.2)."""
    names = {"in": str(NOTEBOOKS / f"{stem}.ipynb"), "out": str(tmp_path / "out")}
    command = [sys.executable, *(part.format(**names) for part in RUNNERS[runner])]
    environ = replaying(tmp_path / "data", stem) | {"KIT_TEST_RUN": mark}
    done = subprocess.run(command, env=environ, cwd=NOTEBOOKS, capture_output=True, text=True, timeout=110, check=False)

    # papermill fails a notebook for any error it shows, also for one that a cell's tag says is meant.
    tags = [tag for cell in nbformat.read(names["in"], as_version=4).cells for tag in cell.metadata.get("tags", ())]
    is_meant = runner == "papermill" and "raises-exception" in tags
    assert done.returncode == (1 if is_meant else 0), done.stderr[-3000:]
    assert [process.cmdline() for process in left_behind(mark)] == []
    made = next(path for path in tmp_path.iterdir() if path.name.startswith("out"))
    if stem == "04_tools":  # answers and tools are there as text (U83)
        text = made.read_text()
        assert "a small difference" in text
        assert "mean_of" in text


def test_a_runner_in_this_process_gets_its_threads_back(
    tmp_path: Path, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nbclient as a library: neither threads nor children stay behind in the process that called it."""
    stem = "04_tools"
    for name in [name for name in os.environ if name.startswith("KIT_") or name.endswith("_API_KEY")]:
        monkeypatch.delenv(name)
    for name, value in replaying(tmp_path, stem).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("KIT_TEST_RUN", mark)
    threads = set(threading.enumerate())
    notebook = nbformat.read(NOTEBOOKS / f"{stem}.ipynb", as_version=4)

    NotebookClient(notebook, timeout=60, resources={"metadata": {"path": str(NOTEBOOKS)}}).execute()

    assert any("a small difference" in str(cell.get("outputs")) for cell in notebook.cells)
    assert left_behind(mark) == []
    for thread in set(threading.enumerate()) - threads:
        thread.join(5)
        assert not thread.is_alive(), thread


def test_coverage_is_collected_from_notebooks(tmp_path: Path) -> None:
    """What runs in the notebook's kernel counts, with pytest-cov and nbval alone (U112)."""
    command = [sys.executable, *("-m", "pytest", "-q", "--nbval", "--nbval-current-env", "-p", "no:xdist")]
    command += [
        "--cov=kit_jupyter",
        f"--cov-config={ROOT / 'pyproject.toml'}",
        f"--cov-report=json:{tmp_path / 'cov.json'}",
    ]
    environ = replaying(tmp_path, "11_ci") | {"COVERAGE_FILE": str(tmp_path / "coverage")}
    done = run([*command, "-p", "no:cacheprovider", "11_ci.ipynb"], environ, NOTEBOOKS)

    assert done.returncode == 0, done.stdout[-3000:]
    files = json.loads((tmp_path / "cov.json").read_text())["files"]
    found = {Path(name).name: facts["summary"]["percent_covered"] for name, facts in files.items()}
    assert found["turn.py"] > 30
    assert found["magics.py"] > 20


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
