"""What every coordinator's store keeps of the past: no holes, no more than is wanted, runs and their ends, troubles."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.contract.storages import (
    FINGERPRINT,
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
    record_of,
    tried,
)
from transactional.core.store import DesiredState, Lease
from transactional.core.store.history import EndedHow, Keep, MinuteRecord, RunAbout, RunEnd, Trouble
from transactional.core.store.progress import Phase
from transactional.core.store.rules import times_of
from transactional.core.store.sql.schema import PHASES
from transactional.errors import Fenced, ProtocolError, TopologyInUse
from transactional.model.attempt import AttemptId, TxId

pytestmark = pytest.mark.sampled(2)


def commit_keeping(
    store: Store, lease: Lease, txid: int, attempt_id: int, keep: Keep | None, details: Mapping[str, Any] | None = None
) -> None:
    """Take a transaction through both of its phases, and trim."""
    attempt = record_attempt(store, lease, txid, attempt_id, start=10 * txid)
    batch = read(batch_of(10 * txid))
    record_commit(store, lease, attempt, batch, keep=keep, details=details)


def shown(store: Store) -> list[str]:
    """All attempts, the oldest first."""
    return [str(record.attempt) for record in store.attempts(TOPOLOGY, limit=99)[::-1]]


# --- no holes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("txid", [3, 5])
def test_a_transaction_whose_predecessor_is_not_known_is_refused(store: Store, txid: int) -> None:
    """Row T25. Transaction 1 is committed, nothing is in flight."""
    lease = acquire(store)
    commit(store, lease, 1, 2)
    before = content(store)
    with pytest.raises(ProtocolError, match=f"attempt {txid}:3 .* leaves a gap: transaction {txid - 1} is neither"):
        record_attempt(store, lease, txid, 3)
    assert content(store) == before


def test_a_transaction_behind_a_recorded_one_leaves_no_gap(store: Store) -> None:
    lease = in_flight(store)
    record_attempt(store, lease, 3, 4)
    with pytest.raises(ProtocolError, match="leaves a gap"):
        record_attempt(store, lease, 5, 5)
    record_attempt(store, lease, 2, 5, forget_later=True)
    with pytest.raises(ProtocolError, match="leaves a gap: transaction 3"):
        record_attempt(store, lease, 4, 6)


# --- what is kept -------------------------------------------------------------------------------------------------


def test_each_transaction_commit_drops_two_of_the_oldest_attempts_beyond_the_limit(store: Store) -> None:
    lease = acquire(store)
    for txid in range(1, 7):
        commit(store, lease, txid, txid + 1)
    commit_keeping(store, lease, 7, 8, Keep(3))
    assert shown(store) == ["3:4", "4:5", "5:6", "6:7", "7:8"]
    commit_keeping(store, lease, 8, 9, Keep(3))
    commit_keeping(store, lease, 9, 10, Keep(3))
    commit_keeping(store, lease, 10, 11, Keep(3))
    assert shown(store) == ["8:9", "9:10", "10:11"]


def test_failed_attempts_count_as_well(store: Store) -> None:
    lease = acquire(store)
    for attempt_id in range(2, 12):
        failed = record_attempt(store, lease, 1, attempt_id)
        store.record_failure(lease, failed, Phase.PROCESSING, "no", at_ms=5)
    for txid in range(1, 7):
        commit_keeping(store, lease, txid, 11 + txid, Keep(4))
    assert shown(store) == ["3:14", "4:15", "5:16", "6:17"]


def test_what_is_older_than_wanted_goes_while_a_topology_runs(store: Store) -> None:
    lease = acquire(store)
    for txid in range(1, 4):
        commit(store, lease, txid, txid + 1)
    commit_keeping(store, lease, 4, 5, Keep(1_000, since_ms=1_000))  # all were issued at 1,000
    assert len(shown(store)) == 4
    commit_keeping(store, lease, 5, 6, Keep(1_000, since_ms=1_001))
    assert shown(store) == ["3:4", "4:5", "5:6"]


def test_what_is_to_be_replayed_and_the_newest_committed_are_never_dropped(storage: Storage, store: Store) -> None:
    """Storm rows T26, T57. The batch of 3 was recorded before 2 was tried again, and is still the one to replay."""
    lease = acquire(store)
    commit(store, lease, 1, 2)
    record_attempt(store, lease, 2, 3, start=20)
    record_attempt(store, lease, 3, 4, start=30)
    store.record_failure(lease, tried(2, 3), Phase.PROCESSING, "no", at_ms=5)
    commit_keeping(store, lease, 2, 5, Keep(1, since_ms=9_999))
    assert shown(store) == ["3:4", "2:5"]
    progress = acquire(storage.open()).progress
    assert (progress.committed_txid, progress.committed_batch) == (2, read(batch_of(20)))
    assert progress.recorded == {3: batch_of(30)}


def test_an_attempt_that_fails_alone_leaves_later_ones_in_flight(store: Store) -> None:
    lease = acquire(store)
    for txid in (1, 2, 3):
        record_attempt(store, lease, txid, txid + 1)
    store.record_failure(lease, tried(1, 2), Phase.PROCESSING, "no", at_ms=5, alone=True)
    store.record_attempt(lease, record_of(tried(1, 5), batch_of(0)), forget_later=False, alone=True)
    store.record_failure(lease, tried(2, 3), Phase.PROCESSING, "not either", at_ms=6, alone=True)
    store.record_attempt(lease, record_of(tried(2, 6), batch_of(0)), forget_later=False, alone=True)
    found = {str(each.attempt): each.phase for each in store.attempts(TOPOLOGY, limit=9)}
    assert found == {"1:2": "failed", "2:3": "failed", "3:4": "processing", "1:5": "processing", "2:6": "processing"}
    store.record_attempt(lease, record_of(tried(3, 7), batch_of(0)), forget_later=False, alone=True)
    assert [each.phase for each in store.attempts_at(TOPOLOGY, TxId(3))] == ["processing", "given up"]
    for number in (5, 6, 7):
        record_commit(store, lease, tried(number - 4, number), read(batch_of(0)))
    assert store.status(TOPOLOGY)[0].committed_txid == 3


def test_another_topology_keeps_its_attempts(store: Store) -> None:
    other = acquire(store, topology_id="other")
    commit(store, other, 1, 2)
    lease = acquire(store)
    for txid in range(1, 5):
        commit_keeping(store, lease, txid, txid + 1, Keep(1))
    assert len(store.attempts("other", limit=9)) == 1
    assert shown(store) == ["4:5"]


# --- fences -------------------------------------------------------------------------------------------------------


def test_a_new_fence_leaves_the_notes_of_older_ones(storage: Storage, store: Store) -> None:
    """A coordinator that dies between its note and the fence itself leaves the table at the fence of before."""
    for _ in range(3):
        store.record_fence(acquire(storage.open()), "total", TxId(0))
    assert [store.txid_of(TOPOLOGY, "total", AttemptId(fence_id)) for fence_id in (1, 2, 3)] == [0, 0, 0]


# --- details and minutes ------------------------------------------------------------------------------------------


def test_what_else_is_known_of_a_transaction_is_stored_with_its_commit(storage: Storage, store: Store) -> None:
    lease = acquire(store)
    details = {"lag": 12, "edges": {"spout/é": [1, 2]}}
    commit_keeping(store, lease, 1, 2, None, details)
    [record] = storage.open().attempts(TOPOLOGY, limit=1)
    assert record.details == details
    [status] = store.status(TOPOLOGY)
    assert (status.lag, status.committed_at_ms) == (12, 1_004)
    commit_keeping(store, lease, 2, 3, None)
    assert store.status(TOPOLOGY)[0].lag is None


def test_a_minute_is_stored_with_the_commit_after_it(storage: Storage, store: Store) -> None:
    lease = acquire(store)
    minutes = [MinuteRecord(60_000 * at, 2, 20, 1, (0, 2), 3, 2, {"processing": 17}) for at in (1, 2)]
    for txid, minute in enumerate(minutes, 1):
        attempt = record_attempt(store, lease, txid, 1 + txid)
        for each in (store, storage.open()):  # made again, it changes nothing
            record_commit(each, lease, attempt, read(batch_of(0)), minute=minute)
    assert store.minutes(TOPOLOGY, since_ms=0) == minutes
    assert store.minutes(TOPOLOGY, since_ms=60_001) == minutes[1:]
    assert store.minutes(TOPOLOGY, since_ms=minutes[0].at_ms) == minutes, "the one that starts then is among them"
    assert store.minutes("nowhere", since_ms=0) == []


def test_minutes_are_summed_up_by_parts_of_time(storage: Storage, store: Store) -> None:
    lease, rng = acquire(store), random.Random(7)
    minutes = []
    for txid in range(1, 13):
        phases = {phase: rng.randrange(99) for phase in rng.sample(PHASES, rng.choice([2, len(PHASES)]))}
        numbers = [rng.randrange(9) for _ in range(5)]
        at_ms, (lag_sum, lag_max, *rest) = 60_000 * txid * rng.randint(1, 3), numbers
        minutes.append(MinuteRecord(at_ms, rest[0], rest[1], rest[2], (0, 2), lag_sum, lag_max, phases))
    minutes.sort(key=lambda each: each.at_ms)
    minutes = list({each.at_ms: each for each in minutes}.values())
    for txid, minute in enumerate(minutes, 1):
        attempt = record_attempt(store, lease, txid, 1 + txid)
        record_commit(store, lease, attempt, read(batch_of(0)), minute=minute)
    for since_ms, each_ms in ((0, 60_000), (0, 150_000), (70_000, 150_000), (60_001, 10**9)):
        found = store.minutes(TOPOLOGY, since_ms=since_ms, each_ms=each_ms)
        parts = [each for each in minutes if each.at_ms >= since_ms]
        assert [each.at_ms for each in found] == sorted(
            {since_ms + (each.at_ms - since_ms) // each_ms * each_ms for each in parts}
        )
        for each in found:
            of = [minute for minute in parts if each.at_ms <= minute.at_ms < each.at_ms + each_ms]
            for name in ("transactions", "rows", "failures", "lag_sum"):
                assert getattr(each, name) == sum(getattr(minute, name) for minute in of)
            assert (each.lag_max, each.latencies) == (max(minute.lag_max for minute in of), ())
            for phase in PHASES:
                assert each.phases_ms.get(phase, 0) == sum(minute.phases_ms.get(phase, 0) for minute in of)
    assert store.minutes("nowhere", since_ms=0, each_ms=60_000) == []


# --- troubles -----------------------------------------------------------------------------------------------------


def test_a_failed_planning_leaves_since_when_and_why(storage: Storage, store: Store) -> None:
    """There is no attempt to store it with."""
    lease = in_flight(store)
    assert store.status(TOPOLOGY)[0].trouble is None
    store.record_failure(lease, tried(3, 4), Phase.PLANNING, "no broker", at_ms=50)
    store.record_failure(lease, tried(3, 5), Phase.PLANNING, "still no broker", at_ms=70)
    assert storage.open().status(TOPOLOGY)[0].trouble == Trouble(50, TxId(3), "planning: still no broker")
    assert len(store.attempts(TOPOLOGY, limit=9)) == 2


def test_a_trouble_ends_with_the_transaction_that_was_in_it(store: Store) -> None:
    lease = in_flight(store)
    record_attempt(store, lease, 3, 4, start=30)
    store.record_failure(lease, tried(3, 4), Phase.PROCESSING, "no", at_ms=50)
    record_commit(store, lease, tried(2, 3), read(batch_of(20)))
    assert store.status(TOPOLOGY)[0].trouble == Trouble(50, TxId(3), "processing: no")
    commit(store, lease, 3, 5)
    assert store.status(TOPOLOGY)[0].trouble is None


def test_a_trouble_can_end_without_anything_to_commit(store: Store) -> None:
    lease = in_flight(store)
    store.record_failure(lease, tried(3, 4), Phase.PLANNING, "no broker", at_ms=50)
    store.record_recovery(lease)
    assert store.status(TOPOLOGY)[0].trouble is None


def test_a_failure_gives_up_what_is_in_flight_behind_it(store: Store) -> None:
    lease = in_flight(store)
    for txid in (3, 4):
        record_attempt(store, lease, txid, 1 + txid)
    store.record_failure(lease, tried(3, 4), Phase.PROCESSING, "no", at_ms=50)
    phases = [(str(record.attempt), record.phase, record.failed_at_ms) for record in store.attempts(TOPOLOGY, limit=3)]
    assert phases == [("4:5", "given up", None), ("3:4", "failed", 50), ("2:3", "processing", None)]


# --- runs ---------------------------------------------------------------------------------------------------------

ENDS = [
    RunEnd(EndedHow.STOPPED),
    RunEnd(EndedHow.DRAINED),
    RunEnd(EndedHow.KILLED),
    RunEnd(EndedHow.FAILED, "TX406", "topics lost, \u20ac"),
    RunEnd(EndedHow.FAILED, None, "KeyError: 'x'"),
]


@pytest.mark.parametrize("end", ENDS, ids=str)
def test_a_run_is_stored_with_how_it_ended(storage: Storage, store: Store, end: RunEnd) -> None:
    described, sources = {"topology": "carriers", "components": [1, {"é": None}]}, {"lease_ms": [["code", 10_000]]}
    about = RunAbout("0.9.1", described, {"lease_ms": 10_000}, sources)
    lease = acquire(store, name="deploy-7", about=about)
    [run] = store.runs(TOPOLOGY, limit=9)
    assert (run.epoch, run.owner, run.name, run.about, run.began_at_txid) == (1, "first", "deploy-7", about, 0)
    assert (run.ended_at_ms, run.ended_at_txid, run.end) == (None, None, None)
    commit(store, lease, 1, 2)
    store.release(lease, end=end)
    store.release(lease, end=RunEnd(EndedHow.FAILED, "TX000", "too late"))
    [status] = storage.open().status(TOPOLOGY)
    assert status.run is not None
    assert status.run == replace(run, ended_at_ms=status.run.ended_at_ms, ended_at_txid=TxId(1), end=end)
    assert status.run.ended_at_ms is not None
    assert run.began_at_ms <= status.run.ended_at_ms
    assert store.runs(TOPOLOGY, limit=9) == [status.run]


def test_a_run_that_ends_by_an_error_shows_it_to_what_was_in_flight(store: Store) -> None:
    lease = in_flight(store)
    store.release(lease, end=RunEnd(EndedHow.FAILED, "TX406", "the topic is gone \0"))
    newest = store.attempts(TOPOLOGY, limit=1)[0]
    assert (newest.phase, newest.error) == ("given up", "the run ended: TX406: the topic is gone \\0")
    assert acquire(store).progress.recorded == {2: batch_of(20)}


def test_a_run_that_is_gone_is_lost_once_the_next_one_begins(storage: Storage, store: Store) -> None:
    in_flight(store)
    acquire(storage.open())
    assert [run.end for run in store.runs(TOPOLOGY, limit=9)] == [None, RunEnd(EndedHow.LOST)]
    newest = store.attempts(TOPOLOGY, limit=1)[0]
    assert (newest.phase, newest.error) == ("given up", None)


def test_a_coordinator_without_the_lease_ends_nobodys_run(storage: Storage, store: Store) -> None:
    lease = in_flight(store)
    acquire(storage.open())
    store.release(lease, end=RunEnd(EndedHow.FAILED, "TX401", "fenced"))
    assert [run.end for run in store.runs(TOPOLOGY, limit=1)] == [None]


# --- reset --------------------------------------------------------------------------------------------------------


def test_a_topology_that_was_reset_starts_anew_but_shuts_its_past_out(storage: Storage, store: Store) -> None:
    other = acquire(store, topology_id="other")
    commit(store, other, 1, 2)
    lease = in_flight(store)
    store.record_fence(lease, "total", TxId(1))
    store.record_failure(lease, tried(3, 4), Phase.PLANNING, "no broker", at_ms=50)
    store.desire(TOPOLOGY, DesiredState.INACTIVE)
    with pytest.raises(TopologyInUse, match="can't be reset while it is running"):
        store.reset(TOPOLOGY)
    store.release(lease)
    assert storage.open().reset(TOPOLOGY)
    [status] = store.status(TOPOLOGY)
    assert (status.committed_txid, status.fingerprint, status.trouble, status.run) == (0, {}, None, None)
    assert status.desired is DesiredState.ACTIVE
    assert (store.attempts(TOPOLOGY, limit=9), store.runs(TOPOLOGY, limit=9)) == ([], [])
    assert not store.has_fence(TOPOLOGY, "total")
    with pytest.raises(Fenced):
        store.renew(lease, lease_ms=LONG_MS)
    new = acquire(store, fingerprint={**FINGERPRINT, "spout": {"kind": "other"}})
    assert (new.progress.committed_txid, new.progress.recorded) == (0, {})
    assert new.fence_id > 3  # above every version that a table of before can have
    assert len(store.attempts("other", limit=9)) == 1


def test_a_topology_that_the_store_does_not_know_can_not_be_reset(store: Store) -> None:
    assert not store.reset("nowhere")


# --- reading by page ----------------------------------------------------------------------------------------------


def with_failures(store: Store) -> Lease:
    """Attempts 1:2 committed, 2:3 failed, 2:4 committed, 3:5 failed, 3:6 in flight."""
    lease = acquire(store)
    commit(store, lease, 1, 2)
    for txid, attempt_id in ((2, 3), (3, 5)):
        failed = record_attempt(store, lease, txid, attempt_id, start=10 * txid)
        store.record_failure(lease, failed, Phase.PROCESSING, "no", at_ms=5)
        if txid == 2:
            commit_keeping(store, lease, 2, 4, None, {"lag": 7})
    record_attempt(store, lease, 3, 6, start=30)
    return lease


def test_attempts_are_listed_without_their_batches_as_they_are_with_them(store: Store) -> None:
    with_failures(store)
    whole = store.attempts(TOPOLOGY, limit=99)
    assert store.times(TOPOLOGY, limit=99) == [times_of(record) for record in whole]
    assert [str(each.attempt) for each in store.times(TOPOLOGY, limit=2)] == ["3:6", "3:5"]
    assert store.times("nobody", limit=9) == []


def test_attempts_are_listed_by_page_and_by_phase(store: Store) -> None:
    with_failures(store)

    def ids(**wanted: Any) -> list[str]:
        return [str(each.attempt) for each in store.times(TOPOLOGY, limit=2, **wanted)]

    assert ids(before=AttemptId(5)) == ["2:4", "2:3"]
    assert ids(phases=["failed"]) == ["3:5", "2:3"]
    assert ids(phases=["failed"], before=AttemptId(5)) == ["2:3"]
    assert ids(phases=["committed", "processing"]) == ["3:6", "2:4"]


def test_the_attempts_at_one_transaction_are_found(store: Store) -> None:
    lease = with_failures(store)
    other = acquire(store, topology_id="other")
    commit(store, other, 1, 2)
    assert [(str(each.attempt), each.phase) for each in store.attempts_at(TOPOLOGY, TxId(2))] == [
        ("2:4", "committed"),
        ("2:3", "failed"),
    ]
    assert store.attempts_at(TOPOLOGY, TxId(2)) == [
        record for record in store.attempts(TOPOLOGY, limit=99) if record.attempt.txid == 2
    ]
    assert store.attempts_at(TOPOLOGY, TxId(9)) == []
    assert store.attempts_at("nobody", TxId(1)) == []
    store.release(lease)


def test_transactions_with_dead_letters_are_found_among_the_last_ones(store: Store) -> None:
    lease = acquire(store)
    kept: list[Mapping[str, Any] | None] = [
        {"letters": 2},
        {"letters": 0, "states": {"letters": {"rows": 3}}, "steps": {"letters": "1 task"}},
        None,
        {"lag": 1, "letters": 10, "letters_of": {"split": 10}},
        {"letters": 1},
    ]
    for txid, details in enumerate(kept, 1):
        commit_keeping(store, lease, txid, 1 + txid, None, details)
    record_attempt(store, lease, 6, 7, start=60)

    def ids(among: int, limit: int) -> list[str]:
        return [str(each.attempt) for each in store.times_with_letters(TOPOLOGY, among=among, limit=limit)]

    assert ids(9, 9) == ["5:6", "4:5", "1:2"]
    assert ids(4, 9) == ["5:6", "4:5"]
    assert ids(9, 1) == ["5:6"]
    assert store.times_with_letters(TOPOLOGY, among=2, limit=9) == store.times(TOPOLOGY, limit=3)[1:]
    assert store.times_with_letters("nobody", among=9, limit=9) == []
