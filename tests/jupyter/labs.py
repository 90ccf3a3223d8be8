"""A real JupyterLab (or Notebook 7) server, and a page of Debian's Chromium on a notebook in it."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or "/usr/bin/chromium"
BUILD = Path(__file__).parents[2] / "build" / "screens"


@dataclass
class Server:
    """A running server and its folder."""

    url: str
    token: str
    folder: Path
    settings: Path

    def api(self, path: str) -> Any:
        request = urllib.request.Request(f"{self.url}/{path}", headers={"Authorization": f"token {self.token}"})
        with urllib.request.urlopen(request, timeout=5) as answer:
            return json.load(answer)

    def notebook(self, name: str, *cells: str) -> Path:
        """Write a notebook of code cells."""
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
        path = self.folder / name
        nbformat.write(book, path)
        return path


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def server(folder: Path, *, app: str = "lab", env: dict[str, str] | None = None) -> Iterator[Server]:
    """Start it on loopback, with a settings folder of its own; stop it at the end."""
    port, token = _free_port(), secrets.token_hex(16)
    home = folder / "home"
    home.mkdir(parents=True, exist_ok=True)
    work = folder / "work"
    work.mkdir(exist_ok=True)
    settings = home / "lab-settings"
    command = [
        sys.executable, "-m", "jupyterlab" if app == "lab" else "notebook", "--no-browser", "--allow-root",
        f"--ServerApp.port={port}", "--ServerApp.ip=127.0.0.1", f"--IdentityProvider.token={token}",
        f"--ServerApp.root_dir={work}", "--ServerApp.port_retries=0", "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]  # fmt: skip
    places = {
        "XDG_DATA_HOME": str(home / "data"),
        "KIT_CONFIG_DIR": str(home / "kit-config"),
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_DATA_DIR": str(home / "jdata"),
        "IPYTHONDIR": str(home / "ipython"),
        "JUPYTERLAB_SETTINGS_DIR": str(settings),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
    }
    quiet = settings / "@jupyterlab" / "apputils-extension"
    quiet.mkdir(parents=True, exist_ok=True)
    (quiet / "notification.jupyterlab-settings").write_text('{"fetchNews": "false", "checkForUpdates": false}')
    log = (folder / "server.log").open("w")
    process = subprocess.Popen(command, env={**os.environ, **places, **(env or {})}, stdout=log, stderr=log)
    it = Server(f"http://127.0.0.1:{port}", token, work, settings)
    try:
        end = time.monotonic() + 60
        while True:
            try:
                it.api("api/status")
                break
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                if process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError((folder / "server.log").read_text()[-2000:]) from None
                time.sleep(0.1)
        yield it
    finally:
        for session in _quietly(it, "api/kernels"):
            request = urllib.request.Request(
                f"{it.url}/api/kernels/{session['id']}", method="DELETE", headers={"Authorization": f"token {token}"}
            )
            try:
                urllib.request.urlopen(request, timeout=5).close()
            except (urllib.error.URLError, TimeoutError):
                pass
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
        log.close()


def _quietly(it: Server, path: str) -> list[Any]:
    try:
        return list(it.api(path))
    except Exception:
        return []


@contextmanager
def browser() -> Iterator[Any]:
    """Debian's Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        try:
            yield chromium
        finally:
            chromium.close()


class Page:
    """One page on one notebook."""

    def __init__(
        self,
        it: Server,
        chromium: Any,
        notebook: Path,
        *,
        app: str = "lab",
        dark: bool = False,
        through_us: bool = False,
    ) -> None:
        self.server = it
        self.requests: list[str] = []
        self.errors: list[str] = []
        if dark:
            place = it.settings / "@jupyterlab" / "apputils-extension"
            place.mkdir(parents=True, exist_ok=True)
            (place / "themes.jupyterlab-settings").write_text('{"theme": "JupyterLab Dark"}')
        self.context = chromium.new_context(viewport={"width": 1280, "height": 900})
        self.page = self.context.new_page()
        self.page.on("request", lambda r: self.requests.append(r.url))
        self.page.on("pageerror", lambda e: self.errors.append(str(e)))
        self.sockets: list[Any] = []
        if through_us:  # the page's sockets to kernels go through this test, which may cut them

            def passed_on(socket: Any) -> None:
                self.sockets.append((socket, socket.connect_to_server()))

            self.page.route_web_socket("**/channels**", passed_on)
        # A workspace of its own: else Lab opens the notebooks of earlier pages again, hidden behind this one.
        way = f"lab/workspaces/{secrets.token_hex(6)}/tree" if app == "lab" else "notebooks"
        self.page.goto(f"{it.url}/{way}/{notebook.name}?token={it.token}")
        self.page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
        self._wait_for_kernel(notebook.name)

    def _wait_for_kernel(self, name: str) -> None:
        """Until the page talks to its kernel: the indicator says idle also before there is one."""
        asked = self.page.locator(".jp-Dialog", has_text="Select Kernel").locator(".jp-mod-accept")
        end = time.monotonic() + 60
        while time.monotonic() < end:
            if asked.count():  # a slow machine: the front end asks which kernel
                asked.first.click()
            kernels = [s["kernel"] for s in self.server.api("api/sessions") if s["path"] == name and s["kernel"]]
            if any(kernel["connections"] and kernel["execution_state"] == "idle" for kernel in kernels):
                self.page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status='idle']", timeout=60_000)
                return
            self.page.wait_for_timeout(100)
        shown = self.page.locator(".jp-Dialog").all_inner_texts()
        raise AssertionError(f"no kernel for {name} within a minute; dialogs: {shown}")

    def cell(self, index: int) -> Any:
        return self.page.locator(".jp-Notebook .jp-CodeCell").nth(index)

    def prompt(self, index: int) -> str:
        return str(self.cell(index).locator(".jp-InputPrompt").first.inner_text()).strip()

    def start(self, index: int) -> None:
        """Run a cell, and make sure that it began: the first key can be lost while the kernel connects."""
        before = self.prompt(index)
        for _ in range(20):
            try:
                self.cell(index).locator(".cm-content").click()
            except Exception as exc:
                shown = self.page.locator(".jp-Dialog").all_inner_texts()
                raise AssertionError(f"cell {index} cannot be clicked; dialogs: {shown}") from exc
            self.page.keyboard.press("Control+Enter")
            try:
                self.page.wait_for_function(
                    "([i, was]) => document.querySelectorAll('.jp-Notebook .jp-CodeCell')[i]"
                    ".querySelector('.jp-InputPrompt').innerText.trim() !== was",
                    arg=[index, before],
                    timeout=1500,
                )
                return
            except Exception:
                continue
        raise AssertionError(f"cell {index} did not start")

    def done(self, index: int, timeout: float = 30) -> None:
        self.page.wait_for_function(
            "i => /\\[\\d+\\]/.test(document.querySelectorAll('.jp-Notebook .jp-CodeCell')[i]"
            ".querySelector('.jp-InputPrompt').innerText)",
            arg=index,
            timeout=timeout * 1000,
        )

    def run(self, index: int, timeout: float = 30) -> None:
        """Run a cell to its end; once more when the kernel was not connected yet and its prompt is empty again."""
        for _ in range(4):
            self.start(index)
            try:
                self.done(index, timeout / 3)
                return
            except Exception:
                if "*" in self.prompt(index):
                    break
        self.done(index, timeout)

    def output(self, index: int, holding: str) -> str:
        """The text below a cell, once it holds this: Lab draws it some time after the cell has ended."""
        area = self.cell(index).locator(".jp-OutputArea")
        self.page.wait_for_function(
            "([area, text]) => area.innerText.includes(text)", arg=[area.element_handle(), holding], timeout=15_000
        )
        return str(area.inner_text())

    def save(self) -> None:
        self.page.keyboard.press("Escape")
        self.page.keyboard.press("Control+s")

    def shot(self, name: str) -> Path:
        BUILD.mkdir(parents=True, exist_ok=True)
        path = BUILD / f"{name}.png"
        self.page.screenshot(path=str(path))
        return path

    def cut(self) -> None:
        """Cut the connections to kernels, as a network does."""
        cut, self.sockets = self.sockets, []
        for page, far in cut:
            far.close()
            page.close(code=3001)

    def close(self) -> None:
        self.context.close()
