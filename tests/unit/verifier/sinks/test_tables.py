"""How `verify` holds the table of a Delta sink against the store: what others have changed is named."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from sinks import DeltaSink
from spouts import MemoryTransactionalSpout
from transactional import Topology, TopologyConfig, run_topology
from transactional.core.ports.examining import Problem
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.model.plumbing.pools import await_calls
from transactional.operations.doctor.examine import examine
from transactional.operations.doctor.sinks import appended_tables, examine_sinks
from transactional.trident import TridentTopology
from verifier.evidence.delta_log import read_log
from verifier.evidence.findings import Findings, Kind, Report
from verifier.evidence.storage import storage_of
from verifier.evidence.store import Store
from verifier.sinks.tables import UNKNOWN_REMOVER, check_appended_table, check_appended_tables


def build(folder: Path) -> Topology:
    topology = TridentTopology("landing")
    stream = topology.new_stream("rows", MemoryTransactionalSpout([[(n,) for n in range(10)]], "n long", take=4))
    stream.sink_to(DeltaSink(folder / "events"), name="events")
    return topology.build()


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a store, and of a table with the rows of three transactions: 4, 4 and 2.

    One to three Delta commits have them: the relay publishes what waits in one.
    """
    folder = tmp_path_factory.mktemp("run")
    config = TopologyConfig(stop_when_drained=True)
    run_topology(build(folder), store=f"sqlite:///{folder}/store.db", config=config, master="none")
    assert await_calls(60)
    return folder


@pytest.fixture
def folder(run_folder: Path, tmp_path: Path) -> Path:
    """A copy of that folder."""
    return Path(shutil.copytree(run_folder, tmp_path / "copy"))


def verify(folder: Path) -> Report:
    topology = build(folder)
    return check_appended_tables(f"sqlite:///{folder}/store.db", topology.id, appended_tables(topology))


def test_rows_of_others_and_rows_that_others_have_deleted_are_named(folder: Path) -> None:
    uri = str(folder / "events")
    report = verify(folder)
    assert (report.findings, report.notes, report.checked) == ((), (), {"appended rows": 10})
    assert list(examine_sinks(build(folder), None)) == []
    DeltaTable(uri).optimize.compact()
    DeltaTable(uri).delete("n = 5")
    removal = f"Delta version {DeltaTable(uri).version()} (DELETE)"
    report = verify(folder)
    assert report.findings == ()
    assert report.notes == (f"table of sink 'events': 1 rows of 1 transactions, such as 2, were removed by {removal}",)
    [diagnosis] = examine_sinks(build(folder), None)
    assert (diagnosis.problem, diagnosis.is_harmless) == (Problem.SINK_AT_RISK, True)
    assert diagnosis.what == f"{removal} is not the sink's, and has removed rows from Delta table {uri}"
    assert "the deletion of a person's rows" in diagnosis.remedy
    write_deltalake(uri, pa.table({"n": [1, 2, 3], "txid": [1, 9, None]}), mode="append")
    assert verify(folder).counts == {
        Kind.FOREIGN_WRITER: 1,
        Kind.TRANSACTION_TWICE: 1,
        Kind.TABLE_AHEAD: 1,
        Kind.WRONG_PUBLICATION: 1,
    }


def damage_entry(log: Path) -> None:
    max(log.glob("*.json")).write_text("{garbage")


def empty_entry(log: Path) -> None:
    max(log.glob("*.json")).write_text("")


def damage_checkpoint(log: Path) -> None:
    DeltaTable(str(log.parent)).create_checkpoint()
    [checkpoint] = log.glob("*.parquet")
    checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    for entry in sorted(log.glob("*.json"))[:-1]:
        entry.unlink()


def tear_checkpoint(log: Path) -> None:
    DeltaTable(str(log.parent)).create_checkpoint()
    [checkpoint] = log.glob("*.parquet")
    checkpoint.write_bytes(checkpoint.read_bytes()[:100])


def remove_table(log: Path) -> None:
    shutil.rmtree(log.parent)


@pytest.mark.parametrize(
    ("damage", "problem", "message", "is_harmless"),
    [
        (damage_entry, Problem.SINK_UNREADABLE, "events can't be opened", False),
        (
            empty_entry,
            Problem.SINK_UNREADABLE,
            "has no byte, so what Delta version {newest} has changed is lost",
            False,
        ),
        (damage_checkpoint, Problem.SINK_UNREADABLE, "events can't be opened", False),
        (remove_table, Problem.TABLE_MISSING, "there is no Delta table", False),
        (tear_checkpoint, Problem.SINK_AT_RISK, "are torn, and the next run sets them aside", True),
    ],
)
def test_the_doctor_names_a_table_that_can_not_be_read(
    folder: Path, damage: Callable[[Path], None], problem: Problem, message: str, *, is_harmless: bool
) -> None:
    newest = DeltaTable(str(folder / "events")).version()
    damage(folder / "events" / "_delta_log")
    before = sorted(folder.rglob("*"))
    with closing(SqlCoordinatorStore(f"sqlite:///{folder}/store.db")) as store:
        [diagnosis] = examine(build(folder), store)
    assert (diagnosis.problem, diagnosis.where, diagnosis.is_harmless) == (problem, "sink 'events'", is_harmless)
    assert message.format(newest=newest) in diagnosis.what
    assert sorted(folder.rglob("*")) == before, "nothing is changed"


def test_a_lost_file_and_lost_rows_are_found(folder: Path) -> None:
    [path, *_] = sorted((folder / "events" / "_runs").iterdir())
    path.unlink()
    assert verify(folder).counts == {Kind.FILE_MISSING: 1, Kind.TRANSACTION_LOST: 1}


def test_what_waits_is_not_missing_and_what_the_store_has_forgotten_is_not_wrong(folder: Path) -> None:
    topology = build(folder)
    [checked] = appended_tables(topology)
    with closing(Store(f"sqlite:///{folder}/store.db")) as store:
        stored = store.publications(topology.id)
    log = read_log(storage_of(checked.uri))
    newest = max(stored.attempts)
    waiting = replace(stored, waiting={"events": frozenset({newest})})
    findings = Findings()
    check_appended_table(checked, log, {1: 4, 2: 4}, waiting, stored, findings)
    trimmed = replace(stored, attempts={newest: stored.attempts[newest]})
    check_appended_table(checked, log, {1: 4, 2: 4, 3: 2}, trimmed, trimmed, findings)
    cleaned = replace(log, base_app_versions={"transactional.sink/txid": 2})
    check_appended_table(checked, cleaned, {1: 4, 2: 3, 3: 2}, stored, stored, findings)
    report = findings.report()
    assert report.findings == ()
    assert report.notes == (
        "table of sink 'events': 1 committed transactions are not published yet",
        "table of sink 'events': 8 rows are of transactions of which the store has no records",
        f"table of sink 'events': 1 rows of 1 transactions, such as 2, were removed by {UNKNOWN_REMOVER}",
    )
