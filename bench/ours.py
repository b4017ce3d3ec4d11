"""The work as a topology: Kafka, bolts, a Delta table; one or several transactions in flight."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench import tables
from bench.rounds import BatchTimes, Stage, WrongResult
from bench.works import LogMapState, Work
from spouts import OpaqueKafkaSpout
from spouts.planning import Logs, PartitionLog
from state import DeltaMapState
from transactional import Topology, TopologyConfig, TransactionalTopologyBuilder, run_topology
from transactional.core.machine.protocol import Action, CommitSucceeded, Event
from transactional.core.store import AttemptRecord
from transactional.model.attempt import TransactionAttempt
from transactional.model.batch import BatchMetadata, Offset
from transactional.operations.loading import open_store


class BoundedKafkaSpout(OpaqueKafkaSpout):
    """Takes each partition for as long as `until` says, so that a run ends where the peers' runs end."""

    def __init__(self, bootstrap: str, topic: str, until: Mapping[int, int], **options: Any) -> None:
        super().__init__(bootstrap, topics=[topic], **options)
        self._until = dict(until)

    def logs(self, after: BatchMetadata) -> Logs:
        """What the broker says, cut off at `until`."""
        logs = super().logs(after)
        ends = {p: min(log.end, Offset(self._until[p.index])) for p, log in logs.items() if log is not None}
        return {p: log and PartitionLog(log.earliest, ends[p], log.start) for p, log in logs.items()}


class EndTimes:
    """An observer that notes when each transaction commit was on disk, in milliseconds since 1970.

    The store's own time stamp is drawn before that write.
    """

    def __init__(self) -> None:
        self.ended_at_ms: dict[TransactionAttempt, int] = {}

    def __call__(self, at_ms: int, event: Event, actions: Sequence[Action]) -> None:
        """Called after the actions that follow an event were performed."""
        if isinstance(event, CommitSucceeded):
            self.ended_at_ms[event.attempt] = at_ms


class Ours:
    """A topology on the shared Spark session; its store is SQLite beside the table, written with full sync.

    `bolt` stands for the work's own bolt, `processing` is the option of that name.
    """

    def __init__(
        self,
        stage: Stage,
        work: Work,
        label: str,
        *,
        in_flight: int,
        name: str = "",
        bolt: Any = None,
        processing: str = "spark",
    ) -> None:
        self.stage, self.work, self.in_flight, self.bolt = stage, work, in_flight, bolt
        self.processing = processing
        self.name = name or f"ours-{in_flight}"
        self.topology_id = f"bench-{work.name}-{label}-{self.name}"
        self.directory = stage.directory / self.topology_id
        self.directory.mkdir(parents=True)
        self.path, self.store = str(self.directory / "table"), f"sqlite:///{self.directory}/store.db"

    def run(self, until: Mapping[int, int], batch_messages: int) -> Sequence[BatchTimes]:
        """Run the topology until it is drained. Raises `WrongResult` when an attempt failed: that is not the work."""
        config = TopologyConfig(
            max_spout_pending=self.in_flight, stop_when_drained=True, attempts_max=1, processing=self.processing
        )
        # As many messages, in the partitions of this system's own topic.
        topology = self.topology(self.work.workload.until(sum(until.values())), batch_messages)
        ends = EndTimes()
        summary = run_topology(topology, store=self.store, config=config, session=self.stage.session, observers=[ends])
        # Off the clock; else the garbage of one run is collected in the time of the next one.
        gc.collect()
        if summary.failures:
            raise WrongResult(f"{self.name}: {summary.failures} attempts failed")
        records = self._attempts(summary.transactions)
        return [times_of(record, ends.ended_at_ms[record.attempt]) for record in records]

    def counts(self) -> dict[str, int]:
        """The table's contents."""
        if not self.work.has_buckets and self.work.state is not LogMapState:
            return tables.read_counts(self.path)
        key = "word" if self.work.has_buckets else "key"
        counts = DeltaMapState(self.path, f"{key} string", "count long").read()
        return dict(zip(counts[key].to_pylist(), counts["count"].to_pylist(), strict=True))

    def topology(self, until: Mapping[int, int], batch_messages: int) -> Topology:
        """The work as a topology that ends at the given offsets."""
        options = {"fields": (self.work.field,), "key_type": "string", "batch_records_max": batch_messages}
        spout = BoundedKafkaSpout(self.stage.bootstrap, self.work.workload.topic, until, **options)
        builder = TransactionalTopologyBuilder(self.topology_id, "messages", spout, parallelism=self.stage.tasks)
        self.work.wire(builder, "messages", self.path, self.stage.tasks, self.bolt)
        return builder.build()

    def _attempts(self, number: int) -> Iterable[AttemptRecord]:
        store = open_store(self.store)
        try:
            return reversed(store.attempts(self.topology_id, limit=number))
        finally:
            store.close()


def times_of(record: AttemptRecord, ended_at_ms: int) -> BatchTimes:
    """The times of a committed transaction. `waiting` is for its turn, `recording` is the write to the store."""
    processed, started, committed = record.processed_at_ms, record.commit_started_at_ms, record.committed_at_ms
    assert processed is not None
    assert started is not None
    assert committed is not None
    phases = {
        "planning": record.planned_at_ms - record.issued_at_ms,
        "processing": processed - record.planned_at_ms,
        "waiting": started - processed,
        "commit": committed - started,
        "recording": ended_at_ms - committed,
    }
    whole_ms, planned_ms = ended_at_ms - record.issued_at_ms, ended_at_ms - record.planned_at_ms
    return BatchTimes(float(record.issued_at_ms), float(whole_ms), float(planned_ms), phases)
