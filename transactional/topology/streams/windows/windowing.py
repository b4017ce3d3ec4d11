"""Windows by time: the steps that assign tuples to panes and find the late ones, and the update that closes windows.

A step adds the start of the pane to each tuple that is on time; the state then aggregates by key and pane. The update
of the state closes windows in the commit phase: it combines the panes of each. Steps and update use the watermark that
is recorded with the batch, so that every attempt comes to the same result.
"""

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
from transactional.topology.streams.windows.time_columns import (
    TIMESTAMP,
    WINDOW_END,
    WINDOW_START,
    floor_to,
    late_times,
    to_microseconds,
)
from transactional.topology.windows.windows import CountWindow, Session, Window


@dataclass(frozen=True, slots=True)
class AssignPanes(TimedStep):
    """Leaves out late tuples, and appends the start of the pane in which a tuple counts.

    `time` is the field with the event time. None if the time is the transaction's.
    """

    leaves_out_late: ClassVar[bool] = True
    window: Window
    time: str | None

    def apply_with_facts(self, batch: pa.RecordBatch, facts: BatchFacts | None) -> pa.RecordBatch:
        windows, times = self.window.windows, times_of(facts, by_transaction=self.time is None)
        if self.time is None:
            start = None if times.now_us is None else windows.pane_of(times.now_us)
            starts = pa.array([start] * batch.num_rows, pa.int64())
        else:
            is_late = late_times(windows, batch.column(self.time), times)
            if pc.any(is_late).as_py():
                batch = batch.filter(pc.invert(is_late))
            starts = floor_to(to_microseconds(batch.column(self.time)), windows.pane_us)
        return batch.append_column(pa.field(self.window.start, TIMESTAMP), starts.view(TIMESTAMP))


@dataclass(frozen=True, slots=True)
class KeepLate(TimedStep):
    """Keeps the late tuples, and those without a time that could be counted."""

    window: Window
    time: str

    def apply_with_facts(self, batch: pa.RecordBatch, facts: BatchFacts | None) -> pa.RecordBatch:
        return batch.filter(
            late_times(self.window.windows, batch.column(self.time), times_of(facts, by_transaction=False))
        )


WindowT = TypeVar("WindowT", Window, Session, CountWindow)


class WindowsUpdate(PersistentAggregate, Windowed, Generic[WindowT]):
    """Wraps the update of a state whose rows belong to windows. Subclasses differ in the windows."""

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
        return self._update.state

    @property
    def input_fields(self) -> tuple[str, ...]:
        return self._update.input_fields

    def bind_input(self, input: Schema, *, used_by: str) -> None:
        self._update.bind_input(input, used_by=used_by)

    @property
    def combine(self) -> Mapping[str, str]:
        return self._update.combine

    @property
    def aggregates(self) -> Mapping[str, object]:
        return self._update.aggregates

    @property
    def aggregates_shown(self) -> Mapping[str, str]:
        return self._update.aggregates_shown

    @property
    @abstractmethod
    def closed_columns(self) -> Schema:
        """The stored fields of a window that closes."""

    @property
    def closed_fields(self) -> Schema:
        """The fields of a window that closes: the stored ones, and those computed from them."""
        return self._update.computed.fields(self.closed_columns)

    @property
    def closes_without_input(self) -> bool:
        return self.window.by_transaction

    @property
    def depends_on_order(self) -> bool:
        return isinstance(self.window, CountWindow)

    def _times(self, facts: BatchFacts | None) -> WindowTimes:
        return times_of(facts, by_transaction=self.window.by_transaction)


class WindowedUpdate(WindowsUpdate[Window]):
    """An update of a state whose rows are panes: see `PersistentAggregate`."""

    def first_time(self, watermark_us: int, *, by_end: bool) -> int:
        return self.window.windows.first_time(watermark_us, by_end=by_end)

    def count_open_windows(self, facts: BatchFacts, newest_us: int | None) -> int | None:
        return self.window.windows.count_open_windows(self._times(facts), newest_us)

    def aggregator(self) -> Aggregator:
        return self._update.aggregator()

    @property
    def closed_columns(self) -> Schema:
        key, values = self.state.key.select(self.key), self.state.values
        times = (Field(WINDOW_START, "timestamp"), Field(WINDOW_END, "timestamp"))
        return Schema((*key, *times, *values))

    @property
    def windows_shown(self) -> str:
        """The length, distance and time of the windows. In microseconds, as a length can be written in several ways."""
        windows = self.window.windows
        return f"{windows.length_us} us every {windows.every_us} us by {self.window.time} time"

    @property
    def longest_wait_us(self) -> int:
        return self.window.windows.length_us

    def closing(self, facts: BatchFacts | None) -> tuple[str, int | None, int] | None:
        times = self._times(facts)
        panes = self.window.windows.closing_panes(times.previous_watermark, times.watermark)
        return None if panes is None else (self.window.start, panes.after, panes.until)

    def close_windows(self, rows: pa.Table, facts: BatchFacts | None) -> pa.Table:
        return self.window_closer().close_windows(rows, facts)

    @property
    def split_by(self) -> tuple[str, ...]:
        return self.key

    @property
    def window_key(self) -> tuple[str, ...]:
        return (*self.key, WINDOW_START)

    def window_closer(self) -> WindowCloser:
        return WindowCloser(self.closed_columns, self.window, self.aggregator(), self.state.parts.declared.table)
