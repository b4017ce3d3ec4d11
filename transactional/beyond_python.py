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
    """A tuple with values that Python can't represent; they are among the `known` ones."""

    __slots__ = ("known",)
    known: tuple[Any, ...]

    def __init__(self, fields: tuple[str, ...], known: tuple[Any, ...], source: str, stream: str) -> None:
        for name, value in {"fields": fields, "known": known, "source": source, "stream": stream}.items():
            object.__setattr__(self, name, value)

    @property
    def values(self) -> tuple[Any, ...]:
        """All values. Raises `SchemaMismatch` for the first one that Python can't represent."""
        return tuple(self[number] for number in range(len(self.fields)))

    def __getitem__(self, field: str | int) -> Any:
        number = self.fields.index(field) if field in self.fields else field
        if not isinstance(number, int):
            return super().__getitem__(field)
        value = self.known[number]
        if isinstance(value, BeyondPython):
            raise SchemaMismatch(
                f"the field {self.fields[number]!r} of a tuple of {self.source!r} is {value.text} ({value.type}), "
                "which Python can't represent: its years are 1 to 9999; a bolt on Arrow batches can process it"
            )
        return value

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __len__(self) -> int:
        return len(self.fields)


def known_values(row: Tuple) -> tuple[Any, ...]:
    """The values of a tuple, with placeholders for those that Python can't represent."""
    return row.known if isinstance(row, PartlyReadable) else row.values
