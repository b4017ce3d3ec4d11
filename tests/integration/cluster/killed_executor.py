"""Topologies that wait until the test has killed an executor: tasks behind an exchange, or between the two phases."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing

from pyspark.sql import SparkSession

from spouts import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from state import DeltaMapState
from tests.integration.signals import is_first, send, wait_at
from transactional import (
    BatchBolt,
    OutputCollector,
    Topology,
    TopologyConfig,
    TopologyContext,
    TopologyDriver,
    TransactionalTopologyBuilder,
    TransactionAttempt,
    Tuple,
    run_topology,
)
from transactional.core.store import Lease
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.model.batch import BatchMetadata
from transactional.operations.cli.display import Display
from transactional.operations.launch.running import make_executor
from transactional.runtime.executors.auto.choice import ExecutorChoice, ExecutorChooser
from transactional.runtime.executors.auto.executor import GearedExecutor
from transactional.runtime.executors.spark.executor import SparkExecutor
from transactional.runtime.executors.workers.executor import WorkerExecutor

PARTITIONS, ROWS, TAKE = 2, 300, 100
WORKER = "transactional.runtime.executors.workers.serving"
"""What the process of a worker runs."""
MEETS = 1
"""The transaction that waits for the test: the first one. A later batch, once known to be small, may be worth one Spark
task only, and its tasks would wait one after another."""


class Tokens(BatchBolt):
    """Not deterministic: adds to its tuples a token that is another one whenever a task is run."""

    output = "batch long, task int, token string, word string"

    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        self.collector, self.txid, self.task = collector, attempt.txid, context.task_index
        self.token = uuid.uuid4().hex
        meet(context, attempt)

    def execute(self, tuple: Tuple) -> None:
        self.collector.emit(self.txid, self.task, self.token, tuple["word"])

    def finish_batch(self) -> None:
        pass


class Waits(BatchBolt):
    """Waits with its tuples in hand."""

    output = Tokens.output

    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        self.collector = collector
        meet(context, attempt)

    def execute(self, tuple: Tuple) -> None:
        self.collector.emit(*tuple.values)

    def finish_batch(self) -> None:
        pass


def meet(context: TopologyContext, attempt: TransactionAttempt) -> None:
    """In one transaction each task, the first time that it runs, tells the test its pid and waits at a gate.

    So all tasks of a bolt run at once, on a core each.
    """
    folder, component = context.options["folder"], context.component_id
    if attempt.txid == MEETS and is_first(f"{folder}/{component}-{context.task_index}"):
        send(f"{folder}/signals", f"{component} {os.getpid()}")
        wait_at(f"{folder}/gate-{component}")


class PlacedTokens(Tokens):
    """Its tokens say where it runs. The first task on Spark meets the test."""

    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        self.collector, self.txid, self.task = collector, attempt.txid, context.task_index
        on_spark = WORKER not in sys.orig_argv  # a bolt that uses PySpark would have to run on Spark
        self.token = f"{'Spark' if on_spark else 'workers'} {uuid.uuid4().hex}"
        folder = context.options["folder"]
        if on_spark and is_first(f"{folder}/on-spark"):
            send(f"{folder}/signals", f"{attempt.txid} {os.getpid()}")
            wait_at(f"{folder}/gate-on-spark")


class ByTurns(ExecutorChooser):
    """Each second attempt is processed on Spark."""

    number = 0

    def choose(self, records: int) -> ExecutorChoice:
        self.number += 1
        return ExecutorChoice(self.number % 2 == 0, "by turns")


class StartedExecutor(GearedExecutor):
    """Its Spark is there from the start."""

    def open(self) -> None:
        super().open()
        self._open_spark()


class Tells(BatchBolt):
    """Tells the test in which process it works on the second transaction."""

    output = "word string"

    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        self.collector = collector
        if attempt.txid == 2:
            send(f"{context.options['folder']}/signals", f"{context.component_id} {os.getpid()}")

    def execute(self, tuple: Tuple) -> None:
        self.collector.emit(tuple["word"])

    def finish_batch(self) -> None:
        pass


class WaitingStore(SqlCoordinatorStore):
    """A real store. What comes next, once it knows that the second transaction is processed, is the commit phase."""

    def record_processed(self, lease: Lease, attempt: TransactionAttempt, batch: BatchMetadata, *, at_ms: int) -> None:
        super().record_processed(lease, attempt, batch, at_ms=at_ms)
        if attempt.txid == 2 and is_first("processed"):
            send("signals", "processed")
            wait_at("gate-processed")


def words() -> list[list[tuple[str]]]:
    """Rows of both partitions."""
    return [[(f"word-{row % 7}",) for row in range(ROWS)] for _ in range(PARTITIONS)]


def build() -> Topology:
    """The topology, with its tables in the current directory."""
    folder = os.getcwd()
    spout = OpaqueMemoryTransactionalSpout(words(), fields="word string", take=TAKE)
    builder = TransactionalTopologyBuilder("killed", "words", spout, PARTITIONS)
    builder.set_bolt("tokens", Tokens(), PARTITIONS).shuffle_grouping("words")
    builder.set_bolt("waits", Waits(), 2).fields_grouping("tokens", "word")
    for name, key in (("words", ("word",)), ("tokens", ("batch", "task", "token"))):
        count = DeltaMapState(f"{folder}/{name}", key=key).count()
        builder.set_committer_bolt(f"count-{name}", count).shuffle_grouping("waits")
    return builder.build(options={"folder": folder})


def expected() -> Iterator[tuple[str, int]]:
    """Each word with its count."""
    for number in range(7):
        yield f"word-{number}", sum(row == (f"word-{number}",) for rows in words() for row in rows)


def build_to_be_processed() -> Topology:
    """Counts words twice, in each layout.

    The spout is transactional: then the store is told between processing and commit.
    """
    folder = os.getcwd()
    spout = MemoryTransactionalSpout(words(), fields="word string", take=TAKE)
    builder = TransactionalTopologyBuilder("processed", "words", spout, PARTITIONS)
    builder.set_bolt("tells", Tells(), PARTITIONS).shuffle_grouping("words")
    for layout in ("merge", "log"):
        count = DeltaMapState(f"{folder}/{layout}", key="word", layout=layout).count()
        builder.set_committer_bolt(f"by-{layout}", count).fields_grouping("tells", "word")
    return builder.build(options={"folder": folder})


def run(session: SparkSession) -> None:
    """Run the one that is killed in a shuffle until its source is drained."""
    topology = build()
    with Display(topology) as display:
        run_topology(topology, config={"stop_when_drained": True}, session=session, observers=[display])


def run_by_turns(session: SparkSession) -> None:
    """Run one that changes its gear with each attempt, three in flight."""
    folder = os.getcwd()
    spout = OpaqueMemoryTransactionalSpout(words(), fields="word string", take=TAKE // 10)
    builder = TransactionalTopologyBuilder("by-turns", "words", spout, PARTITIONS)
    builder.set_bolt("tokens", PlacedTokens(), PARTITIONS).shuffle_grouping("words")
    for name, key in (("words", ("word",)), ("tokens", ("batch", "task", "token"))):
        count = DeltaMapState(f"{folder}/{name}", key=key).count()
        builder.set_committer_bolt(f"count-{name}", count).shuffle_grouping("tokens")
    topology = builder.build(options={"folder": folder})
    config = TopologyConfig(max_spout_pending=3, stop_when_drained=True, lease_ms=120_000)
    executor = StartedExecutor(WorkerExecutor(topology), SparkExecutor(topology, session), ByTurns(PARTITIONS))
    with closing(SqlCoordinatorStore("sqlite:///transactional.db")) as store:
        TopologyDriver(topology, store, executor, config).run()


def run_to_be_processed(session: SparkSession) -> None:
    """The same with the other one."""
    topology = build_to_be_processed()
    config = TopologyConfig(max_spout_pending=2, stop_when_drained=True, lease_ms=120_000)
    with closing(WaitingStore("sqlite:///transactional.db")) as store:
        TopologyDriver(topology, store, make_executor(topology, session=session), config).run()
