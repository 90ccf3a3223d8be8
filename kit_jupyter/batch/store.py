"""Answers on disk, keyed by all that decides them: what was paid once is not paid again."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

from kit_jupyter.errors import UsageError
from kit_jupyter.session import data_dir

__all__ = ["ResultStore", "store_of"]


class ResultStore:
    """Answers on disk by key; safe for several processes, and for a kill at any time.

    Parameters
    ----------
    path : Path or None
        None keeps them in memory for the length of one run.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
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
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS results (key BLOB PRIMARY KEY, answer TEXT NOT NULL) WITHOUT ROWID"
            )
        except sqlite3.DatabaseError as exc:
            raise UsageError(f"{path} is no result store ({exc}); delete it or pass another path as store=") from exc

    def get(self, key: bytes) -> str | None:
        """The answer's text, or None."""
        with self._lock:
            row = self._db.execute("SELECT answer FROM results WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def put(self, key: bytes, answer: str) -> None:
        """Keep an answer."""
        with self._lock:
            self._db.execute("INSERT OR REPLACE INTO results VALUES (?, ?)", (key, answer))

    def __len__(self) -> int:
        with self._lock:
            return int(self._db.execute("SELECT count(*) FROM results").fetchone()[0])

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()


def store_of(store: object) -> ResultStore:
    """The store of what people write: True, False or a path."""
    if store is True:
        return ResultStore(data_dir() / "map" / "results.sqlite")
    if store is False or store is None:
        return ResultStore(None)
    return ResultStore(Path(str(store)))
