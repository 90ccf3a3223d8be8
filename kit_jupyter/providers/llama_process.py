"""The child process that serves one file of weights: its start, its death in words, its end.

Theory of operation
-------------------
The child belongs to the process, not to a Kit: all that use the same weights hold one `LlamaServer`, the
last to let go stops it, and if this process dies in any way the child ends by itself (`llama_child`). It
starts when it is first asked where it listens, on a plain thread, and again when it has died. A process
that was forked off (user code does that) forgets the child and does not stop it.
"""

from __future__ import annotations

import asyncio
import atexit
import collections
import concurrent.futures
import contextlib
import importlib.util
import json
import os
import platform
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from kit_jupyter.errors import ConnectionFailed, KitError, UsageError
from kit_jupyter.providers import llama_child, local_install, local_models

__all__ = ["BINARY_VARIABLE", "LlamaServer", "Served", "ask", "engine_name", "hold", "in_thread", "let_go", "no_engine"]

T = TypeVar("T")

CONTEXT = 8192
START_SECONDS = 60.0
LOG_LINES = 200
URL_VARIABLE, BINARY_VARIABLE = "KIT_LOCAL_URL", "KIT_LLAMA_SERVER"


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What a running server says of itself.

    Parameters
    ----------
    address : str
        ``http://127.0.0.1:port``.
    key : str
        For its ``Authorization`` header; never shown.
    context_window : int or None, tokens
    parameters : int or None
        How many weights the model has.
    calls_tools : bool or None
        Whether its chat template knows tools; None when it does not say (not llama.cpp).
    sees : bool
        Whether it takes images.
    """

    address: str
    key: str = ""
    context_window: int | None = None
    parameters: int | None = None
    calls_tools: bool | None = None
    sees: bool = False

    def __repr__(self) -> str:
        return f"Served({self.address!r})"


def in_thread(fn: Callable[[], T], name: str) -> concurrent.futures.Future[T]:
    """Run `fn` on a daemon thread: a pool's threads would hold up the interpreter's exit."""
    future: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run() -> None:
        try:
            value = fn()
        except BaseException as exc:
            future.set_exception(exc)
        else:
            future.set_result(value)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def ask(address: str, key: str, *, timeout_seconds: float = 5.0) -> Served:
    """What the server at `address` says of itself; facts it does not know stay None. Blocks.

    Raises
    ------
    OSError
        If nothing answers there.
    """
    props = _get(f"{address}/props", key, timeout_seconds) or {}
    models = _get(f"{address}/v1/models", key, timeout_seconds) or {}
    listed = models.get("data") or [{}]
    meta = (listed[0] if isinstance(listed[0], dict) else {}).get("meta") or {}
    caps = props.get("chat_template_caps")
    context = (props.get("default_generation_settings") or {}).get("n_ctx") or meta.get("n_ctx")
    return Served(
        address=address,
        key=key,
        context_window=context if isinstance(context, int) else None,
        parameters=meta.get("n_params") if isinstance(meta.get("n_params"), int) else None,
        calls_tools=bool(caps.get("supports_tool_calls")) if isinstance(caps, dict) else None,
        sees=bool((props.get("modalities") or {}).get("vision")),
    )


def _get(url: str, key: str, timeout_seconds: float) -> dict[str, Any] | None:
    # Standard library: this runs on a plain thread, and without a proxy between us and this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})
    try:
        with opener.open(request, timeout=timeout_seconds) as response:
            value = json.load(response)
    except urllib.error.HTTPError:
        return None
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


# ---------------------------------------------------------------- the child


def engine_name() -> str:
    """What serves: path of a llama-server, ``xllamacpp``, or empty when neither is there."""
    binary = os.environ.get(BINARY_VARIABLE, "").strip()
    if binary:
        return binary
    return "xllamacpp" if importlib.util.find_spec("xllamacpp") is not None else ""


class LlamaServer:
    """One child process that serves one file of weights.

    Safe from any thread. It starts when `served` is first awaited, and again when it has died.

    Parameters
    ----------
    found : local_models.Found
    binary : str
        A llama-server; empty for the xllamacpp wheel.
    context : int, tokens
    command : list of str or None
        What to run in place of `llama_child`, for tests.
    """

    def __init__(
        self, found: local_models.Found, *, binary: str = "", context: int = CONTEXT, command: list[str] | None = None
    ) -> None:
        self.found = found
        self.status = ""
        self.listeners: list[Callable[[str], None]] = []
        self.last_failure: KitError | None = None
        self.holders = 0
        self.starts = 0
        self._binary = binary
        self._context = context
        self._command = command
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._future: concurrent.futures.Future[Served] | None = None
        self._served: Served | None = None
        self._log: Path | None = None
        self._owner = os.getpid()
        self._closing = False

    def __repr__(self) -> str:
        return f"LlamaServer({self.found.name!r}, pid={self.pid})"

    @property
    def pid(self) -> int | None:
        """Process id of the running child."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    @property
    def facts(self) -> Served | None:
        """What the server said of itself when it last started."""
        return self._served

    @property
    def has_died(self) -> bool:
        """True when the child ended although nobody stopped it."""
        process = self._process
        return process is not None and not self._closing and process.poll() is not None

    async def is_dead_soon(self) -> bool:
        """Whether the child has ended; a connection may break a moment before the process is gone."""
        for _ in range(20):
            if self.has_died:
                return True
            await asyncio.sleep(0.025)
        return False

    async def served(self) -> Served:
        """Where it listens; starts it when needed.

        Raises
        ------
        UsageError
            What a person can mend: no engine, a missing library, a damaged file.
        ConnectionFailed
            It did not start otherwise, with the last lines of its log.
        """
        # Shielded: a stop while the model loads leaves the child to get ready for the next prompt.
        return await asyncio.shield(asyncio.wrap_future(self._begin()))

    def _begin(self) -> concurrent.futures.Future[Served]:
        with self._lock:
            future = self._future
            if future is not None and (not future.done() or (future.exception() is None and self.pid is not None)):
                return future
            self._closing = False
            self._future = future = in_thread(self._start, "kit-llama-start")
            return future

    def _start(self) -> Served:
        path = local_install.ready(self.found)
        if self._command is None and not self._binary and not engine_name():
            raise UsageError(no_engine())
        self._say(f"starting the local model {self.found.name} ({self.found.size / 1e6:,.0f} MB)")
        try:
            return self._start_child(path)
        finally:
            self._say("")

    def _say(self, status: str) -> None:
        self.status = status
        for listener in list(self.listeners):
            with contextlib.suppress(Exception):  # an observer cannot keep the model from starting
                listener(status)

    def _start_child(self, path: Path) -> Served:
        self._reap()
        # By its file, and with -P: neither the user's folder (a json.py there) nor how this package
        # came onto the path can get in the way.
        command = [*(self._command or [sys.executable, "-P", llama_child.__file__]), "--model", str(path)]
        command += ["--name", self.found.name, "--context", str(self._context)]
        if self._binary:
            command += ["--binary", self._binary]
        key = secrets.token_urlsafe(32)
        environment = {
            **os.environ,
            llama_child.KEY_VARIABLE: key,
            # Idle threads spin; with another busy process that is 2 tokens a second in place of 140 (measured).
            "GOMP_SPINCOUNT": os.environ.get("GOMP_SPINCOUNT", "1000"),
        }
        self._drop_log()
        handle, name = tempfile.mkstemp(prefix="kit-llama-", suffix=".log")
        self._log = Path(name)
        with open(handle, "wb") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # the kernel's interrupt goes to the whole group
                env=environment,
            )
        with self._lock:
            self._process = process
            self._owner = os.getpid()
            self.starts += 1
        _living.add(self)
        timer = threading.Timer(START_SECONDS, process.kill)
        timer.daemon = True
        timer.start()
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
        finally:
            timed_out = not timer.is_alive()
            timer.cancel()
        try:
            address = str(json.loads(line)["address"])
            self._served = ask(address, key)
        except (ValueError, KeyError, TypeError, OSError) as exc:
            self._stop_process(process)
            if self._closing:
                raise ConnectionFailed("the local model was stopped while it started", provider="local") from exc
            raise self._failure(process, "did not start", timed_out=timed_out) from None
        return self._served

    # -- how it went wrong

    def log_tail(self, lines: int = 20) -> str:
        """The last lines of the child's log; it holds no prompts."""
        if self._log is None or not self._log.exists():
            return ""
        with self._log.open("rb") as file:
            kept = collections.deque(file, maxlen=min(lines, LOG_LINES))
        return b"".join(kept).decode("utf-8", "replace").rstrip()

    def failure(self, when: str) -> KitError:
        """The error for a child that has died, in words."""
        assert self._process is not None
        self.last_failure = self._failure(self._process, when)
        return self.last_failure

    def _failure(self, process: subprocess.Popen[bytes], when: str, *, timed_out: bool = False) -> KitError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
        log, code = self.log_tail(), process.returncode
        low = log.lower()
        shown = f"\nits log ends:\n{_indented(log)}" if log else ""
        name = f"the local model server ({self.found.name})"
        if code == llama_child.NO_ENGINE_EXIT:
            return UsageError(f"{no_engine()}{shown if self._binary else ''}")
        if code == llama_child.NO_LIBRARY_EXIT:
            step = (
                "install the library libgomp (Debian and Ubuntu: apt-get install libgomp1)"
                if "gomp" in low
                else "install the library it names, or use another engine: KIT_LLAMA_SERVER=/path/to/llama-server"
            )
            return UsageError(f"{name} cannot load its engine; {step}{shown}")
        if code == llama_child.BAD_MODEL_EXIT and not ("bind" in low and "gguf" not in low):
            weights = self.found.weights
            step = (
                f"run: kit-jupyter local install {weights.name}"
                if weights is not None and self.found.origin == "cache"
                else "give another GGUF file, or a newer engine (pip install -U xllamacpp)"
            )
            return UsageError(f"{self.found.path.name} cannot be loaded: damaged, or of an unknown kind; {step}{shown}")
        if timed_out:
            why, step = f"{when} within {START_SECONDS:g} s", "a smaller model may help; close what else runs"
        elif code is not None and code < 0:
            why, step = _by_signal(-code, when)
        elif "bind" in low:
            why, step = f"{when}: it may not open a port on 127.0.0.1", "check what restricts local connections here"
        else:
            why, step = f"{when} (exit code {code})", "the next prompt starts it again"
        error = ConnectionFailed(f"{name} {why}; {step}{shown}", provider="local", model=self.found.name)
        error.retryable = False
        return error

    # -- the end

    def stop(self) -> None:
        """End the child: its input is closed, then it is asked, then it is killed. Blocks for milliseconds."""
        if self._owner != os.getpid():
            return
        with self._lock:
            self._closing = True
            process, self._process, self._future = self._process, None, None
        if process is not None:
            self._stop_process(process)
        _living.discard(self)
        self._drop_log()

    def _drop_log(self) -> None:
        log, self._log = self._log, None
        if log is not None:
            with contextlib.suppress(OSError):
                log.unlink()

    @staticmethod
    def _stop_process(process: subprocess.Popen[bytes]) -> None:
        for step in (None, process.terminate, process.kill):
            if step is None:
                with contextlib.suppress(OSError):
                    if process.stdin is not None:
                        process.stdin.close()
            else:
                step()
            try:
                process.wait(2.0)
                break
            except subprocess.TimeoutExpired:
                continue
        if process.stdout is not None:
            process.stdout.close()

    def _reap(self) -> None:
        """Free what a dead child left."""
        if self._process is not None:
            self._stop_process(self._process)

    def _forget(self) -> None:
        """In a process forked off: the child is not ours, and must not be kept alive by our copy of its input."""
        process = self._process
        self._lock = threading.Lock()
        self._process, self._future, self._served, self._log = None, None, None, None
        self._owner = os.getpid()
        if process is not None:
            process.returncode = 0  # else its destructor waits for a process that is not our child
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError, ValueError):
                    if pipe is not None:
                        pipe.close()


def no_engine() -> str:
    """What to do when there is nothing to serve a model with."""
    binary = os.environ.get(BINARY_VARIABLE, "").strip()
    if binary:
        return f"{BINARY_VARIABLE}={binary} cannot be run; give the path of a llama-server program"
    where = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    return (
        "the engine for local models is not installed\n"
        '  run: pip install "kit-jupyter[local]"\n'
        f"  no wheel for this platform ({where})? {BINARY_VARIABLE}=/path/to/llama-server takes any llama.cpp build\n"
        f"  or a running server ({URL_VARIABLE}=http://127.0.0.1:8080), or a key (OPENAI_API_KEY …)"
    )


def _by_signal(number: int, when: str) -> tuple[str, str]:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    match name:
        case "SIGILL":
            return (
                f"{when} ({name}): this CPU lacks instructions that the wheel needs (AVX2, FMA, F16C, BMI2)",
                f"give a llama-server built for it: {BINARY_VARIABLE}=/path/to/llama-server",
            )
        case "SIGKILL":
            return f"was killed ({name}) and {when}", "out of memory? The next prompt starts it again"
    return f"{when} ({name})", "the next prompt starts it again"


def _indented(text: str) -> str:
    return "\n".join(f"  {line[:300]}" for line in text.splitlines())


# ---------------------------------------------------------------- one child per file of weights and process

_living: set[LlamaServer] = set()
_servers: dict[tuple[str, str, int], LlamaServer] = {}
_guard = threading.Lock()


def hold(found: local_models.Found, binary: str, context: int) -> LlamaServer:
    """The process's server of these weights; each holder lets go of it once."""
    key = (str(found.path), binary, context)
    with _guard:
        server = _servers.get(key)
        if server is None:
            server = _servers[key] = LlamaServer(found, binary=binary, context=context)
        server.holders += 1
        return server


def let_go(server: LlamaServer) -> bool:
    """True when nobody holds it any more."""
    with _guard:
        server.holders = max(0, server.holders - 1)
        return server.holders == 0


def _stop_all() -> None:
    for server in list(_living):
        server.stop()


def _after_fork() -> None:
    global _guard
    _guard = threading.Lock()
    for server in list(_living):
        server._forget()
    _living.clear()


atexit.register(_stop_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
