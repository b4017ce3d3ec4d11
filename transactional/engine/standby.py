"""Standing by: waiting, while only reading the store, until nobody coordinates a topology any more."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from transactional.config import TopologyConfig
from transactional.errors import StoreUnavailable
from transactional.store import CoordinatorStore, TopologyStatus
from transactional.store_rules import CARRIED_OUT, check_fingerprint

LOOK_EVERY_MS_MAX: Final = 500
"""A standby checks twenty times per lease, and at least this often."""

_log = logging.getLogger(__name__)

Rest = Callable[[int], bool]
"""Waits this many milliseconds, or less; True if the waiting run was asked to end."""


class Standby:
    """Waits for its turn to coordinate one topology. `fingerprint` None: it may be any."""

    def __init__(
        self,
        store: CoordinatorStore,
        topology_id: str,
        fingerprint: Mapping[str, Any] | None,
        config: TopologyConfig,
        *,
        owner: str,
    ) -> None:
        self.store, self.topology_id, self.fingerprint, self.owner = store, topology_id, fingerprint, owner
        self.look_every_ms = max(config.tick_ms, min(config.lease_ms // 20, LOOK_EVERY_MS_MAX))
        self._is_to_end = False

    def await_turn(self, rest: Rest) -> bool:
        """Wait until the lease is free. False: asked to end; or the leader was drained or killed, by command, and has
        ended: nobody should take over.

        A store that does not respond is queried again. Raises `TopologyChanged` if the topology is not the stored one.
        """
        while True:
            try:
                status = self._status()
            except StoreUnavailable as error:
                _log.warning("a standby of topology %r keeps waiting: %s", self.topology_id, error)
            else:
                if self._is_free(status):
                    return not self._has_carried_out(status)
            if rest(self.look_every_ms):
                return False

    def _status(self) -> TopologyStatus | None:
        status = next(iter(self.store.status(self.topology_id)), None)
        if status is not None and self.fingerprint is not None and _is_bound(status):
            check_fingerprint(self.topology_id, status.fingerprint, self.fingerprint)
        return status

    def _is_free(self, status: TopologyStatus | None) -> bool:
        if status is None or not status.is_leased or status.owner == self.owner:
            return True
        self._is_to_end = status.desired in CARRIED_OUT
        return False

    def _has_carried_out(self, status: TopologyStatus | None) -> bool:
        """A lease that was released in the same write that cleared the desired state; not one that has expired."""
        if status is None or not self._is_to_end:
            return False
        return status.leased_until_ms is None and status.desired not in CARRIED_OUT


def _is_bound(status: TopologyStatus) -> bool:
    """Whether its fingerprint may not change: something is committed, or a run has started successfully and leads."""
    return bool(status.fingerprint) and (status.committed_txid > 0 or status.is_leased)
