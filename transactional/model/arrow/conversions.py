"""Conversions between the framework's schemas and Arrow: types, record batches, IPC bytes, digests, key hashes.

Values that do not match a declared schema are refused with the name of the component and the field. Hashes and
checksums must be the same in every process and in every release, because they are stored, and decide which task gets
a key.
"""

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
    """Return the Arrow schema of a declared schema; every column is nullable."""
    return pa.schema([pa.field(field.name, arrow_type(field.type)) for field in schema])


def arrow_type(name: str) -> pa.DataType:
    """Return the Arrow type of a Spark type in its simple form (see `schema.parse_type`)."""
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
    """Return the Spark type, in its simple form, of an Arrow type. Raises `ConfigError` if there is none."""
    for name, arrow_primitive in _PRIMITIVES.items():
        if type_ == arrow_primitive:
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
    """Return the declared schema of an Arrow schema. Raises `ConfigError`, which names the column and its `owner`."""
    return Schema(tuple(Field(field.name, _type_of_column(field, owner)) for field in schema))


def _type_of_column(field: pa.Field, owner: str) -> str:
    try:
        return spark_type(field.type)
    except ConfigError as error:
        raise ConfigError(f"{owner}{': ' if owner else ''}column {field.name!r}: {error}") from None


def batch_from_rows(rows: Sequence[tuple[Any, ...]], schema: pa.Schema, *, component: str) -> pa.RecordBatch:
    """Return a record batch of rows that a bolt emitted. Raises `SchemaMismatch`, which names the wrong field."""
    columns = list(zip(*rows, strict=True)) if rows else [() for _ in schema]
    return batch_from_columns(columns, schema, component=component)


def batch_from_values(values: list[Any], schema: pa.Schema, *, component: str) -> pa.RecordBatch:
    """Return a record batch of rows whose values follow one another in a single list.

    A list of tuples would be slower to make and to read, and garbage collection would look through it.
    """
    width = len(schema)
    return batch_from_columns([values[position::width] for position in range(width)], schema, component=component)


def batch_from_columns(columns: Sequence[Sequence[Any]], schema: pa.Schema, *, component: str) -> pa.RecordBatch:
    """Return a record batch of columns of Python values. Raises `SchemaMismatch`, which names the wrong field."""
    arrays = [_make_array(values, field, component) for values, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


_LIST_HINT: Final = (
    "; a list is one value: make it a tuple, or use flat_map, which makes a tuple of each of its elements"
)
_PYTHON_TYPES: Final = (
    (pa.types.is_integer, "an int"),
    (pa.types.is_floating, "a float"),
    (pa.types.is_boolean, "a bool"),
    (pa.types.is_string, "a str"),
    (pa.types.is_binary, "bytes"),
    (pa.types.is_decimal, "a Decimal"),
    (pa.types.is_date, "a date"),
    (pa.types.is_timestamp, "a datetime with a time zone"),
)
"""The Python type for the values of a column, by a test for the column's type."""
_SHOWN_MAX: Final = 100


def _make_array(values: Sequence[Any], field: pa.Field, component: str) -> pa.Array:
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
    """Return which of the values does not fit the field, and the type that would.

    `error` is the error that Arrow raised for all values; its text is returned if no value has a wrong type.
    """
    list_hint = _LIST_HINT if any(isinstance(candidate, list) for candidate in values) else ""
    python_type = next((name for has_type, name in _PYTHON_TYPES if has_type(field.type)), None)
    misfit = next((candidate for candidate in values if not _fits_type(candidate, field.type)), None)
    misfit_type = type(misfit).__name__
    if misfit is None or python_type is None or misfit_type in python_type.split():
        return f"{error}{list_hint}"
    return (
        f"{repr(misfit)[:_SHOWN_MAX]} is a value of type {misfit_type}, and a {spark_type(field.type)} takes "
        f"{python_type}{list_hint}"
    )


def _fits_type(python_value: Any, type_: pa.DataType) -> bool:
    try:
        pa.array([python_value], type=type_)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return False
    return True


def conform(batch: pa.RecordBatch | pa.Table, schema: pa.Schema, *, component: str) -> list[pa.RecordBatch]:
    """Return record batches with exactly the declared columns, in order. Raises `SchemaMismatch`."""
    if isinstance(batch, pa.RecordBatch) and (batch.schema is schema or batch.schema.equals(schema)):
        return [batch] if batch.num_rows else []
    if not isinstance(batch, pa.RecordBatch | pa.Table):
        raise SchemaMismatch(f"{component!r} must emit a RecordBatch or a Table, and emitted a {type(batch).__name__}")
    if batch.schema.names != schema.names:
        raise SchemaMismatch(f"{component!r} declares the fields {schema.names} and emitted {batch.schema.names}")
    table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
    try:
        if table.schema != schema:
            table = _add_zones(table, schema, component)
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


def _add_zones(table: pa.Table, schema: pa.Schema, component: str) -> pa.Table:
    """Return the table with the topology's time zone, if it names one, added to times without a zone."""
    zone = zone_of_naive_times()
    if zone is None:
        return table
    for position, field in enumerate(schema):
        column = table.column(position)
        if has_times(field.type) and has_naive_times(column.type):
            is_flat = pa.types.is_timestamp(column.type)
            zoned = column_with_zone(column, zone) if is_flat else _make_array(column.to_pylist(), field, component)
            table = table.set_column(position, field.name, zoned)
    return table


def to_ipc(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> bytes:
    """Return record batches as one Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    ipc_bytes: bytes = sink.getvalue().to_pybytes()
    return ipc_bytes


def from_ipc(ipc_bytes: bytes) -> list[pa.RecordBatch]:
    """Return the record batches of an Arrow IPC stream, as `to_ipc` has written it."""
    with pa.ipc.open_stream(ipc_bytes) as reader:
        return list(reader)


def table_from_ipc(ipc_bytes: bytes) -> pa.Table:
    """Return an Arrow IPC stream as a table, which has its columns even without rows."""
    with pa.ipc.open_stream(ipc_bytes) as reader:
        return reader.read_all()


def with_origin(batch: pa.RecordBatch, component: str, stream: str) -> pa.RecordBatch:
    """Return the record batch with its origin in the metadata, for bolts with several inputs."""
    return batch.replace_schema_metadata({"component": component, "stream": stream})


def origin_of(batch: pa.RecordBatch) -> tuple[str, str]:
    """Return the component and the stream that emitted a record batch, as passed to a bolt with several inputs.

    Raises `ConfigError` for any other batch: a bolt with one input knows the origin of its tuples.
    """
    metadata = batch.schema.metadata or {}
    if b"component" not in metadata:
        raise ConfigError("only the unchanged record batches of a bolt with several inputs have an origin")
    return metadata[b"component"].decode(), metadata[b"stream"].decode()


def task_of_rows(batch: pa.RecordBatch, fields: Sequence[str], task_count: int, *, seed: int = 0) -> pa.Array:
    """Return for each row the task that its values in `fields` map to, which is the same in every process and retry.

    A different `seed` distributes the values differently.
    """
    total = pa.repeat(pa.scalar(seed, pa.int64()), batch.num_rows)
    for field in fields:
        total = pc.modulo(pc.add(pc.multiply(total, 31), _hash_values(batch.column(field))), 2**32)
    return pc.modulo(total, task_count)


def _hash_values(column: pa.Array) -> pa.Array:
    """Return a number below 2**32 for each value: equal for equal values, whatever packages are installed."""
    if pa.types.is_nested(column.type):
        return pa.array([_hash_value(number) for number in column.to_pylist()], type=pa.int64())
    if pa.types.is_temporal(column.type):  # its Python value would depend on the installed time zone library
        column = column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64())
    elif pa.types.is_floating(column.type):
        column = without_negative_zero(column)
    encoded = column.dictionary_encode(null_encoding="encode")
    return pa.array(map(_hash_value, encoded.dictionary.to_pylist()), type=pa.int64()).take(encoded.indices)


def without_negative_zero(numbers: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return the floating-point numbers with 0.0 in place of -0.0, which equals it.

    Otherwise code that distinguishes keys by their bits or their text would see two keys.
    """
    return pc.add(numbers, pa.scalar(0, numbers.type))


def _hash_value(key_value: Any) -> int:
    return zlib.crc32(repr(key_value).encode())


def rows_by_task(tasks: pa.Array, task_count: int) -> Iterable[tuple[int, pa.Array]]:
    """Yield for each task that has rows its number, and the sorted positions of its rows."""
    for task in range(task_count):
        positions = pc.indices_nonzero(pc.equal(tasks, task))
        if len(positions):
            yield task, positions


class RecordDigest:
    """Counts records and bytes, and computes a checksum of their contents (CRC-32) that does not depend on batching.

    `event_us` is the highest value of the field `event_time`, if one is given and has one, that is not above
    `latest_us`, in microseconds since 1970.
    """

    def __init__(self, *, with_checksum: bool, event_time: str | None = None, latest_us: int | None = None) -> None:
        self.records = self.bytes = 0
        self.event_us: int | None = None
        self._with_checksum, self._event_time, self._latest_us = with_checksum, event_time, latest_us
        self._sums: list[int] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the records of the next batch to the counts and the checksum."""
        if self._with_checksum and batch.num_rows:
            parts = [part for column in batch.columns for part in _column_parts(column, self.records)]
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
        """The checksum of all columns; 0 without a checksum or without records."""
        return zlib.crc32(repr(self._sums).encode()) if self._sums else 0


Bytes = memoryview | bytes


def _column_parts(column: pa.Array, first: int) -> tuple[Bytes, Bytes, Bytes]:
    """Return a column as bytes: positions of NULLs, lengths, values. `first` is the position of its first row.

    Each part has a checksum of its own, which continues from batch to batch wherever these are split.
    """
    nulls: Bytes = b""
    if column.null_count:  # the other parts are undefined where a value is NULL, so they are filled
        nulls = _fixed_width_bytes(pc.add(pc.indices_nonzero(column.is_null()).cast(pa.int64()), first))
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        column = pc.fill_null(column, "" if pa.types.is_string(column.type) else b"")
        return nulls, _fixed_width_bytes(pc.binary_length(column)), _variable_width_bytes(column)
    if not pa.types.is_primitive(column.type) and not pa.types.is_decimal(column.type):
        return nulls, b"", "".join(f"{item_value!r}\0" for item_value in column.to_pylist()).encode()
    column = column.cast(pa.int8()) if pa.types.is_boolean(column.type) else column
    return nulls, b"", _fixed_width_bytes(pc.fill_null(column, pa.scalar(0, column.type)))


def _variable_width_bytes(column: pa.Array) -> Bytes:
    _, offsets, values = column.buffers()
    if offsets is None or values is None:
        return b""
    bounds = memoryview(offsets).cast("i")
    return memoryview(values)[bounds[column.offset] : bounds[column.offset + len(column)]]


def _fixed_width_bytes(column: pa.Array) -> Bytes:
    width, values = column.type.bit_width // 8, column.buffers()[1]
    return memoryview(values)[column.offset * width : (column.offset + len(column)) * width] if values else b""


def fit_value(type_: pa.DataType, json_value: Any) -> Any:
    """Return a value that was read from JSON in Arrow's form for a type: JSON knows neither maps nor structs.
    Raises `ValueError` for a struct that lacks a field."""
    if json_value is None:
        return None
    if pa.types.is_map(type_):
        return [(fit_value(type_.key_type, key), fit_value(type_.item_type, element)) for key, element in json_value]
    if pa.types.is_list(type_):
        return [fit_value(type_.value_type, element) for element in json_value]
    if pa.types.is_struct(type_):
        if missing := [field.name for field in type_ if field.name not in json_value]:
            raise ValueError(f"{json_value!r} lacks {', '.join(missing)}")
        return {field.name: fit_value(field.type, json_value[field.name]) for field in type_}
    return json_value
