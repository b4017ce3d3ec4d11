"""`TroubleLog`: logs a warning for each attempt that fails, and one line when the problem is resolved."""

from __future__ import annotations

import logging
from typing import Final

from transactional.core.protocol import Action, BatchPlanned, Event, RecordCommit, RecordFailure

LOGGER: Final = "transactional.engine.troubles"
_log: Final = logging.getLogger(LOGGER)


class TroubleLog:
    """Listens to the driver's events and actions; knows whether the topology has a problem, and since when."""

    def __init__(self, topology_id: str) -> None:
        self._topology_id = topology_id
        self._since_ms = self._failures = self._txid = 0
        self._may_be_inherited = True  # from an earlier run, as recorded in the store

    def note_action(self, action: Action, at_ms: int) -> None:
        """Process a performed action."""
        match action:
            case RecordFailure(attempt, phase, reason):
                self._since_ms = self._since_ms if self._failures else at_ms
                self._failures += 1
                self._txid = max(self._txid, attempt.txid)
                first_line = next(iter(reason.splitlines()), "")
                text = "topology %r: attempt %s failed in %s: %s"
                _log.warning(text, self._topology_id, attempt, phase.value, first_line)
            case RecordCommit(attempt, _) if self._failures and attempt.txid >= self._txid:
                self._end(f"transaction {attempt} is committed", at_ms)

    def is_over(self, event: Event, at_ms: int) -> bool:
        """Process an event; True if it resolves a problem without a transaction commit: there is nothing to commit."""
        if not isinstance(event, BatchPlanned) or event.batch is not None:
            return False
        if self._failures:
            if event.attempt.txid != self._txid:
                return False
            self._end("the source responds, and has nothing new", at_ms)
            return True
        may_be, self._may_be_inherited = self._may_be_inherited, False
        return may_be

    def _end(self, what: str, at_ms: int) -> None:
        _log.warning(
            "topology %r has recovered after %d failed attempts in %d ms: %s",
            self._topology_id,
            self._failures,
            at_ms - self._since_ms,
            what,
        )
        self._since_ms = self._failures = self._txid = 0
