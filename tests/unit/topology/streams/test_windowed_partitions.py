"""Windows wait for the partitions that a source lists and of which there was no record yet: none of theirs is late."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from spouts.memory import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from state.memory import MemoryMapState
from tests.unit.closing import is_planned
from transactional import RunSummary
from transactional.model.batch import BatchMetadata, PartitionId
from transactional.model.config import TopologyConfig
from transactional.model.facts import Listing
from transactional.operations.cli.output.status_json import read_awaited_partitions, status_json
from transactional.operations.console.data.reading import read_partitions
from transactional.operations.console.history import History
from transactional.operations.console.views import topology as topology_page
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.executors.local import LocalExecutor
from transactional.testing import ManualClock, MemoryCoordinatorStore
from transactional.trident import Count, TridentTopology, tumbling

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
NOON_MS = int(NOON.timestamp() * 1_000)
FIELDS = "key string, at timestamp"
Row = tuple[str, datetime | None]

IDLE_OR_NOT = pytest.mark.parametrize("idle_after", [None, "1 hour"])


def row(key: str, second: int | None) -> Row:
    return key, None if second is None else NOON + timedelta(seconds=second)


def rows(key: str, *seconds: int) -> list[Row]:
    return [row(key, second) for second in seconds]


class World:
    """Windows of five seconds over some partitions, and what they leave behind."""

    def __init__(
        self, *partitions: list[Row], idle_after: str | None = None, take: int = 1, away: Collection[int] = ()
    ) -> None:
        self.rows, self.clock = dict(enumerate(partitions)), ManualClock(wall_ms=NOON_MS)
        self.store = MemoryCoordinatorStore()
        self.spout = OpaqueMemoryTransactionalSpout(self.rows, FIELDS, take, disabled=away)
        self.closed, self.late = MemoryMapState(("key", "window_start")), MemoryMapState(("key", "at"))
        topology = TridentTopology("windows")
        stream = topology.new_stream("s", self.spout, event_time="at", idle_after=idle_after)
        self.count(stream)
        self.topology = topology.build(strict=True)

    def count(self, stream: Any) -> None:
        windows = stream.group_by("key").window(tumbling("5 seconds"))
        counts = windows.persistent_aggregate(MemoryMapState(), Count(), name="open")
        counts.closed().persist(self.closed, name="closed")
        counts.late().group_by("key", "at").persistent_aggregate(self.late, Count(), name="late")

    def run(self, **options: Any) -> RunSummary:
        """Until everything is read."""
        given = {"stop_when_drained": True, "idle_pause_ms": 1, "tick_ms": 1, "max_spout_pending": 1, **options}
        executor = LocalExecutor(self.topology)
        config = TopologyConfig(**given)
        return TopologyDriver(self.topology, self.store, executor, config, clock=self.clock, owner="test").run()

    def closed_by(self, seconds: int, *more: Row) -> int:
        """How many windows have closed after another run so much later, in which partition 0 has more records."""
        self.clock.advance(seconds * 1_000)
        self.rows[0].extend(more)
        self.run()
        return int(self.closed.read().num_rows)

    def last(self) -> BatchMetadata:
        return self.store.attempts("windows", limit=1)[0].batch


@IDLE_OR_NOT
@pytest.mark.parametrize("pending", [1, 3])
def test_a_partition_that_is_away_at_the_start_loses_nothing(idle_after: str | None, pending: int) -> None:
    every = range(0, 60, 10)
    world = World(rows("a", *every), rows("b", *every), idle_after=idle_after, away=[1])
    assert world.run(max_spout_pending=pending).transactions == 6
    assert world.closed.read().num_rows == 0
    assert world.last().listed[PartitionId("s/memory", 1)].listing is Listing.AWAY
    world.clock.advance(7_200_000)
    world.rows[0].append(row("a", 60))
    world.run(max_spout_pending=pending)
    assert world.closed.read().num_rows == 0, "not after hours either"
    world.spout.set_disabled(1, disabled=False)
    world.run(max_spout_pending=pending)
    assert world.late.read().num_rows == 0
    assert world.closed.read().num_rows > 0


@IDLE_OR_NOT
@pytest.mark.parametrize("pending", [1, 3])
def test_a_partition_whose_records_are_read_last_loses_nothing(idle_after: str | None, pending: int) -> None:
    world = World(rows("a", *range(0, 60, 10)), [], rows("b", 3, 13), idle_after=idle_after)
    world.run(max_spout_pending=pending)
    assert world.late.read().num_rows == 0


@pytest.mark.parametrize(("idle_after", "seconds"), [(None, 60), ("10 seconds", 10)])
def test_an_empty_partition_is_waited_for_so_long_by_the_times_of_transactions(
    idle_after: str | None, seconds: int
) -> None:
    world = World(rows("a", 0, 10, 20), [], idle_after=idle_after)
    assert world.closed_by(0) == 0
    assert world.closed_by(seconds, row("a", 30)) == 0
    assert world.closed_by(1, row("a", 40)) == 4, "the transaction behind that of the record no longer waits"
    assert world.closed_by(0, row("a", 50)) == 5
    assert not world.last().listed[PartitionId("s/memory", 1)].is_awaited
    assert world.last().listed[PartitionId("s/memory", 1)].time_ms == NOON_MS


def test_what_an_empty_partition_gets_within_its_time_is_not_late() -> None:
    world = World(rows("a", 0, 10, 20), [])
    assert world.closed_by(59) == 0
    world.rows[1] += rows("b", 1, 11)
    assert world.closed_by(0) == 2
    assert world.closed_by(600, row("b", 12)) == 2
    assert world.late.read().num_rows == 0
    assert world.last().listed == {}


def test_no_time_has_passed_while_nothing_ran() -> None:
    world = World(rows("a", 0, 10), [])
    world.run()
    assert world.closed_by(86_400, row("a", 20)) == 2
    last_two = [record.batch.listed[PartitionId("s/memory", 1)] for record in world.store.attempts("windows", limit=2)]
    assert [each.is_awaited for each in last_two] == [False, True], "the first one after that day has waited"


@IDLE_OR_NOT
def test_a_partition_that_is_added_later_is_waited_for(idle_after: str | None) -> None:
    world = World(rows("a", 0, 10, 20), idle_after=idle_after)
    world.run()
    assert world.closed.read().num_rows == 2
    world.rows[1] = rows("b", *range(22, 100, 10))
    assert world.closed_by(1, *rows("a", *range(30, 200, 10))) > 10
    late = {(each["key"], each["at"]) for each in world.late.read().to_pylist()}
    assert late == set(), "event time stood at 20, and what is in the window of 20 came in time"


def test_what_is_far_behind_when_its_partition_appears_makes_nothing_early_again() -> None:
    world = World(rows("a", 0, 10, 20, 30))
    world.run()
    before = world.last().facts
    world.rows[1] = rows("b", 1)
    world.run()
    after = world.last().facts
    assert world.late.read().num_rows == 1
    assert before is not None
    assert after is not None
    assert (after.watermark_us or 0) >= (before.watermark_us or 0) > 0


def test_an_empty_stream_beside_another_is_waited_for() -> None:
    world, other = World(rows("a", 0, 10, 20, 30)), list[Row]()
    topology = TridentTopology("windows")
    streams = [
        topology.new_stream(name, MemoryTransactionalSpout([each], FIELDS, 1), event_time="at")
        for name, each in (("s", world.rows[0]), ("t", other))
    ]
    world.count(streams[0].merge(streams[1]))
    world.topology = topology.build(strict=True)
    world.run()
    assert world.closed.read().num_rows == 0
    other += rows("b", 1, 11)
    world.run()
    assert world.late.read().num_rows == 0
    assert list(world.last().event_times) == [PartitionId("s/memory", 0), PartitionId("t/memory", 0)]


def test_a_partition_whose_records_have_no_time_does_not_hold_up_the_others_for_ever() -> None:
    world = World(rows("a", 0, 10, 20), [row("b", None)] * 9)
    assert world.closed_by(0) == 0
    assert world.closed_by(60, row("a", 30)) == 0
    assert world.closed_by(1, row("a", 35)) == 4
    world.rows[1].append(row("b", None))
    assert world.closed_by(0, row("a", 40)) == 5
    world.spout.set_disabled(1, disabled=True)
    assert world.closed_by(0, row("a", 50)) == 6


def test_stores_of_earlier_releases_begin_with_their_next_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have recorded nothing of what is listed; what was late stays late."""
    world = World(rows("a", 0, 10, 20), [])
    with monkeypatch.context() as earlier:
        earlier.setattr("transactional.runtime.engine.runner.record_listed", lambda *given: {})
        world.run()
    assert world.last().listed == {}
    assert world.closed.read().num_rows == 2
    assert world.closed_by(100, row("a", 30)) == 2
    assert world.last().listed[PartitionId("s/memory", 1)].time_ms == NOON_MS + 100_000
    assert world.closed_by(60, row("a", 40)) == 2
    assert world.closed_by(1, row("a", 50)) == 5


# --- ticks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("away", "expected"), [((), True), ((1,), False)])
def test_transactions_without_a_record_are_made_for_an_empty_partition_not_for_one_that_is_away(
    away: tuple[int, ...], *, expected: bool
) -> None:
    """That would be one each second, for as long as it is away."""
    world = World(rows("a", 0), [], idle_after="1 second", away=away)
    world.run()
    after = world.last()
    assert is_planned(world.topology, after, 1_000) is expected
    assert is_planned(world.topology, after, 1, window_tick_ms=1)
    assert is_planned(world.topology, replace(after, listed={}), 1_000)


# --- what is waited for is shown ------------------------------------------------------------------------------------


def test_what_is_waited_for_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    world = World(rows("a", 0), [], idle_after="1 hour", away=[1])
    world.run()
    [status] = world.store.status("windows")
    assert read_awaited_partitions(world.store, status) == {"s/memory[1]": "no answer"}
    assert status_json(status, {}, read_awaited_partitions(world.store, status))["windows_wait_for"] == {
        "s/memory[1]": "no answer"
    }
    assert read_partitions(world.store, status)[1] == "s/memory[1] (no answer)"
    assert topology_page(world.store, status, NOON_MS, history=History())["waits"] == "s/memory[1] (no answer)"
    world.spout.set_disabled(1, disabled=False)
    world.rows[1].append(row("b", 0))
    world.run()
    [status] = world.store.status("windows")
    assert read_awaited_partitions(world.store, status) == {}
    assert "wait" not in caplog.text, "not for a minute"
