"""What is noted beside the tables of SQL states: a value for each, in a table of its own."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import BigInteger, Column, Connection, MetaData, Table, Text, bindparam, delete, insert, inspect, select


class Notes:
    """One kind of note. The table that holds them is created with the first."""

    def __init__(self, table: str, value: Column[Any]) -> None:
        self._table = Table(table, MetaData(), Column("table_name", Text, primary_key=True), value)
        self._value = value
        self._this = self._table.c.table_name == bindparam("this", type_=Text)

    def of(self, connection: Connection, table_name: str) -> Any:
        """What is noted of a state's table; None: nothing."""
        if not inspect(connection).has_table(self._table.name):
            return None
        return connection.execute(select(self._value).where(self._this), {"this": table_name}).scalar()

    def note(self, connection: Connection, table_name: str, value: object) -> None:
        """Note it, in place of what was noted before; None: nothing."""
        self._table.create(connection, checkfirst=True)
        connection.execute(delete(self._table).where(self._this), {"this": table_name})
        if value is not None:
            connection.execute(insert(self._table), {"table_name": table_name, self._value.name: value})


STORES: Final = Notes("transactional_state_stores", Column("store_id", Text, nullable=False))
"""The `store_id` of the coordinator's store that a table was created for, or handed over to."""
REWINDS: Final = Notes("transactional_rewinds", Column("txid", BigInteger, nullable=False))
"""The transaction that a table was taken back to last, before which nothing is known: see `state.rows.going_back`."""
