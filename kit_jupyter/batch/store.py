"""Answers on disk, keyed by all that decides them: what was paid once is not paid again."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from kit_jupyter.errors import UsageError
from kit_jupyter.session import data_dir

__all__ = ["ResultStore", "SentBatch", "store_of"]

_put_here: set[tuple[str, bytes]] = set()  # what this process put into stores that only answer that

_TABLES = (
    "results (key BLOB PRIMARY KEY, answer TEXT NOT NULL) WITHOUT ROWID",
    # A batch is written down under a name of ours before it is sent, and gets the service's id after.
    "batches (name TEXT PRIMARY KEY, service TEXT NOT NULL, id TEXT NOT NULL, size INTEGER NOT NULL,"
    " sent REAL NOT NULL) WITHOUT ROWID",
    "batch_rows (row TEXT PRIMARY KEY, name TEXT NOT NULL, body BLOB) WITHOUT ROWID",
)


class SentBatch(NamedTuple):
    """A batch that was sent, or was about to be (`id` is empty then)."""

    name: str
    service: str
    id: str
    size: int
    sent: float


class ResultStore:
    """Answers on disk by key; safe for several processes, and for a kill at any time.

    Parameters
    ----------
    path : Path or None
        None keeps them in memory for the length of one run.
    own_only : bool
        Give only answers that this process has put: what was there before is taken for unknown. So a recording gets
        an exchange for each answer, and what it does not answer is not hidden by a file that CI does not have.
    """

    def __init__(self, path: Path | None, *, own_only: bool = False) -> None:
        self.path = path
        self._own = "" if path is None or not own_only else str(path.resolve())
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                path.touch(mode=0o600, exist_ok=True)
            except OSError as exc:
                raise UsageError(
                    f"cannot keep results in {path}: {exc.strerror or exc}; pass store=False or a path"
                ) from exc
        self._lock = threading.Lock()
        try:
            self._db = sqlite3.connect(str(path or ""), check_same_thread=False, isolation_level=None, timeout=30)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            for table in _TABLES:
                self._db.execute(f"CREATE TABLE IF NOT EXISTS {table}")
        except sqlite3.DatabaseError as exc:
            raise UsageError(f"{path} is no result store ({exc}); delete it or pass another path as store=") from exc

    def get(self, key: bytes) -> str | None:
        """The answer's text, or None."""
        if self._own and (self._own, key) not in _put_here:
            return None
        with self._lock:
            row = self._db.execute("SELECT answer FROM results WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def put(self, key: bytes, answer: str) -> None:
        """Keep an answer."""
        with self._lock:
            self._db.execute("INSERT OR REPLACE INTO results VALUES (?, ?)", (key, answer))
        if self._own:
            _put_here.add((self._own, key))

    # -- batches: rows are in one of three states: unknown, sent (a name, no body), answered (a body)

    def batches(self) -> list[SentBatch]:
        """Those whose answers have not been fetched."""
        with self._lock:
            rows = self._db.execute("SELECT name, service, id, size, sent FROM batches ORDER BY sent").fetchall()
        return [SentBatch(*row) for row in rows]

    def sending(self, batch: SentBatch, rows: Iterable[str]) -> None:
        """A batch is about to be sent."""
        with self._lock, self._db:
            self._db.execute("BEGIN")
            self._db.execute("INSERT OR REPLACE INTO batches VALUES (?, ?, ?, ?, ?)", batch)
            pairs = ((row, batch.name) for row in rows)
            self._db.executemany("INSERT OR REPLACE INTO batch_rows VALUES (?, ?, NULL)", pairs)

    def was_sent(self, name: str, batch_id: str) -> None:
        """The service has it, under this id."""
        with self._lock:
            self._db.execute("UPDATE batches SET id = ? WHERE name = ?", (batch_id, name))

    def row(self, row: str) -> tuple[str, bytes | None] | None:
        """The batch that a row is in, and its answer's body if that has come."""
        with self._lock:
            found = self._db.execute("SELECT name, body FROM batch_rows WHERE row = ?", (row,)).fetchone()
        return None if found is None else (str(found[0]), found[1])

    def rows_of(self, name: str) -> list[str]:
        """Rows of a batch that have no answer yet."""
        with self._lock:
            found = self._db.execute("SELECT row FROM batch_rows WHERE name = ? AND body IS NULL", (name,)).fetchall()
        return [str(row) for (row,) in found]

    def put_bodies(self, bodies: Iterable[tuple[str, bytes]]) -> None:
        """Keep answers until their rows have been made of them."""
        with self._lock, self._db:
            self._db.execute("BEGIN")
            self._db.executemany("UPDATE batch_rows SET body = ? WHERE row = ?", ((body, row) for row, body in bodies))

    def end_batch(self, name: str) -> None:
        """All that came of a batch is here: forget it, and its rows that got no answer."""
        with self._lock, self._db:
            self._db.execute("BEGIN")
            self._db.execute("DELETE FROM batch_rows WHERE name = ? AND body IS NULL", (name,))
            self._db.execute("DELETE FROM batches WHERE name = ?", (name,))

    def forget_rows(self, stem: str) -> None:
        """A row is done with: its answers are no longer needed. One whose batch may yet bring an answer stays."""
        with self._lock:
            self._db.execute(
                "DELETE FROM batch_rows WHERE row >= ? AND row < ? AND (body IS NOT NULL"
                " OR name NOT IN (SELECT name FROM batches))",
                (stem + "-", stem + "."),
            )

    def __len__(self) -> int:
        with self._lock:
            return int(self._db.execute("SELECT count(*) FROM results").fetchone()[0])

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()


def store_of(store: object, *, own_only: bool = False) -> ResultStore:
    """The store of what people write: True, False or a path; see `ResultStore` for `own_only`."""
    if store is True:
        return ResultStore(data_dir() / "map" / "results.sqlite")
    if store is False or store is None:
        return ResultStore(None)
    return ResultStore(Path(str(store)), own_only=own_only)
