"""`JsonTranslator`: JSON values to columns, thousands of records at a time, using only Arrow's JSON reader.

Each record is valid or invalid by itself, whatever its neighbors: if a set can't be read at once it is split until the
invalid ones are found, so that a replay in different portions produces the same tuples.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_BE, BOM_UTF32_LE
from collections.abc import Iterable, Sequence
from itertools import accumulate

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from spouts.decoding.translator import Decoded, DecodingTranslator, OnError, Payloads, positions_without
from spouts.registry.client import Registry, registry_of
from spouts.registry.framing import Part
from transactional.model.arrow import arrow_schema
from transactional.model.arrow.zones import column_with_zone, zone_of_naive_times
from transactional.model.errors import ConfigError
from transactional.model.schema import Schema

_WHOLE_MIN = 1_000
"""Below it, what Arrow's functions cost once is more than what they save for each record."""
_PIECE = 500
"""The number of values tried at once where some are bad. The rest of a piece behind a bad value is read again."""
_WHITESPACE = " \t\n\r\x0b\x0c"
"""The characters that `bytes.strip` removes."""
_ROW = re.compile(r" in row (\d+)")
_OFFSET = r"^.{10}.*(Z|[+-][0-9]{2}(:?[0-9]{2})?)$"
"""A text of a time with an offset from UTC, which is behind the date."""
_OTHER_MARKS = {BOM_UTF32_LE: "UTF-32", BOM_UTF32_BE: "UTF-32", BOM_UTF16_LE: "UTF-16", BOM_UTF16_BE: "UTF-16"}
"""Byte order marks, a longer one before the one that it begins with."""


class JsonTranslator(DecodingTranslator):
    """Record values that are JSON objects, by a schema: `JsonTranslator("carrier string, dep_delay long")`.

    A field of the schema that an object lacks is NULL; other fields of an object are dropped, also in nested structs
    and arrays. Timestamps are ISO 8601 text (without an offset they are in the
    zone that the topology names for times without one, otherwise in UTC), dates `YYYY-MM-DD`, binary is the bytes
    of a text, a decimal a number or text. Nothing is coerced or rounded: neither `"1"` nor `1.5` is a long, 1 is not a
    string; `NaN` and `Infinity` are no numbers. A byte order mark of UTF-8 in front is passed over.

    A value that is not a JSON object, or does not match, fails the attempt with its topic, partition and offset; with
    `on_error="null"` it becomes a tuple of NULLs, with `"skip"` it is skipped, with `"dead_letter"` the record is put
    into the topology's table of dead letters, from where it can be retried. A record without a value (a tombstone)
    counts as such a value. `record_fields` are fields of the record (topic, key, timestamp, ...) that precede the
    others.

    With a `registry` values are as Confluent's serializer for JSON Schema writes them, with a schema id in a header or
    in front. One without an id, or with the id of a schema that the registry does not know, or that is not a JSON
    Schema, does not match. What the schema in the registry demands is not checked.

    Finding mismatches takes time: the rate is 100,000 records a second if one in a hundred does not match.
    Raises `ConfigError` for a schema that JSON has no values for.
    """

    def __init__(
        self,
        schema: str | Schema,
        *,
        on_error: OnError = "fail",
        record_fields: Iterable[str] = (),
        registry: str | Registry | None = None,
    ) -> None:
        parsed = schema if isinstance(schema, Schema) else Schema.parse(schema)
        if not len(parsed):
            raise ConfigError('JsonTranslator needs a schema, such as "carrier string, dep_delay long"')
        for field in parsed:
            if "map<" in field.type:
                raise ConfigError(f"JsonTranslator can't read field '{field}': use a struct, or SimpleTranslator")
        needs = ["value"] if registry is None else ["value", "headers"]
        super().__init__(parsed, on_error=on_error, record_fields=record_fields, needs=needs)
        self._parsed = parsed
        self._registry = None if registry is None else registry_of(registry)

    def _decode(self, records: pa.RecordBatch) -> Decoded:
        if self._registry is None or not records.num_rows:
            payloads = Payloads(records.column("value"), {}, {}, {})
        else:
            payloads = self._framed(self._registry, records, "value", "JSON")
        batch, bad = _Parser(self._parsed).parse(payloads.column)

        def explain(index: int) -> tuple[Part, str]:
            reason = payloads.problems.get(index) or _Parser(self._parsed).reason(payloads.column[index].as_py())
            return "value", f"{payloads.id_text(index)} is not a JSON object of '{self._parsed}': {reason}"

        return Decoded(batch, bad, explain)


class _Parser:
    """Arrow's JSON reader over values, one per line."""

    def __init__(self, schema: Schema) -> None:
        self._columns, self._has_decimals = arrow_schema(schema), any("decimal" in field.type for field in schema)
        self._has_floats = any(kind in field.type for field in schema for kind in ("float", "double"))
        self._zone = zone_of_naive_times() if "timestamp" in str(schema) else None
        names_zone = self._zone not in (None, "UTC")
        self._read = pa.schema(
            [field.with_type(_read_type(field.type, names_zone=names_zone)) for field in self._columns]
        )
        self._options = pj.ParseOptions(explicit_schema=self._read, unexpected_field_behavior="ignore")

    def parse(self, column: pa.Array) -> tuple[pa.RecordBatch, list[int]]:
        """Return the columns of the values that can be read, and the positions of the others."""
        whole = self._whole(column) if len(column) >= _WHOLE_MIN and not column.null_count else None
        if whole is not None:
            return _one_batch([whole]), []
        values = [value and value.removeprefix(BOM_UTF8) for value in column.to_pylist()]
        bad = [position for position, value in enumerate(values) if _problem(value) is not None]
        good = positions_without(bad, len(values))
        parts, refused = self._parts([values[position] for position in good])
        bad = sorted([*bad, *(good[position] for position in refused)])
        return _one_batch(parts) if parts else pa.RecordBatch.from_pylist([], schema=self._columns), bad

    def _whole(self, column: pa.Array) -> pa.Table | None:
        """Return the columns of all values, without a look at each in Python; None if one may be bad."""
        try:
            text = column.cast(pa.string())
            trimmed = pc.ascii_trim(text, characters=_WHITESPACE)
            shaped = pc.and_(pc.starts_with(trimmed, "{"), pc.ends_with(trimmed, "}"))
            if not pc.all(shaped).as_py():
                return None
            data = pc.binary_join(pa.ListArray.from_arrays([0, len(text)], text), "\n")[0].as_buffer()
            return None if b"\0" in data.to_pybytes() else self._table(data, len(column))
        except (pa.ArrowException, ValueError):
            return None

    def _parts(self, values: Sequence[bytes]) -> tuple[list[pa.Table], list[int]]:
        """Return the columns of the values that can be read, in order, and the positions of the others.

        Where Arrow's error names a row, the values are split around it, otherwise in the middle. Either only chooses
        where to look: a value is bad if it can't be read alone.
        """
        ends = list(accumulate(len(value) + 1 for value in values))
        data, parts, bad = pa.py_buffer(b"\n".join(values)), list[pa.Table](), list[int]()
        waiting = [(0, len(values))] if values else []
        while waiting:
            first, until = waiting.pop()
            start = ends[first - 1] if first else 0
            try:
                parts.append(self._checked_table(data.slice(start, ends[until - 1] - 1 - start), until - first))
            except (pa.ArrowException, ValueError) as error:
                if until - first == 1:
                    bad.append(first)
                else:
                    waiting += _split(first, until, error)
        return parts, bad

    def _checked_table(self, data: pa.Buffer, count: int) -> pa.Table:
        offsets = pa.array([0, data.size], pa.int64()).buffers()[1]
        pa.Array.from_buffers(pa.large_string(), 1, [None, offsets, data]).validate(full=True)  # Arrow's reader
        return self._table(data, count)  # accepts any bytes as text

    def _table(self, data: pa.Buffer, count: int) -> pa.Table:
        """Read all values, or raise. A value makes at least one row, because it starts and ends like an object."""
        options = pj.ReadOptions(use_threads=False, block_size=data.size + 1)
        table = pj.read_json(pa.BufferReader(data), read_options=options, parse_options=self._options)
        if table.num_rows != count:
            raise ValueError("it contains more than one JSON object")
        if self._has_decimals:
            table.validate(full=True)  # Arrow's reader scales 1000 to a decimal(5,2), whose maximum is 999.99
        if self._has_floats and not all(_is_finite(part) for column in table.columns for part in column.chunks):
            raise ValueError("a number is NaN or infinite, which is no JSON")
        if self._zone is not None and self._zone != "UTC":
            columns = zip(table.combine_chunks().columns, self._columns, strict=True)
            arrays = [_with_zone(column.combine_chunks(), field.type, self._zone) for column, field in columns]
            table = pa.table(arrays, names=self._columns.names)
        return table.cast(self._columns)

    def reason(self, value: bytes | None) -> str:
        """Return why a value can't be read."""
        problem = _problem(value)
        if problem is not None or value is None:
            return str(problem)
        try:
            self._checked_table(pa.py_buffer(value.removeprefix(BOM_UTF8)), 1)
        except (pa.ArrowException, ValueError) as error:
            return str(error).removeprefix("JSON parse error: ").removesuffix(" in row 0").rstrip(".")
        return "it can now be read"


def _one_batch(parts: Sequence[pa.Table]) -> pa.RecordBatch:
    [batch] = pa.concat_tables(parts).combine_chunks().to_batches()
    return batch


def _split(first: int, until: int, error: Exception) -> list[tuple[int, int]]:
    """Return the ranges to try in place of one that can't be read, the last one first."""
    if until - first > _PIECE:
        return [(start, min(start + _PIECE, until)) for start in range(first, until, _PIECE)][::-1]
    row_match = _ROW.search(str(error))
    row = first + int(row_match[1]) if row_match else until
    if row >= until:
        middle = (first + until) // 2
        return [(middle, until), (first, middle)]
    around = [(row + 1, until), (row, row + 1), (first, row)]
    return [(start, end) for start, end in around if start < end]


def _problem(value: bytes | None) -> str | None:
    """Return what is obviously wrong with a value, None if nothing is."""
    if value is None:
        return "the record has no value"
    trimmed = value.removeprefix(BOM_UTF8).strip()
    if not trimmed.startswith(b"{") or not trimmed.endswith(b"}"):
        encoding = next((name for mark, name in _OTHER_MARKS.items() if value.startswith(mark)), None)
        if encoding is not None:
            return f"it begins with the byte order mark (BOM) of {encoding}, and JSON is UTF-8"
        return "it does not start and end like an object"
    return "it contains a zero byte" if b"\0" in trimmed else None


def _read_type(type_: pa.DataType, *, names_zone: bool) -> pa.DataType:
    """The type for Arrow's reader: it interprets dates as days since 1970, so these are read as text, then cast.

    Times are read as text, too, if the topology names a zone for those without one.
    """
    if pa.types.is_date(type_) or (names_zone and pa.types.is_timestamp(type_)):
        return pa.string()
    if pa.types.is_list(type_):
        return pa.list_(_read_type(type_.value_type, names_zone=names_zone))
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(_read_type(field.type, names_zone=names_zone)) for field in type_])
    return type_


def _with_zone(column: pa.Array, type_: pa.DataType, zone: str) -> pa.Array:
    """Return a column with its texts of times as instants, those without an offset taken for times in the zone."""
    if pa.types.is_timestamp(type_):
        has_offset = pc.match_substring_regex(column, _OFFSET)
        local = pc.if_else(has_offset, None, column).cast(pa.timestamp(type_.unit))
        offset = pc.if_else(has_offset, column, None).cast(type_)
        return pc.coalesce(offset, column_with_zone(local, zone))
    if pa.types.is_list(type_):
        values = _with_zone(column.values, type_.value_type, zone)
        return pa.ListArray.from_arrays(column.offsets, values, mask=column.is_null())
    if pa.types.is_struct(type_):
        fields = [_with_zone(column.field(number), field.type, zone) for number, field in enumerate(type_)]
        return pa.StructArray.from_arrays(fields, [field.name for field in type_], mask=column.is_null())
    return column


def _is_finite(array: pa.Array) -> bool:
    """Return True if each floating-point number in it is finite: Arrow's reader takes NaN and Infinity, too."""
    if pa.types.is_struct(array.type):
        return all(map(_is_finite, array.flatten()))
    if pa.types.is_list(array.type):
        return _is_finite(array.flatten())
    return not pa.types.is_floating(array.type) or pc.all(pc.is_finite(array)).as_py() is not False
