"""How many calls logs, health, metrics and traces make per transaction: what they cost, whatever else the machine does.

One run is recorded, a spout with 8 partitions, two bolts and two states; then each observer is notified of all that was
recorded. Of traces it is what the run's own thread does; spans are encoded in another.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from spouts import MemoryTransactionalSpout
from state import MemoryMapState
from transactional import Topology, TransactionalTopologyBuilder
from transactional.core.machine.protocol import Action, Event
from transactional.core.store.progress import Progress
from transactional.model.config import TopologyConfig
from transactional.operations.telemetry.health import Health
from transactional.operations.telemetry.metrics import Metrics
from transactional.operations.telemetry.run_log import RunLog
from transactional.operations.telemetry.spans import Traces
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.engine.history.observing import Notice
from transactional.runtime.executors.local import LocalExecutor
from transactional.testing import MemoryCoordinatorStore

PARTITIONS = 8
BUDGET = {"logs": 10, "health": 15, "metrics": 550, "traces": 350}
"""Calls per transaction."""

Observe = Callable[[Any], None]


class Recorder:
    """An observer that keeps all that it is notified of, to be played to another one."""

    def __init__(self) -> None:
        self.calls: list[Observe] = []

    def begin(self, at_ms: int, progress: Progress, config: TopologyConfig, **how: Any) -> None:
        """The run begins."""
        self.calls.append(
            lambda to: to.begin(at_ms, progress, config, **how) if hasattr(to, "begin") else None,
        )

    def __call__(self, at_ms: int, event: Event, actions: Sequence[Action]) -> None:
        """An event."""
        self.calls.append(lambda to: to(at_ms, event, actions))

    def notice(self, at_ms: int, notice: Notice) -> None:
        """A notice."""
        self.calls.append(lambda to: to.notice(at_ms, notice) if hasattr(to, "notice") else None)


def topology_of(transactions: int) -> Topology:
    """A small topology with so many batches."""
    partitions = [[("cat",)] * transactions for _ in range(PARTITIONS)]
    builder = TransactionalTopologyBuilder("words", "spout", MemoryTransactionalSpout(partitions, "word string", 1))
    builder.set_bolt("upper", lambda row: (row["word"].upper(),), output="word string").shuffle_grouping("spout")
    builder.set_committer_bolt("count", MemoryMapState("word").count()).fields_grouping("upper", "word")
    builder.set_committer_bolt("raw", MemoryMapState("word").count()).fields_grouping("spout", "word")
    return builder.build()


def recorded(transactions: int) -> Recorder:
    """All that observers are notified of in a run of so many transactions."""
    topology, recorder = topology_of(transactions), Recorder()
    config = TopologyConfig(max_spout_pending=3, stop_when_drained=True, idle_pause_ms=1)
    driver = TopologyDriver(topology, MemoryCoordinatorStore(), LocalExecutor(topology), config, observers=[recorder])
    summary = driver.run()
    assert (summary.transactions, summary.failures) == (transactions, 0)
    return recorder


class Nowhere(SpanExporter):
    """Forgets spans."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Forget them."""
        return SpanExportResult.SUCCESS


def count_calls(recorder: Recorder, observer: Any) -> int:
    """How many functions, of Python and of C, are called while an observer is notified of all."""
    calls = 0

    def count(_: Any, event: str, __: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        for call in recorder.calls:
            call(observer)
    finally:
        sys.setprofile(before)
    return calls


def costs(transactions: int) -> dict[str, float]:
    """By observer, calls per transaction; without the walk through the recording itself."""
    recorder = recorded(transactions)
    traces = Traces("words", BatchSpanProcessor(Nowhere(), max_queue_size=1_000_000))
    observers = {"logs": RunLog("words"), "health": Health(), "metrics": Metrics("words"), "traces": traces}
    walk = count_calls(recorder, lambda *_: None)
    counted = {name: (count_calls(recorder, each) - walk) / transactions for name, each in observers.items()}
    traces.close()
    return counted
