"""A coordinator that is stopped (SIGSTOP) in the middle of a transaction commit: between its check and the write's end.

`python -m tests.contract.stopped_leader URL` stops itself; told to go on, it says how the write and a second try of it
went: `done`, or the name of the error.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, UpdateBase

from tests.contract.storages import acquire, batch_of, read, record_attempt, record_commit
from transactional.core.store import Lease
from transactional.core.store.databases.quick import change
from transactional.core.store.sql import sql_store
from transactional.core.store.sql.schema import topologies
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.errors import TransactionalError
from transactional.model.attempt import TransactionAttempt

LEASE_MS = 2_000


class StopOnce:
    """Executes statements, and stops the process after the first that changes the topology's row."""

    def __init__(self) -> None:
        self.has_stopped = False

    def change(self, connection: Connection, statement: UpdateBase, parameters: Mapping[str, Any]) -> int:
        rows = change(connection, statement, parameters)
        if statement.table is topologies and not self.has_stopped:
            self.has_stopped = True
            os.kill(os.getpid(), signal.SIGSTOP)
        return rows


def outcome(store: SqlCoordinatorStore, lease: Lease, attempt: TransactionAttempt) -> str:
    try:
        record_commit(store, lease, attempt, read(batch_of(0)))
    except TransactionalError as error:
        return type(error).__name__
    return "done"


def main(url: str) -> None:
    # Far longer than the lease: the store itself has to see to it that nothing is held up for so long.
    store = SqlCoordinatorStore(url, timeout_ms=60_000)
    lease = acquire(store, "stopped", lease_ms=LEASE_MS)
    attempt = record_attempt(store, lease, 1, 2)
    setattr(sql_store, "change", StopOnce().change)  # noqa: B010
    sys.stdout.write(" ".join(outcome(store, lease, attempt) for _ in range(2)))
    store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
