"""Windows close without another record: in drained runs, by the clock, by transaction time, and on request."""

from __future__ import annotations

import itertools
import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from spouts import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from state import MemoryMapState
from tests.unit.closing import is_planned, planned_facts
from transactional.errors import ConfigError, FailedException
from transactional.model.batch import BatchMetadata, Offset, OffsetRange, PartitionId
from transactional.model.config import TopologyConfig
from transactional.model.facts import BatchFacts, LastSeen
from transactional.operations.cli.output.status_json import read_open_windows
from transactional.operations.cli.output.statuses import describe_open_windows
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.executors.local import LocalExecutor
from transactional.testing import MemoryCoordinatorStore
from transactional.topology.topology import Topology
from transactional.trident import Count, Sum, TridentTopology, count, session, tumbling

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
MINUTE = 60_000_000
KEY = ("word", "window_start")
PARTITION = PartitionId("s/memory", 0)
SOURCES = [MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout]


def at(minute: float) -> datetime:
    return NOON + timedelta(minutes=minute)


def us(minute: float) -> int:
    return round(at(minute).timestamp() * 1_000_000)


def rows(*minutes: float) -> list[Any]:
    return [("a", at(minute)) for minute in minutes]


class World:
    """A topology with windows of a minute, and others that count these, in runs that end when the source is drained."""

    def __init__(self, *partitions: list[Any], kind: Any = MemoryTransactionalSpout, take: int = 5, **how: Any) -> None:
        self.store, self.made = MemoryCoordinatorStore(), TridentTopology("tick")
        self.partitions, self.kind, self.take = list(partitions), kind, take
        self.stream = self.new_stream("s", self.partitions, **how)
        self.closed, self.outer, self.late = MemoryMapState(KEY), MemoryMapState(KEY), MemoryMapState()
        self.opened: Any = MemoryMapState()

    def new_stream(self, name: str, partitions: list[Any], **how: Any) -> Any:
        spout = self.kind(partitions, "word string, at timestamp", take=self.take)
        return self.made.new_stream(name, spout, event_time="at", **how)

    def build(self, outer: Any = None, on: str = "window_start") -> Topology:
        windows = self.stream.group_by("word").window(tumbling("1 minute"))
        counts = windows.persistent_aggregate(self.opened, Count(), name="open")
        counts.closed().persist(self.closed, name="closed")
        counts.late().group_by("word", "at").persistent_aggregate(self.late, Count(), name="late")
        if outer is not None:
            inner = counts.closed().rename(started=on).project("word", "started", "count").group_by("word")
            found = inner.window(outer, on="started").persistent_aggregate(
                MemoryMapState(), n=Sum("count"), name="outer"
            )
            found.closed().persist(self.outer, name="outer-closed")
        return self.made.build(strict=True)

    def run(self, topology: Topology, in_flight: int = 1, **options: Any) -> int:
        """Run it; the number of transactions so far."""
        given = {"stop_when_drained": True, "idle_pause_ms": 1, "tick_ms": 1, "retry_pause_ms": 1, **options}
        config = TopologyConfig(max_spout_pending=in_flight, **given)
        return TopologyDriver(topology, self.store, LocalExecutor(topology), config).run().committed_txid

    def last(self) -> BatchMetadata:
        return self.store.attempts("tick", limit=1)[0].batch

    def status(self) -> list[str]:
        [status] = self.store.status("tick")
        return describe_open_windows({"tick": read_open_windows(self.store, status)})


def starts(state: MemoryMapState) -> list[int]:
    return sorted((row["window_start"] - NOON) // timedelta(minutes=1) for row in state.read().to_pylist())


@pytest.mark.parametrize("in_flight", [1, 5])
@pytest.mark.parametrize("kind", SOURCES)
def test_a_drained_run_closes_what_the_watermark_has_passed(kind: Any, in_flight: int) -> None:
    world = World(rows(*range(0, 60, 5)), kind=kind)
    topology = world.build(tumbling("15 minutes"))
    committed = world.run(topology, in_flight)
    assert starts(world.closed) == list(range(0, 55, 5))
    assert starts(world.outer) == [0, 15, 30]
    assert committed <= 3 + 2
    assert world.run(topology, in_flight) == committed, "nothing is left to close"


@pytest.mark.parametrize("in_flight", [1, 5])
def test_the_slowest_of_several_streams_decides(in_flight: int) -> None:
    world = World(rows(*range(0, 60, 5)))
    world.new_stream("slow", [rows(0, 32)]).group_by("word").persistent_aggregate(MemoryMapState(), Count(), name="n")
    topology = world.build()
    world.run(topology, in_flight)
    assert starts(world.closed) == [*list(range(0, 35, 5))[:-1], 30]


@pytest.mark.parametrize("in_flight", [1, 5])
def test_an_empty_partition_holds_windows_open_until_they_are_closed_on_request(in_flight: int) -> None:
    world = World(rows(0, 10), [])
    topology = world.build()
    assert world.run(topology, in_flight) == 1
    assert starts(world.closed) == []
    assert world.status() == [
        (
            "tick: windows of open are open, the last until 2026-05-01 12:11:00: they wait for later events, the "
            "watermark is -"
        )
    ]
    assert world.run(topology, in_flight, close_windows=True) == 2
    assert starts(world.closed) == [0, 10]
    assert not any(each.is_awaited for each in world.last().listed.values()), "what verify expects"
    assert world.last().facts is not None
    assert world.last().facts.watermark_us == us(11)  # type: ignore[union-attr]
    assert world.status() == []


class FailsOnce(MemoryMapState):
    """The first transaction without a row fails, and meanwhile records come."""

    world: World
    is_over = False

    def merge(self, attempt: Any, partials: Any) -> None:
        if attempt.txid > 1 and not self.is_over:
            type(self).is_over = True
            self.world.partitions[0] += rows(2.5, 20)
            raise FailedException("once")
        super().merge(attempt, partials)


@pytest.mark.parametrize("in_flight", [1, 5])
@pytest.mark.parametrize("kind", SOURCES)
def test_a_replay_of_a_transaction_without_records_may_find_some(
    kind: Any, in_flight: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FailsOnce, "is_over", False)
    world = World(rows(0, 2, 3), kind=kind)
    world.opened = FailsOnce()
    world.opened.world = FailsOnce.world = world
    world.run(world.build(), in_flight)
    assert FailsOnce.is_over
    assert starts(world.closed) == [0, 2, 3]
    assert world.closed.read().num_rows + world.late.read().num_rows == 4
    counted = {start: row["count"] for start, row in zip([0, 2, 3], world.closed.read().to_pylist(), strict=True)}
    assert sum(counted.values()) + world.late.read().num_rows == 4, "the last one is open"


# --- on request ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outer", "on", "levels"),
    [
        (None, "", 1),
        (tumbling("15 minutes"), "window_start", 2),
        (tumbling("15 minutes"), "window_end", 2),
        (session("7 minutes", longest="1 hour"), "window_start", 2),
    ],
)
@pytest.mark.parametrize("in_flight", [1, 5])
def test_a_drained_run_closes_all_windows_of_event_time_on_request(
    outer: Any, on: str, levels: int, in_flight: int
) -> None:
    world = World(rows(0, 10, 20.5))
    topology = world.build(outer, on)
    drained = world.run(topology, in_flight)
    assert starts(world.closed) == [0, 10]
    assert world.run(topology, in_flight, close_windows=True) == drained + levels
    assert starts(world.closed) == [0, 10, 20]
    assert outer is None or sum(row["n"] for row in world.outer.read().to_pylist()) == 3
    assert world.status() == []
    assert world.run(topology, in_flight, close_windows=True) == drained + levels, "all are closed"


def test_later_records_of_closed_windows_are_late_and_newer_ones_count() -> None:
    world = World(rows(0, 10.5))
    topology = world.build()
    world.run(topology, close_windows=True)
    assert world.last().facts.watermark_us == us(11.5)  # type: ignore[union-attr]
    world.partitions[0] += rows(10.9, 11.2, 12, 13)
    world.run(topology)
    assert starts(world.closed) == [0, 10, 11, 12]
    assert [row["at"] for row in world.late.read().to_pylist()] == [at(10.9)]


def test_windows_that_no_event_time_closes_stay_open_and_are_named(caplog: pytest.LogCaptureFixture) -> None:
    world = World(rows(0, 10))
    by_word = world.stream.group_by("word")
    by_word.window(count(5)).persistent_aggregate(MemoryMapState(), Count(), name="five")
    day = by_word.window(tumbling("100 days", time="transaction"))
    counted = day.persistent_aggregate(MemoryMapState(), Count(), name="day")
    of_days = counted.closed().rename(started="window_start").project("word", "started").group_by("word")
    of_days.window(tumbling("700 days"), on="started").persistent_aggregate(MemoryMapState(), Count(), name="week")
    with caplog.at_level(logging.WARNING):
        world.run(world.build(), close_windows=True)
    [line] = [record.getMessage() for record in caplog.records if "stay open" in record.getMessage()]
    named = "five (by count), day (by transaction time), week (of windows by transaction time)"
    assert line == f"these windows stay open, for no event time closes them: {named}"
    assert starts(world.closed) == [0, 10]
    assert [line.partition(":")[2].partition(",")[0] for line in world.status()] == [
        " windows of day are open",
        " windows of week are open",
    ]


def test_windows_are_closed_on_request_in_drained_runs_alone() -> None:
    with pytest.raises(ConfigError, match="set stop_when_drained as well"):
        TopologyConfig(close_windows=True)


# --- by the clock -------------------------------------------------------------------------------------------------


def of_one(window: Any, *, idle_after: str | None = None) -> Topology:
    made = World([], idle_after=idle_after)
    made.stream.group_by("word").window(window).persistent_aggregate(MemoryMapState(), Count(), name="open")
    return made.made.build(strict=True)


def after(
    time_ms: int, late_us: int | None = None, *, newest_us: int = 0, seen_ms: int = 0, last_row_ms: int = 0
) -> BatchMetadata:
    facts = BatchFacts(time_ms, late_us, last_row_ms={"open": last_row_ms})
    ranges = {PARTITION: OffsetRange(Offset(0), Offset(1))}
    return BatchMetadata(ranges, event_times={PARTITION: LastSeen(newest_us, seen_ms)}, facts=facts)


def test_windows_of_records_close_at_once() -> None:
    topology = of_one(tumbling("1 minute"))
    assert is_planned(topology, after(0, newest_us=MINUTE), 0)
    assert not is_planned(topology, after(0, MINUTE, newest_us=2 * MINUTE - 1), 10_000)
    assert is_planned(topology, after(0, MINUTE, newest_us=2 * MINUTE), 0)
    assert not is_planned(topology, after(0, 2 * MINUTE, newest_us=2 * MINUTE), 10_000)


def test_the_clock_closes_windows_once_a_second_at_most() -> None:
    """Each transaction moves the watermark, and sessions may end at any time."""
    topology = of_one(session("1 hour", longest="1 day"), idle_after="5 seconds")
    silent = after(60_000, 10_000_000, newest_us=0, seen_ms=40_000)
    assert not is_planned(topology, silent, 999)
    assert is_planned(topology, silent, 1_000)
    assert not is_planned(topology, silent, 999, stop_when_drained=True), "such a run ends"
    assert not is_planned(topology, silent, 1_000, window_tick_ms=1_001)
    assert not is_planned(topology, after(60_000, 60 * MINUTE, newest_us=0, seen_ms=40_000), 10_000), "all are closed"


@pytest.mark.parametrize("drains", [False, True])
def test_windows_of_the_transactions_own_time_close_when_they_end(*, drains: bool) -> None:
    """At most one a second; none once the last window that has a row has closed."""
    options = {"stop_when_drained": drains}
    topology = of_one(tumbling("10 seconds", time="transaction"))
    cases: list[tuple[int, int | None]] = [(61_000, 9_000), (69_500, 1_000), (70_000, None), (70_001, None)]
    for time_ms, first_ms in cases:
        batch = after(time_ms, last_row_ms=60_000)
        planned = [
            ms for ms in (0, 499, 500, 999, 1_000, 8_999, 9_000, 10**6) if is_planned(topology, batch, ms, **options)
        ]
        assert next(iter(planned), None) == first_ms, time_ms


def test_a_window_without_a_row_may_cost_one_transaction() -> None:
    topology = of_one(tumbling("10 seconds", time="transaction"))
    assert is_planned(topology, after(60_000, last_row_ms=50_001), 10_000)
    assert not is_planned(topology, after(70_000, last_row_ms=50_001), 10_000)


def test_what_an_earlier_version_has_recorded_may_have_brought_rows() -> None:
    topology = of_one(tumbling("10 seconds", time="transaction"))
    earlier = BatchMetadata({}, facts=BatchFacts(60_000))
    assert is_planned(topology, earlier, 10_000)
    assert BatchMetadata.from_json(earlier.to_json()).facts == earlier.facts
    later = after(60_000, last_row_ms=50_001)
    assert BatchMetadata.from_json(later.to_json()).facts == later.facts


def test_the_last_row_is_recorded_with_transactions() -> None:
    world = World(rows(0))
    window = tumbling("100 days", time="transaction")
    world.stream.group_by("word").window(window).persistent_aggregate(MemoryMapState(), Count(), name="day")
    topology = world.build()
    world.run(topology, close_windows=True)
    last, *_, first = [record.batch.facts for record in world.store.attempts("tick", limit=9)]
    assert first is not None
    assert last is not None
    assert last.time_ms > first.time_ms
    assert first.last_row_ms == last.last_row_ms == {"day": first.time_ms}


def test_windows_of_windows_by_transaction_time_close_by_the_clock() -> None:
    """Transactions are made that move their watermark, until the last of them has closed."""
    made = World([])
    inner = made.stream.group_by("word").window(tumbling("1 second", time="transaction"))
    counts = inner.persistent_aggregate(MemoryMapState(), Count(), name="open")
    outer = counts.closed().rename(started="window_start").project("word", "started").group_by("word")
    outer.window(tumbling("10 seconds"), on="started").persistent_aggregate(MemoryMapState(), Count(), name="outer")
    topology = made.made.build(strict=True)
    batch, planned = after(60_000, last_row_ms=60_000), list[int]()
    for ms in range(60_000, 120_000, 100):
        facts = planned_facts(topology, batch, ms - batch.facts.time_ms)  # type: ignore[union-attr]
        if facts is not None:
            planned.append(ms)
            batch = BatchMetadata(
                {}, facts=BatchFacts(ms, outer_watermarks=facts.outer_watermarks, last_row_ms={"open": 60_000})
            )
    assert planned[0] == 61_000
    assert min(later - ms for ms, later in itertools.pairwise(planned)) >= 1_000
    assert planned[-1] <= 74_000
    assert batch.facts.for_component("outer").watermark_us == 71_000_000  # type: ignore[union-attr]
