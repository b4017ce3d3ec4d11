"""The merging of small files in the table of a Delta sink, and the deletion of the old ones."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyarrow.fs import FileSelector

from sinks.delta import append_log, compaction, upkeep
from sinks.delta.append_log import AppendLog
from sinks.delta.compaction import FileMerger, Merge, TableFile, choose_groups
from sinks.delta.sweeping import paths_removed_since
from state.delta.tables.table import open_storage
from tests.unit.sinks.delta.leaders import Leader, aged, entry_actions, numbers, run_names, table_files, table_rows
from transactional.errors import SinkUnavailable
from transactional.model.attempt import AttemptId, TxId


def compacting(monkeypatch: pytest.MonkeyPatch, files_min: int = 2, retention: str = "interval 1 hours") -> None:
    """Merge files, and maintain the table, after every Delta commit."""
    monkeypatch.setattr(compaction, "FILES_MIN", files_min)
    monkeypatch.setitem(append_log._PROPERTIES, "delta.checkpointInterval", "1")
    monkeypatch.setitem(append_log._PROPERTIES, "delta.deletedFileRetentionDuration", retention)


def test_files_of_settled_transactions_are_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relay publishes a group only after the store has settled the group before it."""
    compacting(monkeypatch)
    leader = Leader(tmp_path, 1).open()
    leader.publish(leader.stage(1, 2), leader.stage(2, 3))
    unsettled = table_files(tmp_path)
    leader.publish(leader.stage(1, 2), leader.stage(2, 3))
    assert table_files(tmp_path) == unsettled
    leader.publish(leader.stage(3, 4))
    unsettled_run, merged = table_files(tmp_path)
    assert (unsettled_run[:10], merged[:12]) == ("_runs/3-4-", "compacted-3-")
    assert numbers(tmp_path) == [2, 3, 4]
    table = DeltaTable(str(tmp_path / "events"))
    assert table.transaction_version("transactional.sink/attempt") == 4
    [change] = [action for action in entry_actions(tmp_path, table.version()) if "add" in action]
    assert change["add"]["dataChange"] is False
    assert json.loads(change["add"]["stats"])["minValues"] == {"n": 2, "txid": 1}


def test_files_are_merged_within_their_partition_and_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "FILES_MIN", 3)

    def files(count: int, size_bytes: int, country: str) -> list[TableFile]:
        return [TableFile(f"{country}{n}", size_bytes, AttemptId(n), {"country": country}) for n in range(count)]

    many = [*files(3, 100, "de"), *files(2, 40_000, "de"), *files(2, 100, "fr"), *files(4, 60_000, "it")]
    groups = choose_groups([*many, *files(9, 70_000, "us")], 128_000)
    assert [[file.path for file in group] for group in groups] == [["de0", "de1", "de2"], ["it0", "it1", "it2"]]


def test_a_file_that_others_have_changed_is_not_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "FILES_MIN", 2)
    leader = Leader(tmp_path, 1).open()
    leader.publish(leader.stage(1, 2))
    leader.publish(leader.stage(2, 3))
    uri = str(tmp_path / "events")

    def merge() -> Merge:
        [merge] = FileMerger(leader.sink._files).merges(DeltaTable(uri), AttemptId(9))
        return merge

    before_delete = merge()
    DeltaTable(uri).delete("n = 2")
    assert not leader.sink.publisher.replace_files(before_delete)
    leader.publish(leader.stage(3, 4), leader.stage(4, 5))
    before_optimize = merge()
    leader.publish(leader.stage(5, 6))
    DeltaTable(uri).optimize.compact()
    assert not leader.sink.publisher.replace_files(before_optimize)
    assert numbers(tmp_path) == [3, 4, 5, 6]


def test_a_leader_that_was_replaced_merges_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "FILES_MIN", 2)
    zombie = Leader(tmp_path, 1).open()
    zombie.publish(zombie.stage(1, 2), zombie.stage(2, 3))
    [merge] = FileMerger(zombie.sink._files).merges(DeltaTable(str(tmp_path / "events")), AttemptId(4))
    Leader(tmp_path, 5).open(has_published=True)
    with pytest.raises(SinkUnavailable, match="has the fence id 5, and this leader 1"):
        zombie.sink.publisher.replace_files(merge)
    assert numbers(tmp_path) == [2, 3]


def test_a_merge_is_written_after_publications_that_came_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "FILES_MIN", 2)
    leader = Leader(tmp_path, 1).open()
    leader.publish(leader.stage(1, 2), leader.stage(2, 3))
    [merge] = FileMerger(leader.sink._files).merges(DeltaTable(str(tmp_path / "events")), AttemptId(4))
    leader.publish(leader.stage(3, 4))
    assert leader.sink.publisher.replace_files(merge)
    reads = list[object]()
    monkeypatch.setattr(AppendLog, "read", reads.append)
    leader.publish(leader.stage(4, 5))
    assert reads == []
    assert numbers(tmp_path) == [2, 3, 4, 5]


def test_merged_files_have_the_rows_of_columns_that_came_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compacting(monkeypatch)
    kinds = "id string, price decimal(9,2), at timestamp, day date, is_paid boolean, raw binary, x double"
    row = ("a", Decimal("2.5"), datetime(2026, 11, 28, 1, 2, 3, tzinfo=UTC), date(2026, 11, 28), True, b"raw", 0.5)
    leader = Leader(tmp_path, 1, fields=kinds, partition_by=["is_paid", "day"]).open()
    leader.publish(leader.stage_rows(1, 2, [row] * 2))
    leader = Leader(tmp_path, 3, fields=f"{kinds}, n long", partition_by=["is_paid", "day"]).open()
    leader.publish(leader.stage_rows(2, 4, [(*row, 1)]))
    leader.publish(leader.stage_rows(3, 5, [(*row, 2)]))
    assert [path.split("-")[0] for path in table_files(tmp_path)] == ["_runs/3", "compacted"]
    names = [field.split()[0] for field in f"{kinds}, n long".split(", ")]
    assert table_rows(tmp_path, *names) == sorted([(*row, None)] * 2 + [(*row, 1), (*row, 2)], key=repr)


def test_old_files_of_merges_are_deleted_and_those_of_leaders_that_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compacting(monkeypatch)
    monkeypatch.setattr(AppendLog, "make_checkpoint", str)  # removals in it have the time of this test
    leader = Leader(tmp_path, 1).open()
    leader.publish(leader.stage(1, 2), leader.stage(2, 3))
    orphan = "compacted-3-01234567-89ab-cdef-0123-456789abcdef.parquet"
    (tmp_path / "events" / orphan).write_bytes(b"")
    leader.publish(leader.stage(3, 4))
    assert run_names(tmp_path) == {"1-2", "2-3", "3-4"}
    aged(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(upkeep, "sweep", lambda *_: None)
        leader.publish(leader.stage(4, 5))
    [risk] = leader.sink.risks("landing")
    assert "3 files that were removed longer ago than the table's retention still have their rows on the disk" in risk
    leader.publish(leader.stage(5, 6))
    assert run_names(tmp_path) == {"3-4", "4-5", "5-6"}
    assert not (tmp_path / "events" / orphan).exists()
    assert numbers(tmp_path) == [2, 3, 4, 5, 6]


def test_a_checkpoint_has_the_files_that_were_removed_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compacting(monkeypatch)
    leader = Leader(tmp_path, 1).open()
    leader.publish(leader.stage(1, 2), leader.stage(2, 3))
    removed = set(table_files(tmp_path))
    leader.publish(leader.stage(3, 4))
    log = tmp_path / "events" / "_delta_log"
    for path in log.glob("*.json"):
        path.unlink()
    storage = open_storage(leader.sink.location)
    files = {file.base_name: file for file in storage.get_file_info(FileSelector("_delta_log"))}
    assert paths_removed_since(storage, files, 0.0) == removed
    assert paths_removed_since(storage, files, 4e9) == set()


@pytest.mark.parametrize(("country", "writer"), [("de", "transactional"), ("a b", "delta-rs:")])
def test_a_rewind_replaces_files_of_others_that_span_its_target(tmp_path: Path, country: str, writer: str) -> None:
    """The new file is synced before its entry, unless the log escapes a path, which only delta-rs can follow."""
    leader = Leader(tmp_path, 1, fields="n long, country string", partition_by=["country"]).open()
    leader.publish(*(leader.stage_rows(txid, txid + 1, [(txid, country)]) for txid in range(1, 5)))
    DeltaTable(str(tmp_path / "events")).optimize.compact()
    leader.publish(leader.stage_rows(5, 6, [(5, "fr")]))
    leader.sink.go_back(TxId(2), AttemptId(9))
    assert table_rows(tmp_path, "n", "country") == [(1, country), (2, country)]
    actions = entry_actions(tmp_path, DeltaTable(str(tmp_path / "events")).version())
    [information] = [action["commitInfo"] for action in actions if "commitInfo" in action]
    assert information["engineInfo"].startswith(writer)
    later = Leader(tmp_path, 10, fields="n long, country string", partition_by=["country"]).open(has_published=True)
    later.publish(later.stage_rows(3, 11, [(3, country)]))
    assert table_rows(tmp_path, "n") == [(1,), (2,), (3,)]
