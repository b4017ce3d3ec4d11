"""A stream without an event time reaches no window by event time: the times of others would make its tuples late."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from spouts.memory import MemoryTransactionalSpout
from state.memory import MemoryMapState
from transactional import JoinBolt, TransactionalTopologyBuilder
from transactional.errors import ConfigError
from transactional.testing import complete_topology
from transactional.trident import Count, Max, Stream, TridentTopology, session, tumbling

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
FIELDS = "id long, at timestamp"
WINDOW = tumbling("1 minute")
ROWS = [(n, NOON + timedelta(seconds=10 * n)) for n in range(40)]
ENDS = [(900 + n, NOON + timedelta(hours=n)) for n in (3, 6, 9)]


def spout(take: int = 10) -> MemoryTransactionalSpout:
    return MemoryTransactionalSpout([ROWS + ENDS], FIELDS, take)


def counted(stream: Stream, window: Any = WINDOW, **options: Any) -> Any:
    return stream.group_by("id").window(window, **options).persistent_aggregate(MemoryMapState(), n=Count())


def last(stream: Stream) -> Stream:
    """The rows of a state, whose field with the time is an aggregate of the stream's."""
    return stream.group_by("id").persistent_aggregate(MemoryMapState(), at=Max("at"), name="last").new_values()


REACHES: dict[str, Callable[[Any, Stream, Stream], Any]] = {
    "alone": lambda _, a, b: counted(b, on="at"),
    "merged": lambda _, a, b: counted(a.merge(b)),
    "in sessions": lambda _, a, b: counted(a.merge(b), session("1 minute", longest="1 hour"), on="at"),
    "renamed": lambda _, a, b: counted(a.merge(b.rename(seen="at").rename(at="seen")), on="at"),
    "made anew": lambda _, a, b: counted(b.map(tuple, "id long, made timestamp"), on="made"),
    "from a state": lambda _, a, b: counted(last(b), on="at"),
    "by the time of the other side": lambda t, a, b: counted(t.join((a.rename(seen="at"), "id"), (b, "id")), on="at"),
    "in a windowed join": lambda t, a, b: t.join(
        (a, "id"), (b.rename(seen="at"), "id"), on=["at", "seen"], window=WINDOW, state=MemoryMapState()
    ),
}


def both() -> tuple[TridentTopology, Stream, Stream]:
    topology = TridentTopology("t")
    first = topology.new_stream("a", spout(), event_time="at", max_delay="1 minute")
    return topology, first, topology.new_stream("b", spout(2))


@pytest.mark.parametrize("way", REACHES)
def test_a_stream_without_a_time_is_refused_in_windows(way: str) -> None:
    with pytest.raises(ConfigError, match=r"tuples of 'b' reach windows by event time, and it has none"):
        REACHES[way](*both())


def test_a_stream_without_a_time_may_be_joined_to_one_that_has_it() -> None:
    topology, first, other = both()
    joined = topology.join((first, "id"), (other.rename(seen="at"), "id"))
    closed = counted(joined, on="at").closed()
    counted(closed.project("id", "window_end").rename(end="window_end"), on="end")
    counted(other, tumbling("1 minute", time="transaction"))
    topology.build()


def joining(*named: str, reads: str = "paid", **spouts: Any) -> TransactionalTopologyBuilder:
    """Two spouts that are joined over windows; `named` are those with a call of their own, or "" for all."""
    builder = TransactionalTopologyBuilder("t", "orders", spout())
    for name in named:
        builder.set_event_time("at", max_delay="1 minute", **({"stream": name} if name else {}))
    builder.set_spout("paid", spout(2))
    builder.set_bolt("same", lambda row: (row.id, row.at), output=FIELDS).shuffle_grouping("paid")
    join = JoinBolt("orders", "id").join(reads, "id", "orders").select("orders:id as id")
    bolt = builder.set_windowed_bolt("join", join, window=WINDOW, time="at", state=MemoryMapState())
    bolt.global_grouping("orders").global_grouping(reads)
    builder.set_committer_bolt("n", MemoryMapState("id").count()).fields_grouping("join", "id")
    return builder


@pytest.mark.parametrize("reads", ["paid", "same"])
def test_a_spout_without_a_time_is_refused_at_a_windowed_bolt(reads: str) -> None:
    """Also behind another bolt."""
    with pytest.raises(
        ConfigError, match=r"'join' .* tuples of 'paid' reach it, .*set_event_time\('…', stream='paid'\)"
    ):
        joining("orders", reads=reads).build(strict=True)


def test_an_event_time_is_that_of_all_spouts_that_have_the_field() -> None:
    """Whenever they are set; a call for one of them goes before."""
    rows = complete_topology(joining("").build(strict=True))["join"]
    assert {row.id for row in rows if row.id < len(ROWS)} == set(range(len(ROWS)))
    builder = joining("", "orders")
    builder.set_event_time("at", max_delay="2 minutes", stream="paid")
    delays = {name: of.max_delay_ms for name, of in builder.build(strict=True).event_times.items()}
    assert delays == {"default": 60_000, "paid": 120_000}


def test_a_field_that_is_no_time_is_not_taken_for_one() -> None:
    builder = TransactionalTopologyBuilder("t", "orders", spout())
    builder.set_spout("paid", MemoryTransactionalSpout([[]], "id long, at string", 1))
    builder.set_event_time("at")
    builder.set_committer_bolt("n", MemoryMapState("id").count()).fields_grouping("orders", "id")
    assert builder.build().event_times.keys() == {"default"}
    with pytest.raises(ConfigError, match="spout 'orders': event_time"):
        builder.set_event_time("seen")
