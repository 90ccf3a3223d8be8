"""The error for a request that no recording answers: it names the cell, the nearest exchange, and what differs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit_jupyter.errors import ReplayMiss
from kit_jupyter.provider import asking_cell
from kit_jupyter.providers.replay.exchange import Exchange
from kit_jupyter.providers.replay.playing import readable
from kit_jupyter.providers.replay.recording import Recording
from kit_jupyter.providers.replay.setting import recording_files, said_file

__all__ = ["miss"]

_NO_NAME = (
    "; the kernel was not told its notebook's name, so {looked}: "
    "name it by JPY_SESSION_NAME=<notebook>.ipynb, or the file by KIT_REPLAY_FILE"
)


def miss(model: str, path: str, body: Any, *, why: str = "") -> ReplayMiss:
    """The error that names the cell, the nearest exchange and what differs; `body` is the normalised request."""
    said = _last_said(body)
    who = " ".join(part for part in (asking_cell.get(), f"({said!r})" if said else "") if part) or "this request"
    head = f"no recording answers {who} to {model}"
    files = recording_files()
    there = [file for file in files if file.exists()]
    looked = f"all of {files[0].parent}{os.sep} was looked through" if there else "none can be found by it"
    how = "" if said_file(None) else _NO_NAME.format(looked=looked)
    if not there:
        return ReplayMiss(f"{head}: there is no file {files[0]}{why}; record it with KIT_REPLAY=record{how}")
    near = [found for kept in readable(files) if (found := _nearest(kept, path, body)) is not None]
    if not near:
        return ReplayMiss(f"{head}: {there[0]} is empty{why}; record it with KIT_REPLAY=record{how}")
    best = max(near, key=lambda one: one.score)
    where = f"exchange {best.number}" + (f", {best.exchange.cell}" if best.exchange.cell else "")
    differs = _differences(body, best.exchange.request, path, best.exchange.path)
    return ReplayMiss(
        f"{head} in {best.file}; the nearest is {where}, where {differs}{why}; "
        f"make the cell as it was, or record it again with KIT_REPLAY=record{how}"
    )


@dataclass(frozen=True, slots=True)
class _Near:
    """What comes nearest to a request that no recording answers."""

    score: float
    file: Path
    number: int
    exchange: Exchange


def _nearest(recording: Recording, path: str, body: Any) -> _Near | None:
    """The exchange that is most like this request; None in an empty recording."""
    ours = dict(_leaves(body))
    best: _Near | None = None
    for number, exchange in enumerate(recording.exchanges, 1):
        theirs = dict(_leaves(exchange.request))
        same = sum(1 for where, value in ours.items() if theirs.get(where) == value)
        score = same / max(len(ours), len(theirs), 1) - (0.5 if exchange.path != path else 0)
        if best is None or score > best.score:
            best = _Near(score, recording.path, number, exchange)
    return best


def _leaves(value: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{where}.{key}" if where else str(key))
    elif isinstance(value, list):
        yield f"{where}.length", len(value)
        for at, item in enumerate(value):
            yield from _leaves(item, f"{where}[{at}]")
    else:
        yield where, value


def _differences(body: Any, their_body: Any, path: str, their_path: str) -> str:
    ours, theirs = dict(_leaves(body)), dict(_leaves(their_body))
    found: list[str] = [] if path == their_path else [f"the path is {their_path} instead of {path}"]
    for where in [*ours, *(key for key in theirs if key not in ours)]:
        if ours.get(where) != theirs.get(where):
            was, now = _around(theirs.get(where), ours.get(where))
            found.append(f"{where} is {was} instead of {now}")
    shown = "; ".join(found[:3])
    return shown + (f"; and {len(found) - 3} more" if len(found) > 3 else "") if found else "nothing differs"


def _around(was: Any, now: Any) -> tuple[str, str]:
    """Both values, cut to where they begin to differ."""
    if not isinstance(was, str) or not isinstance(now, str):
        return _word(was), _word(now)
    at = next((i for i, (a, b) in enumerate(zip(was, now, strict=False)) if a != b), min(len(was), len(now)))
    begin = max(0, at - 20)
    dots = "…" if begin else ""
    return dots + repr(was[begin : at + 40]), dots + repr(now[begin : at + 40])


def _word(value: Any) -> str:
    return "missing" if value is None else repr(value)[:60]


def _last_said(body: Any) -> str:
    """The end of what the person asked, to find the cell by."""
    facts = body if isinstance(body, dict) else {}
    listed: Any = next((facts[key] for key in ("messages", "input", "contents") if key in facts), ())
    if isinstance(listed, str):
        return listed[:60]
    messages: list[Any] = listed if isinstance(listed, list) else []
    for message in reversed(messages):
        if isinstance(message, dict) and message.get("role") == "user":
            words = " ".join(
                str(v) for w, v in _leaves(message) if w.endswith(("content", "text")) and isinstance(v, str)
            )
            words = " ".join(re.sub(r"<system-reminder>.*?</system-reminder>", "", words, flags=re.DOTALL).split())
            if words:
                return words[:60] + ("…" if len(words) > 60 else "")
    return ""
