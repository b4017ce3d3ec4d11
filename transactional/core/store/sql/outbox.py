"""The SQL of the outbox in the coordinator's store, and how its rows become values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import BigInteger, Connection, Row, Text, bindparam, case, delete, func, insert, literal, select, update

from transactional.core.store import Lease
from transactional.core.store.outbox import (
    Boundary,
    OutboxRow,
    PayloadFile,
    Publication,
    SinkProgress,
    SinkRecords,
)
from transactional.core.store.sql.rows import readable, whole
from transactional.core.store.sql.schema import outbox, sink_letters, sinks, topologies
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.errors import CorruptRecord

BOUNDARY_RUN: Final = ""
"""The run of a row of `sinks` that is a boundary: no run has this name."""
LAST_TXID: Final = 2**63 - 1
_TOPOLOGY = bindparam("topology", type_=Text)
_SINK = bindparam("named", type_=Text)
_NUMBER = bindparam("number", type_=BigInteger)
_FIRST = bindparam("first", type_=BigInteger)

_IS_REWINDING = (
    select(topologies.c.topology_id)
    .where(topologies.c.topology_id == _TOPOLOGY, topologies.c.rewinding_to.is_not(None))
    .exists()
)
_COUNTER = select(topologies.c.attempt_id).where(topologies.c.topology_id == _TOPOLOGY).scalar_subquery()

ADD: Final = insert(outbox)
ROWS: Final = (
    select(outbox)
    .where(outbox.c.topology_id == _TOPOLOGY, outbox.c.sink == _SINK, outbox.c.txid.between(_FIRST, _NUMBER))
    .where(~_IS_REWINDING)
    .order_by(outbox.c.txid)
    .limit(bindparam("most", type_=BigInteger))
)
IN_FILES: Final = (
    select(outbox)
    .where(outbox.c.topology_id == _TOPOLOGY, outbox.c.file.is_not(None))
    .order_by(outbox.c.sink, outbox.c.txid)
)
PUBLISHED: Final = select(sinks).where(sinks.c.topology_id == _TOPOLOGY)
WAITING: Final = (
    select(
        outbox.c.sink,
        func.count().label("waiting"),
        func.min(outbox.c.txid).label("first_txid"),
        func.sum(outbox.c.records).label("record_count"),
        func.sum(outbox.c.bytes).label("size_bytes"),
    )
    .where(outbox.c.topology_id == _TOPOLOGY)
    .group_by(outbox.c.sink)
)
DELETE: Final = delete(outbox).where(
    outbox.c.topology_id == _TOPOLOGY, outbox.c.sink == _SINK, outbox.c.txid <= _NUMBER
)
FORGET_EARLIER: Final = delete(sinks).where(
    sinks.c.topology_id == _TOPOLOGY, sinks.c.sink == _SINK, sinks.c.txid < _NUMBER
)
NEWEST: Final = select(sinks.c.txid).where(sinks.c.topology_id == _TOPOLOGY, sinks.c.sink == _SINK)
ADD_LETTER: Final = insert(sink_letters)
LETTERS: Final = (
    select(sink_letters, literal(None).label("file"))
    .where(sink_letters.c.topology_id == _TOPOLOGY)
    .order_by(sink_letters.c.sink, sink_letters.c.txid, sink_letters.c.number)
)
COUNT_LETTERS: Final = select(func.count()).where(
    sink_letters.c.topology_id == _TOPOLOGY, sink_letters.c.sink == _SINK, sink_letters.c.txid == _NUMBER
)
DELETE_ONE: Final = delete(outbox).where(
    *(outbox.c.topology_id == _TOPOLOGY, outbox.c.sink == _SINK, outbox.c.txid == _NUMBER),
    *(outbox.c.attempt_id == bindparam("id", type_=BigInteger), outbox.c.run == bindparam("run_name", type_=Text)),
)
NOTE: Final = insert(sinks)
FORGET: Final = delete(sinks).where(sinks.c.topology_id == _TOPOLOGY, sinks.c.sink == _SINK)
DELETE_LATER: Final = delete(outbox).where(outbox.c.topology_id == _TOPOLOGY, outbox.c.txid > _NUMBER)
PLACE_LATER: Final = (
    update(sinks)
    .where(sinks.c.topology_id == _TOPOLOGY, sinks.c.txid > _NUMBER)
    .values(
        txid=_NUMBER,
        attempt_id=case((sinks.c.run == BOUNDARY_RUN, sinks.c.attempt_id), else_=_COUNTER),
        run=BOUNDARY_RUN,
    )
)


def add_rows(connection: Connection, lease: Lease, rows: Iterable[OutboxRow]) -> None:
    """Insert the rows of one transaction commit."""
    for row in rows:
        added: dict[str, object] = {"records": row.count, "payload": row.payload, "bytes": row.size_bytes}
        file_name = None if row.file is None else row.file.name
        connection.execute(ADD, {**_columns(lease, row.sink, row.publication), **added, "file": file_name})


def settle(connection: Connection, lease: Lease, sink: str, published: Publication) -> None:
    """Note a publication unless the noted one is as new, and delete the rows up to its transaction."""
    txid = published.attempt.txid
    key = {"topology": lease.topology_id, "named": sink, "number": txid}
    connection.execute(FORGET_EARLIER, key)
    if connection.execute(NEWEST, {"topology": lease.topology_id, "named": sink}).scalar() is None:
        connection.execute(NOTE, _columns(lease, sink, published))
        connection.execute(DELETE, key)


def place(connection: Connection, lease: Lease, sink: str, boundary: Boundary | None) -> None:
    """Set how far a sink is, and delete its rows up to there; without a boundary all of it."""
    key = {"topology": lease.topology_id, "named": sink}
    connection.execute(FORGET, key)
    if boundary is not None:
        note(connection, lease.topology_id, sink, boundary)
    connection.execute(DELETE, {**key, "number": LAST_TXID if boundary is None else boundary.txid})


def note(connection: Connection, topology_id: str, sink: str, boundary: Boundary) -> None:
    """Insert a boundary as the row of a sink that has none."""
    columns = {"topology_id": topology_id, "sink": sink, "txid": boundary.txid, "attempt_id": boundary.attempt_id}
    connection.execute(NOTE, {**columns, "run": BOUNDARY_RUN})


def set_aside(
    connection: Connection, lease: Lease, row: OutboxRow, letters: SinkRecords, remaining: SinkRecords | None
) -> None:
    """Insert letters, and put the remaining records, if any, in the place of a row."""
    attempt = row.publication.attempt
    key = {"topology": lease.topology_id, "named": row.sink, "number": attempt.txid}
    if not connection.execute(DELETE_ONE, {**key, "id": attempt.attempt_id, "run_name": row.publication.run}).rowcount:
        return
    number = connection.execute(COUNT_LETTERS, key).scalar_one()
    columns = _columns(lease, row.sink, row.publication)
    letter = {**columns, "number": number, "records": letters.count, "payload": letters.payload}
    connection.execute(ADD_LETTER, letter)
    if remaining is not None:
        remaining_row = OutboxRow(row.sink, row.publication, remaining.count, remaining.payload, remaining.file)
        add_rows(connection, lease, [remaining_row])


def go_back(connection: Connection, topology_id: str, txid: TxId) -> None:
    """Delete the rows after a transaction, and set boundaries for what was published after it."""
    key = {"topology": topology_id, "number": txid}
    connection.execute(DELETE_LATER, key)
    connection.execute(PLACE_LATER, key)


def read_progress(connection: Connection, topology_id: str, committed: TxId) -> Mapping[str, SinkProgress]:
    """Return the progress of each sink of a topology. Raises `CorruptRecord`."""
    key = {"topology": topology_id}
    return progress_of(connection.execute(PUBLISHED, key).all(), connection.execute(WAITING, key).all(), committed)


def progress_of(newest: Iterable[Row[Any]], waiting: Iterable[Row[Any]], committed: TxId) -> Mapping[str, SinkProgress]:
    """The progress of each sink, from rows of `PUBLISHED` and `WAITING`. Raises `CorruptRecord`."""
    progress = {row.sink: _noted_progress(row, committed) for row in newest}
    for row in waiting:
        with readable(f"the rows of sink {row.sink!r} in transactional_outbox"):
            done_txid = TxId(whole(row.first_txid) - 1)
            # PostgreSQL sums up to a decimal number.
            count, size_bytes = int(row.record_count), int(row.size_bytes)
            progress[row.sink] = replace(
                progress.get(row.sink, SinkProgress(committed)),
                done_txid=done_txid,
                waiting=whole(row.waiting),
                records=count,
                size_bytes=size_bytes,
            )
    return progress


def _noted_progress(row: Row[Any], committed: TxId) -> SinkProgress:
    if row.run != BOUNDARY_RUN:
        return SinkProgress(committed, _publication(row, "transactional_sinks"))
    with readable(f"the row of sink {row.sink!r} in transactional_sinks"):
        boundary = Boundary(TxId(whole(row.txid)), AttemptId(whole(row.attempt_id)))
        return SinkProgress(committed, boundary=boundary)


def row_of(row: Row[Any]) -> OutboxRow:
    """A row of `ROWS` as a value. Raises `CorruptRecord`."""
    publication = _publication(row, "transactional_outbox")
    if not isinstance(row.payload, bytes):
        raise CorruptRecord(
            f"the payload of transaction {row.txid} of sink {row.sink!r} in transactional_outbox is a "
            f"{type(row.payload).__name__}; restore the store from a backup"
        )
    with readable(f"the row of sink {row.sink!r} and transaction {row.txid} in transactional_outbox"):
        file = None if row.file is None else PayloadFile(row.file, whole(row.bytes))
        return OutboxRow(row.sink, publication, whole(row.records), row.payload, file)


def _publication(row: Row[Any], table: str) -> Publication:
    with readable(f"the row of sink {row.sink!r} and transaction {row.txid} in {table}"):
        return Publication(row.run, TransactionAttempt(TxId(whole(row.txid)), AttemptId(whole(row.attempt_id))))


def _columns(lease: Lease, sink: str, publication: Publication) -> dict[str, object]:
    attempt = publication.attempt
    return {
        "topology_id": lease.topology_id,
        "sink": sink,
        "txid": attempt.txid,
        "attempt_id": attempt.attempt_id,
        "run": publication.run,
    }
