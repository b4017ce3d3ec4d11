"""Refuses times without a time zone, or takes them for times in the zone that a topology names.

The zone is a property of the topology (`naive_times`) and holds while one of its tasks, commit steps or questions runs
in a thread: `naive_times_in` sets it around that, so that every place where user values become columns sees it. Nothing
is ever taken for the zone of the machine: a replay on another machine would differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo, available_timezones

import pyarrow as pa
import pyarrow.compute as pc

from transactional.model.errors import ConfigError, NaiveTime
from transactional.model.schema import did_you_mean

HAS_NO_ZONE: Final = (
    "which has no time zone, so that nobody can say which instant it is: give it one, for example with "
    'datetime.now(UTC) or .replace(tzinfo=UTC), or build the topology with naive_times="UTC" or another zone'
)

_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - a local time
_FIRST_US = (datetime.min - _EPOCH) // timedelta(microseconds=1)  # noqa: DTZ901
_LAST_US = (datetime.max - _EPOCH) // timedelta(microseconds=1)  # noqa: DTZ901

_ZONE: Final[ContextVar[str | None]] = ContextVar("naive_times", default=None)


@contextmanager
def naive_times_in(zone: str | None) -> Iterator[None]:
    """Take times without a zone for times in `zone` while the context is open, in this thread. None: refuse them."""
    token = _ZONE.set(zone)
    try:
        yield
    finally:
        _ZONE.reset(token)


def check_naive_times(topology: str, zone: str | None) -> None:
    """Raise `ConfigError` unless `zone` is None or the name of a time zone."""
    if zone is None:
        return
    if str(zone).lower() in ("local", "localtime"):
        raise ConfigError(
            f"topology {topology!r}: naive_times={zone!r} is refused: the local zone is another one on another "
            'machine, where a replay would differ; name it, for example "Europe/Berlin"'
        )
    try:
        ZoneInfo(zone)
    except (KeyError, ValueError, TypeError, OSError):
        hint = did_you_mean(str(zone), sorted(available_timezones()))
        raise ConfigError(
            f'topology {topology!r}: naive_times={zone!r} is no time zone; give "UTC" or a name such as '
            f'"Europe/Berlin"{hint}'
        ) from None


def zone_of_naive_times() -> str | None:
    """Return the zone that is assumed for times without one in this context, or None if they are refused."""
    return _ZONE.get()


def check_times(values: Iterable[Any], path: str) -> None:
    """Raise `NaiveTime` for a time without a zone, unless the topology names one for these."""
    if _ZONE.get() is None:
        for value in values:
            if isinstance(value, datetime) and value.tzinfo is None:
                raise NaiveTime(f"field {path!r} got {value!r}, {HAS_NO_ZONE}")


def with_zones(value: Any) -> Any:
    """Add the topology's time zone, if it names one, to all times without one, at any depth.

    A time's `fold` says which of two equal local times is meant, as everywhere in Python.
    """
    zone = _ZONE.get()
    return value if zone is None else _with_zone(value, ZoneInfo(zone))


def _with_zone(value: Any, zone: ZoneInfo) -> Any:
    if isinstance(value, datetime):
        # In UTC: Python never finds a local time that exists twice, or not at all, equal to one in another zone.
        return value.replace(tzinfo=zone).astimezone(UTC) if value.tzinfo is None else value
    if isinstance(value, Mapping):
        return {_with_zone(key, zone): _with_zone(item, zone) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(_with_zone(item, zone) for item in value)
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | bytearray | memoryview):
        return [_with_zone(item, zone) for item in value]
    return value


def key_with_zones(values: tuple[Any, ...], names: Sequence[str], *, component: str) -> tuple[Any, ...]:
    """Return a key whose times all have a zone, so that equal keys are one key. Raises `NaiveTime`."""
    for value, name in zip(values, names, strict=True):
        try:
            check_times((value,), name)
        except NaiveTime as error:
            raise NaiveTime(f"{component!r}: {error}") from None
    return with_zones(values)  # type: ignore[no-any-return]


def has_times(type_: pa.DataType) -> bool:
    """True if values of this type are times, or contain some."""
    return pa.types.is_timestamp(type_) or any(has_times(type_.field(i).type) for i in range(type_.num_fields))


def has_naive_times(type_: pa.DataType) -> bool:
    """True if the type is one of times without a zone, or contains one."""
    if pa.types.is_timestamp(type_):
        return type_.tz is None
    return any(has_naive_times(type_.field(i).type) for i in range(type_.num_fields))


def column_with_zone(times: pa.Array | pa.ChunkedArray, name: str) -> pa.Array | pa.ChunkedArray:
    """Convert a column of times without a zone, taken for times in the zone `name`, to instants.

    Columns have no `fold`, which counts as 0. The offsets are Python's, because those of Arrow ignore
    daylight saving time after 2037.
    """
    zone = ZoneInfo(name)
    local_us = times.cast(pa.timestamp("us"), safe=False).cast(pa.int64()).to_pylist()
    offsets = pa.array([us if us is None else _offset_at(us, zone) for us in local_us], pa.duration("us"))
    moved = pc.subtract(times, offsets.cast(pa.duration(times.type.unit)))
    return moved.cast(pa.timestamp(times.type.unit, tz="UTC"))


def _offset_at(local_us: int, zone: ZoneInfo) -> timedelta | None:
    """Return the zone's offset at a local time, which may lie outside of Python's years."""
    local = _EPOCH + timedelta(microseconds=min(max(local_us, _FIRST_US), _LAST_US))
    return local.replace(tzinfo=zone).utcoffset()
