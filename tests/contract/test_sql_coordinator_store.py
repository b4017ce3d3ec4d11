"""What only a database can do to a coordinator's store: several processes, lost connections, locks, other versions."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import inspect

from tests.contract.stopped_leader import LEASE_MS
from tests.contract.storages import (
    FINGERPRINT,
    TOPOLOGY,
    Storage,
    Store,
    acquire,
    batch_of,
    commit,
    content,
    engine_of,
    execute,
    in_flight,
    read,
    record_attempt,
    record_commit,
    tried,
    wait_until,
)
from tests.integration.postgres import LossyProxy
from tests.unit.runtime.publishing.word_sink import TARGETS, Target, WordSink
from transactional.core.ports import SinkOwner
from transactional.core.store import Lease
from transactional.core.store.outbox import Publication, SinkProgress
from transactional.core.store.sql.reader import SqlStoreReader
from transactional.core.store.sql.schema import SCHEMA_VERSION
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.core.store.sql.statements import ATTEMPTS_AT
from transactional.errors import (
    ConfigError,
    CorruptRecord,
    StoreTooNew,
    StoreUnavailable,
    TopologyInUse,
)
from transactional.model.attempt import TxId
from transactional.model.batch import BatchMetadata, Digest, Offset, OffsetRange, PartitionId, PendingMessage
from transactional.model.facts import BatchFacts, LastSeen, Listed, Listing
from transactional.model.letters import Exclusion, Letter
from transactional.runtime.publishing.payload_files import PayloadFolder
from transactional.runtime.publishing.payloads import encode_payload
from transactional.runtime.publishing.relay import Relay
from verifier.evidence.store import Store as VerifiedStore

ROOT = Path(__file__).parents[2]
WRITTEN = Path(__file__).parent / "store_version_7.sql"


@contextmanager
def process(module: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A helper of these tests in a process of its own, which does not outlive the test."""
    command = [sys.executable, "-m", f"tests.contract.{module}", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as started:
        try:
            yield started
        finally:
            started.kill()


def end_of(started: subprocess.Popen[str]) -> str:
    output, _ = started.communicate()
    assert started.returncode == 0
    return output


# --- opening ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("mysql://me:hidden@host/db", r"sqlite:///… or postgresql://…, not mysql://…"),
        ("me:hidden@host", r"needs a URL such as sqlite:///transactional\.db"),
        (
            "sqlite:////no/such/folder/store.db",
            "store, /no/such/folder/store.db, does not exist; create it",
        ),
    ],
)
def test_a_url_that_cannot_be_used_is_reported(url: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        SqlCoordinatorStore(url)
    assert "hidden" not in str(caught.value)


def test_a_missing_driver_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(
        ConfigError, match=r"://\*\*\*@host/db needs psycopg 3: install transactional-topologies\[postgres\]"
    ):
        SqlCoordinatorStore("postgresql://me:hidden@host/db")


@pytest.mark.parametrize("where", ["me:hidden@127.0.0.1:1/db", "127.0.0.1:1/db?user=me&password=hidden"])
def test_a_server_that_does_not_answer_is_reported_without_the_password(where: str) -> None:
    with closing(SqlCoordinatorStore(f"postgresql+psycopg://{where}")) as store:
        with pytest.raises(StoreUnavailable, match=r"\*\*\*.* does not respond: .*refused.* can be repeated") as caught:
            acquire(store)
        assert "hidden" not in str(caught.value) + repr(store)


@pytest.mark.parametrize("version", [1, SCHEMA_VERSION - 1, SCHEMA_VERSION + 1])
def test_another_schema_version_is_refused_and_left_alone(database: Storage, version: int) -> None:
    commit(store := database.open(), acquire(store), 1, 2)
    execute(database, f"UPDATE transactional_schema SET version = {version}", "DROP TABLE transactional_savepoints")
    with pytest.raises(
        StoreTooNew if version > SCHEMA_VERSION else ConfigError,
        match=rf"schema version {version}, and this release reads version {SCHEMA_VERSION} only: .* with a new store",
    ) as refused:
        acquire(database.open())
    assert "\n" not in str(refused.value)
    with (
        pytest.raises(type(refused.value), match=re.escape(str(refused.value))),
        closing(SqlStoreReader(database.url or "")) as reader,
    ):
        reader.status()
    execute(database, f"UPDATE transactional_schema SET version = {SCHEMA_VERSION}")
    assert [each.committed_txid for each in database.open().status()] == [1]
    engine = engine_of(database)
    assert "transactional_savepoints" not in inspect(engine).get_table_names()
    engine.dispose()


def test_a_store_made_before_there_were_sinks_is_given_their_tables(database: Storage) -> None:
    """By whoever writes. Who only reads says so; so it is with columns that came later."""
    commit(store := database.open(), acquire(store), 1, 2)
    store.close()
    for change in ("DROP TABLE transactional_sinks", "ALTER TABLE transactional_outbox DROP COLUMN file"):
        execute(database, change)
        with (
            closing(SqlCoordinatorStore.for_reading(database.url or "")) as reader,
            pytest.raises(ConfigError, match=r"before there were sinks, .* the next run of a topology adds them"),
        ):
            reader.status()
        with closing(database.open()) as writer:
            assert writer.sinks(TOPOLOGY) == {}
            assert writer.outbox(TOPOLOGY, "alerts", last=TxId(9), limit=9) == []
    with closing(SqlCoordinatorStore.for_reading(database.url or "")) as reader:
        assert [each.committed_txid for each in reader.status()] == [1]


def test_the_first_store_of_this_version_is_read_verified_and_continued(database: Storage) -> None:
    """It was written once, with a batch of all parts: the code may change, and has to read it."""
    lines = WRITTEN.read_text("utf-8").splitlines()
    execute(database, *"\n".join(line for line in lines if not line.startswith("--")).split(";\n"))
    store = database.open()
    first, flights = batch_with_all_parts(), PartitionId("flights", 0)
    [status] = store.status()
    assert (status.topology_id, status.epoch, status.committed_txid, status.attempt_id) == (TOPOLOGY, 1, 1, 4)
    assert (status.name, status.lag, status.fingerprint) == ("flights-7", 4, FINGERPRINT)
    assert [(str(each.attempt), each.phase) for each in store.attempts(TOPOLOGY, limit=9)] == [
        ("2:4", "given up"),
        ("2:3", "failed"),
        ("1:2", "committed"),
    ]
    [committed] = store.attempts_at(TOPOLOGY, TxId(1))
    assert (committed.batch, committed.batch.to_json()) == (first, first.to_json())
    assert (committed.batch.digests[flights].bytes, committed.batch.digests[flights].event_us) == (640, 7_000)
    assert [each.txid for each in store.savepoints(TOPOLOGY)] == [1]
    [minute] = store.minutes(TOPOLOGY, since_ms=0)
    assert minute.phases_ms == {"planning": 1, "processing": 20, "waiting": 3, "committing": 40}
    assert store.sinks(TOPOLOGY) == {"alerts": SinkProgress(TxId(1), Publication("first#1", tried(1, 2)))}
    [run] = store.runs(TOPOLOGY, limit=9)
    assert (run.about.version, run.about.settings["lease_ms"]) == ("0.1.0", 60_000)
    with closing(VerifiedStore(database.url or "")) as opened:
        verified = opened.history(TOPOLOGY)
    assert [(each.txid, each.time_ms, each.records, each.is_filtered) for each in verified.committed] == [
        (1, 1_000, 10, True)
    ]
    lease = acquire(store)
    assert (lease.progress.committed_batch, lease.progress.recorded) == (first, {TxId(2): batch_of(10)})
    commit(store, lease, 2, lease.fence_id + 1)
    assert store.status()[0].committed_txid == 2


def batch_with_all_parts() -> BatchMetadata:
    """The batch of transaction 1 in the stored fixture."""
    flights = PartitionId("flights", 0)
    return BatchMetadata(
        {flights: OffsetRange(Offset(0), Offset(10))},
        {flights: Digest(10, 7, 640, 7_000)},
        metadata={flights: {"file": "x"}},
        split_records=5,
        excluded=(Exclusion("bolt", "0123", "no"),),
        letters=(Letter(1, 0, "bolt", "flights", "default", '{"n": 1}', "no"),),
        facts=BatchFacts(
            1_000, 5_000, 900, None, outer_watermarks={"total": (4_000, None)}, last_row_ms={"total": 950}
        ),
        event_times={flights: LastSeen(7_000, 1_000)},
        listed={PartitionId("flights", 1): Listed(900, Listing.EMPTY, is_awaited=False)},
        pending=(PendingMessage(flights, Offset(3), 2, 1_400, "no"),),
        again=(PendingMessage(flights, Offset(1), 1, 900),),
        lost=3,
        static_versions={"prices": "0e5f@7", "users": "12"},
    )


def test_many_may_open_a_new_database_at_once(database: Storage) -> None:
    stores = [database.open() for _ in range(8)]
    with ThreadPoolExecutor(len(stores)) as threads:
        assert list(threads.map(lambda store: store.status(), stores)) == [[]] * len(stores)


@pytest.mark.long("threads: test_coordinators_that_fence_each_other_commit_each_transaction_once")
def test_processes_that_start_and_fence_each_other_commit_each_transaction_once(database: Storage) -> None:
    txids, url = 30, database.url or ""
    with process("racing", url, str(txids)) as first, process("racing", url, str(txids)) as second:
        committed = [int(txid) for racer in (first, second) for txid in end_of(racer).split()]
    assert sorted(committed) == list(range(1, txids + 1))
    attempts = [each for each in database.open().attempts(TOPOLOGY, limit=1_000) if each.phase == "committed"]
    assert [each.attempt.txid for each in attempts] == list(range(txids, 0, -1))


@pytest.mark.postgres
def test_a_user_who_may_not_create_tables_is_reported(postgres_storage: Storage) -> None:
    execute(postgres_storage, "DROP ROLE IF EXISTS reader; CREATE ROLE reader LOGIN")
    url = (postgres_storage.url or "").replace("postgres@", "reader@")
    with closing(SqlCoordinatorStore(url)) as store, pytest.raises(ConfigError, match=r"can't be used: .*schema"):
        store.status()


# --- what was stored can't be read ----------------------------------------------------------------------------------


def test_a_damaged_batch_is_reported(database: Storage) -> None:
    store = database.open()
    in_flight(store)
    execute(database, "UPDATE transactional_attempts SET batch = 'gibberish' WHERE txid = 2")
    with pytest.raises(CorruptRecord, match="gibberish"):
        acquire(store)
    assert store.status(TOPOLOGY)[0].epoch == 1


ATTEMPT = r"the row of attempt \d+ in transactional_attempts"
UNREADABLE: Mapping[str, tuple[str, Callable[[Any], object], str]] = {
    "a batch in flight": (
        "UPDATE transactional_attempts SET batch = '{' WHERE txid = 2",
        acquire,
        "the batch of transaction 2 of topology 'carriers' in transactional_attempts",
    ),
    "the committed batch": ("UPDATE transactional_attempts SET batch = '{' WHERE txid = 1", acquire, ATTEMPT),
    "an attempt's batch": (
        "UPDATE transactional_attempts SET batch = '{' WHERE txid = 2",
        lambda store: store.attempts(TOPOLOGY, limit=9),
        ATTEMPT,
    ),
    "an attempt's details": (
        "UPDATE transactional_attempts SET details = '[]'",
        lambda store: store.times(TOPOLOGY, limit=9),
        ATTEMPT,
    ),
    "a run": (
        "UPDATE transactional_runs SET described = 'x'",
        lambda store: store.runs(TOPOLOGY, limit=9),
        "the row of the run of epoch 1 in transactional_runs",
    ),
    "the topology": (
        "UPDATE transactional_topologies SET fingerprint = '[]'",
        lambda store: store.status(),
        "the row of topology 'carriers' in transactional_topologies",
    ),
    "what is desired": (
        "UPDATE transactional_topologies SET desired = 'x'",
        lambda store: store.desired(TOPOLOGY),
        "the desired state of a topology in transactional_topologies",
    ),
}


@pytest.mark.parametrize("row", UNREADABLE)
def test_a_row_that_can_not_be_read_is_named(database: Storage, row: str) -> None:
    """Store, table, row, and what to do, in one line."""
    damage, reads, named = UNREADABLE[row]
    store = database.open()
    in_flight(store)
    execute(database, damage)
    with pytest.raises(CorruptRecord, match=rf"^the store \w+://\S+: {named} is not readable: .* from a backup$"):
        reads(store)


def test_a_lost_committed_batch_is_reported(database: Storage) -> None:
    store = database.open()
    in_flight(store)
    execute(database, "DELETE FROM transactional_attempts WHERE txid = 1")
    with pytest.raises(CorruptRecord, match="lacks the batch of transaction 1 of topology 'carriers'"):
        acquire(store)


# --- locks ------------------------------------------------------------------------------------------------------


@contextmanager
def locked(storage: Storage) -> Iterator[None]:
    """Another process is in the middle of a write."""
    path = (storage.url or "").removeprefix("sqlite:///")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        connection.execute("BEGIN IMMEDIATE")
        yield


def test_a_write_that_waits_too_long_for_sqlite_is_given_up(sqlite_storage: Storage) -> None:
    store = sqlite_storage.open(timeout_ms=50)
    lease = acquire(store)
    with locked(sqlite_storage), pytest.raises(StoreUnavailable, match="database is locked"):
        record_attempt(store, lease, 1, 2)
    record_attempt(store, lease, 1, 2)


def test_reading_sqlite_does_not_wait_for_a_writer(sqlite_storage: Storage) -> None:
    store = sqlite_storage.open(timeout_ms=50)
    acquire(store)
    with locked(sqlite_storage):
        assert store.status(TOPOLOGY)[0].epoch == 1
        assert store.attempts(TOPOLOGY, limit=1) == []


def test_a_short_lease_shortens_how_long_a_write_waits(sqlite_storage: Storage) -> None:
    store = sqlite_storage.open(timeout_ms=20_000)
    lease = acquire(store, lease_ms=100)
    started = time.monotonic()
    with locked(sqlite_storage), pytest.raises(StoreUnavailable):
        store.renew(lease, lease_ms=100)
    assert time.monotonic() - started < 10


def take_over(store: Store) -> bool:
    try:
        return acquire(store, "successor").owner == "successor"
    except (TopologyInUse, StoreUnavailable):
        return False


@contextmanager
def stopped_leader(storage: Storage) -> Iterator[subprocess.Popen[str]]:
    """A coordinator whose process is stopped in the middle of committing transaction 1."""
    with process("stopped_leader", storage.url or "") as leader:
        _, status = os.waitpid(leader.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        yield leader


@pytest.mark.postgres
def test_a_leader_that_is_stopped_inside_a_write_is_replaced_on_postgres(postgres_storage: Storage) -> None:
    store = postgres_storage.open(timeout_ms=2 * LEASE_MS)
    with stopped_leader(postgres_storage) as leader:
        wait_until(lambda: take_over(store))
        lease = acquire(store, "successor")
        assert (lease.progress.committed_txid, lease.progress.recorded) == (0, {1: batch_of(0)})
        commit(store, lease, 1, lease.fence_id + 1)
        before = content(store)
        leader.send_signal(signal.SIGCONT)
        assert end_of(leader) == "StoreUnavailable Fenced"
        assert content(store) == before


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("told", "committed_txid"), [(signal.SIGKILL, 0), (signal.SIGCONT, 1)])
def test_a_leader_that_is_stopped_inside_a_write_holds_up_sqlite_until_it_goes_on_or_ends(
    sqlite_storage: Storage, told: signal.Signals, committed_txid: int
) -> None:
    with stopped_leader(sqlite_storage) as leader:
        sqlite_storage.wait_for_end_of_lease(TOPOLOGY)
        store = sqlite_storage.open(timeout_ms=50)
        with pytest.raises(StoreUnavailable, match="locked"):
            acquire(store, "successor")
        leader.send_signal(told)
        output, _ = leader.communicate()
    assert output == ("done done" if told == signal.SIGCONT else "")
    assert acquire(store, "successor").progress.committed_txid == committed_txid


# --- lost connections -------------------------------------------------------------------------------------------

STEPS: dict[str, Callable[[Store, Lease], object]] = {
    "acquire": lambda store, _: acquire(store),
    "record_attempt": lambda store, lease: record_attempt(store, lease, 2, 4, start=21, forget_later=True),
    "record_processed": lambda store, lease: store.record_processed(lease, tried(2, 3), read(batch_of(20)), at_ms=5),
    "record_commit": lambda store, lease: record_commit(store, lease, tried(2, 3), read(batch_of(20))),
    "record_fence": lambda store, lease: store.record_fence(lease, "total", TxId(1)),
}


@pytest.mark.postgres
@pytest.mark.parametrize("server_gets_it", [True, False])
@pytest.mark.parametrize("step", STEPS)
def test_a_write_whose_outcome_got_lost_is_made_again(
    postgres_storage: Storage, postgres_sockets: Path, postgres_schema: str, step: str, *, server_gets_it: bool
) -> None:
    direct = postgres_storage.open()
    lease = in_flight(direct)
    before = content(direct)
    with LossyProxy(postgres_sockets) as proxy, closing(SqlCoordinatorStore(proxy.url_of(postgres_schema))) as store:
        store.status()
        proxy.lose_next_commit(server_gets_it=server_gets_it)
        with pytest.raises(StoreUnavailable, match="may or may not have happened, and can be repeated"):
            STEPS[step](store, lease)
        assert proxy.lost.is_set()
        written = content(direct)
        assert (written != before) == server_gets_it
        STEPS[step](store, lease)
        if server_gets_it and step != "acquire":
            assert content(direct) == written
    assert content(direct) != before


@pytest.mark.postgres
@pytest.mark.long("the same connection is lost in test_a_write_whose_outcome_got_lost_is_made_again")
@pytest.mark.parametrize("server_gets_it", [True, False])
def test_a_relay_settles_again_what_it_has_published_once(
    postgres_storage: Storage, postgres_sockets: Path, postgres_schema: str, *, server_gets_it: bool
) -> None:
    direct = postgres_storage.open()
    lease = acquire(direct)
    for txid in (1, 2):
        records = encode_payload(pa.table({"word": [f"word {txid}"]}), 1)
        attempt = record_attempt(direct, lease, txid, txid + 1, start=10 * txid)
        record_commit(direct, lease, attempt, read(batch_of(10 * txid)), outbox={"alerts": records})
    target = TARGETS["lossy"] = Target()
    sink = WordSink("lossy")
    sink.open(SinkOwner(TOPOLOGY, "alerts", "store"), has_published=False)
    with LossyProxy(postgres_sockets) as proxy, closing(SqlCoordinatorStore(proxy.url_of(postgres_schema))) as store:
        relay = Relay("alerts", sink, store, lease, lambda: None, lambda: 0, PayloadFolder(None))
        relay.confirm(TxId(2))
        store.outbox(TOPOLOGY, "alerts", last=TxId(2), limit=1)
        proxy.lose_next_commit(server_gets_it=server_gets_it)
        with pytest.raises(StoreUnavailable, match="may or may not have happened, and can be repeated"):
            relay.step()
        assert (proxy.lost.is_set(), bool(direct.sinks(TOPOLOGY)["alerts"].waiting)) == (True, not server_gets_it)
        assert relay.step()
        assert not relay.step()
    assert target.published == [(1, ["word 1"]), (2, ["word 2"])]
    progress = direct.sinks(TOPOLOGY)["alerts"]
    assert (progress.done_txid, progress.waiting) == (2, 0)


@pytest.mark.postgres
def test_a_connection_that_was_ended_meanwhile_is_replaced(postgres_storage: Storage) -> None:
    store = postgres_storage.open()
    lease = acquire(store)
    execute(postgres_storage, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
    with pytest.raises(StoreUnavailable, match="terminating connection"):
        record_attempt(store, lease, 1, 2)
    record_attempt(store, lease, 1, 2)
    assert store.status(TOPOLOGY)[0].attempt_id == 2


def test_the_attempts_at_a_transaction_are_found_by_an_index(sqlite_storage: Storage) -> None:
    """Otherwise the page of a transaction takes longer with each attempt in the store."""
    store = sqlite_storage.open()
    commit(store, acquire(store), 1, 2)
    values = {"topology": TOPOLOGY, "number": 1}
    query = str(ATTEMPTS_AT.params(values).compile(compile_kwargs={"literal_binds": True}))
    with closing(sqlite3.connect((sqlite_storage.url or "").removeprefix("sqlite:///"))) as connection:
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}")]
    assert "SEARCH transactional_attempts USING INDEX transactional_attempts_by_txid (topology_id=? AND txid=?)" in plan
