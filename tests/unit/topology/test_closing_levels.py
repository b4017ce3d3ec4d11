"""Windows that count the rows of other windows: none is late, and they close in the next transaction."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from spouts import MemoryTransactionalSpout
from state import MemoryMapState
from transactional import TransactionalTopologyBuilder, TupleWindow, WindowedBolt
from transactional.core.machine.window_assignment import InnerWindows, with_outer_watermarks
from transactional.model.batch import BatchMetadata, PartitionId
from transactional.model.facts import BatchFacts, LastSeen
from transactional.testing import complete_topology
from transactional.topology.closing import TimedWindows, find_event_time_inner_windows
from transactional.topology.topology import Topology
from transactional.trident import Count, Sum, TridentTopology, field, session, sliding, tumbling

HOUR = 60
FIVE = tumbling("5 minutes")


def at(minute: int) -> datetime:
    return datetime(2026, 5, 1, tzinfo=UTC) + timedelta(minutes=minute)


def counted(windows: Any, on: str, outer: Any, name: str) -> Any:
    """Windows of windows: how many tuples they have."""
    rows = windows.rename(time=on).project("k", "time", "n").group_by("k")
    return rows.window(outer, on="time").persistent_aggregate(MemoryMapState(), n=Sum("n"), name=name)


def inner(rows: list[Any], window: Any, *, take: int = 3) -> tuple[TridentTopology, Any]:
    topology = TridentTopology("cascade")
    spout = MemoryTransactionalSpout([rows], "k string, at timestamp", take=take)
    stream = topology.new_stream("s", spout, event_time="at", max_ahead=None)
    return topology, stream.group_by("k").window(window).persistent_aggregate(MemoryMapState(), n=Count(), name="inner")


def of_closed(windows: Any, name: str) -> MemoryMapState:
    windows.closed().persist(state := MemoryMapState(("k", "window_start")), name=name)
    return state


def hours(state: MemoryMapState) -> list[tuple[str, int]]:
    return [(f"{row['window_start']:%H:%M}", row["n"]) for row in state.read().sort_by("window_start").to_pylist()]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("window", "on", "expected"),
    [
        (FIVE, "window_start", [60, 60]),
        (FIVE, "window_end", [55, 60]),
        (sliding("10 minutes", every="5 minutes"), "window_start", [5, 120, 120]),
        (session("30 seconds", longest="1 minute"), "window_start", [60, 60]),
        (session("30 seconds", longest="12 hours"), "window_end", [60, 60]),
    ],
)
@pytest.mark.parametrize("take", [7, 20])
def test_windows_of_windows_count_all_of_them(window: Any, on: str, expected: list[int], take: int) -> None:
    topology, state = inner([("a", at(minute)) for minute in range(3 * HOUR + 30)], window, take=take)
    outer = counted(state.closed(), on, tumbling("1 hour"), "outer")
    closed = of_closed(outer, "closed")
    outer.late().persist(late := MemoryMapState(("k", "time")), name="late")
    complete_topology(topology.build(strict=True))
    assert [n for _, n in hours(closed)][: len(expected)] == expected
    assert late.read().num_rows == 0


TWENTY = tumbling("20 minutes")


def test_three_levels_close_one_transaction_after_the_other() -> None:
    rows = [("a", at(minute)) for minute in range(40)]
    topology, state = inner([*rows, *(("a", at(40 + second)) for second in range(5))], FIVE, take=1)
    outer = counted(state.closed(), "window_start", TWENTY, "outer")
    top = counted(outer.closed(), "window_start", tumbling("40 minutes"), "top")
    found = [of_closed(each, name) for each, name in ((state, "c1"), (outer, "c2"), (top, "c3"))]
    complete_topology(topology.build(strict=True))
    last = [max(row.txid for row in each.stored.rows.values()) for each in found]
    assert last == [42, 43, 44]
    assert hours(found[2]) == [("00:00", 40)]


def test_early_results_of_windows_are_counted() -> None:
    """They come once for each transaction that changes a window: 1, 2, 3, 4 and 5 tuples of each five minutes."""
    topology, state = inner([("a", at(minute)) for minute in range(40)], FIVE, take=1)
    outer = counted(state.new_values(), "window_start", TWENTY, "outer")
    closed = of_closed(outer, "closed")
    complete_topology(topology.build(strict=True))
    assert hours(closed) == [("00:00", 4 * 15)]


class Counts(WindowedBolt):
    output = "k string, start timestamp, n long"

    def execute(self, window: TupleWindow) -> None:
        self.collector.emit("a", window.start, sum(getattr(each, "n", 1) for each in window.get()))


def test_windowed_bolts_count_those_of_others() -> None:
    rows = [("a", at(minute)) for minute in range(2 * HOUR)]
    builder = TransactionalTopologyBuilder(
        "bolts", "s", MemoryTransactionalSpout([rows], "k string, at timestamp", take=7)
    )
    builder.set_event_time("at", max_ahead=None)
    for name, window, source, time in (("five", FIVE, "s", "at"), ("hour", tumbling("1 hour"), "five", "start")):
        bolt = builder.set_windowed_bolt(name, Counts(), window=window, time=time, state=MemoryMapState())
        bolt.global_grouping(source)
    [hour] = complete_topology(builder.build(strict=True))["hour"]
    assert hour.n == HOUR


def three_levels() -> Topology:
    topology, state = inner([], FIVE)
    outer = counted(state.closed(), "window_end", session("1 minute", longest="1 hour"), "outer")
    counted(outer.closed().filter(field("n") > 1), "window_start", tumbling("1 day"), "top")
    return topology.build(strict=True)


def test_windows_are_known_by_those_above_them() -> None:
    components = three_levels().components
    found = find_event_time_inner_windows(components)
    assert {name: [each.name for each in above] for name, above in found.items()} == {
        "outer": ["inner"],
        "top": ["outer"],
    }
    [of_inner], [of_outer] = found["outer"], found["top"]
    minute = 60_000_000
    assert of_inner.first_time(12 * minute) == 15 * minute, "the end of the window that is open"
    assert of_outer.first_time(100 * minute) == 40 * minute + 1, "a session may have begun so long ago"
    windows = TimedWindows.from_topology(three_levels())
    after = BatchMetadata({}, event_times={PartitionId("a", 0): LastSeen(0)})
    ends = {"inner": 5 * minute, "outer": 6 * minute, "top": (24 * 60 + 6) * minute}
    assert windows.last_ends_us(after) == ends
    assert windows.closing_watermark_us(after) == ends["top"] + 60 * minute - 1, "a session lasts for an hour at most"


def above(name: str, back: int, *, by_transaction: bool = False) -> InnerWindows:
    return InnerWindows(name, by_transaction, lambda us: us - back)


BEHIND = {"b": (above("a", 10),), "c": (above("b", 100), above("a", 50))}


def chain(*watermark: int | None) -> BatchFacts:
    facts: BatchFacts | None = None
    for txid, us in enumerate(watermark):
        before = facts
        now = BatchFacts(txid, us, txid - 1, watermark[txid - 1]) if txid else BatchFacts(txid, us)
        facts = with_outer_watermarks(now, before, BEHIND)
    assert facts is not None
    return facts


def test_what_is_late_follows_from_what_windows_had_closed_before() -> None:
    assert chain(None).outer_watermarks == {"b": (None, None), "c": (None, None)}
    assert chain(1_000).outer_watermarks == {"b": (None, None), "c": (None, None)}
    assert chain(1_000, 2_000).outer_watermarks == {"b": (990, None), "c": (None, None)}
    assert chain(1_000, 2_000, 3_000).outer_watermarks == {"b": (1_990, 990), "c": (890, None)}
    assert chain(1_000, 2_000, 3_000, 3_000).outer_watermarks == {"b": (2_990, 1_990), "c": (1_890, 890)}


def test_what_is_late_never_goes_back() -> None:
    """Not for a store either that was written when all windows went by the source."""
    before = BatchFacts(7, 5_000, 6, 4_000)
    facts = with_outer_watermarks(BatchFacts(8, 5_005, 7, 5_000), before, BEHIND)
    assert facts.outer_watermarks == {"b": (5_000, 5_000), "c": (5_000, 5_000)}
    after = with_outer_watermarks(BatchFacts(9, 5_500, 8, 5_005), facts, BEHIND)
    assert after.outer_watermarks == {"b": (5_000, 5_000), "c": (5_000, 5_000)}
    last = with_outer_watermarks(BatchFacts(10, 5_600, 9, 5_500), after, BEHIND)
    assert last.outer_watermarks == {"b": (5_490, 5_000), "c": (5_000, 5_000)}


def test_windows_by_transaction_have_its_time() -> None:
    behind = {"b": (above("a", 10, by_transaction=True),)}
    facts = with_outer_watermarks(BatchFacts(8), BatchFacts(7), behind)
    assert facts.outer_watermarks == {"b": (6_990, None)}


def test_facts_of_windows_of_windows_are_recorded() -> None:
    batch = BatchMetadata({}, facts=chain(1_000, 2_000, 3_000))
    again = BatchMetadata.from_json(batch.to_json())
    assert again.facts == batch.facts
    assert again.facts is not None
    assert again.facts.for_component("b") == BatchFacts(2, 1_990, 1, 990, outer_watermarks=again.facts.outer_watermarks)
    assert again.facts.for_component("a") == again.facts


@pytest.mark.parametrize(("late_us", "expected"), [(4, True), (7, False)])
def test_silence_ends_when_the_last_of_the_windows_has_closed(late_us: int, *, expected: bool) -> None:
    """A transaction without a record closes the inner ones, the next ones those behind."""
    windows, minute = TimedWindows.from_topology(three_levels()), 60_000_000
    late = (24 * 60 + late_us) * minute
    facts = BatchFacts(1, 10**15, outer_watermarks={"outer": (10**15, None), "top": (late, None)})
    after = BatchMetadata({}, event_times={PartitionId("a", 0): LastSeen(0)}, facts=facts)
    assert list(windows.open_until_us(after)) == (["top"] if expected else [])
