"""`python -m bench.stateful`: what a stateful bolt costs beside a committer that does the same by hand.

Both count words, and emit each with its new count. Measured are whole transactions, both phases in one thread, over a
state in memory; and of the stateful bolt's commit phase how many calls of `execute` it makes in a second. In turns.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from time import thread_time
from typing import Any

from bench.figures import Spread
from spouts import MemoryTransactionalSpout
from state import MemoryMapState
from transactional import (
    BatchBolt,
    KeyValueState,
    OutputCollector,
    StatefulBolt,
    Topology,
    TopologyContext,
    TransactionalTopologyBuilder,
    TransactionAttempt,
    Tuple,
)
from transactional.bolts import Bolt
from transactional.model.attempt import AttemptId, TxId
from transactional.model.batch import EMPTY_BATCH
from transactional.model.plumbing.garbage import keep_what_is_loaded
from transactional.runtime.commit.committing import CommitPhase
from transactional.runtime.executors.local import LocalExecutor

COUNTS = "word string, count long"
WORDS = 5_800
BOLT, BY_HAND, QUIET = "stateful bolt", "committer by hand", "stateful bolt, no output"


class Stateful(StatefulBolt):
    """Counts in its state."""

    output = COUNTS

    def init_state(self, state: KeyValueState) -> None:
        """Keep the state."""
        self.counts = state

    def execute(self, tuple: Tuple) -> None:
        """Count one word."""
        count = self.counts.get(tuple.word, 0) + 1
        self.counts.put(tuple.word, count)
        self.collector.emit(tuple.word, count)


class Quiet(Stateful):
    """Counts, and emits nothing."""

    output = ""

    def execute(self, tuple: Tuple) -> None:
        """Count one word."""
        self.counts.put(tuple.word, self.counts.get(tuple.word, 0) + 1)


class ByHand(BatchBolt):
    """A committer: collects the words, and counts them in the commit phase, reading and putting each once."""

    output = COUNTS

    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        """Begin with nothing."""
        self.state, self.collector, self.words = context.state, collector, list[str]()

    def execute(self, tuple: Tuple) -> None:
        """Collect one word."""
        self.words.append(tuple.word)

    def finish_batch(self) -> None:
        """Count."""
        assert self.state is not None
        keys = list(dict.fromkeys(self.words))
        counts = dict(zip(keys, self.state.multi_get([(key,) for key in keys]), strict=True))
        for word in self.words:
            count = (counts[word] or 0) + 1
            counts[word] = count
            self.collector.emit(word, count)
        for word, count in counts.items():
            self.state.put(word, count)


def topology_of(bolt: Bolt, tuples: int) -> Topology:
    """The bolt behind a spout of one batch."""
    rows = [(f"word{number % WORDS}",) for number in range(tuples)]
    spout = MemoryTransactionalSpout([rows], "word string", take=tuples)
    builder = TransactionalTopologyBuilder("stateful", "source", spout)
    state = MemoryMapState("word string", "count long")
    if isinstance(bolt, StatefulBolt):
        builder.set_stateful_bolt("count", bolt, state=state).fields_grouping("source", "word")
    else:
        assert isinstance(bolt, BatchBolt)
        builder.set_committer_bolt("count", bolt, state=state).fields_grouping("source", "word")
    state.open("stateful/count", TxId)
    return builder.build()


def transactions(bolt: Bolt, tuples: int) -> Iterator[Callable[[], float]]:
    """One transaction after the other; each gives the seconds of its commit phase."""
    topology = topology_of(bolt, tuples)
    executor, phase = LocalExecutor(topology), CommitPhase(topology)
    batch = topology.spout.plan(EMPTY_BATCH, replay=True)
    assert batch is not None

    def run(number: int) -> float:
        attempt = TransactionAttempt(TxId(number), AttemptId(number))
        processed = executor.run(attempt, batch)
        began = thread_time()
        phase.run(attempt, processed)
        return thread_time() - began

    number = 0
    while True:
        number += 1
        yield lambda: run(number)  # noqa: B023 - called before the next one is made


def measure(tuples: int, rounds: int) -> dict[str, Any]:
    """Milliseconds of processor time per transaction, executes per second of the commit phase, and the ratio of the
    stateful bolt to the committer by hand, pair by pair; in turns."""
    runs = {BOLT: Stateful(), BY_HAND: ByHand(), QUIET: Quiet()}
    going = {name: transactions(bolt, tuples) for name, bolt in runs.items()}
    took: dict[str, list[float]] = {name: [] for name in runs}
    commits: dict[str, list[float]] = {name: [] for name in runs}
    keep_what_is_loaded()  # as `transactional run` does
    for turn in range(rounds + 1):
        for name, ones in going.items():
            began = thread_time()
            commit_s = next(ones)()
            if turn:  # the first one only warms up
                took[name].append(thread_time() - began)
                commits[name].append(commit_s)
    pairs = [one / other for one, other in zip(took[BOLT], took[BY_HAND], strict=True)]
    return {
        "transaction_ms": {name: asdict(Spread.of([1_000 * each for each in all_s])) for name, all_s in took.items()},
        "executes_per_s": {
            name: asdict(Spread.of([tuples / each for each in commits[name]])) for name in (BOLT, QUIET)
        },
        "ratio": asdict(Spread.of(pairs)),
    }


def shown(found: Mapping[str, Any]) -> list[str]:
    """The figures, in words."""
    least, middle, most = (found["ratio"][name] for name in ("min", "median", "max"))
    return [
        *(
            f"{name}: {each['min']:.0f} … {each['median']:.0f} ms of processor time a transaction"
            for name, each in found["transaction_ms"].items()
        ),
        f"the stateful bolt against the one by hand: {least:.2f} … {middle:.2f} … {most:.2f} times",
        *(
            f"{name}: {each['median']:,.0f} executes a second of processor time, in the commit phase"
            for name, each in found["executes_per_s"].items()
        ),
    ]


def main() -> None:
    """Measure in turns, and print what was found."""
    parser = argparse.ArgumentParser(prog="python -m bench.stateful", description=__doc__)
    parser.add_argument("--tuples", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    print("\n".join(shown(measure(arguments.tuples, arguments.rounds))))


if __name__ == "__main__":
    main()
