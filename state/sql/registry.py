"""The registry of the SQL states of a database: for each table its version, the fence, and its declaration."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    MetaData,
    Row,
    Table,
    Text,
    bindparam,
    func,
    insert,
    inspect,
    select,
    update,
)

from state.rows.columns import StateColumns, check_layout
from state.rows.expiring import NO_HORIZONS, ExpiryHorizons
from state.sql.horizons import HORIZONS, read_horizons, register_expiry, write_horizons
from state.sql.notes import STORES
from state.sql.table import StateTable
from transactional.core.store.databases.quick import QuickQuery
from transactional.model.attempt import AttemptId, TxId
from transactional.model.errors import SchemaMismatch, StoreMismatch
from transactional.model.names import LAYOUT_VERSION
from transactional.model.schema import Schema

_CREATION_LOCK: Final = 4_004_005

_states = Table(
    "transactional_states",
    MetaData(),
    Column("table_name", Text, primary_key=True),
    Column("layout", BigInteger, nullable=False),
    Column("key_columns", Text, nullable=False),
    Column("columns", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("attempt_id", BigInteger),
)
_IS_OF_TABLE = _states.c.table_name == bindparam("this", type_=Text)
_SELECT = select(_states).where(_IS_OF_TABLE)
_VERSION = QuickQuery(
    select(_states.c.owner, _states.c.attempt_id, HORIZONS.c.txid, HORIZONS.c.horizon, HORIZONS.c.previous_horizon)
    .select_from(_states.outerjoin(HORIZONS, HORIZONS.c.table_name == _states.c.table_name))
    .where(_IS_OF_TABLE)
)
_HAND_OVER = update(_states).where(_IS_OF_TABLE).values(owner=bindparam("new_owner"), attempt_id=None)
_CHANGE = update(_states).where(_IS_OF_TABLE).values(columns=bindparam("new_columns"))
_MOVE = (
    update(_states)
    .where(
        _IS_OF_TABLE,
        _states.c.owner == bindparam("own", type_=Text),
        _states.c.attempt_id.is_not_distinct_from(bindparam("loaded", type_=BigInteger)),
    )
    .values(attempt_id=bindparam("moved_to"))
)


class Registration:
    """The registry's row of one state. `name` and `owner` are used in errors."""

    def __init__(self, rows: StateTable, columns: StateColumns, *, name: str, owner: str) -> None:
        self.rows, self._name, self._owner = rows, name, owner
        self._table_name = str(rows.table.name)
        self._state_columns, self._key_columns, self._columns = columns, str(columns.key), str(columns.all_columns)

    def create_or_check(self, connection: Connection, store_id: str | None = None) -> bool:
        """Create the state's table if there is none. Of two processes that do so at once, one creates it, with its
        `store_id`.

        Return False if the table lacks value columns that the state has gained: the first write has to add them.
        Raises `SchemaMismatch` for a table that is not this state's, `StoreMismatch` for one of another owner.
        """
        if connection.dialect.name == "postgresql":  # on SQLite the transaction itself has waited for all others
            connection.execute(select(func.pg_advisory_xact_lock(_CREATION_LOCK)))
        row = self._checked(connection)
        if row is None:
            self._create(connection)
            STORES.write(connection, self._table_name, store_id)
            return True
        if row.owner != self._owner:
            connection.execute(_HAND_OVER, {"this": self._table_name, "new_owner": self._owner})
            STORES.write(connection, self._table_name, store_id)
        lacks_expiry = self._state_columns.expires is not None and read_horizons(connection, self._table_name) is None
        return bool(row.columns == self._columns) and not lacks_expiry

    def check(self, connection: Connection) -> AttemptId | None:
        """Return the attempt id of the table's last writer, None if there is none. Changes nothing. Raises as
        `create_or_check` does."""
        row = self._checked(connection)
        is_written = row is not None and row.owner == self._owner and row.attempt_id is not None
        return AttemptId(row.attempt_id) if row is not None and is_written else None

    def created_for(self, connection: Connection) -> str | None:
        """Return the `store_id` that the table was created with."""
        store_id: str | None = STORES.read(connection, self._table_name)
        return store_id

    def missing_columns(self, connection: Connection) -> frozenset[str]:
        """Return the columns of the state that the table lacks, as no writer with the current columns has added them.
        Raises `SchemaMismatch` for a table of another layout."""
        row = self._row(connection)
        if row is None:
            return frozenset()
        check_layout(row.layout, f"state {self._name}")
        return frozenset(self._state_columns.all_columns.names) - {*Schema.parse(row.columns).names}

    def version(self, connection: Connection, *, is_reader: bool = False) -> tuple[AttemptId | None, ExpiryHorizons]:
        """Return the attempt id of the table's last writer, and the recorded expiry horizons.

        With `is_reader` the query takes the quick way, without the machinery of SQLAlchemy. Raises `StoreMismatch` if
        the table has another owner by now.
        """
        parameters = {"this": self._table_name}
        rows = (
            _VERSION.rows(connection, parameters) if is_reader else connection.execute(_VERSION.query, parameters).all()
        )
        owner, attempt_id, txid, *horizons = rows[0] if rows else (None, None, None)
        if owner != self._owner:
            state = "no longer there" if owner is None else f"that of {owner} now"
            raise StoreMismatch(f"state {self._name} was the table of {self._owner} and is {state}; restore it")
        version = None if attempt_id is None else AttemptId(attempt_id)
        return version, (NO_HORIZONS if txid is None else ExpiryHorizons(TxId(txid), *horizons))

    def record(self, connection: Connection, horizons: ExpiryHorizons) -> None:
        """Record the horizons of the transaction that moves the version on."""
        write_horizons(connection, self._table_name, horizons)

    def move(self, connection: Connection, loaded: AttemptId | None, attempt_id: AttemptId) -> bool:
        """Compare and set the version. On success nobody else can until this database transaction ends."""
        values = {"this": self._table_name, "own": self._owner, "loaded": loaded, "moved_to": attempt_id}
        return connection.execute(_MOVE, values).rowcount == 1

    def add_columns(self, connection: Connection) -> tuple[str, ...]:
        """Add the value columns that the table lacks, with their previous values: NULL in existing rows; and note that
        its rows expire from now on, if they do.

        Returns the names of the values. The caller has moved the version, so that nobody else does it at the same time.
        """
        row = self._row(connection)
        existing = Schema.parse(row.columns) if row is not None else self._state_columns.all_columns
        added = [column for column in self.rows.columns if column.name not in existing.names]
        for column in added:
            self.rows.add(connection, column)
        if self._state_columns.expires is not None and read_horizons(connection, self._table_name) is None:
            register_expiry(connection, self._table_name, self._state_columns.expires)
            self.rows.expiry_index.create(connection)
        connection.execute(_CHANGE, {"this": self._table_name, "new_columns": self._columns})
        return tuple(column.name for column in added if column.name in self._state_columns.values.names)

    def _row(self, connection: Connection) -> Row[Any] | None:
        return connection.execute(_SELECT, {"this": self._table_name}).one_or_none()

    def _checked(self, connection: Connection) -> Row[Any] | None:
        """Return the state's row after checking it and the table, None if there is neither."""
        inspector = inspect(connection)
        has_table = inspector.has_table(self._table_name)
        row = self._row(connection) if inspector.has_table(_states.name) else None
        if row is None and has_table:
            raise SchemaMismatch(
                f"state {self._name}: there is already a table of this name that no state has created (it is not in "
                f"{_states.name}); give the state another table"
            )
        if row is not None and not has_table:
            raise SchemaMismatch(
                f"state {self._name}: the table does not exist, but {_states.name} lists it; restore it, or delete its "
                "row there to start with an empty one"
            )
        if row is not None:
            self._check_columns(row, [column["name"] for column in inspector.get_columns(self._table_name)])
            self._check_expiry(connection)
            self._check_owner(connection, row)
        return row

    def _create(self, connection: Connection) -> None:
        _states.create(connection, checkfirst=True)
        HORIZONS.create(connection, checkfirst=True)
        self.rows.table.create(connection)
        if self._state_columns.expires is not None:
            register_expiry(connection, self._table_name, self._state_columns.expires)
        made_as = {"layout": LAYOUT_VERSION, "key_columns": self._key_columns, "columns": self._columns}
        connection.execute(insert(_states), {"table_name": self._table_name, "owner": self._owner, **made_as})

    def _check_columns(self, row: Row[Any], column_names: list[str]) -> None:
        check_layout(row.layout, f"state {self._name}")
        existing, columns = Schema.parse(row.columns), self._state_columns
        may_lack = {*columns.values.names, *columns.prev.values()}
        may_lack |= {columns.deleted} if columns.deletes else set()
        can_be_completed = {*existing} <= {*columns.all_columns} and {*columns.all_columns.names} - {
            *existing.names
        } <= may_lack
        has_key = {*Schema.parse(row.key_columns)} == {*columns.key}
        if not has_key or not can_be_completed or sorted(column_names) != sorted(existing.names):
            raise SchemaMismatch(
                f"state {self._name} was created with the key '{row.key_columns}' and the columns '{row.columns}', and "
                f"has {', '.join(column_names)}; the state needs the key '{self._key_columns}' and the columns "
                f"'{self._columns}': use another table, or declare the existing columns (value columns can be added, "
                "but nothing else can change)"
            )

    def _check_expiry(self, connection: Connection) -> None:
        recorded, declared = read_horizons(connection, self._table_name), self._state_columns.expires
        if recorded is not None and recorded[0] != declared:
            declaration = f"expires={declared!r}" if declared is not None else "no expires="
            raise SchemaMismatch(
                f"state {self._name} has rows that expire by the column {recorded[0]!r}, and is declared with "
                f"{declaration}: "
                f"declare expires={recorded[0]!r}, or use another table"
            )

    def _check_owner(self, connection: Connection, row: Row[Any]) -> None:
        if row.owner == self._owner:
            return
        newest = self.rows.newest_txid(connection)
        if newest is not None:
            raise StoreMismatch(
                f"state {self._name} has rows of transaction {newest}, written by {row.owner} and not by "
                f"{self._owner}: it is another topology's table; give each topology its own, or start with an empty one"
            )
