"""`QuickQuery`: a small query whose text is made once, and that goes to the driver as it is.

SQLAlchemy takes several times as long for a query of one row as the database does, and a query from outside needs
some. Only for numbers and texts, which the driver gives as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Dialect, Executable, PoolProxiedConnection
from sqlalchemy.exc import DBAPIError


class QuickQuery:
    """A query with named parameters."""

    def __init__(self, query: Executable) -> None:
        self.query = query
        self._texts: dict[str, tuple[str, list[str] | None]] = {}

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
        text, names = self._texts.get(dialect.name) or self._made(dialect)
        given: Any = dict(parameters) if names is None else [parameters[name] for name in names]
        try:
            cursor = connection.cursor()
            try:
                if begin:
                    cursor.execute(begin, ())
                cursor.execute(text, given)
                return [tuple(row) for row in cursor.fetchall()]
            finally:
                cursor.close()
        except dialect.loaded_dbapi.Error as error:
            if is_over := dialect.is_disconnect(error, connection.driver_connection, None):
                connection.invalidate(error)
            raise of_driver(dialect, error, is_over=is_over) from error

    def _made(self, dialect: Dialect) -> tuple[str, list[str] | None]:
        query: Any = self.query
        compiled = query.compile(dialect=dialect)
        self._texts[dialect.name] = str(compiled), list(compiled.positiontup) if compiled.positional else None
        return self._texts[dialect.name]


def of_driver(dialect: Dialect, error: Exception, *, is_over: bool = False) -> DBAPIError:
    """What SQLAlchemy raises for an error of a driver."""
    base = dialect.loaded_dbapi.Error
    made: Any = DBAPIError.instance(None, None, error, base, connection_invalidated=is_over, dialect=dialect)
    assert isinstance(made, DBAPIError), "the driver itself has raised it"
    return made
