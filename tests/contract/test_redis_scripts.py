"""States in Redis whose script ends in the middle, whose user may not do everything, and whose rows are gone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from state.redis import scripts
from state.redis.registration import keys_of
from state.redis.state import RedisMapState
from tests.contract.places import NUMBERS, in_redis
from tests.contract.redis_server import RedisServer
from tests.contract.states import OWNER, Place, content, counts
from tests.contract.test_horizons import History
from tests.contract.test_key_values import run_transactions
from tests.contract.test_redis import RIGHT, place, topology_over, unknown
from tests.unit.drivers import DRAINED
from transactional.core.machine.protocol import AttemptFailed, RecordCommit
from transactional.core.ports import StateKind
from transactional.core.ports.state_parts import RewindTarget
from transactional.errors import BeyondKept, ConfigError, OperatingError, SchemaMismatch, StoreMismatch
from transactional.model.absent import ABSENT
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.facts import BatchFacts
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.executors.local import LocalExecutor
from transactional.testing import MemoryCoordinatorStore
from transactional.testing.states.trial import KINDS

__all__ = ["place"]

pytestmark = pytest.mark.redis
TRIED = ("HMGET", "HGETALL", "HLEN", "SMEMBERS", "ZRANGEBYSCORE", "HSET", "HDEL", "SADD", "SREM", "ZADD", "ZREM")
WRITING = ("HSET", "HDEL", "SADD", "SREM", "ZADD", "ZREM")
NOON = datetime(2020, 1, 1, 12, tzinfo=UTC)

DIES = """
local real, seen, number = redis, {}, 0
local redis = {call = function(name, key, ...)
  local pair = name .. ' ' .. key
  if not seen[pair] then seen[pair], number = true, number + 1 end
  if number == %d or (name == 'HSET' and key == KEYS[1] and select('#', ...) > 2) then error('refused') end
  return real.call(name, key, ...)
end}
"""
"""Before a script: its n-th command is refused on that key, or the last one. One that was not refused once is not
refused later, as it is with a server."""


class HurtPlace(Place):
    """A table each of whose writes is tried before, with other rows, by a script that ends in the middle."""

    def state(self, *given: Any, **options: Any) -> Any:
        state: Any = super().state(*given, **options)
        table, write, random, before = state._opened.store, state._write, Random(next(NUMBERS)), list[pa.Table]()

        def write_twice(attempt: TransactionAttempt, rows: pa.Table, *more: Any) -> None:
            whole, table._write = table._write, dying(state, random.randrange(1, 12))
            others = rows.slice(random.randrange(rows.num_rows + 1))
            if (
                before and state.declared.kind is StateKind.OPAQUE
            ):  # of a transactional one each attempt is given the same rows
                others = random.choice([*before, others])
            before[:] = [rows.slice(random.randrange(rows.num_rows + 1))]
            with pytest.raises(OperatingError, match="refused"):
                write(attempt, others, *more)
            table._write = whole
            write(attempt, rows, *more)
            assert timed() <= set(state._server.client.hkeys(table._rows))

        def timed() -> set[bytes]:
            return set(state._server.client.zrange(table._expiry, 0, -1))

        state._write = write_twice
        return state


def dying(state: Any, number: int) -> Any:
    """The script of a write, which ends before its n-th command, or its last one at the latest."""
    return state._server.client.register_script(DIES % number + scripts.WRITE)


@pytest.mark.parametrize("deletes", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_writes_after_ones_that_ended_in_the_middle_end_as_a_dict_does(
    redis_url: str, kind: StateKind, *, deletes: bool
) -> None:
    for seed in range(8):
        hurt = HurtPlace("redis", Path(), url=redis_url, table=f"hurt {next(NUMBERS)}")
        run_transactions(hurt, kind, Random(seed), 6, deletes=deletes)
        hurt.close()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_and_with_rows_that_expire(redis_url: str, kind: StateKind) -> None:
    for seed in range(8):
        hurt = HurtPlace("redis", Path(), url=redis_url, table=f"hurt {next(NUMBERS)}")
        History(hurt, kind, deletes=seed % 3 == 0).run_transactions(Random(seed), 8)
        hurt.close()


@pytest.mark.parametrize("number", range(1, 12))
def test_a_batch_that_is_empty_the_second_time_leaves_nothing_of_the_first(place: Place, number: int) -> None:
    """An opaque spout may find nothing where the attempt that ended in the middle of its write found tuples."""
    state: Any = place.state(deletes=True)
    state.merge(place.attempt(1, 1), counts({"apple": 1, "pear": 1}))
    whole, state._opened.store._write = state._opened.store._write, dying(state, number)
    with pytest.raises(OperatingError, match="refused"):
        state.merge(place.attempt(2, 2), counts({"apple": 4, "plum": 1}))
    state._opened.store._write = whole
    state.merge(place.attempt(2, 3), counts({}))
    assert content(state) == {"apple": 1, "pear": 1}
    state.merge(place.attempt(3, 4), counts({"apple": 1}))
    assert content(state) == {"apple": 2, "pear": 1}


# --- users who may not do everything -------------------------------------------------------------------------------


class Users:
    """A user of a server, who may do everything but what is taken from it."""

    def __init__(self, server: RedisServer, database: int = 0) -> None:
        self._client, self._name = server.client(), f"user{next(NUMBERS)}"
        self.url = server.url.replace("//", f"//{self._name}:hidden@").removesuffix("0") + str(database)
        self.may("on", ">hidden", "~*", "+@all")

    def may(self, *rules: str) -> None:
        """Change what the user may do."""
        self._client.execute_command("ACL", "SETUSER", self._name, *rules)

    @property
    def refused(self) -> str:
        """What a refusal says."""
        return f"on the state's keys to the user '{self._name}': "


@pytest.mark.parametrize("command", TRIED)
def test_a_user_who_lacks_a_command_is_refused_at_open(redis_server: RedisServer, command: str) -> None:
    user, name = Users(redis_server), f"words {next(NUMBERS)}"
    user.may(f"-{command.lower()}")
    state = RedisMapState(user.url, name, "word string", "count long")
    with pytest.raises(ConfigError, match=f"refuses the command {command} {user.refused}") as raised:
        state.open(OWNER, unknown)
    assert "\n" not in str(raised.value)
    assert "hidden" not in str(raised.value)
    assert not redis_server.client().exists(*keys_of(name))
    state.close()


def test_commands_that_no_script_uses_may_be_lacking(redis_server: RedisServer) -> None:
    user = Users(redis_server)
    user.may("-del", "-expire", "-flushdb")
    hurt = in_redis(user.url)
    state: Any = hurt.state()
    state.merge(hurt.attempt(1, 1), counts({"cat": 1}))
    assert content(state) == {"cat": 1}
    hurt.close()


def rows_of(words: Mapping[str, int | None]) -> Any:
    """Counts, each with a time by which the row goes; None: it is deleted."""
    return {
        (word,): ABSENT if count is None else (count, NOON + timedelta(minutes=count)) for word, count in words.items()
    }


def put(place: Place, state: Any, txid: int, attempt_id: int, words: Mapping[str, int | None]) -> None:
    """An attempt at a transaction."""
    attempt = place.attempt(txid, attempt_id)
    state.declared.begin(attempt, BatchFacts(round(NOON.timestamp() * 1_000)))
    state.put(attempt, rows_of(words))


@pytest.mark.parametrize("command", WRITING)
def test_a_command_that_is_refused_in_the_middle_has_written_nothing(redis_server: RedisServer, command: str) -> None:
    """Whatever the script has done before; and what comes once it is allowed again ends as if nothing had been."""
    user, options = Users(redis_server), dict[str, Any](deletes=True, expires="at", after="1 day")
    hurt = in_redis(user.url)
    plain = in_redis(redis_server.url)
    states = [each.state("word string", "count long, at timestamp", **options) for each in (hurt, plain)]
    for where, state in zip((hurt, plain), states, strict=True):
        put(where, state, 1, 1, {"ant": 1, "bat": 1, "cat": 1, "dog": 1})
        put(where, state, 2, 2, {"ant": 2, "bat": None, "cow": 2})
    before = content(states[0])
    user.may(f"-{command.lower()}")
    for attempt_id in (3, 4):
        with pytest.raises(ConfigError, match=f"refuses the command {command} {user.refused}"):
            put(hurt, states[0], 3, attempt_id, {"ant": 9, "dog": None, "elk": 9})
        assert states[0].version() == AttemptId(2)
        assert content(states[0]) == before
    user.may(f"+{command.lower()}")
    for where, state in zip((hurt, plain), states, strict=True):
        put(where, state, 3, 5, {"ant": 3, "cat": None, "fox": 3})
        put(where, state, 4, 6, {"ant": 4, "cow": 4, "dog": 4})
    assert content(states[0], 3) == content(states[1], 3)
    client = redis_server.client()
    found = [_all_of(client, each.table) for each in (hurt, plain)]
    assert found[0] == found[1]
    hurt.close()
    plain.close()


def _all_of(client: Any, table: str) -> Any:
    meta, rows, changed, expiry = keys_of(table)
    at = client.zrange(expiry, 0, -1, withscores=True)
    return client.hgetall(rows), client.smembers(changed), at, client.hget(meta, "length")


def test_a_server_whose_memory_is_full_has_written_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RedisServer(tmp_path) as server:
        full = in_redis(server.url)
        state: Any = full.state(deletes=True)
        state.put(full.attempt(1, 1), {("cat",): (1,), ("dog",): (1,)})
        table, write = state._opened.store, state._opened.store._write

        def write_to_a_full_server(*given: Any) -> Any:
            server.client().config_set("maxmemory", 1)
            return write(*given)

        monkeypatch.setattr(table, "_write", write_to_a_full_server)
        with pytest.raises(OperatingError, match=f"^state {state.declared.table}: Redis reports: command not allowed"):
            state.put(full.attempt(2, 2), {("cat",): (2,), ("dog",): ABSENT})
        monkeypatch.undo()
        server.client().config_set("maxmemory", 0)
        assert content(state) == {"cat": 1, "dog": 1}
        state.put(full.attempt(2, 3), {("cat",): (3,)})
        assert content(state) == {"cat": 3, "dog": 1}
        full.close()


@pytest.mark.parametrize(("command", "database"), [("hset", 2), ("sadd", 3), ("srem", 4)])
def test_a_run_counts_once_what_was_refused_in_the_middle(
    redis_server: RedisServer, command: str, database: int
) -> None:
    """A command is taken away after each third transaction, and given back once an attempt has failed for it."""
    user, failed = Users(redis_server, database), list[str]()

    def note(at_ms: int, event: Any, actions: Any) -> None:
        if isinstance(event, AttemptFailed):
            failed.append(event.reason)
            user.may(f"+{command}")
        for action in actions:
            if isinstance(action, RecordCommit) and action.attempt.txid % 3 == 0:
                user.may(f"-{command}")

    topology = topology_over(user.url)
    config = replace(DRAINED, retry_pause_ms=1, state_provider=user.url)
    TopologyDriver(topology, MemoryCoordinatorStore(), LocalExecutor(topology), config, observers=[note]).run()
    state: Any = topology.committers[0].state
    assert content(state) == RIGHT
    assert sum(f"refuses the command {command.upper()}" in each for each in failed) == 4
    state.close()


def test_a_replica_is_told_from_a_user_without_rights(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as replica:
        replica.client().replicaof("127.0.0.1", 1)
        state = RedisMapState(replica.url, "words", "word string", "count long")
        with pytest.raises(OperatingError, match="command HDEL: READONLY"):
            state.open(OWNER, unknown)
        state.close()


# --- what is left of a write that ended in the middle ---------------------------------------------------------------


def test_a_table_with_a_half_written_transaction_can_not_undo_the_one_before(place: Place) -> None:
    """Its rows know one step back only. What is not to be done is refused when it is planned."""
    state: Any = place.state()
    state.merge(place.attempt(1, 1), counts({"cat": 1}))
    state.merge(place.attempt(2, 2), counts({"cat": 1}))
    table, whole = state._opened.store, state._opened.store._write
    table._write = dying(state, 100)
    with pytest.raises(OperatingError, match="refused"):
        state.merge(place.attempt(3, 3), counts({"cat": 1, "dog": 1}))
    table._write = whole
    topology, component = OWNER.split("/")
    for txid, told in ((1, None), (2, "stays as it is")):
        target = RewindTarget(TxId(txid), AttemptId(txid), place.txids.get)
        if told is None:
            with pytest.raises(BeyondKept, match="an attempt at the next one has ended in the middle"):
                state.parts.rewind.preview_rewind(topology, component, target)
        else:
            assert told in state.parts.rewind.preview_rewind(topology, component, target)
    assert content(state) == {"cat": 2}
    state.merge(place.attempt(3, 4), counts({"owl": 1}))
    assert content(state) == {"cat": 2, "owl": 1}


# --- rows that are gone --------------------------------------------------------------------------------------------


def test_rows_that_are_gone_are_noticed(place: Place) -> None:
    """By whoever opens, writes or reads: an empty table is not what was written."""
    state: Any = place.state()
    state.merge(place.attempt(1, 1), counts({"cat": 1, "dog": 1}))
    reader = state.reader(OWNER)
    reader.pin()
    _, rows, *_ = keys_of(place.table)
    state._server.client.delete(rows)
    told = "has 0 rows and has noted that it has 2"
    asked: list[Any] = [
        *(state.version, state.read, reader.pin, place.state().version, lambda: reader.rows(TxId(1))),
        lambda: reader.lookup(TxId(1), pa.table({"word": ["cat"]})),
        lambda: state.merge(place.attempt(2, 2), counts({"cat": 1})),
    ]
    for ask in asked:
        reader._pinned = reader._pinned or reader._registration.find()
        with pytest.raises(StoreMismatch, match=told):
            ask()
    assert not state._server.client.exists(rows)
    reader.close()


def test_also_those_that_go_while_a_transaction_is_written(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    state: Any = place.state()
    state.merge(place.attempt(1, 1), counts({"cat": 1, "dog": 1}))
    _, rows, *_ = keys_of(place.table)
    write = state._opened.store._write

    def evicted(*given: Any) -> Any:
        state._server.client.delete(rows)
        return write(*given)

    monkeypatch.setattr(state._opened.store, "_write", evicted)
    with pytest.raises(StoreMismatch, match="has 0 rows and has noted that it has 2"):
        state.merge(place.attempt(2, 2), counts({"cat": 1}))
    assert not state._server.client.exists(rows)


def test_a_table_whose_rows_are_gone_goes_to_nobody_else(place: Place) -> None:
    state: Any = place.state()
    state.merge(place.attempt(1, 1), counts({"cat": 1}))
    state._server.client.delete(keys_of(place.table)[1])
    other = RedisMapState(place.url, place.table, "word string", "count long")
    with pytest.raises(StoreMismatch, match="has rows, written by words/count"):
        other.open("others/count", unknown)
    other.close()


def test_a_table_of_another_layout_is_refused(place: Place) -> None:
    """By whoever opens or reads it."""
    state: Any = place.state()
    state.merge(place.attempt(1, 1), counts({"cat": 1}))
    meta, *_ = keys_of(place.table)
    client, reader = state._server.client, state.reader(OWNER)
    for layout in ("2", "4", None):
        client.hdel(meta, "layout") if layout is None else client.hset(meta, "layout", layout)
        stored = "no version" if layout is None else f"version {layout}"
        message = f"has {stored} of the layout of states, and version 3 is the only one that is read; .* another name"
        for use in (place.state, reader.pin):
            with pytest.raises(SchemaMismatch, match=message):
                use()
    reader.close()
