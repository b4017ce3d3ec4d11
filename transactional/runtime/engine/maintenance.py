"""`Maintenance` lets the states of a run maintain their tables between two transactions, in the commit thread.

Maintenance compacts, and deletes old files and rows. A state is used by one thread only, so the next commit phase waits
meanwhile. It waits for at most one table that takes long; the others then follow a later transaction, beginning with
the first that has not had its turn. No transaction depends on maintenance: what it raises is counted, logged by the
runner, and retried. It must never delete what a savepoint needs, so nothing is deleted until the states know that.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from transactional.core.ports import State
from transactional.core.ports.state_parts import RewindTarget
from transactional.model.attempt import TransactionAttempt, TxId
from transactional.model.errors import OperatingError
from transactional.model.plumbing.failures import FailuresInARow

_log = logging.getLogger(__name__)
Targets = Mapping[str, Sequence[RewindTarget]]
"""The transactions that the table of each committer may have to go back to."""

LONG_S = 0.05
"""Seconds of maintenance after which a commit phase that waits goes first."""
NOTICED_MS = 10
"""Maintenance that takes less has found nothing to do, or next to nothing."""
STUCK_S = 3_600.0
"""Maintenance that takes longer hangs: from then on a commit phase that waits for it may be considered stuck."""


class Maintenance:
    """Maintains the states of one run. `run`, `finish`, `lasting_failures` and `record_commit_start` are for the commit
    thread, the rest for the driver's.

    `on_maintained` is called with the component, and the milliseconds, of maintenance that had something to do.
    """

    def __init__(
        self,
        states: Mapping[str, State],
        on_maintained: Callable[[str, int], None] = lambda component, took_ms: None,
    ) -> None:
        self._states, self._next = list(states.items()), 0
        self._on_maintained = on_maintained
        self._is_ending = threading.Event()
        self._waiting: TransactionAttempt | None = None
        self._began_s: float | None = None
        self._targets: Targets | None = None
        self._raised = {component: FailuresInARow() for component in states}

    def retain(self, targets: Targets) -> None:
        """Let the states keep what a rewind to these targets needs, before they are maintained the next time."""
        self._targets = targets

    def run(self, committed_txid: TxId) -> None:
        """Maintain the tables, beginning with the one that did not get its turn the last time."""
        self._began_s = began_s = time.monotonic()
        try:
            if not self._retain_targets():
                return
            for number in range(len(self._states)):
                is_long = number > 0 and time.monotonic() - began_s > LONG_S
                if self._is_ending.is_set() or (is_long and self._waiting is not None):
                    return
                component, state = self._states[self._next % len(self._states)]
                self._next += 1
                started_s = time.monotonic()
                self._maintain(component, state, committed_txid)
                self._report(component, started_s)
        finally:
            self._began_s = None

    def _maintain(self, component: str, state: State, committed_txid: TxId) -> None:
        """Maintain one table, and count the failures that it has had in a row."""
        try:
            state.parts.maintenance.maintain(committed_txid, self._may_go_on)
        except Exception as error:
            self._raised[component].add("maintenance", str(error))
            raise
        self._raised[component].clear("maintenance")

    def lasting_failures(self) -> dict[str, str]:
        """Return the committers whose maintenance has failed several times in a row, with the reasons."""
        reasons = {
            component: state.parts.maintenance.lasting_failure or self._raised[component].lasting
            for component, state in self._states
        }
        return {component: reason for component, reason in reasons.items() if reason}

    def finish(self) -> None:
        """Wait for maintenance that runs beside the commit thread, since the run ends with nothing left to do."""
        for component, state in self._states:
            started_s = time.monotonic()
            state.parts.maintenance.finish(self._may_go_on)
            self._report(component, started_s)

    def _report(self, component: str, started_s: float) -> None:
        if (took_ms := round(1_000 * (time.monotonic() - started_s))) >= NOTICED_MS:
            self._on_maintained(component, took_ms)

    def _retain_targets(self) -> bool:
        """Pass new targets to the states. Return False if a state could not determine what to keep: until it can,
        nothing may be deleted."""
        targets = self._targets
        if targets is None:
            return True
        try:
            for component, state in self._states:
                state.parts.rewind.retain(targets.get(component, ()))
        except OperatingError as error:
            _log.warning("no table is maintained until what a savepoint takes is known: %s", error)
            return False
        if self._targets is targets:
            self._targets = None
        return True

    def _may_go_on(self) -> bool:
        return not self._is_ending.is_set()

    def hurry(self) -> None:
        """Start no further step of maintenance, since the run is ending."""
        self._is_ending.set()

    def record_waiting_commit(self, attempt: TransactionAttempt) -> None:
        """Record that the commit phase of an attempt waits for the commit thread."""
        self._waiting = attempt

    def record_commit_start(self) -> None:
        """Record that the waiting commit phase has started."""
        self._waiting = None

    def delayed_attempt(self) -> TransactionAttempt | None:
        """Return the attempt whose commit phase can't start because a table is under maintenance, None if none is."""
        began_s = self._began_s
        is_at_work = began_s is not None and time.monotonic() - began_s < STUCK_S
        return self._waiting if is_at_work else None
