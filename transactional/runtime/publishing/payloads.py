"""Payloads of the outbox: encoded records as compressed bytes, and back.

A payload is a CRC-32 in four bytes, and then Arrow's stream format, compressed. Neither Arrow nor the pages of SQLite
have a checksum: without one, a flipped bit would be published as another record.
"""

from __future__ import annotations

import zlib
from typing import Final

import pyarrow as pa

from transactional.core.store.outbox import OutboxRow, SinkRecords
from transactional.model.errors import CorruptRecord

CHECKSUM_BYTES: Final = 4
COMPRESSION: Final = "zstd"


def encode_payload(table: pa.Table, checksum: int | None = None) -> SinkRecords:
    """Compress records, and put the checksum of the payload in front. `checksum` is that of the records."""
    buffer = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=COMPRESSION)
    with pa.ipc.new_stream(buffer, table.schema, options=options) as writer:
        writer.write_table(table.combine_chunks())
    stream = buffer.getvalue().to_pybytes()
    return SinkRecords(_checksum(stream) + stream, table.num_rows, checksum=checksum)


def decode_payload(row: OutboxRow) -> pa.Table:
    """Return the records of an outbox row. Raises `CorruptRecord` if they are not the records that were stored."""
    checksum, stream = row.payload[:CHECKSUM_BYTES], row.payload[CHECKSUM_BYTES:]
    if checksum != _checksum(stream):
        raise corrupt_payload(row, "its checksum is another one")
    try:
        table = pa.ipc.open_stream(stream).read_all()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise corrupt_payload(row, str(error)) from error
    if table.num_rows != row.count:
        raise corrupt_payload(row, f"it has {table.num_rows} records instead of {row.count}")
    return table


def _checksum(stream: bytes) -> bytes:
    return zlib.crc32(stream).to_bytes(CHECKSUM_BYTES, "big")


def corrupt_payload(row: OutboxRow, reason: str) -> CorruptRecord:
    """The error for the payload of an outbox row that is not what was stored, wherever it is."""
    return CorruptRecord(
        f"the payload of transaction {row.publication.attempt.txid} of sink {row.sink!r} in transactional_outbox is "
        f"not readable: {reason}; restore the store, and the folder of its outbox, from one backup"
    )
