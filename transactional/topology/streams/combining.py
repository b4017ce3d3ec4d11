"""Joins and `multi_reduce`: the operations that combine streams with different fields.

The arguments are checked where the operation is declared, so that a mistake is reported at its line. The functions here
return the new stream; `streams/pipelines/joins.py` and `streams/aggregates/reducing.py` hold the bolts behind them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transactional.model.errors import ConfigError
from transactional.topology.streams.aggregates.reducing import MultiReduce
from transactional.topology.streams.declarations import Declarations
from transactional.topology.streams.graph import StreamNode
from transactional.topology.streams.pipelines.joins import Join, Side, StreamCombiner, check_kinds, joined_schema
from transactional.topology.streams.streams import Stream


def make_join(
    declarations: Declarations, inputs: Sequence[Any], kinds: Any, *, keeps_all: bool, output: Sequence[str] | None
) -> tuple[Join, list[Stream]]:
    """Return a join, and the streams that it joins. Raises `ConfigError`."""
    example = "join((orders, 'customer'), (payments, 'payer'))"
    sides, streams = _split_inputs("join", inputs, declarations, example)
    for argument, side in zip(inputs, sides, strict=True):
        if not side.key:
            raise ConfigError(f"join takes each stream with its fields, such as (orders, 'customer'); got {argument!r}")
    checked = check_kinds(kinds, len(sides))
    fields = joined_schema(sides, keeps_all=keeps_all, output=output)
    return Join(sides, checked, fields, keeps_all=keeps_all), streams


def multi_reduce(declarations: Declarations, inputs: Sequence[Any], reducer: Any) -> Stream:
    """Return the stream that a reducer makes of several, each given alone or with its fields. Raises `ConfigError`."""
    example = "multi_reduce((orders, 'customer'), (payments, 'payer'), reducer=…)"
    sides, streams = _split_inputs("multi_reduce", inputs, declarations, example)
    return combine_streams(declarations, streams, MultiReduce(sides, reducer))


def _split_inputs(
    operation: str, inputs: Sequence[Any], declarations: Declarations, example: str
) -> tuple[list[Side], list[Stream]]:
    """Return the sides and the streams of an operation's arguments, each a stream or a tuple of it and its key."""
    if len(inputs) < 2:
        raise ConfigError(f"{operation} takes several streams, not {len(inputs)}: {example}")
    sides, streams = [], []
    for argument in inputs:
        match argument:
            case Stream() as stream:
                key: list[Any] = []
            case (Stream() as stream, *key):
                pass
            case _:
                raise ConfigError(f"{operation} takes streams with their fields: {example}; got {argument!r}")
        stream._check_of(operation, declarations)
        stream._require_key(key, operation)
        sides.append(Side(stream.fields, tuple(key)))
        streams.append(stream)
    if len({stream._node.number for stream in streams}) < len(streams):
        raise ConfigError(f"{operation}: a stream is given twice; give one that is made of it")
    return sides, streams


def combine_streams(declarations: Declarations, streams: Sequence[Stream], combiner: StreamCombiner) -> Stream:
    """Add a combiner of several streams to a topology, and return its output."""
    parents = tuple(stream._node.number for stream in streams)
    node = StreamNode(combiner.output_schema, parents=parents, combiner=combiner)
    return Stream(declarations, declarations.graph.add(node))
