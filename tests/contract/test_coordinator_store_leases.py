"""What every coordinator's store keeps to: leases, fencing and fingerprints, on each kind of storage."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.contract.storages import (
    FINGERPRINT,
    LONG_MS,
    TOPOLOGY,
    WRITES,
    Storage,
    Store,
    acquire,
    batch_of,
    commit,
    content,
    in_flight,
    read,
    record_attempt,
    tried,
)
from transactional.core.store import CoordinatorStore, Lease, StalledLease
from transactional.core.store.history import RunAbout
from transactional.core.store.progress import Progress
from transactional.errors import Fenced, TopologyChanged, TopologyInUse
from transactional.model.attempt import AttemptId, Epoch, TxId
from transactional.model.batch import EMPTY_BATCH

pytestmark = pytest.mark.sampled(2)

# --- leases -----------------------------------------------------------------------------------------------------


def test_it_is_a_coordinator_store(store: Store) -> None:
    as_port: CoordinatorStore = store
    assert as_port.status() == []


def test_the_first_lease_starts_from_nothing(store: Store) -> None:
    lease = acquire(store)
    assert (lease.topology_id, lease.owner, lease.epoch, lease.fence_id) == (TOPOLOGY, "first", 1, 1)
    assert lease.progress == Progress(TxId(0), EMPTY_BATCH, {}, AttemptId(1))


def test_the_status_shows_the_lease(storage: Storage, store: Store) -> None:
    acquire(store)
    [status] = storage.open().status(TOPOLOGY)
    assert (status.topology_id, status.epoch, status.owner, status.is_leased) == (TOPOLOGY, 1, "first", True)
    assert (status.committed_txid, status.attempt_id, status.fingerprint) == (0, 1, FINGERPRINT)
    assert status.leased_until_ms is not None
    assert status.leased_until_ms > 1_600_000_000_000


def test_another_owner_is_refused_while_the_lease_holds(storage: Storage, store: Store) -> None:
    acquire(store)
    before = content(store)
    with pytest.raises(
        TopologyInUse, match=r"'carriers' is coordinated by 'first'.*epoch 1.*is valid until 20.*Z, \d+ ms.*--standby"
    ):
        acquire(storage.open(), "second")
    assert content(store) == before


def test_a_stalled_lease_is_taken_only_while_epoch_and_end_are_those_that_were_seen(
    storage: Storage, store: Store
) -> None:
    first = acquire(store, lease_ms=3_600_000, about=RunAbout(settings={"lease_ms": LONG_MS}))
    [status] = store.status(TOPOLOGY)
    assert status.leased_until_ms is not None
    assert status.lease_length_ms == LONG_MS
    seen = StalledLease(status.epoch, status.leased_until_ms)
    other = storage.open()
    for stalled in (replace(seen, epoch=Epoch(2)), replace(seen, leased_until_ms=seen.leased_until_ms - 1), None):
        with pytest.raises(TopologyInUse, match=f"only {LONG_MS} ms long.*{2 * LONG_MS} ms of its own"):
            acquire(other, "second", stalled=stalled)
    lease = acquire(other, "second", stalled=seen)
    assert (lease.epoch, lease.owner, lease.fence_id) == (2, "second", first.fence_id + 1)
    with pytest.raises(Fenced):
        store.renew(first, lease_ms=LONG_MS)
    with pytest.raises(TopologyInUse):
        acquire(store, "first", stalled=seen)


def test_a_renewed_lease_is_not_stalled(storage: Storage, store: Store) -> None:
    first = acquire(store, lease_ms=3_600_000)
    [status] = store.status(TOPOLOGY)
    assert (status.lease_length_ms, status.leased_until_ms is None) == (None, False)
    seen = StalledLease(status.epoch, status.leased_until_ms or 0)
    store.renew(first, lease_ms=2 * 3_600_000)
    with pytest.raises(TopologyInUse) as refused:
        acquire(storage.open(), "second", stalled=seen)
    assert "ahead" not in str(refused.value)


def test_a_released_lease_can_be_taken_at_once(storage: Storage, store: Store) -> None:
    store.release(acquire(store))
    [status] = store.status(TOPOLOGY)
    assert (status.owner, status.leased_until_ms, status.is_leased) == (None, None, False)
    lease = acquire(storage.open(), "second")
    assert (lease.epoch, lease.fence_id) == (2, 2)


def test_a_lease_that_has_run_out_can_be_taken(storage: Storage, store: Store) -> None:
    acquire(store, lease_ms=storage.short_ms)
    storage.wait_for_end_of_lease(TOPOLOGY)
    assert acquire(storage.open(), "second").epoch == 2


def test_a_renewed_lease_holds_from_then_on(storage: Storage, store: Store) -> None:
    lease = acquire(store, lease_ms=storage.short_ms)
    [before] = store.status(TOPOLOGY)
    store.renew(lease, lease_ms=LONG_MS)
    [after] = store.status(TOPOLOGY)
    assert (after.leased_until_ms or 0) >= (before.leased_until_ms or 0) + LONG_MS - storage.short_ms
    with pytest.raises(TopologyInUse):
        acquire(storage.open(), "second")


def test_a_lease_that_has_run_out_is_still_the_current_one(storage: Storage, store: Store) -> None:
    lease = acquire(store, lease_ms=storage.short_ms)
    storage.wait_for_end_of_lease(TOPOLOGY)
    record_attempt(store, lease, 1, 2)
    store.renew(lease, lease_ms=LONG_MS)
    assert store.status(TOPOLOGY)[0].is_leased


def test_the_same_owner_takes_a_new_lease_and_fences_its_old_one(store: Store) -> None:
    old, new = acquire(store), acquire(store)
    assert (new.epoch, new.fence_id) == (2, 2)
    with pytest.raises(Fenced):
        store.renew(old, lease_ms=LONG_MS)
    store.renew(new, lease_ms=LONG_MS)


def test_releasing_an_old_lease_changes_nothing(store: Store) -> None:
    old = acquire(store)
    acquire(store)
    before = content(store)
    store.release(old)
    assert content(store) == before


def test_topologies_do_not_know_each_other(store: Store) -> None:
    """Storm row T54."""
    first, second = acquire(store), acquire(store, "second", topology_id="airports")
    commit(store, first, 1, 2)
    assert [(each.topology_id, each.committed_txid) for each in store.status()] == [("airports", 0), ("carriers", 1)]
    assert record_attempt(store, second, 1, 2) == tried(1, 2)
    assert store.status("nowhere") == []


# --- fencing ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", WRITES)
def test_a_write_with_an_old_lease_is_refused_and_changes_nothing(storage: Storage, store: Store, write: str) -> None:
    old = in_flight(store)
    store.release(old)
    acquire(storage.open(), "second")
    before = content(store)
    with pytest.raises(Fenced, match=r"'first' \(epoch 1\).*'second' has taken over \(epoch 2, leased until 20"):
        WRITES[write](store, old)
    assert content(store) == before


@pytest.mark.parametrize("write", WRITES)
def test_a_released_lease_writes_nothing_more(store: Store, write: str) -> None:
    lease = in_flight(store)
    store.release(lease)
    before = content(store)
    with pytest.raises(Fenced, match="it has released its lease"):
        WRITES[write](store, lease)
    assert content(store) == before


def test_the_refusal_shows_when_the_successor_has_left_as_well(storage: Storage, store: Store) -> None:
    old = acquire(store)
    store.release(acquire(storage.open()))
    with pytest.raises(Fenced, match=r"had taken over and released the lease since \(epoch 2\)"):
        record_attempt(store, old, 1, 5)


@pytest.mark.parametrize("write", WRITES)
def test_a_topology_that_the_store_does_not_know_is_refused(store: Store, write: str) -> None:
    unknown = Lease("nowhere", acquire(store).epoch, "first", Progress(), AttemptId(1))
    with pytest.raises(Fenced, match="the store does not know this topology"):
        WRITES[write](store, unknown)
    assert len(store.status()) == 1


# --- fingerprints -----------------------------------------------------------------------------------------------

OTHER: dict[str, Any] = {
    "spout": {"kind": "kafka", "topics": ["departures"]},
    "committers": {"total": {"table": "tables/total"}},
}


def committed_once(store: Store, **options: Any) -> None:
    """A run that has committed transaction 1, and has ended."""
    lease = acquire(store, **options)
    commit(store, lease, 1, lease.fence_id + 1)
    store.release(lease)


def test_a_changed_topology_is_refused_with_what_differs(storage: Storage, store: Store) -> None:
    committed_once(store)
    before = content(store)
    told = (
        r"holds: spout.topics: stored \[\"flights\"\], given \[\"departures\"\]\. Give it another id.*--accept-changes"
    )
    with pytest.raises(TopologyChanged, match=told):
        acquire(storage.open(), fingerprint=OTHER)
    assert content(store) == before


def test_an_accepted_change_takes_the_place_of_what_was_stored(storage: Storage, store: Store) -> None:
    committed_once(store)
    store.release(acquire(storage.open(), fingerprint=OTHER, accept_changes=True))
    assert store.status(TOPOLOGY)[0].fingerprint == OTHER
    assert acquire(store, fingerprint=OTHER).epoch == 3


def test_a_start_that_does_not_go_through_changes_no_fingerprint(storage: Storage, store: Store) -> None:
    """Of a refused table, say: what was stored before still fits, and what was accepted has to be accepted again."""
    committed_once(store)
    refused = store.acquire(TOPOLOGY, OTHER, owner="first", lease_ms=LONG_MS, accept_changes=True)
    store.release(refused)
    assert storage.open().status(TOPOLOGY)[0].fingerprint == FINGERPRINT
    with pytest.raises(TopologyChanged):
        acquire(store, fingerprint=OTHER)
    assert acquire(store).epoch == 3


def test_before_the_first_transaction_commit_a_topology_may_change(storage: Storage, store: Store) -> None:
    """A typo in a path, or in a topic, does not lock the topology."""
    record_attempt(store, acquire(store), 1, 2)
    moved = {**FINGERPRINT, "committers": {"total": {"table": "tabels/total"}}}
    lease = acquire(storage.open(), fingerprint=moved)
    assert lease.progress.recorded == {1: batch_of(0)}  # the same source: the batch is of use
    lease = acquire(storage.open(), fingerprint=OTHER)
    assert lease.progress.recorded == {}
    record_attempt(store, lease, 1, lease.fence_id + 1, start=70)
    assert acquire(storage.open(), fingerprint=OTHER).progress.recorded == {1: batch_of(70)}


def test_a_batch_that_a_replay_is_held_against_stays_with_its_source(storage: Storage, store: Store) -> None:
    """A transactional state may have been written from it, and skips its replay: no other batch may take its place."""
    lease = acquire(store)
    attempt = record_attempt(store, lease, 1, 2)
    store.record_processed(lease, attempt, read(batch_of(0)), at_ms=1_002)
    with pytest.raises(TopologyChanged, match=r"spout\.topics"):
        acquire(storage.open(), fingerprint=OTHER)
    moved = {**FINGERPRINT, "committers": {"total": {"table": "tabels/total"}}}
    assert acquire(storage.open(), fingerprint=moved).progress.recorded == {1: read(batch_of(0))}


def test_a_committer_may_join_but_not_leave(storage: Storage, store: Store) -> None:
    committed_once(store)
    joined = {**FINGERPRINT, "committers": {**FINGERPRINT["committers"], "hourly": {"table": "tables/hourly"}}}
    store.release(acquire(store, fingerprint=joined))
    assert storage.open().status(TOPOLOGY)[0].fingerprint == joined
    with pytest.raises(TopologyChanged, match=r'committers.hourly.table: stored "tables/hourly", given nothing'):
        acquire(store)
