"""Rows as records: the values of all columns of a state, in the order of `StateColumns.all`.

For stores that keep their rows in such columns.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from state.rows.columns import StateColumns
from state.rows.stored_value import StoredValue
from transactional.model.absent import ABSENT
from transactional.model.user_code.tuples import Key


class Records:
    """Makes records of rows, and rows of records."""

    def __init__(self, columns: StateColumns) -> None:
        self._width, self._until = len(columns.key), len(columns.key) + len(columns.values)
        self._marks = int(columns.deletes)
        self._blank = (None,) * len(columns.values)

    def record(self, key: Key, row: StoredValue) -> tuple[Any, ...]:
        """The record of a row."""
        is_deleted = row.value is ABSENT
        values = self._blank if is_deleted else row.value
        return (*key, *values, row.txid, row.prev_txid, *(is_deleted,) * self._marks, *(row.prev_value or self._blank))

    def rows(self, records: Iterable[tuple[Any, ...]]) -> dict[Key, StoredValue]:
        """The rows of some records, by key."""
        width, until, end = self._width, self._until, self._until + 2 + self._marks
        return {
            each[:width]: StoredValue(
                ABSENT if any(each[until + 2 : end]) else each[width:until], each[end:], each[until], each[until + 1]
            )
            for each in records
        }
