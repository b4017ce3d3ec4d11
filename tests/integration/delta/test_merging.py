"""A state in the merge layout over its transactions: small, larger, torn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

import state.delta.write.change
from state.delta.open_table import open_merged
from state.delta.state import DeltaMapState
from state.delta.tables.data_files import Replacement
from state.delta.tables.table import DeltaLocation
from state.delta.write.change import Change
from state.delta.write.loaded_table import LoadedTable
from state.delta.write.merging import MergeWriter
from state.fence import TableWrite, WriteRefused
from tests.contract.states import OWNER, Place, content, counts, write_by_files
from transactional.errors import OperatingError, SumOverflow
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place("delta-rs", tmp_path)


def opened(place: Place) -> DeltaMapState:
    words = DeltaMapState(place.folder / "t", "word string", "count long")
    words.open(OWNER, place.txids.__getitem__)
    return words


def merges(monkeypatch: pytest.MonkeyPatch) -> list[TxId]:
    """The transactions that are written file by file."""
    left: list[TxId] = []
    original = MergeWriter.rewrite_touched

    def noted(self: MergeWriter, change: Change, *rest: Any) -> Replacement:
        left.append(change.txid)
        return original(self, change, *rest)

    monkeypatch.setattr(MergeWriter, "rewrite_touched", noted)
    return left


def test_a_table_that_has_grown_is_merged_into(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    left = merges(monkeypatch)
    monkeypatch.setattr(state.delta.write.change, "REWRITTEN_ROWS_MAX", 4)
    words = opened(place)
    for txid, many in enumerate((2, 2, 3, 3), 1):
        words.merge(place.attempt(txid, txid), counts({f"word {number}": 1 for number in range(many)}))
    assert left == [3, 4]
    assert content(words) == {"word 0": 4, "word 1": 4, "word 2": 2}


def test_a_table_of_large_rows_is_merged_into(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    left = merges(monkeypatch)
    words = opened(place)
    words.merge(place.attempt(1, 1), counts({"a": 1}))
    monkeypatch.setattr(state.delta.write.change, "REWRITTEN_BYTES_MAX", 100)
    words.merge(place.attempt(2, 2), counts({"a": 1}))
    assert left == [2]
    assert content(words) == {"a": 2}


def test_what_another_has_written_meanwhile_is_read_anew(place: Place) -> None:
    first, second = opened(place), opened(place)
    for txid in range(1, 9):
        words = first if txid in (1, 2, 5, 8) else second
        words.merge(place.attempt(txid, txid), counts({"a": txid, str(txid): 1}))
        assert content(words)["a"] == sum(range(txid + 1))
    table = DeltaTable(first.location.uri)
    table.create_write_transaction([], "append", table.schema())
    second.merge(place.attempt(9, 9), counts({"a": 9}))
    first.merge(place.attempt(9, 10), counts({"b": 9}))
    assert content(second) == {**{str(txid): 1 for txid in range(1, 9)}, "a": 36, "b": 9}


def test_what_is_kept_belongs_to_one_version(place: Place) -> None:
    words = opened(place)
    words.merge(place.attempt(1, 1), counts({"a": 1}))
    loaded = LoadedTable(DeltaLocation.parse(place.folder / "t"), OWNER, words.declared.columns)
    handle = open_merged(loaded, "t")
    table = DeltaTable(words.location.uri)
    table.create_write_transaction([], "append", table.schema())
    attempt = TransactionAttempt(TxId(2), AttemptId(2))
    merge = partial(handle.apply, TableWrite(attempt, counts({"a": 1}).table, {"count": "sum"}))
    before = set(Path(words.location.uri).iterdir())
    with pytest.raises(WriteRefused):
        merge()
    assert loaded.current.rows is None, "a Delta commit came between: who knows what is in it"
    assert set(Path(words.location.uri).iterdir()) == before, "nor is a file of it left"
    assert handle.read_and_check_version() == 1
    merge()
    assert loaded.delta_version == table.version() + 2
    assert content(words) == {"a": 2}
    table.update_incremental()
    table.create_write_transaction([], "append", table.schema())
    loaded.refresh()
    with pytest.raises(WriteRefused, match="was read at Delta version"):
        merge()
    assert content(words) == {"a": 2}


def test_a_sum_that_does_not_fit_is_named_as_by_a_merge(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    write_by_files(monkeypatch)
    words = opened(place)
    words.merge(place.attempt(1, 1), counts({"a": 2**63 - 1, "b": 1}))
    with pytest.raises(SumOverflow, match="'a'"):
        words.merge(place.attempt(2, 2), counts({"a": 1, "b": 1}))
    assert content(words) == {"a": 2**63 - 1, "b": 1}


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def zero(file: Path) -> None:
    """As a power cut leaves what was not synced."""
    file.write_bytes(b"\0" * file.stat().st_size)


@pytest.mark.parametrize("is_small", [True, False])
@pytest.mark.parametrize("harm", [cut, zero, Path.unlink])
@pytest.mark.parametrize("is_known", [True, False])
def test_a_file_that_is_torn_or_gone_fails_the_attempt(
    place: Place, monkeypatch: pytest.MonkeyPatch, harm: Callable[[Path], None], *, is_small: bool, is_known: bool
) -> None:
    """Whether the process has looked at the file before, or has just started; and nothing is written."""
    if not is_small:
        write_by_files(monkeypatch)
    words = opened(place)
    for txid in (1, 2):
        words.merge(place.attempt(txid, txid), counts({"a": 1, f"{txid}": 1}))
    if not is_known:
        words = opened(place)
    elif is_small:
        loaded = words.open_table.loaded
        loaded.current = replace(loaded.current, rows=None)
    version = DeltaTable(words.location.uri).version()
    for uri in DeltaTable(words.location.uri).file_uris():
        harm(Path(uri))
    with pytest.raises(OperatingError, match=r"Delta table .*/t "):
        words.merge(place.attempt(3, 3), counts({"a": 1}))
    assert DeltaTable(words.location.uri).version() == version
