"""What the operations on streams add up to: nodes, and the states that they end in. `compiling` reads it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from transactional.core.ports import State
from transactional.model.groupings import CustomStreamGrouping, GroupingKind
from transactional.model.schema import Schema
from transactional.topology.streams.pipelines.joins import StreamCombiner
from transactional.topology.streams.pipelines.steps import StreamStep


@dataclass(frozen=True, slots=True)
class Cut:
    """A repartition: how tuples are distributed over the tasks behind it."""

    kind: GroupingKind
    fields: tuple[str, ...] = ()
    custom: CustomStreamGrouping | None = None

    def __str__(self) -> str:
        return f"{self.kind.value}({', '.join(self.fields)})" if self.fields else self.kind.value


@dataclass(frozen=True, slots=True)
class Origin:
    """Where tuples come from that no operation has made: a stream of the spout, or of a state."""

    component: str
    stream: str
    is_late: bool
    """Whether they come in the commit phase."""


@dataclass(frozen=True, slots=True)
class StreamNode:
    """One operation. A node without `step`, `cut`, `origin` and `combiner` changes nothing: several parents are
    merged."""

    schema: Schema
    number: int = -1
    parents: tuple[int, ...] = ()
    step: StreamStep | None = None
    cut: Cut | None = None
    origin: Origin | None = None
    name: str = ""
    combiner: StreamCombiner | None = None
    """Combines the parents, each of which is partitioned by its key."""
    tasks: int | None = None
    """A hint: the number of tasks, as far back as the last repartition."""


@dataclass(frozen=True, slots=True)
class Persisted:
    """A committer: what updates a state, and the node that it reads."""

    id: str
    bolt: Any
    state: State
    source: int
    cut: Cut
    output: Schema | None = None
    """What it emits, if it is a bolt and not a state's update."""
    tasks: int | None = None
    """A hint: the number of its tasks."""


@dataclass(slots=True)
class StreamGraph:
    """All nodes and states of a topology, in the order in which they were declared."""

    nodes: list[StreamNode] = field(default_factory=list)
    persisted: list[Persisted] = field(default_factory=list)

    def add(self, node: StreamNode) -> StreamNode:
        """Number a node, and keep it."""
        numbered = replace(node, number=len(self.nodes))
        self.nodes.append(numbered)
        return numbered

    def hint(self, persisted: Persisted, tasks: int) -> Persisted:
        """Give a committer a number of tasks."""
        hinted = replace(persisted, tasks=tasks)
        self.persisted = [hinted if each.id == persisted.id else each for each in self.persisted]
        return hinted

    def consumers(self, number: int) -> int:
        """How many operations and states read what a node makes."""
        return sum(number in n.parents for n in self.nodes) + sum(p.source == number for p in self.persisted)
