"""Rules from files, ``AGENTS.md`` and ``MACHINE.md``, in the system prompt; read again at each clear."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kit_jupyter.extension import Extension, ExtensionContext
from kit_jupyter.places import config_dir
from kit_jupyter.session import project_root
from kit_jupyter.tool import Tool
from kit_jupyter.trifecta import Contribution, Legs

__all__ = ["Rules"]

_LIMIT = 32_000


class Rules(Extension):
    """Adds what rule files say to the system prompt.

    For each name the user's configuration folder is read first, then every folder from the project's
    root down to `folder`: what stands nearer comes later, and so has the last word.

    Parameters
    ----------
    folder : Path or None
        Where to begin; None for the working directory at each reading.
    names : sequence of str
        File names.

    Notes
    -----
    No file: no section. A link in the project that leads out of it is not followed, with a warning: it could
    point to your secrets. A file longer than 32 000 characters is cut, and the section says so. A file
    of the project may have been written by others; the trifecta report counts it as soft untrusted text.

    Examples
    --------
    >>> Rules(names=["NO-SUCH-FILE.md"]).system_prompt_snippets()
    []
    """

    name = "Rules"

    def __init__(self, folder: Path | str | None = None, *, names: Sequence[str] = ("AGENTS.md", "MACHINE.md")) -> None:
        self._folder = None if folder is None else Path(folder)
        self._names = tuple(names)
        self._ctx: ExtensionContext | None = None

    def bind(self, ctx: ExtensionContext) -> None:
        """Keep the context, for warnings."""
        self._ctx = ctx

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that are read now, in order."""
        here = (self._folder or Path.cwd()).resolve()
        root = project_root(here)
        between = [folder for folder in (here, *here.parents) if folder == root or root in folder.parents]
        folders = [config_dir(), *reversed(between)]
        candidates = dict.fromkeys(folder / name for name in self._names for folder in folders)
        return tuple(path for path in candidates if path.is_file() and self._stays(path, root))

    def _stays(self, path: Path, root: Path) -> bool:
        if path.parent == config_dir() or root in path.resolve().parents:
            return True
        if self._ctx is not None:
            self._ctx.warn(f"{path} is a link that leads out of the project, to {path.resolve()}; it is not used")
        return False

    def system_prompt_snippets(self) -> list[str]:
        """One section per file, as it is on disk now."""
        return [section for path in self.files if (section := self._read(path))]

    def _read(self, path: Path) -> str:
        try:
            text = path.read_text("utf-8", errors="replace").strip()
        except OSError as exc:
            if self._ctx is not None:
                self._ctx.warn(f"{path} could not be read: {exc.strerror or exc}")
            return ""
        if not text:
            return ""
        if len(text) > _LIMIT:
            text = f"{text[:_LIMIT]}\n[cut here: the file has {len(text)} characters]"
        return f"# {path.name} ({path.parent})\n\n{text}"

    def trifecta_contribution(self, tools: Sequence[Tool]) -> Contribution | None:
        """Soft untrusted text, when a file of the project is read."""
        own = config_dir().resolve()
        foreign = [path for path in self.files if own not in path.resolve().parents]
        return Contribution(label="Rules", legs=Legs(untrusted="soft")) if foreign else None
