"""Small statements whose text is made once, and that go to the driver as they are: `change`, and `QuickQuery`.

SQLAlchemy takes several times as long for a statement of one row as the database does. Only for numbers and texts,
which drivers take and give as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Dialect, Executable, PoolProxiedConnection, UpdateBase
from sqlalchemy.exc import DBAPIError


@dataclass(frozen=True, slots=True)
class _Text:
    """A statement for a kind of database. `names` are those of the positions, None if parameters go by name."""

    text: str
    names: tuple[str, ...] | None
    constants: Mapping[str, object]

    def parameters(self, given: Mapping[str, object]) -> Any:
        """As the driver takes them."""
        named = {**self.constants, **given}
        return named if self.names is None else [named[name] for name in self.names]


_CHANGES: dict[tuple[UpdateBase, str, tuple[str, ...]], _Text] = {}


def change(connection: Connection, statement: UpdateBase, parameters: Mapping[str, object]) -> int:
    """Execute a statement within the transaction that has begun, and return how many rows it has changed.

    Its text is kept for good, so it has to be a constant. Raises what SQLAlchemy raises.
    """
    dialect, names = connection.dialect, tuple(parameters)
    made = _CHANGES.get((statement, dialect.name, names))
    if made is None:
        made = _CHANGES[statement, dialect.name, names] = _made(statement, dialect, names)
    proxied = connection.connection
    try:
        cursor = proxied.cursor()
        try:
            cursor.execute(made.text, made.parameters(parameters))
            return int(cursor.rowcount)
        finally:
            cursor.close()
    except dialect.loaded_dbapi.Error as error:
        raise _raised(dialect, proxied, error) from error


class QuickQuery:
    """A query with named parameters."""

    def __init__(self, query: Executable) -> None:
        self.query = query
        self._texts: dict[str, _Text] = {}

    def rows(self, connection: Connection, parameters: Mapping[str, object]) -> list[tuple[Any, ...]]:
        """What it finds within the transaction that has begun. Raises what SQLAlchemy raises."""
        return self.on(connection.dialect, connection.connection, parameters)

    def on(
        self,
        dialect: Dialect,
        connection: PoolProxiedConnection,
        parameters: Mapping[str, object],
        *,
        begin: str = "",
    ) -> list[tuple[Any, ...]]:
        """As `rows`, on a connection of a pool; `begin` is what has to begin a transaction first."""
        made = self._texts.get(dialect.name)
        if made is None:
            made = self._texts[dialect.name] = _made(self.query, dialect)
        try:
            cursor = connection.cursor()
            try:
                if begin:
                    cursor.execute(begin, ())
                cursor.execute(made.text, made.parameters(parameters))
                return [tuple(row) for row in cursor.fetchall()]
            finally:
                cursor.close()
        except dialect.loaded_dbapi.Error as error:
            raise _raised(dialect, connection, error) from error


def _made(statement: Executable, dialect: Dialect, names: tuple[str, ...] | None = None) -> _Text:
    compiled: Any = statement
    compiled = compiled.compile(dialect=dialect, column_keys=None if names is None else list(names))
    assert not compiled._bind_processors, f"values of {statement} have to be converted for the driver"
    assert not compiled.post_compile_params, f"{statement} has a list of values"
    given = frozenset(names or ())
    constants = {name: value for name, value in compiled.params.items() if name not in given}
    return _Text(str(compiled), tuple(compiled.positiontup) if compiled.positional else None, constants)


def _raised(dialect: Dialect, connection: PoolProxiedConnection, error: Any) -> DBAPIError:
    """What SQLAlchemy would raise; a connection that is over is not used again."""
    if is_over := dialect.is_disconnect(error, connection.driver_connection, None):
        connection.invalidate(error)
    return of_driver(dialect, error, is_over=is_over)


def of_driver(dialect: Dialect, error: Exception, *, is_over: bool = False) -> DBAPIError:
    """What SQLAlchemy raises for an error of a driver."""
    base = dialect.loaded_dbapi.Error
    made: Any = DBAPIError.instance(None, None, error, base, connection_invalidated=is_over, dialect=dialect)
    assert isinstance(made, DBAPIError), "the driver itself has raised it"
    return made
