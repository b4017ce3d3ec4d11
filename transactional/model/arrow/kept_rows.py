"""Serializes the rows of windowed bolts: Python values as Arrow bytes, which are stored in a column of a table.

Rows are read by the names of their fields, so that a field may be added, removed or moved in a later run. A field must
not change its type.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from transactional.model.arrow.conversions import arrow_schema, batch_from_rows, spark_type, table_from_ipc, to_ipc
from transactional.model.errors import SchemaMismatch
from transactional.model.schema import Schema

_NOTE: Final = b"note"


def rows_to_ipc(rows: Sequence[tuple[Any, ...]], fields: Schema, numbers: Sequence[str], note: str) -> bytes:
    """Return rows of `fields`, followed by the columns `numbers` of 64-bit integers, as bytes, with a note on them."""
    columns = [*arrow_schema(fields), *(pa.field(name, pa.int64()) for name in numbers)]
    schema = pa.schema(columns, metadata={_NOTE: note})
    return to_ipc([batch_from_rows(rows, schema, component="a windowed bolt")], schema)


def rows_from_ipc(ipc_bytes: bytes, fields: Schema, numbers: Sequence[str]) -> tuple[str, Iterator[tuple[Any, ...]]]:
    """Return the note, and the rows with these fields and numbers.

    A field that was not stored is None, and a stored field that is not among `fields` is left out. Raises
    `SchemaMismatch` for a field that was stored with another type.
    """
    table = table_from_ipc(ipc_bytes)
    columns = [_column_values(table, field.name, field.type) for field in fields]
    columns += [table.column(name).to_pylist() for name in numbers]
    return table.schema.metadata[_NOTE].decode(), zip(*columns, strict=True)


def _column_values(table: pa.Table, name: str, type_: str) -> list[Any]:
    if name not in table.schema.names:
        return [None] * table.num_rows
    stored_type = spark_type(table.schema.field(name).type)
    if stored_type != type_:
        raise SchemaMismatch(
            f"a windowed bolt has kept tuples whose field {name!r} is {stored_type}, and it is {type_} now; let it be "
            "as it was, or give the field of another type another name"
        )
    values: list[Any] = table.column(name).to_pylist()
    return values
