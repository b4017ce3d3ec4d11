"""`JoinBolt` joins the inputs of a window as Storm's does; `right` and `outer`, which Storm has named only, too.

Storm row C14: its TestJoinBolt and its JoinProcessorTest, with their inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spouts.memory import MemoryTransactionalSpout
from state.memory import MemoryMapState, MemoryTable
from tests.examples import examples
from transactional import ConfigError, JoinBolt, TransactionalTopologyBuilder, Tuple, TupleWindow, count, tumbling
from transactional.errors import TopologyChanged
from transactional.model.config import TopologyConfig
from transactional.model.schema import Schema
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.executors.local import LocalExecutor
from transactional.testing import MemoryCoordinatorStore, complete_topology
from transactional.trident import TridentTopology

USERS = "userId long, name string, city string"
NAMES = ("roshan", "harsha", "siva", "hugo", "suresh", "guru", "arun", "satish", "mani", "priyank")
CITIES_OF_USERS = (
    *("san jose", "santa clara", "dublin", "san mateo", "sunnyvale", "palo alto", "bengaluru", "mumbai", "bengaluru"),
    "seattle",
)
users = [(number, name, city) for number, (name, city) in enumerate(zip(NAMES, CITIES_OF_USERS, strict=True), 1)]
ORDERS = "orderId long, userId long, itemId long, price long"
orders = [
    *((11, 2, 21, 7), (12, 2, 22, 3), (13, 3, 23, 4), (14, 4, 24, 5), (15, 5, 25, 2)),
    *((16, 6, 26, 7), (17, 6, 27, 4), (18, 7, 28, 2), (19, 8, 29, 9)),
]
STORES = "storeId long, storeName string, city string"
CITIES_OF_STORES = ("san jose", "santa clara", "dublin", "san mateo", "bengaluru")
stores = [(number, f"store{number}", city) for number, city in enumerate(CITIES_OF_STORES, 1)]
CITIES = "cityId long, cityName string, country string"
cities = [
    (number, city, "India" if number > 6 else "US") for number, city in enumerate((*CITIES_OF_USERS[:8], "chennai"), 1)
]
STREAMS: dict[str, tuple[str, Sequence[tuple[Any, ...]]]] = {
    "users": (USERS, users),
    "orders": (ORDERS, orders),
    "stores": (STORES, stores),
    "cities": (CITIES, cities),
    "nested": (
        "outer struct<userId:long,name:string,city:string>",
        [({"userId": number, "name": name, "city": city},) for number, name, city in users],
    ),
}


class Kept:
    """Keeps what is emitted."""

    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []

    def emit(self, *values: Any, stream: str = "default") -> None:
        self.rows.append(values)


def joined(bolt: JoinBolt, *names: str, streams: Any = None) -> list[tuple[Any, ...]]:
    """What a window with the tuples of these streams emits."""
    streams = STREAMS if streams is None else streams
    schemas = {(f"{name}Spout", name): Schema.parse(streams[name][0]) for name in names}
    bolt.declare_output("bolt 'join'", schemas)
    bolt.collector = kept = Kept()  # type: ignore[assignment]
    tuples = [
        Tuple(schemas[f"{name}Spout", name].names, row, f"{name}Spout", name)
        for name in names
        for row in streams[name][1]
    ]
    bolt.execute(TupleWindow(tuples, tuples, []))
    assert all(len(row) == len(Schema.parse(bolt.output)) for row in kept.rows)
    return kept.rows


def by_stream(name: str, field: str) -> JoinBolt:
    return JoinBolt(name, field, by="stream")


def left_and_right(kind: str) -> JoinBolt:
    """Two streams, joined by their field `key`."""
    bolt = by_stream("left", "key")
    add = {"inner": bolt.join, "left": bolt.left_join, "right": bolt.right_join, "outer": bolt.outer_join}[kind]
    return add("right", "key", "left")


# --- TestJoinBolt -----------------------------------------------------------------------------------------------------


def test_trivial() -> None:
    assert joined(by_stream("orders", "orderId").select("orderId,userId,itemId,price"), "orders") == orders


def test_nested_keys() -> None:
    bolt = by_stream("nested", "outer.userId").select("outer.name, outer.city")
    assert joined(bolt, "nested") == [(name, city) for _, name, city in users]
    assert bolt.output == "`outer.name` string, `outer.city` string"


def test_projection_of_fields_with_the_name_of_a_stream() -> None:
    bolt = by_stream("users", "city").join("stores", "city", "users")
    rows = joined(bolt.select("userId,name,storeName,users:city,stores:city"), "stores", "users")
    assert len(rows) == len(stores) + 1
    assert all(len(row) == 5 and None not in row for row in rows)
    assert bolt.output.endswith("`users:city` string, `stores:city` string")


def test_inner_join() -> None:
    rows = joined(
        by_stream("users", "userId").join("orders", "userId", "users").select("userId,name,price"), "orders", "users"
    )
    assert rows == [(user, NAMES[user - 1], price) for _, user, _, price in orders]


def test_left_join() -> None:
    bolt = by_stream("users", "userId").left_join("orders", "userId", "users")
    rows = joined(bolt.select("userId,name,price"), "orders", "users")
    assert len(rows) == 12
    assert [row for row in rows if row[2] is None] == [(1, "roshan", None), (9, "mani", None), (10, "priyank", None)]


def test_inner_join_of_three_streams() -> None:
    bolt = by_stream("users", "city").join("stores", "city", "users").join("cities", "cityName", "stores")
    rows = joined(bolt.select("name,storeName,city,country"), "users", "stores", "cities")
    assert len(rows) == 6
    assert rows[-1] == ("mani", "store5", "bengaluru", "India")


def test_left_join_of_three_streams() -> None:
    bolt = by_stream("users", "city").left_join("stores", "city", "users").left_join("cities", "cityName", "users")
    rows = joined(bolt.select("name,storeName,city,country"), "users", "cities", "stores")
    assert len(rows) == len(users)
    assert rows[-1] == ("priyank", None, "seattle", None)


def test_left_join_of_three_streams_with_another_one_before_it() -> None:
    bolt = by_stream("users", "city").left_join("stores", "city", "users").left_join("cities", "cityName", "stores")
    rows = joined(bolt.select("name,storeName,city,country"), "users", "cities", "stores")
    assert len(rows) == len(stores) + 1, "what has no store has nothing to compare, and is left out as in Storm"


def test_mixed_join_of_three_streams() -> None:
    bolt = by_stream("users", "city").join("stores", "city", "users").left_join("cities", "cityName", "users")
    rows = joined(bolt.select("name,storeName,city,country"), "users", "cities", "stores")
    assert len(rows) == len(stores) + 1


# --- JoinProcessorTest ------------------------------------------------------------------------------------------------

LEFT = [(2, 4), (5, 25), (7, 49)]
RIGHT = [(1, 1), (2, 8), (5, 125), (6, 216)]
BOTH = [(2, 4, 8), (5, 25, 125)]
PROCESSED = {
    "inner": BOTH,
    "left": [*BOTH, (7, 49, None)],
    "right": [(1, None, 1), *BOTH, (6, None, 216)],
    "outer": [(1, None, 1), *BOTH, (6, None, 216), (7, 49, None)],
}


@pytest.mark.parametrize("kind", PROCESSED)
def test_kinds_of_join_in_a_window(kind: str) -> None:
    streams = {"left": ("key long, value long", LEFT), "right": ("key long, other long", RIGHT)}
    rows = joined(left_and_right(kind).select("key, value, other"), "left", "right", streams=streams)
    assert sorted(rows) == PROCESSED[kind]


@pytest.mark.parametrize("kind", PROCESSED)
def test_kinds_of_join_of_streams(kind: str) -> None:
    """The same by Trident."""
    noon = datetime(2026, 5, 1, 12, tzinfo=UTC)
    made = TridentTopology("t")
    sides = []
    for name, rows in (("value", LEFT), ("other", RIGHT)):
        timed = [(*row, noon) for row in rows] + [(100 + n, 0, noon + timedelta(hours=1)) for n in range(9)]
        spout = MemoryTransactionalSpout([timed], f"key long, {name} long, {name}_at timestamp", take=3)
        sides.append(made.new_stream(name, spout, event_time=f"{name}_at", max_ahead=None))
    pairs = made.join(
        *((side, "key") for side in sides), how=kind, window=tumbling("1 minute"), state=MemoryMapState(), name="open"
    )
    pairs.closed().persist(closed := MemoryMapState(("key", "value", "other")), name="closed")
    complete_topology(made.build(strict=True))
    assert sorted((row["key"], row["value"], row["other"]) for row in closed.read().to_pylist()) == PROCESSED[kind]


# --- against pairs that are looked at one by one ----------------------------------------------------------------------

keys = st.lists(st.sampled_from([None, 0.0, -0.0, float("nan"), 1.0]), max_size=6)


@given(keys, keys, st.sampled_from(["inner", "left", "right", "outer"]))
@settings(max_examples=examples(100), deadline=None)
def test_pairs_are_those_of_plain_python(left: list[Any], right: list[Any], kind: str) -> None:
    sides = [[(key, n) for n, key in enumerate(side)] for side in (left, right)]
    streams = {"left": ("key double, a long", sides[0]), "right": ("key double, b long", sides[1])}
    rows = joined(left_and_right(kind).select("a, b"), "left", "right", streams=streams)
    pairs = [
        (a, b)
        for a, key in enumerate(left)
        for b, other in enumerate(right)
        if key is not None and (key == other or (key != key and other is not None and other != other))
    ]
    expected: list[tuple[Any, ...]] = list(pairs)
    if kind in ("left", "outer"):
        matched = {a for a, _ in pairs}
        expected += [
            (a, None) for a, key in enumerate(left) if a not in matched and (key is not None or kind == "outer")
        ]
    if kind in ("right", "outer"):
        matched = {b for _, b in pairs}
        expected += [(None, b) for b in range(len(right)) if b not in matched]
    assert sorted(rows, key=str) == sorted(expected, key=str)


# --- in a topology ----------------------------------------------------------------------------------------------------


def example(bolt: JoinBolt, **window: Any) -> TransactionalTopologyBuilder:
    """Storm's JoinBoltExample: genders and ages by id, from two spouts."""
    genders = [(number, "female" if number % 2 else "male") for number in range(10)]
    ages = [(number, number + 20) for number in reversed(range(10))]
    builder = TransactionalTopologyBuilder(
        "t", "genders", MemoryTransactionalSpout([genders], "id long, gender string", take=3)
    )
    builder.set_spout("ages", MemoryTransactionalSpout([ages], "id long, age long", take=2))
    builder.set_windowed_bolt("joiner", bolt, state=MemoryMapState(), **window).fields_grouping(
        "genders", "id"
    ).fields_grouping("ages", "id")
    return builder


def test_two_spouts_are_joined() -> None:
    bolt = JoinBolt("genders", "id").join("ages", "id", "genders").select("genders:id,ages:id as other,gender,age")
    rows = complete_topology(example(bolt, window=count(20)).build(strict=True))["joiner"]
    assert sorted(rows) == [(n, n, "female" if n % 2 else "male", n + 20) for n in range(10)]
    assert rows[0].fields == ("genders:id", "other", "gender", "age")


def test_what_is_joined_may_have_a_stream_of_its_own() -> None:
    bolt = JoinBolt("genders", "id").join("ages", "id", "genders").select("gender, age").with_output_stream("pairs")
    emitted = complete_topology(example(bolt, window=count(20)).build(strict=True))
    assert (len(emitted["joiner", "pairs"]), len(emitted["joiner"])) == (10, 0)


def pair(prior: str = "genders", field: str = "id") -> JoinBolt:
    return JoinBolt("genders", "id").join("ages", field, prior)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pair(prior="people"), "'people' is not part of the join yet; 'ages' can be joined to: genders"),
        (lambda: pair().join("ages", "id", "genders"), "'ages' is part of the join already"),
        (lambda: pair(field="ages:id"), "write it without ':'"),
        (lambda: JoinBolt("genders", "id", by="task"), "by is 'source' or 'stream'"),  # type: ignore[arg-type]
        (lambda: pair().select("age,,id"), "'' is not of the form"),
        (pair, "without .select"),
        (lambda: pair().select("size"), "'size', which the join does not have; its fields are: id, gender, age"),
        (lambda: pair().select("people:age"), "'people', which is not part of the join"),
        (lambda: pair().select("ages:gender"), "'gender', which ages does not have"),
        (lambda: pair().select("age.years"), "needs 'years' of a long, which is no struct"),
        (lambda: pair().select("ages:id as age, age"), "age is declared more than once"),
        (lambda: pair(field="number").select("age"), "'number', which ages does not have"),
        (lambda: JoinBolt("genders", "gender").join("ages", "id", "genders").select("age"), "can't be compared"),
        (
            lambda: JoinBolt("genders", "id").select("gender"),
            "joins the sources genders, and subscribes to genders, ages",
        ),
    ],
)
def test_mistakes_are_reported(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        example(make(), window=count(20)).build()


# --- between two runs -------------------------------------------------------------------------------------------------


def test_tuples_of_an_input_that_is_gone_are_not_lost() -> None:
    """They are in an open window; the run ends, and a release that joins them again goes on."""
    store, open_, seen = MemoryCoordinatorStore(), MemoryTable(), MemoryTable()

    def run(rows: int, left: str) -> list[Any]:
        spout = MemoryTransactionalSpout([[(n,) for n in range(rows)]], "id long", take=1)
        builder = TransactionalTopologyBuilder("t", "spout", spout)
        for name in (left, "right"):
            builder.set_bolt(name, lambda t: (t.id,), output="id long").global_grouping("spout")
        bolt = JoinBolt(left, "id").join("right", "id", left).select(f"{left}:id as id")
        builder.set_windowed_bolt("w", bolt, window=count(6), state=MemoryMapState(table=open_)).global_grouping(
            left
        ).global_grouping("right")
        counts = MemoryMapState(table=seen).count().group_by("id")
        builder.set_committer_bolt("seen", counts).fields_grouping("w", "id")
        topology = builder.build(strict=True)
        config = TopologyConfig(stop_when_drained=True, idle_pause_ms=1)
        TopologyDriver(topology, store, LocalExecutor(topology), config, accept_changes=True).run()
        return sorted(key for [key] in seen.rows)

    assert run(2, "left") == []
    with pytest.raises(TopologyChanged, match="'w' has open windows with tuples of left, which it no longer joins"):
        run(3, "other")
    assert run(3, "left") == [0, 1, 2]
