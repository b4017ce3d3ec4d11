"""Partial aggregates of an update that emits what it changes: split by key among the tasks of its step, or joined
again where it runs in the driver."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import pyarrow as pa

from transactional.core.ports.staged import Scratch, SplitRows, StagedBytes
from transactional.model.arrow import rows_by_task, table_from_ipc, task_of_rows, to_ipc
from transactional.runtime.tasks.step_work import Waiting, bytes_of

Waits: TypeAlias = "pa.Table | SplitRows"
"""Partial aggregates of one task: here, or where it has left them, split."""


def split_rows(rows: pa.Table, by: Sequence[str], tasks: int) -> list[pa.Table]:
    """The rows of each task, in their order."""
    found: list[list[pa.RecordBatch]] = [[] for _ in range(tasks)]
    for batch in rows.to_batches():
        for task, places in rows_by_task(task_of_rows(batch, by, tasks), tasks):
            found[task].append(batch.take(places))
    return [pa.Table.from_batches(batches, rows.schema) for batches in found]


def split_bytes(data: bytes, by: Sequence[str], tasks: int) -> list[bytes]:
    """The same, from Arrow IPC to Arrow IPC."""
    rows = table_from_ipc(data)
    return [to_ipc(part.to_batches(), rows.schema) for part in split_rows(rows, by, tasks)]


def in_order(rows: pa.Table, by: Sequence[str]) -> pa.Table:
    """The same rows in the order of their keys. Arrow's own depends on which keys it has grouped together. Without
    columns to go by they stay as they are."""
    return rows.sort_by([(name, "ascending") for name in by]) if by else rows


def in_order_of_tasks(rows: pa.Table, by: Sequence[str], tasks: int, key: Sequence[str] = ()) -> pa.Table:
    """The same rows as a job of so many tasks gives them, so that it does not matter where an update has run: each
    task's in the order of `key`, or of what they are split by."""
    parts = split_rows(rows, by, tasks) if by else [rows]
    return pa.concat_tables(in_order(part, key or by) for part in parts)


def whole(waiting: Iterable[Waits], scratch: Scratch | None) -> list[pa.Table]:
    """What waits, in the driver. Raises `OperatingError`."""
    return [rows for each in waiting for rows in _tables(each, scratch)]


def _tables(waits: Waits, scratch: Scratch | None) -> list[pa.Table]:
    if isinstance(waits, SplitRows):
        return [table_from_ipc(bytes_of(part, scratch)) for part in waits.parts]
    return [waits]


def inputs_of(waiting: Iterable[Waits], by: Sequence[str], tasks: int) -> list[tuple[Waiting, ...]]:
    """What waits for each task of a step."""
    inputs: list[list[Waiting]] = [[] for _ in range(tasks)]
    for each in waiting:
        parts = each.parts if isinstance(each, SplitRows) else split_rows(each, by, tasks)
        for given, part in zip(inputs, parts, strict=True):
            data = part if isinstance(part, StagedBytes) else part.to_batches()
            given.append((data, "", ""))
    return [tuple(given) for given in inputs]


def size_of(waiting: Iterable[Waits]) -> tuple[int, int]:
    """How many rows wait, and how many bytes."""
    rows, size_bytes = 0, 0
    for each in waiting:
        if isinstance(each, SplitRows):
            rows, size_bytes = rows + each.rows, size_bytes + sum(part.size_bytes for part in each.parts)
        else:
            rows, size_bytes = rows + each.num_rows, size_bytes + each.nbytes
    return rows, size_bytes
