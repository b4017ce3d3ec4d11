"""Session windows: the steps that make each tuple a session and find the late ones, and how sessions are merged.

A tuple starts as a session of its own, from its time until the gap after it. The aggregator merges the sessions of a
key that overlap; in the commit phase the update merges them with the open sessions of the state, which it replaces. A
session closes when the watermark has reached its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from transactional.core.machine.window_assignment import Sessions, WindowTimes, times_of
from transactional.core.ports import Aggregator, MergedRows, UpdateKind
from transactional.model.arrow import arrow_schema
from transactional.model.arrow.computed import ComputedColumns
from transactional.model.attempt import TransactionAttempt
from transactional.model.facts import BatchFacts
from transactional.model.schema import Schema
from transactional.topology.streams.aggregates.own import group_rows
from transactional.topology.streams.pipelines.steps import TimedStep
from transactional.topology.streams.windows.time_columns import (
    TIMESTAMP,
    WINDOW_END,
    WINDOW_START,
    impossible_times,
    to_microseconds,
)
from transactional.topology.streams.windows.windowing import WindowsUpdate
from transactional.topology.windows.windows import Session

MERGED = "session"
"""The way in which the values of sessions are combined. No state knows it, so only the update combines them."""
_MOST_US = 2**63 - 1


@dataclass(frozen=True, slots=True)
class AssignSessions(TimedStep):
    """Leaves out late tuples, and appends start and end of the session that each tuple would be alone.

    `time` is the field with the event time. None if the time is the transaction's.
    """

    leaves_out_late: ClassVar[bool] = True
    window: Session
    time: str | None

    def apply_with_facts(self, batch: pa.RecordBatch, facts: BatchFacts | None) -> pa.RecordBatch:
        times, gap_us = times_of(facts, by_transaction=self.time is None), self.window.sessions.gap_us
        if self.time is None:
            starts = pa.array([times.now_us] * batch.num_rows, pa.int64())
        else:
            batch = batch.filter(pc.invert(late_session_times(gap_us, batch.column(self.time), times)))
            starts = to_microseconds(batch.column(self.time))
        ends = pc.add(starts, pa.scalar(gap_us, pa.int64()))
        for name, column in ((WINDOW_START, starts), (WINDOW_END, ends)):
            batch = batch.append_column(pa.field(name, TIMESTAMP), column.view(TIMESTAMP))
        return batch


@dataclass(frozen=True, slots=True)
class KeepLateForSessions(TimedStep):
    """Keeps the late tuples, and those without a time that could be counted."""

    window: Session
    time: str

    def apply_with_facts(self, batch: pa.RecordBatch, facts: BatchFacts | None) -> pa.RecordBatch:
        times = times_of(facts, by_transaction=False)
        return batch.filter(late_session_times(self.window.sessions.gap_us, batch.column(self.time), times))


def late_session_times(gap_us: int, column: pa.Array, times: WindowTimes) -> pa.Array:
    """Return for each time whether it is late, as `Sessions.is_late` does for a single one."""
    outside, numbers = impossible_times(column), to_microseconds(column)
    if times.watermark is None:
        return outside
    return pc.or_(outside, pc.fill_null(pc.less_equal(numbers, pa.scalar(times.watermark - gap_us, pa.int64())), True))


@dataclass(frozen=True, slots=True)
class SessionAggregator:
    """Aggregates tuples, and sessions of several parts, to one row per key and session.

    `inner` aggregates rows of equal key and start.
    """

    inner: Aggregator
    key: tuple[str, ...]
    sessions: Sessions

    @property
    def combine_kinds(self) -> Mapping[str, str]:
        return dict.fromkeys(self.inner.combine_kinds, MERGED)

    @property
    def computed(self) -> ComputedColumns:
        return self.inner.computed

    def partial(self, batches: Iterable[pa.RecordBatch]) -> pa.Table:
        return self._merge_overlapping(self.inner.partial(batches))

    def combine(self, partials: Iterable[pa.Table]) -> pa.Table:
        # Without a part, the inner aggregator still knows the columns.
        tables = [table for table in partials if table.num_rows] or [self.inner.combine([])]
        return self._merge_overlapping(pa.concat_tables([table.select(tables[0].column_names) for table in tables]))

    def _merge_overlapping(self, rows: pa.Table) -> pa.Table:
        if rows.num_rows < 2:
            return rows
        starts, ends = (to_microseconds(rows[name].combine_chunks()).to_pylist() for name in (WINDOW_START, WINDOW_END))
        order, session_starts = list[int](), list[int]()
        for group in group_rows(rows, self.key):
            group.sort(key=starts.__getitem__)
            order += group
            session_starts += self.sessions.session_starts((starts[row], ends[row]) for row in group)
        column = rows.schema.get_field_index(WINDOW_START)
        moved = rows.take(pa.array(order, pa.int64())).set_column(
            column, rows.schema.field(column), pa.array(session_starts, pa.int64()).cast(TIMESTAMP)
        )
        # In two parts: the inner aggregator takes a single table for one that is aggregated already.
        return self.inner.combine([moved.slice(0, 1), moved.slice(1)])


class SessionUpdate(WindowsUpdate[Session]):
    """An update of a state whose rows are open sessions: see `UpdateKind.REPLACED`."""

    update_kind = UpdateKind.REPLACED

    def first_time(self, watermark_us: int, *, by_end: bool) -> int:
        return self.window.sessions.first_time(watermark_us, by_end=by_end)

    def aggregator(self) -> SessionAggregator:
        return SessionAggregator(self._update.aggregator(), self.key, self.window.sessions)

    @property
    def closed_columns(self) -> Schema:
        values, key = self.state.values, self.state.key
        value_names = [name for name in values.names if name != WINDOW_END]
        return Schema((*key.select(self.key), key[WINDOW_START], values[WINDOW_END], *values.select(value_names)))

    @property
    def windows_shown(self) -> str:
        """The gap, the greatest length and the time of the sessions, in microseconds."""
        sessions = self.window.sessions
        return f"sessions with gaps of {sessions.gap_us} us, up to {sessions.longest_us} us, by {self.window.time} time"

    @property
    def longest_wait_us(self) -> int:
        """The gap: a session ends that long after its last tuple."""
        return self.window.sessions.gap_us

    def closing(self, facts: BatchFacts | None) -> tuple[str, int | None, int] | None:
        times = self._times(facts)
        if times.watermark is None or (
            times.previous_watermark is not None and times.previous_watermark >= times.watermark
        ):
            return None
        return WINDOW_END, times.previous_watermark, times.watermark

    def close_windows(self, rows: pa.Table, facts: BatchFacts | None) -> pa.Table:
        schema = arrow_schema(self.closed_columns)
        return rows.select(schema.names).cast(schema)

    def rows_to_merge(self, attempt: TransactionAttempt, part: pa.Table, facts: BatchFacts | None) -> pa.Table | None:
        range_ = self.overlapping_range(part, facts)
        return None if range_ is None else self.state.rows_between(attempt, *range_)

    def overlapping_range(self, part: pa.Table, facts: BatchFacts | None) -> tuple[str, int | None, int] | None:
        """Return the range of ends of the stored sessions that may overlap with `part`, as `rows_between` takes it.

        None if `part` is empty.
        """
        if not part.num_rows:
            return None
        first_us = pc.min(to_microseconds(part[WINDOW_START].combine_chunks())).as_py()
        watermark = self._times(facts).watermark
        return WINDOW_END, first_us if watermark is None else max(first_us, watermark), _MOST_US

    def merge_rows(self, rows: pa.Table, part: pa.Table) -> MergedRows:
        """Merge stored sessions with those of a transaction. A session that became part of an earlier one is
        removed."""
        names = list(part.column_names)
        rows = self._rows_of_same_keys(rows, part)
        merged = self.aggregator().combine([rows, part]).select(names)
        key = [*self.key, WINDOW_START]
        old_rows, new_rows = (
            dict(zip(_key_tuples(table, key), table.to_pylist(), strict=True)) for table in (rows, merged)
        )
        is_changed = [row != old_rows.get(row_key) for row_key, row in new_rows.items()]
        is_removed = [row_key not in new_rows for row_key in old_rows]
        return MergedRows(
            merged.filter(pa.array(is_changed, pa.bool_())), rows.filter(pa.array(is_removed, pa.bool_())).select(key)
        )

    def _rows_of_same_keys(self, rows: pa.Table, part: pa.Table) -> pa.Table:
        """Return the stored rows whose keys occur in `part`. With several key columns it may return others as well."""
        for name in self.key:
            rows = rows.filter(pc.is_in(rows[name], pc.unique(part[name].combine_chunks())))
        return rows


def _key_tuples(table: pa.Table, key: list[str]) -> list[tuple[Any, ...]]:
    return list(zip(*(table[name].to_pylist() for name in key), strict=True))
