"""The opaque rule for columns: the rows of a table as of a transaction, written once for Arrow and for SQL.

A table stores each value with its previous one. `ColumnsAsOf` chooses between the two for every row at once, in the
terms of whoever calls it: `Terms` are Arrow arrays (`ArrowTerms`), SQL text in `state.delta.tables.sql`, and
SQLAlchemy's expressions in `state.sql.table`. `state.rows.stored_value` states the rule for single values; a test
compares the two. `combine_columns` combines values in Arrow with new partial aggregates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from state.rows.columns import StateColumns
from transactional.core.ports import unknown_combine_error
from transactional.model.attempt import TxId

T = TypeVar("T")


class Terms(Protocol[T]):
    """The language that the rule is written in: the columns of a table, conditions on them, and a choice."""

    def column(self, name: str) -> T:
        """Return the column with this name."""

    def is_below(self, name: str, txid: int) -> T:
        """Return a condition: the transaction in this column is before `txid`."""

    def is_there(self, name: str) -> T:
        """Return a condition: the column is not NULL."""

    def is_unset(self, name: str) -> T:
        """Return a condition: the column is false or NULL."""

    def either(self, first: T, second: T) -> T:
        """Return a condition: at least one of two conditions is true."""

    def choose(self, condition: T, chosen: T, otherwise: T) -> T:
        """Return `chosen` where the condition is true, else `otherwise`."""


@dataclass(frozen=True, slots=True)
class ArrowTerms:
    """The columns of rows in Arrow."""

    rows: pa.Table

    def column(self, name: str) -> Any:
        return self.rows[name]

    def is_below(self, name: str, txid: int) -> Any:
        return pc.fill_null(pc.less(self.rows[name], int(txid)), fill_value=False)

    def is_there(self, name: str) -> Any:
        return pc.is_valid(self.rows[name])

    def is_unset(self, name: str) -> Any:
        return pc.invert(pc.fill_null(self.rows[name], fill_value=False))

    def either(self, first: Any, second: Any) -> Any:
        return pc.or_(first, second)

    def choose(self, condition: Any, chosen: Any, otherwise: Any) -> Any:
        return pc.if_else(condition, chosen, otherwise)


@dataclass(frozen=True, slots=True)
class ColumnsAsOf(Generic[T]):
    """The columns of a table as they were before a transaction, or, where `is_older` is None, as they are.

    `is_older` is a condition: the row was last written before the transaction.
    """

    columns: StateColumns
    terms: Terms[T]
    is_older: T | None

    @classmethod
    def before_transaction(cls, columns: StateColumns, txid: TxId | None, terms: Terms[T]) -> Self:
        """Return the columns before transaction `txid`; None: as they are."""
        return cls(columns, terms, None if txid is None else terms.is_below(columns.txid, txid))

    def value_column(self, name: str) -> T:
        """Return the value column `name` as of the transaction."""
        return self._choose(name, self.columns.prev[name])

    @property
    def txid(self) -> T:
        """The transaction that wrote a row."""
        return self._choose(self.columns.txid, self.columns.prev_txid)

    def _choose(self, newest: str, previous: str) -> T:
        terms = self.terms
        if self.is_older is None:
            return terms.column(newest)
        return terms.choose(self.is_older, terms.column(newest), terms.column(previous))

    @property
    def row_filter(self) -> T | None:
        """A condition that is true for rows that existed before the transaction. None: all rows did."""
        terms, columns = self.terms, self.columns
        is_alive = terms.is_unset(columns.deleted) if columns.deletes else None
        if self.is_older is None:
            return is_alive
        was_there = terms.is_there(columns.prev_txid)
        if is_alive is None:
            return terms.either(self.is_older, was_there)
        return terms.choose(self.is_older, is_alive, was_there)


def combine_columns(combine: str, stored: pa.ChunkedArray, partial: pa.ChunkedArray) -> pa.ChunkedArray:
    """Combine, row by row, partial aggregates with the stored values, both of one type; `combine` is one of `COMBINES`.

    NULL counts as nothing, except for `last`, where it is a value like any other. NaN is greater than every number.
    Raises `ArrowInvalid` where a sum of integers or decimals does not fit the type, `ProtocolError` for another word.
    """
    match combine:
        case "last":
            return partial
        case "sum":
            sums = _add(stored, partial)
            return pc.coalesce(sums, partial, stored) if sums.null_count else sums
        case "min" | "max":
            is_better = (pc.less if combine == "min" else pc.greater)(partial, stored)
            if pa.types.is_floating(partial.type):
                # For Arrow NaN is neither less nor greater.
                is_better = pc.or_(is_better, pc.is_nan(stored if combine == "min" else partial))
            # NULL where one of them is: then the other one counts.
            return pc.coalesce(pc.if_else(is_better, partial, stored), partial, stored)
    raise unknown_combine_error(combine)


def _add(stored: pa.ChunkedArray, partial: pa.ChunkedArray) -> pa.ChunkedArray:
    type_ = partial.type
    if pa.types.is_decimal(type_) and type_.precision == pa.decimal128(38).precision:
        wide = pa.decimal256(type_.precision + 1, type_.scale)
        stored, partial = stored.cast(wide), partial.cast(wide)
    return pc.add_checked(stored, partial).cast(type_)
