"""`SeveralSpouts`: several spouts as one, whose transactions take a batch of each. Every spout has its own stream."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from transactional.batch import BatchMetadata, OffsetRange, PartitionId
from transactional.errors import ConfigError
from transactional.groupings import DEFAULT_STREAM
from transactional.ports import ManyStreamsSpout, PartitionReader, Spout
from transactional.schema import Schema

_BETWEEN = "/"
"""In the name of a source: stream, then the spout's own name. No stream has it in its name."""


def of_stream(stream: str, partition: PartitionId, first: str) -> PartitionId:
    """A spout's partition as one of the topology. The first one's keep their names, under which their positions are
    recorded while it is the only one."""
    return partition if stream == first else replace(partition, source=f"{stream}{_BETWEEN}{partition.source}")


def taken_apart(partition: PartitionId, streams: Collection[str], first: str) -> tuple[str, PartitionId]:
    """The stream, and the partition as the spout knows it."""
    stream, between, source = partition.source.partition(_BETWEEN)
    return (stream, replace(partition, source=source)) if between and stream in streams else (first, partition)


@dataclass(frozen=True, slots=True)
class SeveralReaders:
    """Reads each partition with its spout's reader, and emits it on the spout's stream."""

    readers: Mapping[str, PartitionReader]
    first: str

    def stream_of(self, partition: PartitionId) -> str:
        """The first spout has the default stream."""
        stream, _ = taken_apart(partition, self.readers, self.first)
        return DEFAULT_STREAM if stream == self.first else stream

    def read(self, partition: PartitionId, offsets: OffsetRange, metadata: Any = None) -> Iterator[pa.RecordBatch]:
        """As the spout's own reader."""
        stream, own = taken_apart(partition, self.readers, self.first)
        return self.readers[stream].read(own, offsets, metadata)


class SeveralSpouts:
    """Spouts by the name of their stream, as a `Spout`.

    There is a batch when any of them has one. It is replayed exactly if all of them can be.
    """

    def __init__(self, spouts: Mapping[str, Spout]) -> None:
        for name, spout in spouts.items():
            if isinstance(spout, ManyStreamsSpout):
                raise ConfigError(f"stream {name!r}: its spout has several streams, so it must be the only one")
            if getattr(spout, "sets_records_aside", False):
                raise ConfigError(
                    f"stream {name!r}: its spout sets records aside (on_error='dead_letter'), which it can do only if "
                    "it is the only one: let it skip them"
                )
        self.spouts = dict(spouts)
        self.first = next(iter(spouts))

    @property
    def output(self) -> Schema:
        """The fields of the first stream."""
        return self.spouts[self.first].output

    @property
    def outputs(self) -> Mapping[str, Schema]:
        """The fields by stream, the first one as the default stream."""
        return {DEFAULT_STREAM if name == self.first else name: spout.output for name, spout in self.spouts.items()}

    @property
    def replays_exactly(self) -> bool:
        """Whether all do."""
        return all(spout.replays_exactly for spout in self.spouts.values())

    def identity(self) -> Mapping[str, str]:
        """What must stay the same, for each stream."""
        return {
            f"{name}.{key}": value for name, spout in self.spouts.items() for key, value in spout.identity().items()
        }

    def open(self) -> None:
        """Open them, one after the other."""
        for spout in self.spouts.values():
            spout.open()

    def plan(self, after: BatchMetadata, *, replay: bool) -> BatchMetadata | None:
        """A batch of each; one that has nothing new keeps its positions."""
        before = {name: self._part(name, after) for name in self.spouts}
        planned = {name: spout.plan(before[name], replay=replay) for name, spout in self.spouts.items()}
        if all(batch is None for batch in planned.values()):
            return None
        parts = {name: batch if batch is not None else _nothing(before[name]) for name, batch in planned.items()}
        splits = [batch.split_records for batch in parts.values() if batch.split_records is not None]
        self._check_names(parts[self.first])
        return BatchMetadata(
            {self._of(name, at): offsets for name, batch in parts.items() for at, offsets in batch.ranges.items()},
            metadata={self._of(name, at): kept for name, batch in parts.items() for at, kept in batch.metadata.items()},
            split_records=min(splits, default=None),
        )

    def _of(self, name: str, partition: PartitionId) -> PartitionId:
        return of_stream(name, partition, self.first)

    def _check_names(self, first: BatchMetadata) -> None:
        """Raise `ConfigError` for a source of the first stream that would be taken for another one's."""
        for at in first.ranges:
            stream, own = taken_apart(at, self.spouts, self.first)
            if own != at:
                raise ConfigError(
                    f"stream {self.first!r}: its source {at.source!r} begins as those of stream {stream!r} do: give "
                    "that stream another name"
                )

    def check_replay(self, batch: BatchMetadata) -> None:
        """Raise `BatchLost` if one of them can't read its part again."""
        for name, spout in self.spouts.items():
            spout.check_replay(self._part(name, batch))

    def check_read(self, batch: BatchMetadata) -> None:
        """Raise `ReplayMismatch` if one of them has read something else."""
        for name, spout in self.spouts.items():
            spout.check_read(self._part(name, batch))

    def reader(self) -> SeveralReaders:
        """Their readers."""
        return SeveralReaders({name: spout.reader() for name, spout in self.spouts.items()}, self.first)

    def committed(self, batch: BatchMetadata) -> None:
        """Pass it on."""
        for name, spout in self.spouts.items():
            spout.committed(self._part(name, batch))

    def lag(self, after: BatchMetadata) -> int | None:
        """The sum; None if one of them is unknown."""
        lags = [spout.lag(self._part(name, after)) for name, spout in self.spouts.items()]
        known = [lag for lag in lags if lag is not None]
        return sum(known) if len(known) == len(lags) else None

    def close(self) -> None:
        """Close all."""
        for spout in self.spouts.values():
            spout.close()

    def _part(self, name: str, batch: BatchMetadata) -> BatchMetadata:
        def own(of_partitions: Mapping[PartitionId, Any]) -> dict[PartitionId, Any]:
            apart = {at: taken_apart(at, self.spouts, self.first) for at in of_partitions}
            # Where progress has the first stream's under both names, the one without the stream is newer.
            newest_last = sorted(apart, key=lambda at: apart[at][1] == at)
            return {apart[at][1]: of_partitions[at] for at in newest_last if apart[at][0] == name}

        return replace(batch, ranges=own(batch.ranges), digests=own(batch.digests), metadata=own(batch.metadata))


def _nothing(after: BatchMetadata) -> BatchMetadata:
    ranges = {partition: OffsetRange(offsets.until, offsets.until) for partition, offsets in after.ranges.items()}
    return BatchMetadata(ranges, metadata=after.metadata)
