"""The figures: series, means, durations; what is not known is a dash and never a zero."""

from __future__ import annotations

import pytest

from tests.unit.operations.console.stores import Past
from transactional.model.drawing.formats import format_count, format_duration, format_short_count, format_time_of_day
from transactional.operations.console.data import figures


def test_a_series_has_all_that_was_committed() -> None:
    past = Past().begin().committed(200).retried()
    series = figures.series_of(past.store.times("words", limit=300))
    assert series is not None
    assert sum(slot.transactions for slot in series.slots) == 201
    assert sum(rate * series.slot_ms / 1_000 for rate in series.rates) == pytest.approx(201 * 200)
    assert set(series.spent("processing")) <= {0.0, 120.0}
    assert figures.series_of(past.store.times("words", limit=2)) is None


def test_tuples_by_edge_are_means_of_what_was_recorded() -> None:
    past = Past().begin().committed()
    for number in (10, 20):
        past.commit(past.issue(), {"edges": [["a", "default", "b", number]]})
    assert figures.tuples_by_edge(past.store.times("words", limit=9)) == {("a", "default", "b"): 15}


@pytest.mark.parametrize(
    ("ms", "words"),
    [
        (None, "\u2013"),
        (0, "0 ms"),
        (999, "999 ms"),
        (4_210, "4.21 s"),
        (190_000, "3 min 10 s"),
        (7_500_000, "2 h 5 min"),
        (9 * 86_400_000, "9 d"),
    ],
)
def test_durations_are_short(ms: int | None, words: str) -> None:
    assert format_duration(ms) == words


def test_numbers_are_short() -> None:
    assert [format_short_count(each) for each in (None, 0, 0.251, 9, 9_999, 12_345, 1.9e6, 2.25e9)] == [
        "\u2013",
        "0",
        "0.25",
        "9",
        "9,999",
        "12.3k",
        "1.9M",
        "2.25G",
    ]


def test_times_beyond_the_calendar_are_shown_as_something() -> None:
    assert format_time_of_day(2**62).startswith("00:00:00")


def test_whole_numbers_are_exact_however_large() -> None:
    assert format_count(2**53 + 1) == "9,007,199,254,740,993"
    assert len(format_count(10**400)) == 401 + 133
    assert format_count(1234.4) == "1,234"
