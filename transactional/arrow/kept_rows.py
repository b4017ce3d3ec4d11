"""Rows of Python values, kept as Arrow in a column of a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from transactional.arrow.conversions import arrow_schema, batch_from_rows, table_from_ipc, to_ipc
from transactional.schema import Schema


def rows_to_ipc(rows: Sequence[tuple[Any, ...]], fields: Schema, numbers: Sequence[str]) -> bytes:
    """Rows with these fields, and some numbers behind them."""
    schema = pa.schema([*arrow_schema(fields), *(pa.field(name, pa.int64()) for name in numbers)])
    return to_ipc([batch_from_rows(rows, schema, component="a windowed bolt")], schema)


def rows_from_ipc(data: bytes) -> Iterator[tuple[Any, ...]]:
    """The inverse."""
    return zip(*(column.to_pylist() for column in table_from_ipc(data).columns), strict=True)
