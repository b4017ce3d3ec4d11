"""`JoinedWindows`: streams joined over windows of time.

Each tuple is turned into a common form, its key, its time and itself as JSON, and the sides are merged into one
windowed aggregate, which collects the tuples of a key and window. When a window closes, its tuples are joined. Tuples
are stored under the name of their side, so that sides may change their order between two runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from hashlib import blake2b
from operator import and_
from typing import Any

from transactional.core.ports.dead_letters import values_to_json
from transactional.model.arrow import arrow_schema
from transactional.model.arrow.conversions import fit_value
from transactional.model.errors import ConfigError
from transactional.model.schema import Field, Schema
from transactional.model.user_code.storm_names import NamesOfStreams
from transactional.model.user_code.tuples import Tuple, raw_values
from transactional.topology.streams.aggregates.collecting import Collect, collected
from transactional.topology.streams.lineage import nearest_name, source_names
from transactional.topology.streams.pipelines import steps
from transactional.topology.streams.pipelines.expressions import field
from transactional.topology.streams.pipelines.joins import Join
from transactional.topology.streams.streams import Stream, merge_streams
from transactional.topology.streams.windowed import WindowedState, WindowedStream, window_time
from transactional.topology.streams.windows.time_columns import WINDOW_END, WINDOW_START
from transactional.topology.windows.windows import Window

_TIME, _TUPLE, _TUPLES = "event_time", "tuple", "tuples"
_NULL_KEY = "null_key"
"""A field of the state's key, in joins that keep tuples without a partner: a digest of each tuple with NULL in its key.

NULL equals nothing, so each of these tuples has a row, and a limit, of its own.
"""
KEEPS_LEFT, KEEPS_RIGHT = ("left", "outer"), ("right", "outer")
"""The kinds of join that keep tuples without a partner, of the left or of the right side."""


@dataclass(frozen=True, eq=False, slots=True)
class JoinedWindows(NamesOfStreams):
    """Streams joined over windows: the rows of closed windows, and the late tuples of each side."""

    windows: WindowedState[Stream]
    output: Schema
    sides: Mapping[Stream, str | None]
    """The time field of each joined stream; None if windows use the time of transactions."""
    join: JoinWindow

    @property
    def name(self) -> str:
        """The id of the committer that keeps the tuples of open windows."""
        return self.windows.name

    def closed(self) -> Stream:
        """Return the joined rows of each window, once, when it can get no more tuples.

        The fields are those of the join, `window_start` and `window_end`. Within a window, rows are in the order of the
        tuples' times, whenever they arrived.
        """
        closed = self.windows.closed()
        return closed._then(steps.FlatMap(f"join({self.join.label})", self.output, closed.fields, self.join))

    def late(self, stream: Stream) -> Stream:
        """Return the late tuples of one of the joined streams, and those without a time.

        They came when all of their windows had closed, and are joined with nothing. Raises `ConfigError` for another
        stream.
        """
        if stream not in self.sides:
            raise ConfigError(f"late takes one of the streams that are joined; got {stream!r}")
        return WindowedState(self.windows.state, stream, self.windows.window, self.sides[stream]).late()


@dataclass(frozen=True, slots=True)
class WindowOfJoin:
    """The windows of a join, and where their tuples are stored: see `TridentTopology.join`."""

    window: Window
    state: Any = None
    on: Sequence[str] | None = None
    limit: int = 1_000
    name: str | None = None


def joined_windows(streams: Sequence[Stream], join: Join, arguments: WindowOfJoin) -> JoinedWindows:
    """Declare a join of streams over windows. Raises `ConfigError`."""
    window, state, time_fields = arguments.window, arguments.state, arguments.on
    if not isinstance(window, Window):
        raise ConfigError(f"join takes windows such as tumbling('5 minutes') or sliding(…); got {window!r}")
    if state is None:
        raise ConfigError("join: the tuples of open windows need a state: join(…, window=…, state=DeltaMapState('…'))")
    if time_fields is not None and (isinstance(time_fields, str) or len(time_fields) != len(streams)):
        raise ConfigError(f"join: on={time_fields!r} must be a list with the field with the time of each stream")
    times = [
        window_time(stream_, window, None if time_fields is None else time_fields[position])
        for position, stream_ in enumerate(streams)
    ]
    reserved = sorted({WINDOW_START, WINDOW_END} & set(join.output_schema.names))
    if reserved:
        raise ConfigError(f"join: windows have {reserved[0]!r}; give the field another name by output=[…]")
    sides = make_sides(streams, join, times)
    tagged = [_to_common_fields(stream, join, number, sides[number]) for number, stream in enumerate(streams)]
    key = join.sides[0].key
    time = None if window.by_transaction else _free_name(_TIME, key)
    row_key = (*key, *_null_key(join).names)
    windows = WindowedStream(merge_streams(streams[0]._declarations, tuple(tagged)), row_key, window, time)
    tuples = CollectSides(_free_name(_TUPLE, key), sides, limit=arguments.limit)
    state_of_windows = windows.persistent_aggregate(state, name=arguments.name, **{_free_name(_TUPLES, key): tuples})
    output = Schema((*join.output_schema, Field(WINDOW_START, "timestamp"), Field(WINDOW_END, "timestamp")))
    join_of_window = JoinWindow(sides, join.kinds, keeps_all=join.keeps_all, has_null_key=len(row_key) > len(key))
    return JoinedWindows(state_of_windows, output, dict(zip(streams, times, strict=True)), join_of_window)


@dataclass(frozen=True, slots=True)
class StoredSide:
    """A side of a join, as its tuples are stored: under the name of its stream, whatever its position is.

    `fields` are the fields that the join emits beside the key; `time` is the time field.
    """

    name: str
    key: tuple[str, ...]
    time: str | None
    fields: Schema

    @property
    def joined_on(self) -> str:
        """The fields that are compared: the key, and the time."""
        return ", ".join([*self.key, *([] if self.time is None else [self.time])])


def make_sides(streams: Sequence[Stream], join: Join, times: Sequence[str | None]) -> tuple[StoredSide, ...]:
    """Return the sides of a join, named after the streams that their tuples come from.

    Two sides of the same streams need names of their own as well. Raises `ConfigError` if two sides have the same name.
    """
    graph = streams[0]._declarations.graph
    names = ["+".join(source_names(graph, stream._node)) for stream in streams]
    names = [
        name if names.count(name) == 1 else f"{name}/{nearest_name(graph, stream._node)}"
        for name, stream in zip(names, streams, strict=True)
    ]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        source = repeated[0].rpartition("/")[0]
        raise ConfigError(
            f"join: several of the streams are made of {source!r}, and their tuples are kept by name: name each of "
            "them, (stream.named('…'), 'customer')"
        )
    return tuple(
        StoredSide(name, side.key, time, side.schema if join.keeps_all else Schema(side.value_fields))
        for name, side, time in zip(names, join.sides, times, strict=True)
    )


class CollectSides(Collect):
    """Collects the tuples of all sides, each as the JSON that its side has made of it.

    The compared fields and the fields of each side are stored with the topology's progress, as stored tuples need the
    sides that they were stored with.
    """

    output = "tuples string"

    def __init__(self, tuple: str, sides: Sequence[StoredSide], *, limit: int) -> None:
        super().__init__(tuple, limit=limit)
        self._sides = sides
        self.joined_on = {side.name: side.joined_on for side in sides}
        self.field = " = ".join(self.joined_on.values())
        """The compared fields, as the aggregate shows them."""

    def tuple_fields(self, column: str) -> Mapping[str, Schema]:
        return {side.name: side.fields for side in self._sides}

    def bind(self, fields: Schema, used_by: str) -> CollectSides:
        return self

    def init(self, row: Tuple) -> str:
        return f"[{row[self.fields[0]]}]"


def _to_common_fields(stream: Stream, join: Join, number: int, side: StoredSide) -> Stream:
    """Return a side in the form of all sides: the key, the time, and the tuple as JSON.

    Tuples with NULL in the key have no partner, and are left out unless the join keeps the side without one.
    """
    key = join.sides[0].key
    if not keeps_unmatched(join.kinds, number):
        stream = stream.filter(reduce(and_, (field(name).is_valid() for name in side.key)))
    keys, null_key = join.sides[0].schema.select(key), _null_key(join)
    times = () if side.time is None else (Field(_free_name(_TIME, key), "timestamp"),)
    schema = Schema((*keys, *null_key, *times, Field(_free_name(_TUPLE, key), "string")))
    to_common_row = ToCommonRow(side, has_null_key=len(null_key) > 0)
    return stream._then(steps.Map(f"side({number})", schema, stream.fields, to_common_row))


def _null_key(join: Join) -> Schema:
    """Return the key field of tuples with NULL in their key; no field if the join keeps no such tuple."""
    if not any(keeps_unmatched(join.kinds, number) for number in range(len(join.sides))):
        return Schema(())
    return Schema((Field(_free_name(_NULL_KEY, join.sides[0].key), "string"),))


def keeps_unmatched(kinds: Sequence[str], number: int) -> bool:
    """Return whether the join keeps the tuples of a side that have a partner on no other side."""
    keeps_side = number == 0 or kinds[number - 1] in KEEPS_RIGHT
    return keeps_side and all(kind in KEEPS_LEFT for kind in kinds[number:])


def _free_name(name: str, names: Sequence[str]) -> str:
    """Append underscores to a name until it is none of `names`."""
    while name in names:
        name += "_"
    return name


@dataclass(frozen=True, slots=True)
class ToCommonRow:
    """Turns a tuple of one side into the row that all sides have in common."""

    side: StoredSide
    has_null_key: bool

    def __call__(self, row: Tuple) -> tuple[Any, ...]:
        side, values_by_field = self.side, dict(zip(row.fields, raw_values(row), strict=True))
        values = {name: values_by_field[name] for name in side.fields.names}
        time = () if side.time is None else (values_by_field[side.time],)
        stored = values_to_json({"stream": side.name, "values": values})
        key = [values_by_field[name] for name in side.key]
        null_key = (digest(stored) if None in key else None,) if self.has_null_key else ()
        return (*key, *null_key, *time, stored)


def digest(text: str) -> str:
    """Return a digest of 128 bits, which is the same in every process."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class JoinWindow:
    """Joins the tuples of one key and window, as `Join` joins those of a batch."""

    sides: tuple[StoredSide, ...]
    kinds: tuple[str, ...]
    keeps_all: bool
    has_null_key: bool

    @property
    def label(self) -> str:
        """The kinds of join, and the compared fields."""
        return f"{', '.join(dict.fromkeys(self.kinds))} on {' = '.join(', '.join(side.key) for side in self.sides)}"

    def __call__(self, row: Tuple) -> Iterator[tuple[Any, ...]]:
        """Yield the joined rows of a window, each with the start and the end of the window."""
        *key, start, end, text = raw_values(row)
        if self.has_null_key:
            key.pop()
        tuples_by_side: list[list[Mapping[str, Any]]] = [[] for _ in self.sides]
        for stored_tuple in collected(text):
            tuples_by_side[self._side_number(stored_tuple)].append(stored_tuple["values"])
        rows_by_side = [
            [_current_values(side, values) for values in sorted(rows, key=partial(_order, side.time))]
            for side, rows in zip(self.sides, tuples_by_side, strict=True)
        ]
        joined: list[tuple[tuple[Any, ...] | None, ...]] = [(stored_tuple,) for stored_tuple in rows_by_side[0]]
        for number, kind in enumerate(self.kinds, 1):
            joined = list(_join_side(joined, rows_by_side[number], kind, width=number))
        for parts in joined:
            values = (
                field_value
                for number, part in enumerate(parts)
                for field_value in ((None,) * len(self.sides[number].fields) if part is None else part)
            )
            yield (*(() if self.keeps_all else key), *values, start, end)

    def _side_number(self, stored_tuple: Mapping[str, Any]) -> int:
        """Return the position that the side of a stored tuple has in this run."""
        return next(place for place, side in enumerate(self.sides) if side.name == stored_tuple["stream"])


def _current_values(side: StoredSide, values: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the values of a stored tuple in the current fields of its side; None in a field that it was stored
    without."""
    schema = arrow_schema(side.fields)
    return tuple(fit_value(column.type, values.get(column.name)) for column in schema)


def _order(time: str | None, values: Mapping[str, Any]) -> tuple[str, str]:
    """Return a sort key: the time, then the values by name.

    It does not depend on the order in which tuples arrived, or of their fields. As texts, times sort as they do as
    times.
    """
    return str(None if time is None else values.get(time)), values_to_json(dict(sorted(values.items())))


def _join_side(
    joined: list[tuple[Any, ...]], rows: list[tuple[Any, ...]], kind: str, *, width: int
) -> Iterator[tuple[Any, ...]]:
    """Join one more side to the rows joined so far. All have the same key; `width` is the number of sides before."""
    if joined and rows:
        yield from ((*parts, row) for parts in joined for row in rows)
        return
    if kind in KEEPS_LEFT:
        yield from ((*parts, None) for parts in joined)
    if kind in KEEPS_RIGHT:
        yield from ((*(None,) * width, row) for row in rows)
