"""Taking over: the driver raises every table above what earlier coordinators can write, and finds what is amiss."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from tests.simulation.faults import Faults
from tests.simulation.process import INPUTS, UPDATE
from tests.simulation.source import SimulatedSpout, Source
from tests.simulation.tables import Counts, SimulatedState, SimulatedTable
from transactional.core.ports import StateKind
from transactional.core.store import AttemptRecord, Lease
from transactional.core.store.progress import Phase
from transactional.errors import Fenced, StoreMismatch, TableConflict
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.batch import BatchMetadata
from transactional.model.config import TopologyConfig
from transactional.model.schema import Schema
from transactional.runtime.engine.clock import SystemClock
from transactional.runtime.engine.fencing import FENCE_TRIES
from transactional.runtime.engine.leadership import Leadership
from transactional.testing import MemoryCoordinatorStore
from transactional.topology.topology import Component, Topology

ID = "counts"


class Died(BaseException):
    """The process was killed."""


class World:
    """A store and two tables, coordinated by hand. `before` is called with each effect on a table."""

    def __init__(self) -> None:
        self.store = MemoryCoordinatorStore()
        self.tables = {name: SimulatedTable(name) for name in ("words", "total")}
        self.before: Callable[[str], None] = lambda effect: None

    def effect(self, what: str, until: Callable[[], bool] = lambda: False) -> None:
        del until
        self.before(what)

    def topology(self, *names: str) -> Topology:
        faults = Faults(Random(0), Counter())
        states = [SimulatedState(self.tables[name], StateKind.OPAQUE, self.effect, faults) for name in names]
        spout = SimulatedSpout(Source(Random(0)), faults, replays_exactly=False)
        committers = tuple(Component(s.stored.name, UPDATE, 1, INPUTS, Schema(()), s) for s in states)
        return Topology(ID, "spout", spout, 1, committers)

    def acquire(self, owner: str = "first") -> Lease:
        """The same owner may take its lease again; another one has to wait for a release."""
        return self.store.acquire(ID, {}, owner=owner, lease_ms=1_000, accept_changes=True)

    def start(self, *names: str) -> tuple[Lease, Topology]:
        """Take the lease and fence the named tables, or both."""
        lease, topology = self.acquire(), self.topology(*(names or self.tables))
        self.fence(lease, topology)
        return lease, topology

    def fence(self, lease: Lease, topology: Topology) -> None:
        leadership = Leadership(topology, self.store, TopologyConfig(), SystemClock())
        leadership.lease = lease
        leadership.fence_tables()
        leadership.record_start()

    def commit(self, lease: Lease, topology: Topology, txid: int, attempt_id: int) -> None:
        """One transaction, from its record to its transaction commit."""
        attempt = self.record(lease, txid, attempt_id)
        self.write(topology, attempt)
        self.store.record_commit(lease, attempt, BatchMetadata({}), processed_at_ms=0, started_at_ms=0, at_ms=0)

    def record(self, lease: Lease, txid: int, attempt_id: int) -> TransactionAttempt:
        attempt = TransactionAttempt(TxId(txid), AttemptId(attempt_id))
        record = AttemptRecord(attempt, "processing", BatchMetadata({}), None, 0, 0, None, None, None, None)
        self.store.record_attempt(lease, record, forget_later=False)
        return attempt

    @staticmethod
    def write(topology: Topology, attempt: TransactionAttempt) -> None:
        for component in topology.committers:
            assert component.state is not None
            component.state.merge(attempt, Counts(combine={"count": "sum"}, counts={"cat": 1}))


def test_tables_get_the_fence_id_and_the_store_knows_at_which_txid_they_are() -> None:
    world = World()
    lease, topology = world.start()
    world.commit(lease, topology, 1, 2)
    later, _ = world.start()
    assert later.fence_id == 3
    assert {table.version for table in world.tables.values()} == {3}
    assert [world.store.txid_of(ID, name, AttemptId(3)) for name in world.tables] == [1, 1]


def test_what_an_earlier_coordinator_still_writes_is_refused() -> None:
    world = World()
    lease, topology = world.start()
    world.commit(lease, topology, 1, 2)
    attempt = world.record(lease, 2, 3)
    world.start()
    with pytest.raises(Fenced):
        world.write(topology, attempt)
    assert world.tables["words"].seen(TxId(9)) == {"cat": 1}


def test_a_table_that_moves_in_between_is_read_again() -> None:
    """The old coordinator writes the next transaction between the new one's look at the table and its fence."""
    world = World()
    lease, topology = world.start("words")
    world.commit(lease, topology, 1, 2)
    attempt = world.record(lease, 2, 3)

    def write_once(effect: str) -> None:
        if effect == "fence words":
            world.before = lambda effect: None
            world.write(topology, attempt)

    world.before = write_once
    later, _ = world.start("words")
    assert world.tables["words"].version == later.fence_id
    assert world.store.txid_of(ID, "words", later.fence_id) == 2


def test_a_table_that_moves_all_the_time_is_given_up() -> None:
    world = World()
    world.start("words")
    world.start("words")
    table, effects = world.tables["words"], list[str]()

    def move(effect: str) -> None:
        """Between the two earlier fence ids, which are versions that the store knows."""
        if effect == "fence words":
            effects.append(effect)
            table.version = AttemptId(2 if table.version == 1 else 1)

    world.before = move
    with pytest.raises(TableConflict):
        world.start("words")
    assert effects == ["fence words"] * FENCE_TRIES


def test_a_coordinator_that_was_taken_over_is_reported_and_nothing_of_a_mismatch() -> None:
    """It stood still after it took the lease; by now the tables are ahead of what it knows. Nothing is to repair."""
    world = World()
    slow = world.acquire()
    lease, topology = world.start()
    for txid, attempt_id in ((1, 3), (2, 4)):
        world.commit(lease, topology, txid, attempt_id)
    with pytest.raises(Fenced):
        world.fence(slow, world.topology("words", "total"))


def test_a_table_at_another_transaction_than_the_store_is_a_mismatch() -> None:
    """Storm row T56: the store was restored from an old copy, or the table was."""
    world = World()
    lease, topology = world.start()
    for txid in (1, 2, 3):
        world.commit(lease, topology, txid, txid + 1)
    world.tables["words"].version = AttemptId(2)
    with pytest.raises(
        StoreMismatch, match=r"'words'.*\(memory=words .*\): it is at transaction 1, and 3 is committed"
    ):
        world.start()


def test_a_table_that_a_dead_attempt_at_the_committed_transaction_has_left_is_a_mismatch() -> None:
    """A failover has lost what was written last, or somebody has restored the table: its rows are of another batch."""
    world = World()
    lease, topology = world.start()
    world.commit(lease, topology, 1, 2)
    dead = world.record(lease, 2, 3)
    world.write(topology, dead)
    lost = world.tables["words"].version
    world.store.record_failure(lease, dead, Phase.COMMITTING, "no longer", at_ms=0)
    world.commit(lease, topology, 2, 4)
    world.tables["words"].version = lost
    with pytest.raises(StoreMismatch, match=r"'words'.*as attempt 3 has left it, and transaction 2 was committed"):
        world.start()


def test_a_table_written_by_an_unknown_attempt_is_a_mismatch() -> None:
    world = World()
    world.start()
    world.tables["total"].version = AttemptId(77)
    with pytest.raises(StoreMismatch, match=r"'total'.*last written by attempt 77, which the store.* does not know"):
        world.start()


def test_a_table_that_was_emptied_is_a_mismatch() -> None:
    world = World()
    lease, topology = world.start()
    world.commit(lease, topology, 1, 2)
    world.tables["total"] = SimulatedTable("total")
    with pytest.raises(StoreMismatch, match=r"'total': .* transaction 1 is committed, and no transaction was ever w"):
        world.start()


def test_a_committer_that_joins_starts_at_what_is_committed() -> None:
    world = World()
    lease, topology = world.start("words")
    world.commit(lease, topology, 1, 2)
    later, _ = world.start("words", "total")
    assert world.store.txid_of(ID, "total", later.fence_id) == 1


def test_a_process_that_dies_while_a_committer_joins_can_be_started_again() -> None:
    world = World()
    lease, topology = world.start("words")
    world.commit(lease, topology, 1, 2)

    def die(effect: str) -> None:
        if effect == "fence total":
            raise Died

    world.before = die
    with pytest.raises(Died):
        world.start("words", "total")
    world.before = lambda effect: None
    later, _ = world.start("words", "total")
    assert world.tables["total"].version == later.fence_id
