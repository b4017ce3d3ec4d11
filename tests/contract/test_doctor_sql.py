"""The doctor over states in SQLite and PostgreSQL: what a start would be refused for, it says before."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from spouts.memory import OpaqueMemoryTransactionalSpout
from state.sql.state import SqlMapState
from tests.contract.storages import Storage
from transactional.core.ports.examining import Diagnosis, Problem
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.errors import OperatingError, StoreMismatch, TransactionalError
from transactional.operations.doctor.examine import examine, unexamined
from transactional.operations.doctor.repairs import repair
from transactional.operations.launch.running import run_topology
from transactional.runtime.engine.history.journal import JournalWriter
from transactional.topology.builder import TransactionalTopologyBuilder
from transactional.topology.topology import Topology
from verifier.checker import verify
from verifier.sql_tables import CheckedSqlTable

WORDS = ["cat", "dog", "cat", "owl"]
TABLES = ("count", "other")


@dataclass
class Patient:
    """A topology that has run, its states in one database."""

    folder: Path
    database: str

    @property
    def url(self) -> str:
        return f"sqlite:///{self.folder}/coordinator.db"

    def topology(self, words: list[str] = WORDS) -> Topology:
        spout = OpaqueMemoryTransactionalSpout([[(word,) for word in words]], "word string", take=1)
        builder = TransactionalTopologyBuilder("words", "spout", spout)
        for name in TABLES:
            state = SqlMapState(self.database, name, "word")
            builder.set_committer_bolt(name, state.count()).fields_grouping("spout", "word")
        return builder.build()

    def run(self, words: list[str] = WORDS) -> None:
        with closing(JournalWriter(self.folder / "journal")) as journal:
            config = {"stop_when_drained": True}
            run_topology(self.topology(words), store=self.url, master="none", config=config, observers=[journal])

    def examine(self) -> list[Diagnosis]:
        with closing(SqlCoordinatorStore(self.url)) as store:
            return examine(self.topology(), store, self.url)

    def change(self, *statements: str, store: bool = False) -> None:
        engine = create_engine(self.url if store else self.database.replace("postgresql:", "postgresql+psycopg:"))
        with engine.begin() as connection:
            for statement in statements:
                connection.execute(text(statement))
        engine.dispose()


@pytest.fixture
def patient(database: Storage, tmp_path: Path) -> Patient:
    patient = Patient(tmp_path, database.url or "")
    patient.run()
    return patient


def changed(*statements: str, store: bool = False) -> Callable[[Patient], None]:
    return lambda patient: patient.change(*statements, store=store)


def put_back(patient: Patient) -> None:
    """`other` is as it was one transaction ago."""
    with closing(SqlCoordinatorStore(patient.url)) as store:
        [attempt] = [a.attempt.attempt_id for a in store.attempts("words", limit=9) if a.attempt.txid == 3]
    where = "WHERE table_name = 'other'"
    patient.change(
        f"UPDATE transactional_states SET attempt_id = {attempt} {where}", "DELETE FROM other WHERE txid = 4"
    )


def put_store_back(patient: Patient) -> None:
    patient.change(
        "UPDATE transactional_topologies SET committed_txid = 2, committed_attempt_id = "
        "(SELECT attempt_id FROM transactional_attempts WHERE txid = 2)",
        "UPDATE transactional_attempts SET phase = 'failed' WHERE txid > 2",
        store=True,
    )


def wipe_store(patient: Patient) -> None:
    for file in patient.folder.glob("coordinator.db*"):
        file.unlink()


STATES = "transactional_states"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("hurt", "expected"),
    [
        (lambda _: None, []),
        (put_back, [(Problem.TABLE_BEHIND, "other")]),
        (put_store_back, [(Problem.TABLE_AHEAD, "count"), (Problem.TABLE_AHEAD, "other")]),
        (wipe_store, [(Problem.STORE_WIPED, "count"), (Problem.STORE_WIPED, "other")]),
        (changed(f"UPDATE {STATES} SET attempt_id = 99 WHERE table_name = 'other'"), [(Problem.STORE_WIPED, "other")]),
        (
            changed(f"UPDATE {STATES} SET owner = 'birds/other' WHERE table_name = 'other'"),
            [(Problem.TABLE_FOREIGN, "other")],
        ),
        (
            changed("UPDATE transactional_state_stores SET store_id = 'another' WHERE table_name = 'other'"),
            [(Problem.STORE_WIPED, "other")],
        ),
        (changed("DROP TABLE count"), [(Problem.TABLE_FOREIGN, "count")]),
        (changed(f"DELETE FROM {STATES} WHERE table_name = 'count'"), [(Problem.TABLE_FOREIGN, "count")]),
        (changed("ALTER TABLE count ADD COLUMN colour TEXT"), [(Problem.TABLE_FOREIGN, "count")]),
        (
            changed("DROP TABLE count", "DROP TABLE other", f"DROP TABLE {STATES}"),
            [(Problem.TABLE_MISSING, "count"), (Problem.TABLE_MISSING, "other")],
        ),
    ],
)
def test_what_a_start_is_refused_for_is_found(
    patient: Patient, hurt: Callable[[Patient], None], expected: list[tuple[Problem, str]]
) -> None:
    hurt(patient)
    assert [(each.problem, each.component) for each in patient.examine()] == expected
    assert unexamined(patient.topology()) == []
    if expected:
        with pytest.raises(TransactionalError):
            patient.run([*WORDS, "late"])


def test_a_store_that_was_lost_takes_over_from_the_tables_by_a_journal(patient: Patient) -> None:
    wipe_store(patient)
    for _ in range(4):
        with pytest.raises(StoreMismatch, match="which the store does not know"):
            patient.run()
    with closing(SqlCoordinatorStore(patient.url)) as store:
        found = examine(patient.topology(), store)
        done = repair(patient.topology(), store, found, patient.folder / "journal")
    assert done == ["the store of topology 'words' says again that transaction 4 is committed"]
    assert patient.examine() == []
    patient.run([*WORDS, "late"])
    tables = [CheckedSqlTable(name, patient.database, name, counts="count") for name in TABLES]
    assert verify(patient.url, "words", tables).findings == ()


def test_examining_makes_no_file(tmp_path: Path) -> None:
    patient = Patient(tmp_path, f"sqlite:///{tmp_path}/none.db")
    assert patient.examine() == []
    assert list(tmp_path.glob("none.db*")) == []


def test_a_database_that_is_away_is_reported() -> None:
    state = SqlMapState("postgresql://nobody@127.0.0.1:1/none", "count", "word string", "count long", timeout_ms=1_000)
    with pytest.raises(OperatingError, match="the database does not respond"):
        state.parts.examination.examine("words", "count")
