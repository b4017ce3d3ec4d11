"""Partitions of which no event time is known: since when they are listed, and for how long they are waited for."""

from __future__ import annotations

import pytest

from transactional.core.machine.carrying import add_committed_facts, carry_forward
from transactional.core.machine.listing import record_listed
from transactional.model.batch import BatchMetadata, Digest, Offset, OffsetRange, PartitionId
from transactional.model.facts import BatchFacts, EventTime, LastSeen, Listed, Listing

A, B = PartitionId("a", 0), PartitionId("b", 0)
AT, IDLE = EventTime("at"), EventTime("at", idle_after_ms=10)
AWAY, EMPTY, UNREAD, UNTIMED = Listing.AWAY, Listing.EMPTY, Listing.UNREAD, Listing.UNTIMED


def batch(time_ms: int, *read: PartitionId, **known: object) -> BatchMetadata:
    """A batch that was planned at a time, with a record of some partitions."""
    ranges = {at: OffsetRange(Offset(0), Offset(int(at in read))) for at in (A, B)}
    return BatchMetadata(ranges, facts=BatchFacts(time_ms), **known)  # type: ignore[arg-type]


def awaited(listing: Listing, of: EventTime, *, since_ms: int, looked_ms: int) -> bool:
    after = batch(looked_ms, listed={A: Listed(since_ms, EMPTY)})
    return record_listed(after, {A: listing}, {A: of}, looked_ms + 1_000_000)[A].is_awaited


@pytest.mark.parametrize(("of", "longest_ms"), [(AT, 60_000), (IDLE, 10)])
def test_an_empty_partition_is_waited_for_as_long_as_its_stream_says_or_a_minute(
    of: EventTime, longest_ms: int
) -> None:
    assert awaited(EMPTY, of, since_ms=7, looked_ms=7 + longest_ms)
    assert not awaited(EMPTY, of, since_ms=7, looked_ms=8 + longest_ms)


@pytest.mark.parametrize("of", [AT, IDLE])
@pytest.mark.parametrize("listing", [UNREAD, AWAY])
def test_one_with_unread_records_or_without_an_answer_is_waited_for_as_long_as_that_lasts(
    listing: Listing, of: EventTime
) -> None:
    assert awaited(listing, of, since_ms=7, looked_ms=10**12)


def test_the_first_transaction_that_lists_a_partition_begins_its_time() -> None:
    first = record_listed(BatchMetadata({}), {A: EMPTY}, {A: AT}, 5)
    assert first == {A: Listed(5, EMPTY)}
    second = record_listed(batch(5, listed=first), {A: AWAY, B: UNREAD}, {A: AT, B: AT}, 9)
    assert second == {A: Listed(5, AWAY), B: Listed(9, UNREAD)}
    assert record_listed(batch(5), {A: EMPTY}, {A: AT}, 4) == {A: Listed(5, EMPTY)}, "no time goes back"


def test_what_was_seen_or_has_no_event_times_or_is_gone_is_not_listed() -> None:
    after = batch(5, event_times={A: LastSeen(1)}, listed={B: Listed(5, EMPTY)})
    assert record_listed(after, {A: UNREAD, B: UNREAD}, {A: AT}, 9) == {}
    assert record_listed(after, {}, {}, 9) == {}


def test_a_partition_is_listed_until_a_time_of_it_is_committed() -> None:
    planned = batch(5, A, listed={A: Listed(5, UNREAD), B: Listed(5, EMPTY)})
    digests = {A: Digest(1, 0, event_us=40)}
    assert carry_forward(BatchMetadata({}), planned.with_digests(digests)).listed == {B: Listed(5, EMPTY)}


def test_records_without_a_time_are_waited_for_like_none() -> None:
    """Else one that never has a time would hold up everything as long as it has records."""
    planned = batch(5, A, listed={A: Listed(5, UNREAD)})
    committed = carry_forward(BatchMetadata({}), planned.with_digests({A: Digest(1, 0)}))
    assert committed.listed == {A: Listed(5, UNTIMED)}
    after = add_committed_facts(committed, committed, [])
    assert record_listed(after, {A: UNREAD}, {A: IDLE}, 15) == {A: Listed(5, UNTIMED)}
    late = add_committed_facts(batch(16, listed=after.listed), committed, [])
    assert record_listed(late, {A: AWAY}, {A: IDLE}, 16) == {A: Listed(5, UNTIMED, is_awaited=False)}


def test_that_records_have_no_time_is_known_while_others_are_in_flight() -> None:
    listed = {A: Listed(5, UNREAD)}
    committed = carry_forward(BatchMetadata({}), batch(5, A, listed=listed).with_digests({A: Digest(1, 0)}))
    in_flight = batch(6, A, listed=listed)
    assert add_committed_facts(in_flight, committed, [in_flight]).listed == {A: Listed(5, UNTIMED)}


def test_records_in_flight_are_not_read() -> None:
    committed, in_flight = batch(5, listed={A: Listed(5, EMPTY)}), batch(6, A, listed={A: Listed(5, UNREAD)})
    after = add_committed_facts(in_flight, committed, [in_flight])
    assert record_listed(after, {A: EMPTY}, {A: AT}, 7) == {A: Listed(5, UNREAD)}


def test_an_answer_counts_only_for_the_batch_that_was_planned_with_it() -> None:
    committed = batch(5, listed={A: Listed(5, AWAY), B: Listed(5, UNREAD)})
    after = add_committed_facts(committed, committed, [])
    assert record_listed(after, {A: EMPTY, B: EMPTY}, {A: AT, B: AT}, 7) == {A: Listed(5, EMPTY), B: Listed(5, EMPTY)}
