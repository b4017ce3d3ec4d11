"""`WindowedStream` and `WindowedState`: the windows of a stream, aggregated in a state, and the streams that they make.

A windowed stream becomes a step that assigns tuples to windows and a state with a row for each key and open window. The
state emits windows when they close; another step finds the late tuples. The time of a window is checked here, where the
stream is declared: it must come from a declared event time, whatever operations lie between.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from pyarrow.compute import field

from transactional.core.ports.expiry import Expiry, Time
from transactional.model.aggregates import Max, StoredColumns
from transactional.model.errors import ConfigError
from transactional.model.schema import Schema
from transactional.model.user_code.storm_names import NamesOfStreams
from transactional.topology.streams.aggregates.aggregating import is_associative, named_aggregates
from transactional.topology.streams.declarations import check_state
from transactional.topology.streams.graph import StreamGraph, StreamNode
from transactional.topology.streams.lineage import untimed_streams
from transactional.topology.streams.operations import Operations
from transactional.topology.streams.pipelines.steps import Compute, Each, Filter, Peek, Select, Where
from transactional.topology.streams.windows.counting import AddPlaces, CountUpdate
from transactional.topology.streams.windows.sessions import AssignSessions, KeepLateForSessions, SessionUpdate
from transactional.topology.streams.windows.time_columns import WINDOW_END, WINDOW_START
from transactional.topology.streams.windows.windowing import AssignPanes, KeepLate, WindowedUpdate
from transactional.topology.topology import CLOSED
from transactional.topology.windows.event_times import check_time
from transactional.topology.windows.windows import EVENT, PANE, PANES_MAX, CountWindow, Session, Window

StreamT = TypeVar("StreamT", bound=Operations)


@dataclass(frozen=True, eq=False, slots=True)
class WindowedStream(NamesOfStreams, Generic[StreamT]):
    """The tuples of a stream, by key and by windows: of their time, or of a number of tuples."""

    stream: StreamT
    key: tuple[str, ...]
    window: Window | Session | CountWindow
    time: str | None
    """The field with the time of the tuples. None if it is the transaction's, or windows are by count."""

    def persistent_aggregate(
        self, state: Any, aggregate: Any = None, /, *, name: str | None = None, **aggregates: Any
    ) -> WindowedState[StreamT]:
        """Add the aggregates to a state, with a row for each key and open window.

        The key of the state are the grouped fields and `window_start`. For sliding windows it is `pane_start` instead:
        the state keeps the panes that the windows share. Rows that no open window needs leave the state. For windows by
        count, the key are the grouped fields, and `pane` if windows overlap; the newest window of a key stays until the
        next one begins.
        """
        columns, key = named_aggregates(aggregate, aggregates, self.stream.fields), self.key
        if isinstance(self.window, Session):
            return self._aggregate_sessions(state, columns, name)
        if isinstance(self.window, CountWindow):
            return self._aggregate_counts(state, columns, name)
        _check_associative(columns)
        stream, window = self.stream, self.window
        assert isinstance(window, Window)
        schema = Schema((*stream.fields, *Schema.parse(f"{window.start} timestamp")))
        on_time: Any = stream._then(AssignPanes(f"window({window.label})", schema, window, self.time))
        arguments: dict[str, Any] = {"time": self.time, "time_is_window_end": _is_window_end(stream, self.time)}
        wrapped = partial(WindowedUpdate, window=window, key=key, **arguments)
        persisted = on_time.group_by(*key, window.start)._persisted(state, columns, name, wrapped)
        state.parts.declared.set_expiry(
            Expiry(window.start, window.windows.length_us, Time.TRANSACTION if self.time is None else Time.EVENT)
        )
        return WindowedState(persisted, stream, window, self.time)

    def _aggregate_sessions(self, state: Any, columns: StoredColumns, name: str | None) -> WindowedState[StreamT]:
        """Add aggregates by sessions. The key are the grouped fields and `window_start`; `window_end` is a value, as it
        changes."""
        stream, window, key = self.stream, self.window, self.key
        assert isinstance(window, Session)
        _check_associative(columns)
        _check_free_names(columns, (WINDOW_END,))
        check_state("persistent_aggregate", state)
        try:
            state.parts.declared.allow_deletes()
        except ConfigError as error:
            raise type(error)(f"persistent_aggregate: {error}, as sessions that merge do") from error
        columns = StoredColumns.from_aggregates({WINDOW_END: Max(WINDOW_END), **columns.requested})
        schema = Schema((*stream.fields, *Schema.parse(f"{WINDOW_START} timestamp, {WINDOW_END} timestamp")))
        on_time: Any = stream._then(AssignSessions(f"window({window.label})", schema, window, self.time))
        arguments: dict[str, Any] = {"time": self.time, "time_is_window_end": _is_window_end(stream, self.time)}
        wrapped = partial(SessionUpdate, window=window, key=key, **arguments)
        persisted = on_time.group_by(*key, WINDOW_START)._persisted(state, columns, name, wrapped)
        state.parts.declared.set_expiry(Expiry(WINDOW_END, 0, Time.TRANSACTION if self.time is None else Time.EVENT))
        return WindowedState(persisted, stream, window, self.time)

    def _aggregate_counts(self, state: Any, columns: StoredColumns, name: str | None) -> WindowedState[StreamT]:
        """Add aggregates by count. The key are the grouped fields, and `pane` if windows overlap; places are values."""
        stream, window, key = self.stream, self.window, self.key
        assert isinstance(window, CountWindow)
        _check_associative(columns)
        _check_free_names(columns, window.columns)
        if window.parts > PANES_MAX:
            raise ConfigError(
                f"persistent_aggregate: windows of {window.label} are made of {window.parts} parts, more than "
                f"{PANES_MAX}: let every be longer, and divide the length"
            )
        places = {place: Max(place) for place in (window.start, window.end)}
        columns = StoredColumns.from_aggregates({**places, **columns.requested})
        schema = Schema((*stream.fields, *Schema.parse(", ".join(f"{column} long" for column in window.columns))))
        in_order: Any = stream._then(AddPlaces(f"window({window.label})", schema, window))
        wrapped = partial(CountUpdate, window=window, key=key)
        pane_key = (*key, PANE) if PANE in window.columns else key
        persisted = in_order._group_by(pane_key)._persisted(state, columns, name, wrapped)
        return WindowedState(persisted, stream, window, None)


def _check_free_names(columns: StoredColumns, names: tuple[str, ...]) -> None:
    for name in names:
        if name in columns.requested:
            raise ConfigError(f"persistent_aggregate: windows have {name!r}; give the aggregate another name")


def _check_associative(columns: StoredColumns) -> None:
    if not is_associative(columns.aggregates):
        raise ConfigError("persistent_aggregate: windows are computed in parts, which a Reducer can't; use a Combiner")


@dataclass(frozen=True, eq=False, slots=True)
class WindowedState(NamesOfStreams, Generic[StreamT]):
    """A state with open windows, and its three streams: changed rows, closed windows, and late tuples."""

    state: Any
    stream: StreamT
    window: Window | Session | CountWindow
    time: str | None

    @property
    def name(self) -> str:
        """The id of the committer, which updates the state."""
        name: str = self.state.name
        return name

    @property
    def fields(self) -> Schema:
        """The fields of a row: the key and the values."""
        fields: Schema = self.state.fields
        return fields

    def new_values(self, *, old: bool = False) -> StreamT:
        """Return the rows that each transaction has changed, as they are after it: early results of open windows."""
        if old and isinstance(self.window, Session):
            raise ConfigError("new_values: old=True has no meaning for sessions, which merge")
        if old and isinstance(self.window, CountWindow):
            raise ConfigError("new_values: old=True has no meaning for windows by count, which follow one another")
        stream: StreamT = self.state.new_values(old=old)
        return stream

    def closed(self) -> StreamT:
        """Return each window once, when it can get no more tuples: the key, `window_start`, `window_end` and the
        values.

        For windows by count, start and end are places: the number of the first tuple among those of the key, from 0,
        and the number after that of the last one.
        """
        update: WindowedUpdate | SessionUpdate | CountUpdate = self.state.persisted.bolt
        stream: StreamT = self.state._update_stream(CLOSED, update.closed_fields)
        return stream

    def late(self) -> StreamT:
        """Return the tuples that came when all of their windows had closed, and those without a time.

        They are counted in no window; all other tuples of the stream are.
        """
        if self.time is None:
            kind = "by count" if isinstance(self.window, CountWindow) else "of the transactions' own time"
            raise ConfigError(f"late: no tuple is late for windows {kind}")
        if isinstance(self.window, Session):
            label = f"late({self.window.label})"
            return self.stream._then(
                KeepLateForSessions(label, self.stream.fields, self.window, self.time, windows=self.name)
            )
        assert isinstance(self.window, Window)
        label = f"late({self.window.label})"
        return self.stream._then(KeepLate(label, self.stream.fields, self.window, self.time, windows=self.name))


def window_time(stream: Operations, window: Any, field_: str | None) -> str | None:
    """Return the field with the time of a stream's tuples, or None if windows use none. Raises `ConfigError`."""
    if not isinstance(window, Window | Session | CountWindow):
        raise ConfigError(f"window takes a window such as tumbling('5 minutes'); got {window!r}")
    for name in window.columns if isinstance(window, CountWindow) else (window.start, WINDOW_END):
        if name in stream.fields.names:
            raise ConfigError(f"window: the stream has a field {name!r}, which windows add; rename yours")
    if isinstance(window, CountWindow):
        if field_ is not None:
            raise ConfigError(f"window: on={field_!r} names a time, and {window.label} goes by none")
        return None
    if window.time != EVENT:
        if field_ is not None:
            raise ConfigError(f"window: on={field_!r} names a time, and {window.label} goes by that of the transaction")
        return None
    declared = stream._declarations.event_times
    if not declared:
        raise ConfigError(
            "window: no stream of the topology has an event time: pass event_time='…' to new_stream, or "
            "time='transaction' to the window"
        )
    if field_ is None:
        field_ = _default_time(stream)
    check_time("window", stream.fields, field_)
    if untimed := sorted(untimed_streams(stream._declarations.graph, stream._node, field_, declared)):
        raise ConfigError(
            f"window: tuples of {untimed[0]!r} reach windows by event time, and it has none, so that those of other "
            "streams would make them late: pass event_time='…' to its new_stream, or time='transaction' to the window"
        )
    return field_


def _default_time(stream: Operations) -> str:
    """Return the field with the event time that the stream was declared with, as it is called here. Raises
    `ConfigError`."""
    names = event_time_names(stream._declarations.graph, stream._node, stream._declarations.event_times)
    names_here = sorted(name for name in names if name in stream.fields.names)
    if len(names_here) == 1:
        return names_here[0]
    if names_here:
        raise ConfigError(f"window: the stream has several event times, {', '.join(names_here)}: name one with on='…'")
    missing = f" {', '.join(sorted(names))}" if names else ""
    raise ConfigError(
        f"window: the stream has no field with its event time{missing} any more; its fields are: "
        f"{', '.join(stream.fields.names)}; keep it (each and with_columns append to a tuple), or name another with "
        "on='…'"
    )


def _is_window_end(stream: Operations, time: str | None) -> bool:
    """Return whether a field of the stream is the end of windows, on every path from which tuples come."""
    graph, node = stream._declarations.graph, stream._node
    names: list[set[str]] = []
    for operation in graph.nodes[: node.number + 1]:
        parents = [names[parent] for parent in operation.parents] if operation.combiner is None else []
        end_names = set.intersection(*parents) if parents else set[str]()
        if operation.origin is not None and operation.origin.is_late:
            update = next(persisted.bolt for persisted in graph.persisted if persisted.id == operation.origin.component)
            is_timed = isinstance(update, WindowedUpdate | SessionUpdate)
            end_names = {WINDOW_END} & set(operation.schema.names) if is_timed else set()
        names.append(_names_after(end_names, operation))
    return time in names[node.number]


def _names_after(names: set[str], node: StreamNode) -> set[str]:
    """Return the names of fields after an operation that does not change their values; empty if it may change them."""
    match node.step:
        case Select() as select:
            renamed = zip(select.names, select.output_schema.names, strict=True)
            return {new_name for old_name, new_name in renamed if old_name in names}
        case None | Where() | Filter() | Peek() | Each():
            return names
        case Compute() as compute:
            return {name for name in names if compute.columns[name].equals(field(name))}
        case _:
            return set()


def event_time_names(graph: StreamGraph, node: StreamNode, declared: dict[str, str]) -> set[str]:
    """Return the names under which the event times of the declared streams arrive at a node."""
    names: list[set[str]] = []
    for operation in graph.nodes[: node.number + 1]:
        time_names = set().union(*(names[parent] for parent in operation.parents))
        if operation.origin is not None and not operation.origin.is_late and operation.origin.stream in declared:
            time_names = {declared[operation.origin.stream]}
        if isinstance(operation.step, Select):
            new_names = dict(zip(operation.step.names, operation.step.output_schema.names, strict=True))
            time_names = {new_names.get(name, name) for name in time_names}
        names.append(time_names)
    return names[node.number]
