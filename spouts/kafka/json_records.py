"""`JsonTranslator`: JSON values to columns, thousands of records at a time, using only Arrow's JSON reader.

Each record is valid or invalid by itself, whatever its neighbors: if a set can't be read at once it is split until the
invalid ones are found, so that a replay in different portions produces the same tuples.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from spouts.kafka.records import FIELD_TYPES
from spouts.kafka.translators import Translator
from spouts.registry.client import Registry, registry_of
from spouts.registry.framing import unframed, without_rows
from spouts.registry.schemas import SchemaId
from transactional.arrow import arrow_schema
from transactional.errors import ConfigError, SchemaMismatch
from transactional.schema import Field, Schema, did_you_mean

OnError = Literal["fail", "null", "skip", "dead_letter"]

_CHOICES = ("fail", "null", "skip", "dead_letter")
_SHOWN_CHARACTERS = 100
_WHOLE_MIN = 1_000
"""Below it, what Arrow's functions cost once is more than what they save for each record."""
_PIECE = 500
"""So many are tried at once where some are bad: each bad one has what follows it in its piece read again."""
_WHITESPACE = " \t\n\r\x0b\x0c"
"""What `bytes.strip` takes away."""
_ROW = re.compile(r" in row (\d+)")


class JsonTranslator(Translator):
    """Record values that are JSON objects, by a schema: `JsonTranslator("carrier string, dep_delay long")`.

    A field of the schema that an object lacks is NULL; other fields of an object are dropped, also in nested structs
    and arrays. Timestamps are ISO 8601 text (without an offset they are UTC), dates `YYYY-MM-DD`, binary is the bytes
    of a text, a decimal a number or text. Nothing is coerced or rounded: neither `"1"` nor `1.5` is a long, 1 is not a
    string; `NaN` and `Infinity` are no numbers.

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
        if on_error not in _CHOICES:
            near = did_you_mean(str(on_error), _CHOICES)
            raise ConfigError(f"on_error is 'fail', 'null', 'skip' or 'dead_letter', not {on_error!r}{near}")
        for field in parsed:
            if "map<" in field.type:
                raise ConfigError(f"JsonTranslator can't read field '{field}': use a struct, or SimpleTranslator")
        self._record_fields = (record_fields,) if isinstance(record_fields, str) else tuple(record_fields)
        ours = Schema(tuple(Field(name, _record_type(name)) for name in self._record_fields))
        wanted = {"topic", "partition", "offset", "value", *self._record_fields}
        wanted |= set() if registry is None else {"headers"}
        super().__init__(Schema((*ours, *parsed)), [name for name in FIELD_TYPES if name in wanted])
        self._parsed, self._on_error = parsed, on_error
        self._registry = None if registry is None else registry_of(registry)
        self._facts: frozenset[str] = frozenset()

    def translate(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """The records' values as columns."""
        return self._translated(records, *self._parse(records))

    def translate_or_refuse(self, records: pa.RecordBatch) -> tuple[pa.RecordBatch, Sequence[tuple[int, str]]]:
        """The records' values as columns; and those that can't be read, with `on_error="dead_letter"`."""
        payloads, found, bad = self._parse(records)
        refused = bad if self.sets_aside else ()
        why = [(position, self._why(records, payloads, position)) for position in refused]
        return self._translated(records, payloads, found, bad), why

    def knowing(self, facts: Collection[str]) -> Self:
        """With the schema ids that are recorded as unknown."""
        made = copy.copy(self)
        made._facts = frozenset(facts)
        return made

    @property
    def sets_aside(self) -> bool:
        """With `on_error="dead_letter"`."""
        return self._on_error == "dead_letter"

    @property
    def leaves_out(self) -> bool:
        """With `on_error="dead_letter"` or `"skip"`."""
        return self._on_error in ("dead_letter", "skip")

    def _parse(self, records: pa.RecordBatch) -> tuple[_Payloads, pa.RecordBatch, list[int]]:
        payloads = self._payloads(records)
        return payloads, *_Parser(self._parsed).parse(payloads.column)

    def _payloads(self, records: pa.RecordBatch) -> _Payloads:
        if self._registry is None or not records.num_rows:
            return _Payloads(records.column("value"), {}, {})
        framed = unframed(records)
        schemas = self._registry.schemas(framed, self._facts, records=self._on_error != "fail")
        problems = dict(framed.bad)
        for schema_id, positions in framed.positions.items():
            schema = schemas[schema_id]
            if schema is None:
                problems |= dict.fromkeys(positions.to_pylist(), self._registry.unknown_text(schema_id))
            elif schema.kind != "JSON":
                problems |= dict.fromkeys(positions.to_pylist(), f"schema id {schema_id} is one of {schema.kind}")
        return _Payloads(without_rows(framed.payloads, problems), problems, framed.positions)

    def _translated(
        self, records: pa.RecordBatch, payloads: _Payloads, found: pa.RecordBatch, bad: list[int]
    ) -> pa.RecordBatch:
        if bad and self._on_error == "fail":
            raise SchemaMismatch(
                f"{self._why(records, payloads, bad[0])}. Fix the schema, or choose on_error='dead_letter', 'null' or "
                "'skip'"
            )
        if bad and self._on_error == "null":
            found = _with_nulls(found, bad)
        kept = records.select(list(self._record_fields))
        if bad and self._on_error in ("skip", "dead_letter"):
            kept = kept.take(pa.array(_without(bad, records.num_rows), pa.int64()))
        schema = arrow_schema(self.output)
        return pa.RecordBatch.from_arrays([*kept.columns, *found.columns], schema=schema)

    def _why(self, records: pa.RecordBatch, payloads: _Payloads, index: int) -> str:
        topic, partition, offset, value = (
            records.column(name)[index].as_py() for name in ("topic", "partition", "offset", "value")
        )
        reason = payloads.problems.get(index) or _Parser(self._parsed).reason(payloads.column[index].as_py())
        return (
            f"the value at offset {offset} of partition {partition} of topic {topic!r}{payloads.id_text(index)} is not "
            f"a JSON object of '{self._parsed}': {reason}; it is {_shown(value)}"
        )


@dataclass(frozen=True, slots=True)
class _Payloads:
    """What is to be read of records: the values, or what stands behind their schema ids. `problems` are why a payload
    is not there, by position."""

    column: pa.Array
    problems: Mapping[int, str]
    positions: Mapping[SchemaId, pa.Array]

    def id_text(self, index: int) -> str:
        """The schema id of a record, for a message."""
        known = (each for each, rows in self.positions.items() if pc.index(rows, index).as_py() >= 0)
        return "".join(f", with schema id {each}," for each in known)


class _Parser:
    """Arrow's JSON reader over values, one per line."""

    def __init__(self, schema: Schema) -> None:
        self._wanted, self._has_decimals = arrow_schema(schema), any("decimal" in field.type for field in schema)
        self._has_floats = any(kind in field.type for field in schema for kind in ("float", "double"))
        self._read = pa.schema([field.with_type(_read_type(field.type)) for field in self._wanted])
        self._options = pj.ParseOptions(explicit_schema=self._read, unexpected_field_behavior="ignore")

    def parse(self, column: pa.Array) -> tuple[pa.RecordBatch, list[int]]:
        """The columns of those that can be read, and the positions of the others."""
        whole = self._whole(column) if len(column) >= _WHOLE_MIN and not column.null_count else None
        if whole is not None:
            return _one_batch([whole]), []
        values = column.to_pylist()
        bad = [position for position, value in enumerate(values) if _problem(value) is not None]
        good = _without(bad, len(values))
        parts, refused = self._parts([values[position] for position in good])
        bad = sorted([*bad, *(good[position] for position in refused)])
        return _one_batch(parts) if parts else pa.RecordBatch.from_pylist([], schema=self._wanted), bad

    def _whole(self, column: pa.Array) -> pa.Table | None:
        """The columns of all of them, without a look at each in Python; None if one may be bad."""
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
        """The columns of those that can be read, in order, and the positions of the others.

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
        """All of them, or an error. Each produces at least one row, because it starts and ends like an object."""
        options = pj.ReadOptions(use_threads=False, block_size=data.size + 1)
        table = pj.read_json(pa.BufferReader(data), read_options=options, parse_options=self._options)
        if table.num_rows != count:
            raise ValueError("it contains more than one JSON object")
        if self._has_decimals:
            table.validate(full=True)  # Arrow's reader scales 1000 to a decimal(5,2), whose maximum is 999.99
        if self._has_floats and not all(_is_finite(part) for column in table.columns for part in column.chunks):
            raise ValueError("a number is NaN or infinite, which is no JSON")
        return table.cast(self._wanted)

    def reason(self, value: bytes | None) -> str:
        """Why a value can't be read."""
        problem = _problem(value)
        if problem is not None or value is None:
            return str(problem)
        try:
            self._checked_table(pa.py_buffer(value), 1)
        except (pa.ArrowException, ValueError) as error:
            return str(error).removeprefix("JSON parse error: ").removesuffix(" in row 0").rstrip(".")
        return "it can now be read"


def _one_batch(parts: Sequence[pa.Table]) -> pa.RecordBatch:
    [batch] = pa.concat_tables(parts).combine_chunks().to_batches()
    return batch


def _split(first: int, until: int, error: Exception) -> list[tuple[int, int]]:
    """The ranges to try in place of one that can't be read, the last one first."""
    if until - first > _PIECE:
        return [(start, min(start + _PIECE, until)) for start in range(first, until, _PIECE)][::-1]
    named = _ROW.search(str(error))
    row = first + int(named[1]) if named else until
    if row >= until:
        middle = (first + until) // 2
        return [(middle, until), (first, middle)]
    around = [(row + 1, until), (row, row + 1), (first, row)]
    return [(start, end) for start, end in around if start < end]


def _problem(value: bytes | None) -> str | None:
    """What is obviously wrong with a value."""
    if value is None:
        return "the record has no value"
    trimmed = value.strip()
    if not trimmed.startswith(b"{") or not trimmed.endswith(b"}"):
        return "it does not start and end like an object"
    return "it contains a zero byte" if b"\0" in trimmed else None


def _read_type(type_: pa.DataType) -> pa.DataType:
    """The type for Arrow's reader: it interprets dates as days since 1970, so these are read as text, then cast."""
    if pa.types.is_date(type_):
        return pa.string()
    if pa.types.is_list(type_):
        return pa.list_(_read_type(type_.value_type))
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(_read_type(field.type)) for field in type_])
    return type_


def _is_finite(array: pa.Array) -> bool:
    """Whether each floating-point number in it is finite: Arrow's reader takes NaN and Infinity, too."""
    if pa.types.is_struct(array.type):
        return all(map(_is_finite, array.flatten()))
    if pa.types.is_list(array.type):
        return _is_finite(array.flatten())
    return not pa.types.is_floating(array.type) or pc.all(pc.is_finite(array)).as_py() is not False


def _with_nulls(batch: pa.RecordBatch, bad: Sequence[int]) -> pa.RecordBatch:
    total = batch.num_rows + len(bad)
    positions: list[int | None] = [None] * total
    for row, position in enumerate(_without(bad, total)):
        positions[position] = row
    return batch.take(pa.array(positions, pa.int64()))


def _without(bad: Sequence[int], total: int) -> list[int]:
    left_out = set(bad)
    return [position for position in range(total) if position not in left_out]


def _record_type(name: str) -> str:
    if name not in FIELD_TYPES or name == "value":
        rest = [field for field in FIELD_TYPES if field != "value"]
        raise ConfigError(f"a record has no field {name!r}{did_you_mean(name, rest)}; choose from {', '.join(rest)}")
    return FIELD_TYPES[name]


def _shown(value: Any) -> str:
    if value is None:
        return "NULL"
    text = repr(value[:_SHOWN_CHARACTERS])[1:]
    return text + ("..." if len(value) > _SHOWN_CHARACTERS else "")
