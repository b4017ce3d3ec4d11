"""Avro values of the Kafka sink: fastavro reads what was written, and what does not fit is refused."""

from __future__ import annotations

import io
import json
import pickle
import re
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from sinks import AvroValue, KafkaSink
from sinks.kafka.avro_value import SchemaRegistry
from transactional.errors import ConfigError, SchemaMismatch, SinkUnavailable, SourceUnavailable
from transactional.model.schema import Schema


class OneRegistry:
    """A registry that gives each schema the same id."""

    def __init__(self) -> None:
        self.subjects = list[str]()

    def register(self, subject: str, schema: str) -> int:
        self.subjects.append(subject)
        return 258


class AwayRegistry:
    """A registry that does not respond."""

    def register(self, subject: str, schema: str) -> int:
        raise SourceUnavailable("no schema registry gives an answer")


def record(avro_type: Any) -> str:
    return json.dumps({"type": "record", "name": "Made", "fields": [{"name": "it", "type": avro_type}]})


TIME = datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)
POINT = {"type": "record", "name": "Point", "namespace": "of.ours", "fields": [{"name": "x", "type": "long"}]}
VALUES: Mapping[str, tuple[Any, str, Any, Any]] = {
    "boolean": ("boolean", "boolean", True, True),
    "int": ("int", "int", -(2**31), -(2**31)),
    "int of a long": ("int", "long", 2**31 - 1, 2**31 - 1),
    "long": ("long", "long", -(2**63), -(2**63)),
    "large long": ("long", "long", 2**63 - 1, 2**63 - 1),
    "float": ("float", "float", 0.5, 0.5),
    "double": ("double", "double", 0.1, 0.1),
    "string": ("string", "string", "é😀", "é😀"),
    "bytes": ("bytes", "binary", b"\0\xff", b"\0\xff"),
    "fixed": ({"type": "fixed", "name": "Two", "size": 2}, "binary", b"\0\xff", b"\0\xff"),
    "enum": ({"type": "enum", "name": "Kind", "symbols": ["A", "B"]}, "string", "B", "B"),
    "date": ({"type": "int", "logicalType": "date"}, "date", date(1969, 12, 31), date(1969, 12, 31)),
    "microseconds": ({"type": "long", "logicalType": "timestamp-micros"}, "timestamp", TIME, TIME),
    "milliseconds": (
        {"type": "long", "logicalType": "timestamp-millis"},
        "timestamp",
        TIME,
        TIME.replace(microsecond=999_000),
    ),
    "decimal": (
        {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 4},
        "decimal(36,2)",
        Decimal("-9999999999999999999999999999999999.99"),
        Decimal("-9999999999999999999999999999999999.9900"),
    ),
    "small decimal": (
        {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2},
        "decimal(5,2)",
        Decimal("-1.28"),
        Decimal("-1.28"),
    ),
    "fixed decimal": (
        {"type": "fixed", "name": "Price", "size": 4, "logicalType": "decimal", "precision": 8, "scale": 2},
        "decimal(8,2)",
        Decimal("-0.01"),
        Decimal("-0.01"),
    ),
    "array": ({"type": "array", "items": ["null", "int"]}, "array<int>", [1, None, 2], [1, None, 2]),
    "empty array": ({"type": "array", "items": "int"}, "array<int>", [], []),
    "map": ({"type": "map", "values": "string"}, "map<string,string>", {"a": "b", "c": ""}, {"a": "b", "c": ""}),
    "record": (POINT, "struct<x:bigint>", {"x": 7}, {"x": 7}),
    "records": (
        {"type": "array", "items": POINT},
        "array<struct<x:bigint>>",
        [{"x": 7}, {"x": -7}],
        [{"x": 7}, {"x": -7}],
    ),
    "nullable first": (["null", "long"], "long", 5, 5),
    "nullable last": (["long", "null"], "long", 5, 5),
}
"""By name the Avro type, the field's type, a value of it, and what fastavro reads."""


def encode(avro_type: Any, field_type: str, contents: list[Any]) -> list[bytes]:
    """Encode a stream with one field, as tasks do: the sink is pickled after it was prepared."""
    schema = Schema.parse(f"it {field_type}")
    made = KafkaSink("host:9092", "topic", value=AvroValue(record(avro_type), OneRegistry()))
    made.check_input(schema, used_by="sink 'alerts'")
    part = made.form.value_part
    assert isinstance(part, AvroValue)
    part.prepare(["topic"], "value")
    unpickled = pickle.loads(pickle.dumps(made))
    from transactional.model.arrow.conversions import arrow_schema

    column = pa.array([None, *contents, None], arrow_schema(schema).field("it").type).slice(1, len(contents))
    table = unpickled.encode(pa.record_batch({"it": column}))
    return [row["value"] for row in table.to_pylist()]


def test_a_key_is_a_record_too() -> None:
    """Its bytes choose the partition, as with Java's serializers."""
    key = AvroValue(record("long"), OneRegistry())
    made = KafkaSink("host:9092", "topic", key=key, value="text")
    made.check_input(Schema.parse("it long, text string, other long"), used_by="sink 'alerts'")
    assert made.record_fields(Schema.parse("it long, text string, other long")) == Schema.parse("it long, text string")
    assert made.identity()["key"] == "avro Made"
    assert isinstance(made.form.key_part, AvroValue)
    made.form.key_part.prepare(["topic"], "key")
    encoded = made.encode(pa.record_batch({"it": pa.array([7], pa.int64()), "text": ["a"]})).to_pylist()
    assert encoded == [{"key": b"\0\0\0\1\2" + b"\x0e", "value": b"a"}]
    with pytest.raises(ConfigError, match="sink 'alerts'"):
        made.check_input(Schema.parse("text string"), used_by="sink 'alerts'")


@pytest.mark.parametrize("name", VALUES)
def test_fastavro_reads_what_was_written(name: str) -> None:
    avro_type, field_type, content, expected = VALUES[name]
    is_nullable = isinstance(avro_type, list)
    contents = [content, None, content] if is_nullable else [content, content]
    written = encode(avro_type, field_type, contents)
    assert {one[:5] for one in written} == {b"\0\0\0\1\2"}
    parsed = fastavro.parse_schema(json.loads(record(avro_type)))
    read = [fastavro.schemaless_reader(io.BytesIO(one[5:]), parsed, None) for one in written]
    assert read == [{"it": expected}, *([{"it": None}] if is_nullable else []), {"it": expected}]


@pytest.mark.parametrize(
    ("avro_type", "field_type", "message"),
    [
        ("int", "string", "sink 'alerts': field 'it' is string, and the Avro schema has 'int' for it"),
        ("string", "timestamp", "field 'it' is timestamp.*, and the Avro schema has 'string'"),
        (["null", "int", "string"], "int", "is a union of .*; one type and null can be encoded"),
        (POINT, "struct<y:bigint>", "the Avro schema has field 'it.x', and the stream has y"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 1},
            "decimal(5,2)",
            r"decimal128\(5, 2\), and the Avro schema has 'decimal\(5,1\)' for it",
        ),
        ({"type": "map", "values": "int"}, "map<int,int>", "the Avro schema has 'map' for it"),
    ],
)
def test_a_stream_that_does_not_fit_the_schema_is_refused(avro_type: Any, field_type: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        encode(avro_type, field_type, [])


@pytest.mark.parametrize(
    ("avro_type", "field_type", "content", "message"),
    [
        ("long", "long", None, "field 'it' is NULL, and its Avro type has no null"),
        ({"type": "array", "items": "int"}, "array<int>", [None], "field 'it' is NULL"),
        ("int", "long", 2**31, "field 'it' is 2147483648, and its Avro type is int"),
        ({"type": "enum", "name": "Kind", "symbols": ["A"]}, "string", "B", "'B', which its Avro enum does not have"),
        ({"type": "fixed", "name": "Two", "size": 2}, "binary", b"x", "has 1 bytes, and its Avro type is fixed with 2"),
    ],
)
def test_what_the_schema_does_not_take_is_a_bad_tuple(
    avro_type: Any, field_type: str, content: Any, message: str
) -> None:
    with pytest.raises(SchemaMismatch, match=message):
        encode(avro_type, field_type, [content])


@pytest.mark.parametrize(
    ("schema", "registry", "message"),
    [
        ("{}", OneRegistry(), "AvroValue takes the JSON of an Avro record"),
        ("[", OneRegistry(), "AvroValue takes the JSON of an Avro record"),
        ({"type": "record"}, OneRegistry(), "AvroValue takes a schema as text: pass json.dumps(schema)"),
        (record("int"), "http:", "AvroValue takes a registry such as"),
    ],
)
def test_what_is_no_schema_or_no_registry_is_refused(schema: str, registry: SchemaRegistry, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        AvroValue(schema, registry)


def test_subjects_are_those_of_confluent_and_a_registry_may_be_away() -> None:
    registry = OneRegistry()
    AvroValue(record("int"), registry).prepare(["orders"], "value")
    AvroValue(record("int"), registry, subject="of.ours.Made").prepare(["orders"], "value")
    AvroValue(record("int"), registry).prepare(["orders"], "key")
    assert registry.subjects == ["orders-value", "of.ours.Made", "orders-key"]
    with pytest.raises(SinkUnavailable, match="no schema registry gives an answer"):
        AvroValue(record("int"), AwayRegistry()).prepare(["orders"], "value")
