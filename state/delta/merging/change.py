"""What a transaction makes of a table's rows: the rule of the merge layout, on columns; and tables that it is applied
to as a whole.

Every row of a dead attempt of the same transaction starts again from its previous values, also those that do not come
(row T60).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from state.delta.tables.data_files import DataFile
from state.fence import WriteRefused
from state.rows.columns import StateColumns
from state.rows.combining import combine_columns
from state.rows.expiring import NO_HORIZONS, ExpiryHorizons, time_scalar
from state.rows.opaque_columns import ColumnsAsOf
from transactional.model.aggregates.key_matching import find_key_positions, find_unmatched_positions, take_rows
from transactional.model.attempt import TxId

REWRITTEN_ROWS_MAX: Final = 50_000
"""With more rows than this, those that come included, a table is rewritten file by file."""
REWRITTEN_BYTES_MAX: Final = 4 * 1024 * 1024
"""And with larger files."""
Places = tuple[pa.Array | None, pa.Array]
"""Of each row that is to be: where it stands in the table (None: they are the table's, in order), and in what comes."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a transaction does to a table: `rows` have key and value columns, one row per key, in one piece."""

    columns: StateColumns
    txid: TxId
    rows: pa.Table
    combine: Mapping[str, str]
    horizons: ExpiryHorizons = NO_HORIZONS
    removes: bool = False
    """Whether rows go that had expired for the transaction before, also of files that have no key that comes."""

    def schema(self, names: Sequence[str]) -> pa.Schema:
        """Of the table's columns in an order."""
        types = self.columns.table_schema
        return pa.schema([types.field(name) for name in names])

    def applied(self, rows: pa.Table, in_source: pa.Array | None = None) -> pa.Table:
        """What becomes of rows of the table. They are all there are, so that new ones come with them; or `in_source`
        says where each stands in what comes. Raises `WriteRefused` for sums that do not fit."""
        try:
            places = _places_of_all(rows, self.rows, self.columns.key.names) if in_source is None else (None, in_source)
            return _Rewriting(rows, self.rows, self.columns, self.txid, self.horizons, places).result(self.combine)
        except pa.ArrowException as error:
            raise WriteRefused(str(error), is_conflict=False) from error

    def new(self, matched: Sequence[pa.Array]) -> pa.Table:
        """Return the rows to insert: those whose place is not in `matched`, the places that rows of the table have."""
        columns, rows = self.columns, self.rows
        if len(places := pa.concat_arrays([*matched, pa.array([], pa.int64())])):
            rows = rows.take(find_unmatched_positions(places, rows.num_rows))
        if columns.deletes:
            rows = rows.filter(pc.invert(pc.fill_null(rows[columns.deleted], fill_value=False)))
        many = rows.num_rows
        found = {name: rows[name] for name in (*columns.key.names, *columns.values.names)}
        found |= {columns.prev(name): pa.nulls(many, rows[name].type) for name in columns.values.names}
        found |= {columns.txid: pa.repeat(pa.scalar(int(self.txid), pa.int64()), many)}
        found |= {columns.prev_txid: pa.nulls(many, pa.int64())}
        if columns.deletes:
            found[columns.deleted] = pa.repeat(pa.scalar(False, pa.bool_()), many)
        return pa.table({name: found[name] for name in columns.all.names})


def _places_of_all(rows: pa.Table, source: pa.Table, key: Sequence[str]) -> Places:
    """Where every key of the two stands, the new ones last; NULL: nowhere."""
    in_source = find_key_positions(rows, source, key, is_unique=True)
    new = find_unmatched_positions(in_source, source.num_rows)
    if not len(new):
        return None, in_source
    in_rows = pa.concat_arrays([pa.arange(0, rows.num_rows), pa.nulls(len(new), pa.int64())])
    return in_rows, pa.concat_arrays([in_source, new])


@dataclass(frozen=True, slots=True)
class _Terms:
    """The columns of rows in Arrow (see `state.rows.opaque_columns`)."""

    rows: pa.Table

    def column(self, name: str) -> Any:
        return self.rows[name]

    def is_below(self, name: str, txid: int) -> Any:
        return pc.fill_null(pc.less(self.rows[name], int(txid)), fill_value=False)

    def is_there(self, name: str) -> Any:
        return pc.is_valid(self.rows[name])

    def is_unset(self, name: str) -> Any:
        return pc.invert(pc.fill_null(self.rows[name], fill_value=False))

    def either(self, one: Any, other: Any) -> Any:
        return pc.or_(one, other)

    def choose(self, condition: Any, value: Any, otherwise: Any) -> Any:
        return pc.if_else(condition, value, otherwise)


def visible(rows: pa.Table, columns: StateColumns, before: TxId | None) -> pa.Table:
    """Key and value columns of a table's rows, as they were before transaction `before`."""
    as_of = ColumnsAsOf.before_transaction(columns, before, _Terms(rows))
    keys = [(name, rows[name]) for name in columns.key.names]
    found, exists = (
        pa.table(dict([*keys, *((name, as_of.value_column(name)) for name in columns.values.names)])),
        as_of.row_filter,
    )
    return found if exists is None else found.filter(exists)


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
        # Where the rows are the table's, so are their keys.
        given = source if in_rows is not None else source.drop_columns(list(columns.key.names))
        self._source = take_rows(given, in_source)
        self._keys = [self._key(name, in_source) for name in columns.key.names]
        self._comes = pc.is_valid(in_source)
        self._all_come = in_source.null_count == 0
        has_own = pc.any(pc.equal(self._rows[columns.txid], self._txid)).as_py()
        self._as_of = ColumnsAsOf.before_transaction(columns, txid if has_own else None, _Terms(self._rows))
        """What a dead attempt of this transaction has written starts again from what was before it."""

    def result(self, combine: Mapping[str, str]) -> pa.Table:
        names, rows, comes = self._columns, self._rows, self._comes
        no_txid, old_txid = pa.scalar(None, pa.int64()), self._as_of.txid
        is_left, is_deleted = comes, comes
        if names.deletes:
            old_txid = pc.if_else(self._as_of.row_filter, old_txid, no_txid)
            is_deleted = pc.fill_null(self._source[names.deleted], fill_value=False)
            is_left = pc.and_not(comes, is_deleted)
        old = {name: self._as_of.value_column(name) for name in names.values.names}
        begins_anew = self._has_expired(self._horizons.current, old)
        if (is_past := self._has_expired(self._horizons.previous, old)) is not None:
            # Also for the transaction before: so it is as no row.
            old_txid = pc.if_else(is_past, no_txid, old_txid)
        found: dict[str, pa.ChunkedArray] = dict(zip(names.key.names, self._keys, strict=True))
        for name, before in old.items():
            stored = before if begins_anew is None else pc.if_else(begins_anew, pa.scalar(None, before.type), before)
            combined = combine_columns(combine[name], stored, self._source[name])
            found[name] = self._of_coming(combined, before)
            kept = before if is_past is None else pc.if_else(is_past, pa.scalar(None, before.type), before)
            found[names.prev(name)] = self._of_coming(kept, rows[names.prev(name)])
        found[names.txid] = self._of_coming(self._txid, old_txid)
        found[names.prev_txid] = self._of_coming(old_txid, rows[names.prev_txid])
        if names.deletes:
            found[names.deleted] = is_deleted
        table = pa.table({name: found[name] for name in names.all.names})
        stays = pc.or_(is_left, pc.is_valid(old_txid))
        return table if pc.all(stays).as_py() else table.filter(stays)

    def _has_expired(self, horizon: int | None, old: Mapping[str, pa.ChunkedArray]) -> pa.ChunkedArray | None:
        """Which rows had expired by a horizon as they were before this transaction; None: none."""
        expires, keys = self._columns.expires, dict(zip(self._columns.key.names, self._keys, strict=True))
        if expires is None or horizon is None:
            return None
        return pc.fill_null(pc.less_equal({**old, **keys}[expires], time_scalar(horizon)), fill_value=False)

    def _key(self, name: str, in_source: pa.Array) -> pa.ChunkedArray:
        if name not in self._source.column_names:
            return self._rows[name]
        return pc.if_else(pc.is_valid(in_source), self._source[name], self._rows[name])

    def _of_coming(self, coming: pa.ChunkedArray | pa.Scalar, others: pa.ChunkedArray) -> pa.ChunkedArray:
        if not self._all_come:
            return pc.if_else(self._comes, coming, others)
        return pa.repeat(coming, len(self._comes)) if isinstance(coming, pa.Scalar) else coming


class SmallTable:
    """The rows of a table that is small: it is one file, which is written as a whole. They are kept in memory from
    one transaction to the next, by Delta version."""

    def __init__(self) -> None:
        self._known: tuple[int, pa.Table] | None = None

    def after(
        self, change: Change, version: int, files: Sequence[DataFile], load: Callable[[int], pa.Table | None]
    ) -> pa.Table | None:
        """All rows after a transaction, as `rewritten`; None for a table that is not small.

        `load` reads all columns of the rows of Delta version `version`, which is made of `files`, unless there are more
        than so many.
        """
        rows_max, size_bytes = REWRITTEN_ROWS_MAX - change.rows.num_rows, sum(file.size_bytes for file in files)
        if max(change.rows.nbytes, size_bytes) > REWRITTEN_BYTES_MAX:
            return None
        rows = self.rows(version)
        if rows is None:
            rows = load(rows_max)
        return None if rows is None or rows.num_rows > rows_max else change.applied(rows)

    def rows(self, version: int) -> pa.Table | None:
        """All columns of the rows of a Delta version, None: not known."""
        return self._known[1] if self._known is not None and self._known[0] == version else None

    def keep(self, version: int, rows: pa.Table) -> None:
        """Note what a Delta version is made of."""
        self._known = (version, rows)
