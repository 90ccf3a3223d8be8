"""A real JupyterLab and Notebook 7 in a real Chromium, with a real kernel and a scripted model."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "build" / "screenshots"

SETUP = """
from kit_jupyter import Kit, tool
from kit_jupyter.testing import ScriptedProvider, delay, text, tool_call
from kit_jupyter.jupyter import load, notebook_of
script = ScriptedProvider()
def make_kit(**settings):
    return Kit(provider=script, **{**settings, "session": "memory"})
nb = load(get_ipython(), make_kit)
def cells():
    from kit_jupyter.loop import engine
    from kit_jupyter.jupyter.lab_cells import cell_tools
    return {one.spec.name: one for one in cell_tools(nb.lab)}
def call(name, **arguments):
    "One call of a cell tool, as a turn would make it."
    one = cells()[name]
    from kit_jupyter.loop import engine
    return engine.start(one.run(None, one.validate(arguments))).future
print("ready", len(nb.lab.pages))
"""


def chromium() -> str:
    """Path of a Chromium, or empty."""
    named = os.environ.get("KIT_CHROMIUM") or ""
    found = [named, shutil.which("chromium"), shutil.which("chromium-browser"), shutil.which("google-chrome")]
    return next((path for path in found if path and Path(path).exists()), "")


def free_port() -> int:
    """A port of loopback that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A running Jupyter server: its address and its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        extensions = folder / "share" / "labextensions"
        extensions.mkdir(parents=True)
        (extensions / "kit-jupyter").symlink_to(ROOT / "kit_jupyter" / "labextension")
        settings = folder / "settings" / "@jupyterlab" / "apputils-extension"
        settings.mkdir(parents=True)
        (settings / "notification.jupyterlab-settings").write_text('{"fetchNews": "false", "checkForUpdates": false}')
        (folder / "work").mkdir()
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "JUPYTER_PATH": str(folder / "share"),
            "JUPYTER_CONFIG_DIR": str(folder / "config"),
            "JUPYTER_DATA_DIR": str(folder / "data"),
            "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
            "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"),
            "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"),
            "IPYTHONDIR": str(folder / "ipython"),
            "XDG_DATA_HOME": str(folder / "xdg"),
        }
        for name in ("KIT_UI", "KIT_REPLAY", "KIT_MODEL"):
            environment.pop(name, None)
        # Another Lab, or one beside other extensions, can be tried: the environment that has it.
        named = os.environ.get("KIT_LAB_PYTHON")
        python = str(Path(named).absolute()) if named else sys.executable
        command = [
            python, "-m", "jupyterlab", "--no-browser", "--allow-root",
            f"--ServerApp.port={self.port}", "--ServerApp.port_retries=0", "--IdentityProvider.token=",
            f"--ServerApp.root_dir={folder / 'work'}", "--LabApp.expose_app_in_browser=True",
            "--JupyterNotebookApp.expose_app_in_browser=True", "--ServerApp.disable_check_xsrf=True",
        ]  # fmt: skip
        self.log = (folder / "server.log").open("w")
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, cwd=folder
        )
        deadline = time.monotonic() + 120
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/api/status", timeout=20):
                    return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError((folder / "server.log").read_text()[-3000:]) from None
                time.sleep(0.2)

    def offer_kernel(self, name: str, python: str, path: str = "") -> None:
        """Offer one more kernel: another interpreter, or this one with `path` before all others."""
        folder = self.folder / "share" / "kernels" / name
        folder.mkdir(parents=True, exist_ok=True)
        # Not resolved: a venv's python is a link, and it is the link that says which venv it is.
        argv = [str(Path(python).absolute()), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        spec: dict[str, Any] = {"argv": argv, "display_name": name, "language": "python"}
        if path:
            spec["env"] = {"PYTHONPATH": os.pathsep.join((path, str(ROOT)))}
        (folder / "kernel.json").write_text(json.dumps(spec))

    def notebook(self, name: str, sources: list[str], kernel: str = "python3") -> str:
        """Write a notebook; its path on the server."""
        cells = [nbformat.v4.new_code_cell(source) for source in sources]
        written = nbformat.v4.new_notebook(cells=cells)
        written.metadata["kernelspec"] = {"name": kernel, "display_name": kernel, "language": "python"}
        nbformat.write(written, self.folder / "work" / name)
        return name

    def close(self) -> None:
        """End it and its kernels."""
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.log.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all tests of this folder."""
    if not (ROOT / "kit_jupyter/labextension/static/style.js").exists():
        pytest.skip("the Lab extension is not built; an editable install builds it")
    pytest.importorskip("jupyterlab", reason="needs the test extra")
    made = Server(tmp_path_factory.mktemp("lab"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium that is already installed.

    For a module at the most: Playwright's sync API keeps a loop running in this thread while it is open, and async
    tests that follow could not run.
    """
    path = chromium()
    if not path:
        pytest.skip("no chromium found; Debian: apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the test extra")
    with playwright.sync_playwright() as play:
        made = play.chromium.launch(
            executable_path=path,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"],
        )
        yield made
        made.close()


class Page:
    """A notebook open in a browser."""

    def __init__(self, server: Server, page: Any, kind: str, path: str) -> None:
        self.server = server
        self.page = page
        self.kind = kind
        self.path = path
        self.errors: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))

    def open(self) -> Page:
        """Load it, and wait until its kernel is idle."""
        where = "lab/tree" if self.kind == "lab" else "notebooks"
        query = "?reset" if self.kind == "lab" else ""
        self.page.goto(f"{self.server.url}/{where}/{self.path}{query}")
        self.page.wait_for_function(
            """path => { const t = window.jupyterapp && window.jupyterapp.shell;
                 const is = w => w.context && (w.context.localPath || w.context.path) === path;
                 const w = t && [...t.widgets('main')].find(is);
                 return w && w.context.isReady && w.sessionContext && w.sessionContext.session
                     && w.sessionContext.session.kernel && w.sessionContext.session.kernel.status === 'idle'; }""",
            arg=self.path,
            timeout=120_000,
        )
        return self

    def js(self, body: str, argument: Any = None) -> Any:
        """Evaluate with ``panel`` (the notebook's widget), ``app`` and ``arg`` in scope."""
        prefix = """const app = window.jupyterapp;
          const is = w => w.context && (w.context.localPath || w.context.path) === path;
          const panel = [...app.shell.widgets('main')].find(is);
          const shared = panel.content.model.sharedModel;"""
        return self.page.evaluate(f"async ([path, arg]) => {{ {prefix} {body} }}", [self.path, argument])

    def execute(self, code: str) -> str:
        """Run code in the kernel, outside the notebook's cells; what it printed."""
        found = self.js(
            """const future = panel.sessionContext.session.kernel.requestExecute({code: arg, store_history: false});
               let out = ''; future.onIOPub = m => { if (m.header.msg_type === 'stream') out += m.content.text;
                 if (m.header.msg_type === 'error') out += m.content.ename + ': ' + m.content.evalue; };
               await future.done; return out;""",
            code,
        )
        return str(found)

    def run_cell(self, index: int, *, wait: bool = True) -> None:
        """Run a cell of the notebook as a person does."""
        self.js(
            """panel.content.activeCellIndex = arg[0];
               const done = app.commands.execute('notebook:run-cell'); if (arg[1]) await done;""",
            [index, wait],
        )

    def command(self, name: str, **arguments: Any) -> Any:
        """Execute a command; does not wait for one that shows a dialog."""
        return self.js("return void app.commands.execute(arg[0], arg[1]);", [name, arguments])

    def sources(self) -> list[str]:
        """Texts of the cells."""
        return list(self.js("return shared.cells.map(c => c.source);"))

    def ids(self) -> list[str]:
        """Ids of the cells."""
        return list(self.js("return shared.cells.map(c => c.id);"))

    def wait(self, expression: str, argument: Any = None, *, timeout: float = 60_000) -> None:
        """Wait until a JavaScript expression over ``panel``, ``app``, ``shared`` and ``arg`` holds."""
        prefix = """const app = window.jupyterapp;
          const is = w => w.context && (w.context.localPath || w.context.path) === path;
          const panel = [...app.shell.widgets('main')].find(is);
          const shared = panel.content.model.sharedModel;"""
        self.page.wait_for_function(
            f"([path, arg]) => {{ {prefix} return {expression}; }}", arg=[self.path, argument], timeout=timeout
        )

    def attached(self) -> Page:
        """Load kit with the scripted model, and wait until kernel and page know each other."""
        said = self.execute(SETUP)
        assert "ready" in said, said
        for _ in range(400):
            if self.execute("print(any(page.comm for page in nb.lab.pages.values()))").strip() == "True":
                return self
            self.page.wait_for_timeout(50)
        raise AssertionError("the page did not say hello")

    def focus_cell(self, index: int, *, edit: bool = False) -> None:
        """Put the focus into a cell, in command or edit mode."""
        self.js(
            """panel.content.activeCellIndex = arg[0]; panel.content.mode = arg[1] ? 'edit' : 'command';
               panel.content.activate();
               if (arg[1]) panel.content.activeCell.editor.focus(); else panel.content.node.focus();""",
            [index, edit],
        )

    def picture(self, name: str) -> Path:
        """Keep a screenshot."""
        PICTURES.mkdir(parents=True, exist_ok=True)
        path = PICTURES / f"{name}.png"
        self.page.screenshot(path=str(path))
        return path

    def theme(self, name: str) -> None:
        """Switch between JupyterLab Light and JupyterLab Dark."""
        self.js("await app.commands.execute('apputils:change-theme', {theme: arg});", name)
        dark = "true" if "Light" in name else "false"
        self.page.wait_for_function(f"document.body.dataset.jpThemeLight === '{dark}'")


@pytest.fixture
def open_page(server: Server, browser: Any) -> Iterator[Callable[..., Page]]:
    """Opens notebooks, each in a browser context of its own; closes them, and ends their kernels.

    Settings that a test changed are as shipped again afterwards: the server is that of all tests.
    """
    contexts: list[Any] = []

    def make(name: str, sources: list[str] | None, kind: str = "lab", kernel: str = "python3") -> Page:
        path = server.notebook(name, sources, kernel) if sources is not None else name
        context = browser.new_context(viewport={"width": 1280, "height": 800})
        context.set_default_timeout(60_000)
        contexts.append(context)
        return Page(server, context.new_page(), kind, path).open()

    yield make
    for context in contexts:
        context.close()
    with urllib.request.urlopen(f"{server.url}/api/sessions") as answer:
        for session in json.loads(answer.read()):
            ending = urllib.request.Request(f"{server.url}/api/sessions/{session['id']}", method="DELETE")
            urllib.request.urlopen(ending).close()
    for folder in ("kit-jupyter", "@jupyterlab/completer-extension"):
        for path in (server.folder / "settings" / folder).glob("*.jupyterlab-settings"):
            path.unlink()
    themes = server.folder / "settings" / "@jupyterlab" / "apputils-extension" / "themes.jupyterlab-settings"
    themes.unlink(missing_ok=True)
