"""`Metrics`: an observer that counts and times a run for Prometheus, in a registry of its own.

Names have the prefix `transactional_`, units are seconds, bytes and records. No label holds what grows without limit:
no transaction, attempt, key, owner or error.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector

from transactional.core.machine.protocol import AbortAttempt, Action, Event, RecordCommit, RecordFailure, SinksSettled
from transactional.core.machine.report import IN_DRIVER, IN_WORKERS, ON_SPARK
from transactional.core.store.history import EndedHow
from transactional.core.store.rules import upkeep_in
from transactional.core.store.sink_rules import records_in
from transactional.model.batch import BatchMetadata
from transactional.operations.telemetry.trace_ids import trace_id_of
from transactional.runtime.engine.history.observing import (
    Committed,
    Ended,
    Leading,
    LeaseRenewed,
    Maintained,
    Notice,
    Recovered,
    StoreWritten,
)
from transactional.runtime.engine.history.run_history import installed_version
from transactional.runtime.engine.history.timeline import Flight, Moment, Timeline
from transactional.topology.bolts.bolts import COUNTERS_MAX

BUCKETS_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
PREFIX: Final = "transactional_"


class Metrics:
    """The metrics of one topology's run. `registry` has them, to be scraped from any thread.

    `components` may set tuples aside. If the run `is_traced`, durations come with the trace of a transaction that took
    that long, for scrapers that accept OpenMetrics.
    """

    def __init__(self, topology_id: str, components: Collection[str] = (), *, is_traced: bool = False) -> None:
        self.registry = CollectorRegistry()
        self._topology_id, self._is_traced = topology_id, is_traced
        self._timeline = Timeline()
        self._failures: dict[int, int] = {}
        self._leased_until_s = 0.0
        self._children: dict[tuple[str, ...], Any] = {}
        build = Gauge(f"{PREFIX}build_info", "Versions", ("version", "spark", "delta"), registry=self.registry)
        build.labels(installed_version(), _version("pyspark"), _version("delta-spark")).set(1)
        self._lags = _Lags(topology_id)
        self.registry.register(self._lags)
        self._define_metrics()
        self._gauge("lease_remaining_seconds").set_function(self._lease_remaining_s)
        for name in ("leading", "taken_over", "failed_in_a_row", "in_flight"):
            self._gauge(name).set(0)
        self._compacted: dict[str, int] = {}
        self._counters: dict[str, set[str]] = {}
        for component in components:
            # A rate is computed from the second sample on: there has to be one before the first dead letter.
            self._metric("dead_letters_total", component)

    def _define_metrics(self) -> None:
        """Define all metrics but those that are computed while they are scraped."""
        self._families: dict[str, MetricWrapperBase] = {
            name: kind(f"{PREFIX}{name}", about, ("topology", *labels), registry=self.registry, **arguments)
            for kind, name, about, labels, arguments in _FAMILIES
        }

    def _metric(self, name: str, *labels: str) -> Any:
        """Return a metric with its labels, from a cache."""
        key = (name, *labels)
        if (child := self._children.get(key)) is None:
            child = self._children[key] = self._families[name].labels(self._topology_id, *labels)
        return child

    def _gauge(self, name: str) -> Gauge:
        gauge = self._metric(name)
        assert isinstance(gauge, Gauge)
        return gauge

    def _lease_remaining_s(self) -> float:
        return max(0.0, self._leased_until_s - time.monotonic())

    def __call__(self, at_ms: int, event: Event, actions: Sequence[Action]) -> None:
        """Count the attempts that have ended, and set the number in flight."""
        if isinstance(event, SinksSettled):
            self._metric("sinks_settled_txid").set(event.txid)
        if not actions and not len(self._timeline):
            return
        moment = Moment(at_ms, at_ms)
        self._timeline.note_event(event, moment)
        failed = {action.attempt for action in actions if isinstance(action, RecordFailure)}
        for action in actions:
            match action:
                case RecordFailure(attempt, phase):
                    self._metric("attempts_total", "failed", phase.value).inc()
                    self._failures[attempt.txid] = self._failures.get(attempt.txid, 0) + 1
                    self._metric("failed_in_a_row").set(max(self._failures.values()))
                case AbortAttempt(attempt) if attempt not in failed:
                    flight = self._timeline.find(attempt)
                    self._metric("attempts_total", "given_up", flight.step if flight else "planning").inc()
                case RecordCommit(attempt):
                    self._metric("attempts_total", "committed", "committing").inc()
                    if self._failures:
                        self._failures = {t: count for t, count in self._failures.items() if t > attempt.txid}
                        self._metric("failed_in_a_row").set(max(self._failures.values(), default=0))
            self._timeline.note_action(action, moment)
        if actions:
            self._metric("in_flight").set(sum(flight.batch is not None for flight in self._timeline))

    def notice(self, at_ms: int, notice: Notice) -> None:
        """Update the metrics of commits, store writes, maintenance and leadership."""
        match notice:
            case Committed(flight, batch, details):
                self._observe_commit(flight, batch, details)
            case StoreWritten(write, took_ms):
                self._metric("store_write_duration_seconds", write).observe(took_ms / 1_000)
            case LeaseRenewed(lease_ms):
                self._leased_until_s = time.monotonic() + lease_ms / 1_000
            case Maintained(component, took_ms):
                self._metric("state_maintenance_duration_seconds", component).observe(took_ms / 1_000)
            case Recovered():
                self._failures = {}
                self._metric("failed_in_a_row").set(0)
            case Leading(lease, previous_run):
                is_lost = previous_run is not None and (
                    previous_run.end is None or previous_run.end.how is EndedHow.LOST
                )
                self._metric("leading").set(1)
                self._metric("taken_over").set(int(is_lost))
                self._metric("run_start_timestamp_seconds").set(at_ms / 1_000)
                self._metric("committed_txid").set(lease.progress.committed_txid)
            case Ended():
                self._metric("leading").set(0)
                self._leased_until_s = 0.0

    def _observe_commit(self, flight: Flight, batch: BatchMetadata, details: Mapping[str, Any]) -> None:
        self._metric("committed_txid").set(flight.attempt.txid)
        self._metric("last_commit_timestamp_seconds").set(flight.committed.wall_ms / 1_000)
        took_ms = flight.committed.monotonic_ms - flight.issued.monotonic_ms
        trace = {"trace_id": f"{trace_id_of(self._topology_id, flight.attempt.txid):032x}"} if self._is_traced else None
        self._metric("transaction_duration_seconds").observe(took_ms / 1_000, trace)
        for phase, spent_ms in flight.phases_ms.items():
            self._metric("phase_duration_seconds", phase).observe(spent_ms / 1_000)
        for component, facts in details.get("states", {}).items():
            self._observe_state(component, facts)
            self._metric("state_maintenance_failing", component).set(component in upkeep_in(details))
        for partition, digest in batch.digests.items():
            self._metric("records_read_total", partition.source).inc(digest.records)
            self._metric("read_bytes_total", partition.source).inc(digest.bytes)
        for source, stream, target, number in details.get("edges", ()):
            self._metric("tuples_total", source, stream, target).inc(number)
        for component, letters in details.get("letters_of", {}).items():
            self._metric("dead_letters_total", component).inc(letters)
        for component, records in records_in(details).items():
            self._metric("sink_records_total", component).inc(records)
        for component, name, number in details.get("counters", ()):
            self._metric("bolt_counter_total", component, self._counter_label(component, name)).inc(number)
        if (executor := str(details.get("processing", "")).partition(":")[0]) in _EXECUTORS:
            self._metric("processed_transactions_total", _EXECUTORS[executor]).inc()
        self._observe_event_time(details.get("event_time", {}), details.get("late", {}))
        if batch.lost:
            self._metric("lost_messages_total").inc(batch.lost)
        if flight.limit is not None:
            self._metric("batch_limit_records").set(flight.limit.records)
        self._lags.lag, self._lags.partitions = details.get("lag"), details.get("lags", ())

    def _counter_label(self, component: str, name: str) -> str:
        """Return the label for a counter's name; names beyond the limit share the label `other`."""
        names = self._counters.setdefault(component, set())
        if name not in names and len(names) >= COUNTERS_MAX:
            return "other"
        names.add(name)
        return name

    def _observe_event_time(self, event_time: Mapping[str, Any], late: Mapping[str, int]) -> None:
        """Set the metrics of event time, from the value of `event_time_of` and the late tuples by component."""
        for name in ("watermark", "newest_event"):
            if (us := event_time.get(f"{name.removesuffix('_event')}_us")) is not None:
                self._metric(f"{name}_timestamp_seconds").set(us / 1_000_000)
        for component, number in event_time.get("open", {}).items():
            self._metric("late_tuples_total", component).inc(late.get(component, 0))
            if number is not None:
                self._metric("open_windows", component).set(number)

    def _observe_state(self, component: str, facts: Mapping[str, int]) -> None:
        self._metric("state_commit_duration_seconds", component).observe(facts.get("ms", 0) / 1_000)
        self._metric("state_rows_total", component).inc(facts.get("rows", 0))
        if "bytes" in facts:
            self._metric("state_written_bytes_total", component).inc(facts["bytes"])
        if (compacted := facts.get("compacted")) is not None:
            self._metric("state_compactions_total", component).inc(
                compacted > self._compacted.get(component, compacted)
            )
            self._compacted[component] = compacted


class _Lags(Collector):
    """The lag as of the last commit, computed when it is scraped, because partitions come and go."""

    def __init__(self, topology_id: str) -> None:
        self._topology_id = topology_id
        self.lag: int | None = None
        self.partitions: Sequence[Sequence[Any]] = ()

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Return the sum of all partitions, and the lags of those that are furthest behind."""
        total = GaugeMetricFamily(f"{PREFIX}lag_records", "Records not yet read, in all", labels=["topology"])
        if self.lag is not None:
            total.add_metric([self._topology_id], self.lag)
        by_partition = GaugeMetricFamily(
            f"{PREFIX}partition_lag_records",
            "Records not yet read, of the partitions that are furthest behind",
            labels=["topology", "source", "partition"],
        )
        for source, index, lag in self.partitions:
            by_partition.add_metric([self._topology_id, source, str(index)], lag)
        return [total, by_partition]


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


_EXECUTORS: Final = {IN_DRIVER: "driver", IN_WORKERS: "workers", ON_SPARK: "spark"}
_TIMED: Final[Mapping[str, Any]] = {"buckets": BUCKETS_S}
_FAMILIES: Final[Sequence[tuple[type[Any], str, str, tuple[str, ...], Mapping[str, Any]]]] = (
    (Counter, "attempts_total", "Attempts that have ended", ("outcome", "phase"), {}),
    (Gauge, "committed_txid", "The last transaction committed", (), {}),
    (Gauge, "in_flight", "Transactions in flight that have a batch", (), {}),
    (Gauge, "failed_in_a_row", "Failed attempts at the transaction that failed most, not yet committed", (), {}),
    (Histogram, "transaction_duration_seconds", "From issuing an attempt to its commit", (), _TIMED),
    (Histogram, "phase_duration_seconds", "Time of committed attempts by phase", ("phase",), _TIMED),
    (Histogram, "state_commit_duration_seconds", "A committer in the commit phase", ("component",), _TIMED),
    (Histogram, "state_maintenance_duration_seconds", "Compaction, vacuum", ("component",), _TIMED),
    (
        Gauge,
        "state_maintenance_failing",
        "1 while a table could not be maintained three times in a row",
        ("component",),
        {},
    ),
    (Histogram, "store_write_duration_seconds", "A write to the coordinator's store", ("write",), _TIMED),
    (Counter, "records_read_total", "Records of committed transactions", ("source",), {}),
    (Counter, "read_bytes_total", "Their size as Arrow columns", ("source",), {}),
    (Counter, "tuples_total", "Tuples sent in committed transactions", ("component", "stream", "target"), {}),
    (Counter, "state_rows_total", "Rows written to a state", ("component",), {}),
    (Counter, "state_written_bytes_total", "Files that transactions added to a Delta table", ("component",), {}),
    (
        Counter,
        "state_compactions_total",
        "Times that a table in the log layout was found compacted",
        ("component",),
        {},
    ),
    (Counter, "processed_transactions_total", "Where they were processed", ("place",), {}),
    (Counter, "dead_letters_total", "Tuples set aside", ("component",), {}),
    (Counter, "sink_records_total", "Records of committed transactions for a sink", ("component",), {}),
    (Gauge, "sinks_settled_txid", "The transaction up to which every sink has published", (), {}),
    (Counter, "bolt_counter_total", "What bolts count themselves", ("component", "name"), {}),
    (Counter, "late_tuples_total", "Tuples that came after their windows had closed", ("component",), {}),
    (Gauge, "open_windows", "Windows that can still get tuples, whatever the number of keys", ("component",), {}),
    (Gauge, "watermark_timestamp_seconds", "The event time before which tuples are late", (), {}),
    (Gauge, "newest_event_timestamp_seconds", "The newest event time read", (), {}),
    (Counter, "lost_messages_total", "Messages given up without a dead letter", (), {}),
    (Gauge, "batch_limit_records", "How many records the next batch may hold", (), {}),
    (Gauge, "lease_remaining_seconds", "How long the lease still holds", (), {}),
    (Gauge, "leading", "1 while this process leads the topology", (), {}),
    (Gauge, "taken_over", "1 if the run took over from a process that was lost", (), {}),
    (Gauge, "run_start_timestamp_seconds", "When this process began to lead", (), {}),
    (Gauge, "last_commit_timestamp_seconds", "When a transaction was last committed", (), {}),
)
"""The metrics: kind, name, description, labels besides the topology's, and further arguments of the kind."""
