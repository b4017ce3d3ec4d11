"""The doctor's replay of a topology: a table counts from where its committer has joined."""

from __future__ import annotations

from typing import Any

from spouts.memory import MemoryTransactionalSpout
from state.memory import MemoryMapState
from transactional.core.store import AttemptRecord
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.batch import BatchMetadata, Offset, OffsetRange, PartitionId
from transactional.operations.doctor.replaying import Replay
from transactional.topology.builder import TransactionalTopologyBuilder

WORDS = [("cat",), ("dog",), ("cat",), ("cat",)]


def committed(txid: int) -> AttemptRecord:
    """A transaction of one word."""
    batch = BatchMetadata({PartitionId("memory", 0): OffsetRange(Offset(txid - 1), Offset(txid))})
    attempt = TransactionAttempt(TxId(txid), AttemptId(10 * txid))
    return AttemptRecord(attempt, "committed", batch, 1, 0, 0, 0, 0, 0, None)


def test_a_table_counts_from_where_its_committer_has_joined() -> None:
    """The others count from the beginning."""
    made = TransactionalTopologyBuilder("words", "spout", MemoryTransactionalSpout([WORDS], "word string", 1))
    for name in ("first", "joined"):
        made.set_committer_bolt(name, MemoryMapState("word").count()).fields_grouping("spout", "word")
    replay = Replay(made.build(), {"joined": TxId(2)}, lambda *_: None)
    for txid in range(1, 5):
        replay.run(committed(txid))

    def counts(state: Any) -> dict[str, int]:
        return {key: row.value[0] for (key,), row in state.stored.rows.items()}

    assert counts(replay.states["first"]) == {"cat": 3, "dog": 1}
    assert counts(replay.states["joined"]) == {"cat": 2}
