"""How runs start: every table is fenced, and one that is not where the store says it is is refused (Storm row T56)."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from state.memory import MemoryMapState, MemoryTable
from tests.unit.drivers import DRAINED, HookedState, HookedStore, World
from tests.unit.fakes import WORD_COUNTS, WORDS, builder, stored, words
from transactional.core.store import Lease
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.errors import FatalError, Fenced, StoreMismatch, TableConflict, TopologyChanged
from transactional.model.aggregates import Count, Last
from transactional.model.attempt import AttemptId, TxId
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.engine.fencing import FENCE_TRIES, fence_tables
from transactional.runtime.engine.history.run_history import RunSummary
from transactional.runtime.executors.local import LocalExecutor
from transactional.testing import MemoryCoordinatorStore
from transactional.topology.topology import Topology


def is_exact(world: World) -> bool:
    return stored(world.counts) == WORD_COUNTS and stored(world.total) == {(): sum(WORD_COUNTS.values())}


def lease_of(store: MemoryCoordinatorStore, topology: Topology) -> Lease:
    return store.acquire("words", topology.fingerprint(), owner="test", lease_ms=1_000)


def ran(transactions: int = 3) -> World:
    """Tables and store after some of the three transactions."""
    world = World()
    so_far = [part[: 3 * transactions] for part in WORDS]
    assert world.run(world.topology(words(so_far))).committed_txid == transactions
    return world


def test_tables_get_the_fence_id_and_the_store_notes_where_they_are() -> None:
    world = ran(1)
    topology = world.topology()
    lease = lease_of(world.store, topology)
    fence_tables(topology, world.store, lease)
    assert world.counts.version == world.total.version == lease.fence_id
    for committer in ("counts", "total"):
        assert world.store.txid_of("words", committer, lease.fence_id) == 1


def test_a_table_that_is_one_transaction_ahead_is_replayed() -> None:
    """The process died after the table was written and before the store was."""
    world = ran(1)
    topology = world.topology()

    def die(call: str) -> None:
        if call == "record_commit":
            raise Fenced("died")

    world.store.before = die
    with pytest.raises(Fenced):
        world.run(topology)
    world.store.before = lambda call: None
    assert world.store.status()[0].committed_txid == 1
    lease = lease_of(world.store, topology)
    fence_tables(topology, world.store, lease)
    assert world.store.txid_of("words", "counts", lease.fence_id) == 2
    world.store.release(lease)
    assert world.run() == RunSummary(2, 3, 0)  # type: ignore[arg-type]
    assert is_exact(world)


def test_a_wiped_store_is_refused() -> None:
    world = ran()
    world.store = HookedStore()
    with pytest.raises(StoreMismatch) as caught:
        world.run()
    assert str(caught.value) == (
        "committer 'counts': its table (memory=counts key=word string values=count long kind=opaque): it was last "
        "written by attempt 4, which the store does not know (it says that transaction 0 is committed): the store was "
        "wiped or restored, or the table belongs to another store. To do: let the store catch up with the tables, from "
        "a journal of the runs (transactional doctor --repair --journal); without one, restore the store from a "
        "backup, or start a topology with a new id and empty tables"
    )
    assert is_exact(world)
    assert not world.is_leased


def test_a_table_that_was_put_back_is_refused() -> None:
    world = ran(1)
    old = copy.deepcopy(world.counts)
    world.run()
    world.counts = old
    with pytest.raises(
        StoreMismatch, match=r"^committer 'counts': its table .* it is at transaction 1, and 3 is committed"
    ):
        world.run()
    assert old.version == AttemptId(2), "it was not touched"


def test_a_store_that_was_put_back_is_refused() -> None:
    world = ran(1)
    old = copy.copy(world.store)
    old._topologies = copy.deepcopy(world.store._topologies)
    world.run(config=DRAINED)
    world.store = old
    with pytest.raises(
        StoreMismatch, match=r"^committer 'counts': its table .* attempt 5, which the store does not know"
    ):
        world.run()
    assert is_exact(world)


def test_a_table_that_was_emptied_is_refused() -> None:
    world = ran()
    world.total = MemoryTable("total")
    with pytest.raises(
        StoreMismatch, match=r"^committer 'total': .* transaction 3 is committed, and no transaction was ever w"
    ):
        world.run()
    assert world.total.version is None


def with_a_third(world: World, third: MemoryTable, rows: Any) -> Topology:
    made = builder(words(rows), parallelism=2)
    for name, table in (("counts", world.counts), ("third", third)):
        made.set_committer_bolt(name, MemoryMapState("word", table=table).count()).fields_grouping("spout", "word")
    topology = world.topology()
    total = next(component for component in topology.components if component.id == "total")
    made.set_committer_bolt("total", total.bolt, state=total.state).global_grouping("spout")  # type: ignore[arg-type]
    return made.build()


def test_a_committer_that_joins_begins_where_the_topology_is() -> None:
    world, third, rows = ran(), MemoryTable("third"), [list(part) for part in WORDS]
    for number in (1, 2):
        rows[0].append(("owl",))
        summary = world.run(with_a_third(world, third, rows))
        assert (summary.first_txid, summary.transactions) == (3 + number, 1)
        assert stored(third) == {"owl": number}
    assert stored(world.counts) == {**WORD_COUNTS, "owl": 2}
    third.version = None
    with pytest.raises(
        StoreMismatch, match=r"^committer 'third': .* transaction 5 is committed, and no transaction was ever w"
    ):
        world.run(with_a_third(world, third, rows))


@pytest.mark.parametrize("dies", ["before the fence", "after the fence"])
@pytest.mark.parametrize("is_real", [False, True], ids=["memory", "sqlite"])
def test_who_dies_while_a_committer_joins_can_be_started_again(dies: str, *, is_real: bool, tmp_path: Path) -> None:
    world, third = World(), MemoryTable("third")
    if is_real:
        world.store = SqlCoordinatorStore(f"sqlite:///{tmp_path}/store.db")
    world.run(world.topology())
    topology = with_a_third(world, third, WORDS)
    state: Any = next(c.state for c in topology.committers if c.id == "third")
    write_fence = state.fence

    def die(fence_id: AttemptId) -> None:
        if dies == "after the fence":
            write_fence(fence_id)
        raise FatalError("killed")

    state.fence = die
    with pytest.raises(FatalError, match="killed"):
        world.run(topology)
    state.fence = write_fence
    assert world.run(topology).transactions == 0
    assert world.store.has_fence("words", "third")
    world.store.close()


# --- others at the same time --------------------------------------------------------------------------------------


class Moving(HookedState):
    """A table that somebody else writes right after it was looked at."""

    moves = 0

    def version(self) -> AttemptId | None:
        version = super().version()
        if self.moves:
            self.moves -= 1
            self.stored.version = AttemptId((self.stored.version or 0) + 1)
        return version


def moving(world: World, moves: int) -> Topology:
    """A topology with one table, at an attempt that the store knows, and so are the next ones."""
    state = Moving("word", table=world.counts)
    state.moves = moves
    made = builder(words())
    made.set_committer_bolt("counts", state.count()).fields_grouping("spout", "word")
    return made.build()


def test_a_table_that_moves_is_read_again() -> None:
    world = World()
    topology = moving(world, 0)
    world.run(topology)
    world.counts.version = AttemptId(3)  # the attempts are 2, 3 and 4, of transactions 1, 2 and 3
    world.store._topologies["words"].committed_txid = TxId(2)
    topology = moving(world, 1)
    lease = lease_of(world.store, topology)
    fence_tables(topology, world.store, lease)
    assert world.counts.version == lease.fence_id
    assert world.store.txid_of("words", "counts", lease.fence_id) == 3


def test_a_table_that_never_stands_still_is_given_up() -> None:
    world = World()
    topology = world.topology()
    tries: list[AttemptId] = []

    def fence(attempt_id: AttemptId) -> None:
        tries.append(attempt_id)
        raise TableConflict("it has moved again")

    world.states["counts"].fence = fence  # type: ignore[method-assign]
    with pytest.raises(TableConflict, match="it has moved again"):
        fence_tables(topology, world.store, lease_of(world.store, topology))
    assert len(tries) == FENCE_TRIES


def test_who_was_overtaken_while_it_started_is_reported() -> None:
    """Seen from its old lease, the table is where it can't be; but the store is not to blame."""
    world = ran(1)
    topology = world.topology()
    state: Any = world.states["counts"]
    look = state.version

    def be_overtaken() -> AttemptId | None:
        state.version = look
        other = World()
        other.counts, other.total, other.store = world.counts, world.total, world.store
        other.run(owner="the same")
        return state.version()  # type: ignore[no-any-return]

    state.version = be_overtaken
    with pytest.raises(Fenced, match="may no longer change topology 'words'"):
        world.run(topology, owner="the same")
    assert is_exact(world)


# --- what must stay the same --------------------------------------------------------------------------------------


def changed(world: World) -> TopologyDriver:
    """The same topology over other words, with another column."""
    made = builder(words(), parallelism=2)
    update = MemoryMapState("word", table=world.counts).aggregate(count=Count(), last=Last("word"))
    made.set_committer_bolt("counts", update).shuffle_grouping("spout")
    topology = made.build()
    return TopologyDriver(topology, world.store, LocalExecutor(topology), DRAINED)


def test_a_changed_topology_is_refused() -> None:
    world = ran()
    with pytest.raises(
        TopologyChanged,
        match=r'committers\.counts\.values: stored "count long", given "count long, last string"',
    ):
        changed(world).run()
    assert not world.is_leased


def test_a_change_may_be_accepted() -> None:
    world = ran()
    driver = changed(world)
    driver.leadership.accept_changes = True
    assert driver.run().transactions == 0
    assert changed(world).run().transactions == 0, "it is the topology now"
    assert {row.value for row in world.counts.rows.values()} == {(n, None) for n in WORD_COUNTS.values()}
