"""`Savepoints`: what a run has its states keep, so that an operator can go back to a transaction.

Anybody may note a savepoint at any time, so the store is queried as it is for the desired state.
"""

from __future__ import annotations

from transactional.core.store import CoordinatorStore
from transactional.runtime.engine.maintenance import Targets
from transactional.runtime.engine.rewinding import target_of
from transactional.topology.topology import Topology


class Savepoints:
    """The savepoints of one topology, as of the last look."""

    def __init__(self, topology: Topology, store: CoordinatorStore) -> None:
        self._topology, self._store = topology, store
        self._known: tuple[tuple[str, int], ...] | None = None

    @property
    def are_known(self) -> bool:
        """Whether a look was answered: until then nothing may be deleted that one may need."""
        return self._known is not None

    def changed(self) -> Targets | None:
        """What each committer's table has to be able to go back to, if that has changed since the last look.

        Raises `StoreUnavailable`.
        """
        found = self._store.savepoints(self._topology.id)
        known = tuple((savepoint.name, int(savepoint.txid)) for savepoint in found)
        if known == self._known:
            return None
        txids = sorted({savepoint.txid for savepoint in found})
        targets = {
            component.id: [target_of(self._store, self._topology.id, component.id, txid) for txid in txids]
            for component in self._topology.committers
        }
        self._known = known
        return targets
