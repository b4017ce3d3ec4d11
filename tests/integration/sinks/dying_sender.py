"""A topology over Kafka that sends at least once, whose run kills itself at a given point, and one of its tasks, too.

`tests.integration.sinks.deaths` runs it. The last arguments are the address of the broker, and the point and number of
the task. On workers and on Spark a task dies in a process of its own, and the run goes on.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa

from sinks import JsonValue, KafkaSink
from spouts import JsonTranslator, OpaqueKafkaSpout
from state.dead_letters import DeadLetterTable
from tests.integration.signals import is_first
from tests.integration.sinks.dying import BAD, Point, die_at, run
from transactional import Topology, Tuple
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.reliable import TopologyBuilder

FIELDS = "word string, number long"
POINTS: dict[str, Point] = {
    "before the topic is described": (KafkaSink, "prepare", "before"),
    "after the topic is described": (KafkaSink, "prepare", "after"),
    "before the attempt is recorded": (SqlCoordinatorStore, "record_attempt", "before"),
    "after the attempt is recorded": (SqlCoordinatorStore, "record_attempt", "after"),
    "before the commit is recorded": (SqlCoordinatorStore, "record_commit", "before"),
    "after the commit is recorded": (SqlCoordinatorStore, "record_commit", "after"),
}
TASK_POINTS = ("before the records", "among the records", "after the records")


class DyingSink(KafkaSink):
    """Kills the process that is the n-th to send in the life of a run, whose flags count the calls of all processes."""

    flags = ""
    point = ""
    number = 0

    def send(self, records: pa.Table) -> Mapping[int, str]:
        call = next(call for call in count(1) if is_first(f"{self.flags}-{call}"))
        if call != self.number:
            return super().send(records)
        sizes = {"before the records": 0, "among the records": (records.num_rows + 1) // 2}
        super().send(records.slice(0, sizes.get(self.point)))
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("it has been killed")


def parse(tuple: Tuple) -> Any:
    """The tuple, unless it is a bad one."""
    if tuple.number in BAD:
        raise ValueError(f"number {tuple.number} is bad")
    return (tuple.word, tuple.number)


def build(bootstrap: str, topology_id: str, folder: Path, take: int, point: str, number: int) -> Topology:
    """Numbers of one topic to another; what fails is a dead letter."""
    builder = TopologyBuilder(topology_id, guarantee="at-least-once")
    options: dict[str, Any] = {"translator": JsonTranslator(FIELDS), "batch_records_max": 2 * take}
    builder.set_spout("rows", OpaqueKafkaSpout(bootstrap, [f"{topology_id}-rows"], **options), 2)
    builder.set_bolt("parse", parse, 2, output=FIELDS).shuffle_grouping("rows")
    sink = DyingSink(bootstrap, f"{topology_id}-numbers", key="word", value=JsonValue("number"))
    sink.flags, sink.point, sink.number = str(folder / f"sent-{os.getpid()}"), point, number
    builder.set_sink("numbers", sink, 2).fields_grouping("parse", "word")
    builder.set_dead_letters(DeadLetterTable(folder / "letters"))
    return builder.build()


if __name__ == "__main__":
    topology_id, processing, take, store_url, point, number, bootstrap, task_point, task_number = sys.argv[1:]
    die_at(POINTS.get(point), int(number))
    topology = build(bootstrap, topology_id, Path.cwd(), int(take), task_point, int(task_number))
    run(topology, processing, store_url, message_retries_max=1)
