"""The first example, run as a user runs it: `make run` twice, and through the command line without Spark."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from state.store.sql_store import SqlCoordinatorStore
from tests.integration.programs import CLI, Program, finished
from tests.integration.tables import rows
from transactional.store import TopologyStatus

COMMITTED = r"transaction (\d+):\d+ committed: (\d+) rows"


def status(folder: Path) -> TopologyStatus:
    store = SqlCoordinatorStore(f"sqlite:///{folder}/store.db")
    [found] = store.status("global-count")
    store.close()
    return found


def committed(program: Program) -> list[str]:
    return [line for line in program.lines if " committed: " in line]


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_the_second_run_counts_nothing_again(tmp_path: Path) -> None:
    data = tmp_path / "data" / "global-count"
    command = [sys.executable, "-m", "examples.transactional_global_count"]

    first = finished(command, tmp_path, timeout_s=120)
    assert first.lines[-1] == "global count: 19 of 19 tuples, from data/global-count/count"
    assert len(committed(first)) == 3
    assert "Traceback" not in first.text
    after_first = status(data)
    assert after_first.committed_txid == 3

    second = finished(command, tmp_path, timeout_s=120)
    assert second.lines[-1] == first.lines[-1]
    assert committed(second) == []
    after_second = status(data)
    assert after_second.committed_txid == 3
    assert after_second.epoch == after_first.epoch + 1
    assert after_second.attempt_id > after_first.attempt_id
    assert rows(data / "count", "count", "txid") == [(19, 3)]


def test_the_command_line_runs_it_without_spark(tmp_path: Path) -> None:
    command = [*CLI, "run", "examples.transactional_global_count:build", "--master", "none", "--until-drained"]

    first = finished(command, tmp_path)
    assert first.lines[-1] == "3 transactions committed, the last is 3; 0 attempts failed"
    second = finished(command, tmp_path)
    assert second.lines == ["0 transactions committed, the last is 3; 0 attempts failed"]

    assert rows(tmp_path / "data" / "global-count" / "count", "count", "txid") == [(19, 3)]
    assert "global-count" in finished([*CLI, "status"], tmp_path).text
    shown = finished([*CLI, "txns", "global-count"], tmp_path).text
    assert shown.count("committed") == 3 + 1, "three attempts, and the column's name"
