"""Topologies with one mistake each, for the command line; their tables are made in the current directory."""

from __future__ import annotations

import os

from spouts import MemoryTransactionalSpout, OpaqueKafkaSpout
from state import DeltaMapState
from tests.integration.signals import send, wait_at
from transactional import Topology, TransactionalTopologyBuilder, Tuple
from transactional.core.ports import Spout

WORDS = [[("cat",), ("dog",), ("cat",)]]


def builder(spout: Spout | None = None) -> TransactionalTopologyBuilder:
    return TransactionalTopologyBuilder("words", "words", spout or memory())


def memory() -> MemoryTransactionalSpout:
    return MemoryTransactionalSpout(WORDS, fields="word string", take=1)


def counted(made: TransactionalTopologyBuilder, field: str = "word") -> Topology:
    made.set_committer_bolt("count", DeltaMapState("count", key=field).count()).fields_grouping("words", field)
    return made.build()


def fine() -> Topology:
    return counted(builder())


def no_return() -> None:
    fine()


def kafka(topic: str) -> OpaqueKafkaSpout:
    return OpaqueKafkaSpout(os.environ["BOOTSTRAP"], topics=[topic], value_type="string", timeout_ms=2_000)


def kafka_topology() -> Topology:
    """Reads a topic that is not there, from a broker that may not be there either."""
    return counted(builder(kafka("flihgts")), "value")


def of_another_schema() -> Topology:
    """The table `count` is there, with the columns of `fine`."""
    made = builder()
    made.set_bolt("halves", half, output="word string, half double").shuffle_grouping("words")
    total = DeltaMapState("count", key="word").sum("half", "count")
    made.set_committer_bolt("count", total).shuffle_grouping("halves")
    return made.build()


def half(row: Tuple) -> tuple[str, float]:
    return row["word"], 0.5


def waits(row: Tuple) -> tuple[str]:
    send("signals", "running")
    wait_at("gate")
    return (row["word"],)


def that_waits() -> Topology:
    made = builder()
    made.set_bolt("waits", waits, output="word string").shuffle_grouping("words")
    return counted(made)


def unknown_component() -> Topology:
    made = builder()
    made.set_bolt("waits", waits, output="word string").shuffle_grouping("wrods")
    return counted(made)


def unknown_field() -> Topology:
    return counted(builder(), "wrod")


def committer_without_state() -> Topology:
    from tests.unit.fakes import Total

    made = builder()
    made.set_committer_bolt("total", Total()).global_grouping("words")
    return made.build()


no_topology = 5


def no_build() -> TransactionalTopologyBuilder:
    return builder()
