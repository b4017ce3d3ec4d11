"""A Delta table of others, looked up at a version."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from spouts import MemoryTransactionalSpout
from state import DeltaMapState, MemoryMapState, StaticDeltaTable, catalog_table
from state.delta import static
from transactional.errors import BatchLost, ConfigError, OperatingError, SchemaMismatch, TableUnfit
from transactional.testing import complete_topology
from transactional.trident import Count, TridentTopology

NAMES: list[dict[str | None, str]] = [{"a": "A", "b": "B"}, {"a": "A2", None: "nobody"}, {}]


@pytest.fixture
def table(tmp_path: Path) -> StaticDeltaTable:
    """A table of three versions, which somebody else has written."""
    for rows in NAMES:
        columns = {"name": pa.array(rows.values(), pa.string()), "id": pa.array(rows, pa.string())}
        write_deltalake(tmp_path / "users", pa.table({**columns, "more": [1] * len(rows)}), mode="overwrite")
    return StaticDeltaTable(tmp_path / "users", "id string", "name string")


@pytest.mark.parametrize("kept", [0, 1_000_000], ids=["streamed", "kept"])
def test_each_version_is_what_it_was(table: StaticDeltaTable, kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every process that has a copy of it, in any order, whether or not its rows are kept."""
    monkeypatch.setattr(static, "CACHED_ROWS_MAX", kept)
    static._read_cached_rows.cache_clear()
    copy = pickle.loads(pickle.dumps(table))
    table_id = DeltaTable(table.table).metadata().id
    assert copy.newest() == f"{table_id}@2"
    for version in (1, 0, 2, 1):
        found = copy.lookup(f"{table_id}@{version}", pa.table({"id": pa.array(["a", "x", None])}))
        expected = [{"id": key, "name": name} for key, name in NAMES[version].items() if key in ("a", None)]
        assert sorted(found.to_pylist(), key=str) == sorted(expected, key=str)


A = pa.table({"id": ["a"]})


def make_again(table: StaticDeltaTable, *names: str) -> None:
    """Drop the table, and make one of other rows at its path, with as many versions as there are names."""
    shutil.rmtree(table.table)
    for name in names:
        write_deltalake(table.table, pa.table({"id": ["a"], "name": [name]}), mode="overwrite")


def test_a_table_that_is_made_again_is_another(table: StaticDeltaTable) -> None:
    """At the same path, with the same numbers: what is kept of the old one is the old one's."""
    static._read_cached_rows.cache_clear()
    old = table.newest()
    assert table.lookup(old, A).num_rows == 0
    make_again(table, "C0", "C1", "C2")
    new = table.newest()
    assert new != old
    assert table.lookup(new, A).to_pylist() == [{"id": "a", "name": "C2"}]
    assert table.lookup(old, A).num_rows == 0
    static._read_cached_rows.cache_clear()  # as in another process
    with pytest.raises(BatchLost, match=r"users was dropped and made again: .* version 2 of the table with the id"):
        table.lookup(old, A)


def test_a_table_that_is_replaced_in_its_log_has_its_older_versions(table: StaticDeltaTable) -> None:
    """The id is that of the version that is loaded: CREATE OR REPLACE gives a new one to the next version."""
    static._read_cached_rows.cache_clear()
    old = table.newest()
    DeltaTable.create(table.table, DeltaTable(table.table).schema(), mode="overwrite")
    new = table.newest()
    assert (old.rpartition("@")[0] == new.rpartition("@")[0], new.rpartition("@")[2]) == (False, "3")
    assert table.lookup(old.replace("@2", "@1"), A).to_pylist() == [{"id": "a", "name": "A2"}]


@pytest.mark.parametrize("version", ["", "2", "@2", "users@", "users@two"])
def test_what_is_no_version_is_refused(table: StaticDeltaTable, version: str) -> None:
    with pytest.raises(OperatingError, match="is no version of a static Delta table"):
        table.lookup(version, A)


def test_a_version_that_was_cleaned_away_is_told(table: StaticDeltaTable) -> None:
    """By a vacuum, or by the log's own cleaning."""
    static._read_cached_rows.cache_clear()
    path, table_id = Path(table.table), table.newest().rpartition("@")[0]
    DeltaTable(path).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    told = (
        r"the static table .*users can't be read at version .*@0, which the batch has recorded: .*; and let the table"
    )
    with pytest.raises(OperatingError, match=told):
        table.lookup(f"{table_id}@0", pa.table({"id": ["a"]}))
    DeltaTable(path).create_checkpoint()
    for version in (0, 1):
        (path / "_delta_log" / f"{version:020}.json").unlink()
    with pytest.raises(OperatingError, match=r"can't be read at version .*@1"):
        table.lookup(f"{table_id}@1", pa.table({"id": ["a"]}))
    assert table.lookup(table.newest(), pa.table({"id": ["a"]})).num_rows == 0


@pytest.mark.parametrize(
    ("key", "values", "told"),
    [
        ("id long", "name string", "has the columns '.*it is declared with id long"),
        ("id string", "name string, age int", "is declared with age int"),
    ],
)
def test_columns_that_it_does_not_have_are_told(table: StaticDeltaTable, key: str, values: str, told: str) -> None:
    """When the first batch is planned."""
    with pytest.raises(SchemaMismatch, match=told):
        StaticDeltaTable(table.table, key, values).newest()


def add_void_column(table: Path, name: str) -> None:
    """Make the table one whose column is void, as Spark writes it of `lit(None)`: no data file has the column."""
    log = table / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    [metadata] = [action["metaData"] for action in actions if "metaData" in action]
    schema = json.loads(metadata["schemaString"])
    schema["fields"].append({"name": name, "type": "void", "nullable": True, "metadata": {}})
    metadata["schemaString"] = json.dumps(schema)
    log.write_text("".join(f"{json.dumps(action)}\n" for action in actions), "utf-8")


def test_a_void_column_is_refused_by_name_where_it_is_looked_up(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "users", pa.table({"id": ["a"], "name": ["A"]}))
    add_void_column(tmp_path / "users", "more")
    users = StaticDeltaTable(tmp_path / "users", "id string", "name string")
    assert users.lookup(users.newest(), pa.table({"id": ["a"]})).to_pylist() == [{"id": "a", "name": "A"}]
    with pytest.raises(TableUnfit, match=f"column 'more' of the static table {tmp_path}/users is void"):
        StaticDeltaTable(tmp_path / "users", "id string", "more string").newest()
    why = rf"^Delta table {tmp_path}/users: column 'more': the type is void, .*: cast it to another one"
    with pytest.raises(ConfigError, match=why):
        DeltaMapState(tmp_path / "users", "id").read()


def test_a_table_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(OperatingError, match="nowhere"):
        StaticDeltaTable(tmp_path / "nowhere", "id string", "name string").newest()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            (catalog_table("flights.users"), "id string", "name string"),
            "without Spark, which alone knows flights",
        ),
        (("users", "id string", ""), "needs columns of a key, and values"),
        (("users", "", "name string"), "needs columns of a key, and values"),
        (("users", "id double", "name string"), "key column .id. is a double"),
    ],
)
def test_what_is_no_static_table_is_refused(given: tuple[Any, ...], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        StaticDeltaTable(*given)


# --- what no attempt can look up --------------------------------------------------------------------------------------


def test_a_column_of_no_type_is_named_if_it_is_looked_up(tmp_path: Path) -> None:
    table = pa.table({"id": ["a"], "name": ["A"], "note": pa.nulls(1)})
    write_deltalake(tmp_path / "users", table)
    assert StaticDeltaTable(tmp_path / "users", "id string", "name string").newest()
    with pytest.raises(TableUnfit, match=r"column 'note' of the static table \S+users is void"):
        StaticDeltaTable(tmp_path / "users", "id string", "note string").newest()


@pytest.mark.parametrize(
    ("feature", "why"),
    [
        ("catalogManaged", "is managed by a catalog"),
        ("catalogOwned-preview", "is managed by a catalog"),
        ("news", "has the feature news, which delta-rs does not read"),
        ("typeWidening", "has the feature TypeWidening, which delta-rs does not read"),
    ],
)
def test_a_feature_that_is_not_read_ends_the_run(table: StaticDeltaTable, feature: str, why: str) -> None:
    """For ever it was taken for an outage."""
    [entry] = Path(table.table, "_delta_log").glob("*0.json")
    [*actions] = map(json.loads, entry.read_text().splitlines())
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": [feature], "writerFeatures": [feature]}
    lines = [{"protocol": protocol} if "protocol" in action else action for action in actions]
    entry.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(TableUnfit, match=why):
        table.lookup(table.newest(), A)


def test_a_table_that_is_not_as_declared_ends_the_run(table: StaticDeltaTable) -> None:
    topology = TridentTopology("users")
    ids = topology.new_stream("ids", MemoryTransactionalSpout([[("a",)]], "id string", 1))
    other = topology.static_state(StaticDeltaTable(table.table, "id string", "name long"))
    ids.state_query(other, on="id").group_by("id").persistent_aggregate(MemoryMapState(), Count())
    with pytest.raises(TableUnfit, match="is declared with name long"):
        complete_topology(topology.build())
