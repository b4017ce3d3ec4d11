"""Session windows: tuples of a key that follow one another closely, over batches, merged, late, and not too long."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spouts.memory import MemoryTransactionalSpout
from state.memory import MemoryMapState
from tests.examples import examples
from tests.unit.runner_bench import raising
from transactional.core.machine.window_assignment import FIRST_US, LAST_US, Sessions, WindowTimes
from transactional.errors import ConfigError
from transactional.testing import complete_topology
from transactional.topology.describing import describe_topology
from transactional.topology.streams.windows.sessions import late_session_times
from transactional.trident import Avg, Count, First, Last, Stream, Sum, TridentTopology, session, tumbling

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
FIELDS = "user string, at timestamp, n long"
TEN = session("10 seconds", longest="1 hour")


def at(second: float) -> datetime:
    return NOON + timedelta(seconds=second)


def clicks(rows: Sequence[tuple[str, float | None, int]], take: int = 1, **how: Any) -> tuple[TridentTopology, Stream]:
    """One partition, a batch for each row."""
    topology = TridentTopology("clicks")
    timed = [(user, None if second is None else at(second), n) for user, second, n in rows]
    how = {"event_time": "at", "max_delay": "0 seconds"} | how
    return topology, topology.new_stream("clicks", MemoryTransactionalSpout([timed], FIELDS, take), **how)


def run(topology: TridentTopology) -> None:
    complete_topology(topology.build(strict=True))


def rows_of(state: MemoryMapState) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in state.read().to_pylist())


@pytest.mark.parametrize("take", [1, 2, 99])
def test_a_session_lasts_until_nothing_has_come_for_a_gap(take: int) -> None:
    rows = [("ann", 0, 1), ("ann", 9, 2), ("bob", 9, 3), ("ann", 18, 4), ("bob", 19, 5), ("cat", 60, 0), ("cat", 61, 0)]
    topology, stream = clicks(rows, take)
    opened, closed = MemoryMapState(), MemoryMapState(("user", "window_start"))
    sessions = stream.group_by("user").window(TEN).persistent_aggregate(opened, Sum("n"))
    sessions.closed().persist(closed, name="closed")
    run(topology)
    expected = [("ann", at(0), at(28), 7), ("bob", at(9), at(19), 3), ("bob", at(19), at(29), 5)]
    still = [("cat", at(60), at(71), 0)]
    assert (rows_of(closed), rows_of(opened)) == (expected, still)


def test_a_tuple_between_two_sessions_makes_them_one() -> None:
    """And one before a session makes it begin earlier: the row of the old start goes."""
    topology, stream = clicks([("ann", 10, 1), ("ann", 25, 2), ("ann", 17, 4), ("ann", 5, 8)], max_delay="1 minute")
    opened = MemoryMapState()
    windows = stream.group_by("user").window(TEN)
    windows.persistent_aggregate(opened, count=Count(), n=Sum("n"), avg=Avg("n"), first=First("n"), last=Last("n"))
    run(topology)
    [row] = opened.read().to_pylist()
    assert (row["window_start"], row["window_end"]) == (at(5), at(35))
    assert (row["count"], row["n"], row["first"], row["last"]) == (4, 15, 8, 2)


def test_what_comes_when_its_session_would_have_closed_is_late() -> None:
    topology, stream = clicks([("a", 1, 1), ("a", 30, 2), ("a", 19, 3), ("a", 20, 4), ("a", 21, 5), ("a", None, 6)])
    opened, late = MemoryMapState(), MemoryMapState("n")
    sessions = stream.group_by("user").window(TEN).persistent_aggregate(opened, Count())
    sessions.late().persist(late, name="late")
    run(topology)
    assert [row[0] for row in rows_of(late)] == [3, 4, 6]
    assert rows_of(opened) == [("a", at(21), at(40), 2)]


def test_no_session_is_longer_than_it_may_be() -> None:
    topology, stream = clicks([("a", second, 1) for second in range(0, 100, 5)], max_delay="1 hour")
    opened = MemoryMapState()
    stream.group_by("user").window(session("10 seconds", longest="30 seconds")).persistent_aggregate(opened, Count())
    run(topology)
    assert rows_of(opened) == [("a", at(start), at(start + 30), 5) for start in range(0, 100, 25)]


def test_sessions_of_transactions_and_of_a_whole_stream() -> None:
    topology, stream = clicks([("a", 1, 1), ("b", 900, 2), ("a", None, 3)])
    opened = MemoryMapState()
    window = session("1 day", longest="2 days", time="transaction")
    sessions = stream.window(window).persistent_aggregate(opened, Count())
    with pytest.raises(ConfigError, match="no tuple is late"):
        sessions.late()
    run(topology)
    [(start, end, count)] = rows_of(opened)
    assert count == 3
    assert timedelta(days=1) <= end - start < timedelta(days=1, seconds=60)


def test_early_results_are_the_sessions_that_a_transaction_has_changed() -> None:
    topology, stream = clicks([("a", 1, 1), ("b", 2, 1), ("a", 5, 1)])
    early = MemoryMapState(("user", "count"))
    sessions = stream.group_by("user").window(TEN).persistent_aggregate(MemoryMapState(), Count())
    sessions.new_values().group_by("user", "count").persistent_aggregate(early, seen=Count())
    run(topology)
    assert rows_of(early) == [("a", 1, 1), ("a", 2, 1), ("b", 1, 1)]
    with pytest.raises(ConfigError, match="old=True has no meaning for sessions"):
        sessions.new_values(old=True)


def test_describe_shows_them() -> None:
    topology, stream = clicks([])
    sessions = stream.group_by("user").window(TEN).persistent_aggregate(MemoryMapState(), Count())
    sessions.closed().persist(MemoryMapState(("user", "window_start")), name="closed")
    assert "window(session(10 seconds, longest=1 hour))" in str(describe_topology(topology.build()))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda s: session("0 seconds", longest="1 hour"), r"session: gap is '0 seconds'; it has to be whole"),
        (
            lambda s: session("1 hour", longest="1 minute"),
            "one of a single tuple lasts 1 hour, its gap, and longest is",
        ),
        (lambda s: session("1 hour", longest="1 day", time="now"), "session: time is 'event' or 'transaction'"),
        (lambda s: session("10", longest="1 day"), "session: gap"),
        (lambda s: s.with_columns(window_end=1).window(TEN), "has a field 'window_end', which windows add"),
        (
            lambda s: s.window(TEN).persistent_aggregate(MemoryMapState(), window_end=Count()),
            "windows have 'window_end'; give the aggregate another name",
        ),
        (lambda s: s.window(TEN).persistent_aggregate("tables", Count()), "takes a state such as"),
        (lambda s: s.window(TEN, on="seen"), "seen"),
    ],
)
def test_mistakes_are_reported_at_their_line(make: Any, message: str) -> None:
    _, stream = clicks([])
    with pytest.raises(ConfigError, match=message):
        make(stream)


def test_a_state_that_cannot_delete_is_refused() -> None:
    class Keeps(MemoryMapState):
        def __init__(self) -> None:
            super().__init__()
            self.declared.allow_deletes = raising(ConfigError("a Keeps can't delete rows"))  # type: ignore[method-assign]

    _, stream = clicks([])
    with pytest.raises(ConfigError, match="a Keeps can't delete rows, as sessions that merge do"):
        stream.window(TEN).persistent_aggregate(Keeps(), Count())
    stream.window(tumbling("1 hour")).persistent_aggregate(Keeps(), Count())


# --- rules --------------------------------------------------------------------------------------------------------

times = st.lists(st.integers(0, 60), min_size=1, max_size=12)


@given(times, st.integers(1, 9))
@settings(max_examples=examples(200))
def test_sessions_are_the_chains_of_times_closer_than_the_gap(found: list[int], gap: int) -> None:
    found.sort()
    chains = [found[0]]
    for before, now in pairwise(found):
        chains.append(now if now - before >= gap else chains[-1])
    assert Sessions(gap, 1_000).session_starts((us, us + gap) for us in found) == chains


@given(times, st.integers(1, 9), st.integers(0, 20))
@settings(max_examples=examples(200))
def test_sessions_are_cut_and_never_too_long(found: list[int], gap: int, more: int) -> None:
    found.sort()
    of = Sessions(gap, gap + more)
    begun = of.session_starts((us, us + gap) for us in found)
    assert all(us + gap - start <= of.longest_us for us, start in zip(found, begun, strict=True))
    again = {start: max(us + gap for us, s in zip(found, begun, strict=True) if s == start) for start in begun}
    assert of.session_starts(sorted(again.items())) == sorted(again), "what is merged stays as it is"


@given(
    st.lists(st.none() | st.integers(-200, 200) | st.integers(-(2**63), 2**63 - 1), max_size=9),
    st.none() | st.integers(-300, 300),
    st.integers(1, 50),
)
@settings(max_examples=examples(200))
def test_columns_are_late_as_numbers_are(numbers: list[int | None], watermark: int | None, gap: int) -> None:
    column = pa.array([*numbers, FIRST_US, LAST_US], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    found = late_session_times(gap, column, WindowTimes(watermark, None)).to_pylist()
    of = Sessions(gap, gap)
    assert found == [of.is_late(us, watermark) for us in (*numbers, FIRST_US, LAST_US)]
