"""Sums of a stored value and a partial aggregate, exact or refused; `transactional.model.aggregates` has a batch's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from transactional.model.aggregates.sums import can_overflow, fits_type, make_overflow_error, to_unscaled, type_limits
from transactional.model.schema import Field, Schema


class SumCheck:
    """Separates the sums of a state that overflow from those that do not. `combine` is one word per value column."""

    def __init__(self, state: str, values: Schema, combine: Sequence[str]) -> None:
        self.state, self.combine = state, combine
        pairs = enumerate(zip(values, combine, strict=True))
        self.columns = [(number, field) for number, (field, word) in pairs if can_overflow(word, field.type)]
        """The value columns that can overflow, with their positions."""

    def check(self, key: tuple[Any, ...], stored: Any, partials: Sequence[Any], totals: Sequence[Any]) -> None:
        """Raise `SumOverflow` when one of the totals does not fit its column. `stored` is a row, or anything else."""
        for number, field in self.columns:
            if not fits_type(totals[number], field.type):
                stored_sum = stored[number] if isinstance(stored, tuple) else None
                terms = partials[number] if stored_sum is None else f"{stored_sum} (stored) + {partials[number]}"
                raise make_overflow_error(self.state, field, key, f"{terms} = {totals[number]}")


class SumBounds:
    """Upper bounds, by sum column, of the absolute total of every key. They show, without reading a row, that a
    transaction can't overflow. The bounds grow with each transaction."""

    def __init__(self, bounds: Mapping[str, int]) -> None:
        self._bounds = dict(bounds)

    def add(self, largest: Mapping[str, int]) -> None:
        """Add the partial aggregates of a transaction, by their largest values."""
        for name in self._bounds:
            self._bounds[name] += largest[name]

    def admit(self, largest: Mapping[str, int], columns: Iterable[Field]) -> bool:
        """Return whether every sum fits, whichever keys the partial aggregates affect. If not, rows must be checked."""
        limits = {field.name: type_limits(field.type) for field in columns if field.name in self._bounds}
        return all(
            self._bounds[name] + largest[name] <= to_unscaled(limit[1])
            for name, limit in limits.items()
            if limit is not None
        )
