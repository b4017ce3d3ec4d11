"""What windows are compiled to: steps that say of each tuple whether it is late and where it counts, and a state's
update that emits the windows that close."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from transactional.arrow import arrow_schema
from transactional.core.windows import FIRST_US, LAST_US, Windows, WindowTimes, times_of
from transactional.errors import StoreMismatch
from transactional.facts import BatchFacts
from transactional.ports import Aggregator, PersistentAggregate, TransactionState
from transactional.schema import Field, Schema
from transactional.topology.windows import CountWindow, Session, Window
from transactional.trident.pipelines.steps import TimedStep

TIMESTAMP = pa.timestamp("us", tz="UTC")
WINDOW_START, WINDOW_END = "window_start", "window_end"
_FALSE = pa.scalar(False, pa.bool_())


@dataclass(frozen=True, slots=True)
class InPanes(TimedStep):
    """The tuples that are not late, with the start of the pane in which they count. `time` is their field with the
    event time; None: the time is the transaction's."""

    window: Window
    time: str | None

    def at(self, batch: pa.RecordBatch, facts: BatchFacts | None) -> pa.RecordBatch:
        """Leave out the late ones, and append the column."""
        of, times = self.window.windows, times_of(facts, by_transaction=self.time is None)
        if self.time is None:
            start = None if times.now_us is None else of.pane_of(times.now_us)
            starts = pa.array([start] * batch.num_rows, pa.int64())
        else:
            late = are_late(of, batch.column(self.time), times)
            if pc.any(late).as_py():
                batch = batch.filter(pc.invert(late))
            starts = _floored(numbers_of(batch.column(self.time)), of.pane_us)
        return batch.append_column(pa.field(self.window.start, TIMESTAMP), starts.view(TIMESTAMP))


@dataclass(frozen=True, slots=True)
class Late(TimedStep):
    """The other tuples: those that are late, or have no time that could be counted."""

    window: Window
    time: str

    def at(self, batch: pa.RecordBatch, facts: BatchFacts | None) -> pa.RecordBatch:
        """Leave out those on time."""
        return batch.filter(
            are_late(self.window.windows, batch.column(self.time), times_of(facts, by_transaction=False))
        )


def are_late(of: Windows, column: pa.Array, times: WindowTimes) -> pa.Array:
    """For each time whether it is late; what `Windows.is_late` says, of columns."""
    numbers, on_time = numbers_of(column), pc.invert(are_outside(column))
    if times.late_before is not None:
        # Compared like this, the sum of a time and a length can't be too large.
        last_start = _floored(pc.if_else(on_time, numbers, _number(0)), of.every_us)
        on_time = pc.and_(on_time, pc.greater(last_start, _number(times.late_before - of.length_us)))
    return pc.invert(on_time)


def are_outside(column: pa.Array) -> pa.Array:
    """For each time whether no window has it."""
    numbers = numbers_of(column)
    inside = pc.and_(pc.greater_equal(numbers, _number(FIRST_US)), pc.less(numbers, _number(LAST_US)))
    return pc.invert(pc.fill_null(inside, _FALSE))


def numbers_of(column: pa.Array) -> pa.Array:
    """Times as microseconds since 1970."""
    return column.cast(TIMESTAMP).view(pa.int64())


def _floored(numbers: pa.Array, size: int) -> pa.Array:
    """The multiples of `size` at or below the numbers, also of negative ones."""
    of, zero = _number(size), _number(0)
    rest = pc.subtract(numbers, pc.multiply(pc.divide(numbers, of), of))
    return pc.subtract(numbers, pc.if_else(pc.less(rest, zero), pc.add(rest, of), rest))


def _number(number: int) -> pa.Scalar:
    """Said to be one, it costs a fiftieth of what Arrow takes to find that out."""
    return pa.scalar(number, pa.int64())


@dataclass(frozen=True, slots=True)
class WindowCloser:
    """Makes windows of the panes that a state has for them. Picklable: knows the state's `table` by name."""

    fields: Schema
    window: Window
    aggregator: Aggregator
    table: str

    def closed(self, rows: pa.Table, facts: BatchFacts | None) -> pa.Table:
        """Combine the panes of each window that closes."""
        schema, start = arrow_schema(self.fields), self.window.start
        parts = self._parts(rows, start, facts)
        windows = parts[0] if len(parts) == 1 else self.aggregator.combine(parts)
        ends = pc.add(windows[start].cast(TIMESTAMP).cast(pa.int64()), _number(self.window.windows.length_us))
        windows = windows.rename_columns([WINDOW_START if name == start else name for name in windows.column_names])
        return windows.append_column(WINDOW_END, ends.cast(TIMESTAMP)).select(schema.names).cast(schema)

    def _parts(self, rows: pa.Table, start: str, facts: BatchFacts | None) -> list[pa.Table]:
        """The rows once for each window that they are in, with its start: the first panes of all windows, then the
        second ones, and so on."""
        of, times = self.window.windows, times_of(facts, by_transaction=self.window.by_transaction)
        closing = of.closing(times.previous, times.late_before)
        assert closing is not None
        panes = rows[start].cast(TIMESTAMP).cast(pa.int64())
        self._check_panes(panes)
        parts = []
        for back in range(0, of.length_us, of.pane_us):
            starts = pc.subtract(panes, _number(back))
            is_in = pc.and_(
                pc.equal(starts, _floored(starts, of.every_us)), pc.less_equal(starts, _number(closing.until))
            )
            if closing.after is not None:
                is_in = pc.and_(is_in, pc.greater(starts, _number(closing.after)))
            moved = rows.set_column(rows.schema.get_field_index(start), start, starts.cast(TIMESTAMP))
            parts.append(moved.filter(is_in))
        return parts

    def _check_panes(self, panes: pa.Array) -> None:
        """Raise `StoreMismatch` for rows that were counted for other windows."""
        pane_us = self.window.windows.pane_us
        others = panes.filter(pc.not_equal(panes, _floored(panes, pane_us)))
        if len(others):
            raise StoreMismatch(
                f"state {self.table} has open windows that begin at "
                f"{others[0].cast(TIMESTAMP).as_py()}, which no part of {self.window.label} does: it was counted for "
                "other windows. Give the state another table, or let the windows be as they were"
            )


WindowT = TypeVar("WindowT", Window, Session, CountWindow)


class UpdateOfWindows(Generic[WindowT]):
    """A state's own update, whose rows belong to windows: what is alike whatever windows they are."""

    def __init__(
        self,
        update: PersistentAggregate,
        window: WindowT,
        key: tuple[str, ...],
        *,
        time: str | None = None,
        goes_by_end: bool = False,
    ) -> None:
        self._update = update
        self.window: WindowT = window
        self.key, self.time = key, time
        self.goes_by_end = goes_by_end

    @property
    def state(self) -> TransactionState:
        """The state that is updated."""
        return self._update.state

    @property
    def input_fields(self) -> tuple[str, ...]:
        """Those of the update, with the times of the row."""
        return self._update.input_fields

    def check_input(self, input: Schema, *, used_by: str) -> None:
        """Determine the columns of the state."""
        self._update.check_input(input, used_by=used_by)

    @property
    def combine(self) -> Mapping[str, str]:
        """Of the update: whoever combines them."""
        return self._update.combine

    @property
    def kept_fields(self) -> Schema | None:
        """It keeps aggregates."""
        return None

    @property
    def closes_without_input(self) -> bool:
        """By the transaction's own time they do."""
        return self.window.by_transaction

    @property
    def goes_by_order(self) -> bool:
        """By count they do."""
        return isinstance(self.window, CountWindow)

    def _times(self, facts: BatchFacts | None) -> WindowTimes:
        return times_of(facts, by_transaction=self.window.by_transaction)


class WindowedUpdate(UpdateOfWindows[Window]):
    """An update of whose rows each is a pane of windows: see `WindowedAggregate`."""

    def first_time(self, late_before_us: int, *, by_end: bool) -> int:
        """Of its windows."""
        return self.window.windows.first_time(late_before_us, by_end=by_end)

    def aggregator(self) -> Aggregator:
        """That of the update."""
        return self._update.aggregator()

    @property
    def closed_fields(self) -> Schema:
        """The key, start and end of the window, and the values."""
        key, values = self.state.key.select(self.key), self.state.values
        times = (Field(WINDOW_START, "timestamp"), Field(WINDOW_END, "timestamp"))
        return Schema((*key, *times, *values))

    @property
    def windows_shown(self) -> str:
        """Length, distance and time of the windows; in numbers, as one length can be written in several ways."""
        of = self.window.windows
        return f"{of.length_us} us every {of.every_us} us by {self.window.time} time"

    @property
    def longest_us(self) -> int:
        """The length of the windows."""
        return self.window.windows.length_us

    def closing(self, facts: BatchFacts | None) -> tuple[str, int | None, int] | None:
        """Which panes are read for the windows that close."""
        times = self._times(facts)
        panes = self.window.windows.panes_closing(times.previous, times.late_before)
        return None if panes is None else (self.window.start, panes.after, panes.until)

    def closed(self, rows: pa.Table, facts: BatchFacts | None) -> pa.Table:
        """Combine the panes of each window that closes."""
        return self.closer().closed(rows, facts)

    @property
    def split_by(self) -> tuple[str, ...]:
        """The key without the time."""
        return self.key

    @property
    def window_key(self) -> tuple[str, ...]:
        """The key, and when the window begins."""
        return (*self.key, WINDOW_START)

    def closer(self) -> WindowCloser:
        """What combines panes, without the state."""
        table = getattr(self.state, "table", "?")
        return WindowCloser(self.closed_fields, self.window, self.aggregator(), table)
