"""Starts that take longer than a lease: it is kept meanwhile, and tables are opened and fenced side by side."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from state.memory import MemoryTable
from tests.unit.drivers import DRAINED, WAIT_S, HookedState, HookedStore, World, in_background
from tests.unit.fakes import WORD_COUNTS, builder, stored, words
from transactional.core.store import Lease
from transactional.core.store.history import EndedHow
from transactional.errors import Fenced, StoreMismatch, StoreUnavailable, TableConflict
from transactional.model.attempt import AttemptId, TxId
from transactional.model.plumbing.pools import DaemonPool
from transactional.runtime.engine.leadership import Leadership
from transactional.runtime.executors.local import LocalExecutor
from transactional.testing import ManualClock
from transactional.topology.topology import Topology

LEASE_MS = 300
CONFIG = replace(DRAINED, lease_ms=LEASE_MS)


class Renewed(HookedStore):
    """A store that tells of each renewal."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.renewed = threading.Event()

    def renew(self, lease: Lease, *, lease_ms: int) -> None:
        super().renew(lease, lease_ms=lease_ms)
        self.renewed.set()


class SlowWorld(World):
    """A world in which time passes only where something is slow."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.store = Renewed(self.clock)

    def three_leases_pass(self) -> None:
        """As many as that, in steps that each make a renewal due."""
        for _ in range(9):
            self.store.renewed.clear()
            self.clock.advance(LEASE_MS // 3)
            assert self.store.renewed.wait(WAIT_S), "the lease is not renewed"

    def slow_topology(self) -> Topology:
        """One whose first table takes that long to open, and whose second one to be fenced."""
        topology = self.topology()
        self.slow(self.states["counts"], "open")
        self.slow(self.states["total"], "fence")
        return topology

    def slow(self, of: Any, call: str) -> None:
        whole = getattr(of, call)

        def slowly(*given: object) -> None:
            self.three_leases_pass()
            whole(*given)

        setattr(of, call, slowly)

    @property
    def ends(self) -> list[EndedHow]:
        """How the runs have ended, oldest first."""
        return [run.end.how for run in self.store.runs("words", limit=9)[::-1]]


def test_of_two_standbys_whose_start_takes_three_leases_one_leads_and_commits() -> None:
    world = SlowWorld()
    one, other = (world.driver(world.slow_topology(), CONFIG, clock=world.clock, standby=True) for _ in range(2))
    with in_background(one) as first, in_background(other) as second:
        assert sorted(run.result(WAIT_S).transactions for run in (first, second)) == [0, 3]
    assert stored(world.counts) == WORD_COUNTS
    assert world.ends == [EndedHow.DRAINED] * 2, "the second one has waited until the first had ended"


def test_the_lease_is_kept_while_the_executor_starts() -> None:
    world = SlowWorld()
    topology = world.topology()
    executor = LocalExecutor(topology)
    world.slow(executor, "open")
    leader = world.driver(topology, CONFIG, clock=world.clock, executor=executor)
    assert leader.run().transactions == 3
    assert world.ends == [EndedHow.DRAINED]


# --- the renewal that does not succeed --------------------------------------------------------------------------------


def leading(world: SlowWorld) -> Leadership:
    leadership = Leadership(world.topology(), world.store, CONFIG, world.clock, owner="one")
    leadership.take()
    return leadership


def tried(world: SlowWorld, times: int = 1) -> Callable[[], None]:
    """Waits until the store was asked so often to renew the lease, from now on."""
    calls, whole = threading.Semaphore(0), world.store.before

    def before(call: str) -> None:
        calls.release()
        whole(call)

    def wait() -> None:
        for _ in range(times):
            assert calls.acquire(timeout=WAIT_S)

    world.store.before = before
    return wait


def kept(leadership: Leadership, start: Callable[[], None]) -> None:
    with leadership.renewing_lease():
        start()


def test_who_was_overtaken_meanwhile_stops() -> None:
    world = SlowWorld()
    leadership = leading(world)
    asked = tried(world)

    def start() -> None:
        world.store.acquire("words", world.topology().fingerprint(), owner="one", lease_ms=LEASE_MS)
        world.clock.advance(LEASE_MS // 3)
        asked()

    with pytest.raises(Fenced, match="may no longer change topology 'words'"):
        kept(leadership, start)


def away(call: str) -> None:
    raise StoreUnavailable(f"{call}: the store does not answer")


def test_a_store_that_is_away_for_a_moment_is_asked_again() -> None:
    world = SlowWorld()
    leadership = leading(world)
    world.store.before = away
    asked = tried(world, 3)
    with leadership.renewing_lease():
        world.clock.advance(LEASE_MS // 2)
        asked()
        world.store.before = lambda call: None
        assert world.store.renewed.wait(WAIT_S)


def test_a_store_that_is_away_for_a_whole_lease_ends_the_start() -> None:
    world = SlowWorld()
    leadership = leading(world)
    world.store.before = away
    asked = tried(world)

    def start() -> None:
        world.clock.advance(LEASE_MS)
        asked()

    with pytest.raises(StoreUnavailable):
        kept(leadership, start)


def test_what_the_start_itself_raises_comes_first() -> None:
    world = SlowWorld()
    world.store.before = away

    def start() -> None:
        world.clock.advance(LEASE_MS)
        raise ValueError("no Spark")

    with pytest.raises(ValueError, match="no Spark"):
        kept(leading(world), start)
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("lease")]


# --- side by side -----------------------------------------------------------------------------------------------------

TABLES = 12


class Many:
    """A topology with many tables."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.tables = [MemoryTable(f"table{n}") for n in range(TABLES)]
        self.states: list[Any] = [HookedState("word", table=table) for table in self.tables]
        made = builder(words())
        for table, state in zip(self.tables, self.states, strict=True):
            made.set_committer_bolt(table.name, state.count()).fields_grouping("spout", "word")
        self.topology = made.build()

    def run(self) -> None:
        self.world.run(self.topology)

    @property
    def versions(self) -> set[AttemptId | None]:
        """Those that the tables have."""
        return {table.version for table in self.tables}


def before(state: Any, call: str, work: Callable[[], object]) -> None:
    whole = getattr(state, call)

    def called(*given: object) -> None:
        work()
        whole(*given)

    setattr(state, call, called)


def test_all_tables_are_opened_and_fenced_at_once() -> None:
    """Each one goes on only when all have come as far; but that the first table is opened first while nothing is
    committed: who creates it creates the others."""
    many = Many(World())
    opening, fencing = threading.Barrier(TABLES - 1), threading.Barrier(TABLES)
    (first, *others), created = many.states, list[str | None]()
    for state in others:
        before(state, "open", lambda: opening.wait(WAIT_S))
        before(state, "open", lambda: created.append(first.parts.store_record.created_for()))
    for state in many.states:
        before(state, "fence", lambda: fencing.wait(WAIT_S))
    many.run()
    assert [stored(table) for table in many.tables] == [WORD_COUNTS] * TABLES
    assert len(created) == TABLES - 1
    assert None not in created


def raising(error: Exception, after: threading.Event | None = None, then: threading.Event | None = None) -> Any:
    """Raises, once something has happened, which is said."""

    def work() -> None:
        assert after is None or after.wait(WAIT_S)
        if then is not None:
            then.set()
        raise error

    return work


@pytest.mark.parametrize("call", ["open", "fence"])
def test_of_several_errors_the_one_of_the_first_committer_is_raised(call: str) -> None:
    """However much later it comes; by then nothing of the start runs any more."""
    many, quicker, slowest = Many(World()), threading.Event(), threading.Event()
    ended = list[int]()

    def end_last() -> None:
        assert slowest.wait(WAIT_S)
        ended.append(11)

    before(many.states[9], call, raising(StoreMismatch("the table of 9"), then=quicker))
    before(many.states[3], call, raising(StoreMismatch("the table of 3"), after=quicker, then=slowest))
    before(many.states[11], call, end_last)
    with pytest.raises(StoreMismatch, match="the table of 3"):
        many.run()
    assert ended == [11]
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith(("fencing", "lease"))]


def test_what_runs_side_by_side_has_ended_whatever_it_raises() -> None:
    """Also in a pool that goes on."""
    pool, raised, done = DaemonPool(1, "work"), threading.Event(), list[int]()

    def other() -> None:
        assert raised.wait(WAIT_S)
        done.append(1)

    with pytest.raises(StoreMismatch, match="the first"):
        pool.run_concurrently([raising(StoreMismatch("the first"), then=raised), other])
    assert done == [1]
    pool.shutdown()


def test_a_start_that_is_refused_has_fenced_no_table() -> None:
    many = Many(World())
    before(many.states[-1], "open", raising(StoreMismatch("the last table")))
    with pytest.raises(StoreMismatch, match="the last table"):
        many.run()
    assert many.versions == {None}


def test_a_table_that_moves_after_all_were_compared_is_compared_again() -> None:
    world = World()
    many = Many(world)
    many.run()
    [before_version] = many.versions
    state = many.states[5]
    fences = list[AttemptId]()
    whole = state.fence

    def moved(fence_id: AttemptId) -> None:
        fences.append(fence_id)
        if len(fences) == 1:
            raise TableConflict("it has moved")
        whole(fence_id)

    state.fence = moved
    many.run()
    assert len(fences) == 2
    assert many.versions == {fences[0]} != {before_version}
    assert world.store.txid_of("words", "table5", fences[0]) == TxId(3)
