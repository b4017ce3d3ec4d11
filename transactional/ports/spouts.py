"""The port of spouts: what a source offers the engine, and what else it may offer.

Each port has several implementations, and one contract suite (`tests/contract`) that all of them pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from transactional.batch import BatchLimit, BatchMetadata, OffsetRange, PartitionId
from transactional.facts import EventTime
from transactional.messages import FailedMessage, Unfinished
from transactional.schema import Schema

if TYPE_CHECKING:
    import pyarrow as pa


class PartitionReader(Protocol):
    """Reads ranges, on an executor. Picklable; lives as long as the Python worker, so it may cache consumers."""

    def read(self, partition: PartitionId, offsets: OffsetRange, metadata: Any = None) -> Iterator[pa.RecordBatch]:
        """Yield the records of exactly this range, with the columns of the spout's `output`, in order of offset.

        `metadata` is what the batch stores for the partition; None for spouts that only need offsets.

        Raises an `OperatingError` if the range can't be read to its end: never silently yields less.
        """


@dataclass(frozen=True, slots=True)
class RefusedRecord:
    """A record that a reader can't convert to a tuple, and sets aside as a dead letter: its fields, and why."""

    values: Mapping[str, Any]
    error: str


@runtime_checkable
class RefusingReader(Protocol):
    """A reader that sets records aside, instead of failing the attempt."""

    def read_or_refuse(
        self, partition: PartitionId, offsets: OffsetRange, metadata: Any = None
    ) -> Iterator[pa.RecordBatch | RefusedRecord]:
        """As `PartitionReader.read`; whether a record is refused depends only on the record."""

    def read_again(self, values: Mapping[str, Any]) -> Iterator[pa.RecordBatch | RefusedRecord]:
        """The tuples of a record that was refused earlier, from its fields. Never raises because of the record."""


class Spout(Protocol):
    """A source of batches, as the driver sees it."""

    @property
    def output(self) -> Schema:
        """The fields of the tuples."""

    @property
    def replays_exactly(self) -> bool:
        """True: transactional, a recorded batch can be read again. False: opaque, a replay may be a different batch."""

    def identity(self) -> Mapping[str, str]:
        """What must stay the same across restarts (kind, cluster id, topics …), for the topology's fingerprint."""

    def open(self) -> None:
        """Connect and check. Raises `ConfigError` (no such topic) or `SourceUnavailable` within a bounded time."""

    def plan(self, after: BatchMetadata, *, replay: bool) -> BatchMetadata | None:
        """The batch that starts where `after` ends, or None if there is nothing to read.

        With `replay` (opaque spouts only; a transactional batch is replayed as recorded) there is always a batch,
        possibly an empty one. A partition that is new in the recorded batch then has an empty range in `after`, which
        is where that batch started to read it: the replay starts there too. Raises `OperatingError`, or `BatchLost` if
        a gap is not allowed.
        """

    def check_replay(self, batch: BatchMetadata) -> None:
        """Raise `BatchLost` if a recorded batch of a transactional spout can no longer be read."""

    def check_read(self, batch: BatchMetadata) -> None:
        """Called after a batch was read: raise `ReplayMismatch` if what was read is not, or not certainly, what was
        planned, which no task can detect by itself (a source that was recreated under the same name)."""

    def reader(self) -> PartitionReader:
        """The reader of the batches' ranges, for the executors."""

    def committed(self, batch: BatchMetadata) -> None:
        """Called after each transaction commit, and again for the last one when a run starts: the process may have died
        before the call. May mirror the positions for lag tools. Must not raise."""

    def lag(self, after: BatchMetadata) -> int | None:
        """Number of offsets behind the given batch, as of the last planning; None: unknown.

        Called in the driver's thread, so it must be fast and must not raise.
        """

    def close(self) -> None:
        """Release what `open` acquired."""


@runtime_checkable
class MeasuredSpout(Protocol):
    """A spout that knows its lag by partition."""

    def lags(self, after: BatchMetadata) -> Mapping[PartitionId, int] | None:
        """As `Spout.lag`, by partition. Called in the driver's thread as well."""


@runtime_checkable
class SizedSpout(Protocol):
    """A spout whose batches can be limited dynamically: what `target_latency_ms` requires."""

    @property
    def batch_records_max(self) -> int | None:
        """The spout's own limit on the records of a batch; None: there is no such limit."""

    def limit_batches(self, limit: BatchLimit) -> None:
        """Plan no batch above this limit from now on, nor above the spout's own limits. Called before `plan`, rarely
        twice with the same limit. Raises `ConfigError` if the spout can't respect it."""


@runtime_checkable
class EventTimeSpout(Protocol):
    """A spout that knows which of its fields, timestamps, are the times at which something happened."""

    @property
    def event_times(self) -> Mapping[str, EventTime]:
        """The field by stream."""


@runtime_checkable
class ManyStreamsSpout(Protocol):
    """A spout that emits on several streams, the default one among them. Its reader is a `ManyStreamsReader`."""

    @property
    def outputs(self) -> Mapping[str, Schema]:
        """The fields by stream."""


@runtime_checkable
class ManyStreamsReader(Protocol):
    """A reader of such a spout: what it reads from a partition is emitted on one stream."""

    def stream_of(self, partition: PartitionId) -> str:
        """The stream of a partition."""


@runtime_checkable
class MessageReader(Protocol):
    """A reader that knows the offset of each record: what a topology that is at least once needs."""

    def read_with_offsets(
        self, partition: PartitionId, offsets: OffsetRange, metadata: Any = None
    ) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
        """As `PartitionReader.read`, with an array of 64-bit integers beside each record batch: the offsets of its
        records. A record whose offset is NULL is not followed."""


@runtime_checkable
class AckedSpout(Protocol):
    """A spout that is notified which of its messages were processed and which have failed, and that decides itself
    which of them it emits again."""

    def ack_at_once(self) -> None:
        """Called before `open` if the topology is at most once: no message is emitted a second time."""

    def settle(self, batch: BatchMetadata, failed: Sequence[FailedMessage]) -> None:
        """Called once after each transaction commit: every other message of the batch was processed. Must not raise."""


@runtime_checkable
class FollowsMessages(Protocol):
    """A bolt that knows, after `finish_batch`, which messages are not finished."""

    def unfinished(self) -> Unfinished:
        """What its task has found."""


class SpoutMaker(Protocol):
    """What a user implements for a custom source: it can turn itself into a `Spout`."""

    def as_spout(self, parallelism: int) -> Spout:
        """The spout, to be read by this many tasks."""
