"""A store of an earlier schema version, read without changing it: queries find what it has, and nothing in the rest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Column, Connection, DefaultClause, Dialect, MetaData, Table, event, inspect


def read_as_it_is(connection: Connection, metadata: MetaData) -> None:
    """Let the queries of this version be answered, on this connection, by tables that lack columns or do not exist.

    Each query gets its tables from a prelude that adds what is missing: without a value, or with the one that a
    migration would give it.
    """
    prelude = f"WITH {', '.join(_tables(connection, metadata))} "

    def put_before(_connection: object, _cursor: object, statement: str, parameters: Any, *_: object) -> Any:
        return (prelude + statement if statement.startswith("SELECT") else statement), parameters

    event.listen(connection, "before_cursor_execute", put_before, retval=True)


def _tables(connection: Connection, metadata: MetaData) -> Iterator[str]:
    looked = inspect(connection)
    # A name within its own definition means the stored table: SQLite requires the schema, PostgreSQL knows no other.
    schema = "main." if connection.dialect.name == "sqlite" else ""
    there = set(looked.get_table_names())
    for table in metadata.sorted_tables:
        known = {column["name"] for column in looked.get_columns(table.name)} if table.name in there else set()
        columns = ", ".join(_column(column, connection.dialect, known) for column in table.columns)
        source = f"FROM {schema}{table.name}" if known else "WHERE 1 = 0"
        yield f"{_name(table, connection.dialect)} AS (SELECT {columns} {source})"


def _name(named: Table | Column[Any], dialect: Dialect) -> str:
    return dialect.identifier_preparer.quote(named.name)


def _column(column: Column[Any], dialect: Dialect, known: set[str]) -> str:
    name = _name(column, dialect)
    if column.name in known:
        return name
    default = column.server_default
    value = f"'{default.arg}'" if isinstance(default, DefaultClause) else "NULL"
    return f"CAST({value} AS {column.type.compile(dialect)}) AS {name}"
