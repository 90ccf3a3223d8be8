"""A real kernel to talk to, with everything it said kept in order."""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_client import KernelManager

TURN_MIME = "application/vnd.kit.turn+json"
OLD = "6.29.5"
"""The oldest ipykernel that works, on which a part of the tests runs always."""

SETUP = """
import os
%load_ext kit_jupyter
from kit_jupyter import Kit, tool
from kit_jupyter.testing import *
from kit_jupyter.jupyter import notebook_of
"""


@dataclass
class Said:
    """What one execution made: its reply, and all messages of its own."""

    reply: dict[str, Any]
    messages: list[dict[str, Any]]
    seconds: float

    def of(self, *kinds: str) -> list[dict[str, Any]]:
        return [m["content"] for m in self.messages if m["msg_type"] in kinds]

    @property
    def stream(self) -> str:
        return "".join(content["text"] for content in self.of("stream"))

    @property
    def shown(self) -> list[dict[str, Any]]:
        """Display outputs as a front end would end up with them: updates applied in place."""
        out: list[dict[str, Any]] = []
        by_id: dict[str, dict[str, Any]] = {}
        for m in self.messages:
            if m["msg_type"] not in ("display_data", "update_display_data", "execute_result"):
                continue
            content = m["content"]
            key = content.get("transient", {}).get("display_id")
            if m["msg_type"] == "update_display_data":
                if key in by_id:
                    by_id[key].update(data=content["data"], metadata=content["metadata"])
                continue
            entry = {"data": content["data"], "metadata": content["metadata"]}
            out.append(entry)
            if key:
                by_id[key] = entry
        return out

    @property
    def frames(self) -> list[dict[str, Any]]:
        """Frames of live views, in order."""
        out = []
        for m in self.messages:
            if m["msg_type"] == "comm_msg":
                data = m["content"]["data"]
                if data.get("method") == "custom" and "m" in data.get("content", {}):
                    out.append(data["content"])
        return out

    def kit(self) -> dict[str, Any]:
        """The final turn bundle."""
        return next(entry["data"] for entry in self.shown if TURN_MIME in entry["data"])


@dataclass
class Kernel:
    """A kernel and one client of it."""

    manager: KernelManager
    client: Any
    log: list[dict[str, Any]] = field(default_factory=list)
    cells: int = 0

    def send(self, code: str, *, cell_id: str | None = None, allow_stdin: bool = False) -> str:
        """Send a cell and do not wait; its message id."""
        client = self.client
        content = {
            "code": code,
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": allow_stdin,
            "stop_on_error": True,
        }
        # "trusted" as Lab sends it: with neither that nor input, this would be a runner, which gets no live views.
        metadata = {"trusted": True} | ({"cellId": cell_id} if cell_id else {})
        message = client.session.msg("execute_request", content, metadata=metadata)
        client.shell_channel.send(message)
        return str(message["header"]["msg_id"])

    def pump(self, until: Callable[[], bool], timeout: float = 30.0) -> None:
        """Read what comes until `until` is true."""
        end = time.monotonic() + timeout
        while not until():
            try:
                self.log.append(self.client.get_iopub_msg(timeout=0.05))
            except queue.Empty:
                failed = [m["content"]["evalue"] for m in self.log[-12:] if m["msg_type"] == "error"]
                if time.monotonic() > end or (failed and time.monotonic() > end - timeout + 3):
                    tail = failed or [(m["msg_type"], str(m["content"])[:200]) for m in self.log[-8:]]
                    raise AssertionError(f"not within {timeout} s; last messages: {tail}") from None

    def mine(self, msg_id: str) -> list[dict[str, Any]]:
        return [m for m in self.log if m["parent_header"].get("msg_id") == msg_id]

    def is_idle(self, msg_id: str) -> bool:
        return any(m["msg_type"] == "status" and m["content"]["execution_state"] == "idle" for m in self.mine(msg_id))

    def wait(self, msg_id: str, timeout: float = 30.0) -> Said:
        begin = time.monotonic()
        self.pump(lambda: self.is_idle(msg_id), timeout)
        while True:
            reply = self.client.get_shell_msg(timeout=timeout)
            if reply["parent_header"].get("msg_id") == msg_id:
                return Said(reply["content"], self.mine(msg_id), time.monotonic() - begin)

    def run(self, code: str, *, cell_id: str | None = None, timeout: float = 30.0) -> Said:
        """Run a cell to its end."""
        return self.wait(self.send(code, cell_id=cell_id), timeout)

    def ok(self, code: str, **more: Any) -> Said:
        """Run a cell that must succeed."""
        said = self.run(code, **more)
        assert said.reply["status"] == "ok", (said.reply.get("ename"), said.reply.get("evalue"), said.stream)
        return said

    def value(self, expression: str) -> Any:
        """The value of an expression, by its repr."""
        import ast

        said = self.ok(f"print(repr({expression}))")
        return ast.literal_eval(said.stream)

    def script(self, *replies: str, more: str = "") -> None:
        """A new Kit as `kit`, whose provider says `replies` (each the text of one reply's list)."""
        scripted = f"provider = ScriptedProvider({', '.join(replies)})"
        self.ok(f"{scripted}\nkit = Kit(provider=provider, session='memory'{more})")

    def comm(self, comm_id: str, content: dict[str, Any]) -> None:
        """Say something to a widget, as a browser would."""
        client = self.client
        message = client.session.msg("comm_msg", {"comm_id": comm_id, "data": {"method": "custom", "content": content}})
        client.shell_channel.send(message)

    def control(self, content: dict[str, Any], timeout: float = 5.0) -> dict[str, Any]:
        """A `kit_request` on the control channel, and its reply."""
        client = self.client
        message = client.session.msg("kit_request", content)
        client.control_channel.send(message)
        while True:
            reply = client.get_control_msg(timeout=timeout)
            if reply["parent_header"].get("msg_id") == message["header"]["msg_id"]:
                return dict(reply["content"])

    def view_of(self, msg_id: str) -> str:
        """Comm id of the live view that a cell opened."""
        self.pump(lambda: bool(self._views(msg_id)))
        return self._views(msg_id)[0]

    def tool_runs(self, msg_id: str) -> bool:
        """True once the cell's view has shown a tool that runs."""
        frames = Said({}, self.mine(msg_id), 0).frames
        items = [m["item"] for frame in frames for m in frame["m"] if m["kind"] == "commit"]
        return any(item.get("kind") == "tool" and item.get("status") == "running" for item in items)

    def _views(self, msg_id: str) -> list[str]:
        return [
            m["content"]["comm_id"]
            for m in self.mine(msg_id)
            if m["msg_type"] == "comm_open" and "view" in m["content"]["data"].get("state", {})
        ]

    def text_in_frames(self, msg_id: str) -> str:
        """Answer text that live frames have brought so far."""
        said = Said({}, self.mine(msg_id), 0)
        return "".join(
            entry[3]
            for frame in said.frames
            for m in frame["m"]
            if m["kind"] == "delta"
            for entry in m["d"]
            if entry[1] == "text"
        )


def overlay(version: str) -> str:
    """A folder that, before all others on the path, makes `version` the ipykernel of this very Python.

    Installed on first use (a megabyte) and kept in ``build/``; skips the test where that cannot be.
    """
    import pytest

    folder = Path(__file__).parents[2] / "build" / f"ipykernel-{version}"
    if not folder.is_dir():
        made = folder.with_name(f"{folder.name}.{os.getpid()}")  # workers may begin together
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--retries", "1", "--timeout", "20", "--target", str(made), f"ipykernel=={version}", "nest_asyncio"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        if done.returncode:
            shutil.rmtree(made, ignore_errors=True)
            why = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            pytest.skip(f"ipykernel {version} cannot be installed now: {why[:200]}")
        try:
            made.rename(folder)
        except OSError:  # another one was quicker
            shutil.rmtree(made, ignore_errors=True)
    return str(folder)


@contextmanager
def kernel(
    env: dict[str, str] | None = None, name: str = "python3", setup: str = SETUP, python: str = ""
) -> Iterator[Kernel]:
    """A kernel for the length of the block; `python` is another interpreter, with its own ipykernel."""
    manager = KernelManager(kernel_name=name)
    if python:
        assert manager.kernel_spec is not None
        manager.kernel_spec.argv[0] = python
    manager.start_kernel(env={**os.environ, **(env or {})})
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        it = Kernel(manager, client)
        if setup:
            it.ok(setup)
        yield it
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
