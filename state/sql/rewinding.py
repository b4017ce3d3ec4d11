"""Taking a SQL state back by one transaction: a row holds what was before the last transaction that changed it.

What was before that is gone, and so is what was deleted or has expired then. So a table that has gone back can't go
back further before it has gone on; which is noted with the rows.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Column, Connection, MetaData, Table, Text, bindparam, delete, insert, inspect, select

from transactional.attempt import AttemptId, TxId
from transactional.errors import BeyondKept, StoreMismatch
from transactional.ports.rewinding import RewindTarget

_rewinds: Final = Table(
    "transactional_rewinds",
    MetaData(),
    Column("table_name", Text, primary_key=True),
    Column("txid", BigInteger, nullable=False),
)
_THIS = _rewinds.c.table_name == bindparam("this", type_=Text)


def oldest_known(connection: Connection, table_name: str) -> TxId:
    """The transaction before which nothing is known of a table, since it has gone back to it; 0: it never has."""
    if not inspect(connection).has_table(_rewinds.name):
        return TxId(0)
    return TxId(connection.execute(select(_rewinds.c.txid).where(_THIS), {"this": table_name}).scalar() or 0)


def note(connection: Connection, table_name: str, txid: TxId) -> None:
    """Note that a table goes back to a transaction."""
    _rewinds.create(connection, checkfirst=True)
    connection.execute(delete(_rewinds).where(_THIS), {"this": table_name})
    connection.execute(insert(_rewinds), {"table_name": table_name, "txid": txid})


def undone(
    connection: Connection, table_name: str, version: AttemptId | None, target: RewindTarget, state: str
) -> TxId | None:
    """The transaction whose rows go back to what was before; None: there is none. `state` is for errors.

    Raises `BeyondKept`, and `StoreMismatch` for a version that the store does not know.
    """
    if version is None:
        return None
    at = target.txid_of(version)
    if at is None:
        raise StoreMismatch(f"state {state}: the store does not know attempt {version}, which has written the table")
    if at <= target.txid:
        return None
    oldest = TxId(max(at - 1, oldest_known(connection, table_name)))
    if target.txid < oldest:
        raise BeyondKept(
            f"state {state} is at transaction {at} and knows only what was before it: it can't go back to transaction "
            f"{target.txid}; the oldest that it can go back to is {oldest}"
        )
    return at
