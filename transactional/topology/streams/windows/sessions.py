"""What session windows are compiled to: a step that makes each tuple a session of its own, an aggregator that merges
those that touch, and a state's update that puts merged ones in the place of those that are open."""

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
from transactional.topology.streams.aggregates.own import groups_of
from transactional.topology.streams.pipelines.steps import TimedStep
from transactional.topology.streams.windows.times import TIMESTAMP, WINDOW_END, WINDOW_START, are_outside, numbers_of
from transactional.topology.streams.windows.windowing import UpdateOfWindows
from transactional.topology.windows.windows import Session

MERGED = "session"
"""How the values of sessions are combined: by the update alone."""
_MOST_US = 2**63 - 1


@dataclass(frozen=True, slots=True)
class InSessions(TimedStep):
    """The tuples that are not late, each as the session that it would be alone. `time` is their field with the event
    time; None: the time is the transaction's."""

    leaves_out_late: ClassVar[bool] = True
    window: Session
    time: str | None

    def apply_with_facts(self, batch: pa.RecordBatch, facts: BatchFacts | None) -> pa.RecordBatch:
        """Leave out the late ones, and append start and end."""
        times, gap_us = times_of(facts, by_transaction=self.time is None), self.window.sessions.gap_us
        if self.time is None:
            starts = pa.array([times.now_us] * batch.num_rows, pa.int64())
        else:
            batch = batch.filter(pc.invert(are_late_for_sessions(gap_us, batch.column(self.time), times)))
            starts = numbers_of(batch.column(self.time))
        ends = pc.add(starts, pa.scalar(gap_us, pa.int64()))
        for name, column in ((WINDOW_START, starts), (WINDOW_END, ends)):
            batch = batch.append_column(pa.field(name, TIMESTAMP), column.view(TIMESTAMP))
        return batch


@dataclass(frozen=True, slots=True)
class LateForSessions(TimedStep):
    """The other tuples."""

    window: Session
    time: str

    def apply_with_facts(self, batch: pa.RecordBatch, facts: BatchFacts | None) -> pa.RecordBatch:
        """Leave out those on time."""
        times = times_of(facts, by_transaction=False)
        return batch.filter(are_late_for_sessions(self.window.sessions.gap_us, batch.column(self.time), times))


def are_late_for_sessions(gap_us: int, column: pa.Array, times: WindowTimes) -> pa.Array:
    """For each time whether it is late; what `Sessions.is_late` says, of columns."""
    outside, numbers = are_outside(column), numbers_of(column)
    if times.watermark is None:
        return outside
    return pc.or_(outside, pc.fill_null(pc.less_equal(numbers, pa.scalar(times.watermark - gap_us, pa.int64())), True))


@dataclass(frozen=True, slots=True)
class SessionAggregator:
    """Reduces tuples, and sessions, to one row per key and session. `inner` reduces rows of equal key and start."""

    inner: Aggregator
    key: tuple[str, ...]
    sessions: Sessions

    @property
    def combine_kinds(self) -> Mapping[str, str]:
        """No state can combine them."""
        return dict.fromkeys(self.inner.combine_kinds, MERGED)

    @property
    def computed(self) -> ComputedColumns:
        """Those of the inner one."""
        return self.inner.computed

    def partial(self, batches: Iterable[pa.RecordBatch]) -> pa.Table:
        """Input tuples → sessions."""
        return self._merged(self.inner.partial(batches))

    def combine(self, partials: Iterable[pa.Table]) -> pa.Table:
        """Sessions of several parts → sessions."""
        # Without a part the inner one knows which columns there are.
        tables = [table for table in partials if table.num_rows] or [self.inner.combine([])]
        return self._merged(pa.concat_tables([table.select(tables[0].column_names) for table in tables]))

    def _merged(self, rows: pa.Table) -> pa.Table:
        if rows.num_rows < 2:
            return rows
        starts, ends = (numbers_of(rows[name].combine_chunks()).to_pylist() for name in (WINDOW_START, WINDOW_END))
        order, begun = list[int](), list[int]()
        for group in groups_of(rows, self.key):
            group.sort(key=starts.__getitem__)
            order += group
            begun += self.sessions.begun((starts[at], ends[at]) for at in group)
        at = rows.schema.get_field_index(WINDOW_START)
        moved = rows.take(pa.array(order, pa.int64())).set_column(
            at, rows.schema.field(at), pa.array(begun, pa.int64()).cast(TIMESTAMP)
        )
        # In two parts, since one alone is taken for one that is reduced.
        return self.inner.combine([moved.slice(0, 1), moved.slice(1)])


class SessionUpdate(UpdateOfWindows[Session]):
    """An update each of whose rows is a session that is open: see `UpdateKind.REPLACED`."""

    update_kind = UpdateKind.REPLACED

    def first_time(self, watermark_us: int, *, by_end: bool) -> int:
        """Of its sessions."""
        return self.window.sessions.first_time(watermark_us, by_end=by_end)

    def aggregator(self) -> SessionAggregator:
        """That of the update, for sessions."""
        return SessionAggregator(self._update.aggregator(), self.key, self.window.sessions)

    @property
    def closed_columns(self) -> Schema:
        """The key, start and end of the session, and the values."""
        values, key = self.state.values, self.state.key
        others = [name for name in values.names if name != WINDOW_END]
        return Schema((*key.select(self.key), key[WINDOW_START], values[WINDOW_END], *values.select(others)))

    @property
    def windows_shown(self) -> str:
        """Gap, greatest length and time of the sessions, in numbers."""
        of = self.window.sessions
        return f"sessions with gaps of {of.gap_us} us, up to {of.longest_us} us, by {self.window.time} time"

    @property
    def longest_us(self) -> int:
        """The gap: that long after its last tuple a session ends."""
        return self.window.sessions.gap_us

    def closing(self, facts: BatchFacts | None) -> tuple[str, int | None, int] | None:
        """The sessions that end in this transaction."""
        times = self._times(facts)
        if times.watermark is None or (
            times.previous_watermark is not None and times.previous_watermark >= times.watermark
        ):
            return None
        return WINDOW_END, times.previous_watermark, times.watermark

    def close_windows(self, rows: pa.Table, facts: BatchFacts | None) -> pa.Table:
        """As they are."""
        schema = arrow_schema(self.closed_columns)
        return rows.select(schema.names).cast(schema)

    def rows_to_merge(self, attempt: TransactionAttempt, part: pa.Table, facts: BatchFacts | None) -> pa.Table | None:
        """The sessions that end after the first of these begins."""
        asked = self.touching(part, facts)
        return None if asked is None else self.state.rows_between(attempt, *asked)

    def touching(self, part: pa.Table, facts: BatchFacts | None) -> tuple[str, int | None, int] | None:
        """Which rows they are, as `rows_between` takes it. None: nothing has come."""
        if not part.num_rows:
            return None
        first_us = pc.min(numbers_of(part[WINDOW_START].combine_chunks())).as_py()
        watermark = self._times(facts).watermark
        return WINDOW_END, first_us if watermark is None else max(first_us, watermark), _MOST_US

    def merge_rows(self, rows: pa.Table, part: pa.Table) -> MergedRows:
        """What sessions have become with those of a transaction, and the keys of those that are parts of others now."""
        names = list(part.column_names)
        rows = self._of_keys(rows, part)
        both = self.aggregator().combine([rows, part]).select(names)
        key = [*self.key, WINDOW_START]
        before, after = (dict(zip(_keys(table, key), table.to_pylist(), strict=True)) for table in (rows, both))
        changed = [row != before.get(at) for at, row in after.items()]
        gone = [at not in after for at in before]
        return MergedRows(
            both.filter(pa.array(changed, pa.bool_())), rows.filter(pa.array(gone, pa.bool_())).select(key)
        )

    def _of_keys(self, rows: pa.Table, part: pa.Table) -> pa.Table:
        """The rows of the keys of a transaction; where a key has several columns, maybe of more."""
        for name in self.key:
            rows = rows.filter(pc.is_in(rows[name], pc.unique(part[name].combine_chunks())))
        return rows


def _keys(table: pa.Table, key: list[str]) -> list[tuple[Any, ...]]:
    return list(zip(*(table[name].to_pylist() for name in key), strict=True))
