"""Converts rows to records, the values of all columns of a state in the order of `StateColumns.all`, and back.

For stores whose tables have these columns.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from state.rows.columns import StateColumns
from state.rows.stored_value import StoredValue
from transactional.model.absent import ABSENT
from transactional.model.user_code.tuples import Key


class Records:
    """Converts rows to records and back."""

    def __init__(self, columns: StateColumns) -> None:
        self._width, self._until = len(columns.key), len(columns.key) + len(columns.values)
        self._marks = int(columns.deletes)
        self._blank = (None,) * len(columns.values)

    def record(self, key: Key, row: StoredValue) -> tuple[Any, ...]:
        """Return the record of a row."""
        is_deleted = row.value is ABSENT
        values = self._blank if is_deleted else row.value
        return (*key, *values, row.txid, row.prev_txid, *(is_deleted,) * self._marks, *(row.prev_value or self._blank))

    def rows(self, records: Iterable[tuple[Any, ...]]) -> dict[Key, StoredValue]:
        """Return the rows of records, by key."""
        width, until, end = self._width, self._until, self._until + 2 + self._marks
        return {
            record[:width]: StoredValue(
                ABSENT if any(record[until + 2 : end]) else record[width:until],
                *(record[end:], record[until], record[until + 1]),
            )
            for record in records
        }
