"""Steps of the commit phase as Spark jobs: a stateful bolt leaves what it leaves in the driver, whatever Spark does."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from examples.stateful_words import WordCount
from spouts import MemoryTransactionalSpout
from state.delta.segments.folding import LogLayout
from state.delta.state import DeltaMapState
from state.delta.tables.staging import RUNS
from tests.contract.states import content
from transactional.config import TopologyConfig
from transactional.engine.driver import TopologyDriver
from transactional.spark.executor import SparkExecutor
from transactional.testing import MemoryCoordinatorStore
from transactional.topology.builder import TransactionalTopologyBuilder

pytestmark = pytest.mark.spark
ROWS = [[(f"w{number * 7 % 40}",) for number in range(of, 300, 2)] for of in (0, 1)]


def run(folder: Path, session: SparkSession, choice: str) -> tuple[DeltaMapState, DeltaMapState]:
    """Run a topology to its end: the stateful bolt's state, and that of an update behind it."""
    builder = TransactionalTopologyBuilder("words", "lines", MemoryTransactionalSpout(ROWS, "word string", take=50), 2)
    layout = LogLayout(fold_after=None, staged_bytes=0)
    state = DeltaMapState(folder / "count", "word string", "count long", layout=layout)
    builder.set_stateful_bolt("count", WordCount(), 3, state=state).fields_grouping("lines", "word")
    seen = DeltaMapState(folder / "seen", "word string, count long", "times long", layout=layout)
    builder.set_committer_bolt("seen", seen.count("times")).fields_grouping("count", "word", "count")
    topology = builder.build()
    config = TopologyConfig(stop_when_drained=True, attempts_max=1, commit_steps=choice)
    TopologyDriver(topology, MemoryCoordinatorStore(), SparkExecutor(topology, session), config).run()
    return state, seen


def test_a_job_leaves_what_the_driver_leaves(tmp_path: Path, spark: SparkSession) -> None:
    made = {choice: run(tmp_path / choice, spark, choice) for choice in ("driver", "jobs")}
    expected = Counter(word for rows in ROWS for (word,) in rows)
    assert content(made["jobs"][0]) == content(made["driver"][0]) == expected
    assert content(made["jobs"][1]) == content(made["driver"][1])
    assert set(content(made["jobs"][1]).values()) == {1}
    left = {path.suffix for path in (tmp_path / "jobs" / "count" / RUNS).iterdir()}
    assert left == {".parquet"}, "tasks have staged what they have written, and what was for this attempt only is gone"
