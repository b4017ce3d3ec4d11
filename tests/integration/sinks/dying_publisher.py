"""A topology with two tables, dead letters and two Kafka sinks, whose process kills itself at a given point.

`python -m tests.integration.sinks.dying_publisher BOOTSTRAP TOPIC PROCESSING TAKE STORE POINT NUMBER` runs in the
folder of its tables. It dies when it comes to the point for the n-th time; with the point "nowhere" it lives until
everything is published. A replay after a death with another TAKE is another batch.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from sinks import JsonValue, KafkaSink
from sinks.kafka import publisher
from sinks.kafka.publisher import KafkaPublisher
from spouts import OpaqueMemoryTransactionalSpout
from state import DeltaMapState
from state.dead_letters import DeadLetterTable
from transactional import Topology, TopologyConfig, TransactionalTopologyBuilder, Tuple, run_topology
from transactional.core.store.sql.sql_store import SqlCoordinatorStore


class PythonProducer(Producer):
    """A producer with a method of Python, which can be replaced by a deadly one."""

    def produce(self, *arguments: Any, **named: Any) -> None:
        """Produce a record."""
        super().produce(*arguments, **named)


ROWS = [(f"word-{number % 7}", number) for number in range(120)]
BAD = {17, 58, 93}
"""The numbers on which a bolt fails."""
POINTS: dict[str, tuple[Any, str, str]] = {
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


def die_at(point: tuple[Any, str, str] | None, number: int) -> None:
    """Kill this process when it comes to a point for the n-th time: before or after a method of a class is called."""
    if point is None:
        return
    owner, name, when = point
    original: Callable[..., Any] = getattr(owner, name)
    calls = Counter[str]()

    def deadly(*arguments: Any, **named: Any) -> Any:
        calls[name] += 1
        is_last = calls[name] == number
        if is_last and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        returned = original(*arguments, **named)
        if is_last:
            os.kill(os.getpid(), signal.SIGKILL)
        return returned

    setattr(owner, name, deadly)


def parse(tuple: Tuple) -> Any:
    """The tuple, unless it is a bad one."""
    if tuple["number"] in BAD:
        raise ValueError(f"number {tuple['number']} is bad")
    return (tuple["word"], tuple["number"])


def build(bootstrap: str, topic: str, folder: Path, take: int) -> Topology:
    """Numbers to one topic, and the counts of words, behind their table, to another."""
    spout = OpaqueMemoryTransactionalSpout([ROWS[::2], ROWS[1::2]], fields="word string, number long", take=take)
    builder = TransactionalTopologyBuilder(topic, "rows", spout, 2)
    builder.set_bolt("parse", parse, 2, output="word string, number long").shuffle_grouping("rows")
    numbers = KafkaSink(bootstrap, f"{topic}-numbers", key="word", value=JsonValue("number"))
    builder.set_sink("numbers", numbers, 2).fields_grouping("parse", "word")
    for name in ("first", "second"):
        state = DeltaMapState(folder / name, key="word string")
        builder.set_committer_bolt(name, state.count()).shuffle_grouping("parse")
    counts = KafkaSink(bootstrap, f"{topic}-counts", key="word", value=JsonValue("count"))
    builder.set_sink("counts", counts).shuffle_grouping("first")
    builder.set_dead_letters(DeadLetterTable(folder / "letters"))
    return builder.build()


def run(bootstrap: str, topic: str, processing: str, take: int, store_url: str) -> None:
    """Run until everything is published. `processing` is "none" for a run without Spark."""
    options: dict[str, Any] = {"max_spout_pending": 2, "stop_when_drained": True, "tick_ms": 10, "attempts_max": 1}
    if processing != "none":
        options["processing"] = processing
    topology = build(bootstrap, topic, Path.cwd(), take)
    config = TopologyConfig(retry_pause_ms=10, **options)
    run_topology(topology, store=store_url, config=config, master="none" if processing == "none" else "local[2]")


if __name__ == "__main__":
    bootstrap, topic, processing, take, store_url, point, number = sys.argv[1:]
    vars(publisher)["Producer"] = PythonProducer
    die_at(POINTS.get(point), int(number))
    run(bootstrap, topic, processing, int(take), store_url)
