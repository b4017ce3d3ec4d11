"""The doctor's explanation of a start that was refused because store and tables do not belong together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from transactional.errors import StoreMismatch, TransactionalError
from transactional.examining import Problem
from transactional.store import CoordinatorStore
from transactional.topology.topology import Topology

OUT_OF_PLACE = (Problem.STORE_WIPED, Problem.TABLE_AHEAD, Problem.TABLE_BEHIND, Problem.TABLE_MISSING)
"""Why `fencing` refuses a table: the store and the table are at different transactions."""


@contextmanager
def explaining(topology: Topology, store: CoordinatorStore) -> Iterator[None]:
    """Let the doctor explain the `StoreMismatch` that a run of the topology ends with."""
    try:
        yield
    except StoreMismatch as error:
        raise explained(error, topology, store) from None


def refuse_early(topology: Topology, store: CoordinatorStore) -> None:
    """Raise the `StoreMismatch` that a start would end with, before Spark is started: that takes seconds.

    Only while nobody coordinates the topology, who would move tables and store on.
    """
    from transactional.doctor.examine import examine_tables, status_of

    status = status_of(topology, store)
    if status is not None and status.is_leased:
        return
    try:
        every = examine_tables(topology, store, status)
    except TransactionalError:
        return  # the start itself says why, or gets through
    for each in every:
        if each.problem in OUT_OF_PLACE:
            raise StoreMismatch(f"committer {each.component!r}: {each.where}: {each.what}. To do: {each.remedy}")


def explained(error: StoreMismatch, topology: Topology, store: CoordinatorStore) -> StoreMismatch:
    """The error that a start was refused with, and the doctor's findings: what is wrong, and what can be done."""
    from transactional.doctor.examine import examine_tables, status_of

    try:
        every = examine_tables(topology, store, status_of(topology, store))
    except TransactionalError:
        every = []
    found = [each for each in every if each.problem in OUT_OF_PLACE]
    if not found:
        return error
    return StoreMismatch(f"{error}. The doctor says of the {found[0].where}: {found[0].what}; {found[0].remedy}")
