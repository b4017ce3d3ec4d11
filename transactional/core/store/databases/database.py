"""A SQLite file or a PostgreSQL database, of a state or of a store: its URL, connections and errors."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    NotSupportedError,
    PendingRollbackError,
    ProgrammingError,
)
from sqlalchemy.exc import TimeoutError as NoConnectionFree
from sqlalchemy.pool import QueuePool

from transactional.core.store.databases.postgresql import beginning, connect_arguments, without_search_path
from transactional.core.store.databases.quick import QuickQuery, of_driver
from transactional.model.errors import ConfigError, FileReplaced
from transactional.model.names import DISTRIBUTION

_SQLITE = b"SQLite format 3\0"
_SECRETS = ("password", "sslpassword")
_PROGRAM_LIMIT_EXCEEDED = "54000"
_REFUSED_LOGINS = ("authentication failed", "no password supplied", "no pg_hba.conf entry", '" does not exist')
"""The messages with which PostgreSQL refuses a connection. The driver gives these errors no code."""


class DatabaseFailed(Exception):
    """The database failed; after a write its outcome is unknown.

    Only used between a database and its users. `is_refusal`: it responds, but does not allow or know what was
    requested. `is_about_data`: a given value does not have its column's type.
    """

    def __init__(self, error: DBAPIError | NoConnectionFree | PendingRollbackError) -> None:
        self.error = error
        self.is_refusal = isinstance(error, ProgrammingError | NotSupportedError)
        # A key may also be larger than PostgreSQL's limit for an index entry.
        is_too_large = getattr(getattr(error, "orig", None), "sqlstate", None) == _PROGRAM_LIMIT_EXCEEDED
        self.is_about_data = isinstance(error, DataError) or is_too_large
        cause = error.orig if isinstance(error, DBAPIError) else error
        super().__init__(" ".join(str(cause).split()).rstrip("."))

    @property
    def advice(self) -> str:
        """The advice to somebody whose database gives no connection."""
        if any(words in str(self) for words in _REFUSED_LOGINS):
            return "Check user, password and database in its URL"
        return "Check that it is running and reachable"


class Database:
    """Connections to one database, opened on demand.

    Nothing in it waits for longer than `timeout_ms`: neither for a connection, nor for a lock or a statement.
    PostgreSQL ends a transaction of a process that was suspended inside it after half of that time, so that others get
    its lock; SQLite can't. `sqlite://` is in the memory of this process, and shared by all users of that URL
    (`sqlite://?name=…` is another one). `used_for` and `example` are for messages. One that is `read_only` is never
    written, not even by mistake: SQLite and PostgreSQL refuse it. Raises `ConfigError` for an unusable URL.

    A SQLite file that is deleted, moved or replaced remains, without a name, for those who have it open. Who only reads
    opens the new one; for who writes `writing`, `reading` and `answer` raise `FileReplaced`, until `close` is called.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_ms: int,
        used_for: str = "a state",
        example: str = "states.db",
        pings: bool = True,
        read_only: bool = False,
    ) -> None:
        self._url = parse_url(url, used_for=used_for, example=example)
        self._file = sqlite_file(self._url)
        self._timeout_ms, self._used_for, self._read_only = timeout_ms, used_for, read_only
        self._opened: tuple[int, int] | None = None
        """Device and inode of the file that connections have open, None for none."""
        if is_in_memory(self._url):
            self._engine = _engine_in_memory(str(self._url))
            return
        self._engine = self._make_engine(pings=pings)
        if self.is_sqlite:
            event.listen(self._engine, "connect", self._set_up_sqlite)
        event.listen(self._engine, "begin", begin_sqlite if self.is_sqlite else self._begin_postgresql)

    @property
    def is_sqlite(self) -> bool:
        """True for SQLite, False for PostgreSQL."""
        return self._url.get_backend_name() == "sqlite"

    @property
    def url(self) -> str | None:
        """The URL as given, with its passwords; None for a database in memory, which only this process can reach."""
        return None if is_in_memory(self._url) else self._url.render_as_string(hide_password=False)

    @property
    def file(self) -> str | None:
        """The path of a SQLite file; None for a database in memory or on a server."""
        return self._file

    def for_reading(self) -> Database:
        """The same database, with connections of its own that write nothing."""
        url = self.url or str(self._url)
        return Database(url, timeout_ms=self._timeout_ms, used_for=self._used_for, read_only=True)

    @property
    def is_in_memory(self) -> bool:
        """True for a database in the memory of this process."""
        return is_in_memory(self._url)

    def exists(self) -> bool:
        """False for a SQLite file that is not there: to connect would make it."""
        return self._file is None or os.path.isfile(self._file)

    def create_private(self) -> None:
        """Create a SQLite file that is not there, such that only this user may read it. SQLite gives the files that it
        has beside it the same permissions."""
        if self._file is not None and not self.exists():
            with suppress(OSError):  # SQLite says why it can't be created
                os.close(os.open(self._file, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))

    def check_writable(self) -> None:
        """Raise `ConfigError` for a SQLite file that this user may not write; SQLite also writes beside it."""
        for path in map(Path, () if self._file is None else (self._file, os.path.dirname(self._file))):
            if path.exists() and not os.access(path, os.W_OK):
                raise ConfigError(
                    f"{self._used_for} can't be written: this user may not write {path}; grant it, or move it"
                )

    @property
    def identity(self) -> str:
        """The URL of the database with the schemas to search, without the login and all other options."""
        if self.is_sqlite:
            return str(self._url) if self.file is None else f"sqlite:///{self.file}"
        host, port, options = (_joined(self._url.query.get(name, "")) for name in ("host", "port", "options"))
        address = f"{host or self._url.host or 'localhost'}:{port or self._url.port or 5432}"
        path = re.search(r"search_path=(\S+)", options)
        return f"postgresql://{address}/{self._url.database or ''}" + (f"?{path[0]}" if path else "")

    def __str__(self) -> str:
        return shown(self._url.set(drivername=self._url.get_backend_name()))

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """One database transaction that may write. Raises `DatabaseFailed`; the outcome is then unknown."""
        with raising_failures(), self._engine.begin() as connection:
            yield connection
        # Or what has just been written is lost. Once: each look takes 0.06 ms beside other threads.
        self._check_same_file()

    @contextmanager
    def reading(self, *, is_snapshot: bool = False) -> Iterator[Connection]:
        """One database transaction that only reads, and waits for no writer. Raises `DatabaseFailed`.

        With `is_snapshot` all that it reads is of one moment, as it always is on SQLite.
        """
        self._check_same_file()
        with raising_failures(), self._engine.connect() as connection:
            connection = connection.execution_options(only_reads=True, is_snapshot=is_snapshot)
            # Before a query does it, whose options are those of a cursor.
            connection.begin()
            yield connection

    def answer(self, query: QuickQuery, parameters: Mapping[str, object]) -> list[tuple[Any, ...]]:
        """Return the rows of a small query, in a transaction of its own. Raises `DatabaseFailed`."""
        self._check_same_file()
        dialect = self._engine.dialect
        with raising_failures():
            try:
                connection = self._engine.raw_connection()
            except dialect.loaded_dbapi.Error as error:
                raise of_driver(dialect, error) from error
            try:
                return query.rows_on(dialect, connection, parameters, begin=self._beginning(only_reads=True))
            finally:
                connection.close()

    def _check_same_file(self) -> None:
        """See that the path still leads to the file that is open. Raises `FileReplaced` where that is written."""
        if self._opened in (None, self._file_id()):
            return
        if not self._read_only:
            raise FileReplaced(
                f"the SQLite file of {self._used_for}, {self._file}, was deleted, moved or replaced while it was open: "
                "what was written to it since then is lost, or lies where the file is now. Stop everything that uses "
                "it, put back the file, or store and tables from one backup, and start again"
            )
        self.close()  # what is open would show the same forever

    def limit_timeout(self, timeout_ms: int) -> None:
        """Limit all waiting to this time from now on, too."""
        if timeout_ms < self._timeout_ms:
            self._timeout_ms = max(1, timeout_ms)
            self._close_connections()

    def close(self) -> None:
        """Close all connections. Later calls open new ones, to the file that is there then; a database in memory is
        kept."""
        self._close_connections()
        self._opened = None

    def _close_connections(self) -> None:
        if not is_in_memory(self._url):
            self._engine.dispose()

    def _make_engine(self, *, pings: bool) -> Engine:
        url, self._search_path = without_search_path(self._url)
        try:
            return create_engine(
                _for_reading(url) if self._read_only else url,
                connect_args={} if self.is_sqlite else connect_arguments(url, self._timeout_ms),
                pool_timeout=self._timeout_ms / 1000,
                # A restarted server costs no attempt; a caller that retries anyway saves the ping.
                pool_pre_ping=pings and not self.is_sqlite,
                hide_parameters=True,
            )
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"{self._used_for} in {self} needs psycopg 3: install {DISTRIBUTION}[postgres]"
            ) from error

    def _set_up_sqlite(self, connection: Any, _record: object) -> None:
        _prepare_sqlite(connection)
        connection.execute(f"PRAGMA busy_timeout = {self._timeout_ms}")
        if self._read_only:
            self._opened = self._file_id()
            return
        self._opened = self._opened or self._file_id()
        self._check_same_file()
        connection.execute("PRAGMA synchronous = FULL")
        switch_to_wal(connection.execute)

    def _begin_postgresql(self, connection: Connection) -> None:
        options = connection.get_execution_options()
        only_reads, is_snapshot = options.get("only_reads", False), options.get("is_snapshot", False)
        connection.exec_driver_sql(self._beginning(only_reads=only_reads, is_snapshot=is_snapshot))

    def _beginning(self, *, only_reads: bool, is_snapshot: bool = False) -> str:
        """Return the statement that begins a transaction, or "" on SQLite, where a query needs none."""
        if self.is_sqlite:
            return ""
        only_reads = only_reads or self._read_only
        return beginning(self._timeout_ms, self._search_path, only_reads=only_reads, is_snapshot=is_snapshot)

    def _file_id(self) -> tuple[int, int] | None:
        """Return device and inode of the file that the path leads to, or None."""
        try:
            status = os.stat(self.file or "")
        except OSError:
            return None
        return status.st_dev, status.st_ino


def _joined(option: str | tuple[str, ...]) -> str:
    return option if isinstance(option, str) else ",".join(option)


@contextmanager
def raising_failures() -> Iterator[None]:
    """Raise `DatabaseFailed` for what the database's driver raises, also where a connection is kept for later, and was
    lost by the one who used it before."""
    try:
        yield
    except (DBAPIError, NoConnectionFree, PendingRollbackError) as error:
        raise DatabaseFailed(error) from error


def _prepare_sqlite(connection: Any, _record: object = None) -> None:
    connection.isolation_level = None  # otherwise sqlite3 decides by itself when a transaction begins
    connection.execute("PRAGMA foreign_keys = ON")


@cache
def _engine_in_memory(url: str) -> Engine:
    """The one connection to a database in memory: whoever comes second waits for the first, in whatever thread."""
    engine = create_engine(
        "sqlite://",
        connect_args={"check_same_thread": False},
        poolclass=QueuePool,
        pool_size=1,
        max_overflow=0,
        hide_parameters=True,
    )
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", begin_sqlite)
    return engine


def is_in_memory(url: URL) -> bool:
    """Whether a database is in the memory of this process."""
    return url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:")


def sqlite_file(url: URL) -> str | None:
    """The path of a SQLite file; None for a database in memory or on a server."""
    is_file = url.get_backend_name() == "sqlite" and not is_in_memory(url)
    return str(Path(str(url.database)).absolute()) if is_file else None


def _for_reading(url: URL) -> URL:
    """A SQLite file as a URI that only reads it."""
    file = sqlite_file(url)
    if file is None:
        return url
    frozen = {"immutable": "1"} if _is_frozen(file) else {}
    return url.set(database=f"file:{quote(file)}").update_query_dict({"mode": "ro", **frozen, "uri": "true"})


def _is_frozen(file: str) -> bool:
    """Whether nobody can write a file, since its file system is read-only. SQLite could not make there what readers of
    a WAL share; a WAL that has been left behind holds what the file lacks, and is not passed over."""
    try:
        return bool(os.statvfs(file).f_flag & os.ST_RDONLY) and not Path(f"{file}-wal").exists()
    except OSError:
        return False


def parse_url(url: str, *, used_for: str, example: str) -> URL:
    """The URL of a SQLite file or a PostgreSQL database. Raises `ConfigError`, which never contains a secret."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise ConfigError(
            f"{used_for} needs a URL such as sqlite:///{example} or postgresql://user:password@host/database, and the "
            "one given can't be read"
        ) from None
    if parsed.drivername in ("postgresql", "postgresql+psycopg"):
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername not in ("sqlite", "sqlite+pysqlite"):
        raise ConfigError(f"{used_for} can be sqlite:///… or postgresql://…, not {parsed.drivername}://…")
    if parsed.host or parsed.port or parsed.username:
        suggestion = "/".join(part for part in (parsed.host, parsed.database) if part)
        raise ConfigError(f"{used_for} names a host, and SQLite has none: did you mean sqlite:///{suggestion}?")
    if is_in_memory(parsed):
        return URL.create(parsed.drivername, query=parsed.query)
    if not Path(str(parsed.database)).parent.is_dir():
        raise ConfigError(f"the folder of {used_for}, {parsed.database}, does not exist; create it")
    _check_file(Path(str(parsed.database)), used_for)
    return parsed


def _check_file(file: Path, used_for: str) -> None:
    """Raise `ConfigError` for a path that SQLite could not open."""
    if file.is_dir():
        raise ConfigError(f"{used_for}, {file}, is a folder; name a file in it, such as {file / 'store.db'}")
    if file.exists() and not os.access(file, os.R_OK):
        raise ConfigError(f"{used_for} can't be read: this user may not read {file}; grant it, or move it")
    if file.is_file():
        with file.open("rb") as content:
            head = content.read(len(_SQLITE))
        if head not in (b"", _SQLITE):
            raise ConfigError(f"{used_for}, {file}, is not a SQLite file; use another path")


def shown(url: URL) -> str:
    """A URL without its passwords, for display."""
    hidden = {name: "***" for name in _SECRETS if name in url.query}
    return url.update_query_dict(hidden).render_as_string(hide_password=True).replace(quote("***"), "***")


def begin_sqlite(connection: Connection) -> None:
    """A writing transaction takes the write lock immediately: taking it later may fail."""
    reads = connection.get_execution_options().get("only_reads", False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


def switch_to_wal(execute: Callable[[str], Any]) -> None:
    """Switch the file to WAL, permanently. SQLite does not wait by itself if another process is using the file.

    A file that stays in the older journal mode is slower and no less safe.
    """
    for _ in range(10):
        try:
            execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError:
            execute("BEGIN IMMEDIATE")  # waits for the other
            execute("ROLLBACK")
