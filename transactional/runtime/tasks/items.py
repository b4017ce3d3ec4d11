"""The items that tasks send: one class for each kind, for a task of a later level or for the driver.

Items are data: they are pickled, and travel through Spark's shuffle, a worker's pipe or memory. A failure is an item,
too. The order of an item makes a replay combine the same items in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeGuard

from transactional.core.ports import DeadLetter
from transactional.core.ports.staged import SplitRows, StagedBytes, StagedFile
from transactional.model.batch import PortionRow
from transactional.model.letters import Exclusion
from transactional.model.messages import Unfinished

Order = tuple[int, int, int]
"""The stage and the task that have sent an item, and its number among the items of that task. Sorted by it, received
items are the same on every retry."""

DigestRow = tuple[PortionRow, int, int, int, int | None]
"""A portion that was read, and the fields of its `Digest`."""

Subscription = tuple[str, str, str]
"""A component, one of its streams, and a bolt that subscribes to it."""


@dataclass(frozen=True, slots=True)
class Tuples:
    """Tuples for a task, as Arrow IPC, that a component has emitted on one of its streams."""

    order: Order
    level: int
    slot: int
    source: str
    stream: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Incomplete:
    """A note for a task that its input is incomplete, because the sender has failed."""

    order: Order
    level: int
    slot: int


@dataclass(frozen=True, slots=True)
class TuplesToCommit:
    """Tuples for a task of a bolt that runs in the commit phase."""

    order: Order
    source: str
    stream: str
    target: str
    task: int
    data: bytes | StagedBytes
    """Arrow IPC, or the staged file with it."""
    rows: int


@dataclass(frozen=True, slots=True)
class SetAside:
    """A tuple or a record of the source that has become a dead letter."""

    order: Order
    letter: DeadLetter


@dataclass(frozen=True, slots=True)
class PartialAggregates:
    """The partial aggregates of one task for a state's update, as Arrow IPC."""

    order: Order
    committer: str
    data: bytes


@dataclass(frozen=True, slots=True)
class StagedAggregates:
    """A staged file of a Spark task with the partial aggregates of its tasks for a state's update."""

    order: Order
    committer: str
    file: StagedFile


@dataclass(frozen=True, slots=True)
class SplitAggregates:
    """The partial aggregates of one task for a state's update that emits its changes, staged for the tasks of that
    step."""

    order: Order
    committer: str
    rows: SplitRows


@dataclass(frozen=True, slots=True)
class PickledBolt:
    """An instance that continues in the commit phase (see `pickling`)."""

    order: Order
    component: str
    data: bytes | StagedBytes


@dataclass(frozen=True, slots=True)
class TaskReport:
    """The counts of a task: tuples sent and received per subscription, and the digests of the portions that it has
    read."""

    order: Order
    sent: Mapping[Subscription, int]
    received: Mapping[Subscription, int]
    digests: tuple[DigestRow, ...]
    late_counts: Mapping[str, int] = field(default_factory=dict)
    """Late tuples, by the component with the windows that have left them out."""
    counted: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """The bolts' own counters, by component and name."""


@dataclass(frozen=True, slots=True)
class NotFinished:
    """The messages that a bolt reports as unfinished."""

    order: Order
    component: str
    unfinished: Unfinished


@dataclass(frozen=True, slots=True)
class TaskFailure:
    """The failure of a task: the code of the error to raise in the driver, and the tuples at fault, if any are
    known."""

    order: Order
    component: str
    code: str
    text: str
    at_fault: tuple[Exclusion, ...] = ()


@dataclass(frozen=True, slots=True)
class TaskTime:
    """The duration of the first-level tasks that one Spark task has run."""

    order: Order
    elapsed_ms: float


ToTask = Tuples | Incomplete
ToDriver = (
    TuplesToCommit
    | SetAside
    | PartialAggregates
    | StagedAggregates
    | SplitAggregates
    | PickledBolt
    | TaskReport
    | NotFinished
    | TaskFailure
    | TaskTime
)
Item = ToTask | ToDriver


def is_for_task(item: Item) -> TypeGuard[ToTask]:
    """Return whether a task receives the item, rather than the driver."""
    return isinstance(item, ToTask)


def is_for_level(item: Item, level: int) -> TypeGuard[ToTask]:
    """Return whether a task of this level receives the item."""
    return isinstance(item, ToTask) and item.level == level
