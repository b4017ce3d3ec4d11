"""Values that Arrow holds and Python does not: times outside of the years 1 to 9999.

A tuple with one is given to bolts like any other; it is an error of that tuple to ask for the value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from transactional.bolts import Tuple
from transactional.errors import SchemaMismatch


@dataclass(frozen=True, slots=True)
class BeyondPython:
    """Such a value: its Arrow type, and its number, or its text where it is nested."""

    type: str
    text: str


class PartlyReadable(Tuple):
    """A tuple some of whose values Python does not hold; they are among the `known` ones."""

    __slots__ = ("known",)
    known: tuple[Any, ...]

    def __init__(self, fields: tuple[str, ...], known: tuple[Any, ...], source: str, stream: str) -> None:
        for name, value in {"fields": fields, "known": known, "source": source, "stream": stream}.items():
            object.__setattr__(self, name, value)

    @property
    def values(self) -> tuple[Any, ...]:
        """All values. Raises `SchemaMismatch` for the first that can't be had."""
        return tuple(self[number] for number in range(len(self.fields)))

    def __getitem__(self, field: str | int) -> Any:
        number = self.fields.index(field) if field in self.fields else field
        if not isinstance(number, int):
            return super().__getitem__(field)
        value = self.known[number]
        if isinstance(value, BeyondPython):
            raise SchemaMismatch(
                f"the field {self.fields[number]!r} of a tuple of {self.source!r} is {value.text} ({value.type}), "
                "which Python does not hold: it has the years 1 to 9999; a bolt that works on Arrow batches can take it"
            )
        return value

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __len__(self) -> int:
        return len(self.fields)


def known_values(row: Tuple) -> tuple[Any, ...]:
    """The values of a tuple, with what stands for those that can't be had."""
    return row.known if isinstance(row, PartlyReadable) else row.values
