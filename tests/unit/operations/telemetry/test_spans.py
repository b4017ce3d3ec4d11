"""One trace per transaction, whoever makes its attempts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tests.unit.drivers import HookedStore, World
from tests.unit.operations.telemetry.runs import tried
from tests.unit.runtime.engine.history.test_troubles import failing
from transactional.core.store import AttemptRecord
from transactional.core.store.rules import PROCESSING
from transactional.errors import SourceUnavailable
from transactional.model.attempt import TxId
from transactional.model.batch import BatchMetadata, Offset, OffsetRange, PartitionId
from transactional.model.config import TopologyConfig
from transactional.operations.telemetry.spans import Traces
from transactional.operations.telemetry.trace_ids import span_id_of, trace_id_of
from transactional.testing.clock import ManualClock

ONE_AT_A_TIME = TopologyConfig(max_spout_pending=1, stop_when_drained=True, retry_pause_ms=1, tick_ms=1)


class Told:
    """What was exported by one run."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.traces = Traces("words", SimpleSpanProcessor(self.exporter))

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        return self.exporter.get_finished_spans()

    def of(self, txid: int) -> list[ReadableSpan]:
        return [span for span in self.spans if span.context.trace_id == trace_id_of("words", txid)]


def began(span: ReadableSpan) -> int:
    return span.start_time or 0


def ended(span: ReadableSpan) -> int:
    return span.end_time or 0


def facts_of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def attempts_of(spans: Sequence[ReadableSpan]) -> list[ReadableSpan]:
    return [span for span in spans if span.name.startswith("attempt")]


def children_of(spans: Sequence[ReadableSpan], parent: ReadableSpan) -> list[str]:
    return [span.name for span in spans if span.parent is not None and span.parent.span_id == parent.context.span_id]


def test_each_transaction_is_a_trace_of_its_attempt_and_phases() -> None:
    world, told = World(), Told()
    summary = world.run(observers=[told.traces])
    for txid in range(1, summary.transactions + 1):
        spans = told.of(txid)
        [whole] = [span for span in spans if span.parent is None]
        [attempt] = attempts_of(spans)
        assert (whole.name, whole.context.span_id) == ("transaction words", span_id_of("words", txid))
        assert attempt.parent is not None
        assert attempt.parent.span_id == whole.context.span_id
        assert attempt.context.span_id == span_id_of("words", txid, facts_of(attempt)["transactional.attempt"])
        assert set(children_of(spans, attempt)) - {"wait"} == {"plan", "process", "commit"}
        [commit] = [span for span in spans if span.name == "commit"]
        of_states = [span for span in spans if span.parent and span.parent.span_id == commit.context.span_id]
        assert [span.name for span in of_states] == ["commit counts", "commit total"]
        assert [facts_of(span)["transactional.component"] for span in of_states] == ["counts", "total"]
        assert all(facts_of(span)["transactional.state.rows"] > 0 for span in of_states)
        assert all(began(commit) <= began(span) <= ended(span) <= ended(commit) for span in of_states)
        assert began(of_states[0]) <= began(of_states[1])
        assert facts_of(whole)["transactional.records"] > 0
        assert all(began(whole) <= began(span) <= ended(span) <= ended(whole) for span in spans)
        [process] = [span for span in spans if span.name == "process"]
        assert process.kind is SpanKind.CONSUMER
    assert {span.context.trace_id for span in told.spans} == {
        trace_id_of("words", txid) for txid in range(1, summary.transactions + 1)
    }


def test_a_failed_attempt_is_in_the_same_trace_and_the_next_one_links_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world, told = World(), Told()
    topology = world.topology()
    error = SourceUnavailable("no broker at kafka://me:hunter2@broker:9092\nmore")
    replays = topology.spout.parts.replays
    monkeypatch.setattr(replays, "check_read", failing(1, error, replays.check_read))
    world.run(
        topology,
        TopologyConfig(max_spout_pending=1, stop_when_drained=True, retry_pause_ms=1, tick_ms=1),
        observers=[told.traces],
    )
    spans = told.of(1)
    first, second = attempts_of(spans)
    assert (first.status.status_code, second.status.status_code) == (StatusCode.ERROR, StatusCode.UNSET)
    assert facts_of(first)["error.type"] == "TX301"
    assert facts_of(first)["transactional.phase"] == "processing"
    assert first.status.description == "TX301 no broker at kafka://***@broker:9092"
    assert children_of(spans, first) == ["plan", "process"]
    [link] = second.links
    assert link.context.span_id == first.context.span_id
    [whole] = [span for span in spans if span.parent is None]
    assert whole.start_time == first.start_time


def test_attempts_that_were_given_up_are_told_once() -> None:
    """With one kind of error for all of them, so that they can be counted apart from those that failed."""
    world, told = World(), Told()
    topology = world.topology()
    left = [1]

    def fail_first(attempt: Any) -> None:
        if attempt.txid == 1 and left[0]:
            left[0] -= 1
            raise SourceUnavailable("away")

    world.states["counts"].before = fail_first
    summary = world.run(topology, observers=[told.traces])
    assert summary.failures == 1
    ids = [span.context.span_id for span in attempts_of(told.spans)]
    assert len(ids) == len(set(ids))
    assert facts_of(attempts_of(told.of(1))[0])["transactional.phase"] == "committing"
    kinds = {facts_of(span).get("error.type") for span in attempts_of(told.spans)}
    assert kinds == {None, "TX301", "given_up"}


def test_a_process_that_takes_over_continues_the_trace() -> None:
    """The one before was lost, and could not say how its attempt ended: the store knows that there was one."""
    world, told, clock = World(), Told(), ManualClock()
    world.store = HookedStore(clock)
    topology = world.topology()
    lease = world.store.acquire(topology.id, topology.fingerprint(), owner="lost:7:ab", lease_ms=1)
    batch = BatchMetadata({PartitionId("memory", 0): OffsetRange(Offset(0), Offset(1))})
    record = AttemptRecord(tried(1, 2), PROCESSING, batch, None, 1_000, 2_000, None, None, None, None)
    world.store.record_attempt(lease, record, forget_later=False)
    clock.advance(2)
    world.run(topology, ONE_AT_A_TIME, observers=[told.traces])
    spans = told.of(1)
    lost, later = attempts_of(spans)
    assert lost.context.span_id == span_id_of("words", 1, 2)
    assert (lost.start_time, facts_of(lost)["error.type"]) == (1_000_000_000, "lost")
    assert [link.context.span_id for link in later.links] == [lost.context.span_id]
    [whole] = [span for span in spans if span.parent is None]
    assert whole.start_time == lost.start_time


def test_two_processes_agree_on_what_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    seen = list[set[int]]()
    for _ in range(2):
        told = Told()
        summary = World().run(observers=[told.traces])
        seen.append({span.context.trace_id for span in told.spans})
        assert all(len(told.of(txid)) in (0, 7, 8) for txid in range(1, summary.transactions + 1))
        assert 0 < len(seen[-1]) < summary.transactions
    assert seen[0] == seen[1]


def test_ids_are_those_of_the_topology_and_never_none() -> None:
    assert trace_id_of("words", 1) != trace_id_of("words", 2) != trace_id_of("birds", 2)
    assert span_id_of("words", 1) != span_id_of("words", 1, 1) != span_id_of("words", 11)
    assert 0 < trace_id_of("\ud800", TxId(1)) < 2**128
