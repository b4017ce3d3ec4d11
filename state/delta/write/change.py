"""The rules of the layouts on columns: the rows that a transaction writes, from the stored rows and the new ones.

In the merge layout (`Change`) a row that a dead attempt of the same transaction has written starts again from its
previous values, even if the transaction has no new row for its key (row T60). `change_small` applies the rule to a
table that is written as a whole; `rewriting.py` applies it file by file. In the log layout the new rows are written as
they are (`segment_rows`). Nothing is read from or written to storage here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from state.fence import WriteRefused
from state.rows.columns import StateColumns
from state.rows.expiring import NO_HORIZONS, TIME, ExpiryHorizons, time_scalar
from state.rows.opaque_columns import ArrowTerms, ColumnsAsOf, combine_columns
from transactional.model.aggregates.key_matching import find_key_positions, find_unmatched_positions, take_rows
from transactional.model.attempt import TxId

REWRITTEN_ROWS_MAX: Final = 50_000
"""Largest number of rows, new ones included, of a table that is rewritten as a whole."""
REWRITTEN_BYTES_MAX: Final = 4 * 1024 * 1024
"""Largest size of the files of such a table."""
Places = tuple[pa.Array | None, pa.Array]
"""The position of each resulting row in the table (None: they are the table's rows, in order), and in the new rows."""


@dataclass(frozen=True, slots=True)
class Change:
    """The change of a table by one transaction. `rows` have key and value columns, one row per key, in one chunk."""

    columns: StateColumns
    txid: TxId
    rows: pa.Table
    combine: Mapping[str, str]
    horizons: ExpiryHorizons = NO_HORIZONS
    removes: bool = False
    """True to remove rows that had expired for the previous transaction, also in files without a new row's key."""

    def schema(self, names: Sequence[str]) -> pa.Schema:
        """Return the schema of columns of the table, in the given order."""
        types = self.columns.table_schema
        return pa.schema([types.field(name) for name in names])

    def applied(self, rows: pa.Table, in_source: pa.Array | None = None) -> pa.Table:
        """Return the given rows of the table after the transaction. Raises `WriteRefused` for sums that do not fit.

        Without `in_source` they are all rows of the table, and rows with new keys are returned as well. With it they
        are some of the rows, and `in_source` has the position of each in the new rows.
        """
        try:
            places = _places_of_all(rows, self.rows, self.columns.key.names) if in_source is None else (None, in_source)
            return _Rewriting(rows, self.rows, self.columns, self.txid, self.horizons, places).build(self.combine)
        except pa.ArrowException as error:
            raise WriteRefused(str(error), is_conflict=False) from error

    def new(self, matched: Sequence[pa.Array]) -> pa.Table:
        """Return the rows to insert: those whose place is not in `matched`, the places that rows of the table have."""
        columns, rows = self.columns, self.rows
        if len(places := pa.concat_arrays([*matched, pa.array([], pa.int64())])):
            rows = rows.take(find_unmatched_positions(places, rows.num_rows))
        if columns.deletes:
            rows = rows.filter(pc.invert(pc.fill_null(rows[columns.deleted], fill_value=False)))
        row_count = rows.num_rows
        new_columns = {name: rows[name] for name in (*columns.key.names, *columns.values.names)}
        new_columns |= {columns.prev(name): pa.nulls(row_count, rows[name].type) for name in columns.values.names}
        new_columns |= {columns.txid: pa.repeat(pa.scalar(int(self.txid), pa.int64()), row_count)}
        new_columns |= {columns.prev_txid: pa.nulls(row_count, pa.int64())}
        if columns.deletes:
            new_columns[columns.deleted] = pa.repeat(pa.scalar(False, pa.bool_()), row_count)
        return pa.table({name: new_columns[name] for name in columns.all_columns.names})


def _places_of_all(rows: pa.Table, source: pa.Table, key: Sequence[str]) -> Places:
    """Return the positions of all keys in both tables, those of new keys last. NULL: the key is not in that table."""
    in_source = find_key_positions(rows, source, key, is_unique=True)
    new = find_unmatched_positions(in_source, source.num_rows)
    if not len(new):
        return None, in_source
    in_rows = pa.concat_arrays([pa.arange(0, rows.num_rows), pa.nulls(len(new), pa.int64())])
    return in_rows, pa.concat_arrays([in_source, new])


def visible(rows: pa.Table, columns: StateColumns, end_txid: TxId | None) -> pa.Table:
    """Return key and value columns of a table's rows as they were before transaction `end_txid`."""
    as_of = ColumnsAsOf.before_transaction(columns, end_txid, ArrowTerms(rows))
    keys = [(name, rows[name]) for name in columns.key.names]
    values = [(name, as_of.value_column(name)) for name in columns.values.names]
    all_rows, row_filter = pa.table(dict([*keys, *values])), as_of.row_filter
    return all_rows if row_filter is None else all_rows.filter(row_filter)


class _Rewriting:
    def __init__(
        self,
        rows: pa.Table,
        source: pa.Table,
        columns: StateColumns,
        txid: TxId,
        horizons: ExpiryHorizons,
        places: Places,
    ) -> None:
        self._horizons = horizons
        self._columns, self._txid = columns, pa.scalar(int(txid), pa.int64())
        in_rows, in_source = places
        self._rows = rows if in_rows is None else take_rows(rows, in_rows)
        # The keys are not needed if the rows are the table's.
        source_columns = source if in_rows is not None else source.drop_columns(list(columns.key.names))
        self._source = take_rows(source_columns, in_source)
        self._keys = [self._key(name, in_source) for name in columns.key.names]
        self._is_in_source = pc.is_valid(in_source)
        self._are_all_in_source = in_source.null_count == 0
        has_own = pc.any(pc.equal(self._rows[columns.txid], self._txid)).as_py()
        self._as_of = ColumnsAsOf.before_transaction(columns, txid if has_own else None, ArrowTerms(self._rows))
        """The rows before this transaction: rows of a dead attempt start again from their previous values."""

    def build(self, combine: Mapping[str, str]) -> pa.Table:
        names, rows, is_in_source = self._columns, self._rows, self._is_in_source
        no_txid, old_txid = pa.scalar(None, pa.int64()), self._as_of.txid
        is_updated, is_deleted = is_in_source, is_in_source
        if names.deletes:
            old_txid = pc.if_else(self._as_of.row_filter, old_txid, no_txid)
            is_deleted = pc.fill_null(self._source[names.deleted], fill_value=False)
            is_updated = pc.and_not(is_in_source, is_deleted)
        old = {name: self._as_of.value_column(name) for name in names.values.names}
        has_restarted = self._has_expired(self._horizons.current, old)
        if (is_expired := self._has_expired(self._horizons.previous, old)) is not None:
            # The row had expired for the previous transaction as well, so it counts as no row.
            old_txid = pc.if_else(is_expired, no_txid, old_txid)
        columns: dict[str, pa.ChunkedArray] = dict(zip(names.key.names, self._keys, strict=True))
        for name, old_values in old.items():
            no_value = pa.scalar(None, old_values.type)
            stored = old_values if has_restarted is None else pc.if_else(has_restarted, no_value, old_values)
            combined = combine_columns(combine[name], stored, self._source[name])
            columns[name] = self._choose(combined, old_values)
            previous = old_values if is_expired is None else pc.if_else(is_expired, no_value, old_values)
            columns[names.prev(name)] = self._choose(previous, rows[names.prev(name)])
        columns[names.txid] = self._choose(self._txid, old_txid)
        columns[names.prev_txid] = self._choose(old_txid, rows[names.prev_txid])
        if names.deletes:
            columns[names.deleted] = is_deleted
        table = pa.table({name: columns[name] for name in names.all_columns.names})
        exists = pc.or_(is_updated, pc.is_valid(old_txid))
        return table if pc.all(exists).as_py() else table.filter(exists)

    def _has_expired(self, horizon: int | None, old: Mapping[str, pa.ChunkedArray]) -> pa.ChunkedArray | None:
        """Return for each row whether it had expired by a horizon, before this transaction. None if no row had."""
        expires, keys = self._columns.expires, dict(zip(self._columns.key.names, self._keys, strict=True))
        if expires is None or horizon is None:
            return None
        return pc.fill_null(pc.less_equal({**old, **keys}[expires], time_scalar(horizon)), fill_value=False)

    def _key(self, name: str, in_source: pa.Array) -> pa.ChunkedArray:
        if name not in self._source.column_names:
            return self._rows[name]
        return pc.if_else(pc.is_valid(in_source), self._source[name], self._rows[name])

    def _choose(self, updated: pa.ChunkedArray | pa.Scalar, stored: pa.ChunkedArray) -> pa.ChunkedArray:
        if not self._are_all_in_source:
            return pc.if_else(self._is_in_source, updated, stored)
        return pa.repeat(updated, len(self._is_in_source)) if isinstance(updated, pa.Scalar) else updated


def segment_rows(columns: StateColumns, rows: pa.Table, horizons: ExpiryHorizons | None) -> pa.Table:
    """Return the rows that a transaction writes in the log layout: the new rows, and its horizon if a column has it."""
    if columns.horizon is None:
        return rows
    horizon = None if horizons is None or horizons.current is None else time_scalar(horizons.current)
    column = pa.nulls(rows.num_rows, TIME) if horizon is None else pa.repeat(horizon, rows.num_rows)
    return rows.append_column(columns.horizon, column)


def change_small(
    change: Change, size_bytes: int, rows: pa.Table | None, load: Callable[[int], pa.Table | None]
) -> pa.Table | None:
    """Return all rows of a table after a change, or None if the table is not small.

    `size_bytes` is the size of its files, `rows` are its rows with all columns, if they are in memory. Otherwise
    `load(rows_max)` returns them, unless there are more than `rows_max`.
    """
    if max(change.rows.nbytes, size_bytes) > REWRITTEN_BYTES_MAX:
        return None
    rows_max = REWRITTEN_ROWS_MAX - change.rows.num_rows
    if rows is None:
        rows = load(rows_max)
    return None if rows is None or rows.num_rows > rows_max else change.applied(rows)
