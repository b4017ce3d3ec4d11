"""A store that was lost catches up with the tables, whatever was tried on it since."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from sinks import DeltaSink
from spouts.memory import OpaqueMemoryTransactionalSpout
from state.delta.state import DeltaMapState
from state.examined import ExaminedTable
from tests.unit.drivers import DRAINED
from tests.unit.operations.doctor.patients import TABLES, WORDS, Patient, move
from tests.unit.runtime.publishing.word_sink import TARGETS, Target, WordSink, build
from transactional.core.ports import SinkPosition
from transactional.core.store.outbox import Publication
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.errors import ConfigError, RewindUnfinished, StoreMismatch
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.batch import EMPTY_BATCH
from transactional.operations.doctor.examine import Table
from transactional.operations.doctor.repairs import Journal, restore_store
from transactional.operations.doctor.sink_ends import SinkEnds
from transactional.operations.launch.running import make_executor, run_topology
from transactional.runtime.engine import rewinding
from transactional.runtime.engine.driver import TopologyDriver
from transactional.testing import MemoryCoordinatorStore
from transactional.topology.builder import TransactionalTopologyBuilder
from transactional.topology.topology import Topology
from verifier.sinks.tables import AppendedTable, check_appended_tables


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Patient:
    """A topology that has run to its end, in two runs; beside it what its store was after the first."""
    patient = Patient(tmp_path_factory.mktemp("healthy") / "patient")
    patient.folder.mkdir()
    patient.run(WORDS[:3])
    (patient.folder / "earlier").mkdir()
    shutil.copy(patient.folder / "store.db", patient.folder / "earlier")
    patient.run()
    return patient


@pytest.fixture
def patient(healthy: Patient, tmp_path: Path) -> Patient:
    return copied(healthy, tmp_path / "patient")


def copied(healthy: Patient, folder: Path) -> Patient:
    patient = healthy.copied(folder)
    move(folder / "earlier", healthy.folder, folder)
    return patient


def wipe(patient: Patient) -> None:
    for file in patient.folder.glob("store.db*"):
        file.unlink()


def put_back(patient: Patient) -> None:
    """The store is what it was after the first run."""
    wipe(patient)
    shutil.copy(patient.folder / "earlier" / "store.db", patient.folder)


def start(patient: Patient) -> None:
    """By a driver, as a standby that takes over: it draws a number before it is refused."""
    topology = patient.topology()
    with closing(SqlCoordinatorStore(patient.url)) as store:
        TopologyDriver(topology, store, make_executor(topology, master="none"), DRAINED).run()


def starts(patient: Patient) -> None:
    for _ in range(12):
        with pytest.raises(StoreMismatch, match="does not know"):
            start(patient)


def repairs(patient: Patient) -> None:
    for _ in range(9):
        with pytest.raises(ConfigError, match="pass the journal"):
            patient.repair()
        start_refused(patient)


def start_refused(patient: Patient) -> None:
    with pytest.raises(StoreMismatch):
        start(patient)


def resets(patient: Patient) -> None:
    starts(patient)
    with closing(SqlCoordinatorStore(patient.url)) as store:
        assert store.reset("words")
    starts(patient)


def drawn(patient: Patient) -> int:
    """The highest number that the store has drawn."""
    with closing(SqlCoordinatorStore(patient.url)) as store:
        return max(int(status.attempt_id) for status in store.status("words"))


def goes_on(patient: Patient, words: list[str] | None = None) -> None:
    words = words or [*WORDS, "late"]
    assert all(finding.is_harmless for finding in patient.examine())
    patient.run(words)
    patient.assert_right(words)


SAID = ["the store of topology 'words' says again that transaction 6 is committed"]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("lose", [wipe, put_back])
@pytest.mark.parametrize("tried", [starts, repairs, resets])
def test_a_lost_store_catches_up_whatever_was_refused_on_it(
    patient: Patient, lose: Callable[[Patient], None], tried: Callable[[Patient], None]
) -> None:
    lose(patient)
    tried(patient)
    before = max(drawn(patient), *(max(table_versions(patient, name)) for name in TABLES))
    assert patient.repair(journal=True) == SAID
    assert drawn(patient) > before, "whoever draws next is above all that was ever drawn, or is in a table"
    goes_on(patient)
    assert all(each > before for name in TABLES for each in table_versions(patient, name)[-2:])


def table_versions(patient: Patient, table: str) -> list[int]:
    """The attempts and fences that have written a table, oldest first."""
    state = DeltaMapState(patient.folder / table, "word string", "count long")
    examined = state.parts.examination.examine("words", table)
    assert examined is not None
    return [int(version) for version in examined.versions]


def others(patient: Patient, take: int) -> None:
    """The topology counts into other tables, and commits what it reads, before anybody notices the loss."""
    spout = OpaqueMemoryTransactionalSpout([[(word,) for word in WORDS[:4]]], "word string", take=take)
    builder = TransactionalTopologyBuilder("words", "spout", spout)
    for name in TABLES:
        state = DeltaMapState(patient.folder / f"other-{name}", "word")
        builder.set_committer_bolt(name, state.count()).fields_grouping("spout", "word")
    config = {"stop_when_drained": True}
    run_topology(builder.build(), store=patient.url, master="none", config=config)


@pytest.mark.parametrize(("take", "txid", "attempt_id"), [(2, 2, 3), (1, 4, 5)])
def test_what_was_committed_since_is_not_given_up_unasked(
    patient: Patient, take: int, txid: int, attempt_id: int
) -> None:
    """By an attempt that has committed the same transaction of the journal, with another batch; and by another one."""
    wipe(patient)
    others(patient, take)
    with pytest.raises(
        StoreMismatch,
        match=rf"^transaction {txid} was committed, by attempt {attempt_id}, since the.*`transactional reset",
    ):
        patient.repair(journal=True)
    with closing(SqlCoordinatorStore(patient.url)) as store:
        [status] = store.status("words")
        assert (status.committed_txid, status.is_leased) == (txid, False)
        store.reset("words")
    assert patient.repair(journal=True) == SAID
    goes_on(patient)


@pytest.mark.parametrize("written", [(2, 3), (3, 2)])
def test_a_transaction_that_two_attempts_have_left_in_tables_is_not_taken_over(
    tmp_path: Path, written: tuple[int, int]
) -> None:
    """The store was lost while a replay had written one of them."""
    each = zip(TABLES, map(AttemptId, written), strict=True)
    tables = [Table(name, ExaminedTable(name, name, attempt_id)) for name, attempt_id in each]
    journal = Journal({AttemptId(number): (TxId(1), EMPTY_BATCH) for number in (2, 3)})
    with pytest.raises(StoreMismatch, match="they hold transaction 1 as two attempts wrote it"):
        restore_store(Patient(tmp_path).topology(), MemoryCoordinatorStore(), tables, journal)


WRITES = ("acquire", "recount", "record_attempt", "record_commit", "forget_before", "record_fence")


def dying(patient: Patient, after: int, writes: Sequence[str] = WRITES) -> bool:
    """A repair that dies after so many writes to the store; whether it did."""
    left = [after]

    class Died(BaseException):
        pass

    def counted(name: str) -> Callable[..., Any]:
        whole = getattr(SqlCoordinatorStore, name)

        def write(self: Any, *given: Any, **named: Any) -> Any:
            if not left[0]:
                raise Died
            left[0] -= 1
            return whole(self, *given, **named)

        return write

    with pytest.MonkeyPatch.context() as patched:
        for name in writes:
            patched.setattr(SqlCoordinatorStore, name, counted(name))
        try:
            patient.repair(journal=True, accepts_sent=True)
        except Died:
            return True
    return False


@pytest.mark.sampled(32)
@pytest.mark.parametrize("lose", [wipe, put_back])
@pytest.mark.parametrize("writes", range(32))
def test_a_repair_that_dies_anywhere_is_done_again(patient: Patient, writes: int, lose: Callable[..., None]) -> None:
    lose(patient)
    start_refused(patient)
    if not dying(patient, writes):
        assert writes > 15
        return
    with suppress(StoreMismatch):
        start(patient)  # nothing is to come of it
    if patient.examine():
        assert patient.repair(journal=True) == SAID
    goes_on(patient)


class Publisher(Patient):
    """A topology that publishes every word, too, to a target and to a table."""

    def topology(self, words: list[str] = WORDS, key: str = "word") -> Topology:
        spout = OpaqueMemoryTransactionalSpout([[(word,) for word in words]], "word string", take=1)
        builder = TransactionalTopologyBuilder("words", "spout", spout)
        builder.set_sink("alerts", WordSink("words")).shuffle_grouping("spout")
        builder.set_sink("rows", DeltaSink(self.folder / "rows")).shuffle_grouping("spout")
        for name in TABLES:
            builder.set_committer_bolt(name, DeltaMapState(self.folder / name, key).count()).shuffle_grouping("spout")
        return builder.build()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("loses_the_store", [wipe, put_back])
def test_what_a_sink_has_published_stays_published(tmp_path: Path, loses_the_store: Callable[[Patient], None]) -> None:
    TARGETS["words"] = target = Target()
    publisher = Publisher(tmp_path)
    publisher.run(WORDS[:3])
    (tmp_path / "earlier").mkdir()
    shutil.copy(tmp_path / "store.db", tmp_path / "earlier")
    publisher.run()
    loses_the_store(publisher)
    start_refused(publisher)
    assert publisher.repair(journal=True) == SAID
    goes_on(publisher)
    assert [words for _, words in target.published] == [[word] for word in (*WORDS, "late")]
    rows = DeltaTable(str(tmp_path / "rows")).to_pyarrow_table().to_pylist()
    assert sorted((row["txid"], row["word"]) for row in rows) == list(enumerate((*WORDS, "late"), start=1))
    table = AppendedTable("rows", str(tmp_path / "rows"), "txid")
    assert check_appended_tables(publisher.url, "words", [table]).findings == ()


@dataclass
class LostOutbox:
    """A topology whose store was lost before one of two sinks had published the last three transactions."""

    publisher: Publisher
    target: Target

    @classmethod
    def make(cls, healthy: Publisher, folder: Path, behind: str) -> LostOutbox:
        """Copy a healthy topology, and take the target of the sink that is `behind` back to transaction 3."""
        shutil.copytree(healthy.folder, folder)
        publisher = Publisher(folder)
        TARGETS["words"] = target = Target()
        whole = TARGETS["healthy"]
        target.published, target.position = whole.published[:], whole.position
        if behind == "alerts":
            target.published, target.position = whole.published[:3], TARGETS["earlier"].position
        else:
            shutil.rmtree(folder / "rows")
            shutil.copytree(folder / "earlier-rows", folder / "rows")
        wipe(publisher)
        return cls(publisher, target)

    def assert_whole(self, alerts: list[int]) -> None:
        """Run to the end: the rows are those of each transaction once, and the target has these transactions."""
        goes_on(self.publisher)
        assert self.target.published == [(txid, [[*WORDS, "late"][txid - 1]]) for txid in alerts]
        rows = self.publisher.delta("rows").to_pyarrow_table().to_pylist()
        assert sorted((row["txid"], row["word"]) for row in rows) == list(enumerate((*WORDS, "late"), start=1))
        table = AppendedTable("rows", str(self.publisher.folder / "rows"), "txid")
        assert check_appended_tables(self.publisher.url, "words", [table]).findings == ()


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Publisher:
    """A topology that has published everything, in two runs; beside it what its sinks had after the first."""
    TARGETS["words"] = target = Target()
    publisher = Publisher(tmp_path_factory.mktemp("published") / "publisher")
    publisher.folder.mkdir()
    publisher.run(WORDS[:3])
    TARGETS["earlier"] = Target()
    TARGETS["earlier"].position = target.position
    shutil.copytree(publisher.folder / "rows", publisher.folder / "earlier-rows")
    publisher.run()
    TARGETS["healthy"] = target
    return publisher


LACKS = r"sink '{}' has published up to transaction 3, .* its records of transactions 4 to 6"


def test_records_that_only_the_lost_store_had_are_computed_again(published: Publisher, tmp_path: Path) -> None:
    """The other sink takes its rows back, so nothing is published twice."""
    lost = LostOutbox.make(published, tmp_path / "lost", "alerts")
    [restored, went_back] = lost.publisher.repair(journal=True)
    assert [restored] == SAID
    assert went_back.startswith("topology 'words' went back to transaction 3, because sink 'alerts'")
    wipe(lost.publisher)  # the journal has the rewind, which is not repeated
    [restored] = lost.publisher.repair(journal=True)
    assert restored.endswith("transaction 3 is committed")
    lost.assert_whole([*range(1, 8)])


def test_a_repair_that_publishes_again_is_accepted_first(published: Publisher, tmp_path: Path) -> None:
    lost = LostOutbox.make(published, tmp_path / "lost", "rows")
    with pytest.raises(
        ConfigError, match=LACKS.format("rows") + ".* sink 'alerts' has published .* up to 6: .* Pass --accept-sent"
    ):
        lost.publisher.repair(journal=True)
    with closing(SqlCoordinatorStore(lost.publisher.url)) as store:
        assert store.status("words") == []
    lost.publisher.repair(journal=True, accepts_sent=True)
    lost.assert_whole([1, 2, 3, 4, 5, 6, 4, 5, 6, 7])


@pytest.mark.long("test_a_repair_that_publishes_again_is_accepted_first")
def test_a_repair_whose_tables_cannot_go_back_is_refused(published: Publisher, tmp_path: Path) -> None:
    lost = LostOutbox.make(published, tmp_path / "lost", "alerts")
    lost.publisher.delta("count").vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    for _ in range(2):
        with pytest.raises(StoreMismatch, match=LACKS.format("alerts") + ".* can't go back to transaction 3"):
            lost.publisher.repair(journal=True)
    with closing(SqlCoordinatorStore(lost.publisher.url)) as store:
        [status] = store.status("words")
        assert (status.committed_txid, status.rewinding_to) == (0, None)


@pytest.mark.long("test_a_repair_that_publishes_again_is_accepted_first")
def test_a_target_without_a_position_is_named(published: Publisher, tmp_path: Path) -> None:
    lost = LostOutbox.make(published, tmp_path / "lost", "alerts")
    lost.target.position = None
    with pytest.raises(StoreMismatch, match=r"sink 'alerts': its word sink does not say .* the tables are at 6"):
        lost.publisher.repair(journal=True)


@pytest.mark.parametrize(("fence_id", "txid"), [(9, 3), (6, None)])
def test_a_position_from_before_a_rewind_counts_up_to_its_target(fence_id: int, txid: int | None) -> None:
    TARGETS["words"] = target = Target()
    target.position = SinkPosition("store", Publication("run#1", TransactionAttempt(TxId(6), AttemptId(7))))
    ends = SinkEnds.read(build("words"), TxId(5), {AttemptId(fence_id): TxId(3)})
    assert ends.rewind_txid == txid


@pytest.mark.sampled(40, tests=True)
@pytest.mark.parametrize("writes", range(40))
def test_a_repair_that_goes_back_dies_anywhere(published: Publisher, tmp_path: Path, writes: int) -> None:
    """Nothing can start before the rewind is finished, by the repair or by the command that the refusal names."""
    behind = ("alerts", "rows")[writes % 2]
    lost = LostOutbox.make(published, tmp_path / "lost", behind)
    if not dying(lost.publisher, writes, [*WRITES, "place_sink", "begin_rewind", "finish_rewind"]):
        assert writes > 30
        return
    with pytest.raises((StoreMismatch, RewindUnfinished)):
        start(lost.publisher)
    if any(finding.can_repair for finding in lost.publisher.examine()):
        lost.publisher.repair(journal=True, accepts_sent=True)
    else:
        with closing(SqlCoordinatorStore(lost.publisher.url)) as store:
            [status] = store.status("words")
            assert status.rewinding_to == 3
            rewinding.rewind(lost.publisher.topology(), store, TxId(3), owner="rewinder", accepts_sent=True)
    lost.assert_whole([*range(1, 8)] if behind == "alerts" else [1, 2, 3, 4, 5, 6, 4, 5, 6, 7])
