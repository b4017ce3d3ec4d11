"""What every coordinator's store keeps to while a topology is taken back to an earlier transaction."""

from __future__ import annotations

import pytest

from tests.contract.storages import (
    LONG_MS,
    TOPOLOGY,
    Storage,
    Store,
    acquire,
    batch_of,
    commit,
    content,
    in_flight,
    read,
    record_attempt,
    record_commit,
)
from transactional.core.store import Lease
from transactional.core.store.history import Keep
from transactional.core.store.progress import Phase
from transactional.errors import Fenced, ProtocolError, RewindUnfinished
from transactional.model.attempt import AttemptId, TxId

pytestmark = pytest.mark.sampled(2)


def run_of_four(store: Store) -> Lease:
    """A coordinator that has committed four transactions, tried the third twice, and has the fifth in flight."""
    lease = acquire(store)
    commit(store, lease, 1, 2)
    commit(store, lease, 2, 3)
    failed = record_attempt(store, lease, 3, 4, start=30)
    store.record_failure(lease, failed, Phase.PROCESSING, "x", at_ms=5)
    commit(store, lease, 3, 5)
    commit(store, lease, 4, 6)
    record_attempt(store, lease, 5, 7, start=50)
    return lease


def rewound(store: Store, txid: int) -> Lease:
    """Take the topology back, as one process does."""
    store.release(run_of_four(store))
    lease = acquire(store, "rewinder", to_rewind=True)
    store.begin_rewind(lease, TxId(txid))
    store.finish_rewind(lease, TxId(txid))
    return lease


@pytest.mark.parametrize("txid", [1, 2, 3, 4])
def test_an_earlier_transaction_is_the_committed_one_again(store: Store, txid: int) -> None:
    store.release(rewound(store, txid))
    [status] = store.status(TOPOLOGY)
    assert (status.committed_txid, status.rewinding_to, status.trouble) == (txid, None, None)
    lease = acquire(store)
    assert lease.progress.committed_txid == txid
    assert lease.progress.committed_batch == read(batch_of(10 * txid))
    assert lease.progress.recorded == {}
    assert lease.fence_id == 10


def test_back_to_the_beginning(store: Store) -> None:
    store.release(rewound(store, 0))
    lease = acquire(store)
    assert (lease.progress.committed_txid, dict(lease.progress.committed_batch.ranges)) == (0, {})
    commit(store, lease, 1, 11)
    assert store.status(TOPOLOGY)[0].committed_txid == 1


def test_what_came_after_it_is_told_as_rewound(store: Store) -> None:
    rewound(store, 2)
    phases = {each.attempt.attempt_id: each.phase for each in store.attempts(TOPOLOGY, limit=100)}
    assert phases == {2: "committed", 3: "committed", 4: "failed", 5: "rewound", 6: "rewound", 7: "given up"}
    assert store.txid_of(TOPOLOGY, "total", AttemptId(6)) == 4


def test_the_next_transactions_are_new_ones(store: Store) -> None:
    store.release(rewound(store, 2))
    lease = acquire(store)
    commit(store, lease, 3, 11)
    commit(store, lease, 4, 12)
    [status] = store.status(TOPOLOGY)
    assert status.committed_txid == 4
    committed = {
        each.attempt.txid: each.attempt.attempt_id
        for each in store.attempts(TOPOLOGY, limit=100)
        if each.phase == "committed"
    }
    assert committed == {1: 2, 2: 3, 3: 11, 4: 12}


def test_nobody_starts_while_it_is_not_finished(storage: Storage, store: Store) -> None:
    """Some tables may be back already, others not."""
    store.release(run_of_four(store))
    dead = acquire(store, "rewinder", to_rewind=True)
    store.begin_rewind(dead, TxId(2))
    store.release(dead)
    other, before = storage.open(), content(store)
    with pytest.raises(RewindUnfinished, match=r"from transaction 4 to 2, .*--to-txid 2 --yes"):
        acquire(other, "another")
    assert content(store) == before
    again = acquire(other, "another", to_rewind=True)
    other.begin_rewind(again, TxId(2))
    other.finish_rewind(again, TxId(2))
    with pytest.raises(Fenced):
        store.finish_rewind(dead, TxId(2))
    other.release(again)
    assert acquire(other).progress.committed_txid == 2


def test_finished_twice_is_finished(store: Store) -> None:
    """As whoever repeats a write whose outcome is not known."""
    lease = rewound(store, 2)
    before = content(store)
    store.finish_rewind(lease, TxId(2))
    assert content(store) == before


@pytest.mark.parametrize("txid", [5, 17])
def test_not_to_what_is_not_committed(store: Store, txid: int) -> None:
    run_of_four(store)
    lease = acquire(store, to_rewind=True)
    with pytest.raises(ProtocolError):
        store.begin_rewind(lease, TxId(txid))
    assert store.status(TOPOLOGY)[0].rewinding_to is None


def test_not_to_what_is_no_longer_known(store: Store) -> None:
    lease = run_of_four(store)
    store.forget_before(lease, at_ms=2_000)
    with pytest.raises(ProtocolError):
        store.begin_rewind(lease, TxId(2))


def test_another_one_takes_the_place_of_the_one_that_was_begun(store: Store) -> None:
    lease = run_of_four(store)
    first = store.begin_rewind(lease, TxId(2))
    assert first > lease.fence_id
    again = store.begin_rewind(lease, TxId(2))
    assert again > first
    with pytest.raises(ProtocolError):
        store.finish_rewind(lease, TxId(3))
    assert store.status(TOPOLOGY)[0].rewinding_to == 2
    assert store.begin_rewind(lease, TxId(3)) > again
    with pytest.raises(ProtocolError):
        store.finish_rewind(lease, TxId(2))
    store.finish_rewind(lease, TxId(3))
    [status] = store.status(TOPOLOGY)
    assert (status.committed_txid, status.rewinding_to) == (3, None)


def test_whoever_was_taken_over_begins_and_finishes_nothing(store: Store) -> None:
    dead = in_flight(store)
    store.release(dead)
    acquire(store, "another", lease_ms=LONG_MS)
    for write in (store.begin_rewind, store.finish_rewind):
        with pytest.raises(Fenced):
            write(dead, TxId(1))


def test_a_reset_is_the_other_way_out(store: Store) -> None:
    lease = run_of_four(store)
    store.begin_rewind(lease, TxId(2))
    store.release(lease)
    assert store.reset(TOPOLOGY)
    assert acquire(store).progress.committed_txid == 0


# --- savepoints -----------------------------------------------------------------------------------------------------


def savepoints(store: Store) -> dict[str, int]:
    return {each.name: each.txid for each in store.savepoints(TOPOLOGY)}


def test_savepoints_are_noted_replaced_and_dropped_without_a_lease(storage: Storage, store: Store) -> None:
    run_of_four(store)
    other = storage.open()
    assert other.note_savepoint(TOPOLOGY, "before noon", TxId(3))
    assert other.note_savepoint(TOPOLOGY, "début", TxId(1))
    assert savepoints(store) == {"début": 1, "before noon": 3}
    assert other.note_savepoint(TOPOLOGY, "before noon", TxId(2))
    assert other.drop_savepoint(TOPOLOGY, "début")
    assert not other.drop_savepoint(TOPOLOGY, "début")
    assert savepoints(store) == {"before noon": 2}
    assert store.savepoints("nowhere") == []


@pytest.mark.parametrize("txid", [0, 5, 17])
def test_a_savepoint_is_one_of_a_committed_transaction(store: Store, txid: int) -> None:
    run_of_four(store)
    assert not store.note_savepoint(TOPOLOGY, "x", TxId(txid))
    assert not store.note_savepoint("nowhere", "x", TxId(txid))
    assert savepoints(store) == {}


def committed(store: Store) -> list[int]:
    return sorted(each.attempt.txid for each in store.attempts(TOPOLOGY, limit=100) if each.phase == "committed")


def test_what_a_savepoint_needs_is_not_deleted(store: Store) -> None:
    lease = run_of_four(store)
    store.note_savepoint(TOPOLOGY, "x", TxId(2))
    store.forget_before(lease, at_ms=2_000)
    assert committed(store) == [2, 3, 4]
    store.drop_savepoint(TOPOLOGY, "x")
    store.forget_before(lease, at_ms=2_000)
    assert committed(store) == [4]


def test_nor_by_a_transaction_commit(store: Store) -> None:
    """Which deletes two of the oldest attempts each time."""
    lease = acquire(store)
    for txid in range(1, 5):
        commit(store, lease, txid, txid + 1)
    store.note_savepoint(TOPOLOGY, "x", TxId(2))
    for txid in range(5, 9):
        attempt = record_attempt(store, lease, txid, txid + 1, start=10 * txid)
        record_commit(store, lease, attempt, read(batch_of(10 * txid)), keep=Keep(1))
    assert committed(store) == list(range(2, 9))
    store.drop_savepoint(TOPOLOGY, "x")
    attempt = record_attempt(store, lease, 9, 10, start=90)
    record_commit(store, lease, attempt, read(batch_of(90)), keep=Keep(1))
    assert committed(store) == list(range(4, 10))


def test_savepoints_of_what_was_rewound_are_gone(store: Store) -> None:
    store.release(run_of_four(store))
    for txid in (1, 2, 3):
        store.note_savepoint(TOPOLOGY, str(txid), TxId(txid))
    lease = acquire(store, to_rewind=True)
    store.begin_rewind(lease, TxId(2))
    store.finish_rewind(lease, TxId(2))
    assert savepoints(store) == {"1": 1, "2": 2}
