"""`kit.map` on a real Ray cluster of this machine (issue 9.5); `make matrix` installs Ray and runs this."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit_jupyter import Kit
from tests.batch.workers import Echo

ray: Any = pytest.importorskip("ray", reason="Ray is not installed here; make matrix installs it beside")

ROOT = Path(__file__).parents[2]
ROWS = [f"row {i}" for i in range(40)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two workers; they find the tests by PYTHONPATH."""
    env = {"PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "disabled"}
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": env})
    yield ray
    ray.shutdown()


def test_a_ray_cluster_serves(cluster: Any, tmp_path: Path) -> None:
    """Pieces are answered by Ray's workers; a second run sends nothing."""
    kit = Kit(provider=Echo(), session="memory")

    out = kit.map(ROWS, "{text}", executor=cluster, chunk=8, progress=False, store=tmp_path / "s")
    again = kit.map(ROWS, "{text}", executor=cluster, chunk=8, progress=False, store=tmp_path / "s")

    assert [row.answer for row in out] == [row.upper() for row in ROWS]
    assert all(row.is_stored for row in again)


def test_a_ray_worker_that_dies_loses_nothing(cluster: Any, tmp_path: Path) -> None:
    """A worker killed in the middle of a piece: the piece is done again elsewhere."""
    kit = Kit(provider=Echo(grave=str(tmp_path / "grave")), session="memory")
    rows = [*ROWS[:10], "die", *ROWS[10:]]

    out = kit.map(rows, "{text}", executor=cluster, chunk=8, progress=False, store=False)

    assert (tmp_path / "grave").exists()
    assert [row.answer for row in out] == [row.upper() for row in rows]
