"""Fences earlier coordinators off the tables: before anything is planned, each table gets the lease's fence id.

A table's version is the id of the attempt or fence that wrote it last. First every table is opened and its version is
compared with the store; a table that is ahead, behind or of another store is refused. Then each version is raised to
the fence id, which the store has recorded before. Afterwards writes of earlier coordinators fail, because their ids are
lower.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from uuid import uuid4

from transactional.core.machine.agreement import (
    Disagreement,
    compare_store_ids,
    compare_with_store,
    explain_torn,
    refusal_text,
    removal_hint,
)
from transactional.core.ports import State, TornFiles
from transactional.core.ports.examining import Problem
from transactional.core.store import CoordinatorStore, Lease, StoreReader
from transactional.core.store.rules import COMMITTED, REWOUND
from transactional.model.attempt import NO_TRANSACTION, AttemptId, TxId
from transactional.model.errors import StoreMismatch, TableConflict
from transactional.model.names import joining_of, owner_of
from transactional.topology.topology import Component, Topology

FENCE_TRIES = 10

SideBySide = Callable[[Sequence[Callable[[], None]]], None]
"""Runs all functions, in any order. Once none runs any more, it raises the error of the first in the given order."""


def one_by_one(functions: Sequence[Callable[[], None]]) -> None:
    """Run the functions one after the other."""
    for function in functions:
        function()


def fence_tables(
    topology: Topology,
    store: CoordinatorStore,
    lease: Lease,
    *,
    durability: str = "disk",
    side_by_side: SideBySide = one_by_one,
) -> str:
    """Open every committer's table and raise its version to the lease's fence id: earlier coordinators are fenced off.

    `side_by_side` may work on all tables at once. No table is fenced before all of them have been compared with the
    store. Raises `StoreMismatch` if a table is at another transaction than the store expects, or was created for
    another store. Returns the `store_id` that the tables have, or will get.
    """
    txids, created_for = dict[str, TxId](), dict[str, str | None]()

    def compare(component: Component) -> None:
        state = open_table(topology, component, store, lease.store_id, durability=durability)
        has_joined = store.has_fence(topology.id, component.id)
        txids[component.id] = _table_txid(component.id, state, store, lease, has_joined=has_joined)
        created_for[component.id] = state.parts.store_record.created_for()

    def raise_version(component: Component) -> None:
        assert component.state is not None
        fence(component.state, component.id, store, lease, txids[component.id])

    comparisons = [partial(compare, component) for component in topology.committers]
    if lease.progress.committed_txid == NO_TRANSACTION and comparisons:
        # If two new stores start at once, the one that creates the first table creates the others, too.
        comparisons.pop(0)()
    side_by_side(comparisons)
    store_id = lease.store_id or _only_store(created_for) or uuid4().hex
    side_by_side([partial(raise_version, component) for component in topology.committers])
    return store_id


def _only_store(created_for: Mapping[str, str | None]) -> str | None:
    """Return the id of the store that the tables were created for. Raises `StoreMismatch` if there are several."""
    component_of = {
        store_id: component_id for component_id, store_id in sorted(created_for.items()) if store_id is not None
    }
    if len(component_of) > 1:
        (first_id, first), (second_id, second), *_ = component_of.items()
        raise StoreMismatch(
            f"committers {first!r} and {second!r}: their tables were created for two stores, with the ids {first_id} "
            f"and {second_id}: give each store tables of its own"
        )
    return next(iter(component_of), None)


def open_table(
    topology: Topology,
    component: Component,
    store: CoordinatorStore,
    store_id: str | None,
    *,
    durability: str = "disk",
    goes_back_to: TxId | None = None,
) -> State:
    """Open a committer's table, after files that a power failure has torn are set aside. A new table records
    `store_id`.

    Raises `StoreMismatch` if the store has committed the transactions in torn files, unless a rewind takes the table
    back to an earlier transaction. During a rewind the table is opened with the torn files if its log can be read:
    whether their rows are needed shows only at its target.
    """
    state = component.state
    assert state is not None
    state.parts.durability.set_durability(durability)
    owner = owner_of(topology.id, component.id)

    def check(torn: TornFiles) -> None:
        position = store.position(topology.id)
        committed = NO_TRANSACTION if position is None else position.committed_txid
        wrong = find_disagreement_without(torn, store, topology.id, component.id, committed)
        if wrong is not None and not _may_lack(wrong, torn.version, store, topology.id, component.id, goes_back_to):
            raise _mismatch(component.id, state, store, wrong)

    with suppress(*([] if goes_back_to is None else [StoreMismatch])):
        state.parts.durability.set_aside_torn(owner, check)
    state.parts.store_record.set_store_id(store_id)
    state.open(owner, txid_lookup(store, topology.id, component.id))
    return state


def _may_lack(
    wrong: Disagreement,
    version: AttemptId | None,
    store: StoreReader,
    topology_id: str,
    component_id: str,
    goes_back_to: TxId | None,
) -> bool:
    """Whether a table of this version lacks only transactions that a rewind takes back."""
    if goes_back_to is None or version is None or wrong.problem is not Problem.TABLE_BEHIND:
        return False
    txid = txid_of_attempt(store, topology_id, component_id, version)
    return txid is not None and txid >= goes_back_to


def close_tables(topology: Topology) -> None:
    """Close the tables of all committers, whether or not they were opened."""
    for component in topology.committers:
        assert component.state is not None
        component.state.close()


def fence(
    state: State,
    component_id: str,
    store: CoordinatorStore,
    lease: Lease,
    txid: TxId | None = None,
    *,
    goes_back_to: TxId | None = None,
) -> None:
    """Raise the version of one open table to the fence id.

    `txid` is the transaction that the table is at, if it is known already. With `goes_back_to` the table may lack the
    transactions after that one. The store records the fence before the table has it. A new committer has joined only
    when its table has the fence, too: until then its fences are recorded as those of a joining committer, so that a run
    that dies in between can be started again.
    """
    has_joined = store.has_fence(lease.topology_id, component_id)
    for tries in range(1, FENCE_TRIES + 1):
        if txid is None:
            txid = _table_txid(component_id, state, store, lease, has_joined=has_joined, goes_back_to=goes_back_to)
        store.record_fence(lease, component_id if has_joined else joining_of(component_id), txid)
        if goes_back_to is None:
            state.parts.durability.check_files()
        try:
            state.fence(lease.fence_id)
        except TableConflict:
            if tries == FENCE_TRIES:
                raise
            txid = None  # another writer has changed the table
            continue
        if not has_joined:
            store.record_fence(lease, component_id, txid)
        return


def _table_txid(
    component_id: str,
    state: State,
    store: CoordinatorStore,
    lease: Lease,
    *,
    has_joined: bool,
    goes_back_to: TxId | None = None,
) -> TxId:
    """Return the transaction that a table is at. Raises `StoreMismatch` if the store expects another one."""
    committed, version = lease.progress.committed_txid, state.version()
    txid = None if version is None else txid_of_attempt(store, lease.topology_id, component_id, version)
    wrong = find_disagreement(store, lease.topology_id, component_id, version, committed, has_joined=has_joined)
    if wrong is not None and not _may_lack(wrong, version, store, lease.topology_id, component_id, goes_back_to):
        raise _mismatch(component_id, state, store, wrong)
    wrong = compare_store_ids(state.parts.store_record.created_for(), version, lease.store_id, store)
    if wrong is not None:
        raise _mismatch(component_id, state, store, wrong)
    return committed if txid is None else txid


def _mismatch(component_id: str, state: State, store: StoreReader, wrong: Disagreement) -> StoreMismatch:
    where = f"its table ({' '.join(f'{name}={value}' for name, value in state.identity().items())})"
    experiment = removal_hint(store.storage_path, [state.parts.examination.storage_path])
    return StoreMismatch(refusal_text(component_id, where, wrong.what, wrong.remedy, experiment))


def find_disagreement(
    store: StoreReader,
    topology_id: str,
    component_id: str,
    version: AttemptId | None,
    committed: TxId,
    *,
    has_joined: bool,
    after: TxId | None = None,
) -> Disagreement | None:
    """Compare the version of a committer's table with the store; None if a run may continue from it.

    `after` is the transaction that the table was at with a later version. Only a rewind takes a table back from a
    transaction that is not committed to a committed one.
    """
    txid = None if version is None else txid_of_attempt(store, topology_id, component_id, version)
    is_back = txid is not None and after is not None and after <= committed < txid
    return compare_with_store(
        *(version, txid, committed),
        has_joined=has_joined,
        committed_by=committed_by(store, topology_id, committed),
        is_rewound=is_back or (txid is not None and is_rewound(store, topology_id, txid, version)),
    )


def find_disagreement_without(
    torn: TornFiles, store: StoreReader, topology_id: str, component_id: str, committed: TxId
) -> Disagreement | None:
    """Compare the version that a table has without its torn files with the store; None if they may be set aside.

    They may not if the store has committed the transactions that would be lost. A store that does not know the version
    knows of no commit either, so they may be set aside then.
    """
    lost_version, has_joined = torn.lost, store.has_fence(topology_id, component_id)
    wrong = find_disagreement(
        *(store, topology_id, component_id, torn.version, committed),
        has_joined=has_joined,
        after=None if lost_version is None else txid_of_attempt(store, topology_id, component_id, lost_version),
    )
    return None if wrong is None or wrong.problem is Problem.STORE_WIPED else explain_torn(torn.what, wrong)


def committed_by(store: StoreReader, topology_id: str, committed: TxId) -> AttemptId | None:
    """Return the attempt that has committed a transaction, or None if the store no longer has its attempts."""
    records = store.attempts_at(topology_id, committed)
    return next((record.attempt.attempt_id for record in records if record.phase == COMMITTED), None)


def is_rewound(store: StoreReader, topology_id: str, txid: TxId, attempt_id: AttemptId | None) -> bool:
    """Whether a rewind has taken an attempt back. The rewind did not know a table that is still at this attempt."""
    records = store.attempts_at(topology_id, txid)
    return any(record.attempt.attempt_id == attempt_id and record.phase == REWOUND for record in records)


def txid_of_attempt(store: StoreReader, topology_id: str, component_id: str, attempt_id: AttemptId) -> TxId | None:
    """Return the transaction of the attempt that has written a committer's table, or None if the store does not know
    it."""
    txid = store.txid_of(topology_id, component_id, attempt_id)
    return txid if txid is not None else store.txid_of(topology_id, joining_of(component_id), attempt_id)


def txid_lookup(store: StoreReader, topology_id: str, component_id: str) -> Callable[[AttemptId], TxId]:
    """Return a function that maps the version of a committer's table to its txid. It raises `StoreMismatch` for a
    version that the store does not know."""

    def txid_of(attempt_id: AttemptId) -> TxId:
        txid = txid_of_attempt(store, topology_id, component_id, attempt_id)
        if txid is None:
            raise StoreMismatch(
                f"committer {component_id!r}: the store does not know attempt {attempt_id}, which its table holds"
            )
        return txid

    return txid_of
