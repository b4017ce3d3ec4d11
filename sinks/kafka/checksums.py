"""The checksum of Kafka records, by which `verify` recognizes them in a topic."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final
from zlib import crc32

from sinks.kafka.record_encoding import KEY, VALUE

if TYPE_CHECKING:
    import pyarrow as pa

_LENGTH: Final = Struct(">i")
_NO_PART: Final = _LENGTH.pack(-1)


def sum_checksums(records: pa.Table) -> int:
    """Return the sum of the checksums of records: a CRC-32 of key and value, each after its length."""
    keys, values = records.column(KEY).to_pylist(), records.column(VALUE).to_pylist()
    return sum(crc32(_with_length(key) + _with_length(content)) for key, content in zip(keys, values, strict=True))


def _with_length(part: bytes | None) -> bytes:
    return _NO_PART if part is None else _LENGTH.pack(len(part)) + part
