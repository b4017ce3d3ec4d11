"""Which coordinator's store the SQL states of a database were created for: one row for each of them."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Column, Connection, MetaData, Table, Text, bindparam, delete, insert, inspect, select

_stores: Final = Table(
    "transactional_state_stores",
    MetaData(),
    Column("table_name", Text, primary_key=True),
    Column("store_id", Text, nullable=False),
)
_THIS = _stores.c.table_name == bindparam("this", type_=Text)


def recorded(connection: Connection, table_name: str) -> str | None:
    """The `store_id` that a table was created with; None: an earlier release has created it, or it had none."""
    if not inspect(connection).has_table(_stores.name):
        return None
    found = connection.execute(select(_stores.c.store_id).where(_THIS), {"this": table_name}).scalar()
    return None if found is None else str(found)


def note(connection: Connection, table_name: str, store_id: str | None) -> None:
    """Record it for a table that is created, or handed over."""
    _stores.create(connection, checkfirst=True)
    connection.execute(delete(_stores).where(_THIS), {"this": table_name})
    if store_id is not None:
        connection.execute(insert(_stores), {"table_name": table_name, "store_id": store_id})
