"""Streams on Spark: everything that goes to executors and comes back, with the tables of a run without Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.compute as pc
import pytest

from spouts import (
    MemoryTransactionalSpout,
    OpaqueKafkaSpout,
    OpaqueMemoryTransactionalSpout,
    TransactionalKafkaSpout,
)
from spouts.local_broker import LocalBroker
from state import DeltaMapState
from tests.integration.kafka_topics import new_topic, put
from transactional import FailedException, Topology, TransactionalTopologyBuilder, Tuple, run_topology
from transactional.trident import Avg, Combiner, Count, First, Last, Reducer, Sum, TridentTopology, field

LINES = [[("the cow jumped over the moon",), ("",), ("the man went",)], [("four score and seven",), ("a moon",)]]
CONFIG = {"stop_when_drained": True, "max_spout_pending": 2, "retry_pause_ms": 1}


class Word(NamedTuple):
    word: str
    place: int


class Longest(Combiner):
    output = "longest string"

    def init(self, row: Tuple) -> str:
        return str(row.word)

    def combine(self, one: str, other: str) -> str:
        return max(one, other, key=lambda word: (len(word), word))


class Places(Reducer):
    output = "places array<int>"

    def init(self) -> list[int]:
        return []

    def reduce(self, value: list[int], row: Tuple) -> list[int]:
        return sorted([*value, row.place])


def split(row: Tuple) -> Iterator[Word]:
    return (Word(word, place) for place, word in enumerate(row.line.split()))


def remember(rows: list[Tuple], state: Any) -> list[tuple[str, int]]:
    for row in rows:
        state.put(row.word, (state.get(row.word) or 0) + row.place)
    return [(row.word, state.get(row.word)) for row in rows]


def everything(folder: Path) -> Topology:
    """Steps of all kinds, both phases, all that updates a state."""
    topology = TridentTopology("everything", parallelism=2)
    words = topology.new_stream("lines", OpaqueMemoryTransactionalSpout(LINES, "line string", 1)).flat_map(split)
    sized = words.with_columns(size=pc.utf8_length(field("word"))).filter(field("size") > 1)
    long, short = sized.filter(lambda row: row.size > 3), sized.filter(lambda row: row.size <= 3)

    def state(name: str, *columns: str) -> DeltaMapState:
        return DeltaMapState(folder / name, *columns)

    counts = long.merge(short).group_by("word").persistent_aggregate(state("counts"), Count(), mean=Avg("place"))
    new = counts.new_values(old=True).map(
        lambda row: (row.word[:1], row["count"] - (row.old_count or 0)), "c string, n long"
    )
    new.group_by("c").persistent_aggregate(state("initials"), n=Sum("n"))
    sized.group_by("size").persistent_aggregate(state("longest"), Longest(), n=Count())
    sized.group_by("size").persistent_aggregate(state("places"), Places())
    updated = sized.partition_persist(state("sums", "word string", "total long"), remember, "word string, total long")
    updated.new_values().group_by("word").aggregate(told=Count()).aggregate(Sum("told")).persistent_aggregate(
        state("told"), Sum("sum_told")
    )
    pairs = topology.join((long, "place"), (short.rename(s="word", z="size"), "place"), how="outer")
    pairs.group_by("place").persistent_aggregate(state("pairs"), Count(), first=First("word"))
    sized.first_n(1, "size", descending=True).persist(state("top", "word"))
    sized.shuffle().group_by("word").persistent_aggregate(state("last"), size=Last("size"))
    return topology.build(strict=True)


TABLES = ("counts", "initials", "longest", "places", "sums", "told", "pairs", "top", "last")


def tables(topology: Topology) -> dict[str, list[Any]]:
    found = {}
    for component in topology.committers:
        state: Any = component.state
        found[component.id] = sorted((tuple(row.values()) for row in state.read().to_pylist()), key=repr)
    return found


@pytest.mark.spark
def test_on_spark_the_tables_are_those_without_it(tmp_path: Path) -> None:
    found = []
    for master in ("none", "local[2]"):
        (tmp_path / master).mkdir()
        topology = everything(tmp_path / master)
        run_topology(topology, store=f"sqlite:///{tmp_path}/{master}.db", config=CONFIG, master=master)
        found.append(tables(topology))
    assert set(found[0]) == set(TABLES)
    assert found[0] == found[1]
    assert dict(row[:2] for row in found[0]["counts"])["the"] == 3
    assert all(found[0].values())


class Once:
    """Fails the first attempt at some tuples, wherever it runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, row: Tuple) -> bool:
        mark = self.folder / f"{row[0]}.failed"
        if row[0] in ("cow", "seven", "the") and not mark.exists():
            mark.touch()
            raise FailedException(f"{row[0]} fails once")
        return True


def by_trident(folder: Path) -> Topology:
    topology = TridentTopology("words", parallelism=2)
    lines = topology.new_stream("lines", MemoryTransactionalSpout(LINES, "line string", 1))
    words = lines.flat_map(split).filter(Once(folder)).with_columns(size=pc.utf8_length(field("word")))
    counts = words.group_by("word").persistent_aggregate(DeltaMapState(folder / "counts"), n=Count(), size=Sum("size"))
    new = counts.new_values().filter(lambda row: row.n > 1)
    new.group_by("n").persistent_aggregate(DeltaMapState(folder / "often"), times=Count())
    return topology.build(strict=True)


def by_hand(folder: Path) -> Topology:
    once = Once(folder)
    builder = TransactionalTopologyBuilder("words", "lines", MemoryTransactionalSpout(LINES, "line string", 1), 2)
    builder.set_bolt("split", split, 2).shuffle_grouping("lines")
    sized = "word string, size int"
    builder.set_bolt(
        "sized", lambda row: (row.word, len(row.word)) if once(row) else None, 2, output=sized
    ).shuffle_grouping("split")
    counts = DeltaMapState(folder / "counts", "word").aggregate(n=Count(), size=Sum("size"))
    builder.set_committer_bolt("counts", counts).fields_grouping("sized", "word")
    often = builder.set_bolt("often-ones", lambda row: (row.n,) if row.n > 1 else None, output="n long")
    often.shuffle_grouping("counts")
    update = DeltaMapState(folder / "often", "n").aggregate(times=Count())
    builder.set_committer_bolt("often", update).fields_grouping("often-ones", "n")
    return builder.build(strict=True)


@pytest.mark.kafka
def test_two_topics_of_two_kinds_of_spouts_share_transactions(tmp_path: Path, kafka_broker: LocalBroker) -> None:
    """Run twice: in between there is more in one of the topics."""
    bootstrap = kafka_broker.bootstrap
    orders, payments = new_topic(bootstrap, 2), new_topic(bootstrap)

    def build() -> Topology:
        topology = TridentTopology("shop", parallelism=2)
        opaque = OpaqueKafkaSpout(bootstrap, [orders], value_type="string", batch_records_max=2)
        exact = TransactionalKafkaSpout(bootstrap, [payments], value_type="string", batch_records_max=1)
        both = [topology.new_stream("orders", opaque), topology.new_stream("payments", exact)]
        words = [stream.project("value").with_columns(side=at) for at, stream in enumerate(both)]
        kept = words[0].filter(Once(tmp_path)).merge(words[1])
        kept.group_by("value", "side").persistent_aggregate(DeltaMapState(tmp_path / "counts"), Count())
        return topology.build(strict=True)

    expected: Counter[tuple[str, int]] = Counter()
    for number in range(2):
        for at, values in enumerate([["cow", "the", "cow", "a"][number:], ["seven", "b"]]):
            put(bootstrap, (orders, payments)[at], values, partition=number * (1 - at))
            expected.update((value, at) for value in values)
        run_topology(build(), store=f"sqlite:///{tmp_path}/store.db", config=CONFIG, master="none")
        rows = DeltaMapState(tmp_path / "counts", "value string, side int", "count long").read().to_pylist()
        assert {(row["value"], row["side"]): row["count"] for row in rows} == expected
    assert {path.stem for path in tmp_path.glob("*.failed")} == {"cow", "the"}


@pytest.mark.spark
def test_by_trident_and_by_hand_the_tables_are_equal_under_failures(tmp_path: Path) -> None:
    found = []
    for make in (by_trident, by_hand):
        folder = tmp_path / make.__name__
        folder.mkdir()
        topology = make(folder)
        run_topology(topology, store=f"sqlite:///{folder}/store.db", config=CONFIG, master="local[2]")
        assert len(list(folder.glob("*.failed"))) == 3
        found.append(tables(topology))
    assert found[0] == found[1]
    assert found[0]["often"]
