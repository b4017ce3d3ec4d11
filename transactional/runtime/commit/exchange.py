"""`CommitExchange`: the tuples and partial aggregates that components of one commit phase pass on to later ones.

It is filled from the results of the processing phase, and then by each step, on the driver or from the items of a job.
It also collects what the phase reports: counts, dead letters, and the files to remove.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from transactional.core.ports import DeadLetter, Partials, Processed
from transactional.core.ports.staged import SplitRows, StagedBytes, StagedFile
from transactional.core.store.outbox import SinkRecords
from transactional.model.arrow import table_from_ipc
from transactional.model.attempt import TransactionAttempt
from transactional.runtime.processing.split_rows import WaitingRows
from transactional.runtime.tasks.items import (
    Item,
    PartialAggregates,
    SetAside,
    SplitAggregates,
    StagedAggregates,
    TuplesToCommit,
)
from transactional.runtime.tasks.operator_factory import TaskInfo
from transactional.runtime.tasks.stateful import StatefulOperator
from transactional.runtime.tasks.step_work import WaitingTuples
from transactional.topology.stages import StageEdge

Addressed = Iterable[tuple[StageEdge, int, list[pa.RecordBatch]]]
"""Output of a task: for each edge and target task, the record batches."""


@dataclass(slots=True)
class CommitExchange:
    """The tuples and partial aggregates that wait for components in one commit phase, and the phase's counts."""

    attempt: TransactionAttempt
    processed: Processed
    inbox: dict[tuple[str, int], list[WaitingTuples]] = field(default_factory=dict)
    """Waiting tuples, by bolt and task."""
    rows: Counter[str] = field(default_factory=Counter)
    """Number of waiting tuples, by component."""
    partials: dict[str, list[WaitingRows]] = field(default_factory=dict)
    """Partial aggregates that wait for states' updates, besides those that the processing phase has combined."""
    staged: dict[str, list[StagedFile]] = field(default_factory=dict)
    """Files of partial aggregates that tasks have staged, by state's update."""
    letters: list[DeadLetter] = field(default_factory=list)
    stateful: list[tuple[TaskInfo, StatefulOperator]] = field(default_factory=list)
    """The stateful bolts that have run. They are notified once all states are written."""
    sent: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """Numbers of tuples by source, stream and target."""
    late_counts: Counter[str] = field(default_factory=Counter)
    """Late tuples, by the component whose windows have left them out."""
    counted: Counter[tuple[str, str]] = field(default_factory=Counter)
    """The bolts' own counters, by component and name."""
    written_rows: dict[str, int] = field(default_factory=dict)
    """Rows written to states, by component."""
    outbox: dict[str, SinkRecords] = field(default_factory=dict)
    """The records of sinks, by component."""
    scratch_files: list[StagedBytes] = field(default_factory=list)
    """Data that tasks have staged for steps of this attempt. It is removed at the end."""

    @classmethod
    def from_processed(cls, attempt: TransactionAttempt, processed: Processed) -> CommitExchange:
        """Make the `CommitExchange` that a commit phase begins with, from the results of the processing phase."""
        exchange = cls(attempt, processed, letters=list(processed.letters))
        for tuples in processed.deferred:
            content = tuples.batches if tuples.staged is None else tuples.staged
            exchange.put(tuples.target, tuples.task, (content, tuples.source, tuples.stream), tuples.rows)
        for parts in processed.parts.values():
            if isinstance(parts, list | tuple):
                exchange.scratch_files += [part for part in parts if isinstance(part, StagedBytes)]
        for committer, split in processed.split.items():
            for partial in split:
                exchange.put_partial(committer, partial)
        return exchange

    def put(self, target: str, task: int, waiting: WaitingTuples, rows: int) -> None:
        """Pass tuples on to a task of a bolt."""
        self.inbox.setdefault((target, task), []).append(waiting)
        self.rows[target] += rows
        if isinstance(waiting[0], StagedBytes):
            self.scratch_files.append(waiting[0])

    def put_partial(self, committer: str, partial: WaitingRows) -> None:
        """Pass partial aggregates on to a state's update."""
        self.partials.setdefault(committer, []).append(partial)
        if isinstance(partial, SplitRows):
            self.scratch_files += partial.parts

    def part_of(self, committer: str) -> Partials:
        """Return the partial aggregates that the processing phase has combined for a state's update."""
        part = self.processed.parts[committer]
        assert isinstance(part, Partials)
        return part

    def partials_of(self, committer: str) -> list[WaitingRows]:
        """Return all partial aggregates that wait for a state's update, in order."""
        return [self.part_of(committer).table, *self.partials.get(committer, ())]

    def size_bytes(self, target: str, tasks: int) -> int:
        """Return the size of the tuples that wait for all tasks of a bolt."""
        waiting = [tuples for task in range(tasks) for tuples, _, _ in self.inbox.get((target, task), ())]
        return sum(_size_bytes(tuples) for tuples in waiting)

    def pass_on(self, component_id: str, partials: Iterable[tuple[str, pa.Table]], addressed: Addressed) -> None:
        """Pass on the output of a component that ran on the driver."""
        for committer, table in partials:
            self.put_partial(committer, table)
        for edge, task, batches in addressed:
            rows = sum(batch.num_rows for batch in batches)
            self.sent[component_id, edge.grouping.stream, edge.target] += rows
            self.put(edge.target, task, (batches, component_id, edge.grouping.stream), rows)

    def take_items(self, items: Iterable[Item]) -> None:
        """Pass on the items of a task of a job."""
        for task_item in items:
            match task_item:
                case TuplesToCommit():
                    self.sent[task_item.source, task_item.stream, task_item.target] += task_item.rows
                    self.put(
                        task_item.target,
                        task_item.task,
                        (task_item.data, task_item.source, task_item.stream),
                        task_item.rows,
                    )
                case PartialAggregates():
                    self.put_partial(task_item.committer, table_from_ipc(task_item.data))
                case SplitAggregates():
                    self.put_partial(task_item.committer, task_item.rows)
                case StagedAggregates():
                    self.staged.setdefault(task_item.committer, []).append(task_item.file)
                case SetAside():
                    self.letters.append(task_item.letter)
                case _:
                    raise AssertionError(f"no task of a step sends {type(task_item).__name__}")


def _size_bytes(content: Sequence[pa.RecordBatch] | bytes | StagedBytes) -> int:
    if isinstance(content, StagedBytes):
        return content.size_bytes
    if isinstance(content, bytes):
        return len(content)
    batches: Sequence[pa.RecordBatch] = content
    return sum(int(batch.nbytes) for batch in batches)
