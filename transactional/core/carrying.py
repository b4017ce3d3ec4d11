"""What a committed batch carries on from the one before it. Pure."""

from __future__ import annotations

from dataclasses import replace

from transactional.batch import BatchMetadata


def carried(before: BatchMetadata, batch: BatchMetadata) -> BatchMetadata:
    """The batch that is being committed, after the last committed one: with the highest event times up to here."""
    event_times = dict(before.event_times)
    for partition, digest in batch.digests.items():
        if digest.event_us is not None:
            event_times[partition] = max(digest.event_us, event_times.get(partition, digest.event_us))
    return replace(batch, event_times=event_times) if event_times else batch
