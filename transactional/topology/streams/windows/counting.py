"""What windows by count are compiled to: a step that makes room for the places of tuples, an aggregator that keeps
tuples apart, and a state's update that gives each its place behind those of its key that were there before.

A place is a tuple's number among those of its key, from 0. What the state keeps of a key is what its newest windows are
made of, in as many rows as one window has parts, which are used again one after the other: nothing has to be deleted.
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
from transactional.topology.streams.aggregates.own import groups_of
from transactional.topology.streams.pipelines.steps import ArrowStep
from transactional.topology.streams.windows.times import WINDOW_END, WINDOW_START
from transactional.topology.streams.windows.windowing import UpdateOfWindows
from transactional.topology.windows.windows import PANE, CountWindow

COUNTED = "place"
"""How the values of windows by count are combined: by the update alone."""
_GROUP = " group"
"""The number of a key. A blank is in no column's name."""


@dataclass(frozen=True, slots=True)
class InOrder(ArrowStep):
    """All tuples, with room for their places, which nobody knows before the transactions before have committed."""

    window: CountWindow

    def apply_arrow(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Append the columns."""
        nothing = pa.repeat(_number(0), batch.num_rows)
        for name in self.window.columns:
            batch = batch.append_column(pa.field(name, pa.int64()), nothing)
        return batch


@dataclass(frozen=True, slots=True)
class CountAggregator:
    """One row for each tuple, in the order in which they have come. `inner` reduces rows of equal key and place."""

    inner: Any
    window: CountWindow

    @property
    def combine_kinds(self) -> Mapping[str, str]:
        """No state can combine them."""
        return dict.fromkeys(self.inner.combine_kinds, COUNTED)

    @property
    def computed(self) -> ComputedColumns:
        """Those of the inner one."""
        computed: ComputedColumns = self.inner.computed
        return computed

    def partial(self, batches: Iterable[pa.RecordBatch]) -> pa.Table:
        """Input tuples → a row for each."""
        start, came, schema = self.window.start, 0, self._schema()
        numbered = []
        for batch in batches:
            numbers = pa.arange(came, came + batch.num_rows)
            numbered.append(batch.set_column(batch.schema.get_field_index(start), start, numbers))
            came += batch.num_rows
        apart = _by_place(self.inner, self.inner.key, start)
        return apart.partial(numbered).sort_by(start).select(schema.names).cast(schema)

    def combine(self, partials: Iterable[pa.Table]) -> pa.Table:
        """Those of several tasks, one after the other."""
        schema = self._schema()
        return pa.concat_tables([schema.empty_table(), *(table.select(schema.names) for table in partials)])

    def _schema(self) -> pa.Schema:
        return arrow_schema(Schema((*self.inner.key, *self.inner.values)))


class CountUpdate(UpdateOfWindows[CountWindow]):
    """An update that keeps, of each key, the parts of its newest windows: see `UpdateKind.REPLACED`."""

    update_kind = UpdateKind.REPLACED

    def aggregator(self) -> CountAggregator:
        """Keeps tuples apart."""
        return CountAggregator(self._update.aggregator(), self.window)

    @property
    def closed_columns(self) -> Schema:
        """The key, the places where the window begins and ends, and the values."""
        key, values = self.state.key.select(self.key), self.state.values
        others = [name for name in values.names if name not in (self.window.start, self.window.end)]
        return Schema((*key, Field(WINDOW_START, "long"), Field(WINDOW_END, "long"), *values.select(others)))

    @property
    def windows_shown(self) -> str:
        """Length and distance, in tuples."""
        of = self.window.windows
        return f"{of.length_us} tuples every {of.every_us}"

    @property
    def longest_us(self) -> int:
        """They do not end by time."""
        return 0

    def first_time(self, watermark_us: int, *, by_end: bool) -> int:
        """Of places, which are their times."""
        return self.window.windows.first_time(watermark_us, by_end=by_end)

    def rows_to_merge(self, attempt: TransactionAttempt, part: pa.Table, facts: BatchFacts | None) -> pa.Table | None:
        """The rows of the keys that have come."""
        if not part.num_rows:
            return None
        keys, parts = part.select(list(self.key)), self.window.parts
        if self.key:
            keys = keys.group_by(list(self.key), use_threads=False).aggregate([])
        if parts > 1:
            numbers = pa.arange(0, parts * (keys.num_rows if self.key else 1))
            each = pc.divide(numbers, _number(parts))
            columns = {name: keys[name].take(each) for name in self.key}
            keys = pa.table({**columns, PANE: _rest(numbers, parts)})
        return self.state.rows_before(attempt, keys)

    def merge_rows(self, rows: pa.Table, part: pa.Table) -> MergedRows:
        """The parts with a tuple that has come, and the windows that are full now."""
        both, before, after = self._placed(rows, part)
        inner = self._update.aggregator()
        key = Schema((*self.state.key.select(self.key), Field(_GROUP, "long")))
        apart = _by_place(inner, key, self.window.start)
        # In two parts, since one alone is taken for one that is reduced.
        both = both.select([*apart.key.names, *apart.values.names])
        panes = apart.combine([both.slice(0, 1), both.slice(1)])
        numbers = panes[_GROUP].combine_chunks()
        of_before, of_after = (pa.chunked_array([each.take(numbers)]) for each in (before, after))
        return MergedRows(
            self._changed(panes, of_before, of_after), rows.slice(0, 0), self._full(panes, of_before, of_after, apart)
        )

    def _placed(self, rows: pa.Table, part: pa.Table) -> tuple[pa.Table, pa.Array, pa.Array]:
        """What is stored and what has come, with places, and the number of the key; and by this number how many tuples
        there were before, and are now."""
        known, both = rows.num_rows, pa.concat_tables([rows, part])
        ends = rows[self.window.end].to_pylist()
        order, places, numbers = list[int](), list[int](), list[int]()
        before, after = list[int](), list[int]()
        for group in groups_of(both, self.key):
            stored = bisect_left(group, known)
            if stored == len(group):
                continue  # more keys were read than have come
            last = [ends[at] - 1 for at in group[:stored]]
            total = max(last, default=-1) + 1
            order += group
            numbers += [len(before)] * len(group)
            places += last
            places += range(total, total + len(group) - stored)
            before.append(total)
            after.append(total + len(group) - stored)
        at = pa.array(places, pa.int64())
        columns = {name: both[name].take(pa.array(order, pa.int64())) for name in both.column_names}
        columns[self.window.start] = _floored(at, self.window.windows.pane_us)
        columns[self.window.end] = pc.add(at, _number(1))
        columns[_GROUP] = pa.array(numbers, pa.int64())
        return pa.table(columns), pa.array(before, pa.int64()), pa.array(after, pa.int64())

    def _changed(self, panes: pa.Table, before: pa.ChunkedArray, after: pa.ChunkedArray) -> pa.Table:
        """The newest ones of each key, as many as there is room for."""
        of, parts, schema = self.window.windows, self.window.parts, _schema_of(self.state)
        starts, last = panes[self.window.start], _floored(pc.subtract(after, _number(1)), of.pane_us)
        is_new = pc.greater(panes[self.window.end], before)
        is_new = pc.and_(is_new, pc.greater(starts, pc.subtract(last, _number(of.pane_us * parts))))
        if parts > 1:
            panes = panes.append_column(PANE, _rest(pc.divide(starts, _number(of.pane_us)), parts))
        return panes.select(schema.names).cast(schema).filter(is_new)

    def _full(self, panes: pa.Table, before: pa.ChunkedArray, after: pa.ChunkedArray, apart: Any) -> pa.Table:
        """The windows whose last tuple has come, each of its parts: the first parts of all, then the second ones."""
        of, start, schema = self.window.windows, self.window.start, arrow_schema(self.closed_columns)
        parts = []
        if pc.any(pc.greater(_floored(after, of.every_us), before)).as_py():
            for distance in range(of.length_us, 0, -of.pane_us):
                ends = pc.add(panes[start], _number(distance))
                is_full = pc.equal(_rest(ends, of.every_us), _number(0))
                is_full = pc.and_(is_full, pc.and_(pc.greater(ends, before), pc.less_equal(ends, after)))
                begun = pc.subtract(ends, _number(of.length_us))
                moved = panes.set_column(panes.schema.get_field_index(start), start, begun)
                parts.append(moved.filter(is_full))
        windows = apart.combine(parts)
        columns = {name: windows[name] for name in windows.column_names}
        columns[WINDOW_END] = pc.add(windows[start], _number(of.length_us))
        # The first ones have fewer tuples.
        columns[WINDOW_START] = pc.max_element_wise(windows[start], _number(0))
        return pa.table(columns).select(schema.names).cast(schema)


def _by_place(inner: Any, key: Schema, start: str) -> Any:
    """An aggregator that keeps rows with other places apart."""
    others = tuple(field for field in inner.values if field.name != start)
    aggregates = tuple(each for each in inner.aggregates if each[0] != start)
    return replace(inner, key=Schema((*key, inner.values[start])), values=Schema(others), aggregates=aggregates)


def _schema_of(state: Any) -> pa.Schema:
    return arrow_schema(Schema((*state.key, *state.values)))


def _floored(numbers: Any, size: int) -> Any:
    """The multiples of `size` at or below numbers that are not negative."""
    return pc.multiply(pc.divide(numbers, _number(size)), _number(size))


def _rest(numbers: Any, size: int) -> Any:
    return pc.subtract(numbers, _floored(numbers, size))


def _number(number: int) -> pa.Scalar:
    """Said to be one, it costs a fiftieth of what Arrow takes to find that out."""
    return pa.scalar(number, pa.int64())
