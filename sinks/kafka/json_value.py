"""`JsonValue`: the value of a record as JSON, in the form of Spark's `to_json`.

Columns become columns of texts, and are joined as columns. Arrow writes the values whose texts are exactly those of
Python; floating-point numbers, bytes, and what is rare, are written one by one. Numbers are numbers, decimals with all
their digits; times and dates are ISO 8601 texts, bytes are Base64. A field that is NULL is left out. Times have
microseconds if they need them, which Spark would cut off.
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from sinks.kafka.avro_bytes import compact
from transactional.model.errors import SchemaMismatch
from transactional.model.schema import Schema

_QUOTE: Final = json.encoder.encode_basestring
_ESCAPED: Final = r'["\\\x00-\x1f]'
"""A character that JSON escapes."""
_NO_TEXT: Final = pa.scalar("", pa.string())
_COMMA: Final = pa.scalar(",", pa.string())
_TIMES: Final = (pa.timestamp("us", "UTC"), pa.timestamp("us"))
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_DAY_US = 86_400_000_000
_FIRST_US, _LAST_US = _FIRST_DAY * _DAY_US, (_LAST_DAY + 1) * _DAY_US - 1
"""The first and the last date and time that Python has."""
_DECIMAL_DIGITS_MAX: Final = 6
"""Arrow writes decimals of more digits behind the point with an exponent if they are small."""


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
        return objects.cast(pa.binary())


def _objects(names: Sequence[str], columns: Sequence[pa.Array], rows: int) -> pa.StringArray:
    """Return a JSON object for each row; fields that are NULL are left out."""
    if not names:
        return pa.array(["{}"] * rows, pa.string())
    members = [_join(_QUOTE(name) + ":", _texts(column)) for name, column in zip(names, columns, strict=True)]
    # Arrow drops a row of NULLs alone, so the last member is an empty text, and the comma before it is cut off.
    row_texts = pc.binary_join_element_wise(*members, _NO_TEXT, _COMMA, null_handling="skip")
    return _join("{", pc.utf8_rtrim(row_texts, ","), "}")


def _join(*parts: str | pa.StringArray) -> pa.StringArray:
    """Return the texts of parts, some of which are the same for all rows, in one; NULL if one is NULL."""
    # The type is given since Arrow takes 50 µs to infer one: it looks for a module that is not there.
    texts = (pa.scalar(part, pa.string()) if isinstance(part, str) else part for part in parts)
    return pc.binary_join_element_wise(*texts, _NO_TEXT)


def _texts(column: pa.Array) -> pa.StringArray:
    """Return the JSON text of each value; NULL for NULL."""
    type_ = column.type
    if pa.types.is_struct(type_):
        return _where_valid(column, _objects([field.name for field in type_], column.flatten(), len(column)))
    if pa.types.is_map(type_):
        column = compact(column)
        keys = _texts(column.keys)
        keys = pc.if_else(pc.starts_with(keys, '"'), keys, _quote_texts(keys))
        return _enclose("{", column, _join(keys, ":", pc.fill_null(_texts(column.items), "null")), "}")
    if pa.types.is_list(type_):
        column = compact(column)
        return _enclose("[", column, pc.fill_null(_texts(column.values), "null"), "]")
    if pa.types.is_string(type_):
        return _quote_texts(column)
    if type_ in _TIMES and _has_python(column.cast(pa.int64()), _FIRST_US, _LAST_US):
        return _time_texts(column)
    if pa.types.is_date32(type_) and _has_python(column.cast(pa.int32()), _FIRST_DAY, _LAST_DAY):
        return _join('"', column.cast(pa.string()), '"')
    if _is_exact(type_):
        return column.cast(pa.string())
    return _texts_one_by_one(column)


def _is_exact(type_: pa.DataType) -> bool:
    """Return whether Arrow's text of a number or a truth value is that of JSON."""
    is_decimal = pa.types.is_decimal(type_) and 0 <= type_.scale <= _DECIMAL_DIGITS_MAX
    return bool(is_decimal or pa.types.is_integer(type_) or pa.types.is_boolean(type_))


def _has_python(numbers: pa.Array, first: int, last: int) -> bool:
    """Return whether Python has times or dates with these numbers since 1970, out of those from `first` to `last`."""
    limits = (pa.scalar(first, numbers.type), pa.scalar(last, numbers.type))
    is_outside = pc.or_(pc.less(numbers, limits[0]), pc.greater(numbers, limits[1]))
    return not pc.any(is_outside).as_py()


def _quote_texts(texts: pa.StringArray) -> pa.StringArray:
    if pc.any(pc.match_substring_regex(texts, _ESCAPED)).as_py():
        return pa.array([None if text is None else _QUOTE(text) for text in texts.to_pylist()], pa.string())
    return _join('"', texts, '"')


def _time_texts(times: pa.TimestampArray) -> pa.StringArray:
    """Return times with milliseconds, or with microseconds where they have some."""
    # Arrow is many times as slow for a time with a zone.
    zone, times = times.type.tz, times.cast(pa.int64()).cast(pa.timestamp("us"))
    in_ms = times.cast(pa.timestamp("ms"), safe=False)
    is_whole = pc.equal(times, in_ms)
    texts = in_ms.cast(pa.string())
    if not pc.all(is_whole).as_py():
        texts = pc.if_else(is_whole, texts, times.cast(pa.string()))
    return _join('"', pc.replace_substring(texts, " ", "T"), '"' if zone is None else 'Z"')


def _enclose(opening: str, column: pa.ListArray | pa.MapArray, texts: pa.StringArray, closing: str) -> pa.StringArray:
    """Return lists or maps of the texts of their elements."""
    lists = pa.ListArray.from_arrays(column.offsets, texts)
    return _where_valid(column, _join(opening, pc.binary_join(lists, ","), closing))


def _where_valid(column: pa.Array, texts: pa.StringArray) -> pa.StringArray:
    return pc.if_else(column.is_valid(), texts, pa.scalar(None, pa.string())) if column.null_count else texts


def _texts_one_by_one(column: pa.Array) -> pa.StringArray:
    type_ = column.type
    to_text = next(to_text for is_type, to_text in _SCALARS if is_type(type_))
    if pa.types.is_float32(type_):  # as a text it has its own digits, not those of the next double
        column, to_text = column.cast(pa.string()), lambda text: _number(float(text))
    return pa.array([None if scalar is None else to_text(scalar) for scalar in column.to_pylist()], pa.string())


def _number(number: float) -> str:
    if math.isfinite(number):
        return repr(number)
    return '"NaN"' if math.isnan(number) else '"Infinity"' if number > 0 else '"-Infinity"'


def _time_text(time: datetime) -> str:
    digits = "milliseconds" if time.microsecond % 1_000 == 0 else "microseconds"
    return _QUOTE(time.isoformat(timespec=digits).replace("+00:00", "Z"))


_SCALARS: Final[Sequence[tuple[Callable[[pa.DataType], bool], Callable[[Any], str]]]] = (
    (pa.types.is_floating, _number),
    (pa.types.is_decimal, lambda number: format(number, "f")),
    (pa.types.is_timestamp, _time_text),
    (pa.types.is_date, lambda day: _QUOTE(day.isoformat())),
    (pa.types.is_binary, lambda content: _QUOTE(b64encode(content).decode())),
    (lambda _type: True, _QUOTE),
)
"""How the values of each type become text: the first type that fits."""
