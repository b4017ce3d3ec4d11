"""`Stream`, `GroupedStream` and `TridentState`: the tuples of each batch, from a spout to the states that they end in.

Operations on the way are in `operations`; here are those that group, aggregate, look up, merge and store. A stream is a
node of the graph: it holds no tuples, and can be read by several operations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar

from transactional.core.ports import PersistentAggregate, Sink
from transactional.model.aggregates import Last, Min, StoredColumns
from transactional.model.arrow.computed import ComputedColumns
from transactional.model.errors import ConfigError
from transactional.model.groupings import DEFAULT_STREAM, GroupingKind
from transactional.model.schema import Field, Schema
from transactional.model.user_code.storm_names import OF_STREAMS, NamesOfStreams
from transactional.topology.streams.aggregates.aggregating import (
    TakeExtreme,
    TakeFirst,
    aggregate_step,
    batch_aggregator_step,
    is_associative,
    named_aggregates,
)
from transactional.topology.streams.aggregates.committing import OwnUpdate, reducing_bolt, updating_bolt
from transactional.topology.streams.aggregates.own import BatchAggregator, is_built_in
from transactional.topology.streams.declarations import Declarations, Update, check_state
from transactional.topology.streams.graph import Origin, Persisted, Repartition, StreamNode
from transactional.topology.streams.operations import Operations
from transactional.topology.streams.pipelines.looking_up import LookUpStatic, look_up, look_up_static
from transactional.topology.streams.pipelines.user_functions import check_function
from transactional.topology.streams.static import StaticState
from transactional.topology.streams.windowed import WindowedStream, window_time
from transactional.topology.topology import NEW_AND_OLD, old_name
from transactional.topology.windows.windows import CountWindow, Session, Window
from transactional.topology.wiring import check_parallelism

P = ParamSpec("P")
R = TypeVar("R")


class Stream(Operations):
    """The tuples of each batch, at one point of a topology. `TridentTopology.new_stream` and all operations return
    one."""

    def group_by(self, *names: str) -> GroupedStream:
        """Group the tuples by their values in these fields."""
        if not names:
            raise ConfigError(f"group_by() names no field; the stream's fields are: {self._names()}")
        self._require_key(names, "group_by")
        return GroupedStream(self, names)

    def partition_aggregate(self, aggregate: Any = None, /, **aggregates: Any) -> Stream:
        """Aggregate the tuples of each task: one tuple per task and batch, even for a task without tuples."""
        return GroupedStream(self, ()).partition_aggregate(aggregate, **aggregates)

    def aggregate(self, aggregate: Any = None, /, **aggregates: Any) -> Stream:
        """Aggregate all tuples of a batch: one tuple per batch, even for an empty one."""
        return GroupedStream(self, ()).aggregate(aggregate, **aggregates)

    def min_by(self, by: str | Callable[[Any], Any]) -> Stream:
        """Take from each task the tuple with the smallest value of a field, or of a function of the row.

        Of several, the first is taken. NULL and None are left out.
        """
        return self._take_extreme("min_by", by, is_greatest=False)

    def max_by(self, by: str | Callable[[Any], Any]) -> Stream:
        """Take from each task the tuple with the largest value of a field, or of a function of the row.

        Of several, the first is taken. NULL and None are left out.
        """
        return self._take_extreme("max_by", by, is_greatest=True)

    def first_n(self, count: int, by: str | None = None, *, descending: bool = False) -> Stream:
        """Take the first tuples of a batch, in the order of a field if one is named. NULL comes last."""
        if type(count) is not int or count < 1:
            raise ConfigError(f"first_n takes a number of tuples, at least 1; got {count!r}")
        of_tasks = self._take_first("first_n", count, by, descending=descending, with_null=True)
        return of_tasks.global_()._take_first("first_n", count, by, descending=descending, with_null=True)

    def _take_extreme(self, operation: str, criterion: str | Callable[[Any], Any], *, is_greatest: bool) -> Stream:
        if isinstance(criterion, str):
            return self._take_first(operation, 1, criterion, descending=is_greatest, with_null=False)
        return self._then(TakeExtreme(check_function(operation, criterion), self.fields, criterion, is_greatest))

    def _take_first(
        self, operation: str, count: int, sort_field: str | None, *, descending: bool, with_null: bool
    ) -> Stream:
        if sort_field is not None:
            self._require([sort_field], operation)
            try:
                Min(sort_field).type_for(self.fields[sort_field].type)
            except ConfigError as error:
                raise ConfigError(f"{operation}: {str(error).replace('min and max need', 'it needs')}") from None
        arguments = ", ".join(
            [*([str(count)] if operation == "first_n" else []), *([sort_field] if sort_field else [])]
        )
        return self._then(TakeFirst(f"{operation}({arguments})", self.fields, count, sort_field, descending, with_null))

    def persistent_aggregate(
        self, state: Any, aggregate: Any = None, /, *, name: str | None = None, **aggregates: Any
    ) -> TridentState:
        """Add the aggregates of all tuples to a state of one row."""
        return GroupedStream(self, ()).persistent_aggregate(state, aggregate, name=name, **aggregates)

    def persist(self, state: Any, *, name: str | None = None) -> TridentState:
        """Store each tuple as a row of a state. Its key are the fields that the state names, its values all others.

        Of several tuples with one key the last is stored: the last to arrive in the task with the highest number.
        """
        return persist_rows(self, state, name)

    def partition_persist(
        self,
        state: Any,
        updater: Callable[[list[Any], Any], Any],
        output: str | None = None,
        *,
        name: str | None = None,
    ) -> TridentState:
        """Update a state by a function, in the commit phase, in the order of transactions.

        The function is called with the tuples of each task, and with the state as a `MapState`. The rows that it
        returns have the fields in `output`, and are the stream `new_values()`. The state must declare its key and
        values.
        """
        return persist_by_updater(self, state, updater, output, name)

    def state_query(
        self,
        state: TridentState | StaticState,
        on: str | Sequence[str] | None = None,
        *,
        output: str | Sequence[str] | None = None,
        when: str = "after",
    ) -> Stream:
        """Append the values that a state has for each tuple; NULL where it has none.

        `on` are the fields that are looked up, in the order of the state's key. By default they have the names of its
        columns. `output` gives the values other names. In a topology, the look-up and all that follows belong to the
        commit phase: it reads the state as it is `after` the transaction, or `before` it. A query reads the committed
        transaction that its answer names. A static state is looked up in the processing phase, at the version recorded
        with the batch; in a query, at the newest version.
        """
        if isinstance(state, StaticState):
            return self._then(self._look_up_static(state, on, output, when))
        if not isinstance(state, TridentState):
            raise ConfigError(
                "state_query takes a state that persistent_aggregate or the like returned, or a table that was "
                f"declared by static_state; got {state!r}"
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

    def _look_up_static(self, state: StaticState, key_fields: Any, output: Any, when: str) -> LookUpStatic:
        if state.declarations is not (self._declarations.queried or self._declarations):
            raise ConfigError(f"state_query: {state!r} is one of {state.declarations}, not of {self._declarations}")
        if when != "after":
            raise ConfigError(f"state_query: no transaction changes a static state, so there is no {when!r}")
        return look_up_static(self.fields, state.table, key_fields, output)

    def sink_to(self, sink: Sink, *, name: str, tasks: int | None = None) -> None:
        """Publish each tuple through a sink, such as a `KafkaSink`: once, after the commit of its transaction.

        `name` is the id of the sink; `tasks` encode its tuples. What `group_by` or `partition_by` has put into one task
        is published in the order of that task.
        """
        self._declarations.publish(sink, self._node, name, tasks)

    def merge(self, *others: Stream) -> Stream:
        """Merge this stream with others that have the same fields."""
        return merge_streams(self._declarations, (self, *others))

    def window(self, window: Window | Session | CountWindow, *, on: str | None = None) -> WindowedStream[Stream]:
        """Group the tuples by windows: of their time, or of a number of tuples. See `GroupedStream.window`."""
        return GroupedStream(self, ()).window(window, on=on)

    def _group_by(self, key: tuple[str, ...]) -> GroupedStream:
        """Return `group_by`, which here may have no field: all tuples are one group then."""
        return GroupedStream(self, key)

    def _check_of(self, used_by: str, declarations: Declarations) -> None:
        if self._declarations is not declarations:
            raise ConfigError(
                f"{used_by}: a stream of {self._declarations} is used in {declarations}: the streams of a topology, "
                "and those of a query, can't be combined with others"
            )

    def apply(self, function: Callable[Concatenate[Stream, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the result of a function of the stream. It serves for operations that several streams share."""
        return function(self, *args, **kwargs)


@dataclass(frozen=True, eq=False, slots=True)
class GroupedStream(NamesOfStreams):
    """The tuples of a stream, grouped by the values of some fields, the key."""

    stream: Stream
    key: tuple[str, ...]
    _elsewhere: ClassVar[Mapping[str, str]] = {
        **{name: f"`{name}` of the stream, without group_by" for name in dir(Stream) if not name.startswith("_")},
        **OF_STREAMS,
    }

    def partition_aggregate(self, aggregate: Any = None, /, **aggregates: Any) -> Stream:
        """Aggregate the tuples of each task: one tuple per key that the task has in a batch, with the key and the
        aggregates."""
        if isinstance(aggregate, BatchAggregator) and not aggregates:
            return self._add_batch_aggregator(self.stream, "partition_aggregate", aggregate)
        columns = named_aggregates(aggregate, aggregates, self.stream.fields)
        return self._then(self.stream, "partition_aggregate", columns)

    def aggregate(self, aggregate: Any = None, /, **aggregates: Any) -> Stream:
        """Aggregate the tuples of a batch: one tuple per key, with the key and the aggregates."""
        if isinstance(aggregate, BatchAggregator) and not aggregates:
            return self._add_batch_aggregator(self._repartition(self.stream), "aggregate", aggregate, is_whole=True)
        columns = named_aggregates(aggregate, aggregates, self.stream.fields)
        if not is_associative(columns.aggregates):
            return self._then(self._repartition(self.stream), "aggregate", columns, is_whole=True)
        parts = self._then(self.stream, "partition_aggregate", columns, finishes=False)
        return self._then(self._repartition(parts), "aggregate", columns, is_final=True, is_whole=True)

    def persistent_aggregate(
        self, state: Any, aggregate: Any = None, /, *, name: str | None = None, **aggregates: Any
    ) -> TridentState:
        """Add the aggregates to a state, with a row for each key: stored values are combined with those of the
        batch."""
        return self._persisted(state, named_aggregates(aggregate, aggregates, self.stream.fields), name)

    def _persisted(
        self, state: Any, columns: StoredColumns, name: str | None, wrap: Callable[[Any], Any] | None = None
    ) -> TridentState:
        """Add the aggregates to a state by its own update, or by what `wrap` makes of that."""
        return persist_aggregates(self.stream, self.key, state, columns, name, wrap=wrap)

    def window(self, window: Window | Session | CountWindow, *, on: str | None = None) -> WindowedStream[Stream]:
        """Group the tuples of each key by windows: of their time, `tumbling("5 minutes")`, or of a number,
        `count(100)`.

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
        """Append the values of a state, as `Stream.state_query`. `on` defaults to the grouped fields. The result is not
        grouped."""
        return self.stream.state_query(state, self.key if on is None else on, output=output, when=when)

    def _repartition(self, stream: Stream) -> Stream:
        return stream.partition_by(*self.key) if self.key else stream.global_()

    def _then(self, stream: Stream, operation: str, columns: StoredColumns, **options: bool) -> Stream:
        return stream._then(aggregate_step(operation, self.key, columns, self.stream.fields, **options))

    def _add_batch_aggregator(
        self, stream: Stream, operation: str, aggregator: BatchAggregator, **options: bool
    ) -> Stream:
        return stream._then(batch_aggregator_step(operation, self.key, aggregator, stream.fields, **options))


@dataclass(frozen=True, eq=False, slots=True)
class TridentState(NamesOfStreams):
    """A state of a topology. Its committer is named after its table, or as `name=` says."""

    declarations: Declarations
    persisted: Persisted

    @property
    def name(self) -> str:
        """The id of the committer, which updates the state."""
        return self.persisted.id

    @property
    def fields(self) -> Schema:
        """The key and the values, including those that are computed when rows are read."""
        return self._computed.fields(Schema((*self.persisted.state.key, *self.persisted.state.values)))

    @property
    def _computed(self) -> ComputedColumns:
        update = self.persisted.bolt
        return update.computed if isinstance(update, PersistentAggregate) else ComputedColumns()

    def new_values(self, *, old: bool = False) -> Stream:
        """Return the rows that each transaction has changed, as they are after it: the key and the values.

        With `old`, they have the values before the transaction as well, as `old_<value>`, NULL in a new row. Operations
        on this stream run in the commit phase, in the driver, in the order of transactions. A row appears once for each
        transaction that changes it.
        """
        fields, bolt_output = self.fields, self.persisted.output
        if bolt_output is not None:
            if old or not bolt_output:
                missing = "old values" if bolt_output else "values, because no output='name type, …' is declared"
                raise ConfigError(
                    f"new_values: state {self.name!r} is updated by code of yours, which emits no {missing}"
                )
            fields = bolt_output
        elif old:
            state = self.persisted.state
            olds = (Field(old_name(f.name), f.type) for f in state.values)
            fields = self._computed.fields(Schema((*state.key, *state.values, *olds)))
        return self._update_stream(NEW_AND_OLD if old else DEFAULT_STREAM, fields)

    def parallelism_hint(self, tasks: int) -> TridentState:
        """Set the number of tasks of `partition_persist`, and of a step of the commit phase that runs as a Spark job.

        Partial aggregates are computed by the tasks of the stream.
        """
        check_parallelism("parallelism_hint", tasks)
        return replace(self, persisted=self.declarations.graph.set_tasks(self.persisted, tasks))

    def _update_stream(self, stream: str, fields: Schema) -> Stream:
        """Return a stream of what the update of the state emits."""
        node = StreamNode(fields, origin=Origin(self.name, stream, is_late=True))
        return Stream(self.declarations, self.declarations.graph.add(node))


def merge_streams(declarations: Declarations, streams: tuple[Any, ...]) -> Stream:
    """Merge several streams. Raises `ConfigError` unless they have the same fields and topology."""
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


def persist_aggregates(
    stream: Stream,
    key: tuple[str, ...],
    state: Any,
    columns: StoredColumns,
    name: str | None,
    *,
    wrap: Callable[[Any], Any] | None = None,
) -> TridentState:
    """End a stream in a state that it aggregates into: by the state's own update, or by what `wrap` makes of that."""
    operation = "persistent_aggregate"
    check_state(operation, state)
    fields, declarations = stream.fields, stream._declarations
    cut = Repartition(GroupingKind.FIELDS, key) if key else Repartition(GroupingKind.GLOBAL)
    if is_associative(columns.aggregates):
        update: Any
        if all(map(is_built_in, columns.aggregates.values())):
            update = state.parts.declared.aggregate(columns.requested).group_by(*key)
        else:
            update = OwnUpdate(state, columns, key)
        update = update if wrap is None else wrap(update)
        update.bind_input(fields, used_by=operation)
        persisted = declarations.persist(operation, Update(update, state), stream._node, cut, name)
    else:
        bolt = reducing_bolt(operation, state, columns.aggregates, key, fields)
        persisted = declarations.persist(operation, Update(bolt, state, bolt.output_schema), stream._node, cut, name)
    return TridentState(declarations, persisted)


def persist_rows(stream: Stream, state: Any, name: str | None) -> TridentState:
    """End a stream in a state whose rows are its tuples."""
    check_state("persist", state)
    key = state.parts.declared.known_key_names
    if key is None:
        raise ConfigError(
            "persist: the state has no key: declare it, for example DeltaMapState('tables/words', 'word')"
        )
    stream._require(key, "persist")
    values = [field.name for field in stream.fields if field.name not in key]
    if not values:
        raise ConfigError("persist: all fields of the stream are the key of the state; there must be another one")
    columns = StoredColumns.from_aggregates({value_field: Last(value_field) for value_field in values})
    return persist_aggregates(stream, tuple(key), state, columns, name)


def persist_by_updater(stream: Stream, state: Any, updater: Any, output: str | None, name: str | None) -> TridentState:
    """End a stream in a state that a function of the user updates."""
    operation = "partition_persist"
    check_state(operation, state)
    bolt = updating_bolt(operation, updater, output)
    cut, declarations = Repartition(GroupingKind.LOCAL_OR_SHUFFLE), stream._declarations
    persisted = declarations.persist(operation, Update(bolt, state, bolt.output_schema), stream._node, cut, name)
    return TridentState(declarations, persisted)
