"""Avro schemas and values that are drawn, and what fastavro makes of bytes."""

from __future__ import annotations

import io
import json
import string
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from random import Random
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa

from spouts.avro.decoder import Decoder
from spouts.avro.reader_types import ReaderType, type_from_avro
from spouts.avro.schema import AvroField, AvroType, parse_schema

DEPTH = 3
UNREAD = "unread"
"""Names of fields that no reader has begin with it: their types are such as no column holds."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DECIMAL = {"logicalType": "decimal", "precision": 12, "scale": 3}
LEAVES: Sequence[Any] = (
    *("boolean", "int", "long", "float", "double", "bytes", "string"),
    {"type": "int", "logicalType": "date"},
    {"type": "long", "logicalType": "timestamp-millis"},
    {"type": "long", "logicalType": "timestamp-micros"},
    {"type": "bytes", **DECIMAL},
)
UNREAD_LEAVES: Sequence[Any] = (
    {"type": "string", "logicalType": "uuid"},
    {"type": "long", "logicalType": "local-timestamp-micros"},
    {"type": "long", "logicalType": "time-micros"},
)
"""Of which fastavro makes other values than ours."""


@dataclass
class Drawn:
    """Draws with a seed of its own."""

    random: Random
    names: int = 0
    defined: dict[str, Any] = field(default_factory=dict)
    """Types that are used again, by name."""
    depth: int = 0

    def name(self, prefix: str) -> str:
        self.names += 1
        return f"{prefix}{self.names}"

    def schema(self) -> dict[str, Any]:
        """A record of some fields."""
        return self.record(0)

    def record(self, depth: int) -> dict[str, Any]:
        fields = [
            {"name": self.name("f"), "type": self.type(depth + 1)} for _ in range(self.random.randint(1, 4 - depth))
        ]
        if self.random.random() < 0.3:
            unread = {"name": self.name(UNREAD), "type": self.unread()}
            fields.insert(self.random.randint(0, len(fields)), unread)
        return {"type": "record", "name": self.name("R"), "fields": fields}

    def unread(self) -> Any:
        """A type that is only passed by."""
        name, kind = self.name("T"), self.random.randrange(6)
        if kind < 2:  # it contains itself
            again = [["null", name], {"type": "array", "items": name}][kind]
            fields = [{"name": "n", "type": "int"}, {"name": "again", "type": again}, {"name": "s", "type": "string"}]
            made = self.defined[name] = {"type": "record", "name": name, "fields": fields}
            return made
        if kind == 2 and self.defined:
            return self.random.choice(list(self.defined))
        if kind == 3:
            return {"type": "map", "values": [{"type": "array", "items": "string"}, "null", "double"]}
        return ["null", "int", "string", {"type": "fixed", "name": name, "size": 3}, self.random.choice(UNREAD_LEAVES)]

    def type(self, depth: int) -> Any:
        drawn = self.random.random()
        if drawn < 0.25:
            return ["null", self.plain(depth)] if drawn < 0.15 else [self.plain(depth), "null"]
        return self.plain(depth)

    def plain(self, depth: int) -> Any:
        drawn = self.random.random()
        if depth >= DEPTH or drawn < 0.6:
            return self.leaf()
        if drawn < 0.75:
            return {"type": "array", "items": self.type(depth + 1)}
        return {"type": "map", "values": self.type(depth + 1)} if drawn < 0.85 else self.record(depth)

    def leaf(self) -> Any:
        drawn = self.random.random()
        if drawn < 0.05:
            return {"type": "fixed", "name": self.name("X"), "size": self.random.choice([6, 20]), **DECIMAL}
        if drawn < 0.1:
            return {"type": "enum", "name": self.name("E"), "symbols": ["A", "B", "C"][: self.random.randint(1, 3)]}
        if drawn < 0.2:
            return {"type": "fixed", "name": self.name("X"), "size": self.random.choice([1, 5, 16, 40])}
        return self.random.choice(LEAVES)

    def value(self, schema: Any) -> Any:
        """A value of a schema, as fastavro writes it."""
        if isinstance(schema, list):
            return self.value(schema[0] if self.depth > DEPTH else self.random.choice(schema))
        if isinstance(schema, str) and schema in self.defined:
            return self.nested(self.defined[schema])
        kind = schema["type"] if isinstance(schema, dict) else schema
        if isinstance(schema, dict) and "logicalType" in schema:
            return self.logical(schema)
        if kind == "record":
            return {each["name"]: self.value(each["type"]) for each in schema["fields"]}
        if kind == "array" and self.depth > DEPTH:
            return []
        if kind == "array":
            return [self.value(schema["items"]) for _ in range(self.count())]
        if kind == "map":
            return {f"k{number}": self.value(schema["values"]) for number in range(self.count())}
        if kind == "enum":
            return self.random.choice(schema["symbols"])
        if kind == "fixed":
            return self.random.randbytes(schema["size"])
        return self.primitive(kind)

    def nested(self, schema: Any) -> Any:
        self.depth += 1
        value = self.value(schema)
        self.depth -= 1
        return value

    def count(self) -> int:
        return self.random.choice([0, 0, 1, 2, 5])

    def primitive(self, kind: str) -> Any:
        random = self.random
        match kind:
            case "null":
                return None
            case "boolean":
                return random.random() < 0.5
            case "int":
                return random.choice([0, -1, 63, -64, 64, 2**31 - 1, -(2**31), random.randint(-(2**20), 2**20)])
            case "long":
                return random.choice([0, 2**63 - 1, -(2**63), 2**55, -(2**56), random.randint(-(2**40), 2**40)])
            case "float":
                return random.choice([0.0, 1.5, -2.25, float("inf")])
            case "double":
                return random.uniform(-1e9, 1e9)
            case "bytes":
                return random.randbytes(random.choice([0, 1, 12, 13, 100]))
            case _:
                return "".join(random.choices(string.ascii_letters + "äß€😀", k=random.choice([0, 1, 11, 12, 13, 70])))

    def logical(self, schema: dict[str, Any]) -> Any:
        random = self.random
        match schema["logicalType"]:
            case "date":
                return date(1970, 1, 1) + timedelta(days=random.randint(-100_000, 100_000))
            case "decimal":
                return Decimal(random.randint(-(10**12) + 1, 10**12 - 1)).scaleb(-schema["scale"])
            case "uuid":
                return UUID(int=random.getrandbits(128))
            case "time-micros":
                return time(12, 30, random.randrange(60), random.randrange(10**6))
            case "local-timestamp-micros":
                return datetime(2024, 5, 1) + timedelta(microseconds=random.randrange(10**12))  # noqa: DTZ001
            case "timestamp-millis":
                return EPOCH + timedelta(milliseconds=random.randint(-(10**13), 10**13))
            case _:
                return EPOCH + timedelta(microseconds=random.randint(-(10**15), 10**15))


def read_of(schema: Any) -> Any:
    """The schema of a reader, without what no column holds."""
    if isinstance(schema, list):
        return [read_of(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if schema["type"] == "record":
        kept = [each for each in schema["fields"] if not each["name"].startswith(UNREAD)]
        return {**schema, "fields": [{**each, "type": read_of(each["type"])} for each in kept]}
    return {name: read_of(each) if name in ("items", "values") else each for name, each in schema.items()}


def written(schema: Any, values: Sequence[Any]) -> list[bytes]:
    """Values in Avro, by fastavro."""
    ready, payloads = fastavro.parse_schema(schema), list[bytes]()
    for value in values:
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, ready, value)
        payloads.append(buffer.getvalue())
    return payloads


def by_fastavro(payload: bytes, writer: Any, reader: Any = None) -> Any:
    """What fastavro reads. Raises for damaged bytes, also for such as are left."""
    buffer = io.BytesIO(payload)
    value = fastavro.schemaless_reader(buffer, writer, reader)
    if buffer.tell() != len(payload):
        raise ValueError("there are bytes left")
    return value


def decoded(schema: Any, payloads: Sequence[bytes], reader: Any) -> list[Any]:
    """What ours reads of each, as Python has it; an `Exception` for those that can't be read."""
    reader_type = type_from_avro(parse_schema(json.dumps(reader)))
    columns, problems = Decoder(parse_schema(json.dumps(schema)), reader_type).decode(pa.array(payloads, pa.binary()))
    batch = pa.StructArray.from_arrays(columns, fields=list(reader_type.arrow_type))
    batch.validate(full=True)
    return [
        ValueError(problems[row]) if row in problems else shown(batch[row], reader_type) for row in range(len(batch))
    ]


def shown(scalar: pa.Scalar, reader_type: ReaderType) -> Any:
    """The value; or the error if Python has no such date."""
    try:
        return of_scalar(scalar, reader_type)
    except (OverflowError, ValueError) as error:
        return error


def of_scalar(scalar: pa.Scalar, reader_type: ReaderType) -> Any:
    """As fastavro has it: a map is a dictionary."""
    if not scalar.is_valid:
        return None
    if reader_type.fields:
        return {each.names[0]: of_scalar(scalar[each.names[0]], each.type) for each in reader_type.fields}
    if pa.types.is_map(reader_type.arrow_type):
        assert reader_type.item_type is not None
        # Not `as_py`, which has no place for a key that is there twice.
        return {pair["key"].as_py(): of_scalar(pair["value"], reader_type.item_type) for pair in scalar.values}
    if reader_type.item_type is not None:
        return [of_scalar(each, reader_type.item_type) for each in scalar.values]
    return scalar.as_py()


__all__ = ["AvroField", "AvroType", "Drawn", "by_fastavro", "decoded", "read_of", "written"]
