"""Durations as users write them: `"30 days"`, `"5 minutes"`, or a `timedelta`."""

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
_WRITTEN: Final = re.compile(rf"\s*(\d+)\s+({'|'.join(_MICROSECONDS)})s?\s*", re.ASCII)
_NUMBER: Final = re.compile(r"\b(\d{1,20}) us\b", re.ASCII)
_TIMED: Final = re.compile(
    r"(?<=\btuples of )(\d{1,20}) every (\d{1,20}) by(?= (?:event|transaction) time\b)", re.ASCII
)
_LONGEST_US: Final = 10_000 * 366 * _MICROSECONDS["day"]


def microseconds(duration: Duration, what: str) -> int:
    """A duration in microseconds. Raises `ConfigError`, which begins with `what`, for one that is no such duration or
    longer than time."""
    if isinstance(duration, timedelta):
        found = duration // timedelta(microseconds=1)
    else:
        written = _WRITTEN.fullmatch(str(duration))
        if written is None:
            units = ", ".join(f"{unit}s" for unit in _MICROSECONDS)
            raise ConfigError(
                f"{what} is {duration!r}; write a whole number and a unit, like '5 minutes'; units: {units}"
            )
        found = int(written[1]) * _MICROSECONDS[written[2]]
    if not 0 <= found <= _LONGEST_US:
        raise ConfigError(f"{what} is {duration!r}; it has to be between nothing and ten thousand years")
    return found


def in_words(us: int) -> str:
    """A number of microseconds as users write it: `5 minutes`; what is no whole number of milliseconds as `5 us`."""
    units = ((unit, length) for unit, length in reversed(_MICROSECONDS.items()) if us and us % length == 0)
    unit, length = next(units, ("us", 1))
    number = us // length
    return f"{number} {unit}{'' if number == 1 or length == 1 else 's'}"


def windows_in_words(stored: str) -> str:
    """The windows of a component for people. They are stored in microseconds, so that one length is one text however
    it was written; what is stored must stay as it is."""
    timed = _TIMED.sub(lambda found: f"{in_words(int(found[1]))} every {in_words(int(found[2]))} by", stored)
    return _NUMBER.sub(lambda found: in_words(int(found[1])), timed).replace(", apart by ()", "")
