"""What the Kafka spouts plan: seed 004's story, batches by bytes, ranges for several tasks. Without a broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from spouts.kafka.clients.cluster import KafkaConnection, Topic
from spouts.kafka.spout import KafkaSpout, OpaqueKafkaSpout, TransactionalKafkaSpout
from spouts.kafka.subscription import TopicNames
from spouts.kafka.topics import TopicWatch
from spouts.planning import FIRST_RECORD_BYTES, Limits, Logs, PartitionLog, mean_record_bytes, plan_batch, share_bytes
from tests.unit.spouts.test_planning import Run
from transactional.core.machine.protocol import BatchPlanned, Event
from transactional.core.ports import Spout
from transactional.core.ports.several.spouts import SeveralSpouts
from transactional.errors import BatchLost, ConfigError
from transactional.model.attempt import TransactionAttempt
from transactional.model.batch import EMPTY_BATCH, BatchLimit, BatchMetadata, Digest, Offset, OffsetRange, PartitionId
from transactional.model.config import TopologyConfig

A, B, C = (PartitionId("tuples", index) for index in range(3))


def log(earliest: int, end: int) -> PartitionLog:
    return PartitionLog(Offset(earliest), Offset(end))


def span(start: int, until: int) -> OffsetRange:
    return OffsetRange(Offset(start), Offset(until))


def of(kind: type[KafkaSpout], logs: Logs, **options: Any) -> KafkaSpout:
    """A Kafka spout that is told what a broker would tell."""

    class Told(kind):  # type: ignore[valid-type, misc]
        def logs(self, after: BatchMetadata) -> Logs:
            return {p: log and replace(log, record_bytes=self._record_bytes.get(p)) for p, log in logs.items()}

    return Told("localhost:9092", ["tuples"], **options)


# --- seed 004 -----------------------------------------------------------------------------------------------------


class Story(Run):
    """The real coordinator over a real spout."""

    def __init__(self, spout: KafkaSpout) -> None:
        super().__init__(replays_exactly=spout.replays_exactly, max_spout_pending=2)
        self.spout = spout

    def plan(self, attempt: TransactionAttempt, after: BatchMetadata, *, replay: bool) -> Event:
        return BatchPlanned(attempt, self.spout.plan(after, replay=replay))

    def takes(self, records: int, *, in_flight: int = 2) -> None:
        self.spout.limits = Limits(records)
        self.coordinator.config = TopologyConfig(max_spout_pending=in_flight)

    def told(self) -> list[str]:
        """What was emitted since it was asked last, by the first and the last tuple."""
        emitted, self.emitted = self.emitted, []
        spans = [(txid, *map(int, text.strip("[)").split(","))) for txid, text in emitted]
        return [f"{'-ABC'[txid]} emits tuples {start}-{until - 1}" for txid, start, until in spans]


def test_the_story_of_seed_004() -> None:
    """Opaque: A comes back smaller, so that B and C move. No tuple is skipped (Storm's own numbers)."""
    story = Story(of(OpaqueKafkaSpout, {A: log(1, 141)}))
    story.takes(50)
    story.tick()
    assert story.told() == ["A emits tuples 1-50", "B emits tuples 51-100"]
    story.fail(1)
    assert list(story.running) == [], "A fails, and causes B to fail"
    story.takes(40, in_flight=1)
    story.tick()
    assert story.told() == ["A emits tuples 1-40"]
    story.takes(50)
    story.tick()
    assert story.told() == ["B emits tuples 41-90"]
    story.finish(1)
    story.finish(2)
    assert [batch.ranges[A] for batch in story.committed] == [span(1, 41), span(41, 91)]
    assert story.told() == ["C emits tuples 91-140"]


def test_the_story_with_a_transactional_spout() -> None:
    """A transactional one repeats what was recorded, whatever the limit is by then."""
    story = Story(of(TransactionalKafkaSpout, {A: log(1, 151)}))
    story.takes(50)
    story.tick()
    first = story.told()
    story.fail(1)
    story.takes(40)
    story.tick()
    assert story.told() == first == ["A emits tuples 1-50", "B emits tuples 51-100"]


# --- what is lost, and what is told -------------------------------------------------------------------------------


def test_what_retention_takes_before_the_first_commit_is_reported_also_after_a_restart() -> None:
    story = Story(of(OpaqueKafkaSpout, {A: log(0, 100), B: log(0, 20)}))
    story.tick()
    restarted = Story(of(OpaqueKafkaSpout, {A: log(95, 100), B: log(12, 20)}))
    restarted.coordinator.recorded = story.coordinator.recorded
    restarted.tick()
    assert restarted.spout.lost_offsets == 95 + 12, "of both partitions of the topic"
    assert restarted.emitted == [(1, "[95, 100), [12, 20)")]


def test_the_positions_of_an_earlier_topic_of_the_same_name_are_not_mirrored() -> None:
    """A group knows topics by their names: it would be put where the topic that is gone had ended."""
    spout = of(OpaqueKafkaSpout, {}, group_id="lag-tools")
    sent: list[Mapping[PartitionId, Offset]] = []
    seen: Any = spout
    seen._mirror = SimpleNamespace(send=sent.append)
    seen._topics = {"tuples": Topic("tuples#new", "new", {0: True})}
    before, now = PartitionId("tuples#old", 0), PartitionId("tuples#new", 0)
    spout.committed(BatchMetadata({before: span(70, 80), now: span(0, 3)}))
    assert sent == [{now: 3}]


class Leaders(OpaqueKafkaSpout):
    """A Kafka spout whose brokers report a leader epoch and an end for each partition, and which logs were cut off."""

    def __init__(self, **ends: tuple[int | None, int]) -> None:
        super().__init__("localhost:9092", ["tuples"])
        self.asked, self.cut = list[Mapping[PartitionId, tuple[Offset, int]]](), set[PartitionId]()
        self._offsets = SimpleNamespace(find_truncated=self.find_truncated)  # type: ignore[assignment]
        self.lead(**ends)

    def lead(self, **ends: tuple[int | None, int]) -> None:
        self.ends = {{"a": A, "b": B}[name]: end for name, end in ends.items()}

    def logs(self, after: BatchMetadata) -> Logs:
        return {at: replace(log(0, end), leader_epoch=epoch) for at, (epoch, end) in self.ends.items()}

    def find_truncated(self, positions: Mapping[PartitionId, tuple[Offset, int]]) -> frozenset[PartitionId]:
        self.asked.append(positions)
        return frozenset(self.cut & positions.keys())


def test_topics_that_were_described_after_reading_are_not_described_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, by the planning that comes next, and not if it comes late."""
    queried, clock = list[list[str]](), [0.0]

    def describe(_: object, __: object, names: Sequence[str]) -> dict[str, Topic | None]:
        queried.append(list(names))
        return {name: Topic(f"{name}#1", "1", {0: True}) for name in names}

    monkeypatch.setattr("spouts.kafka.topics.describe_topics", describe)
    monkeypatch.setattr("spouts.kafka.topics.time", SimpleNamespace(monotonic=lambda: clock[0]))
    subscription = TopicNames(("orders", "tuples"))
    watch = TopicWatch(subscription, KafkaConnection("a:1"), replays_exactly=False, warn=pytest.fail)
    admin: Any = object()
    watch.describe_now(admin, ["orders"])
    assert [sorted(watch.list_existing(admin)) for _ in range(2)] == [["orders", "tuples"]] * 2
    assert queried == [["orders"], ["tuples"], ["orders", "tuples"]]
    watch.describe_now(admin, ["orders", "tuples"])
    clock[0] += 60
    watch.list_existing(admin)
    assert queried[3:] == [["orders", "tuples"]] * 2


def test_the_brokers_are_queried_once_after_a_change_of_leaders_and_not_before() -> None:
    spout = Leaders(a=(3, 10), b=(7, 10))
    first = planned_by(spout, EMPTY_BATCH)
    assert first.metadata == {A: 3, B: 7}
    spout.lead(a=(3, 12), b=(7, 12))
    second = planned_by(spout, first)
    assert spout.asked == []
    spout.lead(a=(4, 12), b=(7, 12))
    assert [spout.plan(second, replay=False) for _ in range(2)] == [None, None]
    spout.lead(a=(4, 15), b=(7, 12))
    third = planned_by(spout, second)
    assert spout.asked == [{A: (12, 3)}], "with the epoch under which it was read, as no batch has another"
    assert third.metadata == {A: 4, B: 7}
    spout.lead(a=(5, 16), b=(8, 12))
    planned_by(spout, third)
    assert spout.asked[1:] == [{A: (15, 4), B: (12, 7)}]


@pytest.mark.parametrize("end", [10, 11])
def test_a_log_that_was_cut_off_below_the_position_loses_the_batch(end: int) -> None:
    """Also after a restart, which has no other memory than the batch; and there is nothing to read yet."""
    first = planned_by(Leaders(a=(3, 10), b=(7, 10)), EMPTY_BATCH)
    restarted = Leaders(a=(4, end), b=(8, 12))
    restarted.cut = {A}
    for _ in range(2):
        with pytest.raises(BatchLost, match=r"partition 0 .*before offset 10, which was read under leader epoch 3"):
            restarted.plan(first, replay=False)
    assert restarted.asked == [{A: (10, 3), B: (10, 7)}] * 2


def test_a_broker_that_reports_no_epoch_keeps_the_one_that_is_known() -> None:
    first = planned_by(Leaders(a=(3, 10), b=(None, 10)), EMPTY_BATCH)
    assert first.metadata == {A: 3}
    spout = Leaders(a=(None, 12), b=(8, 12))
    assert planned_by(spout, first).metadata == {A: 3, B: 8}
    assert spout.asked == []


@pytest.mark.parametrize("stream", ["web", "app"])
def test_a_log_that_was_cut_off_is_noticed_in_each_of_several_streams(stream: str) -> None:
    """The epoch stays known through transactions in which a stream has nothing new."""

    def streams(**ends: int) -> SeveralSpouts:
        return SeveralSpouts({name: Leaders(a=(3 if end < 40 else 4, end)) for name, end in ends.items()})

    both = planned_by(streams(web=10, app=20), EMPTY_BATCH)
    after = planned_by(streams(web=10, app=30), both)
    assert sorted(after.metadata.values()) == [3, 3]
    after = planned_by(streams(web=11, app=30), after)
    restarted = streams(web=40, app=40)
    cut: Any = restarted.spouts[stream]
    cut.cut = {A}
    position = {"web": 11, "app": 30}[stream]
    with pytest.raises(BatchLost, match=f"cut off before offset {position}, which was read under leader epoch 3"):
        restarted.plan(after, replay=False)


def planned_by(spout: Spout, after: BatchMetadata) -> BatchMetadata:
    batch = spout.plan(after, replay=False)
    assert batch is not None
    return batch


# --- by bytes -----------------------------------------------------------------------------------------------------


def read(batch: BatchMetadata, **record_sizes: int) -> BatchMetadata:
    """The batch as it is after it was read: partition a had records of so many bytes."""
    sizes = {{"a": A, "b": B, "c": C}[name]: size for name, size in record_sizes.items()}
    counts = {p: len(batch.ranges[p]) for p in sizes}
    return batch.with_digests({p: Digest(counts[p], 0, counts[p] * size) for p, size in sizes.items()})


def counts(batch: BatchMetadata | None) -> list[int]:
    assert batch is not None
    return [len(batch.ranges[partition]) for partition in sorted(batch.ranges)]


def planned(after: BatchMetadata, limits: Limits, **ends: int) -> BatchMetadata:
    logs = {{"a": A, "b": B, "c": C}[name]: log(0, end) for name, end in ends.items()}
    plan = plan_batch(after, logs, limits, replays_exactly=True)
    assert plan is not None
    return plan.batch


def test_the_first_batch_is_a_careful_guess() -> None:
    limits = Limits(batch_bytes_max=10 * FIRST_RECORD_BYTES)
    assert counts(planned(EMPTY_BATCH, limits, a=1000, b=1000)) == [5, 5]


def test_a_batch_is_as_large_as_the_records_of_the_last_one_let_it_be() -> None:
    limits = Limits(batch_bytes_max=10_000)
    first = planned(EMPTY_BATCH, limits, a=1000)
    assert counts(planned(read(first, a=100), limits, a=1000)) == [100]
    assert counts(planned(read(first, a=2_500), limits, a=1000)) == [4]


def test_bytes_are_shared_out_fairly() -> None:
    limits = Limits(batch_bytes_max=12_000)
    after = read(BatchMetadata({A: span(0, 1), B: span(0, 1), C: span(0, 1)}), a=100, b=1_000, c=10)
    assert counts(planned(after, limits, a=1000, b=1000, c=11)) == [59, 5, 10], "c has 100 bytes, the others half each"


def test_a_partition_without_figures_is_taken_to_be_like_the_largest() -> None:
    after = read(BatchMetadata({A: span(0, 1), B: span(0, 1)}), a=100, b=1_000)
    assert counts(planned(after, Limits(batch_bytes_max=9_000), a=1000, b=1000, c=1000)) == [30, 3, 3]


def test_records_that_are_too_large_are_read_one_by_one() -> None:
    after = read(BatchMetadata({A: span(0, 1), B: span(0, 1)}), a=100, b=50_000)
    assert counts(planned(after, Limits(batch_bytes_max=1_000), a=1000, b=1000)) == [5, 1], "or b would never be read"


def test_the_limits_hold_together() -> None:
    after = read(BatchMetadata({A: span(0, 1)}), a=100)
    assert counts(planned(after, Limits(30, 20, 10_000), a=1000)) == [20]
    assert counts(planned(after, Limits(30, 20, 1_500), a=1000)) == [15]
    assert sorted(counts(planned(after, Limits(1, None, 1_500), a=1000, b=1000))) == [0, 1]


def test_only_batches_that_were_read_show_sizes() -> None:
    ranges = {A: span(0, 4), B: span(0, 4), C: span(0, 4)}
    digests = {A: Digest(2, 0, 50), B: Digest(0, 0, 0), C: Digest(4, 0)}
    assert mean_record_bytes(BatchMetadata(ranges, digests)) == {A: 25.0}, (
        "nothing was read of B, nothing measured of C"
    )


def test_shares_that_fit_stay_what_they_are() -> None:
    assert share_bytes({A: 5, B: 0}, {A: 10.0, B: 10.0}, 50) == {A: 5, B: 0}


def test_sizes_are_remembered_while_batches_are_planned_ahead() -> None:
    """The batch before has not been read yet when the next is planned; the last committed one has."""
    spout = of(OpaqueKafkaSpout, {A: log(0, 1000)}, batch_bytes_max=10_000)
    first = spout.plan(EMPTY_BATCH, replay=False)
    assert first is not None
    assert counts(spout.plan(first, replay=False)) == [1]
    spout.committed(read(first, a=100))
    assert counts(spout.plan(first, replay=False)) == [100]
    assert counts(spout.plan(read(first, a=1_000), replay=False)) == [10], "what the batch before tells is newer"


def test_a_limit_that_was_chosen_bounds_a_batch_besides_the_spouts_own() -> None:
    spout = of(OpaqueKafkaSpout, {A: log(0, 1000), B: log(0, 1000)}, batch_records_max=300)
    assert spout.batch_records_max == 300
    spout.limit_batches(BatchLimit(50, None, "so dear"))
    assert counts(spout.plan(EMPTY_BATCH, replay=False)) == [25, 25]
    spout.limit_batches(BatchLimit(5_000, None, "so cheap"))
    first = spout.plan(EMPTY_BATCH, replay=False)
    assert counts(first) == [150, 150]
    assert counts(spout.plan(EMPTY_BATCH, replay=True)) == [150, 150], "a replay that is planned keeps to it as well"


def test_large_records_make_a_smaller_batch_than_the_limit_has_records() -> None:
    """100 records of 10 bytes are chosen, by what was measured; B's are known to be a hundred times as large."""
    spout = of(OpaqueKafkaSpout, {A: log(0, 10), B: log(0, 1000)})
    spout.committed(read(BatchMetadata({A: span(0, 10), B: span(0, 10)}), a=10, b=1_000))
    spout.limit_batches(BatchLimit(100, 10, "measured"))
    batch = spout.plan(EMPTY_BATCH, replay=False)
    assert counts(batch) == [10, 1], "2,000 bytes in all"


def test_records_of_unknown_size_are_taken_for_usual_ones() -> None:
    spout = of(OpaqueKafkaSpout, {A: log(0, 1000)})
    spout.limit_batches(BatchLimit(100, 10, "measured"))
    assert counts(spout.plan(EMPTY_BATCH, replay=False)) == [100]


# --- for several tasks --------------------------------------------------------------------------------------------


def test_a_large_range_is_for_several_tasks() -> None:
    spout = of(OpaqueKafkaSpout, {A: log(5, 25), B: log(0, 7)}, split_records=10)
    batch = spout.plan(EMPTY_BATCH, replay=False)
    assert batch is not None
    assert [f"{p.index}: {offsets}" for p, offsets in batch.portions()] == [
        "0: [5, 10)",
        "0: [10, 20)",
        "0: [20, 25)",
        "1: [0, 7)",
    ]
    assert BatchMetadata.from_json(batch.to_json()) == batch


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split_records": 0}, "split_records takes a whole number of at least 1, or None for no splitting; got 0"),
        ({"split_records": True}, "split_records takes a whole number"),
        ({"batch_bytes_max": 0}, "batch_bytes_max takes a whole number"),
    ],
)
def test_a_limit_that_can_not_be_right_is_reported(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OpaqueKafkaSpout("localhost:9092", ["tuples"], **options)
