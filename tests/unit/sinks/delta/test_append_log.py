"""A Delta sink on a table that others have made or changed: its rows are right, or it is refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake import Field as DeltaField
from deltalake.schema import PrimitiveType

from tests.unit.sinks.delta.leaders import Leader, table_rows
from transactional.errors import SchemaMismatch, SinkUnavailable, TableUnfit
from transactional.model.attempt import AttemptId, TxId

SLOWER = pytest.mark.long("delta-rs changes a table, or several leaders append to it; the refusals take no such time")
V2: dict[str, Any] = {"minReaderVersion": 1, "minWriterVersion": 2}
V7: dict[str, Any] = {"minReaderVersion": 1, "minWriterVersion": 7}
VECTORS = {
    "minReaderVersion": 3,
    "minWriterVersion": 7,
    "readerFeatures": ["deletionVectors"],
    "writerFeatures": ["deletionVectors"],
}
UNFIT: dict[str, tuple[dict[str, Any], dict[str, str], dict[str, Any], str]] = {
    "deletion vectors": (VECTORS, {"delta.enableDeletionVectors": "true"}, {}, "features deletionVectors; a DeltaSink"),
    "column mapping": (
        {"minReaderVersion": 2, "minWriterVersion": 5},
        {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "2"},
        {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "col-1"},
        "reader 2, writer 5; a DeltaSink appends .* without deletion vectors, column mapping",
    ),
    "a constraint": ({**V2, "minWriterVersion": 3}, {"delta.constraints.positive": "n > 0"}, {}, "writer 3; a"),
    "a constraint by feature": (
        {**V7, "writerFeatures": ["checkConstraints"]},
        {"delta.constraints.positive": "n > 0"},
        {},
        "writer 7 with the features checkConstraints; a",
    ),
    "a generated column": ({**V2, "minWriterVersion": 4}, {}, {"delta.generationExpression": "1"}, "writer 4; a"),
    "an identity column": (
        {**V2, "minWriterVersion": 6},
        {},
        {"delta.identity.start": 1, "delta.identity.step": 1, "delta.identity.allowExplicitInsert": False},
        "writer 6; a DeltaSink appends to tables of reader 1, writer 2",
    ),
    "row tracking": (
        {**V7, "writerFeatures": ["rowTracking", "domainMetadata"]},
        {"delta.enableRowTracking": "true"},
        {},
        "writer 7 with the features domainMetadata, rowTracking; a .* ALTER TABLE … DROP FEATURE",
    ),
    "a default": ({**V7, "writerFeatures": ["allowColumnDefaults"]}, {}, {"CURRENT_DEFAULT": "1"}, "allowColumnDefaul"),
    "an invariant": (V2, {}, {"delta.invariants": "{}"}, "writer 2, and a column with an invariant; a DeltaSink"),
    "a later feature": ({**V7, "writerFeatures": ["later"]}, {}, {}, "writer 7 with the features later; a"),
}
"""Tables by what they have: protocol, properties, what is noted at a column, and the refusal."""


def write_entry(
    folder: Path, version: int, protocol: dict[str, Any], properties: dict[str, str], column: dict[str, Any]
) -> None:
    """Write an entry of the table's log as another engine would, with the columns `n` and `txid`."""
    log = folder / "events" / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    txid: dict[str, Any] = {"name": "txid", "type": "long", "nullable": True, "metadata": {}}
    if "delta.columnMapping.mode" in properties:
        txid["metadata"] = {"delta.columnMapping.id": 2, "delta.columnMapping.physicalName": "col-2"}
    schema = {"type": "struct", "fields": [{"name": "n", "type": "long", "nullable": True, **column}, txid]}
    table = {
        "id": "0a63a4c5-5b8e-4d6c-9c4c-3f0a4f1d2b10",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(schema),
        "partitionColumns": [],
        "configuration": properties,
        "createdTime": 1,
    }
    actions: list[dict[str, Any]] = [{"protocol": protocol}, {"metaData": table}]
    (log / f"{version:020}.json").write_text("\n".join(map(json.dumps, actions)), "utf-8")


@pytest.mark.parametrize("name", UNFIT)
def test_a_table_with_a_feature_that_the_sink_does_not_write_is_refused(tmp_path: Path, name: str) -> None:
    protocol, properties, note, message = UNFIT[name]
    write_entry(tmp_path, 0, protocol, properties, {"metadata": note})
    with pytest.raises(TableUnfit, match=rf"Delta table {tmp_path}/events has protocol .*{message}"):
        Leader(tmp_path, 1).open()


def test_a_feature_that_comes_while_a_leader_publishes_ends_the_run(tmp_path: Path) -> None:
    leader = Leader(tmp_path, 1).open()
    leader.publish(leader.stage(1, 2))
    table = DeltaTable(str(tmp_path / "events"))
    write_entry(tmp_path, table.version() + 1, VECTORS, dict(table.metadata().configuration), {"metadata": {}})
    with pytest.raises(TableUnfit, match="with the features deletionVectors"):
        leader.publish(leader.stage(2, 3))


@SLOWER
def test_an_append_only_table_is_appended_to_and_not_taken_back(tmp_path: Path) -> None:
    write_entry(tmp_path, 0, V2, {"delta.appendOnly": "true"}, {"metadata": {}})
    leader = Leader(tmp_path, 1).open()
    leader.publish(leader.stage(1, 2), leader.stage(2, 3))
    with pytest.raises(TableUnfit, match=r"delta\.appendOnly, .* nothing was removed.* UNSET TBLPROPERTIES"):
        leader.sink.check_go_back()
    with pytest.raises(TableUnfit, match=r"delta\.appendOnly"):
        leader.sink.go_back(TxId(1), AttemptId(4))
    assert table_rows(tmp_path) == [(2,), (3,)]
    DeltaTable(str(tmp_path / "events")).alter.set_table_properties({"delta.appendOnly": "false"})
    leader.sink.check_go_back()
    leader.sink.go_back(TxId(1), AttemptId(5))
    assert table_rows(tmp_path) == [(2,)]


@pytest.mark.parametrize(
    ("fields", "column", "problem"),
    [
        ("n long", {"nullable": False}, "may have NULL there"),
        ("m long", {"nullable": False}, "lacks it"),
        (
            "n struct<a long>",
            {"type": {"type": "struct", "fields": [{"name": "a", "type": "long", "nullable": False, "metadata": {}}]}},
            "may have NULL there",
        ),
        ("n array<long>", {"type": {"type": "array", "elementType": "long", "containsNull": False}}, "may have NULL"),
    ],
)
def test_a_column_that_must_not_be_null_is_refused(
    tmp_path: Path, fields: str, column: dict[str, Any], problem: str
) -> None:
    write_entry(tmp_path, 0, V2, {}, {"metadata": {}, **column})
    with pytest.raises(
        SchemaMismatch, match=rf"a column 'n' that is NOT NULL .*, and its stream {problem}.*DROP NOT N"
    ):
        Leader(tmp_path, 1, fields=fields).open()


@SLOWER
def test_nested_columns_of_the_sink_itself_are_appended_to_again(tmp_path: Path) -> None:
    fields = "n map<string,array<long>>, s struct<a long>"
    for number in (1, 2):
        leader = Leader(tmp_path, number * 10, fields=fields).open(has_published=number > 1)
        leader.publish(leader.stage_rows(number, number * 10 + 1, [([("k", [number])], {"a": None})]))
    assert table_rows(tmp_path, "txid") == [(1,), (2,)]


@SLOWER
def test_a_column_that_others_have_added_is_null_in_later_rows(tmp_path: Path) -> None:
    leader = Leader(tmp_path, 1).open()
    leader.publish(leader.stage(1, 2))
    DeltaTable(str(tmp_path / "events")).alter.add_columns([DeltaField("note", PrimitiveType("string"))])
    leader.publish(leader.stage(2, 3))
    later = Leader(tmp_path, 4).open(has_published=True)
    later.publish(later.stage(3, 5))
    assert table_rows(tmp_path, "n", "note") == [(2, None), (3, None), (5, None)]
    with pytest.raises(SchemaMismatch, match="has the column 'note' as string, its sink as long"):
        Leader(tmp_path, 6, fields="n long, note long").open(has_published=True)


def test_a_table_that_another_one_has_replaced_is_not_continued(tmp_path: Path) -> None:
    leader = Leader(tmp_path, 1).open()
    leader.publish(leader.stage(1, 2))
    (tmp_path / "events").rename(tmp_path / "old")
    DeltaTable.create(str(tmp_path / "events"), pa.schema([("n", pa.int64()), ("txid", pa.int64())]))
    with pytest.raises(SinkUnavailable, match="has the fence id 0, and this leader 1"):
        leader.publish(leader.stage(2, 3))
    assert DeltaTable(str(tmp_path / "events")).version() == 0
