"""Where the tuples of a stream come from: the spout's streams and the states above a node, by name.

Windows by event time need a time of every stream that reaches them, and kept tuples of a join are known by their
stream. Both follow the graph upwards; a field is followed by its name as far as operations leave it as it is.
"""

from __future__ import annotations

from transactional.model.groupings import DEFAULT_STREAM
from transactional.topology.streams.graph import Origin, StreamGraph, StreamNode
from transactional.topology.streams.pipelines.joins import Join
from transactional.topology.streams.pipelines.steps import Select
from transactional.topology.streams.windows.windowing import WindowsUpdate


def source_names(graph: StreamGraph, node: StreamNode) -> list[str]:
    """The spout's streams and the states that a node's tuples come from, sorted. Which stream is declared first makes
    no difference."""
    if node.origin is not None:
        return [_name_of(node.origin)]
    return sorted({name for parent in node.parents for name in source_names(graph, graph.nodes[parent])})


def nearest_name(graph: StreamGraph, node: StreamNode) -> str:
    """The name by `named` that is nearest above a node, "" if streams are merged or combined below it."""
    while not node.name and len(node.parents) == 1:
        node = graph.nodes[node.parents[0]]
    return node.name


def untimed_streams(graph: StreamGraph, node: StreamNode, time: str, declared: dict[str, str]) -> set[str]:
    """The spout's streams without an event time of which a node's field with the time may come."""
    if (origin := node.origin) is not None and not origin.is_late:
        return set() if origin.stream in declared else {_name_of(origin)}
    if origin is not None:
        persisted = next(each for each in graph.persisted if each.id == origin.component)
        if isinstance(persisted.bolt, WindowsUpdate) and persisted.bolt.time is not None:
            return set()  # it was checked where these windows are declared
        return untimed_streams(graph, graph.nodes[persisted.source], time, declared)
    above = [(graph.nodes[node.parents[place]], name) for place, name in _fields_above(node, time)]
    return {stream for parent, name in above for stream in untimed_streams(graph, parent, name, declared)}


def _fields_above(node: StreamNode, name: str) -> list[tuple[int, str]]:
    """What a field is called in the parents that it may come from, each as its place. A field that the operation makes
    may come of any."""
    if isinstance(node.combiner, Join) and name in node.schema.names:
        return node.combiner.sources_of(name)
    if isinstance(node.step, Select) and name in node.step.output_schema.names:
        name = node.step.names[node.step.output_schema.names.index(name)]
    return [(place, name) for place in range(len(node.parents))]


def _name_of(origin: Origin) -> str:
    if origin.stream == DEFAULT_STREAM:
        return origin.component
    return f"{origin.component}/{origin.stream}" if origin.is_late else origin.stream
