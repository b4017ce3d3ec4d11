"""Queries of a topology: streams of questions from outside, each compiled on its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transactional.model.errors import ConfigError
from transactional.model.schema import Schema
from transactional.topology.builder import TransactionalTopologyBuilder
from transactional.topology.streams.compiling import declare
from transactional.topology.streams.declarations import Declarations
from transactional.topology.streams.graph import Origin, StreamGraph, StreamNode
from transactional.topology.streams.pipelines.looking_up import AppendValues, LookUp, LookUpStatic
from transactional.topology.streams.pipelines.steps import Compute, RowStep, Select, Where
from transactional.topology.streams.questions import Questions
from transactional.topology.streams.streams import Stream
from transactional.topology.topology import Query, Topology
from transactional.topology.wiring import check_id

QUESTIONS = "questions"
"""The id of the component that emits them."""


@dataclass(frozen=True, slots=True)
class DeclaredQuery:
    """A query before it is compiled: its graph, and the node that has the answers."""

    name: str
    fields: Schema
    graph: StreamGraph
    result: int


def declared_query(of: Declarations, name: str, fields: Schema, function: Callable[[Stream], Any]) -> DeclaredQuery:
    """Call a query's function with the stream of its questions. Raises `ConfigError`."""
    check_id("query", name)
    declarations = Declarations(of.topology_id, queried=of, query=name)
    graph = declarations.graph
    stream = Stream(declarations, graph.add(StreamNode(fields, origin=Origin(QUESTIONS, "default", is_late=False))))
    returned: Any = function(stream)
    if not isinstance(returned, Stream) or returned._declarations is not declarations:
        raise ConfigError(f"query {name!r} must return a stream that is made of its questions; got {returned!r}")
    # What the stream is read by besides must not end up in one component with it.
    result = graph.add(StreamNode(returned.fields, parents=(returned._node.number,)))
    return DeclaredQuery(name, fields, graph, result.number)


def queries_alone(topology_id: str, declared: DeclaredQuery) -> Topology:
    """A topology of queries, which has no stream of its own: that of the questions stands for it."""
    return TransactionalTopologyBuilder(topology_id, QUESTIONS, Questions(declared.fields)).build_query()


def compiled_query(topology_id: str, declared: DeclaredQuery, naive_times: str | None) -> Query:
    """A topology of its own, run by the client."""
    builder = TransactionalTopologyBuilder(topology_id, QUESTIONS, Questions(declared.fields), naive_times=naive_times)
    made = declare(declared.graph, builder, 1, is_query=True)
    steps = [node.step for node in declared.graph.nodes]
    reads = dict.fromkeys(step.committer for step in steps if isinstance(step, LookUp))
    static = dict.fromkeys(step.table for step in steps if isinstance(step, LookUpStatic))
    is_by_tuple = all(map(_is_by_tuple, declared.graph.nodes))
    return Query(declared.name, builder.build_query(), made[declared.result], tuple(reads), tuple(static), is_by_tuple)


def _is_by_tuple(node: StreamNode) -> bool:
    """Whether each tuple that a node makes is made of one tuple; a function of a batch may add them up."""
    is_step = node.step is None or isinstance(node.step, RowStep | Where | Compute | Select | AppendValues)
    return is_step and node.combiner is None and len(node.parents) <= 1
