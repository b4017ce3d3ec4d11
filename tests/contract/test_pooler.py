"""Behind a pooler in transaction mode: each transaction may have another session, and each session serves everybody."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from sqlalchemy import BigInteger, bindparam, make_url, select, text

from spouts.memory import MemoryTransactionalSpout
from state.sql.state import SqlMapState
from tests.contract.pgbouncer import pooled_database
from tests.unit.command_line import Command, command, module
from transactional.core.machine.protocol import Action, Event
from transactional.core.store.databases.database import Database
from transactional.core.store.databases.quick import QuickQuery
from transactional.model.attempt import TxId
from transactional.model.reading import StateReader
from transactional.operations.doctor.examine import examine
from transactional.operations.launch.running import run_topology
from transactional.operations.loading import open_for_reading
from transactional.runtime.engine.history.observing import Committed, Notice
from transactional.topology.builder import TransactionalTopologyBuilder
from transactional.topology.topology import Topology
from verifier.checker import verify
from verifier.evidence.databases import connect_at_one_moment, open_database
from verifier.sql_tables import CheckedSqlTable

__all__ = ["command", "module"]

pytestmark = pytest.mark.postgres
TRANSACTIONS = 12
"""More often than psycopg executes a statement before it prepares it."""
QUICK = QuickQuery(select(bindparam("one", type_=BigInteger)))
ADVISORY_LOCKS = "pg_locks WHERE locktype = 'advisory'"
SETTINGS = (
    *("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"),
    *("default_transaction_read_only", "default_transaction_isolation", "search_path"),
)


@pytest.fixture(params=[1, 2])
def sessions(request: pytest.FixtureRequest) -> int:
    """How many sessions the pooler has."""
    sessions: int = request.param
    return sessions


@pytest.fixture
def pooled(postgres_sockets: Path, sessions: int) -> Iterator[str]:
    """The URL of an empty database behind a pooler."""
    with pooled_database(postgres_sockets, sessions=sessions) as url:
        yield url


def topology_in(url: str) -> Topology:
    spout = MemoryTransactionalSpout([[("cat",)] * TRANSACTIONS], "word string", take=1)
    builder = TransactionalTopologyBuilder("words", "spout", spout)
    state = SqlMapState(url, "count", "word")
    builder.set_committer_bolt("count", state.count()).fields_grouping("spout", "word")
    return builder.build()


class Onlookers:
    """Look at a run after each of its transactions, in all ways that there are."""

    def __init__(self, url: str, command: Command, *, stays_pinned: bool) -> None:
        self._url, self._command, self._stays_pinned = url, command, stays_pinned
        self._reader: StateReader = SqlMapState(url, "count", "word string", "count long").reader("words/count")
        self._store = open_for_reading(url)
        self._pinned = TxId(0)
        self.looks = 0

    def __call__(self, at_ms: int, event: Event, actions: Sequence[Action]) -> None:
        pass

    def notice(self, at_ms: int, notice: Notice) -> None:
        if not isinstance(notice, Committed):
            return
        txid = notice.flight.attempt.txid
        self._look_at_rows(txid)
        for name, *more in (("status",), ("txns", "words")):
            done = self._command(name, "--store", self._url, *more)
            assert (done.code, done.err) == (0, ""), done
        found = {each.problem for each in examine(topology_in(self._url), self._store, self._url)}
        assert found == set()
        position = self._store.position("words")
        assert position is not None
        assert position.committed_txid == txid
        self.looks += 1

    def _look_at_rows(self, txid: TxId) -> None:
        """What was pinned one transaction ago, where a session is left to the leader, is as it was then."""
        if self._pinned:
            self._expect(self._pinned)
        self._reader.pin(txid)
        self._expect(txid)
        self._pinned = txid
        if not self._stays_pinned:
            self._reader.release()
            self._pinned = TxId(0)

    def _expect(self, txid: TxId) -> None:
        assert self._reader.rows(txid).to_pylist() == [{"word": "cat", "count": txid}]
        assert self._reader.lookup(txid, pa.table({"word": ["cat"]})).num_rows == 1

    def close(self) -> None:
        self._reader.close()
        self._store.close()


def test_a_leader_runs_on_whoever_looks_through_the_same_pooler(pooled: str, sessions: int, command: Command) -> None:
    with closing(Onlookers(pooled, command, stays_pinned=sessions > 1)) as onlookers:
        config = {"stop_when_drained": True}
        run_topology(topology_in(pooled), store=pooled, master="none", config=config, observers=[onlookers])
    assert onlookers.looks == TRANSACTIONS
    if sessions > 1:  # the checker looks at the store and the table at once
        url = in_schema(pooled, "public")
        report = verify(url, "words", [CheckedSqlTable("count", url, "count")])
        assert (report.findings, report.checked["transactions"]) == ((), TRANSACTIONS)


def in_schema(url: str, search_path: str) -> str:
    options = {"options": f"-csearch_path={search_path}"}
    return make_url(url).update_query_dict(options).render_as_string(hide_password=False)


def session_of(url: str) -> list[Any]:
    """What is set, prepared and locked in the pooler's session, as whoever comes next finds it."""
    queries = [f"SHOW {name}" for name in SETTINGS]
    queries += [f"SELECT count(*) FROM {left}" for left in ("pg_prepared_statements", ADVISORY_LOCKS)]
    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as connection:
        return [connection.execute(query.encode()).fetchone() for query in queries]


Use = Callable[[Database], None]


def write(database: Database) -> None:
    with database.writing() as connection:
        connection.exec_driver_sql("CREATE TABLE IF NOT EXISTS theirs (a BIGINT)")
        connection.exec_driver_sql("INSERT INTO theirs VALUES (1)")


def read(database: Database) -> None:
    with database.reading() as connection:
        assert connection.exec_driver_sql("SELECT 1").scalar() == 1


def read_at_one_moment(database: Database) -> None:
    with database.reading(is_snapshot=True) as connection:
        assert connection.exec_driver_sql("SHOW transaction_isolation").scalar() == "repeatable read"


def answer(database: Database) -> None:
    assert database.answer(QUICK, {"one": 1}) == [(1,)]


def create(database: Database) -> None:
    with closing(SqlMapState(database.url or "", "count", "word string", "count long")) as state:
        state.open("words/count", TxId)


@pytest.mark.parametrize("sessions", [1], indirect=True)
@pytest.mark.parametrize("use", [write, read, read_at_one_moment, answer, create])
def test_a_session_is_given_back_as_it_was(pooled: str, use: Use) -> None:
    before = session_of(pooled)
    writes = use in (write, create)
    with closing(Database(in_schema(pooled, "public"), timeout_ms=7_000, read_only=not writes)) as database:
        for _ in range(TRANSACTIONS):
            use(database)
            assert session_of(pooled) == before


@pytest.mark.parametrize("sessions", [1], indirect=True)
def test_the_checker_gives_a_session_back_as_it_was(pooled: str) -> None:
    before, engine = session_of(pooled), open_database(in_schema(pooled, "public"), name="store")
    with connect_at_one_moment(engine, name="store") as connection:
        for _ in range(TRANSACTIONS):
            assert connection.execute(text("SELECT CAST(:one AS BIGINT)"), {"one": 1}).scalar() == 1
        assert connection.exec_driver_sql("SELECT count(*) FROM pg_prepared_statements").scalar() == 0
    assert session_of(pooled) == before
    engine.dispose()


@pytest.mark.parametrize("sessions", [1], indirect=True)
@pytest.mark.parametrize("schema", ["plain", "it's 100%, and_more"])
def test_a_schema_in_the_url_is_that_of_each_transaction(pooled: str, schema: str) -> None:
    """The pooler refuses options; ignored, they would lead to the tables of another schema."""
    with psycopg.connect(pooled, autocommit=True, prepare_threshold=None) as connection:
        connection.execute(f'CREATE SCHEMA "{schema}"'.encode())
    url = in_schema(pooled, f'"{schema}",public'.replace(" ", r"\ "))
    with closing(Database(url, timeout_ms=7_000)) as database, database.reading() as connection:
        assert connection.exec_driver_sql("SELECT current_schema()").scalar() == schema
