"""The outbox of every coordinator's store: rows come with the transaction commit, and go with the publication."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
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
from transactional.core.store.outbox import Boundary, OutboxRow, PayloadFile, Publication, SinkProgress, SinkRecords
from transactional.core.store.sink_rules import run_of
from transactional.core.store.sql import outbox as outbox_sql
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
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


def test_a_transaction_whose_rows_are_not_stored_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("the disk is full")

    with closing(SqlCoordinatorStore(f"sqlite:///{tmp_path}/store.db")) as store:
        lease = acquire(store)
        attempt = record_attempt(store, lease, 1, 2, start=10)
        monkeypatch.setattr(outbox_sql, "add_rows", fail)
        with pytest.raises(OSError, match="the disk is full"):
            record_commit(store, lease, attempt, read(batch_of(10)), outbox={"alerts": SinkRecords(PAYLOAD, 1)})
        assert store.status(TOPOLOGY)[0].committed_txid == 0


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


def published_three(store: Store, *, settled: int) -> tuple[Lease, list[Publication]]:
    """Three transactions for a sink, of which the first ones are settled."""
    lease = acquire(store)
    publications = [commit_records(store, lease, txid, 1 + txid, alerts=1) for txid in (1, 2, 3)]
    if settled:
        store.settle_sink(lease, "alerts", publications[settled - 1])
    return lease, publications


def test_nothing_is_published_while_a_rewind_is_unfinished(storage: Storage, store: Store) -> None:
    lease, _ = published_three(store, settled=1)
    store.begin_rewind(lease, TxId(2))
    assert (txids(store, "alerts"), txids(storage.open(), "alerts")) == ([], [])
    store.finish_rewind(lease, TxId(2))
    assert txids(store, "alerts") == [2]


@pytest.mark.parametrize("settled", [0, 1, 2, 3])
@pytest.mark.parametrize("target", [0, 1, 2, 3])
def test_a_rewind_takes_back_rows_and_positions_in_one_write(
    storage: Storage, store: Store, settled: int, target: int
) -> None:
    lease, publications = published_three(store, settled=settled)
    fence_id = store.begin_rewind(lease, TxId(target))
    before = storage.open().sinks(TOPOLOGY)
    store.finish_rewind(lease, TxId(target))
    after = storage.open().sinks(TOPOLOGY)
    waiting = list(range(settled + 1, target + 1))
    assert txids(store, "alerts") == waiting
    if settled > target:
        assert after["alerts"] == SinkProgress(TxId(target), boundary=Boundary(TxId(target), fence_id))
    elif settled:
        assert after["alerts"].published == publications[settled - 1]
    assert "alerts" not in before or before["alerts"].waiting == 3 - settled


def test_a_second_rewind_moves_a_boundary_and_keeps_its_attempt(store: Store) -> None:
    lease, _ = published_three(store, settled=3)
    fence_id = store.begin_rewind(lease, TxId(2))
    store.finish_rewind(lease, TxId(2))
    store.begin_rewind(lease, TxId(1))
    store.finish_rewind(lease, TxId(1))
    assert store.sinks(TOPOLOGY)["alerts"].boundary == Boundary(TxId(1), fence_id)


def test_the_publication_after_a_boundary_takes_its_place(store: Store) -> None:
    lease, _ = published_three(store, settled=3)
    store.begin_rewind(lease, TxId(1))
    store.finish_rewind(lease, TxId(1))
    again = commit_records(store, lease, 2, 20, alerts=1)
    assert txids(store, "alerts") == [2]
    store.settle_sink(lease, "alerts", again)
    assert store.sinks(TOPOLOGY)["alerts"] == SinkProgress(TxId(2), again, 0, 0)


def test_a_sink_is_placed_whatever_was_noted(storage: Storage, store: Store) -> None:
    lease, _ = published_three(store, settled=2)
    store.place_sink(lease, "alerts", Boundary(TxId(1), AttemptId(40)))
    assert storage.open().sinks(TOPOLOGY)["alerts"] == SinkProgress(
        TxId(2), None, 1, 1, 257, Boundary(TxId(1), AttemptId(40))
    )
    store.place_sink(lease, "alerts", Boundary(TxId(3), AttemptId(41)))
    assert storage.open().sinks(TOPOLOGY)["alerts"] == SinkProgress(TxId(3), boundary=Boundary(TxId(3), AttemptId(41)))
    store.place_sink(lease, "alerts", None)
    assert storage.open().sinks(TOPOLOGY) == {}


def test_a_dropped_sink_loses_its_rows_alone(store: Store) -> None:
    lease = acquire(store)
    commit_records(store, lease, 1, 2, alerts=1, copy=1)
    store.place_sink(lease, "alerts", None)
    assert (txids(store, "alerts"), txids(store, "copy")) == ([], [1])


def test_only_the_lease_places_sinks(storage: Storage, store: Store) -> None:
    earlier, _ = published_three(store, settled=1)
    acquire(storage.open(), accept_changes=True)
    with pytest.raises(Fenced):
        store.place_sink(earlier, "alerts", None)
    assert store.sinks(TOPOLOGY)["alerts"].waiting == 2


def test_a_reset_refuses_to_drop_what_is_unsent(storage: Storage, store: Store) -> None:
    lease, _ = published_three(store, settled=1)
    store.release(lease)
    with pytest.raises(ConfigError, match=r"'alerts' has 2 transactions unsent .* pass --drop-unsent"):
        store.reset(TOPOLOGY)
    assert txids(storage.open(), "alerts") == [2, 3]
    assert store.reset(TOPOLOGY, drop_unsent=True)
    assert txids(storage.open(), "alerts") == []


@pytest.mark.parametrize("settled", [0, 3])
def test_a_reset_notes_the_counter_for_sinks(storage: Storage, store: Store, settled: int) -> None:
    """What a publisher had sent without being settled counts for nothing, either."""
    lease, _ = published_three(store, settled=settled)
    store.release(lease)
    counter = store.status(TOPOLOGY)[0].attempt_id
    assert store.reset(TOPOLOGY, drop_unsent=True)
    assert storage.open().sinks(TOPOLOGY)["alerts"] == SinkProgress(TxId(0), boundary=Boundary(TxId(0), counter))


def test_a_sink_may_join_and_not_leave(store: Store) -> None:
    with_sink = {**FINGERPRINT, "sinks": {"alerts": {"topic": "alerts"}}}
    lease = acquire(store)
    commit_records(store, lease, 1, 2)
    store.release(acquire(store, fingerprint=with_sink))
    with pytest.raises(TopologyChanged, match=r'sinks\.alerts\.topic: stored "alerts", given nothing'):
        acquire(store)
    acquire(store, accept_changes=True)


def test_records_are_set_aside_in_one_write(storage: Storage, store: Store) -> None:
    lease, publications = published_three(store, settled=0)
    first, second, _ = store.outbox(TOPOLOGY, "alerts", last=TxId(9), limit=9)
    store.set_aside(lease, first, SinkRecords(b"a", 1), None)
    store.set_aside(lease, second, SinkRecords(b"b", 1), SinkRecords(b"c", 2))
    store.set_aside(lease, second, SinkRecords(b"d", 1), None)
    assert storage.open().sink_letters(TOPOLOGY) == [
        OutboxRow("alerts", publications[0], 1, b"a"),
        OutboxRow("alerts", publications[1], 1, b"b"),
        OutboxRow("alerts", publications[1], 1, b"d"),
    ]
    assert txids(store, "alerts") == [3]
    store.set_aside(lease, second, SinkRecords(b"e", 1), None)
    assert len(store.sink_letters(TOPOLOGY)) == 3, "the row is no longer there"


def test_only_the_lease_sets_records_aside(storage: Storage, store: Store) -> None:
    earlier, _ = published_three(store, settled=0)
    [row] = store.outbox(TOPOLOGY, "alerts", last=TxId(1), limit=1)
    acquire(storage.open(), accept_changes=True)
    with pytest.raises(Fenced):
        store.set_aside(earlier, row, SinkRecords(b"a", 1), None)
    assert (store.sink_letters(TOPOLOGY), txids(store, "alerts")) == ([], [1, 2, 3])
