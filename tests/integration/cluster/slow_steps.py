"""A topology whose steps are Spark jobs, and wait in the second transaction until the test has killed an executor, or
Spark runs a second copy of a task.

`python -m tests.integration.cluster.slow_steps MASTER CONF=VALUE …`
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from contextlib import closing

from spouts import OpaqueMemoryTransactionalSpout
from state import DeltaMapState
from state.delta.segments.log_layout import LogLayout
from tests.integration.signals import is_first, send, wait_at
from transactional import (
    KeyValueState,
    OutputCollector,
    StatefulBolt,
    Topology,
    TopologyConfig,
    TopologyContext,
    TopologyDriver,
    TransactionalTopologyBuilder,
    Tuple,
)
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.operations.launch.running import make_executor
from transactional.runtime.spark.session import spark_session

PARTITIONS, ROWS, TAKE, EXECUTIONS = 2, 300, 100, 3
STAGED = LogLayout(staged_bytes=0, compact_after=None)


class Seen(StatefulBolt):
    """How often a word has changed. With all of its tuples in hand, it tells the test its pid, and waits: each
    execution of task 0 at a gate of its own."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def prepare(self, context: TopologyContext, collector: OutputCollector) -> None:
        super().prepare(context, collector)
        self.task = context.task_index

    def init_state(self, state: KeyValueState) -> None:
        self.times = state

    def execute(self, tuple: Tuple) -> None:
        self.times.put(tuple.word, self.times.get(tuple.word, 0) + 1)

    def pre_prepare(self, txid: int) -> None:
        if txid == 2 and self.task == 0:
            for number in range(EXECUTIONS):
                if is_first(f"{self.folder}/execution-{number}"):
                    send(f"{self.folder}/signals", f"{number} {os.getpid()}")
                    wait_at(f"{self.folder}/gate-{number}")
                    break


def state(folder: str, name: str, values: str = "") -> DeltaMapState:
    """A table that tasks write."""
    return DeltaMapState(f"{folder}/{name}", "word string", values, layout=STAGED)


def build() -> Topology:
    """Counts of words, emitted as they change, and how often each has changed: two steps, both of them jobs."""
    folder = os.getcwd()
    spout = OpaqueMemoryTransactionalSpout(words(), fields="word string", take=TAKE)
    builder = TransactionalTopologyBuilder("slow", "words", spout, PARTITIONS)
    builder.set_committer_bolt("counts", state(folder, "counts").count()).fields_grouping("words", "word")
    seen = state(folder, "seen", "times long")
    builder.set_stateful_bolt("seen", Seen(folder), 2, state=seen).fields_grouping("counts", "word")
    return builder.build()


def words() -> list[list[tuple[str]]]:
    """Rows of both partitions. All words are in every transaction."""
    return [[(f"word-{row % 7}",) for row in range(ROWS)] for _ in range(PARTITIONS)]


def expected() -> Counter[str]:
    """Each word with its count."""
    return Counter(word for rows in words() for (word,) in rows)


def main() -> None:
    """Run it until the source is drained. What an outage costs is no attempt."""
    topology = build()
    conf = dict(each.split("=", 1) for each in sys.argv[2:])
    session = spark_session("slow steps", master=sys.argv[1], conf=conf)
    config = TopologyConfig(stop_when_drained=True, attempts_max=2, commit_steps="jobs", lease_ms=120_000)
    with closing(SqlCoordinatorStore("sqlite:///transactional.db")) as store:
        TopologyDriver(topology, store, make_executor(topology, session=session), config).run()
    session.stop()


if __name__ == "__main__":
    main()
