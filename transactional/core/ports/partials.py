"""Partial aggregates, which tasks make and a state combines with what it has: their form, and the words for how."""

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
"""How a state can combine a partial aggregate with the stored value. For anything else its new value is computed before
it is merged, as `last`."""
STAGEABLE: Final = frozenset({"sum", "min", "max"})
"""How values are combined that may come from several tasks for one key, in any order."""


def can_combine_all(combine: Mapping[str, str]) -> bool:
    """Whether a state can combine the values of all columns itself."""
    return set(combine.values()) <= set(COMBINES)


def unknown_combine_error(how: str) -> ProtocolError:
    """The error for a word that is none of `COMBINES`."""
    return ProtocolError(f"a state combines values by {', '.join(COMBINES)}; {how!r} is not known")


@dataclass(frozen=True, slots=True)
class Partials:
    """Partial aggregates of one batch: one row per key (keys are unique).

    `combine` says for each value column how it is combined with the stored value: one of `COMBINES`.
    `staged` are files with more of them, which tasks have written for this state; their keys may repeat.
    """

    combine: Mapping[str, str]
    table: pa.Table
    staged: Sequence[StagedFile] = ()


class Aggregator(Protocol):
    """Reduces record batches to one row per key. Associative and commutative, so it may be applied in steps."""

    @property
    def combine_kinds(self) -> Mapping[str, str]:
        """How the partial values of each value column are combined: one of `COMBINES`, or a word of its own."""

    @property
    def computed(self) -> ComputedColumns:
        """The columns that are computed of the stored ones when rows are read."""

    def partial(self, batches: Iterable[pa.RecordBatch]) -> pa.Table:
        """Input tuples → partial aggregates: key columns and value columns, one row per key. May raise for values that
        the state would refuse; it is then called again for one tuple at a time."""

    def combine(self, partials: Iterable[pa.Table]) -> pa.Table:
        """Partial aggregates → partial aggregates, one row per key."""
