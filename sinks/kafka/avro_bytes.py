"""Avro's binary encoding of columns: an Avro type and an Arrow type become a function from a column to bytes.

Compiling checks that the types fit, so a topology that can't be encoded is refused when it is built. A column is
encoded as a whole, and its rows are joined with those of other columns.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Context, Decimal
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from transactional.model.errors import ConfigError, SchemaMismatch

Encoder = Callable[[pa.Array], list[bytes]]
_EXACT: Final = Context(prec=80)
_INT_MAX: Final = 2**31 - 1
_NULL: Final = "null"
_TIME_UNITS: Final = {"millis": "ms", "micros": "us", "nanos": "ns"}


def encode_long(number: int) -> bytes:
    """Return a whole number in Avro's variable length."""
    bits, encoded = (number << 1) ^ (number >> 63), bytearray()
    while bits > 0x7F:
        encoded.append(bits & 0x7F | 0x80)
        bits >>= 7
    encoded.append(bits)
    return bytes(encoded)


def encode_bytes(content: bytes) -> bytes:
    """Return bytes behind their length."""
    return encode_long(len(content)) + content


def compact(column: pa.Array) -> pa.Array:
    """Return the column with the nested values of its own rows alone, not those of the array that it is a slice of."""
    return column.take(pa.array(range(len(column)), pa.int64()))


@dataclass(slots=True)
class AvroCompiler:
    """Compiles the types of one schema. `names` has the declarations of types that have been named, by their names."""

    used_by: str
    namespace: str = ""
    names: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    def compile(self, avro: Any, arrow: pa.DataType, path: str) -> Encoder:
        """Return the encoder of a type. Raises `ConfigError` naming the field if the two types do not fit."""
        avro = self.names.get(avro, avro) if isinstance(avro, str) else avro
        if isinstance(avro, list):
            return self._union(avro, arrow, path)
        declaration: Mapping[str, Any] = {"type": avro} if isinstance(avro, str) else avro
        if not isinstance(declaration["type"], str):
            return self.compile(declaration["type"], arrow, path)
        if "name" in declaration:
            self.names[declaration["name"]] = declaration
            self.names[f"{declaration.get('namespace', self.namespace)}.{declaration['name']}"] = declaration
        encoder = self._encoder(declaration, arrow, path)
        if encoder is None:
            described = declaration.get("logicalType") or declaration["type"]
            if described == "decimal":
                described = f"decimal({declaration.get('precision')},{declaration.get('scale', 0)})"
            raise ConfigError(
                f"{self.used_by}: field {path!r} is {arrow}, and the Avro schema has {described!r} for it"
            )
        return _without_nulls(encoder, path)

    def record(self, declaration: Mapping[str, Any], types: Mapping[str, pa.DataType], path: str) -> list[Encoder]:
        """Return the encoders of the fields of a record. Raises `ConfigError` for a field that is missing."""
        encoders = list[Encoder]()
        for member in declaration["fields"]:
            name = f"{path}{member['name']}"
            if member["name"] not in types:
                raise ConfigError(
                    f"{self.used_by}: the Avro schema has field {name!r}, and the stream has {', '.join(types)}"
                )
            encoders.append(self.compile(member["type"], types[member["name"]], name))
        return encoders

    def _union(self, branches: Sequence[Any], arrow: pa.DataType, path: str) -> Encoder:
        typed = [branch for branch in branches if branch != _NULL]
        if len(typed) != 1 or len(branches) > 2:
            raise ConfigError(
                f"{self.used_by}: field {path!r} is a union of {branches}; one type and null can be encoded"
            )
        prefix, encoder = encode_long(branches.index(typed[0])), self.compile(typed[0], arrow, path)
        null = encode_long(branches.index(_NULL)) if _NULL in branches else None

        def encode(column: pa.Array) -> list[bytes]:
            encoded = iter(encoder(column.drop_null()))
            if null is None:
                return [prefix + content for content in encoded]
            return [prefix + next(encoded) if is_valid else null for is_valid in column.is_valid().to_pylist()]

        return encode if null is not None else _without_nulls(encode, path)

    def _encoder(self, declaration: Mapping[str, Any], arrow: pa.DataType, path: str) -> Encoder | None:
        kind, logical = declaration["type"], declaration.get("logicalType", "")
        if pa.types.is_decimal(arrow):
            return _decimals(declaration, arrow, path) if logical == "decimal" else None
        if pa.types.is_timestamp(arrow):
            return _times(logical) if kind == "long" and "timestamp-" in logical else None
        if pa.types.is_date(arrow):
            return _scalars(encode_long, pa.int32()) if (kind, logical) == ("int", "date") else None
        if kind == "record" and pa.types.is_struct(arrow):
            return _records(
                self.record(declaration, {child.name: child.type for child in arrow}, f"{path}."), declaration
            )
        if kind == "map" and pa.types.is_map(arrow) and pa.types.is_string(arrow.key_type):
            return _maps(self.compile(declaration["values"], arrow.item_type, path))
        if kind == "array" and pa.types.is_list(arrow):
            return _arrays(self.compile(declaration["items"], arrow.value_type, path))
        return _scalar_encoder(declaration, arrow, path)


def _scalar_encoder(declaration: Mapping[str, Any], arrow: pa.DataType, path: str) -> Encoder | None:
    kind = declaration["type"]
    is_text, is_binary = pa.types.is_string(arrow), pa.types.is_binary(arrow)
    if kind == "int" and pa.types.is_integer(arrow):
        return _ints(path)
    if kind == "long" and pa.types.is_integer(arrow):
        return _scalars(encode_long)
    if kind == "float" and pa.types.is_float32(arrow):
        return _scalars(struct.Struct("<f").pack)
    if kind == "double" and (pa.types.is_floating(arrow) or pa.types.is_integer(arrow)):
        return _scalars(struct.Struct("<d").pack)
    if kind == "boolean" and pa.types.is_boolean(arrow):
        return _scalars(lambda flag: b"\1" if flag else b"\0")
    if (kind == "string" and is_text) or (kind == "bytes" and (is_binary or is_text)):
        return _scalars(encode_bytes, pa.binary())
    if kind == "enum" and is_text:
        symbols = {symbol: encode_long(number) for number, symbol in enumerate(declaration["symbols"])}
        return _symbols(symbols, path)
    if kind == "fixed" and is_binary:
        return _fixed(int(declaration["size"]), path)
    return None


def _without_nulls(encoder: Encoder, path: str) -> Encoder:
    def encode(column: pa.Array) -> list[bytes]:
        if column.null_count:
            raise SchemaMismatch(f"field {path!r} is NULL, and its Avro type has no null")
        return encoder(column)

    return encode


def _scalars(encode_scalar: Callable[[Any], bytes], cast_to: pa.DataType | None = None) -> Encoder:
    def encode(column: pa.Array) -> list[bytes]:
        scalars = (column if cast_to is None else column.cast(cast_to)).to_pylist()
        return [encode_scalar(scalar) for scalar in scalars]

    return encode


def _ints(path: str) -> Encoder:
    def encode_int(number: int) -> bytes:
        if not -_INT_MAX - 1 <= number <= _INT_MAX:
            raise SchemaMismatch(f"field {path!r} is {number}, and its Avro type is int")
        return encode_long(number)

    return _scalars(encode_int)


def _symbols(symbols: Mapping[str, bytes], path: str) -> Encoder:
    def encode_symbol(text: str) -> bytes:
        if text not in symbols:
            raise SchemaMismatch(f"field {path!r} is {text!r:.50}, which its Avro enum does not have")
        return symbols[text]

    return _scalars(encode_symbol)


def _fixed(size: int, path: str) -> Encoder:
    def encode_fixed(content: bytes) -> bytes:
        if len(content) != size:
            raise SchemaMismatch(f"field {path!r} has {len(content)} bytes, and its Avro type is fixed with {size}")
        return content

    return _scalars(encode_fixed)


def _times(logical: str) -> Encoder:
    """Times in a coarser unit are those of the unit that has begun."""
    unit = _TIME_UNITS[logical.rpartition("-")[2]]

    def encode(column: pa.Array) -> list[bytes]:
        zone = column.type.tz
        floored = pc.floor_temporal(column, unit="millisecond") if unit == "ms" else column
        return [encode_long(number) for number in floored.cast(pa.timestamp(unit, zone)).cast(pa.int64()).to_pylist()]

    return encode


def _decimals(declaration: Mapping[str, Any], arrow: pa.DataType, path: str) -> Encoder | None:
    scale, size = declaration.get("scale", 0), declaration.get("size")
    if scale < arrow.scale or declaration["precision"] - scale < arrow.precision - arrow.scale:
        return None

    def encode_decimal(number: Decimal) -> bytes:
        unscaled = int(number.scaleb(scale, _EXACT))
        if size is None:
            return encode_bytes(
                unscaled.to_bytes((unscaled + (unscaled < 0)).bit_length() // 8 + 1, "big", signed=True)
            )
        return unscaled.to_bytes(size, "big", signed=True)

    return _scalars(encode_decimal)


def _records(encoders: Sequence[Encoder], declaration: Mapping[str, Any]) -> Encoder:
    names = [member["name"] for member in declaration["fields"]]

    def encode(column: pa.StructArray) -> list[bytes]:
        children = dict(zip((child.name for child in column.type), column.flatten(), strict=True))
        return join_rows([encoder(children[name]) for name, encoder in zip(names, encoders, strict=True)], len(column))

    return encode


def _arrays(encoder: Encoder) -> Encoder:
    def encode(column: pa.ListArray) -> list[bytes]:
        column = compact(column)
        return _blocks(column.offsets, encoder(column.values))

    return encode


def _maps(encoder: Encoder) -> Encoder:
    def encode(column: pa.MapArray) -> list[bytes]:
        column = compact(column)
        keys = _scalars(encode_bytes, pa.binary())(column.keys)
        return _blocks(
            column.offsets, [key + content for key, content in zip(keys, encoder(column.items), strict=True)]
        )

    return encode


def _blocks(offsets: pa.Array, contents: Sequence[bytes]) -> list[bytes]:
    """Return arrays or maps: each is a block with a count, and an empty block."""
    return [
        encode_long(end - start) + b"".join(contents[start:end]) + b"\0" if end > start else b"\0"
        for start, end in pairwise(offsets.to_pylist())
    ]


def join_rows(columns: Sequence[Sequence[bytes]], rows: int) -> list[bytes]:
    """Return each row of encoded columns as one text of bytes."""
    return [b"".join(row) for row in zip(*columns, strict=True)] if columns else [b""] * rows
