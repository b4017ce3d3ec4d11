"""`Troubles` notices when attempts begin to fail, and when the problem is resolved."""

from __future__ import annotations

from collections.abc import Callable

from transactional.core.machine.protocol import Action, BatchPlanned, Event, RecordCommit, RecordFailure
from transactional.model.attempt import TxId
from transactional.runtime.engine.history.observing import Recovered


class Troubles:
    """Follows the driver's events and actions. `notify` is called when a problem is resolved."""

    def __init__(self, notify: Callable[[Recovered], None]) -> None:
        self._notify = notify
        self._since_ms = self._failures = 0
        self._txid = TxId(0)
        self._may_be_inherited = True  # the store may have recorded a problem of an earlier run

    def note_action(self, action: Action, at_ms: int) -> None:
        """Take in an action that was performed."""
        match action:
            case RecordFailure(attempt):
                self._since_ms = self._since_ms if self._failures else at_ms
                self._failures += 1
                self._txid = max(self._txid, attempt.txid)
            case RecordCommit(attempt, _) if self._failures and attempt.txid >= self._txid:
                self._end(f"transaction {attempt} is committed", at_ms)

    def resolves(self, event: Event, at_ms: int) -> bool:
        """Take in an event. Returns whether it resolves a problem without a transaction commit, as when there is
        nothing to commit."""
        if not isinstance(event, BatchPlanned) or event.batch is not None:
            return False
        if self._failures:
            if event.attempt.txid != self._txid:
                return False
            self._end("the source responds, and has nothing new", at_ms)
            return True
        may_be, self._may_be_inherited = self._may_be_inherited, False
        return may_be

    def _end(self, how: str, at_ms: int) -> None:
        self._notify(Recovered(self._txid, self._failures, at_ms - self._since_ms, how))
        self._since_ms = self._failures = 0
        self._txid = TxId(0)
