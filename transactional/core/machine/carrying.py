"""Carries facts from one committed batch to the next, and determines the batch to replay. Pure.

A committed batch has the highest event time of each partition up to then, the listed partitions without one, and all
messages that wait to be processed again. A batch in flight does not: its predecessor may still fail. So these facts are
added from the last committed batch when the next batch is planned.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from transactional.core.machine.listing import listed_after_commit, listed_before_planning
from transactional.model.batch import BatchMetadata, Digest, MessageKey, PartitionId
from transactional.model.facts import LastSeen
from transactional.model.guarantees import Guarantee
from transactional.model.messages import merge_pending, without_records


def carry_forward(previous: BatchMetadata, batch: BatchMetadata) -> BatchMetadata:
    """Return the batch to commit, with the facts that it carries on from the last committed one, `previous`."""
    event_times = dict(previous.event_times)
    time_ms = 0 if batch.facts is None else batch.facts.time_ms
    for partition, digest in batch.digests.items():
        previous_time = event_times.get(partition)
        if digest.event_us is not None or previous_time is not None:
            event_times[partition] = _update_last_seen(previous_time, digest, time_ms)
    pending = merge_pending(previous.pending, batch)
    if not (event_times or pending or batch.listed):
        return batch
    return replace(batch, event_times=event_times, listed=listed_after_commit(batch, event_times), pending=pending)


def _update_last_seen(previous: LastSeen | None, digest: Digest, time_ms: int) -> LastSeen:
    """Return the newest event time of a partition, one of which is known, and the time of the last batch with records
    of it."""
    event_times = [us for us in (previous and previous.event_us, digest.event_us) if us is not None]
    return LastSeen(max(event_times), time_ms if digest.records or previous is None else previous.time_ms)


def add_committed_facts(
    previous_batch: BatchMetadata,
    committed: BatchMetadata,
    recorded: Iterable[BatchMetadata],
    ignored: Collection[MessageKey] = (),
) -> BatchMetadata:
    """Return `previous_batch`, which may be in flight, with the facts that only the last committed batch has.

    These are event times, and the waiting messages that no batch in flight processes and that are not `ignored`. A
    partition with records in flight counts as seen at the time of their batch.
    """
    recorded = list(recorded)
    in_flight = {message.key for batch in recorded for message in batch.again}
    pending = tuple(
        message for message in committed.pending if message.key not in in_flight and message.key not in ignored
    )
    if not (committed.event_times or pending or previous_batch.pending or previous_batch.listed):
        return previous_batch
    event_times = {
        partition: _add_batches_in_flight(partition, last_seen, recorded)
        for partition, last_seen in committed.event_times.items()
    }
    listed = listed_before_planning(previous_batch, committed, recorded)
    return replace(previous_batch, event_times=event_times, listed=listed, pending=pending)


def _add_batches_in_flight(partition: PartitionId, last_seen: LastSeen, recorded: Iterable[BatchMetadata]) -> LastSeen:
    times = [b.facts.time_ms for b in recorded if b.facts is not None and partition in b.ranges and b.ranges[partition]]
    return last_seen._replace(time_ms=max([last_seen.time_ms, *times]))


def batch_to_replay(batch: BatchMetadata, guarantee: Guarantee) -> BatchMetadata:
    """Return the batch to process in place of a recorded one whose attempt has failed or was interrupted."""
    match guarantee:
        case Guarantee.EXACTLY_ONCE:
            return batch
        case Guarantee.AT_LEAST_ONCE:
            return replace(batch, digests={}, pending=(), lost=0)
        case Guarantee.AT_MOST_ONCE:
            return without_records(batch)
