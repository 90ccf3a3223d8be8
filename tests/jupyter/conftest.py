"""Real kernels, one per test module.

``KIT_IPYKERNEL=6.29.5`` runs them all on that ipykernel instead of the installed one; ``make matrix`` does so for
several. Without it the older one has its own tests (`test_old_kernel`, and the tools').
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from kernels import Kernel, kernel, overlay


@pytest.fixture(scope="session")
def kernel_on() -> Callable[..., AbstractContextManager[Kernel]]:
    """Starts a kernel with kit loaded, its data in `home`, on a version of ipykernel ("" for the installed one)."""

    def start(home: Path, version: str = "", **more: Any) -> AbstractContextManager[Kernel]:
        env = {"XDG_DATA_HOME": str(home), "IPYTHONDIR": str(home / "ipython"), "KIT_UI": ""}
        if version:
            env["PYTHONPATH"] = os.pathsep.join(filter(None, (overlay(version), os.environ.get("PYTHONPATH", ""))))
        return kernel(env, **more)

    return start


@pytest.fixture(scope="module")
def nb(
    tmp_path_factory: pytest.TempPathFactory, kernel_on: Callable[..., AbstractContextManager[Kernel]]
) -> Iterator[Kernel]:
    """A kernel with kit loaded and its data in a folder of its own."""
    with kernel_on(tmp_path_factory.mktemp("home"), os.environ.get("KIT_IPYKERNEL", "")) as it:
        yield it
