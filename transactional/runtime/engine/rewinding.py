"""A rewind: a topology and its tables are taken back to an earlier transaction, as if it had never gone further.

First everything is looked at, and every earlier coordinator is fenced off. Then the store notes the intent, each table
goes back under a new fence, in one write of its own, and the store takes the progress back, in one write. Whoever dies
in between leaves the intent: nothing else may start, and the same rewind goes through the tables again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from transactional.core.ports import Spout, State
from transactional.core.ports.rewinding import RewindTarget
from transactional.core.store import CoordinatorStore, Lease, TopologyStatus
from transactional.core.store.history import EndedHow, RunAbout, RunEnd
from transactional.core.store.rules import COMMITTED, COMMITTERS, fingerprint_changes
from transactional.model.attempt import NO_TRANSACTION, AttemptId, TxId
from transactional.model.batch import EMPTY_BATCH, BatchMetadata
from transactional.model.errors import BeyondKept, ConfigError, TopologyChanged, TransactionalError
from transactional.runtime.engine.clock import SystemClock
from transactional.runtime.engine.fencing import close_tables, committed_by, fence, known_txid, open_table
from transactional.runtime.engine.history.journal import JournalWriter, TakenBack
from transactional.runtime.engine.history.run_history import installed_version
from transactional.runtime.engine.streams import stream_names
from transactional.topology.describing import described
from transactional.topology.topology import Component, Topology

LEASE_MS = 60_000
"""No step takes nearly as long: a table goes back by a change of its metadata."""


@dataclass(frozen=True, slots=True)
class RewindPlan:
    """What a rewind would do, in words: `tables` for each committer, `positions` for each partition of the source."""

    topology_id: str
    committed: TxId
    target: TxId
    tables: tuple[tuple[str, str], ...]
    positions: tuple[str, ...]
    is_begun: bool = False

    def lines(self) -> Iterator[str]:
        """In words, a line for each part."""
        going_on = ", which was begun" if self.is_begun else ""
        yield f"topology {self.topology_id!r}: from transaction {self.committed} back to {self.target}{going_on}"
        for component, words in self.tables:
            yield f"  {component}: {words}"
        for words in self.positions:
            yield f"  {words}"


def plan_rewind(topology: Topology, store: CoordinatorStore, txid: TxId) -> RewindPlan:
    """See whether everything that a rewind takes is there. Changes nothing.

    One that was begun may end at another transaction: what its own takes may be gone by now.

    Raises `ConfigError` for a transaction or a state that can't be gone back to, `TopologyChanged` for a topology with
    other tables than the stored one, `BeyondKept`, `OperatingError`.
    """
    status = _status(topology, store)
    if topology.spout.is_acked:
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
    names = stream_names(topology, store)
    after = names.with_current_names(batch_at(store, topology.id, txid), txid)
    try:
        tables = tuple(
            (
                component.id,
                state.preview_rewind(topology.id, component.id, target_of(store, topology.id, component.id, txid)),
            )
            for component, state in rewindable(topology, store)
        )
    except BeyondKept as error:
        if status.rewinding_to is None:
            raise
        raise BeyondKept(
            f"{error}. The rewind to {status.rewinding_to} was begun: finish it with a --to-txid that each table can "
            f"go to, at the latest {status.committed_txid}, where it began; if there is none, start over with "
            f"`transactional reset {topology.id}` and empty tables"
        ) from None
    before = names.with_current_names(batch_at(store, topology.id, status.committed_txid), status.committed_txid)
    positions = read_again(topology.spout, before, after)
    is_begun = status.rewinding_to is not None
    return RewindPlan(topology.id, status.committed_txid, txid, tables, tuple(positions), is_begun)


def rewind(
    topology: Topology, store: CoordinatorStore, txid: TxId, *, owner: str, journal: JournalWriter | None = None
) -> RewindPlan:
    """Take a topology back, or finish what was begun; what `plan_rewind` raises is raised before anything is touched.

    The journal, that of the runs, has each fence before any table has it.
    Raises `TopologyInUse` while another process holds the lease, `Fenced` if one has taken it meanwhile.
    """
    plan = plan_rewind(topology, store, txid)
    lease = _acquire(topology, store, owner)
    end = RunEnd(EndedHow.REWOUND, reason=f"from transaction {plan.committed} back to {txid}")
    try:
        _write_down(journal, store, lease, txid, goes_back=False)
        for component, _ in rewindable(topology, store):
            opened = open_table(topology, component, store, lease.store_id, goes_back_to=txid)
            if not plan.is_begun:
                # Whoever led before can neither write nor delete from here on.
                fence(opened, component.id, store, lease, goes_back_to=txid)
        plan = replace(plan_rewind(topology, store, txid), is_begun=plan.is_begun)
        store.renew(lease, lease_ms=LEASE_MS)
        above = replace(lease, fence_id=store.begin_rewind(lease, txid))
        _write_down(journal, store, above, txid, goes_back=True)
        for component, state in rewindable(topology, store):
            store.renew(lease, lease_ms=LEASE_MS)
            _take_back(component, state, store, above, txid)
        store.finish_rewind(lease, txid)
    except TransactionalError as error:
        end = RunEnd(EndedHow.FAILED, error.code, str(error))
        raise
    finally:
        close_tables(topology)
        store.release(lease, end=end)
    return plan


# --- what is looked at ------------------------------------------------------------------------------------------------


def check_tables(topology: Topology, status: TopologyStatus) -> None:
    """Raise `TopologyChanged` unless every table that the store knows is the topology's: else one would stay ahead."""
    stored = status.fingerprint.get("committers", {})
    given = topology.committers_fingerprint()
    for name, identity in sorted(stored.items()):
        if name not in given or fingerprint_changes({COMMITTERS: {name: identity}}, {COMMITTERS: given}):
            known = ", ".join(f"{key}={value}" for key, value in sorted(identity.items()))
            raise TopologyChanged(
                f"committer {name!r} of topology {topology.id!r} has the table {known}, and the one that was given has "
                "another, or none: it would not go back with the others. Pass the topology as it ran"
            )


def rewindable(topology: Topology, store: CoordinatorStore) -> list[tuple[Component, State]]:
    """The committers whose tables have been part of the topology. Raises `ConfigError` for one that can't go back."""
    found = list[tuple[Component, State]]()
    for component in topology.committers:
        state = component.state
        assert state is not None
        if not store.has_fence(topology.id, component.id):
            continue
        if why := state.rewind_obstacle:
            raise ConfigError(
                f"committer {component.id!r} of topology {topology.id!r} can't be taken back: {why}. Start it "
                "over with another id, or with empty tables after `transactional reset`"
            )
        found.append((component, state))
    return found


def target_of(store: CoordinatorStore, topology_id: str, component_id: str, txid: TxId) -> RewindTarget:
    """What the table of a committer is taken back to."""
    by = committed_by(store, topology_id, txid)
    return RewindTarget(txid, by, lambda attempt_id: known_txid(store, topology_id, component_id, attempt_id))


def batch_at(store: CoordinatorStore, topology_id: str, txid: TxId) -> BatchMetadata:
    """The batch that was committed by a transaction, the empty one for 0. Raises `BeyondKept`."""
    if txid == NO_TRANSACTION:
        return EMPTY_BATCH
    for record in store.attempts_at(topology_id, txid):
        if record.phase == COMMITTED:
            return record.batch
    raise BeyondKept(
        f"the store no longer knows the batch of transaction {txid} of topology {topology_id!r}, which says where to "
        "read on: it keeps as much as keep_attempts_days and keep_attempts_max say"
    )


def read_again(spout: Spout, before: BatchMetadata, after: BatchMetadata) -> list[str]:
    """What will be read again, by partition, and what of it the source no longer holds, if its spout can be examined.

    Raises `BeyondKept` if a transactional spout would have to skip something, `ConfigError` if it can't read its source
    again, `OperatingError` if the source does not respond.
    """
    held = spout.read_held_ranges((after.ranges or before.ranges).keys()) if before.ranges else {}
    words, lost = list[str](), list[str]()
    for partition, until in sorted(before.positions().items()):
        then, there = after.positions().get(partition), held.get(partition)
        if then == until:
            continue
        again = "from where it begins" if then is None else f"from offset {then}"
        words.append(f"{partition}: read again {again}; it had been read up to {until}")
        if then is not None and partition in held and (there is None or there.start > then):
            gone = "all of it" if there is None else f"what is before offset {there.start}"
            lost.append(f"{partition}: the source no longer holds {gone}, and offset {then} would come next")
    if lost and spout.replays_exactly:
        raise BeyondKept(f"a transactional spout may not skip records, and {'; '.join(lost)}")
    return [*words, *(f"{line}: the opaque spout continues with what is there" for line in lost)]


def _status(topology: Topology, store: CoordinatorStore) -> TopologyStatus:
    for status in store.status(topology.id):
        return status
    raise ConfigError(f"topology {topology.id!r} has never run on this store")


# --- what is done -----------------------------------------------------------------------------------------------------


def _acquire(topology: Topology, store: CoordinatorStore, owner: str) -> Lease:
    status = _status(topology, store)
    about = RunAbout(installed_version(), described(topology))
    return store.acquire(
        *(topology.id, status.fingerprint),
        owner=owner,
        lease_ms=LEASE_MS,
        name=status.name,
        about=about,
        to_rewind=True,
    )


def _write_down(
    journal: JournalWriter | None, store: CoordinatorStore, lease: Lease, txid: TxId, *, goes_back: bool
) -> None:
    if journal is None:
        return
    by, batch = committed_by(store, lease.topology_id, txid), batch_at(store, lease.topology_id, txid)
    taken = TakenBack(lease.fence_id, txid, AttemptId(0) if by is None else by, batch, goes_back)
    journal.take_back(SystemClock().wall_ms(), taken)


def _take_back(component: Component, state: State, store: CoordinatorStore, lease: Lease, txid: TxId) -> None:
    """The store must know the fence before the table has it."""
    store.record_fence(lease, component.id, txid)
    state.rewind(target_of(store, lease.topology_id, component.id, txid), lease.fence_id)
