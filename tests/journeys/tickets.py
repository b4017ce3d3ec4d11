"""A topology over a queue, at least once and without states. Its effect is a line in a file, and with the variable SINK
a record in a topic."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from sinks import KafkaSink
from tests.journeys.sources import topic_of
from transactional import Topology, Tuple
from transactional.reliable import QueueSpout, SpoutCollector, TopologyBuilder

TOPOLOGY, SENT = "tickets", "sent"
DONE, LOCKED = Path("done.txt"), Path("locked.txt")
"""What was done, and what can't be done now, in the current folder."""


class Tickets(QueueSpout):
    """Messages of this process; one that has failed is handed out again."""

    output = "text string"
    waiting: list[str] = []  # noqa: RUF012 - of the process

    def open(self, instance: int, instances: int, collector: SpoutCollector) -> None:
        self.collector = collector

    def next_tuple(self) -> None:
        if self.waiting:
            text = self.waiting.pop(0)
            self.collector.emit(text, message_id=text)

    def fail(self, message_id: str) -> None:
        LOCKED.write_text("", "utf-8")
        self.waiting.append(message_id)


def doing(done: Path, locked: Path) -> Callable[[Tuple], tuple[str]]:
    """The bolt that fails."""

    def do(ticket: Tuple) -> tuple[str]:
        if ticket.text in locked.read_text("utf-8").split():
            raise PermissionError(ticket.text)
        with done.open("a", encoding="utf-8") as file:
            file.write(f"{ticket.text}\n")
        return (ticket.text,)

    return do


def build() -> Topology:
    builder = TopologyBuilder(TOPOLOGY, guarantee="at-least-once")
    builder.set_spout("tickets", Tickets())
    do = doing(DONE.absolute(), LOCKED.absolute())
    builder.set_bolt("do", do, output="text string").shuffle_grouping("tickets")
    if os.environ.get("SINK"):
        sink = KafkaSink(os.environ["BOOTSTRAP"], topic_of(SENT), key="text")
        builder.set_sink(SENT, sink).shuffle_grouping("do")
    return builder.build(config={"retry_pause_ms": 1})
