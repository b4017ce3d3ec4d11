"""The rules of windows of time, against what they mean: every window of a time, written out."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from transactional.core.machine.window_assignment import FIRST_US, LAST_US, Range, Windows, WindowTimes, times_of
from transactional.model.facts import BatchFacts

MINUTE = 60_000_000
lengths = st.integers(1, 30)
moments = st.integers(-100, 100)


@st.composite
def windows(draw: st.DrawFn) -> Windows:
    length = draw(lengths)
    return Windows(length, draw(st.integers(1, length)))


def every_window(of: Windows, us: int) -> list[int]:
    """By trying all starts."""
    return [s for s in range(-300, 300) if s % of.every_us == 0 and s <= us < s + of.length_us]


@given(windows(), moments)
def test_the_last_window_of_a_time_ends_last(of: Windows, us: int) -> None:
    assert of.last_end_of(us) == max(every_window(of, us)) + of.length_us


@given(windows(), moments)
def test_a_pane_lies_in_each_window_as_a_whole(of: Windows, us: int) -> None:
    pane = of.pane_of(us)
    assert pane <= us < pane + of.pane_us
    for other in range(pane, pane + of.pane_us):
        assert every_window(of, other) == every_window(of, us)


@given(windows(), moments, moments)
def test_late_is_what_has_no_open_window_left(of: Windows, us: int, watermark: int) -> None:
    is_open = [start for start in every_window(of, us) if start + of.length_us > watermark]
    assert of.is_late(us, watermark) == (not is_open)
    assert not of.is_late(us, None)


@given(windows(), st.none() | moments, moments)
def test_each_window_closes_once_and_its_panes_are_read(of: Windows, previous: int | None, watermark: int) -> None:
    assume(previous is None or previous <= watermark)
    starts = [s for s in range(-400, 400) if s % of.every_us == 0]
    closing = [s for s in starts if (previous is None or s + of.length_us > previous) and s + of.length_us <= watermark]
    found = of.closing(previous, watermark)
    assert [s for s in starts if found is not None and within(found, s)] == closing
    panes = of.closing_panes(previous, watermark)
    assert (panes is None) == (found is None)
    if panes is not None:
        for start in closing:
            for pane in range(start, start + of.length_us, of.pane_us):
                assert within(panes, pane)
        if closing and previous is not None:
            assert panes == Range(closing[0] - 1, closing[-1] + of.length_us - of.pane_us)


def within(range_: Range, number: int) -> bool:
    return (range_.after is None or range_.after < number) and number <= range_.until


@given(windows(), moments, st.integers(0, 60), moments)
def test_no_open_window_needs_what_is_below_the_horizon(of: Windows, watermark: int, more: int, us: int) -> None:
    """Neither a tuple that is not late, now or later, nor a window that closes later."""
    horizon = of.first_open(watermark) - 1
    if not of.is_late(us, watermark + more):
        assert of.pane_of(us) > horizon
    panes = of.closing_panes(watermark, watermark + more)
    assert panes is None or panes.after == horizon


@pytest.mark.parametrize("us", [None, FIRST_US - 1, LAST_US, -(2**63), 2**63 - 1])
def test_no_time_and_an_absurd_one_are_late(us: int | None) -> None:
    assert Windows(5 * MINUTE, MINUTE).is_late(us, None)


def test_nothing_closes_as_long_as_no_time_is_known() -> None:
    of = Windows(5, 5)
    assert of.closing(None, None) is None
    assert of.closing_panes(None, None) is None


def test_times_are_those_of_events_or_the_transactions_own() -> None:
    facts = BatchFacts(7, 5_000, 6, 4_000)
    assert times_of(facts, by_transaction=False) == WindowTimes(5_000, 4_000)
    assert times_of(facts, by_transaction=True) == WindowTimes(7_000, 6_000, 7_000)
    assert times_of(BatchFacts(7), by_transaction=True) == WindowTimes(7_000, None, 7_000)
    assert times_of(None, by_transaction=True) == WindowTimes(None, None)
