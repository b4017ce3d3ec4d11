"""`WindowedStream`: tuples by windows of their time, or of so many; `WindowedState`: the windows, and the streams that
they make."""

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
from transactional.topology.streams.windows.counting import CountUpdate, InOrder
from transactional.topology.streams.windows.sessions import InSessions, LateForSessions, SessionUpdate
from transactional.topology.streams.windows.times import WINDOW_END, WINDOW_START
from transactional.topology.streams.windows.windowing import InPanes, Late, WindowedUpdate
from transactional.topology.topology import CLOSED
from transactional.topology.windows.event_times import check_time
from transactional.topology.windows.windows import EVENT, PANE, PANES_MAX, CountWindow, Session, Window

StreamT = TypeVar("StreamT", bound=Operations)


@dataclass(frozen=True, eq=False, slots=True)
class WindowedStream(NamesOfStreams, Generic[StreamT]):
    """The tuples of a stream by key and by windows of their time, or of so many."""

    stream: StreamT
    key: tuple[str, ...]
    window: Window | Session | CountWindow
    time: str | None
    """The field with their time; None: it is the transaction's, or none matters."""

    def persistent_aggregate(
        self, state: Any, aggregate: Any = None, /, *, name: str | None = None, **aggregates: Any
    ) -> WindowedState[StreamT]:
        """Add the aggregates to a state, a row for each key and window that is open.

        Its key are the grouped fields and `window_start`; of windows that overlap it keeps what they have in common,
        with the key `pane_start`. Rows that no open window needs leave the state. By count its key are the grouped
        fields, for windows that overlap with `pane`, and the newest window of a key stays until the next one begins.
        """
        columns, key = named_aggregates(aggregate, aggregates, self.stream.fields), self.key
        if isinstance(self.window, Session):
            return self._sessions(state, columns, name)
        if isinstance(self.window, CountWindow):
            return self._counted(state, columns, name)
        _check_associative(columns)
        stream, window = self.stream, self.window
        assert isinstance(window, Window)
        after = Schema((*stream.fields, *Schema.parse(f"{window.start} timestamp")))
        on_time: Any = stream._then(InPanes(f"window({window.label})", after, window, self.time))
        how: dict[str, Any] = {"time": self.time, "time_is_window_end": _goes_by_end(stream, self.time)}
        wrapped = partial(WindowedUpdate, window=window, key=key, **how)
        persisted = on_time.group_by(*key, window.start)._persisted(state, columns, name, wrapped)
        state.expire(
            Expiry(window.start, window.windows.length_us, Time.TRANSACTION if self.time is None else Time.EVENT)
        )
        return WindowedState(persisted, stream, window, self.time)

    def _sessions(self, state: Any, columns: StoredColumns, name: str | None) -> WindowedState[StreamT]:
        """Its key are the grouped fields and `window_start`, and `window_end` is a value, which changes."""
        stream, window, key = self.stream, self.window, self.key
        assert isinstance(window, Session)
        _check_associative(columns)
        _check_names(columns, (WINDOW_END,))
        check_state("persistent_aggregate", state)
        try:
            state.allow_deletes()
        except ConfigError as error:
            raise type(error)(f"persistent_aggregate: {error}, as sessions that merge do") from error
        columns = StoredColumns.from_aggregates({WINDOW_END: Max(WINDOW_END), **columns.requested})
        after = Schema((*stream.fields, *Schema.parse(f"{WINDOW_START} timestamp, {WINDOW_END} timestamp")))
        on_time: Any = stream._then(InSessions(f"window({window.label})", after, window, self.time))
        how: dict[str, Any] = {"time": self.time, "time_is_window_end": _goes_by_end(stream, self.time)}
        wrapped = partial(SessionUpdate, window=window, key=key, **how)
        persisted = on_time.group_by(*key, WINDOW_START)._persisted(state, columns, name, wrapped)
        state.expire(Expiry(WINDOW_END, 0, Time.TRANSACTION if self.time is None else Time.EVENT))
        return WindowedState(persisted, stream, window, self.time)

    def _counted(self, state: Any, columns: StoredColumns, name: str | None) -> WindowedState[StreamT]:
        """Its key are the grouped fields, and `pane` for windows that overlap; places are values, which change."""
        stream, window, key = self.stream, self.window, self.key
        assert isinstance(window, CountWindow)
        _check_associative(columns)
        _check_names(columns, window.columns)
        if window.parts > PANES_MAX:
            raise ConfigError(
                f"persistent_aggregate: windows of {window.label} are made of {window.parts} parts, more than "
                f"{PANES_MAX}: let every be longer, and divide the length"
            )
        places = {place: Max(place) for place in (window.start, window.end)}
        columns = StoredColumns.from_aggregates({**places, **columns.requested})
        after = Schema((*stream.fields, *Schema.parse(", ".join(f"{each} long" for each in window.columns))))
        in_order: Any = stream._then(InOrder(f"window({window.label})", after, window))
        wrapped = partial(CountUpdate, window=window, key=key)
        by = (*key, PANE) if PANE in window.columns else key
        return WindowedState(in_order._by(by)._persisted(state, columns, name, wrapped), stream, window, None)


def _check_names(columns: StoredColumns, taken: tuple[str, ...]) -> None:
    for name in taken:
        if name in columns.requested:
            raise ConfigError(f"persistent_aggregate: windows have {name!r}; give the aggregate another name")


def _check_associative(columns: StoredColumns) -> None:
    if not is_associative(columns.aggregates):
        raise ConfigError("persistent_aggregate: windows are computed in parts, which a Reducer can't; use a Combiner")


@dataclass(frozen=True, eq=False, slots=True)
class WindowedState(NamesOfStreams, Generic[StreamT]):
    """A state with the windows that are open, and three streams: what changes, what closes, and what is too late."""

    state: Any
    stream: StreamT
    window: Window | Session | CountWindow
    time: str | None

    @property
    def name(self) -> str:
        """The id of its committer."""
        name: str = self.state.name
        return name

    @property
    def fields(self) -> Schema:
        """Key and values."""
        fields: Schema = self.state.fields
        return fields

    def new_values(self, *, old: bool = False) -> StreamT:
        """The rows that each transaction has changed, as they are after it: early results of windows that are open."""
        if old and isinstance(self.window, Session):
            raise ConfigError("new_values: old=True has no meaning for sessions, which merge")
        if old and isinstance(self.window, CountWindow):
            raise ConfigError("new_values: old=True has no meaning for windows by count, which follow one another")
        stream: StreamT = self.state.new_values(old=old)
        return stream

    def closed(self) -> StreamT:
        """Each window once, when it can get no more tuples: key, `window_start`, `window_end`, and the values.

        By count start and end are places: the numbers of its first tuple, and of the one after its last, among those of
        the key, from 0.
        """
        update: WindowedUpdate | SessionUpdate | CountUpdate = self.state.persisted.bolt
        stream: StreamT = self.state._emitted(CLOSED, update.closed_fields)
        return stream

    def late(self) -> StreamT:
        """The tuples that came when all of their windows had closed, and those without a time. They are counted in no
        window; every other tuple of the stream is."""
        if self.time is None:
            of = "by count" if isinstance(self.window, CountWindow) else "of the transactions' own time"
            raise ConfigError(f"late: no tuple is late for windows {of}")
        if isinstance(self.window, Session):
            label = f"late({self.window.label})"
            return self.stream._then(
                LateForSessions(label, self.stream.fields, self.window, self.time, windows=self.name)
            )
        assert isinstance(self.window, Window)
        label = f"late({self.window.label})"
        return self.stream._then(Late(label, self.stream.fields, self.window, self.time, windows=self.name))


def window_time(stream: Operations, window: Any, on: str | None) -> str | None:
    """The field with the time of a stream's tuples; None if it is that of the transaction. Raises `ConfigError`."""
    if not isinstance(window, Window | Session | CountWindow):
        raise ConfigError(f"window takes a window such as tumbling('5 minutes'); got {window!r}")
    for name in window.columns if isinstance(window, CountWindow) else (window.start, WINDOW_END):
        if name in stream.fields.names:
            raise ConfigError(f"window: the stream has a field {name!r}, which windows add; rename yours")
    if isinstance(window, CountWindow):
        if on is not None:
            raise ConfigError(f"window: on={on!r} names a time, and {window.label} goes by none")
        return None
    if window.time != EVENT:
        if on is not None:
            raise ConfigError(f"window: on={on!r} names a time, and {window.label} goes by that of the transaction")
        return None
    declared = stream._declarations.event_times
    if not declared:
        raise ConfigError(
            "window: no stream of the topology has an event time: pass event_time='…' to new_stream, or "
            "time='transaction' to the window"
        )
    if on is None:
        on = _known_time(stream)
    check_time("window", stream.fields, on)
    if untimed := sorted(untimed_streams(stream._declarations.graph, stream._node, on, declared)):
        raise ConfigError(
            f"window: tuples of {untimed[0]!r} reach windows by event time, and it has none, so that those of other "
            "streams would make them late: pass event_time='…' to its new_stream, or time='transaction' to the window"
        )
    return on


def _known_time(stream: Operations) -> str:
    """The event time of the stream that it comes from, as its field is called here. Raises `ConfigError`."""
    names = event_time_names(stream._declarations.graph, stream._node, stream._declarations.event_times)
    here = sorted(name for name in names if name in stream.fields.names)
    if len(here) == 1:
        return here[0]
    if here:
        raise ConfigError(f"window: the stream has several event times, {', '.join(here)}: name one with on='…'")
    lost = f" {', '.join(sorted(names))}" if names else ""
    raise ConfigError(
        f"window: the stream has no field with its event time{lost} any more; its fields are: "
        f"{', '.join(stream.fields.names)}; keep it (each and with_columns append to a tuple), or name another with "
        "on='…'"
    )


def _goes_by_end(stream: Operations, time: str | None) -> bool:
    """Whether a field of the stream is the end of windows, from wherever its tuples come."""
    graph, node = stream._declarations.graph, stream._node
    names: list[set[str]] = []
    for each in graph.nodes[: node.number + 1]:
        parents = [names[parent] for parent in each.parents] if each.combiner is None else []
        found = set.intersection(*parents) if parents else set[str]()
        if each.origin is not None and each.origin.is_late:
            update = next(of.bolt for of in graph.persisted if of.id == each.origin.component)
            is_timed = isinstance(update, WindowedUpdate | SessionUpdate)
            found = {WINDOW_END} & set(each.schema.names) if is_timed else set()
        names.append(_as_called(found, each))
    return time in names[node.number]


def _as_called(names: set[str], node: StreamNode) -> set[str]:
    """What fields are called behind an operation that leaves them as they are; none if it may make others of them."""
    match node.step:
        case Select() as select:
            called = zip(select.names, select.output_schema.names, strict=True)
            return {after for before, after in called if before in names}
        case None | Where() | Filter() | Peek() | Each():
            return names
        case Compute() as compute:
            return {name for name in names if compute.columns[name].equals(field(name))}
        case _:
            return set()


def event_time_names(graph: StreamGraph, node: StreamNode, declared: dict[str, str]) -> set[str]:
    """What the event times are called, of the streams that a node's tuples come from, by the name of the stream."""
    names: list[set[str]] = []
    for each in graph.nodes[: node.number + 1]:
        found = set().union(*(names[parent] for parent in each.parents))
        if each.origin is not None and not each.origin.is_late and each.origin.stream in declared:
            found = {declared[each.origin.stream]}
        if isinstance(each.step, Select):
            new = dict(zip(each.step.names, each.step.output_schema.names, strict=True))
            found = {new.get(name, name) for name in found}
        names.append(found)
    return names[node.number]
