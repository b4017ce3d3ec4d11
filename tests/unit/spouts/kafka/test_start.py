"""Where a Kafka spout begins: every kind of start, what comes later, and which position wins. Without a broker."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from spouts.kafka.offsets import OffsetReader, Queried
from spouts.kafka.start import GroupOffsets, StartPositions
from spouts.kafka.subscription import TopicNames, TopicPartitions, TopicPattern, parse_subscription
from spouts.planning import Limits, Logs, PartitionLog, plan_batch
from transactional.errors import ConfigError
from transactional.model.batch import EMPTY_BATCH, BatchMetadata, Offset, OffsetRange, PartitionId

A, B = PartitionId("flights#old", 0), PartitionId("flights#old", 1)
ANEW = PartitionId("flights#new", 0)
OTHER = PartitionId("trains#x", 0)
NAMES = TopicNames(("flights", "trains"))


class Teller(OffsetReader):
    """Answers out of what the test says, and notes what it was asked for."""

    def __init__(self, times: Mapping[PartitionId, int | None] | None = None) -> None:
        self.times, self.committed, self.asked = dict(times or {}), dict(times or {}), list[str]()

    def query_offsets_at_time(self, asked: Queried, time_ms: int) -> dict[PartitionId, Offset | None]:
        self.asked += [f"{partition} at {time_ms}" for partition in asked]
        return {p: self._told_offset(self.times[p]) for p in asked if p in self.times}

    def query_committed_offsets(self, asked: Queried, group_id: str) -> dict[PartitionId, Offset | None]:
        self.asked += [f"{partition} of {group_id}" for partition in asked]
        return {p: self._told_offset(self.committed.get(p)) for p in asked}

    def _told_offset(self, offset: int | None) -> Offset | None:
        return None if offset is None else Offset(offset)


def log(earliest: int, end: int) -> PartitionLog:
    return PartitionLog(Offset(earliest), Offset(end))


def after(**ends: int) -> BatchMetadata:
    named = {"a": A, "b": B, "anew": ANEW, "other": OTHER}
    return BatchMetadata({named[name]: OffsetRange(Offset(end), Offset(end)) for name, end in ends.items()})


def starting(start: Any, subscription: Any = NAMES, group_id: str | None = None) -> StartPositions:
    return StartPositions(start, subscription, group_id, warn=TOLD.append)


TOLD: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_told() -> None:
    TOLD.clear()


def begins(starts: StartPositions, batch: BatchMetadata, logs: Logs, teller: Teller | None = None) -> dict[str, Any]:
    """Where the next batch would begin in each partition that it has; the planning itself says so."""
    pinned = starts.add_starts(teller or Teller(), batch, logs)
    plan = plan_batch(batch, pinned, Limits(), replays_exactly=False, replay=True)
    assert plan is not None
    return {str(partition): offsets.start for partition, offsets in plan.batch.ranges.items()}


# --- each kind of start -------------------------------------------------------------------------------------------


def test_earliest_is_the_first_offset_there_is() -> None:
    assert begins(starting("earliest"), EMPTY_BATCH, {A: log(3, 9)}) == {"flights#old[0]": 3}


def test_latest_is_the_end_at_the_first_look_and_stays_there_for_replays() -> None:
    """Storm row K5."""
    starts = starting("latest")
    assert begins(starts, EMPTY_BATCH, {A: log(3, 9)}) == {"flights#old[0]": 9}
    assert begins(starts, EMPTY_BATCH, {A: log(3, 12)}) == {"flights#old[0]": 9}


@pytest.mark.parametrize(
    "start",
    [5, datetime(1970, 1, 1, 0, 0, 0, 4_001, UTC), datetime(1970, 1, 1, 2, 0, 0, 5_000, timezone(timedelta(hours=2)))],
)
def test_a_time_is_the_first_record_of_that_time_or_later(start: Any) -> None:
    teller, starts = Teller({A: 7, B: None}), starting(start)
    logs = {A: log(3, 9), B: log(0, 4)}
    assert begins(starts, EMPTY_BATCH, logs, teller) == {"flights#old[0]": 7, "flights#old[1]": 4}, "K7d: else the end"
    assert teller.asked == ["flights#old[0] at 5", "flights#old[1] at 5"]
    begins(starts, EMPTY_BATCH, logs, teller)
    assert len(teller.asked) == 2, "asked once, so that a replay begins at the same place"


def test_a_partition_that_does_not_tell_its_times_joins_later() -> None:
    starts, logs = starting(5), {A: log(3, 9), B: log(0, 4)}
    assert begins(starts, EMPTY_BATCH, logs, Teller({A: 7})) == {"flights#old[0]": 7}
    assert begins(starts, EMPTY_BATCH, logs, Teller({B: 2})) == {"flights#old[0]": 7, "flights#old[1]": 2}


def test_a_time_beyond_the_last_stable_offset_is_waited_for() -> None:
    """An open Kafka transaction holds the first record of that time."""
    starts = starting(5)
    assert begins(starts, EMPTY_BATCH, {A: log(0, 4)}, Teller({A: 6})) == {}
    assert begins(starts, EMPTY_BATCH, {A: log(0, 8)}) == {"flights#old[0]": 6}


def test_the_groups_offsets_and_otherwise() -> None:
    """Storm's UNCOMMITTED_EARLIEST, _LATEST and _TIMESTAMP (row K4)."""
    logs = {A: log(3, 9), B: log(2, 4)}
    for start, expected in (("group", 2), (GroupOffsets(), 2), (GroupOffsets("latest"), 4)):
        assert begins(starting(start, group_id="g"), EMPTY_BATCH, logs, Teller({A: 5})) == {
            "flights#old[0]": 5,
            "flights#old[1]": expected,
        }
    teller = Teller({A: 5, B: 3})
    teller.committed = {A: 5}
    assert begins(starting(GroupOffsets(7, "mine"), group_id="g"), EMPTY_BATCH, logs, teller)["flights#old[1]"] == 3
    assert teller.asked == ["flights#old[0] of mine", "flights#old[1] of mine", "flights#old[1] at 7"]


@pytest.mark.parametrize("kept", [3, 9])
def test_a_group_may_be_at_the_first_offset_there_is_and_at_the_end(kept: int) -> None:
    starts = starting(GroupOffsets(7), group_id="g")
    assert begins(starts, EMPTY_BATCH, {A: log(3, 9)}, Teller({A: kept})) == {"flights#old[0]": kept}
    assert TOLD == []


@pytest.mark.parametrize("lost", [2, 10])
def test_a_groups_offset_that_is_no_longer_there_is_reported(lost: int) -> None:
    starts = starting(GroupOffsets("latest"), group_id="g")
    assert begins(starts, EMPTY_BATCH, {A: log(3, 9)}, Teller({A: lost})) == {"flights#old[0]": 9}
    [told] = TOLD
    assert told == (
        f"group 'g' is at offset {lost} of partition 0 of topic 'flights', but the offsets available are [3, 9): "
        "it is read from 'latest' instead"
    )


def test_given_offsets_and_the_earliest_for_the_others() -> None:
    logs = {A: log(3, 9), B: log(2, 4), OTHER: log(1, 1)}
    assert begins(starting({"flights": {0: 5, 7: 1}}), EMPTY_BATCH, logs) == {
        "flights#old[0]": 5,
        "flights#old[1]": 2,
        "trains#x[0]": 1,
    }


@pytest.mark.parametrize("offset", [2, 10])
def test_a_given_offset_that_is_not_there_is_reported(offset: int) -> None:
    told = rf"offset {offset} for partition 0 of topic 'flights', but the available offsets are \[3, 9\)"
    with pytest.raises(ConfigError, match=told):
        begins(starting({"flights": {0: offset}}), EMPTY_BATCH, {A: log(3, 9)})


# --- which one wins -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", ["earliest", "latest", 5, "group", {"flights": {0: 5}}])
def test_a_position_in_the_store_always_wins(start: Any) -> None:
    """Storm row K4: never the start, for a partition that any batch has named; also after a restart."""
    starts = starting(start, group_id="g")
    assert begins(starts, after(a=8), {A: log(3, 9)}, Teller({A: 6})) == {"flights#old[0]": 8}
    assert starts.add_starts(Teller(), after(a=8), {A: log(3, 9)}) == {A: log(3, 9)}, (
        "and all that is there can be read"
    )


@pytest.mark.parametrize("start", ["latest", 5, "group", {"flights": {0: 5}}])
def test_the_start_is_recorded_although_there_is_nothing_to_read(start: Any) -> None:
    """Storm row K7c."""
    pinned = starting(start, group_id="g").add_starts(Teller({A: 9}), EMPTY_BATCH, {A: log(5, 9)})
    plan = plan_batch(EMPTY_BATCH, pinned, Limits(), replays_exactly=True)
    assert plan is not None
    assert A in plan.batch.ranges


@pytest.mark.parametrize("start", ["latest", 5, "group", {"flights": {0: 1}}])
def test_a_topic_that_was_created_anew_is_read_from_its_beginning(start: Any) -> None:
    starts, teller = starting(start, group_id="g"), Teller({ANEW: 2})
    assert begins(starts, after(a=8), {ANEW: log(0, 3)}, teller) == {"flights#old[0]": 8, "flights#new[0]": 0}
    assert teller.asked == []


def test_under_latest_a_partition_that_comes_later_is_read_from_its_beginning() -> None:
    starts = starting("latest")
    begins(starts, EMPTY_BATCH, {A: log(3, 9)})
    assert begins(starts, EMPTY_BATCH, {A: log(3, 9), B: log(0, 4)}) == {"flights#old[0]": 9, "flights#old[1]": 0}
    restarted = starting("latest")
    assert begins(restarted, after(a=9), {A: log(3, 9), B: log(0, 4)})["flights#old[1]"] == 0


def test_under_latest_a_topic_that_is_named_later_begins_at_its_end_and_one_that_matches_later_does_not() -> None:
    logs = {A: log(3, 9), OTHER: log(0, 4)}
    assert begins(starting("latest"), after(a=9), logs)["trains#x[0]"] == 4
    assert begins(starting("latest", TopicPattern(".*")), after(a=9), logs)["trains#x[0]"] == 0
    starts = starting("latest", TopicPattern(".*"))
    assert begins(starts, EMPTY_BATCH, {}) == {}
    assert begins(starts, EMPTY_BATCH, {A: log(0, 4)}) == {"flights#old[0]": 0}, "it came while this ran"


def test_a_spout_that_is_opened_again_looks_anew() -> None:
    """It may be for another topology, with a store of its own."""
    starts = starting("latest")
    begins(starts, EMPTY_BATCH, {A: log(3, 9)})
    starts.forget()
    assert begins(starts, EMPTY_BATCH, {A: log(3, 12), B: log(0, 4)}) == {"flights#old[0]": 12, "flights#old[1]": 4}


def test_under_a_time_a_partition_that_comes_later_begins_at_that_time_too() -> None:
    assert begins(starting(5), after(a=9), {A: log(3, 9), B: log(0, 4)}, Teller({B: 3}))["flights#old[1]"] == 3


def test_a_partition_without_an_answer_has_no_start() -> None:
    assert begins(starting("latest"), EMPTY_BATCH, {A: None, B: log(0, 4)}) == {"flights#old[1]": 4}


# --- what can't be right ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ("earlyest", r"'earliest', 'latest' or 'group', not 'earlyest' — did you mean 'earliest'"),
        (GroupOffsets("grup"), "'earliest' or 'latest', not 'grup'"),  # type: ignore[arg-type]
        (-1, "start must not be before 1970, got -1"),
        (True, "start is 'earliest', .* got True"),
        (1.5, r"start is 'earliest', .* got 1\.5"),
        (None, r"start is 'earliest', .* got None"),
        (datetime(2026, 1, 1), "without a time zone"),  # noqa: DTZ001 - that it is one is the point
        ({"planes": {0: 1}}, "offsets of topic 'planes', which is not read: flights,trains is"),
        ({"flights": 5}, r"takes \{partition: offset\} for topic 'flights', got 5"),
        ({"flights": {0: -1}}, "gives 0: -1 for topic 'flights'"),
        ({"flights": {"0": 1}}, "gives '0': 1 for topic 'flights'"),
    ],
)
def test_a_start_that_can_not_be_right_is_reported(start: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        starting(start, group_id="g")


def test_a_groups_start_needs_a_group() -> None:
    with pytest.raises(ConfigError, match=r"pass group_id=, or GroupOffsets\(group_id"):
        starting("group")


def test_a_given_offset_of_a_partition_that_is_not_read_is_reported() -> None:
    with pytest.raises(ConfigError, match="partition 1 of 'flights', which is not read"):
        starting({"flights": {1: 5}}, TopicPartitions({"flights": [0]}))


# --- subscriptions ------------------------------------------------------------------------------------------------


def test_a_pattern_matches_whole_names() -> None:
    """Storm row K8."""
    pattern = TopicPattern("flights-.*")
    assert [pattern.can_have_topic(name) for name in ("flights-de", "my-flights-de", "flights")] == [True, False, False]


def test_partitions_are_sorted_and_distinct() -> None:
    chosen = TopicPartitions({"b": [2, 0, 2], "a": (1,)})
    assert (chosen.names, str(chosen)) == (("a", "b"), "a[1],b[0],b[2]")
    assert [chosen.has_partition("b", index) for index in range(3)] == [True, False, True]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: TopicPattern("("), r"TopicPattern\('\('\) is not a regular expression"),
        (lambda: TopicPattern(7), "is not a regular expression"),  # type: ignore[arg-type]
        (lambda: TopicPattern("a", refresh_ms=-1), "refresh_ms takes a whole number of at least 0"),
        (lambda: TopicPartitions({}), "name at least one topic"),
        (lambda: TopicPartitions({"a": []}), "partitions of topic 'a' are numbers from 0; got nothing"),
        (lambda: TopicPartitions({"a": [-1]}), "got -1"),
        (lambda: TopicPartitions({"a": "0"}), "got '0'"),  # type: ignore[dict-item]
        (lambda: TopicPartitions(["a"]), "topic -> partition numbers"),  # type: ignore[arg-type]
        (lambda: parse_subscription(re.compile("a.*")), r"pass a pattern of topics as TopicPattern\('a\.\*'\)"),
        (lambda: parse_subscription({"a": [0]}), r"pass partitions of topics as TopicPartitions\(\{'a': \[0\]\}\)"),
        (lambda: parse_subscription(7), "topics takes names, a TopicPattern or TopicPartitions, got 7"),
    ],
)
def test_a_subscription_that_can_not_be_right_is_reported(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        given()
