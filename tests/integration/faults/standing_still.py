"""A coordinator that stops itself (SIGSTOP) at a given point of its second transaction, or at its start.

`python -m tests.integration.faults.standing_still POINT`, in the folder of its tables; "" is no point. The variables:
STORE is the URL of its store, SPOUT is `opaque` or `transactional`, TAKE says how many rows of a partition a batch has.
It stands by until it may lead.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, cast

from sqlalchemy import Connection, UpdateBase

from spouts import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from state import DeltaMapState
from state.delta.log import files as delta_files
from state.delta.upkeep import merged_upkeep as delta_merged
from state.delta.write import change as delta_small
from state.fence import TableWrite
from transactional import (
    StateKind,
    Topology,
    TopologyConfig,
    TopologyDriver,
    TransactionalTopologyBuilder,
    TransactionAttempt,
)
from transactional.core.machine.protocol import Action, Event
from transactional.core.ports import Processed
from transactional.core.store import Lease
from transactional.core.store.databases.quick import change
from transactional.core.store.progress import Progress
from transactional.core.store.sql import sql_store
from transactional.core.store.sql.schema import topologies
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.errors import TransactionalError
from transactional.model.attempt import AttemptId, TxId
from transactional.model.batch import BatchMetadata
from transactional.runtime.executors.local import LocalExecutor

WORDS = [
    [("cat",), ("dog",), ("bird",), ("owl",), ("cat",), ("dog",)],
    [("cat",), ("fish",), ("owl",), ("cow",), ("cow",), ("cat",)],
]
"""The first two transactions have no word in common, so each leaves a file of its own in a table."""
EXPECTED = {"cat": 4, "dog": 2, "bird": 1, "fish": 1, "owl": 2, "cow": 2}
TXID = TxId(2)
LEASE_MS = 1_000
TABLES = ("first", "second")

FENCING = "between the store's note of the fence and the table's fence"
PLANNING = "while it plans"
PROCESSING = "while it processes"
CHECKED = "between a table's check and its write"
BETWEEN = "between two tables"
WRITTEN = "between the tables and the store"
IN_STORE = "inside the store's write"
COMPACTING = "in the middle of putting files together"
POINTS = (FENCING, PLANNING, PROCESSING, CHECKED, BETWEEN, WRITTEN, IN_STORE, COMPACTING)
LEADING = "as soon as it leads"
"""For the one that takes over: it has the lease and has fenced the tables, and has done nothing yet."""

STANDS_STILL = "stands still"
LEADS = "leads"


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class Points:
    """Stops the process at its point, once; never while another thread is just writing to the store."""

    chosen = ""
    writing = threading.RLock()

    def pass_by(self, point: str) -> None:
        if point != self.chosen:
            return
        with self.writing:
            # Tables are fenced side by side: another thread may have been here meanwhile.
            if point == self.chosen:
                self.chosen = ""
                say(STANDS_STILL)
                os.kill(os.getpid(), signal.SIGSTOP)


POINT = Points()


class StillState(DeltaMapState):
    """A real state."""

    def fence(self, attempt_id: AttemptId) -> None:
        POINT.pass_by(FENCING)
        super().fence(attempt_id)

    def open(self, owner: str, txid_of: Callable[[AttemptId], TxId]) -> None:
        super().open(owner, txid_of)
        table: Any = self.open_table
        apply = table.apply

        def still(write: TableWrite) -> None:
            is_first = self.location.name == TABLES[0]
            if write.attempt.txid == TXID and is_first:
                POINT.pass_by(CHECKED)
            apply(write)
            if write.attempt.txid == TXID and is_first:
                POINT.pass_by(BETWEEN)

        table.apply = still


replace_files = delta_files._commit_replacement


def replace_files_later(*given: Any) -> None:
    """Small files are there as a large one; the Delta commit that says so comes after standing still."""
    POINT.pass_by(COMPACTING)
    replace_files(*given)


class StillStore(SqlCoordinatorStore):
    """A real store."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._write, patched = self._database.writing, cast(Any, self._database)
        patched.writing = self._writing

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with POINT.writing, self._write() as connection:
            yield connection

    def record_commit(self, lease: Lease, attempt: TransactionAttempt, batch: BatchMetadata, **times: Any) -> None:
        if attempt.txid == TXID:
            POINT.pass_by(WRITTEN)
            setattr(sql_store, "change", stand_still_inside)  # noqa: B010
        super().record_commit(lease, attempt, batch, **times)


def stand_still_inside(connection: Connection, statement: UpdateBase, parameters: Mapping[str, Any]) -> int:
    rows = change(connection, statement, parameters)
    if statement.table is topologies:
        POINT.pass_by(IN_STORE)
    return rows


class StillExecutor(LocalExecutor):
    """A real executor."""

    def run(self, attempt: TransactionAttempt, batch: BatchMetadata) -> Processed:
        processed = super().run(attempt, batch)
        if attempt.txid == TXID:
            POINT.pass_by(PROCESSING)
        return processed


class Still:
    """What both spouts have."""

    def plan(self, after: BatchMetadata, *, replay: bool) -> BatchMetadata | None:
        batch: BatchMetadata | None = super().plan(after, replay=replay)  # type: ignore[misc]
        if after.ranges:
            POINT.pass_by(PLANNING)
        return batch


class StillSpout(Still, MemoryTransactionalSpout):
    pass


class OpaqueStillSpout(Still, OpaqueMemoryTransactionalSpout):
    pass


class Begun:
    """An observer that tells from when on it leads."""

    def begin(self, at_ms: int, progress: Progress, config: TopologyConfig, **how: object) -> None:
        say(LEADS)
        POINT.pass_by(LEADING)

    def __call__(self, at_ms: int, event: Event, actions: Sequence[Action]) -> None:
        pass


def build() -> Topology:
    """Counts words, twice."""
    is_opaque = os.environ["SPOUT"] == "opaque"
    spout = (OpaqueStillSpout if is_opaque else StillSpout)(WORDS, fields="word string", take=int(os.environ["TAKE"]))
    builder = TransactionalTopologyBuilder("still", "words", spout, 2)
    kind = StateKind.OPAQUE if is_opaque else StateKind.TRANSACTIONAL
    for name in TABLES:
        builder.set_committer_bolt(name, StillState(name, "word", kind=kind).count()).shuffle_grouping("words")
    return builder.build()


def main(point: str) -> None:
    """Run until the source is drained. Exit code 1, and the error's code, when that is not possible."""
    POINT.chosen = point
    setattr(delta_merged, "COMPACTION_INTERVAL", 2)  # noqa: B010
    setattr(delta_merged, "FILES_MAX", 1)  # noqa: B010
    setattr(delta_files, "_commit_replacement", replace_files_later)  # noqa: B010
    if point == COMPACTING:
        # A small table is one file all the time.
        setattr(delta_small, "REWRITTEN_ROWS_MAX", -1)  # noqa: B010
    topology = build()
    config = TopologyConfig(max_spout_pending=2, stop_when_drained=True, lease_ms=LEASE_MS, retry_pause_ms=10)
    with closing(StillStore(os.environ["STORE"])) as store:
        try:
            driver = TopologyDriver(topology, store, StillExecutor(topology), config, observers=[Begun()], standby=True)
            driver.run()
        except TransactionalError as error:
            say(f"{error.code}: {error}")
            raise SystemExit(1) from None


if __name__ == "__main__":
    main(sys.argv[1])
