"""Records the example notebooks from a script, so that they can show what a 135M model cannot do.

Theory of operation
-------------------
A small server on loopback speaks the chat wire and gives, request after request, the replies that
`lessons` holds for a notebook: text, or tool calls, or a function of the request. The notebook runs in
a real kernel with ``KIT_REPLAY=record``; what went over the wire lands in ``notebooks/recordings/``,
the executed notebook in place. Nothing in a notebook knows of it: with a model of your own the same
cells ask that.

Run: ``python -m tests.notebooks.teacher`` for all, or with numbers: ``… teacher 03 05``.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "notebooks"

Reply = str | dict[str, Any] | list[Any]


def call(name: str, /, **arguments: Any) -> dict[str, Any]:
    """A tool call as a reply, or as part of one."""
    return {"name": name, "arguments": arguments}


def _events(reply: Reply, number: int) -> Iterator[dict[str, Any]]:
    pieces = reply if isinstance(reply, list) else [reply]
    calls = 0
    for piece in pieces:
        if isinstance(piece, str):
            words = piece.split(" ")
            for i, word in enumerate(words):
                yield {"delta": {"content": word if i == 0 else f" {word}"}}
        else:
            yield {
                "delta": {
                    "tool_calls": [
                        {
                            "index": calls,
                            "id": f"call_{number}_{calls}",
                            "type": "function",
                            "function": {"name": piece["name"], "arguments": json.dumps(piece["arguments"])},
                        }
                    ]
                }
            }
            calls += 1
    yield {"delta": {}, "finish_reason": "tool_calls" if calls else "stop"}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        server: Any = self.server
        with server.lock:
            server.asked.append(body)
            number = len(server.asked)
            reply = server.replies.pop(0) if server.replies else "(the script has ended)"
        if callable(reply):
            reply = reply(body)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        for event in _events(reply, number):
            choice = {"index": 0, "finish_reason": None, **event}
            self._send({"id": f"chatcmpl-{number}", "object": "chat.completion.chunk", "choices": [choice]})
        tokens = {"prompt_tokens": len(str(body["messages"])) // 4, "completion_tokens": 10}
        self._send({"id": f"chatcmpl-{number}", "choices": [], "usage": tokens})
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def _send(self, event: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n")
        self.wfile.flush()

    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, format: str, *args: Any) -> None:
        return None


class Teacher:
    """The server, for a ``with`` block."""

    def __init__(self, replies: list[Reply | Callable[[dict[str, Any]], Reply]]) -> None:
        self._server: Any = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.replies, self._server.asked, self._server.lock = list(replies), [], threading.Lock()
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """Base address of the chat wire."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    @property
    def asked(self) -> list[dict[str, Any]]:
        """Request bodies so far."""
        return self._server.asked  # type: ignore[no-any-return]

    @property
    def left(self) -> int:
        """Replies nobody asked for."""
        return len(self._server.replies)

    def __enter__(self) -> Teacher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def execute(path: Path, environ: dict[str, str], timeout_seconds: int = 120) -> Any:
    """Run a notebook in a fresh kernel with `environ` laid over ours, in place; the notebook."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    before = {name: os.environ.get(name) for name in environ}
    os.environ.update(environ)
    try:
        NotebookClient(
            notebook,
            timeout=timeout_seconds,
            kernel_name="python3",
            store_widget_state=False,
            record_timing=False,
            resources={"metadata": {"path": str(path.parent)}},
        ).execute()
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
    return notebook


def record(path: Path, replies: list[Any]) -> int:
    """Record one notebook and save it executed; how many requests it made."""
    import nbformat

    recording = path.parent / "recordings" / f"{path.stem}.json"
    recording.unlink(missing_ok=True)
    with Teacher(replies) as teacher:
        environ = {
            "KIT_REPLAY": "record",
            "KIT_REPLAY_FILE": str(recording),
            "KIT_UI": "static",
            "KIT_MODEL": "vllm/teacher",
            "VLLM_BASE_URL": teacher.url,
            "JPY_SESSION_NAME": str(path),
        }
        notebook = execute(path, environ)
        if teacher.left or len(teacher.asked) != len(replies):
            raise SystemExit(f"{path.name}: {len(teacher.asked)} requests for {len(replies)} replies")
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):  # ids differ from run to run
            for name in ("session", "turn"):
                output.get("metadata", {}).get("kit", {}).pop(name, None)
    notebook.metadata["language_info"] = {"name": "python"}
    nbformat.validate(notebook)
    nbformat.write(notebook, path)
    return len(replies)


def main(names: list[str]) -> None:
    """Record the notebooks whose numbers are given, else all that have a lesson."""
    from tests.notebooks.lessons import LESSONS

    for stem, replies in LESSONS.items():
        if names and not any(stem.startswith(name) for name in names):
            continue
        print(f"{stem}: {record(NOTEBOOKS / f'{stem}.ipynb', replies)} requests recorded", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
