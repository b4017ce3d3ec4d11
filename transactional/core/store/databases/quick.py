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
        """Return the parameters in the form that the driver takes."""
        by_name = {**self.constants, **given}
        return by_name if self.names is None else [by_name[name] for name in self.names]


_CHANGES: dict[tuple[UpdateBase, str, tuple[str, ...]], _Text] = {}


def change(connection: Connection, statement: UpdateBase, parameters: Mapping[str, object]) -> int:
    """Execute a statement within the transaction that has begun, and return how many rows it has changed.

    Its text is cached for good, so it has to be a constant. Raises the errors of SQLAlchemy.
    """
    dialect, names = connection.dialect, tuple(parameters)
    compiled = _CHANGES.get((statement, dialect.name, names))
    if compiled is None:
        compiled = _CHANGES[statement, dialect.name, names] = _compile(statement, dialect, names)
    proxied = connection.connection
    try:
        cursor = proxied.cursor()
        try:
            cursor.execute(compiled.text, compiled.parameters(parameters))
            return int(cursor.rowcount)
        finally:
            cursor.close()
    except dialect.loaded_dbapi.Error as error:
        raise _translate_error(dialect, proxied, error) from error


class QuickQuery:
    """A query with named parameters."""

    def __init__(self, query: Executable) -> None:
        self.query = query
        self._texts: dict[str, _Text] = {}

    def rows(self, connection: Connection, parameters: Mapping[str, object]) -> list[tuple[Any, ...]]:
        """Return the rows of the query within the transaction that has begun. Raises the errors of SQLAlchemy."""
        return self.rows_on(connection.dialect, connection.connection, parameters)

    def rows_on(
        self,
        dialect: Dialect,
        connection: PoolProxiedConnection,
        parameters: Mapping[str, object],
        *,
        begin: str = "",
    ) -> list[tuple[Any, ...]]:
        """Return the rows of the query on a connection of a pool; `begin` begins a transaction first."""
        compiled = self._texts.get(dialect.name)
        if compiled is None:
            compiled = self._texts[dialect.name] = _compile(self.query, dialect)
        try:
            cursor = connection.cursor()
            try:
                if begin:
                    cursor.execute(begin, ())
                cursor.execute(compiled.text, compiled.parameters(parameters))
                return [tuple(row) for row in cursor.fetchall()]
            finally:
                cursor.close()
        except dialect.loaded_dbapi.Error as error:
            raise _translate_error(dialect, connection, error) from error


def _compile(statement: Executable, dialect: Dialect, names: tuple[str, ...] | None = None) -> _Text:
    compiled: Any = statement
    compiled = compiled.compile(dialect=dialect, column_keys=None if names is None else list(names))
    assert not compiled._bind_processors, f"values of {statement} have to be converted for the driver"
    assert not compiled.post_compile_params, f"{statement} has a list of values"
    parameter_names = frozenset(names or ())
    constants = {name: constant for name, constant in compiled.params.items() if name not in parameter_names}
    return _Text(str(compiled), tuple(compiled.positiontup) if compiled.positional else None, constants)


def _translate_error(dialect: Dialect, connection: PoolProxiedConnection, error: Any) -> DBAPIError:
    """Return the error that SQLAlchemy would raise, and invalidate a connection that has ended."""
    if is_over := dialect.is_disconnect(error, connection.driver_connection, None):
        connection.invalidate(error)
    return of_driver(dialect, error, is_over=is_over)


def of_driver(dialect: Dialect, error: Exception, *, is_over: bool = False) -> DBAPIError:
    """Return the error that SQLAlchemy raises for an error of a driver."""
    base = dialect.loaded_dbapi.Error
    translated: Any = DBAPIError.instance(None, None, error, base, connection_invalidated=is_over, dialect=dialect)
    assert isinstance(translated, DBAPIError), "the driver itself has raised it"
    return translated
