"""A topology with two tables, dead letters and two Kafka sinks, whose process kills itself at a given point.

`tests.integration.sinks.deaths` runs it, with the address of the broker as the last argument. The topology's id is the
beginning of its topics' names.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from sinks import JsonValue, KafkaSink
from sinks.kafka import publisher
from sinks.kafka.publisher import KafkaPublisher
from spouts import OpaqueMemoryTransactionalSpout
from state import DeltaMapState
from state.dead_letters import DeadLetterTable
from tests.integration.sinks.dying import BAD, ROWS, Point, die_at, run
from transactional import Topology, TransactionalTopologyBuilder, Tuple
from transactional.core.store.sql.sql_store import SqlCoordinatorStore


class PythonProducer(Producer):
    """A producer with a method of Python, which can be replaced by a deadly one."""

    def produce(self, *arguments: Any, **named: Any) -> None:
        """Produce a record."""
        super().produce(*arguments, **named)


POINTS: dict[str, Point] = {
    "before the commit is recorded": (SqlCoordinatorStore, "record_commit", "before"),
    "after the commit is recorded": (SqlCoordinatorStore, "record_commit", "after"),
    "before a sink is opened": (KafkaSink, "open", "before"),
    "after a sink is opened": (KafkaSink, "open", "after"),
    "before the final position is read": (KafkaSink, "position", "before"),
    "after the final position is read": (KafkaSink, "position", "after"),
    "before anything is sent": (KafkaPublisher, "publish", "before"),
    "among the records": (PythonProducer, "produce", "after"),
    "before the Kafka transaction is committed": (KafkaPublisher, "_commit", "before"),
    "after the Kafka transaction is committed": (KafkaPublisher, "_commit", "after"),
    "before the outbox is settled": (SqlCoordinatorStore, "settle_sink", "before"),
    "after the outbox is settled": (SqlCoordinatorStore, "settle_sink", "after"),
}


def number_topics(topic: str) -> list[str]:
    """The topics for even and odd numbers."""
    return [f"{topic}-even", f"{topic}-odd"]


def parse(tuple: Tuple, topics: Sequence[str]) -> Any:
    """The tuple with its topic, unless it is a bad one."""
    if tuple["number"] in BAD:
        raise ValueError(f"number {tuple['number']} is bad")
    return (tuple["word"], tuple["number"], topics[tuple["number"] % 2])


def build(bootstrap: str, topic: str, folder: Path, take: int) -> Topology:
    """Numbers to two topics by a field, and the counts of words, behind their table, to another."""
    spout = OpaqueMemoryTransactionalSpout([ROWS[::2], ROWS[1::2]], fields="word string, number long", take=take)
    builder = TransactionalTopologyBuilder(topic, "rows", spout, 2)
    topics = number_topics(topic)
    parse_row = partial(parse, topics=topics)
    builder.set_bolt("parse", parse_row, 2, output="word string, number long, target string").shuffle_grouping("rows")
    value = JsonValue("number")
    numbers = KafkaSink(bootstrap, topics=topics, topic_field="target", key="word", value=value)
    builder.set_sink("numbers", numbers, 2).fields_grouping("parse", "word")
    for name in ("first", "second"):
        state = DeltaMapState(folder / name, key="word string")
        builder.set_committer_bolt(name, state.count()).shuffle_grouping("parse")
    counts = KafkaSink(bootstrap, f"{topic}-counts", key="word", value=JsonValue("count"))
    builder.set_sink("counts", counts).shuffle_grouping("first")
    builder.set_dead_letters(DeadLetterTable(folder / "letters"))
    return builder.build()


if __name__ == "__main__":
    topology_id, processing, take, store_url, point, number, bootstrap = sys.argv[1:]
    vars(publisher)["Producer"] = PythonProducer
    die_at(POINTS.get(point), int(number))
    run(build(bootstrap, topology_id, Path.cwd(), int(take)), processing, store_url, attempts_max=1)
