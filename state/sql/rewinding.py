"""What a SQL state notes of going back by one transaction (see `state.going_back`)."""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Column, Connection, MetaData, Table, Text, bindparam, delete, insert, inspect, select

from state.going_back import undone_by
from transactional.attempt import AttemptId, TxId
from transactional.ports.rewinding import RewindTarget

_rewinds: Final = Table(
    "transactional_rewinds",
    MetaData(),
    Column("table_name", Text, primary_key=True),
    Column("txid", BigInteger, nullable=False),
)
_THIS = _rewinds.c.table_name == bindparam("this", type_=Text)


def rewound_to(connection: Connection, table_name: str) -> TxId | None:
    """The transaction that a table was taken back to last, before which nothing is known of it; None: it never was."""
    if not inspect(connection).has_table(_rewinds.name):
        return None
    found = connection.execute(select(_rewinds.c.txid).where(_THIS), {"this": table_name}).scalar()
    return None if found is None else TxId(found)


def note(connection: Connection, table_name: str, txid: TxId) -> None:
    """Note that a table goes back to a transaction."""
    _rewinds.create(connection, checkfirst=True)
    connection.execute(delete(_rewinds).where(_THIS), {"this": table_name})
    connection.execute(insert(_rewinds), {"table_name": table_name, "txid": txid})


def undone(
    connection: Connection, table_name: str, version: AttemptId | None, target: RewindTarget, state: str
) -> TxId | None:
    """The transaction whose rows go back to what was before (see `state.going_back`)."""
    return undone_by(version, rewound_to(connection, table_name) or TxId(0), target, state)
