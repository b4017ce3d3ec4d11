"""States of each kind that the release before today's has left, each with a transaction in flight: they are checked,
and continued as if today's code had read everything. See `tests/fixtures/states/make.py`."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from state.memory import MemoryMapState
from tests.contract.redis_server import RedisServer
from tests.fixtures.states import topology as of
from tests.fixtures.states.make import HERE, REDIS, STORE, unpack
from transactional import RunSummary, TopologyConfig, TopologyDriver, run_topology
from transactional.model.attempt import TxId
from transactional.operations.doctor.checked_tables import checked_tables
from transactional.operations.doctor.examine import examine
from transactional.operations.loading import open_store
from transactional.runtime.engine.history.journal import read_journal
from transactional.runtime.engine.history.replay import replay
from transactional.runtime.engine.rewinding import rewind
from transactional.runtime.executors.local import LocalExecutor
from transactional.testing import MemoryCoordinatorStore
from transactional.topology.topology import Topology
from transactional.topology.windowing import Windowing
from verifier import verify

CONFIG: dict[str, Any] = {
    "stop_when_drained": True,
    "attempts_max": 1,
    "retry_pause_ms": 1,
    "idle_pause_ms": 1,
    "durability": "process",
}
Contents = Mapping[str, list[dict[str, Any]]]


@pytest.fixture(autouse=True)
def left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder is a copy of what was left."""
    unpack(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(of.Send, "sent", [])


def run(topology: Topology, **options: Any) -> RunSummary:
    return run_topology(topology, store=STORE, config=CONFIG, master="none", **options)


def contents(topology: Topology) -> Contents:
    """What is in the tables, but for tuples that are kept for windows."""
    found = dict[str, list[dict[str, Any]]]()
    for component in topology.committers:
        state: Any = component.state
        if not isinstance(component.bolt, Windowing):
            found[component.id] = sorted(state.read().to_pylist(), key=repr)
        state.close()
    return found


def nothing_is_wrong(topology: Topology) -> None:
    assert verify(STORE, topology.id, checked_tables(topology)[0]).findings == ()
    with closing(open_store(STORE)) as store:
        assert [each for each in examine(topology, store, STORE) if not each.is_harmless] == []


def in_memory(name: str, key: Any = None, values: str = "", **named: Any) -> MemoryMapState:
    return MemoryMapState(key, values, **named)


def at_once(topology: Topology) -> Contents:
    """What a topology with its states in memory has, if today's code reads everything in one run."""
    TopologyDriver(topology, MemoryCoordinatorStore(), LocalExecutor(topology), TopologyConfig(**CONFIG)).run()
    return contents(topology)


def swapped(until: int, state: Any = of.in_sqlite) -> Topology:
    return of.windows(until, state, order=("app", "web"))


@pytest.mark.parametrize(("build", "levels", "empty"), [(swapped, 2, {"outer"}), (of.bolts, 1, set())])
def test_it_is_checked_and_continued(build: Callable[..., Topology], levels: int, empty: set[str]) -> None:
    """Behind the last record a transaction for each level of windows closes those that are over, all `empty` ones."""
    nothing_is_wrong(build(of.READ))
    topology = build(of.ALL)
    assert run(topology).committed_txid == of.ALL // of.TAKE + levels
    expected = at_once(build(of.ALL, in_memory))
    assert contents(topology) == expected
    assert {name for name, rows in expected.items() if not rows} == empty
    nothing_is_wrong(topology)


def test_tuples_that_windows_keep_have_their_fields_in_another_order_now() -> None:
    topology = of.bolts(of.ALL, backwards=True)
    run(topology, accept_changes=True)
    assert contents(topology) == at_once(of.bolts(of.ALL, in_memory))


def counts(until: int) -> dict[str, int]:
    """Of the words in Delta tables."""
    return dict(Counter(word for part in of.rows(until, 0) for _, word, *_ in part))


def test_tables_that_spark_and_delta_rs_have_written_are_taken_back_and_continued() -> None:
    topology = of.tables(of.ALL)
    nothing_is_wrong(topology)
    with closing(open_store(STORE)) as store:
        rewind(topology, store, TxId(1), owner="test")
    for until in (of.TAKE, of.ALL):
        for table, rows in contents(topology).items():
            assert {row["word"]: row["n"] for row in rows} == counts(until), table
        nothing_is_wrong(topology)
        run(topology)


def test_messages_that_wait_come_again() -> None:
    run(of.mails(of.ALL))
    before = {number for part in of.rows(2 * of.TAKE, 0) for number, word, *_ in part if word != "news"}
    assert set(of.Send.sent) == {number for part in of.rows(of.ALL, 0) for number, *_ in part} - before


@pytest.mark.parametrize("name", ["windows", "bolts", "mails", "tables", "redis"])
def test_its_journal_replays(name: str) -> None:
    events = list(read_journal(f"{name}.journal"))
    assert replay(events) == len(events) - 1


@pytest.mark.redis
def test_rows_in_redis_are_checked_and_continued(tmp_path: Path) -> None:
    """Their number, and which attempt was written whole, was not known before."""
    (tmp_path / "server").mkdir()
    with RedisServer(tmp_path / "server") as server, closing(server.client()) as client:
        fill(client, json.loads((HERE / "redis.json").read_text("utf-8")))
        with closing(sqlite3.connect("transactional.db", isolation_level=None)) as connection:
            change = "UPDATE transactional_topologies SET fingerprint = replace(fingerprint, ?, ?)"
            connection.execute(change, (REDIS, server.url))
        topology = of.in_redis(server.url, of.ALL)
        nothing_is_wrong(topology)
        run(topology)
        found = contents(topology)
        assert {row["word"]: row["max_at"] for row in found["seen"]} == {
            word: max(at for part in of.rows(of.ALL, 0) for _, its, _, at in part if its == word)
            for word in counts(of.ALL)
        }
        numbers = {word: count % 3 for word, count in counts(of.ALL).items() if count % 3}
        assert {row["word"]: row["number"] for row in found["numbers"]} == numbers
        nothing_is_wrong(topology)
        assert all(client.hget(f"{{{name}}}:meta", "length") for name in ("numbers", "seen")), "it is known from now on"


def fill(client: Any, content: Mapping[str, Any]) -> None:
    for key, value in content.items():
        match value:
            case dict():
                client.hset(key, mapping=value)
            case [[_, float()], *_]:
                client.zadd(key, dict(value))
            case _:
                client.sadd(key, *value)
