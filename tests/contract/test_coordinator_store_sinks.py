"""The outbox of every coordinator's store: rows come with the transaction commit, and go with the publication."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.contract.storages import (
    FINGERPRINT,
    TOPOLOGY,
    Storage,
    Store,
    acquire,
    batch_of,
    read,
    record_attempt,
    record_commit,
    tried,
)
from transactional.core.store import Lease
from transactional.core.store.outbox import OutboxRow, PayloadFile, Publication, SinkProgress, SinkRecords
from transactional.core.store.sink_rules import run_of
from transactional.errors import ConfigError, Fenced, ProtocolError, TopologyChanged
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId

PAYLOAD = bytes(range(256))


def commit_records(store: Store, lease: Lease, txid: int, attempt_id: int, **sinks: int) -> Publication:
    """Commit a transaction with so many records for each sink."""
    attempt = record_attempt(store, lease, txid, attempt_id, start=10 * txid)
    outbox = {name: SinkRecords(PAYLOAD + bytes([txid]), count) for name, count in sinks.items()}
    record_commit(store, lease, attempt, read(batch_of(10 * txid)), outbox=outbox)
    return Publication(run_of(lease), attempt)


def txids(store: Store, sink: str, **between: int) -> list[int]:
    limits: dict[str, Any] = {"last": 99, "limit": 99, **between}
    return [row.publication.attempt.txid for row in store.outbox(TOPOLOGY, sink, **limits)]


def test_rows_are_stored_with_the_transaction_commit(storage: Storage, store: Store) -> None:
    lease = acquire(store)
    assert store.sinks(TOPOLOGY) == {}
    first = commit_records(store, lease, 1, 2, alerts=3, copy=1)
    commit_records(store, lease, 2, 3)
    third = commit_records(store, lease, 3, 4, alerts=2)
    assert storage.open().outbox(TOPOLOGY, "alerts", last=TxId(9), limit=9) == [
        OutboxRow("alerts", first, 3, PAYLOAD + b"\1"),
        OutboxRow("alerts", third, 2, PAYLOAD + b"\3"),
    ]
    assert storage.open().sinks(TOPOLOGY) == {
        "alerts": SinkProgress(TxId(0), None, 2, 5, 2 * len(PAYLOAD) + 2),
        "copy": SinkProgress(TxId(0), None, 1, 1, len(PAYLOAD) + 1),
    }
    assert (txids(store, "alerts", last=2), txids(store, "alerts", first=2), txids(store, "alerts", limit=1)) == (
        [1],
        [3],
        [1],
    )
    assert txids(store, "other") == []
    assert store.sinks("another topology") == {}


def test_a_commit_that_is_repeated_stores_its_rows_once(store: Store) -> None:
    lease = acquire(store)
    attempt = commit_records(store, lease, 1, 2, alerts=3).attempt
    outbox = {"alerts": SinkRecords(PAYLOAD, 3)}
    record_commit(store, lease, attempt, read(batch_of(10)), outbox=outbox)
    assert txids(store, "alerts") == [1]


def test_a_payload_may_be_in_a_file(storage: Storage, store: Store) -> None:
    """The row has the checksum, and the name and the size of the file."""
    lease = acquire(store)
    attempt = record_attempt(store, lease, 1, 2)
    records = SinkRecords(b"abcd", 7, PayloadFile("alerts-1-2.records", 5_000_000))
    outbox = {"alerts": records, "copy": SinkRecords(PAYLOAD, 1)}
    record_commit(store, lease, attempt, read(batch_of(0)), outbox=outbox)
    row = OutboxRow("alerts", Publication(run_of(lease), attempt), 7, b"abcd", records.file)
    assert storage.open().outbox_in_files(TOPOLOGY) == [row]
    assert storage.open().outbox(TOPOLOGY, "alerts", last=TxId(9), limit=9) == [row]
    assert [storage.open().sinks(TOPOLOGY)[name].size_bytes for name in outbox] == [5_000_000, len(PAYLOAD)]
    store.settle_sink(lease, "alerts", row.publication)
    assert storage.open().outbox_in_files(TOPOLOGY) == []


@pytest.mark.parametrize("refused", [tried(2, 9), tried(1, 3)])
def test_a_commit_that_is_refused_stores_no_row(store: Store, refused: TransactionAttempt) -> None:
    lease = acquire(store)
    record_attempt(store, lease, 1, 2)
    with pytest.raises(ProtocolError):
        record_commit(store, lease, refused, read(batch_of(0)), outbox={"alerts": SinkRecords(PAYLOAD, 3)})
    assert store.sinks(TOPOLOGY) == {}


def test_settling_deletes_rows_and_notes_the_publication(storage: Storage, store: Store) -> None:
    lease = acquire(store)
    publications = [commit_records(store, lease, txid, 1 + txid, alerts=1, copy=1) for txid in (1, 2, 3)]
    store.settle_sink(lease, "alerts", publications[1])
    assert (txids(store, "alerts"), txids(store, "copy")) == ([3], [1, 2, 3])
    assert storage.open().sinks(TOPOLOGY)["alerts"] == SinkProgress(TxId(2), publications[1], 1, 1, len(PAYLOAD) + 1)
    store.settle_sink(lease, "alerts", publications[2])
    commit_records(store, lease, 4, 5)
    assert storage.open().sinks(TOPOLOGY)["alerts"] == SinkProgress(TxId(4), publications[2], 0, 0)


@pytest.mark.parametrize("repeated", [1, 2])
def test_an_earlier_publication_changes_nothing(store: Store, repeated: int) -> None:
    lease = acquire(store)
    publications = [commit_records(store, lease, txid, 1 + txid, alerts=1) for txid in (1, 2, 3)]
    store.settle_sink(lease, "alerts", publications[1])
    before = store.sinks(TOPOLOGY)
    store.settle_sink(lease, "alerts", publications[repeated - 1])
    assert store.sinks(TOPOLOGY) == before


def test_only_the_lease_settles(storage: Storage, store: Store) -> None:
    earlier = acquire(store)
    published = commit_records(store, earlier, 1, 2, alerts=1)
    acquire(other := storage.open(), accept_changes=True)
    with pytest.raises(Fenced):
        store.settle_sink(earlier, "alerts", published)
    assert other.sinks(TOPOLOGY)["alerts"].waiting == 1


def test_runs_of_one_owner_have_names_of_their_own(store: Store) -> None:
    assert run_of(acquire(store)) != run_of(acquire(store))


def go_back(store: Store, lease: Lease) -> None:
    store.begin_rewind(lease, TxId(0))


def recount(store: Store, lease: Lease) -> None:
    store.recount(lease, AttemptId(9))


def reset(store: Store, lease: Lease) -> None:
    store.release(lease)
    store.reset(TOPOLOGY)


@pytest.mark.parametrize(
    ("work", "refused"), [(go_back, "a rewind"), (recount, "a repair of the store"), (reset, "a reset")]
)
def test_what_would_take_back_publications_is_refused(
    store: Store, work: Callable[[Store, Lease], None], refused: str
) -> None:
    lease = acquire(store, fingerprint={**FINGERPRINT, "sinks": {"alerts": {"topic": "alerts"}}})
    commit_records(store, lease, 1, 2, alerts=1)
    with pytest.raises(ConfigError, match=rf"has sinks \('alerts'\), .* can't be taken back: {refused} is refused"):
        work(store, lease)
    assert (txids(store, "alerts"), store.status(TOPOLOGY)[0].rewinding_to) == ([1], None)


@pytest.mark.parametrize(("work", "refused"), [(go_back, "a rewind"), (recount, "a repair of the store")])
@pytest.mark.parametrize("is_published", [False, True])
def test_publications_of_a_sink_that_has_left_are_not_taken_back(
    store: Store, work: Callable[[Store, Lease], None], refused: str, *, is_published: bool
) -> None:
    lease = acquire(store)
    published = commit_records(store, lease, 1, 2, alerts=1)
    if is_published:
        store.settle_sink(lease, "alerts", published)
    with pytest.raises(ConfigError, match=rf"had sinks \('alerts'\), .* can't be taken back: {refused} is refused"):
        work(store, lease)
    assert store.status(TOPOLOGY)[0].rewinding_to is None


def test_a_reset_deletes_what_a_sink_has_left(storage: Storage, store: Store) -> None:
    lease = acquire(store)
    store.settle_sink(lease, "alerts", commit_records(store, lease, 1, 2, alerts=1))
    commit_records(store, lease, 2, 3, alerts=1)
    store.release(lease)
    assert store.reset(TOPOLOGY)
    assert storage.open().sinks(TOPOLOGY) == {}


def test_a_sink_may_join_and_not_leave(store: Store) -> None:
    with_sink = {**FINGERPRINT, "sinks": {"alerts": {"topic": "alerts"}}}
    lease = acquire(store)
    commit_records(store, lease, 1, 2)
    store.release(acquire(store, fingerprint=with_sink))
    with pytest.raises(TopologyChanged, match=r'sinks\.alerts\.topic: stored "alerts", given nothing'):
        acquire(store)
    acquire(store, accept_changes=True)
