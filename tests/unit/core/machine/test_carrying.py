"""What a committed batch carries on from the one before it."""

from __future__ import annotations

from transactional.core.machine.carrying import add_committed_facts, carry_forward
from transactional.model.batch import EMPTY_BATCH, BatchMetadata, Digest, Offset, OffsetRange, PartitionId
from transactional.model.facts import BatchFacts, LastSeen

A, B = PartitionId("a", 0), PartitionId("b", 0)
RANGES = {A: OffsetRange(Offset(0), Offset(2)), B: OffsetRange(Offset(0), Offset(2))}


def test_the_highest_event_time_of_each_partition_is_carried_on() -> None:
    first = carry_forward(EMPTY_BATCH, BatchMetadata(RANGES, {A: Digest(2, 0, 0, 40), B: Digest(2, 0, 0, 10)}))
    assert first.event_times == {A: LastSeen(40), B: LastSeen(10)}
    second = carry_forward(first, BatchMetadata(RANGES, {A: Digest(2, 0, 0, 30), B: Digest(2, 0, 0, 50)}))
    assert second.event_times == {A: LastSeen(40), B: LastSeen(50)}


def test_a_partition_without_an_event_time_keeps_its_own() -> None:
    before = BatchMetadata(RANGES, event_times={A: LastSeen(40, 7)})
    facts = BatchFacts(9)
    assert carry_forward(before, BatchMetadata(RANGES, {A: Digest(0, 0)}, facts=facts)).event_times == {
        A: LastSeen(40, 7)
    }
    assert carry_forward(before, BatchMetadata(RANGES, {A: Digest(1, 0)}, facts=facts)).event_times == {
        A: LastSeen(40, 9)
    }


def test_nothing_is_known_of_a_partition_without_any_event_time() -> None:
    assert carry_forward(EMPTY_BATCH, BatchMetadata(RANGES, {A: Digest(1, 0)})).event_times == {}


def test_a_partition_with_records_in_flight_has_been_seen_with_them() -> None:
    committed = BatchMetadata(RANGES, event_times={A: LastSeen(40, 7), B: LastSeen(40, 7)})
    ranges = {A: OffsetRange(Offset(2), Offset(3)), B: OffsetRange(Offset(2), Offset(2))}
    known = add_committed_facts(committed, committed, [BatchMetadata(ranges, facts=BatchFacts(9))])
    assert known.event_times == {A: LastSeen(40, 9), B: LastSeen(40, 7)}
