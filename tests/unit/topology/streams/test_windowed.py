"""Windows of a stream: what is open, what closes, what is late; and every mistake at its line.

Storm rows R14, T42 and X30.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spouts.memory import MemoryTransactionalSpout
from state.memory import MemoryMapState, MemoryTable
from tests.examples import examples
from tests.unit.closing import is_planned
from tests.unit.topology.streams.test_streams import Longest, Path
from transactional.core.machine.window_assignment import Windows
from transactional.errors import ConfigError, StoreMismatch, TopologyChanged
from transactional.model.batch import BatchMetadata, PartitionId
from transactional.model.config import TopologyConfig
from transactional.model.facts import BatchFacts, LastSeen
from transactional.model.schema import Schema
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.executors.local import LocalExecutor
from transactional.testing import MemoryCoordinatorStore, complete_topology
from transactional.topology.streams.windows.windowing import AssignPanes, KeepLate
from transactional.trident import (
    Avg,
    Count,
    Last,
    Stream,
    Sum,
    TridentTopology,
    Window,
    WindowedStream,
    field,
    sliding,
    tumbling,
)

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
FIELDS = "page string, at timestamp, n long"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def at(second: float) -> datetime:
    return NOON + timedelta(seconds=second)


def clicks(rows: list[tuple[str, float | None, int]], **how: Any) -> tuple[TridentTopology, Stream]:
    """One partition, a batch for each row."""
    topology = TridentTopology("clicks")
    timed = [(page, None if second is None else at(second), n) for page, second, n in rows]
    how = {"event_time": "at", "max_delay": "0 seconds"} | how
    return topology, topology.new_stream("clicks", MemoryTransactionalSpout([timed], FIELDS, 1), **how)


def run(topology: TridentTopology) -> None:
    complete_topology(topology.build(strict=True))


def rows_of(state: MemoryMapState) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in state.read().to_pylist())


def test_a_window_is_open_then_closed_once_and_what_comes_after_is_late() -> None:
    topology, stream = clicks(
        [("a", 1, 1), ("b", 2, 1), ("a", 9, 1), ("a", 11, 1), ("b", 3, 7), ("a", 12, 1), ("a", None, 8)]
    )
    open_, closed, late = MemoryMapState(), MemoryMapState(("page", "window_start")), MemoryMapState("n")
    windows = stream.group_by("page").window(tumbling("10 seconds")).persistent_aggregate(open_, Count())
    windows.closed().persist(closed, name="closed")
    windows.late().persist(late, name="late")
    run(topology)
    assert rows_of(open_) == [("a", at(10), 2)]
    assert rows_of(closed) == [("a", at(0), at(10), 2), ("b", at(0), at(10), 1)]
    assert [row[:2] for row in rows_of(late)] == [(7, "b"), (8, "a")]


def test_a_tuple_may_be_late_by_the_delay() -> None:
    topology, stream = clicks(
        [("a", 1, 1), ("a", 12, 1), ("a", 2, 1), ("a", 13, 1), ("a", 3, 5)], max_delay="2 seconds"
    )
    closed, late = MemoryMapState("window_start"), MemoryMapState("n")
    windows = stream.window(tumbling("10 seconds")).persistent_aggregate(MemoryMapState(), Count())
    windows.closed().persist(closed, name="closed")
    windows.late().persist(late, name="late")
    run(topology)
    assert rows_of(closed) == [(at(0), at(10), 1)]
    assert [row[0] for row in rows_of(late)] == [1, 5]


def test_early_results_are_the_new_values_of_open_windows() -> None:
    topology, stream = clicks([("a", 1, 1), ("a", 2, 1), ("a", 11, 1)])
    early = MemoryMapState(("page", "window_start", "count"))
    windows = stream.group_by("page").window(tumbling("10 seconds")).persistent_aggregate(MemoryMapState(), Count())
    windows.new_values().group_by("page", "window_start", "count").persistent_aggregate(early, seen=Count())
    run(topology)
    assert rows_of(early) == [("a", at(0), 1, 1), ("a", at(0), 2, 1), ("a", at(10), 1, 1)]


def test_a_window_that_slides_keeps_panes_and_closes_as_a_whole() -> None:
    """Of what its panes have it computes what has to be computed: averages, aggregates of yours, what came last."""
    topology, stream = clicks([("a", 1, 4), ("a", 6, 2), ("a", 11, 6), ("a", 16, 9), ("a", 40, 0), ("a", 41, 0)])
    words = stream.with_columns(word=pa.scalar("x")).map(lambda row: (*row[:3], "x" * row.n), f"{FIELDS}, word string")
    open_, closed = MemoryMapState(), MemoryMapState(("page", "window_start"))
    windows = words.group_by("page").window(sliding("10 seconds", every="5 seconds"))
    state = windows.persistent_aggregate(open_, count=Count(), avg=Avg("n"), last=Last("n"), longest=Longest())
    state.closed().persist(closed, name="closed")
    run(topology)
    found = [
        (row["window_start"], row["count"], row["avg"], row["last"], len(row["longest"]))
        for row in closed.read().to_pylist()
    ]
    assert sorted(found) == [
        (at(-5), 1, 4.0, 4, 4),
        (at(0), 2, 3.0, 2, 4),
        (at(5), 2, 4.0, 6, 6),
        (at(10), 2, 7.5, 9, 9),
        (at(15), 1, 9.0, 9, 9),
    ]
    assert {row["pane_start"] for row in open_.read().to_pylist()} == {at(40)}


@pytest.mark.parametrize("other", [tumbling("10 seconds"), tumbling("5 seconds", time="transaction")])
def test_windows_that_are_open_are_not_continued_as_others(other: Window) -> None:
    store, same = MemoryCoordinatorStore(), MemoryTable()

    def started(window: Window, table: MemoryTable = same, name: str = "w", *, accept_changes: bool = False) -> None:
        topology, stream = clicks([("home", 0, 1)])
        windowed = stream.group_by("page").window(window)
        windowed.persistent_aggregate(MemoryMapState(table=table), Count(), name=name)
        built = topology.build(strict=True)
        config = TopologyConfig(stop_when_drained=True)
        TopologyDriver(built, store, LocalExecutor(built), config, accept_changes=accept_changes).run()

    started(tumbling("5 seconds"))
    started(tumbling("5000 milliseconds"))
    for accept_changes in (False, True):
        with pytest.raises(
            TopologyChanged, match=r"windows of 5 seconds every 5 seconds by .*not with --accept-changes"
        ):
            started(other, accept_changes=accept_changes)
    started(tumbling("5 seconds"), accept_changes=True)
    started(other, MemoryTable(), "other", accept_changes=True)


def test_windows_that_were_taken_out_do_not_come_back_to_their_table() -> None:
    """What ended meanwhile would never close, and what came meanwhile is counted nowhere."""
    store, tables = MemoryCoordinatorStore(), (MemoryTable(), MemoryTable(), MemoryTable())
    rows: Any = [("home", second, 1) for second in (0, 7, 14, 21)]

    def started(number: int, table: MemoryTable | None, name: str = "w") -> None:
        topology, stream = clicks(rows[:number])
        stream.group_by("page").persistent_aggregate(MemoryMapState(table=tables[0]), Count(), name="all")
        if table is not None:
            windows = stream.group_by("page").window(tumbling("5 seconds"))
            windows.persistent_aggregate(MemoryMapState(table=table), Count(), name=name)
        built = topology.build(strict=True)
        config = TopologyConfig(stop_when_drained=True)
        TopologyDriver(built, store, LocalExecutor(built), config, accept_changes=True).run()

    started(1, tables[1])
    started(1, None)
    started(2, tables[1])
    started(3, None)
    with pytest.raises(
        StoreMismatch, match=r"'w'.*at transaction 4, and 5 is committed.*not in the topology meanwhile"
    ):
        started(4, tables[1])
    started(4, tables[2], "again")
    [again] = MemoryMapState("page string, window_start timestamp", "count long", table=tables[2]).read().to_pylist()
    assert again["window_start"] == at(20)


def test_rows_that_were_counted_for_other_windows_are_refused_when_they_close() -> None:
    """Wherever they come from: a table that another topology has left, for example."""
    topology, stream = clicks([("a", 1, 1)])
    windows = stream.window(tumbling("10 seconds")).persistent_aggregate(MemoryMapState(), Count())
    topology.build()
    rows = pa.table({"window_start": pa.array([at(5)], pa.timestamp("us", tz="UTC")), "count": [1]})
    facts = BatchFacts(1, *(int((at(s) - EPOCH).total_seconds()) * 1_000_000 for s in (30,)))
    with pytest.raises(StoreMismatch, match=r"begin at 2026-05-01 12:00:05.*no part of tumbling\(10 seconds\)"):
        windows.state.persisted.bolt.close_windows(rows, facts)


def test_windows_of_the_transactions_own_time_have_no_late_tuples() -> None:
    topology, stream = clicks([("a", 1, 1), ("a", 2, 1), ("a", -99, 1)])
    open_ = MemoryMapState()
    windows = stream.group_by("page").window(tumbling("36500 days", time="transaction"))
    state = windows.persistent_aggregate(open_, Count())
    with pytest.raises(ConfigError, match="no tuple is late"):
        state.late()
    run(topology)
    assert rows_of(open_) == [("a", EPOCH, 3)]


def test_each_stream_has_its_own_delay_and_the_slowest_decides() -> None:
    topology = TridentTopology("both")
    quick = MemoryTransactionalSpout(
        [[("a", at(1)), ("a", at(30)), ("a", at(40)), ("a", at(50))]], "page string, at timestamp", 1
    )
    slow = MemoryTransactionalSpout(
        [[("b", at(1)), ("b", at(15)), ("b", at(15)), ("b", at(15))]], "page string, seen timestamp", 1
    )
    one = topology.new_stream("one", quick, event_time="at")
    two = topology.new_stream("two", slow, event_time="seen", max_delay="4 seconds").rename(at="seen")
    closed = MemoryMapState(("page", "window_start"))
    windows = (
        one.merge(two).group_by("page").window(tumbling("10 seconds")).persistent_aggregate(MemoryMapState(), Count())
    )
    windows.closed().persist(closed, name="closed")
    run(topology)
    assert rows_of(closed) == [("a", at(0), at(10), 1), ("b", at(0), at(10), 1)]


def run_until(topology: TridentTopology, is_over: Callable[[], bool], **options: Any) -> None:
    """With the real clock."""
    made = topology.build(strict=True)

    def look(at_ms: int, event: Any, actions: Any) -> None:
        if is_over():
            driver.stop()

    config = TopologyConfig(idle_pause_ms=1, **options)
    driver = TopologyDriver(made, MemoryCoordinatorStore(), LocalExecutor(made), config, observers=[look])
    driver.run()


def test_windows_close_in_silence() -> None:
    """By transactions that are made although there is nothing to read."""
    topology, stream = clicks([("a", 1, 1), ("a", 2, 1)])
    closed = MemoryMapState()
    window = tumbling("50 milliseconds", time="transaction")
    windows = stream.group_by("page").window(window).persistent_aggregate(MemoryMapState(), Count())
    windows.closed().group_by("page").persistent_aggregate(closed, count=Sum("count"), name="closed")
    run_until(topology, lambda: rows_of(closed) == [("a", 2)], window_tick_ms=20)


def test_windows_of_events_close_in_silence_if_partitions_are_let_go() -> None:
    """Event time goes on by the clock then; once all is closed, no transaction is made any more."""
    topology, stream = clicks([("a", 1, 1), ("a", 2, 1)], idle_after="20 milliseconds")
    closed = MemoryMapState()
    windows = stream.group_by("page").window(tumbling("1 second")).persistent_aggregate(MemoryMapState(), Count())
    windows.closed().group_by("page").persistent_aggregate(closed, count=Sum("count"), name="closed")
    run_until(topology, lambda: rows_of(closed) == [("a", 2)], window_tick_ms=20)


@pytest.mark.parametrize(("watermark_us", "expected"), [(None, True), (9_999, True), (1_010_000, False)])
def test_silence_ends_with_the_last_window(watermark_us: int | None, *, expected: bool) -> None:
    topology, stream = clicks([], idle_after="1 minute")
    stream.window(tumbling("1 second")).persistent_aggregate(MemoryMapState(), Count())
    after = BatchMetadata({}, event_times={PartitionId("a", 0): LastSeen(9_999)}, facts=BatchFacts(1, watermark_us))
    built = topology.build()
    assert is_planned(built, after, 1_000) is expected
    assert not is_planned(built, after, 999)
    assert is_planned(built, after, 1, window_tick_ms=1)


def test_a_run_that_ends_when_the_source_is_drained_does_not_wait_for_windows() -> None:
    topology, stream = clicks([("a", 1, 1)])
    closed = MemoryMapState()
    windows = stream.window(tumbling("1 day", time="transaction")).persistent_aggregate(MemoryMapState(), Count())
    windows.closed().persistent_aggregate(closed, Count(), name="closed")
    complete_topology(topology.build(strict=True), config=TopologyConfig(window_tick_ms=1, attempts_max=3))
    assert rows_of(closed) == []


@pytest.mark.parametrize(
    ("time", "given", "expected"),
    [
        ("event", None, None),
        ("event", 7, 7),
        ("event, idle", None, 1_000),
        ("transaction", None, 1_000),
        ("transaction", 7_000, 7_000),
    ],
)
def test_how_long_windows_wait_in_silence(time: str, given: int | None, expected: int | None) -> None:
    time, _, idle = time.partition(", ")
    topology, stream = clicks([], idle_after="1 minute" if idle else None)
    stream.window(tumbling("1 second", time=time)).persistent_aggregate(MemoryMapState(), Count())
    facts = BatchFacts(60_000, 1)
    after = BatchMetadata({}, event_times={PartitionId("a", 0): LastSeen(9_999, 60_000)}, facts=facts)
    built, waits = topology.build(), (1, 6, 7, 999, 1_000, 6_999, 7_000, 100_000)
    planned = [ms for ms in waits if is_planned(built, after, ms, window_tick_ms=given)]
    assert min(planned, default=None) == expected


# --- columns against numbers --------------------------------------------------------------------------------------

near = st.integers(-200, 200)
numbers = st.none() | near | st.integers(-(2**63), 2**63 - 1)


@st.composite
def all_windows(draw: st.DrawFn) -> Windows:
    length = draw(st.integers(1, 40))
    return Windows(length, draw(st.integers(1, length)))


@settings(max_examples=examples(200))
@given(all_windows(), st.lists(numbers, max_size=12), st.none() | near)
def test_columns_are_told_apart_as_numbers_are(of: Windows, times: list[int | None], watermark: int | None) -> None:
    batch = pa.record_batch({"at": pa.array(times, pa.int64()).cast(pa.timestamp("us", tz="UTC"))})
    window, facts = Window("w", of, "event"), BatchFacts(0, watermark)
    schema = Schema.parse("at timestamp")
    after = Schema((*schema, *Schema.parse(f"{window.start} timestamp")))
    on_time = AssignPanes("w", after, window, "at").apply_with_facts(batch, facts)
    late = KeepLate("late", schema, window, "at").apply_with_facts(batch, facts)
    known = [us for us in times if not of.is_late(us, watermark)]
    assert to_microseconds(on_time["at"]) == known
    assert to_microseconds(on_time[window.start]) == [of.pane_of(us) for us in known if us is not None]
    assert to_microseconds(late["at"]) == [us for us in times if of.is_late(us, watermark)]


def to_microseconds(column: pa.Array) -> list[int | None]:
    found: list[int | None] = column.cast(pa.int64()).to_pylist()
    return found


# --- mistakes -----------------------------------------------------------------------------------------------------


def stream_of(fields: str = FIELDS, **how: Any) -> Stream:
    return TridentTopology("t").new_stream("clicks", MemoryTransactionalSpout([[]], fields, 1), **how)


def windows_of(window: Any = None, **how: Any) -> WindowedStream[Stream]:
    return stream_of(event_time="at").group_by("page").window(window or tumbling("5 minutes"), **how)


MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "no unit": (lambda: tumbling("5"), "tumbling: length is '5'; write a whole number and a unit"),
    "a number": (lambda: tumbling(5), "tumbling: length is 5; write"),  # type: ignore[arg-type]
    "no length": (lambda: tumbling("0 seconds"), "tumbling: length is '0 seconds'; it has to be"),
    "too long": (lambda: tumbling("36501 days"), "to 36,500 days"),
    "parts of milliseconds": (lambda: tumbling(timedelta(microseconds=1_500)), "whole milliseconds"),
    "no such time": (lambda: tumbling("1 day", time="ingestion"), "time is 'event' or 'transaction'; got 'ingestion'"),
    "slides too far": (
        lambda: sliding("5 minutes", every="6 minutes"),
        "sliding: windows of 5 minutes that begin every 6 minutes leave times out",
    ),
    "too many parts": (
        lambda: sliding("1 day", every="7 seconds"),
        "sliding: windows of 1 day that begin every 7 seconds are made of 86400 parts, more than 10000",
    ),
    "no window": (lambda: windows_of("5 minutes"), "window takes a window such as tumbling.*; got '5 minutes'"),
    "no event time": (
        lambda: stream_of().group_by("page").window(tumbling("1 day")),
        "no stream of the topology has an event time: pass event_time='…' to new_stream",
    ),
    "event time lost": (
        lambda: stream_of(event_time="at").project("page").window(tumbling("1 day")),
        "no field with its event time at any more; its fields are: page; keep it",
    ),
    "no such field": (lambda: windows_of(on="seen"), "window uses field 'seen', which the stream does not have"),
    "another type": (lambda: windows_of(on="n"), "window: field 'n' is a long, and times are timestamps"),
    "a time of the transaction's own": (
        lambda: windows_of(tumbling("1 day", time="transaction"), on="at"),
        "on='at' names a time, and tumbling.* goes by that of the transaction",
    ),
    "event times in another unit": (
        lambda: stream_of(event_time="n"),
        "stream 'clicks': event_time: field 'n' is a long, and times are timestamps: declare it as one",
    ),
    "no such event time": (lambda: stream_of(event_time="time"), "uses field 'time'.* its fields are: page, at, n"),
    "no name of a field": (lambda: stream_of(event_time=3), "event_time is the name of a field; got 3"),
    "delay of nothing": (
        lambda: stream_of(max_delay="1 second"),
        "max_delay and idle_after are those of an event_time",
    ),
    "negative delay": (lambda: stream_of(event_time="at", max_delay="-1 seconds"), "max_delay is '-1 seconds'"),
    "idle at once": (lambda: stream_of(event_time="at", idle_after="0 seconds"), "idle_after is '0 seconds'"),
    "the column is taken": (
        lambda: stream_of("page string, at timestamp, window_start long", event_time="at").window(tumbling("1 day")),
        "has a field 'window_start', which windows add; rename yours",
    ),
    "a reducer": (
        lambda: windows_of().persistent_aggregate(MemoryMapState(), Path()),
        "windows are computed in parts, which a Reducer can't; use a Combiner",
    ),
    "another key": (
        lambda: windows_of().persistent_aggregate(MemoryMapState("page"), Count()),
        "has the key \\(page\\), and its update groups by \\(page, window_start\\)",
    ),
    "no such aggregate": (lambda: windows_of().persistent_aggregate(MemoryMapState(), Sum("page")), "has no sum"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_at_its_line(name: str) -> None:
    make, text = MISTAKES[name]
    with pytest.raises(ConfigError, match=text) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_an_event_time_keeps_its_name_through_renames_and_may_be_named() -> None:
    stream = stream_of(event_time="at").rename(seen="at").with_columns(hour=field("seen"))
    assert stream.window(tumbling("1 hour")).time == "seen"
    assert stream.window(tumbling("1 hour"), on="hour").time == "hour"
