"""Rows of Python values, kept as Arrow in a column of a table, and brought back by the names of their fields."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from transactional.model.arrow.conversions import arrow_schema, batch_from_rows, spark_type, table_from_ipc, to_ipc
from transactional.model.errors import SchemaMismatch
from transactional.model.schema import Schema

_NOTE: Final = b"note"


def rows_to_ipc(rows: Sequence[tuple[Any, ...]], fields: Schema, numbers: Sequence[str], note: str) -> bytes:
    """Rows with these fields, and some numbers behind them; and a note on all of them."""
    columns = [*arrow_schema(fields), *(pa.field(name, pa.int64()) for name in numbers)]
    schema = pa.schema(columns, metadata={_NOTE: note})
    return to_ipc([batch_from_rows(rows, schema, component="a windowed bolt")], schema)


def rows_from_ipc(data: bytes, fields: Schema, numbers: Sequence[str]) -> tuple[str, Iterator[tuple[Any, ...]]]:
    """The note, and the rows with these fields: None for one that they were kept without; one that is not among these
    is left out. Raises `SchemaMismatch` for one that was kept with another type."""
    table = table_from_ipc(data)
    columns = [_values(table, field.name, field.type) for field in fields]
    columns += [table.column(name).to_pylist() for name in numbers]
    return table.schema.metadata[_NOTE].decode(), zip(*columns, strict=True)


def _values(table: pa.Table, name: str, type_: str) -> list[Any]:
    if name not in table.schema.names:
        return [None] * table.num_rows
    kept = spark_type(table.schema.field(name).type)
    if kept != type_:
        raise SchemaMismatch(
            f"a windowed bolt has kept tuples whose field {name!r} is {kept}, and it is {type_} now; let it be as it "
            "was, or give the field of another type another name"
        )
    values: list[Any] = table.column(name).to_pylist()
    return values
