"""Notes beside the tables of SQL states: one value for each state, in a table of the kind of note.

A table of notes is created with its first note, so that databases without rewinds or store ids need none.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import BigInteger, Column, Connection, MetaData, Table, Text, bindparam, delete, insert, inspect, select


class Notes:
    """One kind of note, in a table that is created with the first note."""

    def __init__(self, table: str, note: Column[Any]) -> None:
        self._table = Table(table, MetaData(), Column("table_name", Text, primary_key=True), note)
        self._note = note
        self._is_of_table = self._table.c.table_name == bindparam("this", type_=Text)

    def read(self, connection: Connection, table_name: str) -> Any:
        """Return the note for a state's table as its column has it, a text or a number. None if there is none."""
        if not inspect(connection).has_table(self._table.name):
            return None
        return connection.execute(select(self._note).where(self._is_of_table), {"this": table_name}).scalar()

    def write(self, connection: Connection, table_name: str, note: object) -> None:
        """Replace the note for a state's table. None removes it."""
        self._table.create(connection, checkfirst=True)
        connection.execute(delete(self._table).where(self._is_of_table), {"this": table_name})
        if note is not None:
            connection.execute(insert(self._table), {"table_name": table_name, self._note.name: note})


STORES: Final = Notes("transactional_state_stores", Column("store_id", Text, nullable=False))
"""The `store_id` of the coordinator's store that a table was created for, or handed over to."""
REWINDS: Final = Notes("transactional_rewinds", Column("txid", BigInteger, nullable=False))
"""The transaction that the last rewind has taken a table back to (see `state.rows.going_back`)."""
