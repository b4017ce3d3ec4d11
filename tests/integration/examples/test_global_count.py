"""The first example, run as a user runs it, then once more in this process: `make run`, and without Spark."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from examples import transactional_global_count
from tests.integration.programs import finished
from tests.integration.tables import rows
from tests.unit.command_line import Command
from transactional.core.store import TopologyStatus
from transactional.core.store.sql.sql_store import SqlCoordinatorStore


def status(folder: Path) -> TopologyStatus:
    store = SqlCoordinatorStore(f"sqlite:///{folder}/store.db")
    [found] = store.status("global-count")
    store.close()
    return found


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_the_second_run_counts_nothing_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data" / "global-count"
    first = finished([sys.executable, "-m", "examples.transactional_global_count"], tmp_path)
    assert first.lines[-1] == "global count: 19 of 19 tuples, from data/global-count/count"
    assert len([line for line in first.lines if " committed: " in line]) == 3
    assert "Traceback" not in first.text
    after_first = status(data)
    assert after_first.committed_txid == 3

    monkeypatch.chdir(tmp_path)
    assert transactional_global_count.main() == 19
    assert capsys.readouterr().out.splitlines() == first.lines[-1:]
    after_second = status(data)
    assert after_second.committed_txid == 3
    assert after_second.epoch == after_first.epoch + 1
    assert after_second.attempt_id > after_first.attempt_id
    assert rows(data / "count", "count", "txid") == [(19, 3)]


def test_the_command_line_runs_it_without_spark(tmp_path: Path, command: Command) -> None:
    run = ["run", "examples.transactional_global_count:build", "--master", "none", "--until-drained"]

    for committed in (3, 0):
        done = command(*run)
        assert done.code == 0
        assert done.out.splitlines()[-1] == f"{committed} transactions committed, the last is 3; 0 attempts failed"

    assert rows(tmp_path / "data" / "global-count" / "count", "count", "txid") == [(19, 3)]
    assert "global-count" in command("status").out
    shown = command("txns", "global-count").out
    assert shown.count("committed") == 3 + 1, "three attempts, and the column's name"
