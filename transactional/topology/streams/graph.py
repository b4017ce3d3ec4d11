"""The graph of a topology's streams: a node for each operation, and the states that streams end in.

Operations add nodes while a program declares its streams. `compiling` makes components of the graph.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from transactional.core.ports import Sink, State
from transactional.model.groupings import CustomStreamGrouping, GroupingKind
from transactional.model.schema import Schema
from transactional.topology.streams.pipelines.joins import StreamCombiner
from transactional.topology.streams.pipelines.steps import StreamStep


@dataclass(frozen=True, slots=True)
class Repartition:
    """A repartition: the way in which tuples are distributed over the next tasks."""

    kind: GroupingKind
    fields: tuple[str, ...] = ()
    custom: CustomStreamGrouping | None = None

    def __str__(self) -> str:
        return f"{self.kind.value}({', '.join(self.fields)})" if self.fields else self.kind.value


@dataclass(frozen=True, slots=True)
class Origin:
    """The source of tuples that no operation has made: a stream of the spout, or of a state."""

    component: str
    stream: str
    is_late: bool
    """True if the tuples come in the commit phase."""


@dataclass(frozen=True, slots=True)
class StreamNode:
    """One operation. A node without `step`, `cut`, `origin` and `combiner` changes nothing; with several parents it
    merges them."""

    schema: Schema
    number: int = -1
    parents: tuple[int, ...] = ()
    step: StreamStep | None = None
    cut: Repartition | None = None
    origin: Origin | None = None
    name: str = ""
    combiner: StreamCombiner | None = None
    """Combines the parents, each of which is partitioned by its key."""
    tasks: int | None = None
    """The number of tasks that the user gave, back to the last repartition."""


@dataclass(frozen=True, slots=True)
class Persisted:
    """A committer: the update of a state, and the node that it reads."""

    id: str
    bolt: Any
    state: State
    source: int
    cut: Repartition
    output: Schema | None = None
    """The fields that a bolt emits. None for an update of a state."""
    tasks: int | None = None
    """The number of tasks that the user gave."""


@dataclass(frozen=True, slots=True)
class SinkEnd:
    """A sink, and the node whose tuples it publishes. `tasks` is None unless a number was given."""

    id: str
    sink: Sink
    source: int
    tasks: int | None = None


@dataclass(slots=True)
class StreamGraph:
    """The nodes, states and sinks of a topology, in the order in which they were declared."""

    nodes: list[StreamNode] = field(default_factory=list)
    persisted: list[Persisted] = field(default_factory=list)
    sinks: list[SinkEnd] = field(default_factory=list)

    def add(self, node: StreamNode) -> StreamNode:
        """Number a node and add it."""
        numbered = replace(node, number=len(self.nodes))
        self.nodes.append(numbered)
        return numbered

    def set_tasks(self, persisted: Persisted, tasks: int) -> Persisted:
        """Set the number of tasks of a committer."""
        hinted = replace(persisted, tasks=tasks)
        self.persisted = [hinted if committer.id == persisted.id else committer for committer in self.persisted]
        return hinted

    def count_readers(self, number: int) -> int:
        """Return the number of operations, states and sinks that read a node."""
        ends = [*(p.source for p in self.persisted), *(sink.source for sink in self.sinks)]
        return sum(number in n.parents for n in self.nodes) + ends.count(number)
