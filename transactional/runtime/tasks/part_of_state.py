"""The state of a step in one of its tasks, when they run side by side: it only serves the keys of the task.

No task sees the writes of another one. Therefore a key belongs to the task that gets the tuples with it, and a task
that uses another key fails with `NeedsDriver`: on the driver, where the tasks share the state, it might have read
another value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from transactional.core.ports.split import NeedsDriver, TaskState, WrittenPart
from transactional.model.absent import Absent
from transactional.model.arrow import arrow_schema, batch_from_rows, task_of_rows
from transactional.model.attempt import TransactionAttempt
from transactional.model.schema import Schema
from transactional.model.user_code.tuples import Key
from transactional.topology.steps import Step


class PartOfState:
    """The part of a state with the keys of one task. Reads and writes of other keys are refused."""

    def __init__(self, step: Step, state: TaskState, task: int) -> None:
        self._component, self._split_by, self._task_count = step.component, step.split_by, step.tasks
        self._state, self._task = state, task

    @property
    def key(self) -> Schema:
        """The columns of the state's key."""
        return self._state.key

    @property
    def values(self) -> Schema:
        """The columns of the state's values."""
        return self._state.values

    def get(self, attempt: TransactionAttempt, keys: Sequence[Key]) -> dict[Key, tuple[Any, ...]]:
        """Return the values before the transaction of those keys that exist. Raises `NeedsDriver` for a key of another
        task."""
        self.check(batch_from_rows(keys, arrow_schema(self.key), component=self._component))
        return self._state.get(keys)

    def rows_before(self, keys: pa.Table) -> pa.Table:
        """Return the rows of keys that have come with tuples of this task."""
        return self._state.rows_before(keys)

    def items(self, attempt: TransactionAttempt) -> Iterable[tuple[Key, tuple[Any, ...]]]:
        """Raise `NeedsDriver`: a task does not have all keys."""
        raise NeedsDriver(
            f"{self._component!r} called items() in a task that has a part of the state's keys only; a bolt that does "
            "so runs in the driver",
            "it reads all keys of its state",
        )

    def keep_changes(self, changes: Mapping[Key, tuple[Any, ...] | Absent]) -> WrittenPart:
        """Keep the new values of the task until the driver commits them. Raises `NeedsDriver` for a key of another
        task, and as `TaskState.keep`."""
        table = self._state.table(changes)
        return self._keep_table(table)

    def keep_rows(self, rows: pa.Table) -> WrittenPart:
        """Keep new rows with key and value columns, as `keep_changes`. Deletes nothing."""
        return self._keep_table(self._state.as_written(rows))

    def _keep_table(self, table: pa.Table) -> WrittenPart:
        for rows in table.to_batches():
            self.check(rows)
        return self._state.make_part(table, self._task_count)

    def check_rows(self, rows: Mapping[Key, tuple[Any, ...] | Absent]) -> None:
        """Raise `SchemaMismatch` for rows that the state refuses. Nothing is kept."""
        self._state.table(rows)

    def check(self, rows: pa.RecordBatch) -> None:
        """Raise `NeedsDriver` for a key that belongs to another task."""
        tasks = task_of_rows(rows, self._split_by, self._task_count)
        for row in pc.indices_nonzero(pc.not_equal(tasks, self._task)).to_pylist()[:1]:
            task, key = tasks[row].as_py(), tuple(rows.column(name)[row].as_py() for name in self.key.names)
            shown_key = key[0] if len(key) == 1 else key
            raise NeedsDriver(
                f"{self._component!r} used the key {shown_key!r} of its state in task {self._task} of "
                f"{self._task_count}; its tuples go to task {task}, which alone may use it where the tasks "
                "run side by side",
                f"it uses keys of its state that belong to other tasks, as {shown_key!r}",
            )
