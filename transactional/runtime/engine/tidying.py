"""`Tidying`: tables are maintained between two transactions, in the commit thread, and never for long at a time.

A state is used by one thread only, so the next commit phase waits during maintenance. It waits for at most one table
that takes long: after that one, the others follow a later transaction.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from transactional.core.ports import State
from transactional.core.ports.rewinding import RewindTarget
from transactional.model.attempt import TransactionAttempt, TxId
from transactional.model.errors import OperatingError
from transactional.model.plumbing.failures import FailuresInARow

_log = logging.getLogger(__name__)
Targets = Mapping[str, Sequence[RewindTarget]]
"""By committer, what its table may have to go back to."""

LONG_S = 0.05
"""After this time a waiting commit phase goes first."""
NOTICED_MS = 10
"""Maintenance that takes less has found nothing to do, or next to nothing."""
STUCK_S = 3_600.0
"""Maintenance that takes longer hangs: from then on a commit phase that waits for it may be considered stuck."""


class Tidying:
    """Maintains the states of one run. `run` is for the commit thread, the rest for the driver's.

    `noticed` is called with the component, and the milliseconds, of maintenance that had something to do.
    """

    def __init__(
        self,
        states: Mapping[str, State],
        noticed: Callable[[str, int], None] = lambda component, took_ms: None,
    ) -> None:
        self._states, self._next = list(states.items()), 0
        self._noticed = noticed
        self._hurries = threading.Event()
        self._waiting: TransactionAttempt | None = None
        self._began_s: float | None = None
        self._to_hold: Targets | None = None
        self._raised = {component: FailuresInARow() for component in states}

    def hold(self, targets: Targets) -> None:
        """Have the states keep what going back takes, before they are maintained the next time."""
        self._to_hold = targets

    def run(self, committed_txid: TxId) -> None:
        """Maintain the tables, beginning with the one that was not reached the last time."""
        self._began_s = began_s = time.monotonic()
        try:
            if not self._has_held():
                return
            for done in range(len(self._states)):
                is_long = done > 0 and time.monotonic() - began_s > LONG_S
                if self._hurries.is_set() or (is_long and self._waiting is not None):
                    return
                component, state = self._states[self._next % len(self._states)]
                self._next += 1
                before_s = time.monotonic()
                self._maintain(component, state, committed_txid)
                self._notice(component, before_s)
        finally:
            self._began_s = None

    def _maintain(self, component: str, state: State, committed_txid: TxId) -> None:
        """Maintain one table, and count in a row what that raises."""
        try:
            state.tidy(committed_txid, self._may_go_on)
        except Exception as error:
            self._raised[component].add("maintenance", str(error))
            raise
        self._raised[component].clear("maintenance")

    def failures(self) -> dict[str, str]:
        """The committers whose tables have not been maintained several times in a row, with the reasons. For the
        commit thread."""
        found = {
            component: state.upkeep_failure or self._raised[component].lasting for component, state in self._states
        }
        return {component: reason for component, reason in found.items() if reason}

    def finish(self) -> None:
        """Wait for maintenance that was begun beside the commit thread: the run is ending by itself."""
        for component, state in self._states:
            before_s = time.monotonic()
            state.finish_tidying(self._may_go_on)
            self._notice(component, before_s)

    def _notice(self, component: str, since_s: float) -> None:
        if (took_ms := round(1_000 * (time.monotonic() - since_s))) >= NOTICED_MS:
            self._noticed(component, took_ms)

    def _has_held(self) -> bool:
        """False: what is to be kept could not be determined; nothing may be deleted until it is."""
        targets = self._to_hold
        if targets is None:
            return True
        try:
            for component, state in self._states:
                state.retain(targets.get(component, ()))
        except OperatingError as error:
            _log.warning("no table is maintained until what a savepoint takes is known: %s", error)
            return False
        if self._to_hold is targets:
            self._to_hold = None
        return True

    def _may_go_on(self) -> bool:
        return not self._hurries.is_set()

    def hurry(self) -> None:
        """Start no further step: the run is ending."""
        self._hurries.set()

    def is_waited_for(self, attempt: TransactionAttempt) -> None:
        """A commit phase is about to start."""
        self._waiting = attempt

    def is_over(self) -> None:
        """It has started."""
        self._waiting = None

    def delayed(self) -> TransactionAttempt | None:
        """The attempt whose commit phase can't start because a table is under maintenance."""
        began_s = self._began_s
        is_at_work = began_s is not None and time.monotonic() - began_s < STUCK_S
        return self._waiting if is_at_work else None
