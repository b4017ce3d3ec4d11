"""The fence of a Delta table, point by point: each story is told twice, as it is and with one point of it taken out.

pytestmark = pytest.mark.sampled(4)

Taken out, a point must show as a wrong content; else its story would prove nothing. The old leader is the one that was
taken over, the new leader the one that did it. "Paused" is between the check of the version and the write.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import CommitProperties, DeltaTable, Transaction

from state.delta.log.background import BackgroundWork
from state.delta.open_table import OpenTable
from state.delta.state import DeltaMapState
from state.fence import Fence, Verdict, WriteRefused
from state.rows.columns import StateColumns
from tests.contract.states import OWNER, Place, always, content, counts, write_by_files
from tests.proof.effects import done_at_once
from transactional.core.ports import StateKind
from transactional.errors import Fenced, OperatingError, TableConflict
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId


class World(Place):
    """One table, and coordinators whose states may be of a broken kind."""

    def leader(self, made_as: type[DeltaMapState] = DeltaMapState, **options: Any) -> DeltaMapState:
        """A coordinator's state, opened."""
        state = made_as(self.folder / "table", "word string", "count long", **options)
        state.open(OWNER, self.txids.__getitem__)
        return state

    def paused(self, meanwhile: Callable[[], object], kind: type[DeltaMapState] = DeltaMapState) -> DeltaMapState:
        """A coordinator that has checked the version and pauses; `meanwhile` happens, once, then it writes."""
        strikes = iter([meanwhile])

        class Paused(kind):  # type: ignore[misc, valid-type]
            def _confirm(self, attempt_id: AttemptId, write: Callable[[OpenTable], None]) -> None:
                for strike in strikes:
                    strike()
                super()._confirm(attempt_id, write)

        return self.leader(Paused)


@pytest.fixture(params=["written as a whole", "written by delta-rs", "file by file"])
def world(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    if request.param == "written by delta-rs":
        monkeypatch.setattr("state.delta.write.loaded_table.list_replaceable_files", lambda _: None)
    if request.param == "file by file":
        write_by_files(monkeypatch)
    return World("delta-rs", tmp_path)


def is_fenced(write: Callable[[], None]) -> bool:
    """Whether a writer is told that it was taken over."""
    try:
        write()
    except Fenced:
        return True
    return False


class WithoutEmptyCommits(DeltaMapState):
    """Taken out: a transaction without effect is written, too."""

    def open(self, owner: str, txid_of: Callable[[AttemptId], TxId]) -> None:
        super().open(owner, txid_of)
        table: Any = self.open_table
        table.write_version = lambda *_: None

    def _confirm(self, attempt_id: AttemptId, write: Callable[[OpenTable], None]) -> None:
        write(self.open_table)


class WithoutFence(DeltaMapState):
    """Taken out: a new leader raises the version before it does anything else."""

    def fence(self, attempt_id: AttemptId) -> None:
        pass


class WritesByPath(DeltaMapState):
    """Taken out: rows go through the snapshot on which the version was checked."""

    def _confirm(self, attempt_id: AttemptId, write: Callable[[OpenTable], None]) -> None:
        def by_path(table: OpenTable) -> None:
            table.read_and_check_version()
            write(table)

        super()._confirm(attempt_id, by_path)


class WithoutVersionCheck(DeltaMapState):
    """Taken out: a version that is higher than the own one stops a writer."""

    def open(self, owner: str, txid_of: Callable[[AttemptId], TxId]) -> None:
        class Blind(Fence):
            def decide(self, version: AttemptId | None, attempt: TransactionAttempt) -> Verdict:
                return Verdict.WRITE

        super().open(owner, txid_of)
        self._fence = Blind(self.declared.table, owner, self.declared.kind, txid_of)


class TestAnEmptyReplay:
    """The new attempt of a transaction is empty; the attempt that it replaces wakes up late and still has a row."""

    def tell(self, world: World, leader: DeltaMapState) -> tuple[dict[Any, Any], bool]:
        leader.merge(world.attempt(1, 1), counts({"dog": 1}))
        late = world.paused(lambda: leader.merge(world.attempt(2, 3), counts({})))
        fenced = is_fenced(lambda: late.merge(world.attempt(2, 2), counts({"dog": 1})))
        return content(leader), fenced

    def test_shuts_the_late_one_out(self, world: World) -> None:
        assert self.tell(world, world.leader()) == ({"dog": 1}, True)

    def test_would_not_without_a_commit_of_its_own(self, world: World) -> None:
        assert self.tell(world, world.leader(WithoutEmptyCommits)) == ({"dog": 2}, False)


class TestATakeOver:
    """The old leader is paused; the new one has the lease, but has not committed a transaction yet."""

    def tell(self, world: World, new_leader: DeltaMapState) -> tuple[dict[Any, Any], bool]:
        late = world.paused(lambda: world.fence(new_leader, 0, 10))
        fenced = is_fenced(lambda: late.merge(world.attempt(1, 1), counts({"dog": 1})))
        return content(new_leader), fenced

    def test_stops_the_old_leader_at_once(self, world: World) -> None:
        assert self.tell(world, world.leader()) == ({}, True)

    def test_would_not_without_a_fence(self, world: World) -> None:
        assert self.tell(world, world.leader(WithoutFence)) == ({"dog": 1}, False)


def test_a_fence_is_refused_when_the_old_leader_was_quicker_and_notes_where_the_table_is_now(world: World) -> None:
    old, new = (world.leader(kind=StateKind.TRANSACTIONAL) for _ in range(2))
    assert new.version() is None
    world.txids[10] = TxId(0)
    old.merge(world.attempt(1, 1), counts({"dog": 1}))
    with pytest.raises(TableConflict, match="is at version 1; attempt 10 was not written"):
        new.fence(AttemptId(10))
    assert new.version() == 1
    world.fence(new, world.txids[1], 10)
    new.merge(world.attempt(1, 11), counts({"dog": 1}))
    new.merge(world.attempt(2, 12), counts({"dog": 1}))
    assert content(new) == {"dog": 2}


class TestRowsThroughOneHandle:
    """While the old leader is paused, the new one commits the transaction with another batch."""

    def tell(self, world: World, old_leader: type[DeltaMapState]) -> tuple[dict[Any, Any], int | None, bool]:
        new = world.leader()
        late = world.paused(lambda: new.merge(world.attempt(1, 11), counts({"cat": 1})), old_leader)
        fenced = is_fenced(lambda: late.merge(world.attempt(1, 1), counts({"dog": 1})))
        return content(new), new.version(), fenced

    def test_are_refused_after_another_write(self, world: World) -> None:
        assert self.tell(world, DeltaMapState) == ({"cat": 1}, 11, True)

    def test_by_path_would_replace_the_newer_ones(self, world: World) -> None:
        assert self.tell(world, WritesByPath) == ({"dog": 1}, 1, False)


class TestAVersionThatIsHigher:
    """The old leader wakes up before it has read the version, and reads the new leader's."""

    def tell(self, world: World, old_leader: type[DeltaMapState]) -> tuple[dict[Any, Any], int | None, bool]:
        old, new = world.leader(old_leader), world.leader()
        new.merge(world.attempt(1, 11), counts({"cat": 1}))
        fenced = is_fenced(lambda: old.merge(world.attempt(1, 1), counts({"dog": 1})))
        return content(new), new.version(), fenced

    def test_stops_a_writer(self, world: World) -> None:
        assert self.tell(world, DeltaMapState) == ({"cat": 1}, 11, True)

    def test_unchecked_would_be_moved_backwards(self, world: World) -> None:
        assert self.tell(world, WithoutVersionCheck) == ({"dog": 1}, 1, False)


class TestConflicts:
    def test_with_a_later_attempt_is_a_fence(self, world: World) -> None:
        new = world.leader()
        late = world.paused(lambda: world.fence(new, 0, 10))
        with pytest.raises(Fenced, match="attempt 10, after 1"):
            late.merge(world.attempt(1, 1), counts({"dog": 1}))

    def test_with_an_earlier_attempt_fails_this_one(self, world: World) -> None:
        other = world.leader()
        late = world.paused(lambda: other.merge(world.attempt(1, 1), counts({"dog": 1})))
        with pytest.raises(TableConflict, match="is at version 1; attempt 2 was not written"):
            late.merge(world.attempt(1, 2), counts({"dog": 1}))
        late = world.leader()
        late.merge(world.attempt(1, 3), counts({"dog": 1}))
        assert content(late) == {"dog": 1}

    @pytest.mark.sampled(1)
    def test_with_a_compaction_is_none(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write_by_files(monkeypatch)
        world = World("delta-rs", tmp_path)
        leader = world.leader()
        leader.merge(world.attempt(1, 1), counts({"dog": 1}))
        leader.merge(world.attempt(2, 2), counts({"cat": 1}))

        def compact() -> None:
            assert DeltaTable(leader.location.uri).optimize.compact()["numFilesRemoved"] == 2

        world.paused(compact).merge(world.attempt(3, 3), counts({"dog": 1}))
        assert content(leader) == {"dog": 2, "cat": 1}

    def test_with_a_foreign_commit_that_leaves_the_rows_alone_is_none(self, world: World) -> None:
        leader = world.leader()
        leader.merge(world.attempt(1, 1), counts({"dog": 1}))

        def foreign() -> None:
            table = DeltaTable(leader.location.uri)
            table.create_write_transaction([], "append", table.schema(), commit_properties=transaction("other", 7))

        world.paused(foreign).merge(world.attempt(2, 2), counts({"dog": 1}))
        assert content(leader) == {"dog": 2}

    def test_a_write_after_a_read_that_is_out_of_date_is_refused(self, world: World) -> None:
        leader, other = world.leader(), world.leader()
        attempt = world.attempt(1, 5)
        assert leader.get(attempt, [("dog",)]) == {}
        world.fence(other, 0, 2)
        with pytest.raises(TableConflict, match="was at version None when 1:5 read it and is at 2 now"):
            leader.put(attempt, {("dog",): (1,)})

    @pytest.mark.sampled(4)
    def test_a_leader_that_slept_longer_than_the_log_is_kept_changes_nothing(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(BackgroundWork, "start", done_at_once)  # a checkpoint is there before the next clean-up
        kept = ("delta.logRetentionDuration", "delta.deletedFileRetentionDuration")
        properties = {**dict.fromkeys(kept, "interval 0 seconds"), "delta.checkpointInterval": "5"}
        new = world.leader(properties=properties)
        new.merge(world.attempt(1, 1), counts({"dog": 1}))

        def much_happens() -> None:
            for txid in range(2, 30):
                new.merge(world.attempt(txid, txid + 100), counts({"cat": 1}))
                new.parts.maintenance.maintain(TxId(txid), always)
            log = Path(new.location.uri, "_delta_log")
            assert len(list(log.glob("*.json"))) < 20

        late = world.paused(much_happens)
        with pytest.raises(Fenced):
            late.merge(world.attempt(2, 2), counts({"dog": 1}))
        with pytest.raises(Fenced):
            late.merge(world.attempt(2, 3), counts({}))
        assert content(new) == content(late) == {"dog": 1, "cat": 28}


def transaction(app_id: str, version: int) -> CommitProperties:
    return CommitProperties(app_transactions=[Transaction(app_id, version)])


class UnknownOutcome(DeltaMapState):
    """Every write goes through, and is reported as failed."""

    def open(self, owner: str, txid_of: Callable[[AttemptId], TxId]) -> None:
        super().open(owner, txid_of)
        table: Any = self.open_table
        apply = table.apply

        def applied(*given: Any, **named: Any) -> None:
            apply(*given, **named)
            raise WriteRefused("no answer", is_conflict=False)

        table.apply = applied


class NeverWritten(DeltaMapState):
    """No write goes through."""

    reported = False

    def open(self, owner: str, txid_of: Callable[[AttemptId], TxId]) -> None:
        super().open(owner, txid_of)
        reported, table = self.reported, self.open_table

        def never(*given: Any, **named: Any) -> None:
            if reported:
                raise WriteRefused("disk full", is_conflict=False)

        table.apply = never


class ReportedAsFailed(NeverWritten):
    reported = True


class TestOutcomes:
    def test_a_write_that_was_reported_as_failed_and_went_through_is_a_success(self, world: World) -> None:
        leader = world.leader(UnknownOutcome)
        leader.merge(world.attempt(1, 1), counts({"dog": 1}))
        leader.merge(world.attempt(1, 1), counts({"dog": 1}))
        assert content(leader) == {"dog": 1}

    def test_a_failure_says_so(self, world: World) -> None:
        with pytest.raises(OperatingError, match="is at version None; attempt 1 was not written over it: disk full"):
            world.leader(ReportedAsFailed).merge(world.attempt(1, 1), counts({"dog": 1}))

    def test_a_success_that_is_not_there_is_tried_again(self, world: World) -> None:
        with pytest.raises(
            OperatingError, match="the table's version is None: the storage has confirmed the write and lost it"
        ):
            world.leader(NeverWritten).merge(world.attempt(1, 1), counts({"dog": 1}))


@pytest.mark.sampled(4)
def test_one_of_two_at_once_wins_and_the_table_is_its(world: World) -> None:
    leaders = [world.leader(), world.leader()]
    for txid in range(1, 9):
        attempts = [world.attempt(txid, 10 * txid + number) for number in range(2)]
        barrier, won = threading.Barrier(2), set[int]()

        def race(number: int, barrier: threading.Barrier, won: set[int], attempts: list[TransactionAttempt]) -> None:
            barrier.wait()
            try:
                leaders[number].merge(attempts[number], counts({"dog": 1, str(number): 1}))
                won.add(number)
            except (Fenced, TableConflict):
                pass

        threads = [threading.Thread(target=race, args=(number, barrier, won, attempts)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert won
        seen = content(leaders[0])
        assert seen["dog"] == txid
        last = leaders[0].version()
        assert last is not None
        assert last - 10 * txid in won


@pytest.mark.sampled(4)
def test_two_creators_open_the_same_table(world: World) -> None:
    for number in range(5):
        place, states, barrier = (
            World("delta-rs", world.folder / str(number)),
            list[DeltaMapState](),
            threading.Barrier(3),
        )

        def create(place: World, states: list[DeltaMapState], barrier: threading.Barrier) -> None:
            barrier.wait()
            states.append(place.leader())

        threads = [threading.Thread(target=create, args=(place, states, barrier)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(states) == 3
        states[0].merge(place.attempt(1, 1), counts({"dog": 1}))
        assert [content(state) for state in states] == [{"dog": 1}] * 3


def test_every_delta_commit_shows_its_transaction(world: World) -> None:
    leader = world.leader()
    world.fence(leader, 0, 1)
    leader.merge(world.attempt(1, 2), counts({"dog": 1}))
    leader.merge(world.attempt(2, 3), counts({}))
    told = [
        json.loads(entry["userMetadata"])
        for entry in DeltaTable(leader.location.uri).history()
        if "userMetadata" in entry
    ]
    assert told == [
        {"owner": OWNER, "txid": 2, "attempt_id": 3},
        {"owner": OWNER, "txid": 1, "attempt_id": 2},
        {"owner": OWNER, "attempt_id": 1},
    ]


def test_columns_of_a_fenced_table_are_as_documented(world: World) -> None:
    leader = world.leader()
    columns: StateColumns = leader.declared.columns
    table = DeltaTable(leader.location.uri)
    assert [field.name for field in table.schema().fields] == ["word", "count", "txid", "prev_txid", "prev_count"]
    assert columns.all_columns.names == ("word", "count", "txid", "prev_txid", "prev_count")
    assert (table.protocol().min_reader_version, table.protocol().min_writer_version) == (1, 2)
