"""Stores of earlier versions are brought to this one when they are opened, with all that is in them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, inspect

from tests.contract.storages import FINGERPRINT, TOPOLOGY, Storage, acquire, batch_of, commit, read, tried
from transactional.core.store import Desired, DesiredState
from transactional.core.store.sql.migrations import MIGRATIONS
from transactional.core.store.sql.schema import SCHEMA_VERSION
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.model.attempt import AttemptId, TxId

FOLDER = Path(__file__).parent
VERSIONS = range(1, SCHEMA_VERSION)
TABLES = ("topologies", "attempts", "transactions", "fences", "runs", "minutes", "savepoints", "schema")


def statements(version: int) -> list[str]:
    """What makes a store of that version, as that version has made it."""
    lines = (FOLDER / f"store_version_{version}.sql").read_text("utf-8").splitlines()
    return "\n".join(line for line in lines if not line.startswith("--")).split(";\n")


def engine_of(storage: Storage) -> Engine:
    return create_engine((storage.url or "").replace("postgresql:", "postgresql+psycopg:"))


def execute(storage: Storage, *texts: str) -> None:
    engine = engine_of(storage)
    with engine.begin() as connection:
        for text in filter(str.strip, texts):
            connection.exec_driver_sql(text)
    engine.dispose()


def columns(storage: Storage) -> dict[str, list[tuple[str, bool]]]:
    """Name and whether NULL may stand there, of each column of each table."""
    engine = engine_of(storage)
    with engine.connect() as connection:
        looked = inspect(connection)
        found = {
            table: [
                (str(each["name"]), bool(each["nullable"])) for each in looked.get_columns(f"transactional_{table}")
            ]
            for table in TABLES
        }
    engine.dispose()
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_an_older_store_is_opened_with_all_that_is_in_it(database: Storage, version: int) -> None:
    execute(database, *statements(version))
    store = database.open()
    [status] = store.status()
    assert (status.topology_id, status.epoch, status.committed_txid, status.attempt_id) == (TOPOLOGY, 1, 1, 3)
    assert (status.fingerprint, status.owner, status.name) == (FINGERPRINT, None, None)
    assert store.desired(TOPOLOGY) == Desired(DesiredState.ACTIVE)
    phases = [(each.attempt, each.phase) for each in store.attempts(TOPOLOGY, limit=9)]
    assert phases == [(tried(2, 3), "processing"), (tried(1, 2), "committed")]
    assert store.txid_of(TOPOLOGY, "total", AttemptId(1)) == 1
    lease = acquire(store, name="deploy-7")
    assert lease.progress.committed_batch == read(batch_of(10))
    assert lease.progress.recorded == {TxId(2): batch_of(20)}
    assert [str(each.attempt) for each in store.attempts(TOPOLOGY, limit=9) if each.phase == "given up"] == ["2:3"]
    commit(store, lease, 2, 5)
    assert store.desire(TOPOLOGY, DesiredState.INACTIVE)
    assert database.open().status()[0].desired is DesiredState.INACTIVE


@pytest.mark.parametrize("version", VERSIONS)
def test_an_older_store_gets_the_tables_of_a_new_one(sqlite_storage: Storage, tmp_path: Path, version: int) -> None:
    execute(sqlite_storage, *statements(version))
    sqlite_storage.open().status()
    new = Storage(f"sqlite:///{tmp_path}/new.db")
    with closing(SqlCoordinatorStore(new.url or "")) as store:
        store.status()
    assert columns(sqlite_storage) == columns(new)


@pytest.mark.parametrize("version", VERSIONS)
def test_many_may_open_an_older_store_at_once(database: Storage, version: int) -> None:
    execute(database, *statements(version))
    stores = [database.open() for _ in range(8)]
    with ThreadPoolExecutor(len(stores)) as threads:
        assert [len(found) for found in threads.map(lambda store: store.status(), stores)] == [1] * len(stores)


def test_a_coordinator_of_version_2_goes_on_while_the_store_is_brought_up(database: Storage) -> None:
    """It commits transaction 2 by its own statements; what reads the store then knows nothing of its run."""
    execute(database, *statements(2))
    store = database.open()
    assert store.status(TOPOLOGY)[0].run is None
    execute(
        database,
        "UPDATE transactional_topologies SET epoch = 2, owner = 'old', leased_until_ms = 99, attempt_id = 5",
        "INSERT INTO transactional_attempts (topology_id, attempt_id, txid, phase, batch, rows, issued_at_ms, "
        "planned_at_ms, processed_at_ms, commit_started_at_ms, committed_at_ms, error) SELECT topology_id, 5, 2, "
        "phase, batch, rows, 1, 2, NULL, NULL, NULL, NULL FROM transactional_attempts WHERE attempt_id = 3",
        "UPDATE transactional_transactions SET attempt_id = 5",
        "UPDATE transactional_topologies SET committed_txid = 2, committed_attempt_id = 5",
        "UPDATE transactional_attempts SET phase = 'committed', committed_at_ms = 77 WHERE attempt_id = 5",
        "DELETE FROM transactional_transactions",
    )
    [status] = store.status(TOPOLOGY)
    assert (status.committed_txid, status.committed_at_ms, status.lag, status.run) == (2, 77, None, None)
    assert acquire(store).progress.committed_batch == batch_of(20)
    assert [run.epoch for run in store.runs(TOPOLOGY, limit=9)] == [3]


def test_a_coordinator_of_version_1_goes_on_while_the_store_is_brought_up(database: Storage) -> None:
    """It names the columns that it writes; the new ones have defaults."""
    execute(database, *statements(1))
    store = database.open()
    store.status()
    create = (
        "INSERT INTO transactional_topologies (topology_id, epoch, attempt_id, committed_txid, fingerprint) "
        "VALUES ('old', 0, 0, 0, '{}')"
    )
    execute(database, create, "UPDATE transactional_topologies SET epoch = 1 WHERE topology_id = 'old'")
    [status] = store.status("old")
    assert (status.epoch, status.desired, status.name) == (1, DesiredState.ACTIVE, None)


def test_there_is_a_way_from_every_version_to_this_one() -> None:
    assert sorted(MIGRATIONS) == list(VERSIONS)
