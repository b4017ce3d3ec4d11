"""`JsonValue`: the value of a record as JSON, in the form of Spark's `to_json`.

Columns are encoded as a whole, and then joined row by row. Numbers are numbers, decimals with all their digits; times
and dates are ISO 8601 texts, bytes are Base64. A field that is NULL is left out. Times have microseconds if they need
them, which Spark would cut off.
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa

from sinks.kafka.avro_bytes import compact
from transactional.model.errors import SchemaMismatch
from transactional.model.schema import Schema

_Texts = Sequence[str | None]
_QUOTE: Final = json.encoder.encode_basestring


@dataclass(frozen=True, slots=True)
class JsonValue:
    """A value that is a JSON object with these fields of the stream; without names it has all fields.

    Values have the form of Spark's `to_json`: times and dates are ISO 8601 texts, bytes are Base64, and fields that are
    NULL are left out.
    """

    selected: tuple[str, ...] = ()

    def __init__(self, *names: str) -> None:
        object.__setattr__(self, "selected", names)

    def __str__(self) -> str:
        return f"json({', '.join(self.selected)})"

    def check_input(self, fields: Schema, *, used_by: str) -> None:
        """Raise `ConfigError` if a field is missing."""
        fields.require(self.selected, of="the stream", used_by=used_by)

    def names(self, fields: Schema) -> Iterable[str]:
        """Return the names of the fields that the object has."""
        return self.selected or fields.names

    def encode(self, batch: pa.RecordBatch) -> pa.Array:
        """Return a JSON text for each row. Raises `SchemaMismatch` for a time that Python does not have."""
        columns = batch.select(list(self.selected)) if self.selected else batch
        try:
            objects = _objects(columns.schema.names, columns.columns, columns.num_rows)
        except (ValueError, OverflowError) as error:
            raise SchemaMismatch(f"it has no form in JSON: {error}") from error
        return pa.array([text.encode() for text in objects], pa.binary())


def _objects(names: Sequence[str], columns: Sequence[pa.Array], rows: int) -> list[str]:
    """Return a JSON object for each row; fields that are NULL are left out."""
    members = [_members(name, column) for name, column in zip(names, columns, strict=True)]
    if not members:
        return ["{}"] * rows
    return ["{" + ",".join([text for text in row if text is not None]) + "}" for row in zip(*members, strict=True)]


def _members(name: str, column: pa.Array) -> _Texts:
    prefix = _QUOTE(name) + ":"
    return [None if text is None else prefix + text for text in _texts(column)]


def _texts(column: pa.Array) -> _Texts:
    """Return the JSON text of each value; None for NULL."""
    type_ = column.type
    if pa.types.is_struct(type_):
        texts = _objects([field.name for field in type_], column.flatten(), len(column))
        return _where_valid(column, texts)
    if pa.types.is_map(type_):
        column = compact(column)
        keys = [text if text.startswith('"') else _QUOTE(text) for text in map(str, _texts(column.keys))]
        members = [f"{key}:{text or 'null'}" for key, text in zip(keys, _texts(column.items), strict=True)]
        return _joined(column, members, "{}")
    if pa.types.is_list(type_):
        column = compact(column)
        return _joined(column, [text or "null" for text in _texts(column.values)], "[]")
    if pa.types.is_float32(type_):  # as a text it has its own digits, not those of the next double
        return _scalar_texts(column.cast(pa.string()), lambda text: _number(float(text)))
    return _scalar_texts(column, next(to_text for is_type, to_text in _SCALARS if is_type(type_)))


def _scalar_texts(column: pa.Array, to_text: Callable[[Any], str]) -> _Texts:
    return [None if scalar is None else to_text(scalar) for scalar in column.to_pylist()]


def _joined(column: pa.ListArray | pa.MapArray, texts: Sequence[str], brackets: str) -> _Texts:
    """Return lists or maps of the texts of their elements."""
    spans = pairwise(column.offsets.to_pylist())
    return _where_valid(column, [brackets[0] + ",".join(texts[start:end]) + brackets[1] for start, end in spans])


def _where_valid(column: pa.Array, texts: Sequence[str]) -> _Texts:
    if not column.null_count:
        return texts
    return [text if is_valid else None for text, is_valid in zip(texts, column.is_valid().to_pylist(), strict=True)]


def _number(number: float) -> str:
    if math.isfinite(number):
        return repr(number)
    return '"NaN"' if math.isnan(number) else '"Infinity"' if number > 0 else '"-Infinity"'


def _time_text(time: datetime) -> str:
    digits = "milliseconds" if time.microsecond % 1_000 == 0 else "microseconds"
    return _QUOTE(time.isoformat(timespec=digits).replace("+00:00", "Z"))


_SCALARS: Final[Sequence[tuple[Callable[[pa.DataType], bool], Callable[[Any], str]]]] = (
    (pa.types.is_boolean, lambda flag: "true" if flag else "false"),
    (pa.types.is_integer, str),
    (pa.types.is_floating, _number),
    (pa.types.is_decimal, lambda number: format(number, "f")),
    (pa.types.is_timestamp, _time_text),
    (pa.types.is_date, lambda day: _QUOTE(day.isoformat())),
    (pa.types.is_binary, lambda content: _QUOTE(b64encode(content).decode())),
    (lambda _type: True, _QUOTE),
)
"""How the values of each type become text: the first type that fits."""
