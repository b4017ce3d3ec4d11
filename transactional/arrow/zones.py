"""Times without a time zone, which nobody can place: what is said of them, and the check of a row that has some."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from transactional.errors import NaiveTime

HAS_NO_ZONE: Final = (
    "which has no time zone, so that nobody can say which instant it is: give it one, for example with "
    "datetime.now(UTC) or .replace(tzinfo=UTC)"
)


def check_zones(values: Sequence[Any], names: Sequence[str], *, component: str) -> None:
    """Raise `NaiveTime` for one of a row's values that is a time without a time zone."""
    for value, name in zip(values, names, strict=True):
        if isinstance(value, datetime) and value.tzinfo is None:
            raise NaiveTime(f"{component!r}: field {name!r} got {value!r}, {HAS_NO_ZONE}")
