"""The program of a topology, which its tasks and its commit phase run, and the input of an attempt.

A program is a picklable extract of the topology: it has the spout's reader, the bolts, the aggregators and the plan of
the stages, but no state and no connection. Executors get it once, and an `AttemptInput` for each attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from transactional.core.ports import Aggregator, PartitionReader
from transactional.core.ports.staged import Scratch, Stager
from transactional.model.attempt import TransactionAttempt
from transactional.model.batch import BatchMetadata, Offset, OffsetRange, PartitionId, PortionRow
from transactional.model.errors import ProtocolError
from transactional.model.facts import BatchFacts, EventTime
from transactional.model.groupings import Grouping
from transactional.model.guarantees import Guarantee
from transactional.model.letters import Exclusion, Letter
from transactional.model.reading import Lookups
from transactional.model.schema import Schema
from transactional.model.user_code.picklable import ADVICE_OF_FUNCTIONS, check_picklable
from transactional.topology.bolts.bolts import Bolt
from transactional.topology.bolts.following_bolt import FollowingBolt
from transactional.topology.bolts.functions import BoltFunction, FunctionKind
from transactional.topology.stages import StageEdge, StagePlan, plan_stages
from transactional.topology.steps import plan_steps
from transactional.topology.topology import Topology


class NoReader(PartitionReader):
    """The reader of a program that reads nothing."""

    def read(self, partition: PartitionId, offsets: OffsetRange, metadata: Any = None) -> Iterator[pa.RecordBatch]:
        """Raise `ProtocolError`: the commit phase reads nothing."""
        raise ProtocolError(f"the commit phase was about to read {partition} {offsets}")


@dataclass(frozen=True, slots=True)
class SpoutSpec:
    """The part of a spout that its tasks need: the reader. `outputs` are its fields by stream.

    Planning and the connections of the driver are left out. In the commit phase, which reads nothing, `reader` is a
    `NoReader`.
    """

    id: str
    outputs: Mapping[str, Schema]
    parallelism: int
    reader: PartitionReader
    with_checksum: bool
    is_followed: bool = False
    """Whether its tuples have the hidden columns by which their messages are followed."""
    skips_losses: bool = False
    """Whether records of a recorded batch that the source has lost are skipped. Only if batches are not planned
    again."""
    event_times: Mapping[str, EventTime] = field(default_factory=dict)
    """The event times of the tuples, by stream."""


@dataclass(frozen=True, slots=True)
class BoltSpec:
    """The part of a bolt that its tasks need, without its state, which the driver has.

    `bolt` is None for a state's update, for which tasks have an aggregator. `outputs` are its fields by stream.
    """

    id: str
    bolt: Bolt | BoltFunction | None
    parallelism: int
    inputs: tuple[Grouping, ...]
    outputs: Mapping[str, Schema]
    is_committer: bool
    reads: tuple[str, ...] = ()
    """The committers whose states it looks up in the commit phase."""

    @property
    def is_dataframe(self) -> bool:
        """True if Spark computes it as a whole."""
        return isinstance(self.bolt, BoltFunction) and self.bolt.kind is FunctionKind.DATAFRAME

    def input(self, source: str, stream: str) -> Grouping | None:
        """Return the grouping by which the bolt receives a stream, or None if it does not subscribe to it."""
        return next((grouping for grouping in self.inputs if grouping.origin == (source, stream)), None)


Record = Callable[[TransactionAttempt, str, str, pa.RecordBatch], None]
"""Receives the output of each component, with the attempt, the component and the stream."""


@dataclass(frozen=True, slots=True)
class TaskProgram:
    """Everything that tasks need to know about a topology. Sent to executors once.

    `slot_of` has the slot of each task of a stage within its level. `record` receives the output of components if they
    run in the process that has made the program. `stagers` write partial aggregates that are too large for the driver,
    by committer.
    """

    topology_id: str
    spout: SpoutSpec
    bolts: Mapping[str, BoltSpec]
    aggregators: Mapping[str, Aggregator]
    options: Mapping[str, Any]
    plan: StagePlan
    slot_of: Mapping[tuple[int, int], int]
    record: Record | None = None
    stagers: Mapping[str, Stager] = field(default_factory=dict)
    scratch: Scratch | None = None
    """Storage for data of later steps that is too large for the driver. None if there is none."""
    is_run_once: bool = False
    """Whether a task that Spark runs a second time fails before a bolt gets any tuple (at most once)."""
    sets_aside: bool = False
    """Whether the topology has a table of dead letters."""
    split: Mapping[str, tuple[tuple[str, ...], int]] = field(default_factory=dict)
    """The updates that emit their changes and may run as jobs: the columns that split their keys, and the number of
    tasks."""
    naive_times: str | None = None
    """The zone of times without one. None if such times are refused."""
    prototypes: dict[str, bytes] = field(default_factory=dict, repr=False, compare=False)
    """Pickled bolts by id, added when a task first needs a copy."""

    def close_sinks(self) -> None:
        """Release the connections by which bolts of this process have sent records to sinks."""
        for bolt in (spec.bolt for spec in self.bolts.values()):
            if isinstance(bolt, FollowingBolt) and bolt.sink is not None:
                bolt.sink.close()

    def slot(self, edge: StageEdge, task: int) -> int:
        """Return the slot (partition number in its level) of a task of the edge's target."""
        return self.slot_of[(edge.target_stage, task)]

    def level_of(self, stage: int) -> int:
        return self.plan.stages[stage].level

    def outputs_of(self, component_id: str) -> Mapping[str, Schema]:
        """Return the fields of the tuples of the spout or a bolt, by stream."""
        if component_id == self.spout.id:
            return self.spout.outputs
        return self.bolts[component_id].outputs

    def subscribers_of(self, component_id: str) -> dict[str, int]:
        """Return the bolts that subscribe to a stream of this component, with their numbers of tasks."""
        subscribers = (
            bolt for bolt in self.bolts.values() if any(grouping.source == component_id for grouping in bolt.inputs)
        )
        return {bolt.id: bolt.parallelism for bolt in subscribers}


def make_program(
    topology: Topology,
    reader: PartitionReader,
    record: Record | None = None,
    stagers: Mapping[str, Stager] | None = None,
    scratch: Scratch | None = None,
    late: frozenset[str] = frozenset(),
) -> TaskProgram:
    """Make the program of a topology, with some components `late` (see `plan_stages`). Reads no source and no state."""
    plan = plan_stages(topology, late)
    slots = {
        (stage.index, task): number
        for level in range(plan.depth)
        for number, (stage, task) in enumerate(plan.slots(level))
    }
    declared, count = topology.spout, topology.spout_parallelism
    with_checksum = declared.replays_exactly and topology.guarantee is Guarantee.EXACTLY_ONCE
    outputs, followed = topology.outputs_of(topology.spout_id), topology.follows_messages
    skips = not declared.replays_exactly and topology.guarantee is not Guarantee.EXACTLY_ONCE
    spout = SpoutSpec(topology.spout_id, outputs, count, reader, with_checksum, followed, skips, topology.event_times)
    bolts, aggregators = dict[str, BoltSpec](), dict[str, Aggregator]()
    for component in topology.components:
        bolt = component.bolt if isinstance(component.bolt, Bolt | BoltFunction) else None
        bolts[component.id] = BoltSpec(
            *(component.id, bolt, component.parallelism, component.inputs, component.outputs, component.is_committer),
            component.reads,
        )
        if not isinstance(component.bolt, Bolt | BoltFunction):
            aggregators[component.id] = component.bolt.aggregator()
    is_run_once = topology.guarantee is Guarantee.AT_MOST_ONCE
    options = topology.options
    return TaskProgram(
        *(topology.id, spout, bolts, aggregators, options, plan, slots, record, stagers or {}, scratch, is_run_once),
        sets_aside=topology.dead_letters is not None,
        naive_times=topology.naive_times,
        split={step.component: (step.split_by, step.tasks) for step in plan_steps(topology) if step.splits_partials},
    )


def check_sendable(program: TaskProgram) -> None:
    """Raise `ConfigError` naming what can't be sent to other processes."""
    for bolt in program.bolts.values():
        if isinstance(bolt.bolt, BoltFunction):
            check_picklable(f"bolt {bolt.id!r}", bolt.bolt.function, advice=ADVICE_OF_FUNCTIONS)
        else:
            check_picklable(f"bolt {bolt.id!r}", bolt.bolt)
        for grouping in bolt.inputs:
            check_picklable(f"grouping of bolt {bolt.id!r} on {grouping.source!r}", grouping.custom)
    for bolt_id, aggregator in program.aggregators.items():
        check_picklable(
            f"update of bolt {bolt_id!r}", aggregator, advice="create what its aggregates need in their methods"
        )
    check_picklable("options of the topology", program.options)
    check_picklable(f"spout {program.spout.id!r}", program.spout.reader)


@dataclass(frozen=True, slots=True)
class AttemptInput:
    """The input of every task of an attempt: the attempt, and the portions that each task of the spout reads.

    A portion is a row of the batch, with the metadata that the batch stores for the partition.
    """

    attempt: TransactionAttempt
    portions: tuple[tuple[tuple[PortionRow, Any], ...], ...]
    excluded: tuple[Exclusion, ...] = ()
    letters: tuple[Letter, ...] = ()
    facts: BatchFacts | None = None
    again: tuple[tuple[tuple[PartitionId, OffsetRange], ...], ...] = ()
    """Messages outside of the batch's ranges that are read once more, by task of the spout."""
    lookups: Lookups | None = None
    """The tables that bolts look up in the process that has them open."""

    @classmethod
    def of(cls, attempt: TransactionAttempt, batch: BatchMetadata, spout: SpoutSpec) -> AttemptInput:
        """Distribute a batch over the tasks of the spout.

        Partition i of the sorted list always goes to task i mod the number of tasks, so that its reader continues where
        it stopped. The portions of a split partition go to this task and the following ones. If several spouts have
        different parallelism, the partitions of one with fewer tasks go to the first tasks.
        """
        task_count = spout.parallelism
        portions: list[list[tuple[PortionRow, Any]]] = [[] for _ in range(task_count)]
        first_task = {partition: position for position, partition in enumerate(sorted(batch.ranges))}
        tasks_by_source = dict[str, int]()
        for row in batch.portion_rows():
            source, index, start, _ = row
            partition = PartitionId(source, index)
            if source not in tasks_by_source:
                tasks_by_source[source] = spout.reader.count_tasks(partition, task_count)
            number = start // batch.split_records if batch.split_records else 0
            task = (first_task[partition] + number) % tasks_by_source[source]
            portions[task].append((row, batch.metadata.get(partition)))
        excluded = tuple(replace(exclusion, error="") for exclusion in batch.excluded)  # `gather` knows the errors
        again: list[list[tuple[PartitionId, OffsetRange]]] = [[] for _ in range(task_count)]
        for message in batch.again:
            offsets = OffsetRange(message.offset, Offset(message.offset + 1))
            again[first_task.get(message.partition, 0) % task_count].append((message.partition, offsets))
        read_portions, reread = tuple(map(tuple, portions)), tuple(map(tuple, again)) if batch.again else ()
        return cls(attempt, read_portions, excluded, batch.letters, batch.facts_for_tasks, reread)
