"""Bolts that integration tests put into their topologies; they run in Spark's Python workers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tests.integration.signals import is_first, send, wait_at
from transactional.bolts import ArrowBatchBolt, BasicBolt, BatchBolt, OutputCollector, TopologyContext
from transactional.errors import FailedException
from transactional.model.attempt import TransactionAttempt
from transactional.model.user_code.tuples import Tuple
from transactional.topology.bolts.stateful import KeyValueState, StatefulBolt


@dataclass
class Waits(BasicBolt):
    """Tells the test that it runs, waits at a gate, tells that it went on, and emits what it got."""

    pipe: str
    gate: str
    output = "word string"

    def prepare(self, context: TopologyContext) -> None:
        send(self.pipe, f"running {os.getpid()}")
        wait_at(self.gate)
        send(self.pipe, f"went on {os.getpid()}")

    def execute(self, tuple: Tuple, collector: OutputCollector) -> None:
        collector.emit(*tuple.values)


@dataclass
class HangsOnce(BasicBolt):
    """Waits at a gate the first time that it runs, in whichever task."""

    gate: str
    output = "word string"

    def prepare(self, context: TopologyContext) -> None:
        if is_first(f"{self.gate}-reached"):
            wait_at(self.gate)

    def execute(self, tuple: Tuple, collector: OutputCollector) -> None:
        collector.emit(*tuple.values)


@dataclass
class NeverEnds(BasicBolt):
    """Works and works, and grows a file meanwhile."""

    pipe: str
    file: str

    def execute(self, tuple: Tuple, collector: OutputCollector) -> None:
        send(self.pipe, f"running {os.getpid()}")
        while True:
            with open(self.file, "ab") as stream:
                stream.write(b".")


@dataclass
class FailsOnce(BasicBolt):
    """Raises a `FailedException` at the first tuple that it ever sees, in whichever task."""

    flag: str
    output = "word string"

    def execute(self, tuple: Tuple, collector: OutputCollector) -> None:
        if is_first(self.flag):
            raise FailedException("not this time")
        collector.emit(*tuple.values)


@dataclass
class Notes(BatchBolt):
    """Notes each of its tasks in a file, and passes its tuples on."""

    file: str
    output = "word string"

    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        self.collector = collector
        with open(self.file, "a", encoding="utf-8") as stream:
            stream.write(f"{context.component_id} {attempt} {context.task_index}\n")

    def execute(self, tuple: Tuple) -> None:
        self.collector.emit(*tuple.values)

    def finish_batch(self) -> None:
        pass


class Lengths(ArrowBatchBolt):
    """Arrow-wise: adds the length of each word, and emits how many tuples its task had."""

    output = "word string, length long"

    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        self.collector, self.rows = collector, 0

    def execute_batch(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        lengths = pc.utf8_length(batch.column("word")).cast(pa.int64())
        self.collector.emit_batch(pa.RecordBatch.from_arrays([batch.column("word"), lengths], names=["word", "length"]))

    def finish_batch(self) -> None:
        self.collector.emit("(rows)", self.rows)


def twice(row: Tuple) -> Iterator[tuple[str, int]]:
    """Tuple-wise: a word as it is, and in capitals."""
    word = row["word"]
    yield word, 1
    yield word.upper(), 1


@dataclass
class WaitsToCount(StatefulBolt):
    """Counts words. With all of its tuples in hand it tells the test that it runs, and waits at a gate."""

    pipe: str
    gate: str

    def init_state(self, state: KeyValueState) -> None:
        self.counts = state

    def execute(self, tuple: Tuple) -> None:
        self.counts.put(tuple.word, self.counts.get(tuple.word, 0) + 1)

    def pre_prepare(self, txid: int) -> None:
        send(self.pipe, f"running {os.getpid()}")
        wait_at(self.gate)
