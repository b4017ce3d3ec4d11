"""Messages: their roots, when they come again, what is left of those that wait, and what is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transactional.model.batch import BatchMetadata, Digest, Offset, OffsetRange, PartitionId, PendingMessage
from transactional.model.config import TopologyConfig
from transactional.model.messages import (
    STRIDE,
    FailedMessage,
    find_messages,
    first_root,
    merge_pending,
    select_due,
    sort_failures,
    to_signed,
    without_records,
)

A, B = PartitionId("a", 0), PartitionId("b", 1)


def root_of(partition: PartitionId, offset: int) -> int:
    """The root of a message, as those of many are computed at once where they are emitted."""
    return to_signed(first_root(partition) + offset * STRIDE)


def offsets(start: int, until: int) -> OffsetRange:
    return OffsetRange(Offset(start), Offset(until))


def pending(offset: int, tries: int = 1, at_ms: int = 0, partition: PartitionId = A) -> PendingMessage:
    return PendingMessage(partition, Offset(offset), tries, at_ms, "no")


OFFSETS = st.integers(0, 2**62)


@given(OFFSETS, st.integers(1, 1_000), st.sets(st.integers(0, 999)))
def test_the_messages_of_roots_are_found_again(start: int, length: int, places: set[int]) -> None:
    batch = BatchMetadata({A: offsets(start, start + length), B: offsets(start, start + length)})
    chosen = sorted(start + place for place in places if place < length)
    roots = {root_of(B, offset): f"no {offset}" for offset in chosen}
    assert all(-(2**63) <= root < 2**63 for root in roots)
    assert find_messages(batch, roots) == tuple(FailedMessage(B, Offset(each), f"no {each}") for each in chosen)


def test_a_message_that_is_processed_again_is_found_outside_of_the_ranges() -> None:
    batch = BatchMetadata({A: offsets(10, 10)}, again=(pending(3),))
    assert find_messages(batch, {root_of(A, 3): "no", root_of(A, 4): "no"}) == (FailedMessage(A, Offset(3), "no"),)


def test_the_pause_doubles_with_each_failure() -> None:
    config = TopologyConfig(retry_pause_ms=100)
    batch = BatchMetadata({A: offsets(0, 5)}, again=(pending(7, 1), pending(8, 2)))
    failed = [FailedMessage(A, Offset(offset), "no") for offset in (1, 7, 8)]
    again, given_up = sort_failures(batch, failed, 1_000, config)
    assert [(m.offset, m.tries, m.not_before_ms) for m in again] == [(1, 1, 1_100), (7, 2, 1_200), (8, 3, 1_400)]
    assert given_up == ()


def test_a_message_is_given_up_after_its_last_retry() -> None:
    config = TopologyConfig(message_retries_max=2)
    batch = BatchMetadata({}, again=(pending(7, 1), pending(8, 2)))
    again, given_up = sort_failures(batch, [FailedMessage(A, Offset(offset), "no") for offset in (7, 8)], 0, config)
    assert [m.offset for m in again] == [7]
    assert [(m.offset, m.tries) for m in given_up] == [(8, 3)]


def test_a_message_waits_until_its_time_has_come() -> None:
    assert select_due([pending(1, at_ms=5), pending(2, at_ms=6)], 5) == (pending(1, at_ms=5),)


def test_what_waits_after_a_batch() -> None:
    before = [pending(1), pending(2), pending(3)]
    batch = BatchMetadata({}, again=(pending(1), pending(2)), pending=(pending(2, tries=2), pending(9)))
    assert merge_pending(before, batch) == (pending(2, tries=2), pending(3), pending(9))


@pytest.mark.parametrize(("digests", "lost"), [({}, 7), ({A: Digest(5, 0)}, 2)])
def test_of_an_emptied_batch_nothing_is_read(digests: dict[PartitionId, Digest], lost: int) -> None:
    batch = without_records(BatchMetadata({A: offsets(5, 10), B: offsets(3, 3)}, digests, lost=2))
    assert batch.is_empty
    assert batch.positions() == {A: 10, B: 3}
    assert batch.digests == {}
    assert batch.lost == lost
    assert without_records(batch) == batch
