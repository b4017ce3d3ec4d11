"""`SqlCoordinatorStore`: the coordinator's store in SQLite (one host) or PostgreSQL (several).

Every write is one short database transaction whose first statement is a compare-and-set on the topology's row: it
changes that row only if the lease is the current one, and so also locks it against every other writer. If it changes
nothing, the same transaction finds out why: either the same write has happened before, or it is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final
from uuid import uuid4

from sqlalchemy import Connection, Delete, Row, Update

from transactional.core.store import AttemptRecord, DesiredState, Lease, StalledLease
from transactional.core.store.databases.quick import change
from transactional.core.store.history import EndedHow, Keep, MinuteRecord, RunAbout, RunEnd
from transactional.core.store.outbox import Boundary, OutboxRow, Publication, SinkRecords
from transactional.core.store.progress import Phase, Progress
from transactional.core.store.rules import (
    can_not_recount,
    can_not_rewind,
    check_free,
    check_free_to_reset,
    check_not_rewinding,
    check_same_attempt,
    check_same_commit,
    desired_at_start,
    failure_text,
    fenced,
    fingerprint_json,
    given_up_text,
    is_held,
    keeps_recorded,
    not_in_flight,
)
from transactional.core.store.sink_rules import boundary_at_reset, check_nothing_unsent, new_rows
from transactional.core.store.sql import history, rewinding
from transactional.core.store.sql import outbox as outboxes
from transactional.core.store.sql import statements as sql
from transactional.core.store.sql.reader import SqlStoreReader
from transactional.core.store.sql.rows import columns_of, read_columns_of, readable, status_of, whole
from transactional.core.store.sql.schema import StoreDatabase
from transactional.model.attempt import NO_TRANSACTION, AttemptId, Epoch, TransactionAttempt, TxId
from transactional.model.batch import EMPTY_BATCH, BatchMetadata
from transactional.model.errors import CorruptRecord

_LAST_TXID: Final = 2**63 - 1


class SqlCoordinatorStore(SqlStoreReader):
    """The coordinator's store in a database. `url` is `sqlite:///path` or `postgresql://user:password@host/database`.

    Tables are created on first use. No wait for the database, its locks or its responses takes longer than
    `timeout_ms`, nor than half a lease; then the call raises `StoreUnavailable` and may be repeated as it is: a write
    that has happened is not made twice. May be used from several threads. Two processes must never use the same
    `owner`.

    With SQLite a process that is suspended (not killed) in the middle of a write prevents all others from taking over
    until it resumes or is killed; nothing goes wrong meanwhile. PostgreSQL ends such a write before the lease ends.
    Raises `ConfigError` for an unusable URL.
    """

    def __init__(self, url: str = "sqlite:///transactional.db", *, timeout_ms: int = 3_000) -> None:
        self._database = StoreDatabase(url, timeout_ms=timeout_ms)

    @staticmethod
    def for_reading(url: str) -> SqlStoreReader:
        """The store as `transactional.operations.loading.open_for_reading` opens it."""
        return SqlStoreReader(url)

    # --- leases -------------------------------------------------------------------------------------------------

    def acquire(
        self,
        topology_id: str,
        fingerprint: Mapping[str, object],
        *,
        owner: str,
        lease_ms: int,
        accept_changes: bool = False,
        name: str | None = None,
        about: RunAbout | None = None,
        to_rewind: bool = False,
        stalled: StalledLease | None = None,
    ) -> Lease:
        """Take the lease and draw a fence id, in one write; delete batches of another source from which no table can
        have been written."""
        given = json.loads(fingerprint_json(fingerprint))
        self._database.limit_timeout(lease_ms)
        with self._database.writing() as connection:
            self._create_topology(connection, topology_id)
            row = connection.execute(sql.STATUS_TO_TAKE, {"topology": topology_id}).one()
            status = status_of(row)
            check_free(status, owner, row.now_ms, stalled)
            if not to_rewind:
                check_not_rewinding(status)
            recorded = self._recorded(connection, topology_id).values()
            is_kept = keeps_recorded(status, given, recorded, accept_changes=accept_changes)
            _end_runs(connection, topology_id, RunEnd(EndedHow.LOST))
            if not is_kept:
                forgotten = {"topology": topology_id, "number": 0, "last_number": _LAST_TXID}
                connection.execute(sql.FORGET_TRANSACTIONS, forgotten)
            desired = desired_at_start(status, row.now_ms)
            new_lease = {
                "epoch_before": status.epoch,
                "lease_ms": lease_ms,
                "new_owner": owner,
                "new_name": name,
                "new_desired": desired.state.value,
                "new_stop_at_ms": status.stop_at_ms if desired.stop_in_ms else None,
            }
            connection.execute(sql.TAKE, {"topology": topology_id, **new_lease})
            fence_id = AttemptId(status.attempt_id + 1)
            progress = self._progress(connection, row, fence_id)
            epoch = Epoch(status.epoch + 1)
            lease = Lease(topology_id, epoch, owner, progress, fence_id, desired, row.store_id)
            history.begin_run(connection, lease, name, about or RunAbout())
            return lease

    def record_start(self, lease: Lease, fingerprint: Mapping[str, object], *, store_id: str | None = None) -> None:
        """Store the fingerprint of a run that has started successfully, and the `store_id` if there is none yet."""
        with self._database.writing() as connection:
            _hold(connection, lease, sql.START, new_fingerprint=fingerprint_json(fingerprint), new_store_id=store_id)

    def renew(self, lease: Lease, *, lease_ms: int) -> None:
        """Extend the lease to `lease_ms` from now, by the database's clock."""
        self._database.limit_timeout(lease_ms)
        with self._database.writing() as connection:
            _hold(connection, lease, sql.RENEW, lease_ms=lease_ms)

    def release(self, lease: Lease, *, is_done: bool = False, end: RunEnd | None = None) -> None:
        """Release the lease, and store why the run ends; does nothing if it is no longer the current one."""
        with self._database.writing() as connection:
            if _compare_and_set(connection, lease, sql.RELEASE_DONE if is_done else sql.RELEASE):
                _end_runs(connection, lease.topology_id, end or RunEnd(EndedHow.STOPPED))

    def desire(self, topology_id: str, state: DesiredState, *, wait_ms: int = 0) -> bool:
        """Set a topology's desired state; False if the topology is not known."""
        parameters: dict[str, Any] = {"topology": topology_id, "state": state.value}
        with self._database.writing() as connection:
            if state is DesiredState.KILLED:
                return connection.execute(sql.DESIRE_IN_TIME, {**parameters, "wait_ms": wait_ms}).rowcount == 1
            return connection.execute(sql.DESIRE_FOR_GOOD, parameters).rowcount == 1

    # --- transactions -------------------------------------------------------------------------------------------

    def record_attempt(self, lease: Lease, record: AttemptRecord, *, forget_later: bool, alone: bool = False) -> None:
        """Store a new attempt as the current one of its txid; give up those in flight at this and, unless it comes
        `alone`, at later txids."""
        attempt = record.attempt
        key = {"topology": lease.topology_id, "number": attempt.txid}
        with self._database.writing() as connection:
            if not _compare_and_set(connection, lease, sql.COUNT, id=attempt.attempt_id, number=attempt.txid):
                status = status_of(_held_topology(connection, lease))
                attempt_key = {"topology": lease.topology_id, "id": attempt.attempt_id}
                recorded_txid = connection.execute(sql.TXID_OF_ATTEMPT, attempt_key).scalar()
                return check_same_attempt(lease, attempt, status, recorded_txid)
            last = _LAST_TXID if forget_later else attempt.txid
            change(connection, sql.GIVE_UP, {**key, "why": None, "last_number": attempt.txid if alone else _LAST_TXID})
            change(connection, sql.FORGET_TRANSACTIONS, {**key, "last_number": last})
            change(connection, sql.ADD_ATTEMPT, columns_of(lease.topology_id, record))
            added = {"topology_id": lease.topology_id, "txid": attempt.txid, "attempt_id": attempt.attempt_id}
            change(connection, sql.ADD_TRANSACTION, added)
            return None

    def record_processed(self, lease: Lease, attempt: TransactionAttempt, batch: BatchMetadata, *, at_ms: int) -> None:
        """Store the batch with its digests, the number of records and when the processing phase ended."""
        with self._database.writing() as connection:
            _hold(connection, lease)
            if not _changed(connection, sql.SET_PROCESSED, lease, attempt, **read_columns_of(batch, at_ms)):
                raise not_in_flight(lease, attempt)

    def record_commit(
        self,
        lease: Lease,
        attempt: TransactionAttempt,
        batch: BatchMetadata,
        *,
        processed_at_ms: int,
        started_at_ms: int,
        at_ms: int,
        details: Mapping[str, object] | None = None,
        minute: MinuteRecord | None = None,
        keep: Keep | None = None,
        outbox: Mapping[str, SinkRecords] = MappingProxyType({}),
    ) -> None:
        """Move the committed txid by one, to `attempt.txid`; `batch`, with its digests, becomes the committed one."""
        values = {
            **read_columns_of(batch, processed_at_ms),
            "started_at_ms": started_at_ms,
            "at_ms": at_ms,
            "new_details": None if details is None else json.dumps(dict(details)),
        }
        key = {"id": attempt.attempt_id, "number": attempt.txid}
        with self._database.writing() as connection:
            if not _compare_and_set(connection, lease, sql.ADVANCE, **key):
                row = _held_topology(connection, lease)
                return check_same_commit(attempt, status_of(row), row.committed_attempt_id)
            if not _changed(connection, sql.SET_COMMITTED, lease, attempt, **values):
                raise not_in_flight(lease, attempt)
            _changed(connection, sql.TAKE_AWAY, lease, attempt)
            outboxes.add_rows(connection, lease, new_rows(lease, attempt, outbox))
            if minute is not None:
                history.insert_minute(connection, lease, minute)
            if keep is not None:
                history.trim(connection, lease.topology_id, attempt.attempt_id, keep)
            return None

    def settle_sink(self, lease: Lease, sink: str, published: Publication) -> None:
        """Note the newest publication of a sink, and delete its outbox rows up to that transaction."""
        with self._database.writing() as connection:
            _hold(connection, lease)
            outboxes.settle(connection, lease, sink, published)

    def place_sink(self, lease: Lease, sink: str, boundary: Boundary | None) -> None:
        """Set how far a sink is, and delete its outbox rows up to there."""
        with self._database.writing() as connection:
            _hold(connection, lease)
            outboxes.place(connection, lease, sink, boundary)

    def set_aside(self, lease: Lease, row: OutboxRow, letters: SinkRecords, remaining: SinkRecords | None) -> None:
        """Move records of an outbox row to the letters of sinks, and leave the remaining ones."""
        with self._database.writing() as connection:
            _hold(connection, lease)
            outboxes.set_aside(connection, lease, row, letters, remaining)

    def record_failure(
        self, lease: Lease, attempt: TransactionAttempt, phase: Phase, reason: str, *, at_ms: int, alone: bool = False
    ) -> None:
        """Store in which phase and why an attempt failed; give up later attempts in flight, unless it fails
        `alone`."""
        values: dict[str, int | str] = {"reason": failure_text(phase, reason), "at_ms": at_ms}
        with self._database.writing() as connection:
            _hold(connection, lease, sql.FAIL, number=attempt.txid, **values)
            if _changed(connection, sql.SET_FAILED, lease, attempt, **values) and not alone:
                later = {"topology": lease.topology_id, "number": attempt.txid + 1, "last_number": _LAST_TXID}
                connection.execute(sql.GIVE_UP, {**later, "why": None})

    def record_recovery(self, lease: Lease) -> None:
        """Store that a problem was resolved without a transaction commit."""
        with self._database.writing() as connection:
            _hold(connection, lease, sql.RECOVER)

    def record_fence(self, lease: Lease, component_id: str, txid: TxId) -> None:
        """Record that the component's table is at `txid` when its version is `lease.fence_id`."""
        fence = {"topology_id": lease.topology_id, "component_id": component_id, "attempt_id": lease.fence_id}
        key = {"topology": lease.topology_id, "component": component_id, "id": lease.fence_id}
        with self._database.writing() as connection:
            _hold(connection, lease)
            connection.execute(sql.REMOVE_FENCE, key)
            connection.execute(sql.ADD_FENCE, {**fence, "txid": txid})

    def begin_rewind(self, lease: Lease, txid: TxId) -> AttemptId:
        """Record that the topology is being taken back to a committed transaction."""
        with self._database.writing() as connection:
            if not _compare_and_set(connection, lease, rewinding.BEGIN, number=txid):
                raise can_not_rewind(status_of(_held_topology(connection, lease)), txid)
            return status_of(_held_topology(connection, lease)).attempt_id

    def finish_rewind(self, lease: Lease, txid: TxId) -> None:
        """Make the transaction the committed one again."""
        with self._database.writing() as connection:
            if not _compare_and_set(connection, lease, rewinding.FINISH, number=txid):
                status = status_of(_held_topology(connection, lease))
                if (status.rewinding_to, status.committed_txid) == (None, txid):
                    return
                raise can_not_rewind(status, txid)
            later = {"topology": lease.topology_id, "number": txid + 1}
            all_later = {**later, "last_number": _LAST_TXID}
            connection.execute(sql.GIVE_UP, {**all_later, "why": None})
            connection.execute(sql.FORGET_TRANSACTIONS, all_later)
            connection.execute(rewinding.MARK, later)
            connection.execute(rewinding.DROP_LATER_SAVEPOINTS, later)
            outboxes.go_back(connection, lease.topology_id, txid)

    def recount(self, lease: Lease, attempt_id: AttemptId, *, store_id: str | None = None) -> None:
        """Let the attempt counter continue from here, and forget the attempts and fences after it."""
        with self._database.writing() as connection:
            if not _compare_and_set(connection, lease, sql.RECOUNT, id=attempt_id, new_store_id=store_id):
                raise can_not_recount(status_of(_held_topology(connection, lease)), attempt_id)
            for forget in sql.FORGET_AFTER:
                connection.execute(forget, {"topology": lease.topology_id, "id": attempt_id})

    def note_savepoint(self, topology_id: str, name: str, txid: TxId) -> bool:
        """Keep what going back to a committed transaction takes of the store."""
        key = {"topology": topology_id, "named": name, "number": txid}
        row = {"topology_id": topology_id, "name": name, "txid": txid}
        with self._database.writing() as connection:
            if connection.execute(rewinding.IS_COMMITTED, key).scalar() is None:
                return False
            connection.execute(rewinding.DROP_SAVEPOINT, key)
            connection.execute(rewinding.ADD_SAVEPOINT, row)
            return True

    def drop_savepoint(self, topology_id: str, name: str) -> bool:
        """Drop a savepoint, and what is kept for it."""
        with self._database.writing() as connection:
            return connection.execute(rewinding.DROP_SAVEPOINT, {"topology": topology_id, "named": name}).rowcount == 1

    def forget_before(self, lease: Lease, *, at_ms: int) -> int:
        """Delete committed attempts older than `at_ms` except the newest, and what only they needed."""
        with self._database.writing() as connection:
            _hold(connection, lease)
            topology = {"topology": lease.topology_id}
            dropped = connection.execute(sql.DROP_COMMITTED, {**topology, "at_ms": at_ms}).rowcount
            connection.execute(sql.DROP_TRIES, topology)
            connection.execute(sql.DROP_FENCES, topology)
            return dropped

    def reset(self, topology_id: str, *, drop_unsent: bool = False) -> bool:
        """Delete all progress of a topology, but not its epoch and its attempt counter."""
        key = {"topology": topology_id}
        with self._database.writing() as connection:
            row = connection.execute(sql.STATUS_TO_TAKE, key).one_or_none()
            if row is None:
                return False
            check_free_to_reset(status_of(row), row.now_ms)
            sinks = outboxes.read_progress(connection, topology_id, TxId(row.committed_txid))
            if not drop_unsent:
                check_nothing_unsent(topology_id, sinks)
            for forget in (*history.FORGET_ALL, history.START_ANEW):
                connection.execute(forget, key)
            for name, progress in sinks.items():
                outboxes.note(connection, topology_id, name, boundary_at_reset(AttemptId(row.attempt_id), progress))
            return True

    # --- details ------------------------------------------------------------------------------------------------

    def _create_topology(self, connection: Connection, topology_id: str) -> None:
        """Add the topology's row, unless it exists or another process is just adding it."""
        create = sql.CREATE_IN_SQLITE if self._database.is_sqlite else sql.CREATE_IN_POSTGRESQL
        new = {"epoch": 0, "attempt_id": 0, "committed_txid": NO_TRANSACTION, "fingerprint": "{}"}
        connection.execute(create, {"topology_id": topology_id, "store_id": uuid4().hex, **new})

    def _progress(self, connection: Connection, topology: Row[Any], fence_id: AttemptId) -> Progress:
        return Progress(
            TxId(topology.committed_txid),
            self._committed_batch(connection, topology),
            self._recorded(connection, topology.topology_id),
            fence_id,
        )

    @staticmethod
    def _recorded(connection: Connection, topology_id: str) -> dict[TxId, BatchMetadata]:
        batches = dict[TxId, BatchMetadata]()
        for row in connection.execute(sql.RECORDED, {"topology": topology_id}):
            with readable(f"the batch of transaction {row.txid} of topology {topology_id!r} in transactional_attempts"):
                batches[TxId(whole(row.txid))] = BatchMetadata.from_json(row.batch)
        return batches

    def _committed_batch(self, connection: Connection, topology: Row[Any]) -> BatchMetadata:
        if topology.committed_txid == NO_TRANSACTION:
            return EMPTY_BATCH
        key = {"topology": topology.topology_id, "id": topology.committed_attempt_id}
        batch = connection.execute(sql.BATCH, key).scalar()
        if batch is None:
            raise CorruptRecord(
                f"the store {self._database} lacks the batch of transaction {topology.committed_txid} of topology "
                f"{topology.topology_id!r}, which is committed; restore the store from a backup"
            )
        with readable(f"the row of attempt {topology.committed_attempt_id} in transactional_attempts"):
            return BatchMetadata.from_json(batch)


def _end_runs(connection: Connection, topology_id: str, end: RunEnd) -> None:
    """End every run that has not ended, and give up what is in flight."""
    history.end_runs(connection, topology_id, end)
    all_transactions = {"topology": topology_id, "number": 0, "last_number": _LAST_TXID}
    connection.execute(sql.GIVE_UP, {**all_transactions, "why": given_up_text(end)})


def _compare_and_set(connection: Connection, lease: Lease, claim: Update, **values: int | str | None) -> bool:
    """Make the change to the topology's row if the lease is the current one; return whether it was made."""
    lease_key = {"topology": lease.topology_id, "lease_epoch": lease.epoch, "lease_owner": lease.owner}
    return change(connection, claim, {**lease_key, **values}) == 1


def _hold(connection: Connection, lease: Lease, claim: Update = sql.HOLD, **values: int | str | None) -> None:
    """Make a change that only the loss of the lease can prevent, like `_compare_and_set`. Raises `Fenced` then."""
    if not _compare_and_set(connection, lease, claim, **values):
        raise fenced(lease, next(map(status_of, _topology(connection, lease)), None))


def _held_topology(connection: Connection, lease: Lease) -> Row[Any]:
    """The topology's row. Raises `Fenced` if the lease is not the current one."""
    row = next(iter(_topology(connection, lease)), None)
    if row is None or not is_held(lease, status_of(row)):
        raise fenced(lease, row and status_of(row))
    return row


def _topology(connection: Connection, lease: Lease) -> Sequence[Row[Any]]:
    return connection.execute(sql.STATUS_OF_ONE, {"topology": lease.topology_id}).all()


def _changed(
    connection: Connection, statement: Update | Delete, lease: Lease, attempt: TransactionAttempt, **values: object
) -> bool:
    """Change what the store holds of one attempt; return whether there was something to change."""
    key = {"topology": lease.topology_id, "id": attempt.attempt_id, "number": attempt.txid}
    return change(connection, statement, {**key, **values}) == 1
