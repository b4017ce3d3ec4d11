"""What `transactional status --json` and `txns --json` print: the store's values as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

from transactional.core.machine.listing import awaited_partitions
from transactional.core.store import AttemptRecord, StoreReader, TopologyStatus
from transactional.core.store.history import RunRecord
from transactional.core.store.outbox import SinkProgress
from transactional.core.store.rules import state_of, upkeep_in
from transactional.core.store.set_aside import RecentLetters

NONE: Mapping[str, str] = {}
ATTEMPTS_MAX = 20
"""The number of newest attempts among which the last commit is looked for."""


def read_step_executors(reader: StoreReader, topology_id: str) -> dict[str, str]:
    """Return by step where it ran in the last transaction commit and why, for steps that may run as Spark jobs."""
    details = (record.details or {} for record in reader.attempts(topology_id, limit=ATTEMPTS_MAX))
    return next((dict(recorded["steps"]) for recorded in details if "steps" in recorded), {})


def read_processing_executor(reader: StoreReader, topology_id: str) -> str:
    """Return where the last committed transaction was processed, and why there, if there was a choice."""
    details = (record.details or {} for record in reader.attempts(topology_id, limit=ATTEMPTS_MAX))
    return next((str(recorded["processing"]) for recorded in details if "processing" in recorded), "")


def read_maintenance_failures(reader: StoreReader, topology_id: str) -> dict[str, str]:
    """Return by committer why its table could not be maintained, as of the last transaction commit."""
    records = reader.attempts(topology_id, limit=ATTEMPTS_MAX)
    return next((upkeep_in(record.details) for record in records if record.committed_at_ms is not None), {})


def read_awaited_partitions(reader: StoreReader, status: TopologyStatus) -> dict[str, str]:
    """Return the partitions without a record that windows waited for in the last transaction commit, and why."""
    records = reader.attempts_at(status.topology_id, status.committed_txid) if status.committed_txid else ()
    return next(
        (awaited_partitions(record.batch.listed) for record in records if record.committed_at_ms is not None), {}
    )


@dataclass(frozen=True, slots=True)
class UnclosedWindows:
    """The windows of a component that are open after the last transaction commit, in milliseconds since 1970.

    `slowest` is the partition whose events are furthest behind, if there are several partitions.
    """

    watermark_ms: int | None
    last_end_ms: int
    by_transaction: bool
    slowest: str | None


def read_open_windows(reader: StoreReader, status: TopologyStatus) -> dict[str, UnclosedWindows]:
    """Return by component the windows that may be open."""
    records = reader.attempts_at(status.topology_id, status.committed_txid) if status.committed_txid else ()
    record = next((candidate for candidate in records if candidate.committed_at_ms is not None), None)
    if record is None:
        return {}
    partitions_by_time = sorted(
        (newest.event_us, str(partition)) for partition, newest in record.batch.event_times.items()
    )
    slowest = partitions_by_time[0][1] if len(partitions_by_time) > 1 else None
    open_ones = (record.details or {}).get("event_time", {}).get("open_until", {})
    return {
        name: UnclosedWindows(None if us is None else us // 1_000, end_us // 1_000, by_transaction, slowest)
        for name, (us, end_us, by_transaction) in open_ones.items()
    }


def status_json(
    status: TopologyStatus,
    steps: Mapping[str, str],
    waits: Mapping[str, str] = NONE,
    processing: str = "",
    windows: Mapping[str, UnclosedWindows] = MappingProxyType({}),
    upkeep: Mapping[str, str] = NONE,
    set_aside: RecentLetters | None = None,
    sinks: Mapping[str, SinkProgress] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return a topology's status as JSON, with times in milliseconds since 1970."""
    trouble = status.trouble
    return {
        "topology": status.topology_id,
        "name": status.name or status.topology_id,
        "state": state_of(status),
        "desired": status.desired.value,
        "running": status.is_leased,
        "owner": status.owner,
        "epoch": status.epoch,
        "leased_until_ms": status.leased_until_ms,
        "stop_at_ms": status.stop_at_ms,
        "committed_txid": status.committed_txid,
        "committed_at_ms": status.committed_at_ms,
        "rewinding_to": status.rewinding_to,
        "lag": status.lag,
        "dead_letters": None if set_aside is None else set_aside.letters,
        "processing": processing or None,
        "steps": dict(steps),
        "windows_wait_for": dict(waits),
        "open_windows": {name: asdict(open_windows) for name, open_windows in windows.items()},
        "maintenance_failing": dict(upkeep),
        "sinks": {name: sink_json(progress) for name, progress in sorted(sinks.items())},
        "failing_since_ms": None if trouble is None else trouble.since_ms,
        "failing_txid": None if trouble is None else trouble.txid,
        "error": None if trouble is None else trouble.error,
        "run": None if status.run is None else _run_json(status.run),
    }


def sink_json(progress: SinkProgress) -> dict[str, Any]:
    """Return how far a sink is as JSON."""
    published = progress.published
    return {
        "published_txid": None if published is None else published.attempt.txid,
        "done_txid": progress.done_txid,
        "waiting_transactions": progress.waiting,
        "waiting_records": progress.records,
    }


def _run_json(run: RunRecord) -> dict[str, Any]:
    end = run.end
    return {
        "epoch": run.epoch,
        "owner": run.owner,
        "version": run.about.version,
        "began_at_ms": run.began_at_ms,
        "began_at_txid": run.began_at_txid,
        "ended_at_ms": run.ended_at_ms,
        "ended_at_txid": run.ended_at_txid,
        "ended": None if end is None else end.how.value,
        "code": None if end is None else end.code,
        "reason": None if end is None else end.reason,
    }


def attempt_json(record: AttemptRecord) -> dict[str, Any]:
    """Return an attempt as JSON, with times in milliseconds since 1970, and ranges as `[source, partition, start,
    until]`."""
    return {
        "txid": record.attempt.txid,
        "attempt": record.attempt.attempt_id,
        "phase": record.phase,
        "rows": record.rows,
        "issued_at_ms": record.issued_at_ms,
        "planned_at_ms": record.planned_at_ms,
        "processed_at_ms": record.processed_at_ms,
        "commit_started_at_ms": record.commit_started_at_ms,
        "committed_at_ms": record.committed_at_ms,
        "failed_at_ms": record.failed_at_ms,
        "error": record.error,
        "again": len(record.batch.again),
        "waiting": len(record.batch.pending),
        "lost": record.batch.lost,
        "details": None if record.details is None else dict(record.details),
        "ranges": [
            [partition.source, partition.index, offsets.start, offsets.until]
            for partition, offsets in sorted(record.batch.ranges.items())
        ],
    }
