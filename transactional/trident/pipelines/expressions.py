"""Expressions over the columns of a stream, such as `field("amount") * 2`: checked, then evaluated in Arrow."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import acero
from pyarrow.compute import Expression

from transactional.arrow import arrow_schema, declared_schema
from transactional.errors import ConfigError
from transactional.schema import Schema

_UNKNOWN = re.compile(r"FieldRef\.Name\((.*?)\)")


def field(name: str) -> Expression:
    """A column of a stream, to compute with: `field("amount") * 2`, `(field("n") > 1) & (field("word") != "the")`.

    The result is an Arrow expression, so the functions of `pyarrow.compute` take it: `pc.utf8_length(field("word"))`.
    """
    return pc.field(name)


def as_expression(operation: str, value: Any) -> Expression:
    """The value itself if it is an expression, otherwise a constant. Raises `ConfigError`."""
    try:
        return value if isinstance(value, Expression) else pc.scalar(value)
    except pa.ArrowException:
        raise ConfigError(
            f"{operation} takes an expression such as field('n') * 2, or a constant; got {type(value).__name__}"
        ) from None


def evaluated(rows: pa.RecordBatch | pa.Table, columns: Mapping[str, Expression]) -> pa.Table:
    """A table with the given columns, computed row by row."""
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
    project = acero.Declaration("project", acero.ProjectNodeOptions(list(columns.values()), list(columns)), [source])
    return project.to_table(use_threads=False)


def checked_filter(operation: str, expression: Expression, schema: Schema) -> None:
    """Raise `ConfigError` unless the expression says yes or no about a stream's tuples."""
    type_ = type_of(operation, expression, schema)
    if type_ != "boolean":
        raise ConfigError(f"{operation}: {expression} is a {type_}, not a condition: compare it with something")


def type_of(operation: str, expression: Expression, schema: Schema) -> str:
    """The type of an expression's values. Raises `ConfigError` if it can't be computed from the fields of a stream."""
    # Much is only checked where there is a row: time zones, and whether a function works row by row.
    nulls = pa.RecordBatch.from_pylist([{}], arrow_schema(schema))
    try:
        table = evaluated(nulls, {"value": expression})
    except (pa.ArrowException, KeyError, TypeError) as error:
        if unknown := _UNKNOWN.search(str(error)):
            schema.require([unknown[1]], of="the stream", used_by=operation)
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{operation}: {expression} can't be computed from '{schema}': {reason}") from error
    try:
        return declared_schema(table.schema)["value"].type
    except ConfigError as error:
        raise ConfigError(f"{operation}: {expression}: {error}; use .cast(…)") from error
