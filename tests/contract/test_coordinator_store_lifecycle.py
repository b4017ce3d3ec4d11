"""What every coordinator's store keeps to: what people wish of a topology, and what its runs are called."""

from __future__ import annotations

import pytest

from tests.contract.storages import (
    LONG_MS,
    TOPOLOGY,
    Storage,
    Store,
    acquire,
    commit,
    content,
    in_flight,
    record_attempt,
    wait_until,
)
from transactional.core.store import Desired, DesiredState
from transactional.errors import Fenced, TopologyInUse

pytestmark = pytest.mark.sampled(2)

STATES = list(DesiredState)
ONCE = (DesiredState.DRAINING, DesiredState.KILLED)
"""Carried out by a run, and then over."""


def test_a_new_topology_is_active(store: Store) -> None:
    assert acquire(store).desired == Desired(DesiredState.ACTIVE)
    assert store.desired(TOPOLOGY) == Desired(DesiredState.ACTIVE)
    [status] = store.status(TOPOLOGY)
    assert (status.desired, status.stop_at_ms, status.name) == (DesiredState.ACTIVE, None, None)


@pytest.mark.parametrize("state", STATES)
def test_anybody_may_say_what_is_desired(storage: Storage, store: Store, state: DesiredState) -> None:
    """Without a lease, from another process, and the coordinator's lease holds on."""
    lease = acquire(store)
    assert storage.open().desire(TOPOLOGY, state, wait_ms=LONG_MS)
    assert store.desired(TOPOLOGY).state is state
    assert store.status(TOPOLOGY)[0].desired is state
    commit(store, lease, 1, 2)
    store.renew(lease, lease_ms=LONG_MS)


def test_a_kill_shows_the_time_that_is_left(storage: Storage, store: Store) -> None:
    acquire(store)
    store.desire(TOPOLOGY, DesiredState.KILLED, wait_ms=LONG_MS)
    left_ms = storage.open().desired(TOPOLOGY).stop_in_ms
    assert left_ms is not None
    assert LONG_MS - 20_000 < left_ms <= LONG_MS
    assert (store.status(TOPOLOGY)[0].stop_at_ms or 0) > 1_600_000_000_000
    store.desire(TOPOLOGY, DesiredState.KILLED)
    wait_until(lambda: store.desired(TOPOLOGY).stop_in_ms == 0)


@pytest.mark.parametrize("state", [state for state in STATES if state is not DesiredState.KILLED])
def test_the_last_word_holds(store: Store, state: DesiredState) -> None:
    acquire(store)
    store.desire(TOPOLOGY, DesiredState.KILLED, wait_ms=LONG_MS)
    store.desire(TOPOLOGY, state)
    assert store.desired(TOPOLOGY) == Desired(state, None)
    assert store.status(TOPOLOGY)[0].stop_at_ms is None


def test_it_is_said_of_one_topology_and_changes_nothing_else(store: Store) -> None:
    in_flight(store)
    acquire(store, topology_id="airports")
    before, airports = content(store), store.status("airports")
    store.desire(TOPOLOGY, DesiredState.INACTIVE)
    store.desire(TOPOLOGY, DesiredState.ACTIVE)
    assert (content(store), store.status("airports")) == (before, airports)
    store.desire(TOPOLOGY, DesiredState.INACTIVE)
    assert store.status("airports") == airports


def test_a_topology_that_is_not_known_is_reported_by_false(store: Store) -> None:
    assert not store.desire("nowhere", DesiredState.INACTIVE)
    assert not store.desire("nowhere", DesiredState.KILLED, wait_ms=5)
    assert store.desired("nowhere") == Desired()
    assert store.status() == []


@pytest.mark.parametrize("state", [*STATES])
def test_a_lease_shows_what_is_desired(storage: Storage, store: Store, state: DesiredState) -> None:
    """Also what was said while nobody ran it; and a run that ends otherwise leaves it as it is."""
    store.release(acquire(store))
    store.desire(TOPOLOGY, state, wait_ms=LONG_MS)
    lease = acquire(storage.open(), "second")
    assert lease.desired.state is state
    assert (lease.desired.stop_in_ms is None) == (state is not DesiredState.KILLED)
    store.release(lease)
    assert store.desired(TOPOLOGY).state is state


def test_a_kill_whose_time_has_come_is_over_for_the_next_run(storage: Storage, store: Store) -> None:
    acquire(store)
    store.desire(TOPOLOGY, DesiredState.KILLED)
    wait_until(lambda: store.desired(TOPOLOGY).stop_in_ms == 0)
    assert acquire(storage.open()).desired == Desired(DesiredState.ACTIVE)
    assert store.desired(TOPOLOGY) == Desired(DesiredState.ACTIVE)
    assert store.status(TOPOLOGY)[0].stop_at_ms is None


@pytest.mark.parametrize("state", STATES)
def test_what_was_carried_out_is_over(store: Store, state: DesiredState) -> None:
    lease = acquire(store)
    store.desire(TOPOLOGY, state, wait_ms=LONG_MS)
    store.release(lease, is_done=True)
    [status] = store.status(TOPOLOGY)
    assert status.desired is (DesiredState.ACTIVE if state in ONCE else state)
    assert (status.stop_at_ms, status.owner) == (None, None)


def test_who_has_lost_the_lease_ends_nobodys_drain(storage: Storage, store: Store) -> None:
    old = acquire(store)
    acquire(storage.open())
    store.desire(TOPOLOGY, DesiredState.DRAINING)
    before = content(store)
    store.release(old, is_done=True)
    assert content(store) == before


def test_a_refused_lease_changes_nothing(storage: Storage, store: Store) -> None:
    acquire(store)
    store.desire(TOPOLOGY, DesiredState.KILLED)
    wait_until(lambda: store.desired(TOPOLOGY).stop_in_ms == 0)
    before = content(store)
    with pytest.raises(TopologyInUse):
        acquire(storage.open(), "second", name="deploy-8")
    assert content(store) == before


# --- names --------------------------------------------------------------------------------------------------------


def test_a_run_under_another_name_resumes_the_topology(storage: Storage, store: Store) -> None:
    """Progress goes by the transactional id. Storm row T59."""
    lease = acquire(store, name="deploy-7")
    commit(store, lease, 1, 2)
    assert store.status(TOPOLOGY)[0].name == "deploy-7"
    store.release(lease)
    assert store.status(TOPOLOGY)[0].name == "deploy-7"
    later = acquire(storage.open(), "second", name="deploy-8")
    assert later.progress.committed_txid == 1
    assert store.status(TOPOLOGY)[0].name == "deploy-8"
    with pytest.raises(Fenced):
        record_attempt(store, lease, 2, 9)


def test_two_with_one_id_are_refused_whatever_they_are_called(storage: Storage, store: Store) -> None:
    """Storm row T2."""
    acquire(store, "first", name="deploy-7")
    with pytest.raises(TopologyInUse, match="'carriers' is coordinated by 'first'"):
        acquire(storage.open(), "second", name="deploy-8")
