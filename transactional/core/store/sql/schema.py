"""The database behind the coordinator's store: its tables, its schema version, how it is opened, and its errors."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    ForeignKeyConstraint,
    Index,
    LargeBinary,
    MetaData,
    Table,
    Text,
    func,
    insert,
    inspect,
    select,
)
from sqlalchemy.dialects import registry
from sqlalchemy.exc import DataError, IntegrityError, NotSupportedError, ProgrammingError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateColumn, CreateIndex, CreateTable
from sqlalchemy.sql.functions import FunctionElement

from transactional.core.store.databases.database import Database, DatabaseFailed
from transactional.core.store.databases.quick import QuickQuery
from transactional.model.errors import ConfigError, CorruptRecord, ProtocolError, StoreTooNew, StoreUnavailable

SCHEMA_VERSION: Final = 7
"""The only version that is read."""
PHASES: Final = ("planning", "processing", "waiting", "committing")
"""The phases of a transaction, whose times by minute have a column each."""
_metadata = MetaData()

versions = Table(
    "transactional_schema", _metadata, Column("version", BigInteger, primary_key=True, autoincrement=False)
)

topologies = Table(
    "transactional_topologies",
    _metadata,
    Column("topology_id", Text, primary_key=True),
    Column("epoch", BigInteger, nullable=False),
    Column("owner", Text),
    Column("leased_until_ms", BigInteger),
    Column("attempt_id", BigInteger, nullable=False),
    Column("committed_txid", BigInteger, nullable=False),
    Column("committed_attempt_id", BigInteger),
    Column("fingerprint", Text, nullable=False),
    Column("name", Text),
    Column("desired", Text, nullable=False, server_default="active"),
    Column("stop_at_ms", BigInteger),
    Column("failing_since_ms", BigInteger),
    Column("failing_txid", BigInteger),
    Column("failing_error", Text),
    Column("rewinding_to", BigInteger),
    Column("store_id", Text),
)

attempts = Table(
    "transactional_attempts",
    _metadata,
    Column("topology_id", Text, primary_key=True),
    Column("attempt_id", BigInteger, primary_key=True, autoincrement=False),
    Column("txid", BigInteger, nullable=False),
    Column("phase", Text, nullable=False),
    Column("batch", Text, nullable=False),
    Column("rows", BigInteger),
    Column("issued_at_ms", BigInteger, nullable=False),
    Column("planned_at_ms", BigInteger, nullable=False),
    Column("processed_at_ms", BigInteger),
    Column("commit_started_at_ms", BigInteger),
    Column("committed_at_ms", BigInteger),
    Column("failed_at_ms", BigInteger),
    Column("error", Text),
    Column("details", Text),
)
Index("transactional_attempts_by_txid", attempts.c.topology_id, attempts.c.txid)

# The transactions above the committed one, each with the attempt whose batch is the one to replay.
transactions = Table(
    "transactional_transactions",
    _metadata,
    Column("topology_id", Text, primary_key=True),
    Column("txid", BigInteger, primary_key=True, autoincrement=False),
    Column("attempt_id", BigInteger, nullable=False),
    ForeignKeyConstraint(["topology_id", "attempt_id"], [attempts.c.topology_id, attempts.c.attempt_id]),
)

# The txid that a table was at when a coordinator that had taken over wrote `attempt_id` as its version.
fences = Table(
    "transactional_fences",
    _metadata,
    Column("topology_id", Text, primary_key=True),
    Column("component_id", Text, primary_key=True),
    Column("attempt_id", BigInteger, primary_key=True, autoincrement=False),
    Column("txid", BigInteger, nullable=False),
)

# One row per lease that was taken; `described` is the topology; it, `settings` and `sources` are JSON.
runs = Table(
    "transactional_runs",
    _metadata,
    Column("topology_id", Text, primary_key=True),
    Column("epoch", BigInteger, primary_key=True, autoincrement=False),
    Column("owner", Text, nullable=False),
    Column("name", Text),
    Column("version", Text, nullable=False),
    Column("described", Text, nullable=False),
    Column("settings", Text, nullable=False),
    Column("began_at_ms", BigInteger, nullable=False),
    Column("began_at_txid", BigInteger, nullable=False),
    Column("ended_at_ms", BigInteger),
    Column("ended_at_txid", BigInteger),
    Column("ended_how", Text),
    Column("ended_code", Text),
    Column("ended_reason", Text),
    Column("sources", Text, nullable=False),
)

# What a run committed in a minute; `latencies` is JSON. A phase without a time has none.
minutes = Table(
    "transactional_minutes",
    _metadata,
    Column("topology_id", Text, primary_key=True),
    Column("at_ms", BigInteger, primary_key=True, autoincrement=False),
    Column("epoch", BigInteger, primary_key=True, autoincrement=False),
    Column("transactions", BigInteger, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("failures", BigInteger, nullable=False),
    Column("latencies", Text, nullable=False),
    Column("lag_sum", BigInteger, nullable=False),
    Column("lag_max", BigInteger, nullable=False),
    *(Column(f"{phase}_ms", BigInteger) for phase in PHASES),
)

# Transactions that an operator wants to be able to return to.
savepoints = Table(
    "transactional_savepoints",
    _metadata,
    Column("topology_id", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("txid", BigInteger, nullable=False),
    Column("noted_at_ms", BigInteger, nullable=False),
)

# The newest publication of each sink: by which attempt the transaction was committed, in which run.
sinks = Table(
    "transactional_sinks",
    _metadata,
    Column("topology_id", Text, primary_key=True),
    Column("sink", Text, primary_key=True),
    Column("txid", BigInteger, nullable=False),
    Column("attempt_id", BigInteger, nullable=False),
    Column("run", Text, nullable=False),
)

# Records of committed transactions that their sink has not published yet. `bytes` is the size of the payload. If the
# payload is in a file, `payload` is its checksum.
outbox = Table(
    "transactional_outbox",
    _metadata,
    Column("topology_id", Text, primary_key=True),
    Column("sink", Text, primary_key=True),
    Column("txid", BigInteger, primary_key=True, autoincrement=False),
    Column("attempt_id", BigInteger, nullable=False),
    Column("run", Text, nullable=False),
    Column("records", BigInteger, nullable=False),
    Column("payload", LargeBinary, nullable=False),
    Column("bytes", BigInteger, nullable=False, server_default="0"),
    Column("file", Text),
)

# Records of sinks that an operator has set aside, because their target refuses them.
sink_letters = Table(
    "transactional_sink_letters",
    _metadata,
    Column("topology_id", Text, primary_key=True),
    Column("sink", Text, primary_key=True),
    Column("txid", BigInteger, primary_key=True, autoincrement=False),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("attempt_id", BigInteger, nullable=False),
    Column("run", Text, nullable=False),
    Column("records", BigInteger, nullable=False),
    Column("payload", LargeBinary, nullable=False),
)

# Any number works, as long as all versions of this framework use the same one.
_SCHEMA_LOCK: Final = 4_004_004


_LATER_TABLES: Final = (sinks, outbox, sink_letters)
"""The tables that a store of this version may lack, in whole or in part: it was made before there were sinks."""


class NowMs(FunctionElement[int]):
    """The database's clock, in milliseconds since 1970; it advances within a transaction."""

    type = BigInteger()
    inherit_cache = True


@compiles(NowMs, "sqlite")
def _now_of_sqlite(_element: NowMs, _compiler: Any, **_options: object) -> str:
    return "CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER)"


@compiles(NowMs, "postgresql")
def _now_of_postgresql(_element: NowMs, _compiler: Any, **_options: object) -> str:
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)"


@functools.cache
def _statements_of_creation(dialect: str) -> tuple[str, ...]:
    """The statements that create the tables, compiled once in this process: SQLAlchemy would compile it for each new
    store."""
    kind, tables = registry.load(dialect)(), _metadata.sorted_tables
    creations: list[CreateTable | CreateIndex] = [
        *(CreateTable(table, if_not_exists=True) for table in tables),
        *(CreateIndex(index, if_not_exists=True) for table in tables for index in table.indexes),
    ]
    return tuple(str(creation.compile(dialect=kind)) for creation in creations)


def _missing_parts(connection: Connection) -> list[str]:
    """Return the statements that add tables and columns which a store of this version lacks."""
    inspector, dialect = inspect(connection), connection.dialect
    statements = list[str]()
    for table in _LATER_TABLES:
        if not inspector.has_table(table.name):
            statements.append(str(CreateTable(table).compile(dialect=dialect)))
            continue
        names = {column["name"] for column in inspector.get_columns(table.name)}
        statements += [
            f"ALTER TABLE {table.name} ADD COLUMN {CreateColumn(column).compile(dialect=dialect)}"
            for column in table.columns
            if column.name not in names
        ]
    return statements


class StoreDatabase:
    """The database of a coordinator's store: its tables are created on first use.

    A store of another schema version is refused. One that is `read_only` is left as it is: without tables it is no
    store.

    Nothing in it waits longer than `timeout_ms`: not for a connection, a lock or a statement, nor may a connection of
    this process hold a lock for longer while the process is suspended (PostgreSQL ends it; SQLite can't, so there a
    process that is suspended inside a write blocks all others until it resumes or is killed).
    """

    def __init__(self, url: str, *, timeout_ms: int, read_only: bool = False) -> None:
        # What fails is tried again by its caller.
        self._database = Database(
            url,
            timeout_ms=timeout_ms,
            used_for="the coordinator's store",
            example="transactional.db",
            pings=read_only,
            read_only=read_only,
        )
        if not read_only:
            self._database.check_writable()
        self._read_only, self._is_ready = read_only, False
        self._preparing = threading.Lock()

    @property
    def is_sqlite(self) -> bool:
        """True for SQLite, False for PostgreSQL."""
        return self._database.is_sqlite

    @property
    def file(self) -> str | None:
        """The path of a SQLite file."""
        return self._database.file

    def __str__(self) -> str:
        return str(self._database)

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """One database transaction that may write. Raises `StoreUnavailable`; the outcome is then unknown."""
        if self._read_only:
            raise ProtocolError(f"the store {self} was opened for reading, and is to be written: this is a bug")
        with self._answering():
            self._prepare_once()
            with self._database.writing() as connection:
                yield connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """One database transaction that only reads, and waits for no writer. Raises `StoreUnavailable`."""
        with self._answering():
            if not self._read_only:
                self._prepare_once()
            with self._database.reading() as connection:
                if self._read_only and not self._is_ready:
                    self._look(connection)
                yield connection

    def answer(self, query: QuickQuery, parameters: Mapping[str, object]) -> list[tuple[Any, ...]]:
        """Return the rows of a small query, in a transaction of its own. Raises `StoreUnavailable`."""
        if not self._is_ready:
            with self.reading() as connection:
                return [tuple(row) for row in connection.execute(query.query, parameters)]
        with self._answering():
            return self._database.answer(query, parameters)

    def limit_timeout(self, lease_ms: int) -> None:
        """Make sure that anything that waits or is suspended here ends well before a lease of this length does."""
        self._database.limit_timeout(lease_ms // 2)

    def close(self) -> None:
        """Close the connections to the database."""
        self._database.close()

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Add the store's name to the message of a `CorruptRecord` that is raised inside."""
        try:
            yield
        except CorruptRecord as error:
            is_named = str(self) in str(error)
            raise error if is_named else CorruptRecord(f"the store {self}: {error}") from error

    @contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            with self.naming():
                yield
        except DatabaseFailed as failed:
            if isinstance(failed.error, ProgrammingError) and self._read_only:
                raise ConfigError(
                    f"the store {self} can't be read: {failed}. A role that reads it needs USAGE on its schema, and "
                    "SELECT on all tables whose names begin with transactional_"
                ) from failed.error
            if isinstance(failed.error, DataError | IntegrityError | NotSupportedError | ProgrammingError):
                raise failed.error from None
            raise StoreUnavailable(self._failure_text(failed)) from failed.error

    def _failure_text(self, failed: DatabaseFailed) -> str:
        if not self._read_only:
            return (
                f"the coordinator's store {self} does not respond: {failed}. {failed.advice}, "
                "and that it has space; the write may or may not have happened, and can be repeated"
            )
        if not self._database.exists():
            return f"the coordinator's store {self} is no longer there: its file was deleted or moved"
        folder_hint = " in its folder, too, where SQLite has files beside it" if self.is_sqlite else ""
        return (
            f"the coordinator's store {self} does not respond: {failed}. Check that it can be reached, and that this "
            f"user may read it{folder_hint}; nothing was changed"
        )

    def _look(self, connection: Connection) -> None:
        """See whether this is a store of this version."""
        if not self._is_store(connection):
            raise ConfigError(
                f"there is no store in {self}: the database does not have the tables of one, and reading does not make "
                "them. Check the URL; the first `transactional run` with it makes a store"
            )
        if _missing_parts(connection):
            raise ConfigError(
                f"the store {self} was made before there were sinks, and lacks their tables; the next run of a "
                "topology adds them. Nothing was changed"
            )
        self._is_ready = True

    def _prepare_once(self) -> None:
        with self._preparing:
            if not self._is_ready:
                self._prepare()
                self._is_ready = True

    def _prepare(self) -> None:
        """Create the tables. Two processes that start at once do so one after the other."""
        self._database.create_private()
        try:
            with self._database.reading() as connection:
                if self._is_store(connection) and not _missing_parts(connection):
                    return
            with self._database.writing() as connection:
                if not self.is_sqlite:  # on SQLite the transaction itself has waited for all others
                    connection.execute(select(func.pg_advisory_xact_lock(_SCHEMA_LOCK)))
                if self._is_store(connection):
                    for statement in _missing_parts(connection):
                        connection.exec_driver_sql(statement)
                else:
                    self._create_tables(connection)
        except DatabaseFailed as failed:
            if not isinstance(failed.error, ProgrammingError):
                raise
            raise ConfigError(f"the store {self} can't be used: {failed}") from failed.error

    @staticmethod
    def _create_tables(connection: Connection) -> None:
        for statement in _statements_of_creation(connection.dialect.name):
            connection.exec_driver_sql(statement)
        connection.execute(insert(versions), {"version": SCHEMA_VERSION})

    def _is_store(self, connection: Connection) -> bool:
        """Whether the tables are there. Raises `ConfigError`, `StoreTooNew` for another version, `CorruptRecord`."""
        if not inspect(connection).has_table(versions.name):
            return False
        version = connection.execute(select(func.max(versions.c.version))).scalar_one()
        if not isinstance(version, int) or version < 1:
            raise CorruptRecord(f"the store {self} has {version!r} for its schema version; restore it from a backup")
        if version != SCHEMA_VERSION:
            is_newer = version > SCHEMA_VERSION
            remedy = "install the release that wrote it, or start" if is_newer else "start"
            raise (StoreTooNew if is_newer else ConfigError)(
                f"the store {self} has schema version {version}, and this release reads version {SCHEMA_VERSION} only: "
                f"{remedy} with a new store, and give the states tables of their own. Nothing was changed"
            )
        return True
