"""What a committed batch carries on from the one before it, and what of a batch is replayed. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from transactional.core.machine.listing import listed_with, with_listed
from transactional.model.batch import BatchMetadata, Digest, MessageKey, PartitionId
from transactional.model.facts import LastSeen
from transactional.model.guarantees import Guarantee
from transactional.model.messages import merge_pending, without_records


def carried(before: BatchMetadata, batch: BatchMetadata) -> BatchMetadata:
    """The batch that is being committed, after the last committed one: with the highest event times up to here, the
    partitions that have none, and all messages that wait to be processed again."""
    event_times = dict(before.event_times)
    time_ms = 0 if batch.facts is None else batch.facts.time_ms
    for partition, digest in batch.digests.items():
        if (seen := _seen(event_times.get(partition), digest, time_ms)) is not None:
            event_times[partition] = seen
    pending = merge_pending(before.pending, batch)
    if not (event_times or pending or batch.listed):
        return batch
    return replace(batch, event_times=event_times, listed=listed_with(batch, event_times), pending=pending)


def _seen(before: LastSeen | None, digest: Digest, time_ms: int) -> LastSeen | None:
    """None: no event time of the partition is known."""
    known = [us for us in (before and before.event_us, digest.event_us) if us is not None]
    if not known:
        return None
    return LastSeen(max(known), time_ms if digest.records or before is None else before.time_ms)


def with_what_is_known(
    after: BatchMetadata,
    committed: BatchMetadata,
    recorded: Iterable[BatchMetadata],
    left: Collection[MessageKey] = (),
) -> BatchMetadata:
    """`after`, which may be in flight, with what only the last committed batch has: event times, and the messages that
    wait, that no batch in flight is processing, and that are not to be `left` alone. A partition with records in flight
    has been seen with them."""
    recorded = list(recorded)
    in_flight = {message.key for batch in recorded for message in batch.again}
    pending = tuple(each for each in committed.pending if each.key not in in_flight and each.key not in left)
    if not (committed.event_times or pending or after.pending or after.listed):
        return after
    event_times = {at: _last_seen(at, seen, recorded) for at, seen in committed.event_times.items()}
    listed = with_listed(after, committed, recorded)
    return replace(after, event_times=event_times, listed=listed, pending=pending)


def _last_seen(partition: PartitionId, seen: LastSeen, recorded: Iterable[BatchMetadata]) -> LastSeen:
    times = [b.facts.time_ms for b in recorded if b.facts is not None and partition in b.ranges and b.ranges[partition]]
    return seen._replace(time_ms=max([seen.time_ms, *times]))


def replayed(batch: BatchMetadata, guarantee: Guarantee) -> BatchMetadata:
    """What is processed instead of a recorded batch whose attempt has failed or was interrupted."""
    match guarantee:
        case Guarantee.EXACTLY_ONCE:
            return batch
        case Guarantee.AT_LEAST_ONCE:
            return replace(batch, digests={}, pending=(), lost=0)
        case Guarantee.AT_MOST_ONCE:
            return without_records(batch)
