"""A session: an append-only tree of entries in a JSONL file, or in memory.

Theory of operation
-------------------
Line 1 is a header; each later line is one entry with an id and a parent. New entries attach to the
*leaf*; moving the leaf (a ``leaf`` entry) makes a branch, and nothing is ever rewritten. What a model
is sent is the walk from leaf to root, turned round; a ``compaction`` entry on the way stands for all
that lies before its first kept entry.

A file is opened from its end: lines are read backwards until the context is complete, the rest only
when something asks for it. A torn last line was never acknowledged: it is reported and passed over.
Unknown entry types, and files of a newer minor version, are kept as they are. One process writes;
the lock file beside the session names it.

Sessions are used on the engine thread; reading from other threads gives consistent snapshots.
"""

from __future__ import annotations

import gc
import json
import os
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, Self, cast

from kit_jupyter.errors import SessionError
from kit_jupyter.messages import Assistant, Message, System, ToolResult, User, new_id, now, text_of
from kit_jupyter.prompt import PromptMessage

__all__ = ["Entry", "Session", "SessionInfo", "data_dir", "project_root", "sessions_dir"]

VERSION = 1
_BLOCK = 64 * 1024
_MOVES_LEAF = frozenset({"message", "compaction", "branch_summary", "leaf"})
_MESSAGE_TYPES = (User, System, Assistant, ToolResult)


# ---------------------------------------------------------------- places


def data_dir() -> Path:
    """Where sessions live: ``KIT_DATA_DIR``, else the user's data folder."""
    if own := os.environ.get("KIT_DATA_DIR"):
        return Path(own)
    import platformdirs

    return Path(platformdirs.user_data_dir("kit-jupyter", appauthor=False))


def project_root(cwd: Path | None = None) -> Path:
    """The folder a project is known by: the nearest upwards with ``.git`` or ``pyproject.toml``, else `cwd`."""
    here = (cwd or Path.cwd()).resolve()
    for folder in (here, *here.parents):
        if (folder / ".git").exists() or (folder / "pyproject.toml").exists():
            return folder
    return here


def sessions_dir(cwd: Path | None = None) -> Path:
    """The folder of a project's sessions."""
    root = project_root(cwd)
    digest = blake2b(str(root).encode("utf-8", "surrogateescape"), digest_size=4).hexdigest()
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", root.name) or "root"
    return data_dir() / "sessions" / f"{slug[:40]}-{digest}"


# ---------------------------------------------------------------- JSON


@cache
def _message_adapter() -> Any:
    from pydantic import Field, TypeAdapter

    return TypeAdapter(Annotated[User | System | Assistant | ToolResult, Field(discriminator="role")])


def encode_message(message: Message) -> bytes:
    """JSON of a message; facts that are None are left out."""
    return cast(bytes, _message_adapter().dump_json(message, exclude_none=True))


def decode_message(value: Any) -> Message:
    """The message that `encode_message` wrote, from its JSON value."""
    return cast(Message, _message_adapter().validate_python(value))


def message_schema() -> dict[str, Any]:
    """JSON schema of stored messages."""
    return cast(dict[str, Any], _message_adapter().json_schema())


class Entry:
    """One node of the tree; a message entry bears the id of its message.

    Attributes
    ----------
    id, parent : str, str or None
    type : str
        ``message``, ``compaction``, ``branch_summary``, ``leaf``, ``label``, ``name``, ``custom``, or an unknown one.
    body : dict
        The other fields of the line.
    """

    __slots__ = ("_message", "body", "id", "parent", "time", "type")

    def __init__(
        self,
        type: str,
        id: str,
        parent: str | None,
        time: str,
        body: dict[str, Any],
        message: Message | None = None,
    ) -> None:
        self.type = type
        self.id = id
        self.parent = parent
        self.time = time
        self.body = body
        self._message = message

    @property
    def message(self) -> Message | None:
        """The message of a ``message``, ``compaction`` or ``branch_summary`` entry; decoded on first touch."""
        if self._message is None and "message" in self.body:
            self._message = decode_message(self.body["message"])
        return self._message

    def to_line(self) -> bytes:
        """The line as it is stored, with its line end."""
        from pydantic_core import to_json

        head = to_json({"type": self.type, "id": self.id, "parent": self.parent, "time": self.time})
        if self._message is not None:
            rest = to_json({k: v for k, v in self.body.items() if k != "message"})
            head = head[:-1] + (b"," + rest[1:-1] if len(rest) > 2 else b"")
            return head + b',"message":' + encode_message(self._message) + b"}\n"
        rest = to_json(self.body)
        return head[:-1] + (b"," + rest[1:] if len(rest) > 2 else b"}") + b"\n"

    def __repr__(self) -> str:
        return f"<Entry {self.type} {self.id}>"


def _parse(line: bytes) -> Entry:
    from pydantic_core import from_json

    value = from_json(line)
    head = (value.pop("type"), value.pop("id"), value.pop("parent", None), value.pop("time", ""))
    if not isinstance(head[0], str) or not isinstance(head[1], str):
        raise ValueError("type and id must be text")
    return Entry(*head, value)


# ---------------------------------------------------------------- the file


class _File:
    """A session's file: read backwards, appended to under a lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None
        self._lock_fd: int | None = None
        self._owner = 0
        self._torn = False

    # -- reading

    def read_header(self) -> dict[str, Any]:
        try:
            with self.path.open("rb") as file:
                first = file.readline(1 << 20)
        except IsADirectoryError as exc:
            raise SessionError(f"{self.path} is a folder, not a session file", path=self.path) from exc
        except OSError as exc:
            raise SessionError(f"cannot read {self.path}: {exc.strerror or exc}", path=self.path) from exc
        try:
            header = json.loads(first)
        except ValueError as exc:
            raise SessionError(
                f"{self.path.name}, line 1: not a session file (the first line is not its header)",
                path=self.path,
                line=1,
            ) from exc
        if not isinstance(header, dict) or header.get("type") != "session":
            raise SessionError(f"{self.path.name}, line 1: not a session file", path=self.path, line=1)
        version = str(header.get("version", ""))
        if version.split(".")[0] != str(VERSION):
            raise SessionError(
                f"{self.path.name} is of version {version}, this kit-jupyter reads {VERSION}; upgrade to open it",
                path=self.path,
                line=1,
            )
        return header

    def lines_backwards(self, before: int | None = None) -> Iterator[tuple[int, bytes, bool]]:
        """``(offset, line, complete)`` from the end to the start."""
        with self.path.open("rb") as file:
            end = file.seek(0, os.SEEK_END) if before is None else before
            tail = b""
            position = end
            complete_end = True
            first = True
            while position > 0:
                start = max(0, position - _BLOCK)
                file.seek(start)
                block = file.read(position - start) + tail
                if first:
                    complete_end = block.endswith(b"\n")
                    first = False
                pieces = block.split(b"\n")
                tail = pieces[0]
                offset = start + len(block)
                for i in range(len(pieces) - 1, 0, -1):
                    offset -= len(pieces[i])
                    if pieces[i]:
                        yield offset, pieces[i], complete_end
                        complete_end = True
                    else:
                        complete_end = True
                    offset -= 1
                position = start
            if tail:
                yield 0, tail, complete_end

    # -- writing

    def acquire(self) -> None:
        """Become the one writer.

        Raises
        ------
        SessionError
            Names the process that holds the session.
        """
        if self._fd is not None:
            if self._owner != os.getpid():
                raise SessionError(
                    f"{self.path.name} belongs to process {self._owner}, this one was forked from it; "
                    "make a Kit of its own here, or kit.fork() there",
                    path=self.path,
                )
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock_path = self.path.with_suffix(self.path.suffix + ".lock")
            lock = os.open(lock_path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as exc:
            raise SessionError(
                f"cannot write {self.path}: {exc.strerror or exc}; set KIT_DATA_DIR or use session='memory'",
                path=self.path,
            ) from exc
        if not _try_lock(lock):
            holder = os.read(lock, 32).decode("ascii", "replace").strip() or "unknown"
            os.close(lock)
            raise SessionError(
                f"{self.path.name} is open in process {holder}; close it there, or fork the session to go on here",
                path=self.path,
            )
        try:
            os.ftruncate(lock, 0)
            os.pwrite(lock, str(os.getpid()).encode(), 0)
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            size = os.fstat(self._fd).st_size
            self._torn = size > 0 and os.pread(self._fd, 1, size - 1) != b"\n"
        except OSError as exc:
            os.close(lock)
            raise SessionError(f"cannot write {self.path}: {exc.strerror or exc}", path=self.path) from exc
        self._lock_fd, self._owner = lock, os.getpid()

    def append(self, line: bytes) -> None:
        """One write; on failure nothing of it stays."""
        self.acquire()
        assert self._fd is not None
        if self._torn:  # end the torn line, so that it cannot swallow the next one
            line = b"\n" + line
        size = os.fstat(self._fd).st_size
        try:
            written = os.write(self._fd, line)
            while written < len(line):
                written += os.write(self._fd, line[written:])
        except OSError as exc:
            try:
                os.ftruncate(self._fd, size)  # bytes that were never acknowledged
            except OSError:
                self._torn = True
            raise SessionError(
                f"cannot write to {self.path}: {exc.strerror or exc}; free space or move KIT_DATA_DIR, then go on",
                path=self.path,
            ) from exc
        self._torn = False

    def sync(self) -> None:
        if self._fd is not None and self._owner == os.getpid():
            try:
                os.fsync(self._fd)
            except OSError as exc:
                raise SessionError(f"cannot sync {self.path}: {exc.strerror or exc}", path=self.path) from exc

    def release(self) -> None:
        fd, lock, self._fd, self._lock_fd = self._fd, self._lock_fd, None, None
        if fd is not None:
            os.close(fd)
        if lock is not None:
            if self._owner == os.getpid():
                try:
                    self.path.with_suffix(self.path.suffix + ".lock").unlink()
                except OSError:
                    pass
            os.close(lock)


def _try_lock(fd: int) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
        except OSError:
            return False
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: better a session than none
        return True
    return True


# ---------------------------------------------------------------- the session


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session as it is listed."""

    id: str
    path: Path
    name: str
    created: str
    modified: float
    title: str
    parent: str | None

    def __str__(self) -> str:
        return f"{self.id}  {self.created[:16].replace('T', ' ')}  {self.name or self.title or '(empty)'}"


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

    def __init__(self, header: dict[str, Any], file: _File | None) -> None:
        self.header = header
        self.id: str = header["id"]
        self.warnings: list[str] = []
        self._file = file
        self._lock = threading.RLock()
        self._entries: dict[str, Entry] = {}  # all of them in order; while not whole, those read so far, newest first
        self._fresh: dict[str, Entry] = {}  # while not whole: those written since, oldest first
        self._unwritten_header = file is not None and not file.path.exists()
        self._is_whole = file is None or self._unwritten_header
        self._backwards: Iterator[tuple[int, bytes, bool]] | None = None
        self._leaf: str | None = None
        self._context: list[Message] | None = []
        self._snapshot: tuple[Message, ...] | None = ()

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
        return cls(header, _File(folder / f"{stamp}_{header['id']}.jsonl"))

    @staticmethod
    def _new_header(parent: str | None) -> dict[str, Any]:
        header = {
            "type": "session",
            "version": VERSION,
            "id": new_id("ses"),
            "time": now().created,
            "cwd": os.getcwd(),
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
        if not path.exists():
            matches = [i for i in cls.listing() if i.id == str(which) or i.name == str(which)]
            matches = matches or [i for i in cls.listing() if i.id.startswith(str(which))]
            if len(matches) != 1:
                many = "is not unique" if matches else "is not here"
                raise SessionError(f"session {str(which)!r} {many}; Session.listing() shows those of this project")
            path = matches[0].path
        file = _File(path)
        session = cls(file.read_header(), file)
        session._context = None
        session._backwards = file.lines_backwards()
        session._find_leaf()
        return session

    @classmethod
    def listing(cls, folder: Path | None = None) -> list[SessionInfo]:
        """The sessions of this project, newest first; unreadable files are left out."""
        folder = folder if folder is not None else sessions_dir()
        found = []
        for path in folder.glob("*.jsonl"):
            try:
                found.append(cls._info(path))
            except (SessionError, OSError):
                continue
        return sorted(found, key=lambda info: info.modified, reverse=True)

    @classmethod
    def _info(cls, path: Path) -> SessionInfo:
        header = _File(path).read_header()
        name = title = ""
        with path.open("rb") as file:
            for line in file:
                if not title and b'"role":"user"' in line:
                    try:
                        message = _parse(line).message
                    except Exception:  # a damaged line must not hide the session
                        continue
                    if message is not None and getattr(message, "source", None) is None:
                        title = " ".join(text_of(message.parts).split())[:80]
                elif line.startswith(b'{"type":"name"'):
                    try:
                        name = json.loads(line).get("name", "")
                    except ValueError:
                        continue
        return SessionInfo(
            header["id"], path, name, header.get("time", ""), path.stat().st_mtime, title, header.get("parent")
        )

    # -- reading the file

    @property
    def path(self) -> Path | None:
        """The file, or None in memory."""
        return self._file.path if self._file else None

    def _read_one(self) -> Entry | None:
        """One more entry from the end of the file; None at its start."""
        assert self._backwards is not None
        assert self._file is not None
        for offset, line, complete in self._backwards:
            if offset == 0:
                break  # the header
            try:
                return _parse(line)
            except Exception as exc:
                if not complete:
                    self.warnings.append(
                        f"{self._file.path.name}: the last line is torn and was left out; nothing acknowledged is lost"
                    )
                else:
                    self.warnings.append(
                        f"{self._file.path.name}: a line at byte {offset} cannot be read ({exc}), left out"
                    )
        self._backwards = None
        return None

    def _find_leaf(self) -> None:
        """Read back to the entry that says where the leaf is."""
        held: list[Entry] = []
        while (entry := self._read_one()) is not None:
            held.append(entry)
            if entry.type in _MOVES_LEAF:
                self._leaf = entry.body.get("target") if entry.type == "leaf" else entry.id
                break
        else:
            self._is_whole = True
            held.reverse()
        self._entries = {e.id: e for e in held}

    def _get(self, entry_id: str) -> Entry:
        entry = self._entries.get(entry_id) or self._fresh.get(entry_id)
        while entry is None and not self._is_whole:
            older = self._read_one()
            if older is None:
                self._turn_whole()
                break
            self._entries[older.id] = older
            if older.id == entry_id:
                entry = older
        if entry is None:
            where = f"{self._file.path.name}: " if self._file else ""
            raise SessionError(f"{where}there is no entry {entry_id!r}", path=self.path)
        return entry

    def _turn_whole(self) -> None:
        self._is_whole = True
        self._entries = {**dict(reversed(self._entries.items())), **self._fresh}
        self._fresh = {}

    def _load_all(self) -> None:
        if self._is_whole:
            return
        was_enabled = gc.isenabled()
        gc.disable()  # nothing here is garbage; a collection per generation would double the time
        try:
            while (entry := self._read_one()) is not None:
                self._entries.setdefault(entry.id, entry)
        finally:
            if was_enabled:
                gc.enable()
        self._turn_whole()

    # -- reading the tree

    @property
    def entries(self) -> Sequence[Entry]:
        """All entries, oldest first."""
        with self._lock:
            self._load_all()
            return tuple(self._entries.values())

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
            return self._get(entry_id)

    def path_to(self, entry_id: str | None) -> list[Entry]:
        """Entries from the root to `entry_id`, both included."""
        with self._lock:
            path: list[Entry] = []
            seen: set[str] = set()
            while entry_id is not None:
                if entry_id in seen:
                    raise SessionError(f"entries form a ring at {entry_id!r}", path=self.path)
                seen.add(entry_id)
                entry = self._get(entry_id)
                path.append(entry)
                entry_id = entry.parent
            path.reverse()
            return path

    def branch(self) -> list[Entry]:
        """Entries from the root to the leaf."""
        return self.path_to(self._leaf)

    def messages(self) -> tuple[Message, ...]:
        """The context of the next request: root to leaf, honouring the last compaction."""
        with self._lock:
            if self._context is None:
                self._context, self._snapshot = self._compute_context(), None
            if self._snapshot is None:
                self._snapshot = tuple(self._context)
            return self._snapshot

    def _compute_context(self) -> list[Message]:
        found: list[Message] = []
        keep_from: str | None = None
        summary: Message | None = None
        entry_id = self._leaf
        while entry_id is not None:
            entry = self._get(entry_id)
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

    def transcript(self) -> tuple[Message, ...]:
        """What a person sees of this branch: every message, summaries in their places."""
        return tuple(e.message for e in self.branch() if e.message is not None)

    def children(self, entry_id: str | None) -> list[Entry]:
        """Entries whose parent is `entry_id`, oldest first."""
        return [e for e in self.entries if e.parent == entry_id and e.type != "leaf"]

    def turn_entries(self, turn_id: str) -> list[Entry]:
        """The entries of one turn on the present branch."""
        return [e for e in self.branch() if e.message is not None and e.message.turn_id == turn_id]

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
        found = {str(e.body["target"]): str(e.body.get("label", "")) for e in self.entries if e.type == "label"}
        return {target: label for target, label in found.items() if label}

    # -- writing

    def _write(self, entry: Entry) -> Entry:
        with self._lock:
            if self._file is not None:
                line = entry.to_line()
                if self._unwritten_header:
                    from pydantic_core import to_json

                    line = to_json(self.header) + b"\n" + line
                self._file.append(line)
                self._unwritten_header = False
            (self._entries if self._is_whole else self._fresh)[entry.id] = entry
            return entry

    def append(self, message: Message) -> Entry:
        """Store a message at the leaf.

        Raises
        ------
        SessionError
            If the disk refuses, or another process holds the file; nothing is stored then.
        TypeError
            For a `PromptMessage`, which is never stored.
        """
        if isinstance(message, PromptMessage) or not isinstance(message, _MESSAGE_TYPES):
            raise TypeError(f"a session stores User, System, Assistant and ToolResult, not {type(message).__name__}")
        with self._lock:
            entry = self._write(Entry("message", message.id, self._leaf, message.time.created, {}, message))
            self._leaf = entry.id
            if self._context is not None:
                self._context.append(message)
                self._snapshot = None
            return entry

    def append_compaction(self, summary: Message, *, first_kept: str | None, **facts: Any) -> Entry:
        """Store a summary that stands for all before `first_kept` (an entry of this branch; None keeps nothing)."""
        body = {"first_kept": first_kept, **facts}
        return self._append_special("compaction", summary, body)

    def append_branch_summary(self, summary: Message, *, from_id: str) -> Entry:
        """Store what another branch explored."""
        return self._append_special("branch_summary", summary, {"from": from_id})

    def _append_special(self, type: str, message: Message, body: dict[str, Any]) -> Entry:
        with self._lock:
            entry = self._write(Entry(type, message.id, self._leaf, message.time.created, body, message))
            self._leaf = entry.id
            self._context = None
            return entry

    def append_custom(self, kind: str, content: Any) -> Entry:
        """Store an extension's own record; it is not sent and does not move the leaf."""
        return self._write(
            Entry("custom", new_id("ent"), self._leaf, now().created, {"kind": kind, "content": content})
        )

    def custom(self, kind: str) -> list[Any]:
        """Contents of the records of `kind`, oldest first."""
        return [e.body.get("content") for e in self.entries if e.type == "custom" and e.body.get("kind") == kind]

    def move_leaf(self, entry_id: str | None) -> None:
        """Go to an older entry, or to the root with None: what comes next is a branch of it."""
        with self._lock:
            if entry_id is not None:
                self._get(entry_id)
            if entry_id == self._leaf:
                return
            self._write(Entry("leaf", new_id("ent"), self._leaf, now().created, {"target": entry_id}))
            self._leaf = entry_id
            self._context = None

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
        for entry in path:
            new._write(Entry(entry.type, entry.id, entry.parent, entry.time, dict(entry.body), entry._message))
        new._leaf = path[-1].id if path else None
        new._context = None
        return new

    def delete(self) -> None:
        """Remove the file."""
        if self._file is not None:
            self._file.acquire()
            self._file.path.unlink(missing_ok=True)
            self._file.release()

    @classmethod
    def import_from(cls, path: str | os.PathLike[str], folder: Path | None = None) -> Session:
        """Copy a session file from elsewhere into this project's sessions, under a new id.

        Raises
        ------
        SessionError
            If the file is not a session.
        """
        source = cls.open(path)
        new = cls.create(folder, parent=source.id)
        for entry in source.entries:
            new._write(Entry(entry.type, entry.id, entry.parent, entry.time, dict(entry.body), entry._message))
        new._leaf = source._leaf
        new._context = None
        new.warnings = list(source.warnings)
        return new

    def tree(self) -> str:
        """The tree as text, the present leaf marked."""
        entries = self.entries
        kids: dict[str | None, list[Entry]] = {}
        for entry in entries:
            if entry.message is not None or entry.type == "compaction":
                kids.setdefault(entry.parent, []).append(entry)
        on_branch = {e.id for e in self.branch()}
        labels = self.labels
        lines: list[str] = []
        stack: list[tuple[Entry, int]] = [(e, 0) for e in reversed(kids.get(None, []))]
        while stack:
            entry, depth = stack.pop()
            below = kids.get(entry.id, [])
            message = entry.message
            role = "summary" if entry.type == "compaction" else getattr(message, "role", entry.type)
            words = " ".join(text_of(message.parts).split())[:60] if message is not None else ""
            mark = "*" if entry.id == self._leaf else ("|" if entry.id in on_branch else " ")
            label = f" [{labels[entry.id]}]" if entry.id in labels else ""
            lines.append(f"{mark} {'  ' * depth}{role}: {words}{label}  ({entry.id})")
            deeper = depth + (1 if len(below) > 1 else 0)
            stack.extend((child, deeper) for child in reversed(below))
        return "\n".join(lines) or "(empty)"

    def __repr__(self) -> str:
        where = str(self.path.name) if self.path else "in memory"
        return f"<Session {self.id} {where}>"
