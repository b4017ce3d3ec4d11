"""The port of spouts: what a source offers the engine, and what else it may offer.

Each port has several implementations, and one contract suite (`tests/contract`) that all of them pass.
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
    """A record that a reader can't convert to a tuple, and sets aside as a dead letter: its fields, and why."""

    values: Mapping[str, Any]
    error: str


class PartitionReader(ABC):
    """Reads ranges, on an executor. Picklable; lives as long as the Python worker, so it may cache consumers.

    `read` is what every reader has. The other methods are abilities, and what they do here is true of a reader without
    them. A reader that wraps others passes all of them on.
    """

    __slots__ = ()

    @abstractmethod
    def read(self, partition: PartitionId, offsets: OffsetRange, metadata: Any = None) -> Iterator[pa.RecordBatch]:
        """Yield the records of exactly this range, with the columns of the spout's `output`, in order of offset.

        `metadata` is what the batch stores for the partition; None for spouts that only need offsets.

        Raises an `OperatingError` if the range can't be read to its end: never silently yields less.
        """

    def read_or_refuse(
        self, partition: PartitionId, offsets: OffsetRange, metadata: Any = None
    ) -> Iterator[pa.RecordBatch | RefusedRecord]:
        """As `read`, with the records that are set aside instead of failing the attempt; here there are none.

        Whether a record is refused depends only on the record.
        """
        return self.read(partition, offsets, metadata)

    def read_again(
        self, values: Mapping[str, Any], stream: str = DEFAULT_STREAM
    ) -> Iterator[pa.RecordBatch | RefusedRecord]:
        """The tuples of a record of this stream that was refused earlier, from its fields; here it is refused again.

        Never raises because of the record.
        """
        yield RefusedRecord(values, "the spout no longer reads such records")

    def knowing(self, facts: Collection[str]) -> Self:
        """The reader for a batch of which these facts are recorded: what a `SchemaUnknown` of an earlier attempt has
        named, which this one goes by. Here there are none to go by."""
        return self

    def expect(self, ranges: Sequence[tuple[PartitionId, OffsetRange]]) -> None:  # noqa: B027 - optional
        """Called before a task reads these ranges, in this order: all of them may be fetched at once. What can't be
        read is reported by the method that reads it. Here nothing is fetched ahead."""

    def tasks_of(self, partition: PartitionId, tasks: int) -> int:
        """How many of the component's `tasks`, the first ones, read the partitions of this one's spout; here all."""
        return tasks

    @property
    def knows_offsets(self) -> bool:
        """Whether there is `read_with_offsets`: what a topology that is at least once needs."""
        return False

    def read_with_offsets(
        self, partition: PartitionId, offsets: OffsetRange, metadata: Any = None
    ) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
        """As `read`, with an array of 64-bit integers beside each record batch: the offsets of its records. A record
        whose offset is NULL is not followed. Raises `ConfigError` unless the reader `knows_offsets`."""
        raise ConfigError(f"{type(self).__name__} does not know the offsets of the records of {partition}")

    def stream_of(self, partition: PartitionId) -> str:
        """The stream on which what is read from a partition is emitted."""
        return DEFAULT_STREAM


class Spout(ABC):
    """A source of batches, as the driver sees it: the base of every spout.

    What is abstract, every spout has. The other methods are abilities, and what they do here is true of a spout without
    them. A spout that wraps others passes all of them on.
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
        """What must stay the same across restarts (kind, cluster id, topics …), for the topology's fingerprint.

        Called between `open` and `close`.
        """

    @abstractmethod
    def plan(self, after: BatchMetadata, *, replay: bool) -> BatchMetadata | None:
        """The batch that starts where `after` ends, or None if there is nothing to read.

        With `replay` (opaque spouts only; a transactional batch is replayed as recorded) there is always a batch,
        possibly an empty one. A partition that is new in the recorded batch then has an empty range in `after`, which
        is where that batch started to read it: the replay starts there too. Raises `OperatingError`, or `BatchLost` if
        a gap is not allowed.
        """

    @abstractmethod
    def reader(self) -> PartitionReader:
        """The reader of the batches' ranges, for the executors. May be called before `open`."""

    @property
    def has_ended(self) -> bool:
        """Whether `plan` has found nothing because there is no more, so that a run until drained may end. Here that is
        so; a source that is merely not ready says False."""
        return True

    # --- connections ----------------------------------------------------------------------------------------------

    def open(self) -> None:  # noqa: B027 - optional
        """Connect and check. Raises `ConfigError` (no such topic) or `SourceUnavailable` within a bounded time."""

    def close(self) -> None:  # noqa: B027 - optional
        """Release what `open` acquired."""

    def apart(self) -> Self:
        """A spout of the same source that is not open, for an examination beside a run: opening and closing it does
        nothing to this one. Here it is a copy, whose attributes `open` sets again; override it where `open` changes
        what they refer to, or begins by closing what is there."""
        return copy.copy(self)

    # --- what happens to a batch ----------------------------------------------------------------------------------

    def check_replay(self, batch: BatchMetadata) -> None:  # noqa: B027 - optional
        """Raise `BatchLost` if a recorded batch of a transactional spout can no longer be read."""

    def check_read(self, batch: BatchMetadata) -> None:  # noqa: B027 - optional
        """Called after a batch was read: raise `ReplayMismatch` if what was read is not, or not certainly, what was
        planned, which no task can detect by itself (a source that was recreated under the same name)."""

    def committed(self, batch: BatchMetadata) -> None:  # noqa: B027 - optional
        """Called after each transaction commit, and again for the last one when a run starts: the process may have died
        before the call. May mirror the positions for lag tools. Must not raise."""

    # --- what is emitted ------------------------------------------------------------------------------------------

    @property
    def outputs(self) -> Mapping[str, Schema]:
        """The fields by stream, the default one among them. The reader says which partition is on which stream."""
        return {DEFAULT_STREAM: self.output}

    @property
    def event_times(self) -> Mapping[str, EventTime]:
        """By stream, the field, a timestamp, that is the time at which something happened. Here none is known."""
        return {}

    @property
    def sets_records_aside(self) -> bool:
        """Whether the reader refuses records: the topology needs a table for them."""
        return False

    @property
    def kind(self) -> str:
        """What it is called in descriptions of the topology."""
        return type(self).__name__

    @property
    def streams(self) -> Sequence[str]:
        """The streams that the names of its partitions' sources begin with (see `stream_names`), as they are declared.
        Here there are none."""
        return ()

    # --- how far behind -------------------------------------------------------------------------------------------

    def lag(self, after: BatchMetadata) -> int | None:
        """Number of offsets behind the given batch, as of the last planning; None: unknown.

        Called in the driver's thread, so it must be fast and must not raise.
        """
        return None

    def lags(self, after: BatchMetadata) -> Mapping[PartitionId, int] | None:
        """As `lag`, by partition; None: it is not known by partition. Called in the driver's thread as well."""
        return None

    def listed(self, after: BatchMetadata) -> Mapping[PartitionId, Listing]:
        """The partitions that the source has, and what there is of them that neither the given batch nor an earlier one
        has read: as of the last planning, of which this is called once; else the source is queried. Windows wait for
        those of which nothing is known yet.

        Here none is: nothing that is not read says when something happened. Raises what `plan` raises.
        """
        return {}

    def described(self, tasks: int) -> Sequence[Mapping[str, Any]]:
        """The spouts that it is made of: id, kind and parallelism of each; `tasks` is how many read them. Here none."""
        return ()

    # --- sizes ----------------------------------------------------------------------------------------------------

    @property
    def can_limit_batches(self) -> bool:
        """Whether there is `limit_batches`: what `target_latency_ms` requires."""
        return False

    @property
    def batch_records_max(self) -> int | None:
        """The spout's own limit on the records of a batch; None: there is no such limit."""
        return None

    def limit_batches(self, limit: BatchLimit) -> None:
        """Plan no batch above this limit from now on, nor above the spout's own limits. Called before `plan`, rarely
        twice with the same limit. Raises `ConfigError` if the spout can't respect it."""
        raise ConfigError(f"the batches of a {type(self).__name__} can't be limited")

    # --- examination ----------------------------------------------------------------------------------------------

    def addresses(self) -> Mapping[str, SourceAddress]:
        """Where the source is, for readers without the spout: the address by what the names of its partitions' sources
        have in front, `""` where that is nothing. Here none is known. Reads nothing."""
        return {}

    def held(self, partitions: Collection[PartitionId]) -> Mapping[PartitionId, OffsetRange | None]:
        """What the source holds of these partitions now; None for one that is gone, or whose topic was recreated. The
        spout need not be open.

        A partition that is left out is not known, as all are here. One of a recreated topic is left out if one of the
        newer topic is requested as well: that one is already being read. Raises `OperatingError` if the source does not
        respond.
        """
        return {}

    # --- messages that are acked ----------------------------------------------------------------------------------

    @property
    def is_acked(self) -> bool:
        """Whether the spout is notified which of its messages were processed and which have failed, and decides itself
        which of them it emits again. Nothing can be read from it twice."""
        return False

    def ack_at_once(self) -> None:  # noqa: B027 - optional
        """Called before `open` if the topology is at most once: no message is emitted a second time."""

    def settle(self, batch: BatchMetadata, failed: Sequence[FailedMessage]) -> None:  # noqa: B027 - optional
        """Called once after each transaction commit: every other message of the batch was processed. Must not raise."""


class SpoutMaker(Protocol):
    """What a user implements for a custom source: it can turn itself into a `Spout`."""

    def as_spout(self, parallelism: int) -> Spout:
        """The spout, to be read by this many tasks."""
