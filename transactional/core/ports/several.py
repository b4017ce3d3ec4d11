"""Several spouts as one `Spout`, whose transactions take a batch of each. Every spout has its own stream.

The engine knows a single spout. `SeveralSpouts` plans with each of its spouts, and puts the name of the stream in front
of their partitions (`stream_names`); every call that comes back with such a partition goes to the spout of its stream.
What a spout offers is offered here only if the combination can keep it: batches are replayed exactly, or limited, if
all spouts can do that. An ability of `Spout` that is added must be passed on here, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from transactional.core.ports import PartitionReader, RefusedRecord, Spout
from transactional.core.ports.examining import SourceAddress
from transactional.core.ports.stream_names import STREAM_SEPARATOR, add_stream_name, split_stream_name
from transactional.model.batch import BatchLimit, BatchMetadata, OffsetRange, PartitionId
from transactional.model.errors import ConfigError
from transactional.model.facts import EventTime, Listing
from transactional.model.groupings import DEFAULT_STREAM
from transactional.model.messages import FailedMessage
from transactional.model.schema import Schema

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class SeveralReaders(PartitionReader):
    """Reads each partition with the reader of its spout, and emits the records on the stream of that spout."""

    readers: Mapping[str, PartitionReader]
    first: str
    tasks: Mapping[str, int] = field(default_factory=dict)
    """The number of tasks that read the partitions of a spout. A spout that is left out is read by all tasks."""

    def stream_of(self, partition: PartitionId) -> str:
        """Return the stream of the spout; for the first spout, the default stream or one of its own streams."""
        stream, own_partition = split_stream_name(partition)
        return self.readers[stream].stream_of(own_partition) if stream == self.first else stream

    def count_tasks(self, partition: PartitionId, tasks: int) -> int:
        """Return the number of tasks of the partition's spout, at most `tasks`."""
        return min(tasks, self.tasks.get(split_stream_name(partition)[0], tasks))

    def read(self, partition: PartitionId, offsets: OffsetRange, metadata: Any = None) -> Iterator[pa.RecordBatch]:
        """Read with the reader of the partition's spout."""
        reader, own_partition = self._reader(partition)
        return reader.read(own_partition, offsets, metadata)

    def read_or_refuse(
        self, partition: PartitionId, offsets: OffsetRange, metadata: Any = None
    ) -> Iterator[pa.RecordBatch | RefusedRecord]:
        """Read with the reader of the partition's spout."""
        reader, own_partition = self._reader(partition)
        return reader.read_or_refuse(own_partition, offsets, metadata)

    def read_again(
        self, values: Mapping[str, Any], stream: str = DEFAULT_STREAM
    ) -> Iterator[pa.RecordBatch | RefusedRecord]:
        """Read the record again with the reader of its stream."""
        if stream in self.readers and stream != self.first:
            return self.readers[stream].read_again(values)
        return self.readers[self.first].read_again(values, stream)

    def with_facts(self, facts: Collection[str]) -> Self:
        """Pass the recorded facts to the readers of all spouts."""
        return replace(self, readers={stream: reader.with_facts(facts) for stream, reader in self.readers.items()})

    def expect(self, ranges: Sequence[tuple[PartitionId, OffsetRange]]) -> None:
        """Announce to the reader of each spout its own ranges."""
        by_stream: dict[str, list[tuple[PartitionId, OffsetRange]]] = {}
        for partition, offsets in ranges:
            stream, own_partition = split_stream_name(partition)
            by_stream.setdefault(stream, []).append((own_partition, offsets))
        for stream, own_ranges in by_stream.items():
            self.readers[stream].expect(own_ranges)

    @property
    def knows_offsets(self) -> bool:
        """True if the readers of all spouts know the offsets of their records."""
        return all(reader.knows_offsets for reader in self.readers.values())

    def read_with_offsets(
        self, partition: PartitionId, offsets: OffsetRange, metadata: Any = None
    ) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
        """Read with the reader of the partition's spout."""
        reader, own_partition = self._reader(partition)
        return reader.read_with_offsets(own_partition, offsets, metadata)

    def _reader(self, partition: PartitionId) -> tuple[PartitionReader, PartitionId]:
        stream, own_partition = split_stream_name(partition)
        return self.readers[stream], own_partition


class SeveralSpouts(Spout):
    """Spouts by the name of their stream, as one `Spout`.

    There is a batch as soon as one of the spouts has one. A batch is replayed exactly if all spouts do that. `tasks` is
    the number of tasks that read a spout, for those that not all of the component's tasks read.
    """

    def __init__(self, spouts: Mapping[str, Spout], tasks: Mapping[str, int] | None = None) -> None:
        for name, spout in spouts.items():
            if len(spouts) > 1 and len(spout.outputs) > 1:
                raise ConfigError(f"stream {name!r}: its spout has several streams, so it must be the only one")
        self.spouts, self.tasks = dict(spouts), dict(tasks or {})
        self.first = next(iter(spouts))
        self._limit: BatchLimit | None = None

    # --- what is emitted ------------------------------------------------------------------------------------------

    @property
    def output(self) -> Schema:
        """The fields of the first stream."""
        return self.spouts[self.first].output

    @property
    def outputs(self) -> Mapping[str, Schema]:
        """The fields by stream, those of the first spout under the default stream."""
        further_outputs = {name: spout.output for name, spout in self.spouts.items() if name != self.first}
        return {**self.spouts[self.first].outputs, **further_outputs}

    @property
    def event_times(self) -> Mapping[str, EventTime]:
        """The event time fields of all spouts, by stream."""
        times = dict(self.spouts[self.first].event_times)
        for name, spout in self.spouts.items():
            if name != self.first and DEFAULT_STREAM in spout.event_times:
                times[name] = spout.event_times[DEFAULT_STREAM]
        return times

    @property
    def sets_records_aside(self) -> bool:
        """True if the reader of at least one spout refuses records."""
        return any(spout.sets_records_aside for spout in self.spouts.values())

    @property
    def replays_exactly(self) -> bool:
        """True if all spouts replay a recorded batch exactly."""
        return all(spout.replays_exactly for spout in self.spouts.values())

    def reader(self) -> SeveralReaders:
        """Return a reader that passes each partition to the reader of its spout."""
        return SeveralReaders({name: spout.reader() for name, spout in self.spouts.items()}, self.first, self.tasks)

    @property
    def kind(self) -> str:
        """The kind of the only spout, or the name of this class."""
        return self.spouts[self.first].kind if len(self.spouts) == 1 else super().kind

    @property
    def streams(self) -> tuple[str, ...]:
        """The names of the spouts' streams, as declared."""
        return tuple(self.spouts)

    def describe_parts(self, tasks: int) -> Sequence[Mapping[str, Any]]:
        """Return id, kind and parallelism of every spout; nothing if there is only one."""
        parts = [
            {"id": name, "kind": spout.kind, "parallelism": self.tasks.get(name, tasks)}
            for name, spout in self.spouts.items()
        ]
        return parts if len(parts) > 1 else ()

    # --- connections ----------------------------------------------------------------------------------------------

    def identity(self) -> Mapping[str, str]:
        """Return the identities of all spouts, with the name of the stream in front of each key."""
        return {f"{name}.{key}": text for name, spout in self.spouts.items() for key, text in spout.identity().items()}

    def open(self) -> None:
        """Open the spouts, one after the other."""
        for spout in self.spouts.values():
            spout.open()

    def close(self) -> None:
        """Close all spouts, even if closing one of them raises."""
        with ExitStack() as stack:
            for spout in self.spouts.values():
                stack.callback(spout.close)

    def copy_unopened(self) -> Self:
        """Return an unopened copy that is made of unopened copies of the spouts."""
        return type(self)({name: spout.copy_unopened() for name, spout in self.spouts.items()}, self.tasks)

    # --- what happens to a batch ----------------------------------------------------------------------------------

    def plan(self, previous_batch: BatchMetadata, *, replay: bool) -> BatchMetadata | None:
        """Plan a batch with each spout. A spout that has nothing new keeps its positions."""
        positions = {name: self._part_of_batch(name, previous_batch) for name in self.spouts}
        planned = self._plan_each(positions, replay=replay)
        if all(batch is None for batch in planned.values()):
            return None
        parts = {
            name: batch if batch is not None else _without_records(positions[name]) for name, batch in planned.items()
        }
        splits = [batch.split_records for batch in parts.values() if batch.split_records is not None]
        removed = _without_records(self._part_of_removed(previous_batch))
        ranges, metadata = dict(removed.ranges), dict(removed.metadata)
        for name, batch in parts.items():
            ranges |= {add_stream_name(name, partition): range for partition, range in batch.ranges.items()}
            metadata |= {add_stream_name(name, partition): entry for partition, entry in batch.metadata.items()}
        return BatchMetadata(ranges, metadata=metadata, split_records=min(splits, default=None))

    @property
    def has_ended(self) -> bool:
        """True if every spout has ended."""
        return all(spout.has_ended for spout in self.spouts.values())

    def _plan_each(self, positions: Mapping[str, BatchMetadata], *, replay: bool) -> dict[str, BatchMetadata | None]:
        """Return the batch that each spout plans.

        Under a limit the spouts that are the least behind plan first: what they leave of it is for the others, so that
        none starves.
        """
        if (limit := self._limit) is None:
            return {name: spout.plan(positions[name], replay=replay) for name, spout in self.spouts.items()}
        remaining, planned = limit.records, dict[str, BatchMetadata | None]()
        lags = {name: spout.lag(positions[name]) or 0 for name, spout in self.spouts.items()}
        for number, name in enumerate(sorted(lags, key=lambda name: lags[name])):
            share = max(1, remaining // (len(lags) - number))
            self.spouts[name].limit_batches(replace(limit, records=share))
            batch = planned[name] = self.spouts[name].plan(positions[name], replay=replay)
            remaining -= 0 if batch is None else batch.offset_count
        return {name: planned[name] for name in self.spouts}

    def check_replay(self, batch: BatchMetadata) -> None:
        """Raise `BatchLost` if a spout can't read its part of the batch again."""
        for name, spout in self.spouts.items():
            spout.check_replay(self._part_of_batch(name, batch))

    def check_read(self, batch: BatchMetadata) -> None:
        """Raise `ReplayMismatch` if a spout has read something else than was planned."""
        for name, spout in self.spouts.items():
            spout.check_read(self._part_of_batch(name, batch))

    def committed(self, batch: BatchMetadata) -> None:
        """Notify each spout of the commit of its part."""
        for name, spout in self.spouts.items():
            spout.committed(self._part_of_batch(name, batch))

    # --- how far behind, and sizes --------------------------------------------------------------------------------

    def lag(self, previous_batch: BatchMetadata) -> int | None:
        """Return the sum of the lags. None if one of them is unknown."""
        lags = [spout.lag(self._part_of_batch(name, previous_batch)) for name, spout in self.spouts.items()]
        numbers = [lag for lag in lags if lag is not None]
        return sum(numbers) if len(numbers) == len(lags) else None

    def lag_by_partition(self, previous_batch: BatchMetadata) -> Mapping[PartitionId, int] | None:
        """Return the lags of all partitions. None if those of one spout are unknown."""
        by_partition = dict[PartitionId, int]()
        for name, spout in self.spouts.items():
            lags = spout.lag_by_partition(self._part_of_batch(name, previous_batch))
            if lags is None:
                return None
            by_partition |= {add_stream_name(name, partition): lag for partition, lag in lags.items()}
        return by_partition

    def list_partitions(self, previous_batch: BatchMetadata) -> Mapping[PartitionId, Listing]:
        """Return the listed partitions of all spouts."""
        return {
            add_stream_name(name, partition): listing
            for name, spout in self.spouts.items()
            for partition, listing in spout.list_partitions(self._part_of_batch(name, previous_batch)).items()
        }

    @property
    def can_limit_batches(self) -> bool:
        """True if the batches of all spouts can be limited."""
        return all(spout.can_limit_batches for spout in self.spouts.values())

    @property
    def batch_records_max(self) -> int | None:
        """The sum of the spouts' own limits. None if one of them has none."""
        limits = [spout.batch_records_max for spout in self.spouts.values()]
        numbers = [limit for limit in limits if limit is not None]
        return sum(numbers) if len(numbers) == len(limits) else None

    def limit_batches(self, limit: BatchLimit) -> None:
        """Share this limit among the spouts from now on (see `_plan_each`).

        Raises `ConfigError` if the batches of one of them can't be limited.
        """
        for spout in self.spouts.values():
            spout.limit_batches(limit)
        self._limit = limit

    # --- examination ----------------------------------------------------------------------------------------------

    def addresses(self) -> Mapping[str, SourceAddress]:
        """Return the addresses of all sources, by the prefix of their partitions' names."""
        return {
            f"{name}{STREAM_SEPARATOR}{prefix}": address
            for name, spout in self.spouts.items()
            for prefix, address in spout.addresses().items()
        }

    def read_held_ranges(self, partitions: Collection[PartitionId]) -> Mapping[PartitionId, OffsetRange | None]:
        """Return the ranges that the sources hold, each partition queried of its own spout."""
        ranges = dict[PartitionId, OffsetRange | None]()
        for name, spout in self.spouts.items():
            own_partitions = {
                split_stream_name(partition)[1]: partition for partition in partitions if _stream_of(partition) == name
            }
            if own_partitions:
                held_ranges = spout.read_held_ranges(own_partitions.keys())
                ranges |= {own_partitions[partition]: offsets for partition, offsets in held_ranges.items()}
        return ranges

    # --- messages that are acked ----------------------------------------------------------------------------------

    @property
    def is_acked(self) -> bool:
        """True if at least one spout is notified of its messages."""
        return any(spout.is_acked for spout in self.spouts.values())

    def ack_at_once(self) -> None:
        """Let no spout emit a message a second time."""
        for spout in self.spouts.values():
            spout.ack_at_once()

    def acknowledge(self, batch: BatchMetadata, failed: Sequence[FailedMessage]) -> None:
        """Notify each spout of the outcome of its own messages."""
        for name, spout in self.spouts.items():
            own_failed = [
                replace(message, partition=split_stream_name(message.partition)[1])
                for message in failed
                if _stream_of(message.partition) == name
            ]
            spout.acknowledge(self._part_of_batch(name, batch), own_failed)

    def _part_of_batch(self, name: str, batch: BatchMetadata) -> BatchMetadata:
        def select_own(by_partition: Mapping[PartitionId, Any]) -> dict[PartitionId, Any]:
            pairs = ((split_stream_name(partition), entry) for partition, entry in by_partition.items())
            return {own_partition: entry for (stream, own_partition), entry in pairs if stream == name}

        return replace(
            batch,
            ranges=select_own(batch.ranges),
            digests=select_own(batch.digests),
            metadata=select_own(batch.metadata),
        )

    def _part_of_removed(self, batch: BatchMetadata) -> BatchMetadata:
        """Return the part of streams that the topology no longer has: their positions stay recorded."""

        def select_removed(by_partition: Mapping[PartitionId, Any]) -> dict[PartitionId, Any]:
            return {
                partition: entry
                for partition, entry in by_partition.items()
                if _stream_of(partition) not in self.spouts
            }

        return BatchMetadata(select_removed(batch.ranges), metadata=select_removed(batch.metadata))


def _stream_of(partition: PartitionId) -> str:
    return split_stream_name(partition)[0]


def _without_records(previous_batch: BatchMetadata) -> BatchMetadata:
    ranges = {
        partition: OffsetRange(offsets.until, offsets.until) for partition, offsets in previous_batch.ranges.items()
    }
    return BatchMetadata(ranges, metadata=previous_batch.metadata)
