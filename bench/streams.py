"""`python -m bench.streams`: what streams cost beside bolts written by hand, in processor time of one thread.

A word count in Arrow, and three operations on tuples in one fused bolt beside three tuple-wise bolts; in turns, without
Spark. What is measured is the processing phase of one batch.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, astuple
from pathlib import Path
from time import thread_time
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bench.figures import Spread
from bench.tuple_wise import FIELDS, WORDS, Few, Longer, Twice
from spouts import MemoryTransactionalSpout
from state import MemoryMapState
from transactional import Topology, TransactionalTopologyBuilder, Tuple
from transactional.core.ports import Partials, PartitionReader
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.batch import EMPTY_BATCH, OffsetRange, PartitionId
from transactional.runtime.executors.local import LocalExecutor
from transactional.trident import Count, TridentTopology, field

BATCH_ROWS = 20_000


class Ready(MemoryTransactionalSpout, PartitionReader):
    """A spout whose record batches are there already: reading costs next to nothing."""

    def __init__(self, rows: list[tuple[Any, ...]], fields: str) -> None:
        super().__init__([rows], fields, take=len(rows))
        table = pa.table(dict(zip(self.output.names, map(list, zip(*rows, strict=True)), strict=True)))
        self.batches = table.to_batches(max_chunksize=BATCH_ROWS)

    def reader(self) -> Any:
        """The batches."""
        return self

    def read(self, partition: PartitionId, offsets: OffsetRange, metadata: Any = None) -> Iterator[pa.RecordBatch]:
        """All of them."""
        yield from self.batches


def words_of(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The words of lines."""
    return pa.record_batch([pc.list_flatten(pc.split_pattern(batch["line"], " "))], ["word"])


def words_but_the(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same without one of them."""
    words = words_of(batch)
    return words.filter(pc.not_equal(words["word"], "the"))


def arrow_by_hand(lines: list[tuple[str]]) -> Topology:
    """One bolt on Arrow batches, and a count."""
    builder = TransactionalTopologyBuilder("by-hand", "lines", Ready(lines, "line string"))
    builder.set_bolt("words", words_but_the, output="word string").shuffle_grouping("lines")
    builder.set_committer_bolt("counts", MemoryMapState("word").count()).fields_grouping("words", "word")
    return builder.build()


def arrow_by_trident(lines: list[tuple[str]]) -> Topology:
    """The same as a stream."""
    topology = TridentTopology("by-trident")
    words = topology.new_stream("lines", Ready(lines, "line string")).arrow(words_of).filter(field("word") != "the")
    words.group_by("word").persistent_aggregate(MemoryMapState(), Count(), name="counts")
    return topology.build()


def tuples_by_hand(rows: list[tuple[Any, ...]]) -> Topology:
    """Three tuple-wise bolts, and a count."""
    builder = TransactionalTopologyBuilder("by-hand", "source", Ready(rows, FIELDS))
    builder.set_bolt("longer", Longer()).shuffle_grouping("source")
    builder.set_bolt("twice", Twice()).shuffle_grouping("longer")
    builder.set_bolt("few", Few()).shuffle_grouping("twice")
    builder.set_committer_bolt("counts", MemoryMapState("word").count()).fields_grouping("few", "word")
    return builder.build()


def tuples_by_trident(rows: list[tuple[Any, ...]]) -> Topology:
    """The same as a stream: one bolt."""
    topology = TridentTopology("by-trident")
    source = topology.new_stream("source", Ready(rows, FIELDS))
    few = source.filter(is_longer).map(twice).filter(is_few)
    few.group_by("word").persistent_aggregate(MemoryMapState(), Count(), name="counts")
    return topology.build()


def is_longer(row: Tuple) -> bool:
    """As `Longer`."""
    return len(row["word"]) > 1


def twice(row: Tuple) -> tuple[str, int]:
    """As `Twice`."""
    return row["word"], row["n"] * 2


def is_few(row: Tuple) -> bool:
    """As `Few`."""
    return bool(row["n"] % 16 == 0)


def processing(topology: Topology) -> Callable[[], pa.Table]:
    """The processing phase of one batch."""
    executor, batch = LocalExecutor(topology), topology.spout.plan(EMPTY_BATCH, replay=True)
    assert batch is not None

    def work() -> pa.Table:
        counted = executor.run(TransactionAttempt(TxId(1), AttemptId(1)), batch).parts["counts"]
        assert isinstance(counted, Partials)
        return counted.table

    return work


def pairs(tuples: int) -> dict[str, tuple[Callable[[], pa.Table], Callable[[], pa.Table]]]:
    """By hand and by Trident."""
    lines = [(f"the word{n % WORDS} and word{n % 77} of the line",) for n in range(tuples)]
    rows = [(f"word{number % WORDS}", number) for number in range(tuples)]
    return {
        "a word count in Arrow": (processing(arrow_by_hand(lines)), processing(arrow_by_trident(lines))),
        "three operations on tuples": (processing(tuples_by_hand(rows)), processing(tuples_by_trident(rows))),
    }


def measured(tuples: int, rounds: int) -> dict[str, dict[str, Spread]]:
    """Milliseconds by hand and by Trident, in turns, and how many times the throughput is by Trident."""
    found = {}
    for name, works in pairs(tuples).items():
        assert works[0]().sort_by("word").equals(works[1]().sort_by("word"))
        took: tuple[list[float], list[float]] = ([], [])
        for _ in range(rounds):
            for work, times in zip(works, took, strict=True):
                began = thread_time()
                work()
                times.append(1_000 * (thread_time() - began))
        ratios = [hand / trident for hand, trident in zip(*took, strict=True)]
        found[name] = {"hand_ms": Spread.of(took[0]), "trident_ms": Spread.of(took[1]), "times": Spread.of(ratios)}
    return found


def main() -> None:
    """Measure, and print what was found; or write it to a file."""
    parser = argparse.ArgumentParser(prog="python -m bench.streams", description=__doc__)
    parser.add_argument("--tuples", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    found = measured(arguments.tuples, arguments.rounds)
    if arguments.output is not None:
        document = {name: {what: asdict(each) for what, each in spreads.items()} for name, spreads in found.items()}
        arguments.output.write_text(json.dumps({"tuples": arguments.tuples, "streams": document}), "utf-8")
        return
    for name, spreads in found.items():
        hand, trident, times = (
            " … ".join(f"{each:.{digits}f}" for each in astuple(spreads[what]))
            for what, digits in (("hand_ms", 0), ("trident_ms", 0), ("times", 2))
        )
        print(
            f"{name}: by hand {hand} ms, by Trident {trident} ms of processor time (min … median … max); "
            f"{times} times the throughput; {arguments.tuples:,} tuples"
        )


if __name__ == "__main__":
    main()
