"""The topology that the soak kills: words from Kafka, counted, and how many words have how many counts. No JVM in it.

`transactional run tests.proof.soaking:build --master none`, in the folder of its tables. The variables BOOTSTRAP, TOPIC
and SPOUT (`opaque` or `transactional`) say where the words come from, COUNTER (`committer`, `stateful` or `spread`)
what counts them: with `spread` a batch has a hundred thousand keys, its tasks stage what they have aggregated, and
compactions are written beside the transactions.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from examples.transactional_words import Bucketize, KeyedCountUpdater
from spouts import OpaqueKafkaSpout
from spouts.kafka.spout import KafkaSpout, TransactionalKafkaSpout
from state import DeltaMapState, LogLayout
from transactional import KeyValueState, StatefulBolt, StateKind, Topology, TransactionalTopologyBuilder, Tuple
from transactional.bolts import ArrowBatchBolt, OutputCollector, TopologyContext
from transactional.model.attempt import TransactionAttempt

TOPOLOGY = "soak"
BUCKET_SIZE = 100
SPREAD = 2_500
"""So many keys has each of forty words."""
LEASE_MS = 1_000
OPTIONS = (
    "max_spout_pending=3",
    "attempt_timeout_ms=3000",
    f"lease_ms={LEASE_MS}",
    "retry_pause_ms=10",
)
SPOUTS: Mapping[str, type[KafkaSpout]] = {"opaque": OpaqueKafkaSpout, "transactional": TransactionalKafkaSpout}


def parse(tuple: Tuple) -> tuple[str]:
    return (tuple["value"],)


class CountWords(StatefulBolt):
    """As `KeyedCountUpdater`, tuple by tuple."""

    output = KeyedCountUpdater.output

    def init_state(self, state: KeyValueState) -> None:
        self.counts = state

    def execute(self, tuple: Tuple) -> None:
        before = self.counts.get(tuple.word)
        self.counts.put(tuple.word, (before or 0) + 1)
        self.collector.emit(tuple.word, before, (before or 0) + 1)


class Spread(ArrowBatchBolt):
    """Of each word as often as it came: `SPREAD` keys, whose first digits are the word's number."""

    output = "key long, times long"

    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        self.collector = collector
        self.words = Counter[str]()

    def execute_batch(self, batch: pa.RecordBatch) -> None:
        self.words.update(batch.column("value").to_pylist())

    def finish_batch(self) -> None:
        for word, times in self.words.items():
            keys = pc.add(pa.array(range(SPREAD), pa.int64()), first_key(word))
            self.collector.emit_batch(pa.record_batch({"key": keys, "times": pa.repeat(times, SPREAD)}))


def first_key(word: str) -> int:
    """Of `word-7`, 7 times as many as each word has."""
    return int(word.partition("-")[2]) * SPREAD


def build() -> Topology:
    opaque = os.environ["SPOUT"] == "opaque"
    spout = SPOUTS[os.environ["SPOUT"]](
        os.environ["BOOTSTRAP"],
        [os.environ["TOPIC"]],
        value_type="string",
        batch_records_max=300,
        group_id=f"{os.environ['TOPIC']}-lag",
    )
    kind = StateKind.OPAQUE if opaque else StateKind.TRANSACTIONAL
    builder = TransactionalTopologyBuilder(TOPOLOGY, "records", spout, parallelism=2)
    if os.environ["COUNTER"] == "spread":
        return spread(builder, kind)
    builder.set_bolt("parse", parse, 2, output="word string").shuffle_grouping("records")
    counts = DeltaMapState("per-word", "word string", "count long", kind=kind)
    if os.environ["COUNTER"] == "stateful":
        builder.set_stateful_bolt("per-word", CountWords(), 2, state=counts).fields_grouping("parse", "word")
    else:
        builder.set_committer_bolt("per-word", KeyedCountUpdater(), 2, state=counts).fields_grouping("parse", "word")
    builder.set_bolt("bucketize", Bucketize(BUCKET_SIZE)).shuffle_grouping("per-word")
    buckets = DeltaMapState("per-bucket", "bucket long", kind=kind).sum("words", "count")
    builder.set_committer_bolt("per-bucket", buckets).fields_grouping("bucketize", "bucket")
    return builder.build()


def spread(builder: TransactionalTopologyBuilder, kind: StateKind) -> Topology:
    """Every word is many keys."""
    builder.set_bolt("spread", Spread(), 2).local_or_shuffle_grouping("records")
    layout = LogLayout(compact_after=5, staged_bytes=0)
    state = DeltaMapState("per-key", "key long", "count long", kind=kind, layout=layout)
    builder.set_committer_bolt("per-key", state.sum("times", "count")).local_or_shuffle_grouping("spread")
    return builder.build()


def expected_buckets(counts: Mapping[str, int]) -> Counter[int]:
    """How many words have how many hundreds of counts."""
    return Counter(count // BUCKET_SIZE for count in counts.values())
