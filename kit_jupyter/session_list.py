"""The sessions that are stored: listed, and found by what a person calls them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from kit_jupyter.entry import parse_line
from kit_jupyter.errors import SessionError
from kit_jupyter.glance import clipped
from kit_jupyter.messages import User, text_of
from kit_jupyter.places import data_dir, sessions_dir
from kit_jupyter.session_file import SessionFile

__all__ = ["SessionInfo", "find_session", "list_sessions"]


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session as it is listed.

    Attributes
    ----------
    name : str
        What a person called it, else empty.
    created, modified : str, float
        When it began (ISO 8601, UTC), and when its file was last written (seconds since the epoch).
    title : str
        The beginning of its first question.
    parent : str or None
        The session that it was forked from, or whose tool began it.
    notebook : str
        File name of the notebook whose cell asked first, else empty.
    """

    id: str
    path: Path
    name: str
    created: str
    modified: float
    title: str
    parent: str | None
    notebook: str = ""

    def __str__(self) -> str:
        origin = ", ".join(filter(None, (self.notebook, f"from {self.parent}" if self.parent else "")))
        said = self.name or self.title or "(empty)"
        return f"{self.id}  {self.created[:16].replace('T', ' ')}  {said}{f'  ({origin})' if origin else ''}"


def list_sessions(folder: Path | None = None, *, everywhere: bool = False) -> list[SessionInfo]:
    """The sessions of this project, or those of all projects, newest first; unreadable files are left out."""
    folder = folder if folder is not None else (data_dir() / "sessions" if everywhere else sessions_dir())
    found = []
    for path in folder.glob("*/*.jsonl" if everywhere else "*.jsonl"):
        try:
            found.append(_info(path))
        except (SessionError, OSError):  # no session, or gone meanwhile
            continue
    return sorted(found, key=lambda info: info.modified, reverse=True)


def _info(path: Path) -> SessionInfo:
    header = SessionFile(path).read_header()
    name = title = notebook = ""
    with path.open("rb") as file:
        for line in file:
            if not title and b'"role":"user"' in line:
                try:
                    message = parse_line(line).message
                except Exception:  # a damaged line must not hide the session
                    continue
                if isinstance(message, User) and message.source is None:
                    title = clipped(text_of(message.parts[:1]), 80)  # what is attached comes after
                    cell = message.request.cell if message.request is not None else None
                    notebook = cell.notebook if cell is not None else ""
            elif line.startswith(b'{"type":"name"'):
                try:
                    name = _text(json.loads(line).get("name"))
                except (ValueError, RecursionError):
                    continue
    parent = _text(header.get("parent")) or None
    return SessionInfo(
        header["id"], path, name, _text(header.get("time")), path.stat().st_mtime, title, parent, notebook
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def find_session(
    wanted: str,
    listing: Sequence[SessionInfo],
    *,
    others: Iterable[str] = (),
    where: str = "Session.listing(), or `kit-jupyter sessions` in a terminal, shows those of this project",
) -> SessionInfo:
    """The one that `wanted` names: its id, its name, or a beginning of its id that no other has.

    Parameters
    ----------
    others : iterable of str
        Names that the caller takes beside these, for "did you mean".
    where : str
        Where the list is, for who was not understood.

    Raises
    ------
    SessionError
        If none fits, or several; it names them, or the nearest.
    """
    fits = [info for info in listing if wanted in (info.id, info.name)]
    fits = fits or [info for info in listing if wanted and info.id.startswith(wanted)]
    if len(fits) == 1:
        return fits[0]
    said = f"session {wanted[:200]!r}"
    if fits:
        raise SessionError(f"{said} is not unique: {', '.join(info.id for info in fits[:5])}; {where}")
    known = [*others, *(info.name for info in listing if info.name), *(info.id for info in listing)]
    near = get_close_matches(wanted[:200], known, n=1)
    raise SessionError(f"{said} is not here; {f'did you mean {near[0]}? ' if near else ''}{where}")
