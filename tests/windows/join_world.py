"""Worlds of joined windows: as those of windows, with two sources whose tuples are joined; and what joins them in plain
Python, pair by pair.

Nothing of the code under test joins here: all pairs are looked at, and a window is a pair of numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import timedelta
from random import Random
from typing import Any

from spouts.memory import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from tests.windows.plain import FIRST_US, LAST_US, Plain, Read
from tests.windows.world import FIELDS, Fails, Parts, World, since_1970
from transactional.topology.topology import Topology
from transactional.trident import Count, Max, TridentTopology, sliding, tumbling

KINDS = ("inner", "left", "right", "outer")
NULL = "about"
"""The page that is NULL in the streams that are joined."""
Joined = tuple[str | None, int | None, int | None, int]
"""Key, the number of the left tuple and of the right one, and the start of the window."""


class BothSpouts:
    """What a world changes of two spouts: the partitions with even numbers are of the first."""

    def __init__(self, spouts: list[Any]) -> None:
        self.spouts = spouts

    @property
    def take(self) -> int:
        """So much of each partition."""
        take: int = self.spouts[0].take
        return take

    @take.setter
    def take(self, take: int) -> None:
        for spout in self.spouts:
            spout.take = take

    def set_disabled(self, number: int, *, disabled: bool) -> None:
        """A partition is away, or back."""
        self.spouts[number % 2].set_disabled(number, disabled=disabled)


class JoinWorld(World):
    """One run."""

    has_sessions = False

    def __init__(self, seed: int, parts: Parts | None = None) -> None:
        random = Random(f"join of {seed}")
        self.how, self.keeps_all = random.choice(KINDS), random.random() < 0.3
        self.sides: list[dict[int, list[tuple[Any, ...]]]] = [{}, {}]
        super().__init__(seed, parts)

    def grow(self) -> None:
        """A new partition is one of its source."""
        super().grow()
        self.share()

    def share(self) -> None:
        """By their numbers; each has one at least."""
        self.rows.setdefault(1, [])
        for number, rows in self.rows.items():
            self.sides[number % 2][number] = rows

    def topology(self) -> Topology:
        """Pairs by page and window, how often each was made, and what was late."""
        self.share()
        made = TridentTopology("windows", parallelism=self.random.choice((1, 2)))
        kind: Any = OpaqueMemoryTransactionalSpout if self.is_opaque else MemoryTransactionalSpout
        others = "number long, screen string, seen timestamp, taps long"
        spouts = [kind(rows, fields, 3) for rows, fields in zip(self.sides, (FIELDS, others), strict=True)]
        self.spout = BothSpouts(spouts)
        idle = None if self.idle_after_s is None else timedelta(seconds=self.idle_after_s)
        how: Any = {"max_delay": timedelta(seconds=self.max_delay_s), "idle_after": idle}
        web = made.new_stream("clicks", spouts[0], event_time="at", **how).filter(Fails())
        app = made.new_stream("taps", spouts[1], event_time="seen", **how).filter(Fails())
        web = web.map(lambda row: (row.id, without(row.page), row.at, row.clicks))
        app = app.map(lambda row: (row.number, without(row.screen), row.seen, row.taps))
        length, every = timedelta(seconds=self.length_s), timedelta(seconds=self.every_s)
        time = "transaction" if self.by_transaction else "event"
        window = tumbling(length, time=time) if length == every else sliding(length, every=every, time=time)
        joined = made.join(
            *((web, "page"), (app, "screen")),
            how=self.how,
            keep_all=self.keeps_all,
            window=window,
            state=self.state("open"),
            on=None if self.by_transaction else ["at", "seen"],
            name="open",
        )
        pairs = joined.closed().group_by(
            "page", *(["screen"] if self.keeps_all else []), "id", "number", "window_start"
        )
        most: Any = {name: Max(name) for name in ("clicks", "taps", "window_end", "at", "seen")}
        pairs.persistent_aggregate(self.state("closed"), times=Count(), **most)
        if not self.by_transaction:
            late = joined.late(web).project("id").merge(joined.late(app).project("number").rename(id="number"))
            late.group_by("id").persistent_aggregate(self.state("late"), Count())
        return made.build(strict=True)

    @property
    def is_in_one(self) -> bool:
        """Rows of open windows are tuples here."""
        return False

    def reported_late(self, plain: Plain) -> int:
        """Without those that could have no partner, and are left out before."""
        records = [self.told(record) for record in self.committed()]
        page_of = {read.id: (read.page, read.partition) for each in records for read in each.tuples}
        return sum(page_of[id_][0] != NULL or self.keeps(page_of[id_][1] % 2) for id_ in plain.late)

    def keeps(self, side: int) -> bool:
        """Whether what has no partner is kept."""
        return self.how == "outer" or self.how == ("left", "right")[side]

    def check_tables(self, plain: Plain) -> None:
        """What is joined is what plain Python joins, each once, with the values of both sides."""
        found = self.rows_of("closed")
        assert all(row["times"] == 1 for row in found), "a pair was made more than once"
        windows, rows = self.windows(plain), {row[0]: row for part in self.rows.values() for row in part}
        expected = Counter(pair for key, reads in windows.items() for pair in self.pairs(*key, reads))
        assert Counter(self.joined(row) for row in found) == expected
        for row in found:
            for number, value, time in (("id", "clicks", "at"), ("number", "taps", "seen")):
                if row[number] is None:
                    assert row[value] is row[time] is None
                else:
                    assert row[value] == rows[row[number]][3]
                    assert row[time] == rows[row[number]][2]
        late = {row["id"]: row["count"] for row in self.rows_of("late")} if not self.by_transaction else {}
        assert late == Counter(plain.late)
        self.reached["pairs"] += sum(row["id"] is not None and row["number"] is not None for row in found)
        self.reached["without a partner"] += sum(row["id"] is None or row["number"] is None for row in found)

    def joined(self, row: dict[str, Any]) -> Joined:
        """A row of the table."""
        page = row["page"]
        if self.keeps_all:
            assert row["page"] is None or row["screen"] is None or row["page"] == row["screen"]
            page = row["page"] if row["screen"] is None else row["screen"]
        return page, row["id"], row["number"], since_1970(row["window_start"])

    def windows(self, plain: Plain) -> dict[tuple[str, int], list[Read]]:
        """The tuples of each window that has closed, by page and start."""
        found: dict[tuple[str, int], list[Read]] = {}
        records = [self.told(record) for record in self.committed()]
        for record, time, threshold in zip(records, plain.times, plain.thresholds, strict=True):
            for read in record.tuples:
                us = time if self.by_transaction else read.us
                if us is not None and FIRST_US <= us < LAST_US:
                    for start in plain._starts(us):
                        if threshold is None or start + plain.length > threshold:
                            found.setdefault((read.page, start), []).append(read)
        last = plain.thresholds[-1] if plain.thresholds else None
        return {key: reads for key, reads in found.items() if last is not None and key[1] + plain.length <= last}

    def pairs(self, page: str, start: int, reads: Iterable[Read]) -> Iterator[Joined]:
        """All that are joined of one window."""
        sides: list[list[int]] = [[], []]
        for read in reads:
            sides[read.partition % 2].append(read.id)
        key = without(page)
        is_joined = key is not None and sides[0] and sides[1]
        if is_joined:
            yield from ((key, left, right, start) for left in sides[0] for right in sides[1])
            return
        if self.keeps(0):
            yield from ((key, left, None, start) for left in sides[0])
        if self.keeps(1):
            yield from ((key, None, right, start) for right in sides[1])


def without(page: str) -> str | None:
    """A page, or NULL."""
    return None if page == NULL else page
