"""What logs, health, metrics and traces cost of processor time per transaction.

One run is recorded, a spout with 8 partitions, two bolts and two states; then each observer is notified of all that was
recorded. For traces the time is that of all threads, with spans encoded as they are sent, but sent nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import process_time, thread_time
from typing import Any

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from spouts import MemoryTransactionalSpout
from state import MemoryMapState
from transactional import Topology, TransactionalTopologyBuilder
from transactional.config import TopologyConfig
from transactional.core.protocol import Action, Event
from transactional.engine.driver import TopologyDriver
from transactional.engine.history.observing import Notice
from transactional.phases.local_executor import LocalExecutor
from transactional.store.progress import Progress
from transactional.telemetry.health import Health
from transactional.telemetry.metrics import Metrics
from transactional.telemetry.run_log import RunLog
from transactional.telemetry.spans import Traces
from transactional.testing import MemoryCoordinatorStore

PARTITIONS = 8
BUDGET_MS = {"metrics": 0.1, "traces": 0.3}

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
    """Encodes spans, and forgets them."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Encode them."""
        encode_spans(spans).SerializeToString()
        return SpanExportResult.SUCCESS


def cost_ms(recorder: Recorder, observer: Any, transactions: int, *, clock: Callable[[], float] = thread_time) -> float:
    """Milliseconds of processor time per transaction that an observer takes."""
    began_s = clock()
    for call in recorder.calls:
        call(observer)
    if isinstance(observer, Traces):
        observer.close()
    return 1_000 * (clock() - began_s) / transactions


def costs(transactions: int, rounds: int) -> dict[str, list[float]]:
    """By observer, what each round took; without the walk through the recording itself."""
    recorder = recorded(transactions)
    found: dict[str, list[float]] = {"logs": [], "health": [], "metrics": [], "traces": []}
    for _ in range(rounds):
        nothing = cost_ms(recorder, lambda *_: None, transactions)
        batches = BatchSpanProcessor(Nowhere(), max_queue_size=1_000_000)
        found["logs"].append(cost_ms(recorder, RunLog("words"), transactions) - nothing)
        found["health"].append(cost_ms(recorder, Health(), transactions) - nothing)
        found["metrics"].append(cost_ms(recorder, Metrics("words"), transactions) - nothing)
        traced = cost_ms(recorder, Traces("words", batches), transactions, clock=process_time)
        found["traces"].append(traced - nothing)
    return found
