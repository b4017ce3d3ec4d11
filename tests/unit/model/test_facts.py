"""The facts of a batch: times that never go back, and what is late."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from transactional.core.machine.window_assignment import DAY_US, FIRST_US, LAST_US, Windows, times_of
from transactional.model.facts import BatchFacts, EventTime, LastSeen, compute_facts
from transactional.topology.streams.windows.time_columns import late_times

AT = EventTime("at", 2)
IDLE_MS = 10
AT_IDLE = EventTime("at", idle_after_ms=IDLE_MS)


def test_the_first_batch_is_planned_now() -> None:
    assert compute_facts(None, 5) == BatchFacts(5)


def test_time_goes_on_and_what_was_before_is_kept() -> None:
    assert compute_facts(BatchFacts(5, 700), 8) == BatchFacts(8, 700, 5, 700)


def test_time_never_goes_back() -> None:
    assert compute_facts(BatchFacts(5), 3).time_ms == 5


def test_what_is_late_follows_from_the_slowest_partition_and_its_delay() -> None:
    known = [(AT, LastSeen(9_000)), (EventTime("at", 1), LastSeen(7_500))]
    assert compute_facts(None, 5, known).watermark_us == 6_500
    assert compute_facts(None, 5, known[:1]).watermark_us == 7_000


def test_a_partition_that_appears_far_behind_makes_nothing_early_again() -> None:
    before = BatchFacts(5, 7_000)
    assert compute_facts(before, 6, [(AT, LastSeen(9_000)), (AT, LastSeen(3_000))]).watermark_us == 7_000
    assert compute_facts(before, 6).watermark_us == 7_000
    assert compute_facts(before, 6, [(AT, LastSeen(10_000))]).watermark_us == 8_000


def test_an_idle_partition_holds_nothing_up() -> None:
    slow, quick = (EventTime("at", idle_after_ms=10), LastSeen(3_000, 100)), (EventTime("at"), LastSeen(9_000, 0))
    assert compute_facts(None, 110, [slow, quick]).watermark_us == 3_000
    assert compute_facts(None, 111, [slow, quick]).watermark_us == 9_000


def test_if_all_are_idle_the_last_ones_to_be_so_count() -> None:
    slow, quick = (AT_IDLE, LastSeen(3_000, 100)), (AT_IDLE, LastSeen(9_000, 105))
    silent_us = (1_000 - 105 - IDLE_MS) * 1_000
    assert compute_facts(None, 1_000, [slow, quick]).watermark_us == 9_000 + silent_us


def test_in_silence_event_time_goes_on_by_the_clock_from_when_the_last_partition_is_let_go() -> None:
    before, found = BatchFacts(100), []
    for now_ms in (100 + IDLE_MS, 107 + IDLE_MS, 200, 201):
        before = compute_facts(before, now_ms, [(AT_IDLE, LastSeen(9_000, 100))])
        found.append(before.watermark_us)
    assert found == [9_000, 9_000, 9_000 + 7_000, 9_000 + (200 - 100 - IDLE_MS) * 1_000]


def test_a_partition_that_is_always_waited_for_stops_the_time_of_silence() -> None:
    known = [(AT_IDLE, LastSeen(9_000, 100)), (EventTime("at"), LastSeen(7_000, 0))]
    assert compute_facts(BatchFacts(5_000), 6_000, known).watermark_us == 7_000


def test_time_goes_on_if_transactions_take_longer_than_a_partition_may_be_silent() -> None:
    before, found = BatchFacts(0), []
    for number in range(1, 4):
        silent, read = LastSeen(1_000, 0), LastSeen(1_000_000 * number, before.time_ms)
        before = compute_facts(before, 60 * number, [(AT_IDLE, silent), (AT_IDLE, read)])
        found.append(before.watermark_us)
    assert found == [1_000, 2_000_000, 3_000_000]


def test_no_partition_is_idle_because_nothing_ran() -> None:
    slow, quick = (AT_IDLE, LastSeen(3_000, 95)), (AT_IDLE, LastSeen(9_000, 100))
    assert compute_facts(BatchFacts(100), 106, [slow, quick]).watermark_us == 3_000
    assert compute_facts(BatchFacts(100), 100_000, [slow, quick]).watermark_us == 3_000
    assert compute_facts(BatchFacts(106), 100_001, [slow, quick]).watermark_us == 9_000


def test_nothing_waits_for_a_time_from_which_no_difference_can_be_stored() -> None:
    found = compute_facts(BatchFacts(1), 2, [(EventTime("at", max_delay_ms=10), LastSeen(-(2**63), 1))])
    assert found.watermark_us == FIRST_US - 10_000
    times = times_of(found, by_transaction=False)
    column = pa.array([-(2**63), FIRST_US, None, LAST_US], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    longest = Windows(36_500 * DAY_US, 36_500 * DAY_US)
    assert late_times(longest, column, times).to_pylist() == [True, False, True, True]


def test_what_is_too_far_ahead_of_the_clock_does_not_count() -> None:
    assert EventTime("at", max_ahead_ms=5).latest_us(BatchFacts(10)) == 15_000


def test_what_no_window_has_makes_nothing_late_even_without_a_limit() -> None:
    assert EventTime("at", max_ahead_ms=None).latest_us(BatchFacts(10)) == LAST_US - 1
    assert EventTime("at", max_ahead_ms=5).latest_us(BatchFacts(LAST_US)) == LAST_US - 1


seen = st.builds(LastSeen, st.integers(0, 50_000), st.integers(0, 60))
times = st.builds(EventTime, st.just("at"), st.integers(0, 9), st.none() | st.integers(1, 20))


@given(st.lists(st.tuples(st.integers(0, 99), st.lists(st.tuples(times, seen), max_size=4)), min_size=1, max_size=8))
def test_neither_time_ever_goes_back_and_each_knows_the_one_before(
    steps: list[tuple[int, list[tuple[EventTime, LastSeen]]]],
) -> None:
    before = None
    for now_ms, known in steps:
        facts = compute_facts(before, now_ms, known)
        if before is not None:
            assert facts.time_ms >= before.time_ms
            assert before.watermark_us is None or (facts.watermark_us or 0) >= before.watermark_us
            assert (facts.previous_time_ms, facts.previous_watermark_us) == (before.time_ms, before.watermark_us)
        before = facts
