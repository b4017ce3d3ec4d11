"""The rules of both layouts on columns: the rows that a transaction writes, from the stored rows and the new ones.

In the merge layout (`Change.merged_rows`) a row that a dead attempt of the same transaction has written starts again
from its previous values, even if the transaction has no new row for its key (row T60). A small table is changed as a
whole, a larger one file by file. In the log layout (`Change.segment_rows`) no stored row is needed. Nothing is read
from or written to storage here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

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

    def is_small(self, row_count: int | None, size_bytes: int) -> bool:
        """True if a table of this size is written as a whole. `row_count` is None if it is not known."""
        if row_count is None or max(self.rows.nbytes, size_bytes) > REWRITTEN_BYTES_MAX:
            return False
        return row_count + int(self.rows.num_rows) <= REWRITTEN_ROWS_MAX

    def segment_rows(self) -> pa.Table:
        """Return the new rows as the log layout has them: with the transaction's horizon, if a column is for it."""
        if self.columns.horizon is None:
            return self.rows
        current, count = self.horizons.current, self.rows.num_rows
        horizons = pa.nulls(count, TIME) if current is None else pa.repeat(time_scalar(current), count)
        return self.rows.append_column(self.columns.horizon, horizons)

    def merged_rows(self, stored: pa.Table, in_source: pa.Array | None = None) -> pa.Table:
        """Return the given rows of the table after the transaction. Raises `WriteRefused` for sums that do not fit.

        Without `in_source` they are all rows of the table, and rows with new keys are returned as well. With it they
        are some of the rows, and `in_source` has the position of each in the new rows.
        """
        try:
            return self._merged_rows(stored, in_source)
        except pa.ArrowException as error:
            raise WriteRefused(str(error), is_conflict=False) from error

    def _merged_rows(self, stored: pa.Table, in_source: pa.Array | None) -> pa.Table:
        names, txid, no_txid = self.columns, pa.scalar(int(self.txid), pa.int64()), pa.scalar(None, pa.int64())
        rows, source, in_source = _side_by_side(stored, self.rows, names.key.names, in_source)
        is_in_source = pc.is_valid(in_source)
        has_own = pc.any(pc.equal(rows[names.txid], txid)).as_py()
        # The rows before this transaction: rows of a dead attempt start again from their previous values.
        as_of = ColumnsAsOf.before_transaction(names, self.txid if has_own else None, ArrowTerms(rows))
        old, old_txid = {name: as_of.value_column(name) for name in names.values.names}, as_of.txid
        columns: dict[str, Any] = {
            name: pc.if_else(is_in_source, source[name], rows[name]) if name in source.column_names else rows[name]
            for name in names.key.names
        }
        is_updated, is_deleted = is_in_source, None
        if names.deletes:
            old_txid = pc.if_else(as_of.row_filter, old_txid, no_txid)
            is_deleted = pc.fill_null(source[names.deleted], fill_value=False)
            is_updated = pc.and_not(is_in_source, is_deleted)
        has_restarted = is_expired = None
        if names.expires is not None:
            expiry = {**old, **columns}[names.expires]
            has_restarted = _has_expired(expiry, self.horizons.current)
            if (is_expired := _has_expired(expiry, self.horizons.previous)) is not None:
                # The row had expired for the previous transaction as well, so it counts as no row.
                old_txid = pc.if_else(is_expired, no_txid, old_txid)

        def choose(updated: pa.ChunkedArray | pa.Scalar, unchanged: pa.ChunkedArray) -> pa.ChunkedArray:
            if in_source.null_count:
                return pc.if_else(is_in_source, updated, unchanged)
            return pa.repeat(updated, len(in_source)) if isinstance(updated, pa.Scalar) else updated

        for name, old_values in old.items():
            no_value = pa.scalar(None, old_values.type)
            current = old_values if has_restarted is None else pc.if_else(has_restarted, no_value, old_values)
            combined = combine_columns(self.combine[name], current, source[name])
            columns[name] = choose(combined, old_values)
            previous = old_values if is_expired is None else pc.if_else(is_expired, no_value, old_values)
            columns[names.prev[name]] = choose(previous, rows[names.prev[name]])
        columns[names.txid] = choose(txid, old_txid)
        columns[names.prev_txid] = choose(old_txid, rows[names.prev_txid])
        if is_deleted is not None:
            columns[names.deleted] = is_deleted
        table = pa.table({name: columns[name] for name in names.all_columns.names})
        exists = pc.or_(is_updated, pc.is_valid(old_txid))
        return table if pc.all(exists).as_py() else table.filter(exists)

    def new(self, matched: Sequence[pa.Array]) -> pa.Table:
        """Return the rows to insert: those whose place is not in `matched`, the places that rows of the table have."""
        columns, rows = self.columns, self.rows
        if len(places := pa.concat_arrays([*matched, pa.array([], pa.int64())])):
            rows = rows.take(find_unmatched_positions(places, rows.num_rows))
        if columns.deletes:
            rows = rows.filter(pc.invert(pc.fill_null(rows[columns.deleted], fill_value=False)))
        row_count = rows.num_rows
        new_columns = {name: rows[name] for name in (*columns.key.names, *columns.values.names)}
        new_columns |= {columns.prev[name]: pa.nulls(row_count, rows[name].type) for name in columns.values.names}
        new_columns |= {columns.txid: pa.repeat(pa.scalar(int(self.txid), pa.int64()), row_count)}
        new_columns |= {columns.prev_txid: pa.nulls(row_count, pa.int64())}
        if columns.deletes:
            new_columns[columns.deleted] = pa.repeat(pa.scalar(False, pa.bool_()), row_count)
        return pa.table({name: new_columns[name] for name in columns.all_columns.names})


def _side_by_side(
    stored: pa.Table, source: pa.Table, key: Sequence[str], in_source: pa.Array | None
) -> tuple[pa.Table, pa.Table, pa.Array]:
    """Return stored rows and the new rows of the same keys, NULL where a side has none; and the positions in `source`.

    Without `in_source` all keys of both tables are there, those of new rows last. With it, the source has no keys.
    """
    if in_source is None:
        in_source = find_key_positions(stored, source, key, is_unique=True)
        new = find_unmatched_positions(in_source, source.num_rows)
        if len(new):
            in_stored = pa.concat_arrays([pa.arange(0, stored.num_rows), pa.nulls(len(new), pa.int64())])
            in_source = pa.concat_arrays([in_source, new])
            return take_rows(stored, in_stored), take_rows(source, in_source), in_source
    return stored, take_rows(source.drop_columns(list(key)), in_source), in_source


def _has_expired(expiry: pa.ChunkedArray, horizon: int | None) -> pa.ChunkedArray | None:
    """Return for each row whether it had expired by a horizon, before this transaction. None if no row had."""
    return None if horizon is None else pc.fill_null(pc.less_equal(expiry, time_scalar(horizon)), fill_value=False)


def visible(rows: pa.Table, columns: StateColumns, end_txid: TxId | None) -> pa.Table:
    """Return key and value columns of a table's rows as they were before transaction `end_txid`."""
    as_of = ColumnsAsOf.before_transaction(columns, end_txid, ArrowTerms(rows))
    keys = [(name, rows[name]) for name in columns.key.names]
    values = [(name, as_of.value_column(name)) for name in columns.values.names]
    all_rows, row_filter = pa.table(dict([*keys, *values])), as_of.row_filter
    return all_rows if row_filter is None else all_rows.filter(row_filter)
