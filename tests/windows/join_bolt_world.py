"""Worlds of `JoinBolt`: as those of joined windows, with two spouts and bolts in place of streams."""

from __future__ import annotations

from datetime import timedelta
from random import Random
from typing import Any

from spouts.memory import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from tests.windows.join_world import BothSpouts, JoinWorld, without
from tests.windows.plain import Plain
from tests.windows.world import FIELDS, Fails, Parts, World
from transactional import BasicBolt, JoinBolt, TransactionalTopologyBuilder, Tuple, TupleWindow, sliding, tumbling
from transactional.model.aggregates import Count, Max
from transactional.topology.topology import Topology

WEB = "id long, page string, at timestamp, clicks long"
APP = "number long, page string, at timestamp, taps long"
SELECTED = (
    "page, id, number, clicks, taps, web:at as at, app:at as seen",
    "web:page as page, app:page as screen, id, number, clicks, taps, web:at as at, app:at as seen",
)


class Some(BasicBolt):
    """Passes tuples on, with NULL for one of the pages, unless it fails."""

    def __init__(self, output: str) -> None:
        self.output = output  # type: ignore[misc]

    def execute(self, tuple: Any, collector: Any) -> None:
        """Pass it on."""
        Fails()(tuple)
        number, page, *others = tuple
        collector.emit(number, without(page), *others)


class InWindow:
    """A collector that adds the start of a window."""

    def __init__(self, collector: Any, window: TupleWindow) -> None:
        self.collector, self.window = collector, window

    def emit(self, *values: object, stream: str) -> None:
        """Emit them, and the start."""
        self.collector.emit(*values, self.window.start, self.window.end, stream=stream)


class PageJoin(JoinBolt):
    """Emits the window of each pair, too."""

    streams = {"late": "id long, number long"}  # noqa: RUF012

    def declare_output(self, name: str, inputs: Any) -> None:
        """With two fields more."""
        super().declare_output(name, inputs)
        self.output += ", window_start timestamp, window_end timestamp"  # type: ignore[misc]

    def execute(self, window: TupleWindow) -> None:
        """Join its tuples."""
        assert all(set(each.fields) == {*("page", "at"), *own(each)} for each in window.get())
        collector = self.collector
        self.collector = InWindow(collector, window)  # type: ignore[assignment]
        super().execute(window)
        self.collector = collector


def own(each: Tuple) -> tuple[str, str]:
    """The fields that only one of the inputs has."""
    return ("id", "clicks") if each.source == "web" else ("number", "taps")


def number_of(row: Tuple) -> tuple[int]:
    """Of a late tuple, whichever side it is of."""
    return (row.number if row.id is None else row.id,)


class JoinBoltWorld(JoinWorld):
    """One run."""

    def __init__(self, seed: int, parts: Parts | None = None) -> None:
        self.key = Random(f"key of {seed}").choice(("page", ()))
        super().__init__(seed, parts)

    def topology(self) -> Topology:
        """Pairs by page and window, how often each was made, and what was late."""
        self.share()
        kind: Any = OpaqueMemoryTransactionalSpout if self.is_opaque else MemoryTransactionalSpout
        spouts = [kind(rows, fields, 3) for rows, fields in zip(self.sides, (FIELDS, APP), strict=True)]
        self.spout = BothSpouts(spouts)
        builder = TransactionalTopologyBuilder("windows", "clicks", spouts[0], self.random.choice((1, 2)))
        builder.set_spout("taps", spouts[1])
        idle = None if self.idle_after_s is None else timedelta(seconds=self.idle_after_s)
        for name in ("clicks", "taps"):
            delay = timedelta(seconds=self.max_delay_s)
            builder.set_event_time("at", max_delay=delay, idle_after=idle, stream=name)
        builder.set_bolt("web", Some(WEB)).local_or_shuffle_grouping("clicks")
        builder.set_bolt("app", Some(APP)).local_or_shuffle_grouping("taps")
        join = PageJoin("web", "page")
        (join.join if self.how == "inner" else getattr(join, f"{self.how}_join"))("app", "page", "web")
        join.select(SELECTED[self.keeps_all])
        length, every = timedelta(seconds=self.length_s), timedelta(seconds=self.every_s)
        of_time = "transaction" if self.by_transaction else "event"
        window = tumbling(length, time=of_time) if length == every else sliding(length, every=every, time=of_time)
        time, late = (None, None) if self.by_transaction else ("at", "late")
        builder.set_windowed_bolt(
            "open", join, window=window, key=self.key, time=time, late=late, state=self.state("open")
        ).global_grouping("web").global_grouping("app")
        most: Any = {name: Max(name) for name in ("clicks", "taps", "window_end", "at", "seen")}
        pair = ("page", *(["screen"] if self.keeps_all else []), "id", "number", "window_start")
        closed = self.state("closed").aggregate(times=Count(), **most).group_by(*pair)
        builder.set_committer_bolt("closed", closed).fields_grouping("open", *pair)
        if late is not None:
            builder.set_bolt("late-ids", number_of, output="id long").global_grouping("open", stream=late)
            lates = self.state("late").count().group_by("id")
            builder.set_committer_bolt("late", lates).fields_grouping("late-ids", "id")
        return builder.build(strict=True)

    def reported_late(self, plain: Plain) -> int:
        """All."""
        return World.reported_late(self, plain)

    def pairs(self, page: str, start: int, reads: Any) -> Any:
        """Without those of a left join that have no key."""
        if not (self.how == "left" and without(page) is None):
            yield from super().pairs(page, start, reads)
