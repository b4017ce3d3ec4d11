"""Decides for how long windows wait for partitions of which no event time is known yet. Pure.

While such a partition is awaited, no window closes and nothing becomes late. A partition with unread records, or one
that does not answer, is awaited as long as that lasts; an empty one for `idle_after`, or a minute. The time is measured
by the times of recorded transactions, not by a clock, so that every later run comes to the same decision.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from transactional.model.batch import BatchMetadata, PartitionId
from transactional.model.facts import EMPTY_MS, EventTime, Listed, Listing, batch_times


def record_listed(
    previous_batch: BatchMetadata,
    listings: Mapping[PartitionId, Listing],
    times: Mapping[PartitionId, EventTime],
    now_ms: int,
) -> dict[PartitionId, Listed]:
    """Return the entries for awaited partitions of the batch that follows `previous_batch`.

    `listings` are the partitions of the source when the batch is planned at `now_ms`, `times` the event times of those
    whose stream has some.
    """
    time_ms, looked_ms = batch_times(previous_batch.facts, now_ms)
    entries = dict[PartitionId, Listed]()
    for partition, event_time in times.items():
        if partition in previous_batch.event_times:
            continue
        previous = previous_batch.listed.get(partition, Listed(time_ms, Listing.EMPTY))
        listing = listings[partition] if previous.listing is Listing.EMPTY else previous.listing
        longest_ms = EMPTY_MS if event_time.idle_after_ms is None else event_time.idle_after_ms
        is_awaited = listing.is_lasting or previous.time_ms + longest_ms >= looked_ms
        entries[partition] = Listed(previous.time_ms, listing, is_awaited)
    return entries


def listed_after_commit(batch: BatchMetadata, event_times: Iterable[PartitionId]) -> dict[PartitionId, Listed]:
    """Return the entries of a batch once it is committed, without the partitions that now have an event time."""
    entries = {partition: batch.listed[partition] for partition in batch.listed.keys() - set(event_times)}
    read = {partition for partition, digest in batch.digests.items() if digest.records}
    return {
        partition: entry._replace(listing=Listing.UNTIMED) if partition in read else entry
        for partition, entry in entries.items()
    }


def listed_before_planning(
    previous_batch: BatchMetadata, committed: BatchMetadata, recorded: Iterable[BatchMetadata]
) -> dict[PartitionId, Listed]:
    """Return the entries of `previous_batch` as the next planning starts from them.

    A partition with records in flight counts as unread, any other one as empty until the source is queried again.
    """
    in_flight = {partition for batch in recorded for partition, _ in batch.non_empty()}
    entries = dict[PartitionId, Listed]()
    for partition, entry in previous_batch.listed.items():
        is_untimed = Listing.UNTIMED in (entry.listing, committed.listed.get(partition, entry).listing)
        listing = Listing.UNREAD if partition in in_flight else Listing.EMPTY
        entries[partition] = entry._replace(listing=Listing.UNTIMED if is_untimed else listing)
    return entries


NAMED_MAX = 5
"""The number of partitions that a line names."""


def awaited_partitions(listed: Mapping[PartitionId, Listed]) -> dict[str, str]:
    """Return the names of the partitions that windows wait for, each with the reason."""
    return {str(partition): entry.listing.value for partition, entry in sorted(listed.items()) if entry.is_awaited}


def format_awaited(waits: Mapping[str, str]) -> str:
    """Return awaited partitions in a line: `orders[7] (empty), orders[8] (no answer)`."""
    names = ", ".join(f"{partition} ({reason})" for partition, reason in list(waits.items())[:NAMED_MAX])
    return names if len(waits) <= NAMED_MAX else f"{names} and {len(waits) - NAMED_MAX} more"
