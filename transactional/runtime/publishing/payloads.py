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


def encode_payload(staged: pa.Table, count: int, checksum: int | None = None) -> SinkRecords:
    """Compress what a sink has staged of some records, and put the checksum of the payload in front.

    `count` is the number of the records, `checksum` theirs. A staged table may have one row for many records.
    """
    buffer = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=COMPRESSION)
    with pa.ipc.new_stream(buffer, staged.schema, options=options) as writer:
        writer.write_table(staged.combine_chunks())
    stream = buffer.getvalue().to_pybytes()
    return SinkRecords(_checksum(stream) + stream, count, checksum=checksum)


def decode_payload(row: OutboxRow) -> pa.Table:
    """Return what was staged of the records of an outbox row. Raises `CorruptRecord` if it is not what was stored."""
    checksum, stream = row.payload[:CHECKSUM_BYTES], row.payload[CHECKSUM_BYTES:]
    if checksum != _checksum(stream):
        raise corrupt_payload(row, "its checksum is another one")
    try:
        return pa.ipc.open_stream(stream).read_all()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise corrupt_payload(row, str(error)) from error


def _checksum(stream: bytes) -> bytes:
    return zlib.crc32(stream).to_bytes(CHECKSUM_BYTES, "big")


def corrupt_payload(row: OutboxRow, reason: str) -> CorruptRecord:
    """The error for the payload of an outbox row that is not what was stored, wherever it is."""
    return CorruptRecord(
        f"the payload of transaction {row.publication.attempt.txid} of sink {row.sink!r} in transactional_outbox is "
        f"not readable: {reason}; restore the store, and the folder of its outbox, from one backup"
    )
