"""The port of spouts: what every source offers the engine, and the further abilities that a source may have.

A `Spout` runs in the driver and plans batches; its `PartitionReader` is sent to the executors and reads them. Abilities
are methods with a default that is true of a source without them, so the engine never has to look for a method. Each
port has several implementations, and one contract suite (`tests/contract`) that all of them pass.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

from transactional.core.ports.examining import SourceAddress
from transactional.model.batch import BatchLimit, BatchMetadata, OffsetRange, PartitionId
from transactional.model.errors import ConfigError
from transactional.model.facts import EventTime, Listing
from transactional.model.groupings import DEFAULT_STREAM
from transactional.model.messages import FailedMessage
from transactional.model.schema import Schema

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class RefusedRecord:
    """A record that a reader can't convert to a tuple, and sets aside as a dead letter: its fields, and the error."""

    values: Mapping[str, Any]
    error: str


class PartitionReader(ABC):
    """Reads ranges of offsets on an executor. Picklable; lives as long as the Python worker, so it may cache consumers.

    Every reader has `read`. The other methods are abilities, whose defaults are those of a reader without them. A
    reader that wraps others passes all of them on.
    """

    __slots__ = ()

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

    def expect(self, ranges: Sequence[tuple[PartitionId, OffsetRange]]) -> None:  # noqa: B027 - optional
        """Prepare to read these ranges in this order; all of them may be fetched at once.

        Called by a task before its first read. Raises nothing for a range that can't be read: its `read` does. By
        default nothing is fetched ahead.
        """

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


class Spout(ABC):
    """A source of batches, as the driver sees it: the base of every spout.

    The abstract methods are those that every spout has. The other methods are abilities, whose defaults are those of a
    spout without them. A spout that wraps others passes all of them on.
    """

    @property
    @abstractmethod
    def output(self) -> Schema:
        """The fields of the tuples."""

    @property
    @abstractmethod
    def replays_exactly(self) -> bool:
        """True: transactional, a recorded batch can be read again. False: opaque, a replay may be a different batch."""

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

    @property
    def has_ended(self) -> bool:
        """True if `plan` returned None because the source has no more, so that a run until drained may end.

        False if the source is merely not ready.
        """
        return True

    # --- connections ----------------------------------------------------------------------------------------------

    def open(self) -> None:  # noqa: B027 - optional
        """Connect, and check the source.

        Raises `ConfigError` (no such topic) or `SourceUnavailable` within a bounded time.
        """

    def close(self) -> None:  # noqa: B027 - optional
        """Release the connections that `open` made."""

    def copy_unopened(self) -> Self:
        """Return a spout of the same source that is not open, for an examination beside a run.

        Opening and closing it has no effect on this one. The default is a shallow copy, whose attributes `open` sets
        again. Override it if `open` changes objects that attributes refer to, or begins by closing them.
        """
        return copy.copy(self)

    # --- what happens to a batch ----------------------------------------------------------------------------------

    def check_replay(self, batch: BatchMetadata) -> None:  # noqa: B027 - optional
        """Raise `BatchLost` if a recorded batch of a transactional spout can no longer be read."""

    def check_read(self, batch: BatchMetadata) -> None:  # noqa: B027 - optional
        """Raise `ReplayMismatch` unless it is certain that the planned records were read. Called after the read.

        For differences that no task can detect by itself, such as a source that was recreated under the same name.
        """

    def committed(self, batch: BatchMetadata) -> None:  # noqa: B027 - optional
        """Take notice that a batch is committed; it may mirror the positions for lag tools. Must not raise.

        Called after each transaction commit, and again for the last one when a run starts, since the process may have
        died before the call.
        """

    # --- what is emitted ------------------------------------------------------------------------------------------

    @property
    def outputs(self) -> Mapping[str, Schema]:
        """The fields by stream, the default stream among them (see `PartitionReader.stream_of`)."""
        return {DEFAULT_STREAM: self.output}

    @property
    def event_times(self) -> Mapping[str, EventTime]:
        """The timestamp fields that say when an event happened, by stream. By default none is known."""
        return {}

    @property
    def sets_records_aside(self) -> bool:
        """True if the reader refuses records, so that the topology needs a table of dead letters."""
        return False

    @property
    def kind(self) -> str:
        """The kind of source, for descriptions of the topology."""
        return type(self).__name__

    @property
    def streams(self) -> Sequence[str]:
        """The streams, as declared, whose names its partitions begin with (see `stream_names`). By default none."""
        return ()

    # --- how far behind -------------------------------------------------------------------------------------------

    def lag(self, previous_batch: BatchMetadata) -> int | None:
        """Return the number of offsets after the given batch, as of the last planning, or None if unknown.

        Called in the driver's thread, so it must be fast and must not raise.
        """
        return None

    def lag_by_partition(self, previous_batch: BatchMetadata) -> Mapping[PartitionId, int] | None:
        """Return the `lag` of each partition, or None if unknown. Called in the driver's thread as well."""
        return None

    def list_partitions(self, previous_batch: BatchMetadata) -> Mapping[PartitionId, Listing]:
        """Return the partitions of the source, each with what it has that no batch up to `previous_batch` has read.

        Windows wait for partitions of which no event time is known yet. The answer is as of the last planning; a second
        call after the same planning queries the source. By default there are none: windows wait for no partition.
        Raises the errors of `plan`.
        """
        return {}

    def describe_parts(self, tasks: int) -> Sequence[Mapping[str, Any]]:
        """Return id, kind and parallelism of each spout that this one is made of, by default none.

        `tasks` is the number of tasks that read this spout.
        """
        return ()

    # --- sizes ----------------------------------------------------------------------------------------------------

    @property
    def can_limit_batches(self) -> bool:
        """True if the spout has `limit_batches`, which `target_latency_ms` requires."""
        return False

    @property
    def batch_records_max(self) -> int | None:
        """The spout's own limit on the records of a batch, or None."""
        return None

    def limit_batches(self, limit: BatchLimit) -> None:
        """Plan no batch above this limit from now on, nor above the spout's own limits.

        Called before `plan`, rarely twice with the same limit. Raises `ConfigError` if the spout can't respect it.
        """
        raise ConfigError(f"the batches of a {type(self).__name__} can't be limited")

    # --- examination ----------------------------------------------------------------------------------------------

    def addresses(self) -> Mapping[str, SourceAddress]:
        """Return the address of the source, for readers without the spout. Reads nothing.

        There is one address per prefix of partitions' names, `""` for names without one. By default none is known.
        """
        return {}

    def read_held_ranges(self, partitions: Collection[PartitionId]) -> Mapping[PartitionId, OffsetRange | None]:
        """Read the range of offsets that the source holds now, for each of these partitions.

        None for a partition that no longer exists, or whose topic was recreated. Partitions of which the source knows
        nothing are left out, by default all. A partition of a recreated topic is left out, too, if one of the newer
        topic is requested: that one is already being read. The spout need not be open. Raises `OperatingError` if the
        source does not respond.
        """
        return {}

    # --- messages that are acked ----------------------------------------------------------------------------------

    @property
    def is_acked(self) -> bool:
        """True if the spout is notified which of its messages were processed, and which have failed.

        Such a spout decides itself which messages it emits again. Nothing can be read from it twice.
        """
        return False

    def ack_at_once(self) -> None:  # noqa: B027 - optional
        """Emit no message a second time. Called before `open` if the topology has at most once."""

    def acknowledge(self, batch: BatchMetadata, failed: Sequence[FailedMessage]) -> None:  # noqa: B027 - optional
        """Acknowledge the messages of a committed batch, except for those that have failed. Must not raise.

        Called once after each transaction commit.
        """


class SpoutMaker(Protocol):
    """A user's class for a custom source, which can turn itself into a `Spout`."""

    def as_spout(self, parallelism: int) -> Spout:
        """Return the spout, to be read by this many tasks."""
