"""Storm's TransactionalGlobalCount: how many tuples are there? Run it twice: the second run counts nothing again.

`python -m examples.transactional_global_count`, or `transactional run examples.transactional_global_count:build`.
"""

from pathlib import Path

from spouts import MemoryTransactionalSpout
from state import DeltaMapState
from transactional import Topology, TopologyConfig, TransactionalTopologyBuilder, TransactionAttempt, run_topology
from transactional.bolts import BatchBolt, OutputCollector, TopologyContext, Tuple
from transactional.operations.cli.display import Display

PARTITION_TAKE_PER_BATCH = 3
DATA = [
    [("cat",), ("dog",), ("chicken",), ("cat",), ("dog",), ("apple",)],
    [("cat",), ("dog",), ("apple",), ("banana",)],
    [("cat",), ("cat",), ("cat",), ("cat",), ("cat",), ("dog",), ("dog",), ("dog",), ("dog",)],
]


class BatchCount(BatchBolt):
    """Counts the tuples of one batch that reach one task: the processing phase, many batches at once."""

    output = "count long"

    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        self.collector, self.count = collector, 0

    def execute(self, tuple: Tuple) -> None:
        self.count += 1

    def finish_batch(self) -> None:
        self.collector.emit(self.count)


class UpdateGlobalCount(BatchBolt):
    """Adds a batch's partial counts to the stored count: the commit phase, one transaction after the other."""

    output = "sum long"

    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        self.collector, self.state, self.sum = collector, context.state, 0

    def execute(self, tuple: Tuple) -> None:
        self.sum += tuple["count"]

    def finish_batch(self) -> None:
        assert self.state is not None
        [total] = self.state.multi_update([()], lambda stored: (stored or 0) + self.sum)
        self.collector.emit(total)


def build(directory: str = "data/global-count") -> Topology:
    """The topology, with its table in the given directory."""
    spout = MemoryTransactionalSpout(DATA, fields="word string", take=PARTITION_TAKE_PER_BATCH)
    builder = TransactionalTopologyBuilder("global-count", "spout", spout, parallelism=3)
    builder.set_bolt("partial-count", BatchCount(), parallelism=5).shuffle_grouping("spout")
    count = DeltaMapState(f"{directory}/count", key="", values="count long")
    builder.set_committer_bolt("sum", UpdateGlobalCount(), state=count).global_grouping("partial-count")
    return builder.build()


def main(directory: str = "data/global-count") -> int:
    """Run until the source is drained; print the count from the Delta table and return it."""
    Path(directory).mkdir(parents=True, exist_ok=True)
    topology = build(directory)
    config = TopologyConfig(max_spout_pending=3, stop_when_drained=True)
    with Display(topology) as display:
        run_topology(topology, store=f"sqlite:///{directory}/store.db", config=config, observers=[display])
    [row] = DeltaMapState(f"{directory}/count", key="", values="count long").read().to_pylist()
    print(f"global count: {row['count']} of {sum(len(rows) for rows in DATA)} tuples, from {directory}/count")
    return int(row["count"])


if __name__ == "__main__":
    main()
