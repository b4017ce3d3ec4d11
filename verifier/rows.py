"""Checks the rows of a table's newest version: transactions in order could have made each, and counts add up.

`check_rows` looks at each row and key, `check_count` compares a counting column with the records of the store's
batches. The data files themselves are read: their statistics are only claims of their writer. They are read part by
part, so that only the keys of a large table are held in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import pyarrow as pa
import pyarrow.compute as pc

from verifier.evidence.delta_log import DataFile
from verifier.evidence.findings import SHOWN_PER_KIND, CheckImpossible, Findings, Kind
from verifier.evidence.storage import Storage
from verifier.evidence.store import CommittedBatch, CountedPartition, StoreHistory

LAYOUT_VERSION = "3"
"""The version of the layout of states' tables that is read."""


def check_layout(version: object, place: str) -> None:
    """Raise `CheckImpossible` for a table of another version of the layout. None: the table names none."""
    if str(version) != LAYOUT_VERSION:
        stored = "no version" if version is None else f"version {version}"
        raise CheckImpossible(
            f"the {place} has {stored} of the layout of states, and version {LAYOUT_VERSION} is the only one that is "
            "read; give the state a table of another name"
        )


@dataclass(frozen=True, slots=True)
class RowColumns:
    """The columns of a state's table. `previous` maps each value column to the one with its previous value.

    A table in the log layout has neither previous values nor `prev_txid`: it is partitioned by txid, and each
    transaction has rows of its own.
    """

    key: tuple[str, ...]
    values: tuple[str, ...]
    previous: Mapping[str, str] = field(default_factory=dict)
    txid: str = "txid"
    prev_txid: str | None = "prev_txid"
    deleted: str | None = None
    """The column that is true for a tombstone, a key that the row's transaction has deleted; None: there are none."""
    expires: str | None = None
    """The column, of key or values, by which rows expire; None: they stay."""
    horizon: str | None = None
    """In the log layout the column with the horizon of the row's transaction, if there is one."""

    @classmethod
    def from_names(cls, names: Sequence[str]) -> RowColumns:
        """Return the columns of a table with these names, in order. A column with a previous value is a value, the rest
        is the key. A column `deleted` after `txid` marks tombstones."""
        previous = {name: f"prev_{name}" for name in names if f"prev_{name}" in names and name != "txid"}
        history = names[names.index("txid") :] if "txid" in names else ()
        deleted = "deleted" if "deleted" in history and "deleted" not in previous else None
        no_keys = {"txid", "prev_txid", deleted, *previous, *previous.values()}
        key = tuple(name for name in names if name not in no_keys)
        return cls(key, tuple(previous), previous, deleted=deleted)

    def with_tombstones(self, deleted: str) -> RowColumns:
        """Return the columns of a table whose keys may be deleted, with this column for tombstones."""
        key = tuple(name for name in self.key if name != deleted)
        return self if self.deleted is not None else replace(self, key=key, deleted=deleted)

    def with_expiry(self, column: str) -> RowColumns:
        """Return the columns of a table whose rows expire by this column."""
        return replace(self, expires=column)

    def in_log_layout(self, values: Iterable[str], horizon: str | None = None) -> RowColumns:
        """Return the columns of the same state in the log layout."""
        value_names = tuple(values)
        key = tuple(name for name in self.key if name not in (*value_names, horizon))
        return RowColumns(key, value_names, {}, self.txid, None, self.deleted, self.expires, horizon)

    @property
    def is_log(self) -> bool:
        """Whether the table has the log layout."""
        return self.prev_txid is None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all columns."""
        history = (name for name in (self.txid, self.prev_txid, self.deleted) if name is not None)
        return (*self.key, *self.values, *history, *self.previous.values())


@dataclass(slots=True)
class Sums:
    """Sums over the rows of a table: their number, the sum of the counting column, that of the rows of the newest
    transaction alone, and the number of rows by transaction."""

    rows: int = 0
    counted: object = 0
    newest: object = 0
    per_txid: Counter[int] = field(default_factory=Counter)


def read_parts(storage: Storage, files: Iterable[DataFile], columns: RowColumns) -> Iterator[pa.Table]:
    """Yield the rows of a table's files in parts. Raises `OSError`."""
    for file in files:
        partition = file.partition.get(columns.txid)
        stored_names = [name for name in columns.names if name != columns.txid or not columns.is_log]
        for part in storage.parquet_parts(file.path, stored_names):
            if columns.is_log:
                txids = pa.repeat(pa.scalar(None if partition is None else int(partition), pa.int64()), part.num_rows)
                part = part.append_column(columns.txid, txids)
            yield part


def check_rows(
    component: str,
    parts: Iterable[pa.Table],
    columns: RowColumns,
    table_txid: int | None,
    counts: str | None,
    findings: Findings,
    unique_until: int | None = None,
) -> Sums:
    """Check what must hold for each row and each key. Return the sums, also of the column `counts` (see
    `CheckedTable`).

    After transaction `unique_until` a key may have several rows of one transaction.
    """
    place = f"rows of {component!r}"
    sums, keys = Sums(), list[pa.Table]()
    unique = [*columns.key, columns.txid] if columns.is_log else list(columns.key)
    for part in parts:
        for kind, rule, violations in _violations(part, columns, table_txid):
            for row in part.filter(violations).slice(0, SHOWN_PER_KIND).to_pylist():
                findings.add(kind, place, rule, format_values(f"{name}={field!r}" for name, field in row.items()))
        _add_part(sums, part, columns, table_txid, counts)
        if unique_until is not None:
            part = part.filter(pc.less_equal(part.column(columns.txid), unique_until))
        keys.append(part.select(unique))
    _check_keys(place, keys, unique, sums.rows, findings)
    findings.add_checked("rows", sums.rows)
    return sums


def _violations(
    part: pa.Table, columns: RowColumns, table_txid: int | None
) -> Iterator[tuple[Kind, str, pa.ChunkedArray]]:
    """Yield for each rule the kind of finding, the rule in words, and a mask of the rows that violate it."""
    txid = part.column(columns.txid)
    if table_txid is not None:
        yield Kind.PARTLY_VISIBLE, f"{columns.txid} <= {table_txid}", _is_true(pc.greater(txid, table_txid))
    yield Kind.BROKEN_ROW, f"{columns.txid} >= 1", pc.fill_null(pc.less(txid, 1), fill_value=True)
    if columns.deleted is not None:
        yield from _tombstone_violations(part, columns, _is_true(part.column(columns.deleted)))
    if columns.prev_txid is None:
        return
    prev_txid = part.column(columns.prev_txid)
    violations = pc.or_(_is_true(pc.less(prev_txid, 1)), _is_true(pc.greater(prev_txid, txid)))
    yield Kind.BROKEN_ROW, f"1 <= {columns.prev_txid} <= {columns.txid}", violations
    is_rolled_back, is_first = _is_true(pc.equal(prev_txid, txid)), prev_txid.is_null()
    for name, previous_name in columns.previous.items():
        old, new = part.column(previous_name), part.column(name)
        rule = "a row that was rolled back to hold its previous values"
        yield Kind.BROKEN_ROW, rule, pc.and_(is_rolled_back, _differ(old, new))
        rule = "no previous values where the key did not exist"
        yield Kind.BROKEN_ROW, rule, pc.and_(is_first, old.is_valid())


def _tombstone_violations(
    part: pa.Table, columns: RowColumns, is_deleted: pa.ChunkedArray
) -> Iterator[tuple[Kind, str, pa.ChunkedArray]]:
    for name in columns.values:
        violations = pc.and_(is_deleted, part.column(name).is_valid())
        yield Kind.BROKEN_ROW, "no values of a key that was deleted", violations
    if columns.prev_txid is not None:
        violations = pc.and_(is_deleted, part.column(columns.prev_txid).is_null())
        yield Kind.BROKEN_ROW, "no tombstone of a key that did not exist", violations


def _is_true(mask: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a mask that is false where the given one is NULL."""
    return pc.fill_null(mask, fill_value=False)


def _differ(old: pa.ChunkedArray, new: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a mask of the values that differ. NULL is equal to NULL, and NaN to NaN."""
    if pa.types.is_nested(old.type):
        pairs = zip(old.to_pylist(), new.to_pylist(), strict=True)
        return pa.chunked_array([pa.array([a != b for a, b in pairs], pa.bool_())])
    differ = pc.or_(_is_true(pc.not_equal(old, new)), pc.xor(old.is_null(), new.is_null()))
    if pa.types.is_floating(old.type):
        differ = pc.and_not(differ, _is_true(pc.and_(pc.is_nan(old), pc.is_nan(new))))
    return differ


def _add_part(sums: Sums, part: pa.Table, columns: RowColumns, table_txid: int | None, counts: str | None) -> None:
    sums.rows += part.num_rows
    txid = part.column(columns.txid)
    if counts == "*":
        numbers, times = txid.value_counts().flatten()
        sums.per_txid.update(dict(zip(numbers.to_pylist(), times.to_pylist(), strict=True)))
    elif counts is not None:
        values = pc.fill_null(part.column(counts), 0)
        sums.counted += pc.sum(values, min_count=0).as_py()
        if columns.previous:
            values = pc.subtract(values, pc.fill_null(part.column(columns.previous[counts]), 0))
        if table_txid is not None:
            sums.newest += pc.sum(values.filter(_is_true(pc.equal(txid, table_txid))), min_count=0).as_py()


def _check_keys(place: str, keys: Sequence[pa.Table], unique: list[str], rows: int, findings: Findings) -> None:
    if not unique:
        if rows > 1:
            findings.add(Kind.BROKEN_ROW, place, "one row", rows)
        return
    if not keys:
        return
    grouped = pa.concat_tables(keys).group_by(unique).aggregate([([], "count_all")])
    repeated_keys = grouped.filter(pc.greater(grouped.column("count_all"), 1))
    for row in repeated_keys.slice(0, SHOWN_PER_KIND).to_pylist():
        times = row.pop("count_all")
        findings.add(Kind.BROKEN_ROW, place, f"one row of key {format_values(row.values())}", times)


def check_count(
    component: str,
    sums: Sums,
    counts: str,
    table_txid: int | None,
    history: StoreHistory,
    findings: Findings,
    columns: RowColumns,
    is_counted: CountedPartition | None = None,
) -> None:
    """Check that a column counts the records that were read, each once; `*`: that each record made one row.

    All counts can be checked only if the store has the batches of all transactions in the table. Otherwise only the
    changes of the last transaction are compared.
    `is_counted`: see `CheckedTable`.
    """
    place = f"rows of {component!r}, {counts}"
    joined_at = history.joined_at(component)
    batches = {batch.txid: batch for batch in history.committed}
    if table_txid is None or table_txid not in {0, *batches}:
        findings.note(f"{place}: the table is at a transaction that is not committed yet; its counts were not checked")
        return
    if table_txid == joined_at:
        return
    if columns.deleted is not None:
        findings.note(f"{place}: not checked, because keys may have been deleted, and their counts with them")
        return
    if columns.expires is not None:
        findings.note(f"{place}: not checked, because rows expire, and their counts with them")
        return
    if any(batch.is_filtered for batch in history.committed):
        findings.note(f"{place}: not checked, because tuples were set aside as dead letters or retried")
        return
    counted_batches = [batch for txid, batch in batches.items() if joined_at < txid <= table_txid]
    is_counted = is_counted and cache(is_counted)  # it is called for each batch
    obstacle = _obstacle_to_counting(history, counted_batches, is_counted)
    if obstacle is not None:
        findings.note(f"{place}: not checked, because {obstacle}")
        return
    records = {batch.txid: _counted_records(batch, is_counted) for batch in counted_batches}
    if counts == "*":
        first = min(records)
        wrong_txids = {txid for txid, number in records.items() if number != sums.per_txid[txid]}
        wrong_txids |= {txid for txid in sums.per_txid.keys() - records.keys() if txid and txid >= first}
        for txid in sorted(wrong_txids):
            _compare(place, f"transaction {txid}", records.get(txid, 0), sums.per_txid[txid], findings)
        return
    if not history.knows_when_joined(component):
        findings.note(f"{place}: the store does not know since when the table counts; its last transaction was checked")
    elif 1 in batches:
        transactions = f"transactions {joined_at + 1} to {table_txid}"
        _compare(place, transactions, sum(records.values()), sums.counted, findings)
    _compare(place, f"transaction {table_txid}", records[table_txid], sums.newest, findings)


def _obstacle_to_counting(
    history: StoreHistory, batches: Iterable[CommittedBatch], is_counted: CountedPartition | None
) -> str | None:
    """Return why it is not known which records reach a table, None if it is known."""
    if is_counted is None:
        several = len(history.streams) > 1
        return "the code alone says which stream reaches it: pass MODULE:TOPOLOGY" if several else None
    for batch in batches:
        for partition, (_, _, records) in batch.ranges.items():
            if records and is_counted(partition) is None:
                return f"records of {partition[0]} were read for a stream that is no longer there"
    return None


def _counted_records(batch: CommittedBatch, is_counted: CountedPartition | None) -> int:
    """Return the number of records of a batch that reach a table."""
    if is_counted is None:
        return batch.records
    return sum(records or 0 for partition, (_, _, records) in batch.ranges.items() if is_counted(partition))


def _compare(place: str, transactions: str, expected: int, actual: object, findings: Findings) -> None:
    if actual != expected:
        findings.add(Kind.WRONG_COUNT, f"{place}, {transactions}", f"{expected}, as many as records were read", actual)


def format_values(values: Iterable[object]) -> str:
    """Return values for a message, cut after 300 characters."""
    text = ", ".join(map(str, values))
    return text if len(text) <= 300 else f"{text[:300]}…"
