"""`python -m bench.tuple_wise`: what tuples cost that are given to bolts one by one, in processor time of one thread.

Three tuple-wise bolts in one task, each with an Arrow batch behind it, and what of that is making tuples and reading
their fields.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import median
from time import thread_time
from typing import Any

import pyarrow as pa

from spouts import MemoryTransactionalSpout
from state import MemoryMapState
from transactional import BasicBolt, OutputCollector, Topology, TransactionalTopologyBuilder, Tuple
from transactional.core.ports import Partials, Processed
from transactional.model.arrow.batch_tuples import tuples
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.batch import EMPTY_BATCH
from transactional.model.groupings import DEFAULT_STREAM
from transactional.runtime.executors.local import LocalExecutor

FIELDS = "word string, n long"
WORDS = 5_800


class Twice(BasicBolt):
    """Emits the word and twice its number."""

    output = FIELDS

    def execute(self, tuple: Tuple, collector: OutputCollector) -> None:
        """Work on one tuple."""
        collector.emit(tuple["word"], tuple["n"] * 2)


class Longer(Twice):
    """Lets through what is longer than one character: all."""

    def execute(self, tuple: Tuple, collector: OutputCollector) -> None:
        """Work on one tuple."""
        if len(tuple["word"]) > 1:
            collector.emit(tuple["word"], tuple["n"])


class Few(Twice):
    """Lets an eighth through."""

    def execute(self, tuple: Tuple, collector: OutputCollector) -> None:
        """Work on one tuple."""
        if tuple["n"] % 16 == 0:
            collector.emit(tuple["word"], tuple["n"])


def topology_of(rows: list[tuple[Any, ...]]) -> Topology:
    """Three tuple-wise bolts in the spout's stage, and a count of what they let through."""
    spout = MemoryTransactionalSpout([rows], FIELDS, take=len(rows))
    builder = TransactionalTopologyBuilder("tuples", "source", spout)
    builder.set_bolt("longer", Longer()).shuffle_grouping("source")
    builder.set_bolt("twice", Twice()).shuffle_grouping("longer")
    builder.set_bolt("few", Few()).shuffle_grouping("twice")
    builder.set_committer_bolt("count", MemoryMapState("word string").count()).fields_grouping("few", "word")
    return builder.build()


def three_bolts(rows: list[tuple[Any, ...]]) -> Callable[[], None]:
    """The processing phase of one batch."""
    topology = topology_of(rows)
    executor, batch = LocalExecutor(topology), topology.spout.plan(EMPTY_BATCH, replay=True)
    attempt = TransactionAttempt(TxId(1), AttemptId(1))
    assert batch is not None
    return lambda: _check(executor.run(attempt, batch))


def _check(processed: Processed) -> None:
    counted = processed.parts["count"]
    assert isinstance(counted, Partials)
    assert counted.table is not None


def fields_read(rows: list[tuple[Any, ...]]) -> Callable[[], None]:
    """Tuples of a record batch, each read for both of its fields."""
    batch = _batch(rows)

    def work() -> None:
        for row in tuples(batch, "source", DEFAULT_STREAM):
            _ = row["word"], row["n"]

    return work


def attributes_read(rows: list[tuple[Any, ...]]) -> Callable[[], None]:
    """The same, read as attributes."""
    batch = _batch(rows)

    def work() -> None:
        for row in tuples(batch, "source", DEFAULT_STREAM):
            _ = row.word, row.n

    return work


def _batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(column) for column in zip(*rows, strict=True)], ["word", "n"])


WORKS: dict[str, Callable[[list[tuple[Any, ...]]], Callable[[], None]]] = {
    "three tuple-wise bolts": three_bolts,
    'made of a record batch, t["word"] and t["n"]': fields_read,
    "made of a record batch, t.word and t.n": attributes_read,
}


def main() -> None:
    """Measure in turns, and print what was found."""
    parser = argparse.ArgumentParser(prog="python -m bench.tuple_wise", description=__doc__)
    parser.add_argument("--tuples", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    rows = [(f"word{number % WORDS}", number) for number in range(arguments.tuples)]
    works = {name: make(rows) for name, make in WORKS.items()}
    took: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(arguments.rounds):
        for name, work in works.items():
            began = thread_time()
            work()
            took[name].append(1_000 * (thread_time() - began))
    for name, all_ms in took.items():
        print(f"{name}: {min(all_ms):.0f} … {median(all_ms):.0f} ms of processor time, {arguments.tuples:,} tuples")


if __name__ == "__main__":
    main()
