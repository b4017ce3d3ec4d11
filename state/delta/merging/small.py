"""A MERGE of a small table in memory: what delta-rs' own MERGE would leave, to be written as a whole.

A MERGE rewrites every file that has a touched key. A small table is one file, so it is written as a whole in any case,
and most of the time goes into planning a query. The rules are those of `merge_clauses`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from state.delta.tables.table import features_of, is_known_protocol
from state.rows.columns import StateColumns
from state.rows.expiring import NO_FLOORS, Floors, time_scalar
from state.values import combined_columns
from transactional.aggregates.places import places_beyond, places_in, rows_at
from transactional.attempt import TxId

if TYPE_CHECKING:
    from deltalake import DeltaTable

_PLAIN = re.compile(r"[A-Za-z0-9._-]+")
"""The name of a file that the log does not escape, and that lies in the table's own folder."""
REWRITTEN_ROWS_MAX = 50_000
"""With more rows than this, those that come included, a table is left to delta-rs."""
REWRITTEN_BYTES_MAX = 4 * 1024 * 1024
"""And with larger files."""
Places = tuple[pa.Array | None, pa.Array]
"""Of each row that is to be: where it stands in the table (None: they are the table's, in order), and in what comes."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of a table: its name in the table's folder, and its size in bytes."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that is no part of its table yet, and what its table's log has to say of it."""

    name: str
    size_bytes: int
    statistics: str
    rows: int

    @property
    def as_part(self) -> DataFile:
        """Once it is a part of it."""
        return DataFile(self.name, self.size_bytes)


def data_files(table: DeltaTable) -> list[DataFile]:
    """The files that a table is made of."""
    actions = pa.table(table.get_add_actions())
    names, sizes = actions["path"].to_pylist(), actions["size_bytes"].to_pylist()
    return [DataFile(name, size_bytes) for name, size_bytes in zip(names, sizes, strict=True)]


def replaceable_files(table: DeltaTable) -> list[DataFile] | None:
    """The files that a table is made of; None when the table demands of its writers what `commit_rows` does not do."""
    protocol, metadata = table.protocol(), table.metadata()
    features = features_of(protocol)
    if (
        not is_known_protocol(protocol.min_reader_version, protocol.min_writer_version, features)
        or metadata.partition_columns
        or str(metadata.configuration.get("delta.appendOnly", "false")).lower() != "false"
        or "delta.invariants" in table.schema().to_json()
    ):
        return None
    files = data_files(table)
    return files if all(_PLAIN.fullmatch(file.name) for file in files) else None


class SmallTable:
    """The rows and files of a table that is small, kept from one transaction to the next, by Delta version."""

    def __init__(self, columns: StateColumns) -> None:
        self._columns = columns
        self._known: tuple[int, pa.Table, Sequence[DataFile]] | None = None

    def after(
        self,
        txid: TxId,
        source: pa.Table,
        combine: Mapping[str, str],
        version: int,
        load: Callable[[int], pa.Table | None],
        floors: Floors = NO_FLOORS,
    ) -> pa.Table | None:
        """All rows after transaction `txid`, as `rewritten`; also None for a table that is not small.

        `load` reads all columns of the rows of Delta version `version`, unless there are more than so many, or they are
        too large.
        """
        rows_max, rows, files = REWRITTEN_ROWS_MAX - source.num_rows, self.rows(version), self.files(version)
        if source.nbytes > REWRITTEN_BYTES_MAX or (files is not None and not _fit(files)):
            return None
        if rows is None:
            rows = load(rows_max)
        if rows is None or rows.num_rows > rows_max:
            return None
        return rewritten(rows, source, self._columns, txid, combine, floors)

    def rows(self, version: int) -> pa.Table | None:
        """All columns of the rows of a Delta version, None: not known."""
        return self._known[1] if self._known is not None and self._known[0] == version else None

    def files(self, version: int) -> Sequence[DataFile] | None:
        """What a Delta version is made of, None: not known."""
        return self._known[2] if self._known is not None and self._known[0] == version else None

    def keep(self, version: int, rows: pa.Table, files: Sequence[DataFile]) -> None:
        """Note what a Delta version is made of."""
        self._known = (version, rows, files)


def _fit(files: Sequence[DataFile]) -> bool:
    return sum(file.size_bytes for file in files) <= REWRITTEN_BYTES_MAX


def is_small(table: DeltaTable, rows_max: int) -> bool:
    """Whether a table has at most so many rows, in files that are not too large."""
    if table.metadata().partition_columns:
        return False
    files = pa.table(table.get_add_actions())
    rows, size_bytes = pc.sum(files["num_records"]).as_py(), pc.sum(files["size_bytes"]).as_py()
    if not files.num_rows:
        return rows_max >= 0
    return rows is not None and rows <= rows_max and size_bytes <= REWRITTEN_BYTES_MAX


def rewritten(
    rows: pa.Table,
    source: pa.Table,
    columns: StateColumns,
    txid: TxId,
    combine: Mapping[str, str],
    floors: Floors = NO_FLOORS,
    places: Places | None = None,
) -> pa.Table | None:
    """All rows of the table after transaction `txid`; None where Arrow and delta-rs would not do the same.

    `rows` are the table's, `source` has key and value columns; both have one row per key. With `places` those rows only
    that it names.
    """
    try:
        found = places or _places_of_all(rows, source, columns.key.names)
        return _Rewriting(rows, source, columns, txid, floors, found).result(combine)
    except pa.ArrowException:
        # Types that are not compared, sums that do not fit: delta-rs reports them.
        return None


def _places_of_all(rows: pa.Table, source: pa.Table, key: Sequence[str]) -> Places:
    """Where every key of the two stands, the new ones last; NULL: nowhere."""
    in_source = places_in(rows, source, key, once=True)
    new = places_beyond(in_source, source.num_rows)
    if not len(new):
        return None, in_source
    in_rows = pa.concat_arrays([pa.arange(0, rows.num_rows), pa.nulls(len(new), pa.int64())])
    return in_rows, pa.concat_arrays([in_source, new])


def visible(rows: pa.Table, columns: StateColumns, before: TxId | None) -> pa.Table:
    """Key and value columns of a table's rows, as they were before transaction `before`: as `visible_rows` in SQL."""
    names = [*columns.key.names, *columns.values.names]
    if before is None:
        return (rows.filter(_is_alive(rows, columns)) if columns.deletes else rows).select(names)
    is_older = pc.fill_null(pc.less(rows[columns.txid], int(before)), fill_value=False)
    values = [pc.if_else(is_older, rows[name], rows[columns.prev(name)]) for name in columns.values.names]
    table = pa.table([*(rows[name] for name in columns.key.names), *values], names=names)
    is_seen = pc.and_(is_older, _is_alive(rows, columns)) if columns.deletes else is_older
    return table.filter(pc.or_(is_seen, pc.and_(pc.invert(is_older), pc.is_valid(rows[columns.prev_txid]))))


def _is_alive(rows: pa.Table, columns: StateColumns) -> pa.ChunkedArray:
    """Which rows are no tombstones."""
    return pc.invert(pc.fill_null(rows[columns.deleted], fill_value=False))


class _Rewriting:
    def __init__(
        self, rows: pa.Table, source: pa.Table, columns: StateColumns, txid: TxId, floors: Floors, places: Places
    ) -> None:
        self._floors = floors
        self._columns, self._txid = columns, pa.scalar(int(txid), pa.int64())
        in_rows, in_source = places
        self._rows = rows if in_rows is None else rows_at(rows, in_rows)
        # Where the rows are the table's, so are their keys.
        given = source if in_rows is not None else source.drop_columns(list(columns.key.names))
        self._source = rows_at(given, in_source)
        self._keys = [self._key(name, in_source) for name in columns.key.names]
        self._comes = pc.is_valid(in_source)
        self._all_come = in_source.null_count == 0
        is_own = pc.fill_null(pc.equal(self._rows[columns.txid], self._txid), fill_value=False)
        self._is_own = is_own if pc.any(is_own).as_py() else None
        """What a dead attempt of this transaction has written, which starts again from what was before it; None:
        nothing."""

    def result(self, combine: Mapping[str, str]) -> pa.Table:
        names, rows, comes = self._columns, self._rows, self._comes
        old_txid = self._before(names.prev_txid, names.txid)
        is_left, is_deleted = comes, comes
        if names.deletes:
            is_tombstone = pc.fill_null(self._rows[names.deleted], fill_value=False)
            # That of an earlier transaction is as no row.
            is_gone = is_tombstone if self._is_own is None else pc.and_not(is_tombstone, self._is_own)
            old_txid = pc.if_else(is_gone, pa.scalar(None, pa.int64()), old_txid)
            is_deleted = pc.fill_null(self._source[names.deleted], fill_value=False)
            is_left = pc.and_not(comes, is_deleted)
        old = {name: self._before(names.prev(name), name) for name in names.values.names}
        begins_anew = self._has_expired(self._floors.floor, old)
        if (is_past := self._has_expired(self._floors.before, old)) is not None:
            # Also for the transaction before: so it is as no row.
            old_txid = pc.if_else(is_past, pa.scalar(None, pa.int64()), old_txid)
        found: dict[str, pa.ChunkedArray] = dict(zip(names.key.names, self._keys, strict=True))
        for name, before in old.items():
            stored = before if begins_anew is None else pc.if_else(begins_anew, pa.scalar(None, before.type), before)
            met = combined_columns(combine[name], stored, self._source[name])
            found[name] = self._of_coming(met, before)
            kept = before if is_past is None else pc.if_else(is_past, pa.scalar(None, before.type), before)
            found[names.prev(name)] = self._of_coming(kept, rows[names.prev(name)])
        found[names.txid] = self._of_coming(self._txid, old_txid)
        found[names.prev_txid] = self._of_coming(old_txid, rows[names.prev_txid])
        if names.deletes:
            found[names.deleted] = is_deleted
        table = pa.table({name: found[name] for name in names.all.names})
        stays = pc.or_(is_left, pc.is_valid(old_txid))
        return table if pc.all(stays).as_py() else table.filter(stays)

    def _has_expired(self, floor: int | None, old: Mapping[str, pa.ChunkedArray]) -> pa.ChunkedArray | None:
        """Which rows had expired by a floor as they were before this transaction; None: none."""
        expires, keys = self._columns.expires, dict(zip(self._columns.key.names, self._keys, strict=True))
        if expires is None or floor is None:
            return None
        return pc.fill_null(pc.less_equal({**old, **keys}[expires], time_scalar(floor)), fill_value=False)

    def _before(self, previous: str, now: str) -> pa.ChunkedArray:
        if self._is_own is None:
            return self._rows[now]
        return pc.if_else(self._is_own, self._rows[previous], self._rows[now])

    def _key(self, name: str, in_source: pa.Array) -> pa.ChunkedArray:
        if name not in self._source.column_names:
            return self._rows[name]
        return pc.if_else(pc.is_valid(in_source), self._source[name], self._rows[name])

    def _of_coming(self, coming: pa.ChunkedArray | pa.Scalar, others: pa.ChunkedArray) -> pa.ChunkedArray:
        if not self._all_come:
            return pc.if_else(self._comes, coming, others)
        return pa.repeat(coming, len(self._comes)) if isinstance(coming, pa.Scalar) else coming


def as_new(source: pa.Table, columns: StateColumns, txid: TxId) -> pa.Table:
    """What becomes of rows whose keys are nowhere in a table: as `rewritten`."""
    if columns.deletes:
        source = source.filter(pc.invert(pc.fill_null(source[columns.deleted], fill_value=False)))
    many = source.num_rows
    found = {name: source[name] for name in (*columns.key.names, *columns.values.names)}
    found |= {columns.prev(name): pa.nulls(many, source[name].type) for name in columns.values.names}
    found |= {columns.txid: pa.repeat(pa.scalar(int(txid), pa.int64()), many)}
    found |= {columns.prev_txid: pa.nulls(many, pa.int64())}
    if columns.deletes:
        found[columns.deleted] = pa.repeat(pa.scalar(False, pa.bool_()), many)
    return pa.table({name: found[name] for name in columns.all.names})
