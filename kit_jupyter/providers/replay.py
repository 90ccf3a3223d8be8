"""Record what a service answers, and answer from the recording: notebooks and tests without a key.

Theory of operation
-------------------
An httpx transport stands in for the network. ``KIT_REPLAY`` says what it does:

=========  =====================================================================================
``off``    nothing: the network as always (the default)
``auto``   answers from the recording; asks the service for what is missing and records it, where
           that is possible (a key, a server); else `ReplayMiss`
``record`` asks the service for everything, and replaces what was recorded for the same request
``strict`` answers from the recording alone: no key, no network, no child process
=========  =====================================================================================

Requests are matched by what they mean: ids, times, durations, addresses of objects, ports, keys, folders
of this machine and the host are left out of the comparison and of the file (`normalised`). Several equal
requests are answered in the order they were recorded, then by the last. A miss names the cell, the
nearest recording and what differs.

The file lies beside the notebook, ``recordings/<notebook>.json``. Where nobody told the kernel its notebook's
name (`notebook_name`), what is recorded goes to ``recordings/notebook.json``, and answers are looked for in
every file there.

A file is made to be read and compared: one exchange after the other, one line per network read, what
repeats an earlier request is referred to (``$same``, ``$from``), and opaque state (signatures, encrypted
reasoning, pictures) stands as a digest. A digest goes back to us as if it were the signature, and comes in
again with the next request, so that whole conversations replay. Keys never reach the file: of headers only
the content type is kept, and all text passes `keys.mask`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import re
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from kit_jupyter.errors import ReplayMiss, UsageError
from kit_jupyter.messages import ModelDelta, ModelRef
from kit_jupyter.provider import ModelInfo, ModelRequest, Provider, asking_cell
from kit_jupyter.providers import keys
from kit_jupyter.providers._client import Network, SharedClients, clients_for, http_library, is_loopback
from kit_jupyter.providers._framing import Frames
from kit_jupyter.providers.notebook_name import notebook_name

__all__ = [
    "MODES",
    "Recording",
    "ReplayProvider",
    "active",
    "is_strict",
    "mode",
    "normalised",
    "recorded_model",
    "recording_file",
    "recording_files",
    "reset",
    "transport_for",
    "use_file",
    "used_file",
]

MODES = ("off", "auto", "record", "strict")
VERSION = 1

# ---------------------------------------------------------------- mode and place


def mode(environ: Mapping[str, str] | None = None) -> str:
    """What ``KIT_REPLAY`` says.

    Raises
    ------
    UsageError
        For a word it does not know.
    """
    environ = os.environ if environ is None else environ
    word = environ.get("KIT_REPLAY", "").strip().lower() or "off"
    if word in ("0", "no", "false", "none"):
        word = "off"
    if word not in MODES:
        raise UsageError(f"KIT_REPLAY must be one of {', '.join(MODES)}, got {word!r}")
    return word


def active(environ: Mapping[str, str] | None = None) -> bool:
    """True unless replay is off."""
    return mode(environ) != "off"


def is_strict(environ: Mapping[str, str] | None = None) -> bool:
    """True if nothing may be asked of any service."""
    return mode(environ) == "strict"


_chosen: Path | None = None


def use_file(path: str | os.PathLike[str] | None) -> None:
    """Record to and replay from this file; None goes back to what the environment says. Any thread."""
    global _chosen
    _chosen = None if path is None else Path(path)


def _said_file(environ: Mapping[str, str] | None) -> Path | None:
    """The file that a person chose, or that bears the notebook's name."""
    if _chosen is not None:
        return _chosen
    given = (os.environ if environ is None else environ).get("KIT_REPLAY_FILE")
    if given:
        return Path(given).expanduser()
    name = notebook_name(environ)
    return Path("recordings", name).with_suffix(".json") if name else None


def recording_file(environ: Mapping[str, str] | None = None) -> Path:
    """The recording of this notebook: what is recorded goes there.

    `use_file`, else ``KIT_REPLAY_FILE``, else ``recordings/<notebook>.json`` in the kernel's folder; where the
    kernel was not told its notebook's name, ``recordings/notebook.json``.
    """
    return _said_file(environ) or _NAMELESS


def recording_files(environ: Mapping[str, str] | None = None) -> tuple[Path, ...]:
    """Where answers are looked for: `recording_file`; without a name, that one and all beside it."""
    said = _said_file(environ)
    if said is not None:
        return (said,)
    return (_NAMELESS, *(path for path in sorted(_NAMELESS.parent.glob("*.json")) if path != _NAMELESS))


_NAMELESS = Path("recordings", "notebook.json")


# ---------------------------------------------------------------- what a request means

_ID_KEYS = frozenset(("id", "tool_call_id", "call_id", "tool_use_id", "item_id", "previous_response_id", "response_id"))
_LEFT_OUT = frozenset(("prompt_cache_key", "user", "metadata", "session_id", "safety_identifier", "stream_options"))
_OPAQUE = frozenset(("signature", "thoughtSignature", "thought_signature", "encrypted_content"))
_DIGEST = re.compile(r"opaque-[0-9a-f]{16}")
_BASE64 = re.compile(r"(?:data:[\w/+.-]+;base64,)?[A-Za-z0-9+/_-]{400,}={0,2}")

_VARYING: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\b\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?:Z|[+-]\d{2}:?\d{2})?)?"), "<time>"),
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.IGNORECASE), "<uuid>"),
    (re.compile(r"\b[a-z]{2,12}_[0-9a-f]{22}\b"), "<id>"),
    (re.compile(r"\b0x[0-9a-f]{6,16}\b", re.IGNORECASE), "<address>"),
    (re.compile(r"\b(127\.0\.0\.1|localhost|\[::1\]):\d{2,5}\b"), r"\1:<port>"),
    (re.compile(r"\b\d+\.\d+ ?(?:ns|µs|us|ms|s|seconds?)\b"), "<duration>"),
    (re.compile(r"(?:/private)?(?:/var/folders/\w\w/\w+/T|/tmp)/[\w.\-]+"), "<temp>"),
)


def _places() -> tuple[tuple[str, str], ...]:
    """Folders of this machine that stand in prompts, longest first."""
    found = [(os.getcwd(), "<cwd>"), (os.path.expanduser("~"), "<home>")]
    return tuple((path, word) for path, word in sorted(found, key=lambda f: -len(f[0])) if len(path) > 3)


def normalised(value: Any) -> Any:
    """A request body without what differs from run to run or machine to machine; the same if done twice.

    Examples
    --------
    >>> normalised({"user": "me", "messages": [{"content": "built at 2026-11-30T10:00:00Z, port 127.0.0.1:5001"}]})
    {'messages': [{'content': 'built at <time>, port 127.0.0.1:<port>'}]}
    """
    return _Normaliser().of(value)


class _Normaliser:
    def __init__(self) -> None:
        self._ids: dict[str, str] = {}
        self._places = _places()

    def of(self, value: Any, key: str = "", depth: int = 0) -> Any:
        if isinstance(value, dict):
            out = {k: self.of(v, k, depth + 1) for k, v in value.items() if not (depth == 0 and k in _LEFT_OUT)}
            if value.get("type") in ("redacted_thinking", "reasoning.encrypted") and isinstance(value.get("data"), str):
                out["data"] = opaque(value["data"])
            return out
        if isinstance(value, list):
            return [self.of(item, key, depth + 1) for item in value]
        if not isinstance(value, str):
            return value
        if key in _ID_KEYS:
            return value if re.fullmatch(r"#\d+", value) else self._ids.setdefault(value, f"#{len(self._ids) + 1}")
        if key in _OPAQUE:
            return opaque(value)
        return self.text(value)

    def text(self, text: str) -> str:
        if len(text) >= 400:
            text = _BASE64.sub(lambda m: f"<{len(m[0])} characters, {_digest(m[0])}>", text)
        for path, word in self._places:
            text = text.replace(path, word)
        for pattern, word in _VARYING:
            text = pattern.sub(word, text)
        return keys.mask(text)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def opaque(text: str) -> str:
    """The digest that stands for a signature: short, private, and the same for the same signature."""
    return text if not text or _DIGEST.fullmatch(text) else f"opaque-{_digest(text)}"


def _hide_opaque(value: Any, key: str = "", *, in_opaque: bool = False) -> Any:
    """An answer without its opaque state and without keys; everything else as it came."""
    if isinstance(value, dict):
        hidden = value.get("type") in ("redacted_thinking", "reasoning.encrypted")
        return {k: _hide_opaque(v, k, in_opaque=hidden) for k, v in value.items()}
    if isinstance(value, list):
        return [_hide_opaque(item, key) for item in value]
    if isinstance(value, str):
        return opaque(value) if key in _OPAQUE or (in_opaque and key == "data") else keys.mask(value)
    return value


def _fingerprint(path: str, body: Any) -> str:
    return hashlib.sha256(
        json.dumps([path, body], sort_keys=True, ensure_ascii=False).encode("utf-8", "replace")
    ).hexdigest()


# ---------------------------------------------------------------- the file


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
        self.fingerprint = _fingerprint(self.path, normalised(self.request))

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


class Recording:
    """The exchanges of one file; how far each request was answered is kept for the process.

    Parameters
    ----------
    path : Path
        Need not exist.

    Notes
    -----
    Any thread.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._stamp: tuple[int, int] | None = None
        self._exchanges: list[Exchange] = []
        self._played: dict[str, int] = {}
        self._renewed: set[str] = set()
        self._load()

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """All exchanges, in the order they were made."""
        self._load()
        return tuple(self._exchanges)

    def find(self, path: str, body: Any) -> Exchange | None:
        """The next answer to this request; the last one again when all were given."""
        with self._lock:
            self._load()
            wanted = _fingerprint(path, normalised(body))
            same = [exchange for exchange in self._exchanges if exchange.fingerprint == wanted]
            if not same:
                return None
            turn = self._played.get(wanted, 0)
            self._played[wanted] = turn + 1
            return same[min(turn, len(same) - 1)]

    def add(self, exchange: Exchange, *, renew: bool) -> None:
        """Keep an exchange; with `renew` the first of its kind replaces those of earlier runs."""
        with self._lock:
            self._load()
            same = [at for at, known in enumerate(self._exchanges) if known.fingerprint == exchange.fingerprint]
            place = len(self._exchanges)
            if renew and exchange.fingerprint not in self._renewed:
                self._renewed.add(exchange.fingerprint)
                if same:
                    place = same[0]
                    self._exchanges = [e for e in self._exchanges if e.fingerprint != exchange.fingerprint]
            self._exchanges.insert(place, exchange)
            self._played[exchange.fingerprint] = self._played.get(exchange.fingerprint, 0) + 1
            self._save()

    def nearest(self, path: str, body: Any) -> _Near | None:
        """The exchange that is most like this request; None in an empty file."""
        with self._lock:
            self._load()
            ours = dict(_leaves(body))
            best: tuple[float, int] | None = None
            for at, exchange in enumerate(self._exchanges):
                theirs = dict(_leaves(exchange.request))
                same = sum(1 for where, value in ours.items() if theirs.get(where) == value)
                score = same / max(len(ours), len(theirs), 1) - (0.5 if exchange.path != path else 0)
                if best is None or score > best[0]:
                    best = (score, at)
            if best is None:
                return None
            exchange = self._exchanges[best[1]]
            differs = _differences(ours, dict(_leaves(exchange.request)), path, exchange.path)
            return _Near(best[0], self.path, best[1] + 1, exchange.cell, differs)

    # -- disk

    def _load(self) -> None:
        try:
            status = self.path.stat()
        except OSError:
            if self._stamp is not None:  # it was deleted: begin again
                self._stamp, self._exchanges = None, []
            return
        stamp = (status.st_mtime_ns, status.st_size)
        if stamp != self._stamp:
            self._exchanges = _read(self.path)
            self._stamp = stamp

    def _save(self) -> None:
        document = {"kit_recording": VERSION, "exchanges": _shortened(self._exchanges)}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self.path.parent, prefix=".recording-", suffix=".json")
            with os.fdopen(handle, "w", encoding="utf-8", errors="replace", newline="\n") as file:
                file.write(_pretty(document) + "\n")
            os.chmod(name, 0o644)
            os.replace(name, self.path)
            status = self.path.stat()
        except OSError as exc:
            raise UsageError(
                f"cannot write the recording {self.path}: {exc.strerror or exc}; see KIT_REPLAY_FILE"
            ) from None
        self._stamp = (status.st_mtime_ns, status.st_size)


def _read(path: Path) -> list[Exchange]:
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


def _is_stream(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(read, list) and all(isinstance(event, dict) and "data" in event for event in read) for read in value
    )


def _shortened(exchanges: list[Exchange]) -> list[dict[str, Any]]:
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


# ---------------------------------------------------------------- finding and missing


def _find(path: str, body: Any) -> Exchange | None:
    """The next answer to this request, of the file that answered last or else of the first that has one."""
    global _used
    files = sorted(recording_files(), key=lambda file: file.absolute() != _used)
    for kept in _readable(files):
        found = kept.find(path, body)
        if found is not None:
            if _used != kept.path.absolute():
                _used = kept.path.absolute()
                _log.info("answers come from the recording %s", kept.path)
            return found
    return None


def _readable(files: Sequence[Path]) -> Iterator[Recording]:
    """The recordings of these files; where all of a folder are tried, what is none is passed over."""
    for file in files:
        try:
            yield recording(file)
        except UsageError as exc:
            if len(files) == 1 or file == _NAMELESS:
                raise
            _log.info("passed over: %s", exc)


@dataclass(frozen=True, slots=True)
class _Near:
    """What comes nearest to a request that no recording answers."""

    score: float
    file: Path
    number: int
    cell: str
    differs: str


_NO_NAME = (
    "; the kernel was not told its notebook's name, so {looked}: "
    "name it by JPY_SESSION_NAME=<notebook>.ipynb, or the file by KIT_REPLAY_FILE"
)


def _miss(model: str, path: str, body: Any, *, why: str = "") -> ReplayMiss:
    """The error that names the cell, the nearest exchange and what differs."""
    said = _last_said(body)
    who = " ".join(part for part in (asking_cell.get(), f"({said!r})" if said else "") if part) or "this request"
    head = f"no recording answers {who} to {model}"
    files = recording_files()
    there = [file for file in files if file.exists()]
    looked = f"all of {files[0].parent}{os.sep} was looked through" if there else "none can be found by it"
    how = "" if _said_file(None) else _NO_NAME.format(looked=looked)
    if not there:
        return ReplayMiss(f"{head}: there is no file {files[0]}{why}; record it with KIT_REPLAY=record{how}")
    near = [found for kept in _readable(files) if (found := kept.nearest(path, normalised(body))) is not None]
    if not near:
        return ReplayMiss(f"{head}: {there[0]} is empty{why}; record it with KIT_REPLAY=record{how}")
    best = max(near, key=lambda one: one.score)
    where = f"exchange {best.number}" + (f", {best.cell}" if best.cell else "")
    return ReplayMiss(
        f"{head} in {best.file}; the nearest is {where}, where {best.differs}{why}; "
        f"make the cell as it was, or record it again with KIT_REPLAY=record{how}"
    )


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


def _differences(ours: Mapping[str, Any], theirs: Mapping[str, Any], path: str, their_path: str) -> str:
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


# ---------------------------------------------------------------- the transport


_recordings: dict[Path, Recording] = {}
_used: Path | None = None
_log = logging.getLogger("kit_jupyter.replay")


def recording(path: Path | None = None) -> Recording:
    """The process's recording of this file; one each, so that the order of equal requests is kept."""
    where = (path or recording_file()).absolute()
    found = _recordings.get(where)
    if found is None:
        found = _recordings[where] = Recording(path or recording_file())
    return found


def reset() -> None:
    """Forget how far recordings were played, as a new process would."""
    global _used
    _recordings.clear()
    _used = None


def used_file() -> Path | None:
    """The recording that gave the last answer; None before the first."""
    return _used


def recorded_model(environ: Mapping[str, str] | None = None) -> str:
    """The first model of the recording, when replay is on and there is one; else empty."""
    if mode(environ) not in ("auto", "strict"):
        return ""
    exchanges = _first_exchanges(environ)
    return exchanges[0].model if exchanges else ""


def _first_exchanges(environ: Mapping[str, str] | None = None) -> tuple[Exchange, ...]:
    """Those of the first recording that has any."""
    return next((kept.exchanges for kept in _readable(recording_files(environ)) if kept.exchanges), ())


def transport_for(network: Network | None = None, *, inner: Any = None, how: str | None = None) -> Any:
    """The transport that replays or records; None when replay is off.

    Parameters
    ----------
    network : Network or None
        The way to the service for what must be asked; None takes the environment's.
    inner : httpx transport or None
        Carries what must be asked in place of the network, for example one that starts a server at its first
        request; it is not called as long as the recording answers. Give such a provider any fixed base URL.
    how : str or None
        One of `MODES`; None takes ``KIT_REPLAY``.
    """
    how = how or mode()
    if how == "off":
        return None
    network = network or Network()
    return _transport_class(network.library)(how, network, inner)


@cache
def _transport_class(library: str | None) -> Any:
    httpx = http_library(library)

    class _Body(httpx.AsyncByteStream):  # type: ignore[misc, name-defined]
        """A recorded answer, read by read."""

        def __init__(self, exchange: Exchange) -> None:
            self._exchange = exchange

        async def __aiter__(self) -> AsyncIterator[bytes]:
            for chunk in self._exchange.chunks():
                yield chunk
                await asyncio.sleep(0)  # as the network would: let others run between two reads

    class _Tee(httpx.AsyncByteStream):  # type: ignore[misc, name-defined]
        """A live answer that is kept once it has come to its end."""

        def __init__(self, response: Any, keep: Callable[[list[bytes]], None], give: Callable[[], None]) -> None:
            self._response, self._keep, self._give = response, keep, give

        async def __aiter__(self) -> AsyncIterator[bytes]:
            pieces: list[bytes] = []
            async for chunk in self._response.aiter_bytes():
                pieces.append(chunk)
                yield chunk
            self._keep(pieces)

        async def aclose(self) -> None:
            give, self._give = self._give, _nothing
            give()
            await self._response.aclose()

    class ReplayTransport(httpx.AsyncBaseTransport):  # type: ignore[misc, name-defined]
        """Answers from a recording, or asks and records."""

        def __init__(self, how: str, network: Network, inner: Any) -> None:
            self.how = how
            self._network, self._inner = network, inner
            self._held: list[SharedClients] = []

        def __repr__(self) -> str:
            return f"ReplayTransport({self.how!r}, {str(recording_file())!r})"

        async def handle_async_request(self, request: Any) -> Any:
            asked = _Asked.of(request, await request.aread())
            kept = recording()
            if self.how != "record":
                found = _find(asked.path, asked.body)
                if found is not None:
                    return httpx.Response(
                        found.status, headers={"content-type": found.content_type}, stream=_Body(found), request=request
                    )
                if self.how == "strict":
                    raise _miss(asked.model, asked.path, asked.body)
                if asked.lacks_key:
                    raise _miss(asked.model, asked.path, asked.body, why=", and there is no key to ask the service")
            try:
                response, give = await self._ask(request)
            except httpx.ConnectError:
                if self.how == "auto":
                    why = f", and {request.url.host} cannot be reached"
                    raise _miss(asked.model, asked.path, asked.body, why=why) from None
                raise
            headers = [(n, v) for n, v in response.headers.multi_items() if n.lower() not in _NOT_PASSED_ON]

            def keep(pieces: list[bytes]) -> None:
                if response.status_code >= 400 and response.status_code not in _KEPT_ERRORS:
                    return
                exchange = asked.answered(response.status_code, response.headers.get("content-type", ""), pieces)
                when_good = request.extensions.get("kit_when_good")
                if response.status_code >= 400 or when_good is None:
                    kept.add(exchange, renew=self.how == "record")
                else:  # an answer that was cut, or is none, is not worth keeping: whoever reads it knows
                    when_good.append(lambda: kept.add(exchange, renew=self.how == "record"))

            return httpx.Response(
                response.status_code, headers=headers, stream=_Tee(response, keep, give), request=request
            )

        async def _ask(self, request: Any) -> tuple[Any, Callable[[], None]]:
            """The service's response, and what to call when it is read."""
            if self._inner is not None:
                response = await self._inner.handle_async_request(request)
                response.request = request
                return response, _nothing
            url = str(request.url)
            shared = clients_for(
                self._network, secure=url.startswith("https:"), loopback=is_loopback(url), transport=None
            )
            if not any(held is shared for held in self._held):
                shared.holders += 1
                self._held.append(shared)
            number, client = shared.take()
            try:
                return await client.send(request, stream=True), partial(shared.give, number)
            except BaseException:
                shared.give(number)
                raise

        async def aclose(self) -> None:
            held, self._held = self._held, []
            for shared in held:
                await shared.let_go()
            if self._inner is not None:
                await self._inner.aclose()

    return ReplayTransport


def _nothing() -> None:
    """What is left to do for a response that no client of ours brought."""


_NOT_PASSED_ON = frozenset(("content-encoding", "content-length", "transfer-encoding"))
_KEPT_ERRORS = frozenset((400, 404, 413, 422))  # what the request itself causes; the rest is weather


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request as it is matched and recorded."""

    model: str
    path: str
    body: Any
    lacks_key: bool

    @classmethod
    def of(cls, request: Any, content: bytes) -> _Asked:
        try:
            body: Any = json.loads(content)
        except ValueError:
            body = content.decode("utf-8", "replace")
        model = (
            request.extensions.get("kit_model") or (body.get("model") if isinstance(body, dict) else "") or "a model"
        )
        path = re.sub(r"^.*?(?=/(?:chat/completions|responses|messages|models/|publishers/))", "", request.url.path)
        return cls(
            str(model), path or request.url.path, normalised(body), bool(request.extensions.get("kit_lacks_key"))
        )

    def answered(self, status: int, content_type: str, pieces: list[bytes]) -> Exchange:
        """This request with its answer, made readable and private."""
        return Exchange(
            model=self.model,
            path=self.path,
            request=self.body,
            status=status,
            content_type=content_type.partition(";")[0] or "application/json",
            body=_recordable(pieces),
            cell=asking_cell.get(),
        )


def _recordable(pieces: list[bytes]) -> dict[str, Any]:
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
        return {"json": _hide_opaque(_quiet(json.loads(text)))}
    return {"text": keys.mask(text)}


def _recorded_event(name: str, data: str | bytes) -> dict[str, Any]:
    text = data.decode("utf-8", "replace") if isinstance(data, bytes) else data
    out: dict[str, Any] = {"event": name} if name else {}
    try:
        value = json.loads(text)
    except ValueError:
        return {**out, "data": keys.mask(text)}
    return {**out, "data": _hide_opaque(_quiet(value)) if isinstance(value, dict | list) else text}


_NOISE = frozenset(("created", "created_at", "system_fingerprint", "obfuscation", "timings", "p"))


def _quiet(value: Any) -> Any:
    """An answer without what differs in every recording and says nothing: times, fingerprints, padding."""
    if not isinstance(value, dict):
        return value
    quiet = {key: item for key, item in value.items() if key not in _NOISE}
    if isinstance(quiet.get("response"), dict):
        quiet["response"] = _quiet(quiet["response"])
    return quiet


# ---------------------------------------------------------------- a provider of its own


class ReplayProvider:
    """Plays a recording under the name ``replay/provider/model``, whatever ``KIT_REPLAY`` says.

    Parameters
    ----------
    model_id : str
        ``provider/model`` as recorded; ``default`` takes the recording's first.
    open_inner : callable
        Makes the provider of a model on a transport.
    """

    name = "replay"

    def __init__(self, model_id: str, open_inner: Callable[[ModelRef, Any], Provider]) -> None:
        if model_id in ("default", "auto", ""):
            exchanges = _first_exchanges()
            if not exchanges:
                raise UsageError(f"there is no recording at {recording_file()}; see KIT_REPLAY_FILE")
            model_id = exchanges[0].model
        self._ref = ModelRef.parse(model_id)
        self._inner = open_inner(self._ref, transport_for(how="strict"))

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        """Deltas of the recorded answer."""
        async with contextlib.aclosing(self._inner.stream(replace(request, model=self._ref))) as deltas:  # type: ignore[type-var]
            async for delta in deltas:
                yield delta

    def info(self, model_id: str) -> ModelInfo:
        """What is known of the recorded model."""
        return self._inner.info(self._ref.id)

    async def close(self) -> None:
        """Free what the inner provider holds."""
        await self._inner.close()
