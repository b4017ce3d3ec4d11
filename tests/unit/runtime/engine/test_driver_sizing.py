"""`target_latency_ms` in whole runs in this process, whose clock moves by what batches are said to cost."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from spouts.contracts import PartitionedTransactionalSpout
from spouts.memory import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from tests.unit.drivers import DRAINED, Recorder, World
from tests.unit.fakes import stored, words
from tests.unit.own_spouts import Span, WordLists, span
from transactional.core.machine.protocol import Action, BatchPlanned, RecordAttempt, RecordFailure
from transactional.core.ports import PartitionReader, Processed, Spout
from transactional.core.store import AttemptRecord
from transactional.errors import ConfigError, FailedException
from transactional.model.attempt import TransactionAttempt
from transactional.model.batch import BatchLimit, BatchMetadata
from transactional.model.schema import Schema
from transactional.model.user_code.tuples import Tuple
from transactional.operations.cli.display import Display
from transactional.runtime.engine.letter_spout import LETTERS_PER_TRANSACTION, LetterSpout
from transactional.runtime.executors.local import LocalExecutor
from transactional.testing import ManualClock

TARGET_MS = 400
SIZED = replace(DRAINED, max_spout_pending=1, target_latency_ms=TARGET_MS)
ROWS = [("cat",), ("dog",)] * 20_000


class Costing(LocalExecutor):
    """Processing takes 50 ms, and 0.1 ms for each record; ten times that once `dear_from` records were read."""

    dear_from = 10**9

    def __init__(self, topology: Any, clock: ManualClock) -> None:
        super().__init__(topology)
        self.clock = clock

    def run(self, attempt: TransactionAttempt, batch: BatchMetadata) -> Processed:
        processed = super().run(attempt, batch)
        begun = max((offsets.start for _, offsets in batch.non_empty()), default=0)
        record_ms = 0.1 if begun < self.dear_from else 1.0
        self.clock.advance(round(50 + record_ms * batch.offset_count))
        return processed


class Run:
    """A run over many words; what it planned, under which limits, and what that took."""

    def __init__(self, spout: Any, bolt: Any = None, *, dear_from: int = 10**9, config: Any = SIZED) -> None:
        self.world, self.recorder, clock = World(), Recorder(), ManualClock(wall_ms=1)
        topology = self.world.topology(spout, bolt)
        executor = Costing(topology, clock)
        executor.dear_from = dear_from
        self.world.states["total"].before = lambda attempt: clock.advance(10)
        with Display(topology) as display:
            observers = [self.recorder, display, lambda *told: clock.advance(sum(map(is_failure, told[2])))]
            self.summary = self.world.run(topology, config, executor=executor, clock=clock, observers=observers)

    @property
    def limits(self) -> list[BatchLimit]:
        planned = (event for event, _ in self.recorder.lines if isinstance(event, BatchPlanned) and event.batch)
        return [event.limit for event in planned if event.limit is not None]

    @property
    def committed(self) -> list[AttemptRecord]:
        records = self.world.store.attempts("words", limit=10_000)[::-1]
        return [record for record in records if record.phase == "committed"]

    @property
    def sizes(self) -> list[int]:
        return [record.rows or 0 for record in self.committed]

    @property
    def latencies_ms(self) -> list[int]:
        return [(record.committed_at_ms or 0) - record.planned_at_ms for record in self.committed]


def is_failure(action: Action) -> bool:
    """Whether the clock has to move for the transaction to be tried again."""
    return isinstance(action, RecordFailure)


def is_near(latency_ms: int) -> bool:
    return abs(latency_ms - TARGET_MS) <= 0.25 * TARGET_MS


def test_batches_grow_to_the_target_and_shrink_when_records_get_dear() -> None:
    run = Run(words([ROWS], take=10**9), dear_from=25_000)
    assert stored(run.world.total) == {(): len(ROWS)}
    assert [limit.records for limit in run.limits] == [*run.sizes[:-1], run.limits[-1].records]
    step = next(number for number, record in enumerate(run.committed) if positions(record) > 25_000)
    assert run.sizes[0] == 1_000
    assert all(map(is_near, run.latencies_ms[4:step])), run.latencies_ms
    assert run.latencies_ms[step] > 2 * TARGET_MS
    assert len(run.sizes) > step + 15
    assert all(map(is_near, run.latencies_ms[step + 10 : -1])), run.latencies_ms


def positions(record: AttemptRecord) -> int:
    """Where a batch begins."""
    return max(offsets.start for offsets in record.batch.ranges.values())


def test_the_line_of_a_transaction_shows_the_limit_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    Run(words([ROWS], take=10**9))
    lines = capsys.readouterr().out.splitlines()
    assert "1000 rows in 160 ms, limit 1000 (nothing is measured yet); " in lines[0]
    assert re.search(r"limit 3\d\d\d \([67]\d ms \+ 9\d(\.\d)? µs a record\); ", lines[-2])


def test_without_a_target_nothing_is_limited_or_reported(capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(words([ROWS], take=10**9), config=DRAINED)
    assert (run.limits, run.sizes) == ([], [len(ROWS)])
    assert "limit" not in capsys.readouterr().out


def test_the_spouts_own_limits_stay() -> None:
    run = Run(words([ROWS[:6_000], ROWS[:6_000]], take=700))
    assert max(run.sizes) == 1_400
    assert run.sizes[0] == 1_000


def test_several_in_flight_are_exact_and_sized() -> None:
    run = Run(words([ROWS], take=10**9), config=replace(SIZED, max_spout_pending=3))
    assert stored(run.world.total) == {(): len(ROWS)}
    assert run.sizes[0] == 1_000
    assert max(run.sizes) > 1_500


# --- replays ------------------------------------------------------------------------------------------------------


class Trip:
    """The word that fails the next time it comes."""

    word: ClassVar[str | None] = None


def trip(row: Tuple) -> Tuple:
    if row["word"] == Trip.word:
        Trip.word = None
        raise FailedException("once more")
    return row


@pytest.mark.parametrize(
    ("kind", "plans"), [(MemoryTransactionalSpout, "once"), (OpaqueMemoryTransactionalSpout, "twice")]
)
def test_a_replay_is_exact_whatever_its_limit(kind: type[MemoryTransactionalSpout], plans: str) -> None:
    """A transactional one is not planned at all, so it has no limit and the ranges that were recorded."""
    Trip.word = "the one"
    rows = [*ROWS[:5_000], ("the one",), *ROWS[:5_000]]
    run = Run(kind([rows], "word string", 10**9), trip)
    assert stored(run.world.total) == {(): len(rows)}
    assert run.summary.failures == 1
    issued = run.recorder.of(RecordAttempt)
    [failed] = [each for each in issued if each.attempt not in {record.attempt for record in run.committed}]
    [replayed] = [each for each in issued if each.attempt.txid == failed.attempt.txid and each != failed]
    assert replayed.batch.ranges == failed.batch.ranges
    planned = {event.attempt for event, _ in run.recorder.lines if isinstance(event, BatchPlanned)}
    assert (replayed.attempt in planned) is (plans == "twice")


# --- spouts that can and can't ------------------------------------------------------------------------------------


def test_dead_letters_are_tried_again_by_their_own_limit_whatever_the_target() -> None:
    spout = LetterSpout(World().topology())
    assert spout.parts.planning.can_limit_batches
    spout.parts.planning.limit_batches(BatchLimit(7, None, "so dear"))
    assert spout.parts.planning.batch_records_max == LETTERS_PER_TRANSACTION


class SizedLists(WordLists):
    """Keeps to the limit that it is told."""

    limit: BatchLimit | None = None

    def limit_batches(self, limit: BatchLimit) -> None:
        self.limit = limit

    def next_batch(self, partition: str, previous: Span | None) -> Span | None:
        if self.limit is not None:
            self.take = self.limit.records // len(self.words)
        return super().next_batch(partition, previous)


def test_a_spout_of_ones_own_may_keep_to_limits() -> None:
    lists = SizedLists({"a": ["cat"] * 9_000, "b": ["dog"] * 9_000})
    run = Run(lists)
    assert stored(run.world.counts) == {"cat": 9_000, "dog": 9_000}
    assert run.sizes[0] == 1_000
    assert all(map(is_near, run.latencies_ms[4:-1])), run.latencies_ms


class Limitless(PartitionedTransactionalSpout[Span]):
    """Has a batch, and no method to limit it."""

    output = "word string"

    def partitions(self) -> list[str]:
        return ["a"]

    def next_batch(self, partition: str, previous: Span | None) -> Span | None:
        return None if previous else span(0, 1)

    def emit_partition_batch(self, partition: str, metadata: Mapping[str, int]) -> Iterator[tuple[str]]:
        return iter([("cat",)])


def test_a_contract_that_can_not_be_limited_is_reported() -> None:
    with pytest.raises(ConfigError, match=r"spout Limitless decides itself .* add a method limit_batches"):
        Run(Limitless())
    assert Run(Limitless(), config=DRAINED).sizes == [1]


class Plain(Spout):
    """Has only what every spout has."""

    @property
    def output(self) -> Schema:
        return words().output

    @property
    def replays_exactly(self) -> bool:
        return True

    def identity(self) -> Mapping[str, str]:
        return {"kind": "plain"}

    def plan(self, after: BatchMetadata, *, replay: bool) -> BatchMetadata | None:
        return None

    def reader(self) -> PartitionReader:
        return words().reader()


def test_a_spout_whose_batches_can_not_be_limited_is_refused_when_the_driver_is_made() -> None:
    world, plain = World(), Plain()
    with pytest.raises(ConfigError, match="the batches of this spout can't be limited"):
        plain.parts.planning.limit_batches(BatchLimit(7, None, "so dear"))
    topology = replace(world.topology(), spout=plain)
    with pytest.raises(ConfigError, match=r"target_latency_ms is set, but the batches of spout 'spout' can't be"):
        world.driver(topology, SIZED, executor=LocalExecutor(world.topology()))
