"""Reads past records that the source has lost, for topologies that replay batches as they were recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from transactional.core.ports import RefusedRecord
from transactional.model.batch import Offset, OffsetRange, PartitionId
from transactional.model.errors import ReplayMismatch

Read = Callable[..., Iterator[pa.RecordBatch | RefusedRecord]]


def skipping_losses(read: Read, report_loss: Callable[[int, str], None]) -> Read:
    """Return a reading function that continues where the source has records again.

    `report_loss` is called with the number of lost offsets and the reason. Offsets that never held a record may be
    counted among them.
    """

    def reading(
        partition: PartitionId, offsets: OffsetRange, metadata: object = None
    ) -> Iterator[pa.RecordBatch | RefusedRecord]:
        start = offsets.start
        while start < offsets.until:
            records, remaining = 0, OffsetRange(start, offsets.until)
            try:
                for part in read(partition, remaining, metadata):
                    records += part.num_rows if isinstance(part, pa.RecordBatch) else 1
                    yield part
                return
            except ReplayMismatch as mismatch:
                first = mismatch.available_from
                if first is None or first <= start:
                    raise
                start = Offset(min(max(first, mismatch.read_until), offsets.until))
                lost_offsets = min(first - remaining.start, start - remaining.start - records)
                if lost_offsets > 0:
                    report_loss(lost_offsets, str(mismatch))

    return reading
