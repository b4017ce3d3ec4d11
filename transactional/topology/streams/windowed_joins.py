"""`JoinedWindows`: streams joined over windows of time. A state keeps the tuples of windows that are open."""

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
from transactional.model.user_code.tuples import Tuple, known_values
from transactional.topology.streams.aggregates.collecting import Collect, collected
from transactional.topology.streams.lineage import given_name, source_names
from transactional.topology.streams.pipelines import steps
from transactional.topology.streams.pipelines.expressions import field
from transactional.topology.streams.pipelines.joins import Join
from transactional.topology.streams.streams import Stream, merged
from transactional.topology.streams.windowed import WindowedState, WindowedStream, window_time
from transactional.topology.streams.windows.times import WINDOW_END, WINDOW_START
from transactional.topology.windows.windows import Window

_TIME, _TUPLE, _TUPLES = "event_time", "tuple", "tuples"
_NULL_KEY = "null_key"
"""A field of the state's key, in joins that keep tuples without a partner: a digest of each tuple whose own key has
NULL. NULL equals nothing, so that such tuples have a row each, and share no limit."""
KEEPS_LEFT, KEEPS_RIGHT = ("left", "outer"), ("right", "outer")
"""The kinds of join that keep what has no partner."""


@dataclass(frozen=True, eq=False, slots=True)
class JoinedWindows(NamesOfStreams):
    """Streams joined over windows: the stream of what closed windows have joined, and of each side what is too late."""

    windows: WindowedState[Stream]
    output: Schema
    sides: Mapping[Stream, str | None]
    """Each stream, with its field with the time."""
    join: OfWindow

    @property
    def name(self) -> str:
        """The id of the committer that keeps the tuples of open windows."""
        return self.windows.name

    def closed(self) -> Stream:
        """What each window has joined, once, when it can get no more tuples: the fields of the join, `window_start`
        and `window_end`. The order within a window is that of the tuples' times, whenever they arrived."""
        closed = self.windows.closed()
        return closed._then(steps.FlatMap(f"join({self.join.label})", self.output, closed.fields, self.join))

    def late(self, stream: Stream) -> Stream:
        """The tuples of one of the joined streams that came when all of their windows had closed, and those without a
        time. They are joined with nothing. Raises `ConfigError` for another stream."""
        if stream not in self.sides:
            raise ConfigError(f"late takes one of the streams that are joined; got {stream!r}")
        return WindowedState(self.windows.state, stream, self.windows.window, self.sides[stream]).late()


@dataclass(frozen=True, slots=True)
class WindowOfJoin:
    """Over what streams are joined, and where the tuples of open windows are: see `TridentTopology.join`."""

    window: Window
    state: Any = None
    on: Sequence[str] | None = None
    limit: int = 1_000
    name: str | None = None


def joined_windows(streams: Sequence[Stream], join: Join, how: WindowOfJoin) -> JoinedWindows:
    """The streams of a join, over windows. Raises `ConfigError`."""
    window, state, on = how.window, how.state, how.on
    if not isinstance(window, Window):
        raise ConfigError(f"join takes windows such as tumbling('5 minutes') or sliding(…); got {window!r}")
    if state is None:
        raise ConfigError("join: the tuples of open windows need a state: join(…, window=…, state=DeltaMapState('…'))")
    if on is not None and (isinstance(on, str) or len(on) != len(streams)):
        raise ConfigError(f"join: on={on!r} must be a list with the field with the time of each stream")
    times = [window_time(each, window, None if on is None else on[at]) for at, each in enumerate(streams)]
    taken = sorted({WINDOW_START, WINDOW_END} & set(join.output_schema.names))
    if taken:
        raise ConfigError(f"join: windows have {taken[0]!r}; give the field another name by output=[…]")
    sides = kept_sides(streams, join, times)
    tagged = [_tagged(stream, join, number, sides[number]) for number, stream in enumerate(streams)]
    key = join.sides[0].key
    time = None if window.by_transaction else _free(_TIME, key)
    row_key = (*key, *_null_key(join).names)
    windows = WindowedStream(merged(streams[0]._declarations, tuple(tagged)), row_key, window, time)
    tuples = CollectSides(_free(_TUPLE, key), sides, limit=how.limit)
    kept = windows.persistent_aggregate(state, name=how.name, **{_free(_TUPLES, key): tuples})
    output = Schema((*join.output_schema, Field(WINDOW_START, "timestamp"), Field(WINDOW_END, "timestamp")))
    of = OfWindow(sides, join.kinds, keeps_all=join.keeps_all, has_null_key=len(row_key) > len(key))
    return JoinedWindows(kept, output, dict(zip(streams, times, strict=True)), of)


@dataclass(frozen=True, slots=True)
class KeptSide:
    """A side of a join as its tuples are kept: under the name of its stream, whichever place it has.

    `fields` are those that are part of what is joined, beside the key; `time` is the field with the time.
    """

    name: str
    key: tuple[str, ...]
    time: str | None
    fields: Schema

    @property
    def joined_on(self) -> str:
        """What is compared: the key, and the time."""
        return ", ".join([*self.key, *([] if self.time is None else [self.time])])


def kept_sides(streams: Sequence[Stream], join: Join, times: Sequence[str | None]) -> tuple[KeptSide, ...]:
    """The sides of a join. Each has the name of the streams that its tuples come from, and if two sides have the same
    streams, its own name as well. Raises `ConfigError` for two with the same name."""
    graph = streams[0]._declarations.graph
    names = ["+".join(source_names(graph, each._node)) for each in streams]
    names = [
        name if names.count(name) == 1 else f"{name}/{given_name(graph, each._node)}"
        for name, each in zip(names, streams, strict=True)
    ]
    if same := sorted({name for name in names if names.count(name) > 1}):
        source = same[0].rpartition("/")[0]
        raise ConfigError(
            f"join: several of the streams are made of {source!r}, and their tuples are kept by name: name each of "
            "them, (stream.named('…'), 'customer')"
        )
    return tuple(
        KeptSide(name, side.key, time, side.schema if join.keeps_all else Schema(side.value_fields))
        for name, side, time in zip(names, join.sides, times, strict=True)
    )


class CollectSides(Collect):
    """The tuples of all sides, each as the JSON that its side has made of it. What is compared, and the fields of each
    side, are kept with the topology's progress, as the sides of what is stored may not be others."""

    output = "tuples string"

    def __init__(self, tuple: str, sides: Sequence[KeptSide], *, limit: int) -> None:
        super().__init__(tuple, limit=limit)
        self._sides = sides
        self.joined_on = {side.name: side.joined_on for side in sides}
        self.field = " = ".join(self.joined_on.values())
        """The fields that are compared, as the aggregate shows them."""

    def tuple_fields(self, column: str) -> Mapping[str, Schema]:
        """Those of each side."""
        return {side.name: side.fields for side in self._sides}

    def of(self, fields: Schema, used_by: str) -> CollectSides:
        """The same."""
        return self

    def init(self, row: Tuple) -> str:
        """One tuple."""
        return f"[{row[self.fields[0]]}]"


def _tagged(stream: Stream, join: Join, number: int, side: KeptSide) -> Stream:
    """Return a side in the form of all sides: the key, the time, and the tuple as JSON.

    Tuples with NULL in the key have no partner, and are left out unless the join keeps the side without one.
    """
    key = join.sides[0].key
    if not keeps_lonely(join.kinds, number):
        stream = stream.filter(reduce(and_, (field(name).is_valid() for name in side.key)))
    keys, null_key = join.sides[0].schema.select(key), _null_key(join)
    times = () if side.time is None else (Field(_free(_TIME, key), "timestamp"),)
    after = Schema((*keys, *null_key, *times, Field(_free(_TUPLE, key), "string")))
    as_side = AsSide(side, has_null_key=len(null_key) > 0)
    return stream._then(steps.Map(f"side({number})", after, stream.fields, as_side))


def _null_key(join: Join) -> Schema:
    """The field by which tuples with NULL in their key have rows of their own; none if no such tuple is kept."""
    if not any(keeps_lonely(join.kinds, number) for number in range(len(join.sides))):
        return Schema(())
    return Schema((Field(_free(_NULL_KEY, join.sides[0].key), "string"),))


def keeps_lonely(kinds: Sequence[str], number: int) -> bool:
    """Whether a tuple of a side is kept that has a partner on no other side."""
    own = number == 0 or kinds[number - 1] in KEEPS_RIGHT
    return own and all(kind in KEEPS_LEFT for kind in kinds[number:])


def _free(name: str, taken: Sequence[str]) -> str:
    """A name that is not taken."""
    while name in taken:
        name += "_"
    return name


@dataclass(frozen=True, slots=True)
class AsSide:
    """Makes a row as all sides have it of a tuple of one side."""

    side: KeptSide
    has_null_key: bool

    def __call__(self, row: Tuple) -> tuple[Any, ...]:
        """The key, the time, and the rest."""
        side, known = self.side, dict(zip(row.fields, known_values(row), strict=True))
        values = {name: known[name] for name in side.fields.names}
        time = () if side.time is None else (known[side.time],)
        kept = values_to_json({"stream": side.name, "values": values})
        key = [known[name] for name in side.key]
        null_key = (digest_of(kept) if None in key else None,) if self.has_null_key else ()
        return (*key, *null_key, *time, kept)


def digest_of(text: str) -> str:
    """A digest of 128 bits, the same in every process."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class OfWindow:
    """Joins the tuples of one key and window, as `Join` does those of a batch."""

    sides: tuple[KeptSide, ...]
    kinds: tuple[str, ...]
    keeps_all: bool
    has_null_key: bool

    @property
    def label(self) -> str:
        """The kinds, and what is compared."""
        return f"{', '.join(dict.fromkeys(self.kinds))} on {' = '.join(', '.join(side.key) for side in self.sides)}"

    def __call__(self, row: Tuple) -> Iterator[tuple[Any, ...]]:
        """The tuples that belong together, with the window."""
        *key, start, end, text = known_values(row)
        if self.has_null_key:
            key.pop()
        kept: list[list[Mapping[str, Any]]] = [[] for _ in self.sides]
        for each in collected(text):
            kept[self._place_of(each)].append(each["values"])
        found = [
            [_values_today(side, values) for values in sorted(rows, key=partial(_in_order, side.time))]
            for side, rows in zip(self.sides, kept, strict=True)
        ]
        joined: list[tuple[tuple[Any, ...] | None, ...]] = [(each,) for each in found[0]]
        for number, kind in enumerate(self.kinds, 1):
            joined = list(_join_side(joined, found[number], kind, width=number))
        for parts in joined:
            values = (
                value
                for number, part in enumerate(parts)
                for value in ((None,) * len(self.sides[number].fields) if part is None else part)
            )
            yield (*(() if self.keeps_all else key), *values, start, end)

    def _place_of(self, kept: Mapping[str, Any]) -> int:
        """The place that the stream of a tuple has today."""
        return next(place for place, side in enumerate(self.sides) if side.name == kept["stream"])


def _values_today(side: KeptSide, values: Mapping[str, Any]) -> tuple[Any, ...]:
    """The values of a kept tuple in the fields that its side has today, None in one that it was kept without."""
    schema = arrow_schema(side.fields)
    return tuple(fit_value(each.type, values.get(each.name)) for each in schema)


def _in_order(time: str | None, values: Mapping[str, Any]) -> tuple[str, str]:
    """By time, then by the values by name: no matter in which order tuples arrived, or their fields are. As texts,
    times have the same order."""
    return str(None if time is None else values.get(time)), values_to_json(dict(sorted(values.items())))


def _join_side(
    joined: list[tuple[Any, ...]], rows: list[tuple[Any, ...]], kind: str, *, width: int
) -> Iterator[tuple[Any, ...]]:
    """Join one more side to the rows joined so far. All have the same key; `width` is the number of sides before."""
    if joined and rows:
        yield from ((*each, row) for each in joined for row in rows)
        return
    if kind in KEEPS_LEFT:
        yield from ((*each, None) for each in joined)
    if kind in KEEPS_RIGHT:
        yield from ((*(None,) * width, row) for row in rows)
