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
        both = enumerate(zip(values, combine, strict=True))
        self.columns = [(n, field) for n, (field, how) in both if can_overflow(how, field.type)]
        """The value columns that can overflow, with their positions."""

    def check(self, key: tuple[Any, ...], stored: Any, partials: Sequence[Any], totals: Sequence[Any]) -> None:
        """Raise `SumOverflow` when one of the totals does not fit its column. `stored` is a row, or anything else."""
        for number, field in self.columns:
            if not fits_type(totals[number], field.type):
                before = stored[number] if isinstance(stored, tuple) else None
                shown = partials[number] if before is None else f"{before} (stored) + {partials[number]}"
                raise make_overflow_error(self.state, field, key, f"{shown} = {totals[number]}")


class SumBounds:
    """For each sum column an upper bound of every key's total, in either direction: enough to see, without reading a
    row, that a transaction can't overflow. It grows with each transaction; `measure` determines it again, by column."""

    def __init__(self, bounds: Mapping[str, int]) -> None:
        self._bounds = dict(bounds)

    def add(self, largest: Mapping[str, int]) -> None:
        """Add the partial aggregates of a transaction, by their largest values."""
        for name in self._bounds:
            self._bounds[name] += largest[name]

    def admit(self, largest: Mapping[str, int], columns: Iterable[Field]) -> bool:
        """Whether every sum fits, whichever keys the partial aggregates affect. False: it has to be checked."""
        limits = {field.name: (type_limits(field.type), field.type) for field in columns if field.name in self._bounds}
        return all(
            self._bounds[name] + largest[name] <= to_unscaled(limit[1], type_)
            for name, (limit, type_) in limits.items()
            if limit is not None
        )
