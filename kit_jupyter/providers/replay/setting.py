"""What ``KIT_REPLAY`` says, and in which files recordings lie."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from kit_jupyter.errors import UsageError
from kit_jupyter.providers.notebook_name import notebook_name

__all__ = [
    "MODES",
    "NAMELESS",
    "is_strict",
    "mode",
    "recording_file",
    "recording_files",
    "said_file",
    "use_file",
]

MODES = ("off", "auto", "record", "strict")
NAMELESS = Path("recordings", "notebook.json")
_chosen: Path | None = None


def mode(environ: Mapping[str, str] | None = None) -> str:
    """What ``KIT_REPLAY`` says.

    Raises
    ------
    UsageError
        For a word it does not know.
    """
    environ = os.environ if environ is None else environ
    word = environ.get("KIT_REPLAY", "").strip().lower() or "off"
    if word in ("0", "no", "false", "none"):
        word = "off"
    if word not in MODES:
        raise UsageError(f"KIT_REPLAY must be one of {', '.join(MODES)}, got {word!r}")
    return word


def is_strict(environ: Mapping[str, str] | None = None) -> bool:
    """True if nothing may be asked of any service."""
    return mode(environ) == "strict"


def use_file(path: str | os.PathLike[str] | None) -> None:
    """Record to and replay from this file; None goes back to what the environment says. Any thread."""
    global _chosen
    _chosen = None if path is None else Path(path)


def recording_file(environ: Mapping[str, str] | None = None) -> Path:
    """The recording of this notebook: what is recorded goes there.

    `use_file`, else ``KIT_REPLAY_FILE``, else ``recordings/<notebook>.json`` in the kernel's folder; where the
    kernel was not told its notebook's name, ``recordings/notebook.json``.
    """
    return said_file(environ) or NAMELESS


def recording_files(environ: Mapping[str, str] | None = None) -> tuple[Path, ...]:
    """Where answers are looked for: `recording_file`; without a name, that one and all beside it."""
    said = said_file(environ)
    if said is not None:
        return (said,)
    return (NAMELESS, *(path for path in sorted(NAMELESS.parent.glob("*.json")) if path != NAMELESS))


def said_file(environ: Mapping[str, str] | None) -> Path | None:
    """The file that a person chose, or that bears the notebook's name."""
    if _chosen is not None:
        return _chosen
    given = (os.environ if environ is None else environ).get("KIT_REPLAY_FILE")
    if given:
        return Path(os.path.expanduser(given))
    name = notebook_name(environ)
    return Path("recordings", name).with_suffix(".json") if name else None
