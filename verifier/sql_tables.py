"""Checks the tables of states in SQL databases: their owner, their transaction, and their rows.

A SQL table has no log. So its current contents are checked: its row in the registry of states and its own rows, both as
of one moment. The database counts and compares; rows are fetched only to show them. A table in Redis is first copied
into a database in memory.
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

from verifier.evidence.databases import connect_at_one_moment, open_database
from verifier.evidence.findings import SHOWN_PER_KIND, CheckImpossible, Findings, Kind
from verifier.evidence.store import CountedPartition, StoreHistory
from verifier.horizons import ExpiryHorizons, ExpiryRule, check_horizon
from verifier.redis_tables import SCHEMES, copy_table, parse_names
from verifier.rows import RowColumns, Sums, check_count, check_layout, format_values
from verifier.tables import TableTxid, check_table_txid

REGISTRY = "transactional_states"
HORIZONS = "transactional_horizons"
_HORIZONS = f"SELECT expires, txid, horizon, previous_horizon FROM {HORIZONS} WHERE table_name = :name"
_REGISTERED = f"SELECT layout, owner, attempt_id, columns FROM {REGISTRY} WHERE table_name = :name"


@dataclass(frozen=True, slots=True)
class CheckedSqlTable:
    """The table of a committer in a database at `sqlite:///path`, `postgresql://…` or `redis://…`. For the other
    attributes see `CheckedTable`."""

    component: str
    url: str = field(repr=False)
    table: str
    columns: RowColumns | None = None
    counts: str | None = None
    expires: ExpiryRule | None = None
    """How its rows expire, if they do; None: the horizons are not compared with the batches."""
    is_counted: CountedPartition | None = None

    @property
    def place(self) -> str:
        """The name of the table in messages."""
        return f"table of {self.component!r}"


@dataclass(frozen=True, slots=True)
class Registered:
    """A table's row in the registry of states."""

    owner: str
    attempt_id: int | None
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SqlMoment:
    """A table as of one moment, while the connection is open. `columns` None: there is no such table."""

    connection: Connection
    columns: tuple[str, ...] | None
    registered: Registered | None
    expires: str | None = None
    """The column by which its rows expire."""
    horizons: ExpiryHorizons | None = None
    """The expiry horizons that the table has recorded."""
    length: int | None = None
    """The recorded number of rows, None if none is."""


@contextmanager
def open_moment(table: CheckedSqlTable) -> Iterator[SqlMoment]:
    """Open a table as of now. Raises `CheckImpossible` if its database can't be read."""
    database_name = f"database of {table.component!r}"
    if table.url.partition(":")[0] in SCHEMES:
        with copy_from_redis(table, database_name) as moment:
            yield moment
        return
    engine = open_database(table.url, name=database_name)
    try:
        with connect_at_one_moment(engine, name=database_name) as connection:
            inspector = inspect(connection)
            registered = _read_registered(connection, table.table) if inspector.has_table(REGISTRY) else None
            has_table = inspector.has_table(table.table)
            columns = tuple(column["name"] for column in inspector.get_columns(table.table)) if has_table else None
            horizons = _read_horizons(connection, table.table) if inspector.has_table(HORIZONS) else (None, None)
            yield SqlMoment(connection, columns, registered, *horizons)
    finally:
        engine.dispose()


@contextmanager
def copy_from_redis(table: CheckedSqlTable, database_name: str) -> Iterator[SqlMoment]:
    """Copy a table of Redis into a database in memory, and open it there."""
    deletes = table.columns is not None and table.columns.deleted is not None
    with copy_table(table.url, table.table, deletes=deletes, name=database_name) as copy:
        registered = None if copy.names is None else Registered(copy.owner, copy.attempt_id, copy.names)
        yield SqlMoment(copy.connection, copy.names, registered, copy.expires, copy.horizons, copy.length)


def _read_horizons(connection: Connection, table_name: str) -> tuple[str | None, ExpiryHorizons | None]:
    row = connection.execute(text(_HORIZONS), {"name": table_name}).one_or_none()
    return (None, None) if row is None else (row.expires, ExpiryHorizons(row.txid, row.horizon, row.previous_horizon))


def _read_registered(connection: Connection, table_name: str) -> Registered | None:
    row = connection.execute(text(_REGISTERED), {"name": table_name}).one_or_none()
    if row is None:
        return None
    check_layout(row.layout, f"table {table_name!r}")
    return Registered(row.owner, row.attempt_id, parse_names(row.columns))


def check_sql_table(
    table: CheckedSqlTable, moment: SqlMoment, history: StoreHistory, txid_before: int, findings: Findings
) -> None:
    """Check a table against the store, and its rows. `txid_before` was committed before the moment."""
    position = check_position(table, moment, history, txid_before, findings)
    if position is None or moment.columns is None:
        return
    columns = table.columns or RowColumns.from_names(moment.columns)
    if mismatch := _compare_columns(columns if table.columns else None, moment):
        expected, actual = mismatch
        findings.add(Kind.WRONG_TABLE, table.place, f"the columns {', '.join(expected)}", ", ".join(actual))
        findings.note(f"{table.place}: its rows were not checked, because its columns are not those of its state")
        return
    if moment.expires is not None:
        columns = columns.with_expiry(moment.expires)
        batch = next((batch for batch in history.committed if batch.attempt_id == position.attempt_id), None)
        if moment.horizons is not None and moment.horizons.txid:
            check_horizon(table.place, moment.horizons, batch, table.expires, findings)
    _check_question(table, columns, moment.columns)
    sums = _Rows(table, moment.connection, columns, position.txid, findings).check()
    if moment.length not in (None, sums.rows):
        findings.add(Kind.PARTLY_VISIBLE, table.place, f"{moment.length} rows, as the table has noted", sums.rows)
    if table.counts is not None:
        # Anything after `txid_before` may have been replayed since, from another batch.
        is_settled = position.txid is not None and position.txid <= txid_before
        check_count(
            *(table.component, sums, table.counts, position.txid if is_settled else None, history, findings, columns),
            table.is_counted,
        )


def check_position(
    table: CheckedSqlTable, moment: SqlMoment, history: StoreHistory, txid_before: int, findings: Findings
) -> TableTxid | None:
    """Check the owner of a table, and that it contains all committed transactions. Return its position, None if the
    table is missing or another's."""
    owner = f"{history.topology_id}/{table.component}"
    registered, place = moment.registered, table.place
    if registered is not None and (moment.columns is None or registered.owner != owner):
        has_owner = registered.owner == owner
        actual = f"no table, and its row in {REGISTRY}" if has_owner else f"one of {registered.owner}"
        findings.add(Kind.WRONG_TABLE, place, f"a table {table.table!r} of {owner}", actual)
        return None
    if registered is None and moment.columns is not None:
        findings.add(
            Kind.WRONG_TABLE, place, f"a row of {table.table!r} in {REGISTRY}", "a table that no state has made"
        )
        return None
    position = _find_position(
        registered.attempt_id if registered is not None else None, table, history, txid_before, findings
    )
    check_table_txid(table.component, position, history, txid_before, findings)
    return position


def _find_position(
    attempt_id: int | None, table: CheckedSqlTable, history: StoreHistory, txid_before: int, findings: Findings
) -> TableTxid:
    if attempt_id is None:
        return TableTxid(None, None)
    fences = history.fences_of(table.component)
    txid = fences.get(attempt_id, history.txid_of.get(attempt_id))
    if txid is None and attempt_id < (history.oldest_attempt_id or 0):
        findings.note(f"{table.place}: its last writer is an attempt that the store has deleted")
    elif txid is None:
        expected = "an attempt or fence of the store"
        findings.add(Kind.UNKNOWN_ATTEMPT, table.place, expected, f"attempt {attempt_id}")
    committed = {batch.txid: batch.attempt_id for batch in history.committed if batch.txid <= txid_before}
    if txid is not None and attempt_id not in fences and committed.get(txid, attempt_id) != attempt_id:
        expected = f"transaction {txid} as attempt {committed[txid]} wrote it, which the store has committed"
        findings.add(Kind.WRONG_ATTEMPT, table.place, expected, f"attempt {attempt_id}")
    return TableTxid(attempt_id, txid)


def _compare_columns(declared: RowColumns | None, moment: SqlMoment) -> tuple[list[str], list[str]] | None:
    """Return the expected and the existing columns, None if they are the same."""
    existing = sorted(moment.columns or ())
    registered = sorted(moment.registered.columns if moment.registered else ())
    for expected in (registered, sorted(declared.names) if declared is not None else registered):
        if expected != existing:
            return expected, existing
    return None


def _check_question(table: CheckedSqlTable, columns: RowColumns, existing: tuple[str, ...]) -> None:
    """Raise `CheckImpossible` if the table lacks the columns that should be checked."""
    if missing := sorted({*columns.names} - {*existing}):
        raise CheckImpossible(
            f"the table of {table.component!r} has no column {missing[0]!r}; its columns are "
            f"{', '.join(existing)}: does its state rename them? Give the topology, which knows"
        )
    if table.counts not in {None, "*", *columns.values}:
        raise CheckImpossible(
            f"the table of {table.component!r} has no value column {table.counts!r} that could count; its value "
            f"columns are {', '.join(columns.values)}"
        )


class _Rows:
    """Queries the rows of a table that violate a rule, and adds up its columns."""

    def __init__(
        self,
        table: CheckedSqlTable,
        connection: Connection,
        columns: RowColumns,
        table_txid: int | None,
        findings: Findings,
    ) -> None:
        self._place, self._counts = f"rows of {table.component!r}", table.counts
        self._connection, self._columns, self._table_txid, self._findings = connection, columns, table_txid, findings
        sql_columns: list[Column[object]] = [Column(quoted_name(name, True)) for name in columns.names]
        self._table = Table(quoted_name(table.table, True), MetaData(), *sql_columns)

    def check(self) -> Sums:
        """Check what must hold for each row and each key. Return the sums, also of the counting column."""
        for kind, rule, condition in self._violations():
            query = select(self._table).where(condition).limit(SHOWN_PER_KIND)
            for row in self._connection.execute(query).mappings():
                fields = format_values(f"{name}={field_!r}" for name, field_ in row.items())
                self._findings.add(kind, self._place, rule, fields)
        sums = self._sums()
        self._check_keys(sums.rows)
        self._findings.add_checked("rows", sums.rows)
        return sums

    def _column(self, name: str) -> ColumnElement[Any]:
        return self._table.c[name]

    def _violations(self) -> Iterator[tuple[Kind, str, ColumnElement[bool]]]:
        """Yield for each rule the kind of finding, the rule in words, and a condition for the rows that violate it."""
        columns = self._columns
        txid, prev_txid = self._column(columns.txid), self._column(str(columns.prev_txid))
        if self._table_txid is not None:
            yield Kind.PARTLY_VISIBLE, f"{columns.txid} <= {self._table_txid}", txid > self._table_txid
        yield Kind.BROKEN_ROW, f"{columns.txid} >= 1", or_(txid.is_(None), txid < 1)
        rule = f"1 <= {columns.prev_txid} <= {columns.txid}"
        yield Kind.BROKEN_ROW, rule, or_(prev_txid < 1, prev_txid > txid)
        if columns.deleted is not None:
            is_deleted = self._column(columns.deleted).is_(True)
            rule = "no tombstone of a key that did not exist"
            yield Kind.BROKEN_ROW, rule, and_(is_deleted, prev_txid.is_(None))
            for name in columns.values:
                rule = "no values of a key that was deleted"
                yield Kind.BROKEN_ROW, rule, and_(is_deleted, self._column(name).is_not(None))
        for name, previous_name in columns.previous.items():
            new, old = self._column(name), self._column(previous_name)
            rule = "a row that was rolled back to hold its previous values"
            yield Kind.BROKEN_ROW, rule, and_(prev_txid == txid, new.is_distinct_from(old))
            rule = "no previous values where the key did not exist"
            yield Kind.BROKEN_ROW, rule, and_(prev_txid.is_(None), old.is_not(None))

    def _sums(self) -> Sums:
        txid, counts = self._column(self._columns.txid), self._counts
        sums = Sums(rows=self._query_scalar(select(func.count()).select_from(self._table)))
        if counts == "*":
            per_txid = self._connection.execute(select(txid, func.count()).group_by(txid))
            sums.per_txid.update({row[0]: row[1] for row in per_txid})
        elif counts is not None:
            counted, previous = self._column(counts), self._column(self._columns.previous[counts])
            sums.counted = self._query_scalar(select(func.sum(counted))) or 0
            added = func.sum(func.coalesce(counted, 0) - func.coalesce(previous, 0))
            sums.newest = self._query_scalar(select(added).where(txid == self._table_txid)) or 0
        return sums

    def _query_scalar(self, query: Select[Any]) -> Any:
        return self._connection.execute(query).scalar()

    def _check_keys(self, rows: int) -> None:
        if not self._columns.key:
            if rows > 1:
                self._findings.add(Kind.BROKEN_ROW, self._place, "one row", rows)
            return
        # A unique index treats two keys with NULLs as different.
        key = [self._column(name) for name in self._columns.key]
        query = select(*key, func.count()).group_by(*key).having(func.count() > 1).limit(SHOWN_PER_KIND)
        for *values, times in self._connection.execute(query):
            self._findings.add(Kind.BROKEN_ROW, self._place, f"one row of key {format_values(values)}", times)
