"""A recording as a file that people read and compare: one exchange after the other, repetitions only referred to."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kit_jupyter.errors import UsageError
from kit_jupyter.providers.replay.exchange import Exchange

__all__ = ["read_exchanges", "write_exchanges"]

VERSION = 1


def read_exchanges(path: Path) -> list[Exchange]:
    """The exchanges of a recording.

    Raises
    ------
    UsageError
        If the file cannot be read, is no recording, or is of a newer version.
    """
    try:
        document = json.loads(path.read_text("utf-8"))
    except json.JSONDecodeError as exc:
        raise UsageError(
            f"{path}, line {exc.lineno}: not a recording ({exc.msg}); correct it or record it again"
        ) from None
    except (OSError, UnicodeDecodeError) as exc:
        raise UsageError(f"cannot read the recording {path} ({exc})") from None
    version = document.get("kit_recording") if isinstance(document, dict) else None
    if not isinstance(version, int) or not isinstance(document.get("exchanges"), list):
        raise UsageError(f"{path} is not a recording: it must hold kit_recording and exchanges")
    if version > VERSION:
        raise UsageError(
            f"{path} was made by a newer kit-jupyter (version {version}, known {VERSION}); update, or record it again"
        )
    out: list[Exchange] = []
    for number, entry in enumerate(document["exchanges"], 1):
        try:
            answer = entry["answer"]
            body = {name: answer[name] for name in ("stream", "json", "text") if name in answer}
            if len(body) != 1 or ("stream" in body and not _is_stream(body["stream"])):
                raise KeyError("stream, json or text")
            out.append(
                Exchange(
                    model=str(entry["model"]),
                    path=str(entry["path"]),
                    request=_expanded(entry["request"], out),
                    status=int(answer["status"]),
                    content_type=str(answer.get("type", "text/event-stream")),
                    body=body,
                    cell=str(entry.get("cell", "")),
                )
            )
        except (KeyError, TypeError, ValueError, IndexError) as exc:
            raise UsageError(
                f"{path}, exchange {number}: {type(exc).__name__} at {exc}; each needs model, path, request and an "
                "answer with status and one of stream, json, text; correct it or record it again"
            ) from None
    return out


def write_exchanges(path: Path, exchanges: Sequence[Exchange]) -> None:
    """Replace the file in one step.

    Raises
    ------
    UsageError
        If it cannot be written.
    """
    document = {"kit_recording": VERSION, "exchanges": _shortened(exchanges)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Not .json: where a notebook's name is not known, all files of that kind are looked through.
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".recording-", suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", errors="replace", newline="\n") as file:
                file.write(_pretty(document) + "\n")
            os.chmod(name, 0o644)
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
    except OSError as exc:
        raise UsageError(f"cannot write the recording {path}: {exc.strerror or exc}; see KIT_REPLAY_FILE") from None


def _is_stream(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(read, list) and all(isinstance(event, dict) and "data" in event for event in read) for read in value
    )


def _shortened(exchanges: Sequence[Exchange]) -> list[dict[str, Any]]:
    """Entries of the file; what repeats the exchange before is only referred to."""
    out: list[dict[str, Any]] = []
    for at, exchange in enumerate(exchanges):
        request = exchange.request
        before = exchanges[at - 1].request if at else None
        if isinstance(request, dict) and isinstance(before, dict):
            request = {key: _reference(value, before.get(key), at) for key, value in request.items()}
        entry: dict[str, Any] = {"cell": exchange.cell} if exchange.cell else {}
        entry |= {"model": exchange.model, "path": exchange.path, "request": request}
        entry["answer"] = {"status": exchange.status, "type": exchange.content_type, **exchange.body}
        out.append(entry)
    return out


def _reference(value: Any, before: Any, number: int) -> Any:
    if not isinstance(value, list | dict | str) or len(json.dumps(value)) < 80:
        return value
    if value == before:
        return {"$same": number}
    if isinstance(value, list) and isinstance(before, list) and before and value[: len(before)] == before:
        return [{"$from": number}, *value[len(before) :]]
    return value


def _expanded(request: Any, earlier: list[Exchange]) -> Any:
    if not isinstance(request, dict):
        return request
    return {key: _looked_up(key, value, earlier) for key, value in request.items()}


def _looked_up(key: str, value: Any, earlier: list[Exchange]) -> Any:
    if isinstance(value, dict) and set(value) == {"$same"}:
        return earlier[_number(value["$same"], earlier)].request[key]
    if isinstance(value, list) and value and isinstance(value[0], dict) and set(value[0]) == {"$from"}:
        return [*earlier[_number(value[0]["$from"], earlier)].request[key], *value[1:]]
    return value


def _number(value: Any, earlier: list[Exchange]) -> int:
    if not isinstance(value, int) or not 1 <= value <= len(earlier):
        raise ValueError(f"a reference to exchange {value!r}, which does not stand before it")
    return value - 1


def _pretty(value: Any, depth: int = 0, width: int = 110) -> str:
    """JSON that a person can read and compare: one line where it fits, and always for one network read."""
    flat = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or not value or (len(flat) + depth <= width and depth > 2):
        return flat
    if isinstance(value, list) and all(isinstance(item, dict) and "data" in item for item in value):
        return flat
    pad = " " * (depth + 1)
    if isinstance(value, dict):
        lines = [
            f"{pad}{json.dumps(key, ensure_ascii=False)}: {_pretty(item, depth + 1, width)}"
            for key, item in value.items()
        ]
        return "{\n" + ",\n".join(lines) + "\n" + " " * depth + "}"
    return "[\n" + ",\n".join(pad + _pretty(item, depth + 1, width) for item in value) + "\n" + " " * depth + "]"
