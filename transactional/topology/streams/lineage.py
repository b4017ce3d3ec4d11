"""The origins of a stream's tuples: the streams of the spout and the states above a node, by name.

Windows by event time need a time in every stream that reaches them, and stored tuples of a join are named after their
stream. Both follow the graph upwards. A field is followed by its name, as long as operations leave its values alone.
"""

from __future__ import annotations

from transactional.model.groupings import DEFAULT_STREAM
from transactional.topology.streams.graph import Origin, StreamGraph, StreamNode
from transactional.topology.streams.pipelines.joins import Join
from transactional.topology.streams.pipelines.steps import Select
from transactional.topology.streams.windows.windowing import WindowsUpdate


def source_names(graph: StreamGraph, node: StreamNode) -> list[str]:
    """Return the streams of the spout and the states that a node's tuples come from, sorted.

    The order in which streams are declared makes no difference.
    """
    if node.origin is not None:
        return [_origin_name(node.origin)]
    return sorted({name for parent in node.parents for name in source_names(graph, graph.nodes[parent])})


def nearest_name(graph: StreamGraph, node: StreamNode) -> str:
    """Return the nearest name that `named` has given above a node; empty if streams are merged or combined before
    one."""
    while not node.name and len(node.parents) == 1:
        node = graph.nodes[node.parents[0]]
    return node.name


def untimed_streams(graph: StreamGraph, node: StreamNode, time: str, declared: dict[str, str]) -> set[str]:
    """Return the streams without an event time that the values of a time field may come from."""
    if (origin := node.origin) is not None and not origin.is_late:
        return set() if origin.stream in declared else {_origin_name(origin)}
    if origin is not None:
        persisted = next(committer for committer in graph.persisted if committer.id == origin.component)
        if isinstance(persisted.bolt, WindowsUpdate) and persisted.bolt.time is not None:
            return set()  # it was checked where these windows are declared
        return untimed_streams(graph, graph.nodes[persisted.source], time, declared)
    above = [(graph.nodes[node.parents[place]], name) for place, name in _parent_fields(node, time)]
    return {stream for parent, name in above for stream in untimed_streams(graph, parent, name, declared)}


def _parent_fields(node: StreamNode, name: str) -> list[tuple[int, str]]:
    """Return for each parent its number and the name that a field has in it.

    A field that the operation computes may come from any parent.
    """
    if isinstance(node.combiner, Join) and name in node.schema.names:
        return node.combiner.sources_of(name)
    if isinstance(node.step, Select) and name in node.step.output_schema.names:
        name = node.step.names[node.step.output_schema.names.index(name)]
    return [(place, name) for place in range(len(node.parents))]


def _origin_name(origin: Origin) -> str:
    if origin.stream == DEFAULT_STREAM:
        return origin.component
    return f"{origin.component}/{origin.stream}" if origin.is_late else origin.stream
