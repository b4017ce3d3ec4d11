"""A run of sixty transactions to be taken back, whose rows come and go by time: windows that close, late tuples, keys
that are forgotten, new values that a second table adds up.

What is in its tables after each transaction is what a run in memory that never went further has there.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from typing import Any

from spouts import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from state.memory import MemoryMapState, MemoryTable
from tests.rewinding import Contents, States, World, delta_states, run
from transactional import Topology
from transactional.model.batch import BatchMetadata
from transactional.runtime.engine.clock import SystemClock
from transactional.testing import MemoryCoordinatorStore
from transactional.trident import Count, Max, Sum, TridentTopology, sliding

START = datetime(2026, 5, 1, tzinfo=UTC)
EVERY_S = 2
"""So much later than the one before a transaction is."""
FIELDS = "id long, page string, at timestamp, clicks long"
EXPIRES: Mapping[str, tuple[str, str]] = {"seen": ("last", "9 seconds")}


@cache
def clicks(transactions: int) -> tuple[tuple[tuple[Any, ...], ...], ...]:
    """Two partitions, of each of which a transaction takes a row; the same ones however many there are."""
    chance, rows = random.Random(17), (list[tuple[Any, ...]](), list[tuple[Any, ...]]())
    for number in range(transactions):
        for part in range(2):
            at = START + timedelta(seconds=number * EVERY_S - chance.choice((0, 0, 1, 2, 5, 12, 25)))
            rows[part].append((2 * number + part, chance.choice("aaabc"), at, chance.randint(1, 9)))
    return tuple(tuple(part) for part in rows)


class Clock(SystemClock):
    """The time is that of the transaction that is planned, so that each attempt at one has the same."""

    now = START

    def wall_ms(self) -> int:
        """As of the last plan."""
        return int(self.now.timestamp() * 1_000)


class Timed(MemoryTransactionalSpout):
    """Tells the clock what comes next."""

    clock: Clock

    def plan(self, after: BatchMetadata, *, replay: bool) -> BatchMetadata | None:
        """Plan, at the transaction's time."""
        read = sum(int(offset) for offset in after.positions().values()) // 2
        self.clock.now = START + timedelta(seconds=EVERY_S * read)
        return super().plan(after, replay=replay)


class OpaqueTimed(Timed, OpaqueMemoryTransactionalSpout):
    """The same."""


def build_clicks(state: States, clock: Clock, transactions: int, *, is_opaque: bool = True) -> Topology:
    """Counts by page and window, what has closed and how often, what was late; who was there lately; sums of sums."""
    made = TridentTopology("rewound", parallelism=2)
    kind = OpaqueTimed if is_opaque else Timed
    spout = kind([list(part) for part in clicks(transactions)], FIELDS, 1)
    spout.clock = clock
    stream = made.new_stream("clicks", spout, event_time="at", max_delay=timedelta(seconds=2))
    windows = stream.group_by("page").window(sliding(timedelta(seconds=12), every=timedelta(seconds=4)))
    counts = windows.persistent_aggregate(state("windows"), count=Count(), clicks=Sum("clicks"))
    closed = counts.closed().group_by("page", "window_start")
    closed.persistent_aggregate(state("closed"), count=Sum("count"), clicks=Sum("clicks"), times=Count())
    counts.late().group_by("id").persistent_aggregate(state("late"), Count())
    seen = stream.group_by("page").persistent_aggregate(state("seen"), last=Max("at"), clicks=Sum("clicks"))
    seen.new_values().group_by("clicks").persistent_aggregate(state("told"), times=Count())
    return made.build(strict=True)


def expiring(state: States) -> States:
    """The same states, with a column that rows go by where they have one."""

    def make(name: str) -> Any:
        column, after = EXPIRES.get(name, (None, None))
        return state(name) if column is None else state(name, expires=column, after=after)

    return make


def rows_of(topology: Topology) -> Contents:
    """What readers find in the tables, by committer."""
    found = dict[str, Mapping[Any, Any]]()
    for component in topology.committers:
        state: Any = component.state
        width = len(state.key)
        rows = [tuple(row.values()) for row in state.read().to_pylist()]
        state.close()
        found[component.id] = {row[:width]: row[width:] for row in rows}
    return found


@cache
def never_further(transactions: int) -> tuple[Contents, ...]:
    """What a run in memory has in its tables after each of its transactions, which is all that it has ever run to."""
    tables = dict[str, MemoryTable]()

    def memory(name: str, **named: Any) -> Any:
        return MemoryMapState(table=tables.setdefault(name, MemoryTable(name)), **named)

    store, after = MemoryCoordinatorStore(), list[Contents]()
    for txid in range(transactions + 1):
        clock = Clock()
        topology = build_clicks(expiring(memory), clock, txid)
        if txid:
            run(topology, store, clock=clock)
        after.append(rows_of(topology) if txid else {each.id: {} for each in topology.committers})
    return tuple(after)


class WindowsWorld(World):
    """A folder with a store and tables, in which such a run has ended."""

    def topology(self, *, transactions: int | None = None, **options: Any) -> Topology:
        """The topology, over these tables."""
        self.clock = Clock()
        states = expiring(self.states())
        return build_clicks(states, self.clock, self.length if transactions is None else transactions, **options)

    def states(self) -> States:
        """Where its rows are."""
        return delta_states(self.folder, self.layout, self.properties)

    def run(self, *, transactions: int | None = None, **options: Any) -> None:
        """Run until the source is drained."""
        topology = self.topology(transactions=transactions)
        run(topology, self.store, clock=self.clock, **options)

    def contents(self) -> Contents:
        """What readers find."""
        return rows_of(self.topology())

    def expected(self, txid: int) -> Contents:
        """What a run that never went further has."""
        return never_further(self.length)[txid]


def changes(after: tuple[Contents, ...]) -> Iterator[str]:
    """What has happened to rows from one transaction to the next: where any came and where any went."""
    for before, then in pairwise(after):
        for name, rows in then.items():
            yield from (f"{name} gains" for key in rows if key not in before[name])
            yield from (f"{name} loses" for key in before[name] if key not in rows)
