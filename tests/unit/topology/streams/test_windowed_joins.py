"""Streams joined over windows: which tuples are joined, in what order, and what is late; every mistake at its line."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest

from spouts.memory import MemoryTransactionalSpout
from state.memory import MemoryMapState, MemoryTable
from transactional.errors import ConfigError, RetriesExhausted, SchemaMismatch, TopologyChanged
from transactional.model.config import TopologyConfig
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.executors.local import LocalExecutor
from transactional.testing import MemoryCoordinatorStore, complete_topology
from transactional.topology.streams.windowed_joins import keeps_unmatched
from transactional.trident import (
    Collect,
    JoinedWindows,
    Stream,
    TridentTopology,
    collected,
    count,
    field,
    session,
    sliding,
    tumbling,
)

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
ORDERS, PAYMENTS = "id long, customer string, at timestamp", "order long, paid long, paid_at timestamp"
ENDS = (None, None, 3_600), (None, None, 3_601)
"""Tuples that close all windows before them."""
WINDOW = tumbling("10 seconds")


def at(second: float) -> datetime:
    return NOON + timedelta(seconds=second)


def stream(topology: TridentTopology, name: str, rows: list[tuple[Any, Any, float]], fields: str, take: int) -> Stream:
    timed = [(key, value, at(second)) for key, value, second in (*rows, *ENDS)]
    spout = MemoryTransactionalSpout([timed], fields, take)
    return topology.new_stream(name, spout, event_time=fields.split()[-2], max_delay="1 minute")


def both(orders: list[Any], payments: list[Any], take: int = 1) -> tuple[TridentTopology, Stream, Stream]:
    """Two streams, whose last tuples close all windows."""
    topology = TridentTopology("paid")
    return (
        topology,
        stream(topology, "orders", orders, ORDERS, take),
        stream(topology, "payments", payments, PAYMENTS, take),
    )


def made_of(topology: TridentTopology, joined: JoinedWindows) -> list[tuple[Any, ...]]:
    """What is joined, in order."""
    joined.closed().persistent_aggregate(kept := MemoryMapState(()), Collect(), name="rows")
    complete_topology(topology.build())
    return [tuple(row.values()) for each in kept.read().to_pylist() for row in collected(each["collect"])]


def pairs(how: str, orders: list[Any], payments: list[Any], **options: Any) -> list[tuple[Any, Any, Any]]:
    """Key, customer and sum of each that is joined."""
    topology, left, right = both(orders, payments)
    joined = topology.join((left, "id"), (right, "order"), how=how, window=WINDOW, state=MemoryMapState(), **options)
    return [(id_, customer, paid) for id_, customer, _, paid, *_ in made_of(topology, joined)]


TWO = [(1, "ann", 1), (2, "bob", 2), (None, "nobody", 3)], [(1, 10, 5), (3, 30, 5), (None, 0, 5), (1, 11, 12)]


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("inner", [(1, "ann", 10)]),
        ("left", [(1, "ann", 10), (2, "bob", None), (None, "nobody", None)]),
        ("right", [(1, "ann", 10), (3, None, 30), (None, None, 0), (1, None, 11)]),
        (
            "outer",
            [
                *((1, "ann", 10), (2, "bob", None), (None, "nobody", None), (3, None, 30), (None, None, 0)),
                (1, None, 11),
            ],
        ),
    ],
)
def test_tuples_of_one_window_are_joined(how: str, expected: list[Any]) -> None:
    """The second sum of 1 is in the next window; NULL equals nothing."""
    assert sorted(pairs(how, *TWO), key=str) == sorted(expected, key=str)


def test_what_is_joined_has_the_window_and_comes_in_the_order_of_the_times() -> None:
    """Whatever arrived first."""
    expected = [("a", 1), ("a", 2), ("b", 1), ("b", 2)]
    for orders, payments in product([[(1, "b", 3), (1, "a", 2)]], [[(1, 2, 9), (1, 1, 8)], [(1, 1, 8), (1, 2, 9)]]):
        topology, left, right = both(orders, payments)
        joined = topology.join((left, "id"), (right, "order"), window=WINDOW, state=MemoryMapState())
        rows = made_of(topology, joined)
        assert [(row[1], row[3]) for row in rows] == expected
        assert {row[-2:] for row in rows} == {(NOON, at(10))}
        assert joined.closed().fields.names == (
            *("id", "customer", "at", "paid", "paid_at"),
            *("window_start", "window_end"),
        )


def test_all_fields_of_all_streams() -> None:
    topology, left, right = both([(1, "ann", 1), (2, "bob", 1)], [(1, 10, 5)])
    names = ["id", "who", "t", "order", "sum", "u"]
    sides = (left, "id"), (right, "order")
    joined = topology.join(*sides, how="left", keep_all=True, output=names, window=WINDOW, state=MemoryMapState())
    found = [row[:6] for row in made_of(topology, joined)]
    assert found == [(1, "ann", at(1), 1, 10, at(5)), (2, "bob", at(1), None, None, None)]


def test_windows_that_overlap_join_each() -> None:
    topology, left, right = both([(1, "ann", 4)], [(1, 10, 6)])
    window = sliding("10 seconds", every="5 seconds")
    joined = topology.join((left, "id"), (right, "order"), window=window, state=MemoryMapState())
    assert [row[-2] for row in made_of(topology, joined)] == [NOON]
    assert [row[-2] for row in made_of(*three("inner", window))] == [at(-5), NOON]


def three(how: Any, window: Any = WINDOW) -> tuple[TridentTopology, JoinedWindows]:
    topology, left, right = both([(1, "ann", 1)], [(1, 10, 2)])
    third = stream(topology, "third", [(1, "x", 3), (2, "y", 3)], "number long, what string, when timestamp", 1)
    sides = (left, "id"), (right, "order"), (third, "number")
    return topology, topology.join(*sides, how=how, window=window, state=MemoryMapState())


def test_three_streams() -> None:
    found = [(row[0], row[1], row[3], row[5]) for row in made_of(*three(["left", "right"]))]
    assert found == [(1, "ann", 10, "x"), (2, None, None, "y")]


def test_what_may_be_kept_without_a_partner() -> None:
    """Else a tuple whose key is NULL need not be kept at all."""
    assert [keeps_unmatched(["left", "right"], number) for number in range(3)] == [False, False, True]
    assert [keeps_unmatched(["left", "left"], number) for number in range(3)] == [True, False, False]
    assert [keeps_unmatched(["right", "outer"], number) for number in range(3)] == [False, True, True]


def test_of_each_stream_what_is_late() -> None:
    """It is joined with nothing."""
    topology = TridentTopology("paid")
    left = stream(topology, "orders", [(1, "ann", 100), (2, "bob", 110), (1, "late", 1)], ORDERS, 1)
    right = stream(topology, "payments", [(1, 1, 100), (2, 2, 110), (1, 3, 2)], PAYMENTS, 1)
    joined = topology.join((left, "id"), (right, "order"), how="outer", window=WINDOW, state=MemoryMapState())
    joined.late(left).persist(lates := MemoryMapState("id"), name="left")
    joined.late(right).persist(payments := MemoryMapState("order"), name="right")
    rows = made_of(topology, joined)
    assert [(row[1], row[3]) for row in rows] == [("ann", 1), ("bob", 2)]
    assert [row["customer"] for row in lates.read().to_pylist()] == ["late"]
    assert [row["paid"] for row in payments.read().to_pylist()] == [3]


def test_a_key_may_be_called_as_what_is_kept() -> None:
    topology = TridentTopology("paid")
    fields = "tuple long, tuples long, event_time timestamp"
    left = stream(topology, "orders", [(1, 5, 1)], fields, 1)
    right = stream(topology, "payments", [(1, 5, 2)], fields, 1).rename(other="event_time")
    key = "tuple", "tuples"
    joined = topology.join((left, *key), (right, *key), window=WINDOW, state=MemoryMapState())
    joined.closed().persist(kept := MemoryMapState(key), name="rows")
    complete_topology(topology.build())
    assert [row["other"] for row in kept.read().to_pylist()] == [at(2)]


def test_too_many_tuples_of_a_key_are_an_error() -> None:
    with pytest.raises(RetriesExhausted, match=r"TX308 .*at most 2 tuples, and there are 3"):
        pairs("inner", [(1, "a", 1), (1, "b", 1)], [(1, 1, 1)], limit=2)


@pytest.mark.parametrize("how", ["left", "right", "outer"])
def test_tuples_without_a_key_share_no_row(how: str) -> None:
    """Else the many that lack a key would exceed the limit of one key."""
    left = [(None, f"nobody {n}", n) for n in range(4)]
    right = [(None, n, n) for n in range(4)]
    expected: set[tuple[Any, ...]] = {(None, who, None) for _, who, _ in left if how != "right"}
    expected |= {(None, None, paid) for _, paid, _ in right if how != "left"}
    found = pairs(how, left, right, limit=1)
    assert (set(found), len(found)) == (expected, len(expected))


def test_tuples_without_a_part_of_the_key_share_no_row() -> None:
    topology, left, right = both([(1, None, 1), (1, None, 2)], [(1, 10, 5)])
    right = right.map(lambda row: (row.order, None, row.paid_at), "order long, who string, paid_at timestamp")
    sides = (left, "id", "customer"), (right, "order", "who")
    joined = topology.join(*sides, how="outer", window=WINDOW, state=MemoryMapState(), limit=1)
    found = [row[2:4] for row in made_of(topology, joined)]
    assert sorted(found, key=str) == [(None, at(5)), (at(1), None), (at(2), None)]


def test_tuples_that_were_kept_for_another_join_are_not_joined_anew() -> None:
    store, kept, rows = MemoryCoordinatorStore(), MemoryTable("open"), MemoryTable("rows")

    def start(key: str, how: str = "inner", **options: Any) -> None:
        topology, left, right = both([(1, "ann", 1)], [(1, 10, 5)])
        state = MemoryMapState(table=kept)
        joined = topology.join((left, "id"), (right, key), how=how, window=WINDOW, state=state, name="open")
        joined.closed().project("id", "customer").persist(MemoryMapState("id", table=rows), name="rows")
        built = topology.build()
        TopologyDriver(built, store, LocalExecutor(built), TopologyConfig(stop_when_drained=True), **options).run()

    start("order")
    with pytest.raises(TopologyChanged, match="id, at = paid, paid_at"):
        start("paid")
    with pytest.raises(TopologyChanged, match="null_key string"):
        start("order", "outer")
    with pytest.raises(SchemaMismatch, match=r"the state needs the key 'id long, null_key string, .*use another table"):
        start("order", "outer", accept_changes=True)


def test_sides_that_are_made_of_one_stream_are_told_apart_by_their_names() -> None:
    """Without a name they would be taken for each other when they change places."""
    for is_named in (False, True):
        topology = TridentTopology("paid")
        clicks = stream(topology, "clicks", [(1, "a", 1), (1, "b", 2)], ORDERS, 1)
        first, second = (clicks.filter(field("customer") == name) for name in "ab")
        second = second.rename(second="customer", second_at="at")
        sides = (first.named("first"), "id"), (second.named("second") if is_named else second.named("first"), "id")
        if is_named:
            joined = topology.join(*sides, window=WINDOW, state=MemoryMapState())
            assert [row[1:4:2] for row in made_of(topology, joined)] == [("a", "b")]
        else:
            with pytest.raises(ConfigError, match=r"several of the streams are made of 'clicks', .*named\("):
                topology.join(*sides, window=WINDOW, state=MemoryMapState())


MISTAKES: list[tuple[Callable[[Any, Any, Any], Any], str]] = [
    (lambda t, o, p: t.join((o, "id"), (p, "order"), window=count(3), state=MemoryMapState()), "takes windows such as"),
    (
        lambda t, o, p: t.join(
            (o, "id"), (p, "order"), window=session("1 second", longest="1 hour"), state=MemoryMapState()
        ),
        "takes windows such as",
    ),
    (lambda t, o, p: t.join((o, "id"), (p, "order"), window=WINDOW), "need a state"),
    (lambda t, o, p: t.join((o, "id"), (p, "order"), state=MemoryMapState()), "state has no meaning without window="),
    (lambda t, o, p: t.join((o, "id"), (p, "order"), window=WINDOW, state=1), "takes a state such as"),
    (
        lambda t, o, p: t.join((o, "id"), (p, "order"), window=WINDOW, state=MemoryMapState(), on="at"),
        "must be a list with the field with the time of each stream",
    ),
    (
        lambda t, o, p: t.join((o, "id"), (p, "order"), window=WINDOW, state=MemoryMapState(), on=["at", "paid"]),
        "paid",
    ),
    (
        lambda t, o, p: t.join(
            *((o, "id"), (p, "order")), window=WINDOW, state=MemoryMapState(), output=["a", "b", "c", "d", "window_end"]
        ),
        "windows have 'window_end'",
    ),
    (
        lambda t, o, p: t.join((o, "id"), (p, "order"), window=WINDOW, state=MemoryMapState()).late(o.shuffle()),
        "late takes one of the streams that are joined",
    ),
]


@pytest.mark.parametrize(("mistake", "message"), MISTAKES)
def test_a_mistake_is_said_at_its_line(mistake: Callable[[Any, Any, Any], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        mistake(*both([], []))
