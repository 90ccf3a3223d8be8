"""The recordings of this process: how far each was played, and which one answers."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kit_jupyter.errors import UsageError
from kit_jupyter.providers.replay.exchange import Exchange
from kit_jupyter.providers.replay.recording import Recording
from kit_jupyter.providers.replay.setting import NAMELESS, mode, recording_file, recording_files

__all__ = ["find", "first_exchanges", "readable", "recorded_model", "recording_of", "reset", "used_file"]

_recordings: dict[Path, Recording] = {}
_used: Path | None = None
_log = logging.getLogger("kit_jupyter.replay")


def recording_of(path: Path | None = None) -> Recording:
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


def find(path: str, body: Any) -> Exchange | None:
    """The next answer to this request, of the file that answered last or else of the first that has one."""
    global _used
    files = sorted(recording_files(), key=lambda file: file.absolute() != _used)
    for kept in readable(files):
        found = kept.find(path, body)
        if found is not None:
            if _used != kept.path.absolute():
                _used = kept.path.absolute()
                _log.info("answers come from the recording %s", kept.path)
            return found
    return None


def readable(files: Sequence[Path]) -> Iterator[Recording]:
    """The recordings of these files; where all of a folder are tried, what is none is passed over."""
    for file in files:
        try:
            yield recording_of(file)
        except UsageError as exc:
            if len(files) == 1 or file == NAMELESS:
                raise
            _log.info("passed over: %s", exc)


def recorded_model(environ: Mapping[str, str] | None = None) -> str:
    """The first model of the recording, when replay is on and there is one; else empty."""
    if mode(environ) not in ("auto", "strict"):
        return ""
    exchanges = first_exchanges(environ)
    return exchanges[0].model if exchanges else ""


def first_exchanges(environ: Mapping[str, str] | None = None) -> tuple[Exchange, ...]:
    """Those of the first recording that has any."""
    return next((kept.exchanges for kept in readable(recording_files(environ)) if kept.exchanges), ())
