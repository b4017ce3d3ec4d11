"""Putting small files together: the same rows in fewer files, and nothing at all beside another Delta commit."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from deltalake.exceptions import CommitFailedError

import state.delta.log.files
import state.delta.upkeep.merged_upkeep
from state.delta.log.files import compact_files
from state.delta.state import DeltaMapState
from state.delta.tables.table import DeltaLocation
from tests.contract.states import OWNER, FilesMapState, Place, content, counts
from transactional.model.attempt import AttemptId, TxId

COLUMNS = pa.schema(
    [("word", pa.string()), ("number", pa.int64()), ("day", pa.date32()), ("at", pa.timestamp("us", "UTC"))]
)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place("delta-rs", tmp_path)


def opened(place: Place) -> DeltaMapState:
    # A table that is written as a whole has one file.
    words = FilesMapState(place.folder / "t", "word string", "count long")
    words.open(OWNER, place.txids.__getitem__)
    return words


def one_file_each(place: Place, transactions: int) -> DeltaMapState:
    """A state in which each transaction has left a file of its own."""
    words = opened(place)
    for txid in range(1, transactions + 1):
        words.merge(place.attempt(txid, txid), counts({f"word {txid}": 1}))
    return words


def table_of(words: DeltaMapState) -> DeltaTable:
    return DeltaTable(words.location.uri)


def rows(table: DeltaTable) -> list[dict[str, Any]]:
    found: Any = QueryBuilder().register("t", table).execute("SELECT * FROM t ORDER BY word").read_all()
    return list(pa.table(found).select(COLUMNS.names).to_pylist())


def test_the_rows_stay_and_so_does_what_is_known_of_them(place: Place) -> None:
    words = one_file_each(place, 4)
    assert compact_files(table_of(words), words.location, OWNER) == 4
    [file] = pa.table(table_of(words).get_add_actions()).to_pylist()
    assert (file["num_records"], file["min"]["txid"], file["max"]["txid"]) == (4, 1, 4)
    assert content(words) == {f"word {txid}": 1 for txid in range(1, 5)}
    assert words.version() == 4
    words.merge(place.attempt(5, 5), counts({"word 1": 1}))
    assert content(words)["word 1"] == 2


def test_is_refused_after_any_other_delta_commit_and_changes_nothing(place: Place) -> None:
    words = one_file_each(place, 3)
    late = table_of(words)
    words.merge(place.attempt(4, 4), counts({"word 4": 1}))
    with pytest.raises(CommitFailedError):
        compact_files(late, words.location, OWNER)
    assert table_of(words).version() == 4
    assert len(table_of(words).file_uris()) == 4


def test_a_coordinator_that_was_taken_over_puts_no_files_together(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    old = one_file_each(place, 2)
    handle, new = old.open_table, opened(place)
    assert new.version() == 2
    new.fence(AttemptId(3))
    monkeypatch.setattr(state.delta.upkeep.merged_upkeep, "COMPACTION_INTERVAL", 1)
    monkeypatch.setattr(state.delta.upkeep.merged_upkeep, "FILES_MAX", 1)
    handle.upkeep.maintain(TxId(2), lambda: True)
    assert "could not be maintained" in caplog.text
    assert table_of(new).version() == 3
    assert len(table_of(new).file_uris()) == 2


def test_takes_the_smallest_files_and_no_more_than_make_a_large_one(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = one_file_each(place, 5)
    sizes_bytes = sorted(pa.table(table_of(words).get_add_actions()).column("size_bytes").to_pylist())
    monkeypatch.setattr(state.delta.log.files, "TARGET_BYTES", sum(sizes_bytes[:3]))
    assert compact_files(table_of(words), words.location, OWNER) == 3
    monkeypatch.setattr(state.delta.log.files, "TARGET_BYTES", sizes_bytes[0])
    assert compact_files(table_of(words), words.location, OWNER) == 0
    assert content(words) == {f"word {txid}": 1 for txid in range(1, 6)}


def test_a_file_gets_no_more_rows_than_threads_are_to_share(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    words = one_file_each(place, 7)
    monkeypatch.setattr(state.delta.log.files, "FILE_ROWS_MAX", 3)
    assert compact_files(table_of(words), words.location, OWNER) == 6
    assert sorted(pa.table(table_of(words).get_add_actions())["num_records"].to_pylist()) == [1, 3, 3]
    assert content(words) == {f"word {txid}": 1 for txid in range(1, 8)}


@pytest.mark.parametrize(
    ("column", "replaced", "left"),
    [("day", 6, 3), ("number", 0, 7), ("word", 0, 7)],
    ids=["some partitions have one file", "all have one", "their names are odd"],
)
def test_files_of_a_partition_stay_in_it(tmp_path: Path, column: str, replaced: int, left: int) -> None:
    location = DeltaLocation.parse(tmp_path / column)
    table = DeltaTable.create(location.uri, COLUMNS, partition_by=[column])
    for number in range(7):
        at = datetime.datetime(2020, 1, (1, 2, 1, 2, 1, 2, 3)[number], 10, 30, 0, number, tzinfo=datetime.UTC)
        row = {"word": f"a word: {number}", "number": number, "day": at.date(), "at": at}
        write_deltalake(table, pa.Table.from_pylist([row], COLUMNS), mode="append")
    before = rows(DeltaTable(location.uri))
    assert compact_files(DeltaTable(location.uri), location, OWNER) == replaced
    assert rows(DeltaTable(location.uri)) == before
    assert len(DeltaTable(location.uri).file_uris()) == left
