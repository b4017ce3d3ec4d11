"""The expiry horizons of SQL states: one row for each state whose rows expire, written together with its own rows.

The table `transactional_horizons` is created with the first state of a database, whether or not its rows expire: a role
that may write but not create tables needs it, too.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Column, Connection, MetaData, Table, Text, bindparam, insert, select, update

from state.rows.expiring import ExpiryHorizons
from transactional.model.attempt import TxId

HORIZONS: Final = Table(
    "transactional_horizons",
    MetaData(),
    Column("table_name", Text, primary_key=True),
    Column("expires", Text, nullable=False),
    Column("txid", BigInteger, nullable=False),
    Column("horizon", BigInteger),
    Column("previous_horizon", BigInteger),
)
_OF_TABLE = HORIZONS.c.table_name == bindparam("table", type_=Text)
_SELECT = select(HORIZONS).where(_OF_TABLE)
_UPDATE = (
    update(HORIZONS)
    .where(_OF_TABLE)
    .values(txid=bindparam("new_txid"), horizon=bindparam("current"), previous_horizon=bindparam("previous"))
)


def read_horizons(connection: Connection, table_name: str) -> tuple[str, ExpiryHorizons] | None:
    """Return the column by which the rows of a table expire, and its horizons. None: they do not expire."""
    row = connection.execute(_SELECT, {"table": table_name}).one_or_none()
    return None if row is None else (row.expires, ExpiryHorizons(TxId(row.txid), row.horizon, row.previous_horizon))


def register_expiry(connection: Connection, table_name: str, expires: str) -> None:
    """Record that the rows of a table expire by the column `expires` from now on."""
    connection.execute(insert(HORIZONS), {"table_name": table_name, "expires": expires, "txid": 0})


def write_horizons(connection: Connection, table_name: str, horizons: ExpiryHorizons) -> None:
    """Replace the horizons of a table by those of the transaction that is being written."""
    values = {"table": table_name, "new_txid": horizons.txid}
    connection.execute(_UPDATE, {**values, "current": horizons.current, "previous": horizons.previous})
