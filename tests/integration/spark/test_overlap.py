"""Processing phases of several transactions overlap, commit phases never do: told by the store and by the journal."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spouts import OpaqueMemoryTransactionalSpout
from state import DeltaMapState
from tests.integration.programs import CLI, finished
from tests.integration.signals import Gate, Signals
from tests.integration.spark.bolts import Waits
from tests.integration.tables import counts
from transactional import Topology, TopologyConfig, TransactionalTopologyBuilder, TxId, run_topology
from transactional.core.machine.protocol import (
    CommitSucceeded,
    ProcessingSucceeded,
    RecordCommit,
    StartCommit,
    StartProcessing,
)
from transactional.core.store import AttemptRecord
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.runtime.engine.history.journal import JournalWriter, read_journal

pytestmark = pytest.mark.spark

TRANSACTIONS = 6


def topology(folder: Path, signals: Signals, gate: Gate) -> Topology:
    """Six transactions of two words each; every processing phase is one task."""
    spout = OpaqueMemoryTransactionalSpout([[("cat",), ("dog",)] * TRANSACTIONS], fields="word string", take=2)
    builder = TransactionalTopologyBuilder("words", "words", spout)
    builder.set_bolt("waits", Waits(signals.pipe, gate.path)).shuffle_grouping("words")
    builder.set_committer_bolt("count", DeltaMapState(folder / "count", key="word").count()).shuffle_grouping("waits")
    return builder.build()


@pytest.fixture
def ran(tmp_path: Path, spark: SparkSession, signals: Signals, gate: Gate) -> Path:
    """The folder of a run in which the processing phases of two transactions had to meet."""
    journal = JournalWriter(tmp_path / "journal")
    with ThreadPoolExecutor(1) as threads:
        run = threads.submit(
            run_topology,
            topology(tmp_path, signals, gate),
            store=f"sqlite:///{tmp_path}/store.db",
            config=TopologyConfig(max_spout_pending=3, stop_when_drained=True, attempts_max=3),
            session=spark,
            observers=[journal],
        )
        # Neither goes on before the gate is open, so both must run at once.
        first, second = signals.receive(), signals.receive()
        gate.open()
        summary = run.result(60)
    journal.close()
    assert first != second
    assert (summary.transactions, summary.failures) == (TRANSACTIONS, 0)
    assert counts(tmp_path / "count", "word") == {"cat": TRANSACTIONS, "dog": TRANSACTIONS}
    return tmp_path


def at(time_ms: int | None) -> int:
    """A time that has to be there."""
    assert time_ms is not None
    return time_ms


def attempts(folder: Path) -> list[AttemptRecord]:
    store = SqlCoordinatorStore(f"sqlite:///{folder}/store.db")
    records = store.attempts("words", limit=100)[::-1]
    store.close()
    return records


def check_store(folder: Path) -> None:
    """Processing overlaps; the next transaction's commit phase begins only when the one before is committed."""
    records = attempts(folder)
    assert [record.attempt.txid for record in records] == list(range(1, TRANSACTIONS + 1))
    assert records[1].planned_at_ms < at(records[0].processed_at_ms)
    assert records[0].planned_at_ms < at(records[1].processed_at_ms)
    for one, next_one in pairwise(records):
        assert at(one.commit_started_at_ms) <= at(one.committed_at_ms) <= at(next_one.commit_started_at_ms)


def check_listing(folder: Path) -> None:
    """`transactional txns` shows the same attempts, newest first."""
    shown = finished([*CLI, "txns", "words", "--store", f"sqlite:///{folder}/store.db"], folder).text
    cells = [line.replace("│", " ").split() for line in shown.splitlines()]
    rows = [row for row in cells if len(row) > 2 and row[2] == "committed"]
    listed = [(record.attempt.txid, record.attempt.attempt_id) for record in attempts(folder)[::-1]]
    assert [(int(row[0]), int(row[1])) for row in rows] == listed


def check_journal(folder: Path) -> None:
    """The same by the order of events; a fresh coordinator decides everything again as it was decided."""
    processing: set[TxId] = set()
    committing: set[TxId] = set()
    most = 0
    for _, event, actions in read_journal(folder / "journal"):
        if isinstance(event, ProcessingSucceeded):
            processing.remove(event.attempt.txid)
        for action in actions:
            if isinstance(action, StartProcessing):
                processing.add(action.attempt.txid)
            elif isinstance(action, StartCommit):
                assert not committing, "two commit phases at once"
                committing.add(action.attempt.txid)
            elif isinstance(action, RecordCommit):
                assert isinstance(event, CommitSucceeded)
                committing.remove(action.attempt.txid)
        most = max(most, len(processing))
    assert 2 <= most <= 3
    replayed = finished([sys.executable, "-m", "transactional.runtime.engine.history.replay", "journal"], folder).lines[
        -1
    ]
    assert replayed.endswith("events, every action the same")


def test_processing_overlaps_and_commits_are_one_after_the_other(ran: Path) -> None:
    check_store(ran)
    check_listing(ran)
    check_journal(ran)
