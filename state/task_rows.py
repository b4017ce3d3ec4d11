"""What tasks of a step read and write of a state, whatever its table is: the half that all states have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from state.put_rows import PutRows
from transactional.absent import Absent
from transactional.arrow import arrow_schema
from transactional.bolts import Key
from transactional.schema import Schema

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class TaskRows(ABC):
    """Python values on one side, Arrow on the other (see `TaskState`). A state adds where it reads and keeps them."""

    rows: PutRows

    @property
    def key(self) -> Schema:
        """The key columns."""
        return self.rows.key

    @property
    def values(self) -> Schema:
        """The value columns."""
        return self.rows.values

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
        schema = arrow_schema(Schema((*self.key, *self.values)))
        return self.rows.marked(rows.select(schema.names).cast(schema), [False] * rows.num_rows)
