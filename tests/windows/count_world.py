"""Worlds of windows by count: as those of windows, with the tuples of each in order."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from random import Random
from typing import Any

from spouts.memory import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from tests.windows.plain import Read
from tests.windows.world import FIELDS, Fails, Parts, World
from transactional.core.ports import StateKind
from transactional.topology.topology import Topology
from transactional.trident import Collect, Count, Last, Sum, TridentTopology, collected, count

COUNTS = ((1, 1), (3, 3), (7, 7), (40, 40), (4, 2), (6, 2), (5, 2), (9, 1))
"""Lengths and distances."""


class CountWorld(World):
    """One run."""

    def __init__(self, seed: int, parts: Parts | None = None) -> None:
        self.length, self.every = Random(f"counts of {seed}").choice(COUNTS)
        super().__init__(seed, parts)

    def topology(self) -> Topology:
        """The tuples of each window that is full, and how often it was."""
        made = TridentTopology("windows", parallelism=self.random.choice((1, 2)))
        kind = OpaqueMemoryTransactionalSpout if self.is_opaque else MemoryTransactionalSpout
        self.spout: Any = kind(self.rows, FIELDS, 3)
        windows = made.new_stream("clicks", self.spout).filter(Fails()).group_by("page")
        state = windows.window(count(self.length, every=self.every)).persistent_aggregate(
            self.state("open"), count=Count(), clicks=Sum("clicks"), ids=Collect("id")
        )
        closed = state.closed().group_by("page", "window_end")
        kept: Any = {name: Last(name) for name in ("window_start", "count", "clicks", "ids")}
        closed.persistent_aggregate(self.state("closed"), times=Count(), **kept)
        return made.build(strict=True)

    def state(self, name: str) -> Any:
        """An opaque one: by count a replay may fill other windows, as runs have one task or two."""
        self.kinds[name] = StateKind.OPAQUE
        return super().state(name)

    def check(self) -> None:
        """All windows of a key are made of one row of its tuples: transaction after transaction, and in each those of a
        partition as they were read."""
        history = [self.told(record).tuples for record in self.committed()]
        assert sorted(read.id for tuples in history for read in tuples) == list(range(1, self.ids + 1))
        closed = defaultdict[str, dict[int, Any]](dict)
        for row in self.rows_of("closed"):
            assert row["times"] == 1, "a window has closed more than once"
            closed[row["page"]][row["window_end"]] = row
        parts = defaultdict[str, list[Any]](list)
        for row in self.rows_of("open"):
            parts[row["page"]].append(row)
        for page in {read.page for tuples in history for read in tuples} | closed.keys() | parts.keys():
            of_page = [[read for read in tuples if read.page == page] for tuples in history]
            self.check_page(of_page, closed[page], parts[page])
        self.reached["windows closed"] += sum(map(len, closed.values()))
        self.reached["windows open"] += sum(map(len, parts.values()))
        self.reached["transactions"] += len(history)

    def check_page(self, history: list[list[Read]], closed: dict[int, Any], parts: list[Any]) -> None:
        """Those of one key."""
        total = sum(map(len, history))
        assert sorted(closed) == list(range(self.every, total + 1, self.every))
        clicks = {read.id: read.clicks for tuples in history for read in tuples}
        found: list[int] = []
        for end in sorted(closed):
            ids = ids_of(closed[end])
            found += ids[-self.every :]
            assert ids == found[max(0, end - self.length) : end]
            assert closed[end]["window_start"] == max(0, end - self.length)
            assert closed[end]["count"] == len(ids)
            assert closed[end]["clicks"] == sum(clicks[each] for each in ids)
        of, last = "window" if self.length == self.every else "pane", len(found)
        for row in sorted(parts, key=lambda row: int(row[f"{of}_start"])):
            assert row["count"] == row[f"{of}_end"] - row[f"{of}_start"] == len(ids_of(row))
            found += ids_of(row) if row[f"{of}_start"] >= last else []
        assert len(found) == total
        for tuples in history:
            came, found = found[: len(tuples)], found[len(tuples) :]
            partitions = {read.id: read.partition for read in tuples}
            assert set(came) == partitions.keys(), "a transaction's tuples are not next to one another"
            for partition in set(partitions.values()):
                ordered = [each for each in came if partitions[each] == partition]
                assert all(one < other for one, other in pairwise(ordered)), "a partition's tuples are not in order"


def ids_of(row: Any) -> list[int]:
    """Of the tuples that were collected."""
    return [each["id"] for each in collected(row["ids"])]
