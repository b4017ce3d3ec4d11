"""Payloads of the outbox: encoded records as compressed bytes, and back."""

from __future__ import annotations

import pyarrow as pa

from transactional.core.store.outbox import OutboxRow, SinkRecords
from transactional.model.errors import CorruptRecord


def payload_of(table: pa.Table) -> SinkRecords:
    """Compress records in Arrow's stream format."""
    buffer = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(buffer, table.schema, options=options) as writer:
        writer.write_table(table.combine_chunks())
    return SinkRecords(buffer.getvalue().to_pybytes(), table.num_rows)


def records_of(row: OutboxRow) -> pa.Table:
    """The records of an outbox row. Raises `CorruptRecord` if its payload can't be read, or has another number."""
    try:
        table = pa.ipc.open_stream(row.payload).read_all()
    except (pa.ArrowException, OSError, ValueError) as error:  # what is no zstd any more is an OSError
        raise _corrupt(row, str(error)) from error
    if table.num_rows != row.count:
        raise _corrupt(row, f"it has {table.num_rows} records instead of {row.count}")
    return table


def _corrupt(row: OutboxRow, reason: str) -> CorruptRecord:
    txid = row.publication.attempt.txid
    return CorruptRecord(
        f"the payload of transaction {txid} of sink {row.sink!r} in transactional_outbox is not readable: {reason}; "
        "restore the store from a backup"
    )
