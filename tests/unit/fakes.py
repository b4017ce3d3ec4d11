"""Bolts, spouts and topologies that several unit tests share. Real ones over memory: nothing here pretends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from spouts.memory import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from state.memory import MemoryMapState, MemoryTable
from transactional.bolts import BasicBolt, BatchBolt, MapState, OutputCollector, TopologyContext
from transactional.model.absent import ABSENT
from transactional.model.attempt import TransactionAttempt
from transactional.model.user_code.tuples import Tuple
from transactional.topology.builder import TransactionalTopologyBuilder

WORDS = [
    [("cat",), ("dog",), ("chicken",), ("cat",), ("dog",), ("apple",)],
    [("cat",), ("dog",), ("apple",), ("banana",)],
    [("cat",), ("cat",), ("cat",), ("cat",), ("cat",), ("dog",), ("dog",), ("dog",), ("dog",)],
]
WORD_COUNTS = {"apple": 2, "banana": 1, "cat": 8, "chicken": 1, "dog": 7}


def words(partitions: Sequence[Sequence[tuple[str]]] = WORDS, *, take: int = 3) -> MemoryTransactionalSpout:
    """A transactional spout of words."""
    return MemoryTransactionalSpout(partitions, "word string", take)


def opaque_words(
    partitions: Sequence[Sequence[tuple[str]]] = WORDS, *, take: int = 3
) -> OpaqueMemoryTransactionalSpout:
    """An opaque spout of words."""
    return OpaqueMemoryTransactionalSpout(partitions, "word string", take)


def builder(spout: MemoryTransactionalSpout | None = None, *, parallelism: int = 1) -> TransactionalTopologyBuilder:
    """The beginning of a topology over words."""
    return TransactionalTopologyBuilder("words", "spout", spout or words(), parallelism)


def counts(table: MemoryTable | None = None) -> MemoryMapState:
    """A state of a count per word."""
    return MemoryMapState("word string", "count long", table=table)


def total(table: MemoryTable | None = None) -> MemoryMapState:
    """A state of one row: how many words there are."""
    return MemoryMapState((), "count long", table=table or MemoryTable("total"))


def stored(table: MemoryTable) -> dict[Any, Any]:
    """Key → value of a table with one value column, and at most one key column."""
    there = {key: row.value for key, row in table.rows.items() if row.value is not ABSENT}
    return {key[0] if key else (): values[0] for key, values in there.items()}


def same(row: Tuple) -> Iterable[Tuple]:
    """Emits what it is given."""
    return [row]


class Total(BatchBolt):
    """A committer: adds the number of its tuples to a state of one row."""

    state: MapState

    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        assert context.state is not None
        self.state, self.count = context.state, 0

    def execute(self, tuple: Tuple) -> None:
        self.count += 1

    def finish_batch(self) -> None:
        self.state.multi_update([()], lambda stored: (stored or 0) + self.count)


class Upper(BasicBolt):
    """Words in capital letters."""

    output = "word string"

    def execute(self, tuple: Tuple, collector: OutputCollector) -> None:
        collector.emit(tuple["word"].upper())


def with_committer(made: TransactionalTopologyBuilder, source: str = "spout") -> TransactionalTopologyBuilder:
    """A committer that counts what `source` emits."""
    made.set_committer_bolt("total", Total(), state=total()).global_grouping(source)
    return made
