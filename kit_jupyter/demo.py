"""``kit-jupyter demo``: the quickstart notebook, run live in a real kernel, its answers streamed to the terminal.

Theory of operation
-------------------
nbclient runs the notebook cell by cell. Before the first one, a silent line in the kernel calls
`listen`, which writes what every Kit of that process says to a file, one JSON line an event; a thread
here follows the file and prints. So what is seen is what the model streams, not what the cell
shows at its end, and the executed notebook holds nothing of it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, TextIO

from kit_jupyter.approvers import visible
from kit_jupyter.errors import KitError, UsageError

__all__ = ["DemoFailed", "listen", "run"]

NOTEBOOK = Path("notebooks") / "01_quickstart.ipynb"
CELL_SECONDS = 300


class DemoFailed(KitError):
    """A cell of the notebook failed, or the kernel did not start; the message says which and why."""

    code = "demo"


# ---------------------------------------------------------------- in the kernel


def listen(path: str, kit: Any) -> None:
    """Write to `path` what `kit` says from now on; called in the demo's kernel."""
    file = Path(path).open("a", encoding="utf-8")  # noqa: SIM115  (open for the life of the kernel)

    def tell(event: Any) -> None:
        line = _line(event)
        if line is not None:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
            file.flush()

    kit.subscribe(tell, inline=True)


def _line(event: Any) -> list[str] | None:
    from kit_jupyter import events as ev
    from kit_jupyter.deltas import TextDelta, ThinkingDelta

    match event:
        case ev.TurnStart():
            return ["prompt", event.prompt]
        case ev.MessageUpdate(_, TextDelta(_, text)) | ev.MessageUpdate(_, ThinkingDelta(_, text)):
            return ["text", text]
        case ev.ToolCall():
            return ["call", event.name, event.arguments]
        case ev.ToolResultEvent():
            return ["result", event.result, "error" if event.is_error else ""]
        case ev.TurnEnd():
            return ["end", event.error]
    return None


# What is put into the kernel before the first cell: the default session is made when it is first asked for.
_HOOK = """
def _kit_demo_hook(path):
    from IPython import get_ipython
    heard = []
    def hook(*_):
        kit = get_ipython().user_ns.get("kit")
        # By id: the name first holds a stand-in, and the Kit itself once it is used.
        if hasattr(kit, "subscribe") and kit.id not in heard:
            from kit_jupyter.demo import listen
            listen(path, kit)
            heard.append(kit.id)
    get_ipython().events.register("pre_run_cell", hook)
_kit_demo_hook({path!r})
del _kit_demo_hook
"""


# ---------------------------------------------------------------- in the terminal


class _Printer:
    """Prints prompts and growing answers."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._bold, self._dim, self._plain = ("\033[1m", "\033[2m", "\033[0m") if out.isatty() else ("", "", "")
        self._at_start = True

    def write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
        if text:
            self._at_start = text.endswith("\n")

    def fresh(self) -> None:
        if not self._at_start:
            self.write("\n")

    def say(self, text: str) -> None:
        self.fresh()
        self.write(f"{self._bold}==> {text}{self._plain}\n")

    def event(self, kind: str, *words: str) -> None:
        words = tuple(map(visible, words))  # a model's escape sequences are not this terminal's
        match kind:
            case "prompt":
                self.fresh()
                shown = words[0].strip().splitlines() or [""]
                self.write("".join(f"{self._bold}> {line}{self._plain}\n" for line in shown))
            case "text":
                self.write(words[0])
            case "call":
                self.fresh()
                self.write(f"{self._dim}  calls {words[0]} {words[1]}{self._plain}\n")
            case "result":
                self.fresh()
                mark = "failed: " if words[1] else "gives: "
                self.write(f"{self._dim}  {mark}{words[0]}{self._plain}\n")
            case "end":
                self.fresh()
                self.write(f"  ({words[0]})\n\n" if words[0] else "\n")


class _Follower:
    """Prints the lines of a growing file, from a thread of its own until it is closed."""

    def __init__(self, path: Path, printer: _Printer) -> None:
        self._file = path.open(encoding="utf-8")
        self._printer = printer
        self._held = ""
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="kit-demo-follow", daemon=True)
        self._thread.start()

    def catch_up(self) -> None:
        """Print what is there now."""
        with self._lock:
            self._held += self._file.read()
            *lines, self._held = self._held.split("\n")
            for line in lines:
                self._printer.event(*json.loads(line))

    def _follow(self) -> None:
        while not self._done.wait(0.03):
            self.catch_up()

    def close(self) -> None:
        self._done.set()
        self._thread.join(5)
        self.catch_up()
        self._file.close()


def run(
    notebook: Path | None = None,
    *,
    build: Path = Path("build"),
    model: str = "local/default",
    out: TextIO | None = None,
    record: bool = False,
) -> tuple[Path, Path]:
    """Run the notebook live; paths of the executed notebook and of its HTML.

    Parameters
    ----------
    notebook : Path or None
        None takes ``notebooks/01_quickstart.ipynb``.
    build : Path
        Where both are written.
    model : str
        What the notebook talks to, unless it says otherwise itself.
    out : text stream or None
        None is standard output.
    record : bool
        Keep the answers in ``recordings/`` beside the notebook and the outputs in the notebook itself, in the
        form that a replay gives (``KIT_UI=static``).

    Raises
    ------
    UsageError
        If the notebook or what is needed to run it is not there.
    DemoFailed
        If a cell failed.
    """
    notebook = NOTEBOOK if notebook is None else notebook
    printer = _Printer(sys.stdout if out is None else out)
    if not notebook.is_file():
        raise UsageError(f"{notebook} is not here; run this in a clone of kit-jupyter, or give the path of a notebook")
    try:
        import nbformat
        from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
        from nbconvert import HTMLExporter
    except ImportError as exc:
        raise UsageError(f'{exc.name} is not installed; run: pip install "kit-jupyter[demo]"') from None
    try:
        node = nbformat.read(notebook, as_version=4)  # type: ignore[no-untyped-call]
    except (OSError, ValueError, KeyError, AttributeError, TypeError, nbformat.ValidationError) as exc:
        raise UsageError(f"{notebook} is no notebook ({type(exc).__name__}: {str(exc)[:80]})") from None
    try:
        build.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise UsageError(
            f"cannot make the folder {build} ({exc.strerror or exc}); name another one by --build"
        ) from None
    with tempfile.TemporaryDirectory(prefix="kit-demo-") as folder:
        heard = Path(folder) / "heard.jsonl"
        heard.touch()
        follower = _Follower(heard, printer)
        log_path = Path(folder) / "kernel.log"
        log = log_path.open("w", encoding="utf-8")
        client = _client(
            node, follower, heard, notebook, printer, log, _environ(build if record else None, notebook, model)
        )
        begun = time.monotonic()
        printer.say("Starting a kernel")
        try:
            client.execute()
        except CellExecutionError as exc:
            raise DemoFailed(f"a cell of {notebook} failed: {exc.ename}: {exc.evalue}") from None
        except CellTimeoutError:
            raise DemoFailed(f"a cell of {notebook} took longer than {CELL_SECONDS} s") from None
        except DeadKernelError:
            words = log_path.read_text(encoding="utf-8", errors="replace")[-2000:]
            raise DemoFailed(f"the kernel died while it ran {notebook}; is there enough memory?\n{words}") from None
        finally:
            follower.close()
            log.close()
    executed = build / notebook.name
    nbformat.write(node, executed)  # type: ignore[no-untyped-call]
    if record:
        shutil.move(_recording(build, notebook), _recording(notebook.parent, notebook))
        nbformat.write(_without_ids(node), notebook)  # type: ignore[no-untyped-call]
    html, _ = HTMLExporter().from_notebook_node(node)  # type: ignore[no-untyped-call]
    page = executed.with_suffix(".html")
    # nbconvert's page asks two script servers for things that these notebooks do not use.
    page.write_text(re.sub(r'<script src="https?://[^>]*>\s*</script>\n?', "", html), encoding="utf-8")
    printer.say(f"Done in {time.monotonic() - begun:.0f} s")
    printer.write(
        f"The executed notebook:  {executed}\n"
        f"The same as a web page: {page}\n"
        f"To try it yourself:     make lab   (JupyterLab on {notebook})\n"
    )
    return executed, page


def _recording(folder: Path, notebook: Path) -> Path:
    path = folder.resolve() / "recordings" / f"{notebook.stem}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _environ(build: Path | None, notebook: Path, model: str) -> dict[str, str]:
    """What the kernel is told besides our own environment; with `build`, answers are recorded there."""
    out = {"KIT_MODEL": model, "KIT_REPLAY": "off"}
    root = Path(__file__).resolve().parent.parent
    if (root / "pyproject.toml").is_file():
        # A source folder, perhaps not installed: the kernel starts in the notebook's folder and must find us.
        out["PYTHONPATH"] = os.pathsep.join(p for p in (str(root), os.environ.get("PYTHONPATH", "")) if p)
    if build is not None:
        recording = _recording(build, notebook)
        recording.unlink(missing_ok=True)  # answers that are not asked for any more would stay for ever
        out |= {"KIT_REPLAY": "record", "KIT_REPLAY_FILE": str(recording), "KIT_UI": "static"}
    return out


def _without_ids(node: Any) -> Any:
    """The notebook without what differs from run to run."""
    for cell in node.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", ()):
            facts = output.get("metadata", {}).get("kit", {})
            for name in ("session", "turn"):
                facts.pop(name, None)
    return node


def _client(
    node: Any, follower: _Follower, heard: Path, notebook: Path, printer: _Printer, log: TextIO, environ: dict[str, str]
) -> Any:
    from nbclient import NotebookClient

    class Client(NotebookClient):
        """Says what it does, and puts the listener into the kernel."""

        async def async_start_new_kernel_client(self) -> Any:
            found = await super().async_start_new_kernel_client()
            await _quietly(found, _HOOK.format(path=str(heard)))
            return found

    total = sum(cell.cell_type == "code" for cell in node.cells)
    shown: list[int] = []

    def begin(cell: Any, cell_index: int) -> None:
        follower.catch_up()
        if cell.cell_type == "code" and cell.source.strip():
            shown.append(cell_index)
            first = next((line for line in cell.source.splitlines() if line.strip()), "")
            printer.say(f"Cell {len(shown)} of {total}: {first[:80]}")

    return Client(
        node,
        kernel_manager_class=_manager_class(environ, log),
        timeout=CELL_SECONDS,
        store_widget_state=False,
        on_cell_execute=begin,
        resources={"metadata": {"path": str(notebook.parent)}},
    )


def _manager_class(environ: dict[str, str], log: TextIO) -> Any:
    """Starts a kernel of this very Python, whatever kernels are registered here; its warnings go to `log`."""
    from jupyter_client.manager import AsyncKernelManager

    class Manager(AsyncKernelManager):
        async def _async_pre_start_kernel(self, **kw: Any) -> Any:
            command, kw = await super()._async_pre_start_kernel(**kw)
            kw["env"] = {**kw.get("env", os.environ), **environ}
            kw["stderr"] = log
            return [sys.executable, *command[1:]], kw

    return Manager


async def _quietly(client: Any, code: str) -> None:
    """Run a line that leaves no trace, and wait for it."""
    message_id = client.execute(code, silent=True, store_history=False)
    while True:
        reply = await client.get_shell_msg(timeout=60)
        if reply["parent_header"].get("msg_id") == message_id:
            if reply["content"]["status"] != "ok":
                raise DemoFailed(f"the kernel could not be prepared: {reply['content'].get('evalue', '')}")
            return
