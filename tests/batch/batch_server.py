"""A server on this machine that keeps batches as OpenAI, Anthropic and Gemini do, results out of order."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.parser import BytesParser
from email.policy import HTTP
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

Reply = Callable[[str], "str | Fault"]


@dataclass(frozen=True)
class Fault:
    """A row that gets no answer: ``errored`` with a status, ``expired`` or ``canceled``."""

    kind: str
    status: int = 400
    message: str = "no"


@dataclass
class Batch:
    """One batch that was sent."""

    id: str
    wire: str
    rows: list[tuple[str, Any]]
    made: float
    endpoint: str = ""
    name: str = ""
    looks: int = 0
    cancelled: bool = False
    answered: dict[str, Any] = field(default_factory=dict)


class BatchServer:
    """Batches are done at the `looks_needed`-th look; `reply` answers the text of a row.

    `posts` counts the calls that made a batch, `refuse` may hold statuses for the next of them; ``"lose"`` takes
    the batch and hangs up without a word. `gate`, when cleared, keeps batches from being done.
    """

    def __init__(self, reply: Reply, *, looks_needed: int = 2) -> None:
        self.reply = reply
        self.looks_needed = looks_needed
        self.batches: dict[str, Batch] = {}
        self.files: dict[str, bytes] = {}
        self.posts = 0
        self.looks = 0
        self.refuse: list[Any] = []
        self.fault = ""
        self.results_url = "http://evil.invalid/results"
        self.down = 0
        self.keys: set[str] = set()
        self.gate = threading.Event()
        self.gate.set()
        self.looked = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: object) -> None: ...

            def _go(self, method: str) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                server.keys.add(
                    self.headers.get("x-api-key")
                    or self.headers.get("x-goog-api-key")
                    or (self.headers.get("authorization") or "").removeprefix("Bearer ")
                )
                try:
                    status, out = server.handle(method, self.path, body, self.headers)
                except ConnectionAbortedError:
                    self.close_connection = True
                    return
                data = out if isinstance(out, bytes) else json.dumps(out).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_GET(self) -> None:
                self._go("GET")

            def do_POST(self) -> None:
                self._go("POST")

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    @property
    def rows(self) -> list[str]:
        """Texts of all rows in all batches."""
        return [text_of(batch.wire, body) for batch in self.batches.values() for _, body in batch.rows]

    # -- requests

    def handle(self, method: str, path: str, body: bytes, headers: Any) -> tuple[int, Any]:
        path, _, _query = path.partition("?")
        if method == "GET" and self.down:
            self.down -= 1
            return 503, {"error": {"message": "down for a moment", "type": "api_error"}}
        if path.startswith("/v1/messages"):
            return self._anthropic(method, path, body)
        if path.startswith("/v1beta/"):
            return self._gemini(method, path, body)
        return self._openai(method, path, body, headers)

    def _make(self, wire: str, rows: list[tuple[str, Any]], **facts: Any) -> Batch:
        what = self.refuse.pop(0) if self.refuse else None
        if isinstance(what, int):
            raise _Refused(what)
        self.posts += 1
        batch = Batch(f"{'batches/' if wire == 'gemini' else 'batch_'}{self.posts}", wire, rows, time.time(), **facts)
        self.batches[batch.id] = batch
        if what == "lose":
            raise ConnectionAbortedError
        return batch

    def _look(self, batch: Batch) -> bool:
        """Whether it is done, at this look."""
        batch.looks += 1
        self.looks += 1
        self.looked.set()
        done = batch.cancelled or (batch.looks >= self.looks_needed and self.gate.is_set())
        if done and not batch.answered:
            for custom_id, body in reversed(batch.rows):
                said = Fault("canceled") if batch.cancelled else self.reply(text_of(batch.wire, body))
                batch.answered[custom_id] = said
        return done

    # -- OpenAI

    def _openai(self, method: str, path: str, body: bytes, headers: Any) -> tuple[int, Any]:
        if method == "POST" and path == "/v1/files":
            head = f"content-type: {headers['content-type']}\r\n\r\n".encode()
            form = {p.get_param("name", header="content-disposition"): p for p in _parts(head + body)}
            assert form["purpose"].get_payload() == "batch"
            ident = f"file-{len(self.files)}"
            self.files[ident] = form["file"].get_payload(decode=True)
            return 200, {"id": ident, "object": "file"}
        if method == "POST" and path == "/v1/batches":
            asked = json.loads(body)
            assert asked["completion_window"] == "24h"
            lines = [json.loads(line) for line in self.files[asked["input_file_id"]].splitlines()]
            assert len({line["custom_id"] for line in lines}) == len(lines)
            assert {line["url"] for line in lines} == {asked["endpoint"]}
            assert not any("stream" in line["body"] or "stream_options" in line["body"] for line in lines)
            try:
                batch = self._make(
                    "openai",
                    [(line["custom_id"], line["body"]) for line in lines],
                    endpoint=asked["endpoint"],
                    name=asked["metadata"]["kit_batch"],
                )
            except _Refused as refused:
                return refused.status, {"error": {"message": "no batch for you", "type": "invalid_request_error"}}
            return 200, self._openai_shape(batch, "validating")
        if method == "GET" and path == "/v1/batches":
            return 200, {"data": [self._openai_shape(batch, "in_progress") for batch in self.batches.values()]}
        if path.endswith("/content"):
            return 200, self.files[path.split("/")[3]]
        batch = self.batches.get(path.split("/")[3])
        if batch is None:
            return 404, {"error": {"message": "No such batch", "type": "invalid_request_error"}}
        if path.endswith("/cancel"):
            batch.cancelled = True
            return 200, self._openai_shape(batch, "cancelling")
        if self.fault:
            return 200, self._openai_shape(batch, "failed")
        return 200, self._openai_shape(batch, "completed" if self._look(batch) else "in_progress")

    def _openai_shape(self, batch: Batch, status: str) -> dict[str, Any]:
        shape: dict[str, Any] = {
            "id": batch.id,
            "object": "batch",
            "endpoint": batch.endpoint,
            "completion_window": "24h",
            "created_at": int(batch.made),
            "input_file_id": "file-0",
            "status": "cancelled" if batch.cancelled and status == "completed" else status,
            "metadata": {"kit_batch": batch.name},
            "request_counts": {"total": len(batch.rows), "completed": len(batch.answered), "failed": 0},
            "output_file_id": None,
            "error_file_id": None,
        }
        if status == "failed":
            shape["errors"] = {"data": [{"code": "x", "message": self.fault, "line": 1}]}
        if status == "completed":
            good, bad = [], []
            for custom_id, said in batch.answered.items():
                line: dict[str, Any] = {"id": "r", "custom_id": custom_id, "response": None, "error": None}
                if isinstance(said, str):
                    make = _responses if batch.endpoint == "/v1/responses" else _chat
                    line["response"] = {"status_code": 200, "request_id": "q", "body": make(said)}
                    good.append(line)
                elif said.kind == "errored":
                    error = {"error": {"message": said.message, "type": "invalid_request_error"}}
                    line["response"] = {"status_code": said.status, "request_id": "q", "body": error}
                    bad.append(line)
                else:
                    code = "batch_expired" if said.kind == "expired" else "batch_cancelled"
                    line["error"] = {"code": code, "message": "This request could not be executed"}
                    bad.append(line)
            for field_name, lines in (("output_file_id", good), ("error_file_id", bad)):
                if lines:
                    shape[field_name] = f"{field_name}-{batch.id}"
                    self.files[shape[field_name]] = "\n".join(json.dumps(each) for each in lines).encode()
        return shape

    # -- Anthropic

    def _anthropic(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        rest = path.removeprefix("/v1/messages/batches").strip("/").split("/")
        if method == "POST" and rest == [""]:
            asked = json.loads(body)["requests"]
            assert not any("stream" in each["params"] for each in asked)
            try:
                batch = self._make("anthropic", [(each["custom_id"], each["params"]) for each in asked])
            except _Refused as refused:
                error = {"type": "invalid_request_error", "message": "no batch for you"}
                return refused.status, {"type": "error", "error": error}
            return 200, self._anthropic_shape(batch, "in_progress")
        if rest == [""]:
            return 200, {"data": [self._anthropic_shape(batch, "in_progress") for batch in self.batches.values()]}
        batch = self.batches[rest[0]]
        if rest[1:] == ["cancel"]:
            batch.cancelled = True
            return 200, self._anthropic_shape(batch, "canceling")
        if rest[1:] == ["results"]:
            lines = []
            for custom_id, said in batch.answered.items():
                result: dict[str, Any] = {"type": "succeeded", "message": None}
                if isinstance(said, str):
                    result["message"] = _message(said)
                elif said.kind == "errored":
                    kind = {400: "invalid_request_error", 500: "api_error", 529: "overloaded_error"}[said.status]
                    error = {"type": "error", "error": {"type": kind, "message": said.message}}
                    result = {"type": "errored", "error": error}
                else:
                    result = {"type": said.kind}
                lines.append(json.dumps({"custom_id": custom_id, "result": result}))
            return 200, "\n".join(lines).encode() + b"\n"
        return 200, self._anthropic_shape(batch, "ended" if self._look(batch) else "in_progress")

    def _anthropic_shape(self, batch: Batch, status: str) -> dict[str, Any]:
        answered = len(batch.answered)
        counts = {"processing": len(batch.rows) - answered, "succeeded": answered}
        counts |= {"errored": 0, "canceled": 0, "expired": 0}
        made = datetime.fromtimestamp(batch.made, UTC).isoformat()
        return {
            "id": batch.id,
            "type": "message_batch",
            "processing_status": status,
            "request_counts": counts,
            "created_at": made,
            "expires_at": made,
            "ended_at": None,
            "archived_at": None,
            "cancel_initiated_at": None,
            # A key that follows this address has been stolen, unless the test wants it true.
            "results_url": (self.results_url or f"{self.url}/v1/messages/batches/{batch.id}/results")
            if status == "ended"
            else None,
        }

    # -- Gemini

    def _gemini(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        if path.endswith(":batchGenerateContent"):
            asked = json.loads(body)["batch"]
            rows = [(each["metadata"]["key"], each["request"]) for each in asked["inputConfig"]["requests"]["requests"]]
            try:
                batch = self._make("gemini", rows, name=asked["displayName"])
            except _Refused as refused:
                return refused.status, {"error": {"code": refused.status, "message": "no batch for you"}}
            return 200, self._gemini_shape(batch, "PENDING")
        rest = path.removeprefix("/v1beta/")
        if rest == "batches":
            return 200, {"operations": [self._gemini_shape(batch, "RUNNING") for batch in self.batches.values()]}
        batch = self.batches[rest.removesuffix(":cancel")]
        if rest.endswith(":cancel"):
            batch.cancelled = True
            return 200, {}
        return 200, self._gemini_shape(batch, "SUCCEEDED" if self._look(batch) else "RUNNING")

    def _gemini_shape(self, batch: Batch, state: str) -> dict[str, Any]:
        facts: dict[str, Any] = {"state": f"BATCH_STATE_{state}", "displayName": batch.name}
        shape: dict[str, Any] = {"name": batch.id, "metadata": facts}
        if state == "SUCCEEDED":
            items = []
            for custom_id, said in batch.answered.items():
                item: dict[str, Any] = {"metadata": {"key": custom_id}}
                if isinstance(said, str):
                    item["response"] = _content(said)
                else:
                    item["error"] = {"code": 3, "message": said.message}
                items.append(item)
            output = {"inlinedResponses": {"inlinedResponses": items}}
            facts["output"] = output
            shape |= {"done": True, "response": output}
        return shape


class _Refused(Exception):
    def __init__(self, status: int) -> None:
        self.status = status


def _parts(data: bytes) -> list[Any]:
    return list(BytesParser(policy=HTTP).parsebytes(data).iter_parts())  # type: ignore[attr-defined]


def text_of(wire: str, body: dict[str, Any]) -> str:
    """The last thing said in a request's body."""
    if wire == "gemini":
        return str(body["contents"][-1]["parts"][-1]["text"])
    messages = body.get("messages") or body["input"]
    content = messages[-1]["content"]
    return str(content if isinstance(content, str) else content[-1]["text"])


def _chat(text: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {"id": "c", "model": "gpt-4.1-mini", "choices": [choice], "usage": usage}


def _responses(text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    item = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": content}
    usage: dict[str, Any] = {"input_tokens": 1000, "output_tokens": 100, "total_tokens": 1100}
    usage |= {
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    return {"id": "r", "model": "gpt-4.1-mini", "status": "completed", "output": [item], "usage": usage}


def _message(text: str) -> dict[str, Any]:
    usage = {"input_tokens": 1000, "output_tokens": 100}
    content = [{"type": "text", "text": text}]
    return {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "claude-haiku-4-5",
        "content": content,
        "stop_reason": "end_turn",
        "usage": usage,
    }


def _content(text: str) -> dict[str, Any]:
    candidate = {"content": {"parts": [{"text": text}], "role": "model"}, "finishReason": "STOP", "index": 0}
    usage = {"promptTokenCount": 1000, "candidatesTokenCount": 100, "totalTokenCount": 1100}
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "gemini-2.5-flash"}
