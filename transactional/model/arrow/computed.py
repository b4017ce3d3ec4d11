"""Columns that are computed from others row by row, by Arrow expressions.

`evaluate_columns` computes expressions for the rows of a batch or table. `ComputedColumns` are the columns of a state
that are not stored: they are appended whenever rows of the state are read, and written as SQL for views.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import acero
from pyarrow.compute import Expression

from transactional.model.arrow.conversions import arrow_schema, declared_schema
from transactional.model.errors import ConfigError
from transactional.model.reading import Lookup
from transactional.model.schema import Field, Schema

_UNKNOWN_FIELD = re.compile(r"FieldRef\.Name\((.*?)\)")


def evaluate_columns(rows: pa.RecordBatch | pa.Table, columns: Mapping[str, Expression]) -> pa.Table:
    """Return a table with the given columns, computed row by row."""
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
    project = acero.Declaration("project", acero.ProjectNodeOptions(list(columns.values()), list(columns)), [source])
    return project.to_table(use_threads=False)


def expression_type(operation: str, expression: Expression, schema: Schema) -> str:
    """Return the type of an expression's values. Raises `ConfigError` unless `schema` has the fields it needs."""
    # Arrow checks much only if there is a row: time zones, and whether a function works row by row.
    nulls = pa.RecordBatch.from_pylist([{}], arrow_schema(schema))
    try:
        table = evaluate_columns(nulls, {"value": expression})
    except (pa.ArrowException, KeyError, TypeError) as error:
        if unknown_field := _UNKNOWN_FIELD.search(str(error)):
            schema.require([unknown_field[1]], of="the stream", used_by=operation)
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{operation}: {expression} can't be computed from '{schema}': {reason}") from error
    try:
        return declared_schema(table.schema)["value"].type
    except ConfigError as error:
        raise ConfigError(f"{operation}: {expression}: {error}; use .cast(…)") from error


class ComputedColumn(Protocol):
    """The source of a computed column: an aggregate that is finished from its stored columns."""

    def columns(self, name: str) -> Mapping[str, object]:
        """Return the stored columns of a computed column of this name, by name."""

    def finish_typed(self, stored: Schema) -> Expression | None:
        """Return the column as an expression over stored columns, or None if it is stored itself."""

    def finish_typed_sql(self, stored: Schema, quote: Callable[[str], str]) -> str | None:
        """Return the column as SQL, in which `quote` quotes a name, or None if it has no SQL."""


@dataclass(frozen=True, slots=True)
class ComputedColumns:
    """The columns of a state that are computed whenever its rows are read. `sources` has their sources by name."""

    sources: Mapping[str, ComputedColumn] = field(default_factory=dict)

    @property
    def internal_names(self) -> frozenset[str]:
        """The names of the stored columns that nobody has named, such as the sum and the count of an average."""
        stored_names = (stored_name for name, source in self.sources.items() for stored_name in source.columns(name))
        return frozenset(stored_names) - self.sources.keys()

    def expressions(self, stored: Schema) -> dict[str, Expression]:
        """Return the columns as expressions over the stored ones. Raises `ConfigError`."""
        expressions_or_none = {name: source.finish_typed(stored) for name, source in self.sources.items()}
        return {name: expression for name, expression in expressions_or_none.items() if expression is not None}

    def fields(self, stored: Schema) -> Schema:
        """Return the stored fields, followed by those of the computed columns.

        Raises `ConfigError` if a computed column has the name of a stored one, or can't be computed.
        """
        for name in self.sources:
            if name in stored.names:
                raise ConfigError(f"the state has a column {name!r}; give the one that is computed another name")
        return Schema(
            (
                *stored,
                *(
                    Field(n, expression_type(n, expression, stored))
                    for n, expression in self.expressions(stored).items()
                ),
            )
        )

    def append_to(self, rows: pa.Table) -> pa.Table:
        """Return the rows with their stored columns, followed by the computed ones."""
        if not self.sources:
            return rows
        computed = self.expressions(declared_schema(rows.schema))
        return evaluate_columns(rows, {**{name: pc.field(name) for name in rows.column_names}, **computed})

    def wrap_lookup(self, lookup: Lookup) -> Lookup:
        """Return a look-up whose rows have the computed columns as well."""
        return (lambda keys: self.append_to(lookup(keys))) if self.sources else lookup

    def select(self, query: str, stored: Schema, quote: Callable[[str], str]) -> str:
        """Return a query for the stored columns and the computed ones. Raises `ConfigError` for one without SQL."""
        columns = [f"v.{quote(name)}" for name in stored.names]
        for name, source in self.sources.items():
            sql = source.finish_typed_sql(stored, quote)
            if sql is None:
                raise ConfigError(
                    f"column {name!r} is computed by {source!r}, which is not known in SQL: give it finish_sql, or use "
                    "read()"
                )
            columns.append(f"{sql} AS {quote(name)}")
        return f"SELECT {', '.join(columns)} FROM ({query}) v" if self.sources else query
