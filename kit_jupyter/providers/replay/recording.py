"""The exchanges of one file, and which of equal ones answers next."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from kit_jupyter.providers.replay.exchange import Exchange
from kit_jupyter.providers.replay.layout import read_exchanges, write_exchanges
from kit_jupyter.providers.replay.meaning import fingerprint, normalised

__all__ = ["Recording"]


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
        with self._lock:
            self._load()
            return tuple(self._exchanges)

    def find(self, path: str, body: Any) -> Exchange | None:
        """The next answer to this request; the last one again when all were given."""
        with self._lock:
            self._load()
            wanted = fingerprint(path, normalised(body))
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

    # -- disk

    def _load(self) -> None:
        stamp = _stamp(self.path)
        if stamp != self._stamp:  # also when it was deleted: begin again
            self._exchanges = read_exchanges(self.path) if stamp is not None else []
            self._stamp = stamp

    def _save(self) -> None:
        write_exchanges(self.path, self._exchanges)
        self._stamp = _stamp(self.path)


def _stamp(path: Path) -> tuple[int, int] | None:
    """Changes when the file does; None when there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
