"""What is too large for the driver: the Spark task that has it writes it to a file, and sends its place.

Partial aggregates are staged in the folder of the state's table, as a part of it to be. Tuples and pickled bolts for
the commit phase are left where later steps find them, and so are, split by key, the partial aggregates of an update
that emits what it changes. That is done for all tasks that run in one Spark task together, so that there are few files,
and with what they send: `run_task` itself writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import TypeGuard

from transactional.core.ports import STAGEABLE
from transactional.core.ports.staged import Scratch, SplitRows, StagedBytes, Stager
from transactional.model.arrow import table_from_ipc
from transactional.model.attempt import TransactionAttempt
from transactional.model.errors import OperatingError, SumOverflow
from transactional.model.names import owner_of
from transactional.runtime.processing.split_rows import split_bytes
from transactional.runtime.tasks.items import (
    Item,
    PartialAggregates,
    PickledBolt,
    SplitAggregates,
    StagedAggregates,
    TaskFailure,
    TuplesToCommit,
)
from transactional.runtime.tasks.program import TaskProgram
from transactional.topology.steps import emitted_by, plan_steps
from transactional.topology.topology import CLOSED, Component, Topology

ForAStep = TuplesToCommit | PickledBolt | PartialAggregates
"""What later steps read, if not the driver."""


def stagers_of(topology: Topology) -> dict[str, Stager]:
    """What writes staged files, by committer, for those whose rows may come from several tasks. Where bolts read what
    a committer has changed, it is not yet what its table is to hold; windows that close are read elsewhere."""
    found = dict[str, Stager]()
    for component in topology.components:
        state = component.state
        if state is None or component.update is None or set(emitted_by(component)) - {CLOSED}:
            continue
        stager = state.stager(owner_of(topology.id, component.id))
        kinds = set(component.update.aggregator().combine_kinds.values())
        if stager is not None and (
            kinds <= STAGEABLE or (kinds == {"last"} and _has_one_row_per_key(topology, component))
        ):
            found[component.id] = stager
    return found


def _has_one_row_per_key(topology: Topology, component: Component) -> bool:
    """Whether no two tuples for a committer have one key, so that there is no last one: it takes windows that close."""
    if len(component.inputs) > 1 or component.inputs[0].stream != CLOSED or component.state is None:
        return False
    windows = topology.component(component.inputs[0].source).update
    key = () if windows is None else windows.window_key
    return bool(key) and set(key) <= set(component.state.key.names)


def staged(program: TaskProgram, attempt: TransactionAttempt, items: Iterable[Item], tasks: int) -> Iterator[Item]:
    """What one Spark task sends; what it has aggregated for a committer is in a file, where it is worth it.

    `tasks` is the number of Spark tasks that share what may go through the driver.
    """
    sent = list(items)
    if any(isinstance(item, TaskFailure) for item in sent):
        return iter(sent)
    sent = _left(program, attempt, sent, tasks)
    for committer, stager in program.stagers.items():
        parts = [item for item in sent if isinstance(item, PartialAggregates) and item.committer == committer]
        if parts and stager.is_large_enough(sum(len(part.data) for part in parts), tasks):
            instead = _staged(program, attempt, committer, stager, parts)
            if instead is not None:
                gone = set(map(id, parts))
                sent = [*(item for item in sent if id(item) not in gone), instead]
    return iter(sent)


def stagers_of_steps(topology: Topology) -> dict[str, Stager]:
    """What tasks of steps write with, by component: where their folders are not seen, a step can't run as a job."""
    found = dict[str, Stager]()
    for step in plan_steps(topology):
        state = topology.component(step.component).state
        stager = None if state is None else state.stager(owner_of(topology.id, step.component))
        if not step.driver_reason and stager is not None:
            found[step.component] = stager
    return found


def scratch_of(topology: Topology) -> Scratch | None:
    """Where tasks of a topology leave something for later steps; None: nowhere, or nobody would take it there."""
    if all(step.driver_reason for step in plan_steps(topology)):
        return None
    for component in topology.components:
        state = component.state
        found = None if state is None else state.scratch(owner_of(topology.id, component.id))
        if found is not None:
            return found
    return None


def _left(program: TaskProgram, attempt: TransactionAttempt, sent: list[Item], tasks: int) -> list[Item]:
    """The same items, with what later steps read in a file, where it is worth it."""
    large = [(number, item) for number, item in enumerate(sent) if _is_for_a_step(item, program)]
    size_bytes = sum(len(item.data) for _, item in large if isinstance(item.data, bytes))
    if program.scratch is None or not program.scratch.is_large_enough(size_bytes, tasks):
        return sent
    parts = [_parts(program, item) for _, item in large]
    try:
        places = iter(program.scratch.write(attempt, [part for of_item in parts for part in of_item]))
        for (number, item), of_item in zip(large, parts, strict=True):
            sent[number] = _instead(item, tuple(islice(places, len(of_item))))
    except OperatingError as error:
        source, order = _source(large[0][1]), large[0][1].order
        text = f"component {source!r} of attempt {attempt}: {error}"
        return [*sent, TaskFailure(order, source, error.code, text)]
    return sent


def _is_for_a_step(item: Item, program: TaskProgram) -> TypeGuard[ForAStep]:
    is_split = isinstance(item, PartialAggregates) and item.committer in program.split
    return is_split or isinstance(item, TuplesToCommit | PickledBolt)


def _parts(program: TaskProgram, item: ForAStep) -> list[bytes]:
    """What is left of an item: as a whole, or split among the tasks of its step."""
    assert isinstance(item.data, bytes)
    return (
        split_bytes(item.data, *program.split[item.committer]) if isinstance(item, PartialAggregates) else [item.data]
    )


def _instead(item: ForAStep, places: tuple[StagedBytes, ...]) -> Item:
    if isinstance(item, PartialAggregates):
        return SplitAggregates(item.order, item.committer, SplitRows(places, table_from_ipc(item.data).num_rows))
    [place] = places
    return replace(item, data=place)


def _source(item: ForAStep) -> str:
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
