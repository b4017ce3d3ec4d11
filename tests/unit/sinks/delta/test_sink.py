"""The Delta sink on a disk, with a store in SQLite: rows, partitions, fences, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from sinks import DeltaSink
from sinks.delta import append_log, publisher, sink, upkeep
from sinks.delta.append_log import AppendLog, VersionTaken
from sinks.delta.compaction import FileMerger
from sinks.delta.publisher import DeltaPublisher
from sinks.delta.run_files import RUNS_FOLDER, attempt_of
from sinks.delta.sweeping import paths_removed_since, sweep
from spouts import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from state import MemoryMapState
from state.delta.tables.table import open_storage
from tests.standing_s3 import BUCKET, StandingS3
from tests.unit.sinks.delta.landing import FIELDS, build, progress_of, rows, run
from tests.unit.sinks.delta.leaders import Leader, aged, numbers, run_names, table_rows
from transactional import TopologyConfig, run_topology
from transactional.core.ports import SinkOwner
from transactional.core.store.sink_rules import records_in
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.errors import (
    ConfigError,
    CorruptRecord,
    SchemaMismatch,
    SinkUnavailable,
    StoreMismatch,
    TableUnfit,
)
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.runtime.engine.rewinding import rewind
from transactional.runtime.processing import staging
from transactional.topology.bolts.sink_bolt import SinkBolt
from transactional.trident import Avg, Sum, TridentTopology

TOPOLOGY = pytest.mark.long("a topology runs; without one the same is done in a tenth of the time")


def test_each_row_of_a_committed_transaction_is_appended_once(tmp_path: Path) -> None:
    assert run(tmp_path, rows(10)).committed_txid == 3
    assert table_rows(tmp_path) == sorted(rows(10)[0], key=repr)
    assert table_rows(tmp_path, "amount", "txid") == sorted(((n, n // 4 + 1) for n in range(10)), key=repr)
    assert run(tmp_path, rows(11)).committed_txid == 4
    assert table_rows(tmp_path) == sorted(rows(11)[0], key=repr)
    progress = progress_of(tmp_path)
    assert (progress.done_txid, progress.waiting) == (4, 0)


@TOPOLOGY
def test_partitions_are_fields_and_parts_of_times(tmp_path: Path) -> None:
    run(tmp_path, rows(20), partition_by=["country", "day(event_time)"], txid="transaction")
    table = DeltaTable(str(tmp_path / "events"))
    assert table.metadata().partition_columns == ["country", "event_time_day"]
    assert table_rows(tmp_path, "amount", "country", "event_time_day", "transaction") == sorted(
        ((n, country, time.date(), n // 4 + 1) for _, country, time, n in rows(20)[0]), key=repr
    )
    assert (table.protocol().min_reader_version, table.protocol().min_writer_version) == (1, 2)


@TOPOLOGY
def test_files_have_the_target_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sinks.delta.run_files._GROUP_ROWS", 1)
    run(tmp_path, rows(8), target_file_bytes=1)
    assert len(list((tmp_path / "events" / RUNS_FOLDER).iterdir())) == 8
    assert table_rows(tmp_path) == sorted(rows(8)[0], key=repr)


def test_tasks_stage_many_rows_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "RECORDS_BYTES_MIN", 0)
    staged_by_tasks = list[int]()
    original = DeltaSink.check_staged

    def check_staged(sink: DeltaSink, attempt: TransactionAttempt, staged: pa.Table) -> None:
        staged_by_tasks.append(staged.num_rows)
        original(sink, attempt, staged)

    monkeypatch.setattr(DeltaSink, "check_staged", check_staged)
    run(tmp_path, rows(8))
    assert staged_by_tasks == [1, 1]
    with closing(SqlCoordinatorStore(f"sqlite:///{tmp_path}/store.db")) as store:
        counts = [records_in(attempt.details) for attempt in store.times("landing", limit=9)]
    assert counts == [{"events": 4}, {"events": 4}], "rows, not files"
    assert table_rows(tmp_path) == sorted(rows(8)[0], key=repr)


# --- position and fence ----------------------------------------------------------------------------------------------


def test_an_earlier_leader_publishes_nothing_any_more(tmp_path: Path) -> None:
    zombie = Leader(tmp_path, 1).open()
    zombie.sink.publish([first := zombie.stage(1, 2)])
    leader = Leader(tmp_path, 5).open(has_published=True)
    assert (position := leader.sink.position()) is not None
    assert position.publication == first.publication
    with pytest.raises(SinkUnavailable, match="has the fence id 5, and this leader 1") as refused:
        zombie.sink.publish([zombie.stage(2, 3)])
    assert refused.value.is_fenced
    with pytest.raises(StoreMismatch, match=r"a leader with the fence id 5 publishes .* and this one has 1"):
        zombie.sink.open(zombie.owner, has_published=True)
    leader.sink.publish([leader.stage(2, 6), leader.stage(3, 7)])
    assert numbers(tmp_path) == [2, 6, 7]


def test_the_position_is_an_attempt_not_a_transaction(tmp_path: Path) -> None:
    """After a rewind to transaction 1 transaction 2 comes again, with a later attempt."""
    leader = Leader(tmp_path, 1).open()
    leader.sink.publish([leader.stage(1, 2), leader.stage(2, 3)])
    table = DeltaTable(str(tmp_path / "events"))
    versions = [table.transaction_version(f"transactional.sink/{name}") for name in ("attempt", "txid", "fence")]
    assert versions == [3, 2, 1]
    leader.sink.go_back(TxId(1), AttemptId(4))
    assert numbers(tmp_path) == [2]
    later = Leader(tmp_path, 5).open(has_published=True)
    later.sink.publish([later.stage(2, 6)])
    assert numbers(tmp_path) == [2, 6]
    with pytest.raises(StoreMismatch, match="somebody else has written this sink's position"):
        later.sink.publish([later.stage(2, 5)])


def test_a_rewind_divides_files_and_can_be_repeated(tmp_path: Path) -> None:
    """Files that were compacted have rows of several transactions."""
    leader = Leader(tmp_path, 1).open()
    leader.sink.publish([leader.stage(txid, txid + 1) for txid in range(1, 6)])
    DeltaTable(str(tmp_path / "events")).optimize.compact()
    leader.sink.go_back(TxId(3), AttemptId(10))
    leader.sink.go_back(TxId(3), AttemptId(11))
    assert numbers(tmp_path) == [2, 3, 4]
    earlier = Leader(tmp_path, 10)
    earlier.sink._publisher = DeltaPublisher(
        earlier.sink._log, earlier.sink._files, earlier.sink._declared, earlier.owner
    )
    with pytest.raises(SinkUnavailable, match="has the fence id 11, and this leader 10"):
        earlier.sink.publish([earlier.stage(4, 12)])


@pytest.mark.parametrize("is_written", [True, False])
def test_a_commit_without_an_answer_is_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_written: bool
) -> None:
    leader = Leader(tmp_path, 1).open()
    group = [leader.stage(1, 2), leader.stage(2, 3)]
    original = AppendLog.write

    def write(log: AppendLog, version: int, actions: Sequence[Any]) -> None:
        if is_written:
            original(log, version, actions)
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(AppendLog, "write", write)
        with pytest.raises(SinkUnavailable, match=r"sink 'events' can't publish: .*Input/output error"):
            leader.sink.publish(group)
    # Files that were compacted meanwhile would bring their rows a second time.
    DeltaTable(str(tmp_path / "events")).optimize.compact()
    leader.sink.publish([*group, leader.stage(3, 4)])
    assert numbers(tmp_path) == [2, 3, 4]


@TOPOLOGY
def test_maintenance_by_others_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append_log, "CHECKPOINT_INTERVAL", 2)
    monkeypatch.setitem(append_log._PROPERTIES, "delta.checkpointInterval", "3")
    leader = Leader(tmp_path, 1).open()
    for txid in range(1, 12):
        leader.sink.publish([leader.stage(txid, txid + 1)])
        table = DeltaTable(str(tmp_path / "events"))
        if txid % 4 == 0:
            table.optimize.compact()
            table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    assert numbers(tmp_path) == list(range(2, 13))
    assert list((tmp_path / "events" / "_delta_log").glob("*.checkpoint.parquet"))
    again = Leader(tmp_path, 20).open(has_published=True)
    assert (position := again.sink.position()) is not None
    assert position.publication.attempt == TransactionAttempt(TxId(11), AttemptId(12))


def test_a_busy_table_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leader = Leader(tmp_path, 1).open()
    monkeypatch.setattr(AppendLog, "write", refuse)
    monkeypatch.setattr(publisher, "_TRIES_MAX", 2)
    with pytest.raises(SinkUnavailable, match="others write to it too often to append"):
        leader.sink.publish([leader.stage(1, 2)])
    with pytest.raises(SinkUnavailable, match="others write to it too often to take it over"):
        leader.sink.open(SinkOwner("landing", "events", "store", AttemptId(9)), has_published=False)


def refuse(_log: AppendLog, version: int, _actions: object) -> None:
    raise VersionTaken(version)


def test_a_lost_file_ends_the_run(tmp_path: Path) -> None:
    leader = Leader(tmp_path, 1).open()
    published = leader.stage(7, 8)
    [path] = published.records["path"].to_pylist()
    assert attempt_of(path) == published.publication.attempt
    (tmp_path / "events" / path).unlink()
    with pytest.raises(CorruptRecord, match=r"a file of committed transactions 7 to 7 is lost: _runs/7-8-.* not there"):
        leader.sink.publish([published])


@TOPOLOGY
def test_a_topology_goes_back_and_appends_again(tmp_path: Path) -> None:
    run(tmp_path, rows(14))
    DeltaTable(str(tmp_path / "events")).optimize.compact()
    with closing(SqlCoordinatorStore(f"sqlite:///{tmp_path}/store.db")) as store:
        plan = rewind(build(tmp_path, rows(14)), store, TxId(2), owner="test")
        assert plan.sinks == (
            f"events: 6 records of transactions 3 to 4 are taken out of Delta table {tmp_path}/events",
        )
    assert sorted(row[0] for row in table_rows(tmp_path, "amount")) == list(range(8))
    assert run(tmp_path, rows(15)).committed_txid == 4
    assert table_rows(tmp_path) == sorted(rows(15)[0], key=repr)


# --- files -----------------------------------------------------------------------------------------------------------


def test_files_are_deleted_that_nobody_reads_or_publishes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of dead attempts, and those that were removed; not those in the outbox, nor those removed lately."""
    monkeypatch.setitem(append_log._PROPERTIES, "delta.deletedFileRetentionDuration", "interval 1 hours")
    leader = Leader(tmp_path, 1).open()
    first, waiting = leader.stage(1, 3), leader.stage(3, 5)
    leader.stage(1, 2)
    leader.publish(first)
    aged(tmp_path)
    assert sweep(AppendLog(leader.sink.location), AttemptId(4)) == []
    leader.publish(leader.stage(2, 4))
    [dead] = sweep(AppendLog(leader.sink.location), AttemptId(5))
    assert dead.startswith("_runs/1-2-")
    assert run_names(tmp_path) == {"1-3", "2-4", "3-5"}
    DeltaTable(str(tmp_path / "events")).delete("n = 3")
    assert sweep(AppendLog(leader.sink.location), AttemptId(5)) == []
    aged(tmp_path)
    leader = Leader(tmp_path, 2).open(has_published=True)
    leader.publish(waiting)  # after a foreign Delta commit files are deleted, too
    assert run_names(tmp_path) == {"2-4", "3-5"}
    assert numbers(tmp_path) == [4, 5]


def test_nothing_is_deleted_if_the_log_does_not_say_when_it_was_removed(tmp_path: Path) -> None:
    leader = Leader(tmp_path, 1).open()
    leader.sink.publish([leader.stage(1, 2)])
    storage = open_storage(leader.sink.location)
    assert paths_removed_since(storage, {}, 0.0) is None


def test_a_leader_deletes_files_after_its_first_publication(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    swept = list[tuple[object, int]]()  # upkeep of the table of another test may still be in progress
    monkeypatch.setattr(upkeep, "sweep", lambda log, settled: swept.append((log.location, settled)))
    leader = Leader(tmp_path, 1).open()
    leader.publish(leader.stage(1, 2))
    leader.publish(leader.stage(2, 3))
    assert [settled for location, settled in swept if location == leader.sink.location] == [2]


def test_upkeep_ends_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    swept, is_hanging, may_continue = list[object](), Event(), Event()

    def hang(*_: object) -> list[object]:
        is_hanging.set()
        may_continue.wait()
        return []

    monkeypatch.setattr(upkeep, "sweep", lambda log, _: swept.append(log.location))
    leader = Leader(tmp_path, 1).open()
    leader.sink.publish([leader.stage(1, 2)])
    leader.sink.close()
    assert swept == [leader.sink.location], "a short run maintains its table"
    monkeypatch.setattr(sink, "UPKEEP_END_S", 0.0)
    monkeypatch.setattr(FileMerger, "merges", hang)
    later = Leader(tmp_path, 5).open(has_published=True)
    later.sink.publish([later.stage(2, 6)])
    assert is_hanging.wait(60)
    later.sink.close()
    may_continue.set()
    later.sink.publisher.upkeep.wait()
    assert len(swept) == 1


@TOPOLOGY
def test_an_object_store_has_the_table(tmp_path: Path) -> None:
    with StandingS3().serving() as store:
        uri, options = f"s3://{BUCKET}/events", {**store.options, "timeout": "5s", "max_retries": "0"}
        for count in (6, 9):
            topology = TridentTopology("landing")
            spout = MemoryTransactionalSpout(rows(count), FIELDS, take=4)
            sink = DeltaSink(uri, partition_by=["day(event_time)"], storage_options=options)
            topology.new_stream("rows", spout).sink_to(sink, name="events")
            config = TopologyConfig(stop_when_drained=True)
            run_topology(topology.build(), store=f"sqlite:///{tmp_path}/store.db", config=config, master="none")
            DeltaTable(uri, storage_options=options).optimize.compact()
        amounts = DeltaTable(uri, storage_options=options).to_pyarrow_table()["amount"].to_pylist()
    assert sorted(amounts) == list(range(9))


def test_the_run_of_the_newest_publication_is_in_the_properties(tmp_path: Path) -> None:
    leader = Leader(tmp_path, 1).open()
    leader.sink.publish([leader.stage(1, 2, "first"), leader.stage(2, 3, "second")])
    properties = DeltaTable(str(tmp_path / "events")).metadata().configuration
    assert json.loads(properties["transactional.sink"]) == {
        "topology": "landing",
        "sink": "events",
        "store": "store",
        "run": "second",
    }


# --- columns ---------------------------------------------------------------------------------------------------------


@TOPOLOGY
def test_columns_come_and_go(tmp_path: Path) -> None:
    run(tmp_path, [[("a", 1)]], "id string, n long")
    run(tmp_path, [[("a", 1), ("b", Decimal("2.5"))]], "id string, price decimal(9,2)")
    assert table_rows(tmp_path, "id", "n", "price") == [("a", 1, None), ("b", None, Decimal("2.50"))]
    with pytest.raises(SchemaMismatch, match="has the column 'n' as long, its sink as string: a column keeps its type"):
        run(tmp_path, [[("a", "1"), ("b", "1"), ("c", "1")]], "id string, n string")
    assert len(table_rows(tmp_path, "id")) == 2


@pytest.mark.parametrize(
    ("fields", "options", "message"),
    [
        ("id string", {"partition_by": ["day(at)"]}, "uses field 'at', which the stream does not have"),
        ("at timestamp, n long", {"partition_by": ["at"]}, r"'at' is timestamp; use day\(at\) for example"),
        ("x double, n long", {"partition_by": ["x"]}, "takes a field that is string or .*, and 'x' is double"),
        ("at date, n long", {"partition_by": ["hour(at)"]}, "takes a field that is timestamp, and 'at' is date"),
        ("at date, at_day date", {"partition_by": ["day(at)"]}, "makes a column 'at_day', and the stream has such"),
        ("TxId long", {}, r"would have the name 'txid'; choose another name: DeltaSink\(…, txid='…'\)"),
        ("id string, ID string", {}, "two columns of the table would have the name 'id'"),
        ("id string", {"partition_by": ["id"]}, "all fields are partition columns"),
    ],
)
def test_a_stream_that_does_not_fit_is_refused_by_build(fields: str, options: dict[str, Any], message: str) -> None:
    topology = TridentTopology("landing")
    stream = topology.new_stream("rows", OpaqueMemoryTransactionalSpout([[]], fields, take=1))
    stream.sink_to(DeltaSink("events", **options), name="events")
    with pytest.raises(ConfigError, match=message):
        topology.build()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partition_by": "country"}, r"partition_by is a list: partition_by=\['country'\]"),
        ({"partition_by": ["week(at)"]}, "week is none of year, month, day, hour"),
        ({"target_file_bytes": 0}, "target_file_bytes is 0; it is 1 or more"),
        ({"txid": ""}, "txid is the name of a column, and is empty"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DeltaSink("events", **options)


def test_what_a_state_stores_of_an_average_is_not_appended() -> None:
    """The sums and counts of which a mean is made, and their earlier values, are named by no user."""
    topology = TridentTopology("means")
    stream = topology.new_stream("rows", MemoryTransactionalSpout([[]], "word string, n long", take=2))
    means = stream.group_by("word").persistent_aggregate(MemoryMapState(), mean=Avg("n"), high=Sum("n"))
    events = DeltaSink("events")
    means.new_values(old=True).sink_to(events, name="events")
    bolt = topology.build().component("events").bolt
    assert isinstance(bolt, SinkBolt)
    assert bolt.hidden_fields == {"sum_n", "count_n", "old_sum_n", "old_count_n"}
    assert str(events._declared.fields) == "word string, high long, old_high long, mean double"


def test_a_table_that_others_have_made_is_checked(tmp_path: Path) -> None:
    uri = str(tmp_path / "events")
    DeltaTable.create(uri, pa.schema([("id", pa.string()), ("n", pa.int64())]), partition_by=["n"])
    with pytest.raises(SchemaMismatch, match="is partitioned by n, its sink by nothing"):
        run(tmp_path, rows(1))


def test_features_that_the_sink_does_not_write_are_refused(tmp_path: Path) -> None:
    properties = {"delta.enableDeletionVectors": "true"}
    DeltaTable.create(str(tmp_path / "events"), pa.schema([("id", pa.string())]), configuration=properties)
    with pytest.raises(
        TableUnfit,
        match=r"has protocol reader 3, writer 7 with the features .*deletionVectors.* ALTER TABLE … DROP FEATURE",
    ):
        run(tmp_path, rows(1))


def test_files_that_do_not_survive_a_power_cut_are_refused(tmp_path: Path) -> None:
    config = TopologyConfig(stop_when_drained=True, durability="process")
    with pytest.raises(ConfigError, match=r"sink 'events' is a delta sink, .* use durability='disk'"):
        run_topology(build(tmp_path, rows(1)), store=f"sqlite:///{tmp_path}/store.db", config=config, master="none")
