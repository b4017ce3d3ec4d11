"""The tables of states in SQL databases: their owner, their transaction, and whether their rows are plausible.

A SQL table has no log: the check covers its current contents, its row in the registry of states and its own rows, both
at one moment. The database counts and compares; rows are fetched only for display. One in Redis is copied first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    MetaData,
    Select,
    Table,
    and_,
    func,
    inspect,
    or_,
    select,
    text,
)
from sqlalchemy.sql import quoted_name

from verifier.evidence.databases import at_one_moment, open_database
from verifier.evidence.findings import SHOWN_PER_KIND, CheckImpossible, Findings, Kind
from verifier.evidence.store import CountedPartition, StoreHistory
from verifier.horizons import ExpiryHorizons, ExpiryRule, check_horizon
from verifier.redis_tables import SCHEMES, copied, named
from verifier.rows import RowColumns, Sums, check_count, check_layout, shown
from verifier.tables import TableTxid, check_reached

REGISTRY = "transactional_states"
HORIZONS = "transactional_horizons"
_HORIZONS = f"SELECT expires, txid, horizon, previous_horizon FROM {HORIZONS} WHERE table_name = :name"
_REGISTERED = f"SELECT layout, owner, attempt_id, columns FROM {REGISTRY} WHERE table_name = :name"


@dataclass(frozen=True, slots=True)
class CheckedSqlTable:
    """The table of a committer in a database: `sqlite:///path`, `postgresql://…` or `redis://…`. The others: see
    `CheckedTable`."""

    component: str
    url: str = field(repr=False)
    table: str
    columns: RowColumns | None = None
    counts: str | None = None
    expires: ExpiryRule | None = None
    """How the horizons follow from the batches, if its rows expire; None: that is not checked."""
    is_counted: CountedPartition | None = None

    @property
    def where(self) -> str:
        """The table in words."""
        return f"table of {self.component!r}"


@dataclass(frozen=True, slots=True)
class Registered:
    """What the registry of states says of a table."""

    owner: str
    attempt_id: int | None
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SqlMoment:
    """A table as it is at one moment, which lasts as long as its connection. `columns` None: there is no such table."""

    connection: Connection
    columns: tuple[str, ...] | None
    registered: Registered | None
    expires: str | None = None
    """The column by which its rows expire."""
    horizons: ExpiryHorizons | None = None
    """What is recorded of horizons then."""
    length: int | None = None
    """How many rows are recorded; None: none are."""


@contextmanager
def moment_of(table: CheckedSqlTable) -> Iterator[SqlMoment]:
    """Look at a table. Raises `CheckImpossible` when its database can't be read."""
    what = f"database of {table.component!r}"
    if table.url.partition(":")[0] in SCHEMES:
        with moment_in_redis(table, what) as moment:
            yield moment
        return
    engine = open_database(table.url, what=what)
    try:
        with at_one_moment(engine, what=what) as connection:
            found = inspect(connection)
            registered = _registered(connection, table.table) if found.has_table(REGISTRY) else None
            has_table = found.has_table(table.table)
            columns = tuple(c["name"] for c in found.get_columns(table.table)) if has_table else None
            horizons = _horizons(connection, table.table) if found.has_table(HORIZONS) else (None, None)
            yield SqlMoment(connection, columns, registered, *horizons)
    finally:
        engine.dispose()


@contextmanager
def moment_in_redis(table: CheckedSqlTable, what: str) -> Iterator[SqlMoment]:
    """A copy of a table in Redis."""
    deletes = table.columns is not None and table.columns.deleted is not None
    with copied(table.url, table.table, deletes=deletes, what=what) as copy:
        registered = None if copy.names is None else Registered(copy.owner, copy.attempt_id, copy.names)
        yield SqlMoment(copy.connection, copy.names, registered, copy.expires, copy.horizons, copy.length)


def _horizons(connection: Connection, table_name: str) -> tuple[str | None, ExpiryHorizons | None]:
    row = connection.execute(text(_HORIZONS), {"name": table_name}).one_or_none()
    return (None, None) if row is None else (row.expires, ExpiryHorizons(row.txid, row.horizon, row.previous_horizon))


def _registered(connection: Connection, table_name: str) -> Registered | None:
    row = connection.execute(text(_REGISTERED), {"name": table_name}).one_or_none()
    if row is None:
        return None
    check_layout(row.layout, f"table {table_name!r}")
    return Registered(row.owner, row.attempt_id, named(row.columns))


def check_sql_table(
    table: CheckedSqlTable, moment: SqlMoment, history: StoreHistory, txid_before: int, findings: Findings
) -> None:
    """Check a table against the store, and its rows. `txid_before` was committed before the moment."""
    stands = check_place(table, moment, history, txid_before, findings)
    if stands is None or moment.columns is None:
        return
    columns = table.columns or RowColumns.of(moment.columns)
    if wrong := _wrong_columns(columns if table.columns else None, moment):
        expected, found = wrong
        findings.add(Kind.WRONG_TABLE, table.where, f"the columns {', '.join(expected)}", ", ".join(found))
        findings.note(f"{table.where}: its rows were not checked, because its columns are not those of its state")
        return
    if moment.expires is not None:
        columns = columns.expiring(moment.expires)
        batch = next((each for each in history.committed if each.attempt_id == stands.attempt_id), None)
        if moment.horizons is not None and moment.horizons.txid:
            check_horizon(table.where, moment.horizons, batch, table.expires, findings)
    _check_asked(table, columns, moment.columns)
    sums = _Rows(table, moment.connection, columns, stands.txid, findings).check()
    if moment.length not in (None, sums.rows):
        findings.add(Kind.PARTLY_VISIBLE, table.where, f"{moment.length} rows, as the table has noted", sums.rows)
    if table.counts is not None:
        # Anything after `txid_before` may have been replayed since, from another batch.
        is_settled = stands.txid is not None and stands.txid <= txid_before
        check_count(
            *(table.component, sums, table.counts, stands.txid if is_settled else None, history, findings, columns),
            table.is_counted,
        )


def check_place(
    table: CheckedSqlTable, moment: SqlMoment, history: StoreHistory, txid_before: int, findings: Findings
) -> TableTxid | None:
    """Check the owner of a table, and that it contains what is committed. None if it is missing, or another's."""
    owner = f"{history.topology_id}/{table.component}"
    known, where = moment.registered, table.where
    if known is not None and (moment.columns is None or known.owner != owner):
        found = f"one of {known.owner}" if known.owner != owner else f"no table, and its row in {REGISTRY}"
        findings.add(Kind.WRONG_TABLE, where, f"a table {table.table!r} of {owner}", found)
        return None
    if known is None and moment.columns is not None:
        findings.add(
            Kind.WRONG_TABLE, where, f"a row of {table.table!r} in {REGISTRY}", "a table that no state has made"
        )
        return None
    stands = _stands(known.attempt_id if known is not None else None, table, history, txid_before, findings)
    check_reached(table.component, stands, history, txid_before, findings)
    return stands


def _stands(
    attempt_id: int | None, table: CheckedSqlTable, history: StoreHistory, txid_before: int, findings: Findings
) -> TableTxid:
    if attempt_id is None:
        return TableTxid(None, None)
    fences = history.fences_of(table.component)
    txid = fences.get(attempt_id, history.txid_of.get(attempt_id))
    if txid is None and attempt_id < (history.oldest_attempt_id or 0):
        findings.note(f"{table.where}: its last writer is an attempt that the store has deleted")
    elif txid is None:
        expected = "an attempt or fence of the store"
        findings.add(Kind.UNKNOWN_ATTEMPT, table.where, expected, f"attempt {attempt_id}")
    committed = {batch.txid: batch.attempt_id for batch in history.committed if batch.txid <= txid_before}
    if txid is not None and attempt_id not in fences and committed.get(txid, attempt_id) != attempt_id:
        expected = f"transaction {txid} as attempt {committed[txid]} wrote it, which the store has committed"
        findings.add(Kind.WRONG_ATTEMPT, table.where, expected, f"attempt {attempt_id}")
    return TableTxid(attempt_id, txid)


def _wrong_columns(declared: RowColumns | None, moment: SqlMoment) -> tuple[list[str], list[str]] | None:
    """The expected columns, and the existing ones, unless they are the same."""
    found, registered = sorted(moment.columns or ()), sorted(moment.registered.columns if moment.registered else ())
    for expected in (registered, sorted(declared.all) if declared is not None else registered):
        if expected != found:
            return expected, found
    return None


def _check_asked(table: CheckedSqlTable, columns: RowColumns, found: tuple[str, ...]) -> None:
    """Raise `CheckImpossible` for a question that the table's columns can't answer."""
    if missing := sorted({*columns.all} - {*found}):
        raise CheckImpossible(
            f"the table of {table.component!r} has no column {missing[0]!r}; its columns are {', '.join(found)}: does "
            "its state rename them? Give the topology, which knows"
        )
    if table.counts not in {None, "*", *columns.values}:
        raise CheckImpossible(
            f"the table of {table.component!r} has no value column {table.counts!r} that could count; its value "
            f"columns are {', '.join(columns.values)}"
        )


class _Rows:
    """The rows of a table, queried for what no row may be."""

    def __init__(
        self, table: CheckedSqlTable, connection: Connection, columns: RowColumns, table_txid: int | None, to: Findings
    ) -> None:
        self._where, self._counts = f"rows of {table.component!r}", table.counts
        self._connection, self._columns, self._table_txid, self._findings = connection, columns, table_txid, to
        named: list[Column[object]] = [Column(quoted_name(name, True)) for name in columns.all]
        self._table = Table(quoted_name(table.table, True), MetaData(), *named)

    def check(self) -> Sums:
        """Check what must hold for each row and each key; add up what should be counted."""
        for kind, rule, wrong in self._complaints():
            query = select(self._table).where(wrong).limit(SHOWN_PER_KIND)
            for row in self._connection.execute(query).mappings():
                self._findings.add(kind, self._where, rule, shown(f"{name}={value!r}" for name, value in row.items()))
        sums = self._sums()
        self._check_keys(sums.rows)
        self._findings.looked_at("rows", sums.rows)
        return sums

    def _column(self, name: str) -> ColumnElement[Any]:
        return self._table.c[name]

    def _complaints(self) -> Iterator[tuple[Kind, str, ColumnElement[bool]]]:
        """The kind of finding, the rule, and which rows violate it."""
        columns = self._columns
        txid, before = self._column(columns.txid), self._column(str(columns.prev_txid))
        if self._table_txid is not None:
            yield Kind.PARTLY_VISIBLE, f"{columns.txid} <= {self._table_txid}", txid > self._table_txid
        yield Kind.BROKEN_ROW, f"{columns.txid} >= 1", or_(txid.is_(None), txid < 1)
        rule = f"1 <= {columns.prev_txid} <= {columns.txid}"
        yield Kind.BROKEN_ROW, rule, or_(before < 1, before > txid)
        if columns.deleted is not None:
            is_deleted = self._column(columns.deleted).is_(True)
            rule = "no tombstone of a key that did not exist"
            yield Kind.BROKEN_ROW, rule, and_(is_deleted, before.is_(None))
            for value in columns.values:
                rule = "no values of a key that was deleted"
                yield Kind.BROKEN_ROW, rule, and_(is_deleted, self._column(value).is_not(None))
        for value, previous in columns.previous.items():
            new, old = self._column(value), self._column(previous)
            rule = "a row that was rolled back to hold its previous values"
            yield Kind.BROKEN_ROW, rule, and_(before == txid, new.is_distinct_from(old))
            rule = "no previous values where the key did not exist"
            yield Kind.BROKEN_ROW, rule, and_(before.is_(None), old.is_not(None))

    def _sums(self) -> Sums:
        txid, counts = self._column(self._columns.txid), self._counts
        sums = Sums(rows=self._one(select(func.count()).select_from(self._table)))
        if counts == "*":
            per_txid = self._connection.execute(select(txid, func.count()).group_by(txid))
            sums.per_txid.update({row[0]: row[1] for row in per_txid})
        elif counts is not None:
            value, previous = self._column(counts), self._column(self._columns.previous[counts])
            sums.counted = self._one(select(func.sum(value))) or 0
            added = func.sum(func.coalesce(value, 0) - func.coalesce(previous, 0))
            sums.newest = self._one(select(added).where(txid == self._table_txid)) or 0
        return sums

    def _one(self, query: Select[Any]) -> Any:
        return self._connection.execute(query).scalar()

    def _check_keys(self, rows: int) -> None:
        if not self._columns.key:
            if rows > 1:
                self._findings.add(Kind.BROKEN_ROW, self._where, "one row", rows)
            return
        # A unique index treats two keys with NULLs as different.
        key = [self._column(name) for name in self._columns.key]
        query = select(*key, func.count()).group_by(*key).having(func.count() > 1).limit(SHOWN_PER_KIND)
        for *values, times in self._connection.execute(query):
            self._findings.add(Kind.BROKEN_ROW, self._where, f"one row of key {shown(values)}", times)
