"""The port of a state's update, which is a committer without user code, and the port of what keeps open windows.

`PersistentAggregate` says how the tuples of a batch become rows of a state, and which windows close in a transaction;
the commit phase of the engine calls it. `Windowed` is what both an update with windows and a windowed bolt say of their
windows: the watermark is computed from it. All of it is deterministic: a replay makes the same rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from transactional.core.ports.partials import Aggregator, can_combine_all
from transactional.core.ports.split import Closer
from transactional.core.ports.states import State
from transactional.model.arrow.computed import ComputedColumns
from transactional.model.attempt import TransactionAttempt
from transactional.model.facts import BatchFacts
from transactional.model.schema import Schema

if TYPE_CHECKING:
    import pyarrow as pa


class UpdateKind(Enum):
    """How the partial aggregates of a transaction become rows of the state.

    COMBINED: the state combines them with the values from before the transaction.
    COMPUTED: only the update's aggregator can combine them, so the new values are computed before they are merged.
    REPLACED: rows depend on one another, as sessions do that grow into one. `merge_rows` says which rows change and
        which are removed, and the result is put.
    """

    COMBINED = "combined"
    COMPUTED = "computed"
    REPLACED = "replaced"


@dataclass(frozen=True, slots=True)
class MergedRows:
    """The result of a transaction for rows that depend on one another.

    `changed` are the new rows, `removed` are rows whose keys are deleted, and `closed` are the windows that the
    transaction fills, if windows do not close by time.
    """

    changed: pa.Table
    removed: pa.Table
    closed: pa.Table | None = None


class PersistentAggregate(ABC):
    """A committer without user code: aggregates a batch and merges it into a state (Trident's persistentAggregate).

    If its state keeps open windows, the windows that close in a transaction are emitted on a stream of their own. They
    are read from the state as it was before the transaction, since none of the transaction's tuples can belong to them.
    The defaults of this class are those of an update without windows.
    """

    @property
    @abstractmethod
    def state(self) -> State:
        """The state that is updated."""

    @property
    @abstractmethod
    def input_fields(self) -> tuple[str, ...]:
        """The fields that the input must have."""

    @abstractmethod
    def bind_input(self, input: Schema, *, used_by: str) -> None:
        """Determine the columns of the state from the input. Raises `ConfigError` if fields or types do not match."""

    @property
    @abstractmethod
    def combine(self) -> Mapping[str, str]:
        """The word for how the values of each column are combined. Stored with the topology's progress."""

    @property
    @abstractmethod
    def aggregates_shown(self) -> Mapping[str, str]:
        """A description of the aggregate and its field, by column. Stored with the topology's progress."""

    @property
    def aggregates(self) -> Mapping[str, object]:
        """The aggregate of each stored column that has one."""
        return {}

    @abstractmethod
    def aggregator(self) -> Aggregator:
        """The picklable part, which runs on executors."""

    @property
    def update_kind(self) -> UpdateKind:
        """How partial aggregates become rows of the state."""
        return UpdateKind.COMBINED if can_combine_all(self.aggregator().combine_kinds) else UpdateKind.COMPUTED

    @property
    def computed(self) -> ComputedColumns:
        """The columns that are computed of the stored ones when rows are read."""
        return self.aggregator().computed

    # --- windows that close -----------------------------------------------------------------------------------------

    @property
    def closed_fields(self) -> Schema:
        """The fields of the stream of closed windows. Empty without windows."""
        return Schema(())

    def closing(self, facts: BatchFacts | None) -> tuple[str, int | None, int] | None:
        """Return the range of rows in which the closing windows are, or None if no window closes.

        The range is a timestamp column, and `after` and `until` of `State.rows_between`.
        """
        return None

    def close_windows(self, rows: pa.Table, facts: BatchFacts | None) -> pa.Table:
        """Make the windows that close in a transaction from the rows of the `closing` range."""
        return rows.slice(0, 0)

    @property
    def split_by(self) -> tuple[str, ...]:
        """Columns of the state's key in which all rows of a window are equal. () if there are none.

        The keys are split among tasks by these columns, so that each task closes the windows of its keys.
        """
        return ()

    @property
    def window_key(self) -> tuple[str, ...]:
        """Fields that identify a closing window, under their names in the state. () if nothing identifies it."""
        return ()

    def window_closer(self) -> Closer | None:
        """Return the picklable part that closes windows in a task, or None if only the driver can."""
        return None

    # --- rows that depend on one another ----------------------------------------------------------------------------

    def rows_to_merge(self, attempt: TransactionAttempt, part: pa.Table, facts: BatchFacts | None) -> pa.Table | None:
        """Read the rows with which the partial aggregates `part` may have to be merged, and perhaps more rows.

        The rows are as they were before the transaction. None if there are no partial aggregates.
        """
        return (
            self.state.parts.lookup.rows_before(attempt, part.select(list(self.state.key.names)))
            if part.num_rows
            else None
        )

    def merge_rows(self, rows: pa.Table, part: pa.Table) -> MergedRows:
        """Merge the partial aggregates `part` into `rows`, the result of `rows_to_merge`.

        Both tables have the columns of the state.
        """
        return MergedRows(self.aggregator().combine([rows, part]), rows.slice(0, 0))


class TupleAggregate:
    """An aggregate whose values are the tuples themselves."""

    joined_on: Mapping[str, str] = MappingProxyType({})
    """The fields of each joined stream that are compared, and its time field. Empty unless streams are joined."""

    def tuple_fields(self, column: str) -> Mapping[str, Schema]:
        """Return the fields of the tuples: by stream if streams are joined, else under the name of the column."""
        raise NotImplementedError


class LateCounter:
    """A bolt of the framework that skips late tuples."""

    late_counts: Counter[str]
    """The number of skipped tuples, by the component that has the windows."""


class Windowed(ABC):
    """A component that keeps open windows: an update of a state, or a bolt."""

    time: str | None = None
    """The time field of the tuples. None if the transaction's own time counts, or no time at all."""
    time_is_window_end: bool = False
    """True if the tuples are windows of another component, and their time field is the end of the window."""
    processed_window: str = ""
    """The window that user code is processing, for messages."""

    @property
    @abstractmethod
    def windows_shown(self) -> str:
        """The windows in words: their length, and all else that the meaning of a row depends on.

        Stored with the topology's progress.
        """

    @property
    def tuple_fields(self) -> Schema | None:
        """The fields of the tuples that wait in open windows. None if windows hold aggregates."""
        return None

    @property
    def closes_without_input(self) -> bool:
        """True if time closes windows even while nothing is read."""
        return False

    @property
    @abstractmethod
    def longest_wait_us(self) -> int:
        """The longest span, in microseconds, from the time of a tuple to the end of its last window."""

    @property
    def depends_on_order(self) -> bool:
        """True if the order of tuples decides which windows they are in, as in windows by count.

        Another number of tasks may change that order. Such windows have no times.
        """
        return False

    def count_open_windows(self, facts: BatchFacts, newest_us: int | None) -> int | None:
        """Count the windows of one key that can still get tuples, up to the window of the newest event time.

        None if windows do not depend on time, or no time is known yet.
        """
        return None

    def comparable(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the values of a row of its state in a form in which equal windows have equal values."""
        return values

    @abstractmethod
    def first_time(self, watermark_us: int, *, by_end: bool) -> int:
        """The earliest start that a window may have, or the earliest end, that has not closed at `watermark_us`."""
