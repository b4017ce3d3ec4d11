"""Durations as users write them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from transactional.durations import Duration, microseconds
from transactional.errors import ConfigError


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
    assert microseconds(written, "after=") == expected


@pytest.mark.parametrize("written", ["5", "minutes", "5min", "1.5 hours", "-1 day", "five days", "1 month", ""])
def test_anything_else_is_told(written: str) -> None:
    with pytest.raises(ConfigError, match=r"after= is .*whole number and a unit"):
        microseconds(written, "after=")


@pytest.mark.parametrize("written", [timedelta(-1), timedelta.max, "99999999999999999999 weeks"])
def test_nothing_takes_less_than_no_time_or_longer_than_time(written: Duration) -> None:
    with pytest.raises(ConfigError, match="ten thousand years"):
        microseconds(written, "after=")
