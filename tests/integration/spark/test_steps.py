"""Steps of the commit phase as Spark jobs: a stateful bolt leaves what it leaves in the driver, whatever Spark does."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from examples.stateful_words import WordCount
from spouts import MemoryTransactionalSpout
from state.delta.segments.log_layout import LogLayout
from state.delta.state import DeltaMapState
from state.delta.tables.staging import STAGED_FOLDER
from tests.contract.states import content
from tests.integration.signals import Gate, Signals, has_ended
from tests.integration.spark.bolts import WaitsToCount
from transactional.errors import AttemptLost
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.batch import BatchMetadata, Offset, OffsetRange, PartitionId
from transactional.model.config import TopologyConfig
from transactional.runtime.commit.committing import CommitPhase
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.executors.spark.executor import SparkExecutor
from transactional.testing import MemoryCoordinatorStore
from transactional.topology.builder import TransactionalTopologyBuilder

pytestmark = pytest.mark.spark
ROWS = [[(f"w{number * 7 % 40}",) for number in range(of, 300, 2)] for of in (0, 1)]


def run(folder: Path, session: SparkSession, choice: str) -> tuple[DeltaMapState, ...]:
    """Run a topology to its end: the stateful bolt's state, and those of an update behind it and of one behind that."""
    builder = TransactionalTopologyBuilder("words", "lines", MemoryTransactionalSpout(ROWS, "word string", take=50), 2)
    layout = LogLayout(compact_after=None, staged_bytes=0)
    state = DeltaMapState(folder / "count", "word string", "count long", layout=layout)
    builder.set_stateful_bolt("count", WordCount(), 3, state=state).fields_grouping("lines", "word")
    seen = DeltaMapState(folder / "seen", "word string, count long", "times long", layout=layout)
    builder.set_committer_bolt("seen", seen.count("times")).fields_grouping("count", "word", "count")
    total = DeltaMapState(folder / "total", "word string", "total long", layout=layout)
    builder.set_committer_bolt("total", total.sum("times", "total")).fields_grouping("seen", "word")
    topology = builder.build()
    config = TopologyConfig(stop_when_drained=True, attempts_max=1, commit_steps=choice)
    TopologyDriver(topology, MemoryCoordinatorStore(), SparkExecutor(topology, session), config).run()
    return state, seen, total


def test_a_job_leaves_what_the_driver_leaves(tmp_path: Path, spark: SparkSession) -> None:
    made = {choice: run(tmp_path / choice, spark, choice) for choice in ("driver", "jobs")}
    expected = Counter(word for rows in ROWS for (word,) in rows)
    assert content(made["jobs"][0]) == content(made["driver"][0]) == expected
    assert [content(state) for state in made["jobs"][1:]] == [content(state) for state in made["driver"][1:]]
    assert content(made["jobs"][2]) == expected, "each new value was added once"
    assert set(content(made["jobs"][1]).values()) == {1}
    left = {path.suffix for path in (tmp_path / "jobs" / "count" / STAGED_FOLDER).iterdir()}
    assert left == {".parquet"}, "tasks have staged what they have written, and what was for this attempt only is gone"


def test_of_a_step_that_is_cancelled_nothing_is_seen(
    tmp_path: Path, spark: SparkSession, signals: Signals, gate: Gate
) -> None:
    state = DeltaMapState(
        tmp_path / "t", "word string", "count long", layout=LogLayout(compact_after=None, staged_bytes=0)
    )
    builder = TransactionalTopologyBuilder("words", "lines", MemoryTransactionalSpout(ROWS, "word string", take=150), 2)
    builder.set_stateful_bolt("count", WaitsToCount(signals.pipe, gate.path), 2, state=state).fields_grouping(
        "lines", "word"
    )
    topology = builder.build()
    state.open("words/count", lambda attempt_id: TxId(1))
    executor = SparkExecutor(topology, spark)
    executor.open()
    phase = CommitPhase(topology, jobs=executor, choice="jobs")
    batch = BatchMetadata({PartitionId("memory", of): OffsetRange(Offset(0), Offset(150)) for of in (0, 1)})
    first, second = (TransactionAttempt(TxId(1), AttemptId(number)) for number in (1, 2))
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(phase.run, first, executor.run(first, batch))
        workers = [int(signals.receive().removeprefix("running ")) for _ in range(2)]
        executor.cancel(first)
        with pytest.raises(AttemptLost, match=r"step 'count' of transaction 1.*\n?.*cancelled"):
            running.result(60)
    assert [has_ended(worker) for worker in workers] == [True, True]
    gate.open()
    assert content(state) == {}
    phase.run(second, executor.run(second, batch))
    assert content(state) == Counter(word for rows in ROWS for (word,) in rows)
