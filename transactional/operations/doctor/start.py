"""Refuses to start a run whose store and tables do not belong together, before Spark is started."""

from __future__ import annotations

from transactional.core.machine.agreement import refusal_text, removal_hint
from transactional.core.ports.examining import Problem
from transactional.core.store import CoordinatorStore
from transactional.model.errors import StoreMismatch, TransactionalError
from transactional.topology.topology import Topology

DISAGREEMENTS = (Problem.STORE_WIPED, Problem.TABLE_AHEAD, Problem.TABLE_BEHIND, Problem.TABLE_MISSING)
"""The problems for which a run's start refuses a table: it and the store are at different transactions."""


def refuse_early(topology: Topology, store: CoordinatorStore) -> None:
    """Raise the `StoreMismatch` that a start would end with, before Spark is started, which takes seconds.

    Nothing is checked while another process runs the topology, because tables and store change meanwhile.
    """
    from transactional.operations.doctor.examine import examine_tables, read_status

    status = read_status(topology, store)
    if status is not None and status.is_leased:
        return
    try:
        diagnoses = examine_tables(topology, store, status)
    except TransactionalError:
        return  # the start itself says why, or gets through
    for diagnosis in diagnoses:
        if diagnosis.problem in DISAGREEMENTS:
            tables = [
                component.state.parts.examination.storage_path
                for component in topology.committers
                if component.state is not None
            ]
            experiment = removal_hint(store.storage_path, tables)
            raise StoreMismatch(
                refusal_text(diagnosis.component, diagnosis.where, diagnosis.what, diagnosis.remedy, experiment)
            )
