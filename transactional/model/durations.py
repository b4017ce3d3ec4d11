"""Parses and formats durations as users write them: `"30 days"`, `"5 minutes"`, or a `timedelta`."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

from transactional.model.errors import ConfigError

Duration = str | timedelta
"""`"30 days"`, `"5 minutes"`, `"250 milliseconds"`, or a `timedelta`."""

_MICROSECONDS: Final = {
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_DURATION: Final = re.compile(rf"\s*(\d+)\s+({'|'.join(_MICROSECONDS)})s?\s*", re.ASCII)
_NUMBER: Final = re.compile(r"\b(\d{1,20}) us\b", re.ASCII)
_COUNT_WINDOW: Final = re.compile(
    r"(?<=\btuples of )(\d{1,20}) every (\d{1,20}) by(?= (?:event|transaction) time\b)", re.ASCII
)
_LONGEST_US: Final = 10_000 * 366 * _MICROSECONDS["day"]


def parse_microseconds(duration: Duration, option: str) -> int:
    """Return a duration in microseconds.

    Raises `ConfigError`, which begins with `option`, for another form, and for more than ten thousand years.
    """
    if isinstance(duration, timedelta):
        us = duration // timedelta(microseconds=1)
    else:
        match = _DURATION.fullmatch(str(duration))
        if match is None:
            units = ", ".join(f"{unit}s" for unit in _MICROSECONDS)
            raise ConfigError(
                f"{option} is {duration!r}; write a whole number and a unit, like '5 minutes'; units: {units}"
            )
        us = int(match[1]) * _MICROSECONDS[match[2]]
    if not 0 <= us <= _LONGEST_US:
        raise ConfigError(f"{option} is {duration!r}; it has to be between nothing and ten thousand years")
    return us


def duration_text(us: int) -> str:
    """Return a number of microseconds as users write it, such as `5 minutes`; a part of a millisecond as `5 us`."""
    units = ((unit, length) for unit, length in reversed(_MICROSECONDS.items()) if us and us % length == 0)
    unit, length = next(units, ("us", 1))
    number = us // length
    return f"{number} {unit}{'' if number == 1 or length == 1 else 's'}"


def windows_text(stored: str) -> str:
    """Return the stored windows of a component as text for people.

    They are stored in microseconds, so that a length is the same text however it was written. The stored text must
    stay as it is, because it is compared.
    """
    without_timed = _COUNT_WINDOW.sub(
        lambda match: f"{duration_text(int(match[1]))} every {duration_text(int(match[2]))} by", stored
    )
    return _NUMBER.sub(lambda match: duration_text(int(match[1])), without_timed).replace(", apart by ()", "")
