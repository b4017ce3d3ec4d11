"""Settling: what a leader does with each sink before it publishes anything, at a take-over and after a lost connection.

The order is that of the design, and each step needs the one before. First `look`: a target that another store publishes
to is refused while nobody is fenced. The lease is renewed, so that a process that was suspended does not fence the
present leader. Then every sink is opened, which fences earlier publishers. Then the lease is renewed once more: if it
is another leader's by now, that one has fenced or will fence this one. Only now the positions are final, and they are
compared with the store. Nothing is ever published again because a position is missing or behind. A rewind settles in
the same way before it begins, and accepts a target that is ahead of the store.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from transactional.core.ports import Sink, SinkOwner, SinkPosition
from transactional.core.store import CoordinatorStore, Lease
from transactional.core.store.outbox import Boundary, Publication, SinkProgress
from transactional.core.store.sink_rules import sink_changes
from transactional.model.attempt import NO_TRANSACTION, TransactionAttempt, TxId
from transactional.model.errors import ConfigError, StoreMismatch
from transactional.model.names import SINKS
from transactional.runtime.publishing.payload_files import PayloadFolder
from transactional.runtime.publishing.payloads import decode_payload

_RUNS_MAX = 100_000

_log = logging.getLogger(__name__)


def settle_sinks(
    sinks: Mapping[str, Sink],
    store: CoordinatorStore,
    lease: Lease,
    store_id: str,
    renew: Callable[[], None],
    *,
    accepts_ahead: bool = False,
) -> None:
    """Open the sinks, and bring the outbox to where their targets are.

    `renew` raises `Fenced` if the lease is no longer this leader's. With `accepts_ahead` the publications of a target
    that the store has not committed count as sent, and get a boundary. Raises `StoreMismatch` if a target and the store
    do not belong together, and `SinkUnavailable`.
    """
    try:
        _settle(sinks, store, lease, store_id, renew, accepts_ahead=accepts_ahead)
    except StoreMismatch:
        renew()  # raises `Fenced` if another leader has published meanwhile: then that is why
        raise


def _settle(
    sinks: Mapping[str, Sink],
    store: CoordinatorStore,
    lease: Lease,
    store_id: str,
    renew: Callable[[], None],
    *,
    accepts_ahead: bool,
) -> None:
    owners = {name: SinkOwner(lease.topology_id, name, store_id, lease.fence_id) for name in sinks}
    progress = store.sinks(lease.topology_id)
    for name, sink in sinks.items():
        settlement = Settlement(store, owners[name], progress.get(name), accepts_ahead=accepts_ahead)
        settlement.check(sink.look(owners[name]), is_final=False)
    renew()  # a process that has been suspended would fence the present leader
    for name, sink in sinks.items():
        sink.open(owners[name], has_published=name in progress and progress[name].published is not None)
    renew()
    progress = store.sinks(lease.topology_id)
    for name, sink in sinks.items():
        if not sink.has_position:
            continue  # the outbox counts: its rows are published, once more if need be
        settlement = Settlement(store, owners[name], progress.get(name), accepts_ahead=accepts_ahead)
        newest = settlement.check(sink.position(), is_final=True)
        if isinstance(newest, Boundary):
            [status] = store.status(lease.topology_id)
            if status.attempt_id < newest.attempt_id:
                # A target takes attempts that are older than its newest for published.
                store.recount(lease, newest.attempt_id, store_id=store_id)
            store.place_sink(lease, name, newest)
        elif newest is not None:
            store.settle_sink(lease, name, newest)


class Settlement:
    """The comparison of one sink's target with the store."""

    def __init__(
        self,
        store: CoordinatorStore,
        owner: SinkOwner,
        progress: SinkProgress | None,
        *,
        accepts_ahead: bool = False,
    ) -> None:
        self._store, self._owner, self._accepts_ahead = store, owner, accepts_ahead
        self._newest = None if progress is None else progress.published
        self._boundary = None if progress is None else progress.boundary

    def check(self, position: SinkPosition | None, *, is_final: bool) -> Publication | Boundary | None:
        """Return what the store has to note: a publication of the outbox that the target has, or a boundary.

        None: nothing. A position that is not final may lack the newest publications. Raises `StoreMismatch`.
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
        if self._has_row(published):
            return published
        attempt = published.attempt
        voided = 0 if self._boundary is None else self._boundary.attempt_id
        if voided == attempt.attempt_id:
            return None
        if not self._knows_run(published):
            raise self._ahead(attempt, f"of run {published.run!r}, which this store does not know")
        if attempt.attempt_id < voided:
            return None
        # Attempt ids only rise. Transactions come again after a rewind, so the older one may have the higher txid.
        if newest is not None and attempt.attempt_id < newest.attempt.attempt_id:
            if is_final:
                raise self._records_lost(attempt, newest.attempt)
            return None
        committed = self._committed_txid()
        if self._accepts_ahead:
            return Boundary(committed, attempt.attempt_id)
        raise self._ahead(attempt, f"which this store, at transaction {committed}, has not committed")

    def _committed_txid(self) -> TxId:
        position = self._store.position(self._owner.topology_id)
        return NO_TRANSACTION if position is None else position.committed_txid

    def _has_row(self, published: Publication) -> bool:
        txid, owner = published.attempt.txid, self._owner
        rows = self._store.outbox(owner.topology_id, owner.sink, first=txid, last=txid, limit=1)
        return any(row.publication == published for row in rows)

    def _knows_run(self, published: Publication) -> bool:
        """Return whether a run of this store has made a publication. Runs that are no longer stored are believed."""
        owner, _, epoch = published.run.rpartition("#")
        runs = self._store.runs(self._owner.topology_id, limit=_RUNS_MAX)
        if not epoch.isdigit() or int(epoch) > max((run.epoch for run in runs), default=0):
            return False
        return all(run.owner == owner for run in runs if run.epoch == int(epoch))

    def _records_lost(self, position: TransactionAttempt, published: TransactionAttempt) -> StoreMismatch:
        first_txid = min(position.txid + 1, published.txid)
        return self._mismatch(
            f"ends with transaction {position.txid} of attempt {position.attempt_id}, and the store has transaction "
            f"{published.txid} of attempt {published.attempt_id} published: the target has lost records of "
            f"transactions {first_txid} to {published.txid}, which are not sent again by themselves, because one "
            "partition may have lost its end and others not"
        )

    def _ahead(self, attempt: TransactionAttempt, reason: str) -> StoreMismatch:
        return self._mismatch(
            f"ends with transaction {attempt.txid} of attempt {attempt.attempt_id} {reason}: the store is an older "
            f"backup, or a copy. If no other store is used, `transactional sinks accept MODULE:TOPOLOGY "
            f"{self._owner.sink} --at N` continues after transaction N"
        )

    def _mismatch(self, problem: str) -> StoreMismatch:
        owner = self._owner
        return StoreMismatch(
            f"sink {owner.sink!r} of topology {owner.topology_id!r}: its target {problem}; the store's id is "
            f"{owner.store_id}. Nothing was published; restore the store that belongs to the target, or give the "
            "topology another id"
        )


def fence_removed_sinks(
    sinks: Mapping[str, Sink], fingerprint: Mapping[str, Any], store: CoordinatorStore, lease: Lease
) -> None:
    """Fence the publishers of sinks that have left the topology: a process that was suspended may still have one.

    Called before the new fingerprint is stored, so that a start which dies here is repeated. Raises `SinkUnavailable`.
    """
    if lease.store_id is None:
        return
    [status] = store.status(lease.topology_id)
    for name, identity in status.fingerprint.get(SINKS, {}).items():
        owner = SinkOwner(lease.topology_id, name, lease.store_id, lease.fence_id)
        if name in fingerprint.get(SINKS, {}) or any(sink.fence_removed(owner, identity) for sink in sinks.values()):
            continue
        _log.warning(
            "sink %r has left the topology, and no other sink reaches its target: make sure that no earlier process of "
            "the topology is still running, for it could publish there",
            name,
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
        elif name in stored and (changes := sink_changes(name, stored[name], declared[name])):
            problem = f"has changed ({'; '.join(changes)})"
        else:
            continue
        raise ConfigError(
            f"sink {name!r} {problem}, and has {sink_progress.unsent_summary}: "
            "run the topology as it was until they are sent, or give them up with "
            f"`transactional sinks drop {lease.topology_id} {name} --accept-loss`"
        )


def check_staged_files(
    sinks: Mapping[str, Sink], store: CoordinatorStore, lease: Lease, store_id: str, files: PayloadFolder
) -> None:
    """Raise `ConfigError` if a sink's target lacks what tasks have staged for waiting transactions.

    A table that was moved has these files, and another one does not. Called before a target is opened, which may create
    it. What a target holds already may have been rewritten there, and is not looked for.
    """
    staging_sinks = {name: sink for name, sink in sinks.items() if sink.stages_in_tasks}
    progress = store.sinks(lease.topology_id) if staging_sinks else {}
    for name, sink in staging_sinks.items():
        if name not in progress or not progress[name].waiting:
            continue
        position = sink.look(SinkOwner(lease.topology_id, name, store_id, lease.fence_id))
        last_txid, limit = lease.progress.committed_txid, progress[name].waiting
        rows = store.outbox(lease.topology_id, name, last=last_txid, limit=limit)
        publications = [row.publication for row in rows]
        if position is not None and position.publication in publications:
            rows = rows[publications.index(position.publication) + 1 :]
        for row in rows:
            if problem := sink.find_missing(decode_payload(files.read(row))):
                raise ConfigError(
                    f"sink {name!r}: transaction {row.publication.attempt.txid} is committed and unsent, and "
                    f"{sink.target_name} lacks a file of it: {problem}; {progress[name].unsent_summary}: run the "
                    "topology with the target that it had, restore the file from a backup, or give them up with "
                    f"`transactional sinks drop {lease.topology_id} {name} --accept-loss`"
                )
