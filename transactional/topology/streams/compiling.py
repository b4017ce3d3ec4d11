"""The compiler from a graph of streams to a topology: which operations share a bolt, and how bolts are connected.

Operations that follow one another without a repartition form a chain, which becomes one bolt. A chain ends where
several operations read the same node, where streams are combined, and at a state. The result depends on the
declarations alone: the same declarations give the same components with the same ids, by which progress is stored.
"""

from __future__ import annotations

from transactional.model.groupings import DEFAULT_STREAM, GroupingKind
from transactional.topology.builder import BoltDeclarer, TransactionalTopologyBuilder
from transactional.topology.streams.graph import Persisted, Repartition, StreamGraph, StreamNode
from transactional.topology.streams.pipelines.joins import StreamCombiner
from transactional.topology.streams.pipelines.looking_up import LookUp
from transactional.topology.streams.pipelines.pipeline import Pipeline

_ID_CHARACTERS = 40
_LOCAL = Repartition(GroupingKind.LOCAL_OR_SHUFFLE)


def declare(
    graph: StreamGraph, builder: TransactionalTopologyBuilder, default_tasks: int, *, is_query: bool = False
) -> dict[int, tuple[str, str]]:
    """Add the bolts and states of a graph to a builder, which has the spout. `default_tasks` is their number of tasks.

    Returns the component and the stream with the tuples of each node whose tuples leave their component.
    """
    compiler = _Compiler(graph, builder, default_tasks, is_query=is_query)
    compiler.declare()
    return compiler.outputs


def spout_tasks(graph: StreamGraph, default: int) -> int:
    """Return the number of tasks that read the spout."""
    spout = next(node.number for node in graph.nodes if node.origin is not None and not node.origin.is_late)
    return _tasks_by_segment(graph, _segment_starts(graph), default)[spout]


class _Compiler:
    def __init__(
        self, graph: StreamGraph, builder: TransactionalTopologyBuilder, default_tasks: int, *, is_query: bool
    ) -> None:
        self.graph, self.builder, self.is_query = graph, builder, is_query
        self.readers = [graph.count_readers(node.number) for node in graph.nodes]
        self.segments = _segment_starts(graph)
        self.tasks = _tasks_by_segment(graph, self.segments, default_tasks)
        self.outputs: dict[int, tuple[str, str]] = {}
        """The component and the stream that has the tuples of a node, by the number of the node."""
        self.bolts = 0

    def declare(self) -> None:
        """Declare bolts and states, each after the components that it reads."""
        states = {persisted.id: persisted for persisted in self.graph.persisted}
        declared_states = set[str]()

        for node in self.graph.nodes:
            if node.origin is not None and node.origin.component in states:
                self._declare_committer(states[node.origin.component], declared_states)
            if self._leaves_component(node):
                self._output_of(node)
        for persisted in self.graph.persisted:
            self._declare_committer(persisted, declared_states)
        for end in self.graph.sinks:
            tasks = end.tasks or self.tasks[self.segments[end.source]]
            declarer = self.builder.set_sink(end.id, end.sink, tasks)
            _subscribe(declarer, _LOCAL, self._output_of(self.graph.nodes[end.source]))

    def _declare_committer(self, persisted: Persisted, declared_states: set[str]) -> None:
        if persisted.id in declared_states:
            return
        declared_states.add(persisted.id)
        origin = self._output_of(self.graph.nodes[persisted.source])
        is_one = persisted.cut.kind is GroupingKind.GLOBAL
        if persisted.output is None:
            tasks = 1 if is_one else persisted.tasks or 1
            declarer = self.builder.set_committer_bolt(persisted.id, persisted.bolt, tasks)
        else:
            tasks = 1 if is_one else persisted.tasks or self.tasks[self.segments[persisted.source]]
            declarer = self.builder.set_committer_bolt(persisted.id, persisted.bolt, tasks, state=persisted.state)
        _subscribe(declarer, persisted.cut, origin)

    def _leaves_component(self, node: StreamNode) -> bool:
        """Return whether a node's tuples leave its component."""
        if self.readers[node.number] != 1 or node.combiner is not None:
            return True
        return all(_begins_chain(reader) for reader in self.graph.nodes if node.number in reader.parents)

    def _output_of(self, node: StreamNode) -> tuple[str, str]:
        """Return the component and the stream of a node's tuples. Declares the component if necessary."""
        if node.number not in self.outputs:
            self.outputs[node.number] = self._declare_chain(node)
        return self.outputs[node.number]

    def _declare_chain(self, node: StreamNode) -> tuple[str, str]:
        if node.origin is not None:
            return node.origin.component, node.origin.stream
        chain = [node]
        while not _begins_chain(chain[0]):
            parent = self._parent(chain[0])
            if parent.origin is not None or parent.combiner is not None or self.readers[parent.number] > 1:
                break
            chain.insert(0, parent)
        steps = [n.step for n in chain if n.step is not None]
        head = chain[0]
        if not steps and head.cut is None and len(head.parents) == 1:
            return self._output_of(self._parent(head))
        origins = [self._output_of(self.graph.nodes[number]) for number in head.parents]
        cuts = [head.cut or _LOCAL] * len(origins)
        bolt: Pipeline | StreamCombiner = Pipeline(steps, node.schema)
        if head.combiner is not None:
            bolt = head.combiner.with_origins(origins)
            cuts = [Repartition(GroupingKind.FIELDS, side.key) if side.key else _LOCAL for side in head.combiner.sides]
        declarer = self.builder.set_bolt(self._component_id(chain), bolt, self.tasks[self.segments[node.number]])
        for cut, origin in zip(cuts, origins, strict=True):
            _subscribe(declarer, cut, origin)
        if not self.is_query:
            declarer.reading(*(step.lookup_name for step in steps if isinstance(step, LookUp)))
        return declarer.id, DEFAULT_STREAM

    def _parent(self, node: StreamNode) -> StreamNode:
        return self.graph.nodes[node.parents[0]]

    def _component_id(self, chain: list[StreamNode]) -> str:
        """Return `b-<n>-<names>`, with the names that the user gave, otherwise those of the steps."""
        head, names = chain[0], [node.name for node in chain if node.name]
        names = names or [node.step.short_name for node in chain if node.step is not None]
        fallback = "merge" if len(head.parents) > 1 else "repartition"
        names = names or [fallback if head.combiner is None else head.combiner.name]
        self.bolts += 1
        return "-".join([f"b-{self.bolts - 1}", *names])[:_ID_CHARACTERS].rstrip("-_.")


def _begins_chain(node: StreamNode) -> bool:
    return node.cut is not None or node.origin is not None or len(node.parents) != 1


def _subscribe(declarer: BoltDeclarer, cut: Repartition, origin: tuple[str, str]) -> None:
    component, stream = origin
    match cut.kind:
        case GroupingKind.FIELDS:
            declarer.fields_grouping(component, *cut.fields, stream=stream)
        case GroupingKind.SHUFFLE:
            declarer.shuffle_grouping(component, stream=stream)
        case GroupingKind.ALL:
            declarer.all_grouping(component, stream=stream)
        case GroupingKind.GLOBAL:
            declarer.global_grouping(component, stream=stream)
        case GroupingKind.CUSTOM if cut.custom is not None:
            declarer.custom_grouping(component, cut.custom, stream=stream)
        case _:
            declarer.local_or_shuffle_grouping(component, stream=stream)


def _segment_starts(graph: StreamGraph) -> list[int]:
    """Return for each node the first node of its segment. A segment lies between two repartitions."""
    starts: list[int] = []
    spout: int | None = None
    for node in graph.nodes:
        if node.origin is not None and not node.origin.is_late:
            # One component reads all spouts.
            spout = node.number if spout is None else spout
            starts.append(spout)
            continue
        above = {starts[parent] for parent in node.parents}
        is_start = node.cut is not None or node.origin is not None or node.combiner is not None or len(above) != 1
        starts.append(node.number if is_start else above.pop())
    return starts


def _tasks_by_segment(graph: StreamGraph, segments: list[int], default: int) -> dict[int, int]:
    """Return the number of tasks of each segment: its hint, or the default; one in the commit phase."""
    late: list[bool] = []
    for node in graph.nodes:
        above = [late[parent] for parent in node.parents]
        is_late = isinstance(node.step, LookUp) or (bool(above) and all(above))
        late.append(node.origin.is_late if node.origin is not None else is_late)
    tasks: dict[int, int] = {}
    for node in graph.nodes:
        if segments[node.number] == node.number:
            is_one = late[node.number] or (node.cut is not None and node.cut.kind is GroupingKind.GLOBAL)
            tasks[node.number] = 1 if is_one else default
    hints: dict[int, list[int]] = {}
    for node in graph.nodes:
        if node.tasks is not None:
            hints.setdefault(segments[node.number], []).append(node.tasks)
    return tasks | {segment: max(numbers) for segment, numbers in hints.items()}
