"""Delta tables of states beyond the contract: creating and opening, what is refused, engines, upkeep."""

from __future__ import annotations

import datetime
import json
import types
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import parquet
from pyspark.sql import SparkSession

import state.delta.read.table_reader
import state.delta.state
import state.delta.upkeep.merged_upkeep
import state.delta.upkeep.table_upkeep
from state.delta.log.files import LISTING_S_MAX, delete_old_files
from state.delta.state import DeltaMapState
from state.delta.tables.table import DeltaLocation, catalog_table
from state.delta.write.engine_commits import settle_feature
from state.delta.write.loaded_table import LoadedTable
from tests.contract.states import OWNER, CommittedMapState, Place, content, counts
from transactional.core.ports import StateKind
from transactional.errors import ConfigError, OperatingError, ProtocolError, SchemaMismatch, StoreMismatch
from transactional.model.names import STAGED_FEATURE


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place("delta-rs", tmp_path)


def opened(
    table: Any, place: Place, key: Any = "word string", values: str = "count long", **options: Any
) -> DeltaMapState:
    state = CommittedMapState(table, key, values, **options)
    state.open(OWNER, place.txids.__getitem__)
    return state


class TestLocation:
    def test_is_absolute_whatever_way_it_is_written(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        expected = str(tmp_path / "tables" / "words")
        for written in ("tables/words", Path("tables/words"), f"file://{expected}", f"file:{expected}", expected):
            assert DeltaLocation.parse(written).uri == expected
        assert DeltaLocation.parse("s3://bucket/words/").uri == "s3://bucket/words"

    @pytest.mark.parametrize(
        "table", ["uc://main.flights.carriers", "http://127.0.0.1:1/t", "memory:///t", "s3n://b/t"]
    )
    def test_in_an_unknown_storage_is_refused_at_once(self, table: str) -> None:
        """delta-rs looked for a Unity Catalog for more than a minute, and took tables elsewhere to be new."""
        with pytest.raises(ConfigError, match=r"can't be at '.*': \w+: is none of abfs, .*; a table of a catalog"):
            DeltaMapState(table, "k string", "v long")

    def test_hides_its_secrets(self) -> None:
        state = DeltaMapState("s3://bucket/t", "k string", "v long", storage_options={"aws_secret_access_key": "hush"})
        shown = f"{state.location!r} {state.location} {dict(state.identity())} {state.declared.table}"
        assert "hush" not in shown
        assert state.identity() == {"delta": "s3://bucket/t", "key": "k string", "values": "v long", "kind": "opaque"}

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"AWS_S3_ALLOW_UNSAFE_RENAME": "true"}, "AWS_S3_ALLOW_UNSAFE_RENAME: two writers would overwrite"),
            ({"aws_conditional_put": "disabled"}, "conditional_put=disabled: two writers would overwrite"),
            ({"AWS_S3_LOCKING_PROVIDER": "dynamodb"}, "which delta-rs no longer heeds"),
        ],
    )
    def test_on_s3_without_a_guard_is_refused(
        self, options: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(ConfigError, match=message):
            DeltaMapState("s3://bucket/t", "k string", "v long", storage_options=options)
        for name, value in options.items():
            monkeypatch.setenv(name.upper(), value)
        with pytest.raises(ConfigError, match=message):
            DeltaMapState("s3a://bucket/t", "k string", "v long")


class TestDeclaration:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"values": "txid long"}, r"columns 'txid' and 'txid' collide; rename yours.*columns=\{'txid'"),
            ({"values": "v long, Prev_V long"}, "columns 'Prev_V' and 'prev_v' collide"),
            ({"key": "k string, K long"}, "columns 'k' and 'K' collide"),
            ({"key": "k float"}, "key column 'k' is a float; floating-point numbers are not reliably equal"),
            ({"key": "`my k` string"}, "column name 'my k' is empty, or contains a space"),
            ({"columns": {"prev_w": "x"}}, "columns= renames 'prev_w'; it can rename txid, prev_txid, prev_v"),
            ({"kind": StateKind.NON_TRANSACTIONAL}, "only these survive a replay"),
            ({"table": " "}, "needs a path, a URI, or a name"),
            ({"properties": {"delta.appendOnly": "true"}}, "delta.appendOnly: rows of a state change"),
            (
                {"properties": {"delta.setTransactionRetentionDuration": "interval 1 days"}},
                "it forgets which attempt wrote the table, and with it the fence",
            ),
        ],
    )
    def test_what_can_not_be_a_state_is_refused(self, arguments: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            DeltaMapState(**{"table": "t", "key": "k string", "values": "v long", **arguments})

    @pytest.mark.parametrize(
        ("name", "value", "message"),
        [
            ("delta.enableChangeDataFeed", "true", r"/t' can't have the property delta.enableChangeDataFeed = 'true'"),
            ("delta.enableRowTracking", "None", "can't have the property delta.enableRowTracking"),
            ("delta.feature.clustering", "supported", "can't have the property delta.feature.clustering"),
            ("delta.feature.catalogManaged", "supported", "can't have the property delta.feature.catalogManaged"),
            ("delta.constraints.enabled", "false", "take it away. A state can have delta.checkpointInterval, "),
            ("delta.minWriterVersion", "7", "can't have the property delta.minWriterVersion"),
            ("transactional.owner", "x", "it is the state's own; take it away"),
            ("delta.checkpointPolicy", "v2", "is 'v2'; it has to be classic"),
            ("delta.columnMapping.mode", "false", "is 'false'; it has to be none"),
            ("delta.isolationLevel", "SnapshotIsolation", "has to be Serializable or WriteSerializable"),
            ("delta.logretentionduration", "interval 1 days", "is written delta.logRetentionDuration"),
            (
                "delta.logRetentionDuration",
                "2 months",
                "is '2 months'; it has to be an interval, such as 'interval 2 days'",
            ),
            (
                "delta.logRetentionDuration",
                "interval 1 minutes",
                "set delta.logRetentionDuration to 'interval 30 minutes'",
            ),
            (
                "delta.deletedFileRetentionDuration",
                "interval 2 days",
                "or delta.deletedFileRetentionDuration to 'interval 30",
            ),
            ("transactional.logCommits", "0", "transactional.logCommits = '0'; it is a number, 1 or more"),
            ("delta.appendOnly", False, "the value of the property delta.appendOnly is False, .*: write 'false'"),
        ],
    )
    def test_a_property_that_others_can_not_cope_with_is_refused(self, name: str, value: Any, message: str) -> None:
        """Before there is a table: delta-rs makes some that Spark, or the state itself, then refuses."""
        with pytest.raises(ConfigError, match=message):
            DeltaMapState("t", "k string", "v long", properties={name: value})

    def test_a_state_may_have_properties_that_change_how_others_write(self, place: Place) -> None:
        """Spark has read, optimized and checkpointed a table with any of these, and the state went on."""
        properties = {
            "delta.autoOptimize.optimizeWrite": "true",
            "delta.checkpoint.writeStatsAsStruct": "true",
            "delta.checkpointPolicy": "classic",
            "delta.columnMapping.mode": "none",
            "delta.dataSkippingNumIndexedCols": "0",
            "delta.enableChangeDataFeed": "false",
            "delta.isolationLevel": "WriteSerializable",
            "delta.logRetentionDuration": "interval 2 days",
            "delta.randomizeFilePrefixes": "true",
            "delta.targetFileSize": "1mb",
            "owner": "team's",
        }
        state = opened(place.folder / "t", place, properties=properties)
        state.merge(place.attempt(1, 1), counts({"a": 1}))
        state.merge(place.attempt(2, 2), counts({"a": 1}))
        assert content(DeltaMapState(state.location.uri, "word string", "count long")) == {"a": 2}
        assert properties.items() <= DeltaTable(state.location.uri).metadata().configuration.items()

    def test_the_states_own_columns_can_be_renamed(self, place: Place) -> None:
        columns = {"txid": "_txid", "prev_txid": "_prev_txid", "prev_txid_seen": "_before"}
        state = opened(place.folder / "t", place, "txid string", "txid_seen long", columns=columns)
        for attempt_id, count in enumerate([1, 2, 3], 1):
            partials = counts({"a": count}, "txid string", "txid_seen long")
            state.merge(place.attempt(min(attempt_id, 2), attempt_id), partials)
        assert content(state) == {"a": 4}
        names = [field.name for field in DeltaTable(state.location.uri).schema().fields]
        assert names == ["txid", "txid_seen", "_txid", "_prev_txid", "_before"]

    def test_is_not_used_before_it_is_open(self) -> None:
        with pytest.raises(ProtocolError, match="was used before open"):
            DeltaMapState("t", "k string", "v long").version()


class TestOpening:
    def test_a_table_that_a_catalog_manages_is_refused_for_good(self, place: Place) -> None:
        features = {"readerFeatures": ["catalogManaged"], "writerFeatures": ["catalogManaged", "inCommitTimestamp"]}
        schema = json.dumps({"type": "struct", "fields": []})
        table = {"id": "t", "format": {"provider": "parquet", "options": {}}, "schemaString": schema}
        actions = [
            {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}},
            {"metaData": {**table, "partitionColumns": [], "configuration": {}, "createdTime": 1}},
        ]
        (log := place.folder / "t" / "_delta_log").mkdir(parents=True)
        (log / f"{0:020}.json").write_text("".join(f"{json.dumps(action)}\n" for action in actions), "utf-8")
        with pytest.raises(SchemaMismatch, match="/t is managed by a catalog, whose commits are not in its log alone"):
            opened(place.folder / "t", place)

    def test_creates_the_table_where_there_is_no_folder_yet(self, place: Place) -> None:
        state = opened(place.folder / "a" / "b" / "c", place, properties={"delta.checkpointInterval": "7"})
        table = DeltaTable(state.location.uri)
        assert (table.protocol().min_reader_version, table.protocol().min_writer_version) == (1, 2)
        configuration = table.metadata().configuration
        assert configuration["transactional.schemaVersion"] == "3"
        assert configuration["delta.checkpointInterval"] == "7"

    @pytest.mark.parametrize(
        ("key", "values", "difference"),
        [
            ("word string", "count int", "count int32"),
            ("word string", "count int, other long", "other int64"),
            ("Word string", "count long", "Word string"),
            ("word string, x int", "count long", "x int32"),
        ],
    )
    def test_refuses_a_table_of_another_shape(self, place: Place, key: str, values: str, difference: str) -> None:
        opened(place.folder / "t", place)
        with pytest.raises(SchemaMismatch, match=f"has the columns word string.*the state needs .*{difference}"):
            opened(place.folder / "t", place, key, values)

    def test_takes_a_table_that_was_made_for_it_in_any_order_of_columns(self, place: Place) -> None:
        names = ["txid", "prev_count", "count", "prev_txid"]
        schema = pa.schema([*(pa.field(name, pa.int64()) for name in names), pa.field("word", pa.string())])
        properties = {"transactional.schemaVersion": "3", "transactional.owner": OWNER}
        DeltaTable.create(str(place.folder / "t"), schema, configuration=properties, raise_if_key_not_exists=False)
        state = opened(place.folder / "t", place)
        state.merge(place.attempt(1, 1), counts({"a": 1}))
        state.put(place.attempt(2, 2), {("a",): (5,)})
        assert content(state) == {"a": 5}

    @pytest.mark.parametrize(
        ("name", "value", "message"),
        [
            ("transactional.schemaVersion", "2", "/t has version 2 of the layout of states, and version 3 is the only"),
            ("transactional.schemaVersion", "4", "has version 4 of .* give the state a table of another name"),
            ("delta.setTransactionRetentionDuration", "interval 1 days", "it forgets which attempt wrote the table"),
        ],
    )
    def test_refuses_what_was_changed_behind_its_back(self, place: Place, name: str, value: str, message: str) -> None:
        uri = opened(place.folder / "t", place).location.uri
        DeltaTable(uri).alter.set_table_properties({name: value}, raise_if_not_exists=False)
        with pytest.raises(ConfigError, match=message):
            opened(uri, place)

    @pytest.mark.parametrize("name", ["transactional.schemaVersion", "transactional.owner"])
    def test_refuses_a_table_without_a_property_of_ours(self, place: Place, name: str) -> None:
        """Also one that is only read, where it does not matter whose it is."""
        schema = opened(place.folder / "t", place).declared.columns.table_schema
        properties = {"transactional.schemaVersion": "3", "transactional.owner": OWNER}
        del properties[name]
        DeltaTable.create(str(place.folder / "old"), schema, configuration=properties, raise_if_key_not_exists=False)
        messages = {
            "transactional.schemaVersion": "has no version of the layout of states, and version 3 is the only one",
            "transactional.owner": f"does not say whose it is, and {OWNER} has opened it",
        }
        with pytest.raises((SchemaMismatch, StoreMismatch), match=messages[name]):
            opened(place.folder / "old", place)
        if name == "transactional.schemaVersion":
            with pytest.raises(SchemaMismatch, match=messages[name]):
                DeltaMapState(place.folder / "old", "word string", "count long").read()

    def test_notes_a_feature_once(self, place: Place) -> None:
        state = opened(place.folder / "t", place)
        table = LoadedTable(state.location, OWNER, state.declared.columns)
        settle_feature(table, STAGED_FEATURE)
        settle_feature(table, STAGED_FEATURE)
        found = DeltaTable(state.location.uri)
        assert (found.metadata().configuration["transactional.features"], found.version()) == ("staged", 1)
        state.merge(place.attempt(1, 1), counts({"a": 1}))
        assert content(state) == {"a": 1}

    def test_refuses_features_that_one_of_the_engines_lacks(self, place: Place) -> None:
        uri = opened(place.folder / "t", place).location.uri
        first = Path(uri, "_delta_log", f"{0:020}.json")
        protocol = {"minReaderVersion": 3, "minWriterVersion": 7}
        features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
        lines = [json.loads(line) for line in first.read_text().splitlines()]
        lines = [{"protocol": {**protocol, **features}} if "protocol" in line else line for line in lines]
        first.write_text("\n".join(map(json.dumps, lines)))
        with pytest.raises(SchemaMismatch, match=r"reader 3, writer 7 with the features.*'deletionVectors'"):
            opened(uri, place)

    def test_refuses_the_table_of_another_topology(self, place: Place) -> None:
        uri = opened(place.folder / "t", place).location.uri
        state = opened(uri, place)
        state.merge(place.attempt(3, 1), counts({"a": 1}))
        other = DeltaMapState(uri, "word string", "count long")
        with pytest.raises(StoreMismatch, match="is the table of words/count, and other/count has opened it"):
            other.open("other/count", place.txids.__getitem__)

    def test_a_folder_that_can_not_be_written_is_reported(self, place: Place) -> None:
        (place.folder / "file").write_text("")
        with pytest.raises((ConfigError, OperatingError), match=r"can't be (created|opened)"):
            opened(place.folder / "file" / "t", place)


def test_times_are_found_whatever_their_zone(place: Place) -> None:
    state = opened(place.folder / "t", place, "at timestamp", "count long")
    noon = datetime.datetime(2020, 1, 1, 12, tzinfo=datetime.UTC)
    elsewhere = noon.astimezone(datetime.timezone(datetime.timedelta(hours=5)))
    state.put(place.attempt(1, 1), {(elsewhere,): (1,)})
    assert state.get(place.attempt(2, 2), [(noon,)]) == {(noon,): (1,)}
    assert content(state) == {noon: 1}


def test_a_large_table_is_read_in_parts(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state.delta.read.table_reader, "CACHED_ROWS_MAX", 2)
    words = opened(place.folder / "t", place, "word string, part int")
    words.put(place.attempt(1, 1), {(str(number), number % 2): (number,) for number in range(10)})
    wanted = [("3", 1), ("3", 0), ("4", 0), ("x", 0)]
    assert words.get(place.attempt(2, 2), wanted) == {("3", 1): (3,), ("4", 0): (4,)}


@pytest.mark.parametrize("layout", ["merge", "log"])
@pytest.mark.parametrize("columns", [{}, {"txid": "t", "prev_count": "before"}])
def test_is_read_with_the_types_that_the_table_has(place: Place, layout: str, columns: dict[str, str]) -> None:
    key, values = "word string, day date", "count long, price decimal(10,2)"
    columns = columns if layout == "merge" else {name: to for name, to in columns.items() if name == "txid"}
    state = opened(place.folder / "t", place, key, values, layout=layout, columns=columns)
    state.put(place.attempt(1, 1), {("a", None): (1, Decimal("1.25"))})
    reader = DeltaMapState(place.folder / "t", key=["word", "day"], columns=columns)
    assert reader.read() == state.read()
    assert reader.view("t") == state.view("t")
    with pytest.raises(SchemaMismatch, match="has no column wort; it has 'word string, day date, count long"):
        DeltaMapState(place.folder / "t", key=["wort"], columns=columns).read()


def test_is_read_without_being_opened(place: Place) -> None:
    opened(place.folder / "t", place).put(place.attempt(1, 1), {("a",): (1,)})
    reader = DeltaMapState(place.folder / "t", "word string", "count long")
    assert content(reader) == {"a": 1}
    assert content(reader, committed_txid=0) == {}
    with pytest.raises(OperatingError, match="can't be opened"):
        DeltaMapState(place.folder / "nothing", "word string", "count long").read()
    (place.folder / "made" / "_delta_log").mkdir(parents=True)
    with pytest.raises(OperatingError, match="it is being created, or it is no table yet"):
        DeltaMapState(place.folder / "made", "word string", "count long").read()


class TestUpkeep:
    def test_puts_small_files_together(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(state.delta.upkeep.merged_upkeep, "COMPACTION_INTERVAL", 5)
        monkeypatch.setattr(state.delta.upkeep.merged_upkeep, "FILES_MAX", 3)
        words = opened(place.folder / "t", place)
        most = 0
        for txid in range(1, 21):
            words.merge(place.attempt(txid, txid), counts({f"word {txid}": 1}))
            most = max(most, len(DeltaTable(words.location.uri).file_uris()))
        assert most <= 6
        assert content(words) == {f"word {txid}": 1 for txid in range(1, 21)}

    def test_deletes_files_that_are_old_enough(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(state.delta.upkeep.table_upkeep, "VACUUM_INTERVAL", 10)
        words = opened(
            place.folder / "t", place, properties={"delta.deletedFileRetentionDuration": "interval 0 seconds"}
        )
        kept = opened(place.folder / "kept", place)
        for txid in range(1, 11):
            for each in (words, kept):
                each.merge(place.attempt(txid, txid), counts({"a": 1}))
        files, kept_files = (list(Path(each.location.uri).glob("*.parquet")) for each in (words, kept))
        assert (len(files), len(kept_files)) == (1, 10)
        words.merge(place.attempt(11, 11), counts({"a": 1}))
        assert content(words) == {"a": 11}

    def test_goes_on_when_it_fails(self, place: Place, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
        monkeypatch.setattr(state.delta.upkeep.table_upkeep, "VACUUM_INTERVAL", 1)

        def fail(self: DeltaTable, **options: Any) -> None:
            raise OSError("no permission")

        monkeypatch.setattr(DeltaTable, "vacuum", fail)
        words = opened(place.folder / "t", place)
        words.merge(place.attempt(1, 1), counts({"a": 1}))
        assert content(words) == {"a": 1}
        assert "could not be maintained" in caplog.text


def writers_of(folder: Path, version: int) -> set[str]:
    """Which libraries have written the files that a Delta version has added."""
    lines = (folder / "_delta_log" / f"{version:020}.json").read_text("utf-8").splitlines()
    added = [action["add"]["path"] for action in map(json.loads, lines) if "add" in action]
    return {parquet.read_metadata(folder / path).created_by.split()[0] for path in added}


class TestEngines:
    def test_what_a_session_without_delta_lacks_is_reported(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        conf = types.SimpleNamespace(get=lambda name, default: default)
        session = types.SimpleNamespace(conf=conf, _jsparkSession=None)
        monkeypatch.setattr(SparkSession, "getActiveSession", lambda: session)
        with pytest.raises(ConfigError, match="Delta is not set up on the Spark session"):
            opened(catalog_table("words"), place)
        del session._jsparkSession
        with pytest.raises(ConfigError, match="states need a classic Spark session, this one is Spark Connect"):
            opened(catalog_table("words"), place)

    @pytest.mark.spark
    def test_spark_finds_a_table_in_its_catalog_and_reads_what_was_written(
        self, place: Place, spark: SparkSession
    ) -> None:
        spark.sql(f"CREATE DATABASE IF NOT EXISTS states LOCATION '{place.folder}'")
        words = opened(catalog_table("states.words"), place, properties={"team": r"the \ team's"})
        assert DeltaTable(words.resolved.uri).metadata().configuration["team"] == r"the \ team's"
        words.merge(place.attempt(1, 1), counts({"a": 1, None: 2}))
        rows = spark.table("states.words").select("word", "count", "txid").toArrow().to_pylist()
        assert sorted((tuple(row.values()) for row in rows), key=str) == [("a", 1, 1), (None, 2, 1)]
        again = opened(catalog_table("states.words"), place)
        assert content(again) == {"a": 1, None: 2}
        spark.sql("DROP DATABASE states CASCADE")

    @pytest.mark.spark
    def test_spark_reads_and_optimizes_names_in_structs_that_no_column_may_have(
        self, place: Place, spark: SparkSession
    ) -> None:
        """Delta checks the names of columns alone where nothing maps them."""
        state = opened(
            place.folder / "t", place, "k string", "s struct<`a b`:long,`c,d(e)=f;`:array<struct<`g h`:long>>>"
        )
        value = {"a b": 1, "c,d(e)=f;": [{"g h": 2}]}
        for txid in (1, 2):
            state.put(place.attempt(txid, txid), {(f"k{txid}",): (value,)})
        spark.sql(f"OPTIMIZE delta.`{state.location.uri}`")
        state.put(place.attempt(3, 3), {("k3",): (value,)})
        rows = (
            spark.read.format("delta").load(state.location.uri).selectExpr("k", "s.`a b` + s.`c,d(e)=f;`[0].`g h` AS n")
        )
        assert sorted((row["k"], row["n"]) for row in rows.toArrow().to_pylist()) == [("k1", 3), ("k2", 3), ("k3", 3)]


def written(folder: Path, txid: int) -> DeltaTable:
    """A table after one more write."""
    table = pa.table({"word": ["a"], "txid": [txid]})
    configuration = {"delta.deletedFileRetentionDuration": "interval 0 seconds"}
    write_deltalake(folder, table, mode="overwrite", configuration=configuration)
    return DeltaTable(folder)


class TestOldFiles:
    """Old files are deleted by a list that is made on a fresh snapshot, in a short time."""

    def test_who_is_not_the_last_writer_any_more_deletes_nothing(self, tmp_path: Path) -> None:
        for txid in (1, 2):
            written(tmp_path / "t", txid)
        assert delete_old_files(DeltaLocation.parse(tmp_path / "t"), lambda: None) == 0
        assert len(list((tmp_path / "t").glob("*.parquet"))) == 2

    def test_a_list_that_took_too_long_is_not_used(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The process stood still while it listed: what it takes for old may be what another has written since."""
        location = DeltaLocation.parse(tmp_path / "t")
        stale = written(tmp_path / "t", 1)
        times = iter([0.0, LISTING_S_MAX + 1.0])
        with monkeypatch.context() as held_up:
            held_up.setattr("state.delta.log.files.time.monotonic", lambda: next(times))
            written(tmp_path / "t", 2)
            assert delete_old_files(location, lambda: stale) == 0
        [live] = DeltaTable(tmp_path / "t").file_uris()
        assert Path(live).is_file()

    def test_a_handle_that_another_has_overtaken_does_not_vacuum(self, place: Place) -> None:
        words = opened(place.folder / "t", place)
        words.merge(place.attempt(1, 1), counts({"a": 1}))
        handle = words._opened
        assert handle is not None
        assert handle.upkeep._if_still_own() is not None
        other = opened(place.folder / "t", place)
        other.merge(place.attempt(2, 2), counts({"a": 1}))
        assert handle.upkeep._if_still_own() is None
