"""`Stream`: the tuples of each batch, on their way from a spout to states; `TridentState`: where they end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar

from transactional.aggregates import Aggregate
from transactional.errors import ConfigError
from transactional.groupings import DEFAULT_STREAM, GroupingKind
from transactional.schema import Field, Schema
from transactional.topology.topology import NEW_AND_OLD, old_name
from transactional.trident.aggregating import aggregate_step, named_aggregates
from transactional.trident.declarations import Declarations, checked_update
from transactional.trident.graph import Cut, Node, Origin, Persisted
from transactional.trident.operations import Operations

P = ParamSpec("P")
R = TypeVar("R")


class Stream(Operations):
    """The tuples of each batch, at one place of a topology. Made by `TridentTopology.new_stream`, and by operations."""

    def group_by(self, *names: str) -> GroupedStream:
        """The tuples by their values in these fields."""
        if not names:
            raise ConfigError(f"group_by() names no field; the stream's fields are: {self._names()}")
        self._require(names, "group_by")
        return GroupedStream(self, names)

    def partition_aggregate(self, aggregate: Aggregate | None = None, /, **aggregates: Aggregate) -> Stream:
        """One tuple of each task that has any: the aggregates of its tuples of a batch."""
        return GroupedStream(self, ()).partition_aggregate(aggregate, **aggregates)

    def aggregate(self, aggregate: Aggregate | None = None, /, **aggregates: Aggregate) -> Stream:
        """One tuple of each batch, even of an empty one: the aggregates of all tuples."""
        return GroupedStream(self, ()).aggregate(aggregate, **aggregates)

    def persistent_aggregate(
        self, state: Any, aggregate: Aggregate | None = None, /, *, name: str | None = None, **aggregates: Aggregate
    ) -> TridentState:
        """Add the aggregates of all tuples to a state of one row."""
        return persisted_aggregates(self, (), state, named_aggregates(aggregate, aggregates), name)

    def merge(self, *others: Stream) -> Stream:
        """The tuples of this stream and of others."""
        return merged(self._declarations, (self, *others))

    def _check_of(self, used_by: str, declarations: Declarations) -> None:
        if self._declarations is not declarations:
            raise ConfigError(
                f"{used_by}: a stream of topology {self._declarations.topology_id!r} is used in topology "
                f"{declarations.topology_id!r}: streams of two topologies never meet"
            )

    def apply(self, function: Callable[Concatenate[Stream, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """`function(stream, …)`: for what several streams have in common."""
        return function(self, *args, **kwargs)


@dataclass(frozen=True, eq=False, slots=True)
class GroupedStream:
    """The tuples of a stream by the values of some of its fields, the key."""

    stream: Stream
    key: tuple[str, ...]

    def partition_aggregate(self, aggregate: Aggregate | None = None, /, **aggregates: Aggregate) -> Stream:
        """One tuple for each key that a task has in a batch: the key and the aggregates."""
        columns = named_aggregates(aggregate, aggregates)
        return self._then(self.stream, columns, "partition_aggregate")

    def aggregate(self, aggregate: Aggregate | None = None, /, **aggregates: Aggregate) -> Stream:
        """One tuple for each key of a batch: the key and the aggregates."""
        columns = named_aggregates(aggregate, aggregates)
        partial = self._then(self.stream, columns, "partition_aggregate")
        met = partial.partition_by(*self.key) if self.key else partial.global_()
        return self._then(met, columns, "aggregate", final_of=self.stream.fields)

    def persistent_aggregate(
        self, state: Any, aggregate: Aggregate | None = None, /, *, name: str | None = None, **aggregates: Aggregate
    ) -> TridentState:
        """Add the aggregates to a state, a row for each key: what is stored is combined with those of the batch."""
        columns = named_aggregates(aggregate, aggregates)
        return persisted_aggregates(self.stream, self.key, state, columns, name)

    def _then(
        self, stream: Stream, columns: Mapping[str, Aggregate], operation: str, final_of: Schema | None = None
    ) -> Stream:
        step = aggregate_step(operation, self.key, columns, final_of or stream.fields, is_final=final_of is not None)
        return stream._then(step)


@dataclass(frozen=True, eq=False, slots=True)
class TridentState:
    """A state of a topology. Its committer is called as its table is, or as `name=` says."""

    declarations: Declarations
    persisted: Persisted

    @property
    def name(self) -> str:
        """The id of its committer."""
        return self.persisted.id

    @property
    def fields(self) -> Schema:
        """Key and values."""
        return Schema((*self.persisted.state.key, *self.persisted.state.values))

    def new_values(self, *, old: bool = False) -> Stream:
        """The rows that each transaction has changed, as they are after it: key and values. With `old`, the values
        before it as well, as `old_<value>`, NULL in a new row.

        What is done with them is done in the commit phase, in the driver, in the order of transactions; a row is seen
        once for each transaction that changes it.
        """
        fields = self.fields
        if old:
            fields = Schema((*fields, *(Field(old_name(f.name), f.type) for f in self.persisted.state.values)))
        origin = Origin(self.name, NEW_AND_OLD if old else DEFAULT_STREAM, is_late=True)
        return Stream(self.declarations, self.declarations.graph.add(Node(fields, origin=origin)))


def merged(declarations: Declarations, streams: tuple[Any, ...]) -> Stream:
    """The tuples of several streams. Raises `ConfigError` unless they have the same fields and topology."""
    if len(streams) < 2:
        raise ConfigError(f"merge takes several streams, not {len(streams)}")
    for stream in streams:
        if not isinstance(stream, Stream):
            raise ConfigError(f"merge takes streams; got {stream!r}")
        stream._check_of("merge", declarations)
        if stream.fields != streams[0].fields:
            raise ConfigError(
                f"merge: the streams have different fields: '{streams[0].fields}' and '{stream.fields}'; use project, "
                "rename or with_columns to make them equal"
            )
    parents = tuple(stream._node.number for stream in streams)
    if len(set(parents)) < len(parents):
        raise ConfigError("merge: a stream is given twice, so its tuples would count twice")
    return Stream(declarations, declarations.graph.add(Node(streams[0].fields, parents=parents)))


def persisted_aggregates(
    stream: Stream, key: tuple[str, ...], state: Any, aggregates: Mapping[str, Aggregate], name: str | None
) -> TridentState:
    """End a stream in a state that it aggregates into."""
    operation = "persistent_aggregate"
    update = checked_update(operation, state, aggregates).group_by(*key)
    update.check_input(stream.fields, used_by=operation)
    cut = Cut(GroupingKind.FIELDS, key) if key else Cut(GroupingKind.GLOBAL)
    declarations = stream._declarations
    return TridentState(declarations, declarations.persist(operation, update, update.state, stream._node, cut, name))
