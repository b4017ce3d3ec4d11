"""The repairs of `transactional sinks`: accept the position of a target, drop a sink, and set records aside.

Each holds the lease of the topology, which must not be running. A repair changes the store alone: what a target has
stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from transactional.core.ports import Sink, SinkOwner, SinkPosition
from transactional.core.store import CoordinatorStore, Lease, TopologyStatus
from transactional.core.store.outbox import Boundary, OutboxRow, SinkProgress, SinkRecords
from transactional.model.attempt import AttemptId, TxId
from transactional.model.config import TopologyConfig
from transactional.model.errors import ConfigError, StoreMismatch
from transactional.model.schema import did_you_mean
from transactional.runtime.publishing.payload_files import PayloadFolder, outbox_folder
from transactional.runtime.publishing.payloads import decode_payload, encode_payload
from transactional.topology.topology import Topology

LEASE_MS = 60_000


@dataclass(frozen=True, slots=True)
class TargetStanding:
    """The end of a sink's target, in words, and the attempt with which it ends."""

    summary: str
    attempt_id: AttemptId | None


def read_standing(topology: Topology, status: TopologyStatus, name: str) -> TargetStanding:
    """Read the end of a sink's target, without fencing anybody. Raises `StoreMismatch` if it is another store's."""
    sink, owner = _sink_of(topology, status, name)
    sink.prepare()
    position = sink.look(owner)
    if position is None:
        return TargetStanding(f"{sink.target_name} has no position of sink {name!r}", None)
    if position.store_id != owner.store_id:
        raise StoreMismatch(
            f"sink {name!r} of topology {topology.id!r}: {sink.target_name} belongs to the store with the id "
            f"{position.store_id}, and this store's is {owner.store_id}: it can't be accepted. Give the topology "
            "another id; nothing was changed"
        )
    published = position.publication
    return TargetStanding(
        f"{sink.target_name} ends with transaction {published.attempt.txid} of attempt "
        f"{published.attempt.attempt_id} and run {published.run!r}; the store has committed {status.committed_txid}",
        published.attempt.attempt_id,
    )


def accept_position(topology: Topology, store: CoordinatorStore, name: str, txid: TxId, *, owner: str) -> str:
    """Let a sink continue after a transaction, whatever its target ends with, and say with what it ends.

    Earlier publishers are fenced first, and a target that can go back does so. Raises `ConfigError` for a transaction
    that is not committed, or whose records are already deleted from the outbox.
    """
    status = _read_status(store, topology.id)
    progress = store.sinks(topology.id).get(name, SinkProgress(TxId(0)))
    standing = read_standing(topology, status, name)
    sink, sink_owner = _sink_of(topology, status, name)
    first_txid, reason = progress.settled_txid, "records of earlier ones are no longer in the outbox"
    if sink.can_go_back and _is_ahead(standing, progress):
        first_txid, reason = status.committed_txid, "its target, which has newer ones, takes what waits for published"
    if not first_txid <= txid <= status.committed_txid:
        raise ConfigError(
            f"sink {name!r} of topology {topology.id!r} can continue after transactions {first_txid} to "
            f"{status.committed_txid}, not after {txid}: {reason}, and `transactional rewind` computes them again"
        )
    with _holding_lease(store, status, owner) as lease:
        try:
            fence_id = _draw_fence(store, lease, status, sink.look(sink_owner))
            sink.open(replace(sink_owner, fence_id=fence_id), has_published=False)
            store.renew(lease, lease_ms=LEASE_MS)
            sink.position()  # waits for what earlier publishers had begun
            if sink.can_go_back:
                sink.check_go_back()
                sink.go_back(txid, fence_id)
            standing = read_standing(topology, status, name)
            store.place_sink(lease, name, Boundary(txid, standing.attempt_id or status.attempt_id))
        finally:
            sink.close()
    return standing.summary


def _is_ahead(standing: TargetStanding, progress: SinkProgress) -> bool:
    """Return whether a target ends with a later attempt than the store has settled."""
    settled_id = AttemptId(0) if progress.published is None else progress.published.attempt.attempt_id
    return standing.attempt_id is not None and standing.attempt_id > settled_id


def _draw_fence(
    store: CoordinatorStore, lease: Lease, status: TopologyStatus, position: SinkPosition | None
) -> AttemptId:
    """Return a fence id above all that a target has seen. An older store counts on from there: attempt ids only
    rise."""
    if position is None:
        return lease.fence_id
    newest_id = max(position.fence_id, position.publication.attempt.attempt_id)
    if newest_id < lease.fence_id:
        return lease.fence_id
    fence_id = AttemptId(newest_id + 1)
    store.recount(lease, fence_id, store_id=status.store_id)
    return fence_id


def drop_sink(store: CoordinatorStore, topology_id: str, name: str, *, owner: str) -> SinkProgress:
    """Delete what the store has of a sink, with its waiting transactions, and return what that was."""
    status = _read_status(store, topology_id)
    progress = _progress_of(store, topology_id, name)
    with _holding_lease(store, status, owner) as lease:
        store.place_sink(lease, name, None)
    return progress


def set_aside(
    topology: Topology,
    store: CoordinatorStore,
    name: str,
    txid: TxId,
    record: int | None,
    config: TopologyConfig,
    *,
    owner: str,
) -> int:
    """Move the waiting records of one transaction, or one of them, to the letters of sinks; return how many.

    Raises `ConfigError` if there are none.
    """
    status = _read_status(store, topology.id)
    _progress_of(store, topology.id, name)
    with _holding_lease(store, status, owner) as lease:
        files = PayloadFolder(outbox_folder(config, store))
        files.begin(store, lease)
        rows = store.outbox(topology.id, name, first=txid, last=txid, limit=1)
        if not rows:
            raise ConfigError(f"sink {name!r} of topology {topology.id!r} has no waiting records of transaction {txid}")
        letters, remaining = _split(files.read(rows[0]), record)
        if remaining is not None:
            attempt = rows[0].publication.attempt
            remaining = files.store_large(attempt, {name: remaining})[name]
        store.set_aside(lease, rows[0], letters, remaining)
        files.delete(rows)
    return letters.count


def _split(row: OutboxRow, record: int | None) -> tuple[SinkRecords, SinkRecords | None]:
    """Return the records that are set aside, and those that remain."""
    if record is None:
        return SinkRecords(row.payload, row.count), None
    table = decode_payload(row)
    if table.num_rows != row.count:
        raise ConfigError(
            f"transaction {row.publication.attempt.txid} of sink {row.sink!r} has its {row.count} records in "
            f"{table.num_rows} files: a single one can't be set aside; leave out --record to set all of them aside"
        )
    if not 0 <= record < row.count:
        raise ConfigError(
            f"transaction {row.publication.attempt.txid} of sink {row.sink!r} has the records 0 to {row.count - 1}, "
            f"and no record {record}"
        )
    letters = encode_payload(table.slice(record, 1), 1)
    if row.count == 1:
        return letters, None
    indices = [number for number in range(row.count) if number != record]
    return letters, encode_payload(table.take(indices), len(indices))


def _sink_of(topology: Topology, status: TopologyStatus, name: str) -> tuple[Sink, SinkOwner]:
    if name not in topology.sinks:
        names = sorted(topology.sinks)
        raise ConfigError(
            f"topology {topology.id!r} has no sink {name!r}; it has: {', '.join(names) or '(none)'}"
            f"{did_you_mean(name, names)}"
        )
    if status.store_id is None:
        raise ConfigError(f"the store has no id for topology {topology.id!r} yet: run it once")
    return topology.sinks[name], SinkOwner(topology.id, name, status.store_id)


def _progress_of(store: CoordinatorStore, topology_id: str, name: str) -> SinkProgress:
    progress = store.sinks(topology_id)
    if name not in progress:
        raise ConfigError(
            f"the store has no sink {name!r} of topology {topology_id!r}; it has: {', '.join(progress) or '(none)'}"
            f"{did_you_mean(name, progress)}"
        )
    return progress[name]


def _read_status(store: CoordinatorStore, topology_id: str) -> TopologyStatus:
    for status in store.status(topology_id):
        return status
    raise ConfigError(f"topology {topology_id!r} has never run on this store")


@contextmanager
def _holding_lease(store: CoordinatorStore, status: TopologyStatus, owner: str) -> Iterator[Lease]:
    """Hold the lease. Raises `TopologyInUse` while another process has it."""
    lease = store.acquire(status.topology_id, status.fingerprint, owner=owner, lease_ms=LEASE_MS, name=status.name)
    try:
        yield lease
    finally:
        store.release(lease)
