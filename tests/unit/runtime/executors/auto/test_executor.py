"""One run in two gears: each transaction is processed in one of them, and counts once."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

from state.memory import MemoryTable
from tests.unit.fakes import WORD_COUNTS, builder, counts, opaque_words, stored, words
from transactional.core.machine.protocol import RecordCommit
from transactional.core.ports import Processed
from transactional.errors import AttemptLost, ConfigError, FatalError, WorkerDied
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.batch import EMPTY_BATCH, BatchMetadata
from transactional.model.config import TopologyConfig
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.executors.auto.choice import ExecutorChoice, ExecutorChooser
from transactional.runtime.executors.auto.executor import GearedExecutor
from transactional.runtime.executors.local import LocalExecutor
from transactional.testing import MemoryCoordinatorStore
from transactional.topology.topology import Topology


class Drawn(ExecutorChooser):
    """Draws an executor for each attempt."""

    def __init__(self, seed: int) -> None:
        super().__init__(4)
        self.draw = random.Random(seed)

    def choose(self, records: int) -> ExecutorChoice:
        return ExecutorChoice(self.draw.random() < 0.5, "drawn")


class Loses(LocalExecutor):
    """Some attempts are lost, as to a process that was killed; notes what is open, and which attempts have run."""

    def __init__(self, topology: Topology, draw: random.Random) -> None:
        super().__init__(topology)
        self.draw, self.ran, self.is_open = draw, list[TransactionAttempt](), False

    def open(self) -> None:
        super().open()
        self.is_open = True

    def run(self, attempt: TransactionAttempt, batch: BatchMetadata) -> Processed:
        assert self.is_open
        self.ran.append(attempt)
        if self.draw.random() < 0.3:
            raise AttemptLost("killed")
        return super().run(attempt, batch)

    def close(self) -> None:
        self.is_open = False


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("spout", [words, opaque_words])
def test_whatever_executor_is_drawn_each_tuple_counts_once(seed: int, spout: Any) -> None:
    table, draw = MemoryTable("counts"), random.Random(seed)
    made = builder(spout(take=1), parallelism=2)
    made.set_committer_bolt("count", counts(table).count()).fields_grouping("spout", "word")
    topology = made.build()
    workers, spark = Loses(topology, draw), Loses(topology, draw)
    told = list[str]()

    def note(at_ms: int, event: Any, actions: Any) -> None:
        told.extend(str(action.report) for action in actions if isinstance(action, RecordCommit))

    executor = GearedExecutor(workers, spark, Drawn(seed))
    config = TopologyConfig(stop_when_drained=True, retry_pause_ms=1, max_spout_pending=3)
    TopologyDriver(topology, MemoryCoordinatorStore(), executor, config, observers=[note]).run()
    assert stored(table) == WORD_COUNTS
    assert not set(workers.ran) & set(spark.ran)
    assert {line.partition(":")[0] for line in told} <= {"processed in workers", "processed on Spark"}
    assert not workers.is_open


class Slow(LocalExecutor):
    """Starts when it is let."""

    def __init__(self, topology: Topology, error: Exception | None = None) -> None:
        super().__init__(topology)
        self.gate, self.error, self.closed = threading.Event(), error, threading.Event()

    def open(self) -> None:
        self.gate.wait()
        if self.error is not None:
            raise self.error
        super().open()

    def close(self) -> None:
        self.closed.set()


class OnSpark(ExecutorChooser):
    """Everything is quicker there."""

    def choose(self, records: int) -> ExecutorChoice:
        return ExecutorChoice(True, "always")


def topology_of_words(table: MemoryTable, take: int = 1) -> Topology:
    made = builder(words(take=take))
    made.set_committer_bolt("count", counts(table).count()).fields_grouping("spout", "word")
    return made.build()


def test_transactions_go_on_in_workers_while_spark_starts() -> None:
    table = MemoryTable("counts")
    topology = topology_of_words(table)
    spark = Slow(topology)
    executor = GearedExecutor(LocalExecutor(topology), spark, OnSpark(4))
    told = list[str]()

    def note(at_ms: int, event: Any, actions: Any) -> None:
        told.extend(str(action.report) for action in actions if isinstance(action, RecordCommit))
        if len(told) == 3:
            spark.gate.set()

    config = TopologyConfig(stop_when_drained=True)
    TopologyDriver(topology, MemoryCoordinatorStore(), executor, config, observers=[note]).run()
    assert stored(table) == WORD_COUNTS
    assert told[:3] == ["processed in workers: Spark is starting"] * 3
    assert set(told[3:]) <= {"processed in workers: Spark is starting", "processed on Spark: always"}


def test_one_that_is_still_starting_when_the_run_ends_is_closed_then() -> None:
    table = MemoryTable("counts")
    topology = topology_of_words(table, take=9)
    spark = Slow(topology)
    executor = GearedExecutor(LocalExecutor(topology), spark, OnSpark(4))
    TopologyDriver(topology, MemoryCoordinatorStore(), executor, TopologyConfig(stop_when_drained=True)).run()
    assert not spark.closed.is_set()
    spark.gate.set()
    assert spark.closed.wait(60)


def test_a_spark_that_is_never_needed_is_never_started() -> None:
    table = MemoryTable("counts")
    topology = topology_of_words(table)
    spark = Slow(topology)
    executor = GearedExecutor(LocalExecutor(topology), spark, ExecutorChooser(4))
    TopologyDriver(topology, MemoryCoordinatorStore(), executor, TopologyConfig(stop_when_drained=True)).run()
    assert stored(table) == WORD_COUNTS
    assert not spark.closed.is_set()


def test_a_spark_that_can_not_start_ends_the_run_and_what_was_committed_stays() -> None:
    table, store = MemoryTable("counts"), MemoryCoordinatorStore()
    topology = topology_of_words(table)
    spark = Slow(topology, ConfigError("no such master"))
    spark.gate.set()
    executor = GearedExecutor(LocalExecutor(topology), spark, OnSpark(4))
    with pytest.raises(FatalError, match="Spark could not be started: no such master"):
        TopologyDriver(topology, store, executor, TopologyConfig(idle_pause_ms=1)).run()
    assert spark.closed.is_set(), "it counts as a user of its session otherwise"
    [status] = store.status("words")
    assert sum(stored(table).values()) == 3 * status.committed_txid


class Dies(LocalExecutor):
    """A process dies of the first attempt."""

    has_died = False

    def run(self, attempt: TransactionAttempt, batch: BatchMetadata) -> Processed:
        if not Dies.has_died:
            Dies.has_died = True
            raise WorkerDied("exited unexpectedly")
        return super().run(attempt, batch)


@pytest.mark.parametrize(
    ("workers_find_tuples", "expected"), [(True, "in workers: a pro"), (False, "on Spark: always")]
)
def test_what_a_process_has_died_of_is_processed_where_tuples_are_found(
    workers_find_tuples: bool,  # noqa: FBT001
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Dies, "has_died", False)
    topology = topology_of_words(MemoryTable("counts"), take=9)
    executor = GearedExecutor(
        LocalExecutor(topology), Dies(topology), OnSpark(4), workers_find_tuples=workers_find_tuples
    )
    executor.open()
    executor._open_spark()
    batch = topology.spout.plan(EMPTY_BATCH, replay=False)
    assert batch is not None
    first, second, other = (TransactionAttempt(TxId(txid), AttemptId(n)) for txid, n in ((1, 1), (1, 2), (2, 3)))
    with pytest.raises(WorkerDied):
        executor.run(first, batch)
    assert executor.run(second, batch).executor.startswith(expected)
    assert executor.run(other, batch).executor == "on Spark: always"
