"""States in Redis as others see them: readers, the doctor, the checker, rewinds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from state.redis.registration import keys_of
from state.redis.state import RedisMapState
from tests.contract.places import NUMBERS
from tests.contract.states import OWNER, Place, counts
from tests.contract.test_horizons import at, expiring
from tests.contract.test_readers import read, seen
from tests.contract.test_redis import place
from tests.rewinding import build, contents, expected, run, store_url
from tests.rewinding_windows import Clock, build_clicks, never_further, rows_of
from tests.rewinding_windows import expiring as expiring_states
from transactional.core.ports.state_parts import RewindTarget
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.errors import BeyondKept, OperatingError
from transactional.model.absent import ABSENT
from transactional.model.attempt import AttemptId, TxId
from transactional.model.facts import BatchFacts
from transactional.operations.doctor.checked_tables import checked_tables
from transactional.operations.doctor.examine import examine
from transactional.runtime.engine.rewinding import rewind
from transactional.topology.topology import Topology
from verifier import verify

__all__ = ["place"]

pytestmark = pytest.mark.redis
LENGTH = 9


# --- readers ------------------------------------------------------------------------------------------------------


def test_a_reader_of_a_table_that_has_moved_on_too_far_is_refused(place: Place) -> None:
    """It gets what was pinned, or one line; never what was written since."""
    state: Any = place.state()
    place.fence(state, 0, 1)
    state.merge(place.attempt(1, 2), counts({"a": 1, "b": 1}))
    reader = state.reader(OWNER)
    reader.pin()
    state.merge(place.attempt(2, 3), counts({"a": 1}))
    assert read(state, reader, 1, ["a", "b"]) == {"a": 1, "b": 1}
    state.merge(place.attempt(3, 4), counts({"a": 1, "c": 1}))
    with pytest.raises(OperatingError, match="has moved on from transaction 1 while it was read"):
        reader.rows(TxId(1))
    assert seen(reader.lookup(TxId(1), pa.table({"word": ["b", "c"]}))) == {"b": 1}
    reader.pin()
    assert read(state, reader, 3, ["a"]) == {"a": 3, "b": 1, "c": 1}
    reader.close()


GOES: list[dict[str, Any]] = [{"deletes": True}, {"expires": "at", "after": "10 seconds"}]


class Going:
    """A table whose rows may go, with a reader of its first transaction."""

    def __init__(self, place: Place, goes: dict[str, Any]) -> None:
        self.place, self.deletes = place, "deletes" in goes
        self.state: Any = place.state("word string", "count long, at timestamp", **goes)
        self.write(1, {"a": 1, "b": 1, "stays": 1})
        self.reader = self.state.reader(OWNER)
        self.reader.pin()

    def write(self, txid: int, words: dict[str, int], gone: str = "", attempt_id: int = 0) -> None:
        """One attempt at a transaction, five seconds after the one before it. Rows go by being deleted, or by their
        times."""
        attempt, second = self.place.attempt(txid, attempt_id or 10 * txid), 5 * txid
        self.state.declared.begin(attempt, BatchFacts(1_000 * second))
        rows: dict[Any, Any] = {
            (word,): (count, at(second + (100 if word == "stays" else 0))) for word, count in words.items()
        }
        self.state.put(attempt, rows | ({(gone,): ABSENT} if gone and self.deletes else {}))

    def found(self) -> dict[str, int]:
        """What the reader finds by a look-up, and by reading everything."""
        rows = {row["word"]: row["count"] for row in self.reader.rows(TxId(1)).to_pylist()}
        assert self.looked_up("a", "b", "c", "stays") == rows
        return rows

    def looked_up(self, *words: str) -> dict[str, int]:
        """What it finds by a look-up alone."""
        return {r["word"]: r["count"] for r in self.reader.lookup(TxId(1), pa.table({"word": words})).to_pylist()}


@pytest.mark.parametrize("goes", GOES)
def test_of_keys_that_may_go_the_transaction_before_is_known(place: Place, goes: dict[str, Any]) -> None:
    """However many fences and attempts at the next one there are; and then what the rows themselves tell."""
    table, first = Going(place, goes), {"a": 1, "b": 1, "stays": 1}
    place.fence(table.state, 1, 15)
    assert table.found() == first
    table.write(2, {"b": 2, "c": 2}, gone="a", attempt_id=20)
    assert table.found() == first
    place.fence(table.state, 1, 21)
    table.write(2, {"a": 7}, gone="b", attempt_id=22)
    assert table.found() == first
    place.fence(table.state, 2, 25)
    assert table.found() == first
    table.write(3, {"stays": 3})
    table.write(4, {"c": 4})
    for asked in (["c"], ["b"], ["stays", "nobody"]):
        with pytest.raises(OperatingError, match="query it again"):
            table.looked_up(*asked)
    with pytest.raises(OperatingError, match="query it again"):
        table.reader.rows(TxId(1))
    assert table.looked_up("stays") == {"stays": 1}, "one transaction has changed it since"
    table.reader.close()


@pytest.mark.parametrize("goes", [{}, *GOES])
def test_a_reader_of_what_a_rewind_has_undone_is_refused(place: Place, goes: dict[str, Any]) -> None:
    """Also when the transaction has been written again, otherwise."""
    table = Going(place, goes)
    table.write(2, {"b": 2})
    table.reader.pin()
    assert table.reader.rows(TxId(2)).num_rows == 3
    for attempt_id in (21, 23):
        place.txids[attempt_id] = TxId(1)
        table.state.parts.rewind.rewind(RewindTarget(TxId(1), AttemptId(10), place.txids.get), AttemptId(attempt_id))
        with pytest.raises(OperatingError, match="query it again"):
            table.reader.rows(TxId(2))
        table.write(2, {"b": attempt_id}, attempt_id=attempt_id + 1)
        with pytest.raises(OperatingError, match="query it again"):
            table.reader.rows(TxId(2))
        table.reader.pin()
        assert {row["count"] for row in table.reader.rows(TxId(2)).to_pylist()} == {1, attempt_id}
    table.reader.close()


def test_a_reader_creates_nothing(redis_url: str) -> None:
    state = RedisMapState(redis_url, "nobody's", "word string", "count long")
    reader = state.reader(OWNER)
    with pytest.raises(OperatingError, match="has no table yet"):
        reader.pin()
    assert not reader._server.client.exists(*keys_of("nobody's"))
    reader.close()
    state.close()


# --- the doctor, the checker, rewinds: with a topology ------------------------------------------------------------


class Rewound:
    """A store in a SQLite file, and states in Redis."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url, self.name = folder, url, f"world {next(NUMBERS)}"
        self.store = SqlCoordinatorStore(store_url(folder))

    def topology(self, transactions: int = LENGTH) -> Topology:
        """The topology, over some words; its states' connections are closed by whoever reads them."""

        def state(name: str, key: str, values: str = "", *, deletes: bool = False) -> Any:
            return RedisMapState(self.url, f"{self.name} {name}", key, values, deletes=deletes)

        return build(self.folder, state, transactions=transactions, letters=False)

    def run(self, transactions: int = LENGTH) -> None:
        """Run to the end of them."""
        run(self.topology(transactions), self.store)

    def back_to(self, txid: int) -> None:
        """Rewind."""
        rewind(self.topology(), self.store, TxId(txid), owner="rewinder")

    def is_at(self, txid: int) -> bool:
        """Whether readers find what a plain count gives."""
        wanted = {name: rows for name, rows in expected(txid, LENGTH).items() if name != "dead-letters"}
        return contents(self.topology()) == wanted

    def found(self) -> list[str]:
        """What the doctor and the checker say, by their names for it."""
        examined = examine(self.topology(), self.store, store_url(self.folder))
        tables, unknown = checked_tables(self.topology())
        assert (len(tables), unknown) == (3, {})
        report = verify(store_url(self.folder), "rewound", tables)
        return [*(each.problem.value for each in examined), *(each.kind.value for each in report.findings)]


@pytest.fixture
def world(redis_url: str, tmp_path: Path) -> Iterator[Rewound]:
    """Nothing has run there yet."""
    world = Rewound(tmp_path, redis_url)
    yield world
    world.store.close()


def test_back_by_one_and_on_and_no_further(world: Rewound) -> None:
    for length in (3, 5, LENGTH):
        world.run(length)
        world.back_to(length - 1)
        assert world.is_at(length - 1)
        with pytest.raises(
            BeyondKept, match=rf"the oldest that it can go back to is {length - 1}\. Go back to that, or"
        ):
            world.back_to(length - 2)
        assert world.found() == ["table-rewound"] * 3
        world.run(length)
        assert world.is_at(length)
    with pytest.raises(BeyondKept, match="knows only what was before it"):
        world.back_to(LENGTH - 2)
    assert world.is_at(LENGTH)


@pytest.mark.parametrize(
    ("hurt", "says"),
    [
        (lambda client, rows, meta: client.hset(rows, '["cat"]', "[[1],99,null,null]"), {"partly-visible"}),
        (lambda client, rows, meta: client.hset(rows, '["cat"]', "nothing"), {"broken-row"}),
        (lambda client, rows, meta: client.hset(rows, '["cat"]', "[[5],2,[4],3]"), {"broken-row"}),
        (lambda client, rows, meta: client.hset(meta, "owner", "others/count"), {"table-foreign", "wrong-table"}),
        (lambda client, rows, meta: client.delete(rows, meta), {"table-missing", "table-behind"}),
        (lambda client, rows, meta: client.pexpireat(rows, 1), {"table-foreign", "partly-visible"}),
        (lambda client, rows, meta: client.hdel(rows, '["cat"]'), {"table-foreign", "partly-visible"}),
    ],
)
def test_the_doctor_and_the_checker_find_what_others_have_done(world: Rewound, hurt: Any, says: set[str]) -> None:
    world.run()
    assert world.found() == []
    meta, rows, *_ = keys_of(f"{world.name} in-all")
    state: Any = next(each.state for each in world.topology().committers if each.id == "in-all")
    hurt(state._server.client, rows, meta)
    state.close()
    assert set(world.found()) == says


def test_horizons_are_recomputed_and_go_back(redis_url: str, tmp_path: Path) -> None:
    """Windows, and rows that expire: what a table has recorded follows from the recorded batch."""
    store, clock, url = SqlCoordinatorStore(store_url(tmp_path)), Clock(), redis_url.removesuffix("/0") + "/7"

    def state(table: str, **goes: Any) -> Any:
        return RedisMapState(url, table, **goes)

    def made(transactions: int) -> Any:
        return build_clicks(expiring_states(state), clock, transactions)

    topology = made(26)
    run(topology, store, clock=clock)
    assert rows_of(topology) == never_further(30)[26]
    tables, _ = checked_tables(topology)
    assert verify(store_url(tmp_path), "rewound", tables).findings == ()
    client, (meta, *_) = topology.committers[0].state._server.client, keys_of("seen")
    right = client.hget(meta, "horizons")
    txid, horizon, before = json.loads(right)
    client.hset(meta, "horizons", json.dumps([txid, horizon + 1, before]))
    assert [each.where for each in verify(store_url(tmp_path), "rewound", tables).findings] == ["table of 'seen'"]
    client.hset(meta, "horizons", right)
    for length in range(27, 31):
        run(made(length), store, clock=clock)
        rewind(made(length), store, TxId(length - 1), owner="rewinder")
        assert rows_of(made(length)) == never_further(30)[length - 1], f"back at {length - 1}"
    run(made(30), store, clock=clock)
    assert rows_of(made(30)) == never_further(30)[30]
    client.close()
    store.close()


def test_what_is_left_of_rows_that_expire(place: Place) -> None:
    """Neither rows nor their times stay for ever, and the server's own clock decides nothing."""
    state = expiring(place)
    for txid in range(1, 9):
        attempt = place.attempt(txid, txid)
        state.declared.begin(attempt, BatchFacts(txid * 20_000))
        state.put(attempt, {(f"word {txid}",): (txid, datetime.fromtimestamp(20 * txid, UTC))})
    client: Any = state._server.client  # type: ignore[union-attr]
    _, rows, _, expiry = keys_of(place.table)
    assert (client.hlen(rows), client.zcard(expiry), client.ttl(rows)) == (2, 2, -1)
