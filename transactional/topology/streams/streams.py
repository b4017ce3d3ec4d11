"""`Stream`: the tuples of each batch, on their way from a spout to states; `TridentState`: where they end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar

from transactional.core.ports import PersistentAggregate
from transactional.model.aggregates import Last, Min, StoredColumns
from transactional.model.arrow.computed import ComputedColumns
from transactional.model.errors import ConfigError
from transactional.model.groupings import DEFAULT_STREAM, GroupingKind
from transactional.model.schema import Field, Schema
from transactional.model.user_code.storm_names import OF_STREAMS, NamesOfStreams
from transactional.topology.streams.aggregates.aggregating import (
    Extreme,
    Picked,
    aggregate_step,
    completed_step,
    is_associative,
    named_aggregates,
)
from transactional.topology.streams.aggregates.committing import OwnUpdate, reducing_bolt, updating_bolt
from transactional.topology.streams.aggregates.own import BatchAggregator, is_built_in
from transactional.topology.streams.declarations import Declarations, Update, check_state
from transactional.topology.streams.graph import Cut, Origin, Persisted, StreamNode
from transactional.topology.streams.operations import Operations
from transactional.topology.streams.pipelines.functions import check_function
from transactional.topology.streams.pipelines.looking_up import LookUpStatic, look_up, look_up_static
from transactional.topology.streams.static import StaticState
from transactional.topology.streams.windowed import WindowedStream, window_time
from transactional.topology.topology import NEW_AND_OLD, old_name
from transactional.topology.windows.windows import CountWindow, Session, Window
from transactional.topology.wiring import check_parallelism

P = ParamSpec("P")
R = TypeVar("R")


class Stream(Operations):
    """The tuples of each batch, at one place of a topology. Made by `TridentTopology.new_stream`, and by operations."""

    def group_by(self, *names: str) -> GroupedStream:
        """The tuples by their values in these fields."""
        if not names:
            raise ConfigError(f"group_by() names no field; the stream's fields are: {self._names()}")
        self._require_key(names, "group_by")
        return GroupedStream(self, names)

    def partition_aggregate(self, aggregate: Any = None, /, **aggregates: Any) -> Stream:
        """One tuple of each task, even of one without tuples: the aggregates of its tuples of a batch."""
        return GroupedStream(self, ()).partition_aggregate(aggregate, **aggregates)

    def aggregate(self, aggregate: Any = None, /, **aggregates: Any) -> Stream:
        """One tuple of each batch, even of an empty one: the aggregates of all tuples."""
        return GroupedStream(self, ()).aggregate(aggregate, **aggregates)

    def min_by(self, by: str | Callable[[Any], Any]) -> Stream:
        """Of each task the tuple with the smallest value of a field, or for which a function of the row returns the
        least; the first of several. NULL and None are left out."""
        return self._extreme("min_by", by, is_greatest=False)

    def max_by(self, by: str | Callable[[Any], Any]) -> Stream:
        """Of each task the tuple with the largest value of a field, or for which a function of the row returns the
        greatest; the first of several. NULL and None are left out."""
        return self._extreme("max_by", by, is_greatest=True)

    def first_n(self, count: int, by: str | None = None, *, descending: bool = False) -> Stream:
        """The first tuples of a batch, in the order of a field if one is named; NULL comes last."""
        if type(count) is not int or count < 1:
            raise ConfigError(f"first_n takes a number of tuples, at least 1; got {count!r}")
        of_tasks = self._picked("first_n", count, by, descending=descending, with_null=True)
        return of_tasks.global_()._picked("first_n", count, by, descending=descending, with_null=True)

    def _extreme(self, operation: str, by: str | Callable[[Any], Any], *, is_greatest: bool) -> Stream:
        if isinstance(by, str):
            return self._picked(operation, 1, by, descending=is_greatest, with_null=False)
        return self._then(Extreme(check_function(operation, by), self.fields, by, is_greatest))

    def _picked(self, operation: str, count: int, by: str | None, *, descending: bool, with_null: bool) -> Stream:
        if by is not None:
            self._require([by], operation)
            try:
                Min(by).type_for(self.fields[by].type)
            except ConfigError as error:
                raise ConfigError(f"{operation}: {str(error).replace('min and max need', 'it needs')}") from None
        shown = ", ".join([*([str(count)] if operation == "first_n" else []), *([by] if by else [])])
        return self._then(Picked(f"{operation}({shown})", self.fields, count, by, descending, with_null))

    def persistent_aggregate(
        self, state: Any, aggregate: Any = None, /, *, name: str | None = None, **aggregates: Any
    ) -> TridentState:
        """Add the aggregates of all tuples to a state of one row."""
        return GroupedStream(self, ()).persistent_aggregate(state, aggregate, name=name, **aggregates)

    def persist(self, state: Any, *, name: str | None = None) -> TridentState:
        """Make each tuple a row of a state: its key are the fields that the state names, its values all others.

        Of several tuples with one key the last is kept: of the task with the highest number, as it arrives there.
        """
        return persisted_rows(self, state, name)

    def partition_persist(
        self,
        state: Any,
        updater: Callable[[list[Any], Any], Any],
        output: str | None = None,
        *,
        name: str | None = None,
    ) -> TridentState:
        """Update a state in the commit phase, in the order of transactions: the function is called with the tuples of
        each task, and with the state as a `MapState`. What it returns, rows with the fields in `output`, is the stream
        `new_values()`. The state is declared with key and values."""
        return persisted_by_updater(self, state, updater, output, name)

    def state_query(
        self,
        state: TridentState | StaticState,
        on: str | Sequence[str] | None = None,
        *,
        output: str | Sequence[str] | None = None,
        when: str = "after",
    ) -> Stream:
        """Append the values that a state has for each tuple, NULL where it has none.

        `on` are the fields that are looked up, in the order of the state's key, by default those that are called as
        its columns are. `output` gives the values other names. In a topology the look-up, and all that is done with its
        stream, belongs to the commit phase: it sees the state as it is `after` the transaction, or `before` it. A query
        sees the committed transaction that its answer names. A static state is looked up where the stream is, at the
        version that is recorded with the batch; in a query at the newest one.
        """
        if isinstance(state, StaticState):
            return self._then(self._looked_up_static(state, on, output, when))
        if not isinstance(state, TridentState):
            raise ConfigError(
                f"state_query takes a state that persistent_aggregate or the like returned; got {state!r}"
            )
        declarations = self._declarations
        if state.declarations is not (declarations.queried or declarations):
            raise ConfigError(
                f"state_query: state {state.name!r} is one of {state.declarations}, not of {declarations}"
            )
        if declarations.queried is not None and when != "after":
            raise ConfigError(
                f"state_query: {declarations} is answered between two transactions, so there is no {when!r}"
            )
        return self._then(look_up(self.fields, state, on, output, when))

    def _looked_up_static(self, state: StaticState, on: Any, output: Any, when: str) -> LookUpStatic:
        if state.declarations is not (self._declarations.queried or self._declarations):
            raise ConfigError(f"state_query: {state!r} is one of {state.declarations}, not of {self._declarations}")
        if when != "after":
            raise ConfigError(f"state_query: no transaction changes a static state, so there is no {when!r}")
        return look_up_static(self.fields, state.table, on, output)

    def merge(self, *others: Stream) -> Stream:
        """The tuples of this stream and of others."""
        return merged(self._declarations, (self, *others))

    def window(self, window: Window | Session | CountWindow, *, on: str | None = None) -> WindowedStream[Stream]:
        """The tuples by windows of their time, or of so many: see `GroupedStream.window`."""
        return GroupedStream(self, ()).window(window, on=on)

    def _by(self, key: tuple[str, ...]) -> GroupedStream:
        """As `group_by`; without a field all tuples are one group."""
        return GroupedStream(self, key)

    def _check_of(self, used_by: str, declarations: Declarations) -> None:
        if self._declarations is not declarations:
            raise ConfigError(
                f"{used_by}: a stream of {self._declarations} is used in {declarations}: the streams of a topology, "
                "and those of a query, can't be combined with others"
            )

    def apply(self, function: Callable[Concatenate[Stream, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """What a function of the stream returns: for operations that several streams have in common."""
        return function(self, *args, **kwargs)


@dataclass(frozen=True, eq=False, slots=True)
class GroupedStream(NamesOfStreams):
    """The tuples of a stream by the values of some of its fields, the key."""

    stream: Stream
    key: tuple[str, ...]
    _elsewhere: ClassVar[Mapping[str, str]] = {
        **{name: f"`{name}` of the stream, without group_by" for name in dir(Stream) if not name.startswith("_")},
        **OF_STREAMS,
    }

    def partition_aggregate(self, aggregate: Any = None, /, **aggregates: Any) -> Stream:
        """One tuple for each key that a task has in a batch: the key and the aggregates."""
        if isinstance(aggregate, BatchAggregator) and not aggregates:
            return self._completed(self.stream, "partition_aggregate", aggregate)
        columns = named_aggregates(aggregate, aggregates, self.stream.fields)
        return self._then(self.stream, "partition_aggregate", columns)

    def aggregate(self, aggregate: Any = None, /, **aggregates: Any) -> Stream:
        """One tuple for each key of a batch: the key and the aggregates."""
        if isinstance(aggregate, BatchAggregator) and not aggregates:
            return self._completed(self._repartition(self.stream), "aggregate", aggregate, is_whole=True)
        columns = named_aggregates(aggregate, aggregates, self.stream.fields)
        if not is_associative(columns.aggregates):
            return self._then(self._repartition(self.stream), "aggregate", columns, is_whole=True)
        parts = self._then(self.stream, "partition_aggregate", columns, finishes=False)
        return self._then(self._repartition(parts), "aggregate", columns, is_final=True, is_whole=True)

    def persistent_aggregate(
        self, state: Any, aggregate: Any = None, /, *, name: str | None = None, **aggregates: Any
    ) -> TridentState:
        """Add the aggregates to a state, a row for each key: what is stored is combined with those of the batch."""
        return self._persisted(state, named_aggregates(aggregate, aggregates, self.stream.fields), name)

    def _persisted(
        self, state: Any, columns: StoredColumns, name: str | None, wrapped: Callable[[Any], Any] | None = None
    ) -> TridentState:
        """As `persistent_aggregate`, by the state's own update, or by what that is `wrapped` in."""
        return persisted_aggregates(self.stream, self.key, state, columns, name, wrapped=wrapped)

    def window(self, window: Window | Session | CountWindow, *, on: str | None = None) -> WindowedStream[Stream]:
        """The tuples of each key by windows of their time, `tumbling("5 minutes")`, or of so many, `count(100)`.

        Their time is the event time of the stream that they come from, or the field `on`.
        """
        return WindowedStream(self.stream, self.key, window, window_time(self.stream, window, on))

    def state_query(
        self,
        state: TridentState | StaticState,
        on: str | Sequence[str] | None = None,
        *,
        output: str | Sequence[str] | None = None,
        when: str = "after",
    ) -> Stream:
        """As `Stream.state_query`; `on` are by default the grouped fields. The stream that it returns is not
        grouped."""
        return self.stream.state_query(state, self.key if on is None else on, output=output, when=when)

    def _repartition(self, stream: Stream) -> Stream:
        return stream.partition_by(*self.key) if self.key else stream.global_()

    def _then(self, stream: Stream, operation: str, columns: StoredColumns, **how: bool) -> Stream:
        return stream._then(aggregate_step(operation, self.key, columns, self.stream.fields, **how))

    def _completed(self, stream: Stream, operation: str, aggregator: BatchAggregator, **how: bool) -> Stream:
        return stream._then(completed_step(operation, self.key, aggregator, stream.fields, **how))


@dataclass(frozen=True, eq=False, slots=True)
class TridentState(NamesOfStreams):
    """A state of a topology. Its committer is called as its table is, or as `name=` says."""

    declarations: Declarations
    persisted: Persisted

    @property
    def name(self) -> str:
        """The id of its committer."""
        return self.persisted.id

    @property
    def fields(self) -> Schema:
        """Key and values, also those that are computed when rows are read."""
        return self._computed.fields(Schema((*self.persisted.state.key, *self.persisted.state.values)))

    @property
    def _computed(self) -> ComputedColumns:
        update = self.persisted.bolt
        return update.computed if isinstance(update, PersistentAggregate) else ComputedColumns()

    def new_values(self, *, old: bool = False) -> Stream:
        """The rows that each transaction has changed, as they are after it: key and values. With `old`, the values
        before it as well, as `old_<value>`, NULL in a new row.

        What is done with them is done in the commit phase, in the driver, in the order of transactions; a row is seen
        once for each transaction that changes it.
        """
        fields, of_bolt = self.fields, self.persisted.output
        if of_bolt is not None:
            if old or not of_bolt:
                what = "old values" if of_bolt else "values, because no output='name type, …' is declared"
                raise ConfigError(f"new_values: state {self.name!r} is updated by code of yours, which emits no {what}")
            fields = of_bolt
        elif old:
            state = self.persisted.state
            olds = (Field(old_name(f.name), f.type) for f in state.values)
            fields = self._computed.fields(Schema((*state.key, *state.values, *olds)))
        return self._emitted(NEW_AND_OLD if old else DEFAULT_STREAM, fields)

    def parallelism_hint(self, tasks: int) -> TridentState:
        """The number of its tasks: of the function of `partition_persist`, and of a step of the commit phase that runs
        as a Spark job. What a task adds up before is that of the stream."""
        check_parallelism("parallelism_hint", tasks)
        return replace(self, persisted=self.declarations.graph.hint(self.persisted, tasks))

    def _emitted(self, stream: str, fields: Schema) -> Stream:
        """What its update emits on one of its streams."""
        node = StreamNode(fields, origin=Origin(self.name, stream, is_late=True))
        return Stream(self.declarations, self.declarations.graph.add(node))


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
    return Stream(declarations, declarations.graph.add(StreamNode(streams[0].fields, parents=parents)))


def persisted_aggregates(
    stream: Stream,
    key: tuple[str, ...],
    state: Any,
    columns: StoredColumns,
    name: str | None,
    *,
    wrapped: Callable[[Any], Any] | None = None,
) -> TridentState:
    """End a stream in a state that it aggregates into, by the state's own update, or what that is `wrapped` in."""
    operation = "persistent_aggregate"
    check_state(operation, state)
    fields, declarations = stream.fields, stream._declarations
    cut = Cut(GroupingKind.FIELDS, key) if key else Cut(GroupingKind.GLOBAL)
    if is_associative(columns.aggregates):
        update: Any
        if all(map(is_built_in, columns.aggregates.values())):
            update = state.aggregate(columns.requested).group_by(*key)
        else:
            update = OwnUpdate(state, columns, key)
        update = update if wrapped is None else wrapped(update)
        update.check_input(fields, used_by=operation)
        persisted = declarations.persist(operation, Update(update, state), stream._node, cut, name)
    else:
        bolt = reducing_bolt(operation, state, columns.aggregates, key, fields)
        persisted = declarations.persist(operation, Update(bolt, state, bolt.made), stream._node, cut, name)
    return TridentState(declarations, persisted)


def persisted_rows(stream: Stream, state: Any, name: str | None) -> TridentState:
    """End a stream in a state whose rows are its tuples."""
    check_state("persist", state)
    key = state.known_key_names
    if key is None:
        raise ConfigError(
            "persist: the state has no key: declare it, for example DeltaMapState('tables/words', 'word')"
        )
    stream._require(key, "persist")
    values = [field.name for field in stream.fields if field.name not in key]
    if not values:
        raise ConfigError("persist: all fields of the stream are the key of the state; there must be another one")
    columns = StoredColumns.from_aggregates({value: Last(value) for value in values})
    return persisted_aggregates(stream, tuple(key), state, columns, name)


def persisted_by_updater(
    stream: Stream, state: Any, updater: Any, output: str | None, name: str | None
) -> TridentState:
    """End a stream in a state that code of the user updates."""
    operation = "partition_persist"
    check_state(operation, state)
    bolt = updating_bolt(operation, updater, output)
    cut, declarations = Cut(GroupingKind.LOCAL_OR_SHUFFLE), stream._declarations
    persisted = declarations.persist(operation, Update(bolt, state, bolt.made), stream._node, cut, name)
    return TridentState(declarations, persisted)
