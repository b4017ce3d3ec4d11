"""`SavepointWatch` notices new and deleted savepoints, so that the states of a run keep the versions they refer to.

A savepoint names a transaction that a rewind can go back to. Operators create and delete savepoints at any time, so a
run queries the store for them regularly, as it does for the desired state.
"""

from __future__ import annotations

from transactional.core.store import CoordinatorStore
from transactional.runtime.engine.maintenance import Targets
from transactional.runtime.engine.rewinding import rewind_target
from transactional.topology.topology import Topology


class SavepointWatch:
    """The savepoints of one topology, as of the last query."""

    def __init__(self, topology: Topology, store: CoordinatorStore) -> None:
        self._topology, self._store = topology, store
        self._last_seen: tuple[tuple[str, int], ...] | None = None

    @property
    def is_answered(self) -> bool:
        """Whether the store has answered a query. Until then nothing may be deleted that a savepoint may need."""
        return self._last_seen is not None

    def read_changes(self) -> Targets | None:
        """Return the versions that each committer's table has to keep, or None if the savepoints have not changed since
        the last query. Raises `StoreUnavailable`."""
        savepoints = self._store.savepoints(self._topology.id)
        seen = tuple((savepoint.name, int(savepoint.txid)) for savepoint in savepoints)
        if seen == self._last_seen:
            return None
        txids = sorted({savepoint.txid for savepoint in savepoints})
        targets = {
            component.id: [rewind_target(self._store, self._topology.id, component.id, txid) for txid in txids]
            for component in self._topology.committers
        }
        self._last_seen = seen
        return targets
