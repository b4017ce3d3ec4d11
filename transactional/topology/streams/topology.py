"""`TridentTopology`: the topology on which streams are declared. `build()` compiles them for the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, overload

from transactional.core.ports import Sink, Spout, SpoutMaker, State
from transactional.core.ports.dead_letters import check_dead_letters, check_letter_sink
from transactional.core.ports.several.spouts import SeveralSpouts
from transactional.model.arrow.zones import check_naive_times
from transactional.model.durations import Duration
from transactional.model.errors import ConfigError
from transactional.model.facts import EventTime
from transactional.model.groupings import DEFAULT_STREAM
from transactional.model.reading import StaticTable
from transactional.model.user_code.storm_names import NamesOfStreams
from transactional.topology.builder import TransactionalTopologyBuilder
from transactional.topology.streams.aggregates.reducing import MultiReducer
from transactional.topology.streams.combining import combine_streams, make_join, multi_reduce
from transactional.topology.streams.compiling import declare, spout_tasks
from transactional.topology.streams.declarations import Declarations
from transactional.topology.streams.graph import Origin, StreamNode
from transactional.topology.streams.pipelines.user_functions import parse_output
from transactional.topology.streams.queries import DeclaredQuery, compile_query, declare_query, topology_of_queries
from transactional.topology.streams.static import StaticState
from transactional.topology.streams.streams import Stream, merge_streams
from transactional.topology.streams.windowed_joins import JoinedWindows, WindowOfJoin, joined_windows
from transactional.topology.topology import Topology
from transactional.topology.windows.event_times import event_time as declared_time
from transactional.topology.windows.windows import Window
from transactional.topology.wiring import check_id, check_parallelism, check_spout

F = TypeVar("F", bound=Callable[[Stream], Stream])


class TridentTopology(NamesOfStreams):
    """A topology of streams, as in Storm's Trident.

    `topology_id` is the name under which progress is stored: a topology that starts again under the same id continues
    where it ended. `parallelism` is the number of tasks of the spout and of the operations behind it, unless a stream
    sets another one. Times without a time zone, from your code or in questions, are read in the zone `naive_times`
    ("UTC", "Europe/Berlin"). Without `naive_times` they end the run with `NaiveTime`.
    """

    def __init__(self, topology_id: str, *, parallelism: int = 1, naive_times: str | None = None) -> None:
        check_id("topology", topology_id)
        check_parallelism(topology_id, parallelism)
        check_naive_times(topology_id, naive_times)
        self.id, self.parallelism, self.naive_times = topology_id, parallelism, naive_times
        self._declarations = Declarations(topology_id)
        self._spouts: dict[str, Spout | SpoutMaker] = {}
        self._dead_letters: State | None = None
        self._letter_sink: Sink | None = None
        self._queries: dict[str, DeclaredQuery] = {}
        self._event_times: dict[str, EventTime] = {}
        self._static_tables: dict[StaticTable, None] = {}

    def __repr__(self) -> str:
        return f"TridentTopology({self.id!r})"

    def new_stream(
        self,
        name: str,
        spout: Spout | SpoutMaker,
        *,
        event_time: str | None = None,
        max_delay: Duration = "0 seconds",
        idle_after: Duration | None = None,
        max_ahead: Duration | None = "1 hour",
    ) -> Stream:
        """Return the stream of the tuples that a spout reads.

        `event_time` is the timestamp field that says when something happened; windows use it. A tuple may be
        `max_delay` older than the newest one of its partition without being late. Windows stop waiting for a partition
        that has had no record for `idle_after`. With None they always wait, but for a partition that never had a record
        only a minute. A time that is more than `max_ahead` ahead of the clock makes no other tuple late; with None
        there is no such limit.

        The streams of a topology share its transactions: each batch has the new records of every spout. The name of the
        first stream becomes the id of the component that reads all of them.
        """
        check_id("stream", name)
        if name in self._spouts or (self._spouts and name == DEFAULT_STREAM):
            raise ConfigError(
                f"new_stream: {name!r} is taken; the streams of the topology are: {', '.join(self._spouts)}"
            )
        checked = check_spout(name, spout, self.parallelism)
        self._spouts[name] = spout
        self._make_spout(self.parallelism)
        first = next(iter(self._spouts))
        stream = DEFAULT_STREAM if name == first else name
        if event_time is not None:
            declared = declared_time(f"stream {name!r}", checked.output, event_time, max_delay, idle_after, max_ahead)
            self._event_times[stream], self._declarations.event_times[stream] = declared, declared.field
        elif idle_after is not None or max_delay != "0 seconds":
            raise ConfigError(f"stream {name!r}: max_delay and idle_after are those of an event_time, which is missing")
        elif (own_time := checked.parts.streams.event_times.get(DEFAULT_STREAM)) is not None:
            self._declarations.event_times[stream] = own_time.field
        node = self._declarations.graph.add(StreamNode(checked.output, origin=Origin(first, stream, is_late=False)))
        return Stream(self._declarations, node)

    def _make_spout(self, tasks: int) -> Spout:
        """Return the spout of the topology, which reads the spouts of all streams."""
        return SeveralSpouts({name: check_spout(name, spout, tasks) for name, spout in self._spouts.items()})

    def merge(self, *streams: Stream) -> Stream:
        """Merge several streams, which must have the same fields."""
        return merge_streams(self._choose_declarations(streams), streams)

    @overload
    def join(
        self,
        *streams: tuple[Any, ...],
        how: str | Sequence[str] = "inner",
        keep_all: bool = False,
        output: Sequence[str] | None = None,
        window: None = None,
    ) -> Stream: ...

    @overload
    def join(
        self,
        *streams: tuple[Any, ...],
        how: str | Sequence[str] = "inner",
        keep_all: bool = False,
        output: Sequence[str] | None = None,
        window: Window,
        state: State,
        on: Sequence[str] | None = None,
        limit: int = 1_000,
        name: str | None = None,
    ) -> JoinedWindows: ...

    def join(
        self,
        *streams: tuple[Any, ...],
        how: str | Sequence[str] = "inner",
        keep_all: bool = False,
        output: Sequence[str] | None = None,
        window: Window | None = None,
        **of_windows: Any,
    ) -> Stream | JoinedWindows:
        """Join tuples of one batch, or of one window, by equal keys: `join((orders, "customer"), (payments, "payer"))`.

        The fields of the result are the key of the first stream, then all other fields, stream by stream; with
        `keep_all` all fields of all streams, in their order. `output` gives them other names. `how` is `inner`, `left`,
        `right` or `outer`, for all streams after the first, or a list with one for each. NULL stands for a missing
        tuple, and NULL in a key equals nothing. Floating-point numbers are compared as by `group_by`: 0.0 equals -0.0,
        and NaN equals itself.

        With `window=tumbling("5 minutes")`, tuples of one window of event time are joined, whenever they arrive.
        `state` keeps the tuples of open windows. More than `limit` tuples of one key and window raise
        `TooManyCollected`. `name` is the id of the committer, `on` the time field of each stream.
        """
        declarations = self._choose_declarations(streams)
        join, sides = make_join(declarations, streams, how, keeps_all=keep_all, output=output)
        if window is not None:
            return joined_windows(sides, join, WindowOfJoin(window, **of_windows))
        if of_windows:
            raise ConfigError(f"join: {', '.join(of_windows)} has no meaning without window=")
        return combine_streams(declarations, sides, join)

    def multi_reduce(self, *streams: Stream | tuple[Any, ...], reducer: MultiReducer) -> Stream:
        """Reduce the tuples of one batch of several streams by code of yours: `multi_reduce((orders, "customer"),
        (payments, "payer"), reducer=Settle())`.

        Tuples with equal keys are reduced together, as in `group_by`. Each output tuple is preceded by the key, under
        its names in the first stream. Without keys, the tuples of each task are reduced together.
        """
        return multi_reduce(self._choose_declarations(streams), streams, reducer)

    def _choose_declarations(self, streams: Sequence[Any]) -> Declarations:
        """Return the declarations to which an operation on these streams is added.

        They are those of a query if one of the streams belongs to a query of this topology, else the topology's own.
        Streams of another topology are not refused here.
        """
        for argument in streams:
            stream = argument[0] if isinstance(argument, tuple | list) and argument else argument
            if isinstance(stream, Stream) and stream._declarations.queried is self._declarations:
                return stream._declarations
        return self._declarations

    def query(self, name: str, fields: str) -> Callable[[F], F]:
        """Declare a query from outside: `@topology.query("count_of", "word string")`.

        The function gets the stream of questions, which have these fields, and returns the stream of answers. It may
        use any operation, above all `state_query`, but keeps no state. `QueryClient` executes the query.
        """

        def declare_function(function: F) -> F:
            if name in self._queries:
                raise ConfigError(f"query: {name!r} is declared twice; the queries are: {', '.join(self._queries)}")
            if not callable(function):
                raise ConfigError(f"query {name!r} takes a function of the stream of questions; got {function!r}")
            schema = parse_output(f"query {name!r}", fields)
            self._queries[name] = declare_query(self._declarations, name, schema, function)
            return function

        return declare_function

    def static_state(self, table: StaticTable) -> StaticState:
        """Declare a table that others write, for `state_query`: `static_state(StaticDeltaTable("users", …))`.

        The version that is newest when a batch is planned is recorded with it. So all attempts at the batch read the
        same rows, even after a restart.
        """
        if not isinstance(table, StaticTable):
            raise ConfigError(f"static_state takes a table such as StaticDeltaTable('tables/users', …); got {table!r}")
        if any(declared.table == table.table and declared is not table for declared in self._static_tables):
            raise ConfigError(f"static_state: {table.table} is declared twice; look the first one up")
        self._static_tables[table] = None
        return StaticState(table, self._declarations)

    def set_dead_letters(self, state: State, sink: Sink | None = None) -> None:
        """Set tuples aside if a step fails on them `attempts_max` times, instead of ending the run with its error.

        `state` is a `DeadLetterTable`. Each row has the tuple that the failing component had received. With `sink` new
        letters are published, too: a `KafkaSink` of the fields that the table has.
        """
        check_dead_letters(state)
        check_letter_sink(sink)
        self._dead_letters, self._letter_sink = state, sink

    def build(
        self,
        *,
        strict: bool = False,
        options: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> Topology:
        """Compile the streams to a topology. Raises `ConfigError`.

        `strict`, `options` and `config` are those of `TransactionalTopologyBuilder.build`. A topology that has only
        queries is valid, too: there is nothing to run, and they look up static tables.
        """
        if not self._spouts and self._queries:
            return self._with_queries(topology_of_queries(self.id, next(iter(self._queries.values()))))
        if not self._spouts:
            raise ConfigError(f"topology {self.id!r} has no stream: begin with new_stream('name', a spout)")
        if not (self._declarations.graph.persisted or self._declarations.graph.sinks):
            raise ConfigError(
                f"topology {self.id!r} keeps nothing, so it would have no effect: end a stream with "
                "persistent_aggregate(…)"
            )
        graph = self._declarations.graph
        tasks, first = spout_tasks(graph, self.parallelism), next(iter(self._spouts))
        builder = TransactionalTopologyBuilder(
            self.id, first, self._make_spout(tasks), tasks, naive_times=self.naive_times
        )
        declare(graph, builder, self.parallelism)
        builder.event_times.update(self._event_times)
        if self._dead_letters is not None:
            builder.set_dead_letters(self._dead_letters, self._letter_sink)
        return self._with_queries(builder.build(strict=strict, options=options, config=config))

    def _with_queries(self, topology: Topology) -> Topology:
        queries = {name: compile_query(self.id, query, self.naive_times) for name, query in self._queries.items()}
        return replace(topology, queries=queries, static_tables=tuple(self._static_tables))
