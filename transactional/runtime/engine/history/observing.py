"""The ports of observers, and the notices that they get.

The journal, the display, metrics, traces and logs are observers. An observer is called in the driver's thread and in
order, with each event and the actions that followed. `NoticeObserver`s also get notices, which are no events of the
protocol, such as a renewed lease or the maintenance of a table. An observer must not change what it is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from transactional.core.machine.protocol import Action, Event
from transactional.core.store import AttemptRecord, Lease
from transactional.core.store.history import RunEnd, RunRecord
from transactional.core.store.progress import Progress
from transactional.model.attempt import TxId
from transactional.model.batch import BatchMetadata
from transactional.model.config import TopologyConfig
from transactional.model.guarantees import Guarantee
from transactional.runtime.engine.history.timeline import Flight


@dataclass(frozen=True, slots=True)
class StandingBy:
    """The run waits until no other process leads the topology."""


@dataclass(frozen=True, slots=True)
class Leading:
    """The run has the lease, and every table is fenced.

    `previous_run` is the run before this one, or None if this is the first; its `end` is `LOST` if its process died.
    `interrupted` has the attempts that were in flight when it ended.
    """

    lease: Lease
    previous_run: RunRecord | None
    interrupted: Sequence[AttemptRecord] = ()


@dataclass(frozen=True, slots=True)
class LeaseRenewed:
    """The lease was renewed for `lease_ms` milliseconds from now on."""

    lease_ms: int


@dataclass(frozen=True, slots=True)
class StoreWritten:
    """The coordinator's store has confirmed a write. `took_ms` includes waiting for a store that did not respond."""

    write: str
    took_ms: float


@dataclass(frozen=True, slots=True)
class Committed:
    """A transaction is committed. `details` is what the store keeps about it: lag, tuples, times of states, letters."""

    flight: Flight
    batch: BatchMetadata
    details: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Maintained:
    """A committer's table was maintained: compacted, vacuumed."""

    component: str
    took_ms: int


@dataclass(frozen=True, slots=True)
class Recovered:
    """A problem is resolved: `how` says by what. It has lasted `after_ms`."""

    txid: TxId
    failures: int
    after_ms: int
    how: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The run has ended, as `end` says; with `error`, if that is what ended it."""

    end: RunEnd
    committed_txid: TxId | None
    error: BaseException | None = None


Notice = StandingBy | Leading | LeaseRenewed | StoreWritten | Committed | Maintained | Recovered | Ended


class Observer(Protocol):
    """Notified of every event and the actions that followed, after they were performed."""

    def __call__(self, at_ms: int, event: Event, actions: Sequence[Action]) -> None:
        """Take in an event. `at_ms` is wall-clock time."""


@runtime_checkable
class RunObserver(Observer, Protocol):
    """An observer that is also notified of the start of a run, before the first event."""

    def begin(
        self,
        at_ms: int,
        progress: Progress,
        config: TopologyConfig,
        *,
        replays_exactly: bool,
        sets_aside: bool,
        guarantee: Guarantee,
        has_windows: bool,
    ) -> None:
        """Take in the start of a run: the arguments are those that its coordinator is created from."""


@runtime_checkable
class NoticeObserver(Observer, Protocol):
    """An observer that is also notified of notices, which are no events of the protocol."""

    def notice(self, at_ms: int, notice: Notice) -> None:
        """Take in a notice. `at_ms` is wall-clock time."""
