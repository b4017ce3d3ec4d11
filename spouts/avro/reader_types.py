"""The types that a reader expects: of the fields of its tuples, from Spark's DDL or from an Avro schema of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from spouts.avro.schema import MISSING, AvroField, AvroSchemaError, AvroType
from transactional.model.schema import DECIMAL_DIGITS_MAX

_TIMESTAMP = pa.timestamp("us", tz="UTC")
_PLAIN = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "fixed": pa.binary(),
    "enum": pa.string(),
}
_LOGICAL = {"date": pa.date32(), "uuid": pa.string()} | {
    f"{local}timestamp-{unit}": _TIMESTAMP for local in ("", "local-") for unit in ("millis", "micros")
}


@dataclass(frozen=True, slots=True)
class ReaderType:
    """A type with its Arrow form. An enum has `symbols`, and `symbol` replaces a writer's that is not among them."""

    arrow_type: pa.DataType
    fields: tuple[ReaderField, ...] = ()
    item_type: ReaderType | None = None
    symbols: frozenset[str] | None = None
    symbol: str | None = None
    is_nullable: bool = True


@dataclass(frozen=True, slots=True)
class ReaderField:
    """A field of a record, under any of its names. `default` is its value where the writer lacks the field; without a
    default such records can't be read."""

    names: tuple[str, ...]
    type: ReaderType
    default: pa.Scalar | None


def type_from_arrow(type_: pa.DataType) -> ReaderType:
    """Return the type of a declared schema's fields. Every field may be NULL, and is where the writer lacks it."""
    if pa.types.is_struct(type_):
        fields = (
            ReaderField((field.name,), type_from_arrow(field.type), pa.scalar(None, field.type)) for field in type_
        )
        return ReaderType(type_, tuple(fields))
    if pa.types.is_list(type_):
        return ReaderType(type_, item_type=type_from_arrow(type_.value_type))
    if pa.types.is_map(type_):
        return ReaderType(type_, item_type=type_from_arrow(type_.item_type))
    return ReaderType(type_)


def type_from_avro(schema: AvroType, enclosing: Sequence[AvroType] = ()) -> ReaderType:
    """Return the type of a reader's Avro schema. Raises `AvroSchemaError` for a type that no column can hold."""
    branches = schema.branches_without_null
    if len(branches) != 1:
        raise AvroSchemaError(f"a column can't hold a {schema}: null and one other type at most")
    [type_] = branches
    if type_ in enclosing:
        raise AvroSchemaError(f"{type_.name!r} contains itself: no column can hold that")
    is_nullable = schema.kind == "union" and len(schema.branches) > 1
    item_type = None if type_.item_type is None else type_from_avro(type_.item_type, (*enclosing, type_))
    if type_.kind == "record":
        if not type_.fields:
            raise AvroSchemaError(f"a column can't hold {type_.name!r}, a record without fields")
        fields = tuple(_field(field, (*enclosing, type_)) for field in type_.fields)
        struct = pa.struct([pa.field(field.names[0], field.type.arrow_type) for field in fields])
        return ReaderType(struct, fields, is_nullable=is_nullable)
    if item_type is not None:
        arrow = pa.list_(item_type.arrow_type) if type_.kind == "array" else pa.map_(pa.string(), item_type.arrow_type)
        return ReaderType(arrow, item_type=item_type, is_nullable=is_nullable)
    if type_.kind == "enum":
        symbol = None if type_.default is MISSING else str(type_.default)
        return ReaderType(pa.string(), symbols=frozenset(type_.symbols), symbol=symbol, is_nullable=is_nullable)
    return ReaderType(_column(type_), is_nullable=is_nullable)


def _column(type_: AvroType) -> pa.DataType:
    if type_.kind == "null":
        raise AvroSchemaError("a column can't hold nothing but null")
    if type_.logical == "decimal" and type_.precision <= DECIMAL_DIGITS_MAX:
        return pa.decimal128(type_.precision, type_.scale)
    return _LOGICAL.get(type_.logical, _PLAIN[type_.kind])


def _field(field: AvroField, enclosing: Sequence[AvroType]) -> ReaderField:
    reader_type = type_from_avro(field.type, enclosing)
    default = None if field.default is MISSING else _default(field, reader_type)
    return ReaderField((field.name, *field.aliases), reader_type, default)


def _default(field: AvroField, reader_type: ReaderType) -> pa.Scalar:
    """Return a default value from its JSON, in which bytes are text: a character for each byte."""
    try:
        return pa.scalar(_value(field.default, field.type, reader_type), reader_type.arrow_type)
    except (pa.ArrowException, ValueError, TypeError, AttributeError, KeyError) as error:
        raise AvroSchemaError(f"field {field.name!r} has no default of {field.default!r}: {error}") from None


def _value(json_value: Any, type_: AvroType, reader_type: ReaderType) -> Any:
    [type_] = type_.branches_without_null if json_value is not None else (type_,)
    if json_value is None:
        if not reader_type.is_nullable:
            raise ValueError("it is not nullable")
        return None
    if type_.kind == "array":
        assert type_.item_type is not None
        assert reader_type.item_type is not None
        return [_value(item, type_.item_type, reader_type.item_type) for item in json_value]
    if type_.kind == "map":
        assert type_.item_type is not None
        assert reader_type.item_type is not None
        return [(name, _value(item, type_.item_type, reader_type.item_type)) for name, item in json_value.items()]
    if type_.kind == "record":
        pairs = zip(type_.fields, reader_type.fields, strict=True)
        return {field.name: _member(json_value, field, reader_field) for field, reader_field in pairs}
    return _plain(json_value, type_, reader_type)


def _member(json_value: Any, field: AvroField, reader_field: ReaderField) -> Any:
    if field.name in json_value:
        return _value(json_value[field.name], field.type, reader_field.type)
    if reader_field.default is None:
        raise KeyError(field.name)
    return reader_field.default.as_py()


def _plain(json_value: Any, type_: AvroType, reader_type: ReaderType) -> Any:
    if type_.kind in ("bytes", "fixed"):
        digits = json_value.encode("latin-1")
        if not pa.types.is_decimal(reader_type.arrow_type):
            return digits
        unscaled = pa.scalar(int.from_bytes(digits, "big", signed=True), pa.decimal128(type_.precision, 0)).as_py()
        return unscaled.scaleb(-type_.scale)
    if pa.types.is_timestamp(reader_type.arrow_type) and type_.logical.endswith("millis"):
        return json_value * 1_000
    return float(json_value) if type_.kind in ("float", "double") else json_value
