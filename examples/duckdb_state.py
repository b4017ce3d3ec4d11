"""`DuckDBMapState`: a state of one's own, in a table of a DuckDB file; docs/howto/own-state.md explains it.

DuckDB lets one process at a time have a file that is written: while a topology runs nobody else reads its rows, and who
takes over can't before that process has ended. It needs the package `duckdb`.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa

from state.declared import DeclaredTable
from state.fence import WriteRefused
from state.row_table import Change, Changes, RowStore, RowTable, RowWrite
from state.rows.expiring import NO_HORIZONS, ExpiryHorizons
from state.rows.going_back import describe_rewind
from state.rows.opaque_rule import Rows
from state.rows.python_rows import rows_of, table_of_rows
from state.rows.records import Records
from state.rows.value_limits import ValueLimits
from state.table_state import TableState
from transactional import Schema
from transactional.bolts import Key
from transactional.core.ports.state_parts import Rewind, RewindTarget, StateParts, TableExamination
from transactional.errors import ConfigError, OperatingError, SchemaMismatch, StoreMismatch
from transactional.model.arrow import arrow_schema
from transactional.model.attempt import AttemptId, TxId
from transactional.model.names import owner_of

_CREATING: Final = threading.Lock()
"""Files are opened, and tables created, one after the other: DuckDB refuses the second of two at once."""
_REGISTRY: Final = """CREATE TABLE IF NOT EXISTS transactional_states (
    name VARCHAR, owner VARCHAR, columns VARCHAR, store_id VARCHAR, attempt_id BIGINT,
    horizon_txid BIGINT, horizon BIGINT, previous_horizon BIGINT, rewound_to BIGINT)"""


@contextmanager
def raising_ours(state: str) -> Iterator[None]:
    """Raise DuckDB's errors as the errors that users of a state expect."""
    try:
        yield
    except duckdb.ProgrammingError as error:
        raise ConfigError(f"state {state} can't be used: {_line(error)}") from error
    except duckdb.Error as error:
        raise OperatingError(
            f"state {state} can't be reached: {_line(error)}. DuckDB lets one process have a file that is written: if "
            "another one has it, end that one first"
        ) from error


def connected(path: Path, state: str) -> duckdb.DuckDBPyConnection:
    """A connection to a file, in which times are UTC. Raises `OperatingError`."""
    with raising_ours(state), _CREATING:
        connection = duckdb.connect(str(path))
        return connection.execute("SET TimeZone = 'UTC'")


class DuckRows(RowStore):
    """A table of a DuckDB file, with its row in the registry. A write is one database transaction."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, table: str, declared: DeclaredTable, owner: str) -> None:
        self._connection, self._name, self._owner, self._state = connection, table, owner, declared.table
        columns = self._columns = declared.columns
        self._table = _quoted(table)
        self._width, self._records = len(columns.key), Records(columns)

    def open(self, store_id: str | None = None) -> None:
        """Create the table, or check the one that is there. Raises `SchemaMismatch`, `StoreMismatch`."""
        with raising_ours(self._state), _CREATING, self._transaction():
            self._connection.execute(_REGISTRY)
            recorded, owner, columns = self._recorded(), self._owner, str(self._columns.all_columns)
            if not recorded:
                self._create(owner, columns, store_id)
            elif recorded["owner"] != owner:
                raise StoreMismatch(f"state {self._state} is the table of {recorded['owner']}, not of {owner}")
            elif recorded["columns"] != columns:
                raise SchemaMismatch(f"state {self._state} needs '{columns}', its table has '{recorded['columns']}'")

    def created_for(self) -> str | None:
        return self._recorded().get("store_id")

    def version(self) -> tuple[AttemptId | None, ExpiryHorizons]:
        about = self._recorded()
        txid, horizons = about.get("horizon_txid"), (about.get("horizon"), about.get("previous_horizon"))
        return about.get("attempt_id"), NO_HORIZONS if txid is None else ExpiryHorizons(TxId(txid), *horizons)

    def rewound_to(self) -> TxId:
        return TxId(self._recorded().get("rewound_to") or 0)

    def rows(self, keys: Collection[Key] | None = None) -> Rows:
        """Return rows by key. A table without a key has one row at most."""
        if keys is None or not self._width:
            return self._stored("true")
        with self._registered(keys, self._columns.key) as source:
            return self._stored(f"EXISTS (SELECT 1 FROM {source} g WHERE {self._same_key('g')})")

    def rows_between(self, column: str, after: int | None, until: int) -> Rows:
        """Return the rows whose column is in the range, or was before their last transaction."""
        names = [column] if column in self._columns.key.names else [column, self._columns.prev[column]]
        late = [f"epoch_us({_quoted(name)}) BETWEEN $after + 1 AND $until" for name in names]
        return self._stored(" OR ".join(late), {"after": -(2**63) if after is None else after, "until": until})

    def tombstones_and_rows_since(self, since: TxId | None) -> Rows:
        """Return tombstones and, with `since`, the rows of this transaction and later ones."""
        marks = [f"{_quoted(self._columns.deleted)}"] if self._columns.deletes else []
        marks += [] if since is None else [f"{_quoted(self._columns.txid)} >= {since:d}"]
        return self._stored(" OR ".join(marks)) if marks else {}

    def write(self, write: RowWrite, change: Change | None = None) -> None:
        """Advance the version, which no other writer can do then, compute the change, and write it."""
        try:
            with self._transaction():
                self._move(write)
                if change is not None:
                    self._replace(change())
        except duckdb.Error as error:
            is_conflict = isinstance(error, duckdb.TransactionException)
            raise WriteRefused(_line(error), is_conflict=is_conflict) from error

    def _create(self, owner: str, columns: str, store_id: str | None) -> None:
        with self._registered([], self._columns.all_columns) as source:
            self._connection.execute(f"CREATE TABLE {self._table} AS SELECT * FROM {source}")
        about = [self._name, owner, columns, store_id, *(None,) * 5]
        self._connection.execute("INSERT INTO transactional_states VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", about)

    def _recorded(self) -> dict[str, Any]:
        with raising_ours(self._state):
            query = "SELECT * FROM transactional_states WHERE name = ?"
            records: list[dict[str, Any]] = self._arrow(query, [self._name]).to_pylist()
        return records[0] if records else {}

    def _move(self, write: RowWrite) -> None:
        """Compare the version, and set it. Raises `WriteRefused`."""
        new: dict[str, int | None] = {"attempt_id": write.version}
        if (horizons := write.horizons) is not None:
            new |= {"horizon_txid": horizons.txid, "horizon": horizons.current, "previous_horizon": horizons.previous}
        if write.rewound_to is not None:
            new["rewound_to"] = write.rewound_to
        setting = ", ".join(f"{name} = ?" for name in new)
        condition = "name = ? AND attempt_id IS NOT DISTINCT FROM ?::BIGINT"
        update = f"UPDATE transactional_states SET {setting} WHERE {condition} RETURNING name"
        if not self._arrow(update, [*new.values(), self._name, write.expected_version]).num_rows:
            raise WriteRefused("another writer came between", is_conflict=True)

    def _stored(self, condition: str, parameters: Mapping[str, Any] | None = None) -> Rows:
        query = f"SELECT * FROM {self._table} t WHERE {condition}"
        with raising_ours(self._state):
            table = self._arrow(query, parameters)
        return self._records.rows(rows_of(table.cast(arrow_schema(self._columns.all_columns))))

    def _replace(self, changes: Changes) -> None:
        keys = [*changes.changed_rows, *changes.deleted_keys]
        if keys and not self._width:
            self._connection.execute(f"DELETE FROM {self._table}")
        elif keys:
            with self._registered(keys, self._columns.key) as source:
                self._connection.execute(f"DELETE FROM {self._table} t USING {source} g WHERE {self._same_key('g')}")
        records = [self._records.record(*row) for row in changes.changed_rows.items()]
        with self._registered(records, self._columns.all_columns) as source:
            self._connection.execute(f"INSERT INTO {self._table} SELECT * FROM {source}")

    def _same_key(self, alias: str) -> str:
        names = map(_quoted, self._columns.key.names)
        return " AND ".join(f"t.{name} IS NOT DISTINCT FROM {alias}.{name}" for name in names)

    def _arrow(self, query: str, parameters: Any = None) -> pa.Table:
        return self._connection.sql(query, params=parameters).to_arrow_table()

    @contextmanager
    def _registered(self, rows: Collection[tuple[Any, ...]], columns: Schema) -> Iterator[str]:
        """Register rows under a name that DuckDB can query."""
        name = "transactional_given"
        self._connection.register(name, table_of_rows(rows, columns))
        try:
            yield name
        finally:
            self._connection.unregister(name)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.begin()
        try:
            yield
            self._connection.commit()
        except BaseException:
            with suppress(duckdb.Error):
                self._connection.rollback()
            raise


class DuckDBMapState(TableState[RowTable], Rewind, TableExamination):
    """Key → values in a table of the DuckDB file `path`, which this process has from `open` to `close`.

    `key` and `values` are those of a `SqlMapState`, and so are the `options`: `kind`, `deletes`, `expires` and `after`.
    """

    rewind_obstacle = ""

    def __init__(
        self, path: str | Path, table: str, key: str | Sequence[str] | None = None, values: str = "", **options: Any
    ) -> None:
        self._path, self._table_name = Path(path).absolute(), table
        self._connection: duckdb.DuckDBPyConnection | None = None
        name = f"{table!r} in {self._path}"
        super().__init__(name, key, values, value_limits=ValueLimits(name), **options)

    @property
    def parts(self) -> StateParts:
        """The parts of the state: it can go back by one transaction, and is in a file."""
        return replace(super().parts, rewind=self, examination=self)

    @property
    def storage_path(self) -> str:
        return str(self._path)

    def identity(self) -> Mapping[str, str]:
        return self.declared.identity(duckdb=str(self._path), table=self._table_name)

    def load_table(self) -> RowTable:
        """Open the file, and create the table in it, or check the existing one."""
        self._connection = connected(self._path, self.declared.table)
        table = self._table_in(self._connection, self.owner)
        table.store.open(self.store_id)
        return table

    def close(self) -> None:
        super().close()
        if self._connection is not None:
            self._connection.close()

    def preview_rewind(self, topology_id: str, component_id: str, target: RewindTarget) -> str:
        """Describe what a rewind would undo (see the port): the newest transaction at most."""
        with self._open_briefly(owner_of(topology_id, component_id)) as table:
            return describe_rewind(
                self.declared.table,
                None if table is None else table.transaction_to_undo(table.read_and_check_version(), target),
            )

    def rewind(self, target: RewindTarget, fence_id: AttemptId) -> None:
        """Undo the newest transaction, under a new fence (see the port)."""
        self.rewind_by(fence_id, lambda table: table.rewind(target, fence_id))

    def all_rows(self, committed_txid: TxId | None) -> pa.Table:
        with self._open_briefly(self.owner) as table:
            if table is None:
                raise OperatingError(f"state {self.declared.table}: there is no such file yet")
            return table.visible_rows(committed_txid)

    @contextmanager
    def _open_briefly(self, owner: str) -> Iterator[RowTable | None]:
        """Open the current table for a moment, with a connection of its own. None if there is no file."""
        if not self._path.exists():
            yield None
            return
        with closing(connected(self._path, self.declared.table)) as connection:
            connection.begin()
            yield self._table_in(connection, owner)

    def _table_in(self, connection: duckdb.DuckDBPyConnection, owner: str) -> RowTable:
        return RowTable(DuckRows(connection, self._table_name, self.declared, owner), self.declared)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _line(error: duckdb.Error) -> str:
    return str(error).splitlines()[0]
