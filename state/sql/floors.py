"""The floors of the SQL states whose rows expire: one row for each of them, written with the state's own rows.

The table is created with the first state of a database, whether or not its rows expire.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Column, Connection, MetaData, Table, Text, bindparam, insert, select, update

from state.rows.expiring import Floors
from transactional.model.attempt import TxId

FLOORS: Final = Table(
    "transactional_floors",
    MetaData(),
    Column("table_name", Text, primary_key=True),
    Column("expires", Text, nullable=False),
    Column("txid", BigInteger, nullable=False),
    Column("floor", BigInteger),
    Column("floor_before", BigInteger),
)
_THIS = FLOORS.c.table_name == bindparam("this", type_=Text)
_FIND = select(FLOORS).where(_THIS)
_MOVE = (
    update(FLOORS).where(_THIS).values(txid=bindparam("at"), floor=bindparam("is_at"), floor_before=bindparam("was_at"))
)


def recorded(connection: Connection, table_name: str) -> tuple[str, Floors] | None:
    """By which column the rows of a table expire, and its floors; None: its rows do not expire."""
    row = connection.execute(_FIND, {"this": table_name}).one_or_none()
    return None if row is None else (row.expires, Floors(TxId(row.txid), row.floor, row.floor_before))


def note(connection: Connection, table_name: str, expires: str) -> None:
    """Note that the rows of a table expire by this column from now on."""
    connection.execute(insert(FLOORS), {"table_name": table_name, "expires": expires, "txid": 0})


def move(connection: Connection, table_name: str, floors: Floors) -> None:
    """Record the floors of the transaction that is being written."""
    values = {"this": table_name, "at": floors.txid, "is_at": floors.floor, "was_at": floors.before}
    connection.execute(_MOVE, values)
