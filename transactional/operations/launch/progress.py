"""`RunStatus`: how a run in this process is doing; and the observer that knows it."""

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
    """How a run is doing. `state` is `starting`, `standing by`, `running`, `failing` (its last attempt has failed, and
    is retried), or how it has ended: `drained`, `stopped`, `killed`, `failed`.

    `committed_txid` is the last transaction committed, by whichever run; this one has committed `transactions`, of so
    many `rows`, the last at `committed_at_ms`. `lag` is what the source held beyond it. `error` is what fails, or what
    has ended it.
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
        at = "" if self.committed_txid is None else f", at transaction {self.committed_txid}"
        done = f"; {self.transactions} of this run, {self.rows:,} rows" if self.transactions else ""
        lag = "" if self.lag is None else f", lag {self.lag:,}"
        return f"{self.topology_id}: {self.state}{at}{done}{lag}" + (f"; {self.error}" if self.error else "")


class RunProgress:
    """An observer, whose `status` other threads may look at. `begun` is set when the run leads, or stands by."""

    def __init__(self, topology_id: str) -> None:
        self.status = RunStatus(topology_id)
        self.begun = threading.Event()

    def __call__(self, at_ms: int, event: Event, actions: Sequence[Action]) -> None:
        """Note what fails."""
        for action in actions:
            if isinstance(action, RecordFailure):
                self._set(state=FAILING, error=first_line(action.reason))

    def notice(self, at_ms: int, notice: Notice) -> None:
        """Note the begin, the end, and what is committed between them."""
        status = self.status
        match notice:
            case StandingBy():
                self._set(state=STANDING_BY)
                self.begun.set()
            case Leading(lease):
                self._set(state=RUNNING, committed_txid=lease.progress.committed_txid)
                self.begun.set()
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
    """An error without its traceback."""
    return text.partition("\n")[0]
