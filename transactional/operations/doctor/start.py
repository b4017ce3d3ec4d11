"""Refuses a start before it has cost anything, if store and tables do not belong together."""

from __future__ import annotations

from transactional.core.machine.agreement import refusal, removal
from transactional.core.ports.examining import Problem
from transactional.core.store import CoordinatorStore
from transactional.model.errors import StoreMismatch, TransactionalError
from transactional.topology.topology import Topology

DISAGREEMENTS = (Problem.STORE_WIPED, Problem.TABLE_AHEAD, Problem.TABLE_BEHIND, Problem.TABLE_MISSING)
"""Why `fencing` refuses a table: the store and the table are at different transactions."""


def refuse_early(topology: Topology, store: CoordinatorStore) -> None:
    """Raise the `StoreMismatch` that a start would end with, before Spark is started: that takes seconds.

    Only while nobody coordinates the topology, who would move tables and store on.
    """
    from transactional.operations.doctor.examine import examine_tables, status_of

    status = status_of(topology, store)
    if status is not None and status.is_leased:
        return
    try:
        every = examine_tables(topology, store, status)
    except TransactionalError:
        return  # the start itself says why, or gets through
    for each in every:
        if each.problem in DISAGREEMENTS:
            tables = [component.state.storage_path for component in topology.committers if component.state is not None]
            experiment = removal(getattr(store, "storage_path", None), tables)
            raise StoreMismatch(refusal(each.component, each.where, each.what, each.remedy, experiment))
