"""Steps of the commit phase on a cluster: executors that die in them, and second copies of their tasks."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from state import DeltaMapState
from state.delta.tables.staging import STAGED_FOLDER, parse_staged_attempt
from tests.contract.states import content
from tests.integration.cluster.slow_steps import EXECUTIONS, expected
from tests.integration.cluster.spark_cluster import Cluster, executor_of, kill_executor
from tests.integration.programs import Program
from tests.integration.signals import Gate, Signals
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.model.attempt import TransactionAttempt

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


def slow_steps(cluster: Cluster, folder: Path, **conf: str) -> Program:
    """Runs the topology whose steps wait."""
    given = [f"spark.{name.replace('_', '.')}={value}" for name, value in conf.items()]
    return Program([sys.executable, "-m", "tests.integration.cluster.slow_steps", cluster.master, *given], folder)


def check_steps(folder: Path) -> dict[TransactionAttempt, int]:
    """The tables are right, and have only what one attempt at each transaction has staged; how many files of each
    attempt are in none."""
    orphans = Counter[TransactionAttempt]()
    for name, values in {"counts": "count long", "seen": "times long"}.items():
        table = DeltaMapState(folder / name, "word string", values)
        assert content(table) == (expected() if name == "counts" else dict.fromkeys(expected(), 3))
        live = set(pa.table(DeltaTable(str(folder / name)).get_add_actions())["path"].to_pylist())
        by_attempt = Counter(parse_staged_attempt(path) for path in live)
        assert len({attempt.txid for attempt in by_attempt if attempt is not None}) == len(by_attempt) == 3
        assert set(by_attempt.values()) == {2}, "a file of each task"
        staged = {f"{STAGED_FOLDER}/{path.name}" for path in (folder / name / STAGED_FOLDER).iterdir()}
        assert live <= staged
        orphans.update(attempt for path in staged - live if (attempt := parse_staged_attempt(path)) is not None)
    return dict(orphans)


@pytest.mark.long("tests/integration/spark/test_steps.py")
def test_an_executor_killed_in_a_step_costs_an_attempt(cluster: Cluster, tmp_path: Path, signals: Signals) -> None:
    gates = [Gate(tmp_path, f"gate-{number}") for number in range(EXECUTIONS)]
    # Spark repeats a task once. Then it gives the job up, and the attempt is repeated.
    with slow_steps(cluster, tmp_path, task_maxFailures="2") as program:
        for number in (0, 1):
            told, worker = signals.receive().split()
            assert told == str(number)
            kill_executor(int(worker))
        assert signals.receive().startswith("2 ")
        for gate in gates:
            gate.open()
        assert program.wait() == 0, program.text
    with closing(SqlCoordinatorStore(f"sqlite:///{tmp_path}/transactional.db")) as store:
        tried = {each.phase: each for each in store.attempts("slow", limit=100) if each.attempt.txid == 2}
    assert set(tried) == {"committed", "failed"}
    assert "the Spark job of step 'seen' of transaction 2" in (tried["failed"].error or "")
    assert tried["failed"].attempt in check_steps(tmp_path), "what was staged by the update before it is nobody's"


@pytest.mark.long("tests/integration/spark/test_steps.py")
def test_a_second_copy_of_a_task_of_a_step_counts_once(cluster: Cluster, tmp_path: Path, signals: Signals) -> None:
    gates = [Gate(tmp_path, f"gate-{number}") for number in range(EXECUTIONS)]
    speculation = {f"speculation_{name}": value for name, value in {"quantile": "0.5", "interval": "50ms"}.items()}
    with slow_steps(cluster, tmp_path, speculation="true", **speculation) as program:
        copies = [signals.receive().split() for _ in range(2)]
        assert [number for number, _ in copies] == ["0", "1"], "the second one while the first waits"
        assert executor_of(int(copies[0][1])) != executor_of(int(copies[1][1]))
        for gate in gates:
            gate.open()
        assert program.wait() == 0, program.text
    with closing(SqlCoordinatorStore(f"sqlite:///{tmp_path}/transactional.db")) as store:
        assert {each.phase for each in store.attempts("slow", limit=100)} == {"committed"}
    check_steps(tmp_path)
