"""A recording is found where nobody told the kernel its notebook's name, too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from kit_jupyter.errors import ReplayMiss
from kit_jupyter.messages import ModelRef
from kit_jupyter.providers import registry, replay
from kit_jupyter.providers.notebook_name import _in_command, notebook_name

from .conftest import KEY, ask, read
from .loopback import Loopback, answer

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ROOT / "notebooks"
KERNEL = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
ASKING = """\
import asyncio
from kit_jupyter.providers import replay
print(replay.recording_file())"""


@pytest.fixture(autouse=True)
def nameless(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("KIT_REPLAY", "KIT_REPLAY_FILE", "JPY_SESSION_NAME", "JPY_PARENT_PID", "PYTEST_CURRENT_TEST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    replay.use_file(None)
    replay.reset()


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.endswith(("_API_KEY", "_TOKEN")) and not k.startswith("KIT_")}
    return {**clean, "KIT_DATA_DIR": str(tmp_path / "data"), "PYTHONPATH": str(ROOT), **more}


def asking_notebook(folder: Path) -> Path:
    path = folder / "mine.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(ASKING)], metadata=KERNEL), path)
    return path


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize(
    "command",
    [
        ("-m", "jupyter", "execute", "--inplace", "mine.ipynb"),
        ("-m", "jupyter", "nbconvert", "--to", "notebook", "--execute", "--inplace", "mine.ipynb"),
        ("-m", "papermill", "--no-progress-bar", "mine.ipynb", "mine.ipynb"),
    ],
    ids=lambda command: command[1] if command[1] != "jupyter" else command[2],
)
def test_a_runner_s_command_line_names_the_notebook(tmp_path: Path, command: tuple[str, ...]) -> None:
    """A person's own notebook records to its own file under each runner, with no conftest of ours (U106)."""
    path = asking_notebook(tmp_path)

    done = run(tmp_path, *command)

    assert done.returncode == 0, done.stderr[-2000:]
    assert nbformat.read(path, 4).cells[0].outputs[0].text.strip() == os.path.join("recordings", "mine.json")


def test_plain_nbval_names_the_notebook(tmp_path: Path) -> None:
    """nbval says which file it runs by pytest's own variable (U106)."""
    path = asking_notebook(tmp_path)
    notebook = nbformat.read(path, 4)
    said = os.path.join("recordings", "mine.json") + "\n"
    notebook.cells[0].execution_count = 1
    notebook.cells[0].outputs = [nbformat.v4.new_output("stream", name="stdout", text=said)]
    nbformat.write(notebook, path)

    done = run(tmp_path, "-m", "pytest", "-q", "--nbval", "--nbval-current-env", "-p", "no:cacheprovider", "mine.ipynb")

    assert done.returncode == 0, done.stdout[-3000:]


def test_the_library_from_a_script_finds_the_right_file_of_several(tmp_path: Path) -> None:
    """nbclient from a script tells no name: all of recordings/ is looked through, and the file is told (U106)."""
    (tmp_path / "recordings").mkdir()
    for stem in ("02_sessions", "11_ci"):
        text = (NOTEBOOKS / "recordings" / f"{stem}.json").read_text("utf-8")
        (tmp_path / "recordings" / f"{stem}.json").write_text(text, "utf-8")
    (tmp_path / "recordings" / "other.json").write_text("[]", "utf-8")
    script = (
        "import sys, nbformat, nbclient\n"
        f"notebook = nbformat.read({str(NOTEBOOKS / '11_ci.ipynb')!r}, 4)\n"
        "nbclient.NotebookClient(notebook, timeout=60).execute()\n"
        "print('done')"
    )

    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=environment(tmp_path, KIT_REPLAY="strict"),
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.stdout.strip() == "done", done.stderr[-3000:]


async def test_a_nameless_recording_is_found_again_and_a_miss_says_how_to_name_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recorded to recordings/notebook.json; moved to another name it is found; a miss tells what to set (U106)."""
    async with Loopback(answer("Hi")) as server:
        monkeypatch.setenv("KIT_REPLAY", "record")
        live = registry.open_provider(ModelRef("groq", "m"), base_url=server.url, api_key=KEY)
        await read(live.stream(ask(model=ModelRef("groq", "m"))))
        await live.close()
    kept = tmp_path / "recordings"
    os.rename(kept / "notebook.json", kept / "zebra.json")
    (kept / "broken.json").write_text("{")
    replay.reset()
    monkeypatch.setenv("KIT_REPLAY", "strict")

    choice = registry.choose()
    provider = registry.open_provider(choice.ref)
    played = await read(provider.stream(ask(model=choice.ref)))
    with pytest.raises(ReplayMiss) as missed:
        await read(provider.stream(ask("Another", model=choice.ref)))
    await provider.close()

    assert str(choice.ref) == "groq/m"
    assert played
    assert replay.used_file() == kept / "zebra.json"
    assert "recordings/zebra.json" in str(missed.value)
    assert "JPY_SESSION_NAME=<notebook>.ipynb" in str(missed.value)
    assert "KIT_REPLAY_FILE" in str(missed.value)


def test_what_is_no_notebook_is_no_name(tmp_path: Path) -> None:
    """Several notebooks in one command, options and missing files name none."""
    for name in ("a.ipynb", "b.ipynb"):
        (tmp_path / name).write_text("{}")

    assert _in_command(["jupyter-execute", "a.ipynb"], tmp_path) == "a.ipynb"
    assert _in_command(["jupyter-execute", "a.ipynb", "b.ipynb"], tmp_path) == ""
    assert _in_command(["python", "/usr/bin/papermill", "a.ipynb", "b.ipynb"], tmp_path) == "a.ipynb"
    assert _in_command(["nbconvert", "--output=b.ipynb", "a.ipynb"], tmp_path) == "a.ipynb"
    assert _in_command(["jupyter-execute", "c.ipynb"], tmp_path) == ""
    assert notebook_name({"PYTEST_CURRENT_TEST": "tests/test_x.py::test (call)"}) == ""
    assert notebook_name({}) == ""
