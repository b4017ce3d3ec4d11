"""Rows that expire, computed again in plain Python from the tuples of each transaction and its recorded times.

`RecomputedRows` takes one transaction after the other, and drops a row when its expiry is at or before the horizon. It
uses no code of the states.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from verifier.evidence.store import CommittedBatch
from verifier.horizons import ExpiryRule, is_expired
from verifier.windows import Values, combine_values, initial_value


@dataclass(frozen=True, slots=True)
class KeyedTuple:
    """A tuple: its key, and the fields that are aggregated."""

    key: tuple[object, ...]
    fields: Mapping[str, object]


@dataclass(slots=True)
class RecomputedRows:
    """The rows of a table after any number of transactions.

    `key` names the columns of the key. `columns` has for each value column that can be computed again its aggregate and
    the aggregated field, which is None if it counts tuples.
    """

    key: tuple[str, ...]
    columns: Mapping[str, tuple[str, str | None]]
    expiry: ExpiryRule
    horizon: int | None = None
    rows_by_key: dict[tuple[object, ...], Values] = field(default_factory=dict)

    def commit(self, batch: CommittedBatch | None, tuples: Iterable[KeyedTuple]) -> None:
        """Take the next transaction: drop the rows that have expired for it, then add its tuples. A tuple of a dropped
        key begins a new row."""
        horizons = [self.horizon, None if batch is None else self.expiry.horizon(batch)]
        self.horizon = max((horizon for horizon in horizons if horizon is not None), default=None)
        self._drop_expired()
        for keyed_tuple in tuples:
            self._add(keyed_tuple)
        self._drop_expired()

    def rows(self) -> Mapping[tuple[object, ...], Values]:
        """Return the rows that a reader should see in the table."""
        return self.rows_by_key

    def _add(self, keyed_tuple: KeyedTuple) -> None:
        columns = self.columns.items()
        row = {name: initial_value(aggregate, source, keyed_tuple.fields) for name, (aggregate, source) in columns}
        if stored := self.rows_by_key.get(keyed_tuple.key):
            row = {name: combine_values(aggregate, stored[name], row[name]) for name, (aggregate, _) in columns}
        self.rows_by_key[keyed_tuple.key] = row

    def _drop_expired(self) -> None:
        self.rows_by_key = {
            key: values
            for key, values in self.rows_by_key.items()
            if not is_expired(self._expiry_of(key, values), self.horizon)
        }

    def _expiry_of(self, key: tuple[object, ...], values: Values) -> datetime | None:
        fields = {**dict(zip(self.key, key, strict=True)), **values}
        expiry: datetime | None = fields[self.expiry.column]
        return expiry
