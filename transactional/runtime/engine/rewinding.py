"""A rewind takes a topology and its tables back to an earlier transaction, as if no later one had been committed.

First all tables and positions are checked, and every earlier coordinator is fenced off. Then the store records the
intent. Each table goes back under a new fence, in one write of its own, and finally the store takes the progress back,
in one write. If the process dies in between, the intent remains: nothing else may start, and the rewind is run again
over all tables. Nothing is changed before everything that the rewind needs has been seen to exist.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from transactional.core.ports import Spout, State
from transactional.core.ports.state_parts import RewindTarget
from transactional.core.store import CoordinatorStore, Lease, TopologyStatus
from transactional.core.store.history import EndedHow, RunAbout, RunEnd
from transactional.core.store.rules import COMMITTED, COMMITTERS, fingerprint_changes
from transactional.model.attempt import NO_TRANSACTION, AttemptId, TxId
from transactional.model.batch import EMPTY_BATCH, BatchMetadata
from transactional.model.errors import BeyondKept, ConfigError, TopologyChanged, TransactionalError
from transactional.runtime.engine.clock import SystemClock
from transactional.runtime.engine.fencing import close_tables, committed_by, fence, open_table, txid_of_attempt
from transactional.runtime.engine.history.journal import JournalWriter, RewindLine
from transactional.runtime.engine.history.run_history import installed_version
from transactional.runtime.engine.streams import stream_names
from transactional.runtime.publishing.going_back import (
    check_accepted,
    check_sinks,
    preview_sinks,
    settle_before_rewind,
)
from transactional.topology.describing import describe_topology
from transactional.topology.topology import Component, Topology

LEASE_MS = 60_000
"""Length of the lease. No step takes nearly as long: a table goes back by a change of its metadata."""


@dataclass(frozen=True, slots=True)
class RewindPlan:
    """The effects of a rewind, described for people.

    `tables` has the id of each committer with a sentence about its table, `positions` a line for each partition of the
    source that will be read again, `sinks` a line for each sink whose target stays ahead; `is_sent_again` is True if
    what it has is published once more. `is_begun`: an earlier rewind has not finished.
    """

    topology_id: str
    committed: TxId
    target: TxId
    tables: tuple[tuple[str, str], ...]
    positions: tuple[str, ...]
    is_begun: bool = False
    sinks: tuple[str, ...] = ()
    is_sent_again: bool = False

    def lines(self) -> Iterator[str]:
        """Yield the description, one line for each part."""
        unfinished = ", which was begun" if self.is_begun else ""
        yield f"topology {self.topology_id!r}: from transaction {self.committed} back to {self.target}{unfinished}"
        for component, effect in self.tables:
            yield f"  {component}: {effect}"
        for line in (*self.positions, *self.sinks):
            yield f"  {line}"


def plan_rewind(topology: Topology, store: CoordinatorStore, txid: TxId) -> RewindPlan:
    """Check that everything a rewind needs exists, and describe its effects. Changes nothing.

    A rewind that was begun may be finished at another transaction, because its own target may have been deleted.

    Raises `ConfigError` for a transaction or a state that can't go back, `TopologyChanged` if the tables are not the
    stored ones, `BeyondKept`, `OperatingError`.
    """
    status = _read_status(topology, store)
    if topology.spout.parts.messages.is_acked:
        raise ConfigError(
            f"spout {topology.spout_id!r} is a queue that hands a message out once, so nothing can be read again: "
            f"topology {topology.id!r} can't be taken back"
        )
    if not 0 <= txid <= status.committed_txid:
        raise ConfigError(
            f"topology {topology.id!r} can't go to transaction {txid}: the committed ones are 0 (the beginning) to "
            f"{status.committed_txid}"
        )
    check_tables(topology, status)
    check_sinks(topology, status)
    names = stream_names(topology, store)
    target_batch = names.with_current_names(committed_batch(store, topology.id, txid), txid)
    try:
        tables = tuple(
            (
                component.id,
                state.parts.rewind.preview_rewind(
                    topology.id, component.id, rewind_target(store, topology.id, component.id, txid)
                ),
            )
            for component, state in rewindable_committers(topology, store)
        )
    except BeyondKept as error:
        if status.rewinding_to is None:
            raise
        raise BeyondKept(
            f"{error}. The rewind to {status.rewinding_to} was begun: finish it with a --to-txid that each table can "
            f"go to, at the latest {status.committed_txid}, where it began; if there is none, start over with "
            f"`transactional reset {topology.id}` and empty tables"
        ) from None
    current_batch = names.with_current_names(
        committed_batch(store, topology.id, status.committed_txid), status.committed_txid
    )
    positions = describe_rereading(topology.spout, current_batch, target_batch)
    is_begun = status.rewinding_to is not None
    effects = preview_sinks(topology, store, status, txid)
    lines, is_sent_again = tuple(effect.line for effect in effects), any(effect.is_sent_again for effect in effects)
    return RewindPlan(
        topology.id, status.committed_txid, txid, tables, tuple(positions), is_begun, lines, is_sent_again
    )


def rewind(
    topology: Topology,
    store: CoordinatorStore,
    txid: TxId,
    *,
    owner: str,
    journal: JournalWriter | None = None,
    accepts_sent: bool = False,
) -> RewindPlan:
    """Take a topology back to a transaction, or finish a rewind that was begun.

    With `accepts_sent` sinks may publish again what their targets have. The errors of `plan_rewind` are raised before
    anything is changed. `journal` is the journal of the runs; each fence is written to it before any table has the
    fence.
    Raises `TopologyInUse` while another process holds the lease, `Fenced` if one has taken it meanwhile.
    """
    plan = plan_rewind(topology, store, txid)
    check_accepted(topology.id, is_sent_again=plan.is_sent_again, accepts_sent=accepts_sent)
    lease = _acquire(topology, store, owner)
    end = RunEnd(EndedHow.REWOUND, reason=f"from transaction {plan.committed} back to {txid}")
    try:
        _journal_fence(journal, store, lease, txid, goes_back=False)
        for component, _ in rewindable_committers(topology, store):
            opened = open_table(topology, component, store, lease.store_id, goes_back_to=txid)
            if not plan.is_begun:
                # Earlier leaders can neither write nor delete from here on.
                fence(opened, component.id, store, lease, goes_back_to=txid)
        settle_before_rewind(topology, store, lease, _store_id(topology, lease), lambda: _renew(store, lease))
        plan = replace(plan_rewind(topology, store, txid), is_begun=plan.is_begun)
        check_accepted(topology.id, is_sent_again=plan.is_sent_again, accepts_sent=accepts_sent)
        _renew(store, lease)
        rewind_lease = replace(lease, fence_id=store.begin_rewind(lease, txid))
        _journal_fence(journal, store, rewind_lease, txid, goes_back=True)
        for component, state in rewindable_committers(topology, store):
            _renew(store, lease)
            _take_back(component, state, store, rewind_lease, txid)
        for sink in topology.sinks.values():
            _renew(store, lease)
            sink.go_back(txid, rewind_lease.fence_id)
        store.finish_rewind(lease, txid)
    except TransactionalError as error:
        end = RunEnd(EndedHow.FAILED, error.code, str(error))
        raise
    finally:
        close_tables(topology)
        for sink in topology.sinks.values():
            sink.close()
        store.release(lease, end=end)
    return plan


# --- checks before the rewind -----------------------------------------------------------------------------------------


def check_tables(topology: Topology, status: TopologyStatus) -> None:
    """Raise `TopologyChanged` unless the topology has every table that the store knows: a missing one would not be
    taken back."""
    stored = status.fingerprint.get("committers", {})
    declared = topology.committers_fingerprint()
    for name, identity in sorted(stored.items()):
        if name not in declared or fingerprint_changes({COMMITTERS: {name: identity}}, {COMMITTERS: declared}):
            stored_table = ", ".join(f"{key}={value}" for key, value in sorted(identity.items()))
            raise TopologyChanged(
                f"committer {name!r} of topology {topology.id!r} has the table {stored_table}, and the topology that "
                "was passed has another one, or none: it would not go back with the others. Pass the topology as it ran"
            )


def rewindable_committers(topology: Topology, store: CoordinatorStore) -> list[tuple[Component, State]]:
    """Return the committers whose tables the topology has used, with their states. Raises `ConfigError` if one of them
    can't go back."""
    committers = list[tuple[Component, State]]()
    for component in topology.committers:
        state = component.state
        assert state is not None
        if not store.has_fence(topology.id, component.id):
            continue
        if reason := state.parts.rewind.rewind_obstacle:
            raise ConfigError(
                f"committer {component.id!r} of topology {topology.id!r} can't be taken back: a "
                f"{type(state).__name__} {reason}. Start it "
                "over with another id, or with empty tables after `transactional reset`"
            )
        committers.append((component, state))
    return committers


def rewind_target(store: CoordinatorStore, topology_id: str, component_id: str, txid: TxId) -> RewindTarget:
    """Return the version of a committer's table that belongs to a transaction."""
    attempt = committed_by(store, topology_id, txid)
    return RewindTarget(txid, attempt, lambda attempt_id: txid_of_attempt(store, topology_id, component_id, attempt_id))


def committed_batch(store: CoordinatorStore, topology_id: str, txid: TxId) -> BatchMetadata:
    """Return the batch of a committed transaction, or the empty batch for 0. Raises `BeyondKept` if the store has
    deleted it."""
    if txid == NO_TRANSACTION:
        return EMPTY_BATCH
    for record in store.attempts_at(topology_id, txid):
        if record.phase == COMMITTED:
            return record.batch
    raise BeyondKept(
        f"the store no longer knows the batch of transaction {txid} of topology {topology_id!r}, which says where to "
        "read on: it keeps as much as keep_attempts_days and keep_attempts_max say"
    )


def describe_rereading(spout: Spout, current: BatchMetadata, target: BatchMetadata) -> list[str]:
    """Describe which records will be read again, a line for each partition, and which the source has deleted.

    Raises `BeyondKept` if a transactional spout would have to skip records, and the errors of `compare_with_source`.
    """
    lines, deleted = compare_with_source(spout, current, target)
    if deleted and spout.replays_exactly:
        raise BeyondKept(f"a transactional spout may not skip records, and {'; '.join(deleted)}")
    return [*lines, *(f"{line}: the opaque spout continues with what is there" for line in deleted)]


def compare_with_source(spout: Spout, current: BatchMetadata, target: BatchMetadata) -> tuple[list[str], list[str]]:
    """Describe which records will be read again, and which of them the source has deleted, a line for each partition.

    `current` is the batch of the last committed transaction, `target` that of the transaction to go back to. Deleted
    records are only known if the spout can be examined. Raises `ConfigError` if it can't read its source again,
    `OperatingError` if the source does not respond.
    """
    held_ranges = (
        spout.parts.examination.read_held_ranges((target.ranges or current.ranges).keys()) if current.ranges else {}
    )
    lines, deleted = list[str](), list[str]()
    for partition, end_offset in sorted(current.positions().items()):
        offset, held = target.positions().get(partition), held_ranges.get(partition)
        if offset == end_offset:
            continue
        start = "from where it begins" if offset is None else f"from offset {offset}"
        lines.append(f"{partition}: read again {start}; it had been read up to {end_offset}")
        if offset is not None and partition in held_ranges and (held is None or held.start > offset):
            extent = "all of it" if held is None else f"what is before offset {held.start}"
            deleted.append(f"{partition}: the source no longer holds {extent}, and offset {offset} would come next")
    return lines, deleted


def _read_status(topology: Topology, store: CoordinatorStore) -> TopologyStatus:
    for status in store.status(topology.id):
        return status
    raise ConfigError(f"topology {topology.id!r} has never run on this store")


# --- writes of the rewind ---------------------------------------------------------------------------------------------


def _acquire(topology: Topology, store: CoordinatorStore, owner: str) -> Lease:
    status = _read_status(topology, store)
    about = RunAbout(installed_version(), describe_topology(topology))
    return store.acquire(
        *(topology.id, status.fingerprint),
        owner=owner,
        lease_ms=LEASE_MS,
        name=status.name,
        about=about,
        to_rewind=True,
    )


def _renew(store: CoordinatorStore, lease: Lease) -> None:
    store.renew(lease, lease_ms=LEASE_MS)


def _store_id(topology: Topology, lease: Lease) -> str:
    """Return the id of the store. One that was repaired has that of its tables, which are open."""
    ids = [
        lease.store_id,
        *(component.state.parts.store_record.created_for() for component in topology.committers if component.state),
    ]
    store_id = next((store_id for store_id in ids if store_id is not None), None)
    if store_id is None:
        raise ConfigError(f"the store has no id for topology {topology.id!r}, nor have its tables: run it once")
    return store_id


def _journal_fence(
    journal: JournalWriter | None, store: CoordinatorStore, lease: Lease, txid: TxId, *, goes_back: bool
) -> None:
    if journal is None:
        return
    attempt_id = committed_by(store, lease.topology_id, txid) or AttemptId(0)
    batch = committed_batch(store, lease.topology_id, txid)
    journal.write_rewind(SystemClock().wall_ms(), RewindLine(lease.fence_id, txid, attempt_id, batch, goes_back))


def _take_back(component: Component, state: State, store: CoordinatorStore, lease: Lease, txid: TxId) -> None:
    """Take one table back. The store records the fence before the table has it."""
    store.record_fence(lease, component.id, txid)
    state.parts.rewind.rewind(rewind_target(store, lease.topology_id, component.id, txid), lease.fence_id)
