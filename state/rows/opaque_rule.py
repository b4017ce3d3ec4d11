"""The opaque rule for the rows of a table: rollback of a dead attempt, expiry, combination and deletion.

`OpaqueRule.apply` computes the rows after a transaction from the stored and the incoming ones. It first
takes each stored row back to before the transaction (see `StoredValue`), drops it if it had expired for the previous
transaction, and then combines what comes. All stores of rows use it: memory, SQL, Redis and users' own. It is pure, and
works on Python values, which is what the drivers of databases give and take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from state.rows.columns import StateColumns
from state.rows.combining import combine_row
from state.rows.expiring import NO_HORIZONS, ExpiryHorizons, is_expired
from state.rows.stored_value import StoredValue
from state.rows.sums import SumCheck
from transactional.model.absent import ABSENT, Absent
from transactional.model.attempt import TxId
from transactional.model.user_code.tuples import Key

Rows: TypeAlias = Mapping[Key, StoredValue]
"""Stored rows by key. Each value is the tuple of the value columns."""


@dataclass(frozen=True, slots=True)
class OpaqueRule:
    """The rule for transaction `txid` of a table with these columns. `check` says how values are combined."""

    columns: StateColumns
    txid: TxId
    check: SumCheck
    horizons: ExpiryHorizons = NO_HORIZONS

    def apply(self, stored: Rows, incoming: Mapping[Key, Sequence[Any] | Absent]) -> dict[Key, StoredValue | None]:
        """Return the stored and the incoming rows as they are after the transaction, None for a row that is removed.

        An incoming row is a partial value for each column, or `ABSENT`, which deletes the key. Raises `SumOverflow`,
        and `StoreMismatch` for stored rows of a later transaction.
        """
        rolled_back = {key: self.roll_back(key, row) for key, row in stored.items()}
        updated = {key: self.update(key, rolled_back.get(key), partial) for key, partial in incoming.items()}
        return rolled_back | updated

    def roll_back(self, key: Key, row: StoredValue) -> StoredValue | None:
        """Return a row without what an earlier attempt at this transaction has done. None if no row remains: it did not
        exist, is the tombstone of an earlier transaction, or had expired for the previous one."""
        earlier_row = row.roll_back(self.txid)
        if earlier_row is None or self.columns.expires is None:
            return earlier_row
        return None if self.has_expired(key, earlier_row.value, self.horizons.previous) else earlier_row

    def update(self, key: Key, rolled_back: StoredValue | None, partial: Sequence[Any] | Absent) -> StoredValue | None:
        """Return a row, as `roll_back` has left it, with an incoming partial value; None if there is no row."""

        def combine(values: Any) -> Any:
            if partial is ABSENT:
                return ABSENT
            if self.columns.expires is not None and self.has_expired(key, values, self.horizons.current):
                values = ABSENT
            combined = combine_row(self.check.combine, values, partial)
            if self.check.columns:
                self.check.check(key, values, partial, combined)
            return combined

        if rolled_back is not None:
            return rolled_back.apply(self.txid, combine)
        values = combine(ABSENT)
        return None if values is ABSENT else StoredValue.first(self.txid, values)

    def has_expired(self, key: Key, values: Any, horizon: int | None) -> bool:
        """Return whether a row's expiry is at or before a horizon; that of a tombstone never is."""
        expires = self.columns.expires
        if horizon is None or expires is None or values is ABSENT:
            return False
        names = (*self.columns.key.names, *self.columns.values.names)
        return is_expired((*key, *values)[names.index(expires)], horizon)
