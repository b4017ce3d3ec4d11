"""Worlds of windowed bolts: as those of windows, with a bolt that gets the tuples of each window."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from spouts.memory import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from tests.windows.plain import Plain
from tests.windows.world import FIELDS, Fails, World
from transactional import BasicBolt, TransactionalTopologyBuilder, TupleWindow, WindowedBolt, sliding, tumbling
from transactional.model.aggregates import Count, Sum
from transactional.topology.topology import Topology


class Some(BasicBolt):
    """Passes tuples on, unless it fails."""

    output = FIELDS

    def execute(self, tuple: Any, collector: Any) -> None:
        """Pass it on."""
        Fails()(tuple)
        collector.emit(*tuple)


class Counting(WindowedBolt):
    """Counts the tuples of a window, and what came and went since the one before."""

    output = "page string, window_start timestamp, count long, clicks long, new long, expired long"
    streams = {"late": "id long"}  # noqa: RUF012

    def execute(self, window: TupleWindow) -> None:
        """Emit the counts."""
        ids = [each.id for each in window.get()]
        assert len(ids) == len(set(ids))
        assert {each.id for each in window.get_new()} <= set(ids)
        assert not {each.id for each in window.get_expired()} & set(ids)
        assert window.start is not None
        assert window.end is not None
        clicks = sum(each.clicks for each in window.get())
        [page] = window.key
        new, gone = len(window.get_new()), len(window.get_expired())
        self.collector.emit(page, window.start, len(ids), clicks, new, gone)


class BoltWorld(World):
    """One run."""

    has_sessions = False

    def topology(self) -> Topology:
        """Counts by page and window, and what was late."""
        kind = OpaqueMemoryTransactionalSpout if self.is_opaque else MemoryTransactionalSpout
        self.spout: Any = kind(self.rows, FIELDS, 3)
        builder = TransactionalTopologyBuilder("windows", "clicks", self.spout, self.random.choice((1, 2)))
        idle = None if self.idle_after_s is None else timedelta(seconds=self.idle_after_s)
        builder.set_event_time("at", max_delay=timedelta(seconds=self.max_delay_s), idle_after=idle)
        builder.set_bolt("some", Some()).local_or_shuffle_grouping("clicks")
        length, every = timedelta(seconds=self.length_s), timedelta(seconds=self.every_s)
        of_time = "transaction" if self.by_transaction else "event"
        window = tumbling(length, time=of_time) if length == every else sliding(length, every=every, time=of_time)
        field, late = (None, None) if self.by_transaction else ("at", "late")
        builder.set_windowed_bolt(
            "open", Counting(), window=window, key="page", time=field, late=late, state=self.state("open")
        ).fields_grouping("some", "page")
        closed = self.state("closed").aggregate(
            count=Sum("count"), clicks=Sum("clicks"), new=Sum("new"), expired=Sum("expired"), times=Count()
        )
        closed = closed.group_by("page", "window_start")
        builder.set_committer_bolt("closed", closed).fields_grouping("open", "page", "window_start")
        if not self.by_transaction:
            lates = self.state("late").count().group_by("id")
            builder.set_committer_bolt("late", lates).fields_grouping("open", "id", stream="late")
        return builder.build(strict=True)

    @property
    def is_in_one(self) -> bool:
        """Rows of open windows are tuples here."""
        return False

    def check_tables(self, plain: Plain) -> None:
        """And each tuple is new once."""
        super().check_tables(plain)
        if self.length_s == self.every_s:
            for row in self.rows_of("closed"):
                assert row["new"] == row["count"]
