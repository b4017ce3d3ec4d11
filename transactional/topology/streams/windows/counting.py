"""Windows by count: how tuples get their places, and how the newest windows of each key are kept.

A place is the number of a tuple among those of its key, from 0. A step adds empty columns for the places; the
aggregator keeps tuples apart, in their order. The update gives them places in the commit phase, as only then it is
known how many tuples the key had before. The state holds the parts of the newest windows of a key, in as many rows as a
window has parts. These rows are reused one after the other, so nothing has to be deleted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from transactional.core.ports import MergedRows, UpdateKind
from transactional.model.arrow import arrow_schema
from transactional.model.arrow.computed import ComputedColumns
from transactional.model.attempt import TransactionAttempt
from transactional.model.facts import BatchFacts
from transactional.model.schema import Field, Schema
from transactional.topology.streams.aggregates.own import group_rows
from transactional.topology.streams.pipelines.steps import ArrowStep
from transactional.topology.streams.windows.time_columns import WINDOW_END, WINDOW_START
from transactional.topology.streams.windows.windowing import WindowsUpdate
from transactional.topology.windows.windows import PANE, CountWindow

COUNTED = "place"
"""The way in which the values of windows by count are combined. No state knows it, so only the update combines them."""
_KEY_NUMBER = " group"
"""A column with the number of a key. The blank keeps it apart from all fields."""


@dataclass(frozen=True, slots=True)
class AddPlaces(ArrowStep):
    """Appends columns for the places, filled with 0. The places are known once all transactions before have
    committed."""

    window: CountWindow

    def apply_arrow(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        zeros = pa.repeat(_int_scalar(0), batch.num_rows)
        for name in self.window.columns:
            batch = batch.append_column(pa.field(name, pa.int64()), zeros)
        return batch


@dataclass(frozen=True, slots=True)
class CountAggregator:
    """Keeps one row for each tuple, in order. `inner` aggregates rows of equal key and place."""

    inner: Any
    window: CountWindow

    @property
    def combine_kinds(self) -> Mapping[str, str]:
        return dict.fromkeys(self.inner.combine_kinds, COUNTED)

    @property
    def computed(self) -> ComputedColumns:
        computed: ComputedColumns = self.inner.computed
        return computed

    def partial(self, batches: Iterable[pa.RecordBatch]) -> pa.Table:
        start, count, schema = self.window.start, 0, self._schema()
        numbered = []
        for batch in batches:
            numbers = pa.arange(count, count + batch.num_rows)
            numbered.append(batch.set_column(batch.schema.get_field_index(start), start, numbers))
            count += batch.num_rows
        by_place = _place_aggregator(self.inner, self.inner.key, start)
        return by_place.partial(numbered).sort_by(start).select(schema.names).cast(schema)

    def combine(self, partials: Iterable[pa.Table]) -> pa.Table:
        """Return the rows of several tasks, one task after the other."""
        schema = self._schema()
        return pa.concat_tables([schema.empty_table(), *(table.select(schema.names) for table in partials)])

    def _schema(self) -> pa.Schema:
        return arrow_schema(Schema((*self.inner.key, *self.inner.values)))


class CountUpdate(WindowsUpdate[CountWindow]):
    """An update that keeps the parts of the newest windows of each key: see `UpdateKind.REPLACED`."""

    update_kind = UpdateKind.REPLACED

    def aggregator(self) -> CountAggregator:
        return CountAggregator(self._update.aggregator(), self.window)

    @property
    def closed_columns(self) -> Schema:
        """The key, the places where the window begins and ends, and the values."""
        key, values = self.state.key.select(self.key), self.state.values
        value_names = [name for name in values.names if name not in (self.window.start, self.window.end)]
        return Schema((*key, Field(WINDOW_START, "long"), Field(WINDOW_END, "long"), *values.select(value_names)))

    @property
    def windows_shown(self) -> str:
        """The length and the distance of the windows, in tuples."""
        windows = self.window.windows
        return f"{windows.length_us} tuples every {windows.every_us}"

    @property
    def longest_wait_us(self) -> int:
        """0, as no window by count ends by time."""
        return 0

    def first_time(self, watermark_us: int, *, by_end: bool) -> int:
        """The earliest place, which is the time of a tuple here."""
        return self.window.windows.first_time(watermark_us, by_end=by_end)

    def rows_to_merge(self, attempt: TransactionAttempt, part: pa.Table, facts: BatchFacts | None) -> pa.Table | None:
        if not part.num_rows:
            return None
        keys, parts = part.select(list(self.key)), self.window.parts
        if self.key:
            keys = keys.group_by(list(self.key), use_threads=False).aggregate([])
        if parts > 1:
            numbers = pa.arange(0, parts * (keys.num_rows if self.key else 1))
            key_numbers = pc.divide(numbers, _int_scalar(parts))
            columns = {name: keys[name].take(key_numbers) for name in self.key}
            keys = pa.table({**columns, PANE: _remainders(numbers, parts)})
        return self.state.parts.lookup.rows_before(attempt, keys)

    def merge_rows(self, rows: pa.Table, part: pa.Table) -> MergedRows:
        """Return the changed parts of windows, and the windows that became full."""
        tuples, previous_counts, counts = self._with_places(rows, part)
        inner = self._update.aggregator()
        key = Schema((*self.state.key.select(self.key), Field(_KEY_NUMBER, "long")))
        by_place = _place_aggregator(inner, key, self.window.start)
        # In two parts: the inner aggregator takes a single table for one that is aggregated already.
        tuples = tuples.select([*by_place.key.names, *by_place.values.names])
        panes = by_place.combine([tuples.slice(0, 1), tuples.slice(1)])
        numbers = panes[_KEY_NUMBER].combine_chunks()
        previous_count, count = (pa.chunked_array([per_key.take(numbers)]) for per_key in (previous_counts, counts))
        return MergedRows(
            self._changed_panes(panes, previous_count, count),
            rows.slice(0, 0),
            self._full_windows(panes, previous_count, count, by_place),
        )

    def _with_places(self, rows: pa.Table, part: pa.Table) -> tuple[pa.Table, pa.Array, pa.Array]:
        """Return the stored and the new tuples with their places and key numbers.

        With them come two columns by key number: how many tuples the key had before this transaction, and how many it
        has now.
        """
        stored_rows, tuples = rows.num_rows, pa.concat_tables([rows, part])
        ends = rows[self.window.end].to_pylist()
        order, places, numbers = list[int](), list[int](), list[int]()
        previous_counts, counts = list[int](), list[int]()
        for group in group_rows(tuples, self.key):
            stored = bisect_left(group, stored_rows)
            if stored == len(group):
                continue  # the key has no new tuple
            last = [ends[row] - 1 for row in group[:stored]]
            total = max(last, default=-1) + 1
            order += group
            numbers += [len(previous_counts)] * len(group)
            places += last
            places += range(total, total + len(group) - stored)
            previous_counts.append(total)
            counts.append(total + len(group) - stored)
        place = pa.array(places, pa.int64())
        columns = {name: tuples[name].take(pa.array(order, pa.int64())) for name in tuples.column_names}
        columns[self.window.start] = _floor_to(place, self.window.windows.pane_us)
        columns[self.window.end] = pc.add(place, _int_scalar(1))
        columns[_KEY_NUMBER] = pa.array(numbers, pa.int64())
        return pa.table(columns), pa.array(previous_counts, pa.int64()), pa.array(counts, pa.int64())

    def _changed_panes(self, panes: pa.Table, previous_count: pa.ChunkedArray, count: pa.ChunkedArray) -> pa.Table:
        """Return the newest panes of each key that have changed, as many as the state has room for."""
        windows, parts, schema = self.window.windows, self.window.parts, _state_schema(self.state)
        starts, last = panes[self.window.start], _floor_to(pc.subtract(count, _int_scalar(1)), windows.pane_us)
        is_new = pc.greater(panes[self.window.end], previous_count)
        is_new = pc.and_(is_new, pc.greater(starts, pc.subtract(last, _int_scalar(windows.pane_us * parts))))
        if parts > 1:
            panes = panes.append_column(PANE, _remainders(pc.divide(starts, _int_scalar(windows.pane_us)), parts))
        return panes.select(schema.names).cast(schema).filter(is_new)

    def _full_windows(
        self, panes: pa.Table, previous_count: pa.ChunkedArray, count: pa.ChunkedArray, by_place: Any
    ) -> pa.Table:
        """Return the windows whose last tuple has come.

        Each consists of its parts: first the first parts of all windows, then the second ones, and so on.
        """
        windows, start, schema = self.window.windows, self.window.start, arrow_schema(self.closed_columns)
        parts = []
        if pc.any(pc.greater(_floor_to(count, windows.every_us), previous_count)).as_py():
            for distance in range(windows.length_us, 0, -windows.pane_us):
                ends = pc.add(panes[start], _int_scalar(distance))
                is_full = pc.equal(_remainders(ends, windows.every_us), _int_scalar(0))
                is_full = pc.and_(is_full, pc.and_(pc.greater(ends, previous_count), pc.less_equal(ends, count)))
                starts = pc.subtract(ends, _int_scalar(windows.length_us))
                moved = panes.set_column(panes.schema.get_field_index(start), start, starts)
                parts.append(moved.filter(is_full))
        closed = by_place.combine(parts)
        columns = {name: closed[name] for name in closed.column_names}
        columns[WINDOW_END] = pc.add(closed[start], _int_scalar(windows.length_us))
        # The first windows of a key have fewer tuples.
        columns[WINDOW_START] = pc.max_element_wise(closed[start], _int_scalar(0))
        return pa.table(columns).select(schema.names).cast(schema)


def _place_aggregator(inner: Any, key: Schema, start: str) -> Any:
    """Return an aggregator that keeps rows of different places apart."""
    values = tuple(field for field in inner.values if field.name != start)
    aggregates = tuple(aggregate for aggregate in inner.aggregates if aggregate[0] != start)
    return replace(inner, key=Schema((*key, inner.values[start])), values=Schema(values), aggregates=aggregates)


def _state_schema(state: Any) -> pa.Schema:
    return arrow_schema(Schema((*state.key, *state.values)))


def _floor_to(numbers: Any, size: int) -> Any:
    """Round numbers that are not negative down to multiples of `size`."""
    return pc.multiply(pc.divide(numbers, _int_scalar(size)), _int_scalar(size))


def _remainders(numbers: Any, size: int) -> Any:
    return pc.subtract(numbers, _floor_to(numbers, size))


def _int_scalar(number: int) -> pa.Scalar:
    """Make a scalar of known type. Arrow would take fifty times as long to infer it."""
    return pa.scalar(number, pa.int64())
