"""The same records and the same deaths for `foreachBatch` with txnVersion, and for us: when both are right, when not.

Real broker, real Spark, real Delta. A death is an exception right before or right after the write of the table, which
ends the run; the next run goes on from the checkpoint, or from the store. Micro-batch n is our transaction n + 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spouts import OpaqueKafkaSpout
from spouts.kafka_admin import create_topic, delete_topic
from spouts.local_broker import LocalBroker
from state import DeltaMapState
from tests.integration.faults.foreach_batch import Peer
from tests.integration.kafka_topics import new_topic, put
from tests.integration.tables import counts
from transactional import FatalError, Topology, TransactionalTopologyBuilder, TransactionAttempt, run_topology
from transactional.core.ports import Partials
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.errors import StoreMismatch

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


class PowerCut(FatalError):
    """The process is gone."""


class PerilousState(DeltaMapState):
    """A real state, in whose write the process may end."""

    dies = ""

    def merge(self, attempt: TransactionAttempt, partials: Partials) -> None:
        self._live_on(f"before {attempt.txid - 1}")
        super().merge(attempt, partials)
        self._live_on(f"after {attempt.txid - 1}")

    def _live_on(self, point: str) -> None:
        if point == self.dies:
            raise PowerCut(f"the power is gone {point}")


@dataclass
class Ours:
    """The same work as a topology."""

    session: SparkSession
    bootstrap: str
    topic: str
    folder: Path

    @property
    def table(self) -> Path:
        return self.folder / "ours"

    @property
    def url(self) -> str:
        return f"sqlite:///{self.folder}/store.db"

    def topology(self, batch: int, dies: str) -> Topology:
        spout = OpaqueKafkaSpout(self.bootstrap, [self.topic], value_type="string", batch_records_max=batch)
        builder = TransactionalTopologyBuilder("differential", "words", spout, parallelism=2)
        state = PerilousState(self.table, key="value string")
        state.dies = dies
        builder.set_committer_bolt("count", state.count()).fields_grouping("words", "value")
        return builder.build()

    def run(self, batch: int, dies: str = "") -> bool:
        """Count all there is. True when it has died."""
        try:
            config = {"stop_when_drained": True, "max_spout_pending": 2}
            run_topology(self.topology(batch, dies), store=self.url, config=config, session=self.session)
        except PowerCut:
            return True
        return False

    def committed(self) -> int:
        """How many transactions are committed."""
        with closing(SqlCoordinatorStore(self.url)) as store:
            return store.status("differential")[0].committed_txid

    def lose_store(self) -> None:
        for file in self.folder.glob("store.db*"):
            file.unlink()


@dataclass
class Both:
    """The peer and ours, over one topic."""

    peer: Peer
    ours: Ours

    def die(self, batch: int, point: str) -> None:
        """One run of each that dies there."""
        assert self.peer.run(batch, point)
        assert self.ours.run(batch, point)

    def finish(self, batch: int) -> tuple[Counter[str], Counter[str]]:
        """One run of each to the end; what is in the tables then."""
        assert not self.peer.run(batch)
        assert not self.ours.run(batch)
        return Counter(counts(self.peer.table, "word")), Counter(counts(self.ours.table, "value"))


@pytest.fixture
def both(spark: SparkSession, kafka_broker: LocalBroker, tmp_path: Path) -> Callable[..., Both]:
    """Makes both, over a new topic."""

    def made(*records: list[str]) -> Both:
        topic = new_topic(kafka_broker.bootstrap, len(records))
        for partition, words in enumerate(records):
            put(kafka_broker.bootstrap, topic, words, partition)
        place = (spark, kafka_broker.bootstrap, topic, tmp_path)
        return Both(Peer(*place), Ours(*place))

    return made


def numbered(first: int, until: int) -> list[str]:
    """Words of which there is one each."""
    return [f"word-{number}" for number in range(first, until)]


@pytest.mark.long("test_a_batch_that_is_planned_anew_and_smaller_counts_twice_with_txn_version")
def test_with_exact_replays_both_are_right(both: Callable[..., Both]) -> None:
    records = [["cat", "dog", "cat"] * 20, ["owl", "cat"] * 30]
    pair = both(*records)
    pair.die(40, "before 1")
    assert (pair.peer.notes(), pair.ours.committed()) == ((2, 1), 1)
    pair.die(40, "after 2")
    assert (pair.peer.notes(), pair.ours.committed()) == ((3, 2), 2)
    expected = Counter(records[0] + records[1])
    assert counts(pair.peer.table, "word") == counts(pair.ours.table, "value") == expected, "written, and not known"
    assert pair.finish(40) == (expected, expected)
    assert (pair.peer.notes(), pair.ours.committed()) == ((3, 3), 3)


# --- when a replay is another one than the first ------------------------------------------------------------------


def test_a_batch_that_is_planned_anew_and_smaller_counts_twice_with_txn_version(both: Callable[..., Both]) -> None:
    """The story of seed 004: the first attempt at a batch has more tuples than the replay."""
    pair = both(numbered(0, 100))
    pair.die(50, "after 1")
    pair.peer.lose_last_plan()
    peer, ours = pair.finish(40)
    assert ours == Counter(numbered(0, 100))
    assert peer - ours == Counter(numbered(90, 100)), "in the first attempt at micro-batch 1, and again in 2"


@pytest.mark.long("test_a_batch_that_is_planned_anew_and_smaller_counts_twice_with_txn_version")
def test_a_batch_that_is_planned_anew_and_larger_is_lost_with_txn_version(both: Callable[..., Both]) -> None:
    pair = both(numbered(0, 100))
    pair.die(50, "after 1")
    pair.peer.lose_last_plan()
    put(pair.ours.bootstrap, pair.ours.topic, numbered(100, 130))
    peer, ours = pair.finish(100)
    assert ours == Counter(numbered(0, 130))
    assert ours - peer == Counter(numbered(100, 130)), "new in the replay of micro-batch 1, which is skipped whole"


@pytest.mark.long("test_a_batch_that_is_planned_anew_and_smaller_counts_twice_with_txn_version")
def test_a_topic_that_is_made_anew_is_half_unread_with_offsets_and_txn_version(both: Callable[..., Both]) -> None:
    """The checkpoint is whole: the same offsets, but other records."""
    pair = both(numbered(0, 100))
    bootstrap, topic = pair.ours.bootstrap, pair.ours.topic
    pair.die(50, "after 1")
    delete_topic(bootstrap, topic)
    create_topic(bootstrap, topic)
    put(bootstrap, topic, numbered(1_000, 1_120))
    peer, ours = pair.finish(50)
    assert ours == Counter(numbered(0, 50) + numbered(1_000, 1_120)), "what was committed, and all there is"
    assert peer == Counter(numbered(0, 100) + numbered(1_100, 1_120)), "what was not, and what comes behind its offsets"


@pytest.mark.long("test_a_batch_that_is_planned_anew_and_smaller_counts_twice_with_txn_version")
def test_a_run_without_its_notes_counts_wrong_with_txn_version_and_is_refused_by_us(both: Callable[..., Both]) -> None:
    pair = both(numbered(0, 100))
    right = pair.finish(50)
    assert right == (Counter(numbered(0, 100)), Counter(numbered(0, 100)))
    pair.peer.lose_checkpoint()
    pair.ours.lose_store()
    put(pair.ours.bootstrap, pair.ours.topic, numbered(100, 120))
    assert not pair.peer.run(40)
    peer = Counter(counts(pair.peer.table, "word"))
    assert peer == Counter(numbered(0, 120) + numbered(80, 100)), "0 and 1 are skipped, and 2 begins at another place"
    with pytest.raises(StoreMismatch, match="the store was wiped or restored"):
        pair.ours.run(40)
    assert Counter(counts(pair.ours.table, "value")) == right[1], "nothing has changed"
