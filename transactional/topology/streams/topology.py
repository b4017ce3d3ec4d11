"""`TridentTopology`: streams are declared on it, and `build()` makes the topology of them that the engine runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, overload

from transactional.core.ports import Spout, SpoutMaker, State
from transactional.core.ports.dead_letters import check_dead_letters
from transactional.core.ports.several import SeveralSpouts
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
from transactional.topology.streams.pipelines.functions import parse_output
from transactional.topology.streams.queries import DeclaredQuery, compiled_query, declared_query, queries_alone
from transactional.topology.streams.static import StaticState
from transactional.topology.streams.streams import Stream, merged
from transactional.topology.streams.windowed_joins import JoinedWindows, WindowOfJoin, joined_windows
from transactional.topology.topology import Topology
from transactional.topology.windows.event_times import event_time as declared_time
from transactional.topology.windows.windows import Window
from transactional.topology.wiring import check_id, check_parallelism, checked_spout

F = TypeVar("F", bound=Callable[[Stream], Stream])


class TridentTopology(NamesOfStreams):
    """A topology of streams, as in Storm's Trident.

    `topology_id` is the name under which progress is stored: a topology started again under the same id continues where
    it ended. `parallelism` is the number of tasks of the spout and of what follows, unless a stream says otherwise.
    Times without a time zone, from your code or in questions, are taken for times in the zone `naive_times` ("UTC",
    "Europe/Berlin"); without it they are refused: they end the run with `NaiveTime`.
    """

    def __init__(self, topology_id: str, *, parallelism: int = 1, naive_times: str | None = None) -> None:
        check_id("topology", topology_id)
        check_parallelism(topology_id, parallelism)
        check_naive_times(topology_id, naive_times)
        self.id, self.parallelism, self.naive_times = topology_id, parallelism, naive_times
        self._declarations = Declarations(topology_id)
        self._spouts: dict[str, Spout | SpoutMaker] = {}
        self._dead_letters: State | None = None
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
        """The stream of what a spout reads.

        `event_time` is its field, a timestamp, that says when something happened; windows go by it. A tuple may be
        older than the newest one of its partition by `max_delay` without being late. A partition without a record for
        `idle_after` is waited for no longer (None: it always is; but for a minute only as long as it has had none). A
        time that is further ahead of the clock than `max_ahead` (None: no limit) makes no other tuple late.

        Several streams are read in the same transactions: each has a batch of every spout that has something new. The
        name of the first becomes the id of the component that reads all of them.
        """
        check_id("stream", name)
        if name in self._spouts or (self._spouts and name == DEFAULT_STREAM):
            raise ConfigError(
                f"new_stream: {name!r} is taken; the streams of the topology are: {', '.join(self._spouts)}"
            )
        checked = checked_spout(name, spout, self.parallelism)
        self._spouts[name] = spout
        self._as_one(self.parallelism)
        first = next(iter(self._spouts))
        stream = DEFAULT_STREAM if name == first else name
        if event_time is not None:
            declared = declared_time(f"stream {name!r}", checked.output, event_time, max_delay, idle_after, max_ahead)
            self._event_times[stream], self._declarations.event_times[stream] = declared, declared.field
        elif idle_after is not None or max_delay != "0 seconds":
            raise ConfigError(f"stream {name!r}: max_delay and idle_after are those of an event_time, which is missing")
        elif DEFAULT_STREAM in checked.event_times:
            self._declarations.event_times[stream] = checked.event_times[DEFAULT_STREAM].field
        node = self._declarations.graph.add(StreamNode(checked.output, origin=Origin(first, stream, is_late=False)))
        return Stream(self._declarations, node)

    def _as_one(self, tasks: int) -> Spout:
        """The spout that the topology has."""
        return SeveralSpouts({name: checked_spout(name, spout, tasks) for name, spout in self._spouts.items()})

    def merge(self, *streams: Stream) -> Stream:
        """The tuples of several streams, which have the same fields."""
        return merged(self._declarations_of(streams), streams)

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
        """Tuples of one batch, or of one window, with equal values: `join((orders, "customer"), (payments, "payer"))`.

        The fields are those that the first stream is joined on, then all others, stream by stream; with `keep_all` all
        fields of all streams, in their order. `output` gives them other names. `how` is `inner`, `left`, `right`, or
        `outer`, for all streams after the first or one for each; NULL stands for a tuple that is missing, and NULL in
        a field that is compared equals nothing. Floating-point numbers are compared as by `group_by`: 0.0 equals -0.0,
        and NaN itself.

        With `window=tumbling("5 minutes")` tuples of one window of event time are joined, whenever they arrive.
        `state` keeps the tuples of open windows. More than `limit` of one key and window raise `TooManyCollected`.
        `name` is the id of the committer, `on` the field with the time of each stream.
        """
        declarations = self._declarations_of(streams)
        join, sides = make_join(declarations, streams, how, keeps_all=keep_all, output=output)
        if window is not None:
            return joined_windows(sides, join, WindowOfJoin(window, **of_windows))
        if of_windows:
            raise ConfigError(f"join: {', '.join(of_windows)} has no meaning without window=")
        return combine_streams(declarations, sides, join)

    def multi_reduce(self, *streams: Stream | tuple[Any, ...], reducer: MultiReducer) -> Stream:
        """What your own code makes of the tuples of one batch of several streams:
        `multi_reduce((orders, "customer"), (payments, "payer"), reducer=Settle())`.

        Tuples with equal values in the fields are reduced together, as in `group_by`, and each result is preceded by
        these values, under their names in the first stream. Without fields the tuples of each task are.
        """
        return multi_reduce(self._declarations_of(streams), streams, reducer)

    def _declarations_of(self, given: Sequence[Any]) -> Declarations:
        """Those of the topology, or of the query whose streams are given."""
        for each in given:
            stream = each[0] if isinstance(each, tuple | list) and each else each
            if isinstance(stream, Stream) and stream._declarations.queried is self._declarations:
                return stream._declarations
        return self._declarations

    def query(self, name: str, fields: str) -> Callable[[F], F]:
        """Declare a query from outside: `@topology.query("count_of", "word string")`.

        The function is given the stream of questions, which have these fields, and returns that of the answers, made by
        any operations, above all `state_query`. It keeps nothing. `QueryClient` executes it.
        """

        def declare_query(function: F) -> F:
            if name in self._queries:
                raise ConfigError(f"query: {name!r} is declared twice; the queries are: {', '.join(self._queries)}")
            if not callable(function):
                raise ConfigError(f"query {name!r} takes a function of the stream of questions; got {function!r}")
            schema = parse_output(f"query {name!r}", fields)
            self._queries[name] = declared_query(self._declarations, name, schema, function)
            return function

        return declare_query

    def static_state(self, table: StaticTable) -> StaticState:
        """A table that others write, to be looked up by `state_query`: `static_state(StaticDeltaTable("users", …))`.

        The version that is the newest when a batch is planned is recorded with it: all attempts at it, also after a
        restart, find the same rows.
        """
        if not isinstance(table, StaticTable):
            raise ConfigError(f"static_state takes a table such as StaticDeltaTable('tables/users', …); got {table!r}")
        if any(other.table == table.table and other is not table for other in self._static_tables):
            raise ConfigError(f"static_state: {table.table} is declared twice; look the first one up")
        self._static_tables[table] = None
        return StaticState(table, self._declarations)

    def set_dead_letters(self, state: State) -> None:
        """Set tuples aside on which a step fails `attempts_max` times, instead of stopping with its error.

        `state` is a `DeadLetterTable`; what is written is the tuple that the failing component had received.
        """
        check_dead_letters(state)
        self._dead_letters = state

    def build(
        self,
        *,
        strict: bool = False,
        options: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> Topology:
        """Compile the streams to a topology. `strict`, `options` and `config` are those of
        `TransactionalTopologyBuilder.build`. Without a stream there have to be queries, and there is nothing to run:
        they look up tables of others. Raises `ConfigError`."""
        if not self._spouts and self._queries:
            return self._with_queries(queries_alone(self.id, next(iter(self._queries.values()))))
        if not self._spouts:
            raise ConfigError(f"topology {self.id!r} has no stream: begin with new_stream('name', a spout)")
        if not self._declarations.graph.persisted:
            raise ConfigError(
                f"topology {self.id!r} keeps nothing, so it would have no effect: end a stream with "
                "persistent_aggregate(…)"
            )
        graph = self._declarations.graph
        tasks, first = spout_tasks(graph, self.parallelism), next(iter(self._spouts))
        builder = TransactionalTopologyBuilder(self.id, first, self._as_one(tasks), tasks, naive_times=self.naive_times)
        declare(graph, builder, self.parallelism)
        builder.event_times.update(self._event_times)
        if self._dead_letters is not None:
            builder.set_dead_letters(self._dead_letters)
        return self._with_queries(builder.build(strict=strict, options=options, config=config))

    def _with_queries(self, topology: Topology) -> Topology:
        queries = {name: compiled_query(self.id, each, self.naive_times) for name, each in self._queries.items()}
        return replace(topology, queries=queries, static_tables=tuple(self._static_tables))
