"""What another writer can do to a table by Spark's SQL, and no test that does it by delta-rs can: columns, features,
properties. A running topology stops in one line at each attempt, before anything is written, and so does the next
start; or nothing has happened that it minds, and it goes on.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from state.delta.state import DeltaMapState
from tests.contract.adversary import Adversary
from tests.contract.states import content, counts
from tests.unit.operations.doctor.patients import TABLES, WORDS, Patient
from transactional.core.ports.examining import Problem
from transactional.errors import ConfigError, SchemaMismatch, StoreMismatch
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId

pytestmark = [pytest.mark.spark, pytest.mark.sampled(9)]
OURS = 1_000
"""The attempt that writes the seventh transaction; those of the run before have lower ids."""
COUNTED = {word: WORDS.count(word) for word in WORDS}
PROTOCOL = "has protocol reader .* a state needs reader 1, writer 2, no deletion vectors, no column mapping"
FOREIGN = "which is not the topology's"
MAPPED = (
    "SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name', 'delta.minReaderVersion' = '2', "
    "'delta.minWriterVersion' = '5')"
)


@dataclass(frozen=True)
class Deed:
    """Statements of another writer, on `{t}`; what stops a topology then, and what the doctor finds. Of a table that
    `of` leaves out Spark refuses them."""

    statements: tuple[str, ...]
    stops: type[ConfigError] | type[StoreMismatch] | None = SchemaMismatch
    says: str = PROTOCOL
    found: tuple[Problem, ...] = (Problem.FEATURE_UNREADABLE,)
    of: tuple[str, ...] = TABLES


def altered(*clauses: str, **more: object) -> Deed:
    return Deed(tuple(f"ALTER TABLE {{t}} {clause}" for clause in clauses), **more)  # type: ignore[arg-type]


def is_set(name: str, value: str = "true") -> str:
    return f"SET TBLPROPERTIES ('{name}' = '{value}')"


DEEDS = {
    "names of columns are mapped": altered(MAPPED),
    "a column is renamed": altered(MAPPED, "RENAME COLUMN count TO n"),
    "a column is dropped": altered(MAPPED, "DROP COLUMN count"),
    "deletion vectors": altered(is_set("delta.enableDeletionVectors")),
    "a row is deleted by a vector": Deed(
        (f"ALTER TABLE {{t}} {is_set('delta.enableDeletionVectors')}", "DELETE FROM {t} WHERE word = 'cat'"),
        stops=StoreMismatch,
        says=FOREIGN,
        found=(Problem.FEATURE_UNREADABLE, Problem.FOREIGN_WRITER),
    ),
    "clustering": altered("CLUSTER BY (word)", of=("count",)),
    "types are widened": altered(is_set("delta.enableTypeWidening"), "ALTER COLUMN count TYPE decimal(20,0)"),
    "a change feed": altered(is_set("delta.enableChangeDataFeed")),
    "row tracking": altered(is_set("delta.enableRowTracking")),
    "times in the log": altered(is_set("delta.enableInCommitTimestamps")),
    "checkpoints of another kind": altered(is_set("delta.checkpointPolicy", "v2")),
    "a constraint": altered("ADD CONSTRAINT few CHECK (count < 1000)"),
    "rows are kept for ever": altered(
        is_set("delta.appendOnly"), stops=ConfigError, says="delta.appendOnly: rows of a state change", found=()
    ),
    "attempts are forgotten": altered(
        is_set("delta.setTransactionRetentionDuration", "interval 1 days"),
        stops=ConfigError,
        says="it forgets which attempt wrote the table",
        found=(Problem.RETENTION_SET,),
    ),
    "a foreign row": Deed(
        ("INSERT INTO {t} (word, count, txid) VALUES ('fox', 1, 6)",),
        stops=StoreMismatch,
        says=FOREIGN,
        found=(Problem.FOREIGN_WRITER,),
    ),
    "an earlier version": Deed(
        ("RESTORE TABLE {t} TO VERSION AS OF 4",),
        stops=StoreMismatch,
        says=FOREIGN,
        found=(Problem.TABLE_RESTORED,),
    ),
    "an OPTIMIZE": Deed(("OPTIMIZE {t} ZORDER BY (word)",), stops=None, found=()),
    "a comment": altered("ALTER COLUMN count COMMENT 'how many'", stops=None, found=()),
    "an order of columns": altered("ALTER COLUMN count FIRST", stops=None, found=()),
}
CASES = [pytest.param(name, table, id=f"{name}, {table}") for name, deed in DEEDS.items() for table in deed.of]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Patient:
    patient = Patient(tmp_path_factory.mktemp("healthy") / "patient")
    patient.folder.mkdir()
    patient.run()
    return patient


@pytest.fixture(scope="module")
def struck(
    healthy: Patient, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], Path]:
    """The folder of a table to which somebody has done something, by deed and table: a copy, struck once."""
    folder, known = tmp_path_factory.mktemp("struck"), dict[tuple[str, str], Path]()

    def strike(deed: str, table: str) -> Path:
        if (deed, table) not in known:
            place = known[deed, table] = folder / str(len(known))
            shutil.copytree(healthy.folder / table, place)
            for statement in DEEDS[deed].statements:
                spark.sql(statement.format(t=f"delta.`{place}`"))
        return known[deed, table]

    return strike


@pytest.fixture
def patient(healthy: Patient, tmp_path: Path) -> Patient:
    return healthy.copied(tmp_path / "patient")


def log_of(table: Path) -> list[str]:
    return sorted(path.name for path in (table / "_delta_log").glob("*.json"))


def counting(patient: Patient, table: str) -> DeltaMapState:
    """A table of the topology that is about to write its seventh transaction."""
    layout = dict(zip(TABLES, ("merge", "log"), strict=True))[table]
    state = DeltaMapState(patient.folder / table, "word string", "count long", layout=layout)
    state.open(f"words/{table}", lambda attempt_id: TxId(7 if attempt_id >= OURS else 6))
    state.version()
    return state


def writes(state: DeltaMapState, attempt_id: int) -> None:
    state.merge(TransactionAttempt(TxId(7), AttemptId(attempt_id)), counts({"cat": 1}))


@pytest.mark.parametrize("moment", ["between two transactions", "right before a Delta commit"])
@pytest.mark.parametrize(("name", "table"), CASES)
def test_a_running_topology(
    name: str,
    table: str,
    moment: str,
    patient: Patient,
    struck: Callable[[str, str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    deed, place, there = DEEDS[name], patient.folder / table, struck(name, table)
    state = counting(patient, table)
    adversary = Adversary(monkeypatch)

    def strike() -> None:
        shutil.copytree(there, place, dirs_exist_ok=True)

    if moment == "between two transactions":
        strike()
    else:
        adversary.lies_in_wait(strike)
    if deed.stops is None:
        writes(state, OURS)
        assert content(state) == {**COUNTED, "cat": COUNTED["cat"] + 1}
        return
    for attempt_id in (OURS, OURS + 1):
        with pytest.raises(deed.stops, match=deed.says) as stopped:
            writes(state, attempt_id)
        assert "\n" not in str(stopped.value)
    assert log_of(place) == log_of(there), "nothing is built on it"


@pytest.mark.parametrize(("name", "table"), CASES)
def test_a_start_and_the_doctor(name: str, table: str, patient: Patient, struck: Callable[[str, str], Path]) -> None:
    deed, place = DEEDS[name], patient.folder / table
    shutil.copytree(struck(name, table), place, dirs_exist_ok=True)
    left = log_of(place)
    found = [problem for problem, component, _ in patient.problems() if component == table]
    assert tuple(found) == deed.found
    if deed.stops is None:
        patient.run([*WORDS, "late"])
        patient.assert_right([*WORDS, "late"])
        return
    with pytest.raises((deed.stops, SchemaMismatch)) as refused:
        patient.run([*WORDS, "late"])
    assert "\n" not in str(refused.value)
    assert log_of(place) == left
