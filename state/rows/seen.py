"""The opaque rule of columns: what the rows of a table were before a transaction. Stated once, for Arrow and for SQL.

Of single rows `state.rows.values` states it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

from state.rows.columns import StateColumns
from transactional.model.attempt import TxId

T = TypeVar("T")


class Terms(Protocol[T]):
    """What the rule is written in: the columns of a table, and what is said of them."""

    def column(self, name: str) -> T:
        """A column."""

    def is_below(self, name: str, txid: int) -> T:
        """Whether a transaction is an earlier one."""

    def is_there(self, name: str) -> T:
        """Whether a column is not NULL."""

    def is_unset(self, name: str) -> T:
        """Whether a column is not true: false or NULL."""

    def either(self, one: T, other: T) -> T:
        """Whether one of two holds."""

    def choose(self, condition: T, value: T, otherwise: T) -> T:
        """A value where a condition holds, else another one."""


@dataclass(frozen=True, slots=True)
class Seen(Generic[T]):
    """The rows of a table as they were before a transaction, or, where `is_older` is None, as they are."""

    columns: StateColumns
    terms: Terms[T]
    is_older: T | None
    """Which rows no later transaction has written."""

    @classmethod
    def before(cls, columns: StateColumns, txid: TxId | None, terms: Terms[T]) -> Self:
        """Before a transaction; None: as they are."""
        return cls(columns, terms, None if txid is None else terms.is_below(columns.txid, txid))

    def value(self, name: str) -> T:
        """A value column."""
        return self._chosen(name, self.columns.prev(name))

    @property
    def txid(self) -> T:
        """The transaction that wrote a row."""
        return self._chosen(self.columns.txid, self.columns.prev_txid)

    def _chosen(self, now: str, previous: str) -> T:
        terms = self.terms
        if self.is_older is None:
            return terms.column(now)
        return terms.choose(self.is_older, terms.column(now), terms.column(previous))

    @property
    def exists(self) -> T | None:
        """Which rows there were; None: all."""
        terms, columns = self.terms, self.columns
        alive = terms.is_unset(columns.deleted) if columns.deletes else None
        if self.is_older is None:
            return alive
        was_there = terms.is_there(columns.prev_txid)
        if alive is None:
            return terms.either(self.is_older, was_there)
        return terms.choose(self.is_older, alive, was_there)
