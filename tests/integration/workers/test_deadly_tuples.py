"""Tuples of which the process dies that works on them: they become dead letters after few deaths, or end the run."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spouts import MemoryTransactionalSpout
from state import MemoryMapState
from tests.integration.signals import is_first
from transactional import TopologyConfig, TransactionalTopologyBuilder, TransactionAttempt, Tuple
from transactional.bolts import ArrowBatchBolt, BasicBolt, BatchBolt, OutputCollector, TopologyContext
from transactional.core.ports.dead_letters import LETTER_KEY, LETTER_VALUES
from transactional.errors import RetriesExhausted
from transactional.model.arrow import to_ipc
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.engine.history.run_history import RunSummary
from transactional.runtime.executors.workers.deadly_tuples import find_deadly_tuple
from transactional.runtime.executors.workers.executor import WorkerExecutor
from transactional.runtime.tasks.watching import BoltInput
from transactional.testing import MemoryCoordinatorStore

COUNT, DEADLY = 37, 22
DEATHS_MAX = math.log2(COUNT) + 3


def die(flag: str) -> None:
    """Note a death, and die as a library does that crashes."""
    with Path(flag).open("a") as deaths:
        deaths.write("died\n")
    os.kill(os.getpid(), signal.SIGSEGV)


@dataclass
class Crashes(BasicBolt):
    """Crashes on some numbers."""

    flag: str
    deadly: tuple[int, ...] = (DEADLY,)
    output = "number long"

    def execute(self, tuple: Tuple, collector: OutputCollector) -> None:
        if tuple.number in self.deadly:
            die(self.flag)
        collector.emit(tuple.number)


@dataclass
class CrashesInArrow(ArrowBatchBolt):
    """Crashes on record batches with a number."""

    flag: str
    output = "number long"

    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        self.collector = collector

    def execute_batch(self, batch: pa.RecordBatch) -> None:
        if DEADLY in batch.column("number").to_pylist():
            die(self.flag)
        self.collector.emit_batch(batch)


@dataclass
class CrashesOnce(BasicBolt):
    """Is killed by chance."""

    flag: str
    output = "number long"

    def execute(self, tuple: Tuple, collector: OutputCollector) -> None:
        if tuple.number == DEADLY and is_first(self.flag):
            os.kill(os.getpid(), signal.SIGKILL)
        collector.emit(tuple.number)


@dataclass
class CrashesOfSeveral(BatchBolt):
    """Crashes on whatever comes third, or when a batch is complete: of no tuple alone."""

    flag: str
    is_late: bool
    output = "number long"

    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        self.seen = 0

    def execute(self, tuple: Tuple) -> None:
        self.seen += 1
        if self.seen > 2 and not self.is_late:
            die(self.flag)

    def finish_batch(self) -> None:
        die(self.flag)


def passed_on(row: Tuple) -> tuple[int]:
    return (row["number"],)


class Run:
    """A run in one process, of a bolt behind another one in the same task."""

    def __init__(self, bolt: Any, *, with_letters: bool = True) -> None:
        spout = MemoryTransactionalSpout([[(number,) for number in range(COUNT)]], fields="number long", take=COUNT)
        builder = TransactionalTopologyBuilder("numbers", "spout", spout, 1)
        builder.set_bolt("before", passed_on, output="number long").local_or_shuffle_grouping("spout")
        builder.set_bolt("bolt", bolt).local_or_shuffle_grouping("before")
        self.state, self.letters = MemoryMapState("number"), MemoryMapState(LETTER_KEY, LETTER_VALUES)
        builder.set_committer_bolt("count", self.state.count()).fields_grouping("bolt", "number")
        if with_letters:
            builder.set_dead_letters(self.letters)
        self.topology = builder.build()

    def run(self, attempts_max: int) -> RunSummary:
        config = TopologyConfig(stop_when_drained=True, retry_pause_ms=1, attempts_max=attempts_max)
        executor = WorkerExecutor(self.topology, processes=1)
        return TopologyDriver(self.topology, MemoryCoordinatorStore(), executor, config).run()

    @property
    def counted(self) -> set[int]:
        return {row["number"] for row in self.state.read().to_pylist()}


def deaths(flag: Path) -> int:
    return len(flag.read_text().splitlines()) if flag.exists() else 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("bolt", "most"), [(Crashes, 3), (CrashesInArrow, DEATHS_MAX)])
def test_it_becomes_a_letter_after_few_deaths(bolt: Callable[[str], Any], most: float, tmp_path: Path) -> None:
    """However few attempts are allowed."""
    run = Run(bolt(str(tmp_path / "deaths")))
    run.run(attempts_max=1)
    [letter] = run.letters.read().to_pylist()
    assert (letter["component"], letter["source"], letter["tuple"]) == ("bolt", "before", '{"number": 22}')
    assert letter["error"].startswith(
        "component 'bolt' ends its process, also where it is given one tuple alone: it was"
    )
    assert run.counted == set(range(COUNT)) - {DEADLY}
    assert deaths(tmp_path / "deaths") <= most


@pytest.mark.long("test_it_becomes_a_letter_after_few_deaths")
def test_each_of_several_becomes_one(tmp_path: Path) -> None:
    run = Run(Crashes(str(tmp_path / "deaths"), (3, DEADLY)))
    run.run(attempts_max=2)
    assert {letter["tuple"] for letter in run.letters.read().to_pylist()} == {'{"number": 3}', '{"number": 22}'}
    assert run.counted == set(range(COUNT)) - {3, DEADLY}
    assert deaths(tmp_path / "deaths") == 5


@pytest.mark.long("test_it_becomes_a_letter_after_few_deaths")
def test_without_dead_letters_the_run_ends_after_attempts_max(tmp_path: Path) -> None:
    run = Run(Crashes(str(tmp_path / "deaths")), with_letters=False)
    with pytest.raises(RetriesExhausted, match=r"failed 2 times .* TX311 worker process \d+ was ended by SIGSEGV"):
        run.run(attempts_max=2)
    assert deaths(tmp_path / "deaths") == 2


@pytest.mark.long("test_it_becomes_a_letter_after_few_deaths")
@pytest.mark.parametrize("is_late", [False, True])
def test_of_several_together_none_is_at_fault(tmp_path: Path, *, is_late: bool) -> None:
    run = Run(CrashesOfSeveral(str(tmp_path / "deaths"), is_late))
    with pytest.raises(RetriesExhausted, match="was ended by SIGSEGV in tasks 0"):
        run.run(attempts_max=2)
    assert not run.letters.read().num_rows


@pytest.mark.long("test_it_becomes_a_letter_after_few_deaths")
def test_a_process_that_is_killed_once_leaves_no_letter(tmp_path: Path) -> None:
    run = Run(CrashesOnce(str(tmp_path / "killed")))
    assert run.run(attempts_max=1).failures == 1
    assert run.counted == set(range(COUNT))
    assert not run.letters.read().num_rows


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 100])
def test_halving_costs_few_deaths_wherever_the_tuple_is(count: int) -> None:
    rows = pa.record_batch({"number": list(range(count))})
    given = BoltInput("bolt", 0, "spout", "default", to_ipc([rows], rows.schema))
    for deadly in range(count):
        died = list[BoltInput]()

        def dies(part: BoltInput, deadly: int = deadly, died: list[BoltInput] = died) -> bool:
            if is_in := deadly in part.rows.column("number").to_pylist():
                died.append(part)
            return is_in

        found = find_deadly_tuple(given, dies)
        assert found is not None
        assert found.rows.to_pylist() == [{"number": deadly}]
        assert len(died) <= math.log2(count) + 1


def test_no_tuples_are_not_searched() -> None:
    rows = pa.record_batch({"number": pa.array([], pa.int64())})
    given = BoltInput("bolt", 0, "spout", "default", to_ipc([rows], rows.schema))
    assert find_deadly_tuple(given, lambda part: True) is None
