"""What bolts count themselves: once per committed transaction, whatever kind they are and wherever they run."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from spouts.memory import MemoryTransactionalSpout
from state.memory import MemoryMapState
from tests.unit.drivers import DRAINED, Recorder
from tests.unit.fakes import WORDS, builder, words
from transactional.bolts import ArrowBatchBolt, BasicBolt, BatchBolt, BoltMetrics, OutputCollector, TopologyContext
from transactional.core.machine.protocol import RecordCommit
from transactional.errors import ConfigError
from transactional.model.attempt import TransactionAttempt
from transactional.model.user_code.tuples import Tuple
from transactional.reliable import TopologyBuilder
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.executors.local import LocalExecutor
from transactional.testing import MemoryCoordinatorStore
from transactional.topology.bolts.bolts import COUNTERS_MAX
from transactional.topology.bolts.stateful import KeyValueState, StatefulBolt
from transactional.trident import Count, TridentTopology

FAILED = set[str]()


class Counts(BasicBolt):
    """Counts words, one of which fails once after it was counted."""

    output = "word string"

    def prepare(self, context: TopologyContext) -> None:
        self.seen = context.metrics.counter("seen")
        self.letters = context.metrics.counter("letters")
        context.metrics.counter("never")

    def execute(self, tuple: Tuple, collector: OutputCollector) -> None:
        self.seen.increment()
        self.letters.increment(len(tuple.word))
        if tuple.word == "banana" and not FAILED:
            FAILED.add(tuple.word)
            raise OSError("for a moment")
        collector.emit(tuple.word)


class Commits(BatchBolt):
    """Counts in both phases, over a context that it keeps."""

    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        self.context, self.rows = context, 0
        self.early = context.metrics.counter("early")

    def execute(self, tuple: Tuple) -> None:
        self.rows += 1
        self.early.increment()

    def finish_batch(self) -> None:
        assert self.context.state is not None
        self.early.increment(0)
        self.context.metrics.counter("finished").increment(self.rows)
        self.context.state.put((), self.rows)


class OnArrow(ArrowBatchBolt):
    output = "word string"

    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        self.rows, self.collector = context.metrics.counter("rows"), collector

    def execute_batch(self, batch: pa.RecordBatch) -> None:
        self.rows.increment(batch.num_rows)
        self.collector.emit_batch(batch)


class Keeps(StatefulBolt):
    def prepare(self, context: TopologyContext, collector: OutputCollector) -> None:
        self.kept = context.metrics.counter("kept")

    def init_state(self, state: KeyValueState) -> None:
        self.words = state

    def execute(self, tuple: Tuple) -> None:
        self.kept.increment()
        self.words.put(tuple.word, self.words.get(tuple.word, 0) + 1)


@pytest.fixture(autouse=True)
def _nothing_has_failed() -> None:
    FAILED.clear()


def counted(topology: Any) -> dict[str, int]:
    """The sums over the transactions of a run, by component and name."""
    recorder = Recorder()
    TopologyDriver(topology, MemoryCoordinatorStore(), LocalExecutor(topology), DRAINED, observers=[recorder]).run()
    found = Counter[tuple[str, str]]()
    for commit in recorder.of(RecordCommit):
        assert commit.report.details()["counters"] == [[*of, n] for of, n in sorted(commit.report.counters.items())]
        found.update(commit.report.counters)
    return {".".join(of): number for of, number in found.items()}


def test_a_failed_attempt_counts_nothing_and_a_committer_counts_in_both_phases() -> None:
    made = builder(words(), parallelism=2)
    made.set_bolt("parse", Counts(), 2).shuffle_grouping("spout")
    made.set_bolt("arrow", OnArrow(), 3).fields_grouping("parse", "word")
    made.set_committer_bolt("commit", Commits(), state=MemoryMapState((), "count long")).global_grouping("arrow")
    number = sum(map(len, WORDS))
    assert counted(made.build()) == {
        "parse.seen": number,
        "parse.letters": sum(len(word) for part in WORDS for (word,) in part),
        "parse.never": 0,
        "arrow.rows": number,
        "commit.early": number,
        "commit.finished": number,
    }
    assert FAILED


def test_a_stateful_bolt_counts() -> None:
    made = builder(words())
    state = MemoryMapState("word string", "count long")
    made.set_stateful_bolt("keep", Keeps(), 2, state=state).fields_grouping("spout", "word")
    assert counted(made.build()) == {"keep.kept": sum(map(len, WORDS))}


def test_at_least_once_each_time_that_a_transaction_is_committed() -> None:
    made = TopologyBuilder("words", guarantee="at-least-once")
    made.set_spout("spout", MemoryTransactionalSpout(WORDS, "word string", 3), 2)
    made.set_bolt("parse", Counts(), 2).shuffle_grouping("spout")
    assert counted(made.build())["parse.seen"] >= sum(map(len, WORDS))


class Sized:
    """A function of a stream that is given the context."""

    def prepare(self, context: TopologyContext) -> None:
        self.sized = context.metrics.counter("sized")

    def __call__(self, row: Tuple) -> tuple[str]:
        self.sized.increment()
        return (row.word,)


def test_functions_of_streams_count_under_the_component_that_they_are_part_of() -> None:
    topology = TridentTopology("sizes")
    stream = topology.new_stream("spout", MemoryTransactionalSpout(WORDS, "word string", 3))
    stream.map(Sized(), output="word string").group_by("word").persistent_aggregate(MemoryMapState(), Count())
    found = counted(topology.build())
    assert list(found.values()) == [sum(map(len, WORDS))]
    [name] = found
    assert name.endswith(".sized")


@pytest.mark.parametrize("name", ["", "1st", "a b", "\u00e4", "x" * 65, None, 'a"'])
def test_a_name_is_a_word(name: Any) -> None:
    with pytest.raises(ConfigError, match=r"'parse' has a counter .*a name is a letter and then"):
        BoltMetrics("parse").counter(name)


@pytest.mark.parametrize("by", [-1, 0.5, "1"])
def test_a_counter_only_grows(by: Any) -> None:
    with pytest.raises(ConfigError, match=r"'parse' increments its counter 'n' by .*only grows"):
        BoltMetrics("parse").counter("n").increment(by)


def test_names_are_bounded() -> None:
    metrics = BoltMetrics("parse")
    for at in range(COUNTERS_MAX):
        metrics.counter(f"n{at}").increment()
    metrics.counter("n0").increment(2)
    with pytest.raises(ConfigError, match="'parse' has more than 100 counters, the last one 'user-7'"):
        metrics.counter("user-7")
    assert metrics.counts["n0"] == 3


def test_storms_name_says_what_it_is_here() -> None:
    context: Any = TopologyContext("words", "parse", 0, 1, {})
    with pytest.raises(AttributeError, match=r"metrics\.counter"):
        assert context.registerCounter
