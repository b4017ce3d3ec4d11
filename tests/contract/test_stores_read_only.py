"""Whoever only looks changes nothing: what is no store stays none, a reader's rights suffice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg.sql import SQL, Identifier
from sqlalchemy import inspect, make_url

from tests.contract.storages import TOPOLOGY, Storage, acquire, commit, engine_of, execute
from transactional.core.store import StoreReader
from transactional.core.store.databases.database import Database, DatabaseFailed
from transactional.core.store.sql import reader as reader_module
from transactional.core.store.sql.reader import SqlStoreReader
from transactional.errors import ConfigError, StoreUnavailable
from transactional.model.attempt import AttemptId, TxId
from transactional.operations.loading import open_existing_store, open_for_reading


@contextmanager
def reader_of(storage: Storage) -> Iterator[SqlStoreReader]:
    with closing(SqlStoreReader(storage.url or "")) as reader:
        yield reader


def tables_in(storage: Storage) -> set[str]:
    engine = engine_of(storage)
    with engine.connect() as connection:
        found = set(inspect(connection).get_table_names())
    engine.dispose()
    return found


def told(store: StoreReader) -> list[object]:
    """All that a store tells."""
    return [
        store.status(),
        store.status(TOPOLOGY),
        store.position(TOPOLOGY),
        store.desired(TOPOLOGY),
        store.attempts(TOPOLOGY, limit=9),
        store.attempts_at(TOPOLOGY, TxId(1)),
        store.times(TOPOLOGY, limit=9),
        store.times(TOPOLOGY, limit=9, before=AttemptId(3), phases=["committed", "failed"]),
        store.runs(TOPOLOGY, limit=9),
        store.minutes(TOPOLOGY, since_ms=0),
        store.txid_of(TOPOLOGY, "total", AttemptId(1)),
        store.txid_of(TOPOLOGY, "total", AttemptId(9)),
        store.has_fence(TOPOLOGY, "total"),
    ]


@pytest.mark.parametrize("opens", [open_for_reading, open_existing_store])
def test_a_database_of_something_else_stays_as_it_is(database: Storage, opens: Callable[[str], StoreReader]) -> None:
    execute(database, "CREATE TABLE theirs (a BIGINT)")
    told_so = pytest.raises(
        ConfigError, match=r"there is no store in (sqlite|postgresql)://.* reading does not make them"
    )
    with told_so, closing(opens(database.url or "")) as store:
        store.status()
    assert tables_in(database) == {"theirs"}


def test_the_database_itself_refuses_to_be_written(database: Storage) -> None:
    execute(database, "CREATE TABLE theirs (a BIGINT)")
    with (
        closing(Database(database.url or "", timeout_ms=5_000, read_only=True)) as opened,
        pytest.raises(DatabaseFailed, match=r"read-?only"),
        opened.writing() as connection,
    ):
        connection.exec_driver_sql("INSERT INTO theirs VALUES (1)")


def test_a_reader_waits_for_no_writer(database: Storage) -> None:
    store = database.open()
    commit(store, acquire(store), 1, 2)
    database_of_writer = Database(database.url or "", timeout_ms=5_000)
    with (
        reader_of(database) as reader,
        closing(database_of_writer),
        database_of_writer.writing() as connection,
    ):
        connection.exec_driver_sql("UPDATE transactional_topologies SET committed_txid = 99")
        assert reader.status(TOPOLOGY)[0].committed_txid == 1


def test_a_file_that_is_deleted_is_told_and_one_that_takes_its_place_is_read(
    sqlite_storage: Storage, tmp_path: Path
) -> None:
    """An open file outlives its name: its reader would show the same for ever."""
    acquire(sqlite_storage.open())
    sqlite_storage.close()
    file = tmp_path / "store.db"
    with reader_of(sqlite_storage) as reader:
        assert [each.topology_id for each in reader.status()] == [TOPOLOGY]
        for path in tmp_path.glob("store.db*"):
            path.unlink()
        with pytest.raises(StoreUnavailable, match="is no longer there: its file was deleted or moved"):
            reader.status()
        acquire(Storage(sqlite_storage.url).open(), topology_id="another")
        assert file.is_file()
        assert [each.topology_id for each in reader.status()] == ["another"]


@pytest.mark.postgres
def test_a_role_that_may_only_read_suffices(postgres_storage: Storage, postgres_url: str) -> None:
    """And one that may not is told what it lacks."""
    store = postgres_storage.open()
    commit(store, acquire(store), 1, 2)
    schema = str(make_url(postgres_storage.url or "").query["options"]).rpartition("=")[2]
    role, url = Identifier(f"{schema}_looks"), make_url(postgres_storage.url or "").set(username=f"{schema}_looks")
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(SQL("CREATE ROLE {} LOGIN").format(role))
        connection.execute(SQL("GRANT USAGE ON SCHEMA {} TO {}").format(Identifier(schema), role))
        with reader_of(Storage(url.render_as_string(hide_password=False))) as reader:
            with pytest.raises(ConfigError, match=r"can't be read: permission denied .* needs USAGE .* and SELECT"):
                reader.status()
            connection.execute(SQL("GRANT SELECT ON ALL TABLES IN SCHEMA {} TO {}").format(Identifier(schema), role))
            assert told(reader) == told(store)


def test_rows_are_made_into_records_when_the_database_transaction_is_over(
    database: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL ends one that is idle while thousands of attempts are decoded."""
    store = database.open()
    commit(store, acquire(store), 1, 2)
    with reader_of(database) as reader:
        pool = reader._database._database._engine.pool
        for made in ("status_of", "record_of", "times_of", "run_of", "minute_of"):
            makes = getattr(reader_module, made)

            def looks(row: object, makes: Callable[[object], object] = makes) -> object:
                seen.append(pool.checkedout())  # type: ignore[attr-defined]
                return makes(row)

            monkeypatch.setattr(reader_module, made, looks)
        seen = list[int]()
        told(reader)
    assert seen
    assert set(seen) == {0}
