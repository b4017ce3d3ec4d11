"""Steps of the commit phase as jobs: the same tables and the same emissions as in the driver, and what is refused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from state.delta.folding import LogLayout
from state.delta.state import DeltaMapState
from state.memory import MemoryMapState, MemoryTable
from tests.unit.fakes import builder, counts, opaque_words, stored
from transactional.attempt import AttemptId, TransactionAttempt, TxId
from transactional.batch import BatchMetadata, Offset, OffsetRange, PartitionId
from transactional.bolts import Tuple
from transactional.errors import BoltFailed
from transactional.phases.committing import CommitPhase
from transactional.phases.local_executor import LocalExecutor
from transactional.ports import TransactionState
from transactional.stateful import KeyValueState, StatefulBolt
from transactional.topology.topology import Topology

ROWS = [(f"w{number * 7 % 40}",) for number in range(300)]


class WordCount(StatefulBolt):
    """Storm's example."""

    output = "word string, count long"

    def init_state(self, state: KeyValueState) -> None:
        self.counts = state

    def execute(self, tuple: Tuple) -> None:
        count = self.counts.get(tuple.word, 0) + 1
        self.counts.put(tuple.word, count)
        self.collector.emit(tuple.word, count)


class Total(WordCount):
    """Also counts all words, under a key that is of one task at most."""

    def execute(self, tuple: Tuple) -> None:
        super().execute(tuple)
        self.counts.put("all", self.counts.get("all", 0) + 1)


class Writing(WordCount):
    """As `Total`, without a look at what was there."""

    def execute(self, tuple: Tuple) -> None:
        super().execute(tuple)
        self.counts.put("all", 1)


class Listing(WordCount):
    """Reads everything."""

    def pre_prepare(self, txid: int) -> None:
        list(self.counts.items())


def attempt(txid: int, attempt_id: int) -> TransactionAttempt:
    return TransactionAttempt(TxId(txid), AttemptId(attempt_id))


def counting(bolt: StatefulBolt, state: TransactionState, changes: MemoryTable | None = None) -> Topology:
    """A stateful bolt over three tasks, with an update behind it."""
    made = builder(opaque_words([ROWS[:150], ROWS[150:]], take=50), parallelism=2)
    made.set_stateful_bolt("count", bolt, 3, state=state).fields_grouping("spout", "word")
    update = MemoryMapState("word", table=changes or MemoryTable("changes")).count("changes")
    made.set_committer_bolt("changes", update).fields_grouping("count", "word")
    topology = made.build(strict=True)
    for component in topology.committers:
        assert component.state is not None
        component.state.open(f"words/{component.id}", lambda attempt_id: TxId(attempt_id // 10))
    return topology


def run(topology: Topology, choice: str, transactions: int = 3) -> list[Any]:
    """Run transactions; what was emitted, in order."""
    seen: list[Any] = []
    record = lambda *told: seen.extend((told[1], *row.values()) for row in told[3].to_pylist())  # noqa: E731
    executor = LocalExecutor(topology, record=record)
    executor.open()
    phase = CommitPhase(topology, record=record, jobs=executor, choice=choice)
    for txid in range(1, transactions + 1):
        ranges = {PartitionId("memory", n): OffsetRange(Offset(50 * (txid - 1)), Offset(50 * txid)) for n in (0, 1)}
        phase.run(attempt(txid, 10 * txid), executor.run(attempt(txid, 10 * txid), BatchMetadata(ranges)))
        assert phase.told is not None
        assert phase.told.places["count"].is_job == (choice == "jobs")
    return seen


def log(folder: Path) -> DeltaMapState:
    return DeltaMapState(folder, "word string", "count long", layout=LogLayout(staged_bytes=0))


def test_a_job_leaves_the_same_and_emits_the_same(tmp_path: Path) -> None:
    tables = [MemoryTable("driver"), MemoryTable("jobs")]
    changes = [MemoryTable("changes"), MemoryTable("changes")]
    told = [
        run(counting(WordCount(), counts(table), changed), choice)
        for table, changed, choice in zip(tables, changes, ("driver", "jobs"), strict=True)
    ]
    assert told[0] == told[1]
    assert stored(tables[0]) == stored(tables[1]) == Counter(word for (word,) in ROWS)
    assert stored(changes[0]) == stored(changes[1])
    state = log(tmp_path / "t")
    assert run(counting(WordCount(), state), "jobs") == told[0]
    assert dict(zip(*state.read().to_pydict().values(), strict=True)) == stored(tables[0])


@pytest.mark.parametrize(("bolt", "named"), [(Total(), "'all'"), (Writing(), "'all'"), (Listing(), "items()")])
def test_what_only_the_driver_can_do_is_refused_and_named(bolt: StatefulBolt, named: str) -> None:
    with pytest.raises(BoltFailed) as raised:
        run(counting(bolt, counts(MemoryTable("t"))), "jobs")
    assert named in str(raised.value)
    assert "'count'" in str(raised.value)
