"""What a reader wants: the fields of the tuples, by Spark's DDL or an Avro schema of its own."""

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
class Wanted:
    """A type as Arrow has it. `symbols` are those of an enum; `symbol` is for those that are not among them."""

    type: pa.DataType
    fields: tuple[WantedField, ...] = ()
    of: Wanted | None = None
    symbols: frozenset[str] | None = None
    symbol: str | None = None
    is_nullable: bool = True


@dataclass(frozen=True, slots=True)
class WantedField:
    """A field of a record, under any of its names. `default` is for writers that lack it; without one such records
    can't be read."""

    names: tuple[str, ...]
    wanted: Wanted
    default: pa.Scalar | None


def of_arrow(type_: pa.DataType) -> Wanted:
    """What the fields of a declared schema want: everything may be NULL, and is, where the writer lacks it."""
    if pa.types.is_struct(type_):
        fields = (WantedField((each.name,), of_arrow(each.type), pa.scalar(None, each.type)) for each in type_)
        return Wanted(type_, tuple(fields))
    if pa.types.is_list(type_):
        return Wanted(type_, of=of_arrow(type_.value_type))
    if pa.types.is_map(type_):
        return Wanted(type_, of=of_arrow(type_.item_type))
    return Wanted(type_)


def of_avro(schema: AvroType, within: Sequence[AvroType] = ()) -> Wanted:
    """What a reader's schema wants. Raises `AvroSchemaError` for what no column can hold."""
    beside = schema.beside_null
    if len(beside) != 1:
        raise AvroSchemaError(f"a column can't hold a {schema}: null and one other type at most")
    [type_] = beside
    if type_ in within:
        raise AvroSchemaError(f"{type_.name!r} contains itself: no column can hold that")
    is_nullable = schema.kind == "union" and len(schema.branches) > 1
    of = None if type_.of is None else of_avro(type_.of, (*within, type_))
    if type_.kind == "record":
        if not type_.fields:
            raise AvroSchemaError(f"a column can't hold {type_.name!r}, a record without fields")
        fields = tuple(_field(each, (*within, type_)) for each in type_.fields)
        struct = pa.struct([pa.field(each.names[0], each.wanted.type) for each in fields])
        return Wanted(struct, fields, is_nullable=is_nullable)
    if of is not None:
        arrow = pa.list_(of.type) if type_.kind == "array" else pa.map_(pa.string(), of.type)
        return Wanted(arrow, of=of, is_nullable=is_nullable)
    if type_.kind == "enum":
        symbol = None if type_.default is MISSING else str(type_.default)
        return Wanted(pa.string(), symbols=frozenset(type_.symbols), symbol=symbol, is_nullable=is_nullable)
    return Wanted(_column(type_), is_nullable=is_nullable)


def _column(type_: AvroType) -> pa.DataType:
    if type_.kind == "null":
        raise AvroSchemaError("a column can't hold nothing but null")
    if type_.logical == "decimal" and type_.precision <= DECIMAL_DIGITS_MAX:
        return pa.decimal128(type_.precision, type_.scale)
    return _LOGICAL.get(type_.logical, _PLAIN[type_.kind])


def _field(field: AvroField, within: Sequence[AvroType]) -> WantedField:
    wanted = of_avro(field.type, within)
    default = None if field.default is MISSING else _default(field, wanted)
    return WantedField((field.name, *field.aliases), wanted, default)


def _default(field: AvroField, wanted: Wanted) -> pa.Scalar:
    """JSON as the type has it: bytes are text, a character for each."""
    try:
        return pa.scalar(_value(field.default, field.type, wanted), wanted.type)
    except (pa.ArrowException, ValueError, TypeError, AttributeError, KeyError) as error:
        raise AvroSchemaError(f"field {field.name!r} has no default of {field.default!r}: {error}") from None


def _value(given: Any, type_: AvroType, wanted: Wanted) -> Any:
    [type_] = type_.beside_null if given is not None else (type_,)
    if given is None:
        if not wanted.is_nullable:
            raise ValueError("it is not nullable")
        return None
    if type_.kind == "array":
        assert type_.of is not None
        assert wanted.of is not None
        return [_value(each, type_.of, wanted.of) for each in given]
    if type_.kind == "map":
        assert type_.of is not None
        assert wanted.of is not None
        return [(name, _value(each, type_.of, wanted.of)) for name, each in given.items()]
    if type_.kind == "record":
        pairs = zip(type_.fields, wanted.fields, strict=True)
        return {each.name: _member(given, each, of) for each, of in pairs}
    return _plain(given, type_, wanted)


def _member(given: Any, field: AvroField, of: WantedField) -> Any:
    if field.name in given:
        return _value(given[field.name], field.type, of.wanted)
    if of.default is None:
        raise KeyError(field.name)
    return of.default.as_py()


def _plain(given: Any, type_: AvroType, wanted: Wanted) -> Any:
    if type_.kind in ("bytes", "fixed"):
        value = given.encode("latin-1")
        if not pa.types.is_decimal(wanted.type):
            return value
        unscaled = pa.scalar(int.from_bytes(value, "big", signed=True), pa.decimal128(type_.precision, 0)).as_py()
        return unscaled.scaleb(-type_.scale)
    if pa.types.is_timestamp(wanted.type) and type_.logical.endswith("millis"):
        return given * 1_000
    return float(given) if type_.kind in ("float", "double") else given
