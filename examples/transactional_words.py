"""Storm's TransactionalWords: one database counts words, another how many words there are per range of counts.

A word that outgrows its bucket is removed from it and added to the next, exactly once, even if the process dies
between the two databases. `python -m examples.transactional_words`, or `transactional run` on this module's `build`.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from examples.transactional_global_count import DATA, PARTITION_TAKE_PER_BATCH
from spouts import MemoryTransactionalSpout
from state import SqlMapState
from transactional import Topology, TopologyConfig, TransactionalTopologyBuilder, TransactionAttempt, run_topology
from transactional.bolts import BasicBolt, BatchBolt, OutputCollector, TopologyContext, Tuple
from transactional.operations.cli.display import Display


class KeyedCountUpdater(BatchBolt):
    """A committer: counts the words, and emits each word of the batch with its count before and after the batch."""

    output = "word string, old_count long, count long"

    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        self.collector, self.state, self.counts = collector, context.state, Counter[str]()

    def execute(self, tuple: Tuple) -> None:
        self.counts[tuple["word"]] += 1

    def finish_batch(self) -> None:
        assert self.state is not None
        old_counts = self.state.multi_get([(word,) for word in self.counts])
        for (word, added), old in zip(self.counts.items(), old_counts, strict=True):
            self.state.put(word, (old or 0) + added)
            self.collector.emit(word, old, (old or 0) + added)


@dataclass
class Bucketize(BasicBolt):
    """+1 for the bucket that a word enters, -1 for the one it leaves. Behind a committer: in the commit phase."""

    size: int
    output = "bucket long, words long"

    def execute(self, tuple: Tuple, collector: OutputCollector) -> None:
        old, new = (None if count is None else count // self.size for count in (tuple["old_count"], tuple["count"]))
        if new != old:
            collector.emit(new, 1)
            if old is not None:
                collector.emit(old, -1)


def build(words: str = "sqlite:///words.db", buckets: str = "sqlite:///buckets.db", bucket_size: int = 10) -> Topology:
    """The topology over two databases, given by their URLs."""
    spout = MemoryTransactionalSpout(DATA, fields="word string", take=PARTITION_TAKE_PER_BATCH)
    builder = TransactionalTopologyBuilder("words", "spout", spout, parallelism=3)
    counts = SqlMapState(words, "words", key="word string", values="count long")
    builder.set_committer_bolt("count", KeyedCountUpdater(), 5, state=counts).fields_grouping("spout", "word")
    builder.set_bolt("bucketize", Bucketize(bucket_size)).shuffle_grouping("count")
    update = SqlMapState(buckets, "buckets", key="bucket long").sum("words", "count")
    builder.set_committer_bolt("buckets", update).fields_grouping("bucketize", "bucket")
    return builder.build(strict=True)


def main(directory: str = "data/words") -> None:
    """Run until the source is drained, and print both tables."""
    Path(directory).mkdir(parents=True, exist_ok=True)
    words, buckets, store = (f"sqlite:///{directory}/{name}.db" for name in ("words", "buckets", "store"))
    topology, config = build(words, buckets), TopologyConfig(max_spout_pending=3, stop_when_drained=True)
    with Display(topology) as display:
        run_topology(topology, store=store, config=config, observers=[display])
    for url, table, key in ((words, "words", "word string"), (buckets, "buckets", "bucket long")):
        rows = SqlMapState(url, table, key, "count long").read().sort_by(key.split()[0]).to_pylist()
        print(f"{table}: " + ", ".join(f"{name} {count}" for name, count in map(dict.values, rows)))


if __name__ == "__main__":
    main()
