"""Activate, deactivate, drain and kill from other processes, over one SQLite file (Storm rows T2, T32, O4, O5)."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

from tests.integration.command_line.growing_words import WORDS_FILE, expected
from tests.integration.kafka_count import end_lease
from tests.integration.programs import CLI, Program, finished
from tests.integration.tables import counts
from tests.unit.command_line import Command
from transactional.core.machine.protocol import PauseRequested, PlanBatch, RecordCommit, ResumeRequested
from transactional.core.store import TopologyStatus
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.runtime.engine.history.journal import RunStarted, read_journal

ID = "growing-words"
RUN = [*CLI, "run", "tests.integration.command_line.growing_words:build", "--master", "none", "--set", "lease_ms=1500"]
INACTIVE = "no new transactions are issued until the topology is activated"


class Operator:
    """Somebody at another terminal of the same folder."""

    def __init__(self, folder: Path, command: Command) -> None:
        self.folder, self._command = folder, command

    def add(self, *words: str) -> None:
        """Add words to the source."""
        with (self.folder / WORDS_FILE).open("a", encoding="utf-8") as stream:
            stream.writelines(f"{word}\n" for word in words)

    def run(self, *options: str) -> Program:
        return Program([*RUN, "--journal", "journal", *options], self.folder)

    def do(self, *command: str) -> str:
        """Run a command to its end, which has to be a good one; what it printed. The run is another process."""
        done = self._command(*command)
        assert done.code == 0, done
        return done.out

    def status(self) -> TopologyStatus:
        with closing(SqlCoordinatorStore(f"sqlite:///{self.folder}/transactional.db")) as store:
            [status] = store.status(ID)
            return status

    def shown(self) -> list[object]:
        """What `transactional status` tells: name, committed txid, what is desired, and the state."""
        told = json.loads(self.do("status", "--json", ID))
        return [told[name] for name in ("name", "committed_txid", "desired", "state")]


def committed_while_inactive(folder: Path) -> list[list[str]]:
    """For each pause in the journal the names of what was done new in it: planned, or committed later than once."""
    pauses: list[list[str]] = []
    is_paused = False
    for _, event, actions in read_journal(folder / "journal"):
        if isinstance(event, PauseRequested):
            is_paused = True
            pauses.append([])
        elif isinstance(event, ResumeRequested | RunStarted):
            is_paused = False
        elif is_paused:
            pauses[-1] += [type(each).__name__ for each in actions if isinstance(each, PlanBatch | RecordCommit)]
    return pauses


def test_a_topology_is_deactivated_activated_drained_and_killed_from_other_processes(
    tmp_path: Path, command: Command
) -> None:
    operator = Operator(tmp_path, command)
    operator.add("cat", "dog", "cat")

    # Deactivated, it leaves new words alone; a second process with its id is refused; and it dies.
    with operator.run("--name", "deploy-1") as program:
        program.await_line("transaction 3:.* committed")
        assert operator.do("deactivate", ID).startswith(f"{ID} is now inactive: no new transactions until it is act")
        program.await_line(INACTIVE)
        operator.add("owl", "cow")
        assert operator.shown() == ["deploy-1", 3, "inactive", "running"]
        with operator.run("--name", "deploy-2") as second:
            second.await_line(f"TX402: topology '{ID}' is coordinated by ")
            assert second.wait() == 75
        assert operator.status().committed_txid == 3
        program.kill()
    end_lease(tmp_path, ID, "transactional.db")

    # Under another name it resumes, still inactive, until it is activated; and is drained.
    with operator.run("--name", "deploy-2") as program:
        program.await_line(INACTIVE)
        assert operator.shown() == ["deploy-2", 3, "inactive", "running"]
        operator.do("activate", ID)
        program.await_line("transaction 4:.* committed")
        program.await_line("transaction 5:.* committed")
        operator.do("drain", ID)
        assert program.wait() == 0, program.text
        assert program.lines[-1] == "2 transactions committed, the last is 5; 0 attempts failed"
    assert operator.shown() == ["deploy-2", 5, "active", "drained"]

    # A drained topology is active again; killed, it has its time, and ends well too.
    with operator.run() as program:
        operator.add("cat")
        program.await_line("transaction 6:.* committed")
        operator.do("kill", ID, "--wait", "1")
        program.await_line(INACTIVE)
        operator.add("dog")
        assert program.wait() == 0, program.text
        assert program.lines[-1] == "1 transactions committed, the last is 6; 0 attempts failed"

    assert committed_while_inactive(tmp_path) == [[], [], []]
    last = finished([*RUN, "--until-drained"], tmp_path)
    assert last.lines[-1] == "1 transactions committed, the last is 7; 0 attempts failed"
    assert counts(tmp_path / "count", "word") == expected(tmp_path)
