"""What every coordinator's store keeps to when its attempt counter is set: the store is brought to where its tables
are."""

from __future__ import annotations

import pytest

from tests.contract.storages import TOPOLOGY, Store, acquire, batch_of, commit, read, record_attempt
from transactional.core.store import Lease
from transactional.errors import Fenced, ProtocolError
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId

pytestmark = pytest.mark.sampled(2)


def drawn_by_others(store: Store) -> Lease:
    """A lease of a store of which the others have drawn ids, and have done nothing else."""
    for number in range(5):
        store.release(acquire(store, f"refused {number}"))
    return acquire(store)


def test_attempts_are_recorded_under_ids_that_were_drawn_before(store: Store) -> None:
    lease = drawn_by_others(store)
    assert lease.fence_id == 6
    with pytest.raises(Fenced, match="was not drawn from its counter"):
        record_attempt(store, lease, 1, 2)
    store.recount(lease, AttemptId(0))
    commit(store, lease, 1, 2)
    commit(store, lease, 2, 5)
    store.recount(lease, AttemptId(9), store_id="recounted")
    store.release(lease)
    later = acquire(store)
    assert (later.fence_id, later.progress.committed_txid, later.store_id) == (10, 2, "recounted")
    assert later.progress.committed_batch == read(batch_of(20))
    assert store.txid_of(TOPOLOGY, "count", AttemptId(5)) == 2


def test_what_comes_after_is_forgotten(store: Store) -> None:
    lease = acquire(store)
    store.record_fence(lease, "count", TxId(0))
    commit(store, lease, 1, 2)
    commit(store, lease, 2, 3)
    record_attempt(store, lease, 3, 4)
    later = acquire(store)
    store.record_fence(later, "count", TxId(3))
    store.record_fence(later, "joining", TxId(2))
    for _ in range(2):  # the first answer may have been lost
        store.recount(later, AttemptId(3))
    assert [each.attempt.attempt_id for each in store.attempts(TOPOLOGY, limit=9)] == [3, 2]
    assert store.txid_of(TOPOLOGY, "count", AttemptId(1)) == 0
    assert store.txid_of(TOPOLOGY, "count", later.fence_id) is None
    assert not store.has_fence(TOPOLOGY, "joining")
    store.release(later)
    last = acquire(store)
    assert (last.fence_id, last.progress.committed_txid, last.progress.recorded) == (4, 2, {})


def test_what_is_committed_is_never_forgotten(store: Store) -> None:
    lease = acquire(store)
    commit(store, lease, 1, 2)
    commit(store, lease, 2, 3)
    with pytest.raises(ProtocolError, match="transaction 2 was committed by a later one"):
        store.recount(lease, AttemptId(2))
    assert [each.attempt for each in store.attempts(TOPOLOGY, limit=9)] == [
        TransactionAttempt(TxId(2), AttemptId(3)),
        TransactionAttempt(TxId(1), AttemptId(2)),
    ]
    assert store.status(TOPOLOGY)[0].attempt_id == 3


def test_only_who_leads_sets_it(store: Store) -> None:
    lease = drawn_by_others(store)
    store.release(lease)
    acquire(store, "another")
    with pytest.raises(Fenced):
        store.recount(lease, AttemptId(0))
    assert store.status(TOPOLOGY)[0].attempt_id == 7
