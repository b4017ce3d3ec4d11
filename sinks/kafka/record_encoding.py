"""The form of Kafka records: keys, values, headers and partitions, encoded from the columns of a stream.

Pure functions of record batches. The headers `txid`, `attempt` and `sink` are added by the publisher.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from sinks.kafka.topics import OVERHEAD_BYTES, TopicLimits
from transactional.model.errors import ConfigError, SchemaMismatch
from transactional.model.schema import Schema

KEY, VALUE, PARTITION, HEADER = "key", "value", "partition", "header "
"""The columns of encoded records: NULL is a record without a key, a tombstone, or a partition that the key chooses.
The column of a header begins with `HEADER`. The last two kinds exist only for sinks that have them."""
OUR_HEADERS: Final = ("txid", "attempt", "sink")

_NUMBERS: Final = {"short": ">h", "int": ">i", "long": ">q", "float": ">f", "double": ">d"}
"""The formats of Java's serializers for numbers."""
_BYTES_TYPES: Final = ("string", "binary")
_WHOLE_NUMBERS: Final = ("byte", "short", "int", "long")
_HEADER_BYTES: Final = 10
"""The largest number of bytes that a header takes besides its name and value."""


class RecordPart(Protocol):
    """A key or a value: it knows which fields it takes, and encodes them."""

    def check_input(self, fields: Schema, *, used_by: str) -> None:
        """Raise `ConfigError` if a field is missing, or has a type that can't be encoded."""

    def names(self, fields: Schema) -> Iterable[str]:
        """Return the names of the fields that are encoded."""

    def encode(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the bytes of each row. Raises `SchemaMismatch`."""


@dataclass(frozen=True, slots=True)
class FieldBytes:
    """A part of a record that is one field: `role` says which.

    A text is sent as UTF-8, bytes as they are. Keys may be numbers, in the form of Java's serializers.
    """

    name: str
    role: str

    def __str__(self) -> str:
        return f"field {self.name}"

    def check_input(self, fields: Schema, *, used_by: str) -> None:
        """Raise `ConfigError` if the field is missing, or of a type that is not sent as bytes."""
        fields.require([self.name], of="the stream", used_by=used_by)
        types = (*_BYTES_TYPES, *(_NUMBERS if self.role == KEY else ()))
        if fields[self.name].type not in types:
            raise ConfigError(
                f"{used_by}: field {self.name!r} is {fields[self.name].type}, and a {self.role} is "
                f"{', '.join(types[:-1])} or {types[-1]}"
            )

    def names(self, fields: Schema) -> Iterable[str]:
        """Return the name of the field."""
        return (self.name,)

    def encode(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the bytes of each row; NULL stays NULL."""
        column = batch.column(self.name)
        if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
            pack = struct.Struct(_FORMATS[column.type]).pack
            return pa.array([None if number is None else pack(number) for number in column.to_pylist()], pa.binary())
        return column.cast(pa.binary())


_FORMATS: Final = {
    pa.int16(): _NUMBERS["short"],
    pa.int32(): _NUMBERS["int"],
    pa.int64(): _NUMBERS["long"],
    pa.float32(): _NUMBERS["float"],
    pa.float64(): _NUMBERS["double"],
}


@dataclass(frozen=True, slots=True)
class RecordForm:
    """How tuples become records.

    `headers` are the fields of further headers by name. `partition` and `tombstone` are fields, too: a number, and
    whether the record has no value.
    """

    key_part: RecordPart | None
    value_part: RecordPart
    headers: Mapping[str, FieldBytes] = field(default_factory=dict)
    partition: str | None = None
    tombstone: str | None = None

    def __post_init__(self) -> None:
        for name in OUR_HEADERS:
            if name in self.headers:
                raise ConfigError(f"headers={{{name!r}: …}}: a KafkaSink sets the header {name!r} itself")

    def check_input(self, fields: Schema, *, used_by: str) -> None:
        """Raise `ConfigError` if a field is missing, or has a type that can't be encoded."""
        for part in self._parts():
            part.check_input(fields, used_by=used_by)
        if self.partition is not None:
            fields.require([self.partition], of="the stream", used_by=used_by)
            if (type_ := fields[self.partition].type) not in _WHOLE_NUMBERS:
                raise ConfigError(f"{used_by}: field {self.partition!r} is {type_}, and a partition is a whole number")
        if self.tombstone is not None:
            fields.require([self.tombstone], of="the stream", used_by=used_by)
            if (type_ := fields[self.tombstone].type) != "boolean":
                raise ConfigError(
                    f"{used_by}: field {self.tombstone!r} is {type_}, and tombstone= takes a boolean field"
                )

    def fields(self, fields: Schema) -> Schema:
        """Return the fields of a stream that records have, in the order of the stream."""
        names = {name for part in self._parts() for name in part.names(fields)} | {self.partition, self.tombstone}
        return fields.select(name for name in fields.names if name in names)

    def identity(self) -> dict[str, Any]:
        """Return the form for the fingerprint of a topology."""
        identity: dict[str, Any] = {"key": str(self.key_part or ""), "value": str(self.value_part)}
        if self.headers:
            identity["headers"] = {name: str(part) for name, part in self.headers.items()}
        optional = {"partition": self.partition, "tombstone": self.tombstone}
        return identity | {option: f"field {name}" for option, name in optional.items() if name is not None}

    def encode(self, batch: pa.RecordBatch, limits: TopicLimits | None) -> pa.Table:
        """Encode a record for each row. Raises `SchemaMismatch` for a record that the topic would refuse."""
        columns = {
            KEY: pa.nulls(batch.num_rows, pa.binary()) if self.key_part is None else self.key_part.encode(batch),
            VALUE: self._values(batch),
        }
        columns |= {HEADER + name: part.encode(batch) for name, part in self.headers.items()}
        if limits is not None:
            self._check(columns, limits)
        if self.partition is not None:
            columns[PARTITION] = self._partitions(batch.column(self.partition), limits)
        return pa.table(columns)

    def _values(self, batch: pa.RecordBatch) -> pa.Array:
        if self.tombstone is None:
            return self.value_part.encode(batch)
        has_value = pc.invert(pc.fill_null(batch.column(self.tombstone), fill_value=False))
        numbers = pc.subtract(pc.cumulative_sum(has_value.cast(pa.int64())), 1)
        encoded = self.value_part.encode(batch.filter(has_value))
        return encoded.take(pc.if_else(has_value, numbers, pa.scalar(None, pa.int64())))

    def _parts(self) -> Iterable[RecordPart]:
        return (*(() if self.key_part is None else (self.key_part,)), self.value_part, *self.headers.values())

    def _check(self, columns: Mapping[str, pa.Array], limits: TopicLimits) -> None:
        if limits.is_compacted and self.key_part is not None and columns[KEY].null_count:
            row = _first_true_row(pc.is_null(columns[KEY]))
            raise SchemaMismatch(
                f"{self.key_part}, the key, is NULL in row {row}, and topic "
                f"{limits.topic!r} is compacted: it refuses records without keys"
            )
        sizes: Any = sum(len(name.encode()) + _HEADER_BYTES for name in self.headers)
        for column in columns.values():
            sizes = pc.add(sizes, pc.fill_null(pc.binary_length(column), 0))
        is_too_large = pc.greater(sizes, limits.record_bytes_max)
        if pc.any(is_too_large).as_py():
            row = _first_true_row(is_too_large)
            raise SchemaMismatch(
                f"row {row} makes a record of {sizes[row]} bytes, more than the {limits.record_bytes_max} that topic "
                f"{limits.topic!r} takes (its max.message.bytes less {OVERHEAD_BYTES})"
            )

    def _partitions(self, column: pa.Array, limits: TopicLimits | None) -> pa.Array:
        count = 2**31 if limits is None else limits.partitions
        is_wrong = pc.or_(pc.less(column, 0), pc.greater_equal(column, count))
        if pc.any(is_wrong).as_py():
            row = _first_true_row(is_wrong)
            raise SchemaMismatch(
                f"field {self.partition!r}, the partition, is {column[row]} in row {row}, and the topic has the "
                f"partitions 0 to {count - 1}"
            )
        return column.cast(pa.int32())


def _first_true_row(mask: pa.BooleanArray) -> int:
    """Return the number of the first row for which the mask is true."""
    return int(pc.index(mask, value=True).as_py())
