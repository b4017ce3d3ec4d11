"""Queries of a topology: streams of questions from outside.

Each query is compiled to a topology of its own, with a spout that emits the questions. It never runs by itself: the
client runs it against the states as they are between two transactions.
"""

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
"""The id of the component that emits the questions."""


@dataclass(frozen=True, slots=True)
class DeclaredQuery:
    """A query before it is compiled: its graph, and the number of the node with the answers."""

    name: str
    fields: Schema
    graph: StreamGraph
    answers: int


def declare_query(
    topology: Declarations, name: str, fields: Schema, function: Callable[[Stream], Any]
) -> DeclaredQuery:
    """Call a query's function with the stream of its questions. Raises `ConfigError`."""
    check_id("query", name)
    declarations = Declarations(topology.topology_id, queried=topology, query=name)
    graph = declarations.graph
    stream = Stream(declarations, graph.add(StreamNode(fields, origin=Origin(QUESTIONS, "default", is_late=False))))
    returned: Any = function(stream)
    if not isinstance(returned, Stream) or returned._declarations is not declarations:
        raise ConfigError(f"query {name!r} must return a stream that is made of its questions; got {returned!r}")
    # Other readers of the stream must not end up in one component with the answers.
    answers = graph.add(StreamNode(returned.fields, parents=(returned._node.number,)))
    return DeclaredQuery(name, fields, graph, answers.number)


def topology_of_queries(topology_id: str, declared: DeclaredQuery) -> Topology:
    """Return a topology that has only queries. The stream of questions takes the place of its own."""
    return TransactionalTopologyBuilder(topology_id, QUESTIONS, Questions(declared.fields)).build_query()


def compile_query(topology_id: str, declared: DeclaredQuery, naive_times: str | None) -> Query:
    """Compile a query to a topology of its own, which the client runs."""
    builder = TransactionalTopologyBuilder(topology_id, QUESTIONS, Questions(declared.fields), naive_times=naive_times)
    outputs = declare(declared.graph, builder, 1, is_query=True)
    steps = [node.step for node in declared.graph.nodes]
    reads = dict.fromkeys(step.committer for step in steps if isinstance(step, LookUp))
    static = dict.fromkeys(step.table for step in steps if isinstance(step, LookUpStatic))
    is_by_tuple = all(map(_is_by_tuple, declared.graph.nodes))
    return Query(
        declared.name, builder.build_query(), outputs[declared.answers], tuple(reads), tuple(static), is_by_tuple
    )


def _is_by_tuple(node: StreamNode) -> bool:
    """Return whether each output tuple of a node depends on one input tuple. A function of a batch may add several
    up."""
    is_step = node.step is None or isinstance(node.step, RowStep | Where | Compute | Select | AppendValues)
    return is_step and node.combiner is None and len(node.parents) <= 1
