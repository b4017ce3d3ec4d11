"""What tasks of a step that runs as a Spark job have of a state whose keys are split among them: each reads and writes
its part.

The driver reads and checks the table's version once, and hands all tasks the same version of it. What they write is no
part of the table until the driver commits it, together with what the others have written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from transactional.core.ports.staged import StagedFile
from transactional.model.absent import Absent
from transactional.model.errors import BoltFailed
from transactional.model.facts import BatchFacts
from transactional.model.schema import Schema
from transactional.model.user_code.tuples import Key

if TYPE_CHECKING:
    import pyarrow as pa


class NeedsDriver(BoltFailed):
    """A bolt uses its state in a way that only the driver can serve, or only the driver has it."""

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(text)
        self.reason = reason
        """Why the bolt's step has to run on the driver, as part of a sentence."""


@dataclass(frozen=True, slots=True)
class WrittenPart:
    """What one task has written, one row per key: as Arrow, as the state would write it, or in a staged file."""

    rows: pa.Table | None = None
    file: StagedFile | None = None


class TaskState(Protocol):
    """A state's table at the version that the driver has read and checked, for tasks of a step. Picklable; runs on
    executors."""

    @property
    def key(self) -> Schema:
        """The key columns."""

    @property
    def values(self) -> Schema:
        """The value columns."""

    def get(self, keys: Sequence[Key]) -> dict[Key, tuple[Any, ...]]:
        """The values before the transaction of those keys that exist. Raises `OperatingError`, or `NeedsDriver`
        where the table is not to be found."""

    def rows_before(self, keys: pa.Table) -> pa.Table:
        """As `get`, in Arrow: key and value columns of the rows with these keys that exist; maybe of more rows."""

    def rows_between(self, column: str, after: int | None, until: int) -> pa.Table:
        """As `State.rows_between`: of all keys, not only those of one task. Raises as `get`."""

    def table(self, rows: Mapping[Key, tuple[Any, ...] | Absent]) -> pa.Table:
        """New values as the state writes them. Raises `SchemaMismatch` for values of another type."""

    def as_written(self, rows: pa.Table) -> pa.Table:
        """Key and value columns as the state writes them, none of them deleted."""

    def keep(self, table: pa.Table, tasks: int) -> WrittenPart:
        """Keep them until the driver commits them, in a file if they are many. `tasks` have some.

        Raises `OperatingError`.
        """


class Closer(Protocol):
    """What makes the windows that close of a state's rows. Picklable; runs on executors."""

    def close_windows(self, rows: pa.Table, facts: BatchFacts | None) -> pa.Table:
        """As `PersistentAggregate.close_windows`."""
