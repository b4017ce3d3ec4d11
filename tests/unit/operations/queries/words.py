"""A word count with queries, over states of any kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spouts.memory import OpaqueMemoryTransactionalSpout
from transactional.core.ports import State
from transactional.core.store import CoordinatorStore
from transactional.model.config import TopologyConfig
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.executors.local import LocalExecutor
from transactional.testing import MemoryCoordinatorStore
from transactional.topology.topology import Topology
from transactional.trident import Avg, Count, Stream, Sum, TridentTopology

Rows = list[tuple[Any, ...]]


def word_count(words: State, sizes: State, batches: Sequence[Rows], *, take: int = 2) -> Topology:
    """Counts words, and the words of each length; each query asks one or both."""
    topology = TridentTopology("words")
    spout = OpaqueMemoryTransactionalSpout(
        [[row for batch in batches for row in batch]], fields="word string, n long", take=take
    )
    stream = topology.new_stream("lines", spout)
    counts = stream.group_by("word").persistent_aggregate(words, count=Count(), mean=Avg("n"))
    by_size = stream.group_by("n").persistent_aggregate(sizes, words=Count())

    @topology.query("count_of", "word string")
    def count_of(questions: Stream) -> Stream:
        return questions.state_query(counts)

    @topology.query("both", "line string")
    def both(questions: Stream) -> Stream:
        words = questions.flat_map(
            lambda row: [(word, len(word)) for word in row.line.split()], "word string, size long"
        )
        return words.state_query(counts, on="word", output=["count", "total", "parts", "mean"]).state_query(
            by_size, on="size"
        )

    @topology.query("total", "line string")
    def total(questions: Stream) -> Stream:
        words = questions.flat_map(lambda row: row.line.split(), "word string")
        return words.state_query(counts).aggregate(total=Sum("count"), words=Count())

    @topology.query("shout", "line string")
    def shout(questions: Stream) -> Stream:
        return questions.map(lambda row: 1 / len(row.line), "size double")

    return topology.build(strict=True)


def run(topology: Topology, store: CoordinatorStore | None = None) -> CoordinatorStore:
    """Run it until it is drained, without Spark."""
    store = store or MemoryCoordinatorStore()
    config = TopologyConfig(attempts_max=3, retry_pause_ms=1, stop_when_drained=True)
    TopologyDriver(topology, store, LocalExecutor(topology), config).run()
    return store
