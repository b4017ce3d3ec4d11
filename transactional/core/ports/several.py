"""`SeveralSpouts`: several spouts as one, whose transactions take a batch of each. Every spout has its own stream."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from transactional.core.ports import PartitionReader, RefusedRecord, Spout
from transactional.core.ports.examining import SourceAddress
from transactional.core.ports.stream_names import BETWEEN, of_stream, taken_apart
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
    """Reads each partition with its spout's reader, and emits it on the spout's stream."""

    readers: Mapping[str, PartitionReader]
    first: str
    tasks: Mapping[str, int] = field(default_factory=dict)
    """How many tasks read a spout's partitions; all of them, if it is not there."""

    def stream_of(self, partition: PartitionId) -> str:
        """The first spout has the default stream, or streams of its own."""
        stream, own = taken_apart(partition)
        return self.readers[stream].stream_of(own) if stream == self.first else stream

    def tasks_of(self, partition: PartitionId, tasks: int) -> int:
        """As many as its spout has."""
        return min(tasks, self.tasks.get(taken_apart(partition)[0], tasks))

    def read(self, partition: PartitionId, offsets: OffsetRange, metadata: Any = None) -> Iterator[pa.RecordBatch]:
        """As the spout's own reader."""
        reader, own = self._reader(partition)
        return reader.read(own, offsets, metadata)

    def read_or_refuse(
        self, partition: PartitionId, offsets: OffsetRange, metadata: Any = None
    ) -> Iterator[pa.RecordBatch | RefusedRecord]:
        """As the spout's own reader."""
        reader, own = self._reader(partition)
        return reader.read_or_refuse(own, offsets, metadata)

    def read_again(
        self, values: Mapping[str, Any], stream: str = DEFAULT_STREAM
    ) -> Iterator[pa.RecordBatch | RefusedRecord]:
        """By the reader of the record's stream."""
        if stream in self.readers and stream != self.first:
            return self.readers[stream].read_again(values)
        return self.readers[self.first].read_again(values, stream)

    def knowing(self, facts: Collection[str]) -> Self:
        """Each of them."""
        return replace(self, readers={stream: reader.knowing(facts) for stream, reader in self.readers.items()})

    def expect(self, ranges: Sequence[tuple[PartitionId, OffsetRange]]) -> None:
        """Each spout's reader expects its own."""
        by_stream: dict[str, list[tuple[PartitionId, OffsetRange]]] = {}
        for partition, offsets in ranges:
            stream, own = taken_apart(partition)
            by_stream.setdefault(stream, []).append((own, offsets))
        for stream, expected in by_stream.items():
            self.readers[stream].expect(expected)

    @property
    def knows_offsets(self) -> bool:
        """Whether all do."""
        return all(reader.knows_offsets for reader in self.readers.values())

    def read_with_offsets(
        self, partition: PartitionId, offsets: OffsetRange, metadata: Any = None
    ) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
        """As the spout's own reader."""
        reader, own = self._reader(partition)
        return reader.read_with_offsets(own, offsets, metadata)

    def _reader(self, partition: PartitionId) -> tuple[PartitionReader, PartitionId]:
        stream, own = taken_apart(partition)
        return self.readers[stream], own


class SeveralSpouts(Spout):
    """Spouts by the name of their stream, as a `Spout`.

    There is a batch when any of them has one. It is replayed exactly if all of them can be. `tasks` are how many tasks
    read a spout, if not all of the component's do.
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
        """The fields by stream, the first one as the default stream."""
        others = {name: spout.output for name, spout in self.spouts.items() if name != self.first}
        return {**self.spouts[self.first].outputs, **others}

    @property
    def event_times(self) -> Mapping[str, EventTime]:
        """Those of all."""
        times = dict(self.spouts[self.first].event_times)
        for name, spout in self.spouts.items():
            if name != self.first and DEFAULT_STREAM in spout.event_times:
                times[name] = spout.event_times[DEFAULT_STREAM]
        return times

    @property
    def sets_records_aside(self) -> bool:
        """Whether one of them does."""
        return any(spout.sets_records_aside for spout in self.spouts.values())

    @property
    def replays_exactly(self) -> bool:
        """Whether all do."""
        return all(spout.replays_exactly for spout in self.spouts.values())

    def reader(self) -> SeveralReaders:
        """Their readers."""
        return SeveralReaders({name: spout.reader() for name, spout in self.spouts.items()}, self.first, self.tasks)

    @property
    def kind(self) -> str:
        """That of a single one."""
        return self.spouts[self.first].kind if len(self.spouts) == 1 else super().kind

    @property
    def streams(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(self.spouts)

    def described(self, tasks: int) -> Sequence[Mapping[str, Any]]:
        """Each of them, if there are several."""
        each = [
            {"id": name, "kind": spout.kind, "parallelism": self.tasks.get(name, tasks)}
            for name, spout in self.spouts.items()
        ]
        return each if len(each) > 1 else ()

    # --- connections ----------------------------------------------------------------------------------------------

    def identity(self) -> Mapping[str, str]:
        """What must stay the same, for each stream."""
        return {
            f"{name}.{key}": value for name, spout in self.spouts.items() for key, value in spout.identity().items()
        }

    def open(self) -> None:
        """Open them, one after the other."""
        for spout in self.spouts.values():
            spout.open()

    def close(self) -> None:
        """Close all."""
        with ExitStack() as closing:
            for spout in self.spouts.values():
                closing.callback(spout.close)

    def apart(self) -> Self:
        """All of them apart."""
        return type(self)({name: spout.apart() for name, spout in self.spouts.items()}, self.tasks)

    # --- what happens to a batch ----------------------------------------------------------------------------------

    def plan(self, after: BatchMetadata, *, replay: bool) -> BatchMetadata | None:
        """A batch of each; one that has nothing new keeps its positions."""
        before = {name: self._part(name, after) for name in self.spouts}
        planned = self._planned(before, replay=replay)
        if all(batch is None for batch in planned.values()):
            return None
        parts = {name: batch if batch is not None else _nothing(before[name]) for name, batch in planned.items()}
        splits = [batch.split_records for batch in parts.values() if batch.split_records is not None]
        gone = _nothing(self._gone(after))
        return BatchMetadata(
            {
                **gone.ranges,
                **{of_stream(name, at): range for name, batch in parts.items() for at, range in batch.ranges.items()},
            },
            metadata={
                **gone.metadata,
                **{of_stream(name, at): kept for name, batch in parts.items() for at, kept in batch.metadata.items()},
            },
            split_records=min(splits, default=None),
        )

    @property
    def has_ended(self) -> bool:
        """Whether all have."""
        return all(spout.has_ended for spout in self.spouts.values())

    def _planned(self, before: Mapping[str, BatchMetadata], *, replay: bool) -> dict[str, BatchMetadata | None]:
        """What each has. Under a limit those that are the least behind come first: what they leave is for the
        others, and none starves."""
        if (limit := self._limit) is None:
            return {name: spout.plan(before[name], replay=replay) for name, spout in self.spouts.items()}
        left, planned = limit.records, dict[str, BatchMetadata | None]()
        lags = {name: spout.lag(before[name]) or 0 for name, spout in self.spouts.items()}
        for planning, name in enumerate(sorted(lags, key=lambda name: lags[name])):
            share = max(1, left // (len(lags) - planning))
            self.spouts[name].limit_batches(replace(limit, records=share))
            batch = planned[name] = self.spouts[name].plan(before[name], replay=replay)
            left -= 0 if batch is None else batch.offset_count
        return {name: planned[name] for name in self.spouts}

    def check_replay(self, batch: BatchMetadata) -> None:
        """Raise `BatchLost` if one of them can't read its part again."""
        for name, spout in self.spouts.items():
            spout.check_replay(self._part(name, batch))

    def check_read(self, batch: BatchMetadata) -> None:
        """Raise `ReplayMismatch` if one of them has read something else."""
        for name, spout in self.spouts.items():
            spout.check_read(self._part(name, batch))

    def committed(self, batch: BatchMetadata) -> None:
        """Pass it on."""
        for name, spout in self.spouts.items():
            spout.committed(self._part(name, batch))

    # --- how far behind, and sizes --------------------------------------------------------------------------------

    def lag(self, after: BatchMetadata) -> int | None:
        """The sum; None if one of them is unknown."""
        lags = [spout.lag(self._part(name, after)) for name, spout in self.spouts.items()]
        known = [lag for lag in lags if lag is not None]
        return sum(known) if len(known) == len(lags) else None

    def lags(self, after: BatchMetadata) -> Mapping[PartitionId, int] | None:
        """Those of all; None if one of them is unknown."""
        every = dict[PartitionId, int]()
        for name, spout in self.spouts.items():
            lags = spout.lags(self._part(name, after))
            if lags is None:
                return None
            every |= {of_stream(name, partition): lag for partition, lag in lags.items()}
        return every

    def listed(self, after: BatchMetadata) -> Mapping[PartitionId, Listing]:
        """Those of all."""
        return {
            of_stream(name, partition): listing
            for name, spout in self.spouts.items()
            for partition, listing in spout.listed(self._part(name, after)).items()
        }

    @property
    def can_limit_batches(self) -> bool:
        """Whether all can."""
        return all(spout.can_limit_batches for spout in self.spouts.values())

    @property
    def batch_records_max(self) -> int | None:
        """The sum; None if one of them has no limit."""
        limits = [spout.batch_records_max for spout in self.spouts.values()]
        known = [limit for limit in limits if limit is not None]
        return sum(known) if len(known) == len(limits) else None

    def limit_batches(self, limit: BatchLimit) -> None:
        """Share the limit from now on (see `_planned`). Raises `ConfigError` if one of them can't respect one."""
        for spout in self.spouts.values():
            spout.limit_batches(limit)
        self._limit = limit

    # --- examination ----------------------------------------------------------------------------------------------

    def addresses(self) -> Mapping[str, SourceAddress]:
        """Those of all."""
        return {
            f"{name}{BETWEEN}{before}": address
            for name, spout in self.spouts.items()
            for before, address in spout.addresses().items()
        }

    def held(self, partitions: Collection[PartitionId]) -> Mapping[PartitionId, OffsetRange | None]:
        """What each says of its own."""
        held = dict[PartitionId, OffsetRange | None]()
        for name, spout in self.spouts.items():
            apart = {at: taken_apart(at) for at in partitions}
            own = {partition: at for at, (stream, partition) in apart.items() if stream == name}
            held |= {own[partition]: there for partition, there in spout.held(own.keys()).items()} if own else {}
        return held

    # --- messages that are acked ----------------------------------------------------------------------------------

    @property
    def is_acked(self) -> bool:
        """Whether one of them is."""
        return any(spout.is_acked for spout in self.spouts.values())

    def ack_at_once(self) -> None:
        """Pass it on."""
        for spout in self.spouts.values():
            spout.ack_at_once()

    def settle(self, batch: BatchMetadata, failed: Sequence[FailedMessage]) -> None:
        """Pass each its own."""
        apart = [(taken_apart(message.partition), message) for message in failed]
        for name, spout in self.spouts.items():
            own = [replace(message, partition=at) for (stream, at), message in apart if stream == name]
            spout.settle(self._part(name, batch), own)

    def _part(self, name: str, batch: BatchMetadata) -> BatchMetadata:
        def own(of_partitions: Mapping[PartitionId, Any]) -> dict[PartitionId, Any]:
            apart = {at: taken_apart(at) for at in of_partitions}
            return {own: of_partitions[at] for at, (stream, own) in apart.items() if stream == name}

        return replace(batch, ranges=own(batch.ranges), digests=own(batch.digests), metadata=own(batch.metadata))

    def _gone(self, batch: BatchMetadata) -> BatchMetadata:
        """The part of streams that the topology no longer has: their positions are kept."""

        def left(of_partitions: Mapping[PartitionId, Any]) -> dict[PartitionId, Any]:
            return {at: of_partitions[at] for at in of_partitions if taken_apart(at)[0] not in self.spouts}

        return BatchMetadata(left(batch.ranges), metadata=left(batch.metadata))


def _nothing(after: BatchMetadata) -> BatchMetadata:
    ranges = {partition: OffsetRange(offsets.until, offsets.until) for partition, offsets in after.ranges.items()}
    return BatchMetadata(ranges, metadata=after.metadata)
