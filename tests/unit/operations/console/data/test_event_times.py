"""Event time on a page: as of the last commit of the present run; what is not known is a dash."""

from __future__ import annotations

from typing import Any

from tests.unit.operations.console.stores import START_MS, Past
from transactional.model.drawing.formats import DASH
from transactional.operations.console.data.event_times import OpenWindows, event_tiles, event_times_of
from transactional.operations.console.data.figures import series_of
from transactional.operations.console.data.tiles import attempts_of_run


def reached(newest_s: int | None, watermark_s: int | None, **opened: int | None) -> dict[str, Any]:
    """Seconds after the beginning."""
    times = (None if s is None else (START_MS + 1_000 * s) * 1_000 for s in (newest_s, watermark_s))
    newest, watermark = times
    return {"event_time": {"newest_us": newest, "watermark_us": watermark, "open": opened}, "lag": 0}


def committed(past: Past, *details: dict[str, Any]) -> Past:
    for each in details:
        past.commit(past.issue(), each)
    return past


def own_of(past: Past) -> Any:
    [status] = past.store.status("words")
    return attempts_of_run(past.store.times("words", limit=300), status.run)


def tiles(past: Past) -> dict[str, tuple[str, str]]:
    times = event_times_of(own_of(past))
    assert times is not None
    return {each.label: (each.value, each.note) for each in event_tiles(times, past.clock.wall_ms())}


def test_what_has_no_event_time_shows_none() -> None:
    assert event_times_of(own_of(Past().begin().committed(3))) is None
    assert event_times_of([]) is None


def test_the_watermark_its_lag_the_windows_and_what_was_late() -> None:
    past = Past().begin()
    committed(past, reached(5, None, minutes=None) | {"late": {"minutes": 2}}, reached(65, 35, minutes=3))
    past.clock.advance(99_590)
    assert tiles(past) == {
        "watermark": ("08:27:15", "1 min 5 s ago"),
        "newest event": ("08:27:45", "35 s ago"),
        "watermark lag": ("30 s", "behind the newest event"),
        "open windows": ("3", "of minutes"),
        "late tuples": ("2", "last 2 transactions"),
    }


def test_what_is_not_known_yet_is_a_dash() -> None:
    past = committed(Past().begin(), reached(None, None, visits=None))
    found = tiles(past)
    assert found["watermark"] == found["newest event"] == (DASH, "not known yet")
    assert found["watermark lag"] == (DASH, "not known yet")
    assert found["open windows"] == (DASH, "of sessions not known")


def test_several_windows_are_told_apart() -> None:
    past = committed(Past().begin(), reached(9, 1, minutes=2, visits=None) | {"late": {"visits": 7}})
    times = event_times_of(own_of(past))
    assert times is not None
    assert list(times.windows) == [OpenWindows("minutes", 2, 0), OpenWindows("visits", None, 7)]


def test_open_windows_have_their_last_end_and_what_they_wait_for() -> None:
    """As `transactional status` prints it."""
    details = reached(9, 1, minutes=2, rounds=1, closed=0)
    end_us = (START_MS + 60_000) * 1_000
    details["event_time"]["open_until"] = {"minutes": [None, end_us, False], "rounds": [1, end_us, True]}
    times = event_times_of(own_of(committed(Past().begin(), details)))
    assert times is not None
    assert list(times.windows) == [
        OpenWindows("minutes", 2, 0, START_MS + 60_000, "later events"),
        OpenWindows("rounds", 1, 0, START_MS + 60_000, "the clock"),
        OpenWindows("closed", 0, 0),
    ]


def test_late_tuples_are_those_of_the_present_run() -> None:
    past = committed(Past().begin(), reached(9, 1, minutes=2) | {"late": {"minutes": 5}}).taken_over()
    committed(past, reached(9, 1, minutes=2))
    assert tiles(past)["late tuples"] == ("0", "last 1 transactions")


def test_an_event_ahead_of_the_clock_is_in_the_future() -> None:
    past = committed(Past().begin(), reached(600, 540, minutes=2))
    assert tiles(past)["newest event"] == ("08:36:40", "in 9 min 59 s")


def test_the_lag_of_the_watermark_is_a_series() -> None:
    past = Past().begin()
    committed(past, *(reached(10 * number, 5 * number, minutes=1) for number in range(1, 6)))
    series = series_of(own_of(past))
    assert series is not None
    assert series.behind_s[-1] == 25
    assert max(series.behind_s) == 25
