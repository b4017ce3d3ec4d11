"""Bolts that write down all that is done to them, in topologies of any shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hypothesis import strategies as st

from state.memory import MemoryTable
from tests.unit.fakes import builder, total
from tests.unit.shapes import update
from transactional.bolts import BatchBolt, MapState, OutputCollector, TopologyContext
from transactional.model.attempt import TransactionAttempt
from transactional.model.groupings import DEFAULT_STREAM
from transactional.model.user_code.tuples import Tuple
from transactional.topology.topology import Topology

TASKS = 2


@dataclass(frozen=True)
class Event:
    """What a bolt in one task was given, has emitted, or that it began or ended."""

    component: str
    task: int
    what: str
    label: str = ""
    source: str = ""
    stream: str = DEFAULT_STREAM


class Told(BatchBolt):
    """Passes on what it is given, under its own name and a number; every third as late news. At its end one more."""

    output = "word string"
    streams: ClassVar = {"late": "word string"}
    events: ClassVar[list[Event]] = []

    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        self.component, self.task = context.component_id, context.task_index
        self.collector, self.state, self.number = collector, context.state, 0
        self.tell("prepare")

    def execute(self, tuple: Tuple) -> None:
        self.tell("given", tuple.word, tuple.source, tuple.stream)
        self.emit()
        if self.number % 3 == 0:
            self.emit("late")

    def finish_batch(self) -> None:
        self.emit()
        self.tell("finish")
        if self.state is not None:
            self.state.put((), 1)

    def emit(self, stream: str = DEFAULT_STREAM) -> None:
        self.number += 1
        label = f"{self.component}.{self.task}.{self.number}"
        self.tell("emit", label, self.component, stream)
        self.collector.emit(label, stream=stream)

    def tell(self, what: str, label: str = "", source: str = "", stream: str = DEFAULT_STREAM) -> None:
        self.events.append(Event(self.component, self.task, what, label, source, stream))

    state: MapState | None


@st.composite
def merges(draw: st.DrawFn) -> Topology:
    """Bolts and committers that read from any before them, most by shuffles in the same parallelism."""
    made = builder(parallelism=TASKS)
    known = [("spout", DEFAULT_STREAM)]
    for number in range(draw(st.integers(1, 5))):
        parallelism = draw(st.sampled_from([TASKS, TASKS, TASKS, 1]))
        bolt_id, is_committer = f"bolt{number}", draw(st.integers(0, 4)) == 0
        if is_committer:
            declarer = made.set_committer_bolt(bolt_id, Told(), parallelism, state=total(MemoryTable(bolt_id)))
        else:
            declarer = made.set_bolt(bolt_id, Told(), parallelism)
        for source, stream in draw(st.lists(st.sampled_from(known), min_size=1, max_size=3, unique=True)):
            if draw(st.integers(0, 5)) == 0:
                declarer.fields_grouping(source, "word", stream=stream)
            else:
                declarer.shuffle_grouping(source, stream=stream)
        known += [(bolt_id, DEFAULT_STREAM), (bolt_id, "late")]
    update(made, "count").shuffle_grouping("spout")
    return made.build()
