"""`SeveralReaders`: the readers of several spouts as one. Each emits its records on the stream of its spout."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from transactional.core.ports import JointRecords, PartitionReader, RefusedRecord
from transactional.core.ports.stream_names import split_stream_name
from transactional.model.batch import OffsetRange, PartitionId
from transactional.model.groupings import DEFAULT_STREAM

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class SeveralReaders(PartitionReader):
    """Reads each partition with the reader of its spout, and emits the records on the stream of that spout."""

    readers: Mapping[str, PartitionReader]
    first: str
    tasks: Mapping[str, int] = field(default_factory=dict)
    """The number of tasks that read the partitions of a spout. A spout that is left out is read by all tasks."""

    @property
    def refuses_records(self) -> bool:
        """True if the reader of at least one spout refuses records."""
        return any(reader.refuses_records for reader in self.readers.values())

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

    def read_together(
        self, ranges: Sequence[tuple[PartitionId, OffsetRange]]
    ) -> Iterator[JointRecords | RefusedRecord] | None:
        """Read with the reader of the stream that these partitions have in common."""
        [reader] = {id(reader): reader for reader, _ in map(self._reader, (p for p, _ in ranges))}.values()
        return reader.read_together([(split_stream_name(partition)[1], offsets) for partition, offsets in ranges])

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
