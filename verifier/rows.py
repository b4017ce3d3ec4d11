"""The rows of a table's newest version: each could be the result of transactions in order, and counts add up.

The files are read, not their statistics, which are only their writer's claims. They are read part by part, so that only
the keys of a large table are held in memory.
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


def check_layout(version: object, where: str) -> None:
    """Raise `CheckImpossible` for a table of another version of the layout. None: the table names none."""
    if str(version) != LAYOUT_VERSION:
        stored = "no version" if version is None else f"version {version}"
        raise CheckImpossible(
            f"the {where} has {stored} of the layout of states, and version {LAYOUT_VERSION} is the only one that is "
            "read; give the state a table of another name"
        )


@dataclass(frozen=True, slots=True)
class RowColumns:
    """The columns of a state's table. `previous` maps each value column to the one with its previous value.

    A table in the log layout has none of these, nor `prev_txid`: it is partitioned by txid, and each transaction has
    rows of its own.
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
    def of(cls, names: Sequence[str]) -> RowColumns:
        """From a table's column names, in order: a column with a previous value is a value, the rest is the key. A
        column `deleted` behind `txid` marks tombstones."""
        previous = {name: f"prev_{name}" for name in names if f"prev_{name}" in names and name != "txid"}
        history = names[names.index("txid") :] if "txid" in names else ()
        deleted = "deleted" if "deleted" in history and "deleted" not in previous else None
        own = {"txid", "prev_txid", deleted, *previous, *previous.values()}
        key = tuple(name for name in names if name not in own)
        return cls(key, tuple(previous), previous, deleted=deleted)

    def with_tombstones(self, deleted: str) -> RowColumns:
        """The columns of a table whose keys may be deleted, as a property of it says."""
        key = tuple(name for name in self.key if name != deleted)
        return self if self.deleted is not None else replace(self, key=key, deleted=deleted)

    def expiring(self, column: str) -> RowColumns:
        """The columns of a table whose rows expire by this one."""
        return replace(self, expires=column)

    def in_log_layout(self, values: Iterable[str], horizon: str | None = None) -> RowColumns:
        """The columns of the same state when its table has the log layout."""
        names = tuple(values)
        key = tuple(name for name in self.key if name not in (*names, horizon))
        return RowColumns(key, names, {}, self.txid, None, self.deleted, self.expires, horizon)

    @property
    def is_log(self) -> bool:
        """True for the log layout."""
        return self.prev_txid is None

    @property
    def all(self) -> tuple[str, ...]:
        """Every column."""
        history = (name for name in (self.txid, self.prev_txid, self.deleted) if name is not None)
        return (*self.key, *self.values, *history, *self.previous.values())


@dataclass(slots=True)
class Sums:
    """Sums over the rows of a table. `newest` is over those of the table's transaction."""

    rows: int = 0
    counted: object = 0
    newest: object = 0
    per_txid: Counter[int] = field(default_factory=Counter)


def snapshot(storage: Storage, files: Iterable[DataFile], columns: RowColumns) -> Iterator[pa.Table]:
    """The rows of a table's files, part by part. Raises `OSError`."""
    for file in files:
        partition = file.partition.get(columns.txid)
        wanted = [name for name in columns.all if name != columns.txid or not columns.is_log]
        for part in storage.parquet_parts(file.path, wanted):
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
    """Check what must hold for each row and each key; add up what `counts` names (see `CheckedTable`).

    After transaction `unique_until` a key may have several rows of one transaction.
    """
    where = f"rows of {component!r}"
    sums, keys = Sums(), list[pa.Table]()
    unique = [*columns.key, columns.txid] if columns.is_log else list(columns.key)
    for part in parts:
        for kind, rule, wrong in _complaints(part, columns, table_txid):
            for row in part.filter(wrong).slice(0, SHOWN_PER_KIND).to_pylist():
                findings.add(kind, where, rule, shown(f"{name}={value!r}" for name, value in row.items()))
        _add_up(sums, part, columns, table_txid, counts)
        if unique_until is not None:
            part = part.filter(pc.less_equal(part.column(columns.txid), unique_until))
        keys.append(part.select(unique))
    _check_keys(where, keys, unique, sums.rows, findings)
    findings.looked_at("rows", sums.rows)
    return sums


def _complaints(
    part: pa.Table, columns: RowColumns, table_txid: int | None
) -> Iterator[tuple[Kind, str, pa.ChunkedArray]]:
    """What no row may be: the kind of finding, the rule, and a mask of the rows that violate it."""
    txid = part.column(columns.txid)
    if table_txid is not None:
        yield Kind.PARTLY_VISIBLE, f"{columns.txid} <= {table_txid}", _true(pc.greater(txid, table_txid))
    yield Kind.BROKEN_ROW, f"{columns.txid} >= 1", pc.fill_null(pc.less(txid, 1), fill_value=True)
    if columns.deleted is not None:
        yield from _wrong_tombstones(part, columns, _true(part.column(columns.deleted)))
    if columns.prev_txid is None:
        return
    before = part.column(columns.prev_txid)
    wrong = pc.or_(_true(pc.less(before, 1)), _true(pc.greater(before, txid)))
    yield Kind.BROKEN_ROW, f"1 <= {columns.prev_txid} <= {columns.txid}", wrong
    is_rolled_back, is_first = _true(pc.equal(before, txid)), before.is_null()
    for value, previous in columns.previous.items():
        old, new = part.column(previous), part.column(value)
        rule = "a row that was rolled back to hold its previous values"
        yield Kind.BROKEN_ROW, rule, pc.and_(is_rolled_back, _differ(old, new))
        rule = "no previous values where the key did not exist"
        yield Kind.BROKEN_ROW, rule, pc.and_(is_first, old.is_valid())


def _wrong_tombstones(
    part: pa.Table, columns: RowColumns, is_deleted: pa.ChunkedArray
) -> Iterator[tuple[Kind, str, pa.ChunkedArray]]:
    for value in columns.values:
        wrong = pc.and_(is_deleted, part.column(value).is_valid())
        yield Kind.BROKEN_ROW, "no values of a key that was deleted", wrong
    if columns.prev_txid is not None:
        wrong = pc.and_(is_deleted, part.column(columns.prev_txid).is_null())
        yield Kind.BROKEN_ROW, "no tombstone of a key that did not exist", wrong


def _true(mask: pa.ChunkedArray) -> pa.ChunkedArray:
    """NULL is not true."""
    return pc.fill_null(mask, fill_value=False)


def _differ(one: pa.ChunkedArray, other: pa.ChunkedArray) -> pa.ChunkedArray:
    """Which values differ; NULL is equal to NULL, NaN to NaN."""
    if pa.types.is_nested(one.type):
        pairs = zip(one.to_pylist(), other.to_pylist(), strict=True)
        return pa.chunked_array([pa.array([a != b for a, b in pairs], pa.bool_())])
    differ = pc.or_(_true(pc.not_equal(one, other)), pc.xor(one.is_null(), other.is_null()))
    if pa.types.is_floating(one.type):
        differ = pc.and_not(differ, _true(pc.and_(pc.is_nan(one), pc.is_nan(other))))
    return differ


def _add_up(sums: Sums, part: pa.Table, columns: RowColumns, table_txid: int | None, counts: str | None) -> None:
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
            sums.newest += pc.sum(values.filter(_true(pc.equal(txid, table_txid))), min_count=0).as_py()


def _check_keys(where: str, keys: Sequence[pa.Table], unique: list[str], rows: int, findings: Findings) -> None:
    if not unique:
        if rows > 1:
            findings.add(Kind.BROKEN_ROW, where, "one row", rows)
        return
    if not keys:
        return
    grouped = pa.concat_tables(keys).group_by(unique).aggregate([([], "count_all")])
    double = grouped.filter(pc.greater(grouped.column("count_all"), 1))
    for row in double.slice(0, SHOWN_PER_KIND).to_pylist():
        times = row.pop("count_all")
        findings.add(Kind.BROKEN_ROW, where, f"one row of key {shown(row.values())}", times)


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

    Needs the batches of all transactions that the table contains; otherwise only the last one's changes are added up.
    `is_counted`: see `CheckedTable`.
    """
    where = f"rows of {component!r}, {counts}"
    joined_at = history.joined_at(component)
    batches = {batch.txid: batch for batch in history.committed}
    if table_txid is None or table_txid not in {0, *batches}:
        findings.note(f"{where}: the table is at a transaction that is not committed yet; its counts were not checked")
        return
    if table_txid == joined_at:
        return
    if columns.deleted is not None:
        findings.note(f"{where}: not checked, because keys may have been deleted, and their counts with them")
        return
    if columns.expires is not None:
        findings.note(f"{where}: not checked, because rows expire, and their counts with them")
        return
    if any(batch.is_filtered for batch in history.committed):
        findings.note(f"{where}: not checked, because tuples were set aside as dead letters or retried")
        return
    since = [batch for txid, batch in batches.items() if joined_at < txid <= table_txid]
    is_counted = is_counted and cache(is_counted)  # it is called for each batch
    unknown = _unknown_partition(history, since, is_counted)
    if unknown is not None:
        findings.note(f"{where}: not checked, because {unknown}")
        return
    records = {batch.txid: _counted_records(batch, is_counted) for batch in since}
    if counts == "*":
        first = min(records)
        wrong = {txid for txid, number in records.items() if number != sums.per_txid[txid]}
        wrong |= {txid for txid in sums.per_txid.keys() - records.keys() if txid and txid >= first}
        for number in sorted(wrong):
            _compare(where, f"transaction {number}", records.get(number, 0), sums.per_txid[number], findings)
        return
    if not history.knows_when_joined(component):
        findings.note(f"{where}: the store does not know since when the table counts; its last transaction was checked")
    elif 1 in batches:
        of = f"transactions {joined_at + 1} to {table_txid}"
        _compare(where, of, sum(records.values()), sums.counted, findings)
    _compare(where, f"transaction {table_txid}", records[table_txid], sums.newest, findings)


def _unknown_partition(
    history: StoreHistory, batches: Iterable[CommittedBatch], is_counted: CountedPartition | None
) -> str | None:
    """Why nobody can say whether records reach a table; None: it is known of all."""
    if is_counted is None:
        several = len(history.streams) > 1
        return "the code alone says which stream reaches it: pass MODULE:TOPOLOGY" if several else None
    for batch in batches:
        for partition, (_, _, records) in batch.ranges.items():
            if records and is_counted(partition) is None:
                return f"records of {partition[0]} were read for a stream that is no longer there"
    return None


def _counted_records(batch: CommittedBatch, is_counted: CountedPartition | None) -> int:
    """The number of records of a batch that reach a table."""
    if is_counted is None:
        return batch.records
    return sum(records or 0 for partition, (_, _, records) in batch.ranges.items() if is_counted(partition))


def _compare(where: str, of: str, expected: int, found: object, findings: Findings) -> None:
    if found != expected:
        findings.add(Kind.WRONG_COUNT, f"{where}, {of}", f"{expected}, as many as records were read", found)


def shown(values: Iterable[object]) -> str:
    """Values in a message, limited in length."""
    text = ", ".join(map(str, values))
    return text if len(text) <= 300 else f"{text[:300]}…"
