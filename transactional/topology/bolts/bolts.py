"""The kinds of bolts that a user writes: per tuple, per batch, on Arrow data; and the objects that are passed to them.

A bolt is a prototype, which is copied for each task of each attempt. So it keeps nothing from one batch to the next:
what must last belongs in a state.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from transactional.model.attempt import TransactionAttempt
from transactional.model.errors import ConfigError
from transactional.model.facts import BatchFacts
from transactional.model.groupings import DEFAULT_STREAM
from transactional.model.user_code.overrides import OverridesChecked
from transactional.model.user_code.storm_names import NamesOfMetrics, StormNames
from transactional.model.user_code.tuples import Key, Tuple

if TYPE_CHECKING:
    import pyarrow as pa

    from transactional.model.reading import Lookups

COUNTERS_MAX: Final = 100
"""The largest number of counters of a component. Each is a time series for as long as a run lasts."""
_NAME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9_.-]{0,63}")


class OutputCollector(Protocol):
    """Receives the tuples that a bolt emits, on its default stream or another one declared in `streams`."""

    def emit(self, *values: object, stream: str = DEFAULT_STREAM) -> None:
        """Emit a tuple, with a value for each field of the stream, in order."""

    def emit_batch(self, batch: pa.RecordBatch | pa.Table, *, stream: str = DEFAULT_STREAM) -> None:
        """Emit many tuples at once, as Arrow columns named like the stream's fields."""

    def emit_direct(self, component: str, task: int, *values: object, stream: str = DEFAULT_STREAM) -> None:
        """Emit a tuple to one task, counted from 0, of a bolt that has subscribed with `direct_grouping`."""


class MapState(Protocol):
    """The keys and values of a state, as a committer bolt sees them in `finish_batch`.

    Reads return the state before this transaction, plus what this attempt has put. Puts become visible with the
    transaction commit, all or none of them. A timestamp without a time zone is in UTC.
    """

    def get(self, *key: object) -> Any:
        """Return the value of one key: None if it does not exist, a tuple if the state has several value columns.

        `get("a", 1)` and `get(("a", 1))` read the same key.
        """

    def multi_get(self, keys: Sequence[Key]) -> list[Any]:
        """Return the values of several keys, in order, in one read."""

    def put(self, key: object, value: object) -> None:
        """Set the value of one key."""

    def delete(self, *key: object) -> None:
        """Delete one key, whether or not it exists. The state needs `deletes=True`."""

    def multi_update(self, keys: Sequence[Key], update: Callable[[Any], Any]) -> list[Any]:
        """Set each key to `update(its value)`, and return the new values."""


class BoltCounter:
    """A counter of a bolt, which only grows."""

    __slots__ = ("_metrics", "_name")

    def __init__(self, metrics: BoltMetrics, name: str) -> None:
        self._metrics, self._name = metrics, name

    def increment(self, by: int = 1) -> None:
        """Add a number to the counter. Raises `ConfigError` unless it is a whole number that is not negative."""
        if not _is_growth(by):
            raise ConfigError(
                f"{self._metrics.component!r} increments its counter {self._name!r} by {by!r}; a counter only "
                "grows, by whole numbers"
            )
        self._metrics.counts[self._name] += by


class BoltMetrics(NamesOfMetrics):
    """The counters of a bolt in one task of one attempt.

    Counts until the end of `finish_batch` become visible with the transaction commit. The counts of a failed attempt
    are dropped.
    """

    def __init__(self, component: str = "") -> None:
        self.component = component
        self.counts = Counter[str]()

    def counter(self, name: str) -> BoltCounter:
        """Return the counter with this name, which begins at 0. A name is a word of the program, not a value of the
        data.

        Raises `ConfigError` for a name that is not a letter and then at most 63 letters, digits, `_`, `.` and `-`, and
        for more than 100 names.
        """
        if not _is_name(name):
            raise ConfigError(
                f"{self.component!r} has a counter {name!r}; a name is a letter and then at most 63 letters, digits, "
                "'_', '.' and '-'"
            )
        if name not in self.counts and len(self.counts) == COUNTERS_MAX:
            raise ConfigError(
                f"{self.component!r} has more than {COUNTERS_MAX} counters, the last one {name!r}; a name is a word of "
                "the program: put values of the data into a state instead"
            )
        self.counts.setdefault(name, 0)
        return BoltCounter(self, name)


def _is_growth(number: object) -> bool:
    return isinstance(number, int) and number >= 0


def _is_name(name: object) -> bool:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class TopologyContext(StormNames):
    """The surroundings of a bolt in one task: ids, numbers of tasks, options.

    `options` is the mapping passed to `build()`. `subscribers` has, for `emit_direct`, each bolt that subscribes to
    this one with its number of tasks.
    """

    topology_id: str
    component_id: str
    task_index: int
    task_count: int
    options: Mapping[str, Any]
    state: MapState | None = None
    """The state of a committer bolt; usable in `finish_batch` only. None for any other bolt."""
    subscribers: Mapping[str, int] = field(default_factory=dict)
    batch: BatchFacts | None = None
    """The facts of the batch, which are the same in every replay. None for a batch that was recorded without them."""
    shared: dict[str, Any] = field(default_factory=dict)
    """A mapping that bolts in the same task of the same attempt share."""
    lookups: Lookups | None = None
    """The look-ups of the states that the bolt reads, by the id of the committer. Usable in `finish_batch` only."""
    metrics: BoltMetrics = field(default_factory=BoltMetrics, compare=False)
    """The counters of the bolt: `metrics.counter("parsed").increment()`."""


class Bolt(OverridesChecked):
    """The base of bolts that are classes. An instance passed to the builder is a prototype: each task of each attempt
    uses a copy.

    `output` declares the emitted fields in Spark's DDL; it is empty for a bolt that emits nothing. `streams` declares
    the fields of additional streams by name.
    """

    output: ClassVar[str] = ""
    streams: ClassVar[Mapping[str, str]] = {}


class BasicBolt(Bolt, ABC):
    """Processes one tuple at a time, without knowledge of batches."""

    def prepare(self, context: TopologyContext) -> None:
        """Prepare for a batch. Called once per task and attempt, before the first tuple."""

    @abstractmethod
    def execute(self, tuple: Tuple, collector: OutputCollector) -> None:
        """Process one tuple, and emit any number of tuples to `collector`."""


class BatchBolt(Bolt, ABC):
    """Processes the tuples of one batch that reach one task.

    Added with `set_committer_bolt` it is a committer: `finish_batch` then runs in the commit phase, in txid order.
    """

    @abstractmethod
    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        """Prepare for a batch. Called once, before the first tuple, even if there is none."""

    @abstractmethod
    def execute(self, tuple: Tuple) -> None:
        """Process one tuple of the batch that has reached this task."""

    @abstractmethod
    def finish_batch(self) -> None:
        """Finish the batch. Called once, after the last tuple, even if there was none."""


class ArrowBatchBolt(Bolt, ABC):
    """A `BatchBolt` that receives its tuples as Arrow record batches instead of one by one.

    With several inputs, `transactional.model.arrow.origin_of` returns the component and the stream of a batch.
    """

    @abstractmethod
    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        """Prepare for a batch. Called once, before the first record batch, even if there is none."""

    @abstractmethod
    def execute_batch(self, batch: pa.RecordBatch) -> None:
        """Process some tuples of the batch, in columns named like the fields of the upstream component."""

    def finish_batch(self) -> None:
        """Finish the batch. Called once, after the last record batch, even if there was none."""
