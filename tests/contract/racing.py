"""A coordinator that takes the topology from whoever has it, for races of threads and processes.

`python -m tests.contract.racing URL TXIDS` runs one in a process of its own.
"""

from __future__ import annotations

import sys

from tests.contract.storages import (
    TOPOLOGY,
    Store,
    acquire,
    batch_of,
    read,
    record_commit,
    record_of,
    tried,
    wait_until,
)
from transactional.core.store import Lease
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.errors import Fenced
from transactional.model.attempt import AttemptId

TAKE_OVER_AFTER = 3
"""Transactions that a coordinator leaves to its successor before it takes over again: else none would get anywhere."""


def commit_until(store: Store, txids: int) -> list[int]:
    """Commit transactions up to `txids`, taking over again and again; the txids that this caller committed.

    All that race share one owner, so each may take the lease from the others at any moment.
    """
    mine: list[int] = []
    while True:
        committed = 0
        try:
            lease = acquire(store, "all of them")
            committed = lease.progress.committed_txid
            if committed >= txids:
                return mine
            _commit_some(store, lease, txids, mine)
        except Fenced:
            _wait_for(store, min(txids, committed + TAKE_OVER_AFTER))


def _commit_some(store: Store, lease: Lease, txids: int, mine: list[int]) -> None:
    attempt_id = lease.fence_id
    for txid in range(lease.progress.committed_txid + 1, txids + 1):
        attempt_id = AttemptId(attempt_id + 1)
        attempt, batch = tried(txid, attempt_id), batch_of(10 * txid)
        store.record_attempt(lease, record_of(attempt, batch), forget_later=True)
        store.record_processed(lease, attempt, read(batch), at_ms=2)
        record_commit(store, lease, attempt, read(batch))
        mine.append(txid)


def _wait_for(store: Store, txid: int) -> None:
    wait_until(lambda: store.status(TOPOLOGY)[0].committed_txid >= txid)


def main(url: str, txids: str) -> None:
    """Race, then say which transactions were committed here."""
    store = SqlCoordinatorStore(url, timeout_ms=30_000)
    sys.stdout.write(" ".join(map(str, commit_until(store, int(txids)))))
    store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
