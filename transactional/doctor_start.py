"""What the doctor is asked at every start of a coordinator, before it changes a table.

A start reads no more of a table's log than what came after the topology's last Delta commit. What reads a log is
imported only for a topology that has Delta tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transactional.diagnosis import Problem
from transactional.doctor_tables import answering, delta_states
from transactional.errors import StoreMismatch, TransactionalError
from transactional.foreign import foreign_change, named
from transactional.store import CoordinatorStore
from transactional.topology import Topology

if TYPE_CHECKING:
    from verifier.delta_log import DeltaCommit

OUT_OF_PLACE = (Problem.STORE_WIPED, Problem.TABLE_AHEAD, Problem.TABLE_BEHIND, Problem.TABLE_MISSING)
"""Why `fencing` refuses a table: the store and the table tell of different transactions."""


def check_at_start(topology: Topology) -> None:
    """Raise `StoreMismatch` when something else has written to a table since the topology did (row T56).

    A start would build on its rows in silence: the version, which `fencing` looks at, does not tell. Raises
    `OperatingError` when a table's storage does not answer.
    """
    for component, state in delta_states(topology):
        owner = f"{topology.id}/{component}"
        foreign = foreign_change(_commits_since(state.location, owner), owner)
        if foreign is not None:
            raise StoreMismatch(
                f"committer {component!r}: its table ({state.location}) was changed by {named(foreign)}, which is "
                f"not the topology's. Its counts would go on from what that left behind: see `transactional doctor`"
            )


def _commits_since(location: Any, owner: str) -> list[DeltaCommit]:
    from verifier.delta_log import LogBroken, commits_since
    from verifier.storage import storage_of

    with answering(location):
        try:
            return commits_since(storage_of(location.uri, location.storage_options), owner) or []
        except (LogBroken, FileNotFoundError):
            return []  # opening the table tells it better


def explained(error: StoreMismatch, topology: Topology, store: CoordinatorStore) -> StoreMismatch:
    """The error that a start was refused with, and what the doctor says of it: what is wrong, and what can be done."""
    from transactional.doctor import examine_tables, status_of

    try:
        every = examine_tables(topology, store, status_of(topology, store))
    except TransactionalError:
        every = []
    found = [each for each in every if each.problem in OUT_OF_PLACE]
    if not found:
        return error
    return StoreMismatch(f"{error}. The doctor says of the {found[0].where}: {found[0].what}; {found[0].remedy}")
