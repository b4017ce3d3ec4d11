"""The event time of a stream, as a program declares it, and lengths of time. Every mistake raises `ConfigError`
here."""

from __future__ import annotations

from typing import Any

from transactional.model.durations import parse_microseconds
from transactional.model.errors import ConfigError
from transactional.model.facts import EventTime
from transactional.model.schema import Schema

DAY_US = 86_400_000_000
LONGEST_US = 36_500 * DAY_US
"""A hundred years. No table can hold the ends of longer windows."""


def event_time(
    used_by: str, fields: Schema, field: Any, max_delay: Any, idle_after: Any, max_ahead: Any = "1 hour"
) -> EventTime:
    """Return the event time of a stream with these fields. Raises a `ConfigError` that names `used_by`."""
    check_time(f"{used_by}: event_time", fields, field)
    return EventTime(
        field,
        duration_us(f"{used_by}: max_delay", max_delay, may_be_zero=True) // 1_000,
        None if idle_after is None else duration_us(f"{used_by}: idle_after", idle_after) // 1_000,
        None if max_ahead is None else duration_us(f"{used_by}: max_ahead", max_ahead, may_be_zero=True) // 1_000,
    )


def duration_us(argument: str, duration: Any, *, may_be_zero: bool = False) -> int:
    """Return a length of time in microseconds: whole milliseconds, up to a hundred years. Raises `ConfigError`."""
    us = parse_microseconds(duration, argument)
    if us % 1_000 or us > LONGEST_US or not (us or may_be_zero):
        least = "0 seconds" if may_be_zero else "1 millisecond"
        raise ConfigError(f"{argument} is {duration!r}; it has to be whole milliseconds, from {least} to 36,500 days")
    return us


def has_time(fields: Schema, field: Any) -> bool:
    """Return whether a field exists and is a timestamp."""
    return field in fields.names and fields[field].type == "timestamp"


def check_time(argument: str, fields: Schema, field: Any, *, of: str = "the stream") -> None:
    """Raise `ConfigError` unless a field is a timestamp."""
    if not isinstance(field, str):
        raise ConfigError(f"{argument} is the name of a field; got {field!r}")
    fields.require([field], of=of, used_by=argument)
    if (type_ := fields[field].type) != "timestamp":
        advice = ": declare it as one where it is read" if type_ in ("int", "long", "double", "string", "date") else ""
        raise ConfigError(f"{argument}: field {field!r} is a {type_}, and times are timestamps{advice}")
