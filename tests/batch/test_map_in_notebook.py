"""What `kit.map` leaves in a notebook: its errors, its bar (U50, U80)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.jupyter.kernels import Kernel, kernel

ROOT = Path(__file__).parents[2]
SETUP = """
from concurrent.futures import ThreadPoolExecutor
from kit_jupyter import Kit
from kit_jupyter.errors import AuthFailed
from kit_jupyter.testing import ScriptedProvider, provider_error
kit = Kit(provider=ScriptedProvider([provider_error("auth_failed", "wrong key")], repeat_last=True), session="memory")
"""


@pytest.fixture(scope="module")
def nb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    folder = str(tmp_path_factory.mktemp("kernel"))
    with kernel({"IPYTHONDIR": folder, "KIT_DATA_DIR": folder, "PYTHONPATH": str(ROOT)}, setup=SETUP) as it:
        yield it


@pytest.mark.parametrize(
    ("code", "name", "words"),
    [
        ("kit.map(['a'], 'Say {nope}', store=False, progress=False)", "UsageError", "{nope}, which is no column"),
        ("kit.map(['a'], 'Say {text}', store=False, progress=False)", "AuthFailed", "map stopped: wrong key"),
        (
            "from kit_jupyter.batch import amap_rows\n"
            "await amap_rows(kit, ['a'], 'Say {text}', store=False, progress=False)",
            "AuthFailed",
            "map stopped: wrong key",
        ),
        (
            "from tests.batch.workers import Locked\n"
            "far = Kit(provider=Locked(), session='memory')\n"
            "far.map(['locked', 'b'], '{text}', executor=ThreadPoolExecutor(1), store=False, progress=False)",
            "AuthFailed",
            "the key opens nothing",
        ),
    ],
    ids=("a mark", "a key", "awaited", "a worker's thread"),
)
def test_what_ends_a_map_is_the_cells_error(nb: Kernel, code: str, name: str, words: str) -> None:
    """An error output with our class and one line, as runners and CI read it; nothing on stderr in its place (U50)."""
    said = nb.run(code)

    [error] = said.of("error")
    assert said.reply["status"] == "error"
    assert said.reply["ename"] == error["ename"] == name
    assert words in error["evalue"]
    assert "\n" not in error["evalue"]
    assert error["traceback"]
    assert said.stream == ""
