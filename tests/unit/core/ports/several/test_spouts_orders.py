"""Streams that are declared in any order, taken out and put back between runs, against a plain model (generated)."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from spouts.memory import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from state.memory import MemoryMapState, MemoryTable
from tests.unit.fakes import stored
from transactional.errors import RetriesExhausted, TopologyChanged
from transactional.model.config import TopologyConfig
from transactional.model.user_code.tuples import Tuple
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.executors.local import LocalExecutor
from transactional.testing.memory_store import MemoryCoordinatorStore
from transactional.topology.topology import Topology
from transactional.trident import Count, TridentTopology

NAMES = ("web", "app", "shop", "mail")
CONFIG = TopologyConfig(stop_when_drained=True, attempts_max=1, idle_pause_ms=1, retry_pause_ms=1, tick_ms=1)


class Breaking:
    """A filter that fails while a test says so."""

    fails = False

    def __call__(self, row: Tuple) -> bool:
        if Breaking.fails:
            raise ValueError("broken")
        return True


class Life:
    """One topology id over many runs: what is in its sources, and what of it a plain model has read."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.store, self.table = MemoryCoordinatorStore(), MemoryTable("counts")
        self.kind = self.random.choice([MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout])
        self.rows: dict[str, list[list[tuple[str]]]] = {
            name: [[] for _ in range(self.random.randint(1, 3))] for name in NAMES
        }
        self.read: Counter[str] = Counter()
        self.before: set[str] = set()
        self.in_flight: set[str] = set()
        self.written = 0

    def write(self) -> None:
        for name in NAMES:
            for partition in self.rows[name]:
                for _ in range(self.random.randint(0, 3)):
                    self.written += 1
                    partition.append((f"{name}-{self.written}",))

    def topology(self, order: list[str]) -> Topology:
        topology = TridentTopology("life")
        take = self.random.randint(1, 3)
        made = {name: topology.new_stream(name, self.kind(self.rows[name], "word string", take)) for name in order}
        first, *others = [made[name] for name in sorted(made)]
        counted = (first.merge(*others) if others else first).filter(Breaking()).group_by("word")
        counted.persistent_aggregate(MemoryMapState(table=self.table), Count(), name="counts")
        return topology.build(strict=True)

    def live(self, order: list[str], *, accepts: bool) -> None:
        topology = self.topology(order)
        TopologyDriver(
            topology, self.store, LocalExecutor(topology), CONFIG, owner="test", accept_changes=accepts
        ).run()

    def step(self) -> None:
        order = self.random.sample(NAMES, self.random.randint(1, len(NAMES)))
        self.write()
        # Before the first transaction commit nothing binds, and batches of other sources are deleted.
        is_bound = any(status.committed_txid for status in self.store.status("life"))
        has_changed = is_bound and set(order) != self.before
        if is_bound and not self.in_flight <= set(order):
            with pytest.raises(TopologyChanged):
                self.live(order, accepts=True)
            return
        if has_changed:
            with pytest.raises(TopologyChanged):
                self.live(order, accepts=False)
        Breaking.fails = self.random.random() < 0.25
        unread = {
            name for name in order for rows in self.rows[name] if not {word for (word,) in rows} <= self.read.keys()
        }
        try:
            self.live(order, accepts=has_changed)
            assert not (Breaking.fails and unread)
            self.in_flight = set()
            self.read |= Counter(word for name in order for rows in self.rows[name] for (word,) in rows)
        except RetriesExhausted:
            assert Breaking.fails
            recorded = self.store.status("life")[0].committed_txid + 1
            [attempt, *_] = self.store.attempts_at("life", recorded)  # type: ignore[arg-type]
            self.in_flight = {partition.source.partition("/")[0] for partition, _ in attempt.batch.non_empty()}
        finally:
            Breaking.fails = False
        self.before = set(order)


@pytest.mark.parametrize("seed", range(12))
def test_every_row_of_a_stream_that_is_there_counts_once(seed: int) -> None:
    life = Life(seed)
    for _ in range(10):
        life.step()
        assert stored(life.table) == life.read
    life.live(list(NAMES), accepts=True)
    assert stored(life.table) == Counter(word for name in NAMES for rows in life.rows[name] for (word,) in rows)
