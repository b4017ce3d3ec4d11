"""Partition columns of a sink's table: fields of the stream, and expressions such as `day(event_time)`.

A partition column has one value per file. The value stands in the table's log as a text, and not in the file. Times are
those of UTC. Pure functions of Arrow tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from transactional.model.errors import ConfigError, SchemaMismatch
from transactional.model.schema import Schema

_EXPRESSION: Final = re.compile(r"(\w+)\((.+)\)")
_UNITS: Final = {"year": pa.int32(), "month": pa.date32(), "day": pa.date32(), "hour": pa.int32()}
_TYPES: Final = ("string", "byte", "short", "int", "long", "boolean", "date")
_DAYS: Final = (-719_162, 2_932_896)
"""The first day of the year 1 and the last one of 9999, from 1970 on. No engine reads a partition of another date."""


@dataclass(frozen=True, slots=True)
class PartitionColumn:
    """A partition column: its name and the field that it comes from, with a `unit` if it is a part of a time.

    `day` and `month` are dates, the latter that of the first day; `year` is a number, and `hour` one from 0 to 23.
    """

    name: str
    field: str
    unit: str = ""

    @classmethod
    def parse(cls, text: str) -> PartitionColumn:
        """Parse `country` or `day(event_time)`. Raises `ConfigError`."""
        if (match := _EXPRESSION.fullmatch(text.strip())) is None:
            return cls(text.strip(), text.strip())
        unit, field = match[1], match[2].strip()
        if unit not in _UNITS:
            raise ConfigError(f"partition_by={text!r}: {unit} is none of {', '.join(_UNITS)}")
        return cls(f"{field}_{unit}", field, unit)

    def __str__(self) -> str:
        return f"{self.unit}({self.field})" if self.unit else self.name

    def check_input(self, fields: Schema, *, used_by: str) -> None:
        """Raise `ConfigError` if the field is missing, or has a type that can't be a partition."""
        fields.require([self.field], of="the stream", used_by=used_by)
        field_type = fields[self.field].type
        types = ("timestamp",) if self.unit == "hour" else ("timestamp", "date") if self.unit else _TYPES
        if field_type not in types:
            advice = f"; use day({self.field}) for example" if field_type == "timestamp" else ""
            raise ConfigError(
                f"{used_by}: partition_by={str(self)!r} takes a field that is {' or '.join(types)}, and "
                f"{self.field!r} is {field_type}{advice}"
            )
        if self.unit and self.name in fields.names:
            raise ConfigError(
                f"{used_by}: partition_by={str(self)!r} makes a column {self.name!r}, and the stream has such a field: "
                "rename the field"
            )

    @property
    def derived_field(self) -> pa.Field | None:
        """The column that the expression adds to the table, or None for a field of the stream."""
        return pa.field(self.name, _UNITS[self.unit]) if self.unit else None

    def check_dates(self, rows: pa.Table) -> None:
        """Raise `SchemaMismatch` for a row whose partition would be outside the years 1 to 9999."""
        column = rows[self.field]
        if pa.types.is_date(column.type):
            numbers, unit, per_day = column.cast(pa.int32()), "days", 1
        elif pa.types.is_timestamp(column.type):
            numbers, unit, per_day = column.cast(pa.int64()), "microseconds", 86_400_000_000
        else:
            return
        first, last = _DAYS[0] * per_day, (_DAYS[1] + 1) * per_day - 1
        is_outside = pc.or_(pc.less(numbers, first), pc.greater(numbers, last))
        if pc.any(is_outside).as_py():
            row = pc.index(is_outside, value=True).as_py()
            raise SchemaMismatch(
                f"field {self.field!r} is {numbers[row]} {unit} since 1970 in row {row}, and "
                f"partition_by={str(self)!r} takes the years 1 to 9999"
            )

    def values(self, rows: pa.Table) -> pa.ChunkedArray:
        """Return the value of each row."""
        column = rows[self.field]
        match self.unit:
            case "":
                return column
            case "year":
                return pc.year(column).cast(pa.int32())
            case "hour":
                return pc.hour(column).cast(pa.int32())
            case unit:
                return pc.floor_temporal(column, unit=unit).cast(pa.date32())


Values = Mapping[str, str | None]
"""The partition values of a file, as the log of a Delta table has them."""


def split_rows(rows: pa.Table, columns: Sequence[PartitionColumn]) -> Iterator[tuple[Values, pa.Table]]:
    """Yield the rows of each partition, in their order, without the partition columns."""
    if not columns:
        yield {}, rows
        return
    values = [column.values(rows) for column in columns]
    texts = pa.table([column.cast(pa.string()) for column in values], names=[column.name for column in columns])
    plain_rows = rows.drop_columns([column.name for column in columns if not column.unit])
    code = pa.nulls(rows.num_rows, pa.int64()).fill_null(0)
    for name in texts.column_names:
        encoded = texts[name].combine_chunks().dictionary_encode(null_encoding="encode")
        code = pc.add(pc.multiply(code, len(encoded.dictionary)), encoded.indices.cast(pa.int64()))
    order = pc.sort_indices(code)
    start = 0
    for end in pc.run_end_encode(code.take(order), run_end_type=pa.int64()).run_ends.to_pylist():
        part = order.slice(start, end - start)
        [row] = texts.take(part.slice(0, 1)).to_pylist()
        # The log of a Delta table has no empty text: engines read it as NULL, and so does this one.
        yield {name: text or None for name, text in row.items()}, plain_rows.take(part)
        start = end
