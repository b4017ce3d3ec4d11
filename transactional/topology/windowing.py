"""`Windowing`: what a `WindowedBolt` runs in, a stateful bolt that keeps tuples and passes on the windows that close.

Its state has the tuples of panes as Arrow: of times a row for each pane and transaction, so that a transaction reads
nothing unless a window closes; of counts a row for each pane, and one with the number of tuples so far.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from transactional.core.machine.window_assignment import Windows, WindowTimes, times_of
from transactional.core.ports import LateCounter, Windowed
from transactional.model.aggregates.key_matching import make_comparable_key
from transactional.model.arrow.kept_rows import rows_from_ipc, rows_to_ipc
from transactional.model.errors import ConfigError
from transactional.model.facts import BatchFacts
from transactional.model.groupings import DEFAULT_STREAM, Grouping
from transactional.model.schema import Field, Schema
from transactional.model.user_code.tuples import Key, Tuple, tuple_class
from transactional.topology.bolts.bolts import OutputCollector, TopologyContext
from transactional.topology.bolts.stateful import KeyValueState, StatefulBolt
from transactional.topology.topology import Component, Topology
from transactional.topology.windows.event_times import check_time
from transactional.topology.windows.windowed import TupleWindow, WindowedBolt, time_of, us_of
from transactional.topology.windows.windows import CountWindow, Session, Window

STATE: Final = "window_of string, window_pane long, window_txid long -> tuples binary"
_TOTAL: Final = -(2**63)
"""The pane under which the number of tuples so far stands."""
_NUMBERS: Final = (" first", " number", " input")
"""Columns of kept tuples: the first window that has it, the order in which it came, and the input, as its place among
those that are noted beside. No field has a blank in its name."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """A tuple in its windows: the starts of the first and the last one that it is in."""

    first: int
    last: int
    number: tuple[int, int]
    tuple: Tuple


class Windowing(StatefulBolt, Windowed, LateCounter):
    """Keeps the tuples of one `WindowedBolt`."""

    def __init__(
        self, bolt: WindowedBolt, window: Window | CountWindow, key: Sequence[str], time: str | None, late: str | None
    ) -> None:
        self.bolt, self.window, self.key, self.time, self.late = bolt, window, tuple(key), time, late
        self.state = STATE  # type: ignore[misc]
        self.output, self.streams = bolt.output, bolt.streams  # type: ignore[misc]
        self.inputs: dict[tuple[str, str], Schema] = {}
        self.fields = Schema(())

    @classmethod
    def of(cls, name: str, bolt: Any, window: Any, key: Any, time: Any, late: Any) -> Windowing:
        """What was declared, checked as far as that needs no fields. Raises `ConfigError`."""
        if not isinstance(bolt, WindowedBolt):
            raise ConfigError(f"{name} is a {type(bolt).__name__}, not a WindowedBolt")
        if isinstance(window, Session):
            raise ConfigError(f"{name}: sessions are windows of streams (Trident); use tumbling, sliding or count")
        if not isinstance(window, Window | CountWindow):
            raise ConfigError(f"{name}: window is one such as tumbling('5 minutes') or count(100); got {window!r}")
        goes_by = isinstance(window, Window) and not window.by_transaction
        if goes_by and time is None:
            raise ConfigError(
                f"{name}: {window.label} goes by the time of events: name the field with time='…', or pass "
                "time='transaction' to the window"
            )
        if not goes_by and (time is not None or late is not None):
            given = f"time={time!r}" if time is not None else f"late={late!r}"
            raise ConfigError(f"{name}: {given} has no meaning for {window.label}, for which no tuple is late")
        if late is not None and late not in bolt.streams:
            known = ", ".join(bolt.streams) or "(none)"
            raise ConfigError(f"{name}: late names the stream {late!r}, and the bolt declares in streams: {known}")
        return cls(bolt, window, (key,) if isinstance(key, str) else tuple(key), time, late)

    @property
    def kind(self) -> str:
        """What `describe` calls it."""
        return type(self.bolt).__name__

    @property
    def steps_shown(self) -> tuple[str, ...]:
        """What `describe` shows."""
        return (f"window({self.window.label}{', key=' + ', '.join(self.key) if self.key else ''})",)

    @property
    def windows_shown(self) -> str:
        """What they are, in numbers; kept with the topology's progress."""
        of = self.window.windows
        by = "count" if isinstance(self.window, CountWindow) else f"{self.window.time} time"
        return f"tuples of {of.length_us} every {of.every_us} by {by}, apart by ({', '.join(self.key)})"

    @property
    def tuple_fields(self) -> Schema:
        """Those of all its inputs."""
        return self.fields

    @property
    def closes_without_input(self) -> bool:
        """By the transaction's own time they do."""
        return isinstance(self.window, Window) and self.window.by_transaction

    @property
    def longest_us(self) -> int:
        """The length of windows of time."""
        return 0 if self._by_count else self.window.windows.length_us

    time_is_window_end = False
    """What the times mean that a bolt emits is not known: they count as when windows begin, which is earlier."""

    def first_time(self, watermark_us: int, *, by_end: bool) -> int:
        """Of the windows that it is called with."""
        return self.window.windows.first_time(watermark_us, by_end=by_end)

    def open_windows(self, facts: BatchFacts, newest_us: int | None) -> int | None:
        """Those that begin before the newest time, or at it; by count none is open by time."""
        times = times_of(facts, by_transaction=self.time is None)
        return None if self._by_count else self.window.windows.count_open_windows(times, newest_us)

    @property
    def depends_on_order(self) -> bool:
        """By count they do."""
        return self._by_count

    @property
    def _by_count(self) -> bool:
        return isinstance(self.window, CountWindow)

    def check_inputs(self, name: str, inputs: Iterable[tuple[Grouping, Schema]]) -> None:
        """Keep what it reads, and what the bolt makes of it. Raises `ConfigError`."""
        self.inputs = {grouping.shown_origin: fields for grouping, fields in inputs}
        self.fields = _fields_of_all(name, self.inputs)
        for (source, _), fields in self.inputs.items():
            fields.require(self.key, of=repr(source), used_by=f"{name}: key")
            if self.time is not None:
                check_time(f"{name}: time", fields, self.time, of=repr(source))
        self.bolt.declare_output(name, self.inputs)
        self.output, self.streams = self.bolt.output, self.bolt.streams  # type: ignore[misc]
        if self.late is not None:
            self.fields.require(self.late_fields, of="its input", used_by=f"{name}: its stream {self.late!r}")

    def comparable(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """The tuples that a row has, in no order: they are kept as they came, of each transaction in any order."""
        [packed] = values.values()
        if packed.isdigit():
            return values
        return {
            "tuples": sorted(
                repr((first, _origin_of(each), each.as_dict())) for first, _, each in self._unpacked(packed)
            )
        }

    # --- running ------------------------------------------------------------------------------------------------------

    def prepare(self, context: TopologyContext, collector: OutputCollector) -> None:
        """Prepare the bolt, too."""
        super().prepare(context, collector)
        self._times = times_of(context.batch, by_transaction=self.time is None)
        self._came: dict[str, list[Tuple]] = defaultdict(list)
        self._keys: dict[str, tuple[Any, ...]] = {}
        self._component, self.late_counts = context.component_id, Counter[str]()
        self.bolt.prepare(context, collector)

    def init_state(self, state: KeyValueState) -> None:
        """Keep the state."""
        self._state = state

    def execute(self, tuple: Tuple) -> None:
        """Keep a tuple until all have come. One with a value that Python can't represent is refused here, alone."""
        self._came[self._part_of(tuple)].append(tuple)

    def _part_of(self, tuple: Tuple) -> str:
        """What tuples of its key are kept under."""
        return json.dumps(self._key_of(tuple), default=str)

    def _key_of(self, tuple: Tuple) -> Key:
        fields = dict(zip(tuple.fields, tuple.values, strict=True))
        return make_comparable_key(fields[name] for name in self.key)

    def pre_prepare(self, txid: int) -> None:
        """Windows that close, then what has come."""
        if self._by_count:
            for part, came in self._came.items():
                self._count(part, came)
            return
        self._keep(txid)
        of, times = self.window.windows, self._times
        if of.closing(times.previous_watermark, times.watermark) is not None:
            self._close(times)

    # --- by time ------------------------------------------------------------------------------------------------------

    def _keep(self, txid: int) -> None:
        """Tuples of a transaction that are not late, by pane."""
        of, times = self.window.windows, self._times
        for part, came in self._came.items():
            panes: dict[int, list[tuple[int, int, Tuple]]] = defaultdict(list)
            for number, each in enumerate(came):
                us = times.now_us if self.time is None else us_of(each[self.time])
                if us is None or of.is_late(us, None if self.time is None else times.watermark):
                    self._is_late(each)
                    continue
                panes[of.pane_of(us)].append((_first_of(of, us, times.watermark), number, each))
            for pane, rows in panes.items():
                self._state.put((part, pane, txid), self._packed(rows))

    def _is_late(self, each: Tuple) -> None:
        self.late_counts[self._component] += 1
        if self.late is not None:
            self.collector.emit(*_values_of(each, self.late_fields), stream=self.late)

    @property
    def late_fields(self) -> tuple[str, ...]:
        """The fields of the stream of late tuples."""
        return Schema.parse(self.streams[self.late]).names if self.late is not None else ()

    def _close(self, times: WindowTimes) -> None:
        of, by_part = self.window.windows, defaultdict[str, list[_Kept]](list)
        assert times.watermark is not None
        first_open = of.first_open(times.watermark)
        for (part, pane, txid), packed in list(self._state.items()):
            last = pane // of.every_us * of.every_us
            rows = list(self._unpacked(packed))
            # Before 0.0 and -0.0 were one key, they had parts of their own.
            by_part[self._part_of(rows[0][2])] += [_Kept(first, last, (txid, n), each) for first, n, each in rows]
            if last + 2 * of.every_us <= first_open:
                self._state.delete((part, pane, txid))
        self._pass_on(by_part, times)

    # --- by count -----------------------------------------------------------------------------------------------------

    def _count(self, part: str, came: list[Tuple]) -> None:
        """A tuple's place among those of its key is its time; windows end at multiples of the distance."""
        of = self.window.windows
        shift = of.length_us % of.every_us
        total = int(self._state.get((part, _TOTAL, 0), b"0"))
        until = total + len(came)
        needed = max(shift, of.first_open(total + shift) - of.every_us) // of.pane_us * of.pane_us
        panes = {pane: self._state.get((part, pane, 0)) for pane in range(needed, until + shift, of.pane_us)}
        rows = {pane: list(self._unpacked(packed)) for pane, packed in panes.items() if packed is not None}
        for place, each in enumerate(came, total + shift):
            rows.setdefault(of.pane_of(place), []).append((_first_of(of, place, None), place, each))
        kept = [
            _Kept(first, pane // of.every_us * of.every_us, (0, n), each)
            for pane in sorted(rows)
            for first, n, each in rows[pane]
        ]
        self._pass_on({part: kept}, WindowTimes(until + shift, total + shift))
        still = of.first_open(until + shift) - of.every_us
        for pane, its in rows.items():
            if pane // of.every_us * of.every_us < still:
                self._state.delete((part, pane, 0))
            else:
                self._state.put((part, pane, 0), self._packed(its))
        self._state.put((part, _TOTAL, 0), str(until).encode())

    # --- windows ------------------------------------------------------------------------------------------------------

    def _pass_on(self, by_part: Mapping[str, list[_Kept]], times: WindowTimes) -> None:
        """Call the bolt with the windows that close, in the order of their ends."""
        of, closing = self.window.windows, self.window.windows.closing(times.previous_watermark, times.watermark)
        if closing is None:
            return
        found: dict[tuple[int, str], list[_Kept]] = defaultdict(list)
        for part, kept in by_part.items():
            for each in kept:
                first = each.first if closing.after is None else max(each.first, _up(closing.after + 1, of.every_us))
                for start in range(first, min(each.last, closing.until) + 1, of.every_us):
                    found[start, part].append(each)
        for (start, part), its in sorted(found.items(), key=lambda item: item[0]):
            its.sort(key=lambda each: each.number)
            before = start - of.every_us
            gone = sorted(
                (each for each in by_part[part] if each.last == before and each.first <= before),
                key=lambda each: each.number,
            )
            window = self._window(start, its, gone)
            self.processed_window = self._name_of(window)
            self.bolt.execute(window)
        self.processed_window = ""

    def _name_of(self, window: TupleWindow) -> str:
        times = "" if window.start is None else f" [{window.start}, {window.end})"
        key = ", ".join(f"{name}={value!r}" for name, value in zip(self.key, window.key, strict=True))
        count = len(window.tuples)
        return f"the window{times}{' of ' if key else ''}{key}, which has {count} tuple{'' if count == 1 else 's'}"

    def _window(self, start: int, its: list[_Kept], gone: list[_Kept]) -> TupleWindow:
        new = [each.tuple for each in its if each.first == start]
        ends = (None, None) if self._by_count else (time_of(start), time_of(start + self.window.windows.length_us))
        key = self._key_of(its[0].tuple)
        return TupleWindow([each.tuple for each in its], new, [each.tuple for each in gone], key, *ends)

    # --- tuples as Arrow ----------------------------------------------------------------------------------------------

    def _packed(self, rows: list[tuple[int, int, Tuple]]) -> bytes:
        places: dict[tuple[str, str], int] = {}
        made = [
            (*_values_of(each, self.fields.names), first, number, places.setdefault(_origin_of(each), len(places)))
            for first, number, each in rows
        ]
        return rows_to_ipc(made, self.fields, _NUMBERS, json.dumps(list(places)))

    def _unpacked(self, packed: bytes) -> Iterator[tuple[int, int, Tuple]]:
        """With the fields of today, and from where they came, also if the topology has changed since."""
        noted, rows = rows_from_ipc(packed, self.fields, _NUMBERS)
        made = [self._class_of((source, stream)) for source, stream in json.loads(noted)]
        for *values, first, number, source in rows:
            class_, places = made[source]
            yield first, number, class_(values[place] for place in places)

    def _class_of(self, origin: tuple[str, str]) -> tuple[Callable[[Iterable[Any]], Tuple], list[int]]:
        """The class of an input's tuples, and where their values stand among those that are kept. The fields of an
        input that is gone are no longer known: its tuples have those of all."""
        names = self.inputs.get(origin, self.fields).names
        return tuple_class(names, *origin), [self.fields.names.index(name) for name in names]


def _fields_of_all(name: str, inputs: Mapping[tuple[str, str], Schema]) -> Schema:
    """The fields of all inputs, each once. Raises `ConfigError` for one that has two types."""
    fields: dict[str, tuple[Field, str]] = {}
    for (source, _), schema in inputs.items():
        for each in schema:
            known, first = fields.setdefault(each.name, (each, source))
            if known != each:
                raise ConfigError(
                    f"{name} has windows of tuples whose field {each.name!r} is {known.type} from {first!r}, and "
                    f"{each.type} from {source!r}: rename one of them, or make them equal, in a bolt before it"
                )
    return Schema(tuple(field for field, _ in fields.values()))


def _values_of(each: Tuple, names: tuple[str, ...]) -> Iterable[Any]:
    """The values of these fields, None for one that the tuple does not have."""
    return each if each.fields == names else (each[name] if name in each.fields else None for name in names)


def _origin_of(each: Tuple) -> tuple[str, str]:
    return each.source, each.stream


def check_windows(topology: Topology) -> None:
    """Raise `ConfigError` for a windowed bolt by event time that is reached by tuples for which none is declared: the
    times of others would make them late."""
    for component in topology.components:
        bolt = component.bolt
        if not isinstance(bolt, Windowing) or bolt.time is None:
            continue
        if not topology.event_times:
            raise ConfigError(
                f"windowed bolt {component.id!r} goes by the time of events, and no stream of the topology has one: "
                f"call set_event_time({bolt.time!r})"
            )
        if untimed := sorted(_streams_above(topology, component) - topology.event_times.keys()):
            name = topology.spout_id if untimed[0] == DEFAULT_STREAM else untimed[0]
            raise ConfigError(
                f"windowed bolt {component.id!r} goes by the time of events, and tuples of {name!r} reach it, which "
                "has no event time, so that those of other streams would make them late: name its field with "
                f"set_event_time('…', stream={name!r})"
            )


def _streams_above(topology: Topology, component: Component) -> set[str]:
    """The spout's streams whose tuples may reach a component, by whichever way."""
    components = {each.id: each for each in topology.components}
    streams, above, todo = set[str](), set[str](), [component]
    while todo:
        for grouping in todo.pop().inputs:
            if grouping.source == topology.spout_id:
                streams.add(grouping.stream)
            elif grouping.source not in above:
                above.add(grouping.source)
                todo.append(components[grouping.source])
    return streams


def _first_of(of: Windows, us: int, watermark: int | None) -> int:
    """The start of the first window that a time is in and that has not closed."""
    first = _up(us - of.length_us + 1, of.every_us)
    return first if watermark is None else max(first, of.first_open(watermark))


def _up(number: int, size: int) -> int:
    """The multiple at or above a number."""
    return -(-number // size) * size
