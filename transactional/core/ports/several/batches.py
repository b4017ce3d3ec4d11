"""The parts of a batch that belong to one of several spouts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from transactional.core.ports.stream_names import split_stream_name
from transactional.model.batch import BatchMetadata, OffsetRange, PartitionId


def stream_of(partition: PartitionId) -> str:
    """Return the stream with whose name the name of a partition begins."""
    return split_stream_name(partition)[0]


def part_of_stream(stream: str, batch: BatchMetadata) -> BatchMetadata:
    """Return the part of a batch that the spout of a stream has planned, with the names of its own partitions."""

    def select_own(by_partition: Mapping[PartitionId, Any]) -> dict[PartitionId, Any]:
        pairs = ((split_stream_name(partition), entry) for partition, entry in by_partition.items())
        return {own_partition: entry for (name, own_partition), entry in pairs if name == stream}

    return replace(
        batch, ranges=select_own(batch.ranges), digests=select_own(batch.digests), metadata=select_own(batch.metadata)
    )


def part_of_removed(streams: Collection[str], batch: BatchMetadata) -> BatchMetadata:
    """Return the part of streams that are no longer among `streams`: their positions stay recorded."""

    def select_removed(by_partition: Mapping[PartitionId, Any]) -> dict[PartitionId, Any]:
        return {partition: entry for partition, entry in by_partition.items() if stream_of(partition) not in streams}

    return BatchMetadata(select_removed(batch.ranges), metadata=select_removed(batch.metadata))


def without_records(previous_batch: BatchMetadata) -> BatchMetadata:
    """Return the batch after `previous_batch` that reads nothing."""
    ranges = {
        partition: OffsetRange(offsets.until, offsets.until) for partition, offsets in previous_batch.ranges.items()
    }
    return BatchMetadata(ranges, metadata=previous_batch.metadata)
