"""The entries of a session: read from the end of its file as far as someone asks, the rest when all is wanted.

Theory of operation
-------------------
Lines are read backwards, for the walk from leaf to root needs the newest first. When all is asked for, what
is left is read forwards, which takes less; when that is no longer the file that was opened (it was replaced,
or removed), backwards from the one at hand. A torn last line was never acknowledged: it is told of and passed
over, as is any other that cannot be read.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence

from kit_jupyter.entry import Entry, parse_line
from kit_jupyter.errors import SessionError
from kit_jupyter.messages import id_time
from kit_jupyter.session_file import SessionFile

__all__ = ["Entries"]

Parse = Callable[[bytes], Entry]

LAST = "~"  # sorts behind all hex digits
_MOVES_LEAF = frozenset({"message", "compaction", "branch_summary", "leaf"})


class Entries:
    """The entries of `file`, or of a session in memory; not locked, its session does that.

    Parameters
    ----------
    file : SessionFile or None
        None in memory.
    warnings : list of str
        Takes what is odd about the file.
    """

    def __init__(self, file: SessionFile | None, warnings: list[str]) -> None:
        self._file = file
        self._warnings = warnings
        self._read: dict[str, Entry] = {}  # all of them in order; while not whole, those read so far, newest first
        self._written = self._read  # takes new ones; while not whole, only those written since, oldest first
        self._backwards: Iterator[tuple[int, bytes, bool]] | None = None
        self._read_from: int | None = None  # the byte where the oldest line begins that was read backwards
        self._newest = LAST  # time in the id of the file's last entry

    def __len__(self) -> int:
        """How many are at hand."""
        return len(self._read) + (0 if self._is_whole else len(self._written))

    def __contains__(self, entry_id: str) -> bool:
        """Is there an entry of that id? Ids tell their time: the rest is read only for one that is not the newest."""
        if entry_id in self._read or entry_id in self._written:
            return True
        if self._is_whole or id_time(entry_id) > self._newest:
            return False
        self._read_rest(parse_line)
        return entry_id in self._read

    @property
    def _is_whole(self) -> bool:
        return self._written is self._read

    def add(self, entry: Entry) -> None:
        """Take one that was written."""
        self._written[entry.id] = entry

    def read_to_leaf(self) -> str | None:
        """Begin with the file, from its end back to the entry that says where the leaf is; gives the leaf.

        Raises
        ------
        SessionError
            If the file cannot be read, or its last leaf is no entry's id.
        """
        assert self._file is not None
        self._backwards = self._file.lines_backwards()
        self._written = {}
        while (entry := self._read_one()) is not None:
            if not self._read:
                self._newest = id_time(entry.id) or LAST
            self._read.setdefault(entry.id, entry)  # of two lines with one id the later counts
            if entry.type == "leaf":
                target = entry.body.get("target")
                if not isinstance(target, str | None):
                    raise SessionError(f"its last leaf is {target!r}, which is no entry's id", path=self._file.path)
                return target
            if entry.type in _MOVES_LEAF:
                return entry.id
        self._turn_whole()
        return None

    def get(self, entry_id: str, parse: Parse = parse_line) -> Entry:
        """The entry of that id.

        Raises
        ------
        SessionError
            If there is none.
        """
        entry = self._read.get(entry_id) or self._written.get(entry_id)
        while entry is None and not self._is_whole:
            older = self._read_one(parse)
            if older is None:
                self._turn_whole()
                break
            self._read.setdefault(older.id, older)
            if older.id == entry_id:
                entry = older
        if entry is None:
            where = f"{self._file.path.name}: " if self._file else ""
            raise SessionError(f"{where}there is no entry {entry_id!r}", path=self._file.path if self._file else None)
        return entry

    def whole(self, parse: Parse = parse_line) -> Sequence[Entry]:
        """All of them, oldest first."""
        if not self._is_whole:
            self._read_rest(parse)
        return tuple(self._read.values())

    def _read_one(self, parse: Parse = parse_line) -> Entry | None:
        """One more entry from the end of the file; None at its start."""
        assert self._backwards is not None
        for offset, line, complete in self._backwards:
            if offset == 0:
                break  # the header
            self._read_from = offset
            try:
                return parse(line)
            except Exception as exc:
                self._leave_out(offset, complete, exc)
        self._backwards = None
        return None

    def _leave_out(self, offset: int, complete: bool, exc: Exception) -> None:
        assert self._file is not None
        why = f"a line at byte {offset} cannot be read ({exc}), left out"
        if not complete:
            why = "the last line is torn and was left out; nothing acknowledged is lost"
        self._warnings.append(f"{self._file.path.name}: {why}")

    def _read_rest(self, parse: Parse) -> None:
        was_enabled = gc.isenabled()
        gc.disable()  # nothing here is garbage; a collection per generation would double the time
        try:
            older = self._older(parse)
            if older is None:
                while (entry := self._read_one(parse)) is not None:
                    self._read.setdefault(entry.id, entry)
            self._backwards = None
            self._turn_whole(older)
        finally:
            if was_enabled:
                if not gc.get_freeze_count():  # nobody else's
                    gc.freeze()  # straight to the oldest generation: the next young collection need not go through it
                    gc.unfreeze()
                gc.enable()

    def _turn_whole(self, older: dict[str, Entry] | None = None) -> None:
        """All is read: `older`, oldest first, then what was read backwards, then what was written since."""
        whole = older if older is not None else {}
        whole.update(reversed(self._read.items()))
        whole.update(self._written)
        self._read = self._written = whole

    def _older(self, parse: Parse) -> dict[str, Entry] | None:
        """All entries before those read backwards, oldest first: forwards, which takes less; None if it cannot be."""
        end, warned, later = self._read_from, len(self._warnings), self._read
        found: dict[str, Entry] = {}
        if end is None or self._file is None:
            return None
        try:
            with self._file.path.open("rb") as file:
                at = len(file.readline())  # the header
                for line in file:
                    if at >= end:
                        break
                    if line != b"\n":
                        try:
                            entry = parse(line)
                            if (key := entry.id) in found:
                                del found[key]  # a later line of the same id counts, in its own place
                            if key not in later:
                                found[key] = entry
                        except Exception as exc:
                            self._leave_out(at, True, exc)
                    at += len(line)
        except OSError:
            at = -1
        if at != end:  # it is not the file that was opened: that one is still at hand
            del self._warnings[warned:]
            return None
        return found
