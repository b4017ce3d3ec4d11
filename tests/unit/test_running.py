"""`run_topology`: a topology, a store by its URL and a place to run, in one call."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.drivers import DRAINED, Recorder, World
from tests.unit.fakes import WORD_COUNTS, stored
from transactional.driver import RunSummary
from transactional.errors import ConfigError
from transactional.loading import open_store
from transactional.local_executor import LocalExecutor
from transactional.protocol import RecordCommit
from transactional.running import make_executor, run_topology


def test_a_topology_runs_over_a_store_in_a_file(tmp_path: Path) -> None:
    world, recorder, url = World(), Recorder(), f"sqlite:///{tmp_path}/store.db"
    summary = run_topology(world.topology(), store=url, config=DRAINED, master="none", observers=[recorder])
    assert summary == RunSummary(1, 3, 0)  # type: ignore[arg-type]
    assert stored(world.counts) == WORD_COUNTS
    assert len(recorder.of(RecordCommit)) == 3
    store = open_store(url)
    [status] = store.status()
    assert (status.topology_id, status.committed_txid, status.is_leased) == ("words", 3, False)
    store.close()
    assert run_topology(world.topology(), store=url, config=DRAINED, master="none").transactions == 0


def test_without_spark_bolts_run_in_this_process() -> None:
    assert isinstance(make_executor(World().topology(), master="none"), LocalExecutor)


def test_a_store_that_nobody_knows_is_told() -> None:
    with pytest.raises(ConfigError, match=r"^no store for 'redis' URLs; known: postgresql, sqlite"):
        run_topology(World().topology(), store="redis://localhost", master="none")
