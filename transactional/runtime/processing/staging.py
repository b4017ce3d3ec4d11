"""Stages data that is too large for the driver: the Spark task writes it to a file, and sends the name of the file.

Partial aggregates are staged in the folder of the state's table, to become a part of it. Tuples and pickled bolts for
the commit phase are staged in scratch storage for later steps. So are, split by key, the partial aggregates of an
update that emits its changes. All tasks within one Spark task share the files, so that there are few. Sinks that write
files stage the encoded records of their bolts. Staging is applied to the items that tasks send: `run_task` itself
writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Final, TypeGuard

import pyarrow as pa

from transactional.core.ports import STAGEABLE
from transactional.core.ports.staged import Scratch, SplitRows, StagedBytes, Stager
from transactional.model.arrow import table_from_ipc
from transactional.model.attempt import TransactionAttempt
from transactional.model.errors import OperatingError, SumOverflow
from transactional.model.names import owner_of
from transactional.runtime.processing.split_rows import split_bytes
from transactional.runtime.tasks.emitting import make_emitter
from transactional.runtime.tasks.items import (
    Item,
    PartialAggregates,
    PickledBolt,
    SplitAggregates,
    StagedAggregates,
    TaskFailure,
    TuplesToCommit,
)
from transactional.runtime.tasks.pickling import dump_instance, load_instance
from transactional.runtime.tasks.program import TaskProgram
from transactional.topology.bolts.sink_bolt import SinkBolt
from transactional.topology.steps import plan_steps, read_streams
from transactional.topology.topology import CLOSED, Component, Topology

RECORDS_BYTES_MIN: Final = 4 * 2**20
"""Records of a sink up to this size go through the driver: files of their own would cost more."""
RECORDS_BYTES_MAX: Final = 64 * 2**20
"""The share of one transaction's records, for each sink, that goes through the driver."""

StepItem = TuplesToCommit | PickledBolt | PartialAggregates
"""An item that may be read by tasks of a later step instead of the driver."""


def find_stagers(topology: Topology) -> dict[str, Stager]:
    """Return the writers of staged files, for committers whose rows may come from several tasks.

    A committer whose changes are read by bolts has none, because its rows are not computed before the commit phase.
    Closed windows are no such changes.
    """
    stagers = dict[str, Stager]()
    for component in topology.components:
        state = component.state
        if state is None or component.update is None or set(read_streams(component)) - {CLOSED}:
            continue
        stager = state.parts.staging.stager(owner_of(topology.id, component.id))
        kinds = set(component.update.aggregator().combine_kinds.values())
        if stager is not None and (
            kinds <= STAGEABLE or (kinds == {"last"} and _has_one_row_per_key(topology, component))
        ):
            stagers[component.id] = stager
    return stagers


def _has_one_row_per_key(topology: Topology, component: Component) -> bool:
    """Return whether no two tuples for a committer have the same key, because it takes closed windows with their whole
    key."""
    if len(component.inputs) > 1 or component.inputs[0].stream != CLOSED or component.state is None:
        return False
    windows = topology.component(component.inputs[0].source).update
    key = () if windows is None else windows.window_key
    return bool(key) and set(key) <= set(component.state.key.names)


def staged(program: TaskProgram, attempt: TransactionAttempt, items: Iterable[Item], tasks: int) -> Iterator[Item]:
    """Return the items of one Spark task, with large partial aggregates in files.

    `tasks` is the number of Spark tasks that share what may go through the driver.
    """
    sent_items = list(items)
    if any(isinstance(item, TaskFailure) for item in sent_items):
        return iter(sent_items)
    sent_items = [_with_staged_records(program, attempt, sent, tasks) for sent in sent_items]
    sent_items = _with_scratch(program, attempt, sent_items, tasks)
    for committer, stager in program.stagers.items():
        parts = [item for item in sent_items if isinstance(item, PartialAggregates) and item.committer == committer]
        if parts and stager.is_large_enough(sum(len(part.data) for part in parts), tasks):
            replacement = _staged(program, attempt, committer, stager, parts)
            if replacement is not None:
                replaced_ids = set(map(id, parts))
                sent_items = [*(item for item in sent_items if id(item) not in replaced_ids), replacement]
    return iter(sent_items)


def find_step_stagers(topology: Topology) -> dict[str, Stager]:
    """Return the writers of staged files of steps, by component. Executors must see their folders to run a step as a
    job."""
    stagers = dict[str, Stager]()
    for step in plan_steps(topology):
        state = topology.component(step.component).state
        stager = None if state is None else state.parts.staging.stager(owner_of(topology.id, step.component))
        if not step.driver_reason and stager is not None:
            stagers[step.component] = stager
    return stagers


def find_scratch(topology: Topology) -> Scratch | None:
    """Return the storage for data of later steps, or None if there is none or no step would read it."""
    if all(step.driver_reason for step in plan_steps(topology)):
        return None
    for component in topology.components:
        state = component.state
        scratch = None if state is None else state.parts.staging.scratch(owner_of(topology.id, component.id))
        if scratch is not None:
            return scratch
    return None


def _with_staged_records(program: TaskProgram, attempt: TransactionAttempt, sent: Item, tasks: int) -> Item:
    """Return the item; that of a sink which stages in tasks, and has many records, with the records staged."""
    bolt = program.bolts[sent.component].bolt if isinstance(sent, PickledBolt) else None
    if not isinstance(sent, PickledBolt) or not isinstance(bolt, SinkBolt) or not bolt.sink.stages_in_tasks:
        return sent
    assert isinstance(sent.data, bytes)
    if len(sent.data) <= min(RECORDS_BYTES_MIN, RECORDS_BYTES_MAX // max(1, tasks)):
        return sent
    emitter = make_emitter(program, sent.component, 0)
    sink_bolt: SinkBolt = load_instance(sent.data, emitter, None)
    if not sink_bolt.records:
        return sent
    try:
        records = pa.concat_tables(sink_bolt.records)
        sink_bolt.staged.append(bolt.sink.stage(attempt, records))
        sink_bolt.staged_count += records.num_rows
    except OperatingError as error:
        text = f"component {sent.component!r} of attempt {attempt}: {error}"
        return TaskFailure(sent.order, sent.component, error.code, text)
    sink_bolt.records = []
    return replace(sent, data=dump_instance(sink_bolt, emitter))


def _with_scratch(program: TaskProgram, attempt: TransactionAttempt, items: list[Item], tasks: int) -> list[Item]:
    """Return the items, with large data of later steps in scratch storage."""
    large = [(number, item) for number, item in enumerate(items) if _is_step_item(item, program)]
    size_bytes = sum(len(item.data) for _, item in large if isinstance(item.data, bytes))
    if program.scratch is None or not program.scratch.is_large_enough(size_bytes, tasks):
        return items
    parts = [_parts(program, item) for _, item in large]
    try:
        staged_parts = iter(program.scratch.write(attempt, [part for item_parts in parts for part in item_parts]))
        for (number, item), item_parts in zip(large, parts, strict=True):
            items[number] = _with_staged(item, tuple(islice(staged_parts, len(item_parts))))
    except OperatingError as error:
        source, order = _source(large[0][1]), large[0][1].order
        text = f"component {source!r} of attempt {attempt}: {error}"
        return [*items, TaskFailure(order, source, error.code, text)]
    return items


def _is_step_item(item: Item, program: TaskProgram) -> TypeGuard[StepItem]:
    is_split = isinstance(item, PartialAggregates) and item.committer in program.split
    return is_split or isinstance(item, TuplesToCommit | PickledBolt)


def _parts(program: TaskProgram, item: StepItem) -> list[bytes]:
    """Return the data of an item, as a whole or split among the tasks of its step."""
    assert isinstance(item.data, bytes)
    return (
        split_bytes(item.data, *program.split[item.committer]) if isinstance(item, PartialAggregates) else [item.data]
    )


def _with_staged(item: StepItem, parts: tuple[StagedBytes, ...]) -> Item:
    if isinstance(item, PartialAggregates):
        return SplitAggregates(item.order, item.committer, SplitRows(parts, table_from_ipc(item.data).num_rows))
    [part] = parts
    return replace(item, data=part)


def _source(item: StepItem) -> str:
    match item:
        case TuplesToCommit():
            return item.source
        case PartialAggregates():
            return item.committer
        case PickledBolt():
            return item.component


def _staged(
    program: TaskProgram,
    attempt: TransactionAttempt,
    committer: str,
    stager: Stager,
    parts: list[PartialAggregates],
) -> StagedAggregates | TaskFailure | None:
    order = parts[0].order
    try:
        rows = program.aggregators[committer].combine([table_from_ipc(part.data) for part in parts])
        return StagedAggregates(order, committer, stager.stage(attempt, rows))
    except SumOverflow:
        return None  # the driver gets the same error, and reports it
    except OperatingError as error:
        return TaskFailure(order, committer, error.code, f"component {committer!r} of attempt {attempt}: {error}")
