"""What every executor promises: what is cancelled is dead, what waits goes on; on Spark and in workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from spouts import MemoryTransactionalSpout
from state import MemoryMapState
from tests.integration.signals import Gate, Signals, has_ended
from tests.integration.spark.bolts import Lengths, NeverEnds, Waits
from tests.unit.fakes import WORDS
from transactional import Topology, TransactionalTopologyBuilder, TransactionAttempt, TxId
from transactional.bolts import BasicBolt, Bolt, OutputCollector, TopologyContext
from transactional.core.ports import JobExecutor, Processed
from transactional.errors import AttemptLost
from transactional.model.attempt import AttemptId
from transactional.model.batch import EMPTY_BATCH
from transactional.model.user_code.tuples import Tuple
from transactional.runtime.executors.local import LocalExecutor
from transactional.runtime.executors.workers.executor import WorkerExecutor

FIRST = TransactionAttempt(TxId(1), AttemptId(1))
SECOND = TransactionAttempt(TxId(1), AttemptId(2))
Make = Callable[[Topology], JobExecutor]


class OneBolt:
    """An executor for a topology of one bolt, which works on a batch of all words; with threads to run it in."""

    def __init__(self, make: Make, bolt: Bolt, opened: ExitStack) -> None:
        spout = MemoryTransactionalSpout(WORDS, fields="word string", take=9)
        builder = TransactionalTopologyBuilder("words", "words", spout, 2)
        builder.set_bolt("bolt", bolt, 2).shuffle_grouping("words")
        builder.set_committer_bolt("count", MemoryMapState("word").count()).shuffle_grouping("words")
        self.topology = builder.build()
        self.executor = opened.enter_context(closing(make(self.topology)))
        self.executor.open()
        self.threads = opened.enter_context(ThreadPoolExecutor(2))

    def start(self, attempt: TransactionAttempt) -> Future[Processed]:
        batch = self.topology.spout.plan(EMPTY_BATCH, replay=False)
        assert batch is not None
        return self.threads.submit(self.executor.run, attempt, batch)


@pytest.fixture(params=["workers", pytest.param("spark", marks=pytest.mark.spark)])
def one_bolt(request: pytest.FixtureRequest) -> Iterator[Callable[[Bolt], OneBolt]]:
    """Makes an executor with a bolt, of each kind."""

    def make(topology: Topology) -> JobExecutor:
        if request.param == "workers":
            return WorkerExecutor(topology, processes=2)
        from transactional.runtime.executors.spark.executor import SparkExecutor

        return SparkExecutor(topology, request.getfixturevalue("spark"))

    with ExitStack() as opened:
        yield lambda bolt: OneBolt(make, bolt, opened)


OneBoltMaker = Callable[[Bolt], OneBolt]


def pids(signals: Signals, count: int) -> set[int]:
    return {int(signals.receive().removeprefix("running ")) for _ in range(count)}


def test_when_a_cancelled_attempt_has_ended_nothing_of_it_waits(
    one_bolt: OneBoltMaker, signals: Signals, gate: Gate
) -> None:
    one = one_bolt(Waits(signals.pipe, gate.path))
    first = one.start(FIRST)
    workers = pids(signals, 2)
    one.executor.cancel(FIRST)
    with pytest.raises(AttemptLost, match="cancelled"):
        first.result(60)
    assert [has_ended(pid) for pid in workers] == [True, True]
    gate.open()
    assert signals.is_silent()

    assert one.start(SECOND).result(60).counts["bolt"] == 19
    lines = [signals.receive() for _ in range(4)]
    assert not [line for line in lines if int(line.split()[-1]) in workers]


def test_when_a_cancelled_attempt_has_ended_nothing_of_it_works(
    one_bolt: OneBoltMaker, signals: Signals, tmp_path: Path
) -> None:
    one = one_bolt(NeverEnds(signals.pipe, str(tmp_path / "file")))
    first = one.start(FIRST)
    workers = pids(signals, 2)
    one.executor.cancel(FIRST)
    with pytest.raises(AttemptLost, match="cancelled"):
        first.result(60)
    assert [has_ended(pid) for pid in workers] == [True, True]


def test_an_attempt_that_is_cancelled_leaves_others_alone(one_bolt: OneBoltMaker, signals: Signals, gate: Gate) -> None:
    one = one_bolt(Waits(signals.pipe, gate.path))
    first, second = one.start(FIRST), one.start(SECOND)
    pids(signals, 2)
    one.executor.cancel(FIRST)
    with pytest.raises(AttemptLost):
        first.result(60)
    assert not second.done()
    gate.open()
    assert second.result(60).counts["bolt"] == 19


def test_one_that_waits_can_be_cancelled(one_bolt: OneBoltMaker, signals: Signals, gate: Gate) -> None:
    one = one_bolt(Waits(signals.pipe, gate.path))
    first = one.start(FIRST)
    pids(signals, 2)
    second = one.start(SECOND)
    while not second.done():  # as `PhaseRunner` does, since Spark knows no job of it at first
        one.executor.cancel(SECOND)
        wait([second], 0.1)
    with pytest.raises(AttemptLost, match="cancelled"):
        second.result(60)
    gate.open()
    assert first.result(60).counts["bolt"] == 19


def test_an_attempt_that_is_not_running_can_be_cancelled_without_effect(one_bolt: OneBoltMaker) -> None:
    one = one_bolt(Lengths())
    one.executor.cancel(FIRST)
    assert one.start(FIRST).result(60).counts["bolt"] == 19
    one.executor.cancel(FIRST)
    assert one.executor.count_progress(FIRST) == 0


def test_what_is_made_is_what_this_process_makes(one_bolt: OneBoltMaker) -> None:
    one = one_bolt(Lengths())
    local = LocalExecutor(one.topology)
    batch = one.topology.spout.plan(EMPTY_BATCH, replay=False)
    assert batch is not None
    assert replace(one.start(FIRST).result(60), executor="") == replace(local.run(FIRST, batch), executor="")


class CountsWords(BasicBolt):
    output = "word string"

    def prepare(self, context: TopologyContext) -> None:
        self.seen = context.metrics.counter("seen")

    def execute(self, tuple: Tuple, collector: OutputCollector) -> None:
        self.seen.increment()
        collector.emit(*tuple.values)


def test_what_a_bolt_counts_comes_from_all_of_its_tasks(one_bolt: OneBoltMaker) -> None:
    assert one_bolt(CountsWords()).start(FIRST).result(60).counted == {("bolt", "seen"): 19}
