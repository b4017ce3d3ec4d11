"""What tasks send: one class for each kind of thing, addressed to a task of a later level or meant for the driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeGuard

from transactional.core.ports import DeadLetter
from transactional.core.ports.staged import SplitRows, StagedBytes, StagedFile
from transactional.model.batch import Digest, OffsetRange, PartitionId
from transactional.model.letters import Exclusion
from transactional.model.messages import Unfinished

Order = tuple[int, int, int]
"""The stage and the task that have sent an item, and its number among those of this task: makes the received items
the same on every retry."""

Subscription = tuple[str, str, str]
"""A component, one of its streams, and a bolt that subscribes to it."""


@dataclass(frozen=True, slots=True)
class Tuples:
    """For a task: what a component has emitted on one of its streams, as Arrow IPC."""

    order: Order
    level: int
    slot: int
    source: str
    stream: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Incomplete:
    """For a task: it receives less than everything, because the sender has failed."""

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
    """As Arrow IPC, or where the task has left that."""
    rows: int


@dataclass(frozen=True, slots=True)
class SetAside:
    """A tuple or a record of the source that has become a dead letter."""

    order: Order
    letter: DeadLetter


@dataclass(frozen=True, slots=True)
class PartialAggregates:
    """What one task has aggregated for a state's update, as Arrow IPC."""

    order: Order
    committer: str
    data: bytes


@dataclass(frozen=True, slots=True)
class StagedAggregates:
    """The file that a Spark task has written with what its tasks have aggregated for a state's update."""

    order: Order
    committer: str
    file: StagedFile


@dataclass(frozen=True, slots=True)
class SplitAggregates:
    """What one task has aggregated for a state's update that emits what it changes, left where the tasks of that step
    find it."""

    order: Order
    committer: str
    left: SplitRows


@dataclass(frozen=True, slots=True)
class PickledBolt:
    """An instance that continues in the commit phase (see `execution.pickling`)."""

    order: Order
    component: str
    data: bytes | StagedBytes


@dataclass(frozen=True, slots=True)
class TaskReport:
    """What a task has counted: tuples sent and received per subscription, and digests of the portions it has read."""

    order: Order
    sent: Mapping[Subscription, int]
    received: Mapping[Subscription, int]
    digests: Mapping[tuple[PartitionId, OffsetRange], Digest]
    late_counts: Mapping[str, int] = field(default_factory=dict)
    """Late tuples, by the component with the windows that have left them out."""
    counted: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """What bolts count themselves, by component and name."""


@dataclass(frozen=True, slots=True)
class NotFinished:
    """The messages that a bolt reports as not finished."""

    order: Order
    component: str
    what: Unfinished


@dataclass(frozen=True, slots=True)
class TaskFailure:
    """Why a task has failed: the code of the error to be raised in the driver, and the tuples at fault, if any are."""

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
    """False if it is for the driver."""
    return isinstance(item, ToTask)


def is_for_level(item: Item, level: int) -> TypeGuard[ToTask]:
    """True if a task of this level receives it."""
    return isinstance(item, ToTask) and item.level == level
