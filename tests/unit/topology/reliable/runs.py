"""Runs of topologies whose bolts fail as a test says, over a store that outlives them; what their bolts were given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from spouts.memory import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from transactional.bolts import BasicBolt, OutputCollector
from transactional.model.config import TopologyConfig
from transactional.model.user_code.tuples import Tuple
from transactional.reliable import TopologyBuilder
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.executors.local import LocalExecutor
from transactional.testing import MemoryCoordinatorStore
from transactional.topology.topology import Topology

Fails = Callable[[str, int], Any]
"""Whether a bolt fails on a word that it is given for the n-th time; it may raise by itself."""


@dataclass
class Given:
    """What bolts were given, and how often; what they did with it."""

    split: Counter[str] = field(default_factory=Counter)
    sent: Counter[str] = field(default_factory=Counter)
    fails: Fails = lambda word, times: False


GIVEN = Given()


class Split(BasicBolt):
    """Lines to words."""

    output = "word string"

    def execute(self, tuple: Tuple, collector: OutputCollector) -> None:
        GIVEN.split[tuple.line] += 1
        for word in tuple.line.split():
            collector.emit(word)


class Send(BasicBolt):
    """A side effect for each word."""

    seen: ClassVar[Counter[str]] = Counter()

    def execute(self, tuple: Tuple, collector: OutputCollector) -> None:
        self.seen[tuple.word] += 1
        if GIVEN.fails(tuple.word, self.seen[tuple.word]):
            raise ValueError(f"can't send {tuple.word}")
        GIVEN.sent[tuple.word] += 1


def fresh(fails: Fails = lambda word, times: False) -> Given:
    """Nothing was given yet."""
    GIVEN.__init__(fails=fails)  # type: ignore[misc]
    Send.seen.clear()
    return GIVEN


def mails(
    guarantee: str, lines: list[list[tuple[str]]], *, take: int = 2, opaque: bool = False, **given: Any
) -> TopologyBuilder:
    """Words, each sent."""
    made = TopologyBuilder("mails", guarantee=guarantee, **given)
    kind = OpaqueMemoryTransactionalSpout if opaque else MemoryTransactionalSpout
    made.set_spout("lines", kind(lines, "line string", take), 2)
    made.set_bolt("split", Split(), 2).shuffle_grouping("lines")
    made.set_bolt("send", Send(), 3).fields_grouping("split", "word")
    return made


def run(
    topology: Topology, store: MemoryCoordinatorStore | None = None, *, observers: Any = (), **options: Any
) -> MemoryCoordinatorStore:
    """Run until drained; return the store."""
    store = store or MemoryCoordinatorStore()
    config = {"stop_when_drained": True, "retry_pause_ms": 1, "idle_pause_ms": 1, "tick_ms": 1, **options}
    TopologyDriver(topology, store, LocalExecutor(topology), TopologyConfig(**config), observers=observers).run()
    return store


def committed(store: MemoryCoordinatorStore) -> Mapping[int, Any]:
    """Txid → batch, of what is committed."""
    records = reversed(store.attempts("mails", limit=1_000))
    return {record.attempt.txid: record.batch for record in records if record.phase == "committed"}
