"""Whose table a Delta sink appends to: the tables of others, a table that was moved, and one that was made again."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from shutil import copytree, rmtree

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from sinks import DeltaSink
from sinks.delta.publisher import DeltaPublisher
from tests.unit.sinks.delta.landing import FIELDS, build, progress_of, rows, run
from tests.unit.sinks.delta.leaders import Leader, Row, table_rows
from transactional.core.ports import PublishedRecords
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.errors import ConfigError, RecordRefused, StoreMismatch, TopologyChanged
from transactional.model.arrow import arrow_schema
from transactional.model.attempt import TxId
from transactional.model.schema import Schema
from transactional.runtime.engine.rewinding import plan_rewind, rewind
from transactional.runtime.publishing.mending import accept_position

TOPOLOGY = pytest.mark.long("a topology runs; without one the same is done in a tenth of the time")


def refuse_group(_publisher: DeltaPublisher, _group: object) -> None:
    raise RecordRefused("the table is full")


def test_the_table_of_another_sink_or_store_is_refused(tmp_path: Path) -> None:
    Leader(tmp_path, 1).open()
    with pytest.raises(ConfigError, match="is that of sink 'events' of topology 'landing', and sink 'other'"):
        Leader(tmp_path, 2, name="other").open()
    with pytest.raises(StoreMismatch, match="belongs to the store with the id store; the store's id is copy"):
        Leader(tmp_path, 2, store_id="copy").open()
    assert DeltaTable(str(tmp_path / "events")).transaction_version("transactional.sink/fence") == 1


def test_a_table_that_is_gone_is_not_made_again(tmp_path: Path) -> None:
    with pytest.raises(StoreMismatch, match=r"there is no Delta table at .*, and the store has published to it"):
        Leader(tmp_path, 1).open(has_published=True)


def test_a_table_of_nobody_is_not_written_if_the_store_has_published(tmp_path: Path) -> None:
    path = tmp_path / "events"
    DeltaTable.create(str(path), pa.schema([("n", pa.int64()), ("txid", pa.int64())]))
    with pytest.raises(StoreMismatch, match=r"Delta table .* has no position of a sink, and the store has published"):
        Leader(tmp_path, 1).open(has_published=True)
    assert DeltaTable(str(path)).version() == 0


@TOPOLOGY
@pytest.mark.parametrize("published_count", [0, 4])
def test_a_table_without_the_waiting_files_is_refused_and_one_that_was_moved_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, published_count: int
) -> None:
    if published_count:
        run(tmp_path, rows(published_count))
    with monkeypatch.context() as patched:
        patched.setattr(DeltaPublisher, "publish", refuse_group)
        with pytest.raises(RecordRefused, match="the table is full"):
            run(tmp_path, rows(9))
    old, new = tmp_path / "events", tmp_path / "moved"
    if published_count:
        copytree(old, new, ignore=lambda folder, names: [name for name in names if name.startswith("2-")])
    txid, waiting = published_count // 4 + 1, progress_of(tmp_path)
    problem = (
        rf": transaction {txid} is committed and unsent, and Delta table {new} lacks a file of it: _runs/{txid}-.* is "
        "not there;"
        if published_count
        else r" has changed \(sinks.events.table_id: stored .*, given nothing\), and has"
    )
    refused = rf"sink 'events'{problem} .* unsent .*`transactional sinks drop landing events --accept-loss`"
    with pytest.raises(ConfigError, match=refused):
        run(tmp_path, rows(10), table="moved")
    assert progress_of(tmp_path) == waiting, "nothing more is committed"
    assert new.exists() == bool(published_count)
    rmtree(new, ignore_errors=True)
    old.rename(new)
    run(tmp_path, rows(10), table="moved")
    assert DeltaTable(str(new)).to_pyarrow_table()["amount"].sort().to_pylist() == list(range(10))


@TOPOLOGY
@pytest.mark.parametrize("has_waiting", [False, True])
def test_a_table_that_was_made_again_is_refused_and_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_waiting: bool
) -> None:
    run(tmp_path, rows(4))
    if has_waiting:
        monkeypatch.setattr(DeltaPublisher, "publish", refuse_group)
        with pytest.raises(RecordRefused, match="the table is full"):
            run(tmp_path, rows(8))
    rmtree(tmp_path / "events")
    made_again = DeltaTable.create(
        str(tmp_path / "events"), pa.schema([*arrow_schema(Schema.parse(FIELDS)), ("txid", pa.int64())])
    )
    with pytest.raises(
        TopologyChanged, match=rf"sinks.events.table_id: stored .*, given \"{made_again.metadata().id}\""
    ):
        run(tmp_path, rows(12), accept_changes=False)
    unsent = r"sink 'events' has changed \(sinks.events.table_id: stored .*\), and has .* unsent"
    accepted_error, message = (ConfigError, unsent) if has_waiting else (StoreMismatch, "has no position of a sink")
    with pytest.raises(accepted_error, match=message):
        run(tmp_path, rows(12))
    refused = pytest.raises(TopologyChanged, match=r"sink 'events' of topology 'landing' has the target .* another one")
    with closing(SqlCoordinatorStore(f"sqlite:///{tmp_path}/store.db")) as store, refused:
        rewind(build(tmp_path, rows(12)), store, TxId(0), owner="test")
    assert DeltaTable(str(tmp_path / "events")).version() == 0


@TOPOLOGY
def test_a_rewind_does_not_make_the_table_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was published before the folder was moved, so the table itself shows no loss."""
    with monkeypatch.context() as patched:
        patched.setattr(DeltaPublisher, "publish", refuse_group)
        with pytest.raises(RecordRefused, match="the table is full"):
            run(tmp_path, rows(8))
    (tmp_path / "events").rename(tmp_path / "moved")
    with closing(SqlCoordinatorStore(f"sqlite:///{tmp_path}/store.db")) as store:
        with pytest.raises(TopologyChanged, match=r"sink 'events' of topology 'landing' has the target .* or none"):
            rewind(build(tmp_path, rows(8)), store, TxId(0), owner="test")
        assert not (tmp_path / "events").exists()
        rewind(build(tmp_path, rows(8), table="moved"), store, TxId(0), owner="test")
    run(tmp_path, rows(8), table="moved", accept_changes=False)
    assert sorted(DeltaTable(str(tmp_path / "moved")).to_pyarrow_table()["amount"].to_pylist()) == list(range(8))


@TOPOLOGY
def test_a_store_without_the_id_of_a_table_gets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    identity = DeltaSink.identity
    with monkeypatch.context() as earlier_release:
        earlier_release.setattr(DeltaSink, "identity", lambda sink: {**identity(sink), "table_id": {}})
        run(tmp_path, rows(4))
    run(tmp_path, rows(8), accept_changes=False)
    with closing(SqlCoordinatorStore(f"sqlite:///{tmp_path}/store.db")) as store:
        [status] = store.status("landing")
    assert status.fingerprint["sinks"]["events"]["table_id"] == str(DeltaTable(str(tmp_path / "events")).metadata().id)


@TOPOLOGY
def test_an_older_store_is_accepted_and_each_row_is_appended_once(tmp_path: Path) -> None:
    run(tmp_path, rows(9))
    old_store = {path.name: path.read_bytes() for path in tmp_path.glob("store.db*")}
    run(tmp_path, rows(14))
    for path in tmp_path.glob("store.db*"):
        path.unlink()
    for name, content in old_store.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(StoreMismatch, match="`transactional sinks accept MODULE:TOPOLOGY events --at N`"):
        run(tmp_path, rows(14))
    topology = build(tmp_path, rows(14))
    with closing(SqlCoordinatorStore(f"sqlite:///{tmp_path}/store.db")) as store:
        with pytest.raises(ConfigError, match="can continue after transactions 3 to 3, not after 2"):
            accept_position(topology, store, "events", TxId(2), owner="operator")
        assert "ends with transaction 5" in accept_position(topology, store, "events", TxId(3), owner="operator")
    assert table_rows(tmp_path) == sorted(rows(9)[0], key=repr)
    for count in (14, 16):
        run(tmp_path, rows(count))
        assert table_rows(tmp_path) == sorted(rows(count)[0], key=repr)


@TOPOLOGY
def test_what_waits_is_sent_to_a_table_that_has_lost_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "events/_delta_log"
    run(tmp_path, rows(4))
    copytree(log, tmp_path / "backup")
    run(tmp_path, rows(8))
    with monkeypatch.context() as patched:
        patched.setattr(DeltaPublisher, "publish", refuse_group)
        with pytest.raises(RecordRefused, match="the table is full"):
            run(tmp_path, rows(12))
    rmtree(log)
    (tmp_path / "backup").rename(log)
    with pytest.raises(StoreMismatch, match="the target has lost records of transactions 2 to 2"):
        run(tmp_path, rows(12))
    with closing(SqlCoordinatorStore(f"sqlite:///{tmp_path}/store.db")) as store:
        accept_position(build(tmp_path, rows(12)), store, "events", TxId(2), owner="operator")
    run(tmp_path, rows(14))
    assert table_rows(tmp_path) == sorted([*rows(4)[0], *rows(14)[0][8:]], key=repr)


@TOPOLOGY
def test_a_rewind_takes_out_what_the_store_has_not_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is a backup from the middle of the run, and counts attempts that the table has seen."""
    publish, store_path, backup_path = DeltaPublisher.publish, tmp_path / "store.db", tmp_path / "backup.db"
    many_rows: list[list[Row]] = [[(f"o{n}", "de", datetime(2026, 11, 27, tzinfo=UTC), n) for n in range(80)]]

    def publish_after_backup(publisher: DeltaPublisher, group: Sequence[PublishedRecords]) -> None:
        if not backup_path.exists():
            with closing(sqlite3.connect(store_path)) as source, closing(sqlite3.connect(backup_path)) as backup:
                source.backup(backup)
                backup.execute("UPDATE transactional_topologies SET leased_until_ms = 0")
                backup.commit()
        publish(publisher, group)

    with monkeypatch.context() as patched:
        patched.setattr(DeltaPublisher, "publish", publish_after_backup)
        run(tmp_path, many_rows)
    for path in tmp_path.glob("store.db*"):
        path.unlink()
    backup_path.rename(store_path)
    with closing(SqlCoordinatorStore(f"sqlite:///{tmp_path}/store.db")) as store:
        [status] = store.status("landing")
        assert status.committed_txid < 20
        preview = plan_rewind(build(tmp_path, many_rows), store, status.committed_txid)
        rewind(build(tmp_path, many_rows), store, status.committed_txid, owner="operator")
    assert "which the store has not committed; what it has of transactions" in (line := "\n".join(preview.sinks))
    assert line.endswith("to 20 is taken out")
    run(tmp_path, many_rows)
    assert table_rows(tmp_path) == sorted(many_rows[0], key=repr)
