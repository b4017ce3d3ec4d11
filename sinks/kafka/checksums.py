"""The checksum of Kafka records, by which `verify` recognizes them in a topic."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

from sinks.kafka.record_encoding import KEY, TOPIC, VALUE

_LENGTH: Final = Struct(">i")
_SEPARATOR: Final = pa.scalar(b"", pa.binary())


def sum_checksums(records: pa.Table) -> int:
    """Return the sum of the checksums of records: a CRC-32 of key, value and, if records name it, topic.

    Each part comes after its length, which is -1 for NULL. Records are joined as columns, since a call for each of them
    takes longer.
    """
    names = [name for name in (KEY, VALUE, TOPIC) if name in records.column_names]
    return sum(
        sum(map(crc32, _join_parts([batch.column(name) for name in names]).to_pylist()))
        for batch in records.to_batches()
    )


def _join_parts(columns: Sequence[pa.Array]) -> pa.Array:
    parts = [part for column in columns for part in _with_length(column.cast(pa.binary()))]
    return pc.binary_join_element_wise(*parts, _SEPARATOR)


def _with_length(parts: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the lengths of parts as bytes, and the parts."""
    lengths = pc.fill_null(pc.binary_length(parts), -1).dictionary_encode()
    encoded_lengths = pa.array(map(_LENGTH.pack, lengths.dictionary.to_pylist()), pa.binary())
    return encoded_lengths.take(lengths.indices), pc.fill_null(parts, b"")
