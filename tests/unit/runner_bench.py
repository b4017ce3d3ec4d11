"""A `PhaseRunner` over a spout, a state and an executor that do what a test wants; and what tests of it share."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from spouts.memory import MemoryTransactionalSpout
from state.memory import MemoryMapState, MemoryTable
from tests.unit.attempts import everything, processed
from tests.unit.fakes import Total, builder
from transactional.core.machine.protocol import Event, ProcessingSucceeded
from transactional.core.ports import Partials, Processed
from transactional.core.ports.state_parts import StateParts, TableMaintenance
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.batch import BatchMetadata
from transactional.runtime.engine.runner import Fatal, PhaseRunner
from transactional.testing import ManualClock
from transactional.topology.topology import Topology

WAIT_S = 10.0


def attempt(txid: int) -> TransactionAttempt:
    return TransactionAttempt(TxId(txid), AttemptId(10 * txid))


class BenchSpout(MemoryTransactionalSpout):
    """Cats, and whatever a test makes the spout do."""

    on_plan: Callable[[], None] = staticmethod(lambda: None)
    on_check: Callable[[], None] = staticmethod(lambda: None)
    on_read: Callable[[], None] = staticmethod(lambda: None)
    on_committed: Callable[[BatchMetadata], None] = staticmethod(lambda batch: None)
    has_something = True

    def __init__(self) -> None:
        super().__init__([[("cat",), ("cat",)]], "word string", 2)

    def plan(self, after: BatchMetadata, *, replay: bool) -> BatchMetadata | None:
        self.on_plan()
        return super().plan(after, replay=replay) if self.has_something else None

    def check_replay(self, batch: BatchMetadata) -> None:
        self.on_check()
        super().check_replay(batch)

    def check_read(self, batch: BatchMetadata) -> None:
        self.on_read()
        super().check_read(batch)

    def committed(self, batch: BatchMetadata) -> None:
        self.on_committed(batch)


class State(MemoryMapState, TableMaintenance):
    """A count, and whatever a test makes the state do before it is written."""

    on_put: Callable[[], None] = staticmethod(lambda: None)

    @property
    def parts(self) -> StateParts:
        return replace(super().parts, maintenance=self)

    def put(self, attempt: TransactionAttempt, rows: Mapping[Any, Any]) -> None:
        self.on_put()
        super().put(attempt, rows)

    def merge(self, attempt: TransactionAttempt, partials: Partials) -> None:
        raise NotImplementedError


@dataclass
class Executor:
    """A `JobExecutor` whose `run` does what a test wants; `cancel` is noted."""

    result: Processed
    work: Callable[[TransactionAttempt], None] = lambda attempt: None
    cancelled: queue.SimpleQueue[TransactionAttempt] = field(default_factory=queue.SimpleQueue)
    made: dict[TransactionAttempt, int] = field(default_factory=dict)

    def open(self) -> None: ...

    def run(self, attempt: TransactionAttempt, batch: BatchMetadata) -> Processed:
        self.work(attempt)
        return self.result

    def cancel(self, attempt: TransactionAttempt) -> None:
        self.cancelled.put(attempt)

    def count_progress(self, attempt: TransactionAttempt) -> int:
        return self.made.get(attempt, 0)

    def close(self) -> None: ...


class Bench:
    """A runner over the above. `answer` waits for the next thing that it posts."""

    def __init__(self) -> None:
        self.spout, self.state = BenchSpout(), State((), "count long", table=MemoryTable("total"))
        self.topology = self._topology()
        self.batch = everything(self.topology)
        self.executor = Executor(processed(self.topology))
        self.posted: queue.SimpleQueue[Event | Fatal] = queue.SimpleQueue()
        clock = ManualClock(wall_ms=7)
        self.runner = PhaseRunner(self.topology, self.executor, self.posted.put, max_pending=1, clock=clock)

    def _topology(self) -> Topology:
        made = builder(self.spout)
        made.set_committer_bolt("total", Total(), state=self.state).global_grouping("spout")
        self.state.open("words/total", lambda attempt_id: TxId(attempt_id // 10))
        return made.build()

    def answer(self) -> Event | Fatal:
        return self.posted.get(timeout=WAIT_S)

    def no_answer(self) -> bool:
        return self.posted.empty()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.runner.close()


def raising(error: BaseException) -> Callable[..., None]:
    def raise_it(*_: object) -> None:
        raise error

    return raise_it


class Odd(BaseException):
    """What nobody catches by `except Exception`."""


ODD = [
    SystemExit(3),
    KeyboardInterrupt("not by the user"),
    asyncio.CancelledError("timed out"),
    GeneratorExit("no"),
    Odd("?"),
]


def committing(bench: Bench, txid: int = 1) -> None:
    bench.runner.process(attempt(txid), bench.batch)
    assert isinstance(bench.answer(), ProcessingSucceeded)
    bench.runner.commit(attempt(txid))


class Held:
    """Work that goes on until it is let go."""

    def __init__(self, error: Exception | None = None) -> None:
        self.entered, self.let_go, self.error = threading.Event(), threading.Event(), error

    def __call__(self, *_: object) -> None:
        self.entered.set()
        assert self.let_go.wait(WAIT_S)
        if self.error is not None:
            raise self.error
