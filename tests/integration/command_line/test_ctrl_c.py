"""Ctrl-C, as a terminal sends it: nothing new starts, the exit code is 0, and the next run goes on from there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.command_line.many_words import TRANSACTIONS, expected
from tests.integration.programs import CLI, Program
from tests.integration.tables import counts
from tests.unit.command_line import RUN, Command
from transactional.core.machine.protocol import PlanBatch, RecordAttempt, StartCommit, StartProcessing, StopRequested
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.runtime.engine.history.journal import RunStarted, read_journal

COMMITTED = r"transaction (\d+):\d+ committed"
SUMMARY = r"(\d+) transactions committed, the last is (\d+); 0 attempts failed"
TARGET = ("tests.integration.command_line.many_words:build", "--max-pending", "3", "--journal", "journal")


def check_nothing_started_after_the_stop(folder: Path) -> None:
    """After the request to stop the coordinator has not asked for anything but the end of what it had begun."""
    events = [(event, actions) for _, event, actions in read_journal(folder / "journal")]
    [stop] = [number for number, (event, _) in enumerate(events) if isinstance(event, StopRequested)]
    after = [action for _, actions in events[stop:] for action in actions]
    assert not [
        action for action in after if isinstance(action, PlanBatch | RecordAttempt | StartProcessing | StartCommit)
    ]
    assert sum(isinstance(event, RunStarted) for event, _ in events) == 1


def check_lease_is_free(folder: Path) -> None:
    store = SqlCoordinatorStore(f"sqlite:///{folder}/transactional.db")
    [status] = store.status("many-words")
    store.close()
    assert status.owner is None


@pytest.mark.parametrize("master", ["none", pytest.param("local[2]", marks=pytest.mark.spark)])
def test_an_interrupted_run_ends_well_and_the_next_one_goes_on(master: str, tmp_path: Path, command: Command) -> None:
    with Program([*CLI, "run", *TARGET, "--master", master], tmp_path) as program:
        for _ in range(3):
            program.await_line(COMMITTED)
        program.interrupt()
        last = program.await_line(SUMMARY)
        assert program.wait() == 0, program.text
    assert 3 <= int(last[2]) < TRANSACTIONS
    assert "Traceback" not in program.text
    check_nothing_started_after_the_stop(tmp_path)
    check_lease_is_free(tmp_path)

    second = command(*RUN, *TARGET)

    assert second.out.splitlines()[-1] == (
        f"{TRANSACTIONS - int(last[2])} transactions committed, the last is {TRANSACTIONS}; 0 attempts failed"
    )
    assert counts(tmp_path / "count", "word") == expected()
