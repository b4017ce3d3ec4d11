"""Spouts of one's own: how batches are planned and emitted, what is carried forward, how mistakes are told."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.unit.own_spouts import Numbers, OpaqueWordLists, Span, WordLists, Words, batches, span, tuples_of
from transactional.model.batch import EMPTY_BATCH, BatchMetadata, Offset, OffsetRange, PartitionId
from transactional.model.facts import Listing


def words() -> Words:
    return {"a": ["cat", "dog", "chicken"], "b": ["cat"]}


def step(start: int, until: int) -> OffsetRange:
    return OffsetRange(Offset(start), Offset(until))


A, B = PartitionId("a", 0), PartitionId("b", 0)


class TestTransactionalSpout:
    """Storm row T8."""

    def test_batches_follow_each_other_and_every_part_emits_its_share(self) -> None:
        numbers = Numbers()
        spout = numbers.as_spout(3)
        first, second, third = batches(spout)
        assert [sorted(tuples_of(spout, batch)) for batch in (first, second, third)] == [
            [(0,), (1,), (2,), (3,)],
            [(4,), (5,), (6,), (7,)],
            [(8,), (9,)],
        ]
        assert tuples_of(spout, first) == [(0,), (3,), (1,), (2,)]
        assert numbers.asked == [None, span(0, 4), span(4, 8), span(8, 10)]

    def test_each_part_is_a_partition_that_counts_batches(self) -> None:
        _, second, _ = batches(Numbers().as_spout(2))
        assert second.ranges == {PartitionId("part", 0): step(1, 2), PartitionId("part", 1): step(1, 2)}

    def test_a_recorded_batch_is_emitted_without_asking_and_in_as_many_parts_as_it_had(self) -> None:
        """Storm row T20."""
        first, *_ = batches(Numbers().as_spout(3))
        restarted = Numbers()
        spout = restarted.as_spout(1)
        recorded = BatchMetadata.from_json(first.to_json())
        assert tuples_of(spout, recorded) == [(0,), (3,), (1,), (2,)]
        assert restarted.asked == []
        following = spout.plan(recorded, replay=False)
        assert following is not None
        assert tuples_of(spout, following) == [(4,), (5,), (6,), (7,)]
        assert restarted.asked == [span(0, 4)]

    def test_more_parts_than_before_go_on_with_the_same_numbers(self) -> None:
        first, *_ = batches(Numbers().as_spout(1))
        spout = Numbers().as_spout(3)
        following = spout.plan(first, replay=False)
        assert following is not None
        assert sorted(tuples_of(spout, following)) == [(4,), (5,), (6,), (7,)]

    def test_nothing_is_requested_as_long_as_it_is_not_ready(self) -> None:
        numbers = Numbers(ready=False)
        assert numbers.as_spout(1).plan(EMPTY_BATCH, replay=False) is None
        assert numbers.asked == []

    def test_it_is_reported_of_each_batch_once_however_many_parts_that_has(self) -> None:
        """Storm row T9."""
        numbers = Numbers()
        spout = numbers.as_spout(3)
        for batch in batches(spout):
            spout.committed(batch)
        spout.committed(EMPTY_BATCH)
        assert numbers.told == [span(0, 4), span(4, 8), span(8, 10)]


class TestPartitions:
    """Storm rows T10 and T11: where both kinds are alike."""

    @pytest.mark.parametrize("kind", [WordLists, OpaqueWordLists])
    def test_each_partition_goes_on_from_its_own_metadata(self, kind: type[WordLists | OpaqueWordLists]) -> None:
        lists = kind(words())
        spout = lists.as_spout(1)
        first, second = batches(spout)
        assert tuples_of(spout, first) == [("cat",), ("dog",), ("cat",)]
        assert tuples_of(spout, second) == [("chicken",)]
        assert lists.asked[:4] == [("a", None), ("b", None), ("a", span(0, 2)), ("b", span(0, 1))]
        assert second.ranges == {A: step(1, 2), B: step(1, 1)}

    def test_a_partition_with_nothing_keeps_its_metadata(self) -> None:
        """Storm rows T43 and T50: also over batches that have nothing of it."""
        lists = WordLists(words(), take=1)
        spout = lists.as_spout(1)
        *_, third = batches(spout)
        assert third.metadata == {A: span(2, 3), B: span(0, 1)}
        lists.words["b"].append("emu")
        fourth = spout.plan(third, replay=False)
        assert fourth is not None
        assert tuples_of(spout, fourth) == [("emu",)]
        assert fourth.ranges == {A: step(3, 3), B: step(1, 2)}

    def test_a_partition_that_vanishes_goes_on_where_it_was_when_it_comes_back(self) -> None:
        """Storm row T46."""
        lists = WordLists(words())
        spout = lists.as_spout(1)
        first = spout.plan(EMPTY_BATCH, replay=False)
        away = lists.words.pop("a")
        lists.words["b"].append("emu")
        assert first is not None
        second = spout.plan(first, replay=False)
        lists.words["a"] = away
        assert second is not None
        third = spout.plan(second, replay=False)
        assert third is not None
        assert [tuples_of(spout, batch) for batch in (second, third)] == [[("emu",)], [("chicken",)]]

    def test_a_partition_joins_with_the_first_batch_that_has_something_of_it(self) -> None:
        """Storm row T45: a replay of a recorded batch does not have it."""
        lists = WordLists({"a": ["cat"], "b": []})
        spout = lists.as_spout(1)
        first = spout.plan(EMPTY_BATCH, replay=False)
        assert first is not None
        assert set(first.ranges) == {A}
        lists.words["b"].append("emu")
        assert tuples_of(spout, BatchMetadata.from_json(first.to_json())) == [("cat",)]
        second = spout.plan(first, replay=False)
        assert second is not None
        assert second.ranges == {A: step(1, 1), B: step(0, 1)}

    def test_partitions_are_listed_with_what_they_answered_while_a_batch_was_planned(self) -> None:
        lists = WordLists({"a": ["cat"], "b": []})
        spout = lists.as_spout(1)
        spout.plan(EMPTY_BATCH, replay=False)
        assert spout.list_partitions(EMPTY_BATCH) == {A: Listing.UNREAD, B: Listing.EMPTY}
        assert spout.list_partitions(EMPTY_BATCH) == {A: Listing.AWAY, B: Listing.AWAY}, "nothing was planned"
        assert Numbers(3).as_spout(2).list_partitions(EMPTY_BATCH) == {}, "parts of a batch are no partitions"

    def test_an_opaque_replay_asks_again_from_where_the_batch_before_ends(self) -> None:
        """Storm row T11 and seed 004's story: 1-40 instead of 1-50, and then 41-90."""
        lists = OpaqueWordLists(words())
        spout = lists.as_spout(1)
        lists.take = 1
        lists.words.pop("b")
        replay = spout.plan(EMPTY_BATCH, replay=True)
        assert replay is not None
        assert tuples_of(spout, replay) == [("cat",)]
        following = spout.plan(replay, replay=False)
        assert following is not None
        assert tuples_of(spout, following) == [("dog",)]

    def test_an_opaque_replay_may_be_empty_and_does_not_wait_until_it_is_ready(self) -> None:
        """Storm row T43."""
        lists = OpaqueWordLists(words(), ready=False)
        spout = lists.as_spout(1)
        assert spout.plan(EMPTY_BATCH, replay=False) is None
        assert not spout.has_ended
        first = spout.plan(EMPTY_BATCH, replay=True)
        assert first is not None
        lists.words = {}
        assert spout.plan(first, replay=True) == BatchMetadata({A: step(1, 1), B: step(1, 1)}, metadata=first.metadata)

    def test_it_is_reported_of_the_partitions_that_a_batch_has_something_of(self) -> None:
        """Storm row T9."""
        lists = WordLists(words())
        spout = lists.as_spout(1)
        for batch in [*batches(spout), EMPTY_BATCH]:
            spout.committed(batch)
        assert lists.told == [{"a": span(0, 2), "b": span(0, 1)}, {"a": span(2, 3)}]


class Meddling(WordLists):
    """Changes what it is given."""

    def next_batch(self, partition: str, previous: Span | None) -> Span | None:
        found = super().next_batch(partition, dict(previous) if previous else None)
        if previous is None or found is None:
            return found
        previous.update(found)
        return previous

    def emit_partition_batch(self, partition: str, metadata: Span) -> Iterator[Any]:
        emitted = super().emit_partition_batch(partition, dict(metadata))
        metadata["start"] = -1
        return emitted

    def committed(self, metadata: Mapping[str, Span]) -> None:
        for each in metadata.values():
            each["start"] = -1


def test_what_is_recorded_stays_so_whatever_user_code_does_to_what_it_is_given() -> None:
    spout = Meddling(words()).as_spout(1)
    first, second = batches(spout)
    for batch in (first, second):
        tuples_of(spout, batch)
        spout.committed(batch)
    assert first.metadata == {A: span(0, 2), B: span(0, 1)}
    assert second.metadata == {A: span(2, 3), B: span(0, 1)}


class Connected(WordLists):
    """Holds something in the driver that can't be pickled."""

    def open(self) -> None:
        self.connection = threading.Lock()


def test_what_is_opened_in_the_driver_stays_there() -> None:
    contract = Connected(words())
    spout = contract.as_spout(1)
    spout.open()
    copied = pickle.loads(pickle.dumps(spout.reader()))
    assert not hasattr(copied.contract, "connection")
    assert contract.connection is not None


def test_the_identity_has_what_the_contract_adds() -> None:
    class Placed(WordLists):
        def identity(self) -> Mapping[str, str]:
            return {"place": "here"}

    assert Placed({}).as_spout(1).identity() == {"kind": "Placed", "fields": "word string", "place": "here"}
