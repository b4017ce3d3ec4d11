"""Settling: what a leader does with each sink before it publishes anything, at a take-over and after a lost connection.

The order is that of the design, and each step needs the one before. First `look`: a target that another store publishes
to is refused while nobody is fenced. The lease is renewed, so that a process that was suspended does not fence the
present leader. Then every sink is opened, which fences earlier publishers. Then the lease is renewed once more: if it
is another leader's by now, that one has fenced or will fence this one. Only now the positions are final, and they are
compared with the store. Nothing is ever published again because a position is missing or behind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from transactional.core.ports import Sink, SinkOwner, SinkPosition
from transactional.core.store import CoordinatorStore, Lease
from transactional.core.store.outbox import OutboxRow, SinkProgress
from transactional.core.store.rules import fingerprint_changes
from transactional.model.errors import ConfigError, StoreMismatch
from transactional.model.names import SINKS


def settle_sinks(
    sinks: Mapping[str, Sink], store: CoordinatorStore, lease: Lease, store_id: str, renew: Callable[[], None]
) -> None:
    """Open the sinks, and bring the outbox to where their targets are.

    `renew` raises `Fenced` if the lease is no longer this leader's. Raises `StoreMismatch` if a target and the store do
    not belong together, and `SinkUnavailable`.
    """
    try:
        _settle(sinks, store, lease, store_id, renew)
    except StoreMismatch:
        renew()  # raises `Fenced` if another leader has published meanwhile: then that is why
        raise


def _settle(
    sinks: Mapping[str, Sink], store: CoordinatorStore, lease: Lease, store_id: str, renew: Callable[[], None]
) -> None:
    owners = {name: SinkOwner(lease.topology_id, name, store_id, lease.fence_id) for name in sinks}
    progress = store.sinks(lease.topology_id)
    for name, sink in sinks.items():
        Settlement(store, owners[name], progress.get(name)).check(sink.look(owners[name]), is_final=False)
    renew()  # a process that has been suspended would fence the present leader
    for name, sink in sinks.items():
        sink.open(owners[name], has_published=name in progress and progress[name].published is not None)
    renew()
    progress = store.sinks(lease.topology_id)
    for name, sink in sinks.items():
        settlement = Settlement(store, owners[name], progress.get(name))
        row = settlement.check(sink.position(), is_final=True)
        if row is not None:
            store.settle_sink(lease, name, row.publication)


class Settlement:
    """The comparison of one sink's target with the store."""

    def __init__(self, store: CoordinatorStore, owner: SinkOwner, progress: SinkProgress | None) -> None:
        self._store, self._owner = store, owner
        self._newest = None if progress is None else progress.published

    def check(self, position: SinkPosition | None, *, is_final: bool) -> OutboxRow | None:
        """Return the outbox row that the target has published and the store has not settled; None if there is none.

        A position that is not final may lack the newest publications. Raises `StoreMismatch`.
        """
        newest = self._newest
        if position is None:
            if newest is not None and is_final:
                raise self._mismatch(
                    f"has nothing of it, and the store has transaction {newest.attempt.txid} published"
                )
            return None
        if position.store_id != self._owner.store_id:
            raise self._mismatch(f"belongs to the store with the id {position.store_id}")
        published = position.publication
        if published == newest:
            return None
        txid = published.attempt.txid
        if newest is not None and txid < newest.attempt.txid:
            if not is_final:
                return None
            raise self._mismatch(
                f"ends with transaction {txid}, and the store has transaction {newest.attempt.txid} published: the "
                "target has lost records"
            )
        rows = self._store.outbox(self._owner.topology_id, self._owner.sink, first=txid, last=txid, limit=1)
        if not rows or rows[0].publication != published:
            raise self._mismatch(
                f"ends with transaction {txid} of attempt {published.attempt.attempt_id} and run {published.run!r}, "
                "which this store has not committed: it is an older backup, or a copy"
            )
        return rows[0]

    def _mismatch(self, problem: str) -> StoreMismatch:
        owner = self._owner
        return StoreMismatch(
            f"sink {owner.sink!r} of topology {owner.topology_id!r}: its target {problem}; the store's id is "
            f"{owner.store_id}. Nothing was published; restore the store that belongs to the target, or give the "
            "topology another id"
        )


def check_waiting_sinks(fingerprint: Mapping[str, Any], store: CoordinatorStore, lease: Lease) -> None:
    """Raise `ConfigError` if a sink with waiting transactions has left the topology, or has another target.

    Called before the new fingerprint is stored.
    """
    progress = store.sinks(lease.topology_id)
    waiting = {name: sink_progress for name, sink_progress in progress.items() if sink_progress.waiting}
    [status] = store.status(lease.topology_id)
    stored, declared = status.fingerprint.get(SINKS, {}), fingerprint.get(SINKS, {})
    for name, sink_progress in waiting.items():
        if name not in declared:
            problem = "is no longer part of the topology"
        elif name in stored and (changes := fingerprint_changes({name: stored[name]}, {name: declared[name]})):
            problem = f"has changed ({'; '.join(changes)})"
        else:
            continue
        raise ConfigError(
            f"sink {name!r} {problem}, and has {sink_progress.unsent_summary}: "
            "run the topology as it was until they are sent"
        )
