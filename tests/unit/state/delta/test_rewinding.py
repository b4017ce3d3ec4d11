"""The Delta version that a rewind restores, by the table's log alone; and what has to be kept for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from state.delta.rewinding import TableHistory, held_for
from state.delta.state import DeltaMapState
from tests.contract.states import OWNER, counts
from transactional.attempt import AttemptId, TransactionAttempt, TxId
from transactional.ports.rewinding import RewindTarget


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
    held = held_for(words._open_table.loaded, [target(2), target(1)])
    assert held.version == versions[0]
    assert len(held.paths) == 2, "the files of both"
