"""What only a database can do to a SQL state: lost answers, ended connections, several writers, a stopped one."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from sqlalchemy import Connection

from state.row_table import Change, Changes
from state.sql.state import SqlMapState
from tests.contract.states import OWNER, Place, content, counts
from tests.contract.storages import Storage, wait_until
from tests.integration.postgres import LossyProxy
from transactional.errors import ConfigError, Fenced, OperatingError, SchemaMismatch, TableConflict
from transactional.model.attempt import AttemptId, TxId


@pytest.fixture
def place(database: Storage, tmp_path: Path) -> Iterator[Place]:
    """A place in an empty database of each kind."""
    place = Place("sql", tmp_path, url=database.url or "")
    yield place
    place.close()


@pytest.fixture
def postgres_place(postgres_storage: Storage, tmp_path: Path) -> Iterator[Place]:
    place = Place("sql", tmp_path, url=postgres_storage.url or "")
    yield place
    place.close()


def opened(place: Place, kind: type[SqlMapState] = SqlMapState, url: str = "", **options: Any) -> SqlMapState:
    state = kind(url or place.url, "a table", "word string", "count long", **options)
    place.opened.append(state)
    state.open(OWNER, place.txids.__getitem__)
    return state


def execute(place: Place, statement: Any) -> None:
    with psycopg.connect(place.url, autocommit=True) as connection:
        connection.execute(statement)


def fails(place: Place, connection: Connection) -> Callable[[], object]:
    """Let the database fail a reader's next statement; call what is returned to let it succeed again."""
    driver: Any = connection.connection.driver_connection
    if place.url.startswith("sqlite"):
        driver.set_progress_handler(lambda: 1, 1)
        return lambda: driver.set_progress_handler(None, 0)
    execute(place, f"SELECT pg_terminate_backend({driver.info.backend_pid}, 10000)")
    return lambda: None


# The cursor that psycopg could not declare over an ended connection is not closed by SQLAlchemy.
@pytest.mark.filterwarnings("ignore:.*ServerCursor.*was deleted while still open:ResourceWarning")
def test_a_database_that_fails_a_pinned_reader_is_an_error_of_ours(place: Place) -> None:
    """PostgreSQL ends a transaction that is idle for too long; whoever reads then gets one line, and may pin again."""
    opened(place).merge(place.attempt(1, 1), counts({"a": 1}))
    reader: Any = place.opened[0].reader(OWNER)
    word = pa.table({"word": ["a"]})
    for read in (reader.rows, lambda txid: reader.lookup(txid, word)):
        reader.pin()
        assert read(TxId(1)).num_rows == 1
        succeed = fails(place, reader._connection)
        for _ in ("at once", "as long as it is not pinned again"):
            with pytest.raises(OperatingError, match="the database does not respond"):
                read(TxId(1))
        succeed()
    reader.pin()
    assert reader.rows(TxId(1)).num_rows == 1
    reader.close()
    gc.collect()  # That cursor, here, where its warning is expected.


def test_who_reads_a_state_that_is_not_open_keeps_no_connection(place: Place) -> None:
    state = opened(place)
    state.read()
    alone = SqlMapState(place.url, "a table", "word string", "count long")
    assert alone.read().num_rows == 0
    # A pool is all that SQLAlchemy has of connections that nobody uses.
    pools: list[Any] = [each._database._engine.pool for each in (state, alone)]
    assert [pool.checkedin() > 0 for pool in pools] == [True, False]


@pytest.mark.postgres
def test_columns_are_added_once_a_pinned_reader_is_done(postgres_place: Place) -> None:
    """The start waits for it, for as long as the database may take; the reader sees what it saw."""
    place = postgres_place
    opened(place).merge(place.attempt(1, 1), counts({"a": 1}))
    reader = place.opened[0].reader(OWNER)
    reader.pin()
    before = reader.rows(TxId(1))
    gained = SqlMapState(place.url, "a table", "word string", "count long, last string")
    place.opened.append(gained)
    gained.open(OWNER, place.txids.__getitem__)
    gained.version()

    def is_waiting() -> bool:
        with psycopg.connect(place.url) as connection:
            return bool(connection.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchall()[0][0])

    with ThreadPoolExecutor(1) as threads:
        fenced = threads.submit(gained.fence, place.attempt(1, 10).attempt_id)
        wait_until(is_waiting)
        assert reader.rows(TxId(1)).equals(before)
        reader.release()
        fenced.result(timeout=240)
    assert content(gained) == {"a": (1, None)}
    reader.pin()
    assert reader.rows(TxId(1)).equals(before)
    reader.close()


def test_many_may_open_a_new_table_at_once(place: Place) -> None:
    with ThreadPoolExecutor(8) as threads:
        states = list(threads.map(lambda _: opened(place), range(8)))
    assert [state.version() for state in states] == [None] * 8


def test_of_many_writers_of_one_transaction_the_newest_stays(place: Place) -> None:
    """Each attempt counts another batch; what the older ones have written is undone, whoever comes when."""
    opened(place).merge(place.attempt(1, 1), counts({"all": 100}))
    attempts = [place.attempt(2, attempt_id) for attempt_id in range(2, 10)]

    def write(number: int) -> str:
        state, attempt = opened(place), attempts[number]
        while True:
            try:
                state.merge(attempt, counts({"all": attempt.attempt_id, f"only {attempt.attempt_id}": 1}))
                return "written"
            except TableConflict:
                continue
            except Fenced:
                return "fenced"

    with ThreadPoolExecutor(len(attempts)) as threads:
        ends = list(threads.map(write, range(len(attempts))))
    assert ends[-1] == "written"
    state = opened(place)
    assert (state.version(), content(state)) == (9, {"all": 109, "only 9": 1})
    assert content(state, committed_txid=1) == {"all": 100}


@pytest.mark.postgres
@pytest.mark.parametrize("server_gets_it", [True, False])
def test_a_merge_whose_answer_got_lost_is_looked_up(
    postgres_place: Place, postgres_sockets: Path, postgres_schema: str, *, server_gets_it: bool
) -> None:
    place, attempt = postgres_place, postgres_place.attempt(1, 1)
    with LossyProxy(postgres_sockets) as proxy:
        state = opened(place, url=proxy.url_of(postgres_schema))
        proxy.lose_next_commit(server_gets_it=server_gets_it)
        if server_gets_it:
            state.merge(attempt, counts({"a": 1}))
        else:
            with pytest.raises(OperatingError, match="is at version None; attempt 1 was not written over it"):
                state.merge(attempt, counts({"a": 1}))
            state.merge(place.attempt(1, 2), counts({"a": 1}))
        assert proxy.lost.is_set()
        state.merge(place.attempt(2, 3), counts({"a": 1}))
        assert content(state) == {"a": 2}
        state.close()


@pytest.mark.postgres
@pytest.mark.parametrize("server_gets_it", [True, False])
def test_a_fence_whose_answer_got_lost_is_looked_up(
    postgres_place: Place, postgres_sockets: Path, postgres_schema: str, *, server_gets_it: bool
) -> None:
    place = postgres_place
    with LossyProxy(postgres_sockets) as proxy:
        state = opened(place, url=proxy.url_of(postgres_schema))
        state.version()
        proxy.lose_next_commit(server_gets_it=server_gets_it)
        if server_gets_it:
            state.fence(AttemptId(5))
        else:
            with pytest.raises(OperatingError, match="attempt 5 was not written"):
                state.fence(AttemptId(5))
        assert proxy.lost.is_set()
        assert state.version() == (5 if server_gets_it else None)
        state.close()


@pytest.mark.postgres
def test_a_connection_that_was_ended_meanwhile_costs_no_attempt(postgres_place: Place) -> None:
    place, state = postgres_place, opened(postgres_place)
    state.merge(place.attempt(1, 1), counts({"a": 1}))
    execute(place, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
    state.merge(place.attempt(2, 2), counts({"a": 1}))
    assert content(state) == {"a": 2}


class StopsInside(SqlMapState):
    """A writer whose process is stopped when it has moved the version and is about to write its rows."""

    stopped, goes_on = threading.Event(), threading.Event()

    def open(self, owner: str, txid_of: Callable[[AttemptId], TxId]) -> None:
        super().open(owner, txid_of)
        table: Any = self.open_table
        within = table.store._compute

        def stopped(connection: Connection, change: Change) -> Changes:
            if threading.current_thread() is not threading.main_thread():
                self.stopped.set()
                assert self.goes_on.wait(60)
            found: Changes = within(connection, change)
            return found

        table.store._compute = stopped


@pytest.mark.postgres
def test_a_writer_that_is_stopped_inside_its_write_is_ended_by_postgres_and_fenced(postgres_place: Place) -> None:
    place = postgres_place
    zombie, leader = opened(place, StopsInside, timeout_ms=1_000), opened(place)
    attempt = place.attempt(1, 4)
    with ThreadPoolExecutor(1) as thread:
        end = thread.submit(zombie.merge, attempt, counts({"a": 1}))
        assert StopsInside.stopped.wait(60)
        place.fence(leader, 0, 9)
        StopsInside.goes_on.set()
        with pytest.raises(Fenced, match="was written by attempt 9, after 4"):
            end.result()
    assert (leader.version(), content(leader)) == (9, {})


@pytest.mark.postgres
def test_a_user_who_may_not_create_tables_is_reported(postgres_place: Place) -> None:
    execute(postgres_place, "DROP ROLE IF EXISTS state_reader; CREATE ROLE state_reader LOGIN")
    with pytest.raises(ConfigError, match=r"state 'a table' in postgresql://.* can't be used: .*schema"):
        opened(postgres_place, url=postgres_place.url.replace("postgres@", "state_reader@"))


@pytest.mark.postgres
def test_what_postgres_cannot_hold_is_reported(postgres_place: Place) -> None:
    state = opened(postgres_place)
    with pytest.raises(SchemaMismatch, match=r"can't store the value in column 'word' .* zero byte"):
        state.merge(postgres_place.attempt(1, 1), counts({"a\x00b": 1}))
    assert (state.version(), content(state)) == (None, {})


@pytest.mark.postgres
def test_a_long_name_is_not_cut_off(postgres_place: Place) -> None:
    key, value = "k" * 63, "v" * 58
    state = SqlMapState(postgres_place.url, "t" * 63, f"{key} string", f"{value} long")
    postgres_place.opened.append(state)
    for _ in range(2):
        state.open(OWNER, postgres_place.txids.__getitem__)
    state.put(postgres_place.attempt(1, 1), {("a",): (1,)})
    assert content(state) == {"a": 1}


@pytest.mark.postgres
def test_a_zero_byte_is_refused_by_name_and_a_large_key_is_no_outage(postgres_place: Place) -> None:
    state = opened(postgres_place)
    with pytest.raises(SchemaMismatch, match=r"can't store the value in column 'word' .* text with a zero byte"):
        state.put(postgres_place.attempt(1, 1), {("a",): (1,), ("b\0",): (1,)})
    large = "".join(chr(33 + number * number % 9_000) for number in range(9_000))
    with pytest.raises(SchemaMismatch, match=r"can't store the given values: .*index row"):
        state.merge(postgres_place.attempt(1, 2), counts({large: 1}))
    assert state.version() is None
