"""`JoinedWindows`: streams joined over windows of time. A state keeps the tuples of windows that are open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any

from transactional.bolts import Tuple, known_values
from transactional.errors import ConfigError
from transactional.ports.dead_letters import values_to_json
from transactional.schema import Field, Schema
from transactional.storm_names import NamesOfStreams
from transactional.topology.windows import Window
from transactional.trident.aggregates.collecting import Collect, collected
from transactional.trident.pipelines import steps
from transactional.trident.pipelines.expressions import field
from transactional.trident.pipelines.joins import Join, Side
from transactional.trident.streams import Stream, merged
from transactional.trident.windowed import WindowedState, window_time
from transactional.trident.windows.times import WINDOW_END, WINDOW_START

_TIME, _TUPLE, _TUPLES = "event_time", "tuple", "tuples"
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
    taken = sorted({WINDOW_START, WINDOW_END} & set(join.made.names))
    if taken:
        raise ConfigError(f"join: windows have {taken[0]!r}; give the field another name by output=[…]")
    tagged = [_tagged(stream, join, number, times[number]) for number, stream in enumerate(streams)]
    key = join.sides[0].key
    time = None if window.by_transaction else _free(_TIME, key)
    windows = merged(streams[0]._declarations, tuple(tagged)).group_by(*key).window(window, on=time)
    on_each = [
        ", ".join([*side.key, *([] if at is None else [at])]) for side, at in zip(join.sides, times, strict=True)
    ]
    tuples = CollectSides(_free(_TUPLE, key), " = ".join(on_each), limit=how.limit)
    kept = windows.persistent_aggregate(state, name=how.name, **{_free(_TUPLES, key): tuples})
    output = Schema((*join.made, Field(WINDOW_START, "timestamp"), Field(WINDOW_END, "timestamp")))
    of = OfWindow(join.sides, join.kinds, tuple(times), keeps_all=join.keeps_all)
    return JoinedWindows(kept, output, dict(zip(streams, times, strict=True)), of)


class CollectSides(Collect):
    """The tuples of all sides, each as the JSON that its side has made of it. `field` shows what is compared: it is
    kept with the topology's progress, as the sides of what is stored may not be others."""

    output = "tuples string"

    def __init__(self, tuple: str, field: str, *, limit: int) -> None:
        super().__init__(tuple, limit=limit)
        self.field = field

    def of(self, fields: Schema, used_by: str) -> CollectSides:
        """The same."""
        return self

    def init(self, row: Tuple) -> str:
        """One tuple."""
        return f"[{row[self.fields[0]]}]"


def _tagged(stream: Stream, join: Join, number: int, time: str | None) -> Stream:
    """A side as all sides are: the key, the time, and the tuple as JSON. What can meet nothing and is not kept without
    a partner is left out."""
    side, key = join.sides[number], join.sides[0].key
    if not keeps_lonely(join.kinds, number):
        stream = stream.filter(reduce(and_, (field(name).is_valid() for name in side.key)))
    keys = join.sides[0].schema.select(key)
    times = () if time is None else (Field(_free(_TIME, key), "timestamp"),)
    after = Schema((*keys, *times, Field(_free(_TUPLE, key), "string")))
    as_side = AsSide(number, side.key, time, _kept(side, keeps_all=join.keeps_all))
    return stream._then(steps.Map(f"side({number})", after, stream.fields, as_side))


def _kept(side: Side, *, keeps_all: bool) -> tuple[str, ...]:
    """The fields of a side that are part of what is joined, beside the key."""
    return side.schema.names if keeps_all else tuple(each.name for each in side.others)


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

    number: int
    key: tuple[str, ...]
    time: str | None
    kept: tuple[str, ...]

    def __call__(self, row: Tuple) -> tuple[Any, ...]:
        """The key, the time, and the rest."""
        known = dict(zip(row.fields, known_values(row), strict=True))
        values = {name: known[name] for name in self.kept}
        time = () if self.time is None else (known[self.time],)
        return (*(known[name] for name in self.key), *time, values_to_json({"side": self.number, "values": values}))


@dataclass(frozen=True, slots=True)
class OfWindow:
    """Joins the tuples of one key and window, as `Join` does those of a batch."""

    sides: tuple[Side, ...]
    kinds: tuple[str, ...]
    times: tuple[str | None, ...]
    keeps_all: bool

    @property
    def label(self) -> str:
        """The kinds, and what is compared."""
        return f"{', '.join(dict.fromkeys(self.kinds))} on {' = '.join(', '.join(side.key) for side in self.sides)}"

    def __call__(self, row: Tuple) -> Iterator[tuple[Any, ...]]:
        """The tuples that belong together, with the window."""
        *key, start, end, text = known_values(row)
        found: list[list[tuple[Any, ...]]] = [[] for _ in self.sides]
        for each in sorted(collected(text), key=self._in_order):
            number = each["side"]
            names = _kept(self.sides[number], keeps_all=self.keeps_all)
            found[number].append(tuple(each["values"].get(name) for name in names))
        meets = all(value is not None for value in key)
        joined: list[tuple[tuple[Any, ...] | None, ...]] = [(each,) for each in found[0]]
        for number, kind in enumerate(self.kinds, 1):
            joined = list(_met(joined, found[number], kind, width=number, meets=meets))
        for parts in joined:
            values = (
                value
                for number, part in enumerate(parts)
                for value in (self._missing(number) if part is None else part)
            )
            yield (*(() if self.keeps_all else key), *values, start, end)

    def _missing(self, number: int) -> tuple[None, ...]:
        return (None,) * len(_kept(self.sides[number], keeps_all=self.keeps_all))

    def _in_order(self, kept: Mapping[str, Any]) -> tuple[str, str]:
        """By time, then by the values: no matter in which order they arrived. As texts, times have the same order."""
        time = self.times[kept["side"]]
        return str(kept["values"].get(time)), values_to_json(kept["values"])


def _met(
    joined: list[tuple[Any, ...]], rows: list[tuple[Any, ...]], kind: str, *, width: int, meets: bool
) -> Iterator[tuple[Any, ...]]:
    """What has been joined so far, with the tuples of one more side; all have the same key."""
    if joined and rows and meets:
        yield from ((*each, row) for each in joined for row in rows)
        return
    if kind in KEEPS_LEFT:
        yield from ((*each, None) for each in joined)
    if kind in KEEPS_RIGHT:
        yield from ((*(None,) * width, row) for row in rows)
