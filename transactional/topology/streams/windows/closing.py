"""Closing windows: how the panes of a state are combined to the windows that close.

A pane of a sliding window is in as many windows as the length has steps. If few of these close, each pane is combined
with the others of each window. If many close at once, as after a pause, panes are first combined to blocks of two,
four, eight. A window then consists of a few blocks, not of all its panes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from transactional.core.machine.window_assignment import times_of
from transactional.core.ports import Aggregator
from transactional.model.arrow import arrow_schema
from transactional.model.errors import StoreMismatch, SumOverflow
from transactional.model.facts import BatchFacts
from transactional.model.schema import Schema
from transactional.topology.streams.windows.time_columns import (
    TIMESTAMP,
    WINDOW_END,
    WINDOW_START,
    floor_to,
    int_scalar,
    to_microseconds,
)
from transactional.topology.windows.windows import Window

BLOCKS_FROM = 4
"""Panes are combined to blocks if each would be in this many of the closing windows, on average."""
PARTS_MAX = 4_000_000
"""The number of parts that are combined at once, whatever the number of windows that close. A part takes about 100
bytes."""
_FIRST_PANE = " begin"
"""A column with the first pane of a part. The blank keeps it apart from all fields."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Panes, or blocks of panes, and the windows that each is a part of: `counts` windows, of which the first one is in
    `firsts`."""

    rows: pa.Table
    first_panes: pa.Array
    firsts: pa.Array
    counts: pa.Array

    @property
    def count(self) -> int:
        """The number of parts of all windows."""
        return int(pc.sum(self.counts, min_count=0).as_py())

    def lasts(self, step: int) -> pa.Array:
        """Return the last window of each part."""
        return pc.add(self.firsts, pc.multiply(pc.subtract(self.counts, int_scalar(1)), int_scalar(step)))

    def for_windows(self, first: int, last: int, step: int) -> Parts:
        """Return the parts of the windows from `first` to `last`."""
        firsts = pc.max_element_wise(self.firsts, int_scalar(first))
        lasts = pc.min_element_wise(self.lasts(step), int_scalar(last))
        counts = pc.add(pc.divide(pc.subtract(lasts, firsts), int_scalar(step)), int_scalar(1))
        return Parts(self.rows, self.first_panes, firsts, pc.max_element_wise(counts, int_scalar(0)))

    def repeat_by_window(self, start: str, step: int, pane_us: int) -> pa.Table:
        """Return each part once for each of its windows, whose start is in the column `start`."""
        ends = pc.cumulative_sum(self.counts)
        offsets = pa.concat_arrays([pa.array([0], pa.int64()), ends])
        places = pa.arange(0, self.count)
        parents = pc.list_parent_indices(pa.LargeListArray.from_arrays(offsets, places))
        nth = pc.subtract(places, offsets.take(parents))
        starts = pc.multiply(pc.add(self.firsts.take(parents), pc.multiply(nth, int_scalar(step))), int_scalar(pane_us))
        rows = self.rows.take(parents).append_column(_FIRST_PANE, self.first_panes.take(parents))
        return rows.set_column(rows.schema.get_field_index(start), start, starts.view(TIMESTAMP))


@dataclass(frozen=True, slots=True)
class WindowCloser:
    """Combines panes to windows, in a task or in the driver. It has the name of the state's table, not the state, so
    that it can be sent."""

    fields: Schema
    window: Window
    aggregator: Aggregator
    table: str

    def close_windows(self, rows: pa.Table, facts: BatchFacts | None) -> pa.Table:
        schema, start, windows_by_time = arrow_schema(self.fields), self.window.start, self.window.windows
        panes = self._pane_starts(rows)
        self._check_panes(panes)
        windows = self._combine_windows(
            self._with_starts(rows, pc.divide(panes, int_scalar(windows_by_time.pane_us))), facts
        )
        ends = pc.add(self._pane_starts(windows), int_scalar(windows_by_time.length_us))
        windows = windows.rename_columns([WINDOW_START if name == start else name for name in windows.column_names])
        return windows.append_column(WINDOW_END, ends.cast(TIMESTAMP)).select(schema.names).cast(schema)

    def _combine_windows(self, panes: pa.Table, facts: BatchFacts | None) -> pa.Table:
        """Return one row per key and window. Panes are numbered from 1970 on."""
        windows, single_panes = self.window.windows, self._parts_of_windows(panes, 0, facts, is_last=True)
        if windows.length_us == windows.pane_us:
            return self._repeat_by_window(single_panes).drop_columns(_FIRST_PANE)
        if single_panes.count < BLOCKS_FROM * panes.num_rows:
            return self._combine_parts([single_panes])
        try:
            return self._combine_parts(self._block_levels(panes, facts))
        except SumOverflow:
            # With values of unlike signs, the sum of a block may be too large though that of no window is.
            return self._combine_parts([single_panes])

    def _block_levels(self, panes: pa.Table, facts: BatchFacts | None) -> Iterator[Parts]:
        """Yield blocks of one pane, two, four and so on, up to the largest that fits into a window."""
        windows, blocks = self.window.windows, panes
        last = (windows.length_us // windows.pane_us).bit_length() - 1
        for level in range(last):
            yield self._parts_of_windows(blocks, level, facts, is_last=False)
            blocks = blocks.sort_by(self.window.start)
            numbers = pc.divide(floor_to(self._pane_starts(blocks), 2), int_scalar(2))
            blocks = self._combine_equal_starts(self._with_starts(blocks, numbers))
        yield self._parts_of_windows(blocks, last, facts, is_last=True)

    def _parts_of_windows(self, blocks: pa.Table, level: int, facts: BatchFacts | None, *, is_last: bool) -> Parts:
        """Determine of which closing windows each block of 2 ** level panes is a part.

        A block is a part of the windows in which it lies, unless the next larger block, one half of which it is, lies
        there too. So the first half of a larger block is a part of windows that end before the second half does. The
        second half is a part of windows that begin after the first half does. Blocks of the last level are in no larger
        block.
        """
        windows, times = self.window.windows, times_of(facts, by_transaction=self.window.by_transaction)
        closing = windows.closing(times.previous_watermark, times.watermark)
        assert closing is not None
        size, length, step = 2**level, windows.length_us // windows.pane_us, windows.every_us // windows.pane_us
        numbers = self._pane_starts(blocks)
        first_panes = pc.multiply(numbers, int_scalar(size))
        earliest, latest = pc.add(first_panes, int_scalar(size - length)), first_panes
        if not is_last:
            is_first = pc.equal(numbers, floor_to(numbers, 2))
            latest = pc.if_else(is_first, pc.add(earliest, int_scalar(size - 1)), first_panes)
            earliest = pc.if_else(is_first, earliest, pc.subtract(first_panes, int_scalar(size - 1)))
        latest = pc.min_element_wise(latest, int_scalar(closing.until // windows.pane_us))
        if closing.after is not None:
            earliest = pc.max_element_wise(earliest, int_scalar(closing.after // windows.pane_us + 1))
        firsts = floor_to(pc.add(earliest, int_scalar(step - 1)), step)
        counts = pc.add(pc.divide(pc.subtract(floor_to(latest, step), firsts), int_scalar(step)), int_scalar(1))
        return Parts(blocks, first_panes, firsts, pc.max_element_wise(counts, int_scalar(0)))

    def _combine_parts(self, parts: Iterable[Parts]) -> pa.Table:
        """Return one row per key and window, whose parts are combined in the order of time.

        So many windows are combined at once that memory holds their parts.
        """
        every_part = list(parts)
        firsts = pa.concat_arrays([part.firsts for part in every_part])
        lasts = pa.concat_arrays([part.lasts(self._panes_between_starts) for part in every_part])
        first, last = (pc.fill_null(bound, 0).as_py() for bound in (pc.min(firsts), pc.max(lasts)))
        return pa.concat_tables(map(self._combine_slice, self._split_parts(every_part, first, last)))

    def _split_parts(self, parts: list[Parts], first: int, last: int) -> Iterator[list[Parts]]:
        """Split the windows between two starts in halves, until none has more than `PARTS_MAX` parts, and yield the
        parts of each."""
        if first >= last or sum(part.count for part in parts) <= PARTS_MAX:
            yield parts
            return
        middle = floor_to(pa.array([(first + last) // 2]), self._panes_between_starts)[0].as_py()
        for begin, end in ((first, middle), (middle + self._panes_between_starts, last)):
            if begin <= end:
                yield from self._split_parts(
                    [part.for_windows(begin, end, self._panes_between_starts) for part in parts], begin, end
                )

    def _combine_slice(self, parts: list[Parts]) -> pa.Table:
        rows = pa.concat_tables([self._repeat_by_window(part) for part in parts])
        return self._combine_equal_starts(rows.sort_by(_FIRST_PANE).drop_columns(_FIRST_PANE))

    @property
    def _panes_between_starts(self) -> int:
        """The number of panes between the starts of two windows that follow each other."""
        windows = self.window.windows
        return windows.every_us // windows.pane_us

    def _repeat_by_window(self, parts: Parts) -> pa.Table:
        return parts.repeat_by_window(self.window.start, self._panes_between_starts, self.window.windows.pane_us)

    def _combine_equal_starts(self, rows: pa.Table) -> pa.Table:
        """Return one row per key and start. The aggregator takes a single table for one that is combined already, so it
        gets two."""
        return self.aggregator.combine([rows.slice(0, 1), rows.slice(1)])

    def _pane_starts(self, rows: pa.Table) -> pa.Array:
        return to_microseconds(rows[self.window.start].combine_chunks())

    def _with_starts(self, rows: pa.Table, starts: pa.Array) -> pa.Table:
        place = rows.schema.get_field_index(self.window.start)
        return rows.set_column(place, self.window.start, starts.view(TIMESTAMP))

    def _check_panes(self, panes: pa.Array) -> None:
        """Raise `StoreMismatch` if rows were counted for other windows."""
        pane_us = self.window.windows.pane_us
        foreign = panes.filter(pc.not_equal(panes, floor_to(panes, pane_us)))
        if len(foreign):
            raise StoreMismatch(
                f"state {self.table} has open windows that begin at "
                f"{foreign[0].cast(TIMESTAMP).as_py()}, which no part of {self.window.label} does: it was counted for "
                "other windows. Give the state another table, or let the windows be as they were"
            )
