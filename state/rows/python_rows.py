"""Converts rows between Python values and Arrow, in the same way in the driver and in the tasks of a step.

`PutRows` checks and converts what a bolt puts; `TaskRows` is the base of what tasks read and write.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from state.rows.columns import StateColumns
from transactional.core.ports import COMBINES, Partials
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
    """Return rows of Python values as an Arrow table. Raises `SchemaMismatch` for a value that does not match."""
    schema = arrow_schema(columns)
    return pa.Table.from_batches([batch_from_rows(list(rows), schema, component="a state")], schema)


def fitting_rows(rows: Sequence[tuple[Any, ...]], columns: Schema, state: str) -> pa.Table:
    """Convert, as `table_of_rows` does, rows passed to a state. The `SchemaMismatch` names state and row."""
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
    """Return the rows of a table as Python values; none for a table without columns."""
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


@dataclass(frozen=True, slots=True)
class PutRows:
    """Converts rows with these columns. `state` and `owner` are for messages."""

    columns: StateColumns
    state: str
    owner: str

    def key_table(self, keys: Sequence[Key]) -> pa.Table:
        """Return keys as an Arrow table. Raises `SchemaMismatch`."""
        return fitting_rows(keys, self.columns.key, self.state)

    def values_by_key(self, keys: Sequence[Key], key_table: pa.Table, rows: pa.Table) -> dict[Key, tuple[Any, ...]]:
        """Return the values of the keys that have a row. `key_table` has the same keys as `keys`."""
        # Keys are compared as Arrow returns them: a time without a zone is UTC, one of another zone the same instant.
        width = len(self.columns.key)
        arrow_keys = rows_of(key_table) if width else [()] * len(keys)
        values = {row[:width]: row[width:] for row in rows_of(rows)}
        return {key: values[arrow_key] for key, arrow_key in zip(keys, arrow_keys, strict=True) if arrow_key in values}

    def table(self, rows: Mapping[Key, tuple[Any, ...] | Absent]) -> pa.Table:
        """Return new values as the table that a state writes. Raises `SchemaMismatch` for values of another type,
        `ConfigError` if keys can't be deleted."""
        blank = (None,) * len(self.columns.values)
        are_deleted = [values is ABSENT for values in rows.values()]
        self.check_deletes(are_deleted)
        full_rows = [(*key, *(blank if values is ABSENT else values)) for key, values in rows.items()]
        return self.with_deletions(fitting_rows(full_rows, self.columns.visible, self.state), are_deleted)

    def with_deletions(self, source: pa.Table, are_deleted: Sequence[bool]) -> pa.Table:
        """Append the column that says which keys are deleted, if the state has one."""
        if not self.columns.deletes:
            return source
        return source.append_column(self.columns.deleted, pa.array(are_deleted, pa.bool_()))

    def from_partials(self, partials: Partials) -> pa.Table:
        """Return partial aggregates as the table that a state writes. Raises `ProtocolError` unless they name a way to
        combine each value column, and have one row per key."""
        values, combine = self.columns.values.names, partials.combine
        if combine.keys() != {*values} or not {*combine.values()} <= {*COMBINES}:
            raise ProtocolError(
                f"state {self.state} has the value columns {sorted(values)}, to be combined was {dict(combine)}"
            )
        rows = self.as_written(partials.table)
        check_unique(rows, self.columns.key.names, self.state)
        return rows

    def as_written(self, rows: pa.Table) -> pa.Table:
        """Return key and value columns as the table that a state writes; no key is deleted."""
        schema = self.columns.row_schema
        return self.with_deletions(rows.select(schema.names).cast(schema), [False] * rows.num_rows)

    def check_deletes(self, are_deleted: Sequence[bool]) -> None:
        """Raise `ConfigError` if keys are deleted that can't be."""
        if any(are_deleted) and not self.columns.deletes:
            raise ConfigError(
                f"state {self.state} of {self.owner} can't delete a key: its table has no column to note that in. "
                "Create the state with deletes=True"
            )


@dataclass(frozen=True, slots=True)
class TaskRows(ABC):
    """The Python side of a `TaskState`. A state adds where it reads rows, and where it keeps them."""

    rows: PutRows

    @property
    def key(self) -> Schema:
        return self.rows.columns.key

    @property
    def values(self) -> Schema:
        return self.rows.columns.values

    def get(self, keys: Sequence[Key]) -> dict[Key, tuple[Any, ...]]:
        """Return the values of existing keys before the transaction. Raises `OperatingError`."""
        key_table = self.rows.key_table(keys)
        return self.rows.values_by_key(keys, key_table, self.rows_before(key_table))

    @abstractmethod
    def rows_before(self, keys: pa.Table) -> pa.Table:
        """Return, as `get` does, the rows with these keys, in Arrow. Raises `OperatingError`."""

    def table(self, rows: Mapping[Key, tuple[Any, ...] | Absent]) -> pa.Table:
        """Return new values as the table that the state writes. Raises `SchemaMismatch`."""
        return self.rows.table(rows)

    def as_written(self, rows: pa.Table) -> pa.Table:
        """Return key and value columns as the table that the state writes; no key is deleted."""
        return self.rows.as_written(rows)
