"""The table of a SQL state and its statements.

A key may have NULLs, and a unique index treats two of these as different. So rows whose keys have none are upserted by
the unique index, which also serves lookups by key in SQL; the few others are deleted and inserted again. Nobody can get
in between: a writer has moved the table's version first, and holds that row's lock until the end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    CompoundSelect,
    Connection,
    Index,
    Insert,
    MetaData,
    Row,
    Select,
    Table,
    UniqueConstraint,
    and_,
    any_,
    bindparam,
    case,
    delete,
    func,
    or_,
    select,
    true,
    tuple_,
    union_all,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateColumn
from sqlalchemy.sql import quoted_name

from state.rows.columns import StateColumns
from state.rows.expiring import is_expired, moment
from state.rows.opaque_columns import ColumnsAsOf
from state.rows.records import Records
from state.rows.stored_value import StoredValue
from state.sql.types import sql_type
from transactional.model.absent import ABSENT
from transactional.model.attempt import TxId
from transactional.model.user_code.tuples import Key

ROWS_PER_STATEMENT: Final = 1_000
_VARIABLES_MAX: Final = 30_000

Values: TypeAlias = tuple[Any, ...]
Nulls: TypeAlias = tuple[bool, ...]
"""For each key column whether it is NULL."""
Term: TypeAlias = ColumnElement[Any]


@dataclass(frozen=True, slots=True)
class _SqlTerms:
    """SQL conditions over the columns of a table, by name (see `state.rows.opaque_columns`)."""

    columns: Mapping[str, Column[Any]]

    def column(self, name: str) -> Term:
        return self.columns[name]

    def is_below(self, name: str, txid: int) -> Term:
        return self.columns[name] < txid

    def is_there(self, name: str) -> Term:
        return self.columns[name].is_not(None)

    def is_unset(self, name: str) -> Term:
        return self.columns[name].is_not(True)

    def either(self, first: Term, second: Term) -> Term:
        return or_(first, second)

    def choose(self, condition: Term, value: Term, otherwise: Term) -> Term:
        return case((condition, value), else_=otherwise)


class StateTable:
    """The rows of a state in one kind of database. All methods work within the caller's database transaction."""

    def __init__(self, name: str, columns: StateColumns, *, is_sqlite: bool) -> None:
        def column(key: str, name: str, type_: str, *, nullable: bool = True) -> Column[Any]:
            return Column(quoted_name(name, True), sql_type(type_, is_sqlite=is_sqlite), key=key, nullable=nullable)

        key_fields, value_fields = list(enumerate(columns.key)), list(enumerate(columns.values))
        self._key = [column(f"k{number}", field.name, field.type) for number, field in key_fields]
        self._values = [column(f"v{number}", field.name, field.type) for number, field in value_fields]
        self._txid = column("txid", columns.txid, "long", nullable=False)
        self._prev_txid = column("prev_txid", columns.prev_txid, "long")
        self._prevs = [column(f"p{number}", columns.prev[field.name], field.type) for number, field in value_fields]
        self._deleted = [column("deleted", columns.deleted, "boolean")] if columns.deletes else []
        history = [self._txid, self._prev_txid, *self._deleted]
        self.columns = [*self._key, *self._values, *history, *self._prevs]
        unique = [UniqueConstraint(*self._key)] if key_fields else []
        self.table = Table(quoted_name(name, True), MetaData(), *self.columns, *unique)
        for deleted in self._deleted:  # few rows, which the next transaction has to find
            digest = hashlib.sha256(name.encode()).hexdigest()[:16]
            is_true = deleted.is_(True)
            Index(f"deleted_{digest}", deleted, sqlite_where=is_true, postgresql_where=is_true)
        visible = [*self._key, *self._values]
        self._expiry = next((n for n, field in enumerate(visible) if field.name == columns.expires), None)
        if self._expiry is not None:
            digest = hashlib.sha256(name.encode()).hexdigest()[:16]
            self.expiry_index = Index(f"expires_{digest}", visible[self._expiry])
        self._is_sqlite, self._columns, self._records = is_sqlite, columns, Records(columns)
        self._insert, self._upsert = self._make_insert(), self._make_upsert()
        self._lookups: dict[Nulls, Select[Any]] = {}
        self._change_queries: dict[tuple[Nulls, bool], CompoundSelect[Any]] = {}
        self._rows_per_statement = min(ROWS_PER_STATEMENT, _VARIABLES_MAX // max(1, len(key_fields)))

    def newest_txid(self, connection: Connection) -> int | None:
        """Return the highest transaction of any row, None without rows."""
        newest: int | None = connection.execute(select(func.max(self._txid))).scalar()
        return newest

    def without_columns(self, names: Collection[str]) -> StateTable:
        """Return the table as it was before it gained the columns `names`."""
        return StateTable(str(self.table.name), self._columns.without_columns(names), is_sqlite=self._is_sqlite)

    def add(self, connection: Connection, column: Column[Any]) -> None:
        """Add a column of this table to one that lacks it."""
        described = CreateColumn(column).compile(dialect=connection.dialect)
        name = connection.dialect.identifier_preparer.format_table(self.table)
        connection.exec_driver_sql(f"ALTER TABLE {name} ADD COLUMN {described}")
        if column in self._deleted:
            for index in self.table.indexes:
                index.create(connection)

    # --- reading ----------------------------------------------------------------------------------------------------

    def read_rows(self, connection: Connection, keys: Sequence[Key]) -> dict[Key, StoredValue]:
        """Return the rows with these keys."""
        rows = dict[Key, StoredValue]()
        for nulls, part in self._group_by_nulls(keys):
            rows |= self._stored_values(connection.execute(self._lookup(nulls), self._key_parameters(nulls, part)))
        return rows

    def rows_to_change(self, connection: Connection, keys: Sequence[Key], since: TxId | None) -> dict[Key, StoredValue]:
        """Return the rows with these keys and `tombstones_and_rows_since`, by one query if the keys fit into it."""
        if since is None and not self._deleted:
            return self.read_rows(connection, keys)
        parts = list(self._group_by_nulls(keys))
        if not parts:
            return self.tombstones_and_rows_since(connection, since)
        (nulls, part), remaining_keys = parts[0], [key for _, keys_of_part in parts[1:] for key in keys_of_part]
        query = self._change_queries.get((nulls, since is None))
        if query is None:
            query = union_all(self._lookup(nulls), self._select_since(has_since=since is not None))
            self._change_queries[nulls, since is None] = query
        parameters = self._key_parameters(nulls, part) | ({} if since is None else {"since": since})
        return self._stored_values(connection.execute(query, parameters)) | self.read_rows(connection, remaining_keys)

    def all_stored(self, connection: Connection) -> dict[Key, StoredValue]:
        """Return all rows of the table."""
        return self._stored_values(connection.execute(select(*self.columns)))

    def tombstones_and_rows_since(self, connection: Connection, since: TxId | None) -> dict[Key, StoredValue]:
        """Return the tombstones, which are few, and with `since` the rows of this transaction and later ones."""
        if since is None and not self._deleted:
            return {}
        parameters = {} if since is None else {"since": since}
        return self._stored_values(connection.execute(self._select_since(has_since=since is not None), parameters))

    def stored_between(
        self, connection: Connection, column: str, after: int | None, until: int
    ) -> dict[Key, StoredValue]:
        """Return the rows whose column is in a range, or was in it before the last transaction of the row."""

        def is_in_range(column: Column[Any]) -> ColumnElement[bool]:
            is_late = true() if after is None else column > moment(after)
            return and_(is_late, column <= moment(until))

        names = [shown.name for shown in (*self._key, *self._values)]
        index = names.index(column)
        columns = {[*self._key, *values][index] for values in (self._values, self._prevs)}
        return self._stored_values(connection.execute(select(*self.columns).where(or_(*map(is_in_range, columns)))))

    def rows_before(self, connection: Connection, txid: TxId, keys: Sequence[Key]) -> list[Values]:
        """Return key and values of the rows with these keys that existed before transaction `txid`."""
        values_of = ((key, row.value_before(txid)) for key, row in self.read_rows(connection, keys).items())
        return [(*key, *values) for key, values in values_of if values is not ABSENT]

    def visible_rows(self, connection: Connection, committed_txid: TxId | None) -> Iterator[list[Values]]:
        """Yield key and values of all rows in parts, expired ones too, as they were after `committed_txid` if given."""
        before = None if committed_txid is None else TxId(committed_txid + 1)
        as_of = ColumnsAsOf.before_transaction(
            self._columns, before, _SqlTerms({str(column.name): column for column in self.columns})
        )
        query = select(*self._key, *map(as_of.value_column, self._columns.values.names))
        rows = connection.execution_options(yield_per=10 * ROWS_PER_STATEMENT).execute(
            query if as_of.row_filter is None else query.where(as_of.row_filter)
        )
        for part in rows.partitions():
            yield [tuple(row) for row in part]

    def unexpired_rows(
        self, connection: Connection, committed_txid: TxId | None, horizon: int | None
    ) -> Iterator[list[Values]]:
        """Yield, as `visible_rows` does, the rows that have not expired."""
        for part in self.visible_rows(connection, committed_txid):
            yield [row for row in part if not self._is_expired(row, horizon)]

    # --- writing ----------------------------------------------------------------------------------------------------

    def write(
        self, connection: Connection, changed_rows: Mapping[Key, StoredValue], deleted_keys: Sequence[Key]
    ) -> None:
        """Delete the rows with `deleted_keys`, and insert or replace the changed ones."""
        for nulls, part in self._group_by_nulls(deleted_keys):
            connection.execute(delete(self.table).where(self._has_key(nulls)), self._key_parameters(nulls, part))
        for nulls, part in self._group_by_nulls(list(changed_rows)):
            is_upserted = bool(self._key) and not any(nulls)
            if not is_upserted:
                connection.execute(delete(self.table).where(self._has_key(nulls)), self._key_parameters(nulls, part))
            records = [self._records.record(key, changed_rows[key]) for key in part]
            self._put(connection, self._upsert if is_upserted else self._insert, records)

    def remove_expired(self, connection: Connection, horizon: int, txid: TxId) -> None:
        """Remove the rows whose expiry is at or before the horizon, and that were written before transaction `txid`."""
        if self._expiry is not None:
            expiry = [*self._key, *self._values][self._expiry]
            connection.execute(delete(self.table).where(expiry <= moment(horizon), self._txid < txid))

    # --- details ----------------------------------------------------------------------------------------------------

    def _group_by_nulls(self, rows: Sequence[Values]) -> Iterator[tuple[Nulls, list[Values]]]:
        """Group rows, which begin with a key, by the NULLs of the key, in parts that fit into one statement."""
        by_nulls, width = dict[Nulls, list[Values]](), len(self._key)
        no_nulls = (False,) * width
        for row in rows:
            key = row[:width]
            nulls = tuple(field is None for field in key) if None in key else no_nulls
            by_nulls.setdefault(nulls, []).append(row)
        size = self._rows_per_statement
        for nulls, part in by_nulls.items():
            yield from ((nulls, part[start : start + size]) for start in range(0, len(part), size))

    def _is_expired(self, row: Values, horizon: int | None) -> bool:
        """Return whether a row of key and values has expired."""
        return horizon is not None and self._expiry is not None and is_expired(row[self._expiry], horizon)

    def _stored_values(self, rows: Iterable[Row[Any]]) -> dict[Key, StoredValue]:
        return self._records.rows(map(tuple, rows))

    def _has_key(self, nulls: Nulls) -> ColumnElement[bool]:
        """Return the condition that a row has one of the keys in parameter `keys`, all NULL in the same columns."""
        compared = [column for column, is_null in zip(self._key, nulls, strict=True) if not is_null]
        conditions: list[ColumnElement[bool]]
        conditions = [column.is_(None) for column, is_null in zip(self._key, nulls, strict=True) if is_null]
        if len(compared) == 1 and not self._is_sqlite:
            # One parameter however many keys there are.
            conditions.append(compared[0] == any_(bindparam("keys", type_=postgresql.ARRAY(compared[0].type))))
        elif compared:
            side: Any = compared[0] if len(compared) == 1 else tuple_(*compared)
            conditions.append(side.in_(bindparam("keys", expanding=True)))
        return and_(true(), *conditions)

    def _lookup(self, nulls: Nulls) -> Select[Any]:
        if nulls not in self._lookups:
            self._lookups[nulls] = select(*self.columns).where(self._has_key(nulls))
        return self._lookups[nulls]

    def _select_since(self, *, has_since: bool) -> Select[Any]:
        conditions: list[ColumnElement[bool]] = [deleted.is_(True) for deleted in self._deleted]
        conditions += [self._txid >= bindparam("since", type_=BigInteger)] if has_since else []
        return select(*self.columns).where(or_(*conditions))

    def _key_parameters(self, nulls: Nulls, rows: Sequence[Values]) -> dict[str, Any]:
        compared = [number for number, is_null in enumerate(nulls) if not is_null]
        if not compared:
            return {}
        if len(compared) == 1:
            return {"keys": [row[compared[0]] for row in rows]}
        return {"keys": [tuple(row[number] for number in compared) for row in rows]}

    def _put(self, connection: Connection, statement: Insert, records: Sequence[Values]) -> None:
        names = [column.key for column in self.columns]
        if self._is_sqlite:
            connection.execute(statement, [dict(zip(names, record, strict=True)) for record in records])
        else:
            connection.execute(statement, dict(zip(names, map(list, zip(*records, strict=True)), strict=True)))

    def _make_insert(self) -> Any:
        if self._is_sqlite:
            return sqlite.insert(self.table)
        # One parameter per column however many rows there are.
        arrays = [bindparam(column.key, type_=postgresql.ARRAY(column.type)) for column in self.columns]
        parameters = func.unnest(*arrays).table_valued(*(column.key for column in self.columns)).render_derived()
        values = select(*(parameters.c[column.key] for column in self.columns))
        return postgresql.insert(self.table).from_select(self.columns, values)

    def _make_upsert(self) -> Any:
        statement = self._make_insert()
        if not self._key:
            return statement
        changed = [column.key for column in self.columns if column not in self._key]
        return statement.on_conflict_do_update(
            index_elements=self._key, set_={name: statement.excluded[name] for name in changed}
        )
