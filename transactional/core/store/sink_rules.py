"""The rules of the outbox that every coordinator's store follows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transactional.core.store.history import RunRecord
from transactional.core.store.outbox import Boundary, OutboxRow, Publication, SinkProgress, SinkRecords
from transactional.core.store.port import Lease
from transactional.core.store.rules import fingerprint_changes
from transactional.model.attempt import NO_TRANSACTION, AttemptId, TransactionAttempt
from transactional.model.errors import ConfigError
from transactional.model.names import SINK_TABLE, SINKS


def run_of(run: Lease | RunRecord) -> str:
    """The name of a run, under which its rows are stored. No run of a copied store has it."""
    return f"{run.owner}#{run.epoch}"


def new_rows(lease: Lease, attempt: TransactionAttempt, outbox: Mapping[str, SinkRecords]) -> list[OutboxRow]:
    """Return the rows that the commit of an attempt adds to the outbox, by the records of each sink."""
    publication = Publication(run_of(lease), attempt)
    return [
        OutboxRow(sink, publication, records.count, records.payload, records.file) for sink, records in outbox.items()
    ]


def records_in(details: Mapping[str, Any] | None) -> dict[str, int]:
    """Return by sink how many records a transaction had for it, as was recorded with its commit."""
    return {str(sink): int(records["count"]) for sink, records in (details or {}).get(SINKS, {}).items()}


def sink_changes(name: str, stored: Mapping[str, Any], declared: Mapping[str, Any]) -> list[str]:
    """Return the entries of a sink's fingerprint that differ, as `fingerprint_changes` does.

    A table that no longer exists is a change as well.
    """
    changes = fingerprint_changes({SINKS: {name: stored}}, {SINKS: {name: declared}})
    if SINK_TABLE in stored and SINK_TABLE not in declared:
        changes.append(f'{SINKS}.{name}.{SINK_TABLE}: stored "{stored[SINK_TABLE]}", given nothing')
    return changes


def boundary_at_reset(counter: AttemptId, progress: SinkProgress) -> Boundary:
    """Return the boundary of a sink whose progress a reset deletes: no attempt so far counts, nor one that an earlier
    boundary names because the target was ahead of the store."""
    earlier = progress.boundary
    return Boundary(NO_TRANSACTION, counter if earlier is None else max(counter, earlier.attempt_id))


def check_nothing_unsent(topology_id: str, unsent: Mapping[str, SinkProgress]) -> None:
    """Raise `ConfigError` if sinks have waiting transactions, which a reset would delete."""
    summaries = [
        f"sink {name!r} has {progress.unsent_summary}" for name, progress in unsent.items() if progress.waiting
    ]
    if summaries:
        raise ConfigError(
            f"topology {topology_id!r}: {'; '.join(summaries)}. Run it until they are sent, or pass --drop-unsent, "
            "after which they are never sent; nothing was changed"
        )
