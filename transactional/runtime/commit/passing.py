"""What components of a commit phase pass on to those behind them, wherever they run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from transactional.core.ports import DeadLetter, Partials, Processed
from transactional.core.ports.staged import SplitRows, StagedBytes, StagedFile
from transactional.model.arrow import table_from_ipc
from transactional.model.attempt import TransactionAttempt
from transactional.runtime.processing.split_rows import Waits
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
from transactional.runtime.tasks.step_work import Waiting
from transactional.topology.stages import StageEdge

Addressed = Iterable[tuple[StageEdge, int, list[pa.RecordBatch]]]
"""Record batches for the task of a bolt."""


@dataclass(slots=True)
class Passing:
    """What components pass on to those behind them, in one commit phase."""

    attempt: TransactionAttempt
    processed: Processed
    inbox: dict[tuple[str, int], list[Waiting]] = field(default_factory=dict)
    """Tuples for the bolts that follow: by component and task."""
    rows: Counter[str] = field(default_factory=Counter)
    """How many they are, by component."""
    partials: dict[str, list[Waits]] = field(default_factory=dict)
    """Partial aggregates for the states' updates that follow, beside those that have come in one piece."""
    staged: dict[str, list[StagedFile]] = field(default_factory=dict)
    """Those that tasks have staged."""
    letters: list[DeadLetter] = field(default_factory=list)
    stateful: list[tuple[TaskInfo, StatefulOperator]] = field(default_factory=list)
    """The stateful bolts that have run, to be notified once all states are written."""
    sent: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """Tuples by source, stream and target."""
    late_counts: Counter[str] = field(default_factory=Counter)
    """Late tuples, by the component with the windows that have left them out."""
    counted: Counter[tuple[str, str]] = field(default_factory=Counter)
    """What bolts count themselves, by component and name."""
    written: dict[str, int] = field(default_factory=dict)
    """Rows written to states, by component."""
    left: list[StagedBytes] = field(default_factory=list)
    """What tasks have left for steps of this attempt."""

    @classmethod
    def of(cls, attempt: TransactionAttempt, processed: Processed) -> Passing:
        """What comes out of the processing phase."""
        passing = cls(attempt, processed, letters=list(processed.letters))
        for tuples in processed.deferred:
            data = tuples.batches if tuples.staged is None else tuples.staged
            passing.put(tuples.target, tuples.task, (data, tuples.source, tuples.stream), tuples.rows)
        for parts in processed.parts.values():
            if isinstance(parts, list | tuple):
                passing.left += [part for part in parts if isinstance(part, StagedBytes)]
        for committer, split in processed.split.items():
            for each in split:
                passing.put_partial(committer, each)
        return passing

    def put(self, target: str, task: int, waiting: Waiting, rows: int) -> None:
        """Pass tuples on to a task of a bolt."""
        self.inbox.setdefault((target, task), []).append(waiting)
        self.rows[target] += rows
        if isinstance(waiting[0], StagedBytes):
            self.left.append(waiting[0])

    def put_partial(self, committer: str, partial: Waits) -> None:
        """Pass partial aggregates on to a state's update."""
        self.partials.setdefault(committer, []).append(partial)
        if isinstance(partial, SplitRows):
            self.left += partial.parts

    def part_of(self, committer: str) -> Partials:
        """What has come out of the processing phase for a state's update."""
        part = self.processed.parts[committer]
        assert isinstance(part, Partials)
        return part

    def partials_of(self, committer: str) -> list[Waits]:
        """All that waits for a state's update, in order."""
        return [self.part_of(committer).table, *self.partials.get(committer, ())]

    def size_bytes(self, target: str, tasks: int) -> int:
        """How much waits for all tasks of a bolt."""
        waiting = [each for task in range(tasks) for each, _, _ in self.inbox.get((target, task), ())]
        return sum(_size_bytes(each) for each in waiting)

    def take_over(self, component_id: str, partials: Iterable[tuple[str, pa.Table]], addressed: Addressed) -> None:
        """Pass on what a component has emitted."""
        for committer, table in partials:
            self.put_partial(committer, table)
        for edge, task, batches in addressed:
            rows = sum(batch.num_rows for batch in batches)
            self.sent[component_id, edge.grouping.stream, edge.target] += rows
            self.put(edge.target, task, (batches, component_id, edge.grouping.stream), rows)

    def take_items(self, items: Iterable[Item]) -> None:
        """Pass on what a task of a job has sent."""
        for item in items:
            match item:
                case TuplesToCommit():
                    self.sent[item.source, item.stream, item.target] += item.rows
                    self.put(item.target, item.task, (item.data, item.source, item.stream), item.rows)
                case PartialAggregates():
                    self.put_partial(item.committer, table_from_ipc(item.data))
                case SplitAggregates():
                    self.put_partial(item.committer, item.left)
                case StagedAggregates():
                    self.staged.setdefault(item.committer, []).append(item.file)
                case SetAside():
                    self.letters.append(item.letter)
                case _:
                    raise AssertionError(f"no task of a step sends {type(item).__name__}")


def _size_bytes(data: Sequence[pa.RecordBatch] | bytes | StagedBytes) -> int:
    if isinstance(data, StagedBytes):
        return data.size_bytes
    if isinstance(data, bytes):
        return len(data)
    batches: Sequence[pa.RecordBatch] = data
    return sum(int(batch.nbytes) for batch in batches)
