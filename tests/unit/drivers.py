"""Runs of whole topologies in this process, watched and steered: recorders, gates, states and stores with hooks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from state.memory import MemoryMapState, MemoryTable
from tests.unit.fakes import Total, builder, words
from transactional.core.machine.protocol import Action, Event
from transactional.core.ports import Partials, StateKind
from transactional.core.ports.state_parts import StateParts, TableMaintenance
from transactional.core.store import AttemptRecord, Desired, Lease
from transactional.core.store.history import RunEnd
from transactional.errors import StoreUnavailable
from transactional.model.attempt import TransactionAttempt
from transactional.model.batch import BatchMetadata
from transactional.model.config import TopologyConfig
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.engine.history.run_history import RunSummary
from transactional.runtime.executors.local import LocalExecutor
from transactional.testing import MemoryCoordinatorStore
from transactional.topology.topology import Topology

ActionType = TypeVar("ActionType")

WAIT_S = 20.0
DRAINED = TopologyConfig(max_spout_pending=3, stop_when_drained=True, retry_pause_ms=1, idle_pause_ms=1, tick_ms=1)


class Recorder:
    """An observer that keeps what it is told, and lets other threads wait for it."""

    def __init__(self) -> None:
        self.lines: list[tuple[Event, Sequence[Action]]] = []
        self._told = threading.Condition()

    def __call__(self, at_ms: int, event: Event, actions: Sequence[Action]) -> None:
        with self._told:
            self.lines.append((event, actions))
            self._told.notify_all()

    @property
    def actions(self) -> list[Action]:
        return [action for _, actions in self.lines for action in actions]

    def of(self, kind: type[ActionType]) -> list[ActionType]:
        """The actions of one kind, in order."""
        return [action for action in self.actions if isinstance(action, kind)]

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until something told makes the condition true."""
        with self._told:
            assert self._told.wait_for(condition, WAIT_S)

    def wait_for_events(self, kind: type[Event], count: int) -> None:
        """Wait until so many events of one kind were told."""
        self.wait_for(lambda: sum(isinstance(event, kind) for event, _ in self.lines) >= count)

    def wait_for_more(self, count: int) -> None:
        """Wait until so many more events were told."""
        seen = len(self.lines)
        self.wait_for(lambda: len(self.lines) >= seen + count)


class Gate:
    """A place where the threads of bolts and states stop until the test opens it. Each gate is closed once."""

    def __init__(self) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()

    def pass_through(self) -> None:
        self.entered.set()
        assert self.opened.wait(WAIT_S)

    def wait_until_entered(self) -> None:
        assert self.entered.wait(WAIT_S)


class HookedState(MemoryMapState, TableMaintenance):
    """A state that calls `before` with the attempt before each write, and notes that it was closed."""

    before: Callable[[TransactionAttempt], None] = staticmethod(lambda attempt: None)
    closed = 0

    @property
    def parts(self) -> StateParts:
        return replace(super().parts, maintenance=self)

    def close(self) -> None:
        self.closed += 1

    def put(self, attempt: TransactionAttempt, rows: Any) -> None:
        self.before(attempt)
        super().put(attempt, rows)

    def merge(self, attempt: TransactionAttempt, partials: Partials) -> None:
        self.before(attempt)
        super().merge(attempt, partials)


class HookedStore(MemoryCoordinatorStore):
    """A store that calls `before` with the name of each call that the driver makes while it runs."""

    before: Callable[[str], None] = staticmethod(lambda call: None)

    def renew(self, lease: Lease, *, lease_ms: int) -> None:
        self.before("renew")
        super().renew(lease, lease_ms=lease_ms)

    def record_attempt(self, lease: Lease, record: AttemptRecord, **how: bool) -> None:
        self.before("record_attempt")
        super().record_attempt(lease, record, **how)

    def record_processed(self, lease: Lease, attempt: TransactionAttempt, batch: BatchMetadata, *, at_ms: int) -> None:
        self.before("record_processed")
        super().record_processed(lease, attempt, batch, at_ms=at_ms)

    def record_commit(self, lease: Lease, attempt: TransactionAttempt, batch: BatchMetadata, **times: Any) -> None:
        self.before("record_commit")
        super().record_commit(lease, attempt, batch, **times)

    def desired(self, topology_id: str) -> Desired:
        self.before("desired")
        return super().desired(topology_id)

    def release(self, lease: Lease, *, is_done: bool = False, end: RunEnd | None = None) -> None:
        self.before("release")
        super().release(lease, is_done=is_done, end=end)


def silent(call: str, times: int) -> Callable[[str], None]:
    """A store that does not answer the first calls of one kind."""
    left = [times]

    def before(called: str) -> None:
        if called == call and left[0]:
            left[0] -= 1
            raise StoreUnavailable(f"{call}: the store does not answer")

    return before


class World:
    """Two tables, a store, and topologies that count words into them. The tables and the store outlive runs."""

    store: Any

    def __init__(self, kind: StateKind = StateKind.OPAQUE) -> None:
        self.kind = kind
        self.counts, self.total = MemoryTable("counts"), MemoryTable("total")
        self.store = HookedStore()
        self.states: dict[str, HookedState] = {}

    def topology(self, spout: Any = None, bolt: Any = None) -> Topology:
        """Words → perhaps a bolt → a count per word, and one in all."""
        made = builder(spout if spout is not None else words(), parallelism=2)
        source = "spout"
        if bolt is not None:
            made.set_bolt("bolt", bolt, 2, output="word string").shuffle_grouping("spout")
            source = "bolt"
        per_word = HookedState("word", kind=self.kind, table=self.counts)
        in_all = HookedState((), "count long", kind=self.kind, table=self.total)
        self.states = {"counts": per_word, "total": in_all}
        made.set_committer_bolt("counts", per_word.count()).fields_grouping(source, "word")
        made.set_committer_bolt("total", Total(), state=in_all).global_grouping(source)
        return made.build()

    def driver(
        self, topology: Topology | None = None, config: TopologyConfig = DRAINED, **given: Any
    ) -> TopologyDriver:
        topology = topology or self.topology()
        given.setdefault("executor", LocalExecutor(topology))
        return TopologyDriver(topology, given.pop("store", self.store), given.pop("executor"), config, **given)

    def run(self, topology: Topology | None = None, config: TopologyConfig = DRAINED, **given: Any) -> RunSummary:
        """Run until done."""
        return self.driver(topology, config, **given).run()

    @property
    def is_leased(self) -> bool:
        return any(status.is_leased for status in self.store.status())


@contextmanager
def in_background(driver: TopologyDriver) -> Iterator[Future[RunSummary]]:
    """A run in a thread of its own. It has to end by the end of the block, or to be stopped there."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(driver.run)
        try:
            yield running
        finally:
            driver.stop()
