"""Python values as rows of a state's columns, and back: the same in the driver and in the tasks of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from state.updates import fitting_rows, rows_of
from transactional.absent import ABSENT, Absent
from transactional.bolts import Key
from transactional.errors import ConfigError
from transactional.schema import Schema


@dataclass(frozen=True, slots=True)
class PutRows:
    """Key and value columns, and the column that says which keys are deleted; None: no key can be. `state` and `owner`
    are what messages name."""

    key: Schema
    values: Schema
    deleted: str | None
    state: str
    owner: str

    def wanted(self, keys: Sequence[Key]) -> pa.Table:
        """Keys as Arrow has them. Raises `SchemaMismatch`."""
        return fitting_rows(keys, self.key, self.state)

    def found(self, keys: Sequence[Key], wanted: pa.Table, rows: pa.Table) -> dict[Key, tuple[Any, ...]]:
        """The values of those keys that have a row."""
        # As Arrow gives them back: a time of another zone, or without one, which is UTC, is found as the instant it is.
        asked, width = rows_of(wanted) if self.key else [()] * len(keys), len(self.key)
        found = {row[:width]: row[width:] for row in rows_of(rows)}
        return {key: found[each] for key, each in zip(keys, asked, strict=True) if each in found}

    def table(self, rows: Mapping[Key, tuple[Any, ...] | Absent]) -> pa.Table:
        """New values as a state writes them. Raises `SchemaMismatch` for values of another type, `ConfigError` if keys
        can't be deleted."""
        columns, blank = Schema((*self.key, *self.values)), (None,) * len(self.values)
        are_deleted = [values is ABSENT for values in rows.values()]
        self.check_deletes(are_deleted)
        given = [(*key, *(blank if values is ABSENT else values)) for key, values in rows.items()]
        return self.marked(fitting_rows(given, columns, self.state), are_deleted)

    def marked(self, source: pa.Table, are_deleted: Sequence[bool]) -> pa.Table:
        """With the column that says which keys are deleted, if there is one."""
        return source if self.deleted is None else source.append_column(self.deleted, pa.array(are_deleted, pa.bool_()))

    def check_deletes(self, are_deleted: Sequence[bool]) -> None:
        """Raise `ConfigError` if keys are deleted that can't be."""
        if any(are_deleted) and self.deleted is None:
            raise ConfigError(
                f"state {self.state} of {self.owner} can't delete a key: its table has no column to note that in. "
                "Create the state with deletes=True"
            )
