"""The command line: each command says what it does, ends with the right code, and errors say what to do."""

import io
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import nbformat
import pytest

from kit_jupyter import demo
from kit_jupyter.__main__ import main
from kit_jupyter.errors import UsageError
from kit_jupyter.export import export_session
from kit_jupyter.providers import local_models
from kit_jupyter.session import Session

ROOT = Path(__file__).resolve().parent.parent
QUICKSTART = ROOT / "notebooks" / "01_quickstart.ipynb"


@pytest.fixture(autouse=True)
def _own_place(tmp_path, monkeypatch):
    """Folders of this test's own, and no setting from outside."""
    for name in ("KIT_MODEL", "KIT_REPLAY", "KIT_LOCAL_URL", "KIT_LOCAL_MODEL", "KIT_LLAMA_SERVER", "KIT_REPLAY_FILE"):
        monkeypatch.delenv(name, raising=False)
    for name in [name for name in os.environ if name.endswith("_API_KEY")]:
        monkeypatch.delenv(name)
    for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "KIT_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.chdir(tmp_path)


def source_environment(**more):
    """Environment for a process that uses this source tree."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), **more}


# ---------------------------------------------------------------- commands in general


def test_no_command_prints_the_help(capsys):
    """Typing the bare name shows what there is."""
    assert main([]) == 2
    out = capsys.readouterr().out
    for command in ("demo", "doctor", "local", "sessions", "export"):
        assert command in out


def test_an_unknown_command_is_refused(capsys):
    """By argparse, with the known ones."""
    with pytest.raises(SystemExit) as caught:
        main(["nothing"])

    assert caught.value.code == 2
    assert "invalid choice" in capsys.readouterr().err


def test_errors_are_one_line_and_no_traceback(capsys):
    """Exit code 1, the message on standard error."""
    assert main(["local", "install", "nothing"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("kit-jupyter: no weights are named 'nothing'; known: smollm2, gemma")
    assert "Traceback" not in err


def test_it_runs_as_a_module():
    """``python -m kit_jupyter``, without Jupyter being imported."""
    code = "import sys; from kit_jupyter.__main__ import main; main(['local', 'list']); print('IPython' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=source_environment(), capture_output=True, text=True, check=True
    )

    assert done.stdout.splitlines()[-1] == "False"


def test_the_help_is_there_at_once():
    """No command imports what it does not need: neither http library nor pydantic for the help."""
    code = """
        import sys
        from kit_jupyter.__main__ import main
        main([])
        print([name for name in ("httpx", "httpx2", "pydantic", "IPython") if name in sys.modules])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=source_environment(),
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.splitlines()[-1] == "[]"


def test_a_closed_pipe_is_no_error(monkeypatch):
    """``kit-jupyter doctor | head -1``."""
    done = subprocess.run(
        f'"{sys.executable}" -m kit_jupyter doctor | head -1',
        shell=True,
        env=source_environment(),
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout == "Python\n"
    assert "Traceback" not in done.stderr


# ---------------------------------------------------------------- doctor


def test_doctor_says_what_is_here(capsys, monkeypatch):
    """Versions, kernel, engine, weights, model and why, keys by source and never by value, replay."""
    monkeypatch.setenv("MISTRAL_API_KEY", "very-secret-value-123")

    code = main(["doctor"])

    out = capsys.readouterr().out
    assert code == 0
    for words in ("ipykernel", "Lab extension", "Local model", "mistral: environment MISTRAL_API_KEY", "because"):
        assert words in out
    assert "mistral/" in out
    assert "off: models are asked" in out
    assert "very-secret-value-123" not in out


def test_doctor_marks_what_is_to_be_mended(capsys, monkeypatch, tmp_path):
    """A wrong path, a strict replay without a recording: exit code 1."""
    monkeypatch.setenv("KIT_LOCAL_MODEL", str(tmp_path / "gone.gguf"))
    monkeypatch.setenv("KIT_LLAMA_SERVER", str(tmp_path / "gone"))
    monkeypatch.setenv("KIT_REPLAY", "strict")

    assert main(["doctor"]) == 1

    out = capsys.readouterr().out
    assert "!!  KIT_LOCAL_MODEL=" in out
    assert "!!  strict:" in out
    assert out.rstrip().endswith("marked !!")


def test_doctor_survives_nonsense_in_the_environment(capsys, monkeypatch):
    """A word that KIT_REPLAY does not know is a line, not a crash."""
    monkeypatch.setenv("KIT_REPLAY", "maybe")

    assert main(["doctor"]) == 1
    assert "KIT_REPLAY must be one of" in capsys.readouterr().out


# ---------------------------------------------------------------- local


def test_local_list_and_remove_know_what_is_here(capsys, monkeypatch):
    """The catalogue, files a person put there, and what would be taken."""
    folder = local_models.models_dir()
    folder.mkdir(parents=True)
    (folder / "qwen.gguf").write_bytes(b"GGUF")

    assert main(["local", "list"]) == 0
    assert main(["local", "remove", "smollm2"]) == 0

    out = capsys.readouterr().out
    assert "smollm2" in out
    assert "not here (93 MB to download)" in out
    assert "taken as local/default: qwen (cache)" in out
    assert "smollm2: was not in the cache" in out


# ---------------------------------------------------------------- sessions


@pytest.fixture
def session():
    """A session on disk with a question and an answer with a tool call."""
    from kit_jupyter import Kit
    from kit_jupyter.testing import ScriptedProvider, text, tool_call

    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    provider = ScriptedProvider([tool_call("add", a=1, b=2)], [text("It is 3, with ``` in it.")])
    kit = Kit(provider=provider, tools=[add])
    kit.prompt_sync("What is 1 + 2?")
    path = kit.session.path
    kit.close()
    return path


def test_sessions_are_listed(session, capsys):
    """With the question that began them."""
    assert main(["sessions"]) == 0
    assert "What is 1 + 2?" in capsys.readouterr().out


def test_a_title_cannot_steer_the_terminal(session, capsys):
    """A session from elsewhere may have escape sequences in its title: they are written out (hostile input)."""
    raw = session.read_text("utf-8")
    session.write_text(raw.replace("What is 1 + 2?", "What\\u001b[2J?"), "utf-8")

    assert main(["sessions"]) == 0
    assert "What\\x1b[2J?" in capsys.readouterr().out


def test_no_sessions_is_said(capsys, monkeypatch, tmp_path):
    """And where it looked."""
    assert main(["sessions"]) == 0
    assert "no sessions" in capsys.readouterr().out


def test_export_writes_what_a_person_saw(session, capsys, tmp_path):
    """Question, call, result and answer, as Markdown that stays whole; and the file itself as .jsonl."""
    assert main(["export"]) == 0
    out = capsys.readouterr().out
    assert "## You\n\nWhat is 1 + 2?" in out
    assert "Calls `add`" in out
    assert "It is 3" in out

    assert main(["export", str(session), "-o", str(tmp_path / "copy.jsonl")]) == 0
    assert len(Session.open(tmp_path / "copy.jsonl").transcript()) == 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["export", "-o", "x.docx"], "known: markdown, html, jsonl, ipynb"),
        (["export", "--format", "docx"], "known: markdown, html, jsonl, ipynb"),
        (["export", "-o", "x"], "which format?"),
        (["export", "-o", "nowhere/x.md"], "cannot be written"),
        (["export", "nothing-like-this"], "nothing-like-this"),
    ],
)
def test_export_errors_say_what_to_do(session, capsys, arguments, words):
    """A form it does not know, a folder that is not there, a session that is not there."""
    assert main(arguments) == 1
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("format", ["markdown", "html", "jsonl", "ipynb"])
def test_export_writes_what_the_sdk_writes(session, capsys, tmp_path, format):
    """All four forms, by option and by the file's ending, with the code of kit.export."""
    opened = Session.open(session)
    wanted = export_session(opened, format)
    opened.close()
    target = tmp_path / f"copy.{format.replace('markdown', 'md')}"

    assert main(["export", str(session), "--format", format]) == 0
    assert capsys.readouterr().out == wanted
    assert main(["export", str(session), "-o", str(target)]) == 0
    assert target.read_text(encoding="utf-8") == wanted


def test_export_without_a_session_is_said(capsys):
    """Nothing here yet."""
    assert main(["export"]) == 1
    assert "there is no session" in capsys.readouterr().err


# ---------------------------------------------------------------- demo


def notebook(path, *cells):
    node = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbformat.write(node, path)
    return path


SCRIPTED = """
from kit_jupyter import Kit
from kit_jupyter.testing import ScriptedProvider, text, tool_call

def add(a: int, b: int) -> int:
    "Add."
    return a + b

provider = ScriptedProvider([tool_call("add", a=1, b=2)], [text("It is three.", chunks=4)])
kit = Kit(provider=provider, tools=[add], session="memory")
"""


def test_demo_runs_a_notebook_and_prints_what_is_said(tmp_path):
    """A real kernel: prompts, calls, results and answers come to the terminal, both files are written."""
    path = notebook(tmp_path / "small.ipynb", SCRIPTED, "print(kit.prompt_sync('What is 1 + 2?'))")
    out = io.StringIO()

    executed, page = demo.run(path, build=tmp_path / "build", out=out)

    shown = out.getvalue()
    assert (
        shown.index("> What is 1 + 2?")
        < shown.index("calls add")
        < shown.index("gives: 3")
        < shown.index("It is three.")
    )
    assert "Cell 2 of 2" in shown
    assert "make lab" in shown
    assert "It is three." in str(nbformat.read(executed, as_version=4).cells[1].outputs)
    html = page.read_text()
    assert "It is three." in html
    assert '<script src="http' not in html
    assert nbformat.read(path, as_version=4).cells[1].outputs == []


def test_demo_lets_no_model_steer_the_terminal():
    """Escape sequences in prompts, answers, calls and results are written out (hostile input)."""
    out = io.StringIO()
    printer = demo._Printer(out)

    for kind in ("prompt", "text"):
        printer.event(kind, "grüße\x1b[2J\x07")
    printer.event("call", "\x1b]0;mine\x07", "\x1b[8m")
    printer.event("result", "\x1b[8m", "")

    assert "\x1b" not in out.getvalue()
    assert "grüße\\x1b[2J\\x07" in out.getvalue()


# Which of the demo's own listeners hear the Kit.
COUNT = 'print(sum("listen" in s._fn.__qualname__ for s in kit.bus._subscriptions))'


def test_demo_prints_each_thing_once(tmp_path):
    """The name ``kit`` is a stand-in first and the Kit itself later; a new conversation is the same Kit."""
    path = notebook(tmp_path / "once.ipynb", "%load_ext kit_jupyter", "kit.id;", "%kit_new", "kit.id;", COUNT)

    executed, _ = demo.run(path, build=tmp_path / "build", out=io.StringIO())

    assert nbformat.read(executed, as_version=4).cells[-1].outputs[0]["text"] == "1\n"


@pytest.mark.parametrize("content", ["root:x:0:0", "[]", "{}", '{"cells": 5, "nbformat": 4}', "\xff"])
def test_demo_of_a_file_that_is_no_notebook(tmp_path, capsys, content):
    """One line says so, whatever the file holds (bad input)."""
    path = tmp_path / "n.ipynb"
    path.write_bytes(content.encode("latin-1"))

    assert main(["demo", str(path), "--model", "openai/x", "--build", str(tmp_path / "b")]) == 1
    assert f"{path} is no notebook" in capsys.readouterr().err


def test_demo_into_a_folder_that_cannot_be(tmp_path, capsys):
    """The folder for the results is a file (bad input)."""
    path = tmp_path / "n.ipynb"
    path.write_text('{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}')

    assert main(["demo", str(path), "--model", "openai/x", "--build", str(path)]) == 1
    assert "cannot make the folder" in capsys.readouterr().err


def test_demo_tells_which_cell_failed(tmp_path, capsys):
    """Exit code 1, the error's name and words."""
    path = notebook(tmp_path / "bad.ipynb", "1 / 0")

    assert main(["demo", str(path), "--model", "openai/x"]) == 1
    assert "ZeroDivisionError: division by zero" in capsys.readouterr().err


def test_demo_tells_when_the_kernel_dies(tmp_path, capsys):
    """Out of memory, for example."""
    path = notebook(tmp_path / "dead.ipynb", "import os; os._exit(1)")

    assert main(["demo", str(path), "--model", "openai/x"]) == 1
    assert "the kernel died" in capsys.readouterr().err


def test_demo_outside_a_clone_is_said(capsys):
    """There is no notebook here."""
    with pytest.raises(UsageError, match="run this in a clone"):
        demo.run()


def test_demo_without_weights_says_how_to_get_them(capsys):
    """Before a kernel is started."""
    assert main(["demo"]) == 1
    assert "kit-jupyter local install smollm2" in capsys.readouterr().err


# ---------------------------------------------------------------- the quickstart is a test

GUARD = """
import sys

def guard(event, args):
    if event == "socket.connect":
        address = args[1]
        if isinstance(address, tuple) and address[0] not in ("127.0.0.1", "::1", "localhost"):
            raise RuntimeError(f"the quickstart in replay asked the network: {address}")
    if event == "subprocess.Popen" and "llama" in str(args[1]):
        raise RuntimeError("the quickstart in replay started a model")

sys.addaudithook(guard)
"""


def test_quickstart_replays_without_model_and_network(tmp_path):
    """Issue 2: `pytest --nbval --nbval-current-env` in strict replay, nothing but the kernel's own sockets."""
    guard = tmp_path / "guard"
    guard.mkdir()
    (guard / "sitecustomize.py").write_text(GUARD)
    environment = source_environment(KIT_REPLAY="strict", KIT_UI="static", HOME=str(tmp_path))
    environment["PYTHONPATH"] = os.pathsep.join([str(guard), environment["PYTHONPATH"]])
    environment.pop("PYTEST_ADDOPTS", None)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--nbval", "--nbval-current-env"]
    command += ["--nbval-cell-timeout", "60", str(QUICKSTART)]

    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout[-3000:]


def test_quickstart_is_kept_clean():
    """Its outputs hold no ids, and its recording no path of the machine it was made on."""
    node = nbformat.read(QUICKSTART, as_version=4)
    recording = QUICKSTART.parent / "recordings" / f"{QUICKSTART.stem}.json"

    for cell in node.cells:
        assert "execution" not in cell.metadata
        for output in cell.get("outputs", ()):
            assert not {"session", "turn"} & output.get("metadata", {}).get("kit", {}).keys()
    assert json.loads(recording.read_text())["exchanges"]
    assert str(Path.home()) not in recording.read_text()
