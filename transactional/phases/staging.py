"""What is too large for the driver: the Spark task that has it writes it to a file, and sends its place.

Partial aggregates are staged in the folder of the state's table, as a part of it to be. Tuples and pickled bolts for
the commit phase are left where later steps find them. That is done for all tasks that run in one Spark task together,
so that there are few files, and with what they send: `run_task` itself writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from transactional.arrow import table_from_ipc
from transactional.attempt import TransactionAttempt
from transactional.bolts import Bolt
from transactional.errors import OperatingError, SumOverflow
from transactional.execution.items import (
    Item,
    PartialAggregates,
    PickledBolt,
    StagedAggregates,
    TaskFailure,
    TuplesToCommit,
)
from transactional.execution.program import TaskProgram
from transactional.names import owner_of
from transactional.ports.split import SplitWindows
from transactional.ports.staged import STAGEABLE, Scratch, ScratchState, Stager, StagingState
from transactional.topology.functions import BoltFunction
from transactional.topology.steps import emitted_by, plan_steps
from transactional.topology.topology import CLOSED, Component, Topology


def stagers_of(topology: Topology) -> dict[str, Stager]:
    """What writes staged files, by committer, for those whose rows may come from several tasks. Where bolts read what
    a committer has changed, all of it has to pass through the driver; windows that close are read elsewhere."""
    found = dict[str, Stager]()
    for component in topology.components:
        state: object = component.state
        if isinstance(component.bolt, Bolt | BoltFunction) or set(emitted_by(component)) - {CLOSED}:
            continue
        if not isinstance(state, StagingState):
            continue
        stager = state.stager(owner_of(topology.id, component.id))
        kinds = set(component.bolt.aggregator().combine_kinds.values())
        if stager is not None and (
            kinds <= STAGEABLE or (kinds == {"last"} and _has_one_row_per_key(topology, component))
        ):
            found[component.id] = stager
    return found


def _has_one_row_per_key(topology: Topology, component: Component) -> bool:
    """Whether no two tuples for a committer have one key, so that there is no last one: it takes windows that close."""
    if len(component.inputs) > 1 or component.inputs[0].stream != CLOSED or component.state is None:
        return False
    windows: object = topology.component(component.inputs[0].source).bolt
    return isinstance(windows, SplitWindows) and set(windows.window_key) <= set(component.state.key.names)


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
        if parts and stager.is_worth_it(sum(len(part.data) for part in parts), tasks):
            instead = _staged(program, attempt, committer, stager, parts)
            if instead is not None:
                gone = set(map(id, parts))
                sent = [*(item for item in sent if id(item) not in gone), instead]
    return iter(sent)


def stagers_of_steps(topology: Topology) -> dict[str, Stager]:
    """What tasks of steps write with, by component: where their folders are not seen, a step can't run as a job."""
    found = dict[str, Stager]()
    for step in plan_steps(topology):
        state: object = topology.component(step.component).state
        stager = state.stager(owner_of(topology.id, step.component)) if isinstance(state, StagingState) else None
        if not step.stays and stager is not None:
            found[step.component] = stager
    return found


def scratch_of(topology: Topology) -> Scratch | None:
    """Where tasks of a topology leave something for later steps; None: nowhere, or nobody would take it there."""
    if all(step.stays for step in plan_steps(topology)):
        return None
    for component in topology.components:
        state: object = component.state
        found = state.scratch(owner_of(topology.id, component.id)) if isinstance(state, ScratchState) else None
        if found is not None:
            return found
    return None


def _left(program: TaskProgram, attempt: TransactionAttempt, sent: list[Item], tasks: int) -> list[Item]:
    """The same items, with tuples and pickled bolts in a file, where it is worth it."""
    large = [(number, item) for number, item in enumerate(sent) if isinstance(item, TuplesToCommit | PickledBolt)]
    parts = [item.data for _, item in large if isinstance(item.data, bytes)]
    if program.scratch is None or not program.scratch.is_worth_it(sum(map(len, parts)), tasks):
        return sent
    try:
        for (number, item), place in zip(large, program.scratch.write(attempt, parts), strict=True):
            sent[number] = replace(item, data=place)
    except OperatingError as error:
        item = large[0][1]
        source = item.source if isinstance(item, TuplesToCommit) else item.component
        text = f"component {source!r} of attempt {attempt}: {error}"
        return [*sent, TaskFailure(item.order, source, error.code, text)]
    return sent


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
        return None  # the driver meets it, too, and says so
    except OperatingError as error:
        return TaskFailure(order, committer, error.code, f"component {committer!r} of attempt {attempt}: {error}")
