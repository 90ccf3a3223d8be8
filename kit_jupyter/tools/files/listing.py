"""The tools `glob` and `ls`: which files there are."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from pathlib import Path
from typing import ClassVar

from kit_jupyter.errors import BadArguments, ToolError
from kit_jupyter.tool import ToolContext, ToolOutcome
from kit_jupyter.tools.files.fence import FileTool
from kit_jupyter.tools.files.glob_pattern import glob_pattern
from kit_jupyter.tools.workspace import Place
from kit_jupyter.trifecta import Legs

__all__ = ["GlobTool", "LsTool"]

MAX_FILES = 300
WALK_SECONDS = 30.0


class GlobTool(FileTool):
    """Find files by name."""

    name: ClassVar[str] = "glob"
    action: ClassVar[str] = "glob"
    legs: ClassVar[Legs] = Legs(private=True)
    bounds: ClassVar[str] = f"{MAX_FILES} files"
    default: ClassVar[str] = "allow; outside the workspace: ask"
    parallel_safe = True

    async def call(self, context: ToolContext, pattern: str, path: str = ".") -> ToolOutcome:
        """Find files by name pattern, newest first. What git ignores is left out.

        Parameters
        ----------
        pattern : str
            For example ``**/*.py`` or ``data/*.csv``; a pattern without ``/`` fits names in any folder.
        path : str
            Folder to look in.
        """
        if "\0" in pattern or not pattern.strip():
            raise BadArguments("- pattern: empty or with a NUL")
        place = self.place(context, path)
        if not place.path.is_dir():
            raise ToolError(f"{place.shown} is not a folder")
        found = await asyncio.to_thread(self._find, place, pattern)
        lines = [self.workspace.resolve(str(p)).shown for p in found[:MAX_FILES]]
        if len(found) > MAX_FILES:
            lines.append(f"… {len(found) - MAX_FILES:,} more")
        return ToolOutcome.of_text("\n".join(lines) or "no files")

    def _find(self, place: Place, pattern: str) -> list[Path]:
        fits = glob_pattern(pattern)
        found: list[tuple[float, Path]] = []
        deadline = time.monotonic() + WALK_SECONDS
        for path in self.workspace.files(place):
            if fits.fullmatch(path.relative_to(place.path).as_posix()):
                with contextlib.suppress(OSError):
                    found.append((-path.stat().st_mtime, path))
            if time.monotonic() > deadline:
                break
        return [path for _, path in sorted(found)]


class LsTool(FileTool):
    """List folders."""

    name: ClassVar[str] = "ls"
    action: ClassVar[str] = "ls"
    legs: ClassVar[Legs] = Legs(private=True)
    bounds: ClassVar[str] = f"{MAX_FILES} entries"
    default: ClassVar[str] = "allow; outside the workspace: ask"
    parallel_safe = True

    async def call(self, context: ToolContext, path: str = ".") -> ToolOutcome:
        """List a folder: names, sizes, folders first.

        Parameters
        ----------
        path : str
            Relative to the workspace, or absolute.
        """
        place = self.place(context, path)
        if not place.path.is_dir():
            raise ToolError(f"{place.shown} is not a folder")
        return ToolOutcome.of_text(await asyncio.to_thread(_listing, place))


def _listing(place: Place) -> str:
    try:
        entries = sorted(os.scandir(place.path), key=lambda e: (not e.is_dir(follow_symlinks=False), e.name))
    except OSError as exc:
        raise ToolError(f"{place.shown}: {exc.strerror or exc}") from None
    lines = []
    for entry in entries[:MAX_FILES]:
        if entry.is_symlink():
            lines.append(f"{entry.name} -> {os.readlink(entry.path)}")
        elif entry.is_dir():
            lines.append(f"{entry.name}/")
        else:
            with contextlib.suppress(OSError):
                lines.append(f"{entry.name}  {entry.stat().st_size:,}")
    if len(entries) > MAX_FILES:
        lines.append(f"… {len(entries) - MAX_FILES:,} more")
    return "\n".join(lines) or "(empty)"
