"""What observers are told in tests that need no run."""

from __future__ import annotations

from transactional.core.store import Lease
from transactional.core.store.history import RunAbout, RunEnd, RunRecord
from transactional.core.store.progress import Progress
from transactional.model.attempt import AttemptId, Epoch, TransactionAttempt, TxId


def tried(txid: int, attempt_id: int) -> TransactionAttempt:
    """An attempt."""
    return TransactionAttempt(TxId(txid), AttemptId(attempt_id))


def lease(epoch: int = 2, *, committed: int = 0) -> Lease:
    """The lease of a run."""
    progress = Progress(TxId(committed), attempt_id=AttemptId(committed))
    return Lease("words", Epoch(epoch), "host:7:ab", progress, AttemptId(committed + 1))


def run_before(end: RunEnd | None = None) -> RunRecord:
    """The run before it."""
    return RunRecord(Epoch(1), "host:6:cd", None, RunAbout(), 1_000, TxId(0), end=end)
