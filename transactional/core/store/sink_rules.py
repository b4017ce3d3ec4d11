"""The rules of the outbox that every coordinator's store follows, and what a topology with sinks refuses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from transactional.core.store.history import RunRecord
from transactional.core.store.outbox import OutboxRow, Publication, SinkRecords
from transactional.core.store.port import Lease, TopologyStatus
from transactional.model.attempt import TransactionAttempt
from transactional.model.errors import ConfigError
from transactional.model.names import SINKS


def run_of(run: Lease | RunRecord) -> str:
    """The name of a run, under which its rows are stored. No run of a copied store has it."""
    return f"{run.owner}#{run.epoch}"


def new_rows(lease: Lease, attempt: TransactionAttempt, outbox: Mapping[str, SinkRecords]) -> list[OutboxRow]:
    """Return the rows that the commit of an attempt adds to the outbox, by the records of each sink."""
    publication = Publication(run_of(lease), attempt)
    return [
        OutboxRow(sink, publication, records.count, records.payload, records.file) for sink, records in outbox.items()
    ]


def sinks_in(fingerprint: Mapping[str, object]) -> tuple[str, ...]:
    """The names of the sinks in a stored fingerprint."""
    sinks = fingerprint.get(SINKS, {})
    return tuple(sorted(sinks)) if isinstance(sinks, Mapping) else ()


def check_no_sinks(status: TopologyStatus, refused: str, published: Iterable[str] = ()) -> None:
    """Raise `ConfigError` if a topology has sinks: what is `refused` would take back what they have published.

    `published` are the sinks with publications or rows in the store; some of them may have left the topology.
    """
    if names := sorted({*sinks_in(status.fingerprint), *published}):
        sinks = ", ".join(map(repr, names))
        has = "has" if sinks_in(status.fingerprint) else "had"
        raise ConfigError(
            f"topology {status.topology_id!r} {has} sinks ({sinks}), and what they have published can't be taken back: "
            f"{refused} is refused, and nothing was changed"
        )
