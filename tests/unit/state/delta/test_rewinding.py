"""The Delta version that a rewind restores, by the table's log alone; and what has to be kept for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from state.delta.log.log import entry_path
from state.delta.rewinding import TableHistory, find_restorable_version, find_retained_parts
from state.delta.state import DeltaMapState
from tests.contract.states import OWNER, counts
from transactional.core.ports.state_parts import RewindTarget
from transactional.errors import BeyondKept
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId

RETENTION = "delta.deletedFileRetentionDuration"


@pytest.fixture
def words(tmp_path: Path) -> DeltaMapState:
    state = DeltaMapState(tmp_path / "words", "word string", "count long")
    state.open(OWNER, TxId)
    return state


def count(state: DeltaMapState, txid: int) -> int:
    """One more transaction; the Delta version that it has made."""
    state.merge(TransactionAttempt(TxId(txid), AttemptId(txid)), counts({"cat": 1}))
    return DeltaTable(state.location.uri).version()


def target(txid: int) -> RewindTarget:
    return RewindTarget(TxId(txid), AttemptId(txid), TxId)


def test_what_others_wrote_after_the_transaction_is_taken_back_too(words: DeltaMapState) -> None:
    count(words, 1)
    version = count(words, 2)
    table = DeltaTable(words.location.uri)
    table.update({"count": "count + 40"})
    assert TableHistory(words.location, OWNER, table.version()).version_at(target(2)) == version


def test_what_changed_no_rows_after_the_transaction_stays(words: DeltaMapState) -> None:
    """The files of the newest such version are kept longest."""
    count(words, 1)
    table = DeltaTable(words.location.uri)
    table.alter.set_table_properties({"delta.checkpointInterval": "7"})
    assert TableHistory(words.location, OWNER, table.version()).version_at(target(1)) == table.version()


def test_of_several_savepoints_the_log_is_kept_for_the_oldest(words: DeltaMapState) -> None:
    versions = [count(words, txid) for txid in (1, 2, 3)]
    held = find_retained_parts(words.open_table.loaded, [target(2), target(1)])
    assert held.version == versions[0]
    assert len(held.paths) == 2, "the files of both"


def vacuum(state: DeltaMapState) -> None:
    """As maintenance does it when all that was given up is old."""
    state.open_table.loaded.refresh()
    state.open_table.upkeep.delete_old_files()


@pytest.mark.parametrize("is_held", [False, True])
def test_a_transaction_whose_files_are_deleted_is_out_of_reach_unless_it_is_held(
    words: DeltaMapState, *, is_held: bool
) -> None:
    """Before anything is touched; the message says how far back the table can go."""
    versions = [count(words, txid) for txid in (1, 2, 3)]
    DeltaTable(words.location.uri).alter.set_table_properties({RETENTION: "interval 0 seconds"})
    words.parts.rewind.retain([target(1)] if is_held else [])
    vacuum(words)
    history = TableHistory(words.location, OWNER, DeltaTable(words.location.uri).version())
    if is_held:
        assert find_restorable_version(history, target(1)) == versions[0]
    else:
        with pytest.raises(BeyondKept, match=r"1 of the 1 files of Delta version .* the oldest .* go back to is 3"):
            find_restorable_version(history, target(1))


def test_a_transaction_whose_log_is_cleaned_is_out_of_reach(words: DeltaMapState) -> None:
    *_, newest = [count(words, txid) for txid in (1, 2, 3)]
    DeltaTable(words.location.uri).create_checkpoint()
    for version in range(newest):
        (Path(words.location.uri) / entry_path(version)).unlink()
    with pytest.raises(BeyondKept, match=r"its log no longer goes back that far; the oldest .* is 3"):
        find_restorable_version(TableHistory(words.location, OWNER, newest), target(2))
