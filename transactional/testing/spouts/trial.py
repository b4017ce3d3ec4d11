"""The tools of the spout cases: a `SpoutTrial` of one source, its `Process`es, and the register of cases.

A trial makes spouts with the factory under test, lets the source grow, and notes every step in words. A `Process`
stands for a driver with an open spout. It plans batches, records them as the store does, in JSON, and reads them as
tasks do, with copies of the reader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from transactional.core.ports import PartitionReader, Spout
from transactional.model.arrow import arrow_schema
from transactional.model.batch import EMPTY_BATCH, BatchMetadata, PartitionId
from transactional.model.user_code.picklable import copy_by_pickle
from transactional.testing.cases.register import BrokenPromise, CaseRegister, NotOffered, Steps
from transactional.topology.wiring import check_spout as make_spout

SHOWN_MAX: Final = 10
EMPTY_BATCHES_MAX: Final = 10
"""The number of batches without any tuple after which a source counts as one that never ends."""

Row: TypeAlias = tuple[Any, ...]
Rows: TypeAlias = dict[PartitionId, list[Row]]
"""The tuples of batches, by partition."""
SpoutFactory: TypeAlias = Callable[[str], Any]
"""Makes a spout, not opened, from the name of its source."""
Appender: TypeAlias = Callable[[str, int, Sequence[str]], Iterable[Sequence[Any]] | None]
"""Adds a record for each word to a partition of a source."""
Truncator: TypeAlias = Callable[[str, int], None]
Hider: TypeAlias = Callable[[str, int], AbstractContextManager[object]]


@dataclass(slots=True)
class SpoutTrial(Steps):
    """One source under test, and the steps so far, in words."""

    make: SpoutFactory
    append_words: Appender
    source: str
    partitions: int = 2
    truncate_partition: Truncator | None = None
    hide_partition: Hider | None = None
    appended: dict[int, list[Row]] = field(default_factory=dict)
    """The tuples of all records so far, by the number of their partition."""
    _spouts: list[Spout] = field(default_factory=list)

    def new_spout(self, parallelism: int = 1, source: str = "") -> Spout:
        """Return a spout as the driver of a new process has it, not open."""
        spout = make_spout("spout", self.make(source or self.source), parallelism)
        self._spouts.append(spout)
        return spout

    def open(self, parallelism: int = 1) -> Process:
        """Return a new process, with an open spout."""
        name = f"process {len(self._spouts) + 1}"
        tasks = f" with {parallelism} tasks" if parallelism > 1 else ""
        self.note(f"{name} opens a spout{tasks}")
        spout = self.new_spout(parallelism)
        spout.open()
        return Process(self, name, spout)

    def append(self, partition: int, count: int) -> None:
        """Let a partition of the source have more records."""
        rows = self.appended.setdefault(partition, [])
        letter = chr(ord("a") + partition)
        words = [f"{letter}{len(rows) + number}" for number in range(1, count + 1)]
        self.note(f"partition {partition} of the source gets {f'{count} records' if count > SHOWN_MAX else words}")
        expected = self.append_words(self.source, partition, words)
        new_rows = [(word,) for word in words] if expected is None else [tuple(row) for row in expected]
        if len(new_rows) != count:
            raise BrokenPromise(f"Expected of append(): a tuple for each of the {count} words\nCame: {new_rows!r}")
        rows += new_rows

    def append_to_all(self, count: int) -> None:
        """Let each partition of the source have more records."""
        for partition in range(self.partitions):
            self.append(partition, count)

    def check_rows(self, rows: Rows, *, in_order: bool = True) -> None:
        """Check that all records were read, once, and in their order within a partition."""
        read, expected = list(rows.values()), [part for part in self.appended.values() if part]
        if not in_order:
            read, expected = _merge(read), _merge(expected)
        self.check_equal("the tuples of each partition", sorted(read, key=repr), sorted(expected, key=repr))

    def require_partitions(self) -> None:
        """Raise `NotOffered` if the source has one partition."""
        if self.partitions == 1:
            raise NotOffered("the source has one partition")

    def truncate(self, partition: int) -> None:
        """Take the newest record of a partition away. Raises `NotOffered` if there is no way to."""
        if self.truncate_partition is None:
            raise NotOffered("truncate was not passed")
        self.note(f"partition {partition} of the source loses its newest record")
        self.truncate_partition(self.source, partition)

    def hide(self, partition: int) -> AbstractContextManager[object]:
        """Return a context in which a partition does not exist. Raises `NotOffered` if there is none."""
        if self.hide_partition is None:
            raise NotOffered("hide was not passed")
        self.note(f"partition {partition} of the source is away")
        return self.hide_partition(self.source, partition)

    def close(self) -> None:
        """Close all spouts. Errors of that are the matter of a case of its own."""
        for spout in self._spouts:
            with suppress(Exception):
                spout.close()


@dataclass(slots=True)
class Process:
    """A driver with an open spout, and the last batch that it has recorded."""

    trial: SpoutTrial
    name: str
    spout: Spout
    last: BatchMetadata = EMPTY_BATCH
    rows: Rows = field(default_factory=dict)
    """The tuples of all batches that were recorded and read."""

    def plan(self, *, replay: bool = False) -> BatchMetadata | None:
        """Plan the batch after the last recorded one."""
        batch = self.spout.plan(self.last, replay=replay)
        act = "plans a replay" if replay else "plans a batch"
        self.trial.note(f"{self.name} {act} after {_describe(self.last)}: {_describe(batch)}")
        return batch

    def plan_some(self, *, replay: bool = False) -> BatchMetadata:
        """Plan the next batch, of which the case is sure."""
        batch = self.plan(replay=replay)
        if batch is None:
            raise BrokenPromise("Expected of plan(): a batch\nCame: None")
        return batch

    def plan_last(self) -> BatchMetadata:
        """Plan and record batches until there is none. Return the last one."""
        self.record(self.plan_some())
        while (batch := self.plan()) is not None:
            self.record(batch)
        return self.last

    def record(self, batch: BatchMetadata) -> BatchMetadata:
        """Record a batch, and return what the store has of it."""
        self.last = BatchMetadata.from_json(batch.to_json())
        return self.last

    def read(self, batch: BatchMetadata, reader: PartitionReader | None = None) -> Rows:
        """Read a batch with a copy of the reader."""
        copy = copy_by_pickle("the reader of the spout", reader or self.spout.reader())
        rows = {
            partition: read_rows(self.spout, copy.read(partition, offsets, batch.metadata.get(partition)))
            for partition, offsets in batch.non_empty()
        }
        tuples = [row for part in rows.values() for row in part]
        self.trial.note(f"tasks read {f'{len(tuples)} tuples' if len(tuples) > SHOWN_MAX else tuples}")
        return rows

    def read_next(self) -> Rows | None:
        """Plan, record and read the next batch. None if there is none."""
        batch = self.plan()
        if batch is None:
            return None
        rows = self.read(self.record(batch))
        self.spout.parts.replays.check_read(batch)
        for partition, part in rows.items():
            if part:
                self.rows.setdefault(partition, []).extend(part)
        return rows

    def read_all(self) -> Rows:
        """Read batches until there is none. Return all tuples that the process has read."""
        empty_batches = 0
        while (rows := self.read_next()) is not None:
            empty_batches = 0 if any(rows.values()) else empty_batches + 1
            if empty_batches == EMPTY_BATCHES_MAX:
                raise BrokenPromise(f"Expected of plan(): None at the end\nCame: {empty_batches} batches of no tuple")
            if sum(map(len, self.rows.values())) > 2 * sum(map(len, self.trial.appended.values())):
                raise BrokenPromise("Expected of plan(): None at the end\nCame: batches of tuples that had been read")
        return self.rows


def read_rows(spout: Spout, batches: Iterable[Any]) -> list[Row]:
    """Return the tuples of record batches, which must have the columns of the spout's `output`."""
    schema, rows = arrow_schema(spout.output), list[Row]()
    for batch in batches:
        if not batch.schema.equals(schema):
            raise BrokenPromise(f"Expected of a record batch: the columns {schema}\nCame: {batch.schema}")
        rows += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    return rows


def _merge(parts: Iterable[Iterable[Row]]) -> list[list[Row]]:
    """Return the tuples of all partitions as those of one, in one order."""
    return [sorted((row for part in parts for row in part), key=repr)]


def _describe(batch: BatchMetadata | None) -> str:
    """Return where the partitions of a batch are, in words."""
    if batch is None or not batch.ranges:
        return "none" if batch is None else "the start"
    return ", ".join(
        f"{partition.source}/{partition.index} {batch.metadata.get(partition, offsets)}"
        for partition, offsets in sorted(batch.ranges.items())
    )


REGISTER: Final[CaseRegister[SpoutTrial]] = CaseRegister()
"""The cases of all modules."""
case = REGISTER.case
