"""A topology with two tables, whose process kills itself at a given point of the second transaction's commit phase.

`python -m tests.integration.faults.dying POINT`, in the folder of its tables; `run` without a point lives.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from spouts import OpaqueMemoryTransactionalSpout
from state import DeltaMapState
from transactional import Topology, TopologyConfig, TopologyDriver, TransactionalTopologyBuilder, TransactionAttempt
from transactional.core.ports import Partials
from transactional.core.store import Lease
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.model.batch import BatchMetadata
from transactional.runtime.executors.local import LocalExecutor

WORDS = [[("cat",), ("dog",), ("cat",), ("bird",), ("cat",), ("dog",)], [("cat",), ("fish",)]]
EXPECTED = {"cat": 4, "dog": 2, "bird": 1, "fish": 1}
POINTS = [f"{when} the {what}" for what in ("first table", "second table", "store") for when in ("before", "after")]


@contextmanager
def perilous(what: str, attempt: TransactionAttempt) -> Iterator[None]:
    """Something that the process does not survive, if its point is before or after it."""
    for when in ("before", "after"):
        if attempt.txid == 2 and sys.argv[1:] == [f"{when} the {what}"]:
            os.kill(os.getpid(), signal.SIGKILL)
        if when == "before":
            yield


class PerilousState(DeltaMapState):
    """A real state."""

    def merge(self, attempt: TransactionAttempt, partials: Partials) -> None:
        with perilous(f"{Path(self.location.name).name} table", attempt):
            super().merge(attempt, partials)


class PerilousStore(SqlCoordinatorStore):
    """A real store."""

    def record_commit(self, lease: Lease, attempt: TransactionAttempt, batch: BatchMetadata, **times: Any) -> None:
        with perilous("store", attempt):
            super().record_commit(lease, attempt, batch, **times)


def build(folder: Path, *, take: int) -> Topology:
    """Counts words, twice."""
    spout = OpaqueMemoryTransactionalSpout(WORDS, fields="word string", take=take)
    builder = TransactionalTopologyBuilder("dying", "words", spout, 2)
    for name in ("first", "second"):
        builder.set_committer_bolt(name, PerilousState(folder / name, key="word").count()).shuffle_grouping("words")
    return builder.build()


def run(folder: Path, point: str = "") -> None:
    """Run until the source is drained, or the end."""
    # A replay holds other words than what the dead run may have written.
    topology = build(folder, take=2 if point else 1)
    config = TopologyConfig(max_spout_pending=2, stop_when_drained=True, tick_ms=10)
    with closing(PerilousStore(f"sqlite:///{folder}/store.db")) as store:
        TopologyDriver(topology, store, LocalExecutor(topology), config).run()


if __name__ == "__main__":
    run(Path.cwd(), sys.argv[1])
