"""`SqlMapState`: a state in a table of SQLite or PostgreSQL, exactly once, fenced against dead coordinators.

The fence is the table's row in `transactional_states`: the attempt id of the table's last writer. Each transaction is
one database transaction, which begins with a compare-and-set of that row: a late writer changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
from sqlalchemy import Connection

from state.declared import DeclaredTable
from state.examined import ExaminedTable
from state.row_table import RowTable
from state.rows.going_back import describe_rewind, transaction_undone_by
from state.rows.value_limits import ValueLimits
from state.sql.horizons import read_horizons
from state.sql.notes import REWINDS, STORES
from state.sql.reading import RowsToRead, SqlReader
from state.sql.registry import Registration
from state.sql.rows import SqlRows, raising_ours
from state.sql.table import StateTable
from state.sql.types import check_columns, check_name
from state.table_state import TableState
from transactional.core.ports import StateKind
from transactional.core.ports.examining import TableAddress
from transactional.core.ports.state_parts import Rewind, RewindTarget, StateParts, TableExamination, TableMaintenance
from transactional.core.store.databases.database import Database
from transactional.model.attempt import AttemptId, TxId
from transactional.model.durations import Duration
from transactional.model.errors import SchemaMismatch, StoreMismatch
from transactional.model.names import owner_of

TRANSACTIONS_PER_REMOVAL = 8
"""Maintenance removes expired rows once in this number of transactions."""


class SqlMapState(TableState[RowTable], Rewind, TableExamination, TableMaintenance):
    """Key → values in a table of a database: one row per key, with the transaction that wrote it and what was before.

    `url` is `sqlite:///path`, `postgresql://user:password@host/database`, or `sqlite://`, a database in the memory of
    this process. `key` is a name, several names, or a DDL string with types (`carrier string`); names alone take their
    types from the input. () is a state of one row; it is omitted if an update names it with `group_by`.
    `values` is a DDL string; it is left out when the state is updated by `.count()`, `.sum(…)` and so on. `columns`
    renames `txid`, `prev_txid`, `prev_<value>` and `deleted`. With `deletes` keys can be deleted, which takes a column
    more; a table without it gains it. With `expires`, the name of a timestamp column of key or values, and `after`, an
    age like `"30 days"`, a row goes once that column is so much before the time at which a batch was planned. The table
    is made when a topology first runs. No wait for the
    database takes longer than `timeout_ms`; what fails then is repeated as another attempt. A state that gains value
    columns (a start with `--accept-changes`) adds them to its table, with NULL in the existing rows.

    Raises `ConfigError` for URLs, names and types that can't hold a state.
    """

    rewind_obstacle = ""

    def __init__(
        self,
        url: str,
        table: str,
        key: str | Sequence[str] | None = None,
        values: str = "",
        *,
        kind: StateKind = StateKind.OPAQUE,
        columns: Mapping[str, str] | None = None,
        timeout_ms: int = 30_000,
        deletes: bool = False,
        expires: str | None = None,
        after: Duration | None = None,
    ) -> None:
        self._database = Database(url, timeout_ms=timeout_ms)
        self._table_name, self._maintenance_calls = table, 0
        name = f"{table!r} in {self._database}"
        check_name(table, name)
        options: dict[str, Any] = {"columns": columns, "deletes": deletes, "expires": expires, "after": after}
        limits = ValueLimits(name, zero_bytes=self._database.is_sqlite)  # PostgreSQL has no zero bytes in text
        super().__init__(name, key, values, kind=kind, value_limits=limits, check_types=_check_types, **options)

    def __repr__(self) -> str:
        return f"SqlMapState({self.declared.table})"

    @property
    def parts(self) -> StateParts:
        """The parts of the state: it can go back by one transaction, and the doctor reads it."""
        return replace(super().parts, rewind=self, examination=self, maintenance=self)

    @property
    def storage_path(self) -> str | None:
        """The path of a SQLite file."""
        return self._database.file

    def address(self) -> TableAddress:
        """The database, with the login, and the table in it."""
        url, declared = self._database.url, self.declared
        return TableAddress.of("sql", url, declared.columns, self._table_name, expiry=declared.expiry)

    def examine(self, topology_id: str, component_id: str) -> ExaminedTable:
        """Return the table as the doctor sees it. Raises `OperatingError`, `ConfigError` if the database refuses."""
        if not self._database.exists():
            return ExaminedTable(self.declared.table, component_id)
        registration, name = self._registration(owner_of(topology_id, component_id)), self._table_name
        with self._reading() as connection:
            try:
                version = registration.check(connection)
            except (SchemaMismatch, StoreMismatch) as error:
                return ExaminedTable(self.declared.table, component_id, refusal=error)
            notes = {"rewound_to": REWINDS.read(connection, name), "store_id": STORES.read(connection, name)}
            return ExaminedTable(self.declared.table, component_id, version, **notes)

    def identity(self) -> Mapping[str, str]:
        """Database without user and password, table, key, values, kind."""
        return self.declared.identity(sql=self._database.identity, table=self._table_name)

    def load_table(self) -> RowTable:
        """Create the table, or check the existing one.

        Value columns that the state has gained are added with the first write, which is the fence's. Raises
        `SchemaMismatch` for a table of another shape, or that no state has created, `StoreMismatch` for one with rows
        of another owner, `ConfigError` if the database refuses.
        """
        self._database.check_writable()
        store = SqlRows(self._database, self._registration(self.owner), self.declared.table)
        store.open(self.store_id)
        return RowTable(store, self.declared)

    def maintain(self, committed_txid: TxId, may_go_on: Callable[[], bool]) -> None:
        """Remove expired rows, once in several transactions, as those of one transaction share pages with others."""
        if self.declared.expiry is None or self._opened is None:
            return
        self._maintenance_calls += 1
        if self._maintenance_calls % TRANSACTIONS_PER_REMOVAL == 0:
            self._opened.drop_expired(committed_txid)

    def all_rows(self, committed_txid: TxId | None) -> pa.Table:
        registration = self._registration(self.owner)
        try:
            with raising_ours(self.declared.table), self._database.reading(is_snapshot=True) as connection:
                rows = RowsToRead(registration.rows, self.declared.columns, self.declared.columns)
                expiry = read_horizons(connection, self._table_name) if self.declared.expiry is not None else None
                horizon = None if expiry is None else expiry[1].for_reader(committed_txid)
                return rows.without_columns(registration.missing_columns(connection)).read_unexpired(
                    connection, committed_txid, horizon
                )
        finally:
            if self._opened is None:
                self._database.close()

    def reader(self, owner: str) -> SqlReader:
        """A reader of the table of `<topology>/<component>`, with connections of its own (see the port)."""
        database, registration = self._database.for_reading(), self._registration(owner)
        return SqlReader(database, registration, self.declared.table, self.declared.columns)

    def preview_rewind(self, topology_id: str, component_id: str, target: RewindTarget) -> str:
        """Return what a rewind would undo (see the port): at most the newest transaction."""
        if not self._database.exists():
            return f"state {self.declared.table}: there is nothing of it"
        registration = self._registration(owner_of(topology_id, component_id))
        with self._reading() as connection:
            version = registration.check(connection)
            oldest_known = TxId(REWINDS.read(connection, self._table_name) or 0)
        return describe_rewind(
            self.declared.table, transaction_undone_by(version, oldest_known, target, self.declared.table)
        )

    def rewind(self, target: RewindTarget, fence_id: AttemptId) -> None:
        """Undo the newest transaction, under a new fence, in one database transaction (see the port)."""
        self.rewind_by(fence_id, lambda table: table.rewind(target, fence_id))

    def close(self) -> None:
        """Close all connections."""
        super().close()
        self._database.close()

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        """A transaction that only reads, also where nobody may write. Raises `OperatingError`, `ConfigError`."""
        database = self._database.for_reading()
        with closing(database), raising_ours(self.declared.table), database.reading() as connection:
            yield connection

    def _registration(self, owner: str) -> Registration:
        rows = StateTable(self._table_name, self.declared.columns, is_sqlite=self._database.is_sqlite)
        return Registration(rows, self.declared.columns, name=self.declared.table, owner=owner)


def _check_types(declared: DeclaredTable) -> None:
    check_columns(declared.columns.all_columns if declared.are_complete else declared.typed_columns, declared.table)
