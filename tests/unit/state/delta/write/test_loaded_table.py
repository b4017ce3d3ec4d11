"""One loaded version of a table, followed by a reader while it is written."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from state.delta.opening import open_reader
from state.delta.read.table_reader import TableReader
from state.delta.segments.log_layout import LogLayout
from state.delta.state import DeltaMapState
from state.rows.expiring import app_transactions
from transactional.core.ports import Partials
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.facts import BatchFacts
from transactional.model.names import compaction_of

OWNER = "topology/counts"
AT = pa.timestamp("us", tz="UTC")


def written(folder: Path, txid: int) -> DeltaMapState:
    """The state after one more transaction, with what maintenance it wants."""
    columns = ("key string, at timestamp", "n long")
    state = DeltaMapState(folder, *columns, layout=LogLayout(compact_after=2), expires="at", after="1 second")
    state.open(OWNER, TxId)
    attempt = TransactionAttempt(TxId(txid), AttemptId(txid))
    state.declared.begin(attempt, BatchFacts(txid * 1_000))
    row = {"key": ["a"], "at": pa.array([txid * 1_000_000], pa.int64()).cast(AT), "n": [1]}
    state.merge(attempt, Partials({"n": "sum"}, pa.table(row)))
    state.parts.maintenance.maintain(TxId(txid), lambda: True)
    return state


def known(table: TableReader) -> list[int | None]:
    """What the loaded version says of attempts, compactions and horizons."""
    ids = [OWNER, compaction_of(OWNER), *(name for name, _ in app_transactions(OWNER, table.loaded.horizons()))]
    return [table.loaded.version_of(each) for each in ids]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("between", [1, 3])
@pytest.mark.parametrize("cleaned", [False, True], ids=["", "the log is cleaned"])
def test_what_a_reader_follows_is_what_one_finds_that_opens_the_table(
    tmp_path: Path, between: int, *, cleaned: bool
) -> None:
    """The versions of attempts, compactions and horizons, however many Delta commits have come."""
    state = written(tmp_path / "t", 1)
    state.close()
    followed = open_reader(state.location, OWNER, state.declared.columns)
    compactions = set()
    for txid in range(2, 14):
        written(tmp_path / "t", txid).close()
        if txid % between:
            continue
        if cleaned:
            newest = open_reader(state.location, OWNER, state.declared.columns).loaded
            newest.engine.create_checkpoint()
            for version in range(newest.delta_version):
                (tmp_path / "t" / "_delta_log" / f"{version:020}.json").unlink(missing_ok=True)
        followed.loaded.refresh()
        opened = open_reader(state.location, OWNER, state.declared.columns)
        assert known(followed) == known(opened)
        assert followed.row_count() == opened.row_count()
        compactions.add(known(followed)[1])
    assert len(compactions) > 2, "it was compacted meanwhile"
