"""The checksum of Kafka records, by which `verify` recognizes them in a topic."""

from __future__ import annotations

from struct import Struct
from typing import Final
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

from sinks.kafka.record_encoding import KEY, VALUE

_LENGTH: Final = Struct(">i")
_SEPARATOR: Final = pa.scalar(b"", pa.binary())


def sum_checksums(records: pa.Table) -> int:
    """Return the sum of the checksums of records: a CRC-32 of key and value, each after its length.

    A part that is NULL has the length -1. Records are joined as columns, since a call for each of them takes longer.
    """
    return sum(
        sum(map(crc32, _join_parts(batch.column(KEY), batch.column(VALUE)).to_pylist()))
        for batch in records.to_batches()
    )


def _join_parts(keys: pa.Array, contents: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(*_with_length(keys), *_with_length(contents), _SEPARATOR)


def _with_length(parts: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the lengths of parts as bytes, and the parts."""
    lengths = pc.fill_null(pc.binary_length(parts), -1).dictionary_encode()
    encoded_lengths = pa.array(map(_LENGTH.pack, lengths.dictionary.to_pylist()), pa.binary())
    return encoded_lengths.take(lengths.indices), pc.fill_null(parts, b"")
