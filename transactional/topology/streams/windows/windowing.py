"""What windows are compiled to: steps that say of each tuple whether it is late and where it counts, and a state's
update that emits the windows that close."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from transactional.core.machine.window_assignment import WindowTimes, times_of
from transactional.core.ports import Aggregator, PersistentAggregate, State, Windowed
from transactional.model.facts import BatchFacts
from transactional.model.schema import Field, Schema
from transactional.topology.streams.pipelines.steps import TimedStep
from transactional.topology.streams.windows.closing import WindowCloser
from transactional.topology.streams.windows.times import (
    TIMESTAMP,
    WINDOW_END,
    WINDOW_START,
    are_late,
    floored,
    numbers_of,
)
from transactional.topology.windows.windows import CountWindow, Session, Window


@dataclass(frozen=True, slots=True)
class InPanes(TimedStep):
    """The tuples that are not late, with the start of the pane in which they count. `time` is their field with the
    event time; None: the time is the transaction's."""

    leaves_out_late: ClassVar[bool] = True
    window: Window
    time: str | None

    def apply_with_facts(self, batch: pa.RecordBatch, facts: BatchFacts | None) -> pa.RecordBatch:
        """Leave out the late ones, and append the column."""
        of, times = self.window.windows, times_of(facts, by_transaction=self.time is None)
        if self.time is None:
            start = None if times.now_us is None else of.pane_of(times.now_us)
            starts = pa.array([start] * batch.num_rows, pa.int64())
        else:
            late = are_late(of, batch.column(self.time), times)
            if pc.any(late).as_py():
                batch = batch.filter(pc.invert(late))
            starts = floored(numbers_of(batch.column(self.time)), of.pane_us)
        return batch.append_column(pa.field(self.window.start, TIMESTAMP), starts.view(TIMESTAMP))


@dataclass(frozen=True, slots=True)
class Late(TimedStep):
    """The other tuples: those that are late, or have no time that could be counted."""

    window: Window
    time: str

    def apply_with_facts(self, batch: pa.RecordBatch, facts: BatchFacts | None) -> pa.RecordBatch:
        """Leave out those on time."""
        return batch.filter(
            are_late(self.window.windows, batch.column(self.time), times_of(facts, by_transaction=False))
        )


WindowT = TypeVar("WindowT", Window, Session, CountWindow)


class UpdateOfWindows(PersistentAggregate, Windowed, Generic[WindowT]):
    """A state's own update, whose rows belong to windows: what is alike whatever windows they are."""

    def __init__(
        self,
        update: PersistentAggregate,
        window: WindowT,
        key: tuple[str, ...],
        *,
        time: str | None = None,
        time_is_window_end: bool = False,
    ) -> None:
        self._update = update
        self.window: WindowT = window
        self.key, self.time = key, time
        self.time_is_window_end = time_is_window_end

    @property
    def state(self) -> State:
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
    def aggregates(self) -> Mapping[str, object]:
        """Those of the update."""
        return self._update.aggregates

    @property
    def aggregates_shown(self) -> Mapping[str, str]:
        """Those of the update."""
        return self._update.aggregates_shown

    @property
    @abstractmethod
    def closed_columns(self) -> Schema:
        """The fields of windows that close, as they are stored."""

    @property
    def closed_fields(self) -> Schema:
        """These, and those that are computed of them."""
        return self._update.computed.fields(self.closed_columns)

    @property
    def closes_without_input(self) -> bool:
        """By the transaction's own time they do."""
        return self.window.by_transaction

    @property
    def depends_on_order(self) -> bool:
        """By count they do."""
        return isinstance(self.window, CountWindow)

    def _times(self, facts: BatchFacts | None) -> WindowTimes:
        return times_of(facts, by_transaction=self.window.by_transaction)


class WindowedUpdate(UpdateOfWindows[Window]):
    """An update of whose rows each is a pane of windows: see `PersistentAggregate`."""

    def first_time(self, watermark_us: int, *, by_end: bool) -> int:
        """Of its windows."""
        return self.window.windows.first_time(watermark_us, by_end=by_end)

    def open_windows(self, facts: BatchFacts, newest_us: int | None) -> int | None:
        """Those that begin before the newest time, or at it."""
        return self.window.windows.open_until(self._times(facts), newest_us)

    def aggregator(self) -> Aggregator:
        """That of the update."""
        return self._update.aggregator()

    @property
    def closed_columns(self) -> Schema:
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
        panes = self.window.windows.panes_closing(times.previous_watermark, times.watermark)
        return None if panes is None else (self.window.start, panes.after, panes.until)

    def close_windows(self, rows: pa.Table, facts: BatchFacts | None) -> pa.Table:
        """Combine the panes of each window that closes."""
        return self.window_closer().close_windows(rows, facts)

    @property
    def split_by(self) -> tuple[str, ...]:
        """The key without the time."""
        return self.key

    @property
    def window_key(self) -> tuple[str, ...]:
        """The key, and when the window begins."""
        return (*self.key, WINDOW_START)

    def window_closer(self) -> WindowCloser:
        """What combines panes, without the state."""
        return WindowCloser(self.closed_columns, self.window, self.aggregator(), self.state.table)
