"""The part of a state that a task reads and writes, if a step of the commit phase runs as a Spark job.

The keys of the state are split among the tasks. The driver reads and checks the version of the table once, and sends
all tasks the same version. Rows that a task writes are no part of the table until the driver commits the parts of all
tasks together.
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
    """The rows that one task has written, one per key: in Arrow, as the state would write them, or in a staged file."""

    rows: pa.Table | None = None
    file: StagedFile | None = None


class TaskState(Protocol):
    """A state's table at the version that the driver has checked, for tasks of a step. Picklable; runs on executors."""

    @property
    def key(self) -> Schema:
        """The key columns, in order."""

    @property
    def values(self) -> Schema:
        """The value columns, in order."""

    def get(self, keys: Sequence[Key]) -> dict[Key, tuple[Any, ...]]:
        """Return the values before the transaction of those keys that exist.

        Raises `OperatingError`, or `NeedsDriver` if this machine does not see the table.
        """

    def rows_before(self, keys: pa.Table) -> pa.Table:
        """Return the rows that `get` returns, in Arrow: key and value columns. There may be further rows."""

    def rows_between(self, column: str, after: int | None, until: int) -> pa.Table:
        """Return the rows of `State.rows_between`, of all keys and not only those of one task. Raises as `get`."""

    def table(self, rows: Mapping[Key, tuple[Any, ...] | Absent]) -> pa.Table:
        """Return new values in the columns that the state writes.

        Raises `SchemaMismatch` for values of another type.
        """

    def as_written(self, rows: pa.Table) -> pa.Table:
        """Return key and value columns in the columns that the state writes; no row is a deletion."""

    def make_part(self, table: pa.Table, tasks: int) -> WrittenPart:
        """Return rows as a part that the driver commits later: in memory, or in a staged file if they are many.

        `tasks` is the number of tasks that make such a part.

        Raises `OperatingError`.
        """


class Closer(Protocol):
    """Makes closed windows from a state's rows. Picklable; runs on executors."""

    def close_windows(self, rows: pa.Table, facts: BatchFacts | None) -> pa.Table:
        """Make the windows that close in a transaction (see `PersistentAggregate.close_windows`)."""
