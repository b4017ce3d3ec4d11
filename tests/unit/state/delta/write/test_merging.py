"""Small tables that are rewritten: what a transaction of one whose rows expire costs beside one whose rows stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from state.delta.state import DeltaMapState
from transactional.core.ports import Partials
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.facts import BatchFacts

TRANSACTIONS = 12


def loads(folder: Path, expires: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> int:
    """How often delta-rs loads a version within some transactions."""
    state = DeltaMapState(folder, "key string", "n long, at timestamp", **expires)
    state.open("topology/counts", TxId)
    loaded, update = list[DeltaTable](), DeltaTable.update_incremental

    def counted(table: DeltaTable) -> None:
        loaded.append(table)
        update(table)

    monkeypatch.setattr(DeltaTable, "update_incremental", counted)
    for txid in range(1, TRANSACTIONS + 1):
        attempt = TransactionAttempt(TxId(txid), AttemptId(txid))
        if expires:
            state.declared.begin(attempt, BatchFacts(txid * 1_000))
        at = pa.array([txid * 1_000_000], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
        state.merge(attempt, Partials({"n": "sum", "at": "max"}, pa.table({"key": ["a"], "n": [1], "at": at})))
    assert state.read().num_rows == 1
    state.close()
    return len(loaded)


def test_rows_that_expire_load_no_version_more_than_rows_that_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the one in which the table says that they do: the rest is known."""
    stay = loads(tmp_path / "stay", {}, monkeypatch)
    assert loads(tmp_path / "go", {"expires": "at", "after": "1 hour"}, monkeypatch) <= stay + 2
