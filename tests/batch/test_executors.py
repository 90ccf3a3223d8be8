"""`kit.map` beyond this process: process pools, Dask, ipyparallel, and workers that die (issue 9.5)."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit_jupyter import AuthFailed, Kit, PromptOptions, UsageError
from kit_jupyter.batch.plan import asks_of, make_plan, seed_of
from kit_jupyter.batch.remote import _piece
from kit_jupyter.testing import ScriptedProvider
from tests.batch.workers import Echo, Locked

ROWS = [f"row {i}" for i in range(40)]


def answers(out: Any) -> list[Any]:
    return [row.answer for row in out]


def test_a_thread_pool_serves(tmp_path: Path) -> None:
    """Any concurrent.futures executor will do."""
    kit = Kit(provider=Echo(), session="memory")
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        out = kit.map(ROWS, "{text}", executor=pool, chunk=8, progress=False, store=False)

    assert answers(out) == [row.upper() for row in ROWS]


def test_a_process_pool_serves_and_the_store_keeps(tmp_path: Path) -> None:
    """Work travels as small picklable values; a second run sends nothing."""
    kit = Kit(provider=Echo(), session="memory")
    store = tmp_path / "s.sqlite"
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
        out = kit.map(ROWS, "{text}", executor=pool, chunk=10, progress=False, store=store)

    class Refuses(concurrent.futures.Executor):
        def submit(self, *args: Any, **kwargs: Any) -> Any:
            raise AssertionError("nothing is left to be asked")

    again = kit.map(ROWS, "{text}", executor=Refuses(), progress=False, store=store)
    assert answers(out) == answers(again) == [row.upper() for row in ROWS]


def test_a_wrong_key_of_the_workers_ends_the_map_and_keeps_what_came(tmp_path: Path) -> None:
    """The workers' fault is raised here as it was there, once and untried again; answers of its piece are kept."""
    kit = Kit(provider=Locked(), session="memory")
    store = tmp_path / "s.sqlite"
    context = multiprocessing.get_context("spawn")
    with (
        concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool,
        pytest.raises(AuthFailed, match=r"^map stopped: the key opens nothing"),
    ):
        kit.map(["a", "b", "locked"], "{text}", executor=pool, concurrency=1, progress=False, store=store)

    out = kit.map(["a", "b"], "{text}", progress=False, store=store)
    assert [(row.answer, row.is_stored) for row in out] == [("A", True), ("B", True)]


def test_no_key_travels() -> None:
    """A key in the options is refused for executors; a piece holds none (issue 9.5)."""
    kit = Kit(provider=Echo(), session="memory")
    with (
        concurrent.futures.ThreadPoolExecutor(1) as pool,
        pytest.raises(UsageError, match="keys do not travel"),
    ):
        kit.map(
            ["a"], "{text}", executor=pool, options=PromptOptions(api_key="sk-planted"), progress=False, store=False
        )
    plan = make_plan(kit, ["a"], "{text}", store=False)
    plan.seed = seed_of(plan)

    assert b"sk-" not in pickle.dumps(_piece(plan, list(asks_of(plan))))


def test_a_kit_that_cannot_travel_says_so() -> None:
    """A provider object that does not pickle is the caller's move."""
    kit = Kit(provider=ScriptedProvider(lambda request: "x", repeat_last=True), session="memory")
    context = multiprocessing.get_context("spawn")
    with (
        concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool,
        pytest.raises(UsageError, match="cannot travel"),
    ):
        kit.map(["a"], "{text}", executor=pool, progress=False, store=False)


@pytest.fixture(scope="module")
def dask_client() -> Iterator[Any]:
    distributed = pytest.importorskip("distributed", reason="needs the extra dask")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def test_a_dask_cluster_serves(dask_client: Any) -> None:
    """A real LocalCluster of several processes (issue 9.5)."""
    kit = Kit(provider=Echo(), session="memory")

    out = kit.map(ROWS, "{text}", executor=dask_client, chunk=8, concurrency=4, progress=False, store=False)

    assert answers(out) == [row.upper() for row in ROWS]


def test_a_dask_worker_that_dies_loses_nothing(dask_client: Any, tmp_path: Path) -> None:
    """A worker killed in the middle of a piece: the piece is done again elsewhere."""
    kit = Kit(provider=Echo(grave=str(tmp_path / "grave")), session="memory")
    rows = [*ROWS[:10], "die", *ROWS[10:]]

    out = kit.map(rows, "{text}", executor=dask_client, chunk=8, progress=False, store=False)

    assert (tmp_path / "grave").exists()
    assert answers(out) == [row.upper() for row in rows]


def test_a_process_pool_that_breaks_gives_errors_and_keeps_the_rest(tmp_path: Path) -> None:
    """A broken pool cannot be used again: its rows say so, nothing is raised."""
    kit = Kit(provider=Echo(grave=str(tmp_path / "grave")), session="memory")
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        out = kit.map(["a", "die", "b"], "{text}", executor=pool, chunk=1, concurrency=1, progress=False, store=False)

    assert out[0].answer == "A"
    assert "the worker failed" in out[1].error


@pytest.fixture(scope="module")
def parallel_client() -> Iterator[Any]:
    ipyparallel = pytest.importorskip("ipyparallel", reason="needs the extra ipyparallel")
    with ipyparallel.Cluster(n=2, log_level=40) as client:
        client.wait_for_engines(2, timeout=60)
        yield client


def test_an_ipyparallel_cluster_serves(parallel_client: Any) -> None:
    """A real cluster of engines (issue 9.5)."""
    kit = Kit(provider=Echo(), session="memory")

    out = kit.map(ROWS, "{text}", executor=parallel_client, chunk=8, progress=False, store=False)

    assert answers(out) == [row.upper() for row in ROWS]


def test_an_ipyparallel_engine_that_dies_loses_nothing(parallel_client: Any, tmp_path: Path) -> None:
    """The piece of a dead engine goes to another."""
    kit = Kit(provider=Echo(grave=str(tmp_path / "grave")), session="memory")

    out = kit.map(["a", "die", "b"], "{text}", executor=parallel_client, chunk=1, progress=False, store=False)

    assert answers(out) == ["A", "DIE", "B"]
