"""The opaque rule for one stored value: what a transaction, a replay, a rollback and a reader make of it.

A value is stored together with the value before its last transaction. A replay of that transaction starts again from
there, because it may be a different batch (seed 004, "What if you can't emit the same batch"; Storm row R24). A replay
with the same tuples, which is already counted, is decided by the table's fence. `opaque_rule` applies this to the rows
of a table in Python, `opaque_columns` to columns in Arrow and SQL. Everything here is pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

from transactional.model.absent import ABSENT
from transactional.model.attempt import TxId
from transactional.model.errors import StoreMismatch


@dataclass(frozen=True, slots=True)
class StoredValue:
    """A value, the transaction that wrote it, and the same for the previous value. Storm calls it `OpaqueValue`.

    A value that is `ABSENT` is a tombstone: transaction `txid` has deleted the key, and the next transaction that
    writes the table removes the row. A previous value is never a tombstone. With `prev_txid` None the key did not exist
    before transaction `txid`, and `prev_value` has no meaning.
    """

    value: Any
    prev_value: Any
    txid: TxId
    prev_txid: TxId | None

    @classmethod
    def first(cls, txid: TxId, value: Any) -> Self:
        """Return the value of a key that did not exist before transaction `txid`."""
        return cls(value, None, txid, None)

    def value_before(self, txid: TxId) -> Any:
        """Return the value before transaction `txid`, `ABSENT` if the key did not exist then.

        Raises `StoreMismatch` for a transaction before the one that wrote the value, which is not stored.
        """
        if txid < self.txid:
            raise StoreMismatch(
                f"transaction {txid} arrived for a value that transaction {self.txid} has written: store and table "
                "do not belong together; restore whichever is too old"
            )
        return self.value if txid > self.txid else self._previous_value()

    def value_for_reader(self, committed_txid: TxId) -> Any:
        """Return the value for a reader of transaction `committed_txid`, who sees nothing later; it may be `ABSENT`."""
        return self.value if self.txid <= committed_txid else self._previous_value()

    def roll_back(self, txid: TxId) -> Self | None:
        """Return the value as it was before transaction `txid`, None if the key is removed.

        Another transaction is not undone, but a tombstone that it has left is removed. Only one previous value is
        stored: so afterwards the value is its own previous value.
        """
        if self.txid != txid:
            return None if self.value is ABSENT else self
        if self.prev_txid is None:
            return None
        return replace(self, value=self.prev_value, txid=self.prev_txid)

    def _previous_value(self) -> Any:
        return ABSENT if self.prev_txid is None else self.prev_value

    def apply(self, txid: TxId, update: Callable[[Any], Any]) -> Self | None:
        """Return `update(value before txid)`, whether or not transaction `txid` has already written the value. An
        update to `ABSENT` deletes the key. None: there is no row before or after."""
        previous_value = self.value_before(txid)
        new_value = update(previous_value)
        if new_value is ABSENT and previous_value is ABSENT:
            return None
        if txid == self.txid:
            return replace(self, value=new_value)
        if self.value is ABSENT:
            return self.first(txid, new_value)
        return type(self)(new_value, self.value, txid, self.txid)


OpaqueValue = StoredValue
