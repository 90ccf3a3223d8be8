"""One request and its answer: bytes as a recording holds them, and bytes again."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from kit_jupyter.providers import keys
from kit_jupyter.providers._framing import Frames
from kit_jupyter.providers.replay.meaning import fingerprint, normalised, readable_answer

__all__ = ["Exchange", "recordable"]


@dataclass
class Exchange:
    """One request and its answer, as recorded."""

    model: str
    path: str
    request: Any
    status: int
    content_type: str
    body: Any  # {"stream": [[event, …], …]}, {"json": …} or {"text": …}
    cell: str = ""
    fingerprint: str = field(init=False)

    def __post_init__(self) -> None:
        self.fingerprint = fingerprint(self.path, normalised(self.request))

    def chunks(self) -> Iterator[bytes]:
        """The answer's bytes, a piece per network read."""
        if "stream" in self.body:
            for read in self.body["stream"]:
                yield b"".join(_event_bytes(event) for event in read)
        elif "json" in self.body:
            yield json.dumps(self.body["json"], ensure_ascii=False).encode("utf-8", "replace")
        else:
            yield str(self.body.get("text", "")).encode("utf-8", "replace")


def _event_bytes(event: Any) -> bytes:
    name, data = event.get("event"), event.get("data")
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    lines = [f"event: {name}"] if name else []
    lines += [f"data: {line}" for line in text.split("\n")]
    return ("\n".join(lines) + "\n\n").encode("utf-8", "replace")


def recordable(pieces: list[bytes]) -> dict[str, Any]:
    """A body as the file holds it: events by network read, JSON, or text."""
    frames = Frames()
    reads: list[list[dict[str, Any]]] = []
    for piece in pieces:
        events = frames.feed(piece)
        if events:
            reads.append([_recorded_event(event.name, event.data) for event in events])
    rest, body = frames.end()
    if rest:
        reads.append([_recorded_event(event.name, event.data) for event in rest])
    if body is None:
        return {"stream": reads}
    text = body.decode("utf-8", "replace")
    with contextlib.suppress(ValueError):
        return {"json": readable_answer(json.loads(text))}
    return {"text": keys.mask(text)}


def _recorded_event(name: str, data: str | bytes) -> dict[str, Any]:
    text = data.decode("utf-8", "replace") if isinstance(data, bytes) else data
    out: dict[str, Any] = {"event": name} if name else {}
    try:
        value = json.loads(text)
    except ValueError:
        return {**out, "data": keys.mask(text)}
    return {**out, "data": readable_answer(value) if isinstance(value, dict | list) else text}
