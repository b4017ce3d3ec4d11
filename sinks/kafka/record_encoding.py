"""The form of Kafka records: keys, values, headers and partitions, encoded from the columns of a stream.

Pure functions of record batches. The headers `txid`, `attempt` and `sink` are added by the publisher.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from sinks.kafka.topics import OVERHEAD_BYTES, TopicLimits
from transactional.model.errors import ConfigError, SchemaMismatch
from transactional.model.schema import Schema

KEY, VALUE, PARTITION, TOPIC, HEADER = "key", "value", "partition", "topic", "header "
"""The columns of encoded records: NULL is a record without a key, a tombstone, or a partition that the key chooses.
The column of a header begins with `HEADER`. The last three kinds exist only for sinks that have them."""
OUR_HEADERS: Final = ("txid", "attempt", "sink")

_NUMBERS: Final = {"short": ">h", "int": ">i", "long": ">q", "float": ">f", "double": ">d"}
"""The formats of Java's serializers for numbers."""
_BYTES_TYPES: Final = ("string", "binary")
_WHOLE_NUMBERS: Final = ("byte", "short", "int", "long")
_ZERO: Final = pa.scalar(0, pa.int64())
_ONE: Final = pa.scalar(1, pa.int64())
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

    `headers` are the fields of further headers by name. `partition`, `tombstone` and `topic` are fields, too: a number,
    whether the record has no value, and the name of its topic.
    """

    key_part: RecordPart | None
    value_part: RecordPart
    headers: Mapping[str, FieldBytes] = field(default_factory=dict)
    partition: str | None = None
    tombstone: str | None = None
    topic: str | None = None

    def __post_init__(self) -> None:
        for name in OUR_HEADERS:
            if name in self.headers:
                raise ConfigError(f"headers={{{name!r}: …}}: a KafkaSink sets the header {name!r} itself")

    def check_input(self, fields: Schema, *, used_by: str) -> None:
        """Raise `ConfigError` if a field is missing, or has a type that can't be encoded."""
        for part in self._parts():
            part.check_input(fields, used_by=used_by)
        for name, types, expected in (
            (self.partition, _WHOLE_NUMBERS, "a partition is a whole number"),
            (self.tombstone, ("boolean",), "tombstone= takes a boolean field"),
            (self.topic, ("string",), "topic_field= takes a string field"),
        ):
            if name is not None:
                fields.require([name], of="the stream", used_by=used_by)
                if (type_ := fields[name].type) not in types:
                    raise ConfigError(f"{used_by}: field {name!r} is {type_}, and {expected}")

    def fields(self, fields: Schema) -> Schema:
        """Return the fields of a stream that records have, in the order of the stream."""
        names = {name for part in self._parts() for name in part.names(fields)}
        names |= {name for name in (self.partition, self.tombstone, self.topic) if name is not None}
        return fields.select(name for name in fields.names if name in names)

    def identity(self) -> dict[str, Any]:
        """Return the form for the fingerprint of a topology."""
        identity: dict[str, Any] = {"key": str(self.key_part or ""), "value": str(self.value_part)}
        if self.headers:
            identity["headers"] = {name: str(part) for name, part in self.headers.items()}
        optional = {"partition": self.partition, "tombstone": self.tombstone, "topic": self.topic}
        return identity | {option: f"field {name}" for option, name in optional.items() if name is not None}

    def encode(self, batch: pa.RecordBatch, limits: Sequence[TopicLimits]) -> pa.Table:
        """Encode a record for each row. Raises `SchemaMismatch` for a record that its topic would refuse.

        `limits` are those of the topics that rows may name, or of the one topic for all rows.
        """
        topics = _RowTopics(limits, None if self.topic is None else self._topic_numbers(batch, limits))
        columns = {
            KEY: pa.nulls(batch.num_rows, pa.binary()) if self.key_part is None else self.key_part.encode(batch),
            VALUE: self._values(batch),
        }
        columns |= {HEADER + name: part.encode(batch) for name, part in self.headers.items()}
        self._check(columns, topics)
        if self.partition is not None:
            columns[PARTITION] = self._partitions(batch.column(self.partition), topics)
        if self.topic is not None:
            columns[TOPIC] = batch.column(self.topic)
        return pa.table(columns)

    def _topic_numbers(self, batch: pa.RecordBatch, limits: Sequence[TopicLimits]) -> pa.Array:
        """Return the number of the topic that each row names. Raises `SchemaMismatch` for one that is not listed."""
        column, names = batch.column(self.topic), [topic.topic for topic in limits]
        numbers = pc.index_in(column, pa.array(names, pa.string()))
        if numbers.null_count:
            row = _first_true_row(pc.is_null(numbers))
            topic = "NULL" if column[row].as_py() is None else repr(column[row].as_py())
            raise SchemaMismatch(
                f"field {self.topic!r}, the topic, is {topic:.100} in row {row}, and topics= has "
                f"{', '.join(map(repr, names))}"
            )
        return numbers

    def _values(self, batch: pa.RecordBatch) -> pa.Array:
        if self.tombstone is None:
            return self.value_part.encode(batch)
        has_value = pc.invert(pc.fill_null(batch.column(self.tombstone), fill_value=False))
        numbers = pc.subtract(pc.cumulative_sum(has_value.cast(pa.int64())), _ONE)
        encoded = self.value_part.encode(batch.filter(has_value))
        return encoded.take(pc.if_else(has_value, numbers, pa.scalar(None, pa.int64())))

    def _parts(self) -> Iterable[RecordPart]:
        return (*(() if self.key_part is None else (self.key_part,)), self.value_part, *self.headers.values())

    def _check(self, columns: Mapping[str, pa.Array], topics: _RowTopics) -> None:
        if self.key_part is not None and columns[KEY].null_count:  # without one no topic of the sink is compacted
            is_refused = pc.and_(pc.is_null(columns[KEY]), topics.spread(lambda topic: topic.is_compacted, pa.bool_()))
            if pc.any(is_refused).as_py():
                row = _first_true_row(is_refused)
                raise SchemaMismatch(
                    f"{self.key_part}, the key, is NULL in row {row}, and topic {topics.of_row(row).topic!r} is "
                    "compacted: it refuses records without keys"
                )
        sizes: Any = pa.scalar(sum(len(name.encode()) + _HEADER_BYTES for name in self.headers), pa.int64())
        for column in columns.values():
            sizes = pc.add(sizes, pc.fill_null(pc.binary_length(column), 0))
        is_too_large = pc.greater(sizes, topics.spread(lambda topic: topic.record_bytes_max, pa.int64()))
        if pc.any(is_too_large).as_py():
            row = _first_true_row(is_too_large)
            topic = topics.of_row(row)
            raise SchemaMismatch(
                f"row {row} makes a record of {sizes[row]} bytes, more than the {topic.record_bytes_max} that topic "
                f"{topic.topic!r} takes (its max.message.bytes less {OVERHEAD_BYTES})"
            )

    def _partitions(self, column: pa.Array, topics: _RowTopics) -> pa.Array:
        counts = topics.spread(lambda topic: topic.partitions, pa.int64())
        is_wrong = pc.or_(pc.less(column, _ZERO), pc.greater_equal(column, counts))
        if pc.any(is_wrong).as_py():
            row = _first_true_row(is_wrong)
            topic = topics.of_row(row)
            raise SchemaMismatch(
                f"field {self.partition!r}, the partition, is {column[row]} in row {row}, and topic {topic.topic!r} "
                f"has the partitions 0 to {topic.partitions - 1}"
            )
        return column.cast(pa.int32())


@dataclass(frozen=True, slots=True)
class _RowTopics:
    """The topic of each row of a batch, by its number among the limits. Without numbers all rows go to the first."""

    limits: Sequence[TopicLimits]
    numbers: pa.Array | None

    def of_row(self, row: int) -> TopicLimits:
        return self.limits[0 if self.numbers is None else self.numbers[row].as_py()]

    def spread(self, limit_of: Callable[[TopicLimits], int], arrow_type: pa.DataType) -> pa.Array | pa.Scalar:
        """Return a limit of each row's topic, as a scalar if all rows go to one.

        The type is given since Arrow takes 50 µs to infer one: it looks for a module that is not there.
        """
        if self.numbers is None:
            return pa.scalar(limit_of(self.limits[0]), arrow_type)
        return pa.array(map(limit_of, self.limits), arrow_type).take(self.numbers)


def _first_true_row(mask: pa.BooleanArray) -> int:
    """Return the number of the first row for which the mask is true."""
    return int(pc.index(mask, value=True).as_py())
