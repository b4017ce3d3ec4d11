"""Delta commits that are written without delta-rs: what others read of them, and that they never hide another one."""

from __future__ import annotations

import errno
import json
import os
import types
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Transaction, write_deltalake
from deltalake.schema import Field, PrimitiveType, Schema
from pyspark.sql import SparkSession

import state.delta.write.engine_commits
import state.delta.write.entry
import state.delta.write.loaded_table
from state.delta.log.log import LogUpkeep
from state.delta.state import DeltaMapState
from state.delta.tables.data_files import DataFile, Replacement, write_file
from state.delta.tables.table import DeltaLocation, list_data_files, list_replaceable_files, open_storage
from state.delta.write import entry as commit
from state.delta.write.durable import TableDisk
from state.delta.write.entry import may_have_been_written
from state.rows.columns import StateColumns
from tests.contract.states import OWNER, Place, content, counts, write_by_files
from tests.file_limit import files_up_to
from tests.integration.delta.test_rewriting import VALUES
from transactional.errors import ConfigError, OperatingError, TableUnfit
from transactional.model import schema
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId

ROWS = pa.table({"word": ["a", None], "count": pa.array([1, 2], pa.int64())})
MORE = pa.table({"word": ["a", "b", "c"], "count": pa.array([3, None, 5], pa.int64())})


TORN_HINTS = [b"", b"{", b'{"version":', b"\0", b"[]", b'{"version":null}', b'{"version":99}']


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place("delta-rs", tmp_path)


def opened(place: Place, **options: Any) -> DeltaMapState:
    words = DeltaMapState(place.folder / "t", "word string", "count long", **options)
    words.open(OWNER, place.txids.__getitem__)
    return words


def table_with(folder: Path, rows: pa.Table = ROWS, **options: Any) -> DeltaTable:
    write_deltalake(folder, rows, **options)
    return DeltaTable(folder)


def replace(folder: Path, version: int, rows: pa.Table, old: list[DataFile]) -> DataFile:
    """Write a Delta version as a transaction of that number does, whatever there is."""
    location = DeltaLocation.parse(folder)
    table: Any = types.SimpleNamespace(
        folder=folder, owner=OWNER, disk=TableDisk(location), read_version=version - 1, storage=open_storage(location)
    )
    attempt, new = TransactionAttempt(TxId(version), AttemptId(version)), write_file(table.storage, rows, rows.schema)
    note = commit.note_of(OWNER, attempt.attempt_id, attempt)
    entry = commit._actions(table, Replacement(old, new), {OWNER: version}, note)
    commit._write_version(table, version, entry, [file.name for file in new])
    return new[0].part


def rows_of(folder: Path) -> list[dict[str, Any]]:
    found = pa.table(QueryBuilder().register("t", DeltaTable(folder)).execute("SELECT * FROM t").read_all())
    return list(found.to_pylist())


def log_of(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "_delta_log").iterdir())


def parquet_files(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.parquet")}


class TestReaders:
    def test_delta_rs_finds_rows_version_and_history(self, tmp_path: Path) -> None:
        first = list_data_files(table_with(tmp_path))
        second = replace(tmp_path, 1, MORE, first)
        replace(tmp_path, 2, ROWS, [second])
        table = DeltaTable(tmp_path)
        assert table.version() == 2
        assert table.transaction_version("words/count") == 2
        assert table.count() == 2
        assert rows_of(tmp_path) == ROWS.to_pylist()
        [entry] = table.history(1)
        assert (entry["operation"], entry["engineInfo"]) == ("WRITE", "transactional")
        assert json.loads(entry["userMetadata"]) == {"owner": OWNER, "txid": 2, "attempt_id": 2}
        assert log_of(tmp_path) == [f"{version:020}.json" for version in range(3)]
        table.load_as_version(1)
        assert table.count() == 3

    def test_files_that_were_replaced_are_vacuumed(self, tmp_path: Path) -> None:
        old = list_data_files(table_with(tmp_path))
        new = replace(tmp_path, 1, MORE, old)
        table = DeltaTable(tmp_path)
        table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
        assert parquet_files(tmp_path) == {new.name}
        assert rows_of(tmp_path) == MORE.to_pylist()

    def test_a_checkpoint_holds_what_was_written(self, tmp_path: Path) -> None:
        replace(tmp_path, 1, MORE, list_data_files(table_with(tmp_path)))
        DeltaTable(tmp_path).create_checkpoint()
        for version in range(2):
            (tmp_path / "_delta_log" / f"{version:020}.json").unlink()
        table = DeltaTable(tmp_path)
        assert table.transaction_version("words/count") == 1
        assert rows_of(tmp_path) == MORE.to_pylist()

    @pytest.mark.spark
    def test_spark_finds_every_type_and_goes_on(self, tmp_path: Path, spark: SparkSession) -> None:
        values = schema.Schema.parse(", ".join(f"v{number} {type_}" for number, type_ in enumerate(VALUES)))
        columns = StateColumns(schema.Schema.parse("k int"), values)
        many = max(map(len, VALUES.values()))
        rows = [
            {"k": row, "txid": 1} | {f"v{n}": each[row % len(each)] for n, each in enumerate(VALUES.values())}
            for row in range(many)
        ]
        table = pa.Table.from_pylist(rows, columns.table_schema)
        old = list_data_files(table_with(tmp_path, table.slice(0, 1)))
        replace(tmp_path, 1, table, old)
        found = spark.read.format("delta").load(str(tmp_path)).orderBy("k").toArrow()
        assert found.select(table.column_names).cast(table.schema).equals(table)
        spark.sql(f"DELETE FROM delta.`{tmp_path}` WHERE k = 0").toArrow()
        assert spark.sql(f"DESCRIBE HISTORY delta.`{tmp_path}`").count() == 3
        assert len(rows_of(tmp_path)) == many - 1


class TestOthers:
    def test_an_entry_never_takes_the_place_of_another(self, tmp_path: Path) -> None:
        old = list_data_files(table_with(tmp_path))
        replace(tmp_path, 1, MORE, old)
        with pytest.raises(FileExistsError):
            replace(tmp_path, 1, ROWS, old)
        assert rows_of(tmp_path) == MORE.to_pylist()
        assert len(log_of(tmp_path)) == 2

    @pytest.mark.parametrize("left", ["the checkpoint's note", "no entry before"])
    def test_a_log_that_was_cleaned_meanwhile_is_none_to_write_to(self, tmp_path: Path, left: str) -> None:
        table = table_with(tmp_path)
        old = list_data_files(table)
        files: list[DataFile] = []
        for version in range(1, 4):
            files.append(replace(tmp_path, version, MORE, files[-1:] or old))
        DeltaTable(tmp_path).create_checkpoint()
        log = tmp_path / "_delta_log"
        (log / f"{2:020}.json").unlink()
        if left == "no entry before":
            (log / "_last_checkpoint").unlink()
            (log / f"{1:020}.json").unlink()
        replace(tmp_path, 2, ROWS, files[:1])
        assert may_have_been_written(tmp_path, 2)
        table = DeltaTable(tmp_path)
        LogUpkeep(DeltaLocation.parse(tmp_path), table).delete_late_entry(2)
        assert (table.version(), table.transaction_version("words/count")) == (3, 3)
        assert rows_of(tmp_path) == MORE.to_pylist()
        assert not (log / f"{2:020}.json").exists()

    def test_an_entry_is_in_time_while_nothing_has_come_after_it(self, tmp_path: Path) -> None:
        file = replace(tmp_path, 1, MORE, list_data_files(table_with(tmp_path)))
        DeltaTable(tmp_path).create_checkpoint()
        replace(tmp_path, 2, ROWS, [file])
        assert not may_have_been_written(tmp_path, 2)

    @pytest.mark.parametrize("hint", TORN_HINTS)
    @pytest.mark.parametrize("by_a_checkpoint", [False, True])
    def test_a_torn_hint_does_not_say_who_is_late(self, tmp_path: Path, hint: bytes, *, by_a_checkpoint: bool) -> None:
        old = list_data_files(table_with(tmp_path))
        file = replace(tmp_path, 1, MORE, old)
        if by_a_checkpoint:
            # Of the version that is written once more: its entry has gone out of turn.
            replace(tmp_path, 2, MORE, [file])
            DeltaTable(tmp_path).create_checkpoint()
            (tmp_path / "_delta_log" / f"{2:020}.json").unlink()
        (tmp_path / "_delta_log" / "_last_checkpoint").write_bytes(hint)
        replace(tmp_path, 2, ROWS, [file])
        assert may_have_been_written(tmp_path, 2) is by_a_checkpoint

    def test_nothing_stays_of_an_entry_that_was_not_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        old = list_data_files(table_with(tmp_path))

        def no_room(*_: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("state.delta.write.entry.os.link", no_room)
        with pytest.raises(OSError, match="No space left"):
            replace(tmp_path, 1, MORE, old)
        assert log_of(tmp_path) == [f"{0:020}.json"]
        assert rows_of(tmp_path) == ROWS.to_pylist()


class TestAFileSystemWithoutHardLinks:
    """By `strace -e inject=linkat:error=EPERM` delta-rs says what is planted here, too."""

    @pytest.fixture
    def words(self, place: Place) -> DeltaMapState:
        """A state whose table was created while links were made."""
        return opened(place)

    @pytest.fixture(params=[errno.EPERM, errno.EOPNOTSUPP])
    def refused(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
        def no_link(*_: Any) -> None:
            raise OSError(request.param, os.strerror(request.param))

        monkeypatch.setattr(os, "link", no_link)
        return rf"refuses hard links \({os.strerror(request.param)}\).*move .*t to one that has them, such as ext4"

    def test_is_named_when_a_transaction_is_written(self, place: Place, words: DeltaMapState, refused: str) -> None:
        with pytest.raises(ConfigError, match=refused):
            words.merge(place.attempt(1, 1), counts({"cat": 1}))
        assert [name for name in log_of(place.folder / "t") if name.startswith("links-")] == []

    def test_is_named_when_delta_rs_writes(
        self, place: Place, words: DeltaMapState, refused: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def unable(*_: Any, **__: Any) -> None:
            raise OSError("Generic LocalFileSystem error: Unable to rename file: Operation not permitted (os error 1)")

        monkeypatch.setattr(state.delta.write.loaded_table, "list_replaceable_files", lambda _: None)
        monkeypatch.setattr(state.delta.write.engine_commits, "write_deltalake", unable)
        with pytest.raises(ConfigError, match=refused):
            words.merge(place.attempt(1, 1), counts({"cat": 1}))

    def test_is_named_when_a_table_is_created(self, place: Place, refused: str) -> None:
        with pytest.raises(ConfigError, match=refused):
            opened(place)
        assert log_of(place.folder / "t") == []


class TestTables:
    def test_of_one_file_in_their_folder_are_written_so(self, tmp_path: Path) -> None:
        assert list_replaceable_files(table_with(tmp_path)) == [
            DataFile(path.name, path.stat().st_size) for path in tmp_path.glob("*.parquet")
        ]

    @pytest.mark.parametrize(
        "options",
        [
            {"partition_by": ["word"]},
            {"configuration": {"delta.appendOnly": "true"}},
            {"configuration": {"delta.enableChangeDataFeed": "true"}},
        ],
    )
    def test_that_ask_more_of_a_writer_are_left_to_delta_rs(self, tmp_path: Path, options: dict[str, Any]) -> None:
        assert list_replaceable_files(table_with(tmp_path, **options)) is None

    def test_with_invariants_are_left_to_delta_rs(self, tmp_path: Path) -> None:
        invariant = json.dumps({"expression": {"expression": "count > 0"}})
        field = Field("count", PrimitiveType("long"), metadata={"delta.invariants": invariant})
        table = DeltaTable.create(tmp_path, Schema([field]))
        assert list_replaceable_files(table) is None

    def test_with_a_name_that_the_log_escapes_are_left_to_delta_rs(self, tmp_path: Path) -> None:
        table_with(tmp_path)
        log = tmp_path / "_delta_log" / f"{0:020}.json"
        [file] = parquet_files(tmp_path)
        (tmp_path / file).rename(tmp_path / "a file.parquet")
        log.write_text(log.read_text().replace(file, "a%20file.parquet"))
        assert list_replaceable_files(DeltaTable(tmp_path)) is None

    def test_get_every_row_although_delta_rs_writes_them(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        """As on object stores."""
        monkeypatch.setattr(state.delta.write.loaded_table, "list_replaceable_files", lambda _: None)
        words = opened(place)
        for txid in range(1, 4):
            words.merge(place.attempt(txid, txid), counts({"a": 1, str(txid): 1}))
        assert content(words) == {"a": 3, "1": 1, "2": 1, "3": 1}
        engines = {entry["engineInfo"].split(":")[0] for entry in DeltaTable(words.location.uri).history(3)}
        assert engines == {"delta-rs"}


class TestHandle:
    def test_knows_its_own_delta_commits_without_reading_them(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        words = opened(place)
        words.merge(place.attempt(1, 1), counts({"a": 1}))

        def reads(*_: Any) -> None:
            raise AssertionError("the log is read")

        for name in ("update_incremental", "load_as_version", "transaction_version", "get_add_actions"):
            monkeypatch.setattr(DeltaTable, name, reads)
        for txid in range(2, 5):
            words.merge(place.attempt(txid, txid), counts({"a": 1}))
        monkeypatch.undo()
        assert content(words) == {"a": 4}
        assert DeltaTable(words.location.uri).transaction_version(OWNER) == 4

    def test_of_an_entry_that_was_in_time_after_all_nothing_is_taken_back(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Somebody has made a checkpoint of it at once."""
        words = opened(place)
        words.merge(place.attempt(1, 1), counts({"a": 1}))

        write = commit._write_version

        def written_and_checkpointed(*given: Any) -> None:
            write(*given)
            DeltaTable(words.location.uri).create_checkpoint()

        monkeypatch.setattr(commit, "_write_version", written_and_checkpointed)
        words.merge(place.attempt(2, 2), counts({"a": 1}))
        words.merge(place.attempt(3, 3), counts({"a": 1}))
        assert content(words) == {"a": 3}
        assert DeltaTable(words.location.uri).version() == 3

    @pytest.mark.parametrize("hint", TORN_HINTS)
    def test_goes_on_over_a_torn_hint_of_the_last_checkpoint(self, place: Place, hint: bytes) -> None:
        """Each attempt failed, and left a Delta version behind."""
        words = opened(place)
        words.merge(place.attempt(1, 1), counts({"a": 1}))
        before = DeltaTable(words.location.uri).version()
        (Path(words.location.uri) / "_delta_log" / "_last_checkpoint").write_bytes(hint)
        for n in (2, 3):
            words.merge(place.attempt(n, n), counts({"a": 1}))
        assert content(words) == {"a": 3}
        assert len(list((Path(words.location.uri) / "_delta_log").glob("*.json"))) == before + 3

    def test_stays_at_its_version_when_another_writer_comes_after(self, place: Place) -> None:
        words = opened(place)
        words.merge(place.attempt(1, 1), counts({"a": 1}))
        handle = words.open_table.loaded
        version = handle.delta_version
        table = DeltaTable(words.location.uri)
        rival = CommitProperties(app_transactions=[Transaction(OWNER, 9)])
        table.create_write_transaction([], "append", table.schema(), commit_properties=rival)
        assert handle.query("SELECT max(txid) AS txid FROM t").read_all()["txid"].to_pylist() == [1]
        assert (handle.delta_version, handle.version()) == (version, 1)
        handle.refresh()
        assert (handle.delta_version, handle.version()) == (version + 1, 9)


@pytest.mark.parametrize("bytes_max", [0, 100])
@pytest.mark.parametrize("way", ["small", "file by file", "log"])
def test_a_disk_that_takes_no_more_is_named_and_no_file_is_left(
    place: Place, monkeypatch: pytest.MonkeyPatch, way: str, bytes_max: int
) -> None:
    """A limit of the process stands in for a full disk: the file can't be begun, or not be written."""
    words = opened(place, layout="log" if way == "log" else "merge")
    words.merge(place.attempt(1, 1), counts({"a": 1}))
    if way == "file by file":
        write_by_files(monkeypatch)
    files = set(place.folder.rglob("*.parquet"))
    with files_up_to(bytes_max), pytest.raises(OperatingError, match="File too large"):
        words.merge(place.attempt(2, 2), counts({"a": 1}))
    assert set(place.folder.rglob("*.parquet")) == files
    words.merge(place.attempt(2, 3), counts({"a": 1}))
    assert content(words) == {"a": 2}


@pytest.mark.parametrize("layout", ["merge", "log"])
def test_a_column_that_somebody_adds_ends_the_run(place: Place, layout: str) -> None:
    words = opened(place, layout=layout)
    words.merge(place.attempt(1, 1), counts({"cat": 1}))
    DeltaTable(place.folder / "t").alter.add_columns([Field("extra", PrimitiveType("string"))])
    for attempt_id in (2, 3, 4):
        with pytest.raises(TableUnfit, match=r"has the columns .*extra string; the state needs.*altered the table"):
            words.merge(place.attempt(2, attempt_id), counts({"cat": 1}))
    assert content(words) == {"cat": 1}
