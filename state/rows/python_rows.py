"""Rows as Python values and as Arrow has them: the same in the driver and in the tasks of a step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from state.rows.columns import StateColumns
from transactional.core.ports import Partials, can_combine_all
from transactional.model.absent import ABSENT, Absent
from transactional.model.aggregates.key_matching import has_unique_sorted_keys
from transactional.model.arrow import arrow_schema, batch_from_rows
from transactional.model.errors import ConfigError, ProtocolError, SchemaMismatch
from transactional.model.schema import Schema
from transactional.model.user_code.tuples import Key

_ROW_CHARACTERS = 300


def check_unique(table: pa.Table, key: tuple[str, ...], state: str) -> None:
    """Raise `ProtocolError` if two rows have the same key: a merge would apply only one of them."""
    if has_unique_sorted_keys(table, key):
        return
    keys = table.select(list(key)).group_by(list(key), use_threads=False).aggregate([]).num_rows if key else 1
    if table.num_rows > keys:
        raise ProtocolError(f"{table.num_rows} rows with {keys} different keys were to be merged into state {state}")


def table_of_rows(rows: Iterable[tuple[Any, ...]], columns: Schema) -> pa.Table:
    """An Arrow table from rows of Python values. Raises `SchemaMismatch` for a value that does not match its column."""
    schema = arrow_schema(columns)
    return pa.Table.from_batches([batch_from_rows(list(rows), schema, component="a state")], schema)


def fitting_rows(rows: Sequence[tuple[Any, ...]], columns: Schema, state: str) -> pa.Table:
    """As `table_of_rows`, for rows passed to a state. The `SchemaMismatch` names state and row."""
    try:
        return table_of_rows(rows, columns)
    except (SchemaMismatch, TypeError, ValueError, OverflowError) as error:
        row = next((row for row in rows if _is_misfit(row, columns)), "")
        raise SchemaMismatch(
            f"state {state} has the columns '{columns}'; the given values do not match: {error}; the first such row is "
            f"{repr(row)[:_ROW_CHARACTERS]}"
        ) from error


def _is_misfit(row: tuple[Any, ...], columns: Schema) -> bool:
    try:
        table_of_rows([row], columns)
    except (SchemaMismatch, TypeError, ValueError, OverflowError):
        return True
    return False


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    """The rows of a table as Python values; none for a table without columns."""
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


@dataclass(frozen=True, slots=True)
class PutRows:
    """Rows of these columns. `state` and `owner` are what messages name."""

    columns: StateColumns
    state: str
    owner: str

    def wanted(self, keys: Sequence[Key]) -> pa.Table:
        """Keys as Arrow has them. Raises `SchemaMismatch`."""
        return fitting_rows(keys, self.columns.key, self.state)

    def found(self, keys: Sequence[Key], wanted: pa.Table, rows: pa.Table) -> dict[Key, tuple[Any, ...]]:
        """The values of those keys that have a row."""
        # As Arrow gives them back: a time of another zone, or without one, which is UTC, is found as the instant it is.
        width = len(self.columns.key)
        asked = rows_of(wanted) if width else [()] * len(keys)
        found = {row[:width]: row[width:] for row in rows_of(rows)}
        return {key: found[each] for key, each in zip(keys, asked, strict=True) if each in found}

    def table(self, rows: Mapping[Key, tuple[Any, ...] | Absent]) -> pa.Table:
        """New values as a state writes them. Raises `SchemaMismatch` for values of another type, `ConfigError` if keys
        can't be deleted."""
        blank = (None,) * len(self.columns.values)
        are_deleted = [values is ABSENT for values in rows.values()]
        self.check_deletes(are_deleted)
        given = [(*key, *(blank if values is ABSENT else values)) for key, values in rows.items()]
        return self.marked(fitting_rows(given, self.columns.shown, self.state), are_deleted)

    def marked(self, source: pa.Table, are_deleted: Sequence[bool]) -> pa.Table:
        """With the column that says which keys are deleted, if there is one."""
        if not self.columns.deletes:
            return source
        return source.append_column(self.columns.deleted, pa.array(are_deleted, pa.bool_()))

    def of_partials(self, partials: Partials) -> pa.Table:
        """Partial aggregates as a state writes them. Raises `ProtocolError` unless it is said of exactly the value
        columns how they are combined."""
        values, combine = self.columns.values.names, partials.combine
        if sorted(combine) != sorted(values) or not can_combine_all(combine):
            raise ProtocolError(
                f"state {self.state} has the value columns {sorted(values)}, to be combined was {dict(combine)}"
            )
        return self.as_written(partials.table)

    def as_written(self, rows: pa.Table) -> pa.Table:
        """Key and value columns as a state writes them, none of them deleted."""
        schema = self.columns.row_schema
        return self.marked(rows.select(schema.names).cast(schema), [False] * rows.num_rows)

    def check_deletes(self, are_deleted: Sequence[bool]) -> None:
        """Raise `ConfigError` if keys are deleted that can't be."""
        if any(are_deleted) and not self.columns.deletes:
            raise ConfigError(
                f"state {self.state} of {self.owner} can't delete a key: its table has no column to note that in. "
                "Create the state with deletes=True"
            )


@dataclass(frozen=True, slots=True)
class TaskRows(ABC):
    """Python values on one side, Arrow on the other (see `TaskState`). A state adds where it reads and keeps them."""

    rows: PutRows

    @property
    def key(self) -> Schema:
        """The key columns."""
        return self.rows.columns.key

    @property
    def values(self) -> Schema:
        """The value columns."""
        return self.rows.columns.values

    def get(self, keys: Sequence[Key]) -> dict[Key, tuple[Any, ...]]:
        """The values before the transaction of those keys that exist. Raises `OperatingError`."""
        wanted = self.rows.wanted(keys)
        return self.rows.found(keys, wanted, self.rows_before(wanted))

    @abstractmethod
    def rows_before(self, keys: pa.Table) -> pa.Table:
        """As `get`, in Arrow. Raises `OperatingError`."""

    def table(self, rows: Mapping[Key, tuple[Any, ...] | Absent]) -> pa.Table:
        """New values as the state writes them. Raises `SchemaMismatch`."""
        return self.rows.table(rows)

    def as_written(self, rows: pa.Table) -> pa.Table:
        """Key and value columns as the state writes them, none of them deleted."""
        return self.rows.as_written(rows)
