"""A session: an append-only tree of entries in a JSONL file, or in memory.

Theory of operation
-------------------
Line 1 is a header; each later line is one entry with an id and a parent. New entries attach to the
*leaf*; moving the leaf (a ``leaf`` entry) makes a branch, and nothing is ever rewritten. What a model
is sent is the walk from leaf to root, turned round; a ``compaction`` entry on the way stands for all
that lies before its first kept entry.

A file is opened from its end: lines are read backwards until the context is complete, the rest only
when something asks for it (`entries`). Unknown entry types, and files of a newer minor version, are kept
as they are. One process writes; the lock file beside the session names it.

Sessions are used on the engine thread; reading from other threads gives consistent snapshots.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from kit_jupyter.entries import Entries
from kit_jupyter.entry import (
    MESSAGE_TYPES,
    Entry,
    decode_line,
    decode_message,
    encode_message,
    message_schema,
    parse_line,
)
from kit_jupyter.errors import SessionError, UsageError
from kit_jupyter.glance import Messages, clipped, glance, who
from kit_jupyter.messages import CellRef, Message, ToolResult, User, new_id, now
from kit_jupyter.places import data_dir, project_root, sessions_dir, storable, working_dir
from kit_jupyter.session_file import VERSION, SessionFile
from kit_jupyter.session_list import SessionInfo, find_session, list_sessions

__all__ = [
    "Entry",
    "Session",
    "SessionInfo",
    "data_dir",
    "decode_message",
    "encode_message",
    "message_schema",
    "project_root",
    "sessions_dir",
]

SHORT_ID = 6  # letters, at least: of an id's end that `Session.tree` shows


class Session:
    """One session. Make it with `memory`, `create` or `open`.

    Attributes
    ----------
    id : str
    path : Path or None
        None in memory.
    warnings : list of str
        What was odd about the file, for example a torn last line.
    """

    def __init__(self, header: dict[str, Any], file: SessionFile | None) -> None:
        self.header = header
        self.id: str = header["id"]
        self.warnings: list[str] = []
        self._file = file
        self._lock = threading.RLock()
        self._entries = Entries(file, self.warnings)
        self._unwritten_header = file is not None and not file.path.exists()
        self._leaf: str | None = None
        self._context: list[Message] | None = []
        self._snapshot: Messages | None = Messages()
        self._cells: dict[tuple[str, str], str] | None = None  # of this branch: cell to the first turn it made

    # -- making

    @classmethod
    def memory(cls) -> Self:
        """A session that no disk sees."""
        return cls(cls._new_header(None), None)

    @classmethod
    def create(cls, folder: Path | None = None, *, parent: str | None = None, task: str = "") -> Self:
        """A new session of this project; its file appears with the first entry."""
        header = cls._new_header(parent)
        if task:
            header["task"] = task
        folder = folder if folder is not None else sessions_dir()
        stamp = header["time"][:19].replace(":", "").replace("-", "")
        return cls(header, SessionFile(folder / f"{stamp}_{header['id']}.jsonl"))

    @staticmethod
    def _new_header(parent: str | None) -> dict[str, Any]:
        header = {
            "type": "session",
            "version": VERSION,
            "id": new_id("ses"),
            "time": now().created,
            "cwd": storable(working_dir()),
        }
        if parent:
            header["parent"] = parent
        return header

    @classmethod
    def open(cls, which: str | os.PathLike[str]) -> Self:
        """Open a session by path, or by id, name or unique beginning of an id among this project's sessions.

        Raises
        ------
        SessionError
            If there is none, or the file is not a session.
        """
        path = Path(which)
        try:
            is_file, is_folder = path.is_file(), path.is_dir() and bool(str(which))
        except (OSError, ValueError):  # too long, or a NUL in it
            is_file = is_folder = False
        if not is_file:
            try:
                path = find_session(str(which), cls.listing()).path
            except SessionError:
                if not is_folder:  # else its file says that it is one
                    raise
        file = SessionFile(path)
        session = cls(file.read_header(), file)
        session._context = None
        session._leaf = session._entries.read_to_leaf()
        return session

    @classmethod
    def listing(cls, folder: Path | None = None, *, everywhere: bool = False) -> list[SessionInfo]:
        """The sessions of this project, or those of all projects, newest first; unreadable files are left out."""
        return list_sessions(folder, everywhere=everywhere)

    @property
    def path(self) -> Path | None:
        """The file, or None in memory."""
        return self._file.path if self._file else None

    def load_typed(self) -> Sequence[Entry]:
        """All entries, oldest first, every message decoded: for those who go through a whole session."""
        with self._lock:
            return self._entries.whole(decode_line)

    # -- reading the tree

    @property
    def entries(self) -> Sequence[Entry]:
        """All entries, oldest first."""
        with self._lock:
            return self._entries.whole()

    @property
    def leaf(self) -> str | None:
        """Where the next entry attaches; None at the root."""
        return self._leaf

    def get(self, entry_id: str) -> Entry:
        """The entry of that id.

        Raises
        ------
        SessionError
            If there is none.
        """
        with self._lock:
            return self._entries.get(entry_id)

    def full_id(self, entry_id: str) -> str:
        """The id of the entry of that id, or of the one whose id ends so, as `tree` shows it; else as it is."""
        with self._lock:
            known = [entry.id for entry in self.entries]
        fits = [one for one in known if one.endswith(entry_id)] if len(entry_id) >= SHORT_ID else []
        return fits[0] if len(fits) == 1 and entry_id not in known else entry_id

    def path_to(self, entry_id: str | None) -> list[Entry]:
        """Entries from the root to `entry_id`, both included."""
        with self._lock:
            path: list[Entry] = []
            seen: set[str] = set()
            while entry_id is not None:
                if entry_id in seen:
                    raise SessionError(f"entries form a ring at {entry_id!r}", path=self.path)
                seen.add(entry_id)
                entry = self._entries.get(entry_id)
                path.append(entry)
                entry_id = entry.parent
            path.reverse()
            return path

    def branch(self) -> list[Entry]:
        """Entries from the root to the leaf."""
        return self.path_to(self._leaf)

    def messages(self) -> Messages:
        """The context of the next request: root to leaf, honouring the last compaction."""
        with self._lock:
            if self._context is None:
                self._context, self._snapshot = self._compute_context(), None
            if self._snapshot is None:
                self._snapshot = Messages(self._context)
            return self._snapshot

    def _compute_context(self) -> list[Message]:
        found: list[Message] = []
        seen: set[str] = set()
        keep_from: str | None = None
        summary: Message | None = None
        entry_id = self._leaf
        while entry_id is not None:
            if entry_id in seen:
                raise SessionError(f"entries form a ring at {entry_id!r}", path=self.path)
            seen.add(entry_id)
            entry = self._entries.get(entry_id, decode_line)
            if entry.type == "compaction" and summary is None:
                summary, keep_from = entry.message, entry.body.get("first_kept")
                if keep_from is None:
                    break
            elif entry.type != "compaction" and entry.message is not None:
                found.append(entry.message)
            if summary is not None and entry.id == keep_from:
                break
            entry_id = entry.parent
        if summary is not None:
            found.append(summary)
        found.reverse()
        return found

    def transcript(self) -> Messages:
        """What a person sees of this branch: every message, summaries in their places."""
        return Messages(e.message for e in self.branch() if e.message is not None)

    def children(self, entry_id: str | None) -> list[Entry]:
        """Entries whose parent is `entry_id`, oldest first."""
        return [e for e in self.entries if e.parent == entry_id and e.type != "leaf"]

    def turn_entries(self, turn_id: str) -> list[Entry]:
        """The entries of one turn on the present branch."""
        return [e for e in self.branch() if e.fact("turn_id") == turn_id and turn_id]

    def turn_of_cell(self, cell: CellRef) -> str:
        """The first turn on the present branch that this cell made; empty when there is none."""
        with self._lock:
            if self._cells is None:
                self._cells = {}
                for entry in self.branch():
                    self._note_cell(self._cells, entry)
            return self._cells.get((cell.notebook, cell.cell_id), "")

    @staticmethod
    def _note_cell(cells: dict[tuple[str, str], str], entry: Entry) -> None:
        cell_id = entry.fact("request", "cell", "cell_id")
        if cell_id is not None:
            key = (str(entry.fact("request", "cell", "notebook") or ""), str(cell_id))
            cells.setdefault(key, str(entry.fact("turn_id") or ""))

    def last_request(self) -> User | None:
        """The last message of the present branch that says how it was asked: model, agent, tools."""
        with self._lock:
            entry_id, seen = self._leaf, set[str]()
            while entry_id is not None and entry_id not in seen:  # a ring is told of where messages are read
                seen.add(entry_id)
                entry = self._entries.get(entry_id)
                if entry.fact("role") == "user" and entry.fact("request") is not None:
                    message = entry.message
                    return message if isinstance(message, User) else None
                entry_id = entry.parent
            return None

    @property
    def name(self) -> str:
        """The name a person gave, else empty."""
        for entry in reversed(self.entries):
            if entry.type == "name":
                return str(entry.body.get("name", ""))
        return ""

    @property
    def labels(self) -> dict[str, str]:
        """Entry id to label."""
        found = {str(e.body.get("target")): str(e.body.get("label", "")) for e in self.entries if e.type == "label"}
        return {target: label for target, label in found.items() if label}

    # -- writing

    def _write(self, *entries: Entry) -> None:
        with self._lock:
            if self._file is not None:
                self._write_lines(b"".join([entry.to_line() for entry in entries]))
            for entry in entries:
                self._entries.add(entry)

    def _write_lines(self, lines: bytes) -> None:
        assert self._file is not None
        if self._unwritten_header:
            from pydantic_core import to_json

            self._file.create(to_json(self.header) + b"\n" + lines)
            self._unwritten_header = False
        elif self._file.append(lines):
            self.warnings.append(f"{self._file.path} had been removed; it was written again, whole")

    def append(self, message: Message) -> Entry:
        """Store a message at the leaf.

        Raises
        ------
        SessionError
            If the disk refuses, or another process holds the file; nothing is stored then.
        TypeError
            For a `PromptMessage`, which is never stored, and for one that could not be read again.
        UsageError
            If it holds a message of that id.
        """
        if not isinstance(message, MESSAGE_TYPES):
            raise TypeError(f"a session stores User, System, Assistant and ToolResult, not {type(message).__name__}")
        with self._lock:
            entry = Entry("message", message.id, self._leaf, message.time.created, {}, message)
            self._refuse_repeated(entry.id)
            if self._file is not None:
                self._write_lines(entry.checked_line())
            self._entries.add(entry)
            self._leaf = entry.id
            if self._cells is not None:
                self._note_cell(self._cells, entry)
            if self._context is not None:
                self._context.append(message)
                self._snapshot = None
            return entry

    def _refuse_repeated(self, entry_id: str) -> None:
        if entry_id in self._entries:
            raise UsageError(f"the session holds a message {entry_id!r}; give each one an id of its own: new_id()")

    def append_compaction(self, summary: Message, *, first_kept: str | None, **facts: Any) -> Entry:
        """Store a summary that stands for all before `first_kept` (an entry of this branch; None keeps nothing)."""
        body = {"first_kept": first_kept, **facts}
        return self._append_special("compaction", summary, body)

    def append_branch_summary(self, summary: Message, *, from_id: str) -> Entry:
        """Store what another branch explored."""
        return self._append_special("branch_summary", summary, {"from": from_id})

    def _append_special(self, type: str, message: Message, body: dict[str, Any]) -> Entry:
        with self._lock:
            self._refuse_repeated(message.id)
            entry = Entry(type, message.id, self._leaf, message.time.created, body, message)
            self._write(entry)
            self._leaf = entry.id
            self._context = None
            return entry

    def append_custom(self, kind: str, content: Any) -> Entry:
        """Store an extension's own record; it is not sent and does not move the leaf."""
        entry = Entry("custom", new_id("ent"), self._leaf, now().created, {"kind": kind, "content": content})
        self._write(entry)
        return entry

    def custom(self, kind: str) -> list[Any]:
        """Contents of the records of `kind`, oldest first."""
        return [e.body.get("content") for e in self.entries if e.type == "custom" and e.body.get("kind") == kind]

    def move_leaf(self, entry_id: str | None) -> None:
        """Go to an older entry, or to the root with None: what comes next is a branch of it."""
        with self._lock:
            if entry_id is not None:
                self._entries.get(entry_id)
            if entry_id == self._leaf:
                return
            self._write(Entry("leaf", new_id("ent"), self._leaf, now().created, {"target": entry_id}))
            self._leaf = entry_id
            self._context = self._cells = None

    def set_name(self, name: str) -> None:
        """Give the session a name."""
        self._write(Entry("name", new_id("ent"), None, now().created, {"name": name}))

    def set_label(self, entry_id: str, label: str) -> None:
        """Label an entry; an empty label takes it away."""
        self.get(entry_id)
        self._write(Entry("label", new_id("ent"), None, now().created, {"target": entry_id, "label": label}))

    def sync(self) -> None:
        """Make sure that the disk has it."""
        if self._file is not None:
            self._file.sync()

    async def sync_soon(self, *, within_seconds: float = 0.0) -> None:
        """As `sync`, on a thread: a disk may take its time, and other turns go on meanwhile.

        Parameters
        ----------
        within_seconds : float
            Nothing is done when the last time is not longer ago.
        """
        if self._file is not None and self._file.is_due(within_seconds):
            await asyncio.to_thread(self._file.sync)

    def check_free(self) -> None:
        """Look whether it can be gone on with: that nobody else writes to its file.

        Raises
        ------
        SessionError
            Names the process that holds it.
        """
        if self._file is not None:
            self._file.check_free()

    def close(self) -> None:
        """Let others write; this object can still be read, and takes the file again when it must write."""
        if self._file is not None:
            self._file.release()

    # -- whole sessions

    def fork(self, entry_id: str | None = None) -> Session:
        """A new session from the path to `entry_id` (default: the leaf), linked to this one.

        Raises
        ------
        SessionError
            If there is no such entry.
        """
        path = self.path_to(entry_id if entry_id is not None else self._leaf)
        new = Session.memory() if self._file is None else Session.create(self._file.path.parent, parent=self.id)
        new.header["parent"] = self.id
        kept = {entry.id for entry in path}
        labels = [e for e in self.entries if e.type == "label" and e.body.get("target") in kept]
        new._take_over([*path, *labels], path[-1].id if path else None)
        return new

    def _take_over(self, entries: Sequence[Entry], leaf: str | None) -> None:
        if entries:
            self._write(*(entry.copy for entry in entries))
        self._leaf = leaf
        self._context = self._cells = None

    def delete(self) -> None:
        """Remove the file."""
        if self._file is not None:
            self._file.remove()

    @classmethod
    def import_from(cls, path: str | os.PathLike[str], folder: Path | None = None) -> Session:
        """Copy a session from elsewhere into this project's sessions, under a new id.

        Parameters
        ----------
        path : str or path
            A session file, or a notebook that a session was exported to.

        Raises
        ------
        SessionError
            If the file holds no session.
        """
        if str(path).endswith(".ipynb"):
            entries, parent, leaf = _entries_in_notebook(Path(path))
            warnings: list[str] = []
        else:
            source = cls.open(path)
            entries, parent, leaf, warnings = source.entries, source.id, source.leaf, source.warnings
        new = cls.create(folder, parent=parent)
        new._take_over(entries, leaf)
        new.warnings.extend(warnings)
        return new

    def tree(self) -> str:
        """The tree as text, the present leaf marked; the short ids in brackets are taken wherever an entry is named."""
        entries = self.entries
        kids: dict[str | None, list[Entry]] = {}
        for entry in entries:
            if entry.message is not None or entry.type == "compaction":
                kids.setdefault(entry.parent, []).append(entry)
        on_branch = {e.id for e in self.branch()}
        labels = self.labels
        short = _short_ids([entry.id for entry in entries])
        lines: list[str] = []
        stack: list[tuple[Entry, int]] = [(e, 0) for e in reversed(kids.get(None, []))]
        while stack:
            entry, depth = stack.pop()
            below = kids.get(entry.id, [])
            message = entry.message
            said = "summary: (empty)"
            if message is not None:
                said = f"{'summary' if entry.type == 'compaction' else who(message)}: {glance(message)}"
            mark = "*" if entry.id == self._leaf else ("|" if entry.id in on_branch else " ")
            label = f" [{clipped(labels[entry.id], 80)}]" if entry.id in labels else ""
            lines.append(f"{mark} {'  ' * depth}{said}{label}  ({short[entry.id]})")
            if handed := _sub_agent_of(message):
                lines.append(f"  {'  ' * (depth + 1)}sub-agent {handed}")
            deeper = depth + (1 if len(below) > 1 else 0)
            stack.extend((child, deeper) for child in reversed(below))
        return "\n".join(lines) or "(empty)"

    def __repr__(self) -> str:
        where = str(self.path.name) if self.path else "in memory"
        return f"<Session {self.id} {where}>"


def _short_ids(ids: Sequence[str]) -> dict[str, str]:
    """The shortest endings that tell all of them apart."""
    for length in range(SHORT_ID, 30):
        short = {one: one[-length:] for one in ids}
        if len(set(short.values())) == len(ids):
            return short
    return {one: one for one in ids}


def _sub_agent_of(message: Message | None) -> str:
    """Persona and session of the sub-agent that answered a call; empty for other messages."""
    details = message.details if isinstance(message, ToolResult) else None
    child = (details or {}).get("sub_agent")
    return f"{child.get('persona', '')}: {child.get('session_id', '')}" if isinstance(child, dict) else ""


def _entries_in_notebook(path: Path) -> tuple[Sequence[Entry], str, str | None]:
    try:
        kept = json.loads(path.read_bytes())["metadata"]["kit_jupyter"]["session"]
        entries = [parse_line(json.dumps(value).encode()) for value in kept["entries"]]
        return entries, str(kept["header"]["id"]), kept["leaf"]
    except OSError as exc:
        raise SessionError(f"cannot read {path}: {exc.strerror or exc}", path=path) from exc
    except (ValueError, LookupError, TypeError, RecursionError) as exc:
        raise SessionError(
            f"{path.name} holds no session; export one with kit.export('ipynb') to have it there", path=path
        ) from exc
