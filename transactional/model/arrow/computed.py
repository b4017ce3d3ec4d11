"""Columns that are computed of others, row by row: Arrow expressions, and what is computed whenever rows are read."""

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

_UNKNOWN = re.compile(r"FieldRef\.Name\((.*?)\)")


def evaluated(rows: pa.RecordBatch | pa.Table, columns: Mapping[str, Expression]) -> pa.Table:
    """A table with the given columns, computed row by row."""
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
    project = acero.Declaration("project", acero.ProjectNodeOptions(list(columns.values()), list(columns)), [source])
    return project.to_table(use_threads=False)


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


class Finishing(Protocol):
    """What makes a column of stored ones: an aggregate."""

    def finish_typed(self, stored: Schema) -> Expression | None:
        """The column, of those that are stored."""

    def finish_typed_sql(self, stored: Schema, quoted: Callable[[str], str]) -> str | None:
        """The same in SQL, in which `quoted` names a column; None: it is not known."""


@dataclass(frozen=True, slots=True)
class ComputedColumns:
    """The columns of a state that are not stored, but computed whenever its rows are read: by name, what makes them."""

    by: Mapping[str, Finishing] = field(default_factory=dict)

    def expressions(self, stored: Schema) -> dict[str, Expression]:
        """The columns as expressions over those that are stored. Raises `ConfigError`."""
        made = {name: each.finish_typed(stored) for name, each in self.by.items()}
        return {name: expression for name, expression in made.items() if expression is not None}

    def fields(self, stored: Schema) -> Schema:
        """Fields that are stored, or some with their names, and these columns. Raises `ConfigError`."""
        for name in self.by:
            if name in stored.names:
                raise ConfigError(f"the state has a column {name!r}; give the one that is computed another name")
        return Schema((*stored, *(Field(n, type_of(n, each, stored)) for n, each in self.expressions(stored).items())))

    def appended(self, rows: pa.Table) -> pa.Table:
        """Rows with their stored columns, and these."""
        if not self.by:
            return rows
        made = self.expressions(declared_schema(rows.schema))
        return evaluated(rows, {**{name: pc.field(name) for name in rows.column_names}, **made})

    def after(self, lookup: Lookup) -> Lookup:
        """A look-up of rows that appends them."""
        return (lambda keys: self.appended(lookup(keys))) if self.by else lookup

    def select(self, query: str, stored: Schema, quoted: Callable[[str], str]) -> str:
        """A query for stored columns, with these. Raises `ConfigError` for one that has no SQL."""
        columns = [f"v.{quoted(name)}" for name in stored.names]
        for name, each in self.by.items():
            sql = each.finish_typed_sql(stored, quoted)
            if sql is None:
                raise ConfigError(
                    f"column {name!r} is computed by {each!r}, which is not known in SQL: give it finish_sql, or use "
                    "read()"
                )
            columns.append(f"{sql} AS {quoted(name)}")
        return f"SELECT {', '.join(columns)} FROM ({query}) v" if self.by else query
