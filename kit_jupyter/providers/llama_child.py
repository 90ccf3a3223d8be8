"""The child process that serves a local model: ``python -m kit_jupyter.providers.llama_child``.

Theory of operation
-------------------
The parent is a kernel that may be killed, interrupted or forked at any moment, so the child hangs on
one thing only: its standard input. When that ends, so does the child, on every platform, also after
``kill -9`` of the parent (measured: gone within milliseconds). It is started in a session of its own,
so that the kernel's interrupt, which goes to the whole process group, does not reach it.

The child chooses its port itself (no race) and writes one JSON line to standard output when the
model can answer: ``{"address": "http://127.0.0.1:…", "pid": …}``. The key comes by environment, never
by argument, where ``ps`` would show it. Prompts are in no log line at the verbosity used here.

Two engines: the ``xllamacpp`` wheel in this process, or any ``llama-server`` binary as a child of it
(which by itself would outlive us).

Standard library only, apart from the wheel; nothing of this package is used, so that it starts fast.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from typing import Any

__all__ = ["KEY_VARIABLE", "cores", "main"]

KEY_VARIABLE = "KIT_LLAMA_KEY"
BATCH = 256  # a stop is noticed between batches: 2048 would be nine seconds of reading, 256 is one
IDLE_SECONDS = 300  # then the model leaves memory; the next request wakes it
BINARY_START_SECONDS = 55.0
NO_ENGINE_EXIT = 3
NO_LIBRARY_EXIT = 4
BAD_MODEL_EXIT = 5


def cores() -> int:
    """CPUs this process may really use: affinity and, in a container, the CPU quota."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="ascii") as file:
            quota, period = file.read().split()[:2]
        if quota != "max":
            count = min(count, max(1, round(int(quota) / int(period))))
    except (OSError, ValueError):
        pass
    return max(1, count)


def _say(address: str) -> None:
    print(json.dumps({"address": address, "pid": os.getpid()}), flush=True)


def _fail(code: int, text: str) -> int:
    print(text, file=sys.stderr, flush=True)
    return code


def _wait_for_parent() -> None:
    """Return when standard input ends: the parent closed it, or is no more."""
    while sys.stdin.buffer.read(4096):
        pass


def _end_with_parent() -> None:
    _wait_for_parent()
    os._exit(0)  # not sys.exit: the server's own threads would be waited for


# ---------------------------------------------------------------- the wheel


def _serve_wheel(model: str, name: str, context: int, key: str) -> int:
    try:
        xllamacpp: Any = importlib.import_module("xllamacpp")
    except ModuleNotFoundError:
        return _fail(NO_ENGINE_EXIT, "xllamacpp is not installed")
    except (ImportError, OSError) as exc:
        return _fail(NO_LIBRARY_EXIT, f"xllamacpp cannot be loaded: {exc}")
    p = xllamacpp.CommonParams()
    threads = cores()
    p.model.path, p.port, p.hostnames = model, 0, ["127.0.0.1"]
    p.n_ctx, p.n_parallel, p.n_batch, p.n_ubatch = context, 1, BATCH, BATCH
    # One core is left to whatever else runs: with all of them taken, spinning threads starve each other.
    p.cpuparams.n_threads, p.cpuparams_batch.n_threads = max(1, threads - 1), threads
    p.api_keys, p.model_alias = [key], [name]  # without a name the server tells the file's path
    # By default the server lets any web page in, with credentials, and may download models.
    p.use_jinja, p.ui, p.offline, p.cors_origins, p.cors_credentials = True, False, True, "localhost", False
    p.cache_ram_mib, p.sleep_idle_seconds = 0, IDLE_SECONDS  # the default prompt cache may take 8 GiB
    p.verbosity = 2
    # The parent may go while the model is still being read.
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        server = xllamacpp.Server(p)
    except Exception as exc:
        return _fail(BAD_MODEL_EXIT, f"the model cannot be loaded: {exc}")
    _say(server.listening_address)
    threading.Event().wait()
    return 0


# ---------------------------------------------------------------- any llama-server binary


def binary_arguments(binary: str, model: str, name: str, context: int, help_text: str) -> list[str]:
    """Command line for `binary`, with only those options that its ``--help`` knows."""
    threads = cores()
    wanted: list[tuple[str, str | None]] = [
        ("--host", "127.0.0.1"),
        ("--port", "0"),
        ("--ctx-size", str(context)),
        ("--parallel", "1"),
        ("--batch-size", str(BATCH)),
        ("--ubatch-size", str(BATCH)),
        ("--threads", str(max(1, threads - 1))),
        ("--threads-batch", str(threads)),
        ("--alias", name),
        ("--jinja", None),
        ("--cache-ram", "0"),
        ("--sleep-idle-seconds", str(IDLE_SECONDS)),
        ("--cors-origins", "localhost"),
        ("--offline", None),
        ("--no-ui", None),
        ("--no-webui", None),
    ]
    known = set(re.findall(r"--[a-z][a-z0-9-]*", help_text))
    out = [binary, "--model", model]
    for option, value in wanted:
        if option in known and not (option == "--no-webui" and "--no-ui" in known):
            out += [option] if value is None else [option, value]
    return out


def _serve_binary(binary: str, model: str, name: str, context: int, key: str) -> int:
    try:
        # A binary that is built for another machine fails here already, with its own words.
        shown = subprocess.run([binary, "--help"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as exc:
        return _fail(NO_ENGINE_EXIT, f"{binary} cannot be run: {exc}")
    command = binary_arguments(binary, model, name, context, shown.stdout + shown.stderr)
    environment = {**os.environ, "LLAMA_API_KEY": key}
    environment.pop(KEY_VARIABLE, None)
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment,
        preexec_fn=_die_with_parent if sys.platform == "linux" else None,
    )
    found: list[str] = []
    listening = threading.Event()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            sys.stderr.write(line)
            sys.stderr.flush()
            match = re.search(r"listening on\s+(https?://[^\s,]+)", line)
            if match and not found:
                found.append(match.group(1).rstrip("."))
                listening.set()
        listening.set()

    def stop() -> None:
        _wait_for_parent()
        process.terminate()
        try:
            process.wait(2.0)
        except subprocess.TimeoutExpired:
            process.kill()
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    threading.Thread(target=stop, daemon=True).start()
    listening.wait(BINARY_START_SECONDS)
    if found and _is_healthy(found[0], process):
        _say(found[0])
    elif process.poll() is None:
        process.kill()
        process.wait()
        return _fail(BAD_MODEL_EXIT, f"{binary} did not become ready")
    code = process.wait()
    if code < 0:  # end as it ended, so that the parent sees the signal (an old CPU: SIGILL)
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def _die_with_parent() -> None:
    """Linux: the kernel ends the binary when we are killed ourselves; runs between fork and exec."""
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG; our starting thread is the main one and lives on


def _is_healthy(address: str, process: subprocess.Popen[str]) -> bool:
    """Wait until ``/health`` answers 200: the binary listens at once and says 503 while it loads."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy between us and us
    end = time.monotonic() + BINARY_START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            with opener.open(f"{address}/health", timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    return False


def main(arguments: list[str] | None = None) -> int:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(description="Serve a GGUF model on this machine; ends with its standard input.")
    parser.add_argument("--model", required=True, help="path of a GGUF file")
    parser.add_argument("--name", default="local", help="how the model is called in answers")
    parser.add_argument("--context", type=int, default=8192, help="context window in tokens")
    parser.add_argument("--binary", default="", help="a llama-server to use in place of the xllamacpp wheel")
    chosen: Any = parser.parse_args(arguments)
    key = os.environ.pop(KEY_VARIABLE, "")
    if not key:
        return _fail(2, f"{KEY_VARIABLE} is not set; this process is started by kit-jupyter, not by hand")
    if chosen.binary:
        return _serve_binary(chosen.binary, chosen.model, chosen.name, chosen.context, key)
    return _serve_wheel(chosen.model, chosen.name, chosen.context, key)


if __name__ == "__main__":
    # os._exit: the server's threads are not asked.
    os._exit(main())
