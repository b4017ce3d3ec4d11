"""What every coordinator's store keeps to: attempts, transaction commits, fences and history, on each kind of storage.

Leases are in `test_coordinator_store_leases.py`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tests.contract.racing import commit_until
from tests.contract.storages import (
    FLIGHTS,
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
    record_commit,
    record_of,
    tried,
)
from transactional.core.store import AttemptRecord
from transactional.core.store.progress import Phase, Progress
from transactional.errors import Fenced, ProtocolError, TopologyInUse
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.batch import EMPTY_BATCH, BatchMetadata, Digest, Offset, OffsetRange, PartitionId

# --- attempts ---------------------------------------------------------------------------------------------------


def test_a_record_comes_back_as_it_was_written(storage: Storage, store: Store) -> None:
    """Row T58."""
    lease = acquire(store)
    places = [PartitionId("flüge", 0), PartitionId("topic 'with\" quotes; --", 12), PartitionId("empty", 3)]
    ranges = {
        place: OffsetRange(Offset(start), Offset(until))
        for place, (start, until) in zip(places, [(0, 1), (2**53, 2**62), (5, 5)], strict=True)
    }
    batch = BatchMetadata(ranges, {places[0]: Digest(1, 2**32 - 1), places[2]: Digest(0, 0)})
    record = AttemptRecord(tried(1, 2), "processing", batch, 2**40, 2**41, 2**42, 1, 2, 3, "naïve\nerror ✗")
    store.record_attempt(lease, record, forget_later=False)
    assert storage.open().attempts(TOPOLOGY, limit=1) == [record]
    assert acquire(storage.open()).progress.recorded == {1: batch}


def test_a_recorded_attempt_raises_the_counter(storage: Storage, store: Store) -> None:
    """Storm row T30: before anything of the attempt runs."""
    lease = acquire(store)
    record_attempt(store, lease, 1, 2)
    record_attempt(store, lease, 2, 7, start=10)
    assert store.status(TOPOLOGY)[0].attempt_id == 7
    progress = acquire(storage.open()).progress
    assert progress == Progress(TxId(0), EMPTY_BATCH, {TxId(1): batch_of(0), TxId(2): batch_of(10)}, AttemptId(8))


@pytest.mark.parametrize("attempt_id", [1, 2, 4])
def test_an_attempt_id_that_the_counter_has_passed_is_refused(store: Store, attempt_id: int) -> None:
    """One is the fence id, two was never drawn, four is that of another transaction."""
    lease = acquire(store)
    record_attempt(store, lease, 1, 3)
    record_attempt(store, lease, 2, 4)
    before = content(store)
    with pytest.raises(Fenced, match=f"attempt 3:{attempt_id} .* counter, which already is at 4"):
        record_attempt(store, lease, 3, attempt_id)
    assert content(store) == before


def test_an_attempt_of_the_last_coordinator_is_not_taken_for_ones_own(storage: Storage, store: Store) -> None:
    record_attempt(store, acquire(store), 1, 2)
    lease = acquire(storage.open())
    with pytest.raises(Fenced, match="counter"):
        record_attempt(store, lease, 1, 2)


def test_attempt_ids_only_grow_over_restarts(storage: Storage) -> None:
    """Row T47."""
    drawn: list[int] = []
    for txid in range(1, 5):
        store = storage.open()
        lease = acquire(store)
        drawn += [lease.fence_id, lease.fence_id + 1]
        assert lease.progress.attempt_id == lease.fence_id
        commit(store, lease, txid, lease.fence_id + 1)
        store.release(lease)
    assert drawn == sorted(set(drawn))
    assert storage.open().status(TOPOLOGY)[0].attempt_id == drawn[-1]


def test_a_replay_takes_the_place_of_the_attempt_before(storage: Storage, store: Store) -> None:
    lease = acquire(store)
    for txid in (1, 2, 3):
        record_attempt(store, lease, txid, 1 + txid, start=10 * txid)
    store.record_failure(lease, tried(2, 3), Phase.PROCESSING, "no", at_ms=9)
    store.record_attempt(lease, record_of(tried(2, 5), batch_of(21)), forget_later=False)
    phases = {str(record.attempt): record.phase for record in store.attempts(TOPOLOGY, limit=9)}
    assert phases == {"1:2": "processing", "2:3": "failed", "2:5": "processing", "3:4": "given up"}
    recorded = acquire(storage.open()).progress.recorded
    assert recorded == {1: batch_of(10), 2: batch_of(21), 3: batch_of(30)}


def test_what_stood_on_another_batch_can_be_forgotten_in_the_same_write(storage: Storage, store: Store) -> None:
    lease = acquire(store)
    for txid in (1, 2, 3, 4):
        record_attempt(store, lease, txid, 1 + txid, start=10 * txid)
    record_attempt(store, lease, 2, 6, start=22, forget_later=True)
    assert acquire(storage.open()).progress.recorded == {1: batch_of(10), 2: batch_of(22)}
    phases = {str(record.attempt): record.phase for record in store.attempts(TOPOLOGY, limit=9)}
    assert {each: phases[each] for each in ("2:3", "3:4", "4:5")} == dict.fromkeys(("2:3", "3:4", "4:5"), "given up")


def test_an_attempt_at_a_committed_transaction_is_a_bug(store: Store) -> None:
    lease = in_flight(store)
    before = content(store)
    with pytest.raises(ProtocolError, match=r"attempt 1:4 .* arrived after transaction 1 was committed already"):
        record_attempt(store, lease, 1, 4)
    assert content(store) == before


def test_what_was_read_is_stored_with_the_batch(storage: Storage, store: Store) -> None:
    lease = acquire(store)
    attempt = record_attempt(store, lease, 1, 2)
    store.record_processed(lease, attempt, read(batch_of(0)), at_ms=1_234)
    [record] = store.attempts(TOPOLOGY, limit=1)
    assert (record.phase, record.rows, record.processed_at_ms) == ("processed", 10, 1_234)
    assert record.batch == read(batch_of(0))
    assert acquire(storage.open()).progress.recorded == {1: read(batch_of(0))}


@pytest.mark.parametrize("attempt", [tried(1, 2), tried(1, 9)])
def test_only_the_current_attempt_can_be_processed_or_committed(store: Store, attempt: TransactionAttempt) -> None:
    """Storm row T21."""
    lease = acquire(store)
    record_attempt(store, lease, 1, 2)
    record_attempt(store, lease, 1, 3)
    before = content(store)
    with pytest.raises(ProtocolError, match=f"attempt {attempt} .* not in flight"):
        store.record_processed(lease, attempt, read(batch_of(0)), at_ms=5)
    with pytest.raises(ProtocolError, match=f"attempt {attempt} .* not in flight"):
        record_commit(store, lease, attempt, read(batch_of(0)))
    assert content(store) == before


# --- transaction commits ------------------------------------------------------------------------------------------


def test_a_transaction_commit_moves_the_committed_batch(storage: Storage, store: Store) -> None:
    lease = acquire(store)
    attempt = commit(store, lease, 1, 2, at_ms=1_009)
    record_attempt(store, lease, 2, 3, start=20)
    progress = acquire(storage.open()).progress
    assert progress == Progress(TxId(1), read(batch_of(10)), {TxId(2): batch_of(20)}, AttemptId(4))
    newest = store.attempts(TOPOLOGY, limit=2)[1]
    assert newest == AttemptRecord(
        attempt, "committed", read(batch_of(10)), 10, 1_000, 1_001, 1_002, 1_003, 1_009, error=None
    )


@pytest.mark.parametrize("processed_before", [False, True])
def test_what_was_read_is_stored_with_the_transaction_commit(
    storage: Storage, store: Store, *, processed_before: bool
) -> None:
    lease, attempt, batch = in_flight(store), tried(2, 3), read(batch_of(20))
    if processed_before:
        store.record_processed(lease, attempt, batch, at_ms=1_002)
    for each in (store, storage.open()):  # made again, it changes nothing
        record_commit(each, lease, attempt, batch, at_ms=1_009)
        [record] = each.attempts(TOPOLOGY, limit=1)
        assert record == AttemptRecord(attempt, "committed", batch, 10, 1_000, 1_001, 1_002, 1_003, 1_009, error=None)
    assert acquire(storage.open()).progress == Progress(TxId(2), batch, {}, AttemptId(4))


@pytest.mark.parametrize("write", ["record_processed", "record_commit"])
def test_rows_stay_as_they_were_where_no_records_are_counted(store: Store, write: str) -> None:
    lease, attempt = acquire(store), tried(1, 2)
    store.record_attempt(lease, replace(record_of(attempt, batch_of(0)), rows=7), forget_later=False)
    if write == "record_processed":
        store.record_processed(lease, attempt, batch_of(0), at_ms=5)
    else:
        record_commit(store, lease, attempt, batch_of(0))
    assert store.attempts(TOPOLOGY, limit=1)[0].rows == 7


def test_the_committed_txid_moves_by_one(store: Store) -> None:
    """Storm row T25."""
    lease = acquire(store)
    for txid in (1, 2):
        record_attempt(store, lease, txid, 1 + txid)
    before = content(store)
    with pytest.raises(ProtocolError, match=r"transaction 2 \(attempt 2:3\).*committed txid is 0 and moves by one"):
        record_commit(store, lease, tried(2, 3), read(batch_of(20)))
    assert content(store) == before
    record_commit(store, lease, tried(1, 2), read(batch_of(20)))
    with pytest.raises(ProtocolError, match="committed txid is 1"):
        record_commit(store, lease, tried(1, 9), read(batch_of(20)))
    record_commit(store, lease, tried(2, 3), read(batch_of(20)))
    assert store.status(TOPOLOGY)[0].committed_txid == 2


def test_a_failed_attempt_is_never_committed(store: Store) -> None:
    lease = in_flight(store)
    store.record_failure(lease, tried(2, 3), Phase.COMMITTING, "no", at_ms=5)
    before = content(store)
    with pytest.raises(ProtocolError, match="attempt 2:3 of topology 'carriers' is not in flight"):
        record_commit(store, lease, tried(2, 3), read(batch_of(20)))
    assert content(store) == before


# --- failures ---------------------------------------------------------------------------------------------------


def test_a_failure_is_reported_with_its_phase(store: Store) -> None:
    lease = acquire(store)
    attempt = record_attempt(store, lease, 1, 2)
    store.record_failure(lease, attempt, Phase.COMMITTING, "table is locked", at_ms=1_500)
    [record] = store.attempts(TOPOLOGY, limit=1)
    assert (record.phase, record.error) == ("failed", "committing: table is locked")
    assert record.batch == batch_of(0)


@pytest.mark.parametrize("attempt", [tried(1, 2), tried(2, 9), tried(2, 2)])
def test_a_failure_of_what_is_not_in_flight_changes_no_attempt(store: Store, attempt: TransactionAttempt) -> None:
    """1:2 is committed, 2:9 was never recorded, 2:2 never existed."""
    lease = in_flight(store)
    before = content(store)
    store.record_failure(lease, attempt, Phase.PLANNING, "no", at_ms=5)
    assert content(store)[1:] == before[1:]


def test_an_error_may_hold_anything(store: Store) -> None:
    lease = acquire(store)
    attempt = record_attempt(store, lease, 1, 2)
    store.record_failure(lease, attempt, Phase.PROCESSING, "nul \0, half \ud83d, long " + 100_000 * "x", at_ms=5)
    error = store.attempts(TOPOLOGY, limit=1)[0].error or ""
    assert error.startswith("processing: nul \\0, half \\ud83d, long xxx")
    assert len(error) < 11_000


# --- a write whose outcome is not known is made again ---------------------------------------------------------------


@pytest.mark.parametrize("write", [name for name in WRITES if name != "record_attempt"])
def test_a_write_that_was_made_can_be_made_again(storage: Storage, store: Store, write: str) -> None:
    lease = in_flight(store)
    if write in ("record_commit", "record_failure"):
        store.record_processed(lease, tried(2, 3), read(batch_of(20)), at_ms=5)
    WRITES[write](store, lease)
    written = content(store)
    WRITES[write](storage.open(), lease)
    assert content(store)[1:] == written[1:]
    assert store.status(TOPOLOGY)[0].committed_txid == (2 if write == "record_commit" else 1)


@pytest.mark.parametrize("forget_later", [True, False])
def test_an_attempt_that_was_recorded_can_be_recorded_again(
    storage: Storage, store: Store, *, forget_later: bool
) -> None:
    lease = in_flight(store)
    record_attempt(store, lease, 2, 4, start=21, forget_later=forget_later)
    written = content(store)
    record_attempt(storage.open(), lease, 2, 4, start=21, forget_later=forget_later)
    assert content(store) == written


def test_a_lease_can_be_released_again(store: Store) -> None:
    lease = acquire(store)
    store.release(lease)
    store.release(lease)
    assert not store.status(TOPOLOGY)[0].is_leased


# --- which txid a table's version stands for ------------------------------------------------------------------------


def test_an_attempt_id_stands_for_its_txid_in_every_table(storage: Storage, store: Store) -> None:
    lease = in_flight(store)
    store.record_failure(lease, tried(2, 3), Phase.COMMITTING, "no", at_ms=5)
    record_attempt(store, lease, 2, 4)
    other = storage.open()
    assert [other.txid_of(TOPOLOGY, name, AttemptId(2)) for name in ("total", "hourly")] == [1, 1]
    assert [other.txid_of(TOPOLOGY, "total", AttemptId(number)) for number in (3, 4)] == [2, 2]


def test_a_fence_stands_for_what_was_noted_of_its_table(storage: Storage, store: Store) -> None:
    lease = in_flight(store)
    store.release(lease)
    successor = acquire(storage.open())
    store.record_fence(successor, "total", TxId(2))
    store.record_fence(successor, "hourly", TxId(1))
    fence_id = successor.fence_id
    assert [store.txid_of(TOPOLOGY, name, fence_id) for name in ("total", "hourly", "new")] == [2, 1, None]
    store.record_fence(successor, "total", TxId(1))
    assert store.txid_of(TOPOLOGY, "total", fence_id) == 1


def test_a_committer_has_joined_once_a_fence_was_noted_for_it(storage: Storage, store: Store) -> None:
    lease = acquire(store)
    store.record_fence(lease, "total", TxId(0))
    commit(store, lease, 1, 2)
    store.forget_before(lease, at_ms=99_000)
    other = storage.open()
    joined = [("carriers", "total"), ("carriers", "hourly"), ("nowhere", "total")]
    assert [other.has_fence(topology_id, component_id) for topology_id, component_id in joined] == [True, False, False]


@pytest.mark.parametrize(("topology_id", "attempt_id"), [("nowhere", 2), (TOPOLOGY, 9), (TOPOLOGY, 1)])
def test_an_unknown_attempt_id_stands_for_nothing(store: Store, topology_id: str, attempt_id: int) -> None:
    in_flight(store)
    assert store.txid_of(topology_id, "total", AttemptId(attempt_id)) is None


# --- history ----------------------------------------------------------------------------------------------------


def test_attempts_come_newest_first(store: Store) -> None:
    lease = acquire(store)
    for txid in (1, 2, 3):
        commit(store, lease, txid, 1 + txid)
    assert [record.attempt.txid for record in store.attempts(TOPOLOGY, limit=2)] == [3, 2]
    assert len(store.attempts(TOPOLOGY, limit=100)) == 3
    assert store.attempts("nowhere", limit=2) == []


def test_old_attempts_are_forgotten_but_never_the_newest_committed(storage: Storage, store: Store) -> None:
    """Storm rows T26, T57."""
    lease = acquire(store)
    store.record_fence(lease, "total", TxId(0))
    store.release(lease)
    lease = acquire(store)
    store.record_fence(lease, "total", TxId(0))
    for txid in (1, 2, 3):
        failed = record_attempt(store, lease, txid, 2 * txid + 1)
        store.record_failure(lease, failed, Phase.PROCESSING, "no", at_ms=5)
        commit(store, lease, txid, 2 * txid + 2, at_ms=1_000 * txid)
    record_attempt(store, lease, 4, 9)
    assert store.forget_before(lease, at_ms=1_000) == 0
    assert [str(record.attempt) for record in store.attempts(TOPOLOGY, limit=9)][-2:] == ["1:4", "1:3"]
    assert [store.txid_of(TOPOLOGY, "total", AttemptId(fence_id)) for fence_id in (1, 2)] == [None, 0]
    assert store.forget_before(lease, at_ms=2_000) == 1
    assert [str(record.attempt) for record in store.attempts(TOPOLOGY, limit=9)] == ["4:9", "3:8", "3:7", "2:6", "2:5"]
    assert store.forget_before(lease, at_ms=99_000) == 1
    assert [str(record.attempt) for record in store.attempts(TOPOLOGY, limit=9)] == ["4:9", "3:8", "3:7"]
    progress = acquire(storage.open()).progress
    assert (progress.committed_txid, progress.committed_batch, list(progress.recorded)) == (3, read(batch_of(30)), [4])


def test_nothing_is_forgotten_before_the_first_transaction_commit(store: Store) -> None:
    lease = acquire(store)
    store.record_fence(lease, "total", TxId(0))
    record_attempt(store, lease, 1, 2)
    before = content(store)
    assert store.forget_before(lease, at_ms=99_000) == 0
    assert content(store) == before
    assert store.txid_of(TOPOLOGY, "total", lease.fence_id) == 0


# --- several at once ----------------------------------------------------------------------------------------------


def test_of_many_that_start_at_once_one_gets_the_lease(storage: Storage) -> None:
    def start(number: int) -> str:
        try:
            return acquire(stores[number], f"owner {number}").owner
        except TopologyInUse as error:
            return type(error).__name__

    stores = [storage.open() for _ in range(4)]
    with ThreadPoolExecutor(len(stores)) as threads:
        outcomes = list(threads.map(start, range(len(stores))))
    assert sorted(outcomes)[:3] == ["TopologyInUse"] * 3
    assert stores[0].status(TOPOLOGY)[0].owner == sorted(outcomes)[3]


def test_coordinators_that_fence_each_other_commit_each_transaction_once(storage: Storage) -> None:
    stores = [storage.open(), storage.open()]
    with ThreadPoolExecutor(2) as threads:
        committed = list(threads.map(lambda store: commit_until(store, 30), stores))
    check_history(stores[0], 30)
    assert sorted(committed[0] + committed[1]) == list(range(1, 31))


def check_history(store: Store, txids: int) -> None:
    """Each transaction is committed once, in order of attempt ids, and starts where the one before ended."""
    history = [record for record in store.attempts(TOPOLOGY, limit=10_000)[::-1] if record.phase == "committed"]
    assert [record.attempt.txid for record in history] == list(range(1, txids + 1))
    assert [record.batch.ranges[FLIGHTS].start for record in history] == [10 * txid for txid in range(1, txids + 1)]
    assert store.status(TOPOLOGY)[0].committed_txid == txids


def test_readers_see_whole_writes_from_other_threads(storage: Storage, store: Store) -> None:
    """Storm row T51."""
    lease = acquire(store)

    def look(_: int) -> bool:
        [status] = reader.status(TOPOLOGY)
        newest = next((each for each in reader.attempts(TOPOLOGY, limit=3) if each.phase == "committed"), None)
        return (newest.attempt.txid if newest else 0) >= status.committed_txid

    reader = storage.open()
    with ThreadPoolExecutor(2) as threads:
        seen = [threads.submit(look, number) for number in range(40)]
        for txid in range(1, 21):
            commit(store, lease, txid, 1 + txid)
    assert all(each.result() for each in seen)
