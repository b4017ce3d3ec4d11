"""Encodes the keys and values of Kafka records from the columns of a stream. Pure functions of record batches.

Topics, partitions and headers are the publisher's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from transactional.model.errors import ConfigError, SchemaMismatch
from transactional.model.schema import Schema

KEY, VALUE = "key", "value"
RECORDS: Final = pa.schema([(KEY, pa.binary()), (VALUE, pa.binary())])
"""The columns of encoded records. NULL is a record without a key, or a tombstone."""

_BYTES_TYPES: Final = ("string", "binary")
_KEY_TYPES: Final = (*_BYTES_TYPES, "byte", "short", "int", "long")


@dataclass(frozen=True, slots=True)
class JsonValue:
    """A value that is a JSON object with these fields of the stream; without names it has all fields.

    Times are ISO 8601 texts, decimals texts. Infinity, NaN and binary fields have no form in JSON and are refused.
    """

    names: tuple[str, ...] = ()

    def __init__(self, *names: str) -> None:
        object.__setattr__(self, "names", names)

    def __str__(self) -> str:
        return f"json({', '.join(self.names)})"

    def check_input(self, fields: Schema, *, used_by: str) -> None:
        """Raise `ConfigError` if a field is missing or has no form in JSON."""
        fields.require(self.names, of="the stream", used_by=used_by)
        for field in fields:
            if "binary" in field.type and (not self.names or field.name in self.names):
                raise ConfigError(
                    f"{used_by}: field {field.name!r} is binary, which has no form in JSON; name the other fields: "
                    "JsonValue('field', …)"
                )

    def encode(self, batch: pa.RecordBatch) -> pa.Array:
        """Return a JSON text for each row. Raises `SchemaMismatch`."""
        rows = (batch.select(list(self.names)) if self.names else batch).to_pylist()
        try:
            return pa.array([_DUMP(row).encode() for row in rows], pa.binary())
        except (TypeError, ValueError) as error:
            raise SchemaMismatch(f"it has no form in JSON: {error}") from error


@dataclass(frozen=True, slots=True)
class FieldBytes:
    """A key or value that is one field: a text as UTF-8, bytes as they are, a whole number as decimal digits."""

    name: str
    is_key: bool

    def __str__(self) -> str:
        return f"field {self.name}"

    def check_input(self, fields: Schema, *, used_by: str) -> None:
        """Raise `ConfigError` if the field is missing, or of a type that is not sent as bytes."""
        fields.require([self.name], of="the stream", used_by=used_by)
        types = _KEY_TYPES if self.is_key else _BYTES_TYPES
        if fields[self.name].type not in types:
            raise ConfigError(
                f"{used_by}: field {self.name!r} is {fields[self.name].type}, and a {KEY if self.is_key else VALUE} is "
                f"{', '.join(types[:-1])} or {types[-1]}"
            )

    def encode(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the bytes of each row; NULL stays NULL."""
        column = batch.column(self.name)
        return (column.cast(pa.string()) if pa.types.is_integer(column.type) else column).cast(pa.binary())


RecordPart = JsonValue | FieldBytes


def encode_records(
    batch: pa.RecordBatch, key_part: RecordPart | None, value_part: RecordPart, bytes_max: int
) -> pa.Table:
    """Encode a record for each row. Raises `SchemaMismatch` if one is larger than `bytes_max`."""
    keys = pa.nulls(batch.num_rows, pa.binary()) if key_part is None else key_part.encode(batch)
    values = value_part.encode(batch)
    for number, (key_bytes, value_bytes) in enumerate(zip(_sizes(keys), _sizes(values), strict=True)):
        if key_bytes + value_bytes > bytes_max:
            raise SchemaMismatch(
                f"row {number} makes a record of {key_bytes + value_bytes} bytes, more than record_bytes_max "
                f"({bytes_max})"
            )
    return pa.Table.from_arrays([keys, values], schema=RECORDS)


def _sizes(column: pa.Array) -> Sequence[int]:
    sizes = pc.fill_null(pc.binary_length(column), 0)
    return [int(size) for size in sizes.to_pylist()]


def _json_value(python_value: Any) -> str:
    if isinstance(python_value, datetime | date):
        return python_value.isoformat().replace("+00:00", "Z")
    if isinstance(python_value, Decimal):
        return str(python_value)
    raise TypeError(f"{type(python_value).__name__} {python_value!r:.50}")


_DUMP: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_json_value).encode
