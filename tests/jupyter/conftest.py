"""Real kernels, one per test module."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from kernels import Kernel, kernel


@pytest.fixture(scope="module")
def nb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    """A kernel with kit loaded and its data in a folder of its own."""
    home = tmp_path_factory.mktemp("home")
    with kernel({"XDG_DATA_HOME": str(home), "IPYTHONDIR": str(home / "ipython"), "KIT_UI": ""}) as it:
        yield it
