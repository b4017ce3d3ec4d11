"""Splits the partial aggregates of an update that emits its changes by key among the tasks of its step.

A Spark task may have staged them, split already. If the step runs on the driver the parts are combined again, in
the order that a job would have given, so that the executor makes no difference to later components.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import pyarrow as pa

from transactional.core.ports.staged import Scratch, SplitRows, StagedBytes
from transactional.model.arrow import rows_by_task, table_from_ipc, task_of_rows, to_ipc
from transactional.runtime.tasks.step_work import WaitingTuples, read_bytes

WaitingRows: TypeAlias = "pa.Table | SplitRows"
"""Partial aggregates of one task, as a table, or staged and split by key."""


def split_rows(rows: pa.Table, by: Sequence[str], tasks: int) -> list[pa.Table]:
    """Return the rows of each task, in their order."""
    batches_by_task: list[list[pa.RecordBatch]] = [[] for _ in range(tasks)]
    for batch in rows.to_batches():
        for task, numbers in rows_by_task(task_of_rows(batch, by, tasks), tasks):
            batches_by_task[task].append(batch.take(numbers))
    return [pa.Table.from_batches(batches, rows.schema) for batches in batches_by_task]


def split_bytes(data: bytes, by: Sequence[str], tasks: int) -> list[bytes]:
    """Return the rows of each task as Arrow IPC, from Arrow IPC."""
    rows = table_from_ipc(data)
    return [to_ipc(part.to_batches(), rows.schema) for part in split_rows(rows, by, tasks)]


def in_order(rows: pa.Table, by: Sequence[str]) -> pa.Table:
    """Return the rows sorted by key columns, or unchanged without columns. Arrow's own order after grouping depends on
    which keys were grouped together."""
    return rows.sort_by([(name, "ascending") for name in by]) if by else rows


def sort_like_job(rows: pa.Table, by: Sequence[str], tasks: int, key: Sequence[str] = ()) -> pa.Table:
    """Return the rows in the order of a job of this many tasks: task by task, sorted by `key`, or by the columns that
    split them. So the executor of an update makes no difference."""
    parts = split_rows(rows, by, tasks) if by else [rows]
    return pa.concat_tables(in_order(part, key or by) for part in parts)


def read_tables(waiting: Iterable[WaitingRows], scratch: Scratch | None) -> list[pa.Table]:
    """Return waiting partial aggregates as tables on the driver. Raises `OperatingError`."""
    return [table for rows in waiting for table in _tables(rows, scratch)]


def _tables(waiting: WaitingRows, scratch: Scratch | None) -> list[pa.Table]:
    if isinstance(waiting, SplitRows):
        return [table_from_ipc(read_bytes(part, scratch)) for part in waiting.parts]
    return [waiting]


def split_inputs(waiting: Iterable[WaitingRows], by: Sequence[str], tasks: int) -> list[tuple[WaitingTuples, ...]]:
    """Return the waiting partial aggregates for each task of a step."""
    inputs: list[list[WaitingTuples]] = [[] for _ in range(tasks)]
    for rows in waiting:
        parts = rows.parts if isinstance(rows, SplitRows) else split_rows(rows, by, tasks)
        for task_input, part in zip(inputs, parts, strict=True):
            data = part if isinstance(part, StagedBytes) else part.to_batches()
            task_input.append((data, "", ""))
    return [tuple(task_input) for task_input in inputs]


def size_of(waiting: Iterable[WaitingRows]) -> tuple[int, int]:
    """Return the number of waiting rows, and their size in bytes."""
    count, size_bytes = 0, 0
    for rows in waiting:
        if isinstance(rows, SplitRows):
            count, size_bytes = count + rows.rows, size_bytes + sum(part.size_bytes for part in rows.parts)
        else:
            count, size_bytes = count + rows.num_rows, size_bytes + rows.nbytes
    return count, size_bytes
