"""Large compactions are written in the background, as staged files, while transactions go on; and committed between two
of them."""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import replace
from threading import Event
from typing import ClassVar

import pytest
from deltalake import DeltaTable

from state.delta.segments.log_layout import LogLayout, full_compaction
from state.delta.state import DeltaMapState
from state.delta.upkeep.background_compaction import CompactionTask, WrittenCompaction, compaction_task
from tests.contract.states import OWNER, Place, content, counts
from tests.integration.delta.test_staged import live, merge, opened, place, segments
from transactional.errors import OperatingError
from transactional.model.absent import ABSENT, Absent
from transactional.model.attempt import AttemptId, TxId
from transactional.model.names import compaction_of

__all__ = ["place"]


class TestBackgroundCompactions:
    """Large compactions are written in a thread of their own, while transactions go on."""

    @pytest.fixture
    def state(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> DeltaMapState:
        """Every compaction is a large one; three transactions of two files each are there, and a compaction of two is
        written."""
        monkeypatch.setattr("state.delta.upkeep.background_compaction.BACKGROUND_ROWS", 0)
        state = opened(place, compact_after=2)
        for txid in (1, 2, 3):
            merge(state, place.attempt(txid, txid), {"a": 1, str(txid): 1}, {"a": 1})
        state.parts.maintenance.maintain(TxId(3), lambda: True)
        self.wait(state)
        return state

    EXPECTED: ClassVar = {"a": 6, "1": 1, "2": 1, "3": 1}

    def wait(self, state: DeltaMapState) -> None:
        """Until the compaction is written."""
        future = segments(state).compactor.background._future
        assert future is not None
        future.exception(timeout=240)

    def test_a_run_that_ends_waits_for_it(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        """A process that ends after a few transactions would never commit one."""
        write, may_write = CompactionTask.write, Event()

        def waits(task: CompactionTask) -> WrittenCompaction:
            assert may_write.wait(60)
            return write(task)

        monkeypatch.setattr("state.delta.upkeep.background_compaction.BACKGROUND_ROWS", 0)
        monkeypatch.setattr(CompactionTask, "write", waits)
        state = opened(place, compact_after=2)
        for txid in (1, 2, 3):
            merge(state, place.attempt(txid, txid), {"a": 1, str(txid): 1}, {"a": 1})
        state.parts.maintenance.maintain(TxId(3), lambda: True)
        before = live(state)
        state.parts.maintenance.finish(lambda: False)
        assert (segments(state).reader.compacted_txid, live(state)) == (0, before), "whoever is stopped does not wait"
        monkeypatch.setattr("state.delta.upkeep.background_compaction.FINISH_TIMEOUT_S", 0)
        state.parts.maintenance.finish(lambda: True)
        assert (segments(state).reader.compacted_txid, live(state)) == (0, before), "nobody waits for ever"
        monkeypatch.setattr("state.delta.upkeep.background_compaction.FINISH_TIMEOUT_S", 60)

        def lets_it_go_on() -> bool:
            may_write.set()
            return True

        state.parts.maintenance.finish(lets_it_go_on)
        assert (segments(state).reader.compacted_txid, content(state)) == (2, self.EXPECTED)
        version = DeltaTable(state.location.uri).version()
        state.parts.maintenance.finish(lambda: True)
        assert DeltaTable(state.location.uri).version() == version, "nothing is under way"

    def test_a_run_that_ends_commits_none_over_what_somebody_else_has_made_of_the_table(
        self, place: Place, state: DeltaMapState
    ) -> None:
        successor = opened(place, compact_after=2)
        place.attempt(3, 10)
        successor.fence(AttemptId(10))
        merge(successor, place.attempt(4, 11), {"a": 1})
        state.parts.maintenance.finish(lambda: True)
        assert content(successor) == {**self.EXPECTED, "a": 7}
        assert DeltaTable(state.location.uri).transaction_version(compaction_of(OWNER)) is None

    def test_one_of_a_relative_path_is_written_where_the_table_is(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Executors have working directories of their own."""
        monkeypatch.chdir(place.folder)
        state = DeltaMapState("t", "word string", "count long", layout=LogLayout(compact_after=None))
        state.open(OWNER, place.txids.__getitem__)
        for txid in (1, 2, 3):
            merge(state, place.attempt(txid, txid), {"a": 1})
        stored = segments(state).compactor._stored
        compaction = full_compaction(stored.segments(), TxId(3))
        assert compaction is not None
        task = pickle.dumps(compaction_task(stored.loaded, {"count": "sum"}, compaction, stored.segments(), None))
        (place.folder / "elsewhere").mkdir()
        monkeypatch.chdir(place.folder / "elsewhere")
        assert pickle.loads(task).write_share(0, 1).files[0].rows == 1

    def test_what_can_not_be_read_is_no_failed_write(self, place: Place, state: DeltaMapState) -> None:
        stored = segments(state).compactor._stored
        compaction = full_compaction(stored.segments(), TxId(3))
        assert compaction is not None
        task = compaction_task(stored.loaded, {"count": "sum"}, compaction, stored.segments(), None)
        (place.folder / "t" / next(iter(stored.segments()[0].files))).unlink()
        with pytest.raises(OperatingError, match="can't be read"):
            task.write()

    def test_deleted_keys_go_with_one(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("state.delta.upkeep.background_compaction.BACKGROUND_ROWS", 0)
        layout = LogLayout(compact_after=3)
        state = DeltaMapState(place.folder / "t", "word string", "count long", layout=layout, deletes=True)
        state.open(OWNER, place.txids.__getitem__)
        puts: list[dict[str, tuple[int] | Absent]] = [{"a": (1,), "b": (1,)}, {"a": ABSENT}, {"b": ABSENT}, {"c": (1,)}]
        for txid, rows in enumerate(puts, 1):
            state.put(place.attempt(txid, txid), {(key,): values for key, values in rows.items()})
        state.parts.maintenance.maintain(TxId(4), lambda: True)
        self.wait(state)
        state.parts.maintenance.maintain(TxId(4), lambda: True)
        assert (segments(state).reader.compacted_txid, content(state)) == (3, {"c": 1})
        assert DeltaTable(state.location.uri).count() == 1, "all that was compacted is deleted"

    def test_a_compaction_whose_job_fails_is_written_by_the_driver(
        self, place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fails(task: CompactionTask) -> WrittenCompaction:
            raise OperatingError("executor 3 does not see the folder")

        monkeypatch.setattr("state.delta.upkeep.background_compaction.BACKGROUND_ROWS", 0)
        monkeypatch.setattr("state.delta.upkeep.compaction_writers.is_job", lambda *_, **__: True)
        monkeypatch.setattr("state.delta.upkeep.spark_compaction.write_by_spark", fails)
        state = opened(place, compact_after=2)
        for txid in (1, 2, 3):
            merge(state, place.attempt(txid, txid), {"a": 1, str(txid): 1}, {"a": 1})
        state.parts.maintenance.maintain(TxId(3), lambda: True)
        self.wait(state)
        assert caplog.messages[-1].endswith("executor 3 does not see the folder")
        state.parts.maintenance.maintain(TxId(3), lambda: True)
        assert (segments(state).reader.compacted_txid, content(state)) == (2, self.EXPECTED)

    @pytest.mark.parametrize("txid", ["größe", "tx#1"])
    def test_where_the_log_has_other_paths_than_the_disk_all_goes_through_the_driver(
        self, place: Place, monkeypatch: pytest.MonkeyPatch, txid: str
    ) -> None:
        monkeypatch.setattr("state.delta.upkeep.background_compaction.BACKGROUND_ROWS", 0)
        layout = LogLayout(compact_after=2, staged_bytes=0)
        state = DeltaMapState(place.folder / "t", "word string", "count long", layout=layout, columns={"txid": txid})
        state.open(OWNER, place.txids.__getitem__)
        for attempt_id, number in enumerate([1, 2, 3, 3], 1):
            attempt, part = place.attempt(number, attempt_id), counts({"a": 1, str(attempt_id): 1})
            stager = state.parts.staging.stager(OWNER) if attempt_id == 4 else None
            state.merge(attempt, part if stager is None else replace(part, staged=[stager.stage(attempt, part.table)]))
        for _ in range(2):
            state.parts.maintenance.maintain(TxId(3), lambda: True)
            if segments(state).compactor.background.is_pending:
                self.wait(state)
        assert (segments(state).reader.compacted_txid, content(state)) == (2, {"a": 3, "1": 1, "2": 1, "4": 1})

    def test_one_is_committed_with_the_next_maintenance(self, place: Place, state: DeltaMapState) -> None:
        assert (segments(state).reader.compacted_txid, content(state)) == (0, self.EXPECTED)
        merge(state, place.attempt(4, 4), {"a": 1}, {"a": 1})
        state.parts.maintenance.maintain(TxId(4), lambda: True)
        assert (segments(state).reader.compacted_txid, content(state)) == (2, {**self.EXPECTED, "a": 8})
        assert content(state, committed_txid=3) == self.EXPECTED
        rows = DeltaTable(state.location.uri).to_pyarrow_dataset().to_table()
        assert Counter(rows["txid"].to_pylist()) == {2: 3, 3: 3, 4: 2}

    @pytest.mark.parametrize("others", ["", "before", "after"])
    def test_one_that_is_asked_for_is_written_so_and_committed_at_once(
        self, place: Place, state: DeltaMapState, monkeypatch: pytest.MonkeyPatch, others: str
    ) -> None:
        """Also where others rewrite its files before they are read, or after."""
        write, written = CompactionTask.write, list[WrittenCompaction]()

        def watched(task: CompactionTask) -> WrittenCompaction:
            is_first = not written
            if is_first and others == "before":
                DeltaTable(state.location.uri).optimize.compact()
            written.append(write(task))
            if is_first and others == "after":
                DeltaTable(state.location.uri).optimize.compact()
            return written[-1]

        monkeypatch.setattr(CompactionTask, "write", watched)
        state.compact()
        assert (segments(state).reader.compacted_txid, content(state)) == (2, self.EXPECTED)
        assert len(written) == (2 if others else 1)
        assert {file.path for file in written[-1].files} <= set(live(state))
        merge(state, place.attempt(3, 4), {"a": 1, "4": 1}, {"a": 1})
        assert content(state) == {**{key: n for key, n in self.EXPECTED.items() if key != "3"}, "4": 1}

    def test_one_whose_files_somebody_has_rewritten_is_dropped(
        self, place: Place, state: DeltaMapState, caplog: pytest.LogCaptureFixture
    ) -> None:
        DeltaTable(state.location.uri).optimize.compact()
        merge(state, place.attempt(4, 4), {"a": 1}, {"a": 1})
        state.parts.maintenance.maintain(TxId(4), lambda: True)
        assert "a compaction up to transaction 2 was dropped" in caplog.text
        assert (segments(state).reader.compacted_txid, content(state)) == (0, {**self.EXPECTED, "a": 8})
        state.parts.maintenance.maintain(TxId(4), lambda: True)
        self.wait(state)
        state.parts.maintenance.maintain(TxId(4), lambda: True)
        assert (segments(state).reader.compacted_txid, content(state)) == (3, {**self.EXPECTED, "a": 8})

    def test_one_that_is_refused_is_tried_again(self, place: Place, state: DeltaMapState) -> None:
        DeltaTable(state.location.uri).alter.set_table_properties({"delta.checkpointInterval": "50"})
        state.parts.maintenance.maintain(TxId(3), lambda: True)
        assert segments(state).reader.compacted_txid == 0
        merge(state, place.attempt(4, 4), {"a": 1})
        state.parts.maintenance.maintain(TxId(4), lambda: True)
        assert (segments(state).reader.compacted_txid, content(state)) == (2, {**self.EXPECTED, "a": 7})

    def test_that_of_a_zombie_is_not_committed(self, place: Place, state: DeltaMapState) -> None:
        leader = opened(place)
        leader.version()
        leader.fence(place.attempt(3, 9).attempt_id)
        state.parts.maintenance.maintain(TxId(3), lambda: True)
        merge(leader, place.attempt(4, 10), {"a": 1}, {"a": 1})
        state.parts.maintenance.maintain(TxId(3), lambda: True)
        assert (segments(leader).reader.compacted_txid, content(leader)) == (0, {**self.EXPECTED, "a": 8})

    def test_one_whose_file_is_gone_is_not_committed(
        self, place: Place, state: DeltaMapState, caplog: pytest.LogCaptureFixture
    ) -> None:
        [written] = segments(state).compactor.background._finished
        (place.folder / "t" / written.files[0].path).unlink()
        state.parts.maintenance.maintain(TxId(3), lambda: True)
        assert "could not be maintained" in caplog.text
        assert "does not find it" in caplog.text
        assert (segments(state).reader.compacted_txid, content(state)) == (0, self.EXPECTED)

    def test_what_it_has_written_is_no_orphan_until_it_is_committed(self, state: DeltaMapState) -> None:
        [written] = segments(state).compactor.background._finished
        segments(state)._swept_at_s = -1e9
        state.parts.maintenance.maintain(TxId(3), lambda: True)
        assert segments(state).reader.compacted_txid == 2
        assert written.files[0].path in live(state)
