"""Where things lie: the user's folders, a project's root, the folder of its sessions."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Literal

from kit_jupyter.errors import UsageError

__all__ = ["cache_dir", "config_dir", "data_dir", "project_root", "sessions_dir", "storable", "working_dir"]


def data_dir() -> Path:
    """Where sessions and memories lie: ``KIT_DATA_DIR``, else the user's data folder."""
    own = os.environ.get("KIT_DATA_DIR")
    return Path(own) if own else _user_dir("data")


def config_dir() -> Path:
    """The user's folder for our configuration; ``KIT_CONFIG_DIR`` moves it."""
    own = os.environ.get("KIT_CONFIG_DIR")
    return Path(os.path.expanduser(own)) if own else _user_dir("config")


def cache_dir() -> Path:
    """The user's folder for what can be had again; not created here."""
    return _user_dir("cache")


def _user_dir(kind: Literal["data", "config", "cache"]) -> Path:
    import platformdirs

    folders = platformdirs.PlatformDirs("kit-jupyter", appauthor=False)
    try:
        return Path(str(getattr(folders, f"user_{kind}_dir")))
    except RuntimeError as exc:  # a container that runs as a user whom the system does not know
        raise UsageError(f"the user's {kind} folder is not known ({exc}); set HOME") from exc


def working_dir() -> str:
    """The working directory; empty when it has been removed under our feet."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def storable(path: object) -> str:
    """A path as text for a file or a wire: a name that is no Unicode, as old disks have them, has signs replaced."""
    text = str(path)
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def project_root(cwd: Path | None = None) -> Path:
    """The folder a project is known by: the nearest upwards with ``.git`` or ``pyproject.toml``, else `cwd`."""
    return _root_of(str(cwd) if cwd is not None else working_dir() or os.path.expanduser("~"))


@lru_cache(maxsize=64)  # asked for each stored answer
def _root_of(cwd: str) -> Path:
    here = Path(cwd).resolve()
    for folder in (here, *here.parents):
        if (folder / ".git").exists() or (folder / "pyproject.toml").exists():
            return folder
    return here


def sessions_dir(cwd: Path | None = None) -> Path:
    """The folder of a project's sessions."""
    root = project_root(cwd)
    digest = blake2b(str(root).encode("utf-8", "surrogateescape"), digest_size=4).hexdigest()
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", root.name) or "root"
    return data_dir() / "sessions" / f"{slug[:40]}-{digest}"
