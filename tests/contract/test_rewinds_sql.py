"""Topologies over states in a database are taken back by their newest transaction, and no further."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from state import SqlMapState
from state.table_state import TableState
from tests.contract.storages import Storage
from tests.rewinding import Died, Steps, build, contents, dies_at, end_lease, expected, run, stepping, store_url
from transactional.core.ports.examining import Problem
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.errors import BeyondKept, Fenced
from transactional.model.attempt import TxId
from transactional.operations.doctor.examine import examine
from transactional.runtime.engine.rewinding import rewind
from transactional.topology.topology import Topology
from verifier import CheckedSqlTable, verify

pytestmark = pytest.mark.sampled(3)
LENGTH = 9


class World:
    """A store in a SQLite file, and states in a database."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url, self.store = folder, url, SqlCoordinatorStore(store_url(folder))

    def topology(self, transactions: int = LENGTH) -> Topology:
        def state(name: str, key: str, values: str = "", *, deletes: bool = False) -> TableState[Any]:
            return SqlMapState(self.url, name, key, values, deletes=deletes)

        return build(self.folder, state, transactions=transactions, letters=False)

    def run(self, transactions: int = LENGTH) -> None:
        run(self.topology(transactions), self.store)

    def back_to(self, txid: int, owner: str = "rewinder") -> None:
        rewind(self.topology(), self.store, TxId(txid), owner=owner)

    def is_at(self, txid: int) -> bool:
        wanted = {name: rows for name, rows in expected(txid, LENGTH).items() if name != "dead-letters"}
        return contents(self.topology()) == wanted

    def findings(self) -> list[Any]:
        topology = self.topology()
        tables = [CheckedSqlTable(each.id, self.url, each.id) for each in topology.committers]
        report = verify(store_url(self.folder), "rewound", tables)
        examined = examine(topology, self.store, store_url(self.folder))
        return [*(each for each in examined if not each.is_harmless), *report.findings]

    def rewound(self) -> list[str]:
        """The tables that the doctor says were taken back, and to where."""
        examined = examine(self.topology(), self.store)
        return [each.what for each in examined if each.problem is Problem.TABLE_REWOUND]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    storage: Storage = request.getfixturevalue(f"{request.param}_storage")
    assert storage.url is not None
    url = f"sqlite:///{tmp_path}/states.db" if request.param == "sqlite" else storage.url
    made = World(tmp_path, url)
    with closing(made.store):
        yield made


def test_back_by_one_and_on(world: World) -> None:
    for length in (3, 5, LENGTH):
        world.run(length)
        world.back_to(length - 1)
        assert world.is_at(length - 1)
        assert world.findings() == []
        taken = f"a rewind has taken it back to transaction {length - 1}, the last time that there was one"
        assert world.rewound() == [taken] * 3
        world.run(length)
        assert world.is_at(length)
        assert world.findings() == []


def test_no_further(world: World) -> None:
    world.run()
    with pytest.raises(BeyondKept, match=rf"is at transaction {LENGTH} and knows only .* go back to is {LENGTH - 1}"):
        world.back_to(LENGTH - 2)
    world.back_to(LENGTH - 1)
    with pytest.raises(BeyondKept, match=rf"is at transaction {LENGTH - 1} and .* go back to is {LENGTH - 1}"):
        world.back_to(LENGTH - 2)
    assert world.is_at(LENGTH - 1)
    world.back_to(LENGTH - 1)
    assert world.is_at(LENGTH - 1)


def test_one_that_died_is_finished(world: World) -> None:
    world.run()
    moment = 0
    while True:
        steps = Steps(dies_at(moment))
        with stepping(world.store, steps):
            try:
                world.back_to(LENGTH - 1)
            except Died:
                end_lease(world.folder)
            else:
                break
        world.back_to(LENGTH - 1, owner="next")
        assert world.is_at(LENGTH - 1)
        world.run()
        assert world.is_at(LENGTH)
        moment += 7
    assert moment > 7


def test_one_that_was_begun_does_not_go_on_again(world: World) -> None:
    """What was undone is known no longer."""
    world.run()
    steps = Steps()

    def die(moment: int) -> None:
        if steps.names[-1] == "finish_rewind":
            raise Died

    steps.at = die
    with stepping(world.store, steps), pytest.raises(Died):
        world.back_to(LENGTH - 1)
    end_lease(world.folder)
    undone = (
        rf"gone back to transaction {LENGTH - 1}: it can't go forward to {LENGTH} again; finish with {LENGTH - 1}\. The"
    )
    with pytest.raises(BeyondKept, match=undone):
        world.back_to(LENGTH)
    world.back_to(LENGTH - 1, owner="next")
    assert world.is_at(LENGTH - 1)
    assert world.findings() == []


def test_a_zombie_writes_nothing_any_more(world: World) -> None:
    world.run()
    lease = world.store.acquire("rewound", world.topology().fingerprint(), owner="zombie", lease_ms=60_000)
    zombie: Any = world.topology().committers[0].state
    zombie.open("rewound/per-word", lambda _: TxId(LENGTH))
    zombie.version()
    end_lease(world.folder)
    world.back_to(LENGTH - 1)
    with closing(zombie), pytest.raises(Fenced):
        zombie.fence(lease.fence_id)
    assert world.is_at(LENGTH - 1)
