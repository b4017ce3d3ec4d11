"""Partitions that the source lists, and of which no event time is known yet: since when, and whether windows wait for
them. Pure.

Nothing more becomes late, and no window closes, while one of them is waited for: with unread records, or if it does not
answer, as long as that lasts; an empty one for `idle_after`, or a minute. That goes by the times of recorded
transactions, so that whoever continues from these comes to the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from transactional.model.batch import BatchMetadata, PartitionId
from transactional.model.facts import EMPTY_MS, EventTime, Listed, Listing, batch_times


def listed_after(
    after: BatchMetadata, now: Mapping[PartitionId, Listing], times: Mapping[PartitionId, EventTime], now_ms: int
) -> dict[PartitionId, Listed]:
    """What the batch after `after`, planned at `now_ms`, records of the partitions that the source lists `now`. `times`
    are of those whose stream has event times."""
    time_ms, looked_ms = batch_times(after.facts, now_ms)
    found = dict[PartitionId, Listed]()
    for partition, of in times.items():
        if partition in after.event_times:
            continue
        before = after.listed.get(partition, Listed(time_ms, Listing.EMPTY))
        listing = now[partition] if before.listing is Listing.EMPTY else before.listing
        longest_ms = EMPTY_MS if of.idle_after_ms is None else of.idle_after_ms
        is_awaited = listing.is_lasting or before.time_ms + longest_ms >= looked_ms
        found[partition] = Listed(before.time_ms, listing, is_awaited)
    return found


def listed_with(batch: BatchMetadata, event_times: Iterable[PartitionId]) -> dict[PartitionId, Listed]:
    """What is known of the listed partitions once the batch is committed, and all these event times are known."""
    left = {at: batch.listed[at] for at in batch.listed.keys() - set(event_times)}
    read = {at for at, digest in batch.digests.items() if digest.records}
    return {at: each._replace(listing=Listing.UNTIMED) if at in read else each for at, each in left.items()}


def with_listed(
    after: BatchMetadata, committed: BatchMetadata, recorded: Iterable[BatchMetadata]
) -> dict[PartitionId, Listed]:
    """What is known of the listed partitions before the batch after `after` is planned: those that have records in
    flight are not read, and what else the source says of them is not known yet."""
    in_flight = {at for batch in recorded for at, _ in batch.non_empty()}
    found = dict[PartitionId, Listed]()
    for at, each in after.listed.items():
        is_untimed = Listing.UNTIMED in (each.listing, committed.listed.get(at, each).listing)
        listing = Listing.UNREAD if at in in_flight else Listing.EMPTY
        found[at] = each._replace(listing=Listing.UNTIMED if is_untimed else listing)
    return found


SHOWN_MAX = 5
"""So many partitions are named in a line."""


def awaited(listed: Mapping[PartitionId, Listed]) -> dict[str, str]:
    """By partition that is waited for, why."""
    return {str(at): listed[at].listing.value for at in sorted(listed) if listed[at].is_awaited}


def shown(waits: Mapping[str, str]) -> str:
    """Those partitions in a line: `orders[7] (empty), orders[8] (no answer)`."""
    named = ", ".join(f"{partition} ({why})" for partition, why in list(waits.items())[:SHOWN_MAX])
    return named if len(waits) <= SHOWN_MAX else f"{named} and {len(waits) - SHOWN_MAX} more"
