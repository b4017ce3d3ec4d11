"""`python -m bench.tracking`: what following messages costs in processor time of one thread, beside not following.

A spout, a bolt that splits, one that receives each word in another stage, and the ackers; the same topology with and
without ackers, in turns.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import asdict
from time import thread_time
from typing import Any

from bench.figures import Spread
from spouts import MemoryTransactionalSpout
from transactional import BasicBolt, OutputCollector, Topology, Tuple
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.batch import EMPTY_BATCH
from transactional.reliable import RichBolt, TopologyBuilder, TupleCollector
from transactional.runtime.executors.local import LocalExecutor

WORDS_PER_LINE = 3


class Split(RichBolt):
    """A line to its words, anchored."""

    output = "word string"

    def prepare(self, context: object, collector: TupleCollector) -> None:
        """Keep the collector."""
        self.collector = collector

    def execute(self, tuple: Tuple) -> None:
        """Emit the words, and ack."""
        for word in tuple.line.split():
            self.collector.emit(word, anchors=tuple)
        self.collector.ack(tuple)


class End(BasicBolt):
    """Takes a word."""

    def execute(self, tuple: Tuple, collector: OutputCollector) -> None:
        """Nothing more."""


def topology_of(lines: list[tuple[str]], ackers: int) -> Topology:
    """The topology; without ackers nothing is followed."""
    built = TopologyBuilder("tracking", guarantee="at-least-once", ackers=ackers)
    built.set_spout("lines", MemoryTransactionalSpout([lines], "line string", take=len(lines)))
    built.set_bolt("split", Split()).shuffle_grouping("lines")
    built.set_bolt("end", End()).fields_grouping("split", "word")
    return built.build()


def run_of(lines: list[tuple[str]], ackers: int) -> Callable[[], float]:
    """What runs one batch of all lines, and returns the seconds of processor time."""
    topology = topology_of(lines, ackers)
    batch = topology.spout.plan(EMPTY_BATCH, replay=False)
    assert batch is not None
    executor, planned, attempt = LocalExecutor(topology), batch, TransactionAttempt(TxId(1), AttemptId(1))

    def run() -> float:
        began = thread_time()
        processed = executor.run(attempt, planned)
        assert not processed.failed
        return thread_time() - began

    return run


def measure(messages: int, rounds: int) -> dict[str, Any]:
    """Microseconds per tuple, followed and not followed; and their ratio, pair by pair."""
    lines = [(" ".join(f"w{(number * 7 + k) % 5_800}" for k in range(WORDS_PER_LINE)),) for number in range(messages)]
    followed, plain = run_of(lines, 1), run_of(lines, 0)
    pairs = [(followed(), plain()) for _ in range(rounds + 1)][1:]
    tuples = messages * (1 + WORDS_PER_LINE)
    return {
        "followed_us": asdict(Spread.of([one / tuples * 1e6 for one, _ in pairs])),
        "not_followed_us": asdict(Spread.of([other / tuples * 1e6 for _, other in pairs])),
        "ratio": asdict(Spread.of([one / other for one, other in pairs])),
    }


def shown(found: Mapping[str, Any]) -> str:
    """The medians, in words."""
    followed, plain, ratio = (found[name]["median"] for name in ("followed_us", "not_followed_us", "ratio"))
    return f"{followed:.2f} µs a tuple followed, {plain:.2f} not followed: {ratio:.2f} times as much"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    print(shown(measure(options.messages, options.rounds)))


if __name__ == "__main__":
    main()
