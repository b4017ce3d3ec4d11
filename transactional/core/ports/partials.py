"""Partial aggregates, which tasks compute and a state combines with its stored values: their form, and how to combine.

The words of `COMBINES` are stored with the topology's progress, as they decide what a stored value means.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from transactional.core.ports.staged import StagedFile
from transactional.model.arrow.computed import ComputedColumns
from transactional.model.errors import ProtocolError

if TYPE_CHECKING:
    import pyarrow as pa

COMBINES: Final = ("sum", "min", "max", "last")
"""The ways in which a state can combine a partial aggregate with the stored value.

For any other aggregate the new value is computed first, and then merged as `last`.
"""
STAGEABLE: Final = frozenset({"sum", "min", "max"})
"""The ways that allow several partial values of one key, from several tasks, in any order."""


def can_combine_all(combine: Mapping[str, str]) -> bool:
    """Return whether a state can combine the values of all columns itself."""
    return set(combine.values()) <= set(COMBINES)


def unknown_combine_error(word: str) -> ProtocolError:
    """Return the error for a word that is none of `COMBINES`."""
    return ProtocolError(f"a state combines values by {', '.join(COMBINES)}; {word!r} is not known")


@dataclass(frozen=True, slots=True)
class Partials:
    """Partial aggregates of one batch: one row per key (keys are unique).

    `combine` has one of `COMBINES` for each value column. `staged` are files with further partial aggregates, which
    tasks have written for this state; their keys may repeat.
    """

    combine: Mapping[str, str]
    table: pa.Table
    staged: Sequence[StagedFile] = ()


class Aggregator(Protocol):
    """Reduces record batches to one row per key. Associative and commutative, so it may be applied in steps."""

    @property
    def combine_kinds(self) -> Mapping[str, str]:
        """The word for how partial values are combined, by value column: one of `COMBINES`, or one of its own."""

    @property
    def computed(self) -> ComputedColumns:
        """The columns that are computed of the stored ones when rows are read."""

    def partial(self, batches: Iterable[pa.RecordBatch]) -> pa.Table:
        """Reduce input tuples to partial aggregates: key and value columns, one row per key.

        May raise for values that the state would refuse; it is then called again for one tuple at a time.
        """

    def combine(self, partials: Iterable[pa.Table]) -> pa.Table:
        """Combine tables of partial aggregates to one, with one row per key."""
