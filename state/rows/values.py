"""How one stored value handles a transaction, a replay, a rollback and a reader: the opaque rule, as pure functions.

A value is kept with what it was before its last transaction. A replay of that transaction starts again from there,
because it may be a different batch (seed 004, "What if you can't emit the same batch"; Storm row R24). What a table
makes of a replay with the same tuples, which is already counted, its fence decides. `state.rows.seen` states the rule
of columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Context, Decimal, Inexact
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc

from transactional.core.ports import COMBINES, unknown_combine_error
from transactional.model.absent import ABSENT
from transactional.model.attempt import TxId
from transactional.model.errors import StoreMismatch

_EXACT: Final = Context(prec=100, traps=[Inexact])
"""Columns have at most 38 digits; the thread's own context would round to 28."""


@dataclass(frozen=True, slots=True)
class StoredValue:
    """A value, the transaction that wrote it, and the same for the previous value. Storm calls it `OpaqueValue`.

    A value that is `ABSENT` is a tombstone: transaction `txid` has deleted the key, and the next one that writes the
    table removes the row. A previous value never is one. `prev_txid` None: before transaction `txid` the key did not
    exist, and `prev_value` has no meaning.
    """

    value: Any
    prev_value: Any
    txid: TxId
    prev_txid: TxId | None

    @classmethod
    def first(cls, txid: TxId, value: Any) -> Self:
        """The value of a key that did not exist before transaction `txid`."""
        return cls(value, None, txid, None)

    def before(self, txid: TxId) -> Any:
        """The value before transaction `txid`, `ABSENT` if the key did not exist then.

        Raises `StoreMismatch` for a transaction before the one that wrote the value: its state that far back is
        unknown.
        """
        if txid < self.txid:
            raise StoreMismatch(
                f"transaction {txid} arrived for a value that transaction {self.txid} has written: store and table "
                "do not belong together; restore whichever is too old"
            )
        return self.value if txid > self.txid else self._previous()

    def visible_at(self, committed_txid: TxId) -> Any:
        """The value for a reader that must not see anything after transaction `committed_txid`; may be `ABSENT`."""
        return self.value if self.txid <= committed_txid else self._previous()

    def roll_back(self, txid: TxId) -> Self | None:
        """What remains if transaction `txid` is undone; None: the key is removed.

        For another transaction nothing is undone, but a tombstone of an earlier one is removed. Only one step back is
        known: so afterwards the value is its own previous one.
        """
        if self.txid != txid:
            return None if self.value is ABSENT else self
        if self.prev_txid is None:
            return None
        return replace(self, value=self.prev_value, txid=self.prev_txid)

    def _previous(self) -> Any:
        return ABSENT if self.prev_txid is None else self.prev_value

    def apply(self, txid: TxId, update: Callable[[Any], Any]) -> Self | None:
        """`update(value before txid)`, whether or not transaction `txid` has already written the value. An update to
        `ABSENT` deletes the key; None: no row is left."""
        before = self.before(txid)
        value = update(before)
        if value is ABSENT and before is ABSENT:
            return None
        if txid == self.txid:
            return replace(self, value=value)
        return self.first(txid, value) if self.value is ABSENT else type(self)(value, self.value, txid, self.txid)


OpaqueValue = StoredValue


def combined_columns(how: str, stored: pa.ChunkedArray, partial: pa.ChunkedArray) -> pa.ChunkedArray:
    """Combine, row by row, partial aggregates with the stored values, both of one type; `how` is one of `COMBINES`.

    NULL counts as nothing, except for `last`, where it is a value like any other. NaN is greater than every number.
    Raises `ArrowInvalid` where a sum of integers or decimals does not fit the type, `ProtocolError` for another word.
    """
    match how:
        case "last":
            return partial
        case "sum":
            added = _added(stored, partial)
            return pc.coalesce(added, partial, stored) if added.null_count else added
        case "min" | "max":
            is_better = (pc.less if how == "min" else pc.greater)(partial, stored)
            if pa.types.is_floating(partial.type):
                # For Arrow NaN is neither less nor greater.
                is_better = pc.or_(is_better, pc.is_nan(stored if how == "min" else partial))
            # NULL where one of them is: then the other one counts.
            return pc.coalesce(pc.if_else(is_better, partial, stored), partial, stored)
    raise unknown_combine_error(how)


def _added(stored: pa.ChunkedArray, partial: pa.ChunkedArray) -> pa.ChunkedArray:
    type_ = partial.type
    if pa.types.is_decimal(type_) and type_.precision == pa.decimal128(38).precision:
        wide = pa.decimal256(type_.precision + 1, type_.scale)
        stored, partial = stored.cast(wide), partial.cast(wide)
    return pc.add_checked(stored, partial).cast(type_)


def combined(how: str, stored: Any, partial: Any) -> Any:
    """As `combined_columns`, of one value, which may be `ABSENT`. Sums of integers and decimals are exact, whatever a
    column can hold."""
    if how not in COMBINES:
        raise unknown_combine_error(how)
    if how == "last" or stored is ABSENT or stored is None:
        return partial
    if partial is None:
        return stored
    if how == "sum":
        return _EXACT.add(stored, partial) if isinstance(stored, Decimal) else stored + partial
    # NaN, the one value that is not itself, is greater than all others: so the order of partial values does not matter.
    is_greater = partial != partial or (stored == stored and partial > stored)
    return partial if is_greater is (how == "max") else stored


def combined_values(how: Sequence[str], stored: Any, partials: Sequence[Any]) -> tuple[Any, ...]:
    """As `combined`, for a row of values: `stored` is a tuple, or `ABSENT`."""
    values = (ABSENT,) * len(partials) if stored is ABSENT else stored
    return tuple(map(combined, how, values, partials))
