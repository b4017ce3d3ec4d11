"""Numbers, durations and times as pages and pictures show them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from transactional.model.plumbing.redaction import without_login

NOTHING: Final = "\u2013"
_DAY_MS: Final = 86_400_000


def count(number: float | None) -> str:
    """`12,345`; a dash for what is not known."""
    return NOTHING if number is None else f"{round(number):,}"  # `,.0f` would make a float of any whole number


def short_count(number: float | None) -> str:
    """`12.3k`: for tiles and axes."""
    if number is None:
        return NOTHING
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(number) >= limit:
            return f"{number / (1e3 if unit == 'k' else limit):.3g}{unit}"
    return f"{number:.2g}" if 0 < abs(number) < 10 else f"{number:,.0f}"


def size(number: float | None) -> str:
    """`812 B`, `1.2 MB`: of files, in powers of 1,000."""
    if number is None:
        return NOTHING
    for limit, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(number) >= limit:
            return f"{number / limit:.3g} {unit}"
    return f"{number:,.0f} B"


def duration(ms: float | None) -> str:
    """`812 ms`, `4.2 s`, `3 min 10 s`, `2 h 5 min`, `3 d 4 h`. None is below zero, though a clock may have been set
    back meanwhile."""
    if ms is None:
        return NOTHING
    ms = max(0, ms)
    if ms < 1_000:
        return f"{ms:.0f} ms"
    if ms < 60_000:
        return f"{ms / 1_000:.3g} s"
    for unit, name, smaller, lesser in (
        (60_000, "min", 1_000, "s"),
        (3_600_000, "h", 60_000, "min"),
        (_DAY_MS, "d", 3_600_000, "h"),
    ):
        if ms < unit * (60 if name == "min" else 24 if name == "h" else 10**9):
            whole, rest = divmod(int(ms), unit)
            return f"{whole} {name}" + (f" {rest // smaller} {lesser}" if rest // smaller else "")
    return NOTHING


def clock(ms: int | None) -> str:
    """The time of day, UTC: `17:03:59.120`."""
    return NOTHING if ms is None else _utc(ms).strftime("%H:%M:%S.") + f"{ms % 1000:03d}"


def moment(ms: int | None) -> str:
    """Date and time, UTC: `2026-11-22 17:03:59`."""
    return NOTHING if ms is None else _utc(ms).strftime("%Y-%m-%d %H:%M:%S")


def iso(ms: int) -> str:
    """For machines, in the `datetime` of a `time` element."""
    return _utc(ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _utc(ms: int) -> datetime:
    try:
        return datetime.fromtimestamp(ms / 1000, UTC)
    except (OverflowError, OSError, ValueError):
        return datetime.fromtimestamp(0, UTC)


def first_line(text: str | None) -> str:
    """The first line of an error."""
    return (text or "").strip().partition("\n")[0]


def shown(value: Any) -> str:
    """A text from the store, without the user and password that a URL in it may have."""
    return NOTHING if value is None else without_login(str(value))
