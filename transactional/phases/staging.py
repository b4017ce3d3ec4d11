"""Partial aggregates that are too large for the driver: the Spark task that has them stages them in the table's folder.

That is done for all tasks that run in one Spark task together, so that there is one file for each Spark task and
committer, and with what they send: `run_task` itself writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from transactional.arrow import table_from_ipc
from transactional.attempt import TransactionAttempt
from transactional.bolts import Bolt
from transactional.errors import OperatingError, SumOverflow
from transactional.execution.items import Item, PartialAggregates, StagedAggregates, TaskFailure
from transactional.execution.program import TaskProgram
from transactional.names import owner_of
from transactional.staged import STAGEABLE, Stager, StagingState
from transactional.topology.functions import BoltFunction
from transactional.topology.topology import Topology


def stagers_of(topology: Topology) -> dict[str, Stager]:
    """What writes staged files, by committer, for those whose rows may come from several tasks. Where bolts read what
    a committer has changed, all of it has to pass through the driver."""
    found = dict[str, Stager]()
    for component in topology.components:
        state: object = component.state
        if isinstance(component.bolt, Bolt | BoltFunction) or any(component.outputs.values()):
            continue
        if not isinstance(state, StagingState):
            continue
        stager = state.stager(owner_of(topology.id, component.id))
        if stager is not None and STAGEABLE.issuperset(component.bolt.aggregator().combine_kinds.values()):
            found[component.id] = stager
    return found


def staged(program: TaskProgram, attempt: TransactionAttempt, items: Iterable[Item], tasks: int) -> Iterator[Item]:
    """What one Spark task sends; what it has aggregated for a committer is in a file, where it is worth it.

    `tasks` is the number of Spark tasks that share what may go through the driver.
    """
    sent = list(items)
    if not program.stagers or any(isinstance(item, TaskFailure) for item in sent):
        return iter(sent)
    for committer, stager in program.stagers.items():
        parts = [item for item in sent if isinstance(item, PartialAggregates) and item.committer == committer]
        if parts and stager.is_worth_it(sum(len(part.data) for part in parts), tasks):
            instead = _staged(program, attempt, committer, stager, parts)
            if instead is not None:
                gone = set(map(id, parts))
                sent = [*(item for item in sent if id(item) not in gone), instead]
    return iter(sent)


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
