"""Formats numbers, sizes, durations and times for pages and pictures; an unknown one is shown as a dash."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from transactional.model.plumbing.redaction import without_login

DASH: Final = "\u2013"
_DAY_MS: Final = 86_400_000


def format_count(number: float | None) -> str:
    """Format a whole number as `12,345`."""
    return DASH if number is None else f"{round(number):,}"  # `,.0f` would make a float of any whole number


def format_short_count(number: float | None) -> str:
    """Format a number briefly, as `12.3k`, for tiles and axes."""
    if number is None:
        return DASH
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(number) >= limit:
            return f"{number / (1e3 if unit == 'k' else limit):.3g}{unit}"
    return f"{number:.2g}" if 0 < abs(number) < 10 else f"{number:,.0f}"


def format_size(number: float | None) -> str:
    """Format the size of files in powers of 1,000, as `812 B` or `1.2 MB`."""
    if number is None:
        return DASH
    for limit, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(number) >= limit:
            return f"{number / limit:.3g} {unit}"
    return f"{number:,.0f} B"


def format_duration(ms: float | None) -> str:
    """Format a duration as `812 ms`, `4.2 s`, `3 min 10 s`, `2 h 5 min` or `3 d 4 h`.

    A negative duration, measured while a clock was set back, is shown as zero.
    """
    if ms is None:
        return DASH
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
            quotient, remainder = divmod(int(ms), unit)
            return f"{quotient} {name}" + (f" {remainder // smaller} {lesser}" if remainder // smaller else "")
    return DASH


def format_time_of_day(ms: int | None) -> str:
    """Format the time of day in UTC, as `17:03:59.120`."""
    return DASH if ms is None else _to_utc(ms).strftime("%H:%M:%S.") + f"{ms % 1000:03d}"


def format_date_time(ms: int | None) -> str:
    """Format date and time in UTC, as `2026-11-22 17:03:59`."""
    return DASH if ms is None else _to_utc(ms).strftime("%Y-%m-%d %H:%M:%S")


def format_iso(ms: int) -> str:
    """Format a time for the `datetime` attribute of HTML's `time` element."""
    return _to_utc(ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _to_utc(ms: int) -> datetime:
    try:
        return datetime.fromtimestamp(ms / 1000, UTC)
    except (OverflowError, OSError, ValueError):
        return datetime.fromtimestamp(0, UTC)


def first_line(text: str | None) -> str:
    """Return the first line of a text, such as an error."""
    return (text or "").strip().partition("\n")[0]


def redacted_text(value: Any) -> str:
    """Return a value from the store as text, without the user and password that a URL in it may have."""
    return DASH if value is None else without_login(str(value))
