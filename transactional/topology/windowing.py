"""`Windowing`: the stateful bolt that a `WindowedBolt` runs in. It stores tuples, and executes the windows that close.

The state holds the tuples of panes as Arrow. For windows of time it has a row for each pane and transaction, so a
transaction reads nothing unless a window closes. For windows by count it has a row for each pane, and one with the
number of tuples so far. Tuples are stored with the fields of all inputs, and read with those of today, so inputs may
change between two runs.
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
from transactional.topology.windows.windowed import TupleWindow, WindowedBolt, from_microseconds, to_microseconds
from transactional.topology.windows.windows import CountWindow, Session, Window

STATE: Final = "window_of string, window_pane long, window_txid long -> tuples binary"
_COUNT_PANE: Final = -(2**63)
"""The pane under which the number of tuples so far is stored."""
_STORED_COLUMNS: Final = (" first", " number", " input")
"""Columns that are stored with each tuple: the first window that has it, its number in the order of arrival, and the
number of its input in the list that is stored beside the rows. The blank keeps them apart from all fields."""


@dataclass(frozen=True, slots=True)
class _StoredTuple:
    """A stored tuple, with the starts of the first and the last window that it is in."""

    first: int
    last: int
    number: tuple[int, int]
    tuple: Tuple


class Windowing(StatefulBolt, Windowed, LateCounter):
    """Stores the tuples of one `WindowedBolt`, and executes it."""

    def __init__(
        self, bolt: WindowedBolt, window: Window | CountWindow, key: Sequence[str], time: str | None, late: str | None
    ) -> None:
        self.bolt, self.window, self.key, self.time, self.late = bolt, window, tuple(key), time, late
        self.state = STATE  # type: ignore[misc]
        self.output, self.streams = bolt.output, bolt.streams  # type: ignore[misc]
        self.inputs: dict[tuple[str, str], Schema] = {}
        self.fields = Schema(())

    @classmethod
    def from_declaration(cls, name: str, bolt: Any, window: Any, key: Any, time: Any, late: Any) -> Windowing:
        """Make a `Windowing` of declared arguments, checked as far as that needs no fields. Raises `ConfigError`."""
        if not isinstance(bolt, WindowedBolt):
            raise ConfigError(f"{name} is a {type(bolt).__name__}, not a WindowedBolt")
        if isinstance(window, Session):
            raise ConfigError(f"{name}: sessions are windows of streams (Trident); use tumbling, sliding or count")
        if not isinstance(window, Window | CountWindow):
            raise ConfigError(f"{name}: window is one such as tumbling('5 minutes') or count(100); got {window!r}")
        is_by_event = isinstance(window, Window) and not window.by_transaction
        if is_by_event and time is None:
            raise ConfigError(
                f"{name}: {window.label} goes by the time of events: name the field with time='…', or pass "
                "time='transaction' to the window"
            )
        if not is_by_event and (time is not None or late is not None):
            argument = f"time={time!r}" if time is not None else f"late={late!r}"
            raise ConfigError(f"{name}: {argument} has no meaning for {window.label}, for which no tuple is late")
        if late is not None and late not in bolt.streams:
            streams = ", ".join(bolt.streams) or "(none)"
            raise ConfigError(f"{name}: late names the stream {late!r}, and the bolt declares in streams: {streams}")
        return cls(bolt, window, (key,) if isinstance(key, str) else tuple(key), time, late)

    @property
    def kind(self) -> str:
        return type(self.bolt).__name__

    @property
    def steps_shown(self) -> tuple[str, ...]:
        return (f"window({self.window.label}{', key=' + ', '.join(self.key) if self.key else ''})",)

    @property
    def windows_shown(self) -> str:
        """The length, distance and time of the windows in numbers, and their key. Stored with the progress."""
        windows = self.window.windows
        measure = "count" if isinstance(self.window, CountWindow) else f"{self.window.time} time"
        return f"tuples of {windows.length_us} every {windows.every_us} by {measure}, apart by ({', '.join(self.key)})"

    @property
    def tuple_fields(self) -> Schema:
        return self.fields

    @property
    def closes_without_input(self) -> bool:
        return isinstance(self.window, Window) and self.window.by_transaction

    @property
    def longest_wait_us(self) -> int:
        return 0 if self._by_count else self.window.windows.length_us

    time_is_window_end = False
    """False, as it is not known what the times in the output of a bolt mean. They count as starts of windows, the
    earlier time."""

    def first_time(self, watermark_us: int, *, by_end: bool) -> int:
        return self.window.windows.first_time(watermark_us, by_end=by_end)

    def count_open_windows(self, facts: BatchFacts, newest_us: int | None) -> int | None:
        """Return the number of windows that begin up to the newest time. None for windows by count, which no time
        closes."""
        times = times_of(facts, by_transaction=self.time is None)
        return None if self._by_count else self.window.windows.count_open_windows(times, newest_us)

    @property
    def depends_on_order(self) -> bool:
        return self._by_count

    @property
    def _by_count(self) -> bool:
        return isinstance(self.window, CountWindow)

    def check_inputs(self, name: str, inputs: Iterable[tuple[Grouping, Schema]]) -> None:
        """Check the inputs, and determine the output of the bolt. Raises `ConfigError`."""
        self.inputs = {grouping.shown_origin: fields for grouping, fields in inputs}
        self.fields = _merge_fields(name, self.inputs)
        for (source, _), fields in self.inputs.items():
            fields.require(self.key, of=repr(source), used_by=f"{name}: key")
            if self.time is not None:
                check_time(f"{name}: time", fields, self.time, of=repr(source))
        self.bolt.declare_output(name, self.inputs)
        self.output, self.streams = self.bolt.output, self.bolt.streams  # type: ignore[misc]
        if self.late is not None:
            self.fields.require(self.late_fields, of="its input", used_by=f"{name}: its stream {self.late!r}")

    def comparable(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the tuples of a row, sorted: within a transaction, they are stored in any order."""
        [packed] = values.values()
        if packed.isdigit():
            return values
        return {"tuples": sorted(repr((first, _origin(row), row.as_dict())) for first, _, row in self._unpack(packed))}

    # --- running ------------------------------------------------------------------------------------------------------

    def prepare(self, context: TopologyContext, collector: OutputCollector) -> None:
        """Prepare this bolt and the windowed bolt."""
        super().prepare(context, collector)
        self._times = times_of(context.batch, by_transaction=self.time is None)
        self._new_tuples: dict[str, list[Tuple]] = defaultdict(list)
        self._keys: dict[str, tuple[Any, ...]] = {}
        self._component, self.late_counts = context.component_id, Counter[str]()
        self.bolt.prepare(context, collector)

    def init_state(self, state: KeyValueState) -> None:
        self._state = state

    def execute(self, tuple: Tuple) -> None:
        """Collect a tuple until all have come. A tuple with a value that Python can't represent is refused alone."""
        self._new_tuples[self._key_text(tuple)].append(tuple)

    def _key_text(self, tuple: Tuple) -> str:
        """Return the key of a tuple as text, under which its tuples are stored."""
        return json.dumps(self._key_of(tuple), default=str)

    def _key_of(self, tuple: Tuple) -> Key:
        fields = dict(zip(tuple.fields, tuple.values, strict=True))
        return make_comparable_key(fields[name] for name in self.key)

    def pre_prepare(self, txid: int) -> None:
        """Store the tuples that have come, and execute the windows that close."""
        if self._by_count:
            for key_text, tuples in self._new_tuples.items():
                self._close_by_count(key_text, tuples)
            return
        self._store_tuples(txid)
        windows, times = self.window.windows, self._times
        if windows.closing(times.previous_watermark, times.watermark) is not None:
            self._close_by_time(times)

    # --- by time ------------------------------------------------------------------------------------------------------

    def _store_tuples(self, txid: int) -> None:
        """Store the tuples of a transaction that are not late, by pane."""
        windows, times = self.window.windows, self._times
        for key_text, tuples in self._new_tuples.items():
            panes: dict[int, list[tuple[int, int, Tuple]]] = defaultdict(list)
            for number, row in enumerate(tuples):
                us = times.now_us if self.time is None else to_microseconds(row[self.time])
                if us is None or windows.is_late(us, None if self.time is None else times.watermark):
                    self._skip_late(row)
                    continue
                panes[windows.pane_of(us)].append((_first_open_start(windows, us, times.watermark), number, row))
            for pane, rows in panes.items():
                self._state.put((key_text, pane, txid), self._pack(rows))

    def _skip_late(self, row: Tuple) -> None:
        self.late_counts[self._component] += 1
        if self.late is not None:
            self.collector.emit(*_values(row, self.late_fields), stream=self.late)

    @property
    def late_fields(self) -> tuple[str, ...]:
        """The fields of the stream of late tuples."""
        return Schema.parse(self.streams[self.late]).names if self.late is not None else ()

    def _close_by_time(self, times: WindowTimes) -> None:
        windows, tuples_by_key = self.window.windows, defaultdict[str, list[_StoredTuple]](list)
        assert times.watermark is not None
        first_open = windows.first_open(times.watermark)
        for (key_text, pane, txid), packed in list(self._state.items()):
            last = pane // windows.every_us * windows.every_us
            rows = list(self._unpack(packed))
            # In older rows, 0.0 and -0.0 are different keys.
            tuples_by_key[self._key_text(rows[0][2])] += [
                _StoredTuple(first, last, (txid, number), row) for first, number, row in rows
            ]
            if last + 2 * windows.every_us <= first_open:
                self._state.delete((key_text, pane, txid))
        self._execute_windows(tuples_by_key, times)

    # --- by count -----------------------------------------------------------------------------------------------------

    def _close_by_count(self, key_text: str, tuples: list[Tuple]) -> None:
        """Execute the windows of a key that its new tuples complete.

        The place of a tuple among those of its key is its time. Windows end at multiples of the distance.
        """
        windows = self.window.windows
        shift = windows.length_us % windows.every_us
        total = int(self._state.get((key_text, _COUNT_PANE, 0), b"0"))
        new_total = total + len(tuples)
        needed = max(shift, windows.first_open(total + shift) - windows.every_us) // windows.pane_us * windows.pane_us
        panes = {
            pane: self._state.get((key_text, pane, 0)) for pane in range(needed, new_total + shift, windows.pane_us)
        }
        rows = {pane: list(self._unpack(packed)) for pane, packed in panes.items() if packed is not None}
        for place, row in enumerate(tuples, total + shift):
            rows.setdefault(windows.pane_of(place), []).append((_first_open_start(windows, place, None), place, row))
        stored = [
            _StoredTuple(first, pane // windows.every_us * windows.every_us, (0, number), row)
            for pane in sorted(rows)
            for first, number, row in rows[pane]
        ]
        self._execute_windows({key_text: stored}, WindowTimes(new_total + shift, total + shift))
        first_needed = windows.first_open(new_total + shift) - windows.every_us
        for pane, pane_rows in rows.items():
            if pane // windows.every_us * windows.every_us < first_needed:
                self._state.delete((key_text, pane, 0))
            else:
                self._state.put((key_text, pane, 0), self._pack(pane_rows))
        self._state.put((key_text, _COUNT_PANE, 0), str(new_total).encode())

    # --- windows ------------------------------------------------------------------------------------------------------

    def _execute_windows(self, tuples_by_key: Mapping[str, list[_StoredTuple]], times: WindowTimes) -> None:
        """Call the bolt with the windows that close, in the order of their ends."""
        windows, closing = self.window.windows, self.window.windows.closing(times.previous_watermark, times.watermark)
        if closing is None:
            return
        tuples_by_window: dict[tuple[int, str], list[_StoredTuple]] = defaultdict(list)
        for key_text, stored in tuples_by_key.items():
            for stored_tuple in stored:
                first = (
                    stored_tuple.first
                    if closing.after is None
                    else max(stored_tuple.first, _round_up(closing.after + 1, windows.every_us))
                )
                for start in range(first, min(stored_tuple.last, closing.until) + 1, windows.every_us):
                    tuples_by_window[start, key_text].append(stored_tuple)
        for (start, key_text), window_tuples in sorted(tuples_by_window.items(), key=lambda entry: entry[0]):
            window_tuples.sort(key=lambda stored_tuple: stored_tuple.number)
            previous_start = start - windows.every_us
            expired = sorted(
                (
                    stored_tuple
                    for stored_tuple in tuples_by_key[key_text]
                    if stored_tuple.last == previous_start and stored_tuple.first <= previous_start
                ),
                key=lambda stored_tuple: stored_tuple.number,
            )
            window = self._make_window(start, window_tuples, expired)
            self.processed_window = self._window_text(window)
            self.bolt.execute(window)
        self.processed_window = ""

    def _window_text(self, window: TupleWindow) -> str:
        times = "" if window.start is None else f" [{window.start}, {window.end})"
        key = ", ".join(f"{name}={part!r}" for name, part in zip(self.key, window.key, strict=True))
        count = len(window.tuples)
        return f"the window{times}{' of ' if key else ''}{key}, which has {count} tuple{'' if count == 1 else 's'}"

    def _make_window(self, start: int, stored: list[_StoredTuple], expired: list[_StoredTuple]) -> TupleWindow:
        new = [stored_tuple.tuple for stored_tuple in stored if stored_tuple.first == start]
        ends = (
            (None, None)
            if self._by_count
            else (from_microseconds(start), from_microseconds(start + self.window.windows.length_us))
        )
        key = self._key_of(stored[0].tuple)
        return TupleWindow(
            [stored_tuple.tuple for stored_tuple in stored],
            new,
            [stored_tuple.tuple for stored_tuple in expired],
            key,
            *ends,
        )

    # --- tuples as Arrow ----------------------------------------------------------------------------------------------

    def _pack(self, rows: list[tuple[int, int, Tuple]]) -> bytes:
        input_numbers: dict[tuple[str, str], int] = {}
        records = [
            (
                *_values(row, self.fields.names),
                first,
                number,
                input_numbers.setdefault(_origin(row), len(input_numbers)),
            )
            for first, number, row in rows
        ]
        return rows_to_ipc(records, self.fields, _STORED_COLUMNS, json.dumps(list(input_numbers)))

    def _unpack(self, packed: bytes) -> Iterator[tuple[int, int, Tuple]]:
        """Yield the stored tuples of a row, with the fields that their inputs have today, even if the topology has
        changed."""
        inputs, rows = rows_from_ipc(packed, self.fields, _STORED_COLUMNS)
        classes = [self._tuple_class((source, stream)) for source, stream in json.loads(inputs)]
        for *values, first, number, input_number in rows:
            class_, places = classes[input_number]
            yield first, number, class_(values[place] for place in places)

    def _tuple_class(self, origin: tuple[str, str]) -> tuple[Callable[[Iterable[Any]], Tuple], list[int]]:
        """Return the class of the tuples of an input, and the positions of their values among the stored fields.

        The fields of an input that was removed are no longer known: its tuples have the fields of all inputs.
        """
        names = self.inputs.get(origin, self.fields).names
        return tuple_class(names, *origin), [self.fields.names.index(name) for name in names]


def _merge_fields(name: str, inputs: Mapping[tuple[str, str], Schema]) -> Schema:
    """Return the fields of all inputs, each once. Raises `ConfigError` if one has two types."""
    fields: dict[str, tuple[Field, str]] = {}
    for (source, _), schema in inputs.items():
        for column in schema:
            declared, first = fields.setdefault(column.name, (column, source))
            if declared != column:
                raise ConfigError(
                    f"{name} has windows of tuples whose field {column.name!r} is {declared.type} from {first!r}, "
                    f"and {column.type} from {source!r}: rename one of them, or make them equal, in a bolt before it"
                )
    return Schema(tuple(field for field, _ in fields.values()))


def _values(row: Tuple, names: tuple[str, ...]) -> Iterable[Any]:
    """Return the values of these fields, None for a field that the tuple does not have."""
    return row if row.fields == names else (row[name] if name in row.fields else None for name in names)


def _origin(row: Tuple) -> tuple[str, str]:
    return row.source, row.stream


def check_windows(topology: Topology) -> None:
    """Raise `ConfigError` if tuples without an event time can reach a windowed bolt by event time.

    The times of other streams would make them late.
    """
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
    """Return the streams of the spout whose tuples may reach a component."""
    components = {candidate.id: candidate for candidate in topology.components}
    streams, visited, pending = set[str](), set[str](), [component]
    while pending:
        for grouping in pending.pop().inputs:
            if grouping.source == topology.spout_id:
                streams.add(grouping.stream)
            elif grouping.source not in visited:
                visited.add(grouping.source)
                pending.append(components[grouping.source])
    return streams


def _first_open_start(windows: Windows, us: int, watermark: int | None) -> int:
    """Return the start of the first window that contains a time and has not closed."""
    first = _round_up(us - windows.length_us + 1, windows.every_us)
    return first if watermark is None else max(first, windows.first_open(watermark))


def _round_up(number: int, size: int) -> int:
    """Round a number up to a multiple of `size`."""
    return -(-number // size) * size
