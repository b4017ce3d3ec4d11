"""What a transaction makes of rows: the opaque rule, roll-back, combination, expiry, deletes; for all stores of rows.

Pure, over Python values, which is what the drivers of databases give and take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from state.rows.columns import StateColumns
from state.rows.expiring import NO_HORIZONS, ExpiryHorizons, is_expired
from state.rows.sums import SumCheck
from state.rows.values import StoredValue, combined_values
from transactional.model.absent import ABSENT, Absent
from transactional.model.attempt import TxId
from transactional.model.user_code.tuples import Key

Rows: TypeAlias = Mapping[Key, StoredValue]
"""Each value is the tuple of the value columns."""


@dataclass(frozen=True, slots=True)
class RowRule:
    """What becomes of the rows of a table in transaction `txid`. `check` says how values are combined."""

    columns: StateColumns
    txid: TxId
    check: SumCheck
    horizons: ExpiryHorizons = NO_HORIZONS

    def after(self, stored: Rows, coming: Mapping[Key, Sequence[Any] | Absent]) -> dict[Key, StoredValue | None]:
        """Rows as they are after the transaction, None where there is none: those that come, each a partial value for
        each column, or `ABSENT`, which deletes the key; and those stored rows that do not come.

        Raises `SumOverflow`, and `StoreMismatch` for rows of a later transaction.
        """
        left = {key: self.left(key, row) for key, row in stored.items()}
        return left | {key: self.applied(key, left.get(key), partial) for key, partial in coming.items()}

    def left(self, key: Key, row: StoredValue) -> StoredValue | None:
        """A row without what an earlier attempt at this transaction has done; None if it has none: it was not there, is
        the tombstone of an earlier transaction, or had expired for the transaction before."""
        before = row.roll_back(self.txid)
        if before is None or self.columns.expires is None:
            return before
        return None if self.has_expired(key, before.value, self.horizons.previous) else before

    def applied(self, key: Key, left: StoredValue | None, partial: Sequence[Any] | Absent) -> StoredValue | None:
        """A row with what the transaction brings."""

        def update(before: Any) -> Any:
            if partial is ABSENT:
                return ABSENT
            if self.columns.expires is not None and self.has_expired(key, before, self.horizons.current):
                before = ABSENT
            values = combined_values(self.check.combine, before, partial)
            if self.check.columns:
                self.check.check(key, before, partial, values)
            return values

        if left is not None:
            return left.apply(self.txid, update)
        values = update(ABSENT)
        return None if values is ABSENT else StoredValue.first(self.txid, values)

    def has_expired(self, key: Key, values: Any, horizon: int | None) -> bool:
        """Whether a row is at or below a horizon; a tombstone never is."""
        expires = self.columns.expires
        if horizon is None or expires is None or values is ABSENT:
            return False
        names = (*self.columns.key.names, *self.columns.values.names)
        return is_expired((*key, *values)[names.index(expires)], horizon)
