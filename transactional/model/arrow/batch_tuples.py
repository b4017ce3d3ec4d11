"""The rows of a record batch as tuples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from transactional.model.user_code.tuples import BeyondPython, PartlyReadable, Tuple, tuple_class


def tuples(batch: pa.RecordBatch, source: str, stream: str) -> Iterator[Tuple]:
    """The rows of a record batch as tuples."""
    names = tuple(batch.schema.names)
    columns, are_all = _columns(batch)
    rows = zip(*columns, strict=True)
    if are_all:
        return map(tuple_class(names, source, stream), rows)
    return (_tuple(names, values, source, stream) for values in rows)


def _tuple(names: tuple[str, ...], values: tuple[Any, ...], source: str, stream: str) -> Tuple:
    is_readable = not any(isinstance(value, BeyondPython) for value in values)
    return (Tuple if is_readable else PartlyReadable)(names, values, source, stream)


def _columns(batch: pa.RecordBatch) -> tuple[list[list[Any]], bool]:
    """The columns as Python values; and whether all of them can be represented."""
    try:
        return [column.to_pylist() for column in batch.columns], True
    except (ValueError, OverflowError):
        return [[_known(value) for value in column] for column in batch.columns], False


def _known(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        is_time = pa.types.is_temporal(scalar.type)
        return BeyondPython(str(scalar.type), str(scalar.value) if is_time else str(scalar.type))
