"""The folder that file tools work in: paths judged where they really lead, opened so that a race cannot move them.

Theory of operation
-------------------
A path from a model is resolved through every symbolic link before it is judged: inside the root or
outside it, a file that may hold secrets, a notebook that is open in an editor. Between the judging
and the opening someone could swap a folder for a link; so the opened descriptor is asked where it
really is, and refused when that is elsewhere. A hard link is no link that could be resolved: a file
that has several names may be one for secrets under another of them, and reading it asks. Writes go to
a new file beside the target, in a folder opened the same way, and replace it in one step.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from kit_jupyter.errors import BadArguments, ToolError, UsageError
from kit_jupyter.permissions import Need
from kit_jupyter.places import config_dir

__all__ = ["Place", "Workspace", "open_notebooks_of_environment"]

_SENSITIVE = re.compile(
    r"(?i)(^|/)(\.env(\.(?!example$|sample$|template$|dist$)[^/]*)?|\.envrc|\.netrc|\.pgpass|\.git-credentials|\.npmrc|"
    r"\.pypirc|credentials(\.json|\.ya?ml)?|secrets?\.(json|ya?ml|toml|env)|id_(rsa|dsa|ecdsa|ed25519)[^/]*|"
    r"[^/]*\.(pem|key|p12|pfx|jks|keystore|kdbx|ppk)|[^/]*\.tfstate(\.backup)?|\.htpasswd|\.vault-token|\.s3cfg|\.boto|"
    r"\.databrickscfg|kaggle\.json|service[-_]?account[^/]*\.json|\.ssh/.*|\.aws/.*|\.gnupg/.*|\.kube/.*|"
    r"\.docker/config\.json|\.azure/.*|\.config/(gcloud|gh|hub)/.*|(\.cache/)?huggingface/(stored_)?tokens?|"
    r"\.jupyter/.*|jupyter_.*_config\.(py|json)|jupyter/runtime/.*)$"
    r"|^/(proc|dev)/|^/etc/g?shadow-?$"
)
_WRITE_SENSITIVE = re.compile(
    r"(?i)(^|/)(\.git(/.*)?|\.gitmodules|\.gitattributes|\.github/workflows/.*|\.gitlab-ci\.ya?ml|\.pre-commit-config\.yaml|"
    r"\.bashrc|\.profile|\.bash_(profile|login|logout|aliases)|\.z(shrc|shenv|profile|login)|\.config/(fish|autostart)/.*|"
    r"\.vscode/.*|\.ipython/.*|sitecustomize\.py|usercustomize\.py|[^/]*\.pth|\.(agents|claude|kit)/skills/.*)$"
)
_ALWAYS_IGNORED = frozenset(
    (".git", "node_modules", "__pycache__", ".ipynb_checkpoints", ".venv", ".mypy_cache", ".tox")
)
_ALWAYS_IGNORED |= {".ruff_cache", ".pytest_cache"}


@dataclass(frozen=True, slots=True)
class Place:
    """A path, judged.

    Parameters
    ----------
    path : Path
        Absolute, every link resolved.
    shown : str
        Relative to the root when inside it, with ``/``.
    inside : bool
    """

    path: Path
    shown: str
    inside: bool

    @property
    def is_sensitive(self) -> bool:
        """It may hold secrets, by its name."""
        if re.search(_SENSITIVE, self.path.as_posix()):
            return True
        return Path(os.path.realpath(config_dir())) in self.path.parents

    @property
    def has_other_names(self) -> bool:
        """Hard links: a regular file that is known by other names as well, which nobody can tell from here."""
        try:
            found = os.stat(self.path, follow_symlinks=False)
        except (OSError, ValueError):
            return False
        return stat.S_ISREG(found.st_mode) and found.st_nlink > 1

    @property
    def is_write_sensitive(self) -> bool:
        """Writing it could make other programs act: hooks, start-up files, workflows."""
        return self.is_sensitive or bool(re.search(_WRITE_SENSITIVE, self.path.as_posix()))

    def need(self, action: str, kind: Literal["look", "act"]) -> Need:
        """What touching it needs."""
        # Writing replaces the file, which leaves its other names as they are.
        guarded = self.is_write_sensitive if kind == "act" else self.is_sensitive or self.has_other_names
        if not self.inside:
            return Need(action, self.shown, "outside")
        return Need(action, self.shown, "sensitive" if guarded else kind)


def open_notebooks_of_environment() -> Collection[Path]:
    """The notebook of this kernel, as the server told it in ``JPY_SESSION_NAME``."""
    name = os.environ.get("JPY_SESSION_NAME", "")
    return [Path(name)] if name.endswith(".ipynb") else []


class Workspace:
    """A root folder and what may be done in it.

    Parameters
    ----------
    root : Path or None
        None for the working directory at this moment.
    open_notebooks : callable() -> paths
        Notebooks that are open in an editor and must be changed through it.

    Raises
    ------
    UsageError
        When there is no working directory any more.

    Examples
    --------
    >>> Workspace(Path("/tmp")).resolve("../etc/passwd").inside
    False
    """

    def __init__(
        self,
        root: Path | str | None = None,
        *,
        open_notebooks: Callable[[], Collection[Path]] = open_notebooks_of_environment,
    ) -> None:
        try:
            self.root = Path(os.path.realpath(root if root is not None else os.getcwd()))
        except FileNotFoundError:
            raise UsageError(
                "the working directory has been removed; go to another one with os.chdir() first"
            ) from None
        self._open_notebooks = open_notebooks
        self.extra_readable: set[Path] = set()

    def resolve(self, text: str) -> Place:
        """Where `text` really leads.

        Raises
        ------
        BadArguments
            For an empty path, one with a NUL, or one that is too long.
        """
        if not text.strip() or "\0" in text:
            raise BadArguments(f"- path: not a path: {text[:80]!r}")
        try:
            path = Path(text).expanduser()
            real = Path(os.path.realpath(self.root / path))
        except (OSError, ValueError, RuntimeError) as exc:
            raise BadArguments(f"- path: {text[:200]!r} cannot be resolved ({exc})") from None
        try:
            os.lstat(real)
        except OSError as exc:
            if exc.errno == errno.ENAMETOOLONG:
                longest = max(map(len, text.split("/")))
                what = f"{len(text):,} characters" + (f", one name of {longest:,}" if longest > 255 else "")
                raise BadArguments(f"- path: too long ({what}): {text[:80]!r}…") from None
        inside = real == self.root or self.root in real.parents
        shown = real.relative_to(self.root).as_posix() if inside else real.as_posix()
        if shown.startswith("~"):  # a folder of that name is not somebody's home, neither in a question nor in a rule
            shown = f"./{shown}"
        return Place(real, shown, inside or real in self.extra_readable)

    def refuse_open_notebook(self, place: Place) -> None:
        """Refuse to write a notebook that is open: the editor and we would overwrite each other (U61).

        Raises
        ------
        ToolError
            It names the cell tools.
        """
        if place.path.suffix != ".ipynb":
            return
        for open_path in self._open_notebooks():
            same_file = Path(os.path.realpath(self.root / open_path)) == place.path
            same_tail = not open_path.is_absolute() and place.path.as_posix().endswith("/" + open_path.as_posix())
            if same_file or same_tail:
                raise ToolError(
                    f"{place.shown} is open in an editor, which would lose or overwrite what a file tool writes. "
                    "Change it through its cells: read_cells, insert_cell, edit_cell, delete_cell, move_cell, run_cell"
                )

    # ------------------------------------------------------------ opening

    @contextlib.contextmanager
    def open_to_read(self, place: Place) -> Iterator[int]:
        """A descriptor of the regular file that was judged.

        Raises
        ------
        ToolError
            When it is not there, not a regular file, or somewhere else by now.
        """
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        try:
            descriptor = os.open(place.path, flags)
        except OSError as exc:
            raise _file_error(place, exc) from None
        try:
            _check_where(descriptor, place.path)
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ToolError(f"{place.shown} is not a regular file")
            yield descriptor
        finally:
            os.close(descriptor)

    def read(self, place: Place, limit: int) -> bytes:
        """Its first `limit` bytes. Blocks."""
        with self.open_to_read(place) as descriptor:
            chunks: list[bytes] = []
            left = limit
            while left > 0 and (chunk := os.read(descriptor, min(left, 1 << 20))):
                chunks.append(chunk)
                left -= len(chunk)
            return b"".join(chunks)

    def write(self, place: Place, content: bytes) -> None:
        """Replace it whole, in one step; folders are made as needed. Blocks.

        Raises
        ------
        ToolError
            When it cannot be written, or is somewhere else by now.
        """
        parent = place.path.parent
        try:
            parent.mkdir(parents=True, exist_ok=True)
            if os.open not in os.supports_dir_fd or os.rename not in os.supports_dir_fd:  # Windows
                _write_plain(place.path, content)
                return
            folder = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError as exc:
            raise _file_error(place, exc) from None
        name = f".{place.path.name[:80]}.{secrets.token_hex(4)}.tmp"
        try:
            _check_where(folder, parent)
            mode = 0o666 & ~_umask()
            with contextlib.suppress(FileNotFoundError):
                known = os.stat(place.path.name, dir_fd=folder, follow_symlinks=False)
                if not stat.S_ISREG(known.st_mode):
                    raise ToolError(f"{place.shown} is not a regular file")
                mode = known.st_mode & 0o7777
            descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode, dir_fd=folder)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(content)
                    os.fchmod(file.fileno(), mode)
                os.replace(name, place.path.name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=folder)
                raise
        except OSError as exc:
            raise _file_error(place, exc) from None
        finally:
            os.close(folder)

    # ------------------------------------------------------------ listing

    def files(self, start: Place, *, limit: int = 50_000) -> Iterator[Path]:
        """Regular files under `start` that git would not ignore; links are not followed. Blocks."""
        matcher = _Ignored(start.path, self.root)
        count = 0
        for folder, folders, names in os.walk(start.path):
            here = Path(folder)
            matcher.enter(here)
            folders[:] = sorted(name for name in folders if not matcher.is_ignored(here / name, is_folder=True))
            for name in sorted(names):
                path = here / name
                if not matcher.is_ignored(path, is_folder=False) and not path.is_symlink():
                    yield path
                    count += 1
                    if count >= limit:
                        return


class _Ignored:
    """``.gitignore`` as git reads it: by pathspec when installed, else by asking git, else a short list."""

    def __init__(self, start: Path, root: Path) -> None:
        self._specs: list[tuple[Path, Any]] = []
        self._known: set[str] | None = None
        self._start = start
        try:
            import pathspec

            self._pathspec: Any = pathspec
        except ImportError:
            self._pathspec = None
            self._known = _git_files(start)
        top = start
        for folder in (start, *start.parents):
            if folder == root or (folder / ".git").exists():
                top = folder
                break
        above = [folder for folder in (start, *start.parents) if folder == top or top in folder.parents]
        for folder in reversed(above):
            self.enter(folder)

    def enter(self, folder: Path) -> None:
        if self._pathspec is None or any(folder == known for known, _ in self._specs):
            return
        try:
            lines = (folder / ".gitignore").read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return
        try:
            spec = self._pathspec.GitIgnoreSpec.from_lines(lines)
        except Exception:  # a pattern that git would skip too
            return
        self._specs.append((folder, spec))

    def is_ignored(self, path: Path, *, is_folder: bool) -> bool:
        if path.name in _ALWAYS_IGNORED:
            return True
        if self._known is not None:
            shown = path.relative_to(self._start).as_posix()
            return (f"{shown}/" if is_folder else shown) not in self._known
        ignored = False
        for folder, spec in self._specs:
            if folder != path.parent and folder not in path.parents:
                continue
            shown = path.relative_to(folder).as_posix() + ("/" if is_folder else "")
            result = spec.check_file(shown)
            if result.include is not None:
                ignored = bool(result.include)
        return ignored


def _git_files(start: Path) -> set[str] | None:
    git = shutil.which("git")
    if git is None:
        return None
    # Without the program that a repository's own configuration may name as its monitor: nobody allowed that one.
    command = [git, "-c", "core.fsmonitor=false", "-C", str(start), "ls-files", "-z", "--cached", "--others"]
    try:
        done = subprocess.run(
            [*command, "--exclude-standard"],
            capture_output=True,
            timeout=10,
            stdin=subprocess.DEVNULL,
            check=False,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    if done.returncode != 0:
        return None
    known: set[str] = set()
    for name in done.stdout.decode("utf-8", "surrogateescape").split("\0"):
        if name:
            known.add(name)
            known.update(f"{parent.as_posix()}/" for parent in PurePosixPath(name).parents if parent.name)
    return known


# ---------------------------------------------------------------- descriptors


def _umask() -> int:
    # Reading it means setting it, for the whole process; children tell it without that.
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    except (OSError, ValueError):
        pass
    return 0o022


def _check_where(descriptor: int, expected: Path) -> None:
    """The open file is where it was judged to be, or it is refused."""
    real: str | None = None
    if os.path.exists(f"/proc/self/fd/{descriptor}"):
        real = os.readlink(f"/proc/self/fd/{descriptor}").removesuffix(" (deleted)")
    elif sys.platform == "darwin":
        import fcntl

        real = fcntl.fcntl(descriptor, 50, b"\0" * 1024).rstrip(b"\0").decode()  # F_GETPATH
    if real is not None and real != str(expected):
        raise ToolError(f"{expected.name} was moved while it was being opened; try again")


def _write_plain(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    temporary.write_bytes(content)
    os.replace(temporary, path)


def _file_error(place: Place, exc: OSError) -> ToolError:
    if exc.errno == errno.ELOOP:
        return ToolError(f"{place.shown} became a link while it was being opened; try again")
    if isinstance(exc, FileNotFoundError):
        near = _similar(place.path)
        return ToolError(f"{place.shown} does not exist{f'; did you mean {near}?' if near else ''}")
    return ToolError(f"{place.shown}: {exc.strerror or exc}")


def _similar(path: Path) -> str:
    import difflib

    try:
        names = [entry.name for entry in os.scandir(path.parent)][:2000]
    except OSError:
        return ""
    return ", ".join(difflib.get_close_matches(path.name, names, 3))


def digest_of(content: bytes) -> str:
    """Names a content, for "has it changed since you read it"."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()
