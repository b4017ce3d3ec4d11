"""The port of a state's update: a committer without user code, and of windows, which some of them keep."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from transactional.core.ports.partials import Aggregator, are_known
from transactional.core.ports.split import Closer
from transactional.core.ports.states import State
from transactional.model.arrow.computed import ComputedColumns
from transactional.model.attempt import TransactionAttempt
from transactional.model.facts import BatchFacts
from transactional.model.schema import Schema

if TYPE_CHECKING:
    import pyarrow as pa


class UpdateKind(Enum):
    """How what a transaction brings becomes rows of the state.

    COMBINED: the state combines partial aggregates with the values before.
    COMPUTED: only the update's aggregator can combine them, so the new values are computed before they are merged.
    REPLACED: rows depend on one another, as windows do that grow together: `merged` says which rows change and which
        go, and they are put.
    """

    COMBINED = "combined"
    COMPUTED = "computed"
    REPLACED = "replaced"


@dataclass(frozen=True, slots=True)
class Merged:
    """What a transaction makes of rows that depend on one another: those that change, as they are then; keys of rows
    that go; and the windows that it fills, if they do not close by time."""

    changed: pa.Table
    gone: pa.Table
    closed: pa.Table | None = None


class PersistentAggregate(ABC):
    """A committer without user code: aggregates a batch and merges it into a state (Trident's persistentAggregate).

    If its state keeps windows that are open, those that close in a transaction are emitted on a stream of their own:
    they are read from the state as it was before the transaction, to which no tuple of it can belong. What one without
    windows inherits says that none closes.
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
    def check_input(self, input: Schema, *, used_by: str) -> None:
        """Raise `ConfigError` if the input's fields or types do not match."""

    @property
    @abstractmethod
    def combine(self) -> Mapping[str, str]:
        """How the values of each column are combined, which is what they mean; kept with the topology's progress."""

    @property
    @abstractmethod
    def aggregates_shown(self) -> Mapping[str, str]:
        """Which aggregate of which field each column is; kept with the topology's progress."""

    @property
    def aggregates(self) -> Mapping[str, object]:
        """What makes each stored column, as far as it is an aggregate; none if that is not known."""
        return {}

    @abstractmethod
    def aggregator(self) -> Aggregator:
        """The picklable part, which runs on executors."""

    @property
    def update_kind(self) -> UpdateKind:
        """How what a transaction brings becomes rows of the state."""
        return UpdateKind.COMBINED if are_known(self.aggregator().combine_kinds) else UpdateKind.COMPUTED

    @property
    def computed(self) -> ComputedColumns:
        """The columns that are computed of the stored ones when rows are read."""
        return self.aggregator().computed

    # --- windows that close -----------------------------------------------------------------------------------------

    @property
    def closed_fields(self) -> Schema:
        """The fields of the stream of windows that close; without windows none."""
        return Schema(())

    def closing(self, facts: BatchFacts | None) -> tuple[str, int | None, int] | None:
        """Which rows a transaction reads for it: a timestamp column, and `after` and `until` as `rows_between` takes
        them. None: no window closes."""
        return None

    def closed(self, rows: pa.Table, facts: BatchFacts | None) -> pa.Table:
        """The windows that close, of these rows."""
        return rows.slice(0, 0)

    @property
    def split_by(self) -> tuple[str, ...]:
        """Columns of the state's key in which all rows of a window are equal, so that tasks can close windows, each
        those of its part of the keys; () if there are none."""
        return ()

    @property
    def window_key(self) -> tuple[str, ...]:
        """Fields of a window that closes, by which it differs from all others, under these names; () if it may not."""
        return ()

    def closer(self) -> Closer | None:
        """What a task takes along that closes windows; None: only the driver can."""
        return None

    # --- rows that depend on one another ----------------------------------------------------------------------------

    def touched(self, attempt: TransactionAttempt, part: pa.Table, facts: BatchFacts | None) -> pa.Table | None:
        """The rows of the state, as they were before the transaction, with which partial aggregates may have to be
        merged; maybe more. None: there are no partial aggregates."""
        return self.state.rows_before(attempt, part.select(list(self.state.key.names))) if part.num_rows else None

    def merged(self, rows: pa.Table, part: pa.Table) -> Merged:
        """What becomes of those rows. Both tables have the columns of the state."""
        return Merged(self.aggregator().combine([rows, part]), rows.slice(0, 0))


class KeepsTuples:
    """An aggregate whose values are the tuples themselves."""

    joined_on: Mapping[str, str] = MappingProxyType({})
    """Of several streams, by name: the fields that are compared, and the one with the time."""

    def kept_fields(self, column: str) -> Mapping[str, Schema]:
        """The fields of the tuples, of several streams by the stream, otherwise under the name of the column."""
        raise NotImplementedError


class CountsLate:
    """A bolt of ours that leaves out late tuples, and counts them by the component that has the windows."""

    left_out: Counter[str]


class Windowed(ABC):
    """What keeps windows that are open: an update of a state, or a bolt."""

    time: str | None = None
    """The field with the time of their tuples; None: it is that of the transaction, or none matters."""
    goes_by_end: bool = False
    """Whether the time of its tuples is the end of windows that it counts."""
    processed_window: str = ""
    """The window that user code is processing, for messages."""

    @property
    @abstractmethod
    def windows_shown(self) -> str:
        """Their length and what else a row's meaning depends on; kept with the topology's progress."""

    @property
    def kept_fields(self) -> Schema | None:
        """The fields of the tuples that are kept for them; None: what is kept are aggregates."""
        return None

    @property
    def closes_without_input(self) -> bool:
        """Whether windows close also if nothing is read, because time passes."""
        return False

    @property
    @abstractmethod
    def longest_us(self) -> int:
        """How long after a time, in microseconds, the last window may end that it is in."""

    @property
    def goes_by_order(self) -> bool:
        """Whether the order of tuples decides in which windows they are, which another number of tasks may change. It
        has no times then."""
        return False

    def open_windows(self, facts: BatchFacts, newest_us: int | None) -> int | None:
        """How many windows can still get tuples that are not late, up to the one of the newest event time, whatever the
        number of keys. None: no time says so, or none is known yet."""
        return None

    def comparable(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """The values of a row of its state, so that those of equal windows are equal."""
        return values

    @abstractmethod
    def first_time(self, watermark_us: int, *, by_end: bool) -> int:
        """The earliest start that a window may have, or the earliest end, that has not closed at `watermark_us`."""
