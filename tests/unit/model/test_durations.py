"""Durations as users write them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from transactional.errors import ConfigError
from transactional.model.durations import Duration, duration_text, parse_microseconds, windows_text


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("1 second", 1_000_000),
        ("250 milliseconds", 250_000),
        (" 5  minutes ", 300_000_000),
        ("1 hour", 3_600_000_000),
        ("30 days", 2_592_000_000_000),
        ("2 weeks", 1_209_600_000_000),
        ("0 seconds", 0),
        (timedelta(minutes=5, microseconds=1), 300_000_001),
    ],
)
def test_a_duration_is_a_number_and_a_unit(written: Duration, expected: int) -> None:
    assert parse_microseconds(written, "after=") == expected


@pytest.mark.parametrize("written", ["5", "minutes", "5min", "1.5 hours", "-1 day", "five days", "1 month", ""])
def test_anything_else_is_told(written: str) -> None:
    with pytest.raises(ConfigError, match=r"after= is .*whole number and a unit"):
        parse_microseconds(written, "after=")


@pytest.mark.parametrize("written", [timedelta(-1), timedelta.max, "99999999999999999999 weeks"])
def test_nothing_takes_less_than_no_time_or_longer_than_time(written: Duration) -> None:
    with pytest.raises(ConfigError, match="ten thousand years"):
        parse_microseconds(written, "after=")


@pytest.mark.parametrize(
    ("us", "words"),
    [
        (250_000, "250 milliseconds"),
        (1_000_000, "1 second"),
        (90_000_000, "90 seconds"),
        (300_000_000, "5 minutes"),
        (43_200_000_000, "12 hours"),
        (5, "5 us"),
        (0, "0 us"),
    ],
)
def test_a_number_of_microseconds_is_shown_as_users_write_it(us: int, words: str) -> None:
    assert duration_text(us) == words
    assert us < 1_000 or parse_microseconds(words, "length") == us


def test_stored_windows_are_shown_in_units_and_not_in_microseconds() -> None:
    shown = {
        windows_text(stored)
        for stored in (
            "300000000 us every 60000000 us by event time",
            "sessions with gaps of 30000000 us, up to 43200000000 us, by event time",
            "tuples of 60000000 every 30000000 by transaction time, apart by ()",
            '"tuples of 60000000 every 60000000 by event time, apart by (page)"',
            "tuples of 100 every 10 by count, apart by (page)",
            "100 tuples every 10",
        )
    }
    assert shown == {
        "5 minutes every 1 minute by event time",
        "sessions with gaps of 30 seconds, up to 12 hours, by event time",
        "tuples of 1 minute every 30 seconds by transaction time",
        '"tuples of 1 minute every 1 minute by event time, apart by (page)"',
        "tuples of 100 every 10 by count, apart by (page)",
        "100 tuples every 10",
    }
