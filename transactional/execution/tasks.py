"""What tasks are told: the program of a topology, and an attempt's input; see `task_run`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from transactional.attempt import TransactionAttempt
from transactional.batch import BatchMetadata, OffsetRange, PartitionId
from transactional.execution.emitting import make_aggregators
from transactional.execution.pickling import check_picklable
from transactional.letters import Exclusion, Letter
from transactional.ports import Aggregator
from transactional.topology.stages import Edge, StagePlan
from transactional.topology.topology import Topology


@dataclass(frozen=True, slots=True)
class AttemptInput:
    """What every task of an attempt is told: the attempt, and for each task of the spout what it reads.

    A portion is a partition, a range of its offsets, and the metadata that the batch keeps of the partition.
    """

    attempt: TransactionAttempt
    portions: tuple[tuple[tuple[PartitionId, OffsetRange, Any], ...], ...]
    excluded: tuple[Exclusion, ...] = ()
    letters: tuple[Letter, ...] = ()

    @classmethod
    def of(cls, attempt: TransactionAttempt, batch: BatchMetadata, task_count: int) -> AttemptInput:
        """Deal the partitions out: partition i of the sorted list always goes to task i mod `task_count`, so that its
        reader goes on where it stopped. The portions of one that is split go to this task and those after it."""
        portions: list[list[tuple[PartitionId, OffsetRange, Any]]] = [[] for _ in range(task_count)]
        first_task = {partition: position for position, partition in enumerate(sorted(batch.ranges))}
        for partition, offsets in batch.portions():
            number = offsets.start // batch.split_records if batch.split_records else 0
            task = (first_task[partition] + number) % task_count
            portions[task].append((partition, offsets, batch.metadata.get(partition)))
        excluded = tuple(replace(exclusion, error="") for exclusion in batch.excluded)  # `gather` knows the errors
        return cls(attempt, tuple(tuple(part) for part in portions), excluded, batch.letters)


@dataclass(frozen=True)
class TaskProgram:
    """All that tasks need to know of a topology. Sent to executors once."""

    topology: Topology
    plan: StagePlan
    aggregators: Mapping[str, Aggregator]
    reader: Any
    with_checksum: bool
    slot_of: Mapping[tuple[int, int], int] = field(default_factory=dict)

    def slot(self, edge: Edge, task: int) -> int:
        """The slot (partition number in its level) of a task of the edge's target."""
        return self.slot_of[(edge.target_stage, task)]

    def level_of(self, stage: int) -> int:
        """The level of a stage."""
        return self.plan.stages[stage].level


def make_program(topology: Topology, plan: StagePlan) -> TaskProgram:
    """Put a topology's task program together. Reads nothing of the outside.

    Raises `ConfigError` for a bolt that can't be sent to executors.
    """
    aggregators = make_aggregators(topology)
    slots = {
        (stage.index, task): number
        for level in range(plan.depth)
        for number, (stage, task) in enumerate(plan.slots(level))
    }
    spout: Any = _SpoutOutput(topology.spout.output)
    components = tuple(_without_state(component) for component in topology.components)
    reader = topology.spout.reader()
    sent: list[tuple[str, Any]] = [(f"bolt {c.id!r}", c.bolt) for c in components]
    sent += [("options of the topology", topology.options), (f"spout {topology.spout_id!r}", reader)]
    for what, value in sent:
        check_picklable(what, value)
    # States and the driver's side of the spout stay in the driver.
    stripped = replace(topology, spout=spout, components=components, dead_letters=None)
    return TaskProgram(stripped, plan, aggregators, reader, topology.spout.replays_exactly, slots)


@dataclass(frozen=True)
class _SpoutOutput:
    output: Any


def _without_state(component: Any) -> Any:
    bolt = None if component.is_update else component.bolt
    return replace(component, state="committer" if component.is_committer else None, bolt=bolt)
