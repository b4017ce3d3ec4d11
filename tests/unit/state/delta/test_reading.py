"""A reader of a table that somebody drops and makes anew at its place."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest

from state.delta.read.table_reader import TableReader
from state.delta.reading import DeltaReader
from state.delta.state import DeltaMapState
from tests.contract.states import OWNER, counts
from transactional.errors import OperatingError, StoreMismatch
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId

CAT = pa.table({"word": ["cat"]})


def written(folder: Path, layout: str, *transactions: Mapping[str, int]) -> DeltaMapState:
    """A new table after some transactions."""
    state = DeltaMapState(folder / "words", "word string", "count long", layout=layout)
    state.open(OWNER, TxId)
    for txid, rows in enumerate(transactions, start=1):
        state.merge(TransactionAttempt(TxId(txid), AttemptId(txid)), counts(rows))
    return state


def seen(reader: DeltaReader, txid: int) -> int:
    """How many cats there are."""
    reader.pin()
    [count] = reader.lookup(TxId(txid), CAT)["count"].to_pylist()
    reader.release()
    return int(count)


@pytest.mark.parametrize("transactions", [1, 2, 5])
@pytest.mark.parametrize("layout", ["merge", "log"])
def test_it_reads_the_new_one(layout: str, transactions: int, tmp_path: Path) -> None:
    """Whether that has fewer Delta versions, as many, or more: then what has come since is none of the old one's."""
    reader = written(tmp_path, layout, {"cat": 10}, {"cat": 10}).reader(OWNER)
    assert seen(reader, 2) == 20
    shutil.rmtree(tmp_path / "words")
    with pytest.raises(OperatingError, match="can't be opened"):
        reader.pin()
    state = written(tmp_path, layout, *[{"cat": 1}] * transactions)
    assert seen(reader, transactions) == transactions
    txid = transactions + 1
    state.merge(TransactionAttempt(TxId(txid), AttemptId(txid)), counts({"cat": 1}))
    assert seen(reader, txid) == txid


@pytest.mark.parametrize("transactions", [1, 2, 5])
@pytest.mark.parametrize("layout", ["merge", "log"])
def test_so_it_does_when_nobody_has_looked_meanwhile(layout: str, transactions: int, tmp_path: Path) -> None:
    reader = written(tmp_path, layout, {"cat": 10}, {"cat": 10}).reader(OWNER)
    assert seen(reader, 2) == 20
    shutil.rmtree(tmp_path / "words")
    written(tmp_path, layout, *[{"cat": 1}] * transactions)
    assert seen(reader, transactions) == transactions


@pytest.mark.parametrize("layout", ["merge", "log"])
def test_it_opens_a_table_once_as_long_as_that_is_the_same(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever follows a leader does not load the table for each transaction."""
    state = written(tmp_path, layout, {"cat": 1})
    reader, opened = state.reader(OWNER), list[TableReader]()
    open_table = reader._open

    def counted() -> TableReader:
        opened.append(open_table())
        return opened[-1]

    monkeypatch.setattr(reader, "_open", counted)
    for txid in range(2, 6):
        state.merge(TransactionAttempt(TxId(txid), AttemptId(txid)), counts({"cat": 1}))
        assert seen(reader, txid) == txid
    assert len(opened) == 1


def test_what_others_have_done_to_the_old_one_is_not_held_against_the_new_one(tmp_path: Path) -> None:
    reader = (state := written(tmp_path, "merge", {"cat": 10})).reader(OWNER)
    assert seen(reader, 1) == 10
    state.open_table.loaded.engine.update({"count": "7"})
    for _ in range(2):
        with pytest.raises(StoreMismatch, match="was changed by"):
            reader.pin()
    shutil.rmtree(tmp_path / "words")
    written(tmp_path, "merge", {"cat": 1})
    assert seen(reader, 1) == 1
