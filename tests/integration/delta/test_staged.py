"""Staged files: partial aggregates that a task writes into the table's folder, of which the driver commits metadata."""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyarrow import parquet

from spouts import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from state.delta.segments.log_layout import LogLayout
from state.delta.state import DeltaMapState
from state.delta.tables.staging import DRIVER_BYTES_MAX, STAGED_FOLDER, FileStager, parse_staged_attempt
from state.delta.upkeep.segment_upkeep import SegmentUpkeep
from tests.contract.states import OWNER, Place, content, counts
from tests.file_limit import files_up_to
from transactional.core.ports import Partials, StateKind
from transactional.core.ports.examining import Problem
from transactional.core.ports.staged import StagedFile
from transactional.errors import ConfigError, Fenced, OperatingError, ProtocolError, SumOverflow
from transactional.model.attempt import TransactionAttempt, TxId
from transactional.model.config import TopologyConfig
from transactional.operations.launch.running import run_topology
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.executors.local import LocalExecutor
from transactional.testing import MemoryCoordinatorStore
from transactional.topology.builder import TransactionalTopologyBuilder
from transactional.topology.topology import Topology
from verifier.checker import CheckedTable, verify


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place("delta-rs/log", tmp_path)


def opened(place: Place, kind: StateKind = StateKind.OPAQUE, **options: Any) -> DeltaMapState:
    layout = LogLayout(**{"compact_after": None, **options})
    state = DeltaMapState(place.folder / "t", "word string", "count long", kind=kind, layout=layout)
    state.open(OWNER, place.txids.__getitem__)
    return state


def stage(state: DeltaMapState, attempt: TransactionAttempt, *parts: dict[str, int]) -> list[StagedFile]:
    """A file for each of the parts, as so many tasks would write them."""
    stager = state.parts.staging.stager(OWNER)
    assert stager is not None
    return [stager.stage(attempt, counts(part).table) for part in parts]


def merge(state: DeltaMapState, attempt: TransactionAttempt, *parts: dict[str, int], driver: Any = None) -> None:
    """A transaction of staged parts, and of one that comes through the driver."""
    state.merge(attempt, replace(counts(driver or {}), staged=stage(state, attempt, *parts)))


def live(state: DeltaMapState) -> list[str]:
    return sorted(pa.table(DeltaTable(state.location.uri).get_add_actions())["path"].to_pylist())


def segments(state: DeltaMapState) -> SegmentUpkeep:
    upkeep = state.open_table.upkeep
    assert isinstance(upkeep, SegmentUpkeep)
    return upkeep


class TestCommit:
    def test_a_commit_is_metadata_only_and_says_what_the_files_say(self, place: Place) -> None:
        state = opened(place)
        attempt = place.attempt(1, 1)
        files = stage(state, attempt, {"a": 1, "b": 7}, {"a": 2})
        before = {path: path.stat().st_mtime_ns for path in (place.folder / "t").rglob("*.parquet")}
        state.merge(attempt, replace(counts({}), staged=files))
        assert {path: path.stat().st_mtime_ns for path in (place.folder / "t").rglob("*.parquet")} == before
        assert live(state) == sorted(file.path for file in files)
        told = pa.table(DeltaTable(state.location.uri).get_add_actions(flatten=True)).sort_by("num_records")
        assert told["num_records"].to_pylist() == [1, 2]
        assert (told["min.count"].to_pylist(), told["max.count"].to_pylist()) == ([2, 1], [2, 7])
        assert told["min.word"].to_pylist() == [None, None], "the bound of a string may be cut, so there is none"
        assert content(state) == {"a": 3, "b": 7}

    def test_what_comes_through_the_driver_is_a_further_file_of_the_same_commit(self, place: Place) -> None:
        state = opened(place)
        merge(state, place.attempt(1, 1), {"a": 1}, {"b": 1}, driver={"a": 10, "c": 10})
        version = DeltaTable(state.location.uri).version()
        merge(state, place.attempt(2, 2), {"a": 1}, {"b": 1}, driver={"a": 10})
        assert DeltaTable(state.location.uri).version() == version + 1
        assert content(state) == {"a": 22, "b": 2, "c": 10}
        assert len(live(state)) == 6
        assert state.read(committed_txid=TxId(1)).num_rows == 3

    def test_a_file_without_rows_is_no_part_of_the_table(self, place: Place) -> None:
        """Nothing would ever remove it: an engine rewrites the files that have rows."""
        state = opened(place)
        for txid in (1, 2, 3):
            merge(state, place.attempt(txid, txid), {"a": txid}, {})
        assert len(live(state)) == 3
        state.compact()
        assert len(live(state)) == 2
        assert content(state) == {"a": 6}

    @pytest.mark.parametrize("by_driver", [True, False])
    def test_a_replay_replaces_exactly_what_the_dead_attempt_had(self, place: Place, *, by_driver: bool) -> None:
        state = opened(place)
        merge(state, place.attempt(1, 1), {"a": 1}, {"a": 1})
        merge(state, place.attempt(2, 2), {"a": 1, "dead": 1}, {"b": 1}, {"b": 5}, driver={"dead": 1})
        attempt = place.attempt(2, 3)
        if by_driver:
            state.merge(attempt, counts({"a": 3}))
        else:
            merge(state, attempt, {"a": 3})
        assert content(state) == {"a": 5}

    def test_a_replay_of_a_transactional_state_writes_the_version_alone(self, place: Place) -> None:
        state = opened(place, StateKind.TRANSACTIONAL)
        merge(state, place.attempt(1, 1), {"a": 1}, {"a": 1})
        there = live(state)
        merge(state, place.attempt(1, 2), {"a": 1}, {"a": 1})
        assert (live(state), state.version()) == (there, 2)

    def test_a_commit_whose_files_somebody_has_compacted_is_replaced_all_the_same(self, place: Place) -> None:
        state = opened(place)
        merge(state, place.attempt(1, 1), {"a": 1, "b": 1}, {"a": 2})
        DeltaTable(state.location.uri).optimize.compact()
        assert len(live(state)) == 1
        assert not live(state)[0].startswith(STAGED_FOLDER)
        assert content(state) == {"a": 3, "b": 1}, "one file, and two rows of one key"
        attempt = place.attempt(1, 2)
        table, compacted = state.open_table, list[int]()
        read_and_check = table.read_and_check_version

        def compacted_after_the_check() -> Any:
            version = read_and_check()
            if not compacted:
                handle = DeltaTable(state.location.uri)
                handle.alter.set_table_properties({"delta.checkpointInterval": "50"})
                compacted.append(handle.version())
            return version

        table.read_and_check_version = compacted_after_the_check
        merge(state, attempt, {"a": 5}, {"a": 5})
        assert compacted
        assert content(state) == {"a": 10}

    def test_a_zombie_that_has_staged_changes_nothing(self, place: Place) -> None:
        zombie, leader = opened(place), opened(place)
        merge(zombie, place.attempt(1, 1), {"a": 1}, {"a": 1})
        late = place.attempt(2, 2)
        files = stage(zombie, late, {"a": 100}, {"a": 100})
        place.txids[3] = TxId(1)
        leader.version()
        leader.fence(place.attempt(1, 3).attempt_id)
        with pytest.raises(Fenced):
            zombie.merge(late, replace(counts({}), staged=files))
        merge(leader, place.attempt(2, 4), {"a": 1}, {"b": 1})
        assert content(leader) == {"a": 3, "b": 1}


class TestWhatIsReported:
    def test_a_file_that_is_missing_fails_the_attempt(self, place: Place) -> None:
        state = opened(place)
        files = stage(state, place.attempt(1, 1), {"a": 1}, {"b": 1})
        (place.folder / "t" / files[1].path).unlink()
        missing = rf"a task on \S+ has reported {files[1].path}, and the driver does not find it.*the same folder"
        with pytest.raises(OperatingError, match=missing):
            state.merge(place.attempt(1, 1), replace(counts({}), staged=files))
        assert state.version() is None

    def test_a_file_of_another_size_fails_the_attempt(self, place: Place) -> None:
        state = opened(place)
        [file] = stage(state, place.attempt(1, 1), {"a": 1})
        os.truncate(place.folder / "t" / file.path, 10)
        with pytest.raises(OperatingError, match=f"has 10 bytes, {file.size_bytes} were reported"):
            state.merge(place.attempt(1, 1), replace(counts({}), staged=[file]))
        assert state.version() is None

    def test_a_file_of_another_attempt_or_not_synced_is_refused(self, place: Place) -> None:
        state = opened(place)
        [file] = stage(state, place.attempt(1, 1), {"a": 1})
        with pytest.raises(ProtocolError, match="of another attempt than"):
            state.merge(place.attempt(1, 2), replace(counts({}), staged=[file]))
        with pytest.raises(ProtocolError, match="which is not synced"):
            state.merge(place.attempt(1, 1), replace(counts({}), staged=[replace(file, is_synced=False)]))
        assert state.version() is None

    def test_what_is_in_a_table_of_the_merge_layout_is_read_by_the_driver(self, place: Place) -> None:
        state = opened(place)
        attempt = place.attempt(1, 1)
        files = stage(state, attempt, {"a": 1}, {"a": 2, "b": 1})
        merged = DeltaMapState(place.folder / "m", "word string", "count long")
        merged.open(OWNER, place.txids.__getitem__)
        (place.folder / "m" / STAGED_FOLDER).mkdir()
        for file in files:
            os.link(place.folder / "t" / file.path, place.folder / "m" / file.path)
        merged.merge(attempt, replace(counts({"b": 5}), staged=files))
        assert content(merged) == {"a": 3, "b": 6}


class TestStager:
    def stager(self, folder: Path, **more: Any) -> FileStager:
        state = DeltaMapState(folder, "word string", "count long")
        return FileStager(folder, "topo logy/ä", state.declared.columns.key, **more)

    def rows(self, *words: str) -> pa.Table:
        return pa.table({"word": list(words)})

    def test_each_execution_has_a_name_of_its_own(self, tmp_path: Path, place: Place) -> None:
        attempt = place.attempt(7, 12)
        files = [self.stager(tmp_path).stage(attempt, self.rows("a")) for _ in range(2)]
        assert len({file.path for file in files}) == 2
        assert [parse_staged_attempt(file.path) for file in files] == [attempt, attempt]
        assert all(file.path.isascii() and " " not in file.path for file in files)
        assert parse_staged_attempt("part-00000-7.parquet") is None

    def test_never_writes_over_what_is_there(
        self, tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = self.stager(tmp_path).stage(place.attempt(1, 1), self.rows("a"))
        monkeypatch.setattr("state.delta.tables.staging.make_staged_name", lambda *_: file.path)
        with pytest.raises(OperatingError, match="File exists"):
            self.stager(tmp_path).stage(place.attempt(1, 1), self.rows("b", "c"))
        assert parquet.read_table(tmp_path / file.path)["word"].to_pylist() == ["a"]

    def test_without_the_tables_folder_there_is_one_clear_line(self, tmp_path: Path, place: Place) -> None:
        with pytest.raises(OperatingError, match="every executor and the driver must see the same") as told:
            self.stager(tmp_path / "not mounted").stage(place.attempt(1, 1), self.rows("a"))
        assert "\n" not in str(told.value)

    def test_a_disk_that_takes_no_more_is_one_clear_line_and_leaves_nothing(self, tmp_path: Path, place: Place) -> None:
        # A limit of the process stands in for a full disk.
        words = [str(number) for number in range(100_000)]
        with files_up_to(20_000), pytest.raises(OperatingError, match=f"can't be written to {tmp_path}.* too large"):
            self.stager(tmp_path).stage(place.attempt(1, 1), self.rows(*words))
        assert list((tmp_path / STAGED_FOLDER).iterdir()) == []

    def test_small_ones_go_through_the_driver_unless_many_tasks_have_some(self, tmp_path: Path) -> None:
        stager = self.stager(tmp_path, bytes_min=1_000_000)
        assert [stager.is_large_enough(size, 2) for size in (1_000_000, 1_000_001)] == [False, True]
        assert stager.is_large_enough(DRIVER_BYTES_MAX // 200 + 1, 200)
        assert not stager.is_large_enough(DRIVER_BYTES_MAX // 200, 200)

    def test_options_are_checked(self) -> None:
        with pytest.raises(ConfigError, match="staged_bytes is at least 0"):
            LogLayout(staged_bytes=-1)

    def test_who_stages(self, tmp_path: Path) -> None:
        def stager(layout: Any, table: Any = tmp_path / "t", **more: Any) -> FileStager | None:
            state = DeltaMapState(table, "word string", "count long", layout=layout, **more)
            return state.parts.staging.stager(OWNER)  # type: ignore[return-value]

        assert stager("log") is not None
        assert stager("auto") is None
        assert stager(LogLayout(staged_bytes=None)) is None
        assert stager("log", "gs://bucket/t") is None


class TestOrphans:
    RETENTION_S = 30 * 60

    def age(self, state: DeltaMapState, seconds: float) -> None:
        """By the storage's clock: the newest Delta commit is so much later."""
        table = DeltaTable(state.location.uri)
        entry = Path(state.location.uri, "_delta_log", f"{table.version():020}.json")
        at = entry.stat().st_mtime + seconds
        os.utime(entry, (at, at))

    def test_go_in_two_passes_a_retention_apart(self, place: Place) -> None:
        state = opened(place)
        stage(state, place.attempt(1, 1), {"dead": 1})
        merge(state, place.attempt(1, 2), {"a": 1}, {"a": 1})
        mine, orphans = set(live(state)), set(self.listed(state)) - set(live(state))
        assert len(orphans) == 1
        assert segments(state).sweep() == 0
        self.age(state, self.RETENTION_S - 60)
        assert segments(state).sweep() == 0
        self.age(state, 120)
        assert segments(state).sweep() == 1
        assert set(self.listed(state)) == mine
        assert content(state) == {"a": 2}

    def test_those_of_an_attempt_that_may_still_commit_stay_however_old(self, place: Place) -> None:
        state = opened(place)
        merge(state, place.attempt(1, 1), {"a": 1}, {"a": 1})
        attempt = place.attempt(2, 5)
        files = stage(state, attempt, {"a": 1}, {"b": 1})
        for _ in range(3):
            assert segments(state).sweep() == 0
            self.age(state, 2 * self.RETENTION_S)
        state.merge(attempt, replace(counts({}), staged=files))
        assert content(state) == {"a": 3, "b": 1}

    def test_what_a_compaction_has_replaced_stays_for_readers_and_goes_then(self, place: Place) -> None:
        state = opened(place)
        for txid in (1, 2, 3):
            merge(state, place.attempt(txid, txid), {"a": 1}, {"a": 1})
        reader = DeltaTable(state.location.uri)
        state.compact()
        assert segments(state).sweep() == 0
        assert sum(reader.to_pyarrow_dataset().to_table()["count"].to_pylist()) == 6
        self.age(state, self.RETENTION_S + 60)
        assert segments(state).sweep() == 4
        assert content(state) == {"a": 6}

    def test_what_a_driver_has_left_that_died_at_its_start_or_in_a_compaction_goes_too(self, place: Place) -> None:
        state = opened(place)
        merge(state, place.attempt(1, 1), {"a": 1}, {"a": 1})
        staged = Path(state.location.uri, "_staged")
        (staged / "mark-1").touch()
        (staged / "job-1").mkdir()
        for name in ("job-1/part-0.parquet", "of somebody else"):
            (staged / name).touch()
        assert segments(state).sweep() == 0
        self.age(state, self.RETENTION_S + 60)
        assert segments(state).sweep() == 2
        assert set(self.listed(state)) == {*live(state), "_staged/of somebody else"}

    def test_one_that_was_taken_over_deletes_nothing(self, place: Place) -> None:
        zombie, leader = opened(place), opened(place)
        stage(zombie, place.attempt(1, 1), {"dead": 1})
        merge(zombie, place.attempt(1, 2), {"a": 1}, {"a": 1})
        segments(zombie).sweep()
        leader.version()
        leader.fence(place.attempt(1, 9).attempt_id)
        self.age(leader, 2 * self.RETENTION_S)
        assert segments(zombie).sweep() == 0
        assert len(self.listed(leader)) == 3

    def test_no_vacuum_lists_them(self, place: Place) -> None:
        state = opened(place)
        files = stage(state, place.attempt(2, 7), {"later": 1})
        merge(state, place.attempt(1, 1), {"a": 1}, {"a": 1})
        table = DeltaTable(state.location.uri)
        for full in (True, False):
            table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=full)
        assert set(self.listed(state)) == {*live(state), files[0].path}
        found = QueryBuilder().register("t", table).execute('SELECT sum("count") AS n FROM t').read_all()
        assert found.column(0)[0].as_py() == 2

    def listed(self, state: DeltaMapState) -> list[str]:
        return [f"{STAGED_FOLDER}/{name}" for name in os.listdir(Path(state.location.uri, STAGED_FOLDER))]


class TestSums:
    def test_overflow_over_several_files_is_an_error_before_anything_is_written(self, place: Place) -> None:
        state = opened(place)
        merge(state, place.attempt(1, 1), {"a": 2**62}, {"b": 1})
        with pytest.raises(SumOverflow, match="'a'"):
            merge(state, place.attempt(2, 2), {"a": 2**61}, {"a": 2**61})
        assert content(state) == {"a": 2**62, "b": 1}
        merge(state, place.attempt(2, 3), {"a": 2**61}, {"a": 2**61 - 1})
        assert content(state) == {"a": 2**63 - 1, "b": 1}

    def test_the_bound_of_a_table_that_somebody_has_compacted_is_no_smaller(self, place: Place) -> None:
        state = opened(place)
        merge(state, place.attempt(1, 1), {"a": 2**61}, {"a": 2**61}, {"a": 2**61})
        DeltaTable(state.location.uri).optimize.compact()
        again = opened(place)
        with pytest.raises(SumOverflow):
            merge(again, place.attempt(2, 2), {"a": 2**61})

    def test_the_bound_is_measured_where_everything_is_compacted(self, place: Place) -> None:
        """Statistics tell nothing of decimals, and the newest transaction has no rows."""

        def total(price: int) -> pa.Table:
            return pa.table({"word": ["a"], "total": pa.array([Decimal(price)], pa.decimal128(5, 0))})

        never = LogLayout(compact_after=None)
        state = DeltaMapState(place.folder / "t", "word string", "total decimal(5,0)", layout=never)
        state.open(OWNER, place.txids.__getitem__)
        stager = state.parts.staging.stager(OWNER)
        assert stager is not None
        for txid in (1, 2):
            attempt = place.attempt(txid, txid)
            staged = [stager.stage(attempt, total(10_000)) for _ in range(2)]
            state.merge(attempt, Partials({"total": "sum"}, total(0).slice(0, 0), staged))
        state.merge(place.attempt(3, 3), Partials({"total": "sum"}, total(0).slice(0, 0)))
        state.compact()
        state.open(OWNER, place.txids.__getitem__)
        attempt = place.attempt(4, 4)
        late = Partials({"total": "sum"}, total(0), [stager.stage(attempt, total(60_000))])
        with pytest.raises(SumOverflow, match="40000"):
            state.merge(attempt, late)
        assert content(state) == {"a": Decimal(40_000)}


class TestCompactions:
    def test_files_make_a_compaction_due(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("state.delta.segments.log_layout.COMPACTION_FILES", 4)
        state = opened(place, compact_after=1000)
        for txid in (1, 2, 3):
            merge(state, place.attempt(txid, txid), {"a": 1}, {"a": 1})
            state.parts.maintenance.maintain(TxId(txid), lambda: True)
        assert segments(state).reader.compacted_txid == 1
        assert content(state) == {"a": 6}

    def test_one_transaction_of_several_files_is_compacted_too(self, place: Place) -> None:
        state = opened(place)
        merge(state, place.attempt(1, 1), {"a": 1}, {"a": 1})
        merge(state, place.attempt(2, 2), {"a": 1}, {"a": 1})
        state.compact()
        table = DeltaTable(state.location.uri)
        rows = table.to_pyarrow_dataset().to_table().to_pylist()
        assert Counter(row["txid"] for row in rows) == {1: 1, 2: 2}


LINES = ("the cat saw the dog and the cat ran", "a cat a dog")
WORDS = [[(word,) for word in line.split(" ")] for line in LINES]


class TestTopology:
    def build(self, folder: Path, *, opaque: bool = False, rows: int | None = None, **options: Any) -> Topology:
        kind = OpaqueMemoryTransactionalSpout if opaque else MemoryTransactionalSpout
        spout = kind([words[:rows] for words in WORDS], "word string", take=2)
        builder = TransactionalTopologyBuilder("words", "lines", spout, parallelism=2)
        options = {"compact_after": 2, "staged_bytes": 0, **options}
        state = DeltaMapState(folder / "t", "word", layout=LogLayout(**options))
        builder.set_committer_bolt("count", state.count()).fields_grouping("lines", "word")
        return builder.build()

    def run(self, topology: Topology, store: MemoryCoordinatorStore | None = None) -> None:
        config = TopologyConfig(stop_when_drained=True, attempts_max=1)
        TopologyDriver(topology, store or MemoryCoordinatorStore(), LocalExecutor(topology), config).run()

    @pytest.mark.parametrize("opaque", [False, True])
    def test_tasks_write_and_the_driver_commits(self, tmp_path: Path, *, opaque: bool) -> None:
        self.run(self.build(tmp_path, opaque=opaque))
        expected = Counter(" ".join(LINES).split(" "))
        assert content(DeltaMapState(tmp_path / "t", "word string", "count long")) == expected
        assert len(os.listdir(tmp_path / "t" / STAGED_FOLDER)) >= 8

    @pytest.mark.parametrize("compact_after", [None, 2])
    def test_the_verifier_finds_keys_that_come_from_two_tasks_right(
        self, tmp_path: Path, compact_after: int | None
    ) -> None:
        store = f"sqlite:///{tmp_path}/store.db"
        topology = self.build(tmp_path, compact_after=compact_after)
        run_topology(topology, store=store, master="none", config=TopologyConfig(stop_when_drained=True))
        rows = DeltaTable(tmp_path / "t").to_pyarrow_dataset().to_table().group_by(["word", "txid"]).aggregate([])
        repeated = DeltaTable(tmp_path / "t").count() - rows.num_rows
        assert (repeated > 0) == (compact_after is None)
        report = verify(store, "words", [CheckedTable("count", str(tmp_path / "t"), counts="count")])
        assert report.is_exact, report.findings

    def test_a_run_that_stages_nothing_goes_on_with_the_table(self, tmp_path: Path) -> None:
        store = MemoryCoordinatorStore()
        self.run(self.build(tmp_path, rows=3), store)
        assert (tmp_path / "t" / STAGED_FOLDER).exists()
        self.run(self.build(tmp_path, staged_bytes=None), store)
        assert content(DeltaMapState(tmp_path / "t", "word string", "count long")) == Counter(
            " ".join(LINES).split(" ")
        )


class TestDoctor:
    def found(self, state: DeltaMapState) -> list[tuple[Problem, bool, str]]:
        examined = state.parts.examination.examine(*OWNER.split("/"))
        assert examined is not None
        return [(each.problem, each.is_harmless, each.what) for each in examined.diagnoses()]

    def test_names_what_nobody_commits_and_what_somebody_may(self, place: Place) -> None:
        state = opened(place)
        merge(state, place.attempt(1, 2), {"a": 1}, {"a": 1})
        assert self.found(state) == []
        stage(state, place.attempt(1, 1), {"dead": 1})
        stage(state, place.attempt(2, 7), {"b": 1}, {"b": 1})
        Path(state.location.uri, "_staged", "mark-1").touch()
        dead, waiting, mark = self.found(state)
        assert {each[:2] for each in (dead, waiting, mark)} == {(Problem.FILES_LEFT_OVER, True)}
        assert re.match(r"1 file with [\d,]+ bytes in _staged of attempt 1:1 are no part .* attempt 2$", dead[2])
        assert re.match(r"2 files with [\d,]+ bytes in _staged of attempt 2:7 are not committed", waiting[2])
        assert "mark-1" in mark[2]

    def test_names_a_live_file_that_is_missing(self, place: Place) -> None:
        state = opened(place)
        merge(state, place.attempt(1, 1), {"a": 1}, {"a": 1})
        path = sorted(live(state))[0]
        for txid in range(2, 5):  # one of the newest Delta commit a power cut may have taken
            merge(state, place.attempt(txid, txid), {"a": 1}, {"a": 1})
        Path(state.location.uri, path).unlink()
        [(problem, is_harmless, what)] = self.found(state)
        assert (problem, is_harmless) == (Problem.FILE_MISSING, False)
        assert path in what
