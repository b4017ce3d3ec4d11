"""Refuses values that Arrow would silently change when it takes Python values, or casts columns that a bolt emitted.

Arrow would cut off fractions of integers, make large numbers infinite, drop the time of day of timestamps, and lose the
values of structs with other names. Such a value is refused at every level, with its path: `tags[]`, `prices{}`,
`address.street`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from transactional.model.arrow.zones import HAS_NO_ZONE, check_times
from transactional.model.errors import NaiveTime

_FLOAT_INFINITE_FROM: Final = 3.4028235677973366e38
"""The smallest number that is infinite in 32 bits. Slightly smaller numbers are rounded."""


def check_values(values: Sequence[Any], type_: pa.DataType, path: str) -> None:
    """Raise `TypeError`, with the path, for a Python value that Arrow would change, and `NaiveTime` for a time without
    a time zone, which Arrow would take for one in UTC, unless the topology names a zone for these."""
    if pa.types.is_nested(type_):
        _check_nested([python_value for python_value in values if python_value is not None], type_, path)
    elif pa.types.is_timestamp(type_):
        check_times(values, path)
    elif pa.types.is_integer(type_):
        for kind in set(map(type, values)):
            if hasattr(kind, "__float__") and not hasattr(kind, "__index__"):
                raise TypeError(f"{path}: a {kind.__name__} is not a whole number")
    elif pa.types.is_float32(type_):
        for python_value in values:
            if (
                isinstance(python_value, float)
                and math.isfinite(python_value)
                and abs(python_value) >= _FLOAT_INFINITE_FROM
            ):
                raise TypeError(f"{path}: {python_value} would be infinite as a float; a double can hold it")
    elif pa.types.is_date32(type_):
        for kind in set(map(type, values)):
            if issubclass(kind, datetime):
                raise TypeError(f"{path}: a {kind.__name__} has a time of day that a date would lose; use its .date()")


def _check_nested(values: Sequence[Any], type_: pa.DataType, path: str) -> None:
    if pa.types.is_struct(type_):
        _check_structs(values, type_, path)
    elif pa.types.is_map(type_):
        pairs = [
            pair
            for python_value in values
            for pair in (python_value.items() if isinstance(python_value, Mapping) else python_value)
        ]
        check_values([key for key, _ in pairs], type_.key_type, f"{path}{{}} (keys)")
        check_values([element for _, element in pairs], type_.item_type, f"{path}{{}}")
    else:
        for kind in set(map(type, values)):
            if issubclass(kind, str | bytes | Mapping) or not issubclass(kind, Iterable):
                raise TypeError(f"{path}: a {kind.__name__} is not a list")
        check_values([element for python_value in values for element in python_value], type_.value_type, f"{path}[]")


def _check_structs(values: Sequence[Any], type_: pa.DataType, path: str) -> None:
    names = [field.name for field in type_]
    rows = [_as_dict(python_value, names) for python_value in values]
    for row in rows:
        if row.keys() != set(names):
            raise TypeError(f"{path}: has the fields {', '.join(map(str, row))}; expected {', '.join(names)}")
    for field in type_:
        check_values([row[field.name] for row in rows], field.type, f"{path}.{field.name}")


def _as_dict(python_value: Any, names: Sequence[str]) -> Mapping[str, object]:
    """Return a struct as a mapping. A struct may be a mapping, a tuple in the order of its fields, or pairs."""
    if isinstance(python_value, tuple):
        surplus_names = (f"field {number}" for number in range(len(names), len(python_value)))
        return dict(zip([*names, *surplus_names], python_value, strict=False))
    return python_value if isinstance(python_value, Mapping) else dict(python_value)


def check_cast(array: pa.Array | pa.ChunkedArray, type_: pa.DataType, path: str) -> None:
    """Raise `TypeError`, with the path, for an array that a cast to another type would silently change."""
    if array.type == type_:
        return
    if isinstance(array, pa.ChunkedArray):
        for chunk in array.chunks:
            check_cast(chunk, type_, path)
    elif pa.types.is_struct(type_) and pa.types.is_struct(array.type):
        _check_struct_cast(array, type_, path)
    elif pa.types.is_map(type_) and pa.types.is_map(array.type):
        check_cast(array.keys, type_.key_type, f"{path}{{}} (keys)")
        check_cast(array.items, type_.item_type, f"{path}{{}}")
    elif pa.types.is_nested(type_) and hasattr(array, "flatten") and hasattr(type_, "value_type"):
        if hasattr(array.type, "value_type"):
            check_cast(array.flatten(), type_.value_type, f"{path}[]")
    elif pa.types.is_timestamp(type_) and pa.types.is_timestamp(array.type) and array.type.tz is None:
        if array.null_count < len(array):
            raise NaiveTime(f"field {path!r} is a column of {array.type}, {HAS_NO_ZONE}")
    elif _is_narrowed(array, type_):
        raise TypeError(f"{path}: casting {array.type} to {type_} would change a value")


def _check_struct_cast(array: pa.StructArray, type_: pa.DataType, path: str) -> None:
    actual_names, names = [field.name for field in array.type], [field.name for field in type_]
    if sorted(actual_names) != sorted(names):
        raise TypeError(f"{path}: has the fields {', '.join(actual_names)}; expected {', '.join(names)}")
    for field in type_:
        check_cast(pc.struct_field(array, field.name), field.type, f"{path}.{field.name}")


def _is_narrowed(array: pa.Array, type_: pa.DataType) -> bool:
    """Return True for a cast that changes a value without an error in Arrow's own check."""
    old = array.type
    if pa.types.is_boolean(type_):
        return not pa.types.is_null(old)
    if pa.types.is_date(type_):
        return bool(pa.types.is_timestamp(old))
    if pa.types.is_floating(old) and pa.types.is_float32(type_):
        return bool(pc.any(pc.and_(pc.is_finite(array), pc.is_inf(array.cast(type_)))).as_py())
    if pa.types.is_floating(old) and pa.types.is_decimal(type_):
        return bool(pc.any(pc.not_equal(array.cast(type_).cast(old), array)).as_py())
    return False
