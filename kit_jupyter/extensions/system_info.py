"""What this machine is, in the system prompt: probed once, told the same at each clear."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Sequence
from importlib import metadata

from kit_jupyter.extension import Configurator, Extension, once

__all__ = ["SystemInfo", "probe"]

# fmt: off
PACKAGES = (
    "numpy", "pandas", "polars", "scipy", "scikit-learn", "matplotlib", "plotly", "torch", "jax", "tensorflow",
    "xarray", "dask", "pyarrow", "sympy", "duckdb",
)
# fmt: on


def _versions(names: Sequence[str]) -> list[str]:
    found = []
    for name in names:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return found


def _memory_gib() -> float | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    except (AttributeError, ValueError, OSError):
        return None


def _gpus() -> list[str]:
    command = shutil.which("nvidia-smi")
    if command is None:
        return []
    try:
        said = subprocess.run(
            [command, "--query-gpu=name,memory.total", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=3,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in said.stdout.splitlines() if line.strip()]


def probe() -> str:
    """Python, kernel, operating system, hardware and scientific packages, a line each."""
    kernel = _versions(["ipykernel", "jupyterlab"])
    memory = _memory_gib()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    hardware = f"{cores} core{'s' * (cores != 1)}" + (f", {memory:.0f} GiB memory" if memory else "")
    lines = [
        f"Python {platform.python_version()}" + (f", {', '.join(kernel)}" if kernel else ""),
        f"{platform.system()} {platform.release()}, {platform.machine()}, {hardware}",
        *(f"GPU: {gpu}" for gpu in _gpus()),
    ]
    if packages := _versions(PACKAGES):
        lines.append(f"Installed: {', '.join(packages)}")
    return "\n".join(lines)


class SystemInfo(Extension):
    """Tells the model what it runs on, so that it need not ask.

    Parameters
    ----------
    probe : callable -> str
        What finds it out; called once, in `configure`.

    Examples
    --------
    >>> info = SystemInfo(lambda: "Python 3.11")
    >>> info.system_prompt_snippets()
    ['This machine:\\nPython 3.11']
    """

    name = "SystemInfo"

    def __init__(self, probe: Callable[[], str] = probe) -> None:
        self._known = once(probe)

    def configure(self, c: Configurator) -> None:
        """Probe now, so that no snippet is slow."""
        self._known()

    def system_prompt_snippets(self) -> list[str]:
        """The same section each time."""
        return [f"This machine:\n{self._known()}"]
