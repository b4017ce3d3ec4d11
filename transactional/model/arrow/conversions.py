"""Conversions between the framework's schemas and Arrow: types, record batches, IPC bytes, digests, key hashes."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from transactional.model.arrow.narrowing import check_cast, check_values
from transactional.model.arrow.zones import (
    column_with_zone,
    has_naive_times,
    has_times,
    with_zones,
    zone_of_naive_times,
)
from transactional.model.errors import ConfigError, NaiveTime, SchemaMismatch
from transactional.model.schema import Field, Schema, split_types, struct_type

_PRIMITIVES = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}


@lru_cache(maxsize=1_000)
def arrow_schema(schema: Schema) -> pa.Schema:
    """The Arrow schema of a declared schema; every column is nullable."""
    return pa.schema([pa.field(field.name, arrow_type(field.type)) for field in schema])


def arrow_type(name: str) -> pa.DataType:
    """The Arrow type of a Spark type in its simple form (see `schema.parse_type`)."""
    if name in _PRIMITIVES:
        return _PRIMITIVES[name]
    kind, inner = re.split(r"[<(]", name[:-1], maxsplit=1)
    if kind == "decimal":
        precision, scale = inner.split(",")
        return pa.decimal128(int(precision), int(scale))
    if kind == "array":
        return pa.list_(arrow_type(inner))
    if kind == "struct":
        return pa.struct([pa.field(f.name, arrow_type(f.type)) for f in Schema.parse(inner)])
    return pa.map_(*map(arrow_type, split_types(inner)))


def spark_type(type_: pa.DataType) -> str:
    """The Spark type, in its simple form, of an Arrow type. Raises `ConfigError` if there is none."""
    for name, known in _PRIMITIVES.items():
        if type_ == known:
            return name
    if pa.types.is_large_string(type_) or pa.types.is_string_view(type_):
        return "string"
    if pa.types.is_large_binary(type_) or pa.types.is_binary_view(type_):
        return "binary"
    if pa.types.is_timestamp(type_):
        return "timestamp"
    if pa.types.is_decimal(type_):
        return f"decimal({type_.precision},{type_.scale})"
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return f"array<{spark_type(type_.value_type)}>"
    if pa.types.is_map(type_):
        return f"map<{spark_type(type_.key_type)},{spark_type(type_.item_type)}>"
    if pa.types.is_struct(type_):
        return struct_type((field.name, spark_type(field.type)) for field in type_)
    if pa.types.is_null(type_):
        raise ConfigError("the type is void, which has no value but NULL: cast it to another one, such as string")
    raise ConfigError(f"Arrow type {type_} has no counterpart among the supported types")


def declared_schema(schema: pa.Schema, owner: str = "") -> Schema:
    """The declared schema of an Arrow schema. Raises `ConfigError` that names the column, and its `owner`, a table."""
    return Schema(tuple(Field(field.name, _type_of_column(field, owner)) for field in schema))


def _type_of_column(field: pa.Field, owner: str) -> str:
    try:
        return spark_type(field.type)
    except ConfigError as error:
        raise ConfigError(f"{owner}{': ' if owner else ''}column {field.name!r}: {error}") from None


def batch_from_rows(rows: Sequence[tuple[Any, ...]], schema: pa.Schema, *, component: str) -> pa.RecordBatch:
    """A record batch of what a bolt emitted value by value. Raises `SchemaMismatch` naming the wrong field."""
    columns = list(zip(*rows, strict=True)) if rows else [() for _ in schema]
    return batch_from_columns(columns, schema, component=component)


def batch_from_values(values: list[Any], schema: pa.Schema, *, component: str) -> pa.RecordBatch:
    """The same of rows that were put one behind the other into a list: a list of tuples is slower to make and to read,
    and garbage collection looks through it."""
    width = len(schema)
    return batch_from_columns([values[place::width] for place in range(width)], schema, component=component)


def batch_from_columns(columns: Sequence[Sequence[Any]], schema: pa.Schema, *, component: str) -> pa.RecordBatch:
    """The same of columns."""
    arrays = [_array(values, field, component) for values, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


_LIST: Final = "; a list is one value: make it a tuple, or use flat_map, which makes a tuple of each of its elements"
_PYTHONS: Final = (
    (pa.types.is_integer, "an int"),
    (pa.types.is_floating, "a float"),
    (pa.types.is_boolean, "a bool"),
    (pa.types.is_string, "a str"),
    (pa.types.is_binary, "bytes"),
    (pa.types.is_decimal, "a Decimal"),
    (pa.types.is_date, "a date"),
    (pa.types.is_timestamp, "a datetime with a time zone"),
)
"""What Python calls the values of a column."""
_SHOWN_MAX: Final = 100


def _array(values: Sequence[Any], field: pa.Field, component: str) -> pa.Array:
    try:
        check_values(values, field.type, field.name)
        if has_times(field.type):
            values = with_zones(values)
        return pa.array(values, type=field.type)
    except NaiveTime as error:
        raise NaiveTime(f"{component!r}: {error}") from None
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise SchemaMismatch(
            f"{component!r} declares field {field.name!r} as {spark_type(field.type)} and emitted something else: "
            f"{describe_misfit(values, field, error)}"
        ) from error


def describe_misfit(values: Sequence[Any], field: pa.Field, error: Exception) -> str:
    """Which of the values does not fit the field, and which would; what Arrow says of it if the type is the right one.
    `error` is what making an array of all of them has raised."""
    a_list = _LIST if any(isinstance(value, list) for value in values) else ""
    takes = next((name for is_one, name in _PYTHONS if is_one(field.type)), None)
    wrong = next((value for value in values if not _fits(value, field.type)), None)
    kind = type(wrong).__name__
    if wrong is None or takes is None or kind in takes.split():
        return f"{error}{a_list}"
    return f"{repr(wrong)[:_SHOWN_MAX]} is a value of type {kind}, and a {spark_type(field.type)} takes {takes}{a_list}"


def _fits(value: Any, type_: pa.DataType) -> bool:
    try:
        pa.array([value], type=type_)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return False
    return True


def conform(batch: pa.RecordBatch | pa.Table, schema: pa.Schema, *, component: str) -> list[pa.RecordBatch]:
    """Record batches with exactly the declared columns, in order. Raises `SchemaMismatch`."""
    if not isinstance(batch, pa.RecordBatch | pa.Table):
        raise SchemaMismatch(f"{component!r} must emit a RecordBatch or a Table, and emitted a {type(batch).__name__}")
    if batch.schema.names != schema.names:
        raise SchemaMismatch(f"{component!r} declares the fields {schema.names} and emitted {batch.schema.names}")
    table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
    try:
        if table.schema != schema:
            table = _with_zones(table, schema, component)
            for field in schema:
                check_cast(table.column(field.name), field.type, field.name)
            table = table.cast(schema)
        batches: list[pa.RecordBatch] = table.to_batches()
        return batches
    except NaiveTime as error:
        raise NaiveTime(f"{component!r}: {error}") from None
    except (pa.ArrowException, TypeError) as error:
        raise SchemaMismatch(
            f"{component!r} declares '{declared_schema(schema)}', what it emitted can't be cast: {error}"
        ) from error


def _with_zones(table: pa.Table, schema: pa.Schema, component: str) -> pa.Table:
    """The table, in which times without a zone have that of the topology, if it names one."""
    zone = zone_of_naive_times()
    if zone is None:
        return table
    for place, field in enumerate(schema):
        column = table.column(place)
        if has_times(field.type) and has_naive_times(column.type):
            is_flat = pa.types.is_timestamp(column.type)
            made = column_with_zone(column, zone) if is_flat else _array(column.to_pylist(), field, component)
            table = table.set_column(place, field.name, made)
    return table


def to_ipc(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> bytes:
    """Record batches as one Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def from_ipc(data: bytes) -> list[pa.RecordBatch]:
    """The inverse of `to_ipc`."""
    with pa.ipc.open_stream(data) as reader:
        return list(reader)


def table_from_ipc(data: bytes) -> pa.Table:
    """The inverse of `to_ipc`, as a table, which has its columns also without rows."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()


def with_origin(batch: pa.RecordBatch, component: str, stream: str) -> pa.RecordBatch:
    """The record batch with its origin in the metadata, for bolts with several inputs."""
    return batch.replace_schema_metadata({"component": component, "stream": stream})


def origin_of(batch: pa.RecordBatch) -> tuple[str, str]:
    """The component and the stream that emitted a record batch, as passed to a bolt with several inputs.

    Raises `ConfigError` for any other batch: a bolt with one input knows the origin of its tuples.
    """
    metadata = batch.schema.metadata or {}
    if b"component" not in metadata:
        raise ConfigError("only the unchanged record batches of a bolt with several inputs have an origin")
    return metadata[b"component"].decode(), metadata[b"stream"].decode()


def task_of_rows(batch: pa.RecordBatch, fields: Sequence[str], task_count: int, *, seed: int = 0) -> pa.Array:
    """For each row, the task that its values in `fields` map to. The same in every process and on every retry.

    A different `seed` distributes the values differently.
    """
    total = pa.repeat(pa.scalar(seed, pa.int64()), batch.num_rows)
    for field in fields:
        total = pc.modulo(pc.add(pc.multiply(total, 31), _stable_codes(batch.column(field))), 2**32)
    return pc.modulo(total, task_count)


def _stable_codes(column: pa.Array) -> pa.Array:
    """A number below 2**32 for each value: equal for equal values, whatever packages are installed."""
    if pa.types.is_nested(column.type):
        return pa.array([_stable_code(value) for value in column.to_pylist()], type=pa.int64())
    if pa.types.is_temporal(column.type):  # its Python value would depend on the installed time zone library
        column = column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64())
    elif pa.types.is_floating(column.type):
        column = with_one_zero(column)
    encoded = column.dictionary_encode(null_encoding="encode")
    return pa.array(map(_stable_code, encoded.dictionary.to_pylist()), type=pa.int64()).take(encoded.indices)


def with_one_zero(numbers: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """The same floating-point numbers with 0.0 in place of -0.0, which equals it: whatever distinguishes keys by their
    bits or their text must not see two."""
    return pc.add(numbers, pa.scalar(0, numbers.type))


def _stable_code(value: Any) -> int:
    return zlib.crc32(repr(value).encode())


def rows_by_task(tasks: pa.Array, task_count: int) -> Iterable[tuple[int, pa.Array]]:
    """For each task that has rows: its number and the positions of its rows, sorted."""
    for task in range(task_count):
        positions = pc.indices_nonzero(pc.equal(tasks, task))
        if len(positions):
            yield task, positions


class RecordDigest:
    """Counts records and bytes, and computes a checksum of their contents (CRC-32), however they are batched.

    `event_us` is the highest value of the field `event_time`, if one is given and has one, that is not above
    `latest_us`, in microseconds since 1970.
    """

    def __init__(self, *, with_checksum: bool, event_time: str | None = None, latest_us: int | None = None) -> None:
        self.records = self.bytes = 0
        self.event_us: int | None = None
        self._with_checksum, self._event_time, self._latest_us = with_checksum, event_time, latest_us
        self._sums: list[int] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the next records."""
        if self._with_checksum and batch.num_rows:
            parts = [part for column in batch.columns for part in _parts(column, self.records)]
            self._sums = [
                zlib.crc32(part, start) for part, start in zip(parts, self._sums or [0] * len(parts), strict=True)
            ]
        self.records += batch.num_rows
        self.bytes += batch.nbytes
        if self._event_time is not None and batch.num_rows:
            times = batch.column(self._event_time).cast(pa.timestamp("us")).view(pa.int64())
            if self._latest_us is not None:
                times = times.filter(pc.less_equal(times, pa.scalar(self._latest_us, pa.int64())))
            highest = pc.max(times).as_py()
            self.event_us = max((us for us in (self.event_us, highest) if us is not None), default=None)

    @property
    def checksum(self) -> int:
        """One number for all columns; 0 without a checksum or without records."""
        return zlib.crc32(repr(self._sums).encode()) if self._sums else 0


Bytes = memoryview | bytes


def _parts(column: pa.Array, first: int) -> tuple[Bytes, Bytes, Bytes]:
    """A column as bytes: positions of NULLs, lengths, values. `first` is the position of its first row.

    Each part has a checksum of its own, which continues from batch to batch wherever these are split.
    """
    nulls: Bytes = b""
    if column.null_count:  # the other parts are undefined where a value is NULL, so they are filled
        nulls = _fixed_width(pc.add(pc.indices_nonzero(column.is_null()).cast(pa.int64()), first))
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        column = pc.fill_null(column, "" if pa.types.is_string(column.type) else b"")
        return nulls, _fixed_width(pc.binary_length(column)), _variable_width(column)
    if not pa.types.is_primitive(column.type) and not pa.types.is_decimal(column.type):
        return nulls, b"", "".join(f"{value!r}\0" for value in column.to_pylist()).encode()
    column = column.cast(pa.int8()) if pa.types.is_boolean(column.type) else column
    return nulls, b"", _fixed_width(pc.fill_null(column, pa.scalar(0, column.type)))


def _variable_width(column: pa.Array) -> Bytes:
    _, offsets, data = column.buffers()
    if offsets is None or data is None:
        return b""
    bounds = memoryview(offsets).cast("i")
    return memoryview(data)[bounds[column.offset] : bounds[column.offset + len(column)]]


def _fixed_width(column: pa.Array) -> Bytes:
    width, data = column.type.bit_width // 8, column.buffers()[1]
    return memoryview(data)[column.offset * width : (column.offset + len(column)) * width] if data else b""


def fit_value(type_: pa.DataType, value: Any) -> Any:
    """Return a value that was read from JSON in Arrow's form for a type: JSON knows neither maps nor structs.
    Raises `ValueError` for a struct that lacks a field."""
    if value is None:
        return None
    if pa.types.is_map(type_):
        return [(fit_value(type_.key_type, key), fit_value(type_.item_type, item)) for key, item in value]
    if pa.types.is_list(type_):
        return [fit_value(type_.value_type, item) for item in value]
    if pa.types.is_struct(type_):
        if missing := [field.name for field in type_ if field.name not in value]:
            raise ValueError(f"{value!r} lacks {', '.join(missing)}")
        return {field.name: fit_value(field.type, value[field.name]) for field in type_}
    return value
