"""States in Redis, beyond the contract: durability, lost writes, a server that is killed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from examples.stateful_words import WordCount
from state.redis.registration import keys_of
from state.redis.state import RedisMapState
from tests.contract.places import in_redis
from tests.contract.redis_server import DURABLE, RedisServer
from tests.contract.states import OWNER, Place, content, counts
from tests.unit.drivers import DRAINED
from tests.unit.fakes import opaque_words
from transactional.core.machine.protocol import RecordCommit
from transactional.core.ports import Partials
from transactional.core.ports.state_parts import RewindTarget
from transactional.errors import ConfigError, OperatingError, SchemaMismatch, StoreMismatch, TopologyChanged
from transactional.model.absent import ABSENT
from transactional.model.aggregates import Aggregate, Max, Min
from transactional.model.attempt import AttemptId, TxId
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.executors.local import LocalExecutor
from transactional.testing import MemoryCoordinatorStore
from transactional.topology.builder import TransactionalTopologyBuilder
from transactional.topology.topology import Topology

pytestmark = pytest.mark.redis


def unknown(attempt_id: AttemptId) -> TxId:
    """There are no attempts."""
    raise AssertionError(f"{attempt_id} is asked for")


@pytest.fixture
def place(redis_url: str) -> Iterator[Place]:
    """An empty place for a table."""
    place = in_redis(redis_url)
    yield place
    place.close()


# --- who may use a table, and which server will do ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"appendonly": "no"}, "appendonly is 'no'"),
        ({"appendonly": "yes", "appendfsync": "everysec"}, "appendfsync is 'everysec'"),
        (DURABLE | {"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}, "maxmemory-policy allkeys-lru"),
    ],
)
def test_a_server_that_may_lose_rows_is_refused(tmp_path: Path, settings: dict[str, str], what: str) -> None:
    with RedisServer(tmp_path, settings=settings) as server:
        state = RedisMapState(server.url, "words", "word string", "count long")
        with pytest.raises(ConfigError, match=what):
            state.open(OWNER, unknown)
        state.close()


def test_a_server_that_does_not_say_so_is_refused(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as server:
        server.client().execute_command("ACL", "SETUSER", "me", "on", ">hidden", "~*", "+@all", "-config|get")
        for login, what in (("me:hidden", "Redis does not say whether"), ("me:wrong", "refuses the login")):
            state = RedisMapState(server.url.replace("//", f"//{login}@"), "words", "word string", "count long")
            with pytest.raises(ConfigError, match=what):
                state.open(OWNER, unknown)
            state.close()


def test_one_that_a_power_failure_empties_may_be_used_if_that_may_be_lost(tmp_path: Path) -> None:
    with RedisServer(tmp_path, settings={"appendonly": "no"}) as server:
        state = RedisMapState(server.url, "words", "word string", "count long")
        state.parts.durability.set_durability("process")
        state.open(OWNER, unknown)
        state.close()


def test_a_table_of_another_shape_or_with_rows_of_another_owner_is_refused(place: Place) -> None:
    state = place.state()
    state.merge(place.attempt(1, 1), counts({"cat": 1}))
    with pytest.raises(SchemaMismatch, match="was created with the key 'word string'"):
        place.state("word string, at date")
    other = RedisMapState(place.url, place.table, "word string", "count long")
    with pytest.raises(StoreMismatch, match="has rows, written by words/count"):
        other.open("others/count", unknown)
    other.close()


def test_a_table_whose_columns_are_declared_in_another_order_is_read_and_goes_back(place: Place) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    rows = pa.Table.from_pylist([{"word": "cat", "at": at, "n": 1, "first": date(2026, 1, 2), "share": 0.5}])
    combine = {"n": "sum", "first": "min", "share": "max"}
    before = place.state("word string, at timestamp", "n long, first date, share double")
    turned: Any = place.state("at timestamp, word string", "share double, first date, n long")
    for txid in (1, 2):
        before.merge(place.attempt(txid, txid), Partials(combine=combine, table=rows))
    [once] = rows.to_pylist()
    twice = {**once, "n": 2}
    assert turned.read().to_pylist() == [twice]
    reader = turned.reader(OWNER)
    reader.pin()
    assert reader.rows(TxId(1)).to_pylist() == [once]
    assert reader.lookup(TxId(2), rows.select(["at", "word"])).to_pylist() == [twice]
    reader.close()
    target = RewindTarget(TxId(1), AttemptId(1), place.txids.get)
    assert "transaction 2 did is undone" in turned.parts.rewind.preview_rewind("words", "count", target)
    turned.version()
    turned.fence(place.attempt(2, 3).attempt_id)
    turned.parts.rewind.rewind(target, place.attempt(1, 4).attempt_id)
    assert before.read().to_pylist() == turned.read().to_pylist() == [once]


def test_an_empty_table_may_go_to_another_owner(place: Place) -> None:
    place.state()
    other = RedisMapState(place.url, place.table, "word string", "count long")
    other.open("others/count", unknown)
    assert other.version() is None
    other.close()


@pytest.mark.parametrize(
    ("url", "what"),
    [("http://host", "is no URL of a Redis server"), ("redis://host:six/0", "is no URL of a Redis server")],
)
def test_a_url_that_is_none_is_refused(url: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        RedisMapState(url, "words", "word string", "count long")


def test_columns_and_names_that_can_not_be_stored_are_refused(redis_url: str) -> None:
    with pytest.raises(ConfigError, match="can't store"):
        RedisMapState(redis_url, "words", "word string", "tags array<string>")
    with pytest.raises(ConfigError, match="has no braces"):
        RedisMapState(redis_url, "{words}", "word string", "count long")


def test_passwords_are_not_shown() -> None:
    state = RedisMapState("redis://me:hidden@127.0.0.1:1/0", "words", "word string", "count long", timeout_ms=500)
    with pytest.raises(OperatingError, match="Redis does not respond") as raised:
        state.open(OWNER, unknown)
    assert "hidden" not in f"{raised.value}{state.declared.table}{state.identity()}{state!r}"


# --- a server that is killed, and one that has lost writes ---------------------------------------------------------


def test_a_column_is_not_continued_by_another_aggregate(place: Place) -> None:
    store = MemoryCoordinatorStore()

    def start(aggregate: Aggregate, *, accept_changes: bool = False) -> None:
        made = TransactionalTopologyBuilder("pets", "words", opaque_words([[("cat",), ("dog",)]]))
        update = RedisMapState(place.url, place.table, ()).aggregate(most=aggregate)
        made.set_committer_bolt("count", update).global_grouping("words")
        topology = made.build()
        TopologyDriver(topology, store, LocalExecutor(topology), DRAINED, accept_changes=accept_changes).run()

    start(Min("word"))
    for accept_changes in (False, True):
        with pytest.raises(TopologyChanged, match="combined by min, and the topology now combines them by max"):
            start(Max("word"), accept_changes=accept_changes)
    start(Min("word"))


def topology_over(url: str) -> Topology:
    """A stateful word count; the spout's replays are other batches."""
    pets = [("cat",), ("dog",), ("cat",), ("owl",), ("cat",), ("dog",)] * 5
    made = TransactionalTopologyBuilder("pets", "words", opaque_words([pets], take=2))
    made.set_stateful_bolt("count", WordCount()).fields_grouping("words", "word")
    return made.build(config={"state_provider": url})


class Stopped(Exception):
    """The process dies here."""


def run(server: RedisServer, store: MemoryCoordinatorStore, at_commit: Any = lambda txid: None) -> dict[str, int]:
    """Run until drained; the counts. `at_commit` is called with each committed txid."""
    topology = topology_over(server.url)

    def note(at_ms: int, event: Any, actions: Any) -> None:
        for action in actions:
            if isinstance(action, RecordCommit):
                at_commit(action.attempt.txid)

    config = replace(DRAINED, retry_pause_ms=20, state_provider=server.url)
    TopologyDriver(topology, store, LocalExecutor(topology), config, observers=[note]).run()
    state: Any = topology.committers[0].state
    found = content(state)
    state.close()
    return found


RIGHT = {"cat": 15, "dog": 10, "owl": 5}


def test_a_server_that_is_killed_and_started_again_has_lost_nothing(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as server:
        killed = list[int]()

        def kill(txid: int) -> None:
            if txid in (3, 7, 8):
                killed.append(txid)
                server.kill()
                server.start()

        assert run(server, MemoryCoordinatorStore(), kill) == RIGHT
        assert killed == [3, 7, 8]


def test_writes_that_a_failover_has_lost_are_found_when_the_table_is_opened(tmp_path: Path) -> None:
    (tmp_path / "replica").mkdir()
    (tmp_path / "primary").mkdir()
    with RedisServer(tmp_path / "primary") as primary, RedisServer(tmp_path / "replica") as replica:
        replica.follow(primary)
        store = MemoryCoordinatorStore()

        def fail_over(txid: int) -> None:
            if txid == 4:
                replica.await_copy_of(primary)
                replica.stop_following()
            if txid == 6:
                primary.kill()
                raise Stopped

        with pytest.raises(Stopped):
            run(primary, store, fail_over)
        replica.kill()
        replica.port = primary.port
        replica.start()
        with pytest.raises(StoreMismatch, match=r"it is at transaction [45], and [67] is committed"):
            run(replica, store)


def test_and_by_a_process_that_goes_on(tmp_path: Path) -> None:
    """Whose connection is broken, and that finds an older table behind the next one."""
    with RedisServer(tmp_path) as server:
        place = in_redis(server.url)
        state: Any = place.state()
        state.merge(place.attempt(1, 1), counts({"cat": 1}))
        state.merge(place.attempt(2, 2), counts({"cat": 1}))
        state._server.client.hset(keys_of(place.table)[0], "attempt", 1)
        with pytest.raises(StoreMismatch, match="has lost writes that it had confirmed"):
            state.merge(place.attempt(3, 3), counts({"cat": 1}))
        state._server.client.flushall()
        with pytest.raises(StoreMismatch, match="no longer there"):
            state.version()
        place.close()


def test_a_write_whose_answer_was_lost_is_found_done(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    state: Any = place.state()
    table, write = state._opened.store, state._opened.store._write

    def unanswered(*given: Any) -> Any:
        monkeypatch.undo()
        write(*given)
        raise ConnectionError("gone")

    monkeypatch.setattr(table, "_write", unanswered)
    state.merge(place.attempt(1, 1), counts({"cat": 2}))
    assert content(state) == {"cat": 2}
    assert state.version() == AttemptId(1)
    assert content(state, 0) == {}
    assert state.read(TxId(1)).num_rows == 1


def test_many_rows_go_into_one_write(place: Place) -> None:
    state = place.state(deletes=True)
    many = {f"word {number}": number for number in range(9_001)}
    state.merge(place.attempt(1, 1), counts(many))
    assert content(state) == many
    state.put(place.attempt(2, 2), dict.fromkeys(((word,) for word in many), ABSENT))
    assert content(state) == {}
    assert content(state, 1) == many
    state.put(place.attempt(2, 3), {("cat",): (1,)})
    assert content(state) == many | {"cat": 1}


def test_rows_are_found_by_a_time(place: Place) -> None:
    state = place.state("word string", "at timestamp")
    first, last = datetime(2020, 1, 1, tzinfo=UTC), datetime(2020, 1, 2, tzinfo=UTC)
    state.put(place.attempt(1, 1), {("a",): (first,), ("b",): (last,), ("c",): (None,)})
    until = int(first.timestamp() * 1_000_000)
    found = state.rows_between(place.attempt(2, 2), "at", until - 1, until)
    assert found.to_pylist() == [{"word": "a", "at": first}]
