"""The same on a Spark standalone cluster, also when an executor is killed in a shuffle, or between the two phases."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from state.delta.state import DeltaMapState
from tests.integration.cluster.killed_executor import MEETS, PARTITIONS, ROWS, TAKE, expected
from tests.integration.cluster.one_driver import OneDriver
from tests.integration.cluster.spark_cluster import kill_executor
from tests.integration.signals import Gate, Signals
from tests.integration.tables import counts, rows
from transactional.core.store.sql.sql_store import SqlCoordinatorStore

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


def await_tasks(signals: Signals, bolt: str) -> list[int]:
    """Wait until both tasks of a bolt wait; the pids of their workers."""
    lines = [signals.receive().split() for _ in range(2)]
    assert [component for component, _ in lines] == [bolt, bolt]
    return [int(pid) for _, pid in lines]


def test_an_executor_killed_in_the_middle_of_a_shuffle_changes_no_count(
    driver: OneDriver, tmp_path: Path, signals: Signals
) -> None:
    gates = {bolt: Gate(tmp_path, f"gate-{bolt}") for bolt in ("tokens", "waits")}
    with driver.running("tests.integration.cluster.killed_executor:run", tmp_path) as lines:
        # Before the exchange a task on each executor, so that each holds a part of what is exchanged.
        await_tasks(signals, "tokens")
        gates["tokens"].open()
        # Behind it both tasks have their tuples. One ends well with them; the other one's executor dies, and with it a
        # part of what the other would have to read again.
        workers = await_tasks(signals, "waits")
        kill_executor(workers[0])
        gates["waits"].open()

    assert re.search(rf"transaction {MEETS}:\d+ failed in processing", "\n".join(lines))
    assert counts(tmp_path / "words", "word") == dict(expected())
    # Each task of the bolt before the exchange has one token in each transaction: no mixture of two executions.
    tokens = rows(tmp_path / "tokens", "batch", "task", "token", "count")
    assert sorted((txid, task) for txid, task, _, _ in tokens) == [
        (txid, task) for txid in range(1, ROWS // TAKE + 1) for task in range(PARTITIONS)
    ]
    assert sum(count for _, _, _, count in tokens) == PARTITIONS * ROWS


@pytest.mark.long("test_an_executor_killed_in_the_middle_of_a_shuffle_changes_no_count")
def test_an_executor_killed_while_the_gear_changes_changes_no_count(
    driver: OneDriver, tmp_path: Path, signals: Signals
) -> None:
    """Others are processed in workers while it dies, and on Spark again afterwards."""
    gate = Gate(tmp_path, "gate-on-spark")
    with driver.running("tests.integration.cluster.killed_executor:run_by_turns", tmp_path):
        killed_in, worker = map(int, signals.receive().split())
        kill_executor(worker)
        gate.open()

    assert counts(tmp_path / "words", "word") == dict(expected())
    tokens = rows(tmp_path / "tokens", "batch", "task", "token", "count")
    assert [(txid, task) for txid, task, _, _ in tokens] == [
        (txid, task) for txid in range(1, 10 * ROWS // TAKE + 1) for task in range(PARTITIONS)
    ]
    assert sum(count for *_, count in tokens) == PARTITIONS * ROWS
    later = Counter(token.split()[0] for txid, _, token, _ in tokens if txid > killed_in)
    assert min(later["Spark"], later["workers"]) > 10, later


@pytest.mark.long("test_an_executor_killed_in_the_middle_of_a_shuffle_changes_no_count")
def test_an_executor_killed_between_processing_and_commit_changes_no_count(
    driver: OneDriver, tmp_path: Path, signals: Signals
) -> None:
    gate = Gate(tmp_path, "gate-processed")
    with driver.running("tests.integration.cluster.killed_executor:run_to_be_processed", tmp_path):
        workers = await_tasks(signals, "tells")
        assert signals.receive() == "processed"
        kill_executor(workers[0])
        gate.open()

    for table in ("merge", "log"):
        found = DeltaMapState(tmp_path / table, key="word").read().to_pylist()
        assert {row["word"]: row["count"] for row in found} == dict(expected()), table
    with closing(SqlCoordinatorStore(f"sqlite:///{tmp_path}/transactional.db")) as store:
        tried = [each for each in store.attempts("processed", limit=100) if each.attempt.txid == 2]
    # What was processed is in the driver: it is committed, and nothing of it is computed again.
    assert [each.phase for each in tried] == ["committed"]
