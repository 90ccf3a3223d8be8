"""A session's file: read backwards, appended to by one process at a time.

Theory of operation
-------------------
The file comes into being whole, header and first entry, under its own name (written beside it and
renamed), so that no reader ever meets half a header. Each later entry is one write at the end; one that
fails is cut off again. A file that is removed while we write to it is made again, with all of it: we still
hold its bytes, and a talk that goes on must not end on no disk at all. The writer holds an advisory lock
on a file beside the session, which names its process; a forked child never holds it.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kit_jupyter.errors import SessionError

__all__ = ["VERSION", "SessionFile"]

VERSION = 1
_BLOCK = 64 * 1024
LOOK_SECONDS = 0.02  # writes that follow each other this closely look once whether the file was removed


class SessionFile:
    """The file at `path`, which need not be there yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None
        self._lock_fd: int | None = None
        self._owner = 0
        self._torn = False
        self._size = 0  # nobody else writes while we do
        self._synced = -1  # as much of it is on the disk for sure
        self._synced_at = 0.0
        self._looked_at = -math.inf  # when its name was last seen to lead to it

    @property
    def lock_path(self) -> Path:
        """The file beside it that names the writer."""
        real = Path(os.path.realpath(self.path))  # by another name it is the same file
        return real.with_suffix(real.suffix + ".lock")

    # ------------------------------------------------------------ reading

    def read_header(self) -> dict[str, Any]:
        """The first line.

        Raises
        ------
        SessionError
            If this is no session file, or one of another major version.
        """
        try:
            with self.path.open("rb") as file:
                first = file.readline(1 << 20)
        except IsADirectoryError as exc:
            raise SessionError(f"{self.path} is a folder, not a session file", path=self.path) from exc
        except (OSError, ValueError) as exc:
            reason = getattr(exc, "strerror", None) or exc
            raise SessionError(f"cannot read {self.path}: {reason}", path=self.path) from exc
        try:
            header = json.loads(first)
        except (ValueError, RecursionError) as exc:
            raise self._no_session("the first line is not its header") from exc
        if not isinstance(header, dict) or header.get("type") != "session":
            raise self._no_session("the first line is not its header")
        version = str(header.get("version", ""))
        if version.split(".")[0] != str(VERSION):
            raise SessionError(
                f"{self.path.name} is of version {version or 'unknown'}, this kit-jupyter reads {VERSION}; "
                "upgrade to open it",
                path=self.path,
                line=1,
            )
        if not isinstance(header.get("id"), str) or not header["id"]:
            raise self._no_session("its header has no id")
        return header

    def _no_session(self, why: str) -> SessionError:
        return SessionError(f"{self.path.name}, line 1: not a session file ({why})", path=self.path, line=1)

    def lines_backwards(self) -> Iterator[tuple[int, bytes, bool]]:
        """``(offset, line, complete)`` from the end to the start; empty lines are passed over."""
        try:
            file = self.path.open("rb")
        except OSError as exc:
            raise SessionError(f"cannot read {self.path}: {exc.strerror or exc}", path=self.path) from exc
        with file:
            position = file.seek(0, os.SEEK_END)
            later: list[bytes] = []  # what is known of the line that is being read, its end first
            complete = False  # has a line end been seen behind it?
            block_size = _BLOCK
            while position > 0:
                start = max(0, position - block_size)
                file.seek(start)
                block = file.read(position - start)
                pieces = block.split(b"\n")
                # A line longer than a block is gathered piece by piece, in larger and larger blocks.
                block_size = _BLOCK if len(pieces) > 1 else min(block_size * 2, 1 << 26)
                offset = start + len(block)
                for piece in reversed(pieces[1:]):
                    offset -= len(piece)
                    line = piece
                    if later:
                        line = b"".join((piece, *reversed(later)))
                        later = []
                    if line:
                        yield offset, line, complete
                    complete = True
                    offset -= 1
                if pieces[0]:
                    later.append(pieces[0])
                position = start
            if later:
                yield 0, b"".join(reversed(later)), complete

    # ------------------------------------------------------------ writing

    def acquire(self) -> None:
        """Become the one writer.

        Raises
        ------
        SessionError
            Names the process that holds the session.
        """
        if self._lock_fd is not None:
            if self._owner != os.getpid():
                raise SessionError(
                    f"{self.path.name} belongs to process {self._owner}, this one was forked from it; "
                    "make a Kit of its own here, or kit.fork() there",
                    path=self.path,
                )
            return
        lock = self._lock()
        try:
            if self.path.exists():
                self._open()
        except OSError as exc:
            os.close(lock)
            raise self._cannot_write(exc) from exc
        self._lock_fd, self._owner = lock, os.getpid()

    def _lock(self) -> int:
        while True:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                lock = os.open(self.lock_path, os.O_RDWR | os.O_CREAT, 0o600)
            except OSError as exc:
                raise self._cannot_write(exc) from exc
            if not _try_lock(lock):
                held = self._held(lock)
                os.close(lock)
                raise held
            try:
                # Whoever held it before may have removed the name meanwhile: then this is a lock on nothing.
                if os.stat(self.lock_path).st_ino == os.fstat(lock).st_ino:
                    os.ftruncate(lock, 0)
                    os.write(lock, str(os.getpid()).encode())
                    return lock
            except FileNotFoundError:
                pass
            except OSError as exc:
                os.close(lock)
                raise self._cannot_write(exc) from exc
            os.close(lock)

    def _held(self, lock: int) -> SessionError:
        holder = os.read(lock, 32).decode("ascii", "replace").strip() or "unknown"
        here = holder == str(os.getpid())
        return SessionError(
            f"{self.path.name} is open in {'another Kit of this process' if here else f'process {holder}'}; "
            "close it there, or fork the session to go on here",
            path=self.path,
        )

    def check_free(self) -> None:
        """Look whether someone else writes to it, without becoming the writer.

        Raises
        ------
        SessionError
            Names the process that holds the session.
        """
        if self._lock_fd is not None:
            return
        try:
            lock = os.open(self.lock_path, os.O_RDWR)
        except OSError:  # nobody has written there, or we may not: the first write tells
            return
        try:
            if not _try_lock(lock):
                raise self._held(lock)
        finally:
            os.close(lock)

    def _open(self) -> None:
        fd = os.open(self.path, os.O_RDWR | os.O_APPEND)
        size = self._size = os.fstat(fd).st_size
        if size:
            os.lseek(fd, size - 1, os.SEEK_SET)
            self._torn = os.read(fd, 1) != b"\n"
        self._fd = fd

    def create(self, content: bytes) -> None:
        """Make the file, with its first lines, all at once.

        Raises
        ------
        SessionError
            If it cannot be written; nothing of it stays.
        """
        self.acquire()
        beside = self.path.with_suffix(self.path.suffix + ".new")
        fd = -1
        try:
            fd = os.open(beside, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC, 0o600)
            _write_whole(fd, content)
            os.rename(beside, self.path)
        except OSError as exc:
            if fd >= 0:
                os.close(fd)
            beside.unlink(missing_ok=True)
            raise self._cannot_write(exc) from exc
        self._fd, self._size = fd, len(content)

    def append(self, lines: bytes) -> bool:
        """One write at the end; on failure nothing of it stays.

        Returns
        -------
        bool
            True if the file had been removed meanwhile and was made again, whole.

        Raises
        ------
        SessionError
            If another process holds the file, another file lies in its place, or the disk refuses.
        """
        if self._lock_fd is None or self._owner != os.getpid():
            self.acquire()
        fd = self._fd
        if fd is None:
            raise SessionError(f"{self.path} is gone; was it removed? kit.fork() goes on in a new file", path=self.path)
        brought_back = False
        # A look at the name costs as much as the write. What is written in between is held by the descriptor,
        # and brought back at the next look; bytes that were cut off are seen at once.
        if time.monotonic() - self._looked_at > LOOK_SECONDS or os.lseek(fd, 0, os.SEEK_END) != self._size:
            if self._is_gone():
                brought_back = self._bring_back()
            fd = self._fd or fd
        if self._torn:  # end the torn line, so that it cannot swallow the next one
            lines = b"\n" + lines
        try:
            if (written := os.write(fd, lines)) < len(lines):
                _write_whole(fd, lines[written:])
        except OSError as exc:
            try:
                os.ftruncate(fd, self._size)  # bytes that were never acknowledged
            except OSError:
                self._torn = True
            raise self._cannot_write(exc) from exc
        self._size += len(lines)
        self._torn = False
        return brought_back

    def _is_gone(self) -> bool:
        assert self._fd is not None
        self._looked_at = -math.inf  # one that failed is no look: the next write must not pass for a good one
        try:
            found = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError as exc:
            raise self._cannot_write(exc) from exc
        is_same = os.path.samestat(found, os.fstat(self._fd))
        if found.st_size < self._size or (found.st_size != self._size and not is_same):
            what = "was cut off" if is_same else "was replaced by another file"
            raise SessionError(f"{self.path} {what} while it was open; kit.fork() goes on in a new one", path=self.path)
        if not is_same:
            os.close(self._fd)  # a copy of it, or a file system that counts anew: the same bytes
            self._open()
        self._looked_at = time.monotonic()
        return False

    def _bring_back(self) -> bool:
        old, size, torn = self._fd, self._size, self._torn
        assert old is not None
        try:
            content = b"".join(_pieces(old, size))
            if not self.lock_path.exists() and self._lock_fd is not None:  # its folder went, too
                os.close(self._lock_fd)
                self._lock_fd = None
                self._lock_fd = self._lock()
        except OSError as exc:
            raise self._cannot_write(exc) from exc
        self.create(content)
        self._torn, self._synced, self._looked_at = torn, -1, time.monotonic()
        os.close(old)
        return True

    def _cannot_write(self, exc: OSError) -> SessionError:
        return SessionError(
            f"cannot write {self.path}: {exc.strerror or exc}; free space, set KIT_DATA_DIR to another folder, "
            "or use session='memory'",
            path=self.path,
        )

    def is_due(self, within_seconds: float) -> bool:
        """True when `sync` has something to do that it did not do within this time."""
        self._looked_at = -math.inf  # the end of a stretch of writes: the next one looks again
        return self._size != self._synced and time.monotonic() - self._synced_at >= within_seconds

    def sync(self) -> None:
        """Wait until the disk has it."""
        self._looked_at = -math.inf
        if self._fd is not None and self._owner == os.getpid() and self._size != self._synced:
            size = self._size
            try:
                os.fsync(self._fd)
                self._synced, self._synced_at = size, time.monotonic()
            except OSError as exc:
                raise SessionError(f"cannot sync {self.path}: {exc.strerror or exc}", path=self.path) from exc

    def release(self) -> None:
        """Let others write; the next `append` takes the file again."""
        fd, lock, self._fd, self._lock_fd = self._fd, self._lock_fd, None, None
        if fd is not None:
            os.close(fd)
        if lock is not None:
            if self._owner == os.getpid():
                self.lock_path.unlink(missing_ok=True)
                _unlock(lock)  # a forked child may still hold a copy of the descriptor
            os.close(lock)

    def remove(self) -> None:
        """Delete it."""
        self.acquire()
        self.path.unlink(missing_ok=True)
        self.release()

    def __del__(self) -> None:
        try:
            self.release()
        except Exception:  # the interpreter may be going down
            pass


def _pieces(fd: int, size: int) -> Iterator[bytes]:
    """The first `size` bytes of an open file, whatever its name is now."""
    at = 0
    while at < size:
        os.lseek(fd, at, os.SEEK_SET)
        piece = os.read(fd, min(1 << 20, size - at))
        if not piece:
            return
        at += len(piece)
        yield piece


def _write_whole(fd: int, content: bytes) -> None:
    written = os.write(fd, content)
    while written < len(content):
        written += os.write(fd, content[written:])


def _try_lock(fd: int) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows
        msvcrt: Any = importlib.import_module("msvcrt")
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
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


def _unlock(fd: int) -> None:
    try:
        import fcntl
    except ImportError:  # Windows lets go with the descriptor
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_UN)
    except OSError:
        pass
