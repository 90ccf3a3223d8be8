"""What was there before a tool changed it: contents of files, and small variables, by turn.

Theory of operation
-------------------
A tool that is about to change a file says so (`before_file`); the first word of a turn wins, and
the content (or that there was none) is kept in the user's data folder, or in a folder of this
process for a session in memory. Never beside a session file that lies elsewhere: what came along
with it could be pickles and paths of someone else's, and an undo would run and write them. `undo`
puts the files of the last turn back and notes what it replaced, so that a second `undo` takes the
turn before it. A file that changed again since the tool
wrote it is not overwritten but reported. Variables work alike: names are listed, and those small
enough to pickle can be restored by whoever holds the namespace.

The idea of a snapshot per step is opencode's; this keeps only what our own tools touch, so that it
needs no git and costs nothing when nothing is changed.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kit_jupyter.places import data_dir

__all__ = ["Checkpoints", "Undone", "small_pickle"]

MAX_FILE_BYTES = 50_000_000
MAX_VARIABLE_BYTES = 1_000_000
KEPT_TURNS = 50
_ABSENT = "absent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Undone:
    """What an undo did.

    Parameters
    ----------
    turn_id : str
        The turn undone, empty when there was none.
    restored, removed : tuple of str
        Files put back; files that the turn had made, now gone.
    skipped : dict
        File to why it was left alone.
    variables : tuple of str
        Names put back or removed.
    not_restorable : tuple of str
        Names that the turn changed and that were too large or could not be pickled.
    """

    turn_id: str = ""
    restored: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)
    variables: tuple[str, ...] = ()
    not_restorable: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.turn_id:
            return "nothing to undo"
        lines = [f"restored {name}" for name in self.restored] + [f"removed {name}" for name in self.removed]
        lines += [f"left alone {name}: {why}" for name, why in self.skipped.items()]
        if self.variables:
            lines.append(f"variables put back: {', '.join(self.variables)}")
        if self.not_restorable:
            lines.append(f"variables changed and not restorable: {', '.join(self.not_restorable)}")
        return "\n".join(lines) or "the last turn changed nothing that can be undone"


class Checkpoints:
    """Snapshots of one session.

    Parameters
    ----------
    folder : Path or None
        Where contents are kept; None for a folder that ends with this object.

    Notes
    -----
    Any thread.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._given = folder
        self._lock = threading.RLock()
        self._turns: dict[str, dict[str, dict[str, Any]]] | None = None
        self._folder: Path | None = None

    @classmethod
    def of(cls, context: Any) -> Checkpoints:
        """The one of a tool's Kit and its session, made on first use."""
        path = getattr(getattr(context, "session", None), "path", None)
        folder = None if path is None else _folder_of(Path(path))
        found = context.state.get("checkpoints")
        if not isinstance(found, Checkpoints) or found._given != folder:
            found = context.state["checkpoints"] = cls(folder)
        return found

    # ------------------------------------------------------------ where it is kept

    @property
    def folder(self) -> Path:
        """The folder, made when first needed, for the owner's eyes only."""
        with self._lock:
            if self._folder is None:
                if self._given is None:
                    self._folder = Path(tempfile.mkdtemp(prefix="kit-undo-"))
                    weakref.finalize(self, shutil.rmtree, str(self._folder), True)
                else:
                    self._given.mkdir(parents=True, exist_ok=True, mode=0o700)
                    self._folder = self._given
            return self._folder

    @property
    def _index(self) -> dict[str, dict[str, dict[str, Any]]]:
        if self._turns is None:
            self._turns = {}
            if self._given is not None and (self._given / "index.json").exists():
                try:
                    found = json.loads((self._given / "index.json").read_text(encoding="utf-8"))
                    if all(isinstance(turn[kind], dict) for turn in found.values() for kind in ("files", "variables")):
                        self._turns = found
                except (OSError, ValueError, RecursionError, AttributeError, TypeError, KeyError):
                    pass  # broken: then there is nothing to undo
        return self._turns

    def _save(self) -> None:
        index = self._index
        for old in list(index)[:-KEPT_TURNS]:
            del index[old]
        temporary = self.folder / "index.json.tmp"
        temporary.write_text(json.dumps(index), encoding="utf-8")
        os.replace(temporary, self.folder / "index.json")
        kept = {entry.get("blob") for turn in index.values() for kind in turn.values() for entry in kind.values()}
        for blob in self.folder.glob("*.blob"):
            if blob.name not in kept:
                blob.unlink(missing_ok=True)

    def _keep(self, content: bytes) -> str:
        name = f"{hashlib.sha256(content).hexdigest()}.blob"
        path = self.folder / name
        if not path.exists():
            handle, temporary = tempfile.mkstemp(dir=self.folder, suffix=".tmp")
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.replace(temporary, path)
        return name

    def _turn(self, turn_id: str) -> dict[str, dict[str, Any]]:
        return self._index.setdefault(turn_id, {"files": {}, "variables": {}})

    # ------------------------------------------------------------ before and after a change

    def before_file(self, path: Path, turn_id: str) -> None:
        """Keep `path` as it is now, unless this turn kept it already. Blocks; not for the engine's thread."""
        key = str(path)
        with self._lock:
            files = self._turn(turn_id)["files"]
            if key in files:
                return
            entry: dict[str, Any] = {"blob": _ABSENT}
            if path.is_file():
                if path.stat().st_size > MAX_FILE_BYTES:
                    entry = {"blob": "", "why": f"larger than {MAX_FILE_BYTES // 1_000_000} MB, no snapshot"}
                else:
                    entry = {"blob": self._keep(path.read_bytes()), "mode": path.stat().st_mode & 0o7777}
            files[key] = entry
            self._save()

    def after_file(self, path: Path, turn_id: str) -> None:
        """Note what the tool left there, so that `undo` sees whether someone changed it since."""
        with self._lock:
            entry = self._turn(turn_id)["files"].get(str(path))
            if entry is not None:
                entry["left"] = _digest(path)
                self._save()

    def before_variables(self, pickled: Mapping[str, bytes | None], turn_id: str) -> None:
        """Keep variables as pickles; None for one that cannot be kept."""
        with self._lock:
            variables = self._turn(turn_id)["variables"]
            for name, content in pickled.items():
                if name not in variables:
                    variables[name] = {"blob": self._keep(content) if content is not None else ""}
            self._save()

    def keep_names(self, new: Iterable[str], changed: Iterable[str], turn_id: str) -> None:
        """After the code: `new` names did not exist before; kept names that did not change are dropped."""
        with self._lock:
            variables = self._turn(turn_id)["variables"]
            for name in new:
                variables.setdefault(name, {"blob": _ABSENT})
            really = set(changed)
            for name in really:
                variables.setdefault(name, {"blob": ""})
                variables[name]["changed"] = True
            self._save()

    # ------------------------------------------------------------ undo

    def turns(self) -> tuple[str, ...]:
        """Turns that changed something, oldest first."""
        with self._lock:
            return tuple(turn for turn, kinds in self._index.items() if any(kinds.values()))

    def undo(self, namespace: MutableMapping[str, Any] | None = None, *, turn_id: str | None = None) -> Undone:
        """Put back what the last turn (or `turn_id`) changed.

        Parameters
        ----------
        namespace : mapping or None
            Where variables are restored; None leaves them. Only on the thread that owns them.
        """
        with self._lock:
            turns = self.turns()
            if not turns or (turn_id is not None and turn_id not in turns):
                return Undone()
            which = turn_id if turn_id is not None else turns[-1]
            kinds = self._index[which]
            restored, removed, skipped = self._undo_files(kinds["files"])
            variables, lost = self._undo_variables(kinds["variables"], namespace)
            if skipped:
                kinds["files"] = {name: entry for name, entry in kinds["files"].items() if name in skipped}
                kinds["variables"] = {}
            else:
                del self._index[which]
            if skipped and all("no snapshot" in why for why in skipped.values()):
                self._index.pop(which, None)
            self._save()
            return Undone(
                turn_id=which,
                restored=tuple(restored),
                removed=tuple(removed),
                skipped=skipped,
                variables=tuple(variables),
                not_restorable=tuple(lost),
            )

    def _undo_files(self, files: dict[str, Any]) -> tuple[list[str], list[str], dict[str, str]]:
        restored: list[str] = []
        removed: list[str] = []
        skipped: dict[str, str] = {}
        for name, entry in files.items():
            path = Path(name)
            try:
                if entry["blob"] == "":
                    skipped[name] = entry.get("why", "no snapshot")
                elif "left" in entry and _digest(path) != entry["left"]:
                    skipped[name] = "changed since by someone else"
                elif entry["blob"] == _ABSENT:
                    if path.exists():
                        path.unlink()
                        removed.append(name)
                else:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes((self.folder / entry["blob"]).read_bytes())
                    os.chmod(path, entry.get("mode", 0o644))
                    restored.append(name)
            except OSError as exc:
                skipped[name] = f"{type(exc).__name__}: {exc.strerror or exc}"
        return restored, removed, skipped

    def _undo_variables(
        self, variables: dict[str, Any], namespace: MutableMapping[str, Any] | None
    ) -> tuple[list[str], list[str]]:
        done: list[str] = []
        lost: list[str] = []
        for name, entry in variables.items():
            if entry["blob"] == _ABSENT:
                if namespace is not None and name in namespace:
                    del namespace[name]
                    done.append(name)
            elif not entry.get("changed"):
                continue
            elif entry["blob"] == "" or namespace is None:
                lost.append(name)
            else:
                try:
                    namespace[name] = pickle.loads((self.folder / entry["blob"]).read_bytes())
                    done.append(name)
                except Exception:
                    lost.append(name)
        return done, lost


def _folder_of(session: Path) -> Path:
    """Where the contents of a session's turns are kept: beside it among our own sessions, else a folder of ours."""
    real, ours = Path(os.path.realpath(session)), Path(os.path.realpath(data_dir()))
    if ours / "sessions" in real.parents:
        return real.with_suffix(".undo")
    digest = hashlib.sha256(os.fsencode(real)).hexdigest()[:16]
    return ours / "undo" / f"{real.stem[:60]}-{digest}"


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return _ABSENT


class _TooLarge(Exception):
    pass


class _Bounded(io.BytesIO):
    def __init__(self, limit: int) -> None:
        super().__init__()
        self._left = limit

    def write(self, chunk: Any) -> int:
        self._left -= len(chunk)
        if self._left < 0:
            raise _TooLarge
        return super().write(chunk)


def small_pickle(value: Any, *, limit: int = MAX_VARIABLE_BYTES) -> bytes | None:
    """`value` as a pickle of at most `limit` bytes; None when larger or not picklable. The user's thread.

    Examples
    --------
    >>> small_pickle("x" * 2_000_000) is None, pickle.loads(small_pickle([1, 2]))
    (True, [1, 2])
    """
    nbytes = getattr(value, "nbytes", None)
    if isinstance(nbytes, int) and nbytes > limit:
        return None
    if isinstance(value, str | bytes | list | dict | set | tuple) and len(value) > limit:
        return None
    usage = getattr(value, "memory_usage", None)
    try:
        if callable(usage) and not isinstance(value, type):
            total = usage(index=False) if hasattr(value, "columns") else usage()
            if int(getattr(total, "sum", lambda: total)()) > limit:
                return None
        buffer = _Bounded(limit)
        pickle.Pickler(buffer, protocol=5).dump(value)
        return buffer.getvalue()
    except Exception:  # not picklable, too large, or an object whose own pickling fails
        return None
