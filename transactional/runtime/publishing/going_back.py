"""The effects of a rewind on sinks: published records stay in their targets or are taken out, or are sent again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from transactional.core.ports import SinkOwner
from transactional.core.store import CoordinatorStore, Lease, TopologyStatus
from transactional.core.store.outbox import Boundary, Publication, SinkProgress
from transactional.core.store.rules import COMMITTED
from transactional.core.store.sink_rules import records_in, sink_changes
from transactional.model.attempt import NO_TRANSACTION, TxId
from transactional.model.errors import ConfigError, TopologyChanged
from transactional.model.names import SINKS
from transactional.runtime.publishing.settling import Settlement, settle_sinks
from transactional.topology.topology import Topology


@dataclass(frozen=True, slots=True)
class SinkEffect:
    """The effect of a rewind on one sink, in words. `is_sent_again`: its records are published once more."""

    line: str
    is_sent_again: bool = False


def check_sinks(topology: Topology, status: TopologyStatus) -> None:
    """Prepare the sinks, and raise `TopologyChanged` unless the topology has every sink that the store knows, with the
    same target."""
    for sink in topology.sinks.values():
        sink.prepare()
    declared = topology.sinks_fingerprint()
    for name, stored in status.fingerprint.get(SINKS, {}).items():
        if name not in declared or sink_changes(name, stored, declared[name]):
            raise TopologyChanged(
                f"sink {name!r} of topology {topology.id!r} has the target {stored}, and the topology that was passed "
                "has another one, or none: its publications would not be known. Pass the topology as it ran"
            )


def preview_sinks(topology: Topology, store: CoordinatorStore, status: TopologyStatus, txid: TxId) -> list[SinkEffect]:
    """Describe what a rewind means for each sink. Positions of targets are read unless the topology is running.

    Raises `StoreMismatch` if a target does not belong to the store, `TableUnfit` if its records can't be taken out,
    `SinkUnavailable`, `ConfigError`.
    """
    progress = store.sinks(topology.id)
    return [
        effect
        for name in sorted({*progress, *topology.sinks})
        for effect in _effects(topology, store, status, name, progress.get(name), txid)
    ]


def settle_before_rewind(
    topology: Topology, store: CoordinatorStore, lease: Lease, store_id: str, renew: Callable[[], None]
) -> None:
    """Settle all sinks as a leader does, which fences every earlier publisher. A target may be ahead of the store."""
    if topology.sinks:
        settle_sinks(topology.sinks, store, lease, store_id, renew, accepts_ahead=True)


def _effects(
    topology: Topology,
    store: CoordinatorStore,
    status: TopologyStatus,
    name: str,
    progress: SinkProgress | None,
    txid: TxId,
) -> Iterator[SinkEffect]:
    sink = topology.sinks.get(name)
    last_txid = NO_TRANSACTION if progress is None else progress.settled_txid
    if sink is not None and not status.is_leased and status.store_id is not None:
        owner = SinkOwner(topology.id, name, status.store_id)
        settlement = Settlement(store, owner, progress, accepts_ahead=True)
        position = sink.look(owner)
        newest = settlement.check(position, is_final=False)
        if isinstance(newest, Boundary) and position is not None:
            ahead = position.publication.attempt.txid
            if sink.can_go_back:
                sink.check_go_back()
            effect = "is taken out" if sink.can_go_back else "stays, and what is computed again is sent again"
            yield SinkEffect(
                f"{name}: {sink.target_name} ends with transaction {ahead}, which the store has not committed; what it "
                f"has of transactions {txid + 1} to {ahead} {effect}",
                is_sent_again=not sink.can_go_back,
            )
            return
        if isinstance(newest, Publication):
            last_txid = newest.attempt.txid
    if last_txid > txid:
        count = _count_records(store, topology.id, name, txid, last_txid)
        records = f"{count:,} records" if count is not None else "records"
        subject = f"{records} of transactions {txid + 1} to {last_txid}"
        if sink is None:
            yield SinkEffect(f"{name}: {subject} stay in the target of this sink, which has left the topology")
        elif sink.can_go_back:
            sink.check_go_back()
            yield SinkEffect(f"{name}: {subject} are taken out of {sink.target_name}")
        else:
            yield SinkEffect(
                f"{name}: {subject} are in {sink.target_name}; what is computed again is sent again (header attempt)",
                is_sent_again=True,
            )
    if progress is not None and progress.waiting and status.committed_txid > txid:
        if sink is None or sink.has_position:
            yield SinkEffect(f"{name}: what waits of transactions after {txid} is not sent")
        else:
            yield SinkEffect(
                f"{name}: {progress.unsent_summary}; {sink.target_name} may have some of them, as it has no position; "
                f"what is computed again after transaction {txid} is sent under other keys",
                is_sent_again=True,
            )


def _count_records(store: CoordinatorStore, topology_id: str, sink: str, target: TxId, last: TxId) -> int | None:
    """Return how many records a sink had in transactions of the store, or None if it no longer knows one of them."""
    [status] = store.status(topology_id)
    newest_first = store.times(topology_id, limit=max(0, status.committed_txid - target), phases=(COMMITTED,))
    attempts = [attempt for attempt in newest_first if target < attempt.attempt.txid <= last]
    if len(attempts) < last - target:
        return None
    return sum(records_in(attempt.details).get(sink, 0) for attempt in attempts)


def check_accepted(topology_id: str, *, is_sent_again: bool, accepts_sent: bool) -> None:
    """Raise `ConfigError` if records would be published again and nobody has accepted that."""
    if is_sent_again and not accepts_sent:
        raise ConfigError(
            f"topology {topology_id!r}: sinks have published what the rewind takes back, and what is computed again is "
            "sent again; pass --accept-sent if readers can stand that. Nothing was changed"
        )
