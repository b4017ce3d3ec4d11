"""Where streams meet that have unlike fields: joins and `multi_reduce`, checked and added to a topology."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transactional.model.errors import ConfigError
from transactional.topology.streams.aggregates.reducing import MultiReduce
from transactional.topology.streams.declarations import Declarations
from transactional.topology.streams.graph import StreamNode
from transactional.topology.streams.pipelines.joins import Join, Meeting, Side, checked_kinds, joined_schema
from transactional.topology.streams.streams import Stream


def checked_join(
    declarations: Declarations, given: Sequence[Any], how: Any, *, keeps_all: bool, output: Sequence[str] | None
) -> tuple[Join, list[Stream]]:
    """A join, and what it joins. Raises `ConfigError`."""
    example = "join((orders, 'customer'), (payments, 'payer'))"
    sides, streams = _sides("join", given, declarations, example)
    for each, side in zip(given, sides, strict=True):
        if not side.key:
            raise ConfigError(f"join takes each stream with its fields, such as (orders, 'customer'); got {each!r}")
    kinds = checked_kinds(how, len(sides))
    fields = joined_schema(sides, keeps_all=keeps_all, output=output)
    return Join(sides, kinds, fields, keeps_all=keeps_all), streams


def multi_reduced(declarations: Declarations, given: Sequence[Any], reducer: Any) -> Stream:
    """What a reducer makes of several streams, each given alone or with its fields. Raises `ConfigError`."""
    example = "multi_reduce((orders, 'customer'), (payments, 'payer'), reducer=…)"
    sides, streams = _sides("multi_reduce", given, declarations, example)
    return met(declarations, streams, MultiReduce(sides, reducer))


def _sides(
    operation: str, given: Sequence[Any], declarations: Declarations, example: str
) -> tuple[list[Side], list[Stream]]:
    """Each stream, and its fields with those that are compared."""
    if len(given) < 2:
        raise ConfigError(f"{operation} takes several streams, not {len(given)}: {example}")
    sides, streams = [], []
    for each in given:
        match each:
            case Stream() as stream:
                names: list[Any] = []
            case (Stream() as stream, *names):
                pass
            case _:
                raise ConfigError(f"{operation} takes streams with their fields: {example}; got {each!r}")
        stream._check_of(operation, declarations)
        stream._require_key(names, operation)
        sides.append(Side(stream.fields, tuple(names)))
        streams.append(stream)
    if len({each._node.number for each in streams}) < len(streams):
        raise ConfigError(f"{operation}: a stream is given twice; give one that is made of it")
    return sides, streams


def met(declarations: Declarations, streams: Sequence[Stream], meeting: Meeting) -> Stream:
    """What is made of several streams where they meet."""
    parents = tuple(each._node.number for each in streams)
    node = StreamNode(meeting.made, parents=parents, meeting=meeting)
    return Stream(declarations, declarations.graph.add(node))
