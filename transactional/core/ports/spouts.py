"""The port of spouts: what every source offers the engine, and the further abilities that a source may have.

A `Spout` runs in the driver and plans batches; its `PartitionReader` is sent to the executors and reads them. What else
a spout can do are its parts (`spout_parts`). Each port has several implementations, and one contract suite
(`tests/contract`) that all of them pass.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

from transactional.core.ports.spout_parts import SpoutParts, Streams
from transactional.model.batch import BatchMetadata, OffsetRange, PartitionId
from transactional.model.errors import ConfigError
from transactional.model.groupings import DEFAULT_STREAM
from transactional.model.schema import Schema
from transactional.model.user_code.overrides import OverridesChecked

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class RefusedRecord:
    """A record that a reader can't convert to a tuple, and sets aside as a dead letter: its fields, and the error."""

    values: Mapping[str, Any]
    error: str


JointRecords = tuple["pa.RecordBatch", Sequence[tuple[int, int]]]
"""A record batch of several ranges: for each range in order its position in their list, and how many rows are of it."""


class PartitionReader(OverridesChecked, ABC):
    """Reads ranges of offsets on an executor. Picklable; lives as long as the Python worker, so it may cache consumers.

    Every reader has `read`. The other methods are abilities, whose defaults are those of a reader without them. A
    reader that wraps others passes all of them on.
    """

    __slots__ = ()

    @property
    def refuses_records(self) -> bool:
        """True if `read_or_refuse` refuses records, so that the topology needs a table of dead letters."""
        return False

    @abstractmethod
    def read(self, partition: PartitionId, offsets: OffsetRange, metadata: Any = None) -> Iterator[pa.RecordBatch]:
        """Yield the records of exactly this range, with the columns of the spout's `output`, in order of offset.

        `metadata` is stored in the batch for the partition; None for spouts that only need offsets.

        Raises an `OperatingError` if the range can't be read to its end: never silently yields less.
        """

    def read_or_refuse(
        self, partition: PartitionId, offsets: OffsetRange, metadata: Any = None
    ) -> Iterator[pa.RecordBatch | RefusedRecord]:
        """Read as `read` does, but yield records that can't be converted instead of failing the attempt.

        By default every record is converted. Whether a record is refused depends only on the record.
        """
        return self.read(partition, offsets, metadata)

    def read_again(
        self, values: Mapping[str, Any], stream: str = DEFAULT_STREAM
    ) -> Iterator[pa.RecordBatch | RefusedRecord]:
        """Yield the tuples of a record of this stream that was refused earlier, from its fields.

        By default it is refused again. Never raises because of the record.
        """
        yield RefusedRecord(values, "the spout no longer reads such records")

    def with_facts(self, facts: Collection[str]) -> Self:
        """Return the reader for a batch with these recorded facts, by default the same one.

        A fact is what a `SchemaUnknown` of an earlier attempt named. All later attempts rely on it.
        """
        return self

    def expect(self, ranges: Sequence[tuple[PartitionId, OffsetRange]]) -> None:
        """Prepare to read these ranges in this order; all of them may be fetched at once.

        Called by a task before its first read. Raises nothing for a range that can't be read: its `read` does. By
        default nothing is fetched ahead.
        """

    def read_together(
        self, ranges: Sequence[tuple[PartitionId, OffsetRange]]
    ) -> Iterator[JointRecords | RefusedRecord] | None:
        """Read these ranges as `read_or_refuse` does, in this order, but yield several of them in one record batch.

        All partitions are of one stream. None, the default: the ranges are read one by one.
        """
        return None

    def count_tasks(self, partition: PartitionId, tasks: int) -> int:
        """Return how many of the component's `tasks`, counted from the first, read the spout of this partition.

        By default all of them do.
        """
        return tasks

    @property
    def knows_offsets(self) -> bool:
        """True if the reader has `read_with_offsets`, which a topology with at least once needs."""
        return False

    def read_with_offsets(
        self, partition: PartitionId, offsets: OffsetRange, metadata: Any = None
    ) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
        """Read as `read` does, with the offsets of the records beside each record batch, as an array of int64.

        A record whose offset is NULL is not tracked. Raises `ConfigError` unless the reader `knows_offsets`.
        """
        raise ConfigError(f"{type(self).__name__} does not know the offsets of the records of {partition}")

    def stream_of(self, partition: PartitionId) -> str:
        """Return the stream on which the records of a partition are emitted."""
        return DEFAULT_STREAM


class Spout(OverridesChecked, ABC):
    """A source of batches, as the driver sees it: the base of every spout.

    These methods are all that a spout needs. What else it can do are its `parts`.
    """

    @property
    @abstractmethod
    def output(self) -> Schema:
        """The fields of the tuples."""

    @property
    @abstractmethod
    def replays_exactly(self) -> bool:
        """True: transactional, a recorded batch can be read again. False: opaque, a replay may be a different batch."""

    @property
    def parts(self) -> SpoutParts:
        """The further abilities of the spout, by default none.

        A spout with abilities replaces their parts in those of its base class: `replace(super().parts, backlog=self)`.
        """
        return SpoutParts(Streams({DEFAULT_STREAM: self.output}, type(self).__name__))

    @abstractmethod
    def identity(self) -> Mapping[str, str]:
        """Return the properties that must stay the same across restarts: kind, cluster id, topics …

        They become part of the topology's fingerprint. Called between `open` and `close`.
        """

    @abstractmethod
    def plan(self, previous_batch: BatchMetadata, *, replay: bool) -> BatchMetadata | None:
        """Plan the batch that starts where `previous_batch` ends. None if there is nothing to read.

        With `replay` (opaque spouts only; a transactional batch is replayed as recorded) there is always a batch,
        possibly an empty one. A partition that is new in the recorded batch then has an empty range in
        `previous_batch`, which is where that batch started to read it: the replay starts there too. Raises
        `OperatingError`, or `BatchLost` if a gap is not allowed.
        """

    @abstractmethod
    def reader(self) -> PartitionReader:
        """Return the reader of the batches' ranges, for the executors. May be called before `open`."""

    def open(self) -> None:
        """Connect, and check the source.

        Raises `ConfigError` (no such topic) or `SourceUnavailable` within a bounded time.
        """

    def close(self) -> None:
        """Release the connections that `open` made."""

    def copy_unopened(self) -> Self:
        """Return a spout of the same source that is not open, for an examination beside a run.

        Opening and closing it has no effect on this one. The default is a shallow copy, whose attributes `open` sets
        again. Override it if `open` changes objects that attributes refer to, or begins by closing them.
        """
        return copy.copy(self)

    def committed(self, batch: BatchMetadata) -> None:
        """Take notice that a batch is committed; it may mirror the positions for lag tools. Must not raise.

        Called after each transaction commit, and again for the last one when a run starts, since the process may have
        died before the call.
        """


class SpoutMaker(Protocol):
    """A user's class for a custom source, which can turn itself into a `Spout`."""

    def as_spout(self, parallelism: int) -> Spout:
        """Return the spout, to be read by this many tasks."""
