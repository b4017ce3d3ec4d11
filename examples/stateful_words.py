"""Storm's WordCountBolt: a stateful bolt counts words, and another keeps the most frequent one.

`python -m examples.stateful_words`, or `transactional run` on this module's `build`.
"""

from pathlib import Path

from examples.transactional_global_count import DATA, PARTITION_TAKE_PER_BATCH
from spouts import MemoryTransactionalSpout
from state import SqlMapState
from transactional import (
    KeyValueState,
    StatefulBolt,
    Topology,
    TopologyConfig,
    TransactionalTopologyBuilder,
    Tuple,
    run_topology,
)
from transactional.operations.cli.display import Display


class WordCount(StatefulBolt):
    """Counts words, and emits each with its new count."""

    state = "word string -> count long"
    output = "word string, count long"

    def init_state(self, state: KeyValueState) -> None:
        self.counts = state

    def execute(self, tuple: Tuple) -> None:
        count = self.counts.get(tuple.word, 0) + 1
        self.counts.put(tuple.word, count)
        self.collector.emit(tuple.word, count)


class Leader(StatefulBolt):
    """Keeps the most frequent word, and how often that has changed: a state of one row, which depends on the order."""

    state = "-> word string, count long, changes long"

    def init_state(self, state: KeyValueState) -> None:
        self.leader = state

    def execute(self, tuple: Tuple) -> None:
        word, count, changes = self.leader.get((), ("", 0, 0))
        if tuple["count"] > count:
            self.leader.put((), (tuple.word, tuple["count"], changes + (tuple.word != word)))


def build(database: str = "sqlite:///words.db") -> Topology:
    """The topology over a database, given by its URL."""
    spout = MemoryTransactionalSpout(DATA, fields="word string", take=PARTITION_TAKE_PER_BATCH)
    builder = TransactionalTopologyBuilder("stateful-words", "spout", spout, parallelism=3)
    counts, leader = SqlMapState(database, "counts"), SqlMapState(database, "leader")
    builder.set_stateful_bolt("count", WordCount(), 5, state=counts).fields_grouping("spout", "word")
    builder.set_stateful_bolt("leader", Leader(), state=leader).global_grouping("count")
    return builder.build(strict=True)


def main(directory: str = "data/stateful-words") -> None:
    """Run until the source is drained, and print both tables."""
    Path(directory).mkdir(parents=True, exist_ok=True)
    database, store = f"sqlite:///{directory}/words.db", f"sqlite:///{directory}/store.db"
    topology, config = build(database), TopologyConfig(max_spout_pending=3, stop_when_drained=True)
    with Display(topology) as display:
        run_topology(topology, store=store, config=config, observers=[display])
    counts = SqlMapState(database, "counts", "word string", "count long").read().sort_by("word").to_pylist()
    print("counts: " + ", ".join(f"{row['word']} {row['count']}" for row in counts))
    [leader] = SqlMapState(database, "leader", (), "word string, count long, changes long").read().to_pylist()
    print("leader: {word} {count}, {changes} changes".format_map(leader))


if __name__ == "__main__":
    main()
