"""The parts of `SeveralSpouts`: each combines the parts of its spouts.

An ability is offered here only if the combination can keep it: batches are limited if all spouts can do that. A method
that a part gains must be combined here, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from transactional.core.ports.examining import SourceAddress
from transactional.core.ports.several.batches import part_of_stream, stream_of
from transactional.core.ports.spout_parts import Backlog, Messages, Planning, Replays, SourceExamination
from transactional.core.ports.spouts import Spout
from transactional.core.ports.stream_names import STREAM_SEPARATOR, add_stream_name, split_stream_name
from transactional.model.batch import BatchLimit, BatchMetadata, OffsetRange, PartitionId
from transactional.model.facts import Listing
from transactional.model.messages import FailedMessage


@dataclass(slots=True)
class SharedPlanning(Planning):
    """The end of several spouts, and the limit that their batches share. `limit` is the one that was set last."""

    spouts: Mapping[str, Spout]
    limit: BatchLimit | None = None

    @property
    def has_ended(self) -> bool:
        """True if every spout has ended."""
        return all(spout.parts.planning.has_ended for spout in self.spouts.values())

    @property
    def can_limit_batches(self) -> bool:
        """True if the batches of all spouts can be limited."""
        return all(spout.parts.planning.can_limit_batches for spout in self.spouts.values())

    @property
    def batch_records_max(self) -> int | None:
        """The sum of the spouts' own limits. None if one of them has none."""
        limits = [spout.parts.planning.batch_records_max for spout in self.spouts.values()]
        numbers = [limit for limit in limits if limit is not None]
        return sum(numbers) if len(numbers) == len(limits) else None

    def limit_batches(self, limit: BatchLimit) -> None:
        """Share this limit among the spouts from now on.

        Raises `ConfigError` if the batches of one of them can't be limited.
        """
        for spout in self.spouts.values():
            spout.parts.planning.limit_batches(limit)
        self.limit = limit

    def plan_each(self, positions: Mapping[str, BatchMetadata], *, replay: bool) -> dict[str, BatchMetadata | None]:
        """Return the batch that each spout plans.

        Under a limit the spouts that are the least behind plan first: what they leave of it is for the others, so that
        none starves.
        """
        if self.limit is None:
            return {name: spout.plan(positions[name], replay=replay) for name, spout in self.spouts.items()}
        remaining, planned = self.limit.records, dict[str, BatchMetadata | None]()
        lags = {name: spout.parts.backlog.lag(positions[name]) or 0 for name, spout in self.spouts.items()}
        for number, name in enumerate(sorted(lags, key=lambda name: lags[name])):
            share = max(1, remaining // (len(lags) - number))
            self.spouts[name].parts.planning.limit_batches(replace(self.limit, records=share))
            batch = planned[name] = self.spouts[name].plan(positions[name], replay=replay)
            remaining -= 0 if batch is None else batch.offset_count
        return {name: planned[name] for name in self.spouts}


@dataclass(frozen=True, slots=True)
class SummedBacklog(Backlog):
    """The backlogs of several spouts, added up."""

    spouts: Mapping[str, Spout]

    def lag(self, previous_batch: BatchMetadata) -> int | None:
        """Return the sum of the lags. None if one of them is unknown."""
        lags = [spout.parts.backlog.lag(part_of_stream(name, previous_batch)) for name, spout in self.spouts.items()]
        numbers = [lag for lag in lags if lag is not None]
        return sum(numbers) if len(numbers) == len(lags) else None

    def lag_by_partition(self, previous_batch: BatchMetadata) -> Mapping[PartitionId, int] | None:
        """Return the lags of all partitions. None if those of one spout are unknown."""
        by_partition = dict[PartitionId, int]()
        for name, spout in self.spouts.items():
            lags = spout.parts.backlog.lag_by_partition(part_of_stream(name, previous_batch))
            if lags is None:
                return None
            by_partition |= {add_stream_name(name, partition): lag for partition, lag in lags.items()}
        return by_partition

    def list_partitions(self, previous_batch: BatchMetadata) -> Mapping[PartitionId, Listing]:
        """Return the listed partitions of all spouts."""
        return {
            add_stream_name(name, partition): listing
            for name, spout in self.spouts.items()
            for partition, listing in spout.parts.backlog.list_partitions(part_of_stream(name, previous_batch)).items()
        }


@dataclass(frozen=True, slots=True)
class ReplaysOfParts(Replays):
    """The checks of several spouts, each of its part of the batch."""

    spouts: Mapping[str, Spout]

    def check_replay(self, batch: BatchMetadata) -> None:
        """Raise `BatchLost` if a spout can't read its part of the batch again."""
        for name, spout in self.spouts.items():
            spout.parts.replays.check_replay(part_of_stream(name, batch))

    def check_read(self, batch: BatchMetadata) -> None:
        """Raise `ReplayMismatch` if a spout has read something else than was planned."""
        for name, spout in self.spouts.items():
            spout.parts.replays.check_read(part_of_stream(name, batch))


@dataclass(frozen=True, slots=True)
class RoutedMessages(Messages):
    """The messages of several spouts: each spout is notified of its own."""

    spouts: Mapping[str, Spout]

    @property
    def is_acked(self) -> bool:
        """True if at least one spout is notified of its messages."""
        return any(spout.parts.messages.is_acked for spout in self.spouts.values())

    def ack_at_once(self) -> None:
        """Let no spout emit a message a second time."""
        for spout in self.spouts.values():
            spout.parts.messages.ack_at_once()

    def acknowledge(self, batch: BatchMetadata, failed: Sequence[FailedMessage]) -> None:
        """Notify each spout of the outcome of its own messages."""
        for name, spout in self.spouts.items():
            own_failed = [
                replace(message, partition=split_stream_name(message.partition)[1])
                for message in failed
                if stream_of(message.partition) == name
            ]
            spout.parts.messages.acknowledge(part_of_stream(name, batch), own_failed)


@dataclass(frozen=True, slots=True)
class ExaminationOfSources(SourceExamination):
    """The examination of the sources of several spouts."""

    spouts: Mapping[str, Spout]

    def addresses(self) -> Mapping[str, SourceAddress]:
        """Return the addresses of all sources, by the prefix of their partitions' names."""
        return {
            f"{name}{STREAM_SEPARATOR}{prefix}": address
            for name, spout in self.spouts.items()
            for prefix, address in spout.parts.examination.addresses().items()
        }

    def read_held_ranges(self, partitions: Collection[PartitionId]) -> Mapping[PartitionId, OffsetRange | None]:
        """Return the ranges that the sources hold, each partition queried of its own spout."""
        ranges = dict[PartitionId, OffsetRange | None]()
        for name, spout in self.spouts.items():
            own_partitions = {
                split_stream_name(partition)[1]: partition for partition in partitions if stream_of(partition) == name
            }
            if own_partitions:
                held_ranges = spout.parts.examination.read_held_ranges(own_partitions.keys())
                ranges |= {own_partitions[partition]: offsets for partition, offsets in held_ranges.items()}
        return ranges
