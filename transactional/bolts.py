"""The kinds of bolt that a user writes: per tuple, per batch, on Arrow data; and the objects passed to them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from transactional.attempt import TransactionAttempt
from transactional.groupings import DEFAULT_STREAM

if TYPE_CHECKING:
    import pyarrow as pa

Key = tuple[Any, ...]
"""The values of a state's key columns, in order."""


@dataclass(frozen=True, slots=True)
class Tuple:
    """One tuple of a stream: values by position or by field name.

    `source` is the id of the component that emitted it, `stream` the name of the stream it was emitted on.
    """

    fields: tuple[str, ...]
    values: tuple[Any, ...]
    source: str
    stream: str = DEFAULT_STREAM

    def __getitem__(self, field: str | int) -> Any:
        if isinstance(field, int):
            return self.values[field]
        if field not in self.fields:
            raise KeyError(f"{self.source!r} emits no field {field!r}; its fields are {', '.join(self.fields)}")
        return self.values[self.fields.index(field)]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __len__(self) -> int:
        return len(self.values)

    def as_dict(self) -> dict[str, Any]:
        """Field name to value."""
        return dict(zip(self.fields, self.values, strict=True))


class OutputCollector(Protocol):
    """Receives what a bolt emits, on its default stream or another one declared in `streams`."""

    def emit(self, *values: Any, stream: str = DEFAULT_STREAM) -> None:
        """Emit one tuple: a value for each field of the stream, in order."""

    def emit_batch(self, batch: pa.RecordBatch | pa.Table, *, stream: str = DEFAULT_STREAM) -> None:
        """Emit many tuples at once, as Arrow columns named like the stream's fields."""

    def emit_direct(self, component: str, task: int, *values: Any, stream: str = DEFAULT_STREAM) -> None:
        """Emit one tuple to one task, counted from 0, of a bolt that has subscribed with `direct_grouping`."""


class MapState(Protocol):
    """Key → values, as a committer bolt sees its state in `finish_batch`.

    Reads return the state before this transaction, plus what this attempt has put. Puts become visible with the
    transaction commit, all or none of them. A timestamp without a time zone is in UTC.
    """

    def get(self, *key: Any) -> Any:
        """The value of one key: None if it does not exist, a tuple if the state has several value columns.

        `get("a", 1)` and `get(("a", 1))` read the same key.
        """

    def multi_get(self, keys: Sequence[Key]) -> list[Any]:
        """The values of several keys, in order, read at once."""

    def put(self, key: Key | Any, value: Any) -> None:
        """Set the value of one key."""

    def multi_update(self, keys: Sequence[Key], update: Callable[[Any], Any]) -> list[Any]:
        """Set each key to `update(its value)`; return the new values."""


@dataclass(frozen=True, slots=True)
class TopologyContext:
    """What a task of a bolt knows about itself. `options` is the mapping passed to `build()`; `subscribers` maps each
    bolt that subscribes to this one to its number of tasks, for `emit_direct`."""

    topology_id: str
    component_id: str
    task_index: int
    task_count: int
    options: Mapping[str, Any]
    state: MapState | None = None
    """The state of a committer bolt; usable in `finish_batch` only. None for any other bolt."""
    subscribers: Mapping[str, int] = field(default_factory=dict)


class Bolt:
    """Base of the bolts that are classes. An instance passed to the builder is a prototype: each task of each attempt
    uses a fresh copy of it.

    `output` declares the emitted fields in Spark's DDL; a bolt that emits nothing leaves it empty. `streams` declares
    the fields of additional streams by name.
    """

    output: ClassVar[str] = ""
    streams: ClassVar[Mapping[str, str]] = {}


class BasicBolt(Bolt, ABC):
    """Processes one tuple at a time and is not aware of batches."""

    def prepare(self, context: TopologyContext) -> None:
        """Called once per task and attempt, before the first tuple."""

    @abstractmethod
    def execute(self, tuple: Tuple, collector: OutputCollector) -> None:
        """Process one tuple."""


class BatchBolt(Bolt, ABC):
    """Processes the tuples of one batch that reach one task.

    Added with `set_committer_bolt` it is a committer: `finish_batch` then runs in the commit phase, in txid order.
    """

    @abstractmethod
    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        """Called once, before the first tuple of the batch; also if there is none."""

    @abstractmethod
    def execute(self, tuple: Tuple) -> None:
        """Process one tuple."""

    @abstractmethod
    def finish_batch(self) -> None:
        """Called once, after the last tuple of the batch; also if there was none."""


class ArrowBatchBolt(Bolt, ABC):
    """A `BatchBolt` that receives its tuples as Arrow record batches instead of one by one.

    With several inputs, `transactional.arrow.origin_of` returns the component and the stream of a batch.
    """

    @abstractmethod
    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        """Called once, before the first record batch; also if there is none."""

    @abstractmethod
    def execute_batch(self, batch: pa.RecordBatch) -> None:
        """Process some tuples of the batch: columns named like the fields of the upstream component."""

    def finish_batch(self) -> None:
        """Called once, after the last record batch; also if there was none."""
