"""Reading on past records that the source has lost: for a topology whose batches come again as they were recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from transactional.core.ports import RefusedRecord
from transactional.model.batch import Offset, OffsetRange, PartitionId
from transactional.model.errors import ReplayMismatch

Read = Callable[..., Iterator[pa.RecordBatch | RefusedRecord]]


def past_losses(read: Read, note: Callable[[int, str], None]) -> Read:
    """A reading function that continues where the source has records again; `note` is called with how many offsets were
    lost, and with the reason. Offsets that never held a record may be counted among them."""

    def reading(
        partition: PartitionId, offsets: OffsetRange, metadata: object = None
    ) -> Iterator[pa.RecordBatch | RefusedRecord]:
        at = offsets.start
        while at < offsets.until:
            records, wanted = 0, OffsetRange(at, offsets.until)
            try:
                for each in read(partition, wanted, metadata):
                    records += each.num_rows if isinstance(each, pa.RecordBatch) else 1
                    yield each
                return
            except ReplayMismatch as mismatch:
                first = mismatch.available_from
                if first is None or first <= at:
                    raise
                at = Offset(min(max(first, mismatch.read_until), offsets.until))
                lost = min(first - wanted.start, at - wanted.start - records)
                if lost > 0:
                    note(lost, str(mismatch))

    return reading
