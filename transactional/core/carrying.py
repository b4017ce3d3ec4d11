"""What a committed batch carries on from the one before it, and what of a batch is replayed. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from transactional.batch import BatchMetadata
from transactional.guarantees import Guarantee
from transactional.messages import emptied, joined


def carried(before: BatchMetadata, batch: BatchMetadata) -> BatchMetadata:
    """The batch that is being committed, after the last committed one: with the highest event times up to here, and all
    messages that wait to be processed again."""
    event_times = dict(before.event_times)
    for partition, digest in batch.digests.items():
        if digest.event_us is not None:
            event_times[partition] = max(digest.event_us, event_times.get(partition, digest.event_us))
    pending = joined(before.pending, batch)
    return replace(batch, event_times=event_times, pending=pending) if event_times or pending else batch


def with_what_is_known(
    after: BatchMetadata, committed: BatchMetadata, recorded: Iterable[BatchMetadata]
) -> BatchMetadata:
    """`after`, which may be in flight, with what only the last committed batch has: event times, and the messages that
    wait and that no batch in flight is processing."""
    in_flight = {message.key for batch in recorded for message in batch.again}
    pending = tuple(message for message in committed.pending if message.key not in in_flight)
    if not (committed.event_times or pending or after.pending):
        return after
    return replace(after, event_times=committed.event_times, pending=pending)


def replayed(batch: BatchMetadata, guarantee: Guarantee) -> BatchMetadata:
    """What is processed instead of a recorded batch whose attempt has failed or was interrupted."""
    match guarantee:
        case Guarantee.EXACTLY_ONCE:
            return batch
        case Guarantee.AT_LEAST_ONCE:
            return replace(batch, digests={}, pending=(), lost=0)
        case Guarantee.AT_MOST_ONCE:
            return emptied(batch)
