"""Converts the rows of a record batch to tuples, as bolts get them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from transactional.model.user_code.tuples import BeyondPython, PartlyReadable, Tuple, tuple_class


def tuples(batch: pa.RecordBatch, source: str, stream: str) -> Iterator[Tuple]:
    """Yield the rows of a record batch as tuples. Values that Python can't represent become `BeyondPython`."""
    names = tuple(batch.schema.names)
    columns, are_all_readable = _to_columns(batch)
    rows = zip(*columns, strict=True)
    if are_all_readable:
        return map(tuple_class(names, source, stream), rows)
    return (_make_tuple(names, values, source, stream) for values in rows)


def _make_tuple(names: tuple[str, ...], values: tuple[Any, ...], source: str, stream: str) -> Tuple:
    is_readable = not any(isinstance(field_value, BeyondPython) for field_value in values)
    return (Tuple if is_readable else PartlyReadable)(names, values, source, stream)


def _to_columns(batch: pa.RecordBatch) -> tuple[list[list[Any]], bool]:
    """Return the columns as Python values, and whether Python can represent all of them."""
    try:
        return [column.to_pylist() for column in batch.columns], True
    except (ValueError, OverflowError):
        return [[_to_python(scalar) for scalar in column] for column in batch.columns], False


def _to_python(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        is_time = pa.types.is_temporal(scalar.type)
        return BeyondPython(str(scalar.type), str(scalar.value) if is_time else str(scalar.type))
