"""One consumer of many partitions, without a broker: every range exactly, whatever has been fetched when."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from confluent_kafka import KafkaError
from hypothesis import given, settings
from hypothesis import strategies as st

import spouts.kafka.clients.consumers as consumers
from spouts.kafka.clients.consumers import SKIP_MAX, SharedConsumer, partition_key
from tests.examples import examples
from tests.unit.spouts.kafka.fetching import ONE, Client, Cluster, Log, partition, span
from transactional.errors import ReplayMismatch, SourceUnavailable
from transactional.model.batch import OffsetRange, PartitionId


class Reading:
    """A shared consumer of a cluster in memory."""

    def __init__(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, timeout_ms: int = 2_000) -> None:
        self.cluster = cluster.install(monkeypatch)
        self.consumer = SharedConsumer(replace(ONE, timeout_ms=timeout_ms), len(cluster.logs))
        self.consumer.keys_read = {("t", index) for index in cluster.logs}

    @property
    def client(self) -> Client:
        return self.cluster.clients[-1]

    def expect(self, *ranges: tuple[int, int, int]) -> None:
        self.consumer.expect([(partition(index), span(start, until)) for index, start, until in ranges])

    def read(self, index: int, start: int, until: int, source: str = "t") -> list[int]:
        pieces = self.consumer.read(partition(index, source), span(start, until))
        return [message.offset() or 0 for piece in pieces for message in piece]

    def lease(self, index: int, offsets: OffsetRange) -> None:
        """As if somebody read it."""
        self.consumer.leases.setdefault(("t", index), []).append((partition(index), offsets))

    @property
    def moves(self) -> int:
        return sum(map(len, self.client.unassigned))


# --- every range exactly ------------------------------------------------------------------------------------------


def batches_of(random: Random, ends: Sequence[int]) -> list[list[tuple[int, OffsetRange]]]:
    """Batches that follow one another; a partition may have nothing in one."""
    at, batches = [0] * len(ends), []
    while any(position < end for position, end in zip(at, ends, strict=True)):
        steps = [min(end - position, random.choice((0, 1, 3, 20))) for position, end in zip(at, ends, strict=True)]
        batches.append([(n, span(at[n], at[n] + step)) for n, step in enumerate(steps) if step])
        at = [position + step for position, step in zip(at, steps, strict=True)]
    return batches


def disturbed(random: Random, batches: list[list[tuple[int, OffsetRange]]]) -> list[list[tuple[int, OffsetRange]]]:
    """As attempts in flight read them: not in order, some twice, and some not here at all."""
    keyed = sorted(enumerate(batches), key=lambda each: each[0] + random.choice((0, 0, 0, 2.5)))
    order = [batch for _, batch in keyed if random.random() < 0.9]
    return [batch for batch in order for _ in range(random.choice((1, 1, 1, 2)))]


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(0, 2**32), st.lists(st.integers(1, 80), min_size=1, max_size=5), st.sampled_from([1, 2, 5]))
def test_ranges_are_read_exactly_in_any_order(seed: int, ends: list[int], every: int) -> None:
    """With holes or without, expected or not, given up in the middle, and with so little memory that most is parked."""
    random, cluster = Random(seed), Cluster.of(*ends, every=every, seed=seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(consumers, "PENDING_BYTES_MAX", random.choice((3_000, 64_000_000)))
        patch.setattr(consumers, "SKIP_MAX", random.choice((5, 20_000)))
        patch.setattr(consumers, "PIECE_RECORDS_MAX", random.choice((2, 10_000)))
        reading = Reading(cluster, patch)
        for batch in disturbed(random, batches_of(random, ends)):
            if random.random() < 0.8:
                reading.expect(*((index, offsets.start, offsets.until) for index, offsets in batch))
            for index, offsets in batch:
                if random.random() < 0.1:
                    next(reading.consumer.read(partition(index), offsets), None)
                    continue
                if random.random() < 0.3 and (runs := reading.consumer.take_whole([(partition(index), offsets)])):
                    offsets_taken = [message.offset() for run in runs for message in run.messages]
                    assert offsets_taken == list(range(offsets.start, offsets.until))
                    assert offsets_taken == cluster.content(index, offsets)
                    continue
                assert reading.read(index, offsets.start, offsets.until) == cluster.content(index, offsets)


def test_batches_in_order_move_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """All partitions are assigned at once, and then never again."""
    reading = Reading(Cluster.of(*[120] * 12, every=3), monkeypatch)
    for start in range(0, 120, 20):
        reading.expect(*((index, start, start + 20) for index in range(12)))
        for index in range(12):
            assert reading.read(index, start, start + 20) == reading.cluster.content(index, span(start, start + 20))
    assert [len(joining) for joining in reading.client.assigned] == [12]
    assert reading.moves == 0


def test_attempts_that_come_in_the_wrong_order_move_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the later ones have skipped is still here."""
    reading = Reading(Cluster.of(100, 100, every=2), monkeypatch)
    for start in (0, 60, 40, 20, 80):
        for index in range(2):
            assert reading.read(index, start, start + 20) == list(range(start, start + 20, 2))
    assert reading.moves == 0


def test_a_range_in_the_middle_can_be_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was taken, although what is before it and behind it is still here."""
    reading = Reading(Cluster.of(100, burst=100), monkeypatch)
    reading.expect((0, 0, 90))
    for _ in range(2):
        assert reading.read(0, 40, 60) == list(range(40, 60))
    assert reading.read(0, 20, 40) == list(range(20, 40))


def test_the_end_of_a_log_that_came_with_an_earlier_range_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not announced again, and behind the last record there are only markers."""
    cluster = Cluster.of(10, 10, every=4)
    reading = Reading(cluster, monkeypatch)
    assert [reading.read(index, start, start + 1) for start in range(10) for index in (0, 1)] == [
        [start] if start % 4 == 0 else [] for start in range(10) for _ in (0, 1)
    ]
    assert reading.moves == 0


def test_the_end_of_a_log_does_not_count_after_a_move(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = Reading(Cluster.of(SKIP_MAX + 30, every=5), monkeypatch)
    assert reading.read(0, SKIP_MAX + 20, SKIP_MAX + 30) == [SKIP_MAX + 20, SKIP_MAX + 25]
    assert reading.read(0, 0, 20) == [0, 5, 10, 15]
    assert reading.moves == 1


def test_what_is_far_ahead_is_sought(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = Reading(Cluster.of(3 * SKIP_MAX), monkeypatch)
    for start in (0, 2 * SKIP_MAX):
        assert reading.read(0, start, start + 3) == [start, start + 1, start + 2]
    assert reading.moves == 1


def test_two_readers_of_a_partition_do_not_send_it_to_and_fro(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that is ahead waits until the other has come by."""
    reading = Reading(Cluster.of(3 * SKIP_MAX, burst=SKIP_MAX), monkeypatch)
    for start in (0, 2 * SKIP_MAX):
        reading.lease(0, span(start, start + 3))
    late = reading.consumer.read(partition(0), span(0, 3))
    assert reading.read(0, 2 * SKIP_MAX, 2 * SKIP_MAX + 3) == [2 * SKIP_MAX + each for each in range(3)]
    assert [message.offset() for piece in late for message in piece] == [0, 1, 2]


def test_a_topic_that_was_recreated_has_nothing_of_the_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = Reading(Cluster.of(50, burst=50), monkeypatch)
    reading.expect((0, 0, 40))
    assert reading.read(0, 0, 10, "t#old") == list(range(10))
    assert reading.read(0, 10, 20, "t#new") == list(range(10, 20))
    assert reading.moves == 2


def test_threads_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client refuses two of them at once."""
    reading = Reading(Cluster.of(*[400] * 3, every=2), monkeypatch)
    monkeypatch.setattr(reading.client, "before_consuming", lambda: [sys.intern(str(each)) for each in range(200)])
    switches_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    answers: dict[tuple[int, int], list[int]] = {}

    def read(first: int) -> None:
        for start in range(first, 400, 60):
            for index in range(3):
                answers[index, start] = reading.read(index, start, start + 20)

    threads = [threading.Thread(target=read, args=(first,)) for first in (0, 20, 40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(switches_s)
    assert answers == {(n, start): list(range(start, start + 20, 2)) for n in range(3) for start in range(0, 400, 20)}


# --- memory -------------------------------------------------------------------------------------------------------


def held(reading: Reading) -> int:
    return sum(fetched.size for fetched in reading.consumer._partitions.values())


def test_without_a_leader_the_others_fill_no_more_than_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """They go on where they were parked once it is back, and nothing is lost."""
    monkeypatch.setattr(consumers, "PENDING_BYTES_MAX", 100_000)
    cluster = Cluster.of(*[500] * 4, bytes=1_000, burst=20)
    reading = Reading(cluster, monkeypatch)
    cluster.logs[0].has_leader = False
    most, rounds = 0, iter(range(1_000))

    def before_consuming() -> None:
        nonlocal most
        most = max(most, held(reading))
        cluster.logs[0].has_leader = next(rounds) > 500

    reading.client.before_consuming = before_consuming
    reading.lease(0, span(0, 100))
    reading.expect(*((index, 0, 100) for index in range(4)))
    assert reading.read(0, 0, 100) == list(range(100))
    assert 100_000 < most < 130_000
    reading.consumer.leases.clear()
    for index in (1, 2, 3):
        assert reading.read(index, 0, 500) == list(range(500))
    assert held(reading) < 100_000


def test_what_nobody_expects_any_longer_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where partitions are dealt out to other tasks, and this process goes on with some of them."""
    monkeypatch.setattr(consumers, "PENDING_BYTES_MAX", 20_000)
    reading = Reading(Cluster.of(*[500] * 4, bytes=1_000), monkeypatch)
    reading.expect(*((index, 0, 10) for index in range(4)))
    assert reading.read(0, 0, 10) == list(range(10))
    for start in range(10, 500, 10):
        reading.expect((0, start, start + 10))
        reading.lease(0, span(start, start + 10))
        assert reading.read(0, start, start + 10) == list(range(start, start + 10))
        reading.consumer.leases.clear()
    assert set(reading.client.at) == {0}
    assert set(reading.consumer._partitions) == {("t", 0)}


def test_a_backlog_larger_than_the_buffers_is_fetched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition that has filled its share waits until it is due, so that no buffer has to be dropped."""
    monkeypatch.setattr(consumers, "PENDING_BYTES_MAX", 600_000)
    cluster = Cluster.of(*[400] * 16, burst=50)
    reading = Reading(cluster, monkeypatch)
    for start in range(0, 400, 5):
        reading.expect(*((index, start, start + 5) for index in range(16)))
        for index in range(16):
            reading.lease(index, span(start, start + 5))
            assert reading.read(index, start, start + 5) == list(range(start, start + 5))
            reading.consumer.leases.clear()
        assert held(reading) < 600_000
    assert reading.client.delivered_records == 400 * 16


def test_ranges_that_other_processes_read_do_not_fill_the_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the attempts in flight stay: they may come next."""
    reading = Reading(Cluster.of(1_000, burst=1_000), monkeypatch)
    reading.expect((0, 0, 1_000))
    for start in range(0, 900, 20):
        assert reading.read(0, start, start + 10) == list(range(start, start + 10))
    [buffer] = reading.consumer._partitions.values()
    assert [run.offsets for run in buffer.runs] == [span(850, 860), span(870, 880), span(890, 1_000)]
    assert buffer.size == sum(run.size for run in buffer.runs)


def test_a_large_range_comes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of records as of bytes, even if all of it is here."""
    reading = Reading(Cluster.of(25_000, burst=25_000), monkeypatch)
    reading.expect((0, 0, 25_000))
    pieces = list(reading.consumer.read(partition(0), span(0, 25_000)))
    assert sum(map(len, pieces)) == 25_000
    assert max(map(len, pieces)) <= 2 * 10_000
    reading = Reading(Cluster.of(60, bytes=500_000, burst=60), monkeypatch)
    assert max(map(len, reading.consumer.read(partition(0), span(0, 60)))) <= 2 * 8 * 1024 * 1024 // 500_000


@pytest.mark.parametrize(("partitions", "queued"), [(1, 50_000), (64, 781), (10_000, 200)])
def test_partitions_share_what_is_fetched_ahead(partitions: int, queued: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster.of().install(monkeypatch)
    SharedConsumer(ONE, partitions)
    SharedConsumer(replace(ONE, options=(("queued.min.messages", 5),)), partitions)
    ours, theirs = (client.settings["queued.min.messages"] for client in cluster.clients)
    assert (ours, theirs) == (queued, 5)


@pytest.mark.parametrize(("partitions", "fetched_bytes"), [(1, 1_000_000), (128, 131_072), (10_000, 65_536)])
def test_a_response_for_every_partition_fits_into_the_buffers(
    partitions: int, fetched_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message of a few bytes takes eight times as many in memory. A limit may not be below a large record batch."""
    cluster = Cluster.of().install(monkeypatch)
    SharedConsumer(ONE, partitions)
    assert cluster.clients[0].settings["fetch.message.max.bytes"] == fetched_bytes


# --- errors -------------------------------------------------------------------------------------------------------


def test_an_error_of_one_partition_leaves_the_others_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster.of(*[100] * 3)
    reading = Reading(cluster, monkeypatch)
    reading.expect(*((index, 0, 50) for index in range(3)))
    cluster.logs[1].error = KafkaError.TOPIC_AUTHORIZATION_FAILED
    for index in (0, 2):
        assert reading.read(index, 0, 50) == list(range(50))
    assert reading.moves <= 1
    cluster.logs[1].error = KafkaError.TOPIC_AUTHORIZATION_FAILED
    with pytest.raises(SourceUnavailable, match=r"partition 1 of topic 't' can't be read over \[0, 50\)"):
        reading.read(1, 0, 50)
    assert reading.read(1, 0, 50) == list(range(50)), "it is read from the beginning"
    assert reading.read(2, 50, 100) == list(range(50, 100))
    assert all(set(places) == {1} for places in reading.client.unassigned)


def test_offsets_that_are_gone_say_how_far_it_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was delivered before."""
    monkeypatch.setattr(consumers, "PIECE_RECORDS_MAX", 10)
    cluster = Cluster.of(100)
    reading = Reading(cluster, monkeypatch)
    read = reading.consumer.read(partition(0), span(0, 100))
    delivered = [message.offset() or 0 for message in next(read)]
    cluster.logs[0].error = KafkaError._AUTO_OFFSET_RESET
    with pytest.raises(ReplayMismatch, match=r"\[0, 100\) were planned, but the available ones are \[0, 100\)") as told:
        next(read)
    assert told.value.read_until == delivered[-1] + 1


def test_one_query_says_of_all_partitions_that_their_holes_are_no_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what had been fetched by then; what retention takes away later is noticed with the next range."""
    cluster = Cluster.of(*[100] * 3, every=2, burst=100)
    reading = Reading(cluster, monkeypatch)
    for start in (0, 20):
        reading.expect(*((index, start, start + 20) for index in range(3)))
        for index in (2, 1, 0):
            reading.read(index, start, start + 20)
        for index in range(3):
            reading.consumer.check_start(partition(index), span(start, start + 20))
    assert [sorted(queried) for queried in reading.client.queries] in ([[0, 1, 2]], [[0, 1, 2]] * 2)
    cluster.logs[1] = Log(200, list(range(0, 200, 2)), low=120)
    assert reading.read(1, 100, 150) == list(range(100, 150, 2))
    with pytest.raises(ReplayMismatch, match=r"\[100, 150\) were planned, but the available ones are \[120, 200\)"):
        reading.consumer.check_start(partition(1), span(100, 150))


def test_a_partition_whose_neighbour_has_lost_its_leader_is_queried_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster.of(*[100] * 2, every=2, burst=100)
    reading = Reading(cluster, monkeypatch)
    reading.expect((0, 0, 20), (1, 0, 20))
    for index in range(2):
        reading.read(index, 0, 20)
    cluster.logs[1].has_leader = False
    reading.consumer.check_start(partition(0), span(0, 20))
    cluster.logs[0].low = 2
    with pytest.raises(ReplayMismatch, match=r"available ones are \[2, 100\)"):
        reading.consumer.check_start(partition(0), span(0, 20))


def test_an_error_of_no_partition_of_ours_is_the_waiting_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of the connection."""
    cluster = Cluster.of(10, 10)
    reading = Reading(cluster, monkeypatch)
    reading.consumer.keys_read = set()
    cluster.logs[1].error = KafkaError._AUTHENTICATION
    reading.expect((0, 0, 20), (1, 0, 20))
    with pytest.raises(SourceUnavailable, match="partition 0 of topic 't' can't be read"):
        reading.read(0, 0, 20)


def test_the_partition_that_is_silent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much the others deliver."""
    cluster = Cluster.of(10, 100_000, burst=1)
    reading = Reading(cluster, monkeypatch, timeout_ms=50)
    assert reading.read(0, 0, 10) == list(range(10))
    reading.expect((0, 10, 20), (1, 0, 90_000))
    told = (
        r"partition 0 of topic 't' at one:9092 was read up to offset 10 of \[10, 20\), then nothing arrived for 50 ms"
    )
    with pytest.raises(SourceUnavailable, match=told):
        reading.read(0, 10, 20)


def test_places_are_topics_and_numbers() -> None:
    assert partition_key(PartitionId("flights#gDKxAGA4", 3)) == ("flights", 3)
