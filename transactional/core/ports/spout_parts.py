"""The parts of a spout: what it can do besides planning batches and having them read.

Each part is a class of a few methods, whose defaults are those of a spout without the ability, so the engine never has
to look for a method. A spout that has an ability overrides its part, as a class of its own or as one of its bases, and
names it in `Spout.parts`. A spout that wraps another replaces the parts that it answers for, and passes on the others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from transactional.core.ports.examining import SourceAddress
from transactional.model.batch import BatchLimit, BatchMetadata, OffsetRange, PartitionId
from transactional.model.errors import ConfigError
from transactional.model.facts import EventTime, Listing
from transactional.model.messages import FailedMessage
from transactional.model.schema import Schema


@dataclass(frozen=True, slots=True)
class Streams:
    """The streams of a spout.

    `outputs` are the fields by stream, the default stream among them (see `PartitionReader.stream_of`), and `kind` is
    the kind of source, for descriptions of the topology. `event_times` are the timestamp fields that say when an event
    happened, by stream, as far as the spout knows them. `names` are the streams, as declared, with which the names of
    partitions begin (see `stream_names`). `sources` are the spouts that this one is made of, if it is made of several.
    """

    outputs: Mapping[str, Schema]
    kind: str
    event_times: Mapping[str, EventTime] = field(default_factory=dict)
    names: Sequence[str] = ()
    sources: Sequence[SourceOfStream] = ()


@dataclass(frozen=True, slots=True)
class SourceOfStream:
    """One of the spouts that a spout is made of. Without a number of `tasks`, all tasks of the component read it."""

    id: str
    kind: str
    tasks: int | None = None


class Planning:
    """The end and the size of batches. By default a batch has the size that the spout chooses."""

    @property
    def has_ended(self) -> bool:
        """True if `plan` returned None because the source has no more, so that a run until drained may end.

        False if the source is merely not ready.
        """
        return True

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
        raise ConfigError("the batches of this spout can't be limited")


class Backlog:
    """The records that the source had at the last planning, and no batch has read. By default nothing is known."""

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


class Replays:
    """The checks that a batch is read as it was planned. By default nothing is checked."""

    def check_replay(self, batch: BatchMetadata) -> None:
        """Raise `BatchLost` if a recorded batch of a transactional spout can no longer be read."""

    def check_read(self, batch: BatchMetadata) -> None:
        """Raise `ReplayMismatch` unless it is certain that the planned records were read. Called after the read.

        For differences that no task can detect by itself, such as a source that was recreated under the same name.
        """


class Messages:
    """Messages of which the source is notified one by one. By default it is not notified."""

    @property
    def is_acked(self) -> bool:
        """True if the spout is notified which of its messages were processed, and which have failed.

        Such a spout decides itself which messages it emits again. Nothing can be read from it twice.
        """
        return False

    def ack_at_once(self) -> None:
        """Emit no message a second time. Called before `open` if the topology has at most once."""

    def acknowledge(self, batch: BatchMetadata, failed: Sequence[FailedMessage]) -> None:
        """Acknowledge the messages of a committed batch, except for those that have failed. Must not raise.

        Called once after each transaction commit.
        """


class SourceExamination:
    """The facts about the source that an examination beside a run needs. By default none is known."""

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


@dataclass(frozen=True, slots=True)
class SpoutParts:
    """The parts of a spout. Each part that is not given is that of a spout without the ability."""

    streams: Streams
    planning: Planning = field(default_factory=Planning)
    backlog: Backlog = field(default_factory=Backlog)
    replays: Replays = field(default_factory=Replays)
    messages: Messages = field(default_factory=Messages)
    examination: SourceExamination = field(default_factory=SourceExamination)
