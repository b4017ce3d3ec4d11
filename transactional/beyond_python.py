"""Values that Arrow can represent and Python can't: times outside the years 1 to 9999.

A tuple with such a value is passed to bolts like any other; reading the value is an error of that tuple.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from transactional.bolts import Tuple
from transactional.errors import SchemaMismatch


@dataclass(frozen=True, slots=True)
class BeyondPython:
    """Such a value: its Arrow type, and its number, or its text if it is nested."""

    type: str
    text: str


class PartlyReadable(Tuple):
    """A tuple with values that Python can't represent: `BeyondPython` stands for them, and no bolt ever gets one."""

    __slots__ = ()

    @property
    def values(self) -> tuple[Any, ...]:
        """All values. Raises `SchemaMismatch` for the first one that Python can't represent."""
        return tuple(self)

    def __getitem__(self, field: Any) -> Any:
        if isinstance(field, slice):
            return tuple(map(self._readable, self._held()[field], self.fields[field]))
        found = super().__getitem__(field)
        return self._readable(found, self.fields[field]) if isinstance(found, BeyondPython) else found

    def __iter__(self) -> Iterator[Any]:
        return map(self._readable, super().__iter__(), self.fields)

    def __add__(self, other: Any) -> Any:
        return self.values + other

    def __radd__(self, other: Any) -> Any:
        return other + self.values

    def _readable(self, value: Any, field: str) -> Any:
        if isinstance(value, BeyondPython):
            raise SchemaMismatch(
                f"the field {field!r} of a tuple of {self.source!r} is {value.text} ({value.type}), "
                "which Python can't represent: its years are 1 to 9999; a bolt on Arrow batches can process it"
            )
        return value

    @classmethod
    def _value_at(cls, place: int) -> Any:
        return property(lambda self: self._readable(self._held()[place], self.fields[place]))


def known_values(row: Tuple) -> tuple[Any, ...]:
    """The values of a tuple, with placeholders for those that Python can't represent."""
    return row._held()
