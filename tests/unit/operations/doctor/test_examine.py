"""The doctor finds how store, tables and source can come apart, and repairs what is safe (Storm row T56)."""

from __future__ import annotations

import json
import shutil
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import TableFeatures

from state.delta.state import DeltaMapState
from state.table_state import TableState
from tests.unit.drivers import DRAINED, WAIT_S, in_background
from tests.unit.operations.doctor.patients import TABLES, WORDS, Patient, move
from transactional.core.ports.examining import Problem
from transactional.core.ports.spout_parts import SourceExamination
from transactional.core.store import TopologyStatus
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.errors import ConfigError, OperatingError, StoreMismatch, TopologyInUse
from transactional.model.batch import Offset, OffsetRange
from transactional.model.config import TopologyConfig
from transactional.operations.doctor.examine import examine
from transactional.operations.doctor.repairs import repair
from transactional.operations.doctor.start import refuse_early
from transactional.operations.launch.running import make_executor, run_topology
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.engine.history.journal import JournalWriter
from transactional.testing import MemoryCoordinatorStore


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Patient:
    patient = Patient(tmp_path_factory.mktemp("healthy") / "patient")
    patient.folder.mkdir()
    patient.run(WORDS[:3])
    shutil.copytree(patient.folder, patient.folder.with_name("earlier"))
    patient.run()
    return patient


@pytest.fixture
def patient(healthy: Patient, tmp_path: Path) -> Patient:
    """A copy, and beside it one of what was before."""
    shutil.copytree(healthy.folder.with_name("earlier"), tmp_path / "earlier")
    move(tmp_path / "earlier", healthy.folder, tmp_path / "patient")
    return healthy.copied(tmp_path / "patient")


def earlier(patient: Patient, name: str) -> Path:
    """What a file or table was half-way."""
    return patient.folder.with_name("earlier") / name


def put_back_table(patient: Patient) -> None:
    shutil.rmtree(patient.folder / "count")
    shutil.copytree(earlier(patient, "count"), patient.folder / "count")


def put_back_store(patient: Patient) -> None:
    for file in patient.folder.glob("store.db*"):
        file.unlink()
    shutil.copy(earlier(patient, "store.db"), patient.folder)


def wipe_store(patient: Patient) -> None:
    for file in patient.folder.glob("store.db*"):
        file.unlink()


def update_rows(patient: Patient) -> None:
    patient.delta("count").update({"count": "count + 1"})


def update_rows_in_between(patient: Patient) -> None:
    """As drivers of earlier releases did: they did not look."""
    update_rows(patient)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(DeltaMapState, "fence", TableState.fence)
        run_on(patient)


def run_on(patient: Patient) -> None:
    topology, config = patient.topology([*WORDS, "late"]), TopologyConfig(stop_when_drained=True)
    with closing(SqlCoordinatorStore(patient.url)) as store:
        TopologyDriver(topology, store, make_executor(topology, master="none"), config).run()


def restore_rows(patient: Patient) -> None:
    patient.delta("count").restore(patient.delta("count").version() - 2)


def set_retention(patient: Patient) -> None:
    patient.delta("count").alter.set_table_properties(
        {"delta.setTransactionRetentionDuration": "interval 30 days"}, raise_if_not_exists=False
    )


def set_layout(patient: Patient) -> None:
    properties = {"transactional.schemaVersion": "2"}
    patient.delta("count").alter.set_table_properties(properties, raise_if_not_exists=False)


def add_feature(patient: Patient) -> None:
    patient.delta("count").alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)


def require_a_later_reader(patient: Patient) -> None:
    """So that delta-rs can't open the table at all."""
    log = patient.folder / "count" / "_delta_log"
    newest = max(int(path.stem) for path in log.glob("*.json"))
    entry = '{"protocol":{"minReaderVersion":9,"minWriterVersion":9}}'
    (log / f"{newest + 1:020}.json").write_text(entry, "utf-8")


def remove_table(patient: Patient) -> None:
    shutil.rmtree(patient.folder / "count")


def make_hole(patient: Patient) -> None:
    (patient.folder / "count" / "_delta_log" / f"{3:020}.json").unlink()


def tear_entry(patient: Patient) -> None:
    """As a power cut leaves the entry of a transaction that was not yet committed."""
    log = patient.folder / "count" / "_delta_log"
    newest = max(int(path.stem) for path in log.glob("*.json"))
    (log / f"{newest + 1:020}.json").write_bytes(b'{"commitInfo":{"timest')


def change_store(statement: str) -> Callable[[Patient], None]:
    """Change the store behind everybody's back."""

    def change(patient: Patient) -> None:
        with closing(sqlite3.connect(patient.folder / "store.db")) as connection, connection:
            connection.execute(statement)

    return change


def change_file(patient: Patient) -> None:
    """Not the newest one, which a power cut may have torn."""
    file = min(map(Path, patient.delta("other").file_uris()), key=lambda file: int(file.parent.name.split("=")[1]))
    with pq.ParquetFile(file) as opened:
        rows = opened.read()
    pq.write_table(pa.concat_tables([rows, rows]), file)


BROKEN = (Problem.STORE_BROKEN, "", False)
OF_ANOTHER = [(Problem.STORE_WIPED, name, False) for name in TABLES]
BOTH_WIPED = [(Problem.STORE_WIPED, name, True) for name in TABLES]


@pytest.mark.parametrize(
    ("hurt", "expected"),
    [
        (lambda patient: None, []),
        (wipe_store, BOTH_WIPED),
        (put_back_store, BOTH_WIPED),
        (put_back_table, [(Problem.TABLE_BEHIND, "count", False)]),
        (update_rows, [(Problem.FOREIGN_WRITER, "count", True)]),
        (update_rows_in_between, [(Problem.FOREIGN_WRITER, "count", False)]),
        (restore_rows, [(Problem.TABLE_RESTORED, "count", True)]),
        (set_retention, [(Problem.RETENTION_SET, "count", True)]),
        (set_layout, [(Problem.TABLE_FOREIGN, "count", False)]),
        (add_feature, [(Problem.FEATURE_UNREADABLE, "count", False)]),
        (require_a_later_reader, [(Problem.FEATURE_UNREADABLE, "count", False)]),
        (remove_table, [(Problem.TABLE_MISSING, "count", False)]),
        (tear_entry, [(Problem.TABLE_TORN, "count", True)]),
        (make_hole, [(Problem.TABLE_UNREADABLE, "count", False)]),
        (change_file, [(Problem.FILE_CHANGED, "other", False)]),
        (change_store("UPDATE transactional_topologies SET committed_txid = committed_txid - 1"), [BROKEN]),
        (change_store("DELETE FROM transactional_attempts WHERE txid = 3"), [BROKEN, BROKEN]),
        (change_store("UPDATE transactional_topologies SET store_id = 'another'"), OF_ANOTHER),
        (change_store("UPDATE transactional_topologies SET store_id = NULL"), []),
        (change_store("UPDATE transactional_attempts SET batch = replace(batch, '2, 3, 1', '1, 3, 1')"), [BROKEN]),
    ],
)
def test_what_is_wrong_is_found(
    patient: Patient, hurt: Callable[[Patient], None], expected: list[tuple[Problem, str, bool]]
) -> None:
    hurt(patient)
    before = sorted((path, path.stat().st_size) for path in patient.folder.rglob("*.json"))
    assert [found for found in patient.problems() if found[0] is not Problem.SOURCE_UNAVAILABLE] == expected
    assert sorted((path, path.stat().st_size) for path in patient.folder.rglob("*.json")) == before


@pytest.mark.sampled(2)
@pytest.mark.parametrize("hurt", [update_rows, restore_rows, set_retention, tear_entry])
def test_a_table_is_repaired_and_goes_on_right(patient: Patient, hurt: Callable[[Patient], None]) -> None:
    hurt(patient)
    [done] = patient.repair()
    assert done.startswith("table of 'count'")
    assert patient.examine() == []
    patient.run([*WORDS, "late"])
    patient.assert_right([*WORDS, "late"])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("hurt", [wipe_store, put_back_store])
def test_a_store_that_was_lost_takes_over_from_the_tables_by_a_journal(
    patient: Patient, hurt: Callable[[Patient], None]
) -> None:
    """Storm row T56: ZooKeeper wiped while the database holds transaction 57."""
    hurt(patient)
    with pytest.raises(StoreMismatch, match="does not know"):
        patient_is_started(patient)
    hurt(patient)  # that start has drawn a number
    with pytest.raises(ConfigError, match="pass the journal"):
        patient.repair()
    assert patient.repair(journal=True) == ["the store of topology 'words' says again that transaction 6 is committed"]
    assert patient.examine() == []
    patient.run([*WORDS, "late"])
    patient.assert_right([*WORDS, "late"])


def patient_is_started(patient: Patient) -> None:
    run_topology(patient.topology(), store=patient.url, master="none", config={"stop_when_drained": True})


def patient_is_driven(patient: Patient) -> None:
    topology = patient.topology()
    with closing(SqlCoordinatorStore(patient.url)) as store:
        TopologyDriver(topology, store, make_executor(topology, master="none"), DRAINED).run()


def die_between_tables(patient: Patient, words: Sequence[str] = (*WORDS, "late")) -> None:
    """Run one more transaction, whose second table is never written."""
    topology = patient.topology(list(words))
    other: Any = topology.component("other").state

    def refuse(*_: object) -> None:
        raise StoreMismatch("the power is gone")

    other.merge = refuse
    with closing(SqlCoordinatorStore(patient.url)) as store, closing(JournalWriter(patient.journal)) as journal:
        driver = TopologyDriver(topology, store, make_executor(topology, master="none"), observers=[journal])
        with pytest.raises(StoreMismatch, match="the power is gone"):
            driver.run()


def test_a_table_that_was_one_transaction_ahead_is_so_again(patient: Patient) -> None:
    """The crash that had come between the tables is made good by the next run, as if the store had never been lost."""
    die_between_tables(patient)
    wipe_store(patient)
    patient.repair(journal=True)
    assert patient.examine() == []
    patient.run([*WORDS, "late", "later"])
    patient.assert_right([*WORDS, "late", "later"])


def test_attempts_that_were_given_up_are_known_again_after_a_store_was_lost(patient: Patient) -> None:
    """Of the first transactions, of those in between, and of the last one: the tables' logs have them all."""
    die_between_tables(patient)
    die_between_tables(patient)
    patient.run([*WORDS, "late"])
    patient.assert_right([*WORDS, "late"])
    wipe_store(patient)
    patient.repair(journal=True)
    patient.assert_right([*WORDS, "late"])
    die_between_tables(patient, [*WORDS, "late", "later"])
    patient.run([*WORDS, "late", "later", "last"])
    wipe_store(patient)
    patient.repair(journal=True)
    patient.assert_right([*WORDS, "late", "later", "last"])
    patient.run([*WORDS, "late", "later", "last", "more"])
    patient.assert_right([*WORDS, "late", "later", "last", "more"])


def test_a_transaction_that_all_tables_hold_is_committed_with_what_was_read(patient: Patient) -> None:
    """The crash came before the transaction commit: of an opaque spout's batch the journal has the event alone."""
    topology = patient.topology([*WORDS, "late"])
    with closing(SqlCoordinatorStore(patient.url)) as store, closing(JournalWriter(patient.journal)) as journal:
        lost: Any = store

        def refuse(*_: object, **__: object) -> None:
            raise StoreMismatch("the power is gone")

        lost.record_commit = refuse
        driver = TopologyDriver(topology, store, make_executor(topology, master="none"), observers=[journal])
        with pytest.raises(StoreMismatch, match="the power is gone"):
            driver.run()
    wipe_store(patient)
    assert patient.repair(journal=True) == ["the store of topology 'words' says again that transaction 7 is committed"]
    patient.assert_right([*WORDS, "late"])
    with closing(SqlCoordinatorStore(patient.url)) as store:
        [newest] = store.attempts("words", limit=1)
    assert (newest.phase, newest.rows, newest.batch.record_count) == ("committed", 1, 1)


def test_a_journal_of_something_else_is_refused(patient: Patient) -> None:
    wipe_store(patient)
    patient.journal.write_text(earlier(patient, "journal").read_text())
    with pytest.raises(StoreMismatch, match=r"attempt \d+ is not in the journal"):
        patient.repair(journal=True)


def test_nothing_is_repaired_while_a_coordinator_runs(patient: Patient) -> None:
    update_rows(patient)
    with closing(SqlCoordinatorStore(patient.url)) as store:
        [status] = store.status("words")
        store.acquire("words", status.fingerprint, owner="running", lease_ms=60_000)
    with pytest.raises(TopologyInUse):
        patient.repair()


def run_on_between(patient: Patient) -> None:
    """The rows were put back by somebody else, and the topology has gone on."""
    patient.repair()
    patient.run([*WORDS, "late"])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("meanwhile", [run_on_between, update_rows])
def test_rows_are_put_back_on_the_version_that_was_looked_at_or_not_at_all(
    patient: Patient, meanwhile: Callable[[Patient], None]
) -> None:
    update_rows(patient)
    looked_at = patient.delta("count").version()
    with closing(SqlCoordinatorStore(patient.url)) as store:
        findings = examine(patient.topology(), store)
        meanwhile(patient)
        found, version = patient.counts("count"), patient.delta("count").version()
        with pytest.raises(OperatingError, match=f"since it was examined, at Delta version {looked_at}: nothing was"):
            repair(patient.topology(), store, findings)
    assert (patient.counts("count"), patient.delta("count").version()) == (found, version)
    patient.repair()
    assert not any(each.can_repair for each in patient.examine())


def test_rows_are_put_back_before_a_property_is_taken_away(patient: Patient) -> None:
    set_retention(patient)
    update_rows(patient)
    assert (len(patient.repair()), patient.examine()) == (2, [])


def test_a_table_whose_files_are_deleted_is_not_put_back(patient: Patient) -> None:
    restore_rows(patient)
    patient.delta("count").vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    with pytest.raises(OperatingError, match="can't be restored"):
        patient.repair()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("hurt", [update_rows, restore_rows])
def test_a_start_on_rows_that_others_have_changed_is_refused(patient: Patient, hurt: Callable[[Patient], None]) -> None:
    hurt(patient)
    # Whoever takes the lead is refused, by whatever way it comes to take it.
    for start in (patient_is_started, patient_is_driven):
        with pytest.raises(StoreMismatch, match=r"of words/count was changed by Delta version"):
            start(patient)
    patient.repair()
    patient.run([*WORDS, "late"])
    patient.assert_right([*WORDS, "late"])


def test_a_repair_excuses_no_later_change(patient: Patient) -> None:
    """Only a repair that came last has put right what was wrong."""
    update_rows(patient)
    patient.repair()
    update_rows(patient)
    with pytest.raises(StoreMismatch, match=r"of words/count was changed by Delta version"):
        patient_is_driven(patient)
    assert patient.problems() == [(Problem.FOREIGN_WRITER, "count", True)]
    patient.repair()
    patient.run([*WORDS, "late"])
    patient.assert_right([*WORDS, "late"])


class LookedAt(SqlCoordinatorStore):
    """Lets it be known that a standby has looked whether it is to lead."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.looked = threading.Event()

    def status(self, topology_id: str | None = None) -> list[TopologyStatus]:
        self.looked.set()
        return super().status(topology_id)


def test_a_standby_that_takes_over_looks_what_others_have_done_while_it_waited(patient: Patient) -> None:
    topology = patient.topology([*WORDS, "late"])
    with closing(LookedAt(patient.url)) as store:
        lease = store.acquire("words", topology.fingerprint(), owner="leader", lease_ms=60_000)
        driver = TopologyDriver(topology, store, make_executor(topology, master="none"), standby=True)
        with in_background(driver) as run:
            store.looked.clear()
            assert store.looked.wait(WAIT_S)
            update_rows(patient)
            store.release(lease)
            with pytest.raises(StoreMismatch, match=r"of words/count was changed by Delta version"):
                run.result(WAIT_S)
    assert patient.problems() == [(Problem.FOREIGN_WRITER, "count", True)], "it is as it was, and can be repaired"


@pytest.mark.parametrize(
    ("hurt", "says"),
    [
        (wipe_store, r"the store was wiped or restored.*To do: .*--journal"),
        (
            put_back_table,
            r"it was restored to an older state, or its component was not in .* meanwhile\. To do: restore a newer",
        ),
        (remove_table, r"no transaction was ever written to it\. To do: restore the table from a backup"),
    ],
)
def test_a_start_on_a_table_out_of_place_is_refused_with_what_the_doctor_says(
    patient: Patient, hurt: Callable[[Patient], None], says: str
) -> None:
    hurt(patient)
    with pytest.raises(StoreMismatch, match=rf"^committer 'count': .*{says}") as caught:
        patient_is_started(patient)
    found = next(each for each in patient.examine() if each.component == "count")
    assert f": {found.what}. To do: {found.remedy}. While you are trying out" in str(caught.value)
    assert f"`rm -r {patient.url.removeprefix('sqlite:///')} " in str(caught.value)


@pytest.mark.parametrize("hurt", [wipe_store, put_back_table, remove_table])
def test_such_a_start_is_refused_before_spark_starts(
    patient: Patient, hurt: Callable[[Patient], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def start_spark(*_: object, **__: object) -> None:
        pytest.fail("Spark is started")

    hurt(patient)
    monkeypatch.setattr("transactional.operations.launch.running.make_executor", start_spark)
    with pytest.raises(StoreMismatch, match=r"^committer 'count': table of 'count' \(.*\. To do: .*`rm -r .*\.db .*`"):
        run_topology(patient.topology(), store=patient.url)


def test_a_start_beside_another_leader_is_left_to_the_lease(patient: Patient) -> None:
    with closing(SqlCoordinatorStore(patient.url)) as store:
        lease = store.acquire("words", patient.topology().fingerprint(), owner="other", lease_ms=60_000)
        put_back_table(patient)
        refuse_early(patient.topology(), store)
        store.release(lease)
        with pytest.raises(StoreMismatch):
            refuse_early(patient.topology(), store)


def test_a_changed_topology_and_a_source_that_ends_too_early_are_reported(patient: Patient) -> None:
    changed = replace(patient.topology(), components=patient.topology().components[:1])
    assert [each.problem for each in patient.examine(changed)] == [Problem.TOPOLOGY_CHANGED]
    cut_off = patient.topology(WORDS[:2])
    assert [each.problem for each in patient.examine(cut_off)] == [Problem.SOURCE_UNAVAILABLE]


def test_what_can_not_be_accepted_is_reported_as_that(patient: Patient) -> None:
    store = sqlite3.connect(patient.folder / "store.db")
    with closing(store), store:
        change = "UPDATE transactional_topologies SET fingerprint = replace(fingerprint, ?, ?)"
        assert store.execute(change, ('{"count": "sum"}', '{"count": "max"}')).rowcount == 1
    [found] = patient.examine()
    assert "'count' values that are combined by max, and the topology now combines them by sum" in found.what
    assert found.remedy.startswith("this can not be accepted")


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_gap_of_a_partition_that_the_source_has_deleted_is_excused(
    patient: Patient, monkeypatch: pytest.MonkeyPatch, *, is_gone: bool
) -> None:
    """An opaque spout has continued behind what was lost; nobody knows any more where the log began then."""
    with closing(sqlite3.connect(patient.folder / "store.db")) as store, store:
        for txid, text in store.execute("SELECT txid, batch FROM transactional_attempts").fetchall():
            batch = json.loads(text)
            batch["partitions"][0][2:4] = (each + (txid > 3) for each in batch["partitions"][0][2:4])
            store.execute("UPDATE transactional_attempts SET batch = ? WHERE txid = ?", (json.dumps(batch), txid))
    there = None if is_gone else OffsetRange(Offset(0), Offset(9))
    monkeypatch.setattr(SourceExamination, "read_held_ranges", lambda _, names: dict.fromkeys(names, there))
    broken = [each for each in patient.examine() if each.problem is Problem.STORE_BROKEN]
    assert bool(broken) != is_gone


def test_a_topology_that_has_never_run_is_well(tmp_path: Path) -> None:
    assert examine(Patient(tmp_path).topology(), MemoryCoordinatorStore()) == []
