"""The event time of a stream, as it is declared, and lengths of time: every mistake is reported here."""

from __future__ import annotations

from typing import Any

from transactional.model.durations import parse_microseconds
from transactional.model.errors import ConfigError
from transactional.model.facts import EventTime
from transactional.model.schema import Schema

DAY_US = 86_400_000_000
LONGEST_US = 36_500 * DAY_US
"""A hundred years: longer windows would have ends that no table can hold."""


def event_time(
    used_by: str, fields: Schema, field: Any, max_delay: Any, idle_after: Any, max_ahead: Any = "1 hour"
) -> EventTime:
    """The event time of a stream with these fields. Raises `ConfigError`, which names `used_by`."""
    check_time(f"{used_by}: event_time", fields, field)
    return EventTime(
        field,
        duration_us(f"{used_by}: max_delay", max_delay, may_be_nothing=True) // 1_000,
        None if idle_after is None else duration_us(f"{used_by}: idle_after", idle_after) // 1_000,
        None if max_ahead is None else duration_us(f"{used_by}: max_ahead", max_ahead, may_be_nothing=True) // 1_000,
    )


def duration_us(what: str, value: Any, *, may_be_nothing: bool = False) -> int:
    """A length of time in microseconds: whole milliseconds, up to a hundred years. Raises `ConfigError`."""
    us = parse_microseconds(value, what)
    if us % 1_000 or us > LONGEST_US or not (us or may_be_nothing):
        least = "0 seconds" if may_be_nothing else "1 millisecond"
        raise ConfigError(f"{what} is {value!r}; it has to be whole milliseconds, from {least} to 36,500 days")
    return us


def has_time(fields: Schema, field: Any) -> bool:
    """Whether a field is there, and a timestamp."""
    return field in fields.names and fields[field].type == "timestamp"


def check_time(what: str, fields: Schema, field: Any, *, of: str = "the stream") -> None:
    """Raise `ConfigError` unless a field is a timestamp."""
    if not isinstance(field, str):
        raise ConfigError(f"{what} is the name of a field; got {field!r}")
    fields.require([field], of=of, used_by=what)
    if (type_ := fields[field].type) != "timestamp":
        advice = ": declare it as one where it is read" if type_ in ("int", "long", "double", "string", "date") else ""
        raise ConfigError(f"{what}: field {field!r} is a {type_}, and times are timestamps{advice}")
