"""`RunStatus`, the state of a run in this process, and the observer that keeps it up to date."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

from transactional.core.machine.protocol import Action, Event, RecordFailure
from transactional.model.attempt import TxId
from transactional.runtime.engine.history.observing import Committed, Ended, Leading, Notice, Recovered, StandingBy

STARTING, STANDING_BY, RUNNING, FAILING = "starting", "standing by", "running", "failing"


@dataclass(frozen=True, slots=True)
class RunStatus:
    """The state of a run. `state` is `starting`, `standing by`, `running`, `failing` (the last attempt has failed, and
    is retried), or the end: `drained`, `stopped`, `killed`, `failed`.

    `committed_txid` is the last transaction committed, by whichever run. This run has committed `transactions` with
    `rows` records, the last one at `committed_at_ms`. `lag` is the number of records that the source held beyond it.
    `error` is what fails, or what has ended the run.
    """

    topology_id: str
    state: str = STARTING
    committed_txid: TxId | None = None
    transactions: int = 0
    rows: int = 0
    lag: int | None = None
    committed_at_ms: int | None = None
    error: str | None = None

    def __str__(self) -> str:
        position = "" if self.committed_txid is None else f", at transaction {self.committed_txid}"
        own_commits = f"; {self.transactions} of this run, {self.rows:,} rows" if self.transactions else ""
        lag = "" if self.lag is None else f", lag {self.lag:,}"
        return f"{self.topology_id}: {self.state}{position}{own_commits}{lag}" + (
            f"; {self.error}" if self.error else ""
        )


class RunProgress:
    """An observer whose `status` other threads may read. `has_begun` is set when the run leads, or stands by."""

    def __init__(self, topology_id: str) -> None:
        self.status = RunStatus(topology_id)
        self.has_begun = threading.Event()

    def __call__(self, at_ms: int, event: Event, actions: Sequence[Action]) -> None:
        """Record the error of a failed attempt in the status."""
        for action in actions:
            if isinstance(action, RecordFailure):
                self._set(state=FAILING, error=first_line(action.reason))

    def notice(self, at_ms: int, notice: Notice) -> None:
        """Record the beginning and the end of the run, and each commit, in the status."""
        status = self.status
        match notice:
            case StandingBy():
                self._set(state=STANDING_BY)
                self.has_begun.set()
            case Leading(lease):
                self._set(state=RUNNING, committed_txid=lease.progress.committed_txid)
                self.has_begun.set()
            case Committed(flight, batch, details):
                self._set(
                    state=RUNNING,
                    error=None,
                    committed_txid=flight.attempt.txid,
                    transactions=status.transactions + 1,
                    rows=status.rows + (batch.record_count or 0),
                    lag=details.get("lag"),
                    committed_at_ms=at_ms,
                )
            case Recovered():
                self._set(state=RUNNING, error=None)
            case Ended(end):
                error = None if end.code is None else f"{end.code}: {first_line(end.reason or '')}"
                self._set(state=end.how.value, error=error)

    def _set(self, **changed: object) -> None:
        self.status = replace(self.status, **changed)  # type: ignore[arg-type]


def first_line(text: str) -> str:
    """Return an error without its traceback."""
    return text.partition("\n")[0]
