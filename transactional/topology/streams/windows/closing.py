"""Windows that close are made of their panes.

A pane of a sliding window is in as many windows as the length has steps. Where few of them close, each pane is combined
with the others of each window. Where many close at once, as after a pause, panes are first combined to blocks of two,
four, eight: a window consists of a few blocks, not of all its panes.
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
from transactional.topology.streams.windows.times import (
    TIMESTAMP,
    WINDOW_END,
    WINDOW_START,
    floored,
    number,
    numbers_of,
)
from transactional.topology.windows.windows import Window

BLOCKS_FROM = 4
"""Panes are combined to blocks where each would be in so many of the windows, on average."""
PARTS_MAX = 4_000_000
"""So many parts are combined at once, whatever the number of windows that close: they take some 100 bytes each."""
_BEGIN = " begin"
"""Where a part begins. A blank is in no column's name."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Panes, or blocks of panes, and the windows that each is a part of: `counts` of them, from `firsts` on."""

    rows: pa.Table
    begins: pa.Array
    firsts: pa.Array
    counts: pa.Array

    @property
    def number(self) -> int:
        """How many parts all windows have."""
        return int(pc.sum(self.counts, min_count=0).as_py())

    def lasts(self, every: int) -> pa.Array:
        """The last window of each."""
        return pc.add(self.firsts, pc.multiply(pc.subtract(self.counts, number(1)), number(every)))

    def within(self, first: int, last: int, every: int) -> Parts:
        """The same, of no other windows than those from one to another one."""
        firsts = pc.max_element_wise(self.firsts, number(first))
        lasts = pc.min_element_wise(self.lasts(every), number(last))
        counts = pc.add(pc.divide(pc.subtract(lasts, firsts), number(every)), number(1))
        return Parts(self.rows, self.begins, firsts, pc.max_element_wise(counts, number(0)))

    def by_window(self, start: str, every: int, pane_us: int) -> pa.Table:
        """Each part once for each of its windows, whose start it has in the column `start`."""
        ends = pc.cumulative_sum(self.counts)
        offsets = pa.concat_arrays([pa.array([0], pa.int64()), ends])
        places = pa.arange(0, self.number)
        parents = pc.list_parent_indices(pa.LargeListArray.from_arrays(offsets, places))
        nth = pc.subtract(places, offsets.take(parents))
        starts = pc.multiply(pc.add(self.firsts.take(parents), pc.multiply(nth, number(every))), number(pane_us))
        rows = self.rows.take(parents).append_column(_BEGIN, self.begins.take(parents))
        return rows.set_column(rows.schema.get_field_index(start), start, starts.view(TIMESTAMP))


@dataclass(frozen=True, slots=True)
class WindowCloser:
    """Makes windows of the panes that a state has for them. Picklable: knows the state's `table` by name."""

    fields: Schema
    window: Window
    aggregator: Aggregator
    table: str

    def close_windows(self, rows: pa.Table, facts: BatchFacts | None) -> pa.Table:
        """Combine the panes of each window that closes."""
        schema, start, of = arrow_schema(self.fields), self.window.start, self.window.windows
        panes = self._starts(rows)
        self._check_panes(panes)
        windows = self._windows(self._with_start(rows, pc.divide(panes, number(of.pane_us))), facts)
        ends = pc.add(self._starts(windows), number(of.length_us))
        windows = windows.rename_columns([WINDOW_START if name == start else name for name in windows.column_names])
        return windows.append_column(WINDOW_END, ends.cast(TIMESTAMP)).select(schema.names).cast(schema)

    def _windows(self, panes: pa.Table, facts: BatchFacts | None) -> pa.Table:
        """One row per key and window. Panes are numbered from 1970 on."""
        of, alone = self.window.windows, self._parts(panes, 0, facts, is_last=True)
        if of.length_us == of.pane_us:
            return self._by_window(alone).drop_columns(_BEGIN)
        if alone.number < BLOCKS_FROM * panes.num_rows:
            return self._combined([alone])
        try:
            return self._combined(self._blocks(panes, facts))
        except SumOverflow:
            # Of values with unlike signs the sum of a block may be too large, and that of no window.
            return self._combined([alone])

    def _blocks(self, panes: pa.Table, facts: BatchFacts | None) -> Iterator[Parts]:
        """Blocks of one pane, two, four and so on, up to the largest that fits into a window."""
        of, blocks = self.window.windows, panes
        last = (of.length_us // of.pane_us).bit_length() - 1
        for level in range(last):
            yield self._parts(blocks, level, facts, is_last=False)
            blocks = blocks.sort_by(self.window.start)
            numbers = pc.divide(floored(self._starts(blocks), 2), number(2))
            blocks = self._reduced(self._with_start(blocks, numbers))
        yield self._parts(blocks, last, facts, is_last=True)

    def _parts(self, blocks: pa.Table, level: int, facts: BatchFacts | None, *, is_last: bool) -> Parts:
        """Which of the windows that close each block of 2 ** level panes is a part of.

        It is one of those in which it lies, unless the next larger block, of which it is one half, lies there too. So
        the first half is a part of windows that end before the second half does, and the second half of those that
        begin after the first half does. There is no larger block than the last.
        """
        of, times = self.window.windows, times_of(facts, by_transaction=self.window.by_transaction)
        closing = of.closing(times.previous_watermark, times.watermark)
        assert closing is not None
        size, length, every = 2**level, of.length_us // of.pane_us, of.every_us // of.pane_us
        numbers = self._starts(blocks)
        begins = pc.multiply(numbers, number(size))
        earliest, latest = pc.add(begins, number(size - length)), begins
        if not is_last:
            is_first = pc.equal(numbers, floored(numbers, 2))
            latest = pc.if_else(is_first, pc.add(earliest, number(size - 1)), begins)
            earliest = pc.if_else(is_first, earliest, pc.subtract(begins, number(size - 1)))
        latest = pc.min_element_wise(latest, number(closing.until // of.pane_us))
        if closing.after is not None:
            earliest = pc.max_element_wise(earliest, number(closing.after // of.pane_us + 1))
        firsts = floored(pc.add(earliest, number(every - 1)), every)
        counts = pc.add(pc.divide(pc.subtract(floored(latest, every), firsts), number(every)), number(1))
        return Parts(blocks, begins, firsts, pc.max_element_wise(counts, number(0)))

    def _combined(self, parts: Iterable[Parts]) -> pa.Table:
        """One row per key and window: its parts are combined in the order of time, so many windows at once that memory
        holds their parts."""
        every_part = list(parts)
        firsts = pa.concat_arrays([each.firsts for each in every_part])
        lasts = pa.concat_arrays([each.lasts(self._every) for each in every_part])
        first, last = (pc.fill_null(found, 0).as_py() for found in (pc.min(firsts), pc.max(lasts)))
        return pa.concat_tables(map(self._combined_at_once, self._slices(every_part, first, last)))

    def _slices(self, parts: list[Parts], first: int, last: int) -> Iterator[list[Parts]]:
        """The parts of windows that begin between two, which are halved until what is in each half is not too much."""
        if first >= last or sum(each.number for each in parts) <= PARTS_MAX:
            yield parts
            return
        middle = floored(pa.array([(first + last) // 2]), self._every)[0].as_py()
        for begin, end in ((first, middle), (middle + self._every, last)):
            if begin <= end:
                yield from self._slices([each.within(begin, end, self._every) for each in parts], begin, end)

    def _combined_at_once(self, parts: list[Parts]) -> pa.Table:
        rows = pa.concat_tables([self._by_window(each) for each in parts])
        return self._reduced(rows.sort_by(_BEGIN).drop_columns(_BEGIN))

    @property
    def _every(self) -> int:
        """How many panes lie between two windows' beginnings."""
        of = self.window.windows
        return of.every_us // of.pane_us

    def _by_window(self, parts: Parts) -> pa.Table:
        return parts.by_window(self.window.start, self._every, self.window.windows.pane_us)

    def _reduced(self, rows: pa.Table) -> pa.Table:
        """One row per key and start. Of one table an aggregator expects that already, so it is given two."""
        return self.aggregator.combine([rows.slice(0, 1), rows.slice(1)])

    def _starts(self, rows: pa.Table) -> pa.Array:
        return numbers_of(rows[self.window.start].combine_chunks())

    def _with_start(self, rows: pa.Table, starts: pa.Array) -> pa.Table:
        place = rows.schema.get_field_index(self.window.start)
        return rows.set_column(place, self.window.start, starts.view(TIMESTAMP))

    def _check_panes(self, panes: pa.Array) -> None:
        """Raise `StoreMismatch` for rows that were counted for other windows."""
        pane_us = self.window.windows.pane_us
        others = panes.filter(pc.not_equal(panes, floored(panes, pane_us)))
        if len(others):
            raise StoreMismatch(
                f"state {self.table} has open windows that begin at "
                f"{others[0].cast(TIMESTAMP).as_py()}, which no part of {self.window.label} does: it was counted for "
                "other windows. Give the state another table, or let the windows be as they were"
            )
